//! Which routes attach to which listeners and Services.

use std::sync::Arc;

use super::listeners::{Heard, Open, is_ours};
use super::{World, meant, refusal, rules};
use crate::mesh::gateway_api::{GROUP, Gateway, Parent, Reason, Refusal, Route};
use crate::mesh::{HttpRoute, LayerFourRoute, Service};
use crate::names::{Hostname, Port};

/// A route, and what became of it.
pub(super) struct Outcome<'m> {
    pub(super) route: &'m Arc<Route>,
    /// Its rules, with their destinations.
    pub(super) rules: Vec<HttpRoute>,
    /// The same of connections.
    pub(super) connections: Vec<LayerFourRoute>,
    /// References that cannot be used.
    pub(super) unresolved: Vec<Refusal>,
    /// Results for its `parentRefs` that belong to Voile.
    pub(super) parents: Vec<Attached<'m>>,
}

/// The result for one of `parentRefs`.
pub(super) struct Attached<'m> {
    pub(super) parent: &'m Parent,
    /// Its attachment, or the reason for none.
    pub(super) to: Result<To<'m>, Refusal>,
}

/// The target of an attachment.
pub(super) enum To<'m> {
    /// Listeners of a Gateway, by their places.
    Listeners(usize, Vec<usize>),
    /// A Service, of which one port may be meant.
    Service(&'m Arc<Service>, Option<Port>),
}

/// All routes; counts those of each listener.
pub(super) fn outcomes<'m>(world: &World<'m>, opened: &mut [Open<'m>]) -> Vec<Outcome<'m>> {
    let mut outcomes = Vec::new();
    for route in &world.mesh.gateway_api.routes {
        let parents = route.parents.iter();
        let parents = parents.filter_map(|parent| attached(world, opened, route, parent));
        let parents: Vec<Attached<'m>> = parents.collect();
        let mut unresolved = Vec::new();
        let rules = rules::requests(world, route, &mut unresolved);
        let connections = rules::connections(world, route, &mut unresolved);
        let mut taken: Vec<(usize, usize)> = Vec::new();
        for one in &parents {
            if let Ok(To::Listeners(gateway, places)) = &one.to {
                taken.extend(places.iter().map(|place| (*gateway, *place)));
            }
        }
        taken.sort_unstable();
        taken.dedup();
        for (gateway, place) in taken {
            opened[gateway].listeners[place].attached += 1;
        }
        outcomes.push(Outcome {
            route,
            rules,
            connections,
            unresolved,
            parents,
        });
    }
    outcomes
}

/// The attachment to a parent; `None` if the parent belongs to another controller.
fn attached<'m>(
    world: &World<'m>,
    opened: &[Open<'m>],
    route: &'m Route,
    parent: &'m Parent,
) -> Option<Attached<'m>> {
    let to = &parent.to;
    let no = |reason, said| Err(refusal(reason, &to.source, &to.field, said));
    let outcome = if to.is("", "Service") || to.is("core", "Service") {
        service(world, route, parent)
    } else if to.is(GROUP, "Gateway") || to.is(GROUP, "ListenerSet") {
        let found = match &*to.kind {
            "Gateway" => meant(opened, to).map(|(place, _)| place),
            _ => opened.iter().position(|open| {
                let mut sets = open.sets.iter();
                sets.any(|set| set.name == to.name)
            }),
        };
        match found {
            Some(place) => listeners(world, (place, &opened[place]), route, parent),
            None if is_of_another(world, parent) => return None,
            None => {
                let said = format!(
                    "{} {} attaches to the {} {}, which is not there",
                    route.kind.word(),
                    route.name,
                    to.kind,
                    to.name
                );
                no(Reason::NoMatchingParent, said)
            }
        }
    } else {
        let said = format!(
            "{} {} attaches to a {}: a Gateway, a ListenerSet or a Service is meant",
            route.kind.word(),
            route.name,
            to.kind
        );
        no(Reason::InvalidKind, said)
    };
    Some(Attached {
        parent,
        to: outcome,
    })
}

