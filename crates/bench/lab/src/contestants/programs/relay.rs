//! The floor: bare epoll relays that move bytes and look at none of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use voile_host::child::stop_all;
use voile_host::ports::free_port;
use voile_host::ready::Probe;

use crate::agent::AgentProgram;
use crate::contestants::contestant::{CellRoute, Contestant, Counts};
use crate::contestants::listeners::{CaptureMethod, Listeners};
use crate::machine::instance::{CLIENT, Hop, Instance, SERVER};
use crate::network::{HTTP_PORT, Network, TCP_PORT};
use crate::plan::RequestPath;
use crate::process::Process;
use crate::shared_processes::{Lab, STOP_GRACE};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The client's relays live here, the server's there.
const CLIENT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 12, 0, 1));
const SERVER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 12, 0, 2));

/// Three relays for each of the two servers: one before the server, one that leads to it, one that leads straight to the
/// server. Only those on a cell's path are charged to it.
#[derive(Default)]
pub(crate) struct LabRelays {
    running: Vec<(Process, &'static str, SocketAddr)>,
    /// Networks of their own, when not on loopback.
    pods: Option<Listeners>,
}

/// Relays in network namespaces, and the sidecar's port that each takes.
const TAKEN: [(&str, &str); 3] = [
    ("server", "SERVER_PLAIN_PORT"),
    ("client", "PLAIN_PORT"),
    ("client-only", "DIRECT_PORT"),
];

fn free(on: IpAddr) -> Result<SocketAddr, String> {
    free_port(on).map_err(|e| format!("cannot get a port for a relay: {e}"))
}

impl LabRelays {
    fn launch(
        &mut self,
        lab: &Lab<'_>,
        name: &str,
        role: &'static str,
        listen: SocketAddr,
        to: SocketAddr,
    ) -> Result<(), String> {
        let spec = lab.process(role, name, &lab.voile)?.args([
            "relay",
            "--listen",
            &listen.to_string(),
            "--to",
            &to.to_string(),
            "--workers",
            &lab.workers.to_string(),
        ]);
        let process = spec.start().map_err(|e| e.to_string())?;
        self.running.push((process.into(), role, listen));
        Ok(())
    }

    /// The relay before the server, here or at the agent's.
    fn launch_server(
        &mut self,
        lab: &Lab<'_>,
        name: &str,
        to: SocketAddr,
    ) -> Result<SocketAddr, String> {
        let Some(far) = lab.far else {
            let listen = free(SERVER_ADDRESS)?;
            self.launch(lab, name, SERVER, listen, to)?;
            return Ok(listen);
        };
        let tcp = to == lab.echo.tcp;
        let (process, addresses) = lab.start_there(far, AgentProgram::Relay { tcp })?;
        let listen = *addresses
            .first()
            .ok_or("the agent's relay has no listen address")?;
        self.running.push((Process::There(process), SERVER, listen));
        Ok(listen)
    }

    /// In network namespaces each called port is redirected to a relay, and no call is redirected twice.
    fn start_captured(&mut self, lab: &Lab<'_>, network: &Network) -> Result<(), String> {
        let listeners = Listeners::captured(lab, network, "relay", CaptureMethod::Turned)?;
        let placed = listeners.lab(lab);
        let inside = placed.as_ref().unwrap_or(lab);
        let (echo, server) = (lab.echo, listeners.server());
        for (kind, prefix, beside, shared) in [
            ("", "", HTTP_PORT, echo.http),
            ("tcp-", "TCP_", TCP_PORT, echo.tcp),
        ] {
            let ports = |name: &str| {
                let ports = listeners.called_and_taken(&format!("{prefix}{name}"));
                ports.ok_or_else(|| format!("a relay has no port {name}"))
            };
            for (name, taken) in TAKEN {
                let (_, taken) = ports(taken)?;
                let (role, on, to) = match name {
                    "server" => (SERVER, server, SocketAddr::new(server, beside)),
                    // The kernel redirects calls from inside before they leave the pod.
                    "client" => {
                        let (called, _) = ports("SERVER_PLAIN_PORT")?;
                        (CLIENT, LOCALHOST, SocketAddr::new(server, called))
                    }
                    _ => (CLIENT, LOCALHOST, shared),
                };
                let listen = SocketAddr::new(on, taken);
                self.launch(inside, &format!("relay-{kind}{name}"), role, listen, to)?;
            }
        }
        self.pods = Some(listeners);
        Ok(())
    }

