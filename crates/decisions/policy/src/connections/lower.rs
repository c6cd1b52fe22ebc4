//! A policy as node proxies (ztunnel) obey it. An attribute that a connection cannot show makes the policy stricter, never wider,
//! and is named: an ALLOW rule goes, a DENY rule reaches further. (Istio's own translation lets a DENY rule of HTTP attributes
//! alone match nothing.)

use voile_model::mesh::authorization::{Matches, ServiceAccountName};

use super::{
    CallerClause, CallerMatch, CallerRule, ConnectionAction, ConnectionPolicy, PolicyScope,
};
use crate::authorization::{Action, Attribute, Pattern, Policy, PolicyRule, Term, Terms, Text};

/// A condition that a node proxy cannot evaluate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnseenTerm {
    /// Number of its rule.
    pub rule: usize,
    /// The attribute, and those of its values that a node proxy cannot be told.
    pub term: Term,
}

/// The policy, whose trust domains' aliases are written out already, and what of it a node proxy cannot evaluate. A node proxy asks
/// no provider, so it denies what a CUSTOM rule matches, and it audits nothing.
pub fn lower(policy: &Policy, scope: PolicyScope) -> (ConnectionPolicy, Vec<UnseenTerm>) {
    let (action, written) = match policy.action {
        Action::Allow => (ConnectionAction::Allow, &policy.rules[..]),
        Action::Deny | Action::Custom(_) => (ConnectionAction::Deny, &policy.rules[..]),
        Action::Audit => (ConnectionAction::Deny, &[][..]),
    };
    let (mut rules, mut unseen) = (Vec::new(), Vec::new());
    for (number, rule) in written.iter().enumerate() {
        let before = unseen.len();
        let terms = rule.terms().map(unseen_part);
        let terms = terms.filter(|term| !term.is_empty());
        unseen.extend(terms.map(|term| UnseenTerm { rule: number, term }));
        if action == ConnectionAction::Deny || unseen.len() == before {
            rules.extend(lower_rule(rule));
        }
    }
    let dry_run = policy.dry_run;
    let lowered = ConnectionPolicy {
        scope,
        action,
        dry_run,
        rules,
    };
    (lowered, unseen)
}

impl Policy {
    /// Makes of the policy what [`lower`] makes of it, in its own words, for explanations. A term that a node proxy cannot evaluate
    /// becomes [`Attribute::Unanswerable`].
    pub fn limit_to_connections(&mut self) {
        match self.action {
            Action::Custom(_) => self.action = Action::Deny,
            Action::Audit => self.rules.clear(),
            Action::Allow | Action::Deny => {}
        }
        for rule in &mut self.rules {
            let parts = rule.from.iter_mut().chain(&mut rule.to).flatten();
            for term in parts.chain(&mut rule.when) {
                if !unseen_part(term).is_empty() {
                    term.attribute = Attribute::Unanswerable(term.attribute.to_string().into());
                } else if term.attribute == Attribute::SourceNamespace {
                    term.attribute = Attribute::PeerNamespace;
                }
            }
        }
    }
}

/// The term with those values that no match can ask for.
fn unseen_part(term: &Term) -> Term {
    let mut unused = CallerMatch::default();
    let mut list = |values: &[Pattern]| {
        let unseen = values.iter();
        let unseen = unseen.filter(|one| !ask(&mut unused, &term.attribute, one, true));
        unseen.cloned().collect()
    };
    Term {
        any: list(&term.any),
        none: list(&term.none),
        attribute: term.attribute.clone(),
    }
}

/// The rule without what cannot be asked. Several where sources ask for trust domains: those are asked of the principal beside
/// whatever else is, and one match has one list of principals.
fn lower_rule(rule: &PolicyRule) -> Vec<CallerRule> {
    let mut common = Vec::new();
    common.extend(one_of(&rule.to));
    for term in &rule.when {
        common.extend(all_of(std::slice::from_ref(term)));
    }
    let mut sources = rule.from.iter().flatten();
    if !sources.any(|term| term.attribute == Attribute::SourceTrustDomain) {
        common.extend(one_of(&rule.from));
        return vec![CallerRule { clauses: common }];
    }
    let with_source = |source: &Terms| {
        let mut clauses = common.clone();
        clauses.extend(all_of(source));
        CallerRule { clauses }
    };
    rule.from.iter().map(with_source).collect()
}

/// One of these must hold; nothing where one of them always does, since a match that asks nothing never holds.
fn one_of(alternatives: &[Terms]) -> Option<CallerClause> {
    let matches: Vec<CallerMatch> = alternatives.iter().map(match_of).collect();
    let always = matches.is_empty() || matches.contains(&CallerMatch::default());
    (!always).then_some(CallerClause { matches })
}

/// All of these must hold.
fn all_of(terms: &[Term]) -> Vec<CallerClause> {
    let terms = terms.iter().cloned();
    let (domains, others): (Terms, Terms) =
        terms.partition(|term| term.attribute == Attribute::SourceTrustDomain);
    let domains = domains.into_iter().map(|term| vec![term]);
    let alone = std::iter::once(others).chain(domains);
    alone.filter_map(|terms| one_of(&[terms])).collect()
}

fn match_of(terms: &Terms) -> CallerMatch {
    let mut made = CallerMatch::default();
    for term in terms.iter().filter(|term| unseen_part(term).is_empty()) {
        for (values, wanted) in [(&term.any, true), (&term.none, false)] {
            for value in values {
                ask(&mut made, &term.attribute, value, wanted);
            }
        }
    }
    made
}

/// Adds a value to those that a match asks for, or to those that it excludes. Returns false if a connection cannot show the
/// attribute, or Istio's message has no word for the value: for stars inside a namespace, and for trust domains by their end,
/// since they are the beginning of a principal.
fn ask(into: &mut CallerMatch, attribute: &Attribute, value: &Pattern, wanted: bool) -> bool {
    fn add<T>(matches: &mut Matches<T>, wanted: bool, value: T) {
        match wanted {
            true => matches.any_of.push(value),
            false => matches.none_of.push(value),
        }
    }
    match (attribute, value) {
        (_, Pattern::Text(Text::Glob(_)))
        | (Attribute::SourceTrustDomain, Pattern::Text(Text::Suffix(_))) => return false,
        (Attribute::SourcePrincipal, Pattern::Text(text)) => {
            add(&mut into.principals, wanted, text.clone());
        }
        (Attribute::SourceTrustDomain, Pattern::Text(text)) => {
            let beginning = match text {
                Text::Exact(domain) => Text::Prefix(format!("{domain}/").into()),
                beginning => beginning.clone(),
            };
            add(&mut into.principals, wanted, beginning);
        }
        (Attribute::SourceNamespace | Attribute::PeerNamespace, Pattern::Text(text)) => {
            add(&mut into.namespaces, wanted, text.clone());
        }
        (Attribute::SourceServiceAccount, Pattern::ServiceAccount { namespace, name }) => {
            let (namespace, name) = (namespace.clone(), name.clone());
            let account = ServiceAccountName { namespace, name };
            add(&mut into.service_accounts, wanted, account);
        }
        (Attribute::SourceIp, Pattern::Cidr(range)) => add(&mut into.source_ips, wanted, *range),
        (Attribute::DestinationIp, Pattern::Cidr(range)) => {
            add(&mut into.destination_ips, wanted, *range);
        }
        (Attribute::DestinationPort, Pattern::Port(port)) => {
            add(&mut into.destination_ports, wanted, u32::from(*port));
        }
        // A connection shows neither the original client, nor the token's principal, nor the request.
        _ => return false,
    }
    true
}
