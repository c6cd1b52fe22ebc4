//! Checks policies for workloads behind a node proxy, which sees connections and no requests. Istio drops conditions
//! that a node proxy cannot evaluate, so that a DENY of a method denies nothing. These checks report the dropped
//! conditions.

use voile_model::Diagnostic;
use voile_model::mesh::authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationRule, OperationMatch, SourceMatch,
    WhenCondition,
};

use crate::codes;
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
    let help = "target a Service behind a waypoint (`targetRefs`), give the workload a sidecar, or match only the caller's identity and address and the port";
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
    for rule in &policy.rules {
        let asked = of_requests(rule);
        if !asked.is_empty() {
            let message = format!(
                "AuthorizationPolicy {name} cannot be enforced as written {whom}: it does not see {}; {consequence}",
                asked.join(", ")
            );
            say(&rule.source, message);
        }
    }
}

/// The fields of a rule that need a request: a connection alone does not show them.
fn of_requests(rule: &AuthorizationRule) -> Vec<&'static str> {
    let source = |one: &SourceMatch| {
        let asked = [
            ("requestPrincipals", !one.request_principals.is_empty()),
            ("remoteIpBlocks", !one.remote_ip_blocks.is_empty()),
        ];
        asked.into_iter()
    };
    let operation = |one: &OperationMatch| {
        let asked = [
            ("hosts", !one.hosts.is_empty()),
            ("methods", !one.methods.is_empty()),
            ("paths", !one.paths.is_empty()),
        ];
        asked.into_iter()
    };
    let condition = |one: &WhenCondition| match one {
        WhenCondition::Header(..) => Some("request.headers"),
        WhenCondition::RemoteIp(_) => Some("remote.ip"),
        WhenCondition::RequestPrincipal(_) => Some("request.auth.principal"),
        WhenCondition::RequestAudiences(_) => Some("request.auth.audiences"),
        WhenCondition::RequestPresenter(_) => Some("request.auth.presenter"),
        WhenCondition::RequestClaim(..) => Some("request.auth.claims"),
        WhenCondition::ServerName(_) => Some("connection.sni"),
        WhenCondition::SourceIp(_)
        | WhenCondition::SourceNamespace(_)
        | WhenCondition::SourceServiceAccount(_)
        | WhenCondition::SourcePrincipal(_)
        | WhenCondition::SourceTrustDomain(_)
        | WhenCondition::DestinationIp(_)
        | WhenCondition::DestinationPort(_) => None,
    };
    let sources = rule.from.iter().flat_map(source);
    let both = sources.chain(rule.to.iter().flat_map(operation));
    let asked = both.filter(|(_, asked)| *asked).map(|(field, _)| field);
    let mut asked: Vec<_> = asked
        .chain(rule.when.iter().filter_map(condition))
        .collect();
    asked.sort_unstable();
    asked.dedup();
    asked
}
