//! Inbound listeners. Each port has a filter chain for each transport that PeerAuthentication allows and for each protocol that
//! may arrive. The chains are on listeners of their own or, with redirection by the kernel, on one.
//!
//! ```text
//! the mesh's TLS (by ALPN, under STRICT any) ─▶ HTTP: tokens, provider, rules, router │ bytes: rules, proxy
//! plaintext (unless STRICT)                  ─▶ the same, nobody known
//! other TLS (PERMISSIVE, DISABLE)            ─▶ bytes: the application's own
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Map, Value, json};
use voile_model::Port;
use voile_model::mesh::{EndpointHost, IngressListener, Mesh, Protocol, Workload, WorkloadService};
use voile_policy::{Mode, effective, inherited};

use super::cluster::{plaintext, protocol_options};
use super::manager::{self, Routes, TrafficDirection};
use super::names::{self, ClusterTraffic};
use super::security::Security;
use super::tls::{self, HTTP_ALPN, MESH_ALPN, PLAIN_HTTP_ALPN, TCP_ALPN};
use super::traffic::unlimited;
use super::{InterceptMode, Made};
use crate::json::{duration, host, socket, typed};
use crate::limit::LimitName;

/// Port that the kernel redirects inbound connections to.
const CAPTURED: u16 = 15006;
/// Whence Istio's rules let connections to the application through.
const HOMEWARD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
/// The cluster for ports that nobody declared.
const PASSED: &str = "InboundPassthroughCluster";

/// One port the workload takes calls on.
struct InboundPort {
    bind: SocketAddr,
    /// Address of the application; none if it is the called address.
    endpoint: Option<SocketAddr>,
    protocol: Protocol,
    /// The port that policies know it by.
    port: Port,
}

/// State that all ports of a workload share.
struct InboundListeners<'a> {
    mesh: &'a Mesh,
    workload: &'a Workload,
    security: &'a Security,
}

pub(crate) fn translate(
    mesh: &Mesh,
    workload: &Workload,
    capture: InterceptMode,
    security: &Security,
    made: &mut Made,
) {
    let Some(own) = workload.addresses.first().copied() else {
        let why = "it has no address, and so no listeners";
        made.limit(
            LimitName::NoAddress,
            format!("workload {}", workload.key),
            why,
        );
        return;
    };
    let house = InboundListeners {
        mesh,
        workload,
        security,
    };
    let doors = house.doors(own);
    match capture {
        InterceptMode::None => house.listeners(doors, made),
        InterceptMode::Redirect => house.captured(doors, own, made),
    }
}

