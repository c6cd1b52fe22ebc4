//! Status of each resource: the conditions of Gateway API's specification, and its refused parts.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::backend_tls::Policy;
use super::deployment;
use super::listeners::{ListenerStatus, OpenGateway, is_ours};
use super::routes::{AttachmentTarget, ParentAttachment, RouteAttachmentStatus};
use crate::attach::inputs::{AttachmentInputs, refusal};
use crate::mesh::HttpRoute;
use crate::mesh::gateway_api::{
    CONTROLLERS, ConditionReason, GROUP, Gateway, GatewayClass, ListenerSet, Parent,
    PartConditions, RefusedCondition, ResourceConditions, StatusCondition,
};
use crate::names::{Namespace, ResourceName};

pub(super) fn said(
    world: &AttachmentInputs<'_>,
    opened: &[OpenGateway<'_>],
    outcomes: &[RouteAttachmentStatus<'_>],
    policies: &[Policy<'_>],
) -> Vec<ResourceConditions> {
    let api = &world.mesh.gateway_api;
    let mut said: Vec<ResourceConditions> = Vec::new();
    said.extend(api.classes.values().filter_map(class));
    said.extend(opened.iter().map(|open| gateway(world, open)));
    let others = api.gateways.iter();
    let of_the_mesh = |one: &Gateway| one.is_waypoint() || one.is_east_west() || one.is_remote();
    let others = others.filter(|one| !is_ours(world, &one.class.0) && !of_the_mesh(one));
    said.extend(others.filter_map(|one| {
        // A declared class belongs to another controller; an undeclared class is a mistake.
        let (class, source) = &one.class;
        if api.classes.contains_key(class) {
            return None;
        }
        let what = format!(
            "no GatewayClass {class} exists: the Gateway {} has no effect",
            one.name
        );
        let refused = refusal(
            ConditionReason::Invalid,
            source,
            "spec.gatewayClassName",
            what,
        );
        Some(ResourceConditions {
            conditions: Vec::new(),
            refusals: vec![refused],
            ..empty("Gateway", one.name.clone())
        })
    }));
    said.extend(
        api.listener_sets
            .iter()
            .filter_map(|set| of_set(world, opened, set)),
    );
    said.extend(outcomes.iter().filter_map(|one| route(opened, one)));
    let judged = policies.iter();
    said.extend(judged.map(|one| backend_tls(opened, outcomes, one)));
    said
}

pub(super) fn empty(kind: &'static str, name: ResourceName) -> ResourceConditions {
    ResourceConditions {
        kind,
        name,
        conditions: Vec::new(),
        address: None,
        listener_sets: 0,
        parts: Vec::new(),
        refusals: Vec::new(),
    }
}

fn class(one: &Arc<GatewayClass>) -> Option<ResourceConditions> {
    if !CONTROLLERS.contains(&&*one.controller) {
        return None;
    }
    let refused = one.parameters.as_ref().map(|source| {
        let what = format!("GatewayClass {}: parametersRef is not supported", one.name);
        refusal(
            ConditionReason::InvalidParameters,
            source,
            "spec.parametersRef",
            what,
        )
    });
    let nowhere = Namespace::default_namespace();
    Some(ResourceConditions {
        conditions: vec![StatusCondition::unless("Accepted", refused.as_ref())],
        refusals: refused.into_iter().collect(),
        ..empty("GatewayClass", ResourceName::new(nowhere, one.name.clone()))
    })
}

/// Returns true if a ready Pod of a Gateway exists.
pub(super) fn runs(world: &AttachmentInputs<'_>, gateway: &Gateway) -> bool {
    let name = &gateway.name;
    let selector = deployment::selector(world, gateway);
    let mut own = world.mesh.workloads.values();
    own.any(|one| {
        one.key.namespace == name.namespace
            && one.gateway
            && one.ready
            && selector.selects(&one.labels)
    })
}

fn gateway(world: &AttachmentInputs<'_>, open: &OpenGateway<'_>) -> ResourceConditions {
    let gateway = open.gateway;
    let own = open.listeners.iter().filter(|heard| heard.set.is_none());
    let parts: Vec<PartConditions> = own.clone().map(listener).collect();
    let good = open.listeners.iter().any(ListenerStatus::is_accepted);
    let all_good = own.clone().all(ListenerStatus::is_accepted);
    let of_listeners = || {
        let what = format!("{}: not all of its listeners are valid", gateway.name);
        refusal(
            ConditionReason::ListenersNotValid,
            &gateway.source,
            "spec.listeners",
            what,
        )
    };
    let accepted = match &open.refused {
        Some(why) => StatusCondition::bad("Accepted", why),
        None if all_good => StatusCondition::good("Accepted"),
        None => StatusCondition {
            holds: good,
            ..StatusCondition::bad("Accepted", &of_listeners())
        },
    };
    let pending = || {
        let what = format!("{}: none of its Pods is ready", gateway.name);
        refusal(
            ConditionReason::Pending,
            &gateway.source,
            "metadata.name",
            what,
        )
    };
    let programmed = match (&open.refused, good) {
        (Some(why), _) => StatusCondition {
            reason: ConditionReason::Invalid.word(),
            ..StatusCondition::bad("Programmed", why)
        },
        (None, false) => StatusCondition {
            reason: ConditionReason::Invalid.word(),
            ..StatusCondition::bad("Programmed", &of_listeners())
        },
        (None, true) if runs(world, gateway) => StatusCondition::good("Programmed"),
        (None, true) => StatusCondition::bad("Programmed", &pending()),
    };
    let taken = open.sets.iter().filter(|set| {
        let mut all = open.listeners.iter();
        all.any(|heard| heard.serves() && heard.set.is_some_and(|one| Arc::ptr_eq(one, set)))
    });
    let users = deployment::deployed_by_users(world, gateway).flatten();
    let host = users.map(|service| service.key.hostname.clone());
    let host = host.or_else(|| deployment::host(gateway));
    let host = host.filter(|_| good && open.refused.is_none());
    let refusals = own.flat_map(of_listener);
    let shown = open.client_certificate.as_ref();
    let shown = shown.map(|shown| shown.as_ref().err());
    let mut conditions = vec![accepted, programmed];
    conditions.extend(shown.map(|why| resolved_refs(why)));
    if gateway.tls.has_fallback() {
        conditions.push(insecure());
    }
    let refusals = refusals.chain(shown.flatten().cloned());
    ResourceConditions {
        conditions,
        address: host.map(|host| host.as_str().into()),
        listener_sets: taken.count(),
        parts,
        refusals: once_each(open.refused.iter().cloned().chain(refusals)),
        ..empty("Gateway", gateway.name.clone())
    }
}

/// Listeners of one port may have a fault of the Gateway in common.
fn once_each(refusals: impl Iterator<Item = RefusedCondition>) -> Vec<RefusedCondition> {
    let mut all = Vec::new();
    for one in refusals {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

fn resolved_refs(unresolved: Option<&RefusedCondition>) -> StatusCondition {
    StatusCondition::unless("ResolvedRefs", unresolved)
}

/// The condition of a Gateway some of whose clients need no valid certificate.
fn insecure() -> StatusCondition {
    StatusCondition {
        kind: "InsecureFrontendValidationMode",
        holds: true,
        reason: "ConfigurationChanged",
        message: "mode AllowInsecureFallback: clients without a valid certificate are served"
            .into(),
    }
}

fn of_listener(heard: &ListenerStatus<'_>) -> impl Iterator<Item = RefusedCondition> {
    let unresolved = heard.unresolved.as_ref();
    // Mostly it is the unresolved reference.
    let untrusted = heard.untrusted.as_ref();
    let untrusted = untrusted.filter(|why| unresolved.is_none_or(|one| one.said != why.said));
    let all = [heard.refused.as_ref(), heard.conflict.as_ref(), untrusted];
    all.into_iter().chain([unresolved]).flatten().cloned()
}

fn listener(heard: &ListenerStatus<'_>) -> PartConditions {
    let name = heard.listener.name.clone();
    let against = heard.refused.as_ref().or(heard.conflict.as_ref());
    let against = against.or(heard.untrusted.as_ref());
    let conflicted = match &heard.conflict {
        Some(why) => StatusCondition {
            holds: true,
            ..StatusCondition::bad("Conflicted", why)
        },
        None => StatusCondition {
            kind: "Conflicted",
            holds: false,
            reason: "NoConflicts",
            message: String::new(),
        },
    };
    let programmed = against.or(heard.unresolved.as_ref());
    let programmed = match programmed {
        // The specification demands the same text for a conflict in every condition of a ListenerSet's listener.
        Some(why) if heard.set.is_some() && heard.conflict.is_some() => {
            StatusCondition::bad("Programmed", why)
        }
        Some(why) if !heard.serves() => StatusCondition {
            reason: ConditionReason::Invalid.word(),
            ..StatusCondition::bad("Programmed", why)
        },
        _ => StatusCondition::good("Programmed"),
    };
    PartConditions {
        written: vec![("name", name.clone())],
        name: format!("listener {name}").into(),
        kinds: heard.kinds.iter().map(|kind| kind.word()).collect(),
        attached: heard.attached,
        conditions: vec![
            StatusCondition::unless("Accepted", against),
            programmed,
            resolved_refs(heard.unresolved.as_ref()),
            conflicted,
        ],
    }
}

/// The status of a ListenerSet; `None` if its Gateway belongs to another controller.
fn of_set(
    world: &AttachmentInputs<'_>,
    opened: &[OpenGateway<'_>],
    set: &Arc<ListenerSet>,
) -> Option<ResourceConditions> {
    let to = &set.parent;
    let open = opened.iter().find(|open| open.gateway.name == to.name);
    let taken = opened.iter().find(|open| {
        let mut sets = open.sets.iter();
        sets.any(|one| Arc::ptr_eq(one, set))
    });
    let refused = match (open, taken) {
        (_, Some(_)) => None,
        (Some(_), None) => {
            let what = format!(
                "the Gateway {} does not allow ListenerSets of {} in `allowedListeners`",
                to.name, set.name.namespace
            );
            Some(refusal(
                ConditionReason::NotAllowed,
                &to.source,
                &to.field,
                what,
            ))
        }
        (None, None) => {
            let mut all = world.mesh.gateway_api.gateways.iter();
            if all.any(|one| to.is(GROUP, "Gateway") && one.name == to.name) {
                return None;
            }
            let what = format!(
                "ListenerSet {}: the {} {} does not exist",
                set.name, to.kind, to.name
            );
            Some(refusal(
                ConditionReason::NoMatchingParent,
                &to.source,
                &to.field,
                what,
            ))
        }
    };
    let all = taken.iter().flat_map(|open| &open.listeners);
    let own = all.filter(|heard| heard.set.is_some_and(|one| Arc::ptr_eq(one, set)));
    let own: Vec<&ListenerStatus<'_>> = own.collect();
    let good = own.iter().any(|heard| heard.serves());
    let what = format!("{}: none of its listeners is valid", set.name);
    let bad = refusal(
        ConditionReason::ListenersNotValid,
        &set.source,
        "spec.listeners",
        what,
    );
    let against = refused.as_ref().or((!good).then_some(&bad));
    let refusals = own.iter().flat_map(|heard| of_listener(heard));
    Some(ResourceConditions {
        conditions: ["Accepted", "Programmed"]
            .map(|kind| StatusCondition::unless(kind, against))
            .into(),
        parts: own.iter().map(|heard| listener(heard)).collect(),
        refusals: refused.iter().cloned().chain(refusals).collect(),
        ..empty("ListenerSet", set.name.clone())
    })
}

/// None where nothing that it attaches to is ours.
fn route(
    opened: &[OpenGateway<'_>],
    one: &RouteAttachmentStatus<'_>,
) -> Option<ResourceConditions> {
    if one.parents.is_empty() {
        return None;
    }
    let unresolved = one.unresolved.first();
    let parts = one.parents.iter().map(|parent| PartConditions {
        name: shown(parent.parent),
        written: written(parent.parent),
        kinds: Vec::new(),
        attached: 0,
        conditions: conditions(opened, parent, unresolved),
    });
    let refused = one.parents.iter().filter_map(|one| one.to.as_ref().err());
    Some(ResourceConditions {
        parts: parts.collect(),
        refusals: refused.chain(&one.unresolved).cloned().collect(),
        ..empty(one.route.kind.word(), one.route.name.clone())
    })
}

fn conditions(
    opened: &[OpenGateway<'_>],
    one: &ParentAttachment<'_>,
    unresolved: Option<&RefusedCondition>,
) -> Vec<StatusCondition> {
    let by_gateway = match &one.to {
        Ok(AttachmentTarget::Listeners(place, _)) => opened[*place].refused.as_ref(),
        _ => None,
    };
    let accepted = StatusCondition::unless("Accepted", one.to.as_ref().err().or(by_gateway));
    let resolved = StatusCondition::unless("ResolvedRefs", unresolved);
    vec![accepted, resolved]
}

fn shown(parent: &Parent) -> Arc<str> {
    let mut text = format!("{} {}", parent.to.kind, parent.to.name);
    if let Some(section) = &parent.section {
        text += &format!(", listener {section}");
    }
    if let Some(port) = parent.port {
        text += &format!(", port {port}");
    }
    text.into()
}

/// The fields of a parent as a status repeats them.
fn written(parent: &Parent) -> Vec<(&'static str, Arc<str>)> {
    let to = &parent.to;
    let mut fields = vec![
        ("group", to.group.clone()),
        ("kind", to.kind.clone()),
        ("namespace", to.name.namespace.as_str().into()),
        ("name", to.name.name.clone()),
    ];
    fields.extend(parent.section.clone().map(|name| ("sectionName", name)));
    fields.extend(parent.port.map(|port| ("port", port.to_string().into())));
    fields
}

/// A policy is spoken of by the Gateways that lead to its Services, and by the Services where none does.
fn backend_tls(
    opened: &[OpenGateway<'_>],
    outcomes: &[RouteAttachmentStatus<'_>],
    one: &Policy<'_>,
) -> ResourceConditions {
    let leads = |outcome: &&RouteAttachmentStatus<'_>| {
        let requests = outcome.rules.iter().flat_map(HttpRoute::destinations);
        let others = outcome.connections.iter().flat_map(|rule| &rule.route);
        let mut all = requests.chain(others.map(|one| &one.to));
        all.any(|to| {
            let mut services = one.services.iter();
            services.any(|service| to.nowhere.is_none() && to.host == service.key.hostname)
        })
    };
    let places = outcomes.iter().filter(leads).flat_map(|outcome| {
        let parents = outcome.parents.iter();
        parents.filter_map(|parent| match &parent.to {
            Ok(AttachmentTarget::Listeners(place, _)) => Some(*place),
            _ => None,
        })
    });
    let places: BTreeSet<usize> = places.collect();
    let named = |group: &str, kind: &str, name: &ResourceName| PartConditions {
        name: format!("{kind} {name}").into(),
        written: vec![
            ("group", group.into()),
            ("kind", kind.into()),
            ("namespace", name.namespace.as_str().into()),
            ("name", name.name.clone()),
        ],
        kinds: Vec::new(),
        attached: 0,
        conditions: vec![
            StatusCondition::unless("Accepted", one.refused.as_ref()),
            StatusCondition::unless("ResolvedRefs", one.unresolved.as_ref()),
        ],
    };
    let gateways = places.iter().map(|place| &opened[*place].gateway.name);
    let mut parts: Vec<PartConditions> =
        gateways.map(|name| named(GROUP, "Gateway", name)).collect();
    if parts.is_empty() {
        let targets = one.policy.targets.iter();
        let targets = targets.map(|(to, _)| named(&to.group, &to.kind, &to.name));
        parts.extend(targets);
    }
    let refusals = one.refused.iter().chain(&one.unresolved).cloned();
    let mut refusals: Vec<RefusedCondition> = refusals.collect();
    // Of authorities of which none is good the same is said twice.
    refusals.dedup_by(|second, first| second.said == first.said);
    ResourceConditions {
        parts,
        refusals,
        ..empty("BackendTLSPolicy", one.policy.name.clone())
    }
}
