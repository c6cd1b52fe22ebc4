//! Cross-resource checks with file and line: each resource is valid by itself, but do they fit together?
//!
//! `analyze` is pure: a checked mesh in, diagnostics out. Where Istio would silently ignore what somebody wrote about
//! security, that is an error here.

mod authorization;
pub mod codes;
mod destinations;
pub mod explain;
mod listeners;
mod peer_authentication;
mod request_authentication;
mod services;
mod sidecars;
mod subject;
mod telemetry;
mod workloads;

use voile_model::{Diagnostic, Mesh};

/// Every problem that shows only when resources are seen together, in order of place.
pub fn analyze(mesh: &Mesh) -> Vec<Diagnostic> {
    let subjects = subject::subjects(mesh);
    let mut found = Vec::new();
    services::check(mesh, &subjects, &mut found);
    sidecars::check(mesh, &subjects, &mut found);
    listeners::check(mesh, &subjects, &mut found);
    peer_authentication::check(mesh, &subjects, &mut found);
    request_authentication::check(mesh, &subjects, &mut found);
    authorization::check(mesh, &subjects, &mut found);
    workloads::check(mesh, &subjects, &mut found);
    telemetry::check(mesh, &subjects, &mut found);
    destinations::check(mesh, &mut found);
    Diagnostic::sort(&mut found);
    found.dedup();
    found
}
