//! Aliases of the mesh's trust domain: a principal of one of them means the principals of all of them, as Istio rewrites
//! policies before it compiles them.

use std::collections::HashSet;

use super::attribute::Attribute;
use super::pattern::Pattern;
use super::policy::Policy;

/// The mesh's trust domain and its aliases, the domain first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustDomains(Vec<String>);

/// In a policy this always means the mesh's own.
const LOCAL: &str = "cluster.local";

impl TrustDomains {
    /// The domain and what else it is called.
    pub fn new(domain: &str, aliases: &[&str]) -> Self {
        let all = std::iter::once(domain).chain(aliases.iter().copied());
        Self(all.map(str::to_owned).collect())
    }

    /// Multiplies the principals and trust domains of a policy. Doing it twice changes no verdict: it adds at most what a
    /// domain written by its end covers already.
    pub fn apply(&self, policy: &mut Policy) {
        let namespace = policy.name.namespace.clone();
        for rule in &mut policy.rules {
            let parts = rule.from.iter_mut().chain(&mut rule.to);
            let terms = parts.flatten().chain(&mut rule.when);
            for term in terms.filter(|term| names_a_domain(&term.attribute)) {
                for list in [&mut term.any, &mut term.none] {
                    *list = self.multiplied(&term.attribute, &namespace, list);
                }
            }
        }
    }

    /// The patterns of a list in every domain, each once.
    fn multiplied(&self, attribute: &Attribute, namespace: &str, list: &[Pattern]) -> Vec<Pattern> {
        let expanded = list.iter().flat_map(|pattern| {
            let values = self.expand(attribute, &pattern.to_string());
            let read = |value: &String| Pattern::parse(attribute, namespace, value).ok();
            // A value that cannot be parsed again is left unchanged.
            let read: Option<Vec<_>> = values.iter().map(read).collect();
            read.unwrap_or_else(|| vec![pattern.clone()])
        });
        let mut known = HashSet::new();
        expanded
            .filter(|pattern| known.insert(pattern.clone()))
            .collect()
    }

    fn expand(&self, attribute: &Attribute, value: &str) -> Vec<String> {
        let unchanged = || vec![value.to_owned()];
        match attribute {
            Attribute::SourcePrincipal => self.principal(value).unwrap_or_else(unchanged),
            Attribute::SourceTrustDomain if self.0.iter().any(|domain| domain == value) => {
                self.0.clone()
            }
            _ => unchanged(),
        }
    }

    /// The principal in every domain; none when it does not name a domain of ours.
    fn principal(&self, value: &str) -> Option<Vec<String>> {
        let (domain, rest) = value.split_once('/')?;
        let whole = rest.split('/').count() == 4;
        let ours = domain == LOCAL || self.0.iter().any(|known| alike(domain, known));
        if !whole || domain == "*" || !ours {
            return None;
        }
        let mut all = Vec::new();
        for known in &self.0 {
            // A domain that is written as a suffix stays as it is for those it covers.
            let new = match domain.strip_prefix('*') {
                Some(end) if known.ends_with(end) => value.to_owned(),
                _ => format!("{known}/{rest}"),
            };
            if !all.contains(&new) {
                all.push(new);
            }
        }
        Some(all)
    }
}

/// Returns true if the attribute's values name a trust domain.
fn names_a_domain(attribute: &Attribute) -> bool {
    matches!(
        attribute,
        Attribute::SourcePrincipal | Attribute::SourceTrustDomain
    )
}

