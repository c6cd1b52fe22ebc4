//! Fail closed: a PeerAuthentication that cannot be read and was never good is held as STRICT. What its author wanted to
//! shut stays shut; what its author wanted to open opens when the text is right.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ResourceId;
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::mesh::{Mesh, MutualTlsMode, PeerAuthentication};
use crate::names::ResourceName;
use crate::source::Source;

/// Policies that could not be read.
pub(super) struct Unreadable {
    /// By name, as far as they could be read.
    pub(super) named: BTreeMap<ResourceId, Arc<PeerAuthentication>>,
    /// Without a name.
    pub(super) nameless: Vec<Source>,
}

/// Puts a STRICT policy where there is no last good version. They are not among the mesh's resources, so that the next
/// reading does not take them for what was good.
pub(super) fn shut(mesh: &mut Mesh, unreadable: Unreadable, diagnostics: &mut Vec<Diagnostic>) {
    let before = mesh.peer_authentications.len();
    let root = mesh.config.root_namespace.clone();
    for (id, broken) in unreadable.named {
        if mesh.resources.contains_key(&id) {
            continue;
        }
        let mut policy = PeerAuthentication::clone(&broken);
        policy.mode = Some(MutualTlsMode::Strict);
        policy.port_modes.clear();
        let scope = if policy.name.namespace == root {
            policy.selector = None;
            "the whole mesh is".to_owned()
        } else if policy.selector.is_some() {
            format!(
                "the workloads of `{}` that it selects are",
                policy.name.namespace
            )
        } else {
            format!("the namespace `{}` is", policy.name.namespace)
        };
        diagnostics.push(said(&policy.source, &id.to_string(), &scope));
        mesh.peer_authentications.push(policy.into());
    }
    for source in unreadable.nameless {
        diagnostics.push(said(
            &source,
            "what may be a PeerAuthentication",
            "the whole mesh is",
        ));
        mesh.peer_authentications.push(Arc::new(PeerAuthentication {
            name: ResourceName {
                namespace: root.clone(),
                name: "unreadable".into(),
            },
            source,
            created: None,
            selector: None,
            mode: Some(MutualTlsMode::Strict),
            port_modes: BTreeMap::new(),
        }));
    }
    // Before the readable ones of the same scope: which of them is older cannot be trusted either.
    mesh.peer_authentications.rotate_left(before);
}

fn said(source: &Source, what: &str, scope: &str) -> Diagnostic {
    let message = format!(
        "{what} cannot be put into force because of its errors: until it is right, {scope} STRICT"
    );
    Diagnostic::warning(codes::NOT_ENFORCED, source.clone(), message)
        .help("plaintext is refused there unless a narrower policy allows it")
}
