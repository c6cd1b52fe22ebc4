//! Envoy as two sidecars, from the committed templates in `benchmarks/peers/envoy/`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use voile_host::child::Supervised;
use voile_host::netns::rules::{MARK_INWARD, MARK_OUTWARD};
use voile_host::ports::free_port;
use voile_host::ready::{Probe, http_get};

use super::listeners::fill;
use super::pair::{BASE_ID, Peer, Side, Values, write};
use crate::find;
use crate::network::{INBOUND, OUTBOUND};
use crate::target::Lab;

const CLIENT_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/envoy/client.yaml");
const SERVER_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/envoy/server.yaml");

/// Envoy as it was found.
pub(super) struct Envoy(pub(super) find::Peer);

/// Where its admin page is in a network of its own; the redirection leaves it alone.
const ADMIN: u16 = 15090;

/// The same listeners behind one that takes what the kernel redirects and hands it to the one for the port that was
/// called; what it sends itself is marked, and not redirected.
fn captured(template: &str, side: Side) -> String {
    let (port, mark) = match side {
        Side::Client => (OUTBOUND, MARK_OUTWARD),
        Side::Server => (INBOUND, MARK_INWARD),
    };
    let address = format!("${{{}}}", side.address());
    let listener = format!("    address: {{socket_address: {{address: {address}, port_value: ");
    let mut text = String::new();
    for line in template.lines() {
        match line.strip_prefix(&listener) {
            Some(rest) => {
                text += &format!(
                    "    address: {{socket_address: {{address: 0.0.0.0, port_value: {rest}\n    bind_to_port: false\n"
                );
            }
            None => text += &format!("{line}\n"),
        }
        if line == "  listeners:" {
            text += &format!(
                "  - name: captured\n    address: {{socket_address: {{address: 0.0.0.0, port_value: {port}}}}}\n    \
                 use_original_dst: true\n    filter_chains:\n    - filters:\n      \
                 - name: envoy.filters.network.tcp_proxy\n        typed_config:\n          \
                 \"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy\n          \
                 stat_prefix: nowhere\n          cluster: nowhere\n"
            );
        }
        if line == "  clusters:" {
            text += "  - name: nowhere\n    type: STATIC\n    connect_timeout: 1s\n";
        }
    }
    let admin = "admin:\n  address: {socket_address: {address: 127.0.0.1,";
    let text = text.replace(
        admin,
        &format!("admin:\n  address: {{socket_address: {{address: {address},"),
    );
    // SOL_SOCKET, SO_MARK, before the socket is bound.
    text + &format!(
        "cluster_manager:\n  upstream_bind_config:\n    socket_options:\n    \
         - {{level: 1, name: 36, int_value: {mark}, state: STATE_PREBIND}}\n"
    )
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

impl Peer for Envoy {
    const NAME: &'static str = "envoy";
    const NET: u8 = 11;
    const CAPTURES: bool = true;
    const UPGRADES: bool = true;
    /// Its admin page.
    type Page = SocketAddr;

    fn launch(
        &self,
        lab: &Lab<'_>,
        folder: &Path,
        side: Side,
        values: &Values,
        epoch: u32,
    ) -> Result<(Supervised, SocketAddr), String> {
        let template = match side {
            Side::Client => CLIENT_TEMPLATE,
            Side::Server => SERVER_TEMPLATE,
        };
        let mut values = values.clone();
        let (template, admin) = if lab.network.is_some() {
            let address = values.iter().find(|(name, _)| *name == side.address());
            let address = address.and_then(|(_, address)| address.parse::<IpAddr>().ok());
            let address = address.ok_or("Envoy's sidecar has no address")?;
            (captured(template, side), SocketAddr::new(address, ADMIN))
        } else {
            let admin = free_port(IpAddr::V4(Ipv4Addr::LOCALHOST));
            let admin = admin.map_err(|e| format!("a port for Envoy: {e}"))?;
            (template.to_owned(), admin)
        };
        values.push(("ADMIN_PORT".to_owned(), admin.port().to_string()));
        let name = format!("envoy-{}", side.word());
        let path = write(folder, &format!("{name}.yaml"), &fill(&template, &values)?)?;
        let spec = lab
            .process(side.role(), &name, &self.0.path)?
            .arg("-c")
            .arg(&path)
            .args(["--concurrency", &lab.workers.to_string()])
            .args(["--log-level", "warning"]);
        let base = values.iter().find(|(name, _)| name == BASE_ID);
        let spec = match base.filter(|_| lab.upgradable) {
            Some((_, base)) => spec
                .args(["--base-id", base, "--restart-epoch", &epoch.to_string()])
                .args(["--drain-time-s", "1", "--parent-shutdown-time-s", "2"]),
            None => spec.arg("--disable-hot-restart"),
        };
        Ok((spec.start().map_err(|e| e.to_string())?, admin))
    }

    fn probe(admin: &SocketAddr, _listener: SocketAddr) -> Probe {
        Probe::Http(*admin, "/ready".to_owned())
    }

    fn carries(&self, _protocol: &str) -> bool {
        true
    }

    fn count(admin: &SocketAddr, protocol: &str) -> Result<u64, String> {
        // The admin page is an HTTP connection manager too, so only our listeners are counted.
        let (ours, ends): (fn(&str) -> bool, &str) = match protocol {
            "tcp" => (|name| name.starts_with("tcp."), ".downstream_cx_total"),
            _ => (
                |name| name.starts_with("http.outbound_") || name.starts_with("http.inbound_"),
                ".downstream_rq_2xx",
            ),
        };
        let statistics = statistics(*admin)?;
        let counted = statistics
            .iter()
            .filter(|(name, _)| ours(name) && name.ends_with(ends));
        Ok(counted.map(|(_, count)| count).sum())
    }

    fn version(&self) -> String {
        self.0.version.clone()
    }

    fn terms(&self) -> Vec<String> {
        vec![
            "static configuration: no control plane, no on-demand discovery, certificates from files".to_owned(),
            "tuned: keep-alive upstream, access log off, request ids off, no Istio filters (no Istio metrics)".to_owned(),
        ]
    }

    fn tidy(values: &Values) {
        let base = values.iter().find(|(name, _)| name == BASE_ID);
        if let Some(base) = base.and_then(|(_, base)| base.parse::<u64>().ok()) {
            // Envoy names it by ten times the number, and removes it only when a first process finds it.
            let _ = std::fs::remove_file(format!("/dev/shm/envoy_shared_memory_{}", base * 10));
        }
    }

    fn tls(admin: &SocketAddr) -> Option<String> {
        let statistics = statistics(*admin).ok()?;
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
}