/// Istio's comparison of domains: either may be a pattern of the other.
fn alike(one: &str, other: &str) -> bool {
    let covers = |pattern: &str, text: &str| {
        let prefix = pattern
            .strip_suffix('*')
            .is_some_and(|beginning| text.starts_with(beginning));
        prefix
            || pattern
                .strip_prefix('*')
                .is_some_and(|end| text.ends_with(end))
    };
    one == other || covers(one, other) || covers(other, one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorization::{Action, PolicyName, PolicyRule, Term};

    /// The values of one list after the rewrite.
    fn rewritten(domains: &TrustDomains, attribute: &Attribute, value: &str) -> Vec<String> {
        let pattern = Pattern::parse(attribute, "shop", value).expect("a value");
        let term = Term {
            attribute: attribute.clone(),
            any: vec![pattern.clone()],
            none: vec![pattern],
        };
        let rule = PolicyRule {
            from: vec![vec![term.clone()]],
            when: vec![term],
            ..PolicyRule::default()
        };
        let mut policy = Policy {
            name: PolicyName {
                namespace: "shop".into(),
                name: "p".into(),
            },
            origin: None,
            action: Action::Allow,
            dry_run: false,
            rules: vec![rule],
        };
        domains.apply(&mut policy);
        let texts = |patterns: &[Pattern]| -> Vec<String> {
            patterns.iter().map(Pattern::to_string).collect()
        };
        let rule = &policy.rules[0];
        let places = [&rule.from[0][0], &rule.when[0]];
        let all = texts(&places[0].any);
        for place in places {
            assert_eq!(texts(&place.any), all, "{value}");
            assert_eq!(texts(&place.none), all, "{value}: what is excluded, too");
        }
        all
    }

    #[test]
    fn a_principal_of_one_name_of_the_mesh_means_all_its_names() {
        let principal = Attribute::SourcePrincipal;
        let domain = Attribute::SourceTrustDomain;
        let cases: [(&[&str], &Attribute, &str, &[&str]); 13] = [
            // (the domain and its aliases, attribute, as written, as compared)
            (&["td1"], &principal, "td1/ns/a/sa/b", &["td1/ns/a/sa/b"]),
            (
                &["td1", "td2"],
                &principal,
                "td1/ns/a/sa/b",
                &["td1/ns/a/sa/b", "td2/ns/a/sa/b"],
            ),
            (
                &["td1", "td2"],
                &principal,
                "td2/ns/a/sa/b",
                &["td1/ns/a/sa/b", "td2/ns/a/sa/b"],
            ),
            // The name that always means the mesh's own domain.
            (
                &["td1", "td2"],
                &principal,
                "cluster.local/ns/a/sa/b",
                &["td1/ns/a/sa/b", "td2/ns/a/sa/b"],
            ),
            // A foreign trust domain.
            (
                &["td1", "td2"],
                &principal,
                "other/ns/a/sa/b",
                &["other/ns/a/sa/b"],
            ),
            // Values that name no domain, or not a whole identity.
            (&["td1", "td2"], &principal, "*", &["*"]),
            (&["td1", "td2"], &principal, "*/ns/a/sa/b", &["*/ns/a/sa/b"]),
            (&["td1", "td2"], &principal, "td1/ns/a*", &["td1/ns/a*"]),
            // The beginning of whole identities.
            (
                &["td1", "td2"],
                &principal,
                "td1/ns/a/sa/*",
                &["td1/ns/a/sa/*", "td2/ns/a/sa/*"],
            ),
            // A domain by its end covers the names it covers, and stands for the others.
            (
                &["old-td", "td2"],
                &principal,
                "*-td/ns/a/sa/b",
                &["*-td/ns/a/sa/b", "td2/ns/a/sa/b"],
            ),
            (&["td1", "td2"], &domain, "td2", &["td1", "td2"]),
            (&["td1", "td2"], &domain, "other", &["other"]),
            (&["td1", "td2"], &domain, "td*", &["td*"]),
        ];
        for (names, attribute, written, compared) in cases {
            let domains = TrustDomains::new(names[0], &names[1..]);
            assert_eq!(
                rewritten(&domains, attribute, written),
                compared,
                "{written} in {names:?}"
            );
        }
    }

    #[test]
    fn other_attributes_are_left_alone() {
        let domains = TrustDomains::new("td1", &["td2"]);
        for (attribute, value) in [
            (Attribute::SourceNamespace, "td1"),
            (Attribute::RequestPrincipal, "td1/ns/a/sa/b"),
            (Attribute::Host, "td1"),
            (Attribute::Sni, "cluster.local/ns/a/sa/b"),
        ] {
            assert_eq!(
                rewritten(&domains, &attribute, value),
                [value],
                "{attribute:?}"
            );
        }
    }
}
