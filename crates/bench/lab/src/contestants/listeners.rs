//! Listeners of a peer that is configured by files. For each protocol there are two ways from the client's sidecar to the
//! server's (plaintext and mutual TLS), one from there straight to the server, and two ways in. The lab chooses the ports and
//! fills them into the peer's templates by name, so no template contains a port.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use voile_host::netns::rules::PortRedirect;
use voile_host::ports::free_port;

use super::captured::{Calls, CapturedPods, Redirection};
use super::certificates::{self, Leaf};
use super::pair::{POD_ADDRESS, PairSide, Values};
use crate::agent::AgentConnection;
use crate::contestants::contestant::{CLIENT_ID, CellRoute, IMPOSTOR, IdentityProbe, SERVER_ID};
use crate::contestants::served_process::known;
use crate::machine::instance::{CLIENT, Hop, Instance, SERVER};
use crate::network::{HTTP_PORT, INBOUND, Network, OUTBOUND, TCP_PORT};
use crate::plan::RequestPath;
use crate::shared_processes::Lab;

/// Descriptors that a proxy needs beside those of its connections.
const OTHER_DESCRIPTORS: u64 = 200;
/// More connections than any experiment opens; programs that allocate a slot for each should not be charged for more.
const MAX_CONNECTIONS: u64 = 40_000;

/// First port of listeners in network namespaces.
const FIRST_CAPTURED_PORT: u16 = 8100;
/// Distance between a called port and the port of its listener, if the sidecar has a listener for each port.
const LISTENERS_ABOVE: u16 = 1000;

/// Way in which a sidecar takes redirected calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CaptureMethod {
    /// All of it at one listener, asking the kernel where it was to go.
    Original,
    /// Each port at a listener of its own.
    Turned,
}

/// Names of the ports in templates, before them the protocol's prefix.
const OUT_PLAIN: &str = "PLAIN_PORT";
const OUT_TLS: &str = "TLS_PORT";
const OUT_DIRECT: &str = "DIRECT_PORT";
const IN_PLAIN: &str = "SERVER_PLAIN_PORT";
const IN_TLS: &str = "SERVER_TLS_PORT";
/// A second way like the one over mutual TLS, for servers that the lab puts at its end.
const OUT_STAGE: &str = "STAGE_PORT";
const IN_STAGE: &str = "SERVER_STAGE_PORT";

/// Number of listeners of each protocol that belong to the server's sidecar.
const OF_SERVER: u16 = 3;

/// Protocols and the prefixes of their ports' names.
const PROTOCOLS: [(&str, &str); 3] = [("http1", ""), ("tcp", "TCP_"), ("grpc", "GRPC_")];

/// The listeners of a pair of sidecars.
pub(super) struct Listeners {
    /// Networks of their own, when not on loopback.
    captured: Option<(CapturedPods, CaptureMethod)>,
    client: IpAddr,
    server: IpAddr,
    ports: BTreeMap<String, u16>,
    /// Certificates of the server, and of an impostor.
    leaves: Option<(Leaf, Leaf)>,
    /// Root certificate of `leaves`.
    root: PathBuf,
    /// True if an agent runs the server's sidecar.
    far: bool,
}

impl Listeners {
    /// Listeners in network namespaces of their own, where all ports are free. A sidecar that cannot read the original
    /// destination has one listener for each called port, at a fixed distance above that port.
    pub(super) fn captured(
        lab: &Lab<'_>,
        network: &Network,
        name: &str,
        takes: CaptureMethod,
    ) -> Result<Self, String> {
        let mut ports = BTreeMap::new();
        let (mut out, mut inbound) = (Vec::new(), Vec::new());
        for (_, prefix) in PROTOCOLS {
            for name in [
                OUT_PLAIN, OUT_TLS, OUT_DIRECT, IN_PLAIN, IN_TLS, OUT_STAGE, IN_STAGE,
            ] {
                let port = FIRST_CAPTURED_PORT + ports.len() as u16;
                ports.insert(format!("{prefix}{name}"), port);
                match name {
                    IN_PLAIN | IN_TLS => inbound.push(port),
                    IN_STAGE => {}
                    _ => out.push(port),
                }
            }
        }
        let turn = |ports: Vec<u16>| {
            let ports = ports.into_iter();
            ports.map(|port| PortRedirect {
                port,
                to: port + LISTENERS_ABOVE,
            })
        };
        let redirection = match takes {
            CaptureMethod::Original => Redirection::original(None, inbound),
            CaptureMethod::Turned => Redirection::Turned {
                out: turn(out).collect(),
                inward: turn(inbound).collect(),
            },
        };
        let echo = (&[HTTP_PORT][..], &[TCP_PORT][..]);
        let captured = CapturedPods::prepare(lab, network, name, redirection, echo)?;
        Ok(Self {
            client: captured.client(),
            server: captured.server(),
            captured: Some((captured, takes)),
            ports,
            leaves: None,
            root: PathBuf::new(),
            far: false,
        })
    }

