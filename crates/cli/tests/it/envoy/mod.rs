//! A stock Envoy in a sidecar's place, beside a sidecar of ours: same folder, same identities, same policies. Skipped, with the
//! reason, where there is no Envoy (`$ENVOY`, or `envoy` on the path).

mod exported;
pub(crate) mod process;
mod routes;
mod served;
mod stage;

use std::path::PathBuf;

/// The program, if there is one.
pub(crate) fn found() -> Option<PathBuf> {
    let named = std::env::var_os("ENVOY").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("envoy"));
    let found = named
        .into_iter()
        .chain(on_path)
        .find(|program| program.is_file());
    if found.is_none() {
        eprintln!("skipped: no Envoy (set ENVOY, or put `envoy` on the path)");
    }
    found
}
