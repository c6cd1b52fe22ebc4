//! The floor: bare epoll relays that move bytes and look at none of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use voile_host::child::{Supervised, stop_all};
use voile_host::ports::free_port;
use voile_host::ready::Probe;

use super::{CLIENT, Contestant, Counts, Hop, Instance, Route, SERVER};
use crate::plan::Way;
use crate::target::{Lab, STOP_GRACE};

/// The client's relays live here, the server's there.
const CLIENT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 12, 0, 1));
const SERVER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 12, 0, 2));

/// Three relays for each of the two servers: one before the server, one that leads to it, one that leads straight to the
/// server. Only those on a cell's path are charged to it.
#[derive(Debug, Default)]
pub(super) struct Relay {
    running: Vec<(Supervised, &'static str, SocketAddr)>,
}

impl Relay {
    fn launch(
        &mut self,
        lab: &Lab<'_>,
        name: &str,
        role: &'static str,
        on: IpAddr,
        to: SocketAddr,
    ) -> Result<SocketAddr, String> {
        let listen = free_port(on).map_err(|e| format!("a port for {name}: {e}"))?;
        let spec = lab.process(role, name, &lab.voile)?.args([
            "relay",
            "--listen",
            &listen.to_string(),
            "--to",
            &to.to_string(),
            "--workers",
            &lab.workers.to_string(),
        ]);
        self.running
            .push((spec.start().map_err(|e| e.to_string())?, role, listen));
        Ok(listen)
    }

    fn address(&self, name: &str) -> Option<SocketAddr> {
        self.running
            .iter()
            .find(|(child, ..)| child.name() == name)
            .map(|(_, _, address)| *address)
    }
}

/// The relays that carry such requests, by role and name.
fn on_path(way: &Way) -> Vec<(&'static str, String)> {
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

impl Contestant for Relay {
    fn name(&self) -> &str {
        "relay"
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        for (kind, echo) in [("", lab.echo.http), ("tcp-", lab.echo.tcp)] {
            let name = |name: &str| format!("relay-{kind}{name}");
            let server = self.launch(lab, &name("server"), SERVER, SERVER_ADDRESS, echo)?;
            self.launch(lab, &name("client"), CLIENT, CLIENT_ADDRESS, server)?;
            self.launch(lab, &name("client-only"), CLIENT, CLIENT_ADDRESS, echo)?;
        }
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        for (child, _, address) in &mut self.running {
            lab.wait_ready(child, &Probe::Tcp(*address))?;
        }
        Ok(())
    }

    fn route(&self, lab: &Lab<'_>, way: &Way) -> Option<Route> {
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
        Some(Route::through(hops))
    }

    fn instances(&self, way: &Way) -> Vec<Instance> {
        on_path(way)
            .into_iter()
            .filter_map(|(role, name)| {
                let (child, ..) = self
                    .running
                    .iter()
                    .find(|(child, ..)| child.name() == name)?;
                Some(Instance {
                    name,
                    role,
                    pids: child.group_pids(),
                })
            })
            .collect()
    }

    fn counts(&self, _protocol: &str) -> Counts {
        Ok(None)
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        for (child, ..) in &mut self.running {
            if let Some(exit) = child.try_exit() {
                return Err(format!(
                    "{} {exit}{}",
                    child.name(),
                    lab.log_end(child.name())
                ));
            }
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
        stop_all(self.running.iter_mut().map(|(child, ..)| child), STOP_GRACE);
        self.running.clear();
    }
}
