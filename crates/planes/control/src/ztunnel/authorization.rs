//! One AuthorizationPolicy as Istio's `Authorization`, which knows connections only. An attribute that it cannot express
//! makes the policy stricter, never wider, and is reported: an ALLOW rule goes, a DENY rule reaches further. (Istio's own
//! translation lets a DENY rule of HTTP attributes alone match nothing.)

use voile_policy::authorization::{
    Action, Attribute, Pattern, Policy, PolicyRule, Term, Terms, Text,
};
use voile_proto::authorization as wire;
use voile_proto::authorization::string_match::MatchType;
use voile_xds::wire::address_bytes;

/// A policy, and what of it could not be said.
pub(super) struct TranslatedPolicy {
    pub(super) message: wire::Authorization,
    pub(super) problems: Vec<String>,
}

/// The policy, whose trust domains' aliases are written out already.
pub(super) fn authorization(policy: &Policy, scope: wire::Scope) -> TranslatedPolicy {
    let mut problems = Vec::new();
    let deny = match &policy.action {
        Action::Allow => false,
        Action::Deny => true,
        Action::Audit => {
            problems.push(
                "a node proxy (ztunnel) does not support AUDIT; no connection is audited"
                    .to_owned(),
            );
            true
        }
        Action::Custom(provider) => {
            let word = if policy.dry_run { "would be" } else { "is" };
            problems.push(format!(
                "a node proxy (ztunnel) cannot call provider `{provider}`; connections that it {word} asked about {word} denied"
            ));
            true
        }
    };
    // An AUDIT policy denies nothing.
    let rules = match policy.action {
        Action::Audit => &[][..],
        _ => &policy.rules[..],
    };
    let mut said = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        let mut unsaid: Vec<String> = Vec::new();
        let made = of_rule(rule, &mut unsaid);
        unsaid.sort();
        unsaid.dedup();
        if unsaid.is_empty() || deny {
            said.extend(made);
        }
        if !unsaid.is_empty() {
            let consequence = match deny {
                true => "the rule ignores that condition, so it denies more than written",
                false => "the rule allows nothing",
            };
            problems.push(format!(
                "rules[{number}] matches on {}, which a node proxy (ztunnel) does not know: {consequence}",
                unsaid.join(", ")
            ));
        }
    }
    let action = if deny {
        wire::Action::Deny
    } else {
        wire::Action::Allow
    };
    TranslatedPolicy {
        message: wire::Authorization {
            name: policy.name.name.to_string(),
            namespace: policy.name.namespace.to_string(),
            scope: scope.into(),
            action: action.into(),
            rules: said,
            dry_run: policy.dry_run,
        },
        problems,
    }
}

/// The rule without what cannot be said, which is named. Several where sources ask for trust domains: those are asked of the
/// principal beside whatever else is, and one match has one list of principals.
fn of_rule(rule: &PolicyRule, unsaid: &mut Vec<String>) -> Vec<wire::Rule> {
    let mut common = Vec::new();
    common.extend(one_of(&rule.to, unsaid));
    for term in &rule.when {
        common.extend(all_of(std::slice::from_ref(term), unsaid));
    }
    let asks_domain = |terms: &Terms| {
        let mut asked = terms.iter().map(|term| &term.attribute);
        asked.any(|attribute| *attribute == Attribute::SourceTrustDomain)
    };
    if !rule.from.iter().any(asks_domain) {
        common.extend(one_of(&rule.from, unsaid));
        return vec![wire::Rule { clauses: common }];
    }
    let with_source = |source: &Terms| {
        let mut clauses = common.clone();
        clauses.extend(all_of(source, unsaid));
        wire::Rule { clauses }
    };
    rule.from.iter().map(with_source).collect()
}

/// One of these must hold; nothing where one of them always does, since a match that says nothing would never.
fn one_of(alternatives: &[Terms], unsaid: &mut Vec<String>) -> Option<wire::Clause> {
    let mut matches = Vec::new();
    for terms in alternatives {
        let mut said = wire::Match::default();
        for term in terms {
            say(term, &mut said, unsaid);
        }
        matches.push(said);
    }
    let empty = wire::Match::default();
    (!matches.is_empty() && !matches.contains(&empty)).then_some(wire::Clause { matches })
}

