//! Resources that a caller refused. A refusal holds until the caller has accepted another version of that very resource, or its
//! removal: an acknowledgement of something else does not lift it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Resources remembered of one type of one stream; a refusal of more is remembered as one of a resource without a name.
const MAX_REJECTED: usize = 32;
/// Longest reason remembered of one resource, in characters.
const MAX_REASON_CHARS: usize = 256;
/// Between two resources in our proxies' refusals, and between a resource and its reason.
const NEXT: &str = "; ";
const BECAUSE: &str = ": ";

/// Bytes that the refusals of one type hold at most, besides names that its stream holds anyway: characters have up to four.
pub(super) const MAX_REJECTED_BYTES: usize = (MAX_REJECTED + 1) * 4 * MAX_REASON_CHARS;

/// Names of resources and why they are refused, shared with whoever shows them. The empty name stands for those that the refusal
/// does not name.
pub type Rejections = Option<Arc<BTreeMap<Arc<str>, String>>>;

/// See the module. Most streams refuse nothing, and pay for one pointer.
#[derive(Debug, Clone, Default)]
pub(super) struct Rejected(Rejections);

impl Rejected {
    /// Bytes that it holds, at most.
    pub(super) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |_| MAX_REJECTED_BYTES)
    }

    pub(super) fn all(&self) -> Rejections {
        self.0.clone()
    }

    /// Those of these names that are refused.
    pub(super) fn among<'a>(&self, names: impl Iterator<Item = &'a Arc<str>>) -> Vec<Arc<str>> {
        let Some(rejected) = &self.0 else {
            return Vec::new();
        };
        names
            .filter(|name| rejected.contains_key(*name))
            .cloned()
            .collect()
    }

    /// The caller answered a response with other versions of these; a refusal without a name was about some response before it.
    pub(super) fn accept(&mut self, names: &[Arc<str>]) {
        let Some(rejected) = &mut self.0 else {
            return;
        };
        let rejected = Arc::make_mut(rejected);
        rejected.remove("");
        for name in names {
            rejected.remove(name);
        }
        if rejected.is_empty() {
            self.0 = None;
        }
    }

    /// The caller says why it refuses; `sent` are the resources that it may mean.
    pub(super) fn refuse(&mut self, said: &str, sent: &HashMap<Arc<str>, Arc<str>>) {
        let rejected = Arc::make_mut(self.0.get_or_insert_default());
        let (mut last, mut found) = (None, false);
        for part in said.split(NEXT) {
            let named = part.match_indices(BECAUSE).find_map(|(at, _)| {
                let (name, _) = sent.get_key_value(&part[..at])?;
                Some((name.clone(), &part[at + BECAUSE.len()..]))
            });
            match (named, &last) {
                (Some((name, why)), _)
                    if rejected.len() < MAX_REJECTED || rejected.contains_key(&name) =>
                {
                    rejected.insert(name.clone(), shortened(why));
                    last = Some(name);
                    found = true;
                }
                (Some(_), _) => {
                    last = None;
                    rejected.insert("".into(), "more resources".to_owned());
                }
                // A reason may have the separator in it.
                (None, Some(name)) => {
                    if let Some(why) = rejected.get_mut(name) {
                        *why = shortened(&format!("{why}{NEXT}{part}"));
                    }
                }
                (None, None) => {}
            }
        }
        if !found {
            rejected.insert("".into(), shortened(said));
        }
    }
}

/// The refusal of a whole response.
pub(in crate::server) fn unnamed(said: &str) -> Rejections {
    Some(Arc::new(BTreeMap::from([("".into(), shortened(said))])))
}

fn shortened(why: &str) -> String {
    why.chars().take(MAX_REASON_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(rejected: &Rejected) -> Vec<String> {
        let all = rejected.all().unwrap_or_default();
        let line = |(name, why): (&Arc<str>, &String)| format!("{name}={why}");
        all.iter().map(line).collect()
    }

    #[test]
    fn a_refusal_stays_until_the_very_resource_is_accepted_or_gone() {
        let name = |text: &str| Arc::<str>::from(text);
        let sent = ["a/b", "c:d", "e"].map(|text| (name(text), name("1")));
        let sent = HashMap::from(sent);
        let mut rejected = Rejected::default();
        assert!(rejected.all().is_none());
        rejected.refuse("a/b: port 80 is taken; by another; c:d: no key", &sent);
        let both = ["a/b=port 80 is taken; by another", "c:d=no key"];
        assert_eq!(told(&rejected), both);
        rejected.accept(&rejected.among([name("e")].iter()));
        assert_eq!(told(&rejected), both, "another resource was accepted");
        rejected.accept(&rejected.among([name("a/b"), name("e")].iter()));
        assert_eq!(told(&rejected), ["c:d=no key"]);
        rejected.refuse("something is wrong", &sent);
        assert_eq!(told(&rejected), ["=something is wrong", "c:d=no key"]);
        rejected.accept(&[name("c:d")]);
        assert!(rejected.all().is_none());
        rejected.refuse("something is wrong", &sent);
        assert_eq!(told(&rejected), ["=something is wrong"]);
        rejected.accept(&[]);
        assert!(rejected.all().is_none());
    }

    #[test]
    fn what_is_remembered_of_refusals_is_bounded() {
        let names: Vec<Arc<str>> = (0..3 * MAX_REJECTED)
            .map(|n| format!("n{n}").into())
            .collect();
        let sent = names
            .iter()
            .map(|name| (name.clone(), "1".into()))
            .collect();
        let said: Vec<String> = names
            .iter()
            .map(|name| format!("{name}: {}", "é".repeat(2000)))
            .collect();
        let mut rejected = Rejected::default();
        rejected.refuse(&said.join(NEXT), &sent);
        let all = rejected.all().expect("some");
        assert_eq!(all.len(), MAX_REJECTED + 1);
        assert!(
            all.values()
                .all(|why| why.chars().count() <= MAX_REASON_CHARS)
        );
        assert!(all.contains_key(""));
        let held: usize = all.values().map(String::len).sum();
        assert!(held <= rejected.bytes(), "{held}");
    }
}
