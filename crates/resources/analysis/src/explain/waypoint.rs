//! Explains the decision of a waypoint about a request to a service behind it.

use std::sync::Arc;

use voile_model::mesh::gateway_api::Gateway;
use voile_model::mesh::{Mesh, MeshService, ServicePort, Workload, token_rules};
use voile_model::{Identity, ResourceName};
use voile_policy::Mode;

use super::{
    AccessQuestion, DecidingPolicy, Explanation, WorkloadPolicies, ask, is_opaque, limits,
    refused_at_the_door, requests_alone, token,
};

/// The waypoint that accepts a caller's connection to a service. An error has the reason for its absence, and the
/// changes that would help.
pub(super) fn entrance<'a>(
    mesh: &'a Mesh,
    name: &ResourceName,
    service: &MeshService,
    from: Option<&Identity>,
) -> Result<&'a Arc<Gateway>, (String, String)> {
    let Some(gateway) = mesh.waypoint(name) else {
        return Err((
            format!("waypoint {name} does not exist, and clients cannot bypass it"),
            format!("add a Gateway {name} with gatewayClassName istio-waypoint"),
        ));
    };
    let own = &service.key.namespace;
    if !mesh.takes(gateway, own) {
        return Err((
            format!("it does not accept the namespace {own}, and clients cannot bypass it"),
            format!("allow {own} in its listener's allowedRoutes"),
        ));
    }
    // A waypoint takes tunnels only, and the caller of a tunnel has proved its identity.
    match refused_at_the_door(mesh, Mode::Strict, from) {
        None => Ok(gateway),
        Some(why) => Err((
            why,
            "only node proxies call it, each by its pod's identity".to_owned(),
        )),
    }
}

pub(super) fn at(
    mesh: &Mesh,
    name: &ResourceName,
    (service, port): (&MeshService, &ServicePort),
    question: &AccessQuestion<'_>,
) -> Explanation {
    let mut explanation = Explanation {
        workload: format!("waypoint {name}"),
        port: port.number,
        allowed: true,
        decided: DecidingPolicy {
            why: "no ALLOW policy targets it, and no other policy matches".to_owned(),
            policy: None,
            rule: None,
            source: None,
        },
        asked: None,
        token: None,
        otherwise: Vec::new(),
        beside: Vec::new(),
        limits: Vec::new(),
    };
    let gateway = match entrance(mesh, name, service, question.from) {
        Ok(gateway) => gateway,
        Err((why, otherwise)) => {
            explanation.allowed = false;
            explanation.decided.why = why;
            explanation.otherwise.push(otherwise);
            return explanation;
        }
    };
    let held =
        WorkloadPolicies::of_policies(mesh, mesh.authorization_aimed_at(gateway, Some(service)));
    let own = workload(mesh, name);
    let holding = mesh.request_authentication_at(gateway, Some(service), own);
    let limited = match is_opaque(port.protocol) {
        true => Vec::new(),
        false => limits::told_at(mesh, (gateway, own), service),
    };
    let ruled = !token_rules(holding.iter().copied()).is_empty() || !limited.is_empty();
    let looked = match is_opaque(port.protocol) {
        true => token::unlooked(question),
        false => token::look_by(holding, question.path, question),
    };
    ask(
        mesh,
        (&held, looked),
        (service, port.protocol),
        question,
        &mut explanation,
    );
    requests_alone(port.protocol, ruled, &mut explanation);
    if explanation.allowed {
        explanation.limits = limited;
    }
    explanation
}

/// A workload that runs a waypoint. Without one its Pods are unknown, so policies that select Pods by label are left out.
pub(super) fn workload<'a>(mesh: &'a Mesh, name: &ResourceName) -> Option<&'a Workload> {
    let is_its =
        |one: &&Arc<Workload>| mesh.waypoint_run_by(one).is_some_and(|by| by.name == *name);
    mesh.workloads.values().find(is_its).map(|own| &**own)
}
