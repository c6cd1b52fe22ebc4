//! Rules of routes with their destinations. A missing or forbidden backend keeps its share: its requests get 500, its
//! connections are reset.

use std::sync::Arc;

use crate::attach::inputs::{AttachmentInputs, refusal};
use crate::mesh::action::{DirectResponse, Mirror};
use crate::mesh::gateway_api::{
    Backend, BackendTo, ConditionReason, GatewayApiRoute, Reference, RefusedCondition,
};
use crate::mesh::{
    HttpRoute, LayerFourRoute, RetrySettings, RouteDestination, WeightedDestination,
};
use crate::names::{Hostname, Namespace, Port};

/// Placeholder host of a destination that does not exist.
const NOWHERE: &str = "nowhere.invalid";

/// The rules of a route of requests. Adds refused references to `refusals`.
pub(super) fn requests(
    world: &AttachmentInputs<'_>,
    route: &GatewayApiRoute,
    refusals: &mut Vec<RefusedCondition>,
) -> Vec<HttpRoute> {
    let rules = route.rules.iter().enumerate();
    let rules = rules.map(|(index, rule)| {
        let mut made = rule.route.clone();
        made.name = Some(name(route, index, made.name.as_deref()));
        made.route = weighted(world, route, &rule.backends, refusals);
        let mirrors = rule.mirrors.iter();
        let mirrors = mirrors.map(|(to, share)| Mirror {
            to: lead(world, route, to, refusals),
            share: *share,
        });
        made.mirrors = mirrors.collect();
        if made.answer.is_none() && made.route.iter().all(|one| one.weight == 0) {
            // No backend takes requests.
            made.answer = Some(DirectResponse::Direct {
                status: HttpRoute::MISSING_IN_GATEWAY_API,
                body: Arc::default(),
            });
        }
        if made.answer.is_some() {
            (made.route, made.mirrors, made.rewrite) = (Vec::new(), Vec::new(), None);
            (made.timeout, made.retries) = (None, None);
        } else if let Some(limit) = rule.backend_timeout {
            let usual = made.retries.take();
            let usual = usual.or_else(|| world.mesh.config.default_retry.clone());
            made.retries = Some(RetrySettings {
                per_try_timeout: Some(limit),
                ..usual.unwrap_or_default()
            });
        }
        made
    });
    rules.collect()
}

/// The rules of a route of connections, so far without matches. Adds refused references to `refusals`.
pub(super) fn connections(
    world: &AttachmentInputs<'_>,
    route: &GatewayApiRoute,
    refusals: &mut Vec<RefusedCondition>,
) -> Vec<LayerFourRoute> {
    let rules = route.connections.iter().map(|rule| {
        let mut to = weighted(world, route, &rule.backends, refusals);
        if to.iter().all(|one| one.weight == 0) {
            // No backend takes connections. A single destination would take all, independent of its weight.
            for one in &mut to {
                one.to.nowhere = Some("no backend has a weight".into());
            }
        }
        LayerFourRoute {
            source: rule.source.clone(),
            matches: Vec::new(),
            route: to,
        }
    });
    rules.collect()
}

fn weighted(
    world: &AttachmentInputs<'_>,
    route: &GatewayApiRoute,
    backends: &[Backend],
    refusals: &mut Vec<RefusedCondition>,
) -> Vec<WeightedDestination> {
    let backends = backends.iter().map(|one| WeightedDestination {
        to: lead(world, route, &one.to, refusals),
        weight: one.weight,
        headers: one.headers.clone(),
    });
    backends.collect()
}

/// The destination of a backend; a refused backend becomes one that does not exist.
fn lead(
    world: &AttachmentInputs<'_>,
    route: &GatewayApiRoute,
    to: &BackendTo,
    refusals: &mut Vec<RefusedCondition>,
) -> RouteDestination {
    match backend(world, route, to) {
        Ok((host, port)) => destination(to, host, Some(port), None),
        Err(why) => {
            let nowhere: Arc<str> = why.said.as_str().into();
            refusals.push(why);
            let host = Hostname::new(NOWHERE).expect("invariant: the constant is a host's name");
            destination(to, host, None, Some(nowhere))
        }
    }
}

/// Name of a rule in logs.
fn name(route: &GatewayApiRoute, index: usize, own: Option<&str>) -> Arc<str> {
    match own {
        Some(own) => format!("{}.{own}", route.name).into(),
        None => format!("{}.{index}", route.name).into(),
    }
}

fn destination(
    to: &BackendTo,
    host: Hostname,
    port: Option<Port>,
    nowhere: Option<Arc<str>>,
) -> RouteDestination {
    RouteDestination {
        source: to.to.source.clone(),
        field: to.to.field.clone(),
        host,
        subset: None,
        port: port.map(|port| (port, to.to.source.clone())),
        nowhere,
    }
}

/// The host and port that a backend is.
fn backend(
    world: &AttachmentInputs<'_>,
    route: &GatewayApiRoute,
    to: &BackendTo,
) -> Result<(Hostname, Port), RefusedCondition> {
    let own: &Namespace = &route.name.namespace;
    let BackendTo { to, port } = to;
    let no = |reason, said| Err(refusal(reason, &to.source, &to.field, said));
    let kind = route.kind.word();
    if !to.is("", "Service") {
        let said = format!(
            "{kind} {} routes to a {}: only a Service can be a backend",
            route.name, to.kind
        );
        return no(ConditionReason::InvalidKind, said);
    }
    if !is_own_parent(route, to)
        && let Some(why) = world.unpermitted(kind, own, to)
    {
        return Err(why);
    }
    let Some(service) = world.service(to) else {
        let before = format!("{kind} {} routes to", route.name);
        let reason = ConditionReason::BackendNotFound;
        return Err(world.unknown_service(reason, to, &before));
    };
    let Some(port) = *port else {
        let said = format!("the reference to {} has no `port`", service.key);
        return no(ConditionReason::BackendNotFound, said);
    };
    if service.port(port).is_none() {
        let said = format!("{} has no port {port}", service.key);
        return no(ConditionReason::BackendNotFound, said);
    }
    if !service.visibility.includes(own) {
        let said = format!("{} is not exported to {own}", service.key);
        return no(ConditionReason::RefNotPermitted, said);
    }
    Ok((service.key.hostname.clone(), port))
}

/// Returns true if a route of the mesh leads calls of a Service back to it. Its callers may call it anyway, so that needs no grant.
/// A gateway's clients may not: a route with another parent, too, needs one.
fn is_own_parent(route: &GatewayApiRoute, to: &Reference) -> bool {
    let is_service = |parent: &Reference| parent.is("", "Service") || parent.is("core", "Service");
    let mut parents = route.parents.iter();
    parents.all(|parent| is_service(&parent.to))
        && route.parents.iter().any(|parent| parent.to.name == to.name)
}
