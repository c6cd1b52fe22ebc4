//! Proxy before the service in mode `node+waypoint`: Voile's waypoint, or Envoy configured by hand as Istio configures its own
//! waypoint. Both take HBONE from the proxy of the client's node, read the requests in it, and open HBONE to the proxy of the
//! server's node.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use voile_host::child::SupervisedChild;
use voile_host::ready::Probe;

use super::{ADMIN, METRICS, READINESS};
use crate::contestants::certificates;
use crate::contestants::contestant::SERVER_ID;
use crate::contestants::effect_evidence::READY_PATH;
use crate::contestants::listeners::fill;
use crate::contestants::pair::{STATUS_PORT, write};
use crate::contestants::programs::envoy::statistics;
use crate::contestants::programs::voile::{self, metric, tell};
use crate::definition::Variant;
use crate::find;
use crate::machine::instance::{HBONE, Hop, Instance, WAYPOINT, WatchPoint};
use crate::network::{HTTP_PORT, Pod, TCP_PORT};
use crate::shared_processes::Lab;

const MESH: &str = include_str!("../../../../../../../benchmarks/voile/mesh-waypoint.yaml");
const ENVOY: &str = include_str!("../../../../../../../benchmarks/peers/envoy/waypoint.yaml");
/// Namespace label for its pods. In the template, the label of the waypoint stands below it.
const AMBIENT: &str = "    istio.io/dataplane-mode: ambient\n";
/// The Gateway, its pod and its account.
pub(super) const NAME: &str = "gate";
pub(super) const ACCOUNT: &str = "lab/gate";
const ID: &str = "spiffe://cluster.local/ns/lab/sa/gate";
/// The service's port for HTTP/2, which leads to the same port of the server as that for HTTP/1.1.
pub(super) const GRPC_PORT: u16 = 8082;

/// The mesh of two nodes, with a waypoint before its services.
pub(super) fn mesh(nodes: &str) -> String {
    let named = format!("{AMBIENT}    istio.io/use-waypoint: {NAME}\n");
    format!("{}\n{MESH}", nodes.replacen(AMBIENT, &named, 1).trim_end())
}

/// Program of the waypoint.
#[derive(Clone)]
pub(crate) enum WaypointProgram {
    Voile(Variant),
    Envoy(find::PeerProgram),
}

/// Input for the start of a waypoint.
pub(super) struct WaypointSettings<'a> {
    pub(super) pod: &'a Pod,
    pub(super) control: SocketAddr,
    /// State folder of the control plane: its root and the root's key.
    pub(super) state: &'a Path,
    pub(super) folder: &'a Path,
    /// The server's pod, and where servers of the lab are put in its place; and how each is called.
    pub(super) servers: [IpAddr; 2],
    pub(super) services: [IpAddr; 2],
}

/// A started waypoint.
pub(super) struct Waypoint {
    pub(super) process: SupervisedChild,
    pub(super) ready: Probe,
    pub(super) pod: Pod,
    /// Admin address of Voile's waypoint; Envoy takes no orders.
    pub(super) admin: SocketAddr,
    /// Address of the page with its counts.
    page: SocketAddr,
    counts: fn(&str, SocketAddr, &str) -> Result<u64, String>,
}

impl WaypointProgram {
    /// Starts it in its pod.
    pub(super) fn start(
        &self,
        lab: &Lab<'_>,
        name: &str,
        told: &WaypointSettings<'_>,
        token: Option<&Path>,
    ) -> Result<Waypoint, String> {
        match self {
            Self::Voile(variant) => {
                let token = token.ok_or("a waypoint of Voile's has no token")?;
                let program = variant.program.as_deref().unwrap_or(&lab.voile);
                own(lab, (name, program), told, token)
            }
            Self::Envoy(found) => stranger(lab, (name, &found.path), told),
        }
    }

    /// Differences of its work from the others.
    pub(super) fn terms(&self) -> &'static str {
        match self {
            Self::Voile(_) => {
                "a waypoint with its defaults: routes, policies by the caller's identity, load balancing per request, Istio's metrics"
            }
            Self::Envoy(_) => {
                "a waypoint built like Istio's: one listener terminates HBONE, a second reads requests, a third sends them, all within the process. It does less: static configuration, a certificate from a file, no Istio filters (no metrics by workload, no policies), nothing about the caller passed on. The node proxies beside it are Voile's"
            }
        }
    }
}

