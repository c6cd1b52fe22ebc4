//! Outbound listeners: listeners that clients connect to, or unbound ones behind one to which the kernel redirects. They have
//! routes by host, and by server name if TLS is passed through. All of it is the same for all workloads of one scope.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use serde_json::{Value, json};
use voile_model::Port;
use voile_model::mesh::traffic::PortTraffic;
use voile_model::mesh::{
    CaptureMode, DestinationRule, Mesh, MeshService, OutboundPolicy, Protocol, Resolution, Routing,
    ServicePort, ServicesByHost, Sidecar,
};

use super::cluster::domains;
use super::manager::{self, Routes, TrafficDirection};
use super::names::{self, ClusterTraffic, PortProtocol};
use super::{Callee, DependencyScope, InterceptMode, Made, actions, routes, traffic};
use crate::json::{authority, duration, host, socket, typed};
use crate::limit::LimitName;
use crate::matching;

/// Port that the kernel redirects outbound connections to.
const CAPTURED: u16 = 15001;
/// The cluster that goes where the caller was going.
const PASSED: &str = "PassthroughCluster";
/// The cluster that goes nowhere.
pub(crate) const BLACK_HOLE: &str = "BlackHoleCluster";

/// A service's port, and the names by which this listener's clients call it.
pub(super) struct Hop {
    pub(super) service: Arc<MeshService>,
    pub(super) port: ServicePort,
    names: Vec<String>,
    spoken: PortProtocol,
    /// The DestinationRule that its callers obey.
    rule: Option<Arc<DestinationRule>>,
}

/// Treatment of calls that name no service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PassthroughPolicy {
    /// Nothing: there is nowhere to go on to.
    NoRoute,
    /// They go where they were going.
    Passed,
    /// They are refused.
    Refused,
}

/// One outbound listener.
struct OutboundListener {
    name: String,
    address: Value,
    /// True if it binds its address.
    bound: bool,
    protocol: Protocol,
    hops: Vec<Hop>,
    otherwise: PassthroughPolicy,
}

/// Translation of the outbound calls of a scope.
#[derive(Clone, Copy)]
pub(super) struct Outbound<'a> {
    pub(super) mesh: &'a Mesh,
    pub(super) routing: &'a Routing<'a>,
    pub(super) leads: &'a ServicesByHost<'a>,
    pub(super) scope: &'a DependencyScope,
}

pub(super) fn translate(outbound: Outbound<'_>, made: &mut Made) {
    let exits = match outbound.scope.capture {
        InterceptMode::None => outbound.explicit(made),
        InterceptMode::Redirect => {
            outbound.virtual_listener(made);
            outbound.captured(made)
        }
    };
    made.clusters.insert(BLACK_HOLE.to_owned(), black_hole());
    for exit in exits {
        for hop in &exit.hops {
            let rule = hop.rule.as_deref();
            let callee = Callee::new(&hop.service, hop.port.number, None, rule);
            made.callees.insert(callee);
            outbound.unrouted(hop, made);
        }
        let listener = outbound.listener(&exit, made);
        made.listeners.insert(exit.name.clone(), listener);
    }
}