    fn address(&self, name: &str) -> Option<SocketAddr> {
        self.running
            .iter()
            .find(|(child, ..)| child.name() == name)
            .map(|(_, _, address)| *address)
    }
}

/// The relays that carry such requests, by role and name.
fn on_path(way: &RequestPath) -> Vec<(&'static str, String)> {
    let names: &[(&'static str, &str)] = match (way.mode.as_str(), way.tls) {
        ("clientonly", false) => &[(CLIENT, "client-only")],
        ("serveronly", false) => &[(SERVER, "server")],
        ("both", false) => &[(CLIENT, "client"), (SERVER, "server")],
        _ => &[],
    };
    let kind = if way.protocol == "tcp" { "tcp-" } else { "" };
    names
        .iter()
        .map(|(role, name)| (*role, format!("relay-{kind}{name}")))
        .collect()
}

impl Contestant for LabRelays {
    fn name(&self) -> &str {
        "relay"
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        if let Some(network) = lab.network {
            return self.start_captured(lab, network);
        }
        for (kind, echo) in [("", lab.echo.http), ("tcp-", lab.echo.tcp)] {
            let name = |name: &str| format!("relay-{kind}{name}");
            let server = self.launch_server(lab, &name("server"), echo)?;
            self.launch(lab, &name("client"), CLIENT, free(CLIENT_ADDRESS)?, server)?;
            self.launch(
                lab,
                &name("client-only"),
                CLIENT,
                free(CLIENT_ADDRESS)?,
                echo,
            )?;
        }
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        for (child, _, address) in &mut self.running {
            match child.here().filter(|_| self.pods.is_some()) {
                Some(child) => lab.wait_listening(child, *address)?,
                None => child.wait_ready(lab, &Probe::Tcp(*address))?,
            }
        }
        Ok(())
    }

    fn captures(&self) -> bool {
        true
    }

    fn server(&self, way: &RequestPath) -> Option<Instance> {
        self.pods.as_ref()?.server_instance(way)
    }

    fn route(&self, lab: &Lab<'_>, way: &RequestPath) -> Option<CellRoute> {
        if let Some(pods) = &self.pods {
            return pods.route(lab, way).filter(|_| !way.tls);
        }
        let relays = on_path(way);
        if relays.is_empty() {
            return None;
        }
        let mut hops = Vec::new();
        for (to, name) in relays {
            let address = self.address(&name)?;
            hops.push(Hop {
                to,
                address,
                tls: false,
                spot: None,
            });
        }
        hops.push(lab.server_hop(&way.protocol));
        Some(CellRoute::through(hops))
    }

    fn instances(&self, way: &RequestPath) -> Vec<Instance> {
        on_path(way)
            .into_iter()
            .filter_map(|(role, name)| {
                let (child, ..) = self
                    .running
                    .iter()
                    .find(|(child, ..)| child.name() == name)?;
                Some(child.instance(role))
            })
            .collect()
    }

    fn counts(&self, _way: &RequestPath) -> Counts {
        Ok(None)
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        if let Some(pods) = self.pods.as_mut().and_then(Listeners::pods) {
            pods.alive(lab)?;
        }
        for (child, ..) in &mut self.running {
            child.alive(lab)?;
        }
        Ok(())
    }

    fn version(&self) -> String {
        format!("voile {}", env!("CARGO_PKG_VERSION"))
    }

    fn commands(&self) -> Vec<String> {
        self.running
            .iter()
            .map(|(child, ..)| child.command_line().to_owned())
            .collect()
    }

    fn terms(&self) -> Vec<String> {
        vec!["does less: moves bytes, parses nothing, encrypts nothing, counts nothing".to_owned()]
    }

    fn stop(&mut self) {
        let children = self.running.iter_mut();
        stop_all(children.filter_map(|(child, ..)| child.here()), STOP_GRACE);
        self.running.clear();
        if let Some(pods) = self.pods.as_mut().and_then(Listeners::pods) {
            pods.stop();
        }
        self.pods = None;
    }
}
