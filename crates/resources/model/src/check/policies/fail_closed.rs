//! Fail closed: a security resource that is invalid and has no last good version denies the traffic that it decides
//! about, and nothing else.
//!
//! | kind | denied traffic |
//! |---|---|
//! | PeerAuthentication | plaintext, if it sets a mode: to its workloads, or to their ports that it names |
//! | AuthorizationPolicy ALLOW | requests to its workloads that neither its readable rules nor other ALLOW policies allow |
//! | DENY, CUSTOM | requests that the readable parts of its rules match |
//! | AUDIT, dry run | nothing |
//! | RequestAuthentication | requests with a token for an invalid rule; all requests, if such a rule demands a token. If more than rules is invalid, all its rules are |
//! | BackendTLSPolicy | calls of its Services |
//!
//! An unreadable selector means the namespace, and in the root namespace the mesh.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::attach;
use crate::check::authorization::everything;
use crate::check::values;
use crate::check::{CheckedResource, ResourceId, StoredResource};
use crate::codes;
use crate::decode::{Report, is_within};
use crate::diagnostic::Diagnostic;
use crate::mesh::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationRule, PolicyTarget,
};
use crate::mesh::request_authentication::{KeySource, TokenRule, UNREADABLE_KEYS};
use crate::mesh::{Mesh, MutualTlsMode, PeerAuthentication, PortMode, RequestAuthentication};
use crate::names::Namespace;
use crate::source::Source;

/// Begins the name of what has none that can be read; no resource's name has a colon.
const UNNAMED: &str = "unreadable:";

/// A unique name for a resource whose own name is unreadable.
pub(in crate::check) fn unnamed(source: &Source) -> Arc<str> {
    format!("{UNNAMED}{source}").replace('/', ":").into()
}

/// Returns true if the resource has a replacement name.
pub(in crate::check) fn is_unnamed(id: &ResourceId) -> bool {
    id.name.starts_with(UNNAMED)
}

/// The part of an invalid security resource that stays in force, if it decides about anything. `spec` is the path to
/// its `spec`.
pub(in crate::check) fn held(
    checked: CheckedResource,
    spec: &str,
    report: &Report,
) -> Option<CheckedResource> {
    Some(match checked {
        CheckedResource::PeerAuthentication(policy) => {
            let unread = |part: &str| report.failed_within(&format!("{spec}.{part}"));
            let unread = (unread("mtls"), unread("selector"));
            CheckedResource::PeerAuthentication(
                strict(Arc::unwrap_or_clone(policy), unread)?.into(),
            )
        }
        CheckedResource::AuthorizationPolicy(policy) => {
            let policy = denying(Arc::unwrap_or_clone(policy), unread_spec(spec, report))?;
            CheckedResource::AuthorizationPolicy(policy.into())
        }
        CheckedResource::RequestAuthentication(one) => {
            let one = refusing(Arc::unwrap_or_clone(one), spec, report)?;
            CheckedResource::RequestAuthentication(one.into())
        }
        CheckedResource::BackendTls(policy) => CheckedResource::BackendTls(policy),
        _ => return None,
    })
}

/// Returns true if a field beside `spec` is not known: it may be the `spec`.
fn unread_spec(spec: &str, report: &Report) -> bool {
    let document = spec.trim_end_matches("spec");
    report.failed_where(|field| {
        let name = field.strip_prefix(document).unwrap_or_default();
        !matches!(name, "" | "apiVersion" | "kind" | "metadata" | "spec")
            && !name.contains(['.', '['])
    })
}

fn strict(
    mut policy: PeerAuthentication,
    (mode_unread, selector_unread): (bool, bool),
) -> Option<PeerAuthentication> {
    let says_mode = mode_unread || policy.mode.is_some();
    let of_ports_alone = !says_mode && !policy.port_modes.is_empty();
    if of_ports_alone && policy.selector.is_none() && !selector_unread {
        // Ports without a selector decide about nothing.
        return None;
    }
    if of_ports_alone && policy.selector.is_some() {
        let shut = |mode: &mut PortMode| mode.mode = Some(MutualTlsMode::Strict);
        policy.port_modes.values_mut().for_each(shut);
    } else {
        policy.mode = Some(MutualTlsMode::Strict);
        policy.port_modes.clear();
    }
    Some(policy)
}

fn denying(mut policy: AuthorizationPolicy, spec_unread: bool) -> Option<AuthorizationPolicy> {
    if policy.dry_run || policy.action == AuthorizationAction::Audit {
        return None;
    }
    let says_nothing = policy.rules.is_empty() && policy.target == PolicyTarget::Everything;
    if policy.action != AuthorizationAction::Allow {
        policy.action = AuthorizationAction::Deny;
    } else if says_nothing && spec_unread {
        policy.action = AuthorizationAction::Deny;
        policy.rules = vec![everything(policy.source.clone())];
    }
    Some(policy)
}

/// Keeps the places where tokens are looked for, and no key that could verify one. If only rules are invalid, the others
/// keep their keys.
fn refusing(
    mut one: RequestAuthentication,
    spec: &str,
    report: &Report,
) -> Option<RequestAuthentication> {
    let rules = values::join(spec, "jwtRules");
    if report.failed_where(|field| !is_within(field, &rules)) {
        for rule in &mut one.rules {
            rule.keys = KeySource::Inline(UNREADABLE_KEYS.into());
        }
        let unread = report.failed_within(spec) || unread_spec(spec, report);
        if one.rules.is_empty() && unread {
            one.rules.push(TokenRule::unreadable(one.source.clone()));
        }
    }
    (!one.rules.is_empty()).then_some(one)
}

