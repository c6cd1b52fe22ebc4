//! Which routes attach to which listeners and Services.

use std::sync::Arc;

use super::listeners::{ListenerStatus, OpenGateway, is_ours};
use super::rules;
use crate::attach::inputs::{AttachmentInputs, refusal};
use crate::attach::listeners::meant;
use crate::mesh::gateway_api::{
    ConditionReason, GROUP, Gateway, GatewayApiRoute, Parent, RefusedCondition,
};
use crate::mesh::{HttpRoute, LayerFourRoute, MeshService};
use crate::names::{Hostname, Port};
use crate::text::nearest_name;

/// A route, and what became of it.
pub(super) struct RouteAttachmentStatus<'m> {
    pub(super) route: &'m Arc<GatewayApiRoute>,
    /// Its rules, with their destinations.
    pub(super) rules: Vec<HttpRoute>,
    /// The same of connections.
    pub(super) connections: Vec<LayerFourRoute>,
    /// References that cannot be used.
    pub(super) unresolved: Vec<RefusedCondition>,
    /// Results for its `parentRefs` that belong to Voile.
    pub(super) parents: Vec<ParentAttachment<'m>>,
}

/// The result for one of `parentRefs`.
pub(super) struct ParentAttachment<'m> {
    pub(super) parent: &'m Parent,
    /// Its attachment, or the reason for none.
    pub(super) to: Result<AttachmentTarget<'m>, RefusedCondition>,
}

/// The target of an attachment.
pub(super) enum AttachmentTarget<'m> {
    /// Listeners of a Gateway, by their places.
    Listeners(usize, Vec<usize>),
    /// A Service, of which one port may be meant.
    Service(&'m Arc<MeshService>, Option<Port>),
}

/// All routes; counts those of each listener.
pub(super) fn outcomes<'m>(
    world: &AttachmentInputs<'m>,
    opened: &mut [OpenGateway<'m>],
) -> Vec<RouteAttachmentStatus<'m>> {
    let mut outcomes = Vec::new();
    for route in &world.mesh.gateway_api.routes {
        let parents = route.parents.iter();
        let parents = parents.filter_map(|parent| attached(world, opened, route, parent));
        let parents: Vec<ParentAttachment<'m>> = parents.collect();
        let mut unresolved = Vec::new();
        let rules = rules::requests(world, route, &mut unresolved);
        let connections = rules::connections(world, route, &mut unresolved);
        let mut taken: Vec<(usize, usize)> = Vec::new();
        for one in &parents {
            if let Ok(AttachmentTarget::Listeners(gateway, places)) = &one.to {
                taken.extend(places.iter().map(|place| (*gateway, *place)));
            }
        }
        taken.sort_unstable();
        taken.dedup();
        for (gateway, place) in taken {
            opened[gateway].listeners[place].attached += 1;
        }
        outcomes.push(RouteAttachmentStatus {
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
    world: &AttachmentInputs<'m>,
    opened: &[OpenGateway<'m>],
    route: &'m GatewayApiRoute,
    parent: &'m Parent,
) -> Option<ParentAttachment<'m>> {
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
                let known = opened.iter().map(|open| &open.gateway.name);
                let known = known.map(|name| (name.namespace.as_str(), &*name.name));
                let meant = nearest_name((to.name.namespace.as_str(), &to.name.name), known);
                let hint = meant.filter(|_| &*to.kind == "Gateway");
                let hint =
                    hint.map(|(namespace, name)| format!("; did you mean `{namespace}/{name}`?"));
                let said = format!(
                    "{} {} attaches to the {} {}, which does not exist{}",
                    route.kind.word(),
                    route.name,
                    to.kind,
                    to.name,
                    hint.unwrap_or_default()
                );
                no(ConditionReason::NoMatchingParent, said)
            }
        }
    } else {
        let said = format!(
            "{} {} attaches to a {}: write a Gateway, a ListenerSet or a Service",
            route.kind.word(),
            route.name,
            to.kind
        );
        no(ConditionReason::InvalidKind, said)
    };
    Some(ParentAttachment {
        parent,
        to: outcome,
    })
}

/// Returns true if the Gateway exists and has a class of another controller.
fn is_of_another(world: &AttachmentInputs<'_>, parent: &Parent) -> bool {
    let all = &world.mesh.gateway_api.gateways;
    let named = |one: &&Arc<Gateway>| parent.to.is(GROUP, "Gateway") && one.name == parent.to.name;
    all.iter()
        .find(named)
        .is_some_and(|one| !is_ours(world, &one.class.0))
}

/// A route of the mesh's.
fn service<'m>(
    world: &AttachmentInputs<'m>,
    route: &GatewayApiRoute,
    parent: &Parent,
) -> Result<AttachmentTarget<'m>, RefusedCondition> {
    let to = &parent.to;
    let no = |said| {
        Err(refusal(
            ConditionReason::NoMatchingParent,
            &to.source,
            &to.field,
            said,
        ))
    };
    let Some(service) = world.service(to) else {
        let before = format!("{} {} attaches to", route.kind.word(), route.name);
        let reason = ConditionReason::NoMatchingParent;
        return Err(world.unknown_service(reason, to, &before));
    };
    if let Some(port) = parent.port
        && service.port(port).is_none()
    {
        return no(format!("{} has no port {port}", service.key));
    }
    if parent.section.is_some() {
        return no(format!(
            "{} is a Service and has no sections: write `port`",
            service.key
        ));
    }
    Ok(AttachmentTarget::Service(service, parent.port))
}

/// The listeners of a Gateway that take a route.
fn listeners<'m>(
    world: &AttachmentInputs<'_>,
    (place, open): (usize, &OpenGateway<'_>),
    route: &GatewayApiRoute,
    parent: &Parent,
) -> Result<AttachmentTarget<'m>, RefusedCondition> {
    let to = &parent.to;
    let name = &to.name;
    let (kind, own) = (route.kind, &route.name.namespace);
    let no = |reason, said| Err(refusal(reason, &to.source, &to.field, said));
    let all = open.listeners.iter().enumerate();
    let meant = |heard: &ListenerStatus<'_>| {
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
        return no(ConditionReason::NoMatchingParent, said);
    }
    let takes = |(_, heard): &&(usize, &ListenerStatus<'_>)| {
        let namespace = heard.namespace(open.gateway);
        heard.is_open()
            && heard.kinds.contains(&kind)
            && world.admits(&heard.listener.from, namespace, own)
    };
    let taking: Vec<_> = listeners.iter().filter(takes).collect();
    if taking.is_empty() {
        let said = format!(
            "no listener of the {} {name} allows a {} of {own}",
            to.kind,
            kind.word()
        );
        return no(ConditionReason::NotAllowedByListeners, said);
    }
    let shares =
        |heard: &ListenerStatus<'_>| hosts(heard.host(), &route.hostnames).next().is_some();
    let places = taking.iter().filter(|(_, heard)| shares(heard));
    let places: Vec<usize> = places.map(|(place, _)| *place).collect();
    if places.is_empty() {
        let said = format!(
            "no hostname of {} {} matches the {} {name}: no request reaches this route",
            kind.word(),
            route.name,
            to.kind
        );
        return no(ConditionReason::NoMatchingListenerHostname, said);
    }
    Ok(AttachmentTarget::Listeners(place, places))
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
