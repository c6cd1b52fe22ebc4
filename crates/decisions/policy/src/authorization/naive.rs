//! The obvious evaluator: every rule in turn, word for word what Istio's documents and the filters it generates say. It is
//! what `index` must agree with, what explanations are made of, and too slow for anything else.

use voile_model::Identity;

use crate::claims::Claim;

use super::attribute::Attribute;
use super::facts::{HttpFacts, RequestFacts, without_query};
use super::lines;
use super::pattern::{Pattern, RequestPrincipal, Text};
use super::policy::{Policy, PolicyRule, Term, Terms};
use super::verdict::{AuthorizationOutcome, RuleRef};
use super::weigh::{Groups, PolicyGroup, weigh};

/// Decides a request by the policies.
pub fn decide(policies: &[Policy], facts: &RequestFacts<'_>) -> AuthorizationOutcome {
    decide_with(policies, facts, None)
}

/// Like [`decide`], for a request that differs from the request as it `came`. The provider of a CUSTOM rule is asked if
/// the rule matches either form.
pub fn decide_with(
    policies: &[Policy],
    facts: &RequestFacts<'_>,
    came: Option<&RequestFacts<'_>>,
) -> AuthorizationOutcome {
    let groups = Groups::of(policies.iter());
    weigh(&groups, |group| {
        let readings = [Some(facts), came.filter(|_| group.asks())];
        let mut readings = readings.into_iter().flatten();
        readings.find_map(|facts| first_match(policies, group, facts))
    })
}

/// The first rule of a group of policies that matches, in their order.
fn first_match(
    policies: &[Policy],
    group: PolicyGroup,
    facts: &RequestFacts<'_>,
) -> Option<RuleRef> {
    let numbered = policies.iter().zip(0..);
    let mut members = numbered.filter(|(policy, _)| PolicyGroup::of(policy) == group);
    members.find_map(|(policy, number)| {
        let rule = matching(policy, facts)?;
        Some(RuleRef {
            policy: number,
            rule: u32::try_from(rule).ok()?,
        })
    })
}

/// The first rule of a policy that matches.
pub fn matching(policy: &Policy, facts: &RequestFacts<'_>) -> Option<usize> {
    let rules = policy.rules.iter();
    rules.clone().position(|rule| {
        let asked = rule.answerable(&policy.action, facts.http.is_some());
        asked.is_some_and(|rule| rule_matches(&rule, facts))
    })
}

/// Returns true if a rule matches whose terms can all be evaluated.
pub fn rule_matches(rule: &PolicyRule, facts: &RequestFacts<'_>) -> bool {
    let one_of =
        |parts: &[Terms]| parts.is_empty() || parts.iter().any(|terms| all_hold(terms, facts));
    one_of(&rule.from) && one_of(&rule.to) && all_hold(&rule.when, facts)
}

fn all_hold(terms: &Terms, facts: &RequestFacts<'_>) -> bool {
    terms.iter().all(|term| holds(term, facts))
}

/// Returns true if the term holds: one of the values of `any` matches and none of `none`. A missing attribute matches
/// no value: a list of values fails on it, a list of excluded values holds.
pub fn holds(term: &Term, facts: &RequestFacts<'_>) -> bool {
    let matches = |pattern: &Pattern| pattern_matches(&term.attribute, pattern, facts);
    (term.any.is_empty() || term.any.iter().any(matches)) && !term.none.iter().any(matches)
}

fn pattern_matches(attribute: &Attribute, pattern: &Pattern, facts: &RequestFacts<'_>) -> bool {
    match (attribute, pattern) {
        (Attribute::SourceIp, Pattern::Cidr(cidr)) => cidr.contains(facts.source_ip),
        (Attribute::RemoteIp, Pattern::Cidr(cidr)) => cidr.contains(facts.remote_ip),
        (Attribute::DestinationIp, Pattern::Cidr(cidr)) => cidr.contains(facts.destination.ip()),
        (Attribute::DestinationPort, Pattern::Port(port)) => facts.destination.port() == *port,
        (Attribute::Sni, Pattern::Text(text)) => {
            let name = facts.sni.unwrap_or_default().to_ascii_lowercase();
            text.matches(name.as_bytes())
        }
        (_, pattern) => {
            let of_peer = facts
                .source
                .is_some_and(|peer| peer_matches(attribute, pattern, peer));
            of_peer
                || facts
                    .http
                    .is_some_and(|http| http_matches(attribute, pattern, &http))
        }
    }
}

