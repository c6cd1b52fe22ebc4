//! Where the listeners of a peer that is configured by files are: for each protocol two ways out of the client's sidecar to
//! the server's (plaintext and mutual TLS), one straight to the server, and two ways in. The lab chooses the ports and
//! fills them into the peer's templates by name, so that no template knows a port.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use voile_host::ports::free_port;

use super::captured::{Calls, Captured};
use super::certificates::{self, Leaf};
use super::{CLIENT, Hop, IMPOSTOR, Instance, Route, SERVER, Stage};
use crate::network::{HTTP_PORT, Network, TCP_PORT};
use crate::plan::Way;
use crate::target::Lab;

/// Identities in the certificates of peers, as the mesh would give them.
pub(super) const CLIENT_ID: &str = "spiffe://cluster.local/ns/lab/sa/client";
pub(super) const SERVER_ID: &str = "spiffe://cluster.local/ns/lab/sa/server";
/// Descriptors that a proxy needs beside those of its connections.
const OTHER_DESCRIPTORS: u64 = 200;
/// More connections than any experiment opens; programs that allocate a slot for each should not be charged for more.
const MAX_CONNECTIONS: u64 = 40_000;

/// Of listeners in networks of their own.
const FIRST_CAPTURED_PORT: u16 = 8100;

/// Names of the ports in templates, before them the protocol's prefix.
const OUT_PLAIN: &str = "PLAIN_PORT";
const OUT_TLS: &str = "TLS_PORT";
const OUT_DIRECT: &str = "DIRECT_PORT";
const IN_PLAIN: &str = "SERVER_PLAIN_PORT";
const IN_TLS: &str = "SERVER_TLS_PORT";
/// A second way like the one over mutual TLS, for servers that the lab puts at its end.
const OUT_STAGE: &str = "STAGE_PORT";
const IN_STAGE: &str = "SERVER_STAGE_PORT";

/// Protocols and what stands before their ports' names.
const PROTOCOLS: [(&str, &str); 3] = [("http1", ""), ("tcp", "TCP_"), ("grpc", "GRPC_")];

/// The listeners of a pair of sidecars.
pub(super) struct Listeners {
    /// Networks of their own, when not on loopback.
    captured: Option<Captured>,
    client: IpAddr,
    server: IpAddr,
    ports: BTreeMap<String, u16>,
    /// Of the server, and of an impostor.
    leaves: Option<(Leaf, Leaf)>,
}

impl Listeners {
    /// In networks of their own nobody else has ports.
    pub(super) fn captured(lab: &Lab<'_>, network: &Network, name: &str) -> Result<Self, String> {
        let mut ports = BTreeMap::new();
        let mut inbound = Vec::new();
        for (_, prefix) in PROTOCOLS {
            for name in [
                OUT_PLAIN, OUT_TLS, OUT_DIRECT, IN_PLAIN, IN_TLS, OUT_STAGE, IN_STAGE,
            ] {
                let port = FIRST_CAPTURED_PORT + ports.len() as u16;
                ports.insert(format!("{prefix}{name}"), port);
                if [IN_PLAIN, IN_TLS].contains(&name) {
                    inbound.push(port);
                }
            }
        }
        let echo = (&[HTTP_PORT][..], &[TCP_PORT][..]);
        let captured = Captured::prepare(lab, network, name, None, &inbound, echo)?;
        Ok(Self {
            client: captured.client(),
            server: captured.server(),
            captured: Some(captured),
            ports,
            leaves: None,
        })
    }

    pub(super) fn pods(&mut self) -> Option<&mut Captured> {
        self.captured.as_mut()
    }

    /// The server at the end of that way, where it is ours.
    pub(super) fn server_instance(&self, way: &Way) -> Option<Instance> {
        self.captured.as_ref()?.instance(way)
    }