impl InboundListeners<'_> {
    fn doors(&self, own: IpAddr) -> Vec<InboundPort> {
        let sidecar = self.mesh.sidecar_for(self.workload);
        match sidecar {
            Some(sidecar) if !sidecar.ingress.is_empty() => {
                let doors = sidecar.ingress.iter();
                doors
                    .filter_map(|listener| from_ingress(listener, own))
                    .collect()
            }
            _ => from_services(&self.mesh.services_of(self.workload), own),
        }
    }

    /// A listener for each port, to which clients connect.
    fn listeners(&self, doors: Vec<InboundPort>, made: &mut Made) {
        let mut binds = BTreeSet::new();
        for door in doors {
            let endpoint = door
                .endpoint
                .unwrap_or(SocketAddr::new(loopback(door.bind.ip()), door.port.get()));
            let about = format!("workload {}, inbound {}", self.workload.key, door.bind);
            if door.bind == endpoint {
                let why = "it would forward to itself: give the application another address (Sidecar ingress.defaultEndpoint)";
                made.limit(LimitName::ForwardsToItself, about, why);
                continue;
            }
            if !binds.insert(door.bind) {
                made.limit(
                    LimitName::ListenerTwice,
                    about,
                    "it is declared twice; the first wins",
                );
                continue;
            }
            let cluster = names::inbound(door.port);
            for (name, cluster) in clusters(&cluster, door.protocol, Some(endpoint)) {
                made.clusters.insert(name, cluster);
            }
            let mode = effective(self.mesh, self.workload, door.port).mode;
            let chains = self.chains(&cluster, door.protocol, mode, &Map::new(), made);
            let name = format!("inbound_{}", names::listener(door.bind));
            let mut listener = json!({
                "name": name,
                "address": socket(door.bind),
                "traffic_direction": TrafficDirection::In(self.workload).direction(),
                "filter_chains": chains,
            });
            self.look(&mut listener, door.protocol == Protocol::Auto, false);
            made.listeners.insert(name, listener);
        }
    }

    /// One listener, to which the kernel redirects, with chains by the port that was called.
    fn captured(&self, doors: Vec<InboundPort>, own: IpAddr, made: &mut Made) {
        let mut by_port: BTreeMap<Port, InboundPort> = BTreeMap::new();
        for door in doors {
            by_port.entry(door.port).or_insert(door);
        }
        let default = inherited(
            self.mesh,
            &self.workload.key.namespace,
            &self.workload.labels,
        )
        .mode;
        // Ports that nothing but a policy or a container speaks of are there where their mode is not the workload's.
        let policies = self.mesh.peer_authentications.iter();
        let spoken_of = policies
            .flat_map(|policy| policy.port_modes.keys())
            .chain(&self.workload.container_ports);
        for port in spoken_of.copied() {
            let mode = effective(self.mesh, self.workload, port).mode;
            if mode != default && !by_port.contains_key(&port) {
                let bind = SocketAddr::new(own, port.get());
                let protocol = Protocol::undeclared(port);
                by_port.insert(
                    port,
                    InboundPort {
                        bind,
                        endpoint: None,
                        protocol,
                        port,
                    },
                );
            }
        }
        let mut chains = Vec::new();
        for (port, door) in &by_port {
            let called = SocketAddr::new(own, port.get());
            let endpoint = door.endpoint.filter(|endpoint| *endpoint != called);
            let cluster = names::inbound(*port);
            for (name, cluster) in clusters(&cluster, door.protocol, endpoint) {
                made.clusters.insert(name, cluster);
            }
            let mode = effective(self.mesh, self.workload, *port).mode;
            let mut matched = Map::new();
            matched.insert("destination_port".to_owned(), json!(port.get()));
            chains.extend(self.chains(&cluster, door.protocol, mode, &matched, made));
        }
        // A connection to the listener's own port would be forwarded to it again and again.
        chains.push(json!({
            "name": "virtualInbound-blackhole",
            "filter_chain_match": { "destination_port": CAPTURED },
            "filters": [manager::tcp(self.mesh, super::outbound::BLACK_HOLE)],
        }));
        for (name, cluster) in clusters(PASSED, Protocol::Auto, None) {
            made.clusters.insert(name, cluster);
        }
        chains.extend(self.chains(PASSED, Protocol::Auto, default, &Map::new(), made));
        let mut listener = json!({
            "name": "virtualInbound",
            "address": host(any(own), CAPTURED),
            "traffic_direction": TrafficDirection::In(self.workload).direction(),
            "filter_chains": chains,
        });
        self.look(&mut listener, true, true);
        made.listeners.insert("virtualInbound".to_owned(), listener);
    }

    /// The chains for one port.
    fn chains(
        &self,
        cluster: &str,
        protocol: Protocol,
        mode: Mode,
        matched: &Map<String, Value>,
        made: &mut Made,
    ) -> Vec<Value> {
        let kinds = FilterChainKind::of(protocol);
        if kinds
            .iter()
            .any(|kind| kind.carried == ClusterTraffic::Opaque)
        {
            for about in &self.security.custom {
                let why = "it calls a provider (CUSTOM), which is not translated for TCP; connections that it matches are denied";
                made.limit(LimitName::CustomOverTcp, about, why);
            }
        }
        let mut chains = Vec::new();
        let mut chain = |what: &str, more: Value, filters: Vec<Value>, socket: Option<Value>| {
            let mut matched = matched.clone();
            matched.extend(more.as_object().cloned().unwrap_or_default());
            let mut chain = json!({
                "name": format!("{cluster}{what}"),
                "filter_chain_match": matched,
                "filters": filters,
            });
            if let Some(socket) = socket {
                chain["transport_socket"] = socket;
            }
            chains.push(chain);
        };
        for kind in &kinds {
            let filters = self.filters(cluster, *kind);
            if mode != Mode::Disable {
                let mut more = json!({ "transport_protocol": "tls" });
                if let Some(alpn) = kind.over_tls(mode) {
                    more["application_protocols"] = json!(alpn);
                }
                let socket = tls::downstream(self.mesh, kind.is_http());
                chain(
                    &format!("mtls-{}", kind.word()),
                    more,
                    filters.clone(),
                    Some(socket),
                );
            }
            if mode != Mode::Strict {
                let mut more = json!({ "transport_protocol": "raw_buffer" });
                if let Some(seen) = kind.seen {
                    more["application_protocols"] = json!(seen);
                }
                chain(
                    &format!("plain-{}", kind.word()),
                    more,
                    filters,
                    Some(plaintext()),
                );
            }
        }
        // TLS that is not the mesh's is the application's own; under STRICT nobody gets there.
        if mode != Mode::Strict {
            let opaque = FilterChainKind {
                carried: ClusterTraffic::Opaque,
                seen: None,
                alone: true,
            };
            let filters = self.filters(cluster, opaque);
            chain(
                "other",
                json!({ "transport_protocol": "tls" }),
                filters,
                Some(plaintext()),
            );
        }
        chains
    }

    fn filters(&self, cluster: &str, kind: FilterChainKind) -> Vec<Value> {
        let to = kind.cluster(cluster);
        if !kind.is_http() {
            let rules = self.security.tcp.iter().cloned();
            return rules.chain([manager::tcp(self.mesh, &to)]).collect();
        }
        let routes = json!({
            "name": cluster,
            "validate_clusters": false,
            "virtual_hosts": [{
                "name": cluster,
                "domains": ["*"],
                "routes": [{
                    "name": "default",
                    "match": { "prefix": "/" },
                    "route": { "cluster": to, "timeout": "0s" },
                }],
            }],
        });
        let security = &self.security.http;
        vec![manager::http(
            self.mesh,
            TrafficDirection::In(self.workload),
            cluster,
            Routes::Inline(routes),
            security,
        )]
    }

    /// The filters that look at the first bytes.
    fn look(&self, listener: &mut Value, undeclared: bool, captured: bool) {
        let filter = |what: &str, kind: &str| {
            typed(
                &format!("envoy.filters.listener.{what}"),
                &format!("extensions.filters.listener.{what}.v3.{kind}"),
                json!({}),
            )
        };
        let mut filters = Vec::new();
        if captured {
            filters.push(filter("original_dst", "OriginalDst"));
        }
        filters.push(filter("tls_inspector", "TlsInspector"));
        if undeclared {
            filters.push(filter("http_inspector", "HttpInspector"));
            // A server that speaks first must not wait for ever for its client.
            listener["listener_filters_timeout"] = duration(super::detection_timeout(self.mesh));
            listener["continue_on_listener_filters_timeout"] = json!(true);
        }
        listener["listener_filters"] = json!(filters);
    }
}

