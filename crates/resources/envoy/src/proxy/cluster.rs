//! A service's port as clusters, and who is behind it as endpoints. Of who asks they say the DestinationRule that it obeys and nothing
//! else, so that every Envoy of the mesh that obeys it gets the same ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use voile_model::mesh::traffic::{ClientTls, PortTraffic};
use voile_model::mesh::{
    DestinationRule, EndpointAddress, Location, Mesh, MeshService, Resolution, ServicePort,
    ServiceWorkload, TargetPort, Workload,
};
use voile_model::{Hostname, Labels, Port};
use voile_policy::{Mode, effective, speaks_mutual_tls};

use super::names::{self, ClusterTraffic, PortProtocol};
use super::{tls, traffic};
use crate::json::{duration, from_control, host, typed};
use crate::limit::{Limit, LimitName};

/// The label of an endpoint that stands behind a proxy.
const TLS_MODE: &str = "security.istio.io/tlsMode";

/// Expected identity if there is no endpoint: without any name Envoy would accept every workload of the mesh.
const NOBODY: &str = "spiffe://nobody.invalid";

/// Somebody behind a service's port.
struct PortBackend {
    /// An address, or a name to be resolved.
    at: String,
    is_name: bool,
    port: Port,
    locality: Arc<str>,
    weight: u32,
    /// Expected identity of the endpoint, for mutual TLS.
    identity: Option<String>,
}

/// Discovery of the endpoints by Envoy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EndpointDiscovery {
    /// The control plane says, and goes on saying.
    Told,
    /// DNS says, all answers count.
    Resolved,
    /// DNS says, its first answer is used for each new connection.
    FirstAnswer,
    /// The caller named the address.
    Passed,
}

/// A port of a service, or of a part of it, as Envoy knows it.
pub(crate) struct ClusterTarget<'a> {
    mesh: &'a Mesh,
    service: &'a MeshService,
    port: &'a ServicePort,
    subset: Option<SubsetTarget<'a>>,
    traffic: PortTraffic,
    pub(crate) spoken: PortProtocol,
}

/// A part of a service.
#[derive(Clone, Copy)]
struct SubsetTarget<'a> {
    name: &'a str,
    /// Its endpoints have these.
    labels: &'a Labels,
}

impl<'a> ClusterTarget<'a> {
    /// None for UDP, which no proxy touches, and for a part that is not there.
    pub(crate) fn new(
        mesh: &'a Mesh,
        (service, rule): (&'a MeshService, Option<&'a DestinationRule>),
        port: &'a ServicePort,
        subset: Option<&str>,
    ) -> Option<Self> {
        let part = |name: &str| {
            let (name, subset) = rule?.subsets.get_key_value(name)?;
            let labels = &subset.labels;
            Some(SubsetTarget { name, labels })
        };
        let traffic = mesh.traffic_by(service, rule, port.number, subset);
        Some(Self {
            mesh,
            service,
            port,
            subset: match subset {
                Some(name) => Some(part(name)?),
                None => None,
            },
            spoken: PortProtocol::to(mesh, port, &traffic.pool)?,
            traffic,
        })
    }

    /// Its clusters, by name.
    pub(crate) fn clusters(&self, limits: &mut BTreeSet<Limit>) -> BTreeMap<String, Value> {
        let Some((behind, found)) = self.seen(limits) else {
            return BTreeMap::new();
        };
        let expected = self.expected(&behind);
        let name = |carried| {
            let name = self.spoken.cluster(self.base(), carried);
            name.map(|name| (name, carried))
        };
        let each = self.spoken.each().iter().copied().filter_map(name);
        each.map(|(name, carried)| {
            let made = self.cluster(&name, carried, found, &behind, (&expected, limits));
            (name, made)
        })
        .collect()
    }

    /// One cluster that carries this, whatever the port says.
    pub(crate) fn cluster_as(
        &self,
        name: &str,
        carried: ClusterTraffic,
        limits: &mut BTreeSet<Limit>,
    ) -> Option<Value> {
        let (behind, found) = self.seen(limits)?;
        let expected = self.expected(&behind);
        Some(self.cluster(name, carried, found, &behind, (&expected, limits)))
    }

