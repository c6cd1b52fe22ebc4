//! Envoy as two sidecars, from the committed templates in `benchmarks/peers/envoy/`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use voile_host::child::Supervised;
use voile_host::ports::free_port;
use voile_host::ready::{Probe, http_get};

use super::listeners::fill;
use super::pair::{Peer, Side, Values, write};
use crate::find;
use crate::target::Lab;

const CLIENT_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/envoy/client.yaml");
const SERVER_TEMPLATE: &str = include_str!("../../../../benchmarks/peers/envoy/server.yaml");

/// Envoy as it was found.
pub(super) struct Envoy(pub(super) find::Peer);

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
    /// Its admin page.
    type Page = SocketAddr;

    fn launch(
        &self,
        lab: &Lab<'_>,
        folder: &Path,
        side: Side,
        values: &Values,
    ) -> Result<(Supervised, SocketAddr), String> {
        let template = match side {
            Side::Client => CLIENT_TEMPLATE,
            Side::Server => SERVER_TEMPLATE,
        };
        let admin = free_port(IpAddr::V4(Ipv4Addr::LOCALHOST))
            .map_err(|e| format!("a port for Envoy: {e}"))?;
        let mut values = values.clone();
        values.push(("ADMIN_PORT".to_owned(), admin.port().to_string()));
        let name = format!("envoy-{}", side.word());
        let path = write(folder, &format!("{name}.yaml"), &fill(template, &values)?)?;
        let spec = lab
            .process(side.role(), &name, &self.0.path)?
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
                ".downstream_rq_completed",
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