/// One thing that may arrive at a port.
#[derive(Clone, Copy)]
struct FilterChainKind {
    carried: ClusterTraffic,
    /// Names of detected protocols in plaintext; `None` if detection does not decide.
    seen: Option<&'static [&'static str]>,
    /// Nothing else arrives.
    alone: bool,
}

impl FilterChainKind {
    fn of(protocol: Protocol) -> Vec<Self> {
        let alone = |carried| {
            vec![Self {
                carried,
                seen: None,
                alone: true,
            }]
        };
        let among = |carried, seen| Self {
            carried,
            seen,
            alone: false,
        };
        match protocol {
            Protocol::Auto => vec![
                among(
                    ClusterTraffic::Http1,
                    Some(&["http/1.0", "http/1.1", "h2c"]),
                ),
                among(ClusterTraffic::Opaque, None),
            ],
            Protocol::Http => alone(ClusterTraffic::Http1),
            Protocol::Http2 | Protocol::Grpc => alone(ClusterTraffic::Http2),
            Protocol::Tcp | Protocol::Tls | Protocol::Udp => alone(ClusterTraffic::Opaque),
        }
    }

    fn is_http(self) -> bool {
        self.carried != ClusterTraffic::Opaque
    }

    fn word(self) -> &'static str {
        if self.is_http() { "http" } else { "tcp" }
    }

    /// Cluster of the kind: detected HTTP keeps its version.
    fn cluster(self, base: &str) -> String {
        match (self.alone, self.is_http()) {
            (false, true) => format!("{base}~any"),
            _ => base.to_owned(),
        }
    }

    /// ALPN names that its clients offer; `None` if it takes any TLS.
    fn over_tls(self, mode: Mode) -> Option<Vec<&'static str>> {
        let strict = mode == Mode::Strict;
        match (self.alone, self.is_http()) {
            (true, _) => (!strict).then(|| MESH_ALPN.to_vec()),
            (false, true) if strict => Some([&HTTP_ALPN[..], &PLAIN_HTTP_ALPN].concat()),
            (false, true) => Some(HTTP_ALPN.to_vec()),
            (false, false) => (!strict).then(|| TCP_ALPN.to_vec()),
        }
    }
}

