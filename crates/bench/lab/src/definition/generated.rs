//! Generated configuration: many services, policies, issuers of tokens or routes, so that their cost is measured against their
//! number. Also states how the experiment's requests meet it: the matching rule, the route, the token, and the result.
//!
//! A new kind is a line in [`KINDS`] with the function that writes its resources; definitions then have a list of that name.

mod policies;
mod routes;
mod tokens;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use voile_report::shape::ENDPOINTS;

pub(crate) use routes::{Asks, Routes, Stray};
pub(crate) use tokens::{FORGED, FRESH, SAME, TOKENS, believed, carried};
use tokens::{ISSUERS, REQUEST_PRINCIPALS};

/// Number of objects of each kind.
pub type Generated = BTreeMap<String, u32>;

/// Generator of resources of one kind.
pub(super) enum GeneratedPolicies {
    /// AuthorizationPolicies at the server: the text of so many, of which one rule may meet the requests.
    Policies(policies::Write),
    /// Policies about request principals. The third argument is the principal of the requests' own tokens.
    AboutTokens(fn(u32, Option<PolicyEffect>, &str) -> String),
    /// Issuers of tokens, at the server.
    Issuers,
    /// Routes at the client's sidecar, by a VirtualService for each host that is called.
    Routes,
    /// Servers that the client's sidecar chooses among, of which the last is slow.
    Endpoints,
    /// Anything else: the text of so many.
    Others(fn(u32) -> String),
}

/// Kinds of generated objects.
pub(super) const KINDS: [(&str, GeneratedPolicies); 16] = [
    ("services", GeneratedPolicies::Others(services)),
    (
        "policies",
        GeneratedPolicies::Policies(policies::mixed_policies),
    ),
    (
        "path_policies",
        GeneratedPolicies::Policies(policies::path_policies),
    ),
    (
        "source_ip_policies",
        GeneratedPolicies::Policies(policies::source_ip_policies),
    ),
    ("rules", GeneratedPolicies::Policies(policies::rules)),
    (
        "principals",
        GeneratedPolicies::Policies(policies::principals),
    ),
    (
        "namespaces",
        GeneratedPolicies::Policies(policies::namespaces),
    ),
    ("paths", GeneratedPolicies::Policies(policies::paths)),
    (
        "source_ips",
        GeneratedPolicies::Policies(policies::source_ips),
    ),
    (
        REQUEST_PRINCIPALS,
        GeneratedPolicies::AboutTokens(policies::request_principals),
    ),
    (ISSUERS, GeneratedPolicies::Issuers),
    (
        "peer_authentications",
        GeneratedPolicies::Others(policies::peer_authentications),
    ),
    ("routes", GeneratedPolicies::Routes),
    ("prefix_routes", GeneratedPolicies::Routes),
    ("header_routes", GeneratedPolicies::Routes),
    (ENDPOINTS, GeneratedPolicies::Endpoints),
];

/// The most of a kind: ten times what Istio's largest published tests had.
pub(super) const MOST: u32 = 100_000;

/// Action of the generated policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GeneratedAction {
    Allow,
    Deny,
    /// DENY that is only counted.
    DryRun,
}

/// The rule that meets the experiment's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatchedRule {
    First,
    Last,
    Miss,
}

/// Effect of generated policies on the experiment's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PolicyEffect {
    pub(crate) action: GeneratedAction,
    pub(crate) hit: MatchedRule,
}