    /// Where contestants are started.
    pub(super) fn lab<'a>(&self, lab: &Lab<'a>) -> Option<Lab<'a>> {
        Some(self.captured.as_ref()?.lab(lab))
    }

    /// Values of the server's sidecar: its server is the one beside it.
    pub(super) fn beside(&self, values: &mut [(String, String)]) {
        let Some(captured) = &self.captured else {
            return;
        };
        for (name, value) in values {
            match name.as_str() {
                "ECHO_ADDRESS" => *value = captured.server().to_string(),
                "ECHO_PORT" => *value = HTTP_PORT.to_string(),
                "TCP_ECHO_PORT" => *value = TCP_PORT.to_string(),
                _ => {}
            }
        }
    }

    /// Free ports on 127.NET.0.1 for the client's sidecar and 127.NET.0.2 for the server's.
    pub(super) fn choose(net: u8) -> Result<Self, String> {
        let client = IpAddr::V4(Ipv4Addr::new(127, net, 0, 1));
        let server = IpAddr::V4(Ipv4Addr::new(127, net, 0, 2));
        let mut ports = BTreeMap::new();
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
                let port = free_port(on).map_err(|e| format!("a port for a peer: {e}"))?;
                ports.insert(format!("{prefix}{name}"), port.port());
            }
        }
        Ok(Self {
            captured: None,
            client,
            server,
            ports,
            leaves: None,
        })
    }

    /// What a template may ask for, and certificates in the folder for what it asks.
    pub(super) fn values(
        &mut self,
        lab: &Lab<'_>,
        folder: &Path,
    ) -> Result<Vec<(String, String)>, String> {
        let (root, leaves) = certificates::write(
            folder,
            &[("client", CLIENT_ID), ("server", SERVER_ID), IMPOSTOR],
        )?;
        self.leaves = Some((leaves[1].clone(), leaves[2].clone()));
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
        ) in [("CLIENT", &leaves[0]), ("SERVER", &leaves[1])]
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
            ("ROOT", shown(&root)),
            ("CLIENT_ID", CLIENT_ID.to_owned()),
            ("SERVER_ID", SERVER_ID.to_owned()),
            ("WORKERS", lab.workers.to_string()),
            ("FOLDER", shown(folder)),
            ("DESCRIPTORS", most.to_string()),
        ] {
            values.push((name.to_owned(), value));
        }
        Ok(values)
    }

    /// The way at whose end the lab may put servers of its own; over gRPC it would be HTTP's.
    pub(super) fn stage(&self, protocol: &str) -> Option<Stage> {
        let prefix = if protocol == "tcp" { "TCP_" } else { "" };
        let at = |on: IpAddr, name: &str| {
            let port = self.ports.get(&format!("{prefix}{name}"))?;
            Some(SocketAddr::new(on, *port))
        };
        if self.captured.is_some() {
            return None;
        }
        let (right, wrong) = self.leaves.clone()?;
        Some(Stage {
            entry: at(self.client, OUT_STAGE)?,
            host: None,
            server: at(self.server, IN_STAGE)?,
            right,
            wrong,
        })
    }

    /// How requests of that kind go through listeners that all are there.
    pub(super) fn route(&self, lab: &Lab<'_>, way: &Way) -> Option<Route> {
        let (_, prefix) = PROTOCOLS.iter().find(|(name, _)| *name == way.ports())?;
        if let Some(captured) = &self.captured {
            let port = |name: &str| self.ports.get(&format!("{prefix}{name}")).copied();
            let (outer, inner) = if way.tls {
                (OUT_TLS, IN_TLS)
            } else {
                (OUT_PLAIN, IN_PLAIN)
            };
            let tcp = way.protocol == "tcp";
            let calls = Calls {
                service: (self.server, port(outer)?).into(),
                direct: (self.server, port(OUT_DIRECT)?).into(),
                pod_port: port(inner)?,
                echo_port: if tcp { TCP_PORT } else { HTTP_PORT },
                direct_port: lab.server_hop(&way.protocol).address.port(),
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
        Some(Route::through(hops))
    }
}

/// Puts values in place of `${NAME}` and leaves out lines that begin with `#`. A name without a value is an error, so that
/// no template runs half filled.
pub(super) fn fill(template: &str, values: &[(String, String)]) -> Result<String, String> {
    let mut text = template
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n")
        + "\n";
    for (name, value) in values {
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
        assert!(
            fill("a: ${B}\n", &values)
                .expect_err("no value")
                .contains("${B")
        );
    }
}
