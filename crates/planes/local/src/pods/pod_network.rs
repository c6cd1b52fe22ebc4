//! The network of a mesh in namespaces: the bridge, a namespace for each pod, and the rules by which its traffic goes
//! through its sidecar, or, without one, to the pods behind a virtual address.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

use voile_host::enclosure::{InsideSocket, SocketKind};
use voile_host::isolation::{Privileges, ProcessIsolation};
use voile_host::netns::Namespace;
use voile_host::netns::link::{Bridge, Prefixed};
use voile_host::netns::rules::{
    NodeCapture, PodCapture, PortScope, Range, Rules, Tool, VirtualAddress, WayOut, apply,
};
use voile_model::mesh::{AddressRange, CaptureScope, Transport};
use voile_model::{Mesh, Port, ResourceName};

use crate::addresses::{GATEWAY, NAME_SERVER, PREFIX_V4, PREFIX_V6, beside};
use crate::application::DNS_PORT;
use crate::egress::{self, Gate};
use crate::expand::{PodPlan, RunPlan, endpoints_of};
use crate::loopback_block::{ControlPlace, MAX_CONTROL_PLANES};

/// Port at which the mesh's own namespace takes connections that leave the mesh.
const EGRESS_PORT: u16 = 15004;
/// Port of name servers.
const NAME_PORT: u16 = 53;

/// Returns the resolver of pods for names outside, if there is a way out and the host has a name server.
pub fn outside_resolver() -> Option<SocketAddr> {
    egress::host_resolver().map(|_| (GATEWAY, NAME_PORT).into())
}

/// Istio's port of discovery and certificates.
const XDS_PORT: u16 = 15012;
/// Istio's port of a control plane's metrics and readiness.
const MONITORING_PORT: u16 = 15014;

/// File in which the C library finds its name server.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The resolv.conf of a pod in this namespace: behind a proxy, which answers DNS, as Kubernetes writes it; without one, the
/// way to the host's name server, if there is one. `None`: the host's own.
pub fn resolver(namespace: &str, captured: bool, egress: bool) -> Option<String> {
    if captured {
        return Some(format!(
            "search {namespace}.svc.cluster.local svc.cluster.local cluster.local\nnameserver {NAME_SERVER}\noptions ndots:5\n"
        ));
    }
    let outside = outside_resolver().filter(|_| egress)?;
    Some(format!("nameserver {}\n", outside.ip()))
}

/// The mesh's own namespace, which we are in.
#[derive(Debug)]
pub struct MeshNetwork {
    bridge: Bridge,
    tool: Tool,
    inside: InsideSocket,
}

/// A pod's namespace; it goes when this and the pod's processes are gone.
#[derive(Debug)]
pub struct PodNetwork {
    namespace: Namespace,
    tool: Tool,
    v6: bool,
    /// True if a sidecar or the node proxy captures connections; the rules then redirect no virtual addresses.
    captured: bool,
    services: Vec<VirtualAddress>,
}

/// Checks that this machine can redirect connections, in a namespace that is thrown away.
pub fn check() -> Result<(), String> {
    let tool = Tool::find().map_err(|error| error.to_string())?;
    let namespace = Namespace::create().map_err(|error| format!("network namespace: {error}"))?;
    let rules = Rules {
        capture: Some(PodCapture::default()),
        services: Vec::new(),
        ..Rules::default()
    };
    apply(&tool, &namespace, &rules, false).map_err(|error| error.to_string())
}

impl MeshNetwork {
    /// Sets it up in the calling thread's namespace, which must be new.
    pub fn set_up(inside: InsideSocket) -> io::Result<Self> {
        let tool = Tool::find().map_err(io::Error::other)?;
        let addresses = [
            Prefixed::v4(GATEWAY, PREFIX_V4),
            Prefixed::v6(beside(GATEWAY), PREFIX_V6),
        ];
        let bridge = Bridge::create(&addresses)?;
        let range = |address: IpAddr, prefix| Range { address, prefix };
        // Rejects a connection to an unused address by a reset. Routing would send "unreachable" only a few times a
        // second, and other clients would wait.
        let rules = Rules {
            way_out: Some(WayOut {
                port: EGRESS_PORT,
                within: vec![
                    range(GATEWAY.into(), PREFIX_V4),
                    range(beside(GATEWAY).into(), PREFIX_V6),
                ],
            }),
            ..Rules::default()
        };
        let namespace = Namespace::current()?;
        apply(&tool, &namespace, &rules, bridge.has_v6()).map_err(io::Error::other)?;
        Ok(Self {
            bridge,
            tool,
            inside,
        })
    }

