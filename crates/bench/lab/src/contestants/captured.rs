//! A pair of proxies, sidecars or those of two nodes, in network namespaces. The load's calls are redirected to the client's
//! proxy, arriving calls to the server's proxy. Neither load nor server knows of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use voile_host::child::{SupervisedChild, stop_all};
use voile_host::isolation::ProcessIsolation;
use voile_host::netns::Namespace;
use voile_host::netns::rules::{NodeCapture, PodCapture, PortRedirect, PortScope, Range, Rules};

use crate::contestants::contestant::CellRoute;
use crate::definition::WAYPOINT_MODE;
use crate::machine::instance::{
    CLIENT, CLIENT_NODE, CONTROL, Hop, Instance, SERVER, SERVER_NODE, WatchPoint,
};
use crate::network::{self, INBOUND, Network, OUTBOUND, Pod};
use crate::plan::RequestPath;
use crate::shared_processes::{Lab, STOP_GRACE};

/// Two pods with proxies, the server of one of them, and the shared pods and places.
#[derive(Debug)]
pub(super) struct CapturedPods {
    client: Pod,
    server: Pod,
    echo: SupervisedChild,
    control: ProcessIsolation,
    /// Place of the generator if there is no sidecar at its side.
    plain_client: ProcessIsolation,
    plain_server: Pod,
    /// The client's proxy and the server's in records.
    roles: [&'static str; 2],
}

/// Redirection of calls to a pair of sidecars.
pub(super) enum Redirection {
    /// Redirects all calls to Istio's ports and keeps the called address, which the sidecar reads from the kernel. The server's
    /// sidecar gets the calls to the `inbound` ports. The sidecars' calls to the control plane are not redirected. A sidecar that
    /// does not mark its own packets gets only calls to `outbound`, where it sends nothing itself.
    Original {
        control: Option<SocketAddr>,
        inbound: Vec<u16>,
        outbound: PortScope<Range>,
    },
    /// Each port at a listener of its own: of the client's sidecar, and of the server's.
    Turned {
        out: Vec<PortRedirect>,
        inward: Vec<PortRedirect>,
    },
    /// Redirects as Istio's CNI agent does it in a pod that the proxy of its node serves.
    Node,
}

impl Redirection {
    /// For sidecars that mark their own packets: every call is redirected to them.
    pub(super) fn original(control: Option<SocketAddr>, inbound: Vec<u16>) -> Self {
        Self::Original {
            control,
            inbound,
            outbound: PortScope::default(),
        }
    }

    /// The rules of the client's pod and of the server's.
    fn rules(self) -> [Rules; 2] {
        let captured = |control: Option<SocketAddr>, ports, outbound_ranges| Rules {
            capture: Some(PodCapture {
                outbound: OUTBOUND,
                inbound: INBOUND,
                control: control.into_iter().collect(),
                inbound_ports: PortScope::Only(ports),
                outbound_ranges,
                ..PodCapture::default()
            }),
            ..Rules::default()
        };
        match self {
            Self::Original {
                control,
                inbound,
                outbound,
            } => [
                captured(control, Vec::new(), outbound.clone()),
                captured(control, inbound, outbound),
            ],
            Self::Turned { out, inward } => [
                Rules {
                    turned_out: out,
                    ..Rules::default()
                },
                Rules {
                    turned_in: inward,
                    ..Rules::default()
                },
            ],
            Self::Node => [(); 2].map(|()| Rules {
                node: Some(NodeCapture::default()),
                ..Rules::default()
            }),
        }
    }
}

/// Addresses and ports of a captured path.
pub(super) struct Calls {
    /// Address by which the load calls the server with a sidecar, and that of the server without one.
    pub(super) service: SocketAddr,
    pub(super) direct: SocketAddr,
    /// Port by which the client's sidecar calls the server's pod, and port by which the server's sidecar calls its server.
    pub(super) pod_port: u16,
    pub(super) echo_port: u16,
    /// The port of the server without a sidecar.
    pub(super) direct_port: u16,
    /// Ports on which the sidecars listen.
    pub(super) client_listener: u16,
    pub(super) server_listener: u16,
}

impl CapturedPods {
    /// Makes the pods, and starts the server's server on these ports.
    pub(super) fn prepare(
        lab: &Lab<'_>,
        network: &Network,
        name: &str,
        redirection: Redirection,
        ports: (&[u16], &[u16]),
    ) -> Result<Self, String> {
        let roles = match redirection {
            Redirection::Node => [CLIENT_NODE, SERVER_NODE],
            _ => [CLIENT, SERVER],
        };
        let [client, server] = redirection.rules();
        let (client, server) = (network.add_pod(&client)?, network.add_pod(&server)?);
        let echo = lab.start_pod_echo(network, &server, &format!("{name}-echo"), ports, &[])?;
        Ok(Self {
            client,
            server,
            echo,
            control: network.for_control(),
            plain_client: network.client.for_application(),
            plain_server: network.server.clone(),
            roles,
        })
    }

