//! Services found for the names that pods look up. Each search is for one namespace, so that no pod learns of a
//! service that only others may see.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use voile_model::ServiceKey;

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SearchResult {
    /// This service.
    Service(ServiceKey),
    /// No service that the namespace may see.
    Nobody,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct NameSearches {
    asked: HashMap<Arc<str>, Option<SearchResult>>,
    /// The searches that each service answers.
    answering: HashMap<ServiceKey, HashSet<Arc<str>>>,
}

impl NameSearches {
    pub(super) fn begin(&mut self, name: &Arc<str>) {
        self.asked.entry(Arc::clone(name)).or_default();
    }

    pub(super) fn end(&mut self, name: &str) {
        if let Some(Some(SearchResult::Service(key))) = self.asked.remove(name) {
            self.answers_no_more(&key, name);
        }
    }

    pub(super) fn result(&self, name: &str) -> Option<SearchResult> {
        self.asked.get(name).cloned().flatten()
    }

    pub(super) fn includes(&self, name: &str) -> bool {
        self.asked.contains_key(name)
    }

    /// Notes that no service was found.
    pub(super) fn vain(&mut self, name: &str) {
        let Some(slot) = self.asked.get_mut(name) else {
            return;
        };
        if let Some(SearchResult::Service(key)) = slot.replace(SearchResult::Nobody) {
            self.answers_no_more(&key, name);
        }
    }

    /// Notes that this service has these names. Earlier names that are not among them no longer lead to it.
    pub(super) fn found(&mut self, key: &ServiceKey, names: &[Arc<str>]) {
        let mut ours = HashSet::new();
        for name in names {
            let Some(slot) = self.asked.get_mut(name) else {
                continue;
            };
            ours.insert(Arc::clone(name));
            let before = slot.replace(SearchResult::Service(key.clone()));
            if let Some(SearchResult::Service(other)) = before
                && other != *key
            {
                self.answers_no_more(&other, name);
            }
        }
        let before = self.answering.remove(key).unwrap_or_default();
        for name in before.difference(&ours) {
            if let Some(slot) = self.asked.get_mut(name) {
                *slot = None;
            }
        }
        if !ours.is_empty() {
            self.answering.insert(key.clone(), ours);
        }
    }

    fn answers_no_more(&mut self, key: &ServiceKey, name: &str) {
        if let Some(names) = self.answering.get_mut(key) {
            names.remove(name);
            if names.is_empty() {
                self.answering.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voile_model::{Hostname, Namespace};

    fn key(namespace: &str) -> ServiceKey {
        ServiceKey {
            namespace: Namespace::new(namespace).expect("a namespace"),
            hostname: Hostname::new("web.example.com").expect("a host"),
        }
    }

    #[test]
    fn a_search_leads_to_whoever_answered_it_last_and_is_forgotten_when_nobody_asks() {
        let mut searches = NameSearches::default();
        let (shop, blog): (Arc<str>, Arc<str>) = ("*shop/web".into(), "*blog/web".into());
        let both = [Arc::clone(&shop), Arc::clone(&blog)];
        searches.found(&key("shop"), &both);
        assert_eq!(searches.result(&shop), None, "nobody asked");
        both.iter().for_each(|name| searches.begin(name));
        assert_eq!(searches.result(&shop), None, "nobody answered");
        searches.found(&key("shop"), &both);
        let found = |searches: &NameSearches, name: &str| match searches.result(name) {
            Some(SearchResult::Service(key)) => key.namespace.to_string(),
            Some(SearchResult::Nobody) => "nobody".to_owned(),
            None => "unsaid".to_owned(),
        };
        assert_eq!(found(&searches, &shop), "shop");
        // Another is nearer to one of them.
        searches.found(&key("blog"), &both[1..]);
        assert_eq!(found(&searches, &shop), "shop");
        assert_eq!(found(&searches, &blog), "blog");
        // The first has no name any more: a lookup waits for the next response.
        searches.found(&key("shop"), &[]);
        assert_eq!(found(&searches, &shop), "unsaid");
        assert_eq!(found(&searches, &blog), "blog");
        searches.vain(&blog);
        assert_eq!(found(&searches, &blog), "nobody");
        searches.found(&key("blog"), &both[1..]);
        assert_eq!(found(&searches, &blog), "blog");
        both.iter().for_each(|name| searches.end(name));
        assert!(searches.asked.is_empty() && searches.answering.is_empty());
    }
}
