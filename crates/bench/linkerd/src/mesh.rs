//! The mesh of the file, and its answer to each question. No sockets: answers are values, so that tests can compare them. They
//! are Linkerd's answers for a service without routes of its own and for meshed endpoints by default.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::messages::destination::{
    Change, DestinationProfile, DnsLike, H2, LinkerdProtocolHint, NoEndpoints, Opaque,
    OpaqueTransport, ProtocolHint, Strategy, TlsIdentity, Update, WeightedAddr, WeightedAddrSet,
};
use crate::messages::meta::Metadata;
use crate::messages::net::IpNetwork;
use crate::messages::{inbound, outbound};

/// Time limit of protocol detection in proxies: Linkerd's own default.
const DETECT_SECONDS: i64 = 10;
/// Assumed response time of an endpoint before its first answer, for Linkerd's balancers.
const DEFAULT_RTT_NANOS: i32 = 30_000_000;
/// Decay time of the balancers' response times.
const DECAY_SECONDS: i64 = 10;
/// Requests that wait for an endpoint, and after how long without one they fail: Linkerd's own.
const QUEUE_CAPACITY: u32 = 100;
const FAILFAST_SECONDS: i64 = 3;
/// Of an endpoint beside others of its service.
const WEIGHT: u32 = 10_000;
/// Namespace of all resources.
const NAMESPACE: &str = "lab";

/// All that this control plane knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Address that the control plane listens on.
    pub listen: SocketAddr,
    /// Its own name, which proxies demand in its certificate.
    pub name: String,
    /// The trust anchor and its key, PEM.
    pub root: PathBuf,
    /// See [`Mesh::root`].
    pub root_key: PathBuf,
    /// Proxies that may get a certificate.
    pub workloads: Vec<LinkerdWorkload>,
    /// Services that proxies may call.
    pub services: Vec<LinkerdService>,
}

/// A proxy and its ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkerdWorkload {
    /// Its name in certificates, like a DNS name.
    pub identity: String,
    /// Token that proves the right to this identity.
    pub token: String,
    /// Name that the proxy sends when it asks about ports and addresses.
    pub workload: String,
    /// Ports that only these identities may call, over mutual TLS; all other ports are open to
    /// every client.
    pub sealed_ports: Vec<u16>,
    /// See [`Workload::sealed_ports`].
    pub clients: Vec<String>,
    /// Ports of opaque bytes, without protocol detection.
    pub opaque_ports: Vec<u16>,
}

/// A called address, and its endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkerdService {
    /// Its name.
    pub name: String,
    /// Address that clients call.
    pub address: SocketAddr,
    /// Endpoints of the service.
    pub endpoints: Vec<LinkerdEndpoint>,
    /// Port of the endpoints' proxies for opaque bytes, if the service is opaque.
    pub opaque: Option<u16>,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkerdEndpoint {
    /// Its address.
    pub address: SocketAddr,
    /// Identity of its proxy, over mutual TLS. None if there is no proxy, or none that clients may
    /// know.
    pub identity: Option<String>,
}

fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

impl LinkerdService {
    /// Its full name.
    fn full_name(&self) -> String {
        format!("{}.{NAMESPACE}.svc.cluster.local", self.name)
    }

    /// Path by which `Destination.Get` asks for the service.
    fn path(&self) -> String {
        format!("{}:{}", self.full_name(), self.address.port())
    }

    fn metadata(&self) -> Metadata {
        Metadata::service(&self.name, NAMESPACE, self.address.port())
    }

    /// All its calls go to the better of two of its endpoints.
    fn everything(&self) -> outbound::Distribution {
        let load = outbound::PeakEwma {
            default_rtt: Some(prost_types::Duration {
                seconds: 0,
                nanos: DEFAULT_RTT_NANOS,
            }),
            decay: Some(seconds(DECAY_SECONDS)),
        };
        let discovery = outbound::EndpointDiscovery {
            kind: Some(outbound::Discovery::Get(outbound::DestinationGet {
                path: self.path(),
            })),
        };
        let backend = outbound::Backend {
            metadata: Some(self.metadata()),
            kind: Some(outbound::BackendChoice::Balancer(outbound::BalanceP2c {
                discovery: Some(discovery),
                load: Some(outbound::Load::PeakEwma(load)),
            })),
            queue: Some(outbound::Queue {
                capacity: QUEUE_CAPACITY,
                failfast_timeout: Some(seconds(FAILFAST_SECONDS)),
            }),
        };
        let backends = vec![outbound::RouteBackend {
            backend: Some(backend),
        }];
        outbound::Distribution {
            kind: Some(outbound::TrafficDistribution::FirstAvailable(
                outbound::FirstAvailable { backends },
            )),
        }
    }

