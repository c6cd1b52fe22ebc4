//! Text in, mesh and problems out: tables of small folders, hostile ones, and what stays in force after a bad edit.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod broken_security;
mod controllers;
mod endpoint_slices;
mod files;
mod gateway_api;
mod golden;
mod health_checks;
mod hostile;
mod last_good;
mod levels;
mod meaning;
mod oracle;
mod reference;
mod routing;

use voile_model::{Diagnostic, Mesh, Severity, SourceFile, check};

/// Checks one file called `mesh.yaml`.
fn check_text(text: &str) -> (Mesh, Vec<Diagnostic>) {
    check(&[SourceFile::new("mesh.yaml", text)], None)
}

/// Checks one file that must be without problems; notes are none.
fn good(text: &str) -> Mesh {
    let (mesh, mut diagnostics) = check_text(text);
    diagnostics.retain(|one| one.severity != Severity::Note);
    assert!(diagnostics.is_empty(), "{}", render(&diagnostics));
    mesh
}

fn render(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(|d| format!("{d}\n")).collect()
}
