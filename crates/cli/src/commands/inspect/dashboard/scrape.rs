//! The mesh of this machine for a Prometheus: its targets, as the discovery by HTTP reads them, and the metrics of each. No program of
//! the mesh has an address that another program could know in advance, and with network namespaces none can be reached.

use std::net::SocketAddr;

use http::StatusCode;
use serde_json::json;
use voile_telemetry::admin::{PageRequest, PageResponse};

use crate::commands::inspect::monitoring::{PageServer, WatchedMesh};

const TARGETS: &str = "/targets.json";
/// The name of a target follows.
const METRICS: &str = "/metrics/";

pub(super) fn is_asked(path: &str) -> bool {
    path == TARGETS || path.starts_with(METRICS)
}

/// Answers at `listener` for the programs of the mesh.
pub(super) async fn page(
    question: PageRequest,
    watched: WatchedMesh,
    listener: SocketAddr,
) -> PageResponse {
    // Programs are asked one after the other, and each answer is waited for.
    let answer = tokio::task::spawn_blocking(move || answer(&question, &watched, listener));
    let failed = |reason| PageResponse::text(StatusCode::BAD_GATEWAY, format!("{reason}\n"));
    match answer.await {
        Ok(answer) => answer.unwrap_or_else(failed),
        Err(panicked) => failed(panicked.to_string()),
    }
}

fn answer(
    question: &PageRequest,
    watched: &WatchedMesh,
    listener: SocketAddr,
) -> Result<PageResponse, String> {
    let mesh = watched.of_this_machine()?;
    let control_planes = mesh
        .control_planes()
        .into_iter()
        .map(|one| (one, "/metrics"));
    let proxies = mesh.proxies().into_iter();
    let proxies = proxies.map(|one| (one, "/stats/prometheus"));
    let mut targets = control_planes.chain(proxies);
    let Some(wanted) = question.path.strip_prefix(METRICS) else {
        let targets = targets.map(|(server, _)| {
            let name = name(&server);
            json!({
                "targets": [listener.to_string()],
                "labels": {
                    "__metrics_path__": format!("{METRICS}{name}"),
                    "instance": name,
                    "mesh": mesh.folder().display().to_string(),
                },
            })
        });
        return Ok(PageResponse::json(
            json!(targets.collect::<Vec<_>>()).to_string(),
        ));
    };
    let Some((server, path)) = targets.find(|(server, _)| name(server) == wanted) else {
        return Ok(PageResponse::not_found(&question.path));
    };
    Ok(PageResponse::metrics(server.text(path)?, question))
}

/// `control-plane`, or NAMESPACE/POD.
fn name(server: &PageServer) -> String {
    server.to_string().replace(' ', "-")
}