    /// A port in a network of its own by its name with its protocol's prefix: where it is called, and where it is taken.
    pub(super) fn called_and_taken(&self, name: &str) -> Option<(u16, u16)> {
        let port = *self.ports.get(name)?;
        Some((port, port + LISTENERS_ABOVE))
    }

    pub(super) fn pods(&mut self) -> Option<&mut CapturedPods> {
        self.captured.as_mut().map(|(captured, _)| captured)
    }

    /// Address of the server's sidecar.
    pub(super) fn server(&self) -> IpAddr {
        self.server
    }

    /// The server at the end of that way, where it is ours.
    pub(super) fn server_instance(&self, way: &RequestPath) -> Option<Instance> {
        self.captured.as_ref()?.0.instance(way)
    }

    /// The lab in which contestants are started.
    pub(super) fn lab<'a>(&self, lab: &Lab<'a>) -> Option<Lab<'a>> {
        Some(self.captured.as_ref()?.0.lab(lab))
    }

    /// Adjusts the values that differ for one side in network namespaces. The server is the one beside the server's sidecar. A
    /// sidecar with a listener for each port listens on another port than the called one.
    pub(super) fn beside(&self, side: PairSide, values: &mut Values) {
        let Some((captured, takes)) = &self.captured else {
            return;
        };
        let (pod, own_ports) = match side {
            PairSide::Client => (
                captured.client(),
                [OUT_PLAIN, OUT_TLS, OUT_DIRECT, OUT_STAGE],
            ),
            PairSide::Server => (captured.server(), [IN_PLAIN, IN_TLS, IN_PLAIN, IN_TLS]),
        };
        let listens = |name: &str| {
            let bare = PROTOCOLS
                .iter()
                .rev()
                .find_map(|(_, prefix)| name.strip_prefix(prefix));
            *takes == CaptureMethod::Turned && bare.is_some_and(|bare| own_ports.contains(&bare))
        };
        for (name, value) in values.iter_mut() {
            match (name.as_str(), side) {
                ("ECHO_ADDRESS", PairSide::Server) => *value = pod.to_string(),
                ("ECHO_PORT", PairSide::Server) => *value = HTTP_PORT.to_string(),
                ("TCP_ECHO_PORT", PairSide::Server) => *value = TCP_PORT.to_string(),
                // The kernel redirects calls from inside before they leave the pod.
                ("CLIENT_ADDRESS", PairSide::Client) if *takes == CaptureMethod::Turned => {
                    *value = Ipv4Addr::LOCALHOST.to_string();
                }
                (name, _) if listens(name) => {
                    let port = value.parse::<u16>().unwrap_or_default();
                    *value = (port + LISTENERS_ABOVE).to_string();
                }
                _ => {}
            }
        }
        values.push((POD_ADDRESS.to_owned(), pod.to_string()));
    }

    /// Free ports on 127.NET.0.1 for the client's sidecar and 127.NET.0.2 for the server's, or on the agent's address.
    pub(super) fn choose(net: u8, far: Option<&AgentConnection>) -> Result<Self, String> {
        let client = IpAddr::V4(Ipv4Addr::new(127, net, 0, 1));
        let server = far.map_or(
            IpAddr::V4(Ipv4Addr::new(127, net, 0, 2)),
            AgentConnection::address,
        );
        let mut ports = BTreeMap::new();
        let mut there = match far {
            Some(far) => far.ports(PROTOCOLS.len() as u16 * OF_SERVER)?,
            None => Vec::new(),
        };
        for (_, prefix) in PROTOCOLS {
            for (name, on) in [
                (OUT_PLAIN, client),
                (OUT_TLS, client),
                (OUT_DIRECT, client),
                (IN_PLAIN, server),
                (IN_TLS, server),
                (OUT_STAGE, client),
                (IN_STAGE, server),
            ] {
                let given = if on == server { there.pop() } else { None };
                let port = match given {
                    Some(port) => port,
                    None => free_port(on)
                        .map_err(|e| format!("cannot get a port for a peer: {e}"))?
                        .port(),
                };
                ports.insert(format!("{prefix}{name}"), port);
            }
        }
        Ok(Self {
            captured: None,
            client,
            server,
            ports,
            leaves: None,
            root: PathBuf::new(),
            far: far.is_some(),
        })
    }

    /// Values for a template, with the certificates that it needs, which are written to the folder.
    pub(super) fn values(
        &mut self,
        lab: &Lab<'_>,
        folder: &Path,
    ) -> Result<Vec<(String, String)>, String> {
        let (root, leaves) = certificates::write(
            folder,
            &[("client", CLIENT_ID), ("server", SERVER_ID), IMPOSTOR],
        )?;
        let sides = [("CLIENT", &leaves[0]), ("SERVER", &leaves[1])];
        let values = self.fill_in(lab, folder, &root, &sides);
        self.leaves = Some((leaves[1].clone(), leaves[2].clone()));
        self.root = root;
        Ok(values)
    }

    /// At the agent's: the listeners that a near end has chosen. The client's sidecar is not there.
    pub(super) fn sent(at: IpAddr, ports: &BTreeMap<String, u16>) -> Result<Self, String> {
        let names = [
            OUT_PLAIN, OUT_TLS, OUT_DIRECT, IN_PLAIN, IN_TLS, OUT_STAGE, IN_STAGE,
        ];
        known(ports, |name| {
            let of = |prefix: &str| {
                name.strip_prefix(prefix)
                    .is_some_and(|n| names.contains(&n))
            };
            PROTOCOLS.iter().any(|(_, prefix)| of(prefix))
        })?;
        Ok(Self {
            captured: None,
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
            server: at,
            ports: ports.clone(),
            leaves: None,
            root: PathBuf::new(),
            far: false,
        })
    }

    pub(super) fn ports(&self) -> &BTreeMap<String, u16> {
        &self.ports
    }

    /// The root, and the server's certificate.
    pub(super) fn of_server(&self) -> Result<(&Path, &Leaf), String> {
        let leaves = self.leaves.as_ref();
        let (server, _) = leaves.ok_or_else(|| "no certificates were made".to_owned())?;
        Ok((&self.root, server))
    }

    /// The server's first listener, on which no experiment measures it alone.
    pub(super) fn quiet(&self) -> Result<SocketAddr, String> {
        let port = self.ports.get(IN_PLAIN);
        let port = port.ok_or_else(|| format!("no port is given for {IN_PLAIN}"))?;
        Ok(SocketAddr::new(self.server, *port))
    }

    /// Values for a template, with given certificates.
    pub(super) fn fill_in(
        &self,
        lab: &Lab<'_>,
        folder: &Path,
        root: &Path,
        sides: &[(&str, &Leaf)],
    ) -> Vec<(String, String)> {
        let shown = |path: &Path| path.display().to_string();
        let mut values: Vec<(String, String)> = self
            .ports
            .iter()
            .map(|(name, port)| (name.clone(), port.to_string()))
            .collect();
        for (
            side,
            Leaf {
                certificate,
                key,
                both,
            },
        ) in sides
        {
            values.push((format!("{side}_CERTIFICATE"), shown(certificate)));
            values.push((format!("{side}_KEY"), shown(key)));
            values.push((format!("{side}_PEM"), shown(both)));
        }
        let descriptors = voile_host::machine::descriptor_limit().unwrap_or(1024);
        let most = descriptors
            .saturating_sub(OTHER_DESCRIPTORS)
            .min(MAX_CONNECTIONS);
        for (name, value) in [
            ("CLIENT_ADDRESS", self.client.to_string()),
            ("SERVER_ADDRESS", self.server.to_string()),
            ("ECHO_ADDRESS", lab.echo.http.ip().to_string()),
            ("ECHO_PORT", lab.echo.http.port().to_string()),
            ("TCP_ECHO_PORT", lab.echo.tcp.port().to_string()),
            ("ROOT", shown(root)),
            ("CLIENT_ID", CLIENT_ID.to_owned()),
            ("SERVER_ID", SERVER_ID.to_owned()),
            ("WORKERS", lab.workers.to_string()),
            ("FOLDER", shown(folder)),
            ("DESCRIPTORS", most.to_string()),
        ] {
            values.push((name.to_owned(), value));
        }
        values
    }

    /// The path at whose end the lab may put servers of its own. gRPC uses the path of HTTP.
    pub(super) fn stage(&self, protocol: &str) -> Option<IdentityProbe> {
        let prefix = if protocol == "tcp" { "TCP_" } else { "" };
        let at = |on: IpAddr, name: &str| {
            let port = self.ports.get(&format!("{prefix}{name}"))?;
            Some(SocketAddr::new(on, *port))
        };
        if self.far {
            return None;
        }
        let (right, wrong) = self.leaves.clone()?;
        let networks = self.captured.as_ref().map(|(pods, _)| pods.networks());
        let networks = networks.map(|(client, server)| (client, Some(server)));
        // Inside, the client calls the server, and the kernel its sidecar.
        let called = if networks.is_some() {
            self.server
        } else {
            self.client
        };
        Some(IdentityProbe {
            entry: at(called, OUT_STAGE)?,
            host: None,
            server: at(self.server, IN_STAGE)?,
            right,
            wrong,
            networks,
            speaks: IdentityProbe::SPEAKS,
            opening: None,
        })
    }

    /// Path of the requests through the listeners.
    pub(super) fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute> {
        let (_, prefix) = PROTOCOLS.iter().find(|(name, _)| *name == way.ports())?;
        if let Some((captured, takes)) = &self.captured {
            let port = |name: &str| self.ports.get(&format!("{prefix}{name}")).copied();
            let (outer, inner) = if way.tls {
                (OUT_TLS, IN_TLS)
            } else {
                (OUT_PLAIN, IN_PLAIN)
            };
            let tcp = way.protocol == "tcp";
            let first = if way.mode == "clientonly" {
                OUT_DIRECT
            } else {
                outer
            };
            let (client_listener, server_listener) = match takes {
                CaptureMethod::Original => (OUTBOUND, INBOUND),
                CaptureMethod::Turned => (
                    port(first)? + LISTENERS_ABOVE,
                    port(inner)? + LISTENERS_ABOVE,
                ),
            };
            let calls = Calls {
                service: (self.server, port(outer)?).into(),
                direct: (self.server, port(OUT_DIRECT)?).into(),
                pod_port: port(inner)?,
                echo_port: if tcp { TCP_PORT } else { HTTP_PORT },
                direct_port: lab.server_hop(&way.protocol).address.port(),
                client_listener,
                server_listener,
            };
            return captured.route(way, &calls);
        }
        let hop = |to, on: IpAddr, name: &str, tls| {
            Some(Hop {
                to,
                address: SocketAddr::new(on, *self.ports.get(&format!("{prefix}{name}"))?),
                tls,
                spot: None,
            })
        };
        let mut hops = match (way.mode.as_str(), way.tls) {
            ("clientonly", false) => vec![hop(CLIENT, self.client, OUT_DIRECT, false)?],
            ("serveronly", false) => vec![hop(SERVER, self.server, IN_PLAIN, false)?],
            ("both", false) => vec![
                hop(CLIENT, self.client, OUT_PLAIN, false)?,
                hop(SERVER, self.server, IN_PLAIN, false)?,
            ],
            ("both", true) => vec![
                hop(CLIENT, self.client, OUT_TLS, false)?,
                hop(SERVER, self.server, IN_TLS, true)?,
            ],
            _ => return None,
        };
        hops.push(lab.server_hop(&way.protocol));
        Some(CellRoute::through(hops))
    }
}

