//! Envoy as two sidecars, from the committed templates in `benchmarks/peers/envoy/`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use voile_host::child::{Supervised, stop_all};
use voile_host::ports::free_port;
use voile_host::ready::{Probe, http_get};

use super::certificates;
use super::{CLIENT, Contestant, Hop, Instance, Route, SERVER};
use crate::find::Peer;
use crate::target::{Lab, STOP_GRACE};

const CLIENT_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/envoy/client.yaml");
const SERVER_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/envoy/server.yaml");
const CLIENT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 11, 0, 1));
const SERVER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 11, 0, 2));
const CLIENT_ID: &str = "spiffe://cluster.local/ns/lab/sa/client";
const SERVER_ID: &str = "spiffe://cluster.local/ns/lab/sa/server";

/// Two Envoys.
pub(super) struct Envoy {
    peer: Peer,
    running: Option<Running>,
}

struct Running {
    client: Supervised,
    server: Supervised,
    ports: Ports,
}

#[derive(Clone, Copy)]
struct Ports {
    client_admin: SocketAddr,
    server_admin: SocketAddr,
    outbound_plain: SocketAddr,
    outbound_tls: SocketAddr,
    outbound_direct: SocketAddr,
    inbound_plain: SocketAddr,
    inbound_tls: SocketAddr,
}

impl Ports {
    fn choose() -> Result<Self, String> {
        let port = |on: IpAddr| free_port(on).map_err(|e| format!("a port for Envoy: {e}"));
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Ok(Self {
            client_admin: port(local)?,
            server_admin: port(local)?,
            outbound_plain: port(CLIENT_ADDRESS)?,
            outbound_tls: port(CLIENT_ADDRESS)?,
            outbound_direct: port(CLIENT_ADDRESS)?,
            inbound_plain: port(SERVER_ADDRESS)?,
            inbound_tls: port(SERVER_ADDRESS)?,
        })
    }
}

impl Envoy {
    pub(super) fn new(peer: Peer) -> Self {
        Self {
            peer,
            running: None,
        }
    }

    fn launch(
        &self,
        lab: &Lab<'_>,
        name: &str,
        template: &str,
        values: &[(&str, String)],
    ) -> Result<Supervised, String> {
        let path = lab.folder.join(format!("{name}.yaml"));
        std::fs::write(&path, fill(template, values)?)
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
        spec.start().map_err(|e| e.to_string())
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

/// Puts values in place of `${NAME}`. A name without a value is an error, so that no template runs half filled.
fn fill(template: &str, values: &[(&str, String)]) -> Result<String, String> {
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
            "Envoy's template has no value for {}",
            text[at..].split('}').next().unwrap_or_default()
        )),
        None => Ok(text),
    }
}

