//! Requests of stock gRPCs (`xds:///HOST:PORT`, and servers by the name in their bootstrap) and their answers. Answers describe
//! services as `voile_envoy::grpc` writes them, with mutual TLS if a sidecar would speak it.

use std::collections::BTreeSet;
use std::sync::Arc;

use voile_envoy::{Limit, LimitName, grpc};
use voile_model::{Port, ServiceKey};
use voile_policy::authorization::{Policy, TrustDomains};
use voile_proto::type_url;
use voile_xds::server::Resolution;
use voile_xds::wire::{
    MutualTls, ProxyConfiguration, ServicePolicy, decode_authorization, search_name,
};

mod destination;
mod routes;

use destination::Destination;

use crate::snapshot::{MeshSnapshot, SnapshotCaller};

/// Prefix of a server's listener name in Istio's bootstraps and ours; the server's address follows.
const SERVER: &str = "xds.istio.io/grpc/lds/inbound/";
/// Prefix of names of routes, clusters and endpoints for gRPC: `grpc|PORT|SUBSET|HOST`. Only gRPC clients are led to these
/// names.
const CLIENT: &str = "grpc|";
/// The cluster of routes that lead to what is not there: nobody is in it, so that calls end at once.
const NOWHERE: &str = "grpc|nowhere";