    /// Returns the name of the tool that redirects traffic.
    pub fn tool(&self) -> &'static str {
        self.tool.name()
    }

    /// The way outside.
    pub fn inside(&self) -> &InsideSocket {
        &self.inside
    }

    /// Returns the addresses of all possible control planes: the first on Istio's ports, each next one ten ports
    /// higher.
    pub fn control_planes(&self) -> [ControlPlace; MAX_CONTROL_PLANES] {
        [0, 10, 20].map(|further| ControlPlace {
            xds: (GATEWAY, XDS_PORT + further).into(),
            monitoring: (Ipv4Addr::LOCALHOST, MONITORING_PORT + further).into(),
        })
    }

    /// Lets pods reach the host's network: by TCP, and by questions to its name server.
    pub fn lead_out(&self, runtime: &tokio::runtime::Handle) -> io::Result<()> {
        let v6 = self.bridge.has_v6();
        let gate = Gate::new(runtime, &self.inside);
        let addresses: [IpAddr; 2] = [GATEWAY.into(), beside(GATEWAY).into()];
        for address in &addresses[..=usize::from(v6)] {
            let listener = TcpListener::bind((*address, EGRESS_PORT))?;
            gate.carry(listener, None)?;
        }
        if let Some(resolver) = egress::host_resolver() {
            let socket = UdpSocket::bind((GATEWAY, NAME_PORT))?;
            gate.ask(socket, resolver)?;
            let listener = TcpListener::bind((GATEWAY, NAME_PORT))?;
            gate.carry(listener, Some(resolver))?;
        }
        Ok(())
    }

    /// Listens in the host's network.
    pub fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        self.inside.listen(address)
    }

    /// The same of UDP.
    pub fn receive(&self, address: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self
            .inside
            .outward(SocketKind::Datagrams, address.is_ipv6())?;
        rustix::net::bind(&socket, &address)?;
        Ok(socket.into())
    }

    /// Makes the namespace of a pod, wired up and, if it has a sidecar or a node proxy serves it, redirecting.
    pub fn add_pod(&self, plan: &PodPlan, by_node: bool) -> io::Result<PodNetwork> {
        let addresses = [
            Prefixed::v4(plan.address, PREFIX_V4),
            Prefixed::v6(beside(plan.address), PREFIX_V6),
        ];
        let gateways: [IpAddr; 2] = [GATEWAY.into(), beside(GATEWAY).into()];
        let network = PodNetwork {
            namespace: self.bridge.add_pod(&addresses, &gateways)?,
            tool: self.tool.clone(),
            v6: self.bridge.has_v6(),
            captured: plan.is_captured() || by_node,
            services: Vec::new(),
        };
        if by_node {
            let rules = Rules {
                node: Some(NodeCapture::default()),
                ..Rules::default()
            };
            apply(&network.tool, &network.namespace, &rules, network.v6)
                .map_err(io::Error::other)?;
        } else if network.captured {
            let rules = Rules {
                capture: Some(PodCapture {
                    control: self.control_planes().map(|place| place.xds).to_vec(),
                    dns: Some(DNS_PORT),
                    ..pod_capture(&plan.template.capture)
                }),
                services: Vec::new(),
                ..Rules::default()
            };
            apply(&network.tool, &network.namespace, &rules, network.v6)
                .map_err(io::Error::other)?;
        }
        Ok(network)
    }
}

impl PodNetwork {
    /// To run things inside.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns true if a proxy takes the pod's outbound connections, and answers its DNS queries.
    pub fn is_captured(&self) -> bool {
        self.captured
    }