/// The clusters for the application behind a port: where it was called, or where it listens.
fn clusters(name: &str, protocol: Protocol, endpoint: Option<SocketAddr>) -> Vec<(String, Value)> {
    let mut base = json!({ "connect_timeout": "10s", "circuit_breakers": unlimited() });
    match endpoint {
        Some(endpoint) => {
            base["type"] = json!("STATIC");
            let endpoint = json!({ "endpoint": { "address": socket(endpoint) } });
            base["load_assignment"] =
                json!({ "cluster_name": name, "endpoints": [{ "lb_endpoints": [endpoint] }] });
        }
        None => {
            base["type"] = json!("ORIGINAL_DST");
            base["lb_policy"] = json!("CLUSTER_PROVIDED");
            base["upstream_bind_config"] =
                json!({ "source_address": { "address": HOMEWARD.to_string(), "port_value": 0 } });
        }
    }
    let of = |name: String, options: Option<Value>| {
        let mut cluster = base.clone();
        cluster["name"] = json!(name);
        if let Some(options) = options {
            cluster["typed_extension_protocol_options"] = options;
        }
        (name, cluster)
    };
    let carried = FilterChainKind::of(protocol)
        .last()
        .map_or(ClusterTraffic::Opaque, |kind| kind.carried);
    let mut all = vec![of(name.to_owned(), protocol_options(carried))];
    if protocol == Protocol::Auto {
        let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let as_it_came = json!({ options: {
            "@type": format!("type.googleapis.com/{options}"),
            "use_downstream_protocol_config": { "http_protocol_options": {}, "http2_protocol_options": {} },
        }});
        all.push(of(format!("{name}~any"), Some(as_it_came)));
    }
    all
}

fn from_ingress(listener: &IngressListener, own: IpAddr) -> Option<InboundPort> {
    let port = listener.port.number;
    if listener.port.protocol == Protocol::Udp {
        return None;
    }
    let endpoint = listener.default_endpoint.map(|endpoint| {
        let address = match endpoint.host {
            EndpointHost::Loopback(address) => address,
            EndpointHost::Workload => own,
        };
        SocketAddr::new(address, endpoint.port.get())
    });
    let here = SocketAddr::new(loopback(own), port.get());
    Some(InboundPort {
        bind: SocketAddr::new(listener.bind.unwrap_or(own), port.get()),
        endpoint: Some(endpoint.unwrap_or(here)),
        protocol: listener.port.protocol,
        port,
    })
}

/// Each target port once; the first service that names it says what is spoken, unless another says another version of
/// HTTP: then each caller does.
fn from_services(services: &[WorkloadService], own: IpAddr) -> Vec<InboundPort> {
    let two = |protocol: Protocol| matches!(protocol, Protocol::Http2 | Protocol::Grpc);
    let http = |protocol: Protocol| protocol == Protocol::Http || two(protocol);
    let mut by_target: BTreeMap<Port, Protocol> = BTreeMap::new();
    for member in services {
        for port in &member.service.ports {
            let Some(target) = member.ports.get(&port.number) else {
                continue;
            };
            if port.protocol == Protocol::Udp {
                continue;
            }
            let known = by_target.entry(*target).or_insert(port.protocol);
            if http(*known) && http(port.protocol) && two(*known) != two(port.protocol) {
                *known = Protocol::Auto;
            }
        }
    }
    let doors = by_target.into_iter().map(|(port, protocol)| InboundPort {
        bind: SocketAddr::new(own, port.get()),
        endpoint: None,
        protocol,
        port,
    });
    doors.collect()
}

fn loopback(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

fn any(like: IpAddr) -> &'static str {
    match like {
        IpAddr::V4(_) => "0.0.0.0",
        IpAddr::V6(_) => "::",
    }
}
