//! A stock Envoy in a sidecar's place, beside a sidecar of ours: same folder, same identities, same policies. Skipped, with the
//! reason, where there is no Envoy (`$ENVOY`, or `envoy` on the path).

mod actions;
mod asked;
mod edge;
mod exported;
mod moved;
pub(crate) mod process;
mod routes;
mod served;
mod stage;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;
use voile_testkit::prerequisites::{Prerequisite, peer};

use crate::mesh::Process;

/// The program, if there is one.
pub(crate) fn found() -> Option<PathBuf> {
    peer(Prerequisite::Envoy, "ENVOY", "envoy")
}

/// Output of `voile export envoy` for a workload with explicit listeners, with a certificate folder that does not exist.
fn exported(config: &Path, workload: &str, admin: SocketAddr) -> Value {
    let output = Process::output(|voile| {
        voile.args(["export", "envoy"]).arg(config);
        voile.args(["--workload", workload, "--capture", "none"]);
        let admin = admin.to_string();
        voile.args(["--admin", &admin, "--certificates", "/nonexistent"]);
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let mut all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    // Removes the inbound listeners: no client calls this Envoy, and it has no certificates.
    let listeners = all["static_resources"]["listeners"].as_array_mut();
    let listeners = listeners.expect("listeners");
    listeners.retain(|one| one["traffic_direction"] == "OUTBOUND");
    all
}
