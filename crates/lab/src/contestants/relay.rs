//! The floor: bare epoll relays that move bytes and look at none of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use voile_host::child::{Supervised, stop_all};
use voile_host::ports::free_port;
use voile_host::ready::Probe;

use super::{CLIENT, Contestant, Hop, Instance, Route, SERVER};
use crate::target::{Lab, STOP_GRACE};

/// The client's relays live here, the server's there.
const CLIENT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 12, 0, 1));
const SERVER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 12, 0, 2));

/// Three relays: one before the server, one that leads to it, one that leads straight to the server. Only those on a
/// cell's path are charged to it, and the client's is one instance whichever of its two listeners is used.
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
        let spec = lab.process(name, &lab.voile).args([
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

/// The relays that carry a mode, by role and name.
fn on_path(mode: &str) -> &'static [(&'static str, &'static str)] {
    match mode {
        "clientonly" => &[(CLIENT, "relay-client-only")],
        "serveronly" => &[(SERVER, "relay-server")],
        "both" => &[(CLIENT, "relay-client"), (SERVER, "relay-server")],
        _ => &[],
    }
}

impl Contestant for Relay {
    fn name(&self) -> &'static str {
        "relay"
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let server = self.launch(lab, "relay-server", SERVER, SERVER_ADDRESS, lab.echo)?;
        self.launch(lab, "relay-client", CLIENT, CLIENT_ADDRESS, server)?;
        self.launch(lab, "relay-client-only", CLIENT, CLIENT_ADDRESS, lab.echo)?;
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        for (child, _, address) in &mut self.running {
            lab.wait_ready(child, &Probe::Tcp(*address))?;
        }
        Ok(())
    }

    fn route(&self, lab: &Lab<'_>, mode: &str, tls: bool) -> Option<Route> {
        let hop = |to, address| Hop {
            to,
            address,
            tls: false,
        };
        if tls || on_path(mode).is_empty() {
            return None;
        }
        let mut hops = Vec::new();
        for (role, name) in on_path(mode) {
            hops.push(hop(*role, self.address(name)?));
        }
        hops.push(hop("server", lab.echo));
        Some(Route::through(hops))
    }

    fn instances(&self, mode: &str) -> Vec<Instance> {
        on_path(mode)
            .iter()
            .filter_map(|(role, name)| {
                let (child, ..) = self
                    .running
                    .iter()
                    .find(|(child, ..)| child.name() == *name)?;
                Some(Instance {
                    name: (*name).to_owned(),
                    role,
                    pids: child.group_pids(),
                })
            })
            .collect()
    }

    fn requests(&self) -> Result<Option<BTreeMap<&'static str, u64>>, String> {
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
