//! All DestinationRules of a mesh: in order of age, and those that may hold for a service found by its host.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use super::DestinationRule;
use crate::names::Hostname;

/// DestinationRules, the oldest first. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct DestinationRules(Arc<RulesByHost>);

#[derive(Debug, Clone, Default)]
struct RulesByHost {
    all: Vec<Arc<DestinationRule>>,
    /// Those for a very name.
    named: HashMap<Hostname, Vec<Arc<DestinationRule>>>,
    /// Those for a pattern.
    patterns: Vec<Arc<DestinationRule>>,
}

impl DestinationRules {
    /// Rules whose host is a service's, or covers it: exact names first, then patterns, each in order of age.
    pub fn covering<'a>(
        &'a self,
        host: &Hostname,
    ) -> impl Iterator<Item = &'a Arc<DestinationRule>> {
        let named = self.0.named.get(host).into_iter().flatten();
        let patterns = self.0.patterns.iter();
        named.chain(patterns.filter(|rule| rule.host.covers(host)))
    }

    /// Takes one in that is older than all.
    pub(crate) fn insert_oldest(&mut self, rule: Arc<DestinationRule>) {
        let known = Arc::make_mut(&mut self.0);
        known.all.insert(0, rule.clone());
        known.alike(&rule).insert(0, rule);
    }

    /// Takes one in that is younger than all.
    pub(crate) fn push(&mut self, rule: Arc<DestinationRule>) {
        let known = Arc::make_mut(&mut self.0);
        known.all.push(rule.clone());
        known.alike(&rule).push(rule);
    }
}

impl RulesByHost {
    /// The list that holds a rule.
    fn alike(&mut self, rule: &DestinationRule) -> &mut Vec<Arc<DestinationRule>> {
        match rule.host.is_wildcard() {
            true => &mut self.patterns,
            false => self.named.entry(rule.host.clone()).or_default(),
        }
    }
}

impl Deref for DestinationRules {
    type Target = [Arc<DestinationRule>];

    fn deref(&self) -> &Self::Target {
        &self.0.all
    }
}

impl<'a> IntoIterator for &'a DestinationRules {
    type Item = &'a Arc<DestinationRule>;
    type IntoIter = std::slice::Iter<'a, Arc<DestinationRule>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// In the order in which they come.
impl FromIterator<Arc<DestinationRule>> for DestinationRules {
    fn from_iter<I: IntoIterator<Item = Arc<DestinationRule>>>(rules: I) -> Self {
        let mut made = Self::default();
        rules.into_iter().for_each(|rule| made.push(rule));
        made
    }
}

impl PartialEq for DestinationRules {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.all == other.0.all
    }
}
