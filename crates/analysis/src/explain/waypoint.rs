//! What a waypoint says of a request to a service that it stands before.

use std::sync::Arc;

use voile_model::ResourceName;
use voile_model::mesh::{Mesh, Service, ServicePort, Workload};
use voile_policy::Mode;

use super::{
    Decided, Explanation, Held, Question, ask, is_opaque, limits, refused_at_the_door, token,
};

pub(super) fn at(
    mesh: &Mesh,
    name: &ResourceName,
    (service, port): (&Service, &ServicePort),
    question: &Question<'_>,
) -> Explanation {
    let mut explanation = Explanation {
        workload: format!("waypoint {name}"),
        port: port.number,
        allowed: true,
        decided: Decided {
            why: "no ALLOW policy aims at it, and no other matches".to_owned(),
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
    let refused = |explanation: &mut Explanation, why: String, otherwise: String| {
        explanation.allowed = false;
        explanation.decided.why = why;
        explanation.otherwise.push(otherwise);
    };
    let Some(gateway) = mesh.waypoint(name) else {
        let otherwise = format!("write a Gateway {name} of the class istio-waypoint");
        let why = "it is not there, and nobody goes past it".to_owned();
        refused(&mut explanation, why, otherwise);
        return explanation;
    };
    let own = &service.key.namespace;
    if !mesh.takes(gateway, own) {
        let otherwise = format!("its listener's allowedRoutes would have to let {own} in");
        let why = format!("it takes nothing of the namespace {own}, and nobody goes past it");
        refused(&mut explanation, why, otherwise);
        return explanation;
    }
    // Tunnels are all that it takes, and who makes one has proved who it is.
    if let Some(why) = refused_at_the_door(mesh, Mode::Strict, question.from) {
        let otherwise = "only node proxies call it, each by its pod's identity".to_owned();
        refused(&mut explanation, why, otherwise);
        return explanation;
    }
    let held = Held::of_policies(mesh, mesh.authorization_aimed_at(gateway, Some(service)));
    // Whose Pods it has is not known where none runs: what selects those by label is left out.
    let is_its =
        |one: &&Arc<Workload>| mesh.waypoint_run_by(one).is_some_and(|by| by.name == *name);
    let own = mesh.workloads.values().find(is_its);
    let own = own.map(|own| &**own);
    let holding = mesh.request_authentication_at(gateway, Some(service), own);
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
    if explanation.allowed && !is_opaque(port.protocol) {
        explanation.limits = limits::told_at(mesh, (gateway, own), service);
    }
    explanation
}
