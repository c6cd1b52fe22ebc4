//! xDS resources for a stock gRPC, client and server: one listener, route, cluster and list of endpoints for a target, one
//! listener for a server (gRFCs A27, A28, A29, A32, A36, A41, A42). A setting that gRPC cannot express is an error with its
//! reason, or a limit with its name.

mod routes;
mod traffic;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};
use voile_model::mesh::traffic::PortTraffic;
use voile_policy::authorization::{Action, Attribute, Pattern, Policy, Term};

use crate::json::{TYPES, from_control, host as address, message, typed};
use crate::rbac::{Layer, PeerIdentity, Translation};
pub use routes::{Alternative, GrpcRoute, routes};
pub use traffic::{DestinationEndpoints, untold};

/// Name that a bootstrap must give the plugin with the workload's own certificate and the mesh's roots, as Istio's do.
pub const CERTIFICATES: &str = "default";
/// The only socket that gRPC takes.
const TLS_SOCKET: &str = "envoy.transport_sockets.tls";
/// Expected identity if there is no endpoint: without any name gRPC would accept every workload of the mesh.
const NOBODY: &str = "spiffe://nobody.invalid";
/// Headers that gRPC keeps from policies (A41).
const KEPT_HEADERS: [&str; 1] = [":scheme"];
const KEPT_PREFIX: &str = "grpc-";

fn router() -> Value {
    typed(
        "envoy.filters.http.router",
        "extensions.filters.http.router.v3.Router",
        json!({}),
    )
}

fn connection_manager(routes: (&str, Value), mut filters: Vec<Value>) -> Value {
    filters.push(router());
    let mut manager = json!({ "http_filters": filters });
    manager[routes.0] = routes.1;
    let kind = "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    message(kind, manager)
}

/// The listener of a client's target: it leads to `routes`.
#[must_use]
pub fn client_listener(target: &str, routes: &str) -> Value {
    let rds = json!({ "config_source": from_control(), "route_config_name": routes });
    json!({
        "@type": format!("{TYPES}config.listener.v3.Listener"),
        "name": target,
        "api_listener": { "api_listener": connection_manager(("rds", rds), Vec::new()) },
    })
}

/// Source of a cluster's endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discovery<'a> {
    /// From us, by the cluster's name.
    Endpoints,
    /// From DNS: the one name, and its port.
    Dns(&'a str, u16),
}

/// A cluster. `expected`: the identities that may answer, in mutual TLS; none is plaintext. `untold` names the parts of `said`
/// that a cluster cannot express.
#[must_use]
pub fn cluster(
    name: &str,
    discovery: &Discovery<'_>,
    expected: Option<&[String]>,
    said: &PortTraffic,
) -> Value {
    let mut cluster = json!({
        "@type": format!("{TYPES}config.cluster.v3.Cluster"),
        "name": name,
    });
    traffic::treat(&mut cluster, said);
    match discovery {
        Discovery::Endpoints => {
            cluster["type"] = json!("EDS");
            cluster["eds_cluster_config"] = json!({ "eds_config": from_control() });
        }
        Discovery::Dns(host, port) => {
            cluster["type"] = json!("LOGICAL_DNS");
            let endpoint = json!({ "endpoint": { "address": address(host, *port) } });
            cluster["load_assignment"] = json!({
                "cluster_name": name,
                "endpoints": [{ "locality": {}, "lb_endpoints": [endpoint] }],
            });
        }
    }
    if let Some(expected) = expected {
        let exact = |name: &str| json!({ "exact": name });
        let mut names: Vec<Value> = expected.iter().map(|name| exact(name)).collect();
        if names.is_empty() {
            names.push(exact(NOBODY));
        }
        let context = json!({ "common_tls_context": common_tls(Some(names)) });
        cluster["transport_socket"] = typed(
            TLS_SOCKET,
            "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            context,
        );
    }
    cluster
}

fn common_tls(names: Option<Vec<Value>>) -> Value {
    let plugin = json!({ "instance_name": CERTIFICATES });
    let mut validation = json!({ "ca_certificate_provider_instance": plugin });
    if let Some(names) = names {
        validation["match_subject_alt_names"] = Value::from(names);
    }
    json!({
        "tls_certificate_provider_instance": plugin,
        "validation_context": validation,
    })
}

/// One endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcEndpoint {
    /// Its address.
    pub address: SocketAddr,
    /// `region`, `zone`, `subzone`; empty where not said.
    pub locality: [String; 3],
    /// Its share of the load, at least 1.
    pub weight: u32,
}

/// The endpoints of a cluster. An address that is there twice is one: gRPC refuses twins.
#[must_use]
pub fn endpoints(cluster: &str, endpoints: &[GrpcEndpoint]) -> Value {
    let once: BTreeMap<SocketAddr, &GrpcEndpoint> = endpoints
        .iter()
        .map(|endpoint| (endpoint.address, endpoint))
        .collect();
    let mut localities: BTreeMap<&[String; 3], Vec<&GrpcEndpoint>> = BTreeMap::new();
    for endpoint in once.into_values() {
        localities
            .entry(&endpoint.locality)
            .or_default()
            .push(endpoint);
    }
    let made = localities.into_iter().map(|(locality, members)| {
        let [region, zone, sub_zone] = locality;
        let weights = members.iter().map(|member| member.weight.max(1));
        let weight = weights.fold(0u32, u32::saturating_add);
        let lb_endpoints = members.iter().map(|member| {
            let (host, port) = (member.address.ip().to_string(), member.address.port());
            json!({
                "endpoint": { "address": address(&host, port) },
                "load_balancing_weight": member.weight.max(1),
            })
        });
        json!({
            "locality": { "region": region, "zone": zone, "sub_zone": sub_zone },
            "load_balancing_weight": weight,
            "lb_endpoints": lb_endpoints.collect::<Vec<Value>>(),
        })
    });
    json!({
        "@type": format!("{TYPES}config.endpoint.v3.ClusterLoadAssignment"),
        "cluster_name": cluster,
        "endpoints": made.collect::<Vec<Value>>(),
    })
}