/// A question, understood.
enum GrpcRequest<'a> {
    /// A listener: of a port of a host.
    Target(&'a str, Port),
    /// A listener: of a server at this address.
    Server(&'a str, u16),
    /// Routes, a cluster or endpoints of a port of a host, or of a part of it.
    Part(&'static str, &'a str, Port, Option<&'a str>),
    /// A cluster or endpoints: of nobody.
    Nowhere(&'static str),
}

impl<'a> GrpcRequest<'a> {
    fn parse(type_url: &str, name: &'a str) -> Option<Self> {
        if type_url == type_url::LISTENER {
            if let Some(address) = name.strip_prefix(SERVER) {
                let (host, port) = grpc::listening_at(address)?;
                return Some(Self::Server(host, port));
            }
            let (host, port) = name.rsplit_once(':')?;
            return Some(Self::Target(host, number(port)?));
        }
        let parts = [type_url::ROUTES, type_url::CLUSTER, type_url::ENDPOINTS];
        let part = parts.into_iter().find(|part| *part == type_url)?;
        if name == NOWHERE && part != type_url::ROUTES {
            return Some(Self::Nowhere(part));
        }
        let (port, rest) = name.strip_prefix(CLIENT)?.split_once('|')?;
        let (subset, host) = rest.split_once('|')?;
        let subset = Some(subset).filter(|subset| !subset.is_empty());
        Some(Self::Part(part, host, number(port)?, subset))
    }
}

fn number(text: &str) -> Option<Port> {
    text.parse().ok().and_then(Port::new)
}

pub(super) fn resolve(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    type_url: &str,
    name: &str,
) -> Option<Resolution> {
    let made = match GrpcRequest::parse(type_url, name)? {
        GrpcRequest::Server(host, port) => server(snapshot, caller, name, (host, port)),
        GrpcRequest::Target(host, port) => {
            let service = match service_of(snapshot, caller, host)? {
                Ok(service) => service,
                Err(reason) => return Some(Resolution::Refused(reason)),
            };
            // Short names differ from caller to caller in what they stand for; the parts do not.
            let routes = name_of(service, host, port, None);
            let whole = Destination::of(snapshot, caller, (service, port, None));
            // Routes that cannot be said are not taken back from a client that has others, a listener is.
            let said = || routes::of(snapshot, caller, ((service, port, None), host), &routes);
            whole.and_then(|_| said()).and_then(|_| {
                super::translation_cache::resource(name, &grpc::client_listener(name, &routes))
            })
        }
        GrpcRequest::Nowhere(part) => snapshot.made.once(part, "", name, || {
            Ok(Destination::nobody().message(part, name))
        }),
        GrpcRequest::Part(part, host, port, subset) => {
            let service = match service_of(snapshot, caller, host)? {
                Ok(service) => service,
                Err(reason) => return Some(Resolution::Refused(reason)),
            };
            let at = (service, port, subset);
            let make = || match part {
                type_url::ROUTES => routes::of(snapshot, caller, (at, host), name),
                _ => {
                    let made = Destination::of(snapshot, caller, at)?;
                    made.say(snapshot, at);
                    Ok(made.message(part, name))
                }
            };
            // Only what everybody is told and calls the same is kept: other spellings have no end.
            let is_everybodys = snapshot.policies_apart.get(service).is_none()
                && (part != type_url::ROUTES || snapshot.routes.get(service).is_none());
            match is_everybodys && is_host_of(service, host) {
                true => {
                    let of = format!("{service}:{port}|{}", subset.unwrap_or_default());
                    snapshot.made.once(part, &of, name, make)
                }
                false => {
                    make().and_then(|message| super::translation_cache::resource(name, &message))
                }
            }
        }
    };
    Some(match made {
        Ok(resource) => Resolution::Found(vec![resource]),
        Err(reason) => Resolution::Refused(reason),
    })
}

pub(super) fn rests_on(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    type_url: &str,
    name: &str,
) -> Vec<(&'static str, Arc<str>)> {
    let own = own_name(caller).map(|own| (type_url::PROXY_CONFIGURATION, own));
    let mut on: Vec<_> = own.into_iter().collect();
    match GrpcRequest::parse(type_url, name) {
        None => return Vec::new(),
        Some(GrpcRequest::Server(..) | GrpcRequest::Nowhere(_)) => {}
        Some(GrpcRequest::Target(host, _) | GrpcRequest::Part(_, host, ..)) => {
            // A client that searches a host is notified when the name leads elsewhere.
            on.push((type_url::ADDRESS, search_name(host)));
            if let Some(service) = snapshot.names.find(Some(caller.namespace()), host) {
                // Which ports node proxies refuse plaintext to is said by policies that keep their names.
                if snapshot.ambient {
                    on.push((type_url::AUTHORIZATION, "*".into()));
                }
                on.push((type_url::ADDRESS, service.clone()));
                on.push((type_url::SERVICE_POLICY, service.clone()));
                on.push((type_url::SERVICE_ROUTES, service.clone()));
                // By what calls are kept together is said with routes and written where they lead.
                if matches!(type_url, type_url::LISTENER | type_url::ROUTES) {
                    let led_to = routes::led_to(snapshot, caller, service).into_iter();
                    on.extend(led_to.map(|to| (type_url::SERVICE_POLICY, to)));
                }
            }
        }
    }
    on
}

/// `namespace/workload` of a caller that said which it is.
fn own_name(caller: &SnapshotCaller) -> Option<Arc<str>> {
    let SnapshotCaller::Known(known) = caller else {
        return None;
    };
    let pod = known.pod.as_ref()?;
    Some(format!("{}/{pod}", known.identity.namespace).into())
}

/// The caller's own configuration, if it is a workload with one, and that workload's identity.
fn configuration(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
) -> Result<ProxyConfiguration, String> {
    let SnapshotCaller::Known(known) = caller else {
        return Err("the caller sent no credentials".to_owned());
    };
    let own = own_name(caller).ok_or("node.id does not name the workload")?;
    let private = snapshot.configurations.get(&own);
    let private = private.ok_or_else(|| format!("there is no workload {own} with a sidecar"))?;
    if private.owner != known.identity {
        let (owner, identity) = (&private.owner, &known.identity);
        return Err(format!("{own} belongs to {owner}, not to {identity}"));
    }
    ProxyConfiguration::decode(&private.resource.body).map_err(|error| error.to_string())
}

/// Service of a host for a caller; `None` if there is no service, an error if the caller's Sidecar hides it.
fn service_of<'a>(
    snapshot: &'a MeshSnapshot,
    caller: &SnapshotCaller,
    host: &str,
) -> Option<Result<&'a Arc<str>, String>> {
    let service = snapshot.names.find(Some(caller.namespace()), host)?;
    if let Ok(own) = configuration(snapshot, caller)
        && let (Some(capture), Some(key)) = (&own.capture, key_of(service))
        && !capture.reaches(&key)
    {
        return Some(Err(format!(
            "the caller's Sidecar does not reach {service}"
        )));
    }
    Some(Ok(service))
}

/// Returns true if this is the service's own host: no short form, and none of the many names of a wildcard.
fn is_host_of(service: &str, host: &str) -> bool {
    service.split_once('/').is_some_and(|(_, own)| own == host)
}

/// Name of the parts of a service's port: with the service's own host, unless that is a wildcard.
fn name_of(service: &str, asked: &str, port: Port, subset: Option<&str>) -> String {
    let own = service.split_once('/').map_or(asked, |(_, own)| own);
    let host = if own.starts_with('*') { asked } else { own };
    let subset = subset.unwrap_or_default();
    format!("{CLIENT}{port}|{subset}|{host}")
}

fn key_of(service: &str) -> Option<ServiceKey> {
    voile_xds::wire::parse_service_key(service)
}

/// Which port of which service, or of which part of it.
type At<'a> = (&'a Arc<str>, Port, Option<&'a str>);

/// Policy of the caller's calls to a service.
fn policy_of(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    name: &Arc<str>,
) -> Result<Option<ServicePolicy>, String> {
    let policy = snapshot.policy_of(caller, name);
    let policy = policy.map(|one| ServicePolicy::decode(&one.body));
    let policy = policy.transpose();
    let policy = policy.map_err(|error| format!("{name}: {error}"))?;
    let Some(policy) = policy else {
        return Ok(None);
    };
    if policy.for_clients.is_empty() {
        return Ok(Some(policy));
    }
    let own = configuration(snapshot, caller).map(|own| own.labels);
    Ok(Some(policy.for_client(&own.unwrap_or_default()).clone()))
}

/// The listener of the caller's own server.
fn server(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    name: &str,
    (host, port): (&str, u16),
) -> Result<Arc<voile_xds::server::Resource>, String> {
    let own = configuration(snapshot, caller)?;
    if !own.request_authentications.is_empty() {
        let first = &own.request_authentications[0].name;
        return Err(format!(
            "RequestAuthentication {first}: gRPC verifies no tokens"
        ));
    }
    let mode = mode_of(&own, port);
    let about = format!("port {port}");
    let mut limits = BTreeSet::new();
    if mode == MutualTls::Permissive {
        let why = "a gRPC server accepts either mutual TLS or plaintext: PERMISSIVE acts as STRICT";
        limits.insert(Limit::new(LimitName::Permissive, &about, why));
    }
    let aliases: Vec<&str> = own
        .trust_domain_aliases
        .iter()
        .map(voile_model::TrustDomain::as_str)
        .collect();
    let domains = TrustDomains::new(own.trust_domain.as_str(), &aliases);
    let mut policies = Vec::new();
    for reference in &own.authorization_policies {
        let name = &reference.name;
        let unreadable =
            |error: &dyn std::fmt::Display| format!("AuthorizationPolicy {name}: {error}");
        let resource = snapshot.authorization.get(name);
        let resource = resource.ok_or_else(|| unreadable(&"the policy does not exist"))?;
        let read = decode_authorization(name, &resource.body);
        let mut policy = Policy::of(&read.map_err(|error| unreadable(&error))?)
            .map_err(|error| unreadable(&error))?;
        domains.apply(&mut policy);
        policies.push(policy);
    }
    limits.extend(grpc::unreported(&policies).map(|policy| {
        let name = &policy.name;
        let why = format!(
            "AuthorizationPolicy {}/{} has no audit records and no dry run: gRPC supports neither",
            name.namespace, name.name
        );
        Limit::new(LimitName::Audit, &about, why)
    }));
    if let Some(own) = own_name(caller) {
        snapshot.made.limits.met(&own, about, limits);
    }
    let mutual_tls = mode != MutualTls::Disable;
    let message = grpc::server_listener(name, (host, port), mutual_tls, &policies)?;
    super::translation_cache::resource(name, &message)
}

/// Mutual TLS mode of a port of the workload.
fn mode_of(own: &ProxyConfiguration, port: u16) -> MutualTls {
    let bound = own
        .inbound
        .iter()
        .find(|listener| listener.bind.port() == port);
    let captured = own.capture.as_ref();
    let named = captured.and_then(|capture| capture.ports.get(&Port::new(port)?));
    named
        .map(|port| port.mutual_tls)
        .or(bound.map(|listener| listener.mutual_tls))
        .or(captured.map(|capture| capture.mutual_tls))
        .unwrap_or(MutualTls::Strict)
}
