//! Aliases of the mesh's trust domain: a principal of one of them means the principals of all of them, as Istio rewrites
//! policies before it compiles them.

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

    /// Multiplies the principals and trust domains of a policy. Doing it twice changes nothing more.
    pub fn apply(&self, policy: &mut Policy) {
        let namespace = policy.name.namespace.clone();
        for rule in &mut policy.rules {
            let parts = rule.from.iter_mut().chain(&mut rule.to);
            for term in parts.flatten().chain(&mut rule.when) {
                let attribute = &term.attribute;
                for list in [&mut term.any, &mut term.none] {
                    let expanded = list.iter().flat_map(|pattern| {
                        let values = self.expand(attribute, &pattern.to_string());
                        let read =
                            |value: &String| Pattern::parse(attribute, &namespace, value).ok();
                        // What cannot be read again has not changed.
                        let read: Option<Vec<_>> = values.iter().map(read).collect();
                        read.unwrap_or_else(|| vec![pattern.clone()])
                    });
                    if matches!(
                        attribute,
                        Attribute::SourcePrincipal | Attribute::SourceTrustDomain
                    ) {
                        let mut all: Vec<Pattern> = Vec::new();
                        for pattern in expanded {
                            if !all.contains(&pattern) {
                                all.push(pattern);
                            }
                        }
                        *list = all;
                    }
                }
            }
        }
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
