//! Cache of the Addresses last found for a few names: a change concerns thousands of streams, and all of them ask for the same
//! names one after the other.

use std::sync::{Arc, Mutex, PoisonError};

use voile_xds::server::Resource;

/// Names remembered: changes come one by one, or a few at a time.
const REMEMBERED: usize = 8;

/// Of one snapshot. A copy of a snapshot is about to become another one: it begins without.
#[derive(Debug, Default)]
pub(crate) struct RecentLookups(Mutex<LastLookup>);

#[derive(Debug, Default)]
struct LastLookup {
    brought: Vec<(Box<str>, Vec<Arc<Resource>>)>,
    /// Index that the next entry overwrites.
    oldest: usize,
}

impl Clone for RecentLookups {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// It says nothing that the rest of a snapshot does not.
impl PartialEq for RecentLookups {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for RecentLookups {}

impl RecentLookups {
    /// Returns the cached Addresses for this name, or finds and caches them.
    pub(super) fn or_else(
        &self,
        name: &str,
        find: impl FnOnce() -> Vec<Arc<Resource>>,
    ) -> Vec<Arc<Resource>> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.brought.iter().find(|(of, _)| **of == *name);
        if let Some((_, found)) = known {
            return found.clone();
        }
        let found = find();
        let entry = (name.into(), found.clone());
        let oldest = last.oldest;
        match last.brought.get_mut(oldest) {
            Some(place) => *place = entry,
            None => last.brought.push(entry),
        }
        last.oldest = (oldest + 1) % REMEMBERED;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(name: &str) -> Vec<Arc<Resource>> {
        vec![Arc::new(Resource {
            name: name.into(),
            aliases: Vec::new(),
            version: "1".into(),
            body: Arc::from(&b""[..]),
        })]
    }

    #[test]
    fn a_few_names_are_found_once_and_each_brings_its_own() {
        let recent = RecentLookups::default();
        let mut searched = 0;
        let mut ask = |recent: &RecentLookups, name: &str| {
            let found = recent.or_else(name, || {
                searched += 1;
                resource(name)
            });
            assert_eq!(*found[0].name, *name);
            searched
        };
        let names: Vec<String> = (0..=REMEMBERED).map(|number| number.to_string()).collect();
        for _ in 0..3 {
            for name in &names[1..] {
                ask(&recent, name);
            }
        }
        assert_eq!(ask(&recent, "1"), REMEMBERED);
        // One more takes the place of the first.
        assert_eq!(ask(&recent, "0"), REMEMBERED + 1);
        assert_eq!(ask(&recent, "2"), REMEMBERED + 1);
        assert_eq!(ask(&recent, "1"), REMEMBERED + 2);
        assert_eq!(ask(&recent.clone(), "0"), REMEMBERED + 3);
    }
}