/// Puts the held parts of invalid resources into force. They are not among the mesh's resources, so that the next check
/// does not take them for a last good version.
pub(in crate::check) fn shut(
    mesh: &mut Mesh,
    broken: BTreeMap<ResourceId, StoredResource>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let before = mesh.peer_authentications.len();
    let root = mesh.config.root_namespace.clone();
    for (id, stored) in broken {
        // Its last good version is in force.
        if mesh.resources.contains_key(&id) {
            continue;
        }
        let what = match is_unnamed(&id) {
            true => format!("a {} without a usable name", id.kind),
            false => id.to_string(),
        };
        match stored.checked {
            CheckedResource::PeerAuthentication(policy) => {
                let selects = policy.selector.is_some();
                if selects && policy.name.namespace == root {
                    // Selectors of the root namespace are ignored (V0307): it decides about nothing.
                    continue;
                }
                let scope = scope(&policy.name.namespace, &root, selects);
                diagnostics.push(plaintext_refused(&policy, &what, &scope));
                mesh.peer_authentications.push(policy);
            }
            CheckedResource::AuthorizationPolicy(policy) => {
                let scope = scope_of(&policy.target, &policy.name.namespace, &root);
                diagnostics.push(denied(&policy, &what, &scope));
                mesh.authorization_policies
                    .insert(policy.name.clone(), policy);
            }
            CheckedResource::RequestAuthentication(one) => {
                let scope = scope_of(&one.target, &one.name.namespace, &root);
                diagnostics.push(tokens_refused(&one, &what, &scope));
                mesh.request_authentications.push(one);
            }
            CheckedResource::BackendTls(policy) => {
                attach::shut(mesh, &policy);
                diagnostics.push(uncalled(&policy.source, &what));
            }
            _ => {}
        }
    }
    // Before the readable ones of the same scope: which of them is older cannot be trusted either.
    mesh.peer_authentications.rotate_left(before);
}

/// Scope of a policy, in words.
fn scope(namespace: &Namespace, root: &Namespace, selects: bool) -> String {
    match (namespace == root, selects) {
        (true, false) => "the whole mesh".to_owned(),
        (true, true) => "its selected workloads in the whole mesh".to_owned(),
        (false, true) => format!("its selected workloads in `{namespace}`"),
        (false, false) => format!("the namespace `{namespace}`"),
    }
}

fn scope_of(target: &PolicyTarget, namespace: &Namespace, root: &Namespace) -> String {
    match target {
        PolicyTarget::References(_) => format!("its targets in `{namespace}`"),
        PolicyTarget::Workloads(_) => scope(namespace, root, true),
        PolicyTarget::Everything => scope(namespace, root, false),
    }
}

fn not_enforced(source: &Source, message: String, help: &str) -> Diagnostic {
    Diagnostic::warning(codes::NOT_ENFORCED, source.clone(), message).help(help)
}

fn plaintext_refused(policy: &PeerAuthentication, what: &str, scope: &str) -> Diagnostic {
    let ports: Vec<String> = policy.port_modes.keys().map(ToString::to_string).collect();
    let of_ports = match ports.is_empty() {
        true => String::new(),
        false => format!(" on port {}", ports.join(", ")),
    };
    let message = format!(
        "{what} is not in force because of its errors: until it is corrected, STRICT applies to {scope}{of_ports}"
    );
    let help = "plaintext is rejected there unless a narrower policy allows it";
    not_enforced(&policy.source, message, help)
}

fn uncalled(source: &Source, what: &str) -> Diagnostic {
    let message = format!(
        "{what} is not in force because of its errors: until it is corrected, calls to its target Services are refused"
    );
    not_enforced(source, message, "clients do not fall back to plaintext")
}

fn denied(policy: &AuthorizationPolicy, what: &str, scope: &str) -> Diagnostic {
    let is_all = |rule: &AuthorizationRule| *rule == everything(rule.source.clone());
    let all = policy.rules.iter().any(is_all);
    let (until, help) = match &policy.action {
        AuthorizationAction::Allow if policy.rules.is_empty() => (
            "requests are denied unless other ALLOW policies allow them",
            "requests that only this policy would allow are denied",
        ),
        AuthorizationAction::Allow => (
            "only its valid rules allow requests",
            "requests that they do not allow are denied",
        ),
        _ if all => (
            "all requests are denied",
            "correct the policy: until then every request and connection is denied",
        ),
        _ => (
            "requests that the valid parts of its rules match are denied",
            "an invalid part matches everything",
        ),
    };
    let message = format!(
        "{what} is not in force because of its errors: until it is corrected, for {scope} {until}"
    );
    not_enforced(&policy.source, message, help)
}

fn tokens_refused(one: &RequestAuthentication, what: &str, scope: &str) -> Diagnostic {
    let is_invalid = |rule: &&TokenRule| matches!(&rule.keys, KeySource::Inline(keys) if **keys == *UNREADABLE_KEYS);
    let invalid: Vec<&TokenRule> = one.rules.iter().filter(is_invalid).collect();
    let (until, help) = match invalid.iter().any(|rule| rule.required) {
        true => (
            "all requests are rejected",
            "it requires a token, and no token is accepted",
        ),
        false if invalid.len() < one.rules.len() => (
            "requests with a token for an invalid rule are rejected",
            "its other rules are in force; requests without a token are not affected",
        ),
        false => (
            "requests with a token for it are rejected",
            "requests without a token are not affected",
        ),
    };
    let message = format!(
        "{what} is not in force because of its errors: until it is corrected, for {scope} {until}"
    );
    not_enforced(&one.source, message, help)
}