fn peer_matches(attribute: &Attribute, pattern: &Pattern, peer: &Identity) -> bool {
    match (attribute, pattern) {
        (Attribute::SourcePrincipal, Pattern::Text(text)) => {
            let principal = peer.to_string();
            text.matches(&principal.as_bytes()["spiffe://".len()..])
        }
        (Attribute::SourceNamespace, Pattern::Text(text)) => namespace_matches(text, peer),
        (Attribute::PeerNamespace, Pattern::Text(text)) => {
            text.matches(peer.namespace.as_str().as_bytes())
        }
        (Attribute::SourceTrustDomain, Pattern::Text(text)) => {
            text.matches(peer.trust_domain.as_str().as_bytes())
        }
        (Attribute::SourceServiceAccount, Pattern::ServiceAccount { namespace, name }) => {
            **namespace == *peer.namespace.as_str() && *name == peer.service_account
        }
        _ => false,
    }
}

/// Istio tests for `/ns/VALUE/` anywhere in the principal, and a star stands for any text. So a value that ends as `sa`
/// does matches every principal. A value that is `sa` matches the principals of namespace `ns`. This code gives the
/// same answers.
fn namespace_matches(text: &Text, peer: &Identity) -> bool {
    let principal = peer.to_string();
    let starts = principal.match_indices('/').filter_map(|(at, _)| {
        let rest = principal[at..].strip_prefix("/ns/")?;
        Some(rest)
    });
    let mut readings = starts.flat_map(|rest| {
        let ends = rest.match_indices('/').map(|(end, _)| end);
        ends.map(move |end| &rest.as_bytes()[..end])
    });
    readings.any(|reading| match text {
        Text::Present => true,
        text => text.matches(reading),
    })
}

fn http_matches(attribute: &Attribute, pattern: &Pattern, http: &HttpFacts<'_>) -> bool {
    match (attribute, pattern) {
        (Attribute::Host, Pattern::Text(text)) => {
            http.authority.is_some_and(|host| host_matches(text, host))
        }
        (Attribute::Method, Pattern::Text(text)) => text_or_present(text, http.method),
        (Attribute::Path, Pattern::Text(text)) => text.matches(without_query(http.path)),
        (Attribute::Path, Pattern::Template(template)) => {
            template.matches(without_query(http.path))
        }
        (Attribute::RequestHeader(name), Pattern::Text(text)) => header(name, text, http),
        (Attribute::RequestPrincipal, Pattern::RequestPrincipal(principal)) => {
            request_principal(principal, http)
        }
        (Attribute::RequestAudiences, Pattern::Text(text)) => claim(&["aud"], text, http),
        (Attribute::RequestPresenter, Pattern::Text(text)) => claim(&["azp"], text, http),
        (Attribute::RequestClaim(path), Pattern::Text(text)) => {
            let path: Vec<&str> = path.iter().map(AsRef::as_ref).collect();
            claim(&path, text, http)
        }
        _ => false,
    }
}

fn host_matches(text: &Text, host: &[u8]) -> bool {
    *text == Text::Present || text.matches_any_case(host)
}

/// In headers, `*` means that there is one, even an empty one.
fn text_or_present(text: &Text, value: &[u8]) -> bool {
    *text == Text::Present || text.matches(value)
}

/// Returns true if one of the header's lines matches. Each line is compared by itself, unless all lines form one value
/// ([`lines`]). The pseudo-headers are headers too, and `Host` is `:authority`.
fn header(name: &str, text: &Text, http: &HttpFacts<'_>) -> bool {
    match name {
        ":authority" | "host" => {
            return http
                .authority
                .is_some_and(|host| text_or_present(text, host));
        }
        ":method" => return text_or_present(text, http.method),
        ":path" => return text_or_present(text, http.path),
        _ => {}
    }
    let mut values = Vec::new();
    http.headers.each(&mut |line, value| {
        if line.eq_ignore_ascii_case(name.as_bytes()) {
            values.push(value);
        }
    });
    if values.len() > 1 && lines::are_joined(name) {
        return text_or_present(text, &lines::joined(&values));
    }
    values.iter().any(|value| text_or_present(text, value))
}

fn request_principal(principal: &RequestPrincipal, http: &HttpFacts<'_>) -> bool {
    let text_of = |name: &str| Some(http.claims?.get(name)?.as_str()?.as_bytes());
    text_of("iss").is_some_and(|issuer| principal.issuer.matches(issuer))
        && text_of("sub").is_some_and(|subject| principal.subject.matches(subject))
}

/// A claim is a text or a list with such a text in it. Numbers and the rest match nothing.
fn claim(path: &[&str], text: &Text, http: &HttpFacts<'_>) -> bool {
    let Some((first, inner)) = path.split_first() else {
        return false;
    };
    let start = http.claims.and_then(|claims| claims.get(first));
    let found = inner
        .iter()
        .try_fold(start, |value, name| Some(value?.get(name)));
    let is = |value: Claim<'_>| {
        value
            .as_str()
            .is_some_and(|one| text.matches(one.as_bytes()))
    };
    match found.flatten() {
        Some(Claim::List(list)) => list.iter().any(is),
        Some(value) => is(value),
        None => false,
    }
}