/// The listener of a server that listens at `address` (a server refuses a listener that is somewhere else, letter by letter).
/// With `mutual_tls` every client must show a certificate of the mesh.
///
/// # Errors
/// A policy asks what gRPC cannot answer. Then there is no listener, and the server takes nobody: what cannot be refused must
/// not be let in.
pub fn server_listener(
    name: &str,
    (host, port): (&str, u16),
    mutual_tls: bool,
    policies: &[Policy],
) -> Result<Value, String> {
    let routes = json!({
        "name": name,
        "virtual_hosts": [{
            "name": name,
            "domains": ["*"],
            "routes": [{ "match": { "prefix": "" }, "non_forwarding_action": {} }],
        }],
    });
    let manager = connection_manager(("route_config", routes), filters(policies)?);
    let mut chain = json!({
        "name": "inbound",
        "filters": [{ "name": "envoy.filters.network.http_connection_manager", "typed_config": manager }],
    });
    if mutual_tls {
        let context = json!({
            "common_tls_context": common_tls(None),
            "require_client_certificate": true,
        });
        chain["transport_socket"] = typed(
            TLS_SOCKET,
            "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            context,
        );
    }
    Ok(json!({
        "@type": format!("{TYPES}config.listener.v3.Listener"),
        "name": name,
        "address": address(host, port),
        "filter_chains": [chain],
    }))
}

/// The RBAC filters that policies become: those that decide. gRPC neither audits nor tries rules out.
fn filters(policies: &[Policy]) -> Result<Vec<Value>, String> {
    let enforced: Vec<&Policy> = policies.iter().filter(|policy| !policy.dry_run).collect();
    for policy in &enforced {
        check(policy).map_err(|why| {
            let name = &policy.name;
            format!(
                "AuthorizationPolicy {}/{}: {why}",
                name.namespace, name.name
            )
        })?;
    }
    let translation = Translation {
        layer: Layer::Http,
        peer: PeerIdentity::Certificate,
    };
    let filter = |(action, name): (Action, &str)| {
        let rules = translation.rules(policies, &action, false)?;
        let kind = "extensions.filters.http.rbac.v3.RBAC";
        Some(typed(name, kind, json!({ "rules": rules })))
    };
    // Each has a name of its own, or gRPC refuses them.
    let deciding = [
        (Action::Deny, "voile.authorization.deny"),
        (Action::Allow, "voile.authorization.allow"),
    ];
    Ok(deciding.into_iter().filter_map(filter).collect())
}

/// Policies that are to be reported and not obeyed, which gRPC does not: AUDIT, and those that are tried out.
pub fn unreported(policies: &[Policy]) -> impl Iterator<Item = &Policy> {
    let only_reported = |policy: &&Policy| policy.dry_run || policy.action == Action::Audit;
    policies.iter().filter(only_reported)
}

/// Checks that gRPC can evaluate every part of a policy.
fn check(policy: &Policy) -> Result<(), String> {
    if let Action::Custom(provider) = &policy.action {
        return Err(format!(
            "gRPC cannot call the provider `{provider}` (CUSTOM)"
        ));
    }
    if policy.action == Action::Audit {
        return Ok(());
    }
    for rule in &policy.rules {
        let parts = rule.from.iter().chain(&rule.to).flatten();
        parts.chain(&rule.when).try_for_each(check_term)?;
    }
    Ok(())
}

fn check_term(term: &Term) -> Result<(), String> {
    let cannot = |why: &str| Err(format!("`{}`: {why}", term.attribute));
    match &term.attribute {
        Attribute::RequestPrincipal
        | Attribute::RequestAudiences
        | Attribute::RequestPresenter
        | Attribute::RequestClaim(_) => cannot("gRPC verifies no tokens"),
        Attribute::Sni => cannot("gRPC policies cannot match the server name (SNI)"),
        Attribute::RequestHeader(name)
            if name.starts_with(KEPT_PREFIX) || KEPT_HEADERS.contains(&&**name) =>
        {
            cannot("gRPC policies cannot match this header")
        }
        Attribute::Path => {
            let mut patterns = term.any.iter().chain(&term.none);
            match patterns.any(|pattern| matches!(pattern, Pattern::Template(_))) {
                true => cannot("gRPC does not support path templates"),
                false => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// The address and port at the end of a server listener's name, as gRPC writes them.
#[must_use]
pub fn listening_at(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = bare.unwrap_or(host);
    host.parse::<IpAddr>().ok()?;
    Some((host, port.parse().ok().filter(|port| *port > 0)?))
}