/// Returns true if the Gateway exists and has a class of another controller.
fn is_of_another(world: &World<'_>, parent: &Parent) -> bool {
    let all = &world.mesh.gateway_api.gateways;
    let named = |one: &&Arc<Gateway>| parent.to.is(GROUP, "Gateway") && one.name == parent.to.name;
    all.iter()
        .find(named)
        .is_some_and(|one| !is_ours(world, &one.class.0))
}

/// A route of the mesh's.
fn service<'m>(world: &World<'m>, route: &Route, parent: &Parent) -> Result<To<'m>, Refusal> {
    let to = &parent.to;
    let no = |said| {
        Err(refusal(
            Reason::NoMatchingParent,
            &to.source,
            &to.field,
            said,
        ))
    };
    let Some(service) = world.service(to) else {
        return no(format!(
            "{} {} attaches to the Service {}, which is not there",
            route.kind.word(),
            route.name,
            to.name
        ));
    };
    if let Some(port) = parent.port
        && service.port(port).is_none()
    {
        return no(format!("{} has no port {port}", service.key));
    }
    if parent.section.is_some() {
        return no(format!(
            "a section of {} cannot be meant: say its `port`",
            service.key
        ));
    }
    Ok(To::Service(service, parent.port))
}

/// The listeners of a Gateway that take a route.
fn listeners<'m>(
    world: &World<'_>,
    (place, open): (usize, &Open<'_>),
    route: &Route,
    parent: &Parent,
) -> Result<To<'m>, Refusal> {
    let to = &parent.to;
    let name = &to.name;
    let (kind, own) = (route.kind, &route.name.namespace);
    let no = |reason, said| Err(refusal(reason, &to.source, &to.field, said));
    let all = open.listeners.iter().enumerate();
    let meant = |heard: &Heard<'_>| {
        let theirs = match (&*to.kind, heard.set) {
            ("Gateway", set) => set.is_none(),
            (_, set) => set.is_some_and(|set| set.name == to.name),
        };
        let section = parent.section.as_ref();
        theirs
            && section.is_none_or(|section| *section == heard.listener.name)
            && parent.port.is_none_or(|port| port == heard.listener.port)
    };
    let listeners: Vec<_> = all.filter(|(_, heard)| meant(heard)).collect();
    if listeners.is_empty() {
        let names = open.listeners.iter().map(|heard| &*heard.listener.name);
        let names: Vec<&str> = names.collect();
        let said = format!(
            "the {} {name} has no such listener, but {}",
            to.kind,
            names.join(", ")
        );
        return no(Reason::NoMatchingParent, said);
    }
    let takes = |(_, heard): &&(usize, &Heard<'_>)| {
        let namespace = heard.namespace(open.gateway);
        heard.is_open()
            && heard.kinds.contains(&kind)
            && world.admits(&heard.listener.from, namespace, own)
    };
    let taking: Vec<_> = listeners.iter().filter(takes).collect();
    if taking.is_empty() {
        let said = format!(
            "no listener of the {} {name} takes a {} of {own}",
            to.kind,
            kind.word()
        );
        return no(Reason::NotAllowedByListeners, said);
    }
    let shares = |heard: &Heard<'_>| hosts(heard.host(), &route.hostnames).next().is_some();
    let places = taking.iter().filter(|(_, heard)| shares(heard));
    let places: Vec<usize> = places.map(|(place, _)| *place).collect();
    if places.is_empty() {
        let said = format!(
            "no hostname of {} {} is one of the {} {name}'s: nobody comes by this route",
            kind.word(),
            route.name,
            to.kind
        );
        return no(Reason::NoMatchingListenerHostname, said);
    }
    Ok(To::Listeners(place, places))
}

/// The hosts at which a route of these is in force behind a listener; `None` is any.
pub(super) fn hosts<'a>(
    listener: Option<&'a Hostname>,
    route: &'a [Hostname],
) -> impl Iterator<Item = Option<&'a Hostname>> {
    let alone = route.is_empty().then_some(listener);
    let both = route.iter().filter_map(move |own| match listener {
        None => Some(Some(own)),
        Some(served) => served.common(own).map(Some),
    });
    alone.into_iter().chain(both)
}