/// All of these must hold.
fn all_of(terms: &[Term], unsaid: &mut Vec<String>) -> Vec<wire::Clause> {
    let (domains, others): (Vec<&Term>, Vec<&Term>) = terms
        .iter()
        .partition(|term| term.attribute == Attribute::SourceTrustDomain);
    let mut clauses = Vec::new();
    let others: Terms = others.into_iter().cloned().collect();
    clauses.extend(one_of(&[others], unsaid));
    for term in domains {
        let mut said = wire::Match::default();
        let found = (domain_list(&term.any), domain_list(&term.none));
        match found {
            (Some(any), Some(none)) => (said.principals, said.not_principals) = (any, none),
            _ => unsaid.push(field(term)),
        }
        if said != wire::Match::default() {
            clauses.push(wire::Clause {
                matches: vec![said],
            });
        }
    }
    clauses
}

/// Puts a term into a match, or names it.
fn say(term: &Term, said: &mut wire::Match, unsaid: &mut Vec<String>) {
    if term.is_empty() {
        return;
    }
    let both = match &term.attribute {
        Attribute::SourcePrincipal => lists(term, text).map(|(any, none)| {
            said.principals.extend(any);
            said.not_principals.extend(none);
        }),
        Attribute::SourceNamespace | Attribute::PeerNamespace => {
            lists(term, text).map(|(any, none)| {
                said.namespaces.extend(any);
                said.not_namespaces.extend(none);
            })
        }
        Attribute::SourceServiceAccount => lists(term, account).map(|(any, none)| {
            said.service_accounts.extend(any);
            said.not_service_accounts.extend(none);
        }),
        Attribute::SourceIp => lists(term, block).map(|(any, none)| {
            said.source_ips.extend(any);
            said.not_source_ips.extend(none);
        }),
        Attribute::DestinationIp => lists(term, block).map(|(any, none)| {
            said.destination_ips.extend(any);
            said.not_destination_ips.extend(none);
        }),
        Attribute::DestinationPort => lists(term, port).map(|(any, none)| {
            said.destination_ports.extend(any);
            said.not_destination_ports.extend(none);
        }),
        // A connection shows neither the original client, nor the token's principal, nor the request.
        Attribute::SourceTrustDomain
        | Attribute::RemoteIp
        | Attribute::RequestPrincipal
        | Attribute::RequestAudiences
        | Attribute::RequestPresenter
        | Attribute::RequestClaim(_)
        | Attribute::RequestHeader(_)
        | Attribute::Host
        | Attribute::Method
        | Attribute::Path
        | Attribute::Sni
        | Attribute::Unanswerable(_) => None,
    };
    if both.is_none() {
        unsaid.push(field(term));
    }
}

fn field(term: &Term) -> String {
    term.attribute.to_string()
}

/// Both lists of a term, if every value can be said.
fn lists<T>(term: &Term, read: fn(&Pattern) -> Option<T>) -> Option<(Vec<T>, Vec<T>)> {
    let list = |values: &[Pattern]| values.iter().map(read).collect::<Option<Vec<T>>>();
    list(&term.any).zip(list(&term.none))
}

fn text(pattern: &Pattern) -> Option<wire::StringMatch> {
    let Pattern::Text(text) = pattern else {
        return None;
    };
    let said = match text {
        Text::Exact(text) => MatchType::Exact(text.to_string()),
        Text::Prefix(text) => MatchType::Prefix(text.to_string()),
        Text::Suffix(text) => MatchType::Suffix(text.to_string()),
        Text::Present => MatchType::Presence(()),
        Text::Glob(_) => return None,
    };
    Some(wire::StringMatch {
        match_type: Some(said),
    })
}

/// A trust domain as the beginning of a principal; one that is known by its end is not.
fn domain_list(values: &[Pattern]) -> Option<Vec<wire::StringMatch>> {
    let domain = |pattern: &Pattern| {
        let Pattern::Text(text) = pattern else {
            return None;
        };
        let said = match text {
            Text::Exact(text) => MatchType::Prefix(format!("{text}/")),
            Text::Prefix(text) => MatchType::Prefix(text.to_string()),
            Text::Present => MatchType::Presence(()),
            Text::Suffix(_) | Text::Glob(_) => return None,
        };
        Some(wire::StringMatch {
            match_type: Some(said),
        })
    };
    values.iter().map(domain).collect()
}

fn account(pattern: &Pattern) -> Option<wire::ServiceAccountMatch> {
    let Pattern::ServiceAccount { namespace, name } = pattern else {
        return None;
    };
    Some(wire::ServiceAccountMatch {
        namespace: namespace.to_string(),
        service_account: name.to_string(),
    })
}

fn block(pattern: &Pattern) -> Option<wire::Address> {
    let Pattern::Cidr(cidr) = pattern else {
        return None;
    };
    Some(wire::Address {
        address: address_bytes(cidr.address()),
        length: cidr.length().into(),
    })
}

fn port(pattern: &Pattern) -> Option<u32> {
    match pattern {
        Pattern::Port(port) => Some(u32::from(*port)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