impl<'a> Outbound<'a> {
    fn sidecar(&self) -> Option<&'a Sidecar> {
        let name = self.scope.sidecar.as_ref()?;
        self.mesh.sidecars.get(name).map(|sidecar| &**sidecar)
    }

    fn hop(&self, service: &Arc<MeshService>, port: Port, names: Vec<String>) -> Option<Hop> {
        let port = service.port(port)?;
        let rule = self.mesh.destination_rule(service, self.scope.client());
        let by = rule.map(|rule| &**rule);
        let said = self.mesh.traffic_by(service, by, port.number, None);
        Some(Hop {
            spoken: PortProtocol::to(self.mesh, port, &said.pool)?,
            rule: rule.cloned(),
            service: service.clone(),
            port: port.clone(),
            names,
        })
    }

    /// The Sidecar's listeners that clients connect to.
    fn explicit(&self, made: &mut Made) -> Vec<OutboundListener> {
        let namespace = &self.scope.namespace;
        let sidecar = self.sidecar();
        let mut binds = BTreeSet::new();
        let mut exits = Vec::new();
        for listener in sidecar.into_iter().flat_map(|sidecar| &sidecar.egress) {
            let (CaptureMode::None, Some(port)) = (listener.capture_mode, &listener.port) else {
                continue;
            };
            if port.protocol == Protocol::Udp {
                continue;
            }
            let bind = listener.bind.unwrap_or(Ipv4Addr::LOCALHOST.into());
            let bind = SocketAddr::new(bind, port.number.get());
            if !binds.insert(bind) {
                let sidecar = sidecar.map(|sidecar| sidecar.name.to_string());
                let about = format!("Sidecar {}, outbound {bind}", sidecar.unwrap_or_default());
                made.limit(
                    LimitName::ListenerTwice,
                    about,
                    "it is declared twice; the first wins",
                );
                continue;
            }
            let mut taken = BTreeSet::new();
            let services = self.mesh.egress_services(namespace, listener);
            let hops = services.iter().filter_map(|service| {
                // A short name belongs to the first service that has it.
                let mut names = service.authorities(namespace);
                names.retain(|name| taken.insert(name.clone()));
                self.hop(service, port.number, names)
            });
            exits.push(OutboundListener {
                name: format!("outbound_{}", names::listener(bind)),
                address: socket(bind),
                bound: true,
                protocol: port.protocol,
                hops: hops.collect(),
                otherwise: PassthroughPolicy::NoRoute,
            });
        }
        exits
    }

    fn otherwise(&self) -> PassthroughPolicy {
        let policy = self.sidecar().and_then(|sidecar| sidecar.outbound_policy);
        match policy.unwrap_or(self.mesh.config.outbound_policy) {
            OutboundPolicy::AllowAny => PassthroughPolicy::Passed,
            OutboundPolicy::RegistryOnly => PassthroughPolicy::Refused,
        }
    }

    /// Services that the workload may reach, port by port.
    fn reachable(&self) -> Vec<(Arc<MeshService>, Port)> {
        let namespace = &self.scope.namespace;
        let listeners = self
            .sidecar()
            .map(|sidecar| sidecar.egress.as_slice())
            .unwrap_or_default();
        let mut found: BTreeMap<_, (Arc<MeshService>, Port)> = BTreeMap::new();
        let mut add = |service: &Arc<MeshService>, port: Port| {
            let key = (service.key.clone(), port);
            found.insert(key, (service.clone(), port));
        };
        for listener in listeners {
            let only = listener.port.as_ref().map(|port| port.number);
            for service in self.mesh.egress_services(namespace, listener) {
                let ports = service.ports.iter().map(|port| port.number);
                ports
                    .filter(|port| only.is_none_or(|only| only == *port))
                    .for_each(|port| add(&service, port));
            }
        }
        if listeners.is_empty() {
            let all = self.mesh.services.values();
            let seen = all.filter(|service| service.visibility.includes(namespace));
            let own: BTreeSet<_> = self
                .mesh
                .services_in(namespace)
                .map(|service| service.key.hostname.clone())
                .collect();
            for service in seen {
                // A host of the caller's own namespace hides its like elsewhere.
                if service.key.namespace == *namespace || !own.contains(&service.key.hostname) {
                    service
                        .ports
                        .iter()
                        .for_each(|port| add(service, port.number));
                }
            }
        }
        found.into_values().collect()
    }

    /// A listener for each port that several services share by name, and one for each address that bytes are sent to.
    fn captured(&self, made: &mut Made) -> Vec<OutboundListener> {
        let otherwise = self.otherwise();
        let any = self.scope.any();
        let mut shared: BTreeMap<Port, Vec<Hop>> = BTreeMap::new();
        let mut exits: BTreeMap<String, OutboundListener> = BTreeMap::new();
        for (service, number) in self.reachable() {
            let mut names = service.authorities(&self.scope.namespace);
            names.extend(service.addresses.iter().map(|address| authority(*address)));
            let Some(hop) = self.hop(&service, number, names) else {
                continue;
            };
            let bytes = matches!(
                hop.spoken,
                PortProtocol::Anything | PortProtocol::One(ClusterTraffic::Opaque)
            );
            // No request to this address bypasses the service's waypoint, whatever its host.
            let behind = self.mesh.waypoint_of(&service).is_some();
            let otherwise = match behind {
                true => PassthroughPolicy::NoRoute,
                false => otherwise,
            };
            let tls = hop.port.protocol == Protocol::Tls;
            if bytes {
                self.unreachable(&hop, made);
            }
            if bytes || behind {
                for address in &service.addresses {
                    let exit = self.at(*address, &hop, otherwise);
                    exits.entry(exit.name.clone()).or_insert(exit);
                }
            }
            if tls || hop.spoken != PortProtocol::One(ClusterTraffic::Opaque) {
                shared.entry(number).or_default().push(hop);
            }
        }
        for (port, mut hops) in shared {
            let mut taken = BTreeSet::new();
            for hop in &mut hops {
                hop.names.retain(|name| taken.insert(name.clone()));
            }
            let name = format!("{any}_{port}");
            let exit = OutboundListener {
                name: name.clone(),
                address: host(any, port.get()),
                bound: false,
                protocol: Protocol::Auto,
                hops,
                otherwise,
            };
            exits.insert(name, exit);
        }
        exits.into_values().collect()
    }

    /// The listener for one virtual address of a service.
    fn at(&self, address: IpAddr, hop: &Hop, otherwise: PassthroughPolicy) -> OutboundListener {
        let bind = SocketAddr::new(address, hop.port.number.get());
        let mut exit = OutboundListener {
            name: names::listener(bind),
            address: socket(bind),
            bound: false,
            protocol: hop.port.protocol,
            hops: Vec::new(),
            otherwise,
        };
        exit.hops
            .extend(self.hop(&hop.service, hop.port.number, hop.names.clone()));
        exit
    }

    /// Reports calls to a service that cannot be told from calls to addresses outside the mesh.
    fn unreachable(&self, hop: &Hop, made: &mut Made) {
        let service = &hop.service;
        let about = format!("Service {}, port {}", service.key, hop.port.number);
        if !service.address_ranges.is_empty() {
            let why = "TCP connections to its address range go to their original destination, in plaintext";
            made.limit(LimitName::AddressRange, &about, why);
        }
        if service.addresses.is_empty() && hop.port.protocol != Protocol::Tls {
            let (name, why) = match service.resolution {
                Resolution::Passthrough if !service.headless => (
                    LimitName::PassthroughService,
                    "TCP connections to unknown addresses go to their original destination",
                ),
                _ => (
                    LimitName::HeadlessTcp,
                    "TCP connections to its endpoints' addresses go to their original destination, in plaintext",
                ),
            };
            made.limit(name, &about, why);
        }
    }

    /// Listener that the kernel redirects to; it keeps connections that no other listener takes.
    fn virtual_listener(&self, made: &mut Made) {
        let any = self.scope.any();
        let to = match self.otherwise() {
            PassthroughPolicy::Passed => {
                name_plaintext(made);
                PASSED
            }
            PassthroughPolicy::NoRoute | PassthroughPolicy::Refused => BLACK_HOLE,
        };
        let passed = json!({
            "name": PASSED,
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "connect_timeout": duration(self.mesh.config.connect_timeout),
            "circuit_breakers": traffic::unlimited(),
        });
        made.clusters.insert(PASSED.to_owned(), passed);
        let listener = json!({
            "name": "virtualOutbound",
            "address": host(any, CAPTURED),
            "traffic_direction": TrafficDirection::Out.direction(),
            "use_original_dst": true,
            "filter_chains": [
                // A connection to the listener's own port would be forwarded to it again and again.
                {
                    "name": "virtualOutbound-blackhole",
                    "filter_chain_match": { "destination_port": CAPTURED },
                    "filters": [manager::tcp(self.mesh, BLACK_HOLE)],
                },
                { "name": "virtualOutbound-otherwise", "filters": [manager::tcp(self.mesh, to)] },
            ],
        });
        made.listeners
            .insert("virtualOutbound".to_owned(), listener);
    }

    fn listener(&self, exit: &OutboundListener, made: &mut Made) -> Value {
        let any_version =
            |hop: &Hop| !matches!(hop.spoken, PortProtocol::One(_)) || self.leads_by_version(hop);
        let is_http = matches!(
            exit.protocol,
            Protocol::Http | Protocol::Http2 | Protocol::Grpc
        );
        let found_out =
            exit.protocol == Protocol::Auto || (is_http && exit.hops.iter().any(any_version));
        let mut chains = Vec::new();
        if found_out {
            let kinds: [(ClusterTraffic, &[&str]); 2] = [
                (ClusterTraffic::Http1, &["http/1.0", "http/1.1"]),
                (ClusterTraffic::Http2, &["h2c"]),
            ];
            for (carried, seen) in kinds {
                let name = names::flavoured(&exit.name, carried);
                let mut chain = json!({
                    "name": name,
                    "filters": [self.manager(exit, &name, carried, made)],
                });
                // Nothing but HTTP comes where that is declared, however long its first bytes take.
                if !is_http || carried != ClusterTraffic::Http1 {
                    chain["filter_chain_match"] = json!({ "application_protocols": seen });
                }
                chains.push(chain);
            }
        } else if is_http {
            let filters = [self.manager(exit, &exit.name, ClusterTraffic::Http1, made)];
            chains.push(json!({ "name": exit.name, "filters": filters }));
        }
        let mut listener = json!({
            "name": exit.name,
            "address": exit.address,
            "traffic_direction": TrafficDirection::Out.direction(),
        });
        let mut filters = Vec::new();
        let filter = |what: &str, kind: &str| {
            typed(
                &format!("envoy.filters.listener.{what}"),
                &format!("extensions.filters.listener.{what}.v3.{kind}"),
                json!({}),
            )
        };
        if !is_http {
            let (bytes, otherwise) = self.bytes(exit);
            if !bytes.is_empty() {
                filters.push(filter("tls_inspector", "TlsInspector"));
            }
            chains.extend(bytes);
            if let Some(otherwise) = otherwise {
                listener["default_filter_chain"] = otherwise;
            }
        }
        if found_out {
            filters.push(filter("http_inspector", "HttpInspector"));
        }
        if !filters.is_empty() {
            listener["listener_filters"] = json!(filters);
            if !is_http {
                listener["listener_filters_timeout"] =
                    duration(super::detection_timeout(self.mesh));
            }
            listener["continue_on_listener_filters_timeout"] = json!(true);
        }
        if !exit.bound {
            listener["bind_to_port"] = json!(false);
        }
        listener["filter_chains"] = json!(chains);
        listener
    }

    /// Chains for bytes: by server name where there are several services, and what takes the rest.
    fn bytes(&self, exit: &OutboundListener) -> (Vec<Value>, Option<Value>) {
        let to = |hop: &Hop| hop.spoken.cluster(hop.base(), ClusterTraffic::Opaque);
        let opaque: Vec<(&Hop, String)> = exit
            .hops
            .iter()
            .filter_map(|hop| Some((hop, to(hop)?)))
            .collect();
        let otherwise = |filter: Value| {
            let name = format!("{}~otherwise", exit.name);
            json!({ "name": name, "filters": [filter] })
        };
        let carrying = |(hop, cluster): &(&Hop, String)| {
            manager::tcp_to(self.mesh, cluster, &hop.traffic(self.mesh))
        };
        // A lone service takes everything that is sent to its own listener; of several the first what names none.
        let own = exit.bound
            || !matches!(
                exit.address["socket_address"]["address"].as_str(),
                Some("0.0.0.0" | "::")
            );
        let rest = match (own, opaque.first(), exit.otherwise) {
            (true, Some(first), _) => Some(otherwise(carrying(first))),
            (_, _, PassthroughPolicy::Passed) => Some(otherwise(manager::tcp(self.mesh, PASSED))),
            (_, _, PassthroughPolicy::Refused) => {
                Some(otherwise(manager::tcp(self.mesh, BLACK_HOLE)))
            }
            (_, _, PassthroughPolicy::NoRoute) => None,
        };
        if own && opaque.len() <= 1 {
            return (Vec::new(), rest);
        }
        let named = opaque
            .iter()
            .filter(|(hop, _)| own || hop.port.protocol == Protocol::Tls);
        let chains = named.map(|one| {
            let hop = one.0;
            let is_name = |name: &&String| {
                name.parse::<IpAddr>().is_err() && !name.starts_with('[') && **name != "*"
            };
            let names: Vec<&String> = hop.names.iter().filter(is_name).collect();
            json!({
                "name": format!("{}~{}", exit.name, hop.service.key.hostname),
                "filter_chain_match": { "transport_protocol": "tls", "server_names": names },
                "filters": [carrying(one)],
            })
        });
        let has_names = |chain: &Value| {
            chain["filter_chain_match"]["server_names"]
                .as_array()
                .is_some_and(|names| !names.is_empty())
        };
        (chains.filter(has_names).collect(), rest)
    }

    fn manager(
        &self,
        exit: &OutboundListener,
        name: &str,
        carried: ClusterTraffic,
        made: &mut Made,
    ) -> Value {
        let routes = self.routes(exit, name, carried, made);
        made.routes.insert(name.to_owned(), routes);
        let routes = Routes::Named(name.to_owned());
        manager::http(
            self.mesh,
            TrafficDirection::Out,
            name,
            routes,
            &actions::filters(),
        )
    }

    /// The route of a service of which nothing is written.
    fn default_route(&self, hop: &Hop, cluster: &str) -> Value {
        let mut action = json!({ "cluster": cluster, "timeout": "0s" });
        let key = hop.traffic(self.mesh).balancer.key;
        if let Some(policy) = traffic::hash_policy(&key.iter().collect::<Vec<_>>()) {
            action["hash_policy"] = policy;
        }
        if let Some(retry) = manager::retry(self.mesh, None) {
            action["retry_policy"] = retry;
        }
        json!({ "name": "default", "match": { "prefix": "/" }, "route": action })
    }

    fn routes(
        &self,
        exit: &OutboundListener,
        name: &str,
        carried: ClusterTraffic,
        made: &mut Made,
    ) -> Value {
        let mut hosts = Vec::new();
        let lone = exit.bound && exit.hops.len() == 1;
        let mut everything = lone;
        for hop in &exit.hops {
            let key = &hop.service.key;
            let Some(cluster) = hop.spoken.cluster(hop.base(), carried) else {
                continue;
            };
            let domains = match lone {
                true => vec!["*".to_owned()],
                false => domains(&hop.names, hop.port.number),
            };
            everything |= domains.iter().any(|domain| domain == "*");
            if domains.is_empty() {
                continue;
            }
            let routes = match self.mesh.waypoint_of(&hop.service) {
                // Its routes are for its waypoint to obey.
                Some(_) => vec![refused()],
                None => self
                    .written(hop, carried, made)
                    .unwrap_or_else(|| vec![self.default_route(hop, &cluster)]),
            };
            hosts.push(json!({
                "name": format!("{}:{}", key.hostname, hop.port.number),
                "domains": domains,
                "routes": routes,
                "include_request_attempt_count": true,
            }));
        }
        let rest = match exit.otherwise {
            _ if everything => None,
            PassthroughPolicy::NoRoute => None,
            PassthroughPolicy::Passed => Some((
                "allow_any",
                json!({ "route": { "cluster": PASSED, "timeout": "0s" } }),
            )),
            PassthroughPolicy::Refused => {
                Some(("block_all", json!({ "direct_response": { "status": 502 } })))
            }
        };
        hosts.extend(rest.map(|(name, mut route)| {
            route["match"] = json!({ "prefix": "/" });
            route["name"] = json!(name);
            json!({ "name": name, "domains": ["*"], "routes": [route] })
        }));
        json!({
            "name": name,
            "validate_clusters": false,
            "max_direct_response_body_size_bytes": actions::MAX_BODY,
            "virtual_hosts": hosts,
        })
    }
}

/// Says that workloads that are called by their own addresses are called in plaintext.
fn name_plaintext(made: &mut Made) {
    let about = "outboundTrafficPolicy ALLOW_ANY";
    let why = "calls to a workload's own address, not a service's, are plaintext, whatever the protocol, and bypass a waypoint for workloads; REGISTRY_ONLY refuses such calls";
    made.limit(LimitName::WorkloadAddress, about, why);
}

/// The route of a service that is left out.
fn refused() -> Value {
    let mut route = routes::nowhere();
    route["name"] = json!("waypoint");
    route["match"] = matching::any();
    route
}

pub(super) fn black_hole() -> Value {
    json!({ "name": BLACK_HOLE, "type": "STATIC", "connect_timeout": "10s" })
}

impl Hop {
    /// Traffic policy of calls to it.
    fn traffic(&self, mesh: &Mesh) -> PortTraffic {
        mesh.traffic_by(&self.service, self.rule.as_deref(), self.port.number, None)
    }

    /// Prefix of its clusters' names.
    fn base(&self) -> String {
        names::outbound(self.port.number, None, &self.service.key.hostname)
    }
}