    /// Returns the place in which the pod's sidecar starts.
    pub fn sidecar_place(&self) -> ProcessIsolation {
        ProcessIsolation::new(self.namespace.clone(), Privileges::Sidecar)
    }

    /// Returns the place in which an application of the pod starts. The application finds `resolver`, if any, as its
    /// resolv.conf.
    pub fn application_place(&self, resolver: Option<&Path>) -> io::Result<ProcessIsolation> {
        let place = ProcessIsolation::new(self.namespace.clone(), Privileges::Application);
        // A file that does not exist cannot be replaced; the C library then asks 127.0.0.1, in vain as before.
        match resolver.filter(|_| Path::new(RESOLV_CONF).exists()) {
            Some(resolver) => place.file(resolver, Path::new(RESOLV_CONF)),
            None => Ok(place),
        }
    }

    /// Without a sidecar: turns the virtual addresses to the pods that are ready, if that has changed.
    pub fn follow(
        &mut self,
        mesh: &Mesh,
        plan: &RunPlan,
        pod: &PodPlan,
        ready: &BTreeSet<ResourceName>,
    ) -> io::Result<()> {
        if self.captured {
            return Ok(());
        }
        let services = virtual_addresses(mesh, plan, pod, ready);
        if services == self.services {
            return Ok(());
        }
        let rules = Rules {
            capture: None,
            services,
            ..Rules::default()
        };
        apply(&self.tool, &self.namespace, &rules, self.v6).map_err(io::Error::other)?;
        self.services = rules.services;
        Ok(())
    }
}

fn virtual_addresses(
    mesh: &Mesh,
    plan: &RunPlan,
    pod: &PodPlan,
    ready: &BTreeSet<ResourceName>,
) -> Vec<VirtualAddress> {
    let mut all = Vec::new();
    for (service, view) in pod.reach.iter().zip(&pod.services) {
        let tcp = service
            .ports
            .iter()
            .filter(|port| port.transport == Transport::Tcp);
        for port in tcp {
            let pods = endpoints_of(service, port, &plan.pods);
            let pods = pods
                .filter(|(pod, _, _)| ready.contains(pod))
                .map(|(_, address, port)| SocketAddr::from((address, port)));
            let others = mesh
                .near_workloads_of(service)
                .into_iter()
                .flat_map(|behind| {
                    let port = behind.ports.get(&port.number).map(|port| port.get());
                    let addresses = behind.workload.addresses.clone();
                    port.into_iter().flat_map(move |port| {
                        addresses
                            .clone()
                            .into_iter()
                            .map(move |ip| SocketAddr::new(ip, port))
                    })
                });
            all.push(VirtualAddress {
                address: view.address.into(),
                port: port.number.get(),
                targets: pods.chain(others).collect(),
            });
        }
    }
    all
}

/// The redirect rules of a Pod's annotations.
#[must_use]
pub fn pod_capture(scope: &CaptureScope) -> PodCapture {
    let numbers = |ports: &[Port]| ports.iter().map(|port| port.get()).collect::<Vec<_>>();
    let ranges = |ranges: &[AddressRange]| {
        let range = |range: &AddressRange| Range {
            address: range.address,
            prefix: range.prefix,
        };
        ranges.iter().map(range).collect::<Vec<_>>()
    };
    use voile_model::mesh::CaptureSelection as Written;
    PodCapture {
        inbound_ports: match &scope.inbound_ports {
            Written::AllBut(ports) => PortScope::AllBut(numbers(ports)),
            Written::Only(ports) => PortScope::Only(numbers(ports)),
        },
        excluded_outbound_ranges: ranges(&scope.excluded_outbound_ranges),
        outbound_ranges: match &scope.outbound_ranges {
            Written::AllBut(out) => PortScope::AllBut(ranges(out)),
            Written::Only(alone) => PortScope::Only(ranges(alone)),
        },
        outbound_ports: numbers(&scope.outbound_ports),
        excluded_outbound_ports: numbers(&scope.excluded_outbound_ports),
        keeps_source: scope.keeps_source == Some(true),
        ..PodCapture::default()
    }
}