    fn policy(&self) -> outbound::OutboundPolicy {
        let every_path = outbound::HttpRouteMatch {
            path: Some(outbound::PathMatch {
                kind: Some(outbound::Path::Prefix("/".to_owned())),
            }),
        };
        let http = outbound::HttpRoutes {
            routes: vec![outbound::HttpRoute {
                metadata: Some(Metadata::default_named("http")),
                rules: vec![outbound::HttpRule {
                    matches: vec![every_path],
                    backends: Some(self.everything()),
                }],
            }],
        };
        let opaque = outbound::Opaque {
            routes: vec![outbound::OpaqueRoute {
                metadata: Some(Metadata::default_named("opaq")),
                rules: vec![outbound::OpaqueRule {
                    backends: Some(self.everything()),
                }],
            }],
        };
        let protocol = if self.opaque.is_some() {
            outbound::OutboundProtocol::Opaque(opaque)
        } else {
            outbound::OutboundProtocol::Detect(outbound::Detect {
                timeout: Some(seconds(DETECT_SECONDS)),
                opaque: Some(opaque),
                http1: Some(http.clone()),
                http2: Some(http),
            })
        };
        outbound::OutboundPolicy {
            protocol: Some(outbound::ProxyProtocol {
                kind: Some(protocol),
            }),
            metadata: Some(self.metadata()),
        }
    }
}

impl LinkerdEndpoint {
    /// A meshed one takes all HTTP/2, as Linkerd has it by default, and opaque bytes at its proxy's own port.
    fn weighted(&self, opaque: Option<u16>) -> WeightedAddr {
        let hint = match opaque {
            None => ProtocolHint {
                protocol: Some(LinkerdProtocolHint::H2(H2 {})),
                opaque_transport: None,
            },
            Some(port) => ProtocolHint {
                protocol: Some(LinkerdProtocolHint::Opaque(Opaque {})),
                opaque_transport: Some(OpaqueTransport {
                    inbound_port: port.into(),
                }),
            },
        };
        let named = |name: &String| DnsLike { name: name.clone() };
        WeightedAddr {
            addr: Some(self.address.into()),
            weight: WEIGHT,
            tls_identity: self.identity.as_ref().map(|name| TlsIdentity {
                strategy: Some(Strategy::Dns(named(name))),
                server_name: Some(named(name)),
            }),
            protocol_hint: self.identity.as_ref().map(|_| hint),
        }
    }
}

impl Mesh {
    /// Returns the policy of that port of that workload; None if the workload is not known.
    pub(crate) fn server(&self, workload: &str, port: u16) -> Option<inbound::InboundServer> {
        let ours = self.workloads.iter().find(|w| w.workload == workload)?;
        let (name, permit) = if ours.sealed_ports.contains(&port) {
            let clients = ours.clients.iter();
            let identities = clients.map(|name| inbound::Identity { name: name.clone() });
            let clients = inbound::Clients::Identities(inbound::Identities {
                identities: identities.collect(),
            });
            let sealed = inbound::MeshTls {
                clients: Some(clients),
            };
            ("sealed", inbound::Permit::MeshTls(sealed))
        } else {
            let anybody = inbound::Permit::Unauthenticated(inbound::UnauthenticatedClients {});
            ("all-unauthenticated", anybody)
        };
        let any = |ip: IpAddr| inbound::Network {
            net: Some(IpNetwork {
                ip: Some(ip.into()),
                prefix_len: 0,
            }),
        };
        let everywhere = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let labels = [("group", ""), ("kind", "default"), ("name", name)];
        let protocol = if ours.opaque_ports.contains(&port) {
            inbound::InboundProtocol::Opaque(inbound::Opaque {})
        } else {
            inbound::InboundProtocol::Detect(inbound::Detect {
                timeout: Some(seconds(DETECT_SECONDS)),
            })
        };
        Some(inbound::InboundServer {
            protocol: Some(inbound::ProxyProtocol {
                kind: Some(protocol),
            }),
            authorizations: vec![inbound::Authz {
                networks: everywhere.map(any).to_vec(),
                authentication: Some(inbound::Authn {
                    permit: Some(permit),
                }),
                metadata: Some(Metadata::default_named(name)),
            }],
            labels: HashMap::from(labels.map(|(key, value)| (key.to_owned(), value.to_owned()))),
        })
    }