impl Contestant for Envoy {
    fn name(&self) -> &'static str {
        "envoy"
    }

    fn start(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let folder = lab.folder.join("envoy");
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let (root, leaves) =
            certificates::write(&folder, &[("client", CLIENT_ID), ("server", SERVER_ID)])?;
        let ports = Ports::choose()?;
        let path = |path: &std::path::Path| path.display().to_string();
        let mut values = vec![
            ("CLIENT_ADDRESS", CLIENT_ADDRESS.to_string()),
            ("SERVER_ADDRESS", SERVER_ADDRESS.to_string()),
            ("ECHO_ADDRESS", lab.echo.ip().to_string()),
            ("ECHO_PORT", lab.echo.port().to_string()),
            ("PLAIN_PORT", ports.outbound_plain.port().to_string()),
            ("TLS_PORT", ports.outbound_tls.port().to_string()),
            ("DIRECT_PORT", ports.outbound_direct.port().to_string()),
            ("SERVER_PLAIN_PORT", ports.inbound_plain.port().to_string()),
            ("SERVER_TLS_PORT", ports.inbound_tls.port().to_string()),
            ("CLIENT_CERTIFICATE", path(&leaves[0].certificate)),
            ("CLIENT_KEY", path(&leaves[0].key)),
            ("SERVER_CERTIFICATE", path(&leaves[1].certificate)),
            ("SERVER_KEY", path(&leaves[1].key)),
            ("ROOT", path(&root)),
            ("CLIENT_ID", CLIENT_ID.to_owned()),
            ("SERVER_ID", SERVER_ID.to_owned()),
            ("ADMIN_PORT", ports.client_admin.port().to_string()),
        ];
        let client = self.launch(lab, "envoy-client", CLIENT_TEMPLATE, &values)?;
        values.pop();
        values.push(("ADMIN_PORT", ports.server_admin.port().to_string()));
        let server = self.launch(lab, "envoy-server", SERVER_TEMPLATE, &values)?;
        self.running = Some(Running {
            client,
            server,
            ports,
        });
        Ok(())
    }

    fn ready(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(running) = &mut self.running else {
            return Err("Envoy was not started".to_owned());
        };
        let ports = running.ports;
        for (child, admin) in [
            (&mut running.client, ports.client_admin),
            (&mut running.server, ports.server_admin),
        ] {
            lab.wait_ready(child, &Probe::Http(admin, "/ready".to_owned()))?;
        }
        Ok(())
    }

    fn route(&self, lab: &Lab<'_>, mode: &str, tls: bool) -> Option<Route> {
        let ports = self.running.as_ref()?.ports;
        let hop = |to, address, tls| Hop { to, address, tls };
        let echo = hop("server", lab.echo, false);
        let hops = match (mode, tls) {
            ("clientonly", false) => vec![hop(CLIENT, ports.outbound_direct, false), echo],
            ("serveronly", false) => vec![hop(SERVER, ports.inbound_plain, false), echo],
            ("both", false) => {
                vec![
                    hop(CLIENT, ports.outbound_plain, false),
                    hop(SERVER, ports.inbound_plain, false),
                    echo,
                ]
            }
            ("both", true) => vec![
                hop(CLIENT, ports.outbound_tls, false),
                hop(SERVER, ports.inbound_tls, true),
                echo,
            ],
            _ => return None,
        };
        Some(Route::through(hops))
    }

    fn instances(&self, mode: &str) -> Vec<Instance> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let client = Instance {
            name: "envoy-client".to_owned(),
            role: CLIENT,
            pids: running.client.group_pids(),
        };
        let server = Instance {
            name: "envoy-server".to_owned(),
            role: SERVER,
            pids: running.server.group_pids(),
        };
        match mode {
            "clientonly" => vec![client],
            "serveronly" => vec![server],
            _ => vec![client, server],
        }
    }

    fn requests(&self) -> Result<Option<BTreeMap<&'static str, u64>>, String> {
        let ports = self.running()?.ports;
        let mut counts = BTreeMap::new();
        for (role, admin) in [(CLIENT, ports.client_admin), (SERVER, ports.server_admin)] {
            // The admin page is an HTTP connection manager too, so only our listeners are counted.
            let ours = |name: &str| {
                (name.starts_with("http.outbound_") || name.starts_with("http.inbound_"))
                    && name.ends_with(".downstream_rq_completed")
            };
            let count = Self::statistics(admin)?
                .iter()
                .filter(|(name, _)| ours(name))
                .map(|(_, count)| count)
                .sum();
            counts.insert(role, count);
        }
        Ok(Some(counts))
    }

    fn alive(&mut self, lab: &Lab<'_>) -> Result<(), String> {
        let Some(running) = &mut self.running else {
            return Err("Envoy does not run".to_owned());
        };
        for child in [&mut running.client, &mut running.server] {
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
        self.peer.version.clone()
    }

    fn commands(&self) -> Vec<String> {
        self.running
            .iter()
            .flat_map(|r| [&r.client, &r.server])
            .map(|c| c.command_line().to_owned())
            .collect()
    }

    fn terms(&self) -> Vec<String> {
        vec![
            "static configuration: no control plane, no on-demand discovery, certificates from files".to_owned(),
            "tuned: keep-alive upstream, access log off, request ids off, no Istio filters (no Istio metrics)".to_owned(),
        ]
    }

    fn tls_by_its_own_word(&self) -> Option<String> {
        let statistics = Self::statistics(self.running.as_ref()?.ports.server_admin).ok()?;
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
            stop_all([&mut running.client, &mut running.server], STOP_GRACE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_with_an_unknown_name_is_refused() {
        assert_eq!(
            fill("# note\na: ${A}\n", &[("A", "1".to_owned())]),
            Ok("a: 1\n".to_owned())
        );
        assert!(
            fill("a: ${B}\n", &[("A", "1".to_owned())])
                .expect_err("no value")
                .contains("${B")
        );
    }
}