    /// Its endpoints by the name that its clusters ask for; none where Envoy finds them by itself.
    pub(crate) fn endpoints(&self) -> Option<(String, Value)> {
        let (behind, found) = self.seen(&mut BTreeSet::new())?;
        (found == EndpointDiscovery::Told).then(|| (self.base(), self.assignment(&behind)))
    }

    fn host(&self) -> &Hostname {
        &self.service.key.hostname
    }

    /// Its part's name.
    fn part(&self) -> Option<&'a str> {
        self.subset.map(|part| part.name)
    }

    fn base(&self) -> String {
        names::outbound(self.port.number, self.part(), self.host())
    }

    /// Returns true if an endpoint with these labels is in it.
    fn includes(&self, labels: &Labels) -> bool {
        self.subset.is_none_or(|part| part.labels.selects(labels))
    }

    /// Endpoints behind it, and their discovery by Envoy; `None` if it is left out.
    fn seen(&self, limits: &mut BTreeSet<Limit>) -> Option<(Vec<PortBackend>, EndpointDiscovery)> {
        // Of what is left out nothing else need be said.
        let mut met = BTreeSet::new();
        let behind = self.behind(&mut met);
        let found = self.found(&behind, limits)?;
        limits.extend(met);
        Some((behind, found))
    }

    /// Why it is left out, if Envoy would call it otherwise than it may be called.
    fn left_out(&self) -> Option<(LimitName, String)> {
        if let Some(waypoint) = self.mesh.waypoint_of(self.service) {
            let why = format!(
                "the service is behind the waypoint {waypoint}, which Envoy does not use; the cluster is left out, so that no call bypasses the waypoint"
            );
            return Some((LimitName::Waypoint, why));
        }
        if let Some(ClientTls::Originate(_)) = self.traffic.tls {
            let why = "tls of mode SIMPLE and MUTUAL is not translated; the cluster is left out, so that nothing is sent in plaintext";
            return Some((LimitName::TlsOrigination, why.to_owned()));
        }
        self.traffic.proxy_protocol.as_ref()?;
        let why = "proxyProtocol of DestinationRules is not translated; the cluster is left out, so that nothing is sent without the header";
        Some((LimitName::ProxyProtocol, why.to_owned()))
    }

    fn found(
        &self,
        behind: &[PortBackend],
        limits: &mut BTreeSet<Limit>,
    ) -> Option<EndpointDiscovery> {
        let mut limit = |name, why: &str| {
            limits.insert(Limit::new(
                name,
                format!("Service {}", self.service.key),
                why,
            ));
        };
        if let Some((name, why)) = self.left_out() {
            limit(name, &why);
            return None;
        }
        match &self.service.resolution {
            Resolution::Passthrough if !self.service.headless => {
                if self.subset.is_some() {
                    limit(
                        LimitName::PassthroughService,
                        "callers reach their original destination, whatever its subset",
                    );
                }
                Some(EndpointDiscovery::Passed)
            }
            Resolution::DynamicDns => {
                limit(
                    LimitName::DynamicDns,
                    "dynamic DNS of wildcard hosts is not translated; the cluster is left out",
                );
                None
            }
            // A part may be empty; the whole of what DNS is asked for is not.
            Resolution::Dns | Resolution::DnsRoundRobin | Resolution::Alias(_)
                if behind.is_empty() && self.subset.is_some() =>
            {
                Some(EndpointDiscovery::Resolved)
            }
            Resolution::Dns | Resolution::DnsRoundRobin | Resolution::Alias(_)
                if behind.is_empty() =>
            {
                limit(
                    LimitName::WildcardDns,
                    "it has no name that DNS could resolve; the cluster is left out",
                );
                None
            }
            Resolution::DnsRoundRobin if behind.len() == 1 => Some(EndpointDiscovery::FirstAnswer),
            Resolution::DnsRoundRobin => {
                limit(
                    LimitName::DnsRoundRobin,
                    "it has several names; all addresses of each are used",
                );
                Some(EndpointDiscovery::Resolved)
            }
            _ if behind.iter().any(|one| one.is_name) => Some(EndpointDiscovery::Resolved),
            Resolution::Dns | Resolution::Alias(_) => Some(EndpointDiscovery::Resolved),
            Resolution::Static | Resolution::Passthrough => Some(EndpointDiscovery::Told),
        }
    }

    /// Limits are about the port.
    fn about(&self) -> String {
        format!("Service {}, port {}", self.service.key, self.port.number)
    }

    /// Names the networks on which proxies of ours would call some of it through a gateway: of a whole service, and in mutual TLS alone.
    fn name_networks(&self, limits: &mut BTreeSet<Limit>) {
        if !self.mesh.has_networks() || self.subset.is_some() || self.wants_plaintext() {
            return;
        }
        let members = self.mesh.workloads_of(self.service);
        let serving = |one: &&ServiceWorkload| one.ports.contains_key(&self.port.number);
        let workloads = members.iter().filter(serving);
        let workloads = workloads.map(|one| &one.workload.network);
        let written = self.service.endpoints.iter();
        let named = written.filter(|one| matches!(one.address, EndpointAddress::Dns(_)));
        let all = workloads.chain(named.map(|one| &one.network));
        let far: BTreeSet<&str> = all
            .map(|network| &**network)
            .filter(|network| self.mesh.is_behind_gateway(network))
            .collect();
        if far.is_empty() {
            return;
        }
        let far: Vec<&str> = far.into_iter().collect();
        let why = format!(
            "endpoints on the network {} are reached through its gateway, which is not translated: they are left out",
            far.join(", ")
        );
        limits.insert(Limit::new(LimitName::Network, self.about(), why));
    }

    /// Returns true if a DestinationRule switches off the mesh's own TLS.
    fn wants_plaintext(&self) -> bool {
        let said = self.traffic.tls.as_ref();
        matches!(said, Some(ClientTls::Disable | ClientTls::Originate(_)))
    }

    fn behind(&self, limits: &mut BTreeSet<Limit>) -> Vec<PortBackend> {
        self.name_networks(limits);
        let members = self.mesh.near_workloads_of(self.service);
        let members = members
            .iter()
            .filter(|one| self.includes(&one.workload.labels));
        let members = members.filter_map(|one| self.member(one, limits));
        let mut all: Vec<PortBackend> = members.collect();
        // A name that DNS is asked for has no labels.
        let unlabelled = self.includes(&Labels::default());
        match &self.service.resolution {
            Resolution::Alias(name) if unlabelled => all.push(self.named(name, self.target())),
            Resolution::Dns | Resolution::DnsRoundRobin if self.service.endpoints.is_empty() => {
                if unlabelled && !self.host().is_wildcard() {
                    all.push(self.named(self.host(), self.target()));
                }
            }
            _ => {
                let written = self.service.endpoints.iter();
                let written = written.filter(|endpoint| self.includes(&endpoint.labels));
                all.extend(written.filter_map(|endpoint| {
                    let EndpointAddress::Dns(name) = &endpoint.address else {
                        return None;
                    };
                    let near = !self.mesh.is_behind_gateway(&endpoint.network);
                    near.then_some(())?;
                    let port = endpoint.ports.get(&self.port.name).copied();
                    let mut made = self.named(name, port.unwrap_or(self.target()));
                    made.locality = endpoint.locality.clone();
                    made.weight = endpoint.weight.unwrap_or(1).max(1);
                    let inside = self.service.location == Location::MeshInternal;
                    let auto = inside && self.mesh.config.enable_auto_mtls;
                    if auto && endpoint.labels.get(TLS_MODE) == Some("istio") {
                        let account = endpoint.service_account.as_deref().unwrap_or("default");
                        let domain = &self.mesh.config.trust_domain;
                        let namespace = &self.service.key.namespace;
                        made.identity =
                            Some(format!("spiffe://{domain}/ns/{namespace}/sa/{account}"));
                    }
                    Some(made)
                }));
            }
        }
        self.as_spoken_to(all)
    }

    /// Those that are called at all, in the way in which a DestinationRule has them called.
    fn as_spoken_to(&self, mut all: Vec<PortBackend>) -> Vec<PortBackend> {
        match self.traffic.tls {
            // It is left out before anybody looks who is behind it.
            None | Some(ClientTls::Originate(_)) => {}
            Some(ClientTls::Disable) => all.iter_mut().for_each(|one| one.identity = None),
            Some(ClientTls::Mutual(_)) => all.retain(|one| one.identity.is_some()),
        }
        all
    }

    fn target(&self) -> Port {
        match self.port.target {
            TargetPort::Number(number) => number,
            TargetPort::Named(_) => self.port.number,
        }
    }

    fn named(&self, name: &Hostname, port: Port) -> PortBackend {
        let at = name.to_string();
        PortBackend {
            // An address literal in place of a name needs no resolving.
            is_name: at.parse::<IpAddr>().is_err(),
            at,
            port,
            locality: "".into(),
            weight: 1,
            identity: None,
        }
    }

    /// Returns true if a workload is called. A workload that our own proxies call through a tunnel is called in plaintext, if it
    /// takes that.
    fn is_called(&self, workload: &Workload, port: Port, limits: &mut BTreeSet<Limit>) -> bool {
        if !workload.ambient || self.wants_plaintext() {
            return true;
        }
        let why = "endpoints behind a node proxy need an HBONE tunnel, which is not translated: they are called in plaintext, and calls fail if plaintext is refused (PeerAuthentication STRICT, tls ISTIO_MUTUAL)";
        limits.insert(Limit::new(LimitName::Tunnel, self.about(), why));
        effective(self.mesh, workload, port).mode != Mode::Strict
    }

    fn member(
        &self,
        member: &ServiceWorkload,
        limits: &mut BTreeSet<Limit>,
    ) -> Option<PortBackend> {
        let workload = &member.workload;
        let port = *member.ports.get(&self.port.number)?;
        if !workload.ready || !self.is_called(workload, port, limits) {
            return None;
        }
        let outside = self.service.location == Location::MeshExternal;
        let mutual = !outside && speaks_mutual_tls(self.mesh, workload, port);
        let identity = || {
            workload
                .identity(&self.mesh.config.trust_domain)
                .to_string()
        };
        let (at, is_name) = match (workload.addresses.first(), &workload.hostname) {
            (Some(address), _) => (address.to_string(), false),
            (None, Some(name)) => (name.to_string(), true),
            (None, None) => return None,
        };
        Some(PortBackend {
            at,
            is_name,
            port,
            locality: workload.locality.clone(),
            weight: workload.weight.unwrap_or(1).max(1),
            identity: mutual.then(identity),
        })
    }

    /// Identities that may answer in mutual TLS; empty if no endpoint speaks it.
    fn expected(&self, behind: &[PortBackend]) -> BTreeSet<String> {
        let mut all: BTreeSet<String> = behind
            .iter()
            .filter_map(|one| one.identity.clone())
            .collect();
        if !all.is_empty() {
            all.extend(
                self.service
                    .subject_alt_names
                    .iter()
                    .map(ToString::to_string),
            );
        }
        all
    }

    fn cluster(
        &self,
        name: &str,
        carried: ClusterTraffic,
        found: EndpointDiscovery,
        behind: &[PortBackend],
        (expected, limits): (&BTreeSet<String>, &mut BTreeSet<Limit>),
    ) -> Value {
        let mut cluster = json!({
            "name": name,
            "connect_timeout": duration(self.mesh.config.connect_timeout),
        });
        match found {
            EndpointDiscovery::Told => {
                cluster["type"] = json!("EDS");
                cluster["eds_cluster_config"] =
                    json!({ "eds_config": from_control(), "service_name": self.base() });
            }
            EndpointDiscovery::Resolved | EndpointDiscovery::FirstAnswer => {
                let kind = if found == EndpointDiscovery::Resolved {
                    "STRICT_DNS"
                } else {
                    "LOGICAL_DNS"
                };
                cluster["type"] = json!(kind);
                cluster["dns_lookup_family"] = json!("V4_PREFERRED");
                cluster["respect_dns_ttl"] = json!(true);
                cluster["load_assignment"] = self.assignment(behind);
            }
            EndpointDiscovery::Passed => {
                cluster["type"] = json!("ORIGINAL_DST");
                cluster["lb_policy"] = json!("CLUSTER_PROVIDED");
            }
        }
        let about = self.about();
        let balanced = found != EndpointDiscovery::Passed;
        if self.ranks(behind) {
            let why = "locality preference (localityLbSetting, zoneAwareLbSetting, trafficDistribution) is not translated: all localities are treated alike";
            limits.insert(Limit::new(LimitName::Locality, &about, why));
        }
        traffic::treat(&mut cluster, &self.traffic, balanced, (&about, limits));
        if let Some(options) = traffic::protocol_options(carried, &self.traffic.pool) {
            cluster["typed_extension_protocol_options"] = options;
        }
        self.secure(&mut cluster, carried, expected);
        cluster
    }

    /// Returns true if our own proxy would rank localities for some client.
    fn ranks(&self, behind: &[PortBackend]) -> bool {
        let locality = self.traffic.balancer.locality.as_ref();
        let always = locality.is_some_and(|said| said.always);
        let placed = always || behind.iter().any(|one| !one.locality.is_empty());
        placed && self.traffic.ranks_localities()
    }

    /// Sets the TLS of endpoints: each by its own mode, or all as a DestinationRule says.
    fn secure(&self, cluster: &mut Value, carried: ClusterTraffic, expected: &BTreeSet<String>) {
        let only = matches!(self.traffic.tls, Some(ClientTls::Mutual(_)));
        if expected.is_empty() && !only {
            return;
        }
        let usual = || names::server_name(self.port.number, self.part(), self.host());
        let server_name = match &self.traffic.tls {
            Some(ClientTls::Mutual(Some(said))) => said.to_string(),
            _ => usual(),
        };
        let nobody = [NOBODY.to_owned()].into();
        let expected = if expected.is_empty() {
            &nobody
        } else {
            expected
        };
        let mutual = tls::upstream(expected, carried.alpn(), &server_name);
        if only {
            cluster["transport_socket"] = mutual;
            return;
        }
        cluster["transport_socket_matches"] = json!([
            { "name": "tlsMode-istio", "match": { "tlsMode": "istio" }, "transport_socket": mutual },
            { "name": "tlsMode-disabled", "match": {}, "transport_socket": plaintext() },
        ]);
    }

    fn assignment(&self, behind: &[PortBackend]) -> Value {
        let mut by_locality: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for one in behind {
            let mut endpoint = json!({
                "endpoint": { "address": host(&one.at, one.port.get()) },
                "load_balancing_weight": one.weight,
            });
            if one.identity.is_some() {
                endpoint["metadata"] = json!({
                    "filter_metadata": { "envoy.transport_socket_match": { "tlsMode": "istio" } },
                });
            }
            by_locality.entry(&one.locality).or_default().push(endpoint);
        }
        let groups = by_locality.into_iter().map(|(locality, endpoints)| {
            let mut parts = locality.splitn(3, '/');
            let mut part = || parts.next().unwrap_or_default();
            json!({
                "locality": { "region": part(), "zone": part(), "sub_zone": part() },
                "lb_endpoints": endpoints,
            })
        });
        let groups: Vec<Value> = groups.collect();
        json!({ "cluster_name": self.base(), "endpoints": groups })
    }
}

/// Protocol options of an upstream connection; `None` for bytes.
pub(crate) fn protocol_options(carried: ClusterTraffic) -> Option<Value> {
    let explicit = match carried {
        ClusterTraffic::Opaque => return None,
        ClusterTraffic::Http1 => json!({ "http_protocol_options": {} }),
        ClusterTraffic::Http2 => json!({ "http2_protocol_options": {} }),
    };
    Some(json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": explicit,
        },
    }))
}

/// A connection without TLS.
pub(crate) fn plaintext() -> Value {
    typed(
        "envoy.transport_sockets.raw_buffer",
        "extensions.transport_sockets.raw_buffer.v3.RawBuffer",
        json!({}),
    )
}

/// Hosts by which a client in the workload's namespace may call a service, in the forms in which they arrive.
pub(crate) fn domains(names: &[String], port: Port) -> Vec<String> {
    let each = names.iter();
    each.flat_map(|name| [name.clone(), format!("{name}:{port}")])
        .collect()
}
