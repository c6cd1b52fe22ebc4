//! Envoy as two sidecars, from the committed templates in `benchmarks/peers/envoy/`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use voile_host::child::Supervised;
use voile_host::ports::free_port;
use voile_host::ready::{Probe, http_get};

use super::listeners::{Listeners, fill};
use super::pair::Pair;
use super::{CLIENT, Contestant, Counts, Instance, Route, SERVER, Stage, peers_folder};
use crate::find::Peer;
use crate::plan::Way;
use crate::target::Lab;

const CLIENT_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/envoy/client.yaml");
const SERVER_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/envoy/server.yaml");
/// Its sidecars live on 127.11.0.1 and 127.11.0.2.
const NET: u8 = 11;

/// Two Envoys.
pub(super) struct Envoy {
    peer: Peer,
    running: Option<Running>,
}

struct Running {
    pair: Pair,
    client_admin: SocketAddr,
    server_admin: SocketAddr,
}

impl Envoy {
    pub(super) fn new(peer: Peer) -> Self {
        Self {
            peer,
            running: None,
        }
    }

    /// Starts one, and says where its statistics are.
    fn launch(
        &self,
        lab: &Lab<'_>,
        name: &str,
        template: &str,
        values: &[(String, String)],
    ) -> Result<(Supervised, SocketAddr), String> {
        let admin = free_port(IpAddr::V4(Ipv4Addr::LOCALHOST))
            .map_err(|e| format!("a port for Envoy: {e}"))?;
        let mut values = values.to_vec();
        values.push(("ADMIN_PORT".to_owned(), admin.port().to_string()));
        let path = lab.folder.join("envoy").join(format!("{name}.yaml"));
        std::fs::write(&path, fill(template, &values)?)
            .map_err(|e| format!("writing {}: {e}", path.display()))?;
        let spec = lab
            .process(name, &self.peer.path)
            .arg("-c")
            .arg(&path)
            .args([
                "--concurrency",
                &lab.workers.to_string(),
                "--disable-hot-restart",
                "--log-level",
                "warning",
            ]);
        Ok((spec.start().map_err(|e| e.to_string())?, admin))
    }

    fn statistics(admin: SocketAddr) -> Result<BTreeMap<String, u64>, String> {
        let (status, body) =
            http_get(admin, "/stats?usedonly").map_err(|e| format!("Envoy's statistics: {e}"))?;
        if status != 200 {
            return Err(format!(
                "Envoy's statistics: http://{admin}/stats answers {status}"
            ));
        }
        Ok(String::from_utf8_lossy(&body)
            .lines()
            .filter_map(|line| line.split_once(": "))
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .collect())
    }

    fn running(&self) -> Result<&Running, String> {
        self.running
            .as_ref()
            .ok_or_else(|| "Envoy does not run".to_owned())
    }
}

impl Contestant for Envoy {
    fn name(&self) -> &str {
        "envoy"
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let folder = peers_folder(lab, "envoy")?;
        let mut listeners = Listeners::choose(NET)?;
        let values = listeners.values(lab, &folder)?;
        let (client, client_admin) = self.launch(lab, "envoy-client", CLIENT_TEMPLATE, &values)?;
        let (server, server_admin) = self.launch(lab, "envoy-server", SERVER_TEMPLATE, &values)?;
        self.running = Some(Running {
            pair: Pair {
                client,
                server,
                listeners,
            },
            client_admin,
            server_admin,
        });
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(running) = &mut self.running else {
            return Err("Envoy was not started".to_owned());
        };
        for (child, admin) in [
            (&mut running.pair.client, running.client_admin),
            (&mut running.pair.server, running.server_admin),
        ] {
            lab.wait_ready(child, &Probe::Http(admin, "/ready".to_owned()))?;
        }
        Ok(())
    }

    fn route(&self, lab: &Lab<'_>, way: &Way) -> Option<Route> {
        self.running.as_ref()?.pair.listeners.route(lab, way)
    }

    fn instances(&self, way: &Way) -> Vec<Instance> {
        self.running
            .as_ref()
            .map(|running| running.pair.instances(&way.mode))
            .unwrap_or_default()
    }

    fn counts(&self, protocol: &str) -> Counts {
        let running = self.running()?;
        let mut counts = BTreeMap::new();
        // The admin page is an HTTP connection manager too, so only our listeners are counted.
        let (ours, ends): (fn(&str) -> bool, &str) = match protocol {
            "tcp" => (|name| name.starts_with("tcp."), ".downstream_cx_total"),
            _ => (
                |name| name.starts_with("http.outbound_") || name.starts_with("http.inbound_"),
                ".downstream_rq_completed",
            ),
        };
        for (role, admin) in [
            (CLIENT, running.client_admin),
            (SERVER, running.server_admin),
        ] {
            let count = Self::statistics(admin)?
                .iter()
                .filter(|(name, _)| ours(name) && name.ends_with(ends))
                .map(|(_, count)| count)
                .sum();
            counts.insert(role, count);
        }
        Ok(Some(counts))
    }

    fn stage(&self, _lab: &Lab<'_>, protocol: &str) -> Result<Option<Stage>, String> {
        let running = self.running.as_ref();
        Ok(running.and_then(|running| running.pair.listeners.stage(protocol)))
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        match &mut self.running {
            Some(running) => running.pair.alive(lab),
            None => Err("Envoy does not run".to_owned()),
        }
    }

    fn version(&self) -> String {
        self.peer.version.clone()
    }

    fn commands(&self) -> Vec<String> {
        self.running
            .iter()
            .flat_map(|running| running.pair.commands())
            .collect()
    }

    fn terms(&self) -> Vec<String> {
        vec![
            "static configuration: no control plane, no on-demand discovery, certificates from files".to_owned(),
            "tuned: keep-alive upstream, access log off, request ids off, no Istio filters (no Istio metrics)".to_owned(),
        ]
    }

    fn tls_by_its_own_word(&self) -> Option<String> {
        let statistics = Self::statistics(self.running.as_ref()?.server_admin).ok()?;
        let named = |kind: &str| {
            let found = statistics
                .keys()
                .find_map(|name| Some(name.split_once(kind)?.1.to_owned()));
            found.unwrap_or_else(|| "?".to_owned())
        };
        Some(format!(
            "{} {} {}",
            named(".ssl.versions."),
            named(".ssl.ciphers."),
            named(".ssl.curves.")
        ))
    }

    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.pair.stop();
        }
    }
}
