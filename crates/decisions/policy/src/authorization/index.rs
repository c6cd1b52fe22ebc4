//! The compiled evaluator: one index over all policies of a workload. The time of a decision depends on the request and
//! hardly on the number of policies, rules or values.
//!
//! A decision costs at most, for each attribute that some rule tests:
//! - one hash of the whole text;
//! - one hash for each length of prefix or suffix that occurs, never more than the text has bytes;
//! - one hash for each length of block (33 for IPv4, 129 for IPv6);
//! - the steps of the template trie.
//!
//! Then come the rules found: at most a dozen under one value, unless no list of values tells them apart. The excluded
//! rest is tested 64 rules at a time. See docs/decisions/0014-authorization.md.

mod addresses;
mod build;
mod claims;
mod compile;
mod hash;
mod named;
mod prepared;
mod rules;
mod store;
mod table;
mod templates;
mod texts;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use self::compile::Compiler;
use self::prepared::Prepared;
use self::rules::NONE;
use self::store::Store;
use super::facts::RequestFacts;
use super::policy::{Action, Policy, PolicyName};
use super::verdict::{AuthorizationOutcome, RuleRef};
use super::weigh::{Groups, PolicyGroup, weigh};

/// The parts of a policy that logs and tools show to people.
#[derive(Debug)]
struct NamedPolicy {
    name: PolicyName,
    origin: Option<Arc<str>>,
    action: Action,
}

/// The policies of one workload, compiled.
pub struct Engine {
    policies: Box<[NamedPolicy]>,
    groups: Groups,
    /// The node of each group, on HTTP and on anything else.
    http: [u32; PolicyGroup::ALL.len()],
    tcp: [u32; PolicyGroup::ALL.len()],
    store: Store,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("policies", &self.policies.len())
            .field("rules", &self.store.rules.len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Compiles the policies that hold for a workload. Their order decides which of several matching rules is named.
    pub fn new<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Self {
        let policies: Vec<&Policy> = policies.into_iter().collect();
        let groups = Groups::of(policies.iter().copied());
        let mut compiler = Compiler::default();
        let mut nodes = |http| {
            PolicyGroup::ALL.map(|group| match groups.has(group) {
                true => group_node(&mut compiler, &policies, group, http),
                false => NONE,
            })
        };
        let (http, tcp) = (nodes(true), nodes(false));
        let named = policies.iter().map(|policy| NamedPolicy {
            name: policy.name.clone(),
            origin: policy.origin.clone(),
            action: policy.action.clone(),
        });
        Self {
            policies: named.collect(),
            groups,
            http,
            tcp,
            store: compiler.finish(),
        }
    }

    /// Decides a request, or a connection that is not HTTP, by the policies.
    pub fn decide(&self, facts: &RequestFacts<'_>) -> AuthorizationOutcome {
        self.decide_with(facts, None)
    }

    /// Like [`Self::decide`], for a request that differs from the request as it `came`. The provider of a CUSTOM rule
    /// is asked if the rule matches either form.
    pub fn decide_with(
        &self,
        facts: &RequestFacts<'_>,
        came: Option<&RequestFacts<'_>>,
    ) -> AuthorizationOutcome {
        let nodes = match facts.http {
            Some(_) => &self.http,
            None => &self.tcp,
        };
        let find = |group: PolicyGroup, prepared: &Prepared<'_>| {
            let mut best = NONE;
            self.store
                .search(nodes[group as usize], prepared, &mut best);
            let rule = self.store.rules.get(best as usize)?;
            Some(rule.place)
        };
        let prepared = Prepared::new(&self.store, facts);
        weigh(&self.groups, |group| {
            find(group, &prepared).or_else(|| {
                let came = came.filter(|_| group.asks())?;
                find(group, &Prepared::new(&self.store, came))
            })
        })
    }

    /// Returns true if there are no policies.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// The name of a rule's policy.
    pub fn name(&self, rule: RuleRef) -> Option<&PolicyName> {
        Some(&self.policies.get(rule.policy as usize)?.name)
    }

    /// The file and line where a rule's policy is written.
    pub fn origin(&self, rule: RuleRef) -> Option<&str> {
        self.policies.get(rule.policy as usize)?.origin.as_deref()
    }

    /// The provider a CUSTOM rule's policy names.
    pub fn provider(&self, rule: RuleRef) -> Option<&Arc<str>> {
        match &self.policies.get(rule.policy as usize)?.action {
            Action::Custom(provider) => Some(provider),
            Action::Allow | Action::Deny | Action::Audit => None,
        }
    }

    /// Bytes held on the heap, texts that policies share with others (names, places) left out.
    pub fn memory(&self) -> usize {
        self.store.memory() + size_of_val(&*self.policies)
    }
}

/// The index over the rules of one group.
fn group_node(
    compiler: &mut Compiler,
    policies: &[&Policy],
    group: PolicyGroup,
    http: bool,
) -> u32 {
    let mut seen = HashSet::new();
    let mut numbers = Vec::new();
    let members = policies
        .iter()
        .zip(0u32..)
        .filter(|(policy, _)| PolicyGroup::of(policy) == group);
    let rules = members.flat_map(|(policy, number)| {
        let rules = policy.rules.iter().zip(0u32..);
        rules.map(move |(rule, at)| {
            (
                policy,
                rule,
                RuleRef {
                    policy: number,
                    rule: at,
                },
            )
        })
    });
    for (policy, rule, place) in rules {
        let Some(shape) = compiler.shape(rule, &policy.action, http) else {
            continue;
        };
        // A rule that says what one before it says is never the first to match.
        if seen.insert(shape) {
            numbers.push(compiler.rule(shape, place));
        }
        if shape == (NONE, NONE, NONE) {
            break;
        }
    }
    compiler.node(&numbers)
}
