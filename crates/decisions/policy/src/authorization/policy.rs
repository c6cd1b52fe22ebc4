//! Policies as checked types: the parsed form of a resource. The control plane makes them, the wire carries them as
//! text, and the proxy compiles them.

use std::fmt;
use std::sync::Arc;

use super::attribute::Attribute;
use super::pattern::{Pattern, ValueError};

/// Namespace and name of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyName {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The effect of a policy on the requests that one of its rules matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// They may pass; if any ALLOW policy exists, no other request may pass.
    Allow,
    /// They may not pass.
    Deny,
    /// They are marked.
    Audit,
    /// The provider of that name is asked first.
    Custom(Arc<str>),
}

/// One policy that holds for a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Its name.
    pub name: PolicyName,
    /// File and line where the policy is written, for people.
    pub origin: Option<Arc<str>>,
    /// Its action.
    pub action: Action,
    /// True if the policy only records its decision and does not enforce it.
    pub dry_run: bool,
    /// A request is matched when one of these matches. None of them: it never is.
    pub rules: Vec<PolicyRule>,
}

/// The one provider that the enforced CUSTOM policies name; none where there are none, and where they name several.
pub fn provider_of(policies: &[Policy]) -> Option<&Arc<str>> {
    let enforced = policies.iter().filter(|policy| !policy.dry_run);
    let mut named = enforced.filter_map(|policy| match &policy.action {
        Action::Custom(name) => Some(name),
        Action::Allow | Action::Deny | Action::Audit => None,
    });
    let first = named.next()?;
    named.all(|name| name == first).then_some(first)
}

/// Terms that must all hold. None of them: always.
pub type Terms = Vec<Term>;

/// One rule: one of the sources, and one of the operations, and all conditions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyRule {
    /// The sources, of which one must hold; an empty list asks nothing.
    pub from: Vec<Terms>,
    /// The operations, of which one must hold; an empty list asks nothing.
    pub to: Vec<Terms>,
    /// The conditions.
    pub when: Terms,
}

/// One attribute against its lists: one of `any` must match unless that is empty, and none of `none` may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// The attribute under test.
    pub attribute: Attribute,
    /// `values`, `paths`, …
    pub any: Vec<Pattern>,
    /// `notValues`, `notPaths`, …
    pub none: Vec<Pattern>,
}

impl Term {
    /// Reads both lists as Istio does. `namespace` is the policy's: service accounts without one are in it.
    pub fn parse<S: AsRef<str>>(
        attribute: Attribute,
        namespace: &str,
        any: &[S],
        none: &[S],
    ) -> Result<Self, ValueError> {
        let read = |values: &[S]| {
            let read = |value: &S| Pattern::parse(&attribute, namespace, value.as_ref());
            values.iter().map(read).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            any: read(any)?,
            none: read(none)?,
            attribute,
        })
    }

    /// Returns true if both lists are empty. Istio leaves empty terms out.
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.none.is_empty()
    }
}

impl PolicyRule {
    /// Every term of every part.
    pub fn terms(&self) -> impl Iterator<Item = &Term> {
        let parts = self.from.iter().chain(&self.to);
        parts.flatten().chain(&self.when)
    }

    /// The rule without the terms that cannot be evaluated: HTTP terms on a connection that is not HTTP, and unknown
    /// keys. An ALLOW rule with such a term matches nothing. Any other rule drops the term, so that a DENY rule matches
    /// more requests, never fewer.
    pub fn answerable(&self, action: &Action, http: bool) -> Option<Self> {
        let asked =
            |term: &Term| term.attribute.is_answerable() && (http || !term.attribute.is_http());
        let real = |term: &&Term| !term.is_empty();
        if *action == Action::Allow && !self.terms().filter(real).all(asked) {
            return None;
        }
        let keep = |terms: &Terms| {
            terms
                .iter()
                .filter(|term| real(term) && asked(term))
                .cloned()
                .collect()
        };
        Some(Self {
            from: self.from.iter().map(keep).collect(),
            to: self.to.iter().map(keep).collect(),
            when: keep(&self.when),
        })
    }
}
