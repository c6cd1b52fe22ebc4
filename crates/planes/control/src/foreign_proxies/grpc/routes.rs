//! Routes of a service's calls as a stock gRPC is told of them: those that proxies of its namespace are told, as far as they are for
//! this port and for a caller with these labels.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use voile_envoy::grpc::{self, Alternative, GrpcRoute};
use voile_envoy::{Limit, LimitName};
use voile_model::mesh::action::HeaderRules;
use voile_model::mesh::traffic::HashKey;
use voile_model::mesh::{Criterion, RetrySettings, Subject, TextMatch};
use voile_model::{Labels, Port};
use voile_xds::wire::{RequestMatch, RouteTarget, Routes};

use super::destination::traffic_of;
use super::{At, NOWHERE, configuration, name_of, policy_of};
use crate::snapshot::{MeshSnapshot, SnapshotCaller};

/// Conditions for another attempt that gRPC has a word for, or sees to by itself since they are about connections.
const UNDERSTOOD: [&str; 9] = [
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
    "connect-failure",
    "refused-stream",
    "reset",
    "reset-before-request",
];

/// The routes of a port of a service that the caller calls by this host.
pub(super) fn of(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    ((service, port, subset), host): (At<'_>, &str),
    name: &str,
) -> Result<Value, String> {
    if let Some(subset) = subset {
        return Err(format!(
            "routes belong to {service}, not to its subset {subset}"
        ));
    }
    let policy = policy_of(snapshot, caller, service)?.and_then(|mut all| all.ports.remove(&port));
    let usual = policy.as_ref().and_then(|policy| policy.retry.as_ref());
    let about = format!("routes of port {port}");
    let mut limits = BTreeSet::new();
    let said = said(snapshot, caller, service)?;
    let Some(said) = said else {
        // Attempts that are fewer than wished for are no reason to refuse calls.
        limits.extend(usual.and_then(|policy| unheard(&about, policy)));
        snapshot.made.limits.met(service, about, limits);
        let cluster = name_of(service, host, port, None);
        let key = policy.as_ref();
        let key = key.and_then(|policy| policy.traffic.balancer.key.clone());
        let route = GrpcRoute {
            retry: usual,
            keys: key.into_iter().collect(),
            ..GrpcRoute::to(&cluster)
        };
        return grpc::routes(name, &[route]);
    };
    let own = configuration(snapshot, caller).map(|own| own.labels);
    let own = own.unwrap_or_default();
    let mut routes = Vec::new();
    for route in &said.routes {
        let ours = route.matches.iter().filter(|one| is_ours(one, port, &own));
        let matches: Vec<Alternative> = ours.map(alternative).collect();
        if matches.is_empty() && !route.matches.is_empty() {
            continue;
        }
        let taking = route.destinations.iter().filter(|to| to.weight > 0);
        let clusters = taking.map(|to| {
            let cluster = match &to.to {
                Ok(target) => cluster(snapshot, caller, (service, host), target, port)?,
                Err(_) => NOWHERE.to_owned(),
            };
            Ok((cluster, to.weight))
        });
        if let Some(what) = undone(route) {
            return Err(format!(
                "route {}: gRPC does not support {what}",
                route.name
            ));
        }
        let retried = route.retry.as_ref().or(usual);
        let about = format!("{about}, route {}", route.name);
        limits.extend(retried.and_then(|policy| unheard(&about, policy)));
        let keys = keys(snapshot, caller, route, port)?;
        if keys.len() > 1 {
            let why = "its destinations hash different values (consistentHash): the hash of all these values together selects the endpoint";
            limits.insert(Limit::new(LimitName::ConsistentHash, &about, why));
        }
        routes.push(GrpcRoute {
            name: &route.name,
            matches,
            clusters: clusters.collect::<Result<_, String>>()?,
            timeout: route.timeout,
            retry: retried,
            keys,
        });
    }
    snapshot.made.limits.met(service, about, limits);
    grpc::routes(name, &routes)
}

/// Routes that VirtualServices give the caller's requests to a service; `None` if they have only routes of connections.
fn said(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    service: &Arc<str>,
) -> Result<Option<Routes>, String> {
    let routed = snapshot.routes.get(service);
    let routed = routed.and_then(|all| all.for_clients_of(Some(caller.namespace())));
    let said = routed.map(|resource| Routes::decode(&resource.body));
    let said = said.transpose();
    let said = said.map_err(|error| format!("{service}: {error}"))?;
    let about_requests = |said: &Routes| !said.routes.is_empty() || said.connections.is_empty();
    Ok(said.filter(about_requests))
}

/// Other services that routes of a service lead to.
pub(super) fn led_to(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    service: &Arc<str>,
) -> BTreeSet<Arc<str>> {
    // Routes that cannot be read are reported at the request for them.
    let said = said(snapshot, caller, service).ok().flatten();
    let routes = said.iter().flat_map(|said| &said.routes);
    let targets = routes.flat_map(|route| &route.destinations);
    let targets = targets.filter_map(|to| to.to.as_ref().ok());
    let names = targets.map(|target| target.service.to_string().into());
    names.filter(|name| name != service).collect()
}

/// By what the destinations of a route keep calls together.
fn keys(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    route: &voile_xds::wire::WireRoute,
    port: Port,
) -> Result<Vec<HashKey>, String> {
    let mut keys = Vec::new();
    for to in route.destinations.iter().filter(|to| to.weight > 0) {
        let Ok(target) = &to.to else { continue };
        let policy = policy_of(snapshot, caller, &target.service.to_string().into())?;
        let port = target.port.unwrap_or(port);
        let traffic = traffic_of(policy.as_ref(), port, target.subset.as_deref());
        let key = traffic.and_then(|traffic| traffic.balancer.key.clone());
        keys.extend(key.filter(|key| !keys.contains(key)));
    }
    Ok(keys)
}

/// Names an action of a route that gRPC does not support.
fn undone(route: &voile_xds::wire::WireRoute) -> Option<&'static str> {
    let none = HeaderRules::default();
    let edits = |rules: &HeaderRules| *rules != none;
    match route {
        route if route.answer.is_some() => Some("redirects and direct responses"),
        route if route.rewrite.is_some() => Some("rewrites"),
        route if route.fault.is_some() => Some("faults"),
        route if route.cors.is_some() => Some("CORS"),
        route if !route.mirrors.is_empty() => Some("mirrors"),
        route
            if edits(&route.headers) || route.destinations.iter().any(|to| edits(&to.headers)) =>
        {
            Some("header edits")
        }
        _ => None,
    }
}