/// Puts values in place of `${NAME}` and leaves out lines that begin with `#`. A name without a value is an error, so that
/// no template runs half filled. An IPv6 address that a port follows gets its brackets.
pub(super) fn fill(template: &str, values: &[(String, String)]) -> Result<String, String> {
    let mut text = template
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n")
        + "\n";
    for (name, value) in values {
        if value.parse::<Ipv6Addr>().is_ok() {
            text = text.replace(&format!("${{{name}}}:"), &format!("[{value}]:"));
        }
        text = text.replace(&format!("${{{name}}}"), value);
    }
    match text.find("${") {
        Some(at) => Err(format!(
            "the template has no value for {}",
            text[at..].split('}').next().unwrap_or_default()
        )),
        None => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_with_an_unknown_name_is_refused() {
        let values = [("A".to_owned(), "1".to_owned())];
        assert_eq!(fill("# note\na: ${A}\n", &values), Ok("a: 1\n".to_owned()));
        let both = ["fd00::1", "10.0.0.1"].map(|ip| [("A".to_owned(), ip.to_owned())]);
        let filled = both.map(|values| fill("a: ${A}\nb: ${A}:80\n", &values));
        assert_eq!(filled[0], Ok("a: fd00::1\nb: [fd00::1]:80\n".to_owned()));
        assert_eq!(filled[1], Ok("a: 10.0.0.1\nb: 10.0.0.1:80\n".to_owned()));
        assert!(
            fill("a: ${B}\n", &values)
                .expect_err("no value")
                .contains("${B")
        );
    }
}
