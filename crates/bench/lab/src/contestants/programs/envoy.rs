//! Envoy as two sidecars, from the committed templates in `benchmarks/peers/envoy/`.

mod endpoints;
mod features;
mod policies;
mod routes;

pub(crate) use policies::judged;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use voile_host::child::{Spec, SupervisedChild};
use voile_host::netns::rules::{MARK_INWARD, MARK_OUTWARD};
use voile_host::ready::{Probe, http_get};

use crate::contestants::contestant::RecordedOutput;
use crate::contestants::listeners::{CaptureMethod, fill};
use crate::contestants::pair::{BASE_ID, PairSide, SidecarProgram, Values, status_address, write};
use crate::definition::PeerFeatures;
use crate::find;
use crate::network::{INBOUND, OUTBOUND};
use crate::plan::ContestantSetup;
use crate::shared_processes::Lab;

const CLIENT_TEMPLATE: &str = include_str!("../../../../../../benchmarks/peers/envoy/client.yaml");
const SERVER_TEMPLATE: &str = include_str!("../../../../../../benchmarks/peers/envoy/server.yaml");

/// Envoy's program and its features.
pub(crate) struct Envoy {
    found: find::PeerProgram,
    features: PeerFeatures,
    /// Outfit that Envoy is started with.
    outfit: ContestantSetup,
}

impl Envoy {
    pub(crate) fn new(found: find::PeerProgram, features: PeerFeatures) -> Self {
        Self {
            found,
            features,
            outfit: ContestantSetup::default(),
        }
    }

    /// The same, with policies that do this to requests.
    pub(crate) fn fitted(self, outfit: &ContestantSetup) -> Self {
        Self {
            outfit: outfit.clone(),
            ..self
        }
    }
}

impl Envoy {
    /// Returns true if the mesh's resources add filters to Envoy.
    fn has_filters(&self) -> bool {
        self.outfit.has_policies() || self.outfit.believes()
    }
}

/// Its admin page is an HTTP connection manager, too, and is not counted.
const OWN_PAGES: &str = "http.admin.";
/// Flush interval of access logs, the value with which Istio starts Envoy. Envoy's own default is ten seconds.
const LOG_FLUSH_MS: u32 = 1000;