/// The cluster of somewhere that a route leads.
fn cluster(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    (called, asked): (&Arc<str>, &str),
    target: &RouteTarget,
    port: Port,
) -> Result<String, String> {
    let service: Arc<str> = target.service.to_string().into();
    let (port, subset) = (target.port.unwrap_or(port), target.subset.as_deref());
    if service == *called {
        return Ok(name_of(&service, asked, port, subset));
    }
    let host = target.service.hostname.to_string();
    // Clusters are asked for by host, which must mean the same then.
    if snapshot.names.find(Some(caller.namespace()), &host) != Some(&service) {
        return Err(format!(
            "a route leads to {service}, but for the caller {host} names another service"
        ));
    }
    Ok(name_of(&service, &host, port, subset))
}

/// Returns true if calls of a client with these labels to this port can match.
fn is_ours(one: &RequestMatch, port: Port, own: &Labels) -> bool {
    one.port.is_none_or(|wanted| wanted == port) && one.source_labels.selects(own)
}

fn alternative(one: &RequestMatch) -> Alternative {
    let mut made = Alternative {
        any_case: one.any_case,
        ..Alternative::default()
    };
    let plain = [
        (Subject::Uri, &one.uri),
        (Subject::Scheme, &one.scheme),
        (Subject::Method, &one.method),
        (Subject::Authority, &one.authority),
    ];
    let plain = plain.into_iter();
    let plain = plain.filter_map(|(subject, text)| Some((subject, Criterion::Is(text.clone()?))));
    made.criteria.extend(plain);
    let mut add = |list: &[(Arc<str>, TextMatch)], of: fn(Arc<str>) -> Subject| {
        for (name, text) in list {
            let criterion = match of(name.clone()) {
                Subject::WithoutHeader(_) => Criterion::IsNot(text.clone()),
                _ => Criterion::Is(text.clone()),
            };
            made.criteria.insert(of(name.clone()), criterion);
        }
    };
    add(&one.headers, Subject::Header);
    add(&one.without_headers, Subject::WithoutHeader);
    add(&one.query, Subject::QueryParam);
    made
}

/// Part of a retry policy that gRPC does not support.
fn unheard(about: &str, policy: &RetrySettings) -> Option<Limit> {
    let limit = |why: String| Some(Limit::new(LimitName::Retries, about, why));
    if policy.per_try_timeout.is_some() {
        return limit("gRPC has no timeout per attempt (perTryTimeout)".to_owned());
    }
    let unheard = policy.on.iter().map(|word| &**word);
    let unheard: Vec<&str> = unheard.filter(|word| !UNDERSTOOD.contains(word)).collect();
    if policy.retries == 0 || unheard.is_empty() {
        return None;
    }
    let words = unheard.join("`, `");
    limit(format!("gRPC does not retry on `{words}` (retryOn)"))
}