/// By the words of a definition.
pub(super) const VERDICTS: [(&str, PolicyEffect); 9] = {
    const fn one(action: GeneratedAction, hit: MatchedRule) -> PolicyEffect {
        PolicyEffect { action, hit }
    }
    [
        (
            "allow-first",
            one(GeneratedAction::Allow, MatchedRule::First),
        ),
        ("allow-last", one(GeneratedAction::Allow, MatchedRule::Last)),
        ("allow-miss", one(GeneratedAction::Allow, MatchedRule::Miss)),
        ("deny-first", one(GeneratedAction::Deny, MatchedRule::First)),
        ("deny-last", one(GeneratedAction::Deny, MatchedRule::Last)),
        ("deny-miss", one(GeneratedAction::Deny, MatchedRule::Miss)),
        (
            "dry-run-first",
            one(GeneratedAction::DryRun, MatchedRule::First),
        ),
        (
            "dry-run-last",
            one(GeneratedAction::DryRun, MatchedRule::Last),
        ),
        (
            "dry-run-miss",
            one(GeneratedAction::DryRun, MatchedRule::Miss),
        ),
    ]
};

/// The route that takes the requests, by the words of a definition; the last without a word.
pub(super) const HITS: [(&str, MatchedRule); 3] = [
    ("first", MatchedRule::First),
    ("last", MatchedRule::Last),
    ("miss", MatchedRule::Miss),
];
pub(super) const USUAL_HIT: &str = "last";

impl PolicyEffect {
    /// Parses the word; none if the policies match no request and one more policy allows all.
    pub(crate) fn of(word: &str) -> Option<Self> {
        let known = VERDICTS.iter().find(|(known, _)| *known == word);
        known.map(|(_, meeting)| *meeting)
    }

    /// Returns true if requests are refused.
    pub(crate) fn denies(self) -> bool {
        match self.action {
            GeneratedAction::Allow => self.hit == MatchedRule::Miss,
            GeneratedAction::Deny => self.hit != MatchedRule::Miss,
            GeneratedAction::DryRun => false,
        }
    }
}

/// Refusal of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalKind {
    /// The token is not accepted: 401, UNAUTHENTICATED.
    Unknown,
    /// A policy does not allow the request: 403, PERMISSION_DENIED.
    Forbidden,
}

impl RefusalKind {
    /// Its status over HTTP, and gRPC's.
    pub(crate) fn statuses(self) -> [&'static str; 2] {
        match self {
            Self::Unknown => ["401", "16"],
            Self::Forbidden => ["403", "7"],
        }
    }
}

/// Effect of the policies on requests that carry this token; an empty token is none. Returns None if the policies have no effect.
pub(crate) fn meeting(generated: &Generated, verdict: &str, token: &str) -> Option<PolicyEffect> {
    let meeting = PolicyEffect::of(verdict)?;
    // A rule about request principals never matches a request without a token.
    let hit = match token.is_empty() && generated.contains_key(REQUEST_PRINCIPALS) {
        true => MatchedRule::Miss,
        false => meeting.hit,
    };
    Some(PolicyEffect { hit, ..meeting })
}

/// Refusal that every request of the cell must get; none if all must be let in.
pub(crate) fn refusal(generated: &Generated, verdict: &str, token: &str) -> Option<RefusalKind> {
    if token == FORGED && believed(generated) > 0 {
        return Some(RefusalKind::Unknown);
    }
    let denied = meeting(generated, verdict, token).is_some_and(PolicyEffect::denies);
    denied.then_some(RefusalKind::Forbidden)
}

fn makes(kind: &str) -> Option<&'static GeneratedPolicies> {
    let known = KINDS.iter().find(|(name, _)| *name == kind);
    known.map(|(_, make)| make)
}

/// Returns true if the kind is AuthorizationPolicies.
fn are_policies(kind: &str) -> bool {
    let make = makes(kind);
    matches!(
        make,
        Some(GeneratedPolicies::Policies(_) | GeneratedPolicies::AboutTokens(_))
    )
}

/// Returns true if the mesh has generated AuthorizationPolicies.
pub(crate) fn has_policies(generated: &Generated) -> bool {
    generated.keys().any(|kind| are_policies(kind))
}

/// Number of servers of a mesh; none if it uses the one shared server.
pub(crate) fn endpoints(generated: &Generated) -> Option<u32> {
    generated.get(ENDPOINTS).copied()
}

