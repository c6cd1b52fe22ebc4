//! Cross-resource checks with file and line. Each resource is valid by itself; these checks report resources that do
//! not fit together.
//!
//! `analyze` is pure: a checked mesh and a time in, diagnostics out. Security settings that Istio would silently ignore
//! are errors here.

pub mod codes;
pub mod explain;
pub mod explanations;
mod routing_checks;
mod security_checks;
mod subject;
mod suggestions;
mod telemetry;
mod view;
mod workload_checks;

use workload_checks::{
    attached, endpoint_slices, health_checks, listeners, pods, ports, services, variables,
    workloads,
};

use routing_checks::{destinations, gateway_selectors, gateways, networks, routes, sidecars};

use security_checks::{
    ambient, authorization, callers, certificates, mutual_tls, peer_authentication, principals,
    rate_limits, request_authentication, requests_only,
};

use std::time::SystemTime;

use voile_model::{Diagnostic, Mesh};

/// The next moment at which [`analyze`] may judge the same mesh otherwise, because a certificate begins, ends, or ends soon.
#[must_use]
pub fn next_change(mesh: &Mesh, now: SystemTime) -> Option<SystemTime> {
    let secrets = mesh.secrets.values();
    secrets
        .filter_map(|secret| certificates::next_change(secret, now))
        .min()
}

/// Every problem that shows only when resources are seen together, in order of place. Certificates are judged as of `now`.
pub fn analyze(mesh: &Mesh, now: SystemTime) -> Vec<Diagnostic> {
    let view = view::ClientView::new(mesh);
    let subjects = &view.subjects;
    let mut found = Vec::new();
    services::check(&view, &mut found);
    ports::check(&view, &mut found);
    endpoint_slices::check(mesh, &mut found);
    sidecars::check(mesh, subjects, &mut found);
    listeners::check(mesh, subjects, &mut found);
    peer_authentication::check(mesh, subjects, &mut found);
    request_authentication::check(&view, &mut found);
    requests_only::check(&view, &mut found);
    authorization::check(&view, &mut found);
    principals::check(&view, &mut found);
    mutual_tls::check(&view, now, &mut found);
    workloads::check(mesh, subjects, &mut found);
    pods::check(subjects, &mut found);
    variables::check(mesh, subjects, &mut found);
    gateway_selectors::check(mesh, subjects, &mut found);
    callers::check(&view, &mut found);
    telemetry::check(mesh, subjects, &mut found);
    rate_limits::check(&view, &mut found);
    health_checks::check(&view, &mut found);
    destinations::check(&view, &mut found);
    routes::check(&view, &mut found);
    gateways::check(&view, now, &mut found);
    attached::check(&view, &mut found);
    networks::check(&view, &mut found);
    Diagnostic::sort(&mut found);
    found.dedup();
    found
}