/// Adds a listener that takes redirected connections and hands each to the listener for the called port. Envoy's own packets are
/// marked, and not redirected.
fn captured(template: &str, side: PairSide) -> String {
    let (port, mark) = match side {
        PairSide::Client => (OUTBOUND, MARK_OUTWARD),
        PairSide::Server => (INBOUND, MARK_INWARD),
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
    text + &format!(
        "cluster_manager:\n  upstream_bind_config:\n    socket_options:\n    - {}\n",
        marking(mark)
    )
}

pub(crate) fn statistics(admin: SocketAddr) -> Result<BTreeMap<String, u64>, String> {
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

/// Requests that Envoy's listeners have carried by its own statistics: answered well, or refused if `refused` is set. Counts
/// connections over TCP.
pub(crate) fn carried(admin: SocketAddr, protocol: &str, refused: bool) -> Result<u64, String> {
    let (kind, ends) = match protocol {
        "tcp" => ("tcp.", ".downstream_cx_total"),
        // A refusal over gRPC is a status of gRPC's in an answer that is HTTP's 200.
        _ if refused && protocol != "grpc" => ("http.", ".downstream_rq_4xx"),
        _ => ("http.", ".downstream_rq_2xx"),
    };
    let all = statistics(admin)?;
    let counted = all.iter().filter(|(name, _)| {
        name.starts_with(kind) && !name.starts_with(OWN_PAGES) && name.ends_with(ends)
    });
    Ok(counted.map(|(_, count)| count).sum())
}

/// TLS parameters that the server's side negotiated, by Envoy's statistics.
pub(crate) fn negotiated(admin: SocketAddr) -> Option<String> {
    let statistics = statistics(admin).ok()?;
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

/// Command line of an Envoy of the lab with its configuration file.
pub(crate) fn with_file(spec: Spec, file: &Path, workers: u32) -> Spec {
    spec.arg("-c")
        .arg(file)
        .args(["--concurrency", &workers.to_string()])
        .args(["--file-flush-interval-msec", &LOG_FLUSH_MS.to_string()])
        .args(["--log-level", "warning"])
}

/// The option of its sockets by which what it sends is not redirected to it again (SOL_SOCKET, SO_MARK, before they are bound).
pub(crate) fn marking(mark: u32) -> Value {
    json!({ "level": 1, "name": 36, "int_value": mark, "state": "STATE_PREBIND" })
}

impl SidecarProgram for Envoy {
    const NET: u8 = 11;
    const TAKES: CaptureMethod = CaptureMethod::Original;
    const UPGRADES: bool = true;
    /// Its admin page.
    type Page = SocketAddr;

    fn name(&self) -> &str {
        &self.features.contestant
    }

    fn launch(
        &self,
        lab: &Lab<'_>,
        folder: &Path,
        side: PairSide,
        values: &Values,
        epoch: u32,
    ) -> Result<(SupervisedChild, SocketAddr), String> {
        let template = match side {
            PairSide::Client => CLIENT_TEMPLATE,
            PairSide::Server => SERVER_TEMPLATE,
        };
        let name = format!("{}-{}", self.name(), side.word());
        let template = if side == PairSide::Server && self.has_filters() {
            policies::with(template, &self.features, lab, folder)?
        } else {
            template.to_owned()
        };
        let template = match self.outfit.routes().filter(|_| side == PairSide::Client) {
            Some(by_number) => routes::with(&template, by_number, &self.features, &lab.ways)?,
            None => template,
        };
        let template = match side {
            PairSide::Client => endpoints::with(&template, self.features.balancer, &lab.endpoints)?,
            PairSide::Server => template,
        };
        let template = features::with(&template, &self.features, &name)?;
        let mut values = values.clone();
        let admin = status_address(lab, &values)?;
        let template = if lab.network.is_some() {
            captured(&template, side)
        } else {
            template
        };
        values.push(("ADMIN_PORT".to_owned(), admin.port().to_string()));
        let path = write(folder, &format!("{name}.yaml"), &fill(&template, &values)?)?;
        let spec = lab.process(side.role(), &name, &self.found.path)?;
        let spec = with_file(spec, &path, lab.workers);
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

    fn count(&self, admin: &SocketAddr, protocol: &str) -> Result<Option<u64>, String> {
        match self.features.quiet {
            true => Ok(None),
            false => carried(*admin, protocol, self.outfit.refusal().is_some()).map(Some),
        }
    }

    fn collects_there(&self) -> bool {
        self.features.collects()
    }

    fn recorded(
        &self,
        folder: &Path,
        side: PairSide,
        admin: &SocketAddr,
        protocol: &str,
    ) -> Vec<RecordedOutput> {
        let name = format!("{}-{}", self.name(), side.word());
        let who = (side.role(), name.as_str());
        let mut all = features::recorded(&self.features, folder, who, protocol, &|| {
            statistics(*admin).unwrap_or_default()
        });
        if side == PairSide::Server && self.has_filters() && !self.features.quiet {
            let statistics = statistics(*admin).unwrap_or_default();
            all.extend(judged(&self.outfit, &statistics));
        }
        all
    }

    fn version(&self) -> String {
        self.found.version.clone()
    }

    fn terms(&self) -> Vec<String> {
        let mut terms = vec![
            "static configuration: no control plane, no on-demand discovery, certificates from files".to_owned(),
            "tuned: keep-alive upstream, access log off, request ids off, no Istio filters (no Istio metrics)".to_owned(),
        ];
        terms.extend(self.features.title());
        if self.has_filters() {
            terms.push(policies::TERMS.to_owned());
        }
        if self.outfit.routes().is_some() {
            terms.push(routes::TERMS.to_owned());
        }
        terms
    }

    fn tidy(values: &Values) {
        let base = values.iter().find(|(name, _)| name == BASE_ID);
        if let Some(base) = base.and_then(|(_, base)| base.parse::<u64>().ok()) {
            // Envoy names it by ten times the number, and removes it only when a first process finds it.
            let _ = std::fs::remove_file(format!("/dev/shm/envoy_shared_memory_{}", base * 10));
        }
    }

    fn tls(admin: &SocketAddr) -> Option<String> {
        negotiated(*admin)
    }
}
