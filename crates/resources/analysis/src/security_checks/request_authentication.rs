//! RequestAuthentications: whose tokens are believed, by whom, and whether anybody asks for one. That a request without a token
//! passes is what most authors of these resources do not expect.

use voile_model::mesh::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationRule, Matches, PolicyTarget,
    SourceMatch, StringMatch, TargetReference, WhenCondition,
};
use voile_model::mesh::{
    KeySource, Mesh, RequestAuthentication, TokenRule, UNREADABLE_KEYS, token_rules,
};
use voile_model::{Diagnostic, ResourceName, Source};
use voile_policy::tokens::KeySet;

use crate::codes;
use crate::services::shown;
use crate::subject::Subject;
use crate::suggestions::missing_workloads;
use crate::view::ClientView;

/// Checks all RequestAuthentications.
pub(crate) fn check(view: &ClientView<'_>, found: &mut Vec<Diagnostic>) {
    let (mesh, subjects) = (view.mesh, &view.subjects);
    for one in &mesh.request_authentications {
        resource(mesh, one, subjects, found);
        for rule in &one.rules {
            keys(rule, found);
        }
    }
    for policy in mesh.authorization_policies.values() {
        issuers(view, policy, found);
    }
}

fn warning(code: &'static str, source: &Source, message: String, help: &str) -> Diagnostic {
    Diagnostic::warning(code, source.clone(), message).help(help)
}

fn error(code: &'static str, source: &Source, message: String, help: &str) -> Diagnostic {
    Diagnostic::error(code, source.clone(), message).help(help)
}