    /// Returns the policy for calls of that target; None if it is no service.
    pub(crate) fn policy(
        &self,
        target: &outbound::OutboundTarget,
    ) -> Option<outbound::OutboundPolicy> {
        let service = match target {
            outbound::OutboundTarget::Addr(address) => self.at(address.socket()?),
            outbound::OutboundTarget::Authority(name) => self.named(name),
        };
        service.map(LinkerdService::policy)
    }

    /// Returns the endpoints of `NAME:PORT`.
    pub(crate) fn endpoints(&self, path: &str) -> Update {
        let change = match self.named(path) {
            None => Change::NoEndpoints(NoEndpoints { exists: false }),
            Some(service) if service.endpoints.is_empty() => {
                Change::NoEndpoints(NoEndpoints { exists: true })
            }
            Some(service) => Change::Add(WeightedAddrSet {
                addrs: {
                    let weighted = |endpoint: &LinkerdEndpoint| endpoint.weighted(service.opaque);
                    service.endpoints.iter().map(weighted).collect()
                },
            }),
        };
        Update {
            update: Some(change),
        }
    }

    /// Returns the profile of `ADDRESS:PORT` or `NAME:PORT`: the service's name, or an empty one if
    /// it is no service.
    pub(crate) fn profile(&self, path: &str) -> DestinationProfile {
        let address = path.parse().ok();
        let service = match address {
            Some(address) => self.at(address),
            None => self.named(path),
        };
        DestinationProfile {
            fully_qualified_name: service.map(LinkerdService::full_name).unwrap_or_default(),
        }
    }

    fn at(&self, address: SocketAddr) -> Option<&LinkerdService> {
        self.services.iter().find(|s| s.address == address)
    }

