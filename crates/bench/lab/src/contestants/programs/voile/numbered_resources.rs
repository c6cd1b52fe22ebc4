//! Writes the generated objects of a mesh, in files of the folder that the control plane reads.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use super::{Ports, Voile};
use crate::definition::generated_resources;
use crate::plan::RequestPath;
use crate::record_folder::write;
use crate::shared_processes::Lab;

impl Voile {
    /// Writes what this outfit has; nothing where it has nothing.
    pub(super) fn write_by_number(
        &self,
        lab: &Lab<'_>,
        config: &Path,
        ports: &Ports,
    ) -> Result<(), String> {
        let text = generated_resources(&lab.outfit.generated, &lab.outfit.verdict);
        if !text.is_empty() {
            write(&config.join("generated.yaml"), &text)?;
        }
        let further = further_endpoints(&lab.endpoints);
        if !further.is_empty() {
            write(&config.join("endpoints.yaml"), &further)?;
        }
        let Some(routes) = lab.outfit.routes() else {
            return Ok(());
        };
        let own = lab.ways.iter();
        let own = own.filter(|way| way.contestant == self.variant.name);
        let hosts = hosts(own, ports.captured);
        let text = routes.resources(&hosts, ports.services["STAGE_PORT"]);
        write(&config.join("routes.yaml"), &text)
    }
}

/// The service that has no sidecar with all endpoints but the first, which is in the mesh's template.
fn further_endpoints(endpoints: &[SocketAddr]) -> String {
    let mut text = String::new();
    for (at, endpoint) in endpoints.iter().enumerate().skip(1) {
        let (address, port) = (endpoint.ip(), endpoint.port());
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  name: direct-{at}\n  namespace: lab\n  \
             labels:\n    app: direct\nspec:\n  address: {address}\n  labels:\n    app: direct\n  ports:\n    \
             http-direct: {port}\n    grpc-direct: {port}\n"
        );
    }
    text
}

/// The host that a client calls on such a way.
pub(super) fn host(mode: &str, captured: bool) -> &'static str {
    match (mode, captured) {
        ("clientonly", true) => "direct.lab.svc.cluster.local",
        // This host has endpoints beside the pods.
        ("clientonly", false) => "direct.lab.internal",
        _ => "server.lab.svc.cluster.local",
    }
}

/// Those of several ways, each once.
fn hosts<'a>(ways: impl Iterator<Item = &'a RequestPath>, captured: bool) -> Vec<String> {
    let mut hosts: Vec<String> = ways
        .map(|way| host(&way.mode, captured).to_owned())
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}