fn resource(
    mesh: &Mesh,
    one: &RequestAuthentication,
    subjects: &[Subject<'_>],
    found: &mut Vec<Diagnostic>,
) {
    let (name, source) = (&one.name, &one.source);
    let root = &mesh.config.root_namespace;
    let selected = || {
        let all = subjects.iter();
        all.filter(|subject| one.selects(root, subject.namespace, subject.labels))
    };
    match &one.target {
        PolicyTarget::References(targets) => {
            let obeyed = |target: &&TargetReference| mesh.is_obeyed(&name.namespace, target);
            let nobody = targets.iter().filter(|target| !obeyed(target));
            found.extend(nobody.map(|target| disobeyed(name, target)));
            return;
        }
        PolicyTarget::Workloads(labels) if selected().next().is_none() => {
            let message = format!(
                "the selector ({}) of RequestAuthentication {name} selects no workload",
                shown(labels)
            );
            let help = "it selects workloads of its own namespace, and those of the mesh from the root namespace";
            let diagnostic = warning(codes::TOKENS_SELECT_NOTHING, source, message, help);
            found.push(diagnostic.lacks(missing_workloads(&name.namespace, labels)));
        }
        PolicyTarget::Workloads(_) | PolicyTarget::Everything => {}
    }
    if one.rules.is_empty() {
        return;
    }
    let mut bare = selected().filter(|subject| !subject.has_sidecar);
    if let Some(first) = bare.next() {
        let others = match bare.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let message = format!(
            "RequestAuthentication {name} is not enforced for {}{others}: the workload has no sidecar",
            first.name
        );
        let help = "label its namespace istio-injection: enabled, or select other workloads";
        found.push(error(codes::TOKENS_WITHOUT_SIDECAR, source, message, help));
    }
    let mut open = selected().filter(|subject| subject.has_sidecar && !asks(mesh, subject));
    if let Some(first) = open.next() {
        let message = format!(
            "requests without a token reach {}: RequestAuthentication {name} rejects only invalid tokens, and no AuthorizationPolicy requires one there",
            first.name
        );
        let help = "to require a token, write `presence: REQUIRED`, or an AuthorizationPolicy with requestPrincipals: [\"*\"]";
        found.push(warning(codes::TOKEN_NOT_REQUIRED, source, message, help));
    }
}

/// Reports a target that no waypoint applies.
fn disobeyed(name: &ResourceName, target: &TargetReference) -> Diagnostic {
    let message = format!(
        "RequestAuthentication {name} is not enforced for {} {}: it is no gateway of ours and has no waypoint, and sidecars and node proxies ignore `targetRefs`, as in Istio",
        target.kind, target.name
    );
    let help = "label the service `istio.io/use-waypoint: NAME` and add a Gateway NAME with gatewayClassName istio-waypoint, or use `selector` for workloads with sidecars";
    let code = codes::TOKEN_TARGETS_NOT_ENFORCED;
    warning(code, &target.source, message, help)
}

/// Returns true if a rule that holds for the workload demands a token, or a policy tests tokens.
fn asks(mesh: &Mesh, subject: &Subject<'_>) -> bool {
    let holding = mesh.request_authentication_for_labels(subject.namespace, subject.labels);
    let mut rules = holding.into_iter().flat_map(|one| &one.rules);
    if rules.any(|rule| rule.required) {
        return true;
    }
    let policies = mesh.authorization_for_labels(subject.namespace, subject.labels);
    let of_source = |from: &SourceMatch| !from.request_principals.is_empty();
    let of_condition = |when: &WhenCondition| {
        matches!(
            when,
            WhenCondition::RequestPrincipal(_)
                | WhenCondition::RequestAudiences(_)
                | WhenCondition::RequestPresenter(_)
                | WhenCondition::RequestClaim(..)
        )
    };
    let looks = |rule: &AuthorizationRule| {
        rule.from.iter().any(of_source) || rule.when.iter().any(of_condition)
    };
    policies.iter().any(|policy| {
        // A policy that denies every request needs no token either.
        let shut = policy.action == AuthorizationAction::Allow && policy.rules.is_empty();
        !policy.dry_run && (shut || policy.rules.iter().any(looks))
    })
}

fn keys(rule: &TokenRule, found: &mut Vec<Diagnostic>) {
    let source = &rule.source;
    let fetched = match &rule.keys {
        KeySource::Inline(text) => return inline(rule, text, found),
        KeySource::Uri(uri) => uri,
        KeySource::Discovery => &rule.issuer,
    };
    if fetched.starts_with("http://") {
        let message = format!(
            "the keys of `{}` are fetched over plaintext HTTP: an attacker on the path can replace them and forge tokens",
            voile_model::reading::clip(&rule.issuer)
        );
        let help = "use https://, or write the keys in `jwks`";
        found.push(warning(codes::KEYS_IN_PLAINTEXT, source, message, help));
    }
}

/// A key set that is written in the resource.
fn inline(rule: &TokenRule, text: &str, found: &mut Vec<Diagnostic>) {
    let source = &rule.source;
    if text == UNREADABLE_KEYS {
        return; // the resource has errors, which are said
    }
    let issuer = voile_model::reading::clip(&rule.issuer);
    let set = match KeySet::survey(text) {
        Ok(set) => set,
        Err(why) => {
            let message = format!(
                "`jwks` of `{issuer}` is no key set ({why}): every token of this issuer is rejected"
            );
            let help = "write a JSON Web Key Set: {\"keys\": [...]}";
            return found.push(error(codes::BAD_KEYS, source, message, help));
        }
    };
    if set.usable() == 0 {
        let why = match set.faults().first() {
            Some((_, fault)) => format!("the first: {fault}"),
            None => "there is none".to_owned(),
        };
        let message = format!(
            "no key in `jwks` of `{issuer}` can be used ({why}): every token of this issuer is rejected"
        );
        return found.push(error(codes::BAD_KEYS, source, message, ""));
    }
    for (index, fault) in set.faults() {
        let message = format!("keys[{index}] in `jwks` of `{issuer}` is not used: {fault}");
        found.push(warning(codes::BAD_KEYS, source, message, ""));
    }
    for index in set.private() {
        let message = format!(
            "keys[{index}] in `jwks` of `{issuer}` contains the private key: every reader of this file can forge tokens"
        );
        let help = "create a new key, as this one is no longer secret, and leave out d, p, q, dp, dq and qi";
        found.push(warning(codes::BAD_KEYS, source, message, help));
    }
}

/// Reports request principals whose issuer no rule trusts: no request ever has them.
fn issuers(view: &ClientView<'_>, policy: &AuthorizationPolicy, found: &mut Vec<Diagnostic>) {
    let mesh = view.mesh;
    // By the index: thousands of policies do not look at the whole of a large mesh each.
    let mut selected = view.obeying(&policy.name.namespace, &policy.target);
    selected.retain(|subject| subject.has_sidecar);
    for rule in &policy.rules {
        let of_source = rule.from.iter().map(|from| &from.request_principals);
        let of_condition = rule.when.iter().filter_map(|when| match when {
            WhenCondition::RequestPrincipal(matches) => Some(matches),
            _ => None,
        });
        for principal in of_source.chain(of_condition).flat_map(Matches::values) {
            let Some(issuer) = issuer(principal) else {
                continue;
            };
            let stranger = selected.iter().find(|subject| {
                let holding =
                    mesh.request_authentication_for_labels(subject.namespace, subject.labels);
                let mut rules = token_rules(holding).into_iter();
                // Another check reports a workload without any rule.
                rules.len() > 0
                    && !rules.any(|(_, rule)| rule.issuer.is_empty() || *rule.issuer == *issuer)
            });
            if let Some(subject) = stranger {
                let message = format!(
                    "`{principal}` matches no request at {}: no RequestAuthentication there accepts the issuer `{}`",
                    subject.name,
                    voile_model::reading::clip(issuer)
                );
                let help = "write ISSUER/SUBJECT, with the issuer exactly as in jwtRules";
                found.push(warning(codes::UNKNOWN_ISSUER, &rule.source, message, help));
            }
        }
    }
}

/// The one issuer that a request principal names, if it names one.
fn issuer(principal: &StringMatch) -> Option<&str> {
    match principal {
        StringMatch::Exact(text) => text.rsplit_once('/').map(|(issuer, _)| issuer),
        StringMatch::Prefix(text) => text.strip_suffix('/'),
        StringMatch::Suffix(_) | StringMatch::Present => None,
    }
}