/// Returns true if the mesh has only kinds that can be translated into a peer's own configuration: policies, issuers of tokens,
/// routes and endpoints.
pub(super) fn translates(generated: &Generated) -> bool {
    let mut kinds = generated.keys();
    let others = |kind: &str| kind == ISSUERS || kind == ENDPOINTS || are_routes(kind);
    kinds.all(|kind| are_policies(kind) || others(kind))
}

/// Returns true if the kind is routes.
fn are_routes(kind: &str) -> bool {
    matches!(makes(kind), Some(GeneratedPolicies::Routes))
}

/// Number of kinds of routes in the mesh.
pub(super) fn kinds_of_routes(generated: &Generated) -> usize {
    generated.keys().filter(|kind| are_routes(kind)).count()
}

/// Returns true if policies of the mesh ask about tokens and about other attributes, too.
pub(super) fn asks_more_than_tokens(generated: &Generated) -> bool {
    let mut kinds = generated.keys();
    generated.contains_key(REQUEST_PRINCIPALS)
        && kinds.any(|kind| are_policies(kind) && kind != REQUEST_PRINCIPALS)
}

/// Resources for all of that, as one file of the mesh; empty for nothing.
pub(crate) fn resources(generated: &Generated, verdict: &str) -> String {
    let meeting = PolicyEffect::of(verdict);
    let mut text = String::new();
    for (kind, number) in generated {
        match makes(kind) {
            Some(GeneratedPolicies::Policies(write)) => text += &write(*number, meeting),
            Some(GeneratedPolicies::AboutTokens(write)) => {
                text += &write(*number, meeting, &tokens::principal(generated));
            }
            Some(GeneratedPolicies::Others(write)) => text += &write(*number),
            Some(
                GeneratedPolicies::Issuers
                | GeneratedPolicies::Routes
                | GeneratedPolicies::Endpoints,
            )
            | None => {}
        }
    }
    // Policies about request principals need an issuer, even if the definition asks for none.
    let believed = believed(generated);
    if believed > 0 {
        text += &tokens::issuers(believed);
    }
    if meeting.is_none() && has_policies(generated) {
        text += &policies::passing();
    }
    text
}

