//! Rules about tokens of our workload, compiled once for all workers and never changed. They borrow the attributes of a
//! request.

use std::fmt;
use std::sync::Arc;

use voile_model::mesh::TokenRule;
use voile_policy::tokens::{RuleKeys, Rules};

/// See the module. Equal only to its own copies: a new compilation always counts as a change.
#[derive(Clone)]
pub(crate) struct Tokens(Arc<CompiledTokenRules>);

enum CompiledTokenRules {
    Rules(Box<Rules>),
    /// Rules cannot be read, and were never good: no request passes.
    Shut,
}

impl PartialEq for Tokens {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tokens").field(&self.len()).finish()
    }
}

impl Tokens {
    /// Compiles rules in the order in which they are tried, each with its keys as far as they are known. Keys that were read
    /// before are not read again.
    pub(crate) fn new(rules: &[(&TokenRule, Option<&str>)], before: Option<&Self>) -> Self {
        let before = before.and_then(Self::rules);
        let given = rules.iter().map(|&(rule, keys)| RuleKeys { rule, keys });
        Self(Arc::new(CompiledTokenRules::Rules(
            Rules::new(given, before).into(),
        )))
    }

    /// Refuses every request.
    pub(crate) fn shut() -> Self {
        Self(Arc::new(CompiledTokenRules::Shut))
    }

    /// The rules; none where they cannot be read.
    pub(crate) fn rules(&self) -> Option<&Rules> {
        match &*self.0 {
            CompiledTokenRules::Rules(rules) => Some(rules),
            CompiledTokenRules::Shut => None,
        }
    }

    /// Number of rules.
    pub(crate) fn len(&self) -> usize {
        self.rules().map_or(0, Rules::len)
    }
}