fn own(
    lab: &Lab<'_>,
    (name, program): (&str, &Path),
    told: &WaypointSettings<'_>,
    token: &Path,
) -> Result<Waypoint, String> {
    let pages = [ADMIN, METRICS, READINESS].map(|port| SocketAddr::new(told.pod.address, port));
    let spec = tell(
        lab.process(WAYPOINT, name, program)?,
        &voile::SidecarSettings {
            account: ACCOUNT,
            control: told.control,
            root: &told.state.join("root-cert.pem"),
            token,
            pages,
            workers: lab.workers,
        },
    );
    let spec = spec.args(["--role", "waypoint"]);
    let spec = match lab.upgradable {
        true => spec
            .arg("--handover")
            .arg(told.folder.join("waypoint.handover")),
        false => spec,
    };
    let process = spec.start();
    let [admin, page, readiness] = pages;
    Ok(Waypoint {
        process: process.map_err(|e| e.to_string())?,
        ready: Probe::Http(readiness, READY_PATH.to_owned()),
        pod: told.pod.clone(),
        admin,
        page,
        counts: |name, page, protocol| metric(name, page, protocol, None),
    })
}

fn stranger(
    lab: &Lab<'_>,
    (name, program): (&str, &Path),
    told: &WaypointSettings<'_>,
) -> Result<Waypoint, String> {
    let root = told.state.join("root-cert.pem");
    let key = told.state.join("root-key.pem");
    let leaves = certificates::below(&root, &key, told.folder, &[(NAME, ID)])?;
    let [leaf] = leaves.as_slice() else {
        return Err("a waypoint has one certificate".to_owned());
    };
    let page = SocketAddr::new(told.pod.address, STATUS_PORT);
    let [server, stage] = told.servers;
    let [server_virtual, stage_virtual] = told.services;
    let values = [
        ("WAYPOINT_ADDRESS", told.pod.address.to_string()),
        ("ADMIN_PORT", page.port().to_string()),
        ("HBONE_PORT", HBONE.to_string()),
        ("SERVER_ADDRESS", server.to_string()),
        ("SERVER_VIRTUAL", server_virtual.to_string()),
        ("STAGE_ADDRESS", stage.to_string()),
        ("STAGE_VIRTUAL", stage_virtual.to_string()),
        ("HTTP_PORT", HTTP_PORT.to_string()),
        ("GRPC_PORT", GRPC_PORT.to_string()),
        ("TCP_PORT", TCP_PORT.to_string()),
        ("SERVER_ID", SERVER_ID.to_owned()),
        ("ROOT", root.display().to_string()),
        ("CERTIFICATE", leaf.certificate.display().to_string()),
        ("KEY", leaf.key.display().to_string()),
    ];
    let values = values.map(|(name, value)| (name.to_owned(), value));
    let path = write(told.folder, "waypoint.yaml", &fill(ENVOY, &values)?)?;
    let spec = lab
        .process(WAYPOINT, name, program)?
        .arg("-c")
        .arg(&path)
        .args(["--concurrency", &lab.workers.to_string()])
        .args(["--log-level", "warning", "--disable-hot-restart"]);
    Ok(Waypoint {
        process: spec.start().map_err(|e| e.to_string())?,
        ready: Probe::Http(page, "/ready".to_owned()),
        pod: told.pod.clone(),
        admin: page,
        page,
        counts: counted_by_envoy,
    })
}

/// Counts only the listeners that read requests: the others carry the same requests once more.
fn counted_by_envoy(_name: &str, page: SocketAddr, protocol: &str) -> Result<u64, String> {
    let (begins, ends) = match protocol {
        "tcp" => ("tcp.inside_", ".downstream_cx_total"),
        _ => ("http.inside_", ".downstream_rq_2xx"),
    };
    let all = statistics(page)?;
    let ours = all
        .iter()
        .filter(|(name, _)| name.starts_with(begins) && name.ends_with(ends));
    Ok(ours.map(|(_, count)| count).sum())
}

impl Waypoint {
    /// The hop from the proxy of the client's node to the waypoint.
    pub(super) fn hop(&self) -> Hop {
        Hop {
            to: WAYPOINT,
            address: SocketAddr::new(self.pod.address, HBONE),
            tls: true,
            spot: Some(WatchPoint {
                namespace: self.pod.namespace.clone(),
                device: WatchPoint::ETHERNET,
                listener: Some(HBONE),
            }),
        }
    }

    /// Requests that the waypoint reports to have carried.
    pub(super) fn count(&self, protocol: &str) -> Result<u64, String> {
        (self.counts)(self.process.name(), self.page, protocol)
    }

    pub(super) fn instance(&self) -> Instance {
        let name = self.process.name().to_owned();
        Instance::here(name, WAYPOINT, self.process.group_pids())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_names_the_waypoint_once_and_the_gateway_is_there() {
        let text = mesh(super::super::MESH);
        assert_eq!(text.matches("istio.io/use-waypoint: gate\n").count(), 1);
        assert_eq!(text.matches("gatewayClassName: istio-waypoint").count(), 1);
    }

    #[test]
    fn envoy_opens_what_it_carries_to_one_identity_only() {
        assert_eq!(ENVOY.matches("matcher: {exact: ${SERVER_ID}}").count(), 1);
        assert_eq!(ENVOY.matches("require_client_certificate: true").count(), 1);
    }
}
