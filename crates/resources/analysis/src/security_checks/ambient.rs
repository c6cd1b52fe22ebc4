//! Checks policies for workloads behind a node proxy, which sees connections and no requests. Istio drops conditions
//! that a node proxy cannot evaluate, so that a DENY of a method denies nothing. These checks report such conditions.

use voile_model::Diagnostic;
use voile_model::mesh::authorization::{AuthorizationAction, AuthorizationPolicy};
use voile_policy::authorization::Policy;
use voile_policy::connections::{PolicyScope, lower};

use crate::codes;
use crate::explain::said;
use crate::subject::Subject;

/// Reports the conditions of a policy that a node proxy cannot evaluate, for the first workload behind one.
pub(crate) fn check(
    policy: &AuthorizationPolicy,
    selected: &[&Subject<'_>],
    found: &mut Vec<Diagnostic>,
) {
    let mut ambient = selected.iter().filter(|subject| subject.ambient);
    let Some(first) = ambient.next() else {
        return;
    };
    let others = match ambient.count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let name = &policy.name;
    let whom = format!("for {}{others}, served by a node proxy", first.name);
    let help = "target a Service behind a waypoint (`targetRefs`), give the workload a sidecar, or match only the port and the caller's address and identity (namespaces as `a`, `a*` or `*a`, trust domains as `a` or `a*`)";
    let mut say = |source: &voile_model::Source, message: String| {
        let code = codes::NODE_PROXY_CANNOT_TELL;
        found.push(Diagnostic::error(code, source.clone(), message).help(help));
    };
    let refused = match &policy.action {
        AuthorizationAction::Custom(_) => {
            Some("CUSTOM needs HTTP requests; a node proxy denies the connections that match")
        }
        AuthorizationAction::Audit => {
            Some("AUDIT needs HTTP requests, which a node proxy does not see")
        }
        AuthorizationAction::Allow | AuthorizationAction::Deny => None,
    };
    if let Some(why) = refused {
        let message =
            format!("AuthorizationPolicy {name} cannot be enforced as written {whom}: {why}");
        return say(&policy.source, message);
    }
    let consequence = match &policy.action {
        AuthorizationAction::Deny => {
            "the rule denies without these conditions, so more than it says"
        }
        _ => "the rule allows nothing there",
    };
    // A policy of the model was checked, value by value.
    let Ok(read) = Policy::of(policy) else {
        return;
    };
    let (_, unseen) = lower(&read, PolicyScope::Named);
    for of_rule in unseen.chunk_by(|one, other| one.rule == other.rule) {
        let mut unknown: Vec<String> = of_rule.iter().map(|one| said(&one.term)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        let message = format!(
            "AuthorizationPolicy {name} cannot be enforced as written {whom}: it cannot tell whether {}; {consequence}",
            unknown.join(", or ")
        );
        say(&policy.rules[of_rule[0].rule].source, message);
    }
}
