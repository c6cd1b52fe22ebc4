//! Fail closed: a security policy that cannot be read and was never good is held shut. A PeerAuthentication is STRICT, an
//! AuthorizationPolicy denies everything, and so does a RequestAuthentication (an application behind it may believe that
//! whatever token it gets is a good one), for whom they were meant as far as that can be told. What its author wanted to open
//! opens when the text is right. The Services of a BackendTLSPolicy are not called.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ResourceId;
use crate::attach;
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::mesh::authorization::{Action, AuthorizationPolicy, PolicyTarget, Rule};
use crate::mesh::gateway_api::BackendTls;
use crate::mesh::{Mesh, MutualTlsMode, PeerAuthentication, RequestAuthentication};
use crate::names::{Namespace, ResourceName};
use crate::source::Source;

/// Name of the policy that stands for those without one.
const NAMELESS: &str = "unreadable";
/// End of the name of the denial that stands for a RequestAuthentication; no resource's name has a colon.
const TOKENS: &str = ":request-authentication";

/// Policies that could not be read.
pub(super) struct Unreadable {
    /// PeerAuthentications by name, as far as they could be read.
    pub(super) named: BTreeMap<ResourceId, Arc<PeerAuthentication>>,
    /// AuthorizationPolicies by name, as far as they could be read.
    pub(super) authorization: BTreeMap<ResourceId, Arc<AuthorizationPolicy>>,
    /// RequestAuthentications by name, as far as they could be read.
    pub(super) tokens: BTreeMap<ResourceId, Arc<RequestAuthentication>>,
    /// BackendTLSPolicies by name, as far as they could be read.
    pub(super) backend_tls: BTreeMap<ResourceId, Arc<BackendTls>>,
    /// Without a name, by kind.
    pub(super) nameless: Vec<(&'static str, Source)>,
}

/// Puts shut policies where there is no last good version. They are not among the mesh's resources, so that the next
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
        if policy.name.namespace == root {
            policy.selector = None;
        }
        let scope = scope(&policy.name.namespace, &root, policy.selector.is_some());
        diagnostics.push(strict(&policy.source, &id.to_string(), &scope));
        mesh.peer_authentications.push(policy.into());
    }
    for (id, broken) in unreadable.authorization {
        if !broken.dry_run {
            let name = broken.name.clone();
            shut_out(mesh, &id, name, &broken.source, &broken.target, diagnostics);
        }
    }
    for (id, broken) in unreadable.tokens {
        // Its denial must not take the place of an AuthorizationPolicy of the same name.
        let name = format!("{}{TOKENS}", broken.name.name);
        let name = ResourceName::new(broken.name.namespace.clone(), name);
        shut_out(mesh, &id, name, &broken.source, &broken.target, diagnostics);
    }
    for (id, broken) in unreadable.backend_tls {
        if !mesh.resources.contains_key(&id) {
            attach::shut(mesh, &broken);
            diagnostics.push(uncalled(&broken.source, &id.to_string()));
        }
    }
    for (kind, source) in unreadable.nameless {
        let name = ResourceName::new(root.clone(), NAMELESS);
        let what = format!("what may be {kind}");
        if kind != "PeerAuthentication" {
            diagnostics.push(denied(&source, &what, "the whole mesh"));
            deny(mesh, name, &source, PolicyTarget::Everything);
            continue;
        }
        diagnostics.push(strict(&source, &what, "the whole mesh"));
        mesh.peer_authentications.push(Arc::new(PeerAuthentication {
            name,
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

/// For whom a policy is.
fn scope(namespace: &Namespace, root: &Namespace, selects: bool) -> String {
    match (namespace == root, selects) {
        (true, false) => "the whole mesh".to_owned(),
        (true, true) => "what it selects in the whole mesh".to_owned(),
        (false, true) => format!("what it selects in `{namespace}`"),
        (false, false) => format!("the namespace `{namespace}`"),
    }
}

/// Denies everything to whom a policy was meant for, unless its last good version is in force.
fn shut_out(
    mesh: &mut Mesh,
    id: &ResourceId,
    name: ResourceName,
    source: &Source,
    target: &PolicyTarget,
    diagnostics: &mut Vec<Diagnostic>,
) {
    // What aims at waypoints and gateways holds for nobody else, right or wrong.
    let aside = matches!(target, PolicyTarget::References(_));
    if mesh.resources.contains_key(id) || aside {
        return;
    }
    let selects = matches!(target, PolicyTarget::Workloads(_));
    let scope = scope(&name.namespace, &mesh.config.root_namespace, selects);
    diagnostics.push(denied(source, &id.to_string(), &scope));
    deny(mesh, name, source, target.clone());
}

/// Denies everything.
fn deny(mesh: &mut Mesh, name: ResourceName, source: &Source, target: PolicyTarget) {
    let everything = Rule {
        source: source.clone(),
        from: Vec::new(),
        to: Vec::new(),
        when: Vec::new(),
    };
    let policy = AuthorizationPolicy {
        name: name.clone(),
        source: source.clone(),
        target,
        action: Action::Deny,
        dry_run: false,
        rules: vec![everything],
    };
    mesh.authorization_policies.insert(name, policy.into());
}

fn strict(source: &Source, what: &str, scope: &str) -> Diagnostic {
    let message = format!(
        "{what} cannot be put into force because of its errors: until it is right, {scope} is STRICT"
    );
    Diagnostic::warning(codes::NOT_ENFORCED, source.clone(), message)
        .help("plaintext is refused there unless a narrower policy allows it")
}

fn uncalled(source: &Source, what: &str) -> Diagnostic {
    let message = format!(
        "{what} cannot be put into force because of its errors: until it is right, nobody calls the Services that it is for"
    );
    Diagnostic::warning(codes::NOT_ENFORCED, source.clone(), message)
        .help("they are not called in plaintext instead")
}

fn denied(source: &Source, what: &str, scope: &str) -> Diagnostic {
    let message = format!(
        "{what} cannot be put into force because of its errors: until it is right, {scope} takes no calls"
    );
    Diagnostic::warning(codes::NOT_ENFORCED, source.clone(), message)
        .help("every request and connection is denied there")
}