/// Services of the mesh that are never called, each with an endpoint.
fn services(number: u32) -> String {
    let mut text = String::new();
    for at in 0..number {
        let [_, high, middle, low] = (at + 1).to_be_bytes();
        let _ = write!(
            text,
            "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: generated-{at}\n  namespace: lab\nspec:\n  \
             hosts:\n  - generated-{at}.lab.internal\n  location: MESH_INTERNAL\n  resolution: STATIC\n  ports:\n  - number: 8000\n    \
             name: http-generated\n    protocol: HTTP\n  endpoints:\n  - address: 127.{}.{middle}.{low}\n",
            128 + high
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, number: u32) -> Generated {
        Generated::from([(kind.to_owned(), number)])
    }

    #[test]
    fn so_many_resources_are_written_and_none_twice() {
        let text = resources(&of("services", 300), "");
        assert_eq!(text.matches("kind: ServiceEntry").count(), 300);
        let addresses: std::collections::BTreeSet<&str> = text
            .lines()
            .filter(|line| line.contains("- address:"))
            .collect();
        assert_eq!(addresses.len(), 300);
        assert_eq!(resources(&Generated::new(), ""), "");
        let text = resources(&of("peer_authentications", 7), "");
        assert_eq!(text.matches("kind: PeerAuthentication").count(), 7);
        for (kind, documents) in [
            ("policies", 40),
            ("path_policies", 40),
            ("source_ip_policies", 40),
            ("rules", 1),
            ("principals", 1),
            ("namespaces", 1),
            ("paths", 1),
            ("source_ips", 1),
            ("request_principals", 1),
        ] {
            for (verdict, passing) in [("", 1), ("allow-last", 0), ("dry-run-miss", 0)] {
                let text = resources(&of(kind, 40), verdict);
                let count = text.matches("kind: AuthorizationPolicy").count();
                assert_eq!(count, documents + passing, "{kind} {verdict}");
                assert_eq!(text.matches("generated-passing").count(), passing, "{kind}");
            }
        }
    }

    /// The value that the experiment's requests have stands once, where the verdict says, among so many in all.
    #[test]
    fn one_rule_meets_the_requests_and_stands_where_it_should() {
        for (kind, met, other) in [
            ("paths", "\"/\"", "\"/generated/"),
            ("principals", "sa/client\"", "/sa/caller-"),
            ("source_ips", "\"0.0.0.0/1\"", "\"203."),
            ("namespaces", "\"lab\"", "\"generated-"),
            ("path_policies", "\"/\"", "\"/generated/"),
            ("source_ip_policies", "\"0.0.0.0/1\"", "\"203."),
            ("policies", "sa/client\"", "/sa/caller-"),
            ("rules", "sa/client\"", "/sa/caller-"),
            ("request_principals", "/subject\"", "/caller-"),
        ] {
            for (verdict, _) in VERDICTS {
                let text = resources(&of(kind, 30), verdict);
                let (hits, others) = (text.matches(met).count(), text.matches(other).count());
                let misses = verdict.ends_with("miss");
                assert_eq!(hits, usize::from(!misses), "{kind} {verdict}: {text}");
                assert_eq!(hits + others, 30, "{kind} {verdict}: {text}");
                if let (Some(hit), Some(other)) = (text.find(met), text.find(other)) {
                    assert_eq!(hit < other, verdict.ends_with("first"), "{kind} {verdict}");
                }
                let dry = text.contains("istio.io/dry-run");
                assert_eq!(dry, verdict.starts_with("dry-run"), "{kind} {verdict}");
            }
        }
    }

    #[test]
    fn what_is_refused_follows_from_action_and_hit() {
        let refused: Vec<&str> = VERDICTS
            .iter()
            .map(|(word, _)| *word)
            .filter(|word| refusal(&of("paths", 9), word, "").is_some())
            .collect();
        assert_eq!(refused, ["allow-miss", "deny-first", "deny-last"]);
        assert_eq!(refusal(&of("paths", 9), "", ""), None);
    }

    #[test]
    fn a_good_token_is_let_in_an_absent_one_is_nobodys_and_a_forged_one_is_never_let_in() {
        let (unknown, forbidden) = (Some(RefusalKind::Unknown), Some(RefusalKind::Forbidden));
        for (kind, verdict, token, expected) in [
            ("request_principals", "allow-last", SAME, None),
            ("request_principals", "allow-last", FRESH, None),
            ("request_principals", "allow-last", "", forbidden),
            ("request_principals", "allow-last", FORGED, unknown),
            ("request_principals", "deny-last", SAME, forbidden),
            ("request_principals", "deny-last", "", None),
            ("request_principals", "deny-last", FORGED, unknown),
            ("request_principals", "dry-run-last", "", None),
            ("issuers", "", "", None),
            ("issuers", "", SAME, None),
            ("issuers", "", FORGED, unknown),
            // No issuer is configured, so tokens are not checked.
            ("paths", "allow-last", FORGED, None),
        ] {
            let found = refusal(&of(kind, 10), verdict, token);
            assert_eq!(found, expected, "{kind} {verdict} {token}");
        }
        let text = resources(&of("request_principals", 10), "allow-last");
        assert_eq!(text.matches("kind: RequestAuthentication").count(), 1);
        let both = Generated::from([
            ("request_principals".to_owned(), 10),
            ("issuers".to_owned(), 5),
        ]);
        let text = resources(&both, "allow-last");
        assert_eq!(text.matches("- issuer: ").count(), 5, "{text}");
        assert!(text.contains("issuer-000004.generated.example/subject\""));
    }
}
