//! RequestAuthentications: whose tokens are believed, and by whom.

use voile_model::mesh::Mesh;
use voile_model::{Diagnostic, codes};

/// Checks all RequestAuthentications.
pub(crate) fn check(mesh: &Mesh, found: &mut Vec<Diagnostic>) {
    for one in &mesh.request_authentications {
        // Proxies do not verify tokens yet. This goes with the commit in which they do.
        let message = format!(
            "RequestAuthentication {} is NOT ENFORCED: no proxy verifies tokens yet",
            one.name
        );
        found.push(
            Diagnostic::error(codes::UNENFORCED_KIND, one.source.clone(), message)
                .help("do not rely on it; remove it, or wait for a later version"),
        );
    }
}