    /// Proxies may end a name with a dot.
    fn named(&self, path: &str) -> Option<&LinkerdService> {
        let (name, port) = path.rsplit_once(':')?;
        let port: u16 = port.parse().ok()?;
        let name = name.strip_suffix('.').unwrap_or(name);
        let mut services = self.services.iter();
        services.find(|s| s.full_name() == name && s.address.port() == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> Mesh {
        let at = |text: &str| text.parse().expect("an address");
        let service =
            |name: &str, address: &str, endpoints: &[(&str, Option<&str>)]| LinkerdService {
                name: name.to_owned(),
                address: at(address),
                endpoints: endpoints
                    .iter()
                    .map(|(address, identity)| LinkerdEndpoint {
                        address: at(address),
                        identity: identity.map(str::to_owned),
                    })
                    .collect(),
                opaque: (name == "bytes").then_some(4143),
            };
        Mesh {
            listen: at("127.0.0.1:0"),
            name: "control.mesh".to_owned(),
            root: PathBuf::new(),
            root_key: PathBuf::new(),
            workloads: vec![LinkerdWorkload {
                identity: "server.mesh".to_owned(),
                token: "secret".to_owned(),
                workload: "lab/server".to_owned(),
                sealed_ports: vec![8081],
                clients: vec!["client.mesh".to_owned()],
                opaque_ports: vec![9081],
            }],
            services: vec![
                service("plain", "10.0.0.1:80", &[("10.1.0.1:8080", None)]),
                service(
                    "sealed",
                    "[fd00::1]:81",
                    &[("[fd01::1]:8081", Some("server.mesh"))],
                ),
                service("empty", "10.0.0.3:80", &[]),
                service(
                    "bytes",
                    "10.0.0.4:90",
                    &[("10.1.0.4:9081", Some("server.mesh"))],
                ),
            ],
        }
    }

    #[test]
    fn a_sealed_port_is_for_its_clients_and_every_other_for_all() {
        let mesh = mesh();
        let permit = |port| {
            let server = mesh.server("lab/server", port).expect("it is known");
            assert_eq!(
                server.labels.get("kind").map(String::as_str),
                Some("default")
            );
            let [authz] = &server.authorizations[..] else {
                panic!("one authorization: {server:?}");
            };
            assert_eq!(authz.networks.len(), 2, "both families");
            authz.authentication.clone().and_then(|a| a.permit)
        };
        let Some(inbound::Permit::MeshTls(sealed)) = permit(8081) else {
            panic!("8081 needs mutual TLS");
        };
        let Some(inbound::Clients::Identities(names)) = sealed.clients else {
            panic!("of somebody in particular");
        };
        assert_eq!(names.identities[0].name, "client.mesh");
        for port in [8080, 15090] {
            let anybody = inbound::Permit::Unauthenticated(inbound::UnauthenticatedClients {});
            assert_eq!(permit(port), Some(anybody));
        }
        assert_eq!(mesh.server("lab/nobody", 8080), None);
    }

    #[test]
    fn who_answers_is_found_by_name_and_port() {
        let mesh = mesh();
        let nobody = |exists| Change::NoEndpoints(NoEndpoints { exists });
        for (path, exists) in [
            ("empty.lab.svc.cluster.local:80", true),
            ("plain.lab.svc.cluster.local:81", false),
            ("plain.other.svc.cluster.local:80", false),
            ("plain", false),
            ("plain.lab.svc.cluster.local:eighty", false),
            ("", false),
        ] {
            assert_eq!(mesh.endpoints(path).update, Some(nobody(exists)), "{path}");
        }
        let one = |path| match mesh.endpoints(path).update {
            Some(Change::Add(set)) => set.addrs[0].clone(),
            other => panic!("{path}: {other:?}"),
        };
        let plain = one("plain.lab.svc.cluster.local.:80");
        assert_eq!((plain.tls_identity, plain.protocol_hint), (None, None));
        let sealed = one("sealed.lab.svc.cluster.local:81");
        let address = sealed.addr.and_then(|a| a.socket());
        assert_eq!(address, "[fd01::1]:8081".parse().ok());
        let name = sealed.tls_identity.and_then(|tls| tls.server_name);
        assert_eq!(name.map(|n| n.name).as_deref(), Some("server.mesh"));
        assert!(
            sealed
                .protocol_hint
                .is_some_and(|hint| hint.protocol.is_some())
        );
    }

    #[test]
    fn bytes_that_nobody_looks_at_are_said_to_be_so_at_every_end() {
        let mesh = mesh();
        let server = mesh.server("lab/server", 9081).expect("it is known");
        let opaque = inbound::InboundProtocol::Opaque(inbound::Opaque {});
        assert_eq!(server.protocol.and_then(|p| p.kind), Some(opaque));
        let named =
            outbound::OutboundTarget::Authority("bytes.lab.svc.cluster.local:90".to_owned());
        let policy = mesh.policy(&named).and_then(|policy| policy.protocol);
        let kind = policy.and_then(|protocol| protocol.kind);
        assert!(
            matches!(kind, Some(outbound::OutboundProtocol::Opaque(_))),
            "{kind:?}"
        );
        let Some(Change::Add(set)) = mesh.endpoints("bytes.lab.svc.cluster.local:90").update else {
            panic!("somebody answers");
        };
        let hint = set.addrs[0].protocol_hint.expect("a hint");
        assert_eq!(hint.protocol, Some(LinkerdProtocolHint::Opaque(Opaque {})));
        assert_eq!(hint.opaque_transport.map(|t| t.inbound_port), Some(4143));
    }

    #[test]
    fn calls_of_a_service_are_balanced_and_those_of_others_are_not_known() {
        let mesh = mesh();
        let target = |text: &str| {
            let address: SocketAddr = text.parse().expect("an address");
            outbound::OutboundTarget::Addr(address.into())
        };
        let policy = mesh.policy(&target("[fd00::1]:81")).expect("a service");
        let named =
            outbound::OutboundTarget::Authority("sealed.lab.svc.cluster.local:81".to_owned());
        assert_eq!(mesh.policy(&named), Some(policy.clone()));
        let text = format!("{policy:?}");
        let asked = "path: \"sealed.lab.svc.cluster.local:81\"";
        assert_eq!(text.matches(asked).count(), 3, "HTTP/1, HTTP/2, bytes");
        for stranger in ["10.0.0.1:81", "10.0.0.9:80"] {
            assert_eq!(mesh.policy(&target(stranger)), None, "{stranger}");
            assert_eq!(mesh.profile(stranger), DestinationProfile::default());
        }
        let profile = mesh.profile("10.0.0.1:80").fully_qualified_name;
        assert_eq!(profile, "plain.lab.svc.cluster.local");
    }
}