    pub(super) fn client(&self) -> IpAddr {
        self.client.address
    }

    pub(super) fn server(&self) -> IpAddr {
        self.server.address
    }

    /// Network namespaces of client and server.
    pub(super) fn networks(&self) -> (Namespace, Namespace) {
        (self.client.namespace.clone(), self.server.namespace.clone())
    }

    /// The lab with the places of the processes that start next.
    pub(super) fn lab<'a>(&self, lab: &Lab<'a>) -> Lab<'a> {
        lab.with_places([
            (CONTROL, self.control.clone()),
            (CLIENT, self.client.for_sidecar()),
            (SERVER, self.server.for_sidecar()),
        ])
    }

    /// The path of such requests.
    pub(super) fn route(&self, way: &RequestPath, calls: &Calls) -> Option<CellRoute> {
        let on = |pod: &Pod, device, listener| {
            Some(WatchPoint {
                namespace: pod.namespace.clone(),
                device,
                listener,
            })
        };
        // Redirected to the sidecar before it is a packet, so that is where packets go.
        let client = Hop {
            to: self.roles[0],
            address: (Ipv4Addr::LOCALHOST, calls.client_listener).into(),
            tls: false,
            spot: on(
                &self.client,
                WatchPoint::LOOPBACK,
                Some(calls.client_listener),
            ),
        };
        let server = |tls| Hop {
            to: self.roles[1],
            address: (self.server.address, calls.pod_port).into(),
            tls,
            spot: on(
                &self.server,
                WatchPoint::ETHERNET,
                Some(calls.server_listener),
            ),
        };
        let echo = Hop {
            to: "server",
            address: (self.server.address, calls.echo_port).into(),
            tls: false,
            spot: on(&self.server, WatchPoint::LOOPBACK, None),
        };
        let plain = Hop {
            to: "server",
            address: (self.plain_server.address, calls.direct_port).into(),
            tls: false,
            spot: on(&self.plain_server, WatchPoint::ETHERNET, None),
        };
        let inside = self.client.for_application();
        let (entry, from, hops) = match (way.mode.as_str(), way.tls) {
            ("clientonly", false) => (calls.direct, inside, vec![client, plain]),
            ("serveronly", false) => {
                let hop = server(false);
                (hop.address, self.plain_client.clone(), vec![hop, echo])
            }
            ("both" | "node" | WAYPOINT_MODE, tls) => {
                (calls.service, inside, vec![client, server(tls), echo])
            }
            _ => return None,
        };
        Some(CellRoute {
            entry,
            host: None,
            bind: None,
            from: Some(from),
            hops,
        })
    }

    /// The server at the end of the path, if the pair started it.
    pub(super) fn instance(&self, way: &RequestPath) -> Option<Instance> {
        (way.mode != "clientonly").then(|| network::server(&self.echo))
    }

    pub(super) fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        match self.echo.try_exit() {
            None => Ok(()),
            Some(exit) => {
                let name = self.echo.name();
                Err(format!("{name} {exit}{}", lab.log_end(name)))
            }
        }
    }

    pub(super) fn stop(&mut self) {
        stop_all([&mut self.echo], STOP_GRACE);
    }
}
