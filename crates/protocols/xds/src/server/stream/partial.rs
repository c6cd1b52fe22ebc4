//! Differences under the touched names only; the other names keep their last answers. Everything unusual (searches, new or
//! unknown names, more than fits a response) is left to the full look in `differences`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    Differences, KeepRule, MAX_RESPONSE_BYTES, Names, Resolution, Resource, Snapshot, StreamType,
    WantedResource,
};

impl StreamType {
    /// Differences to send now; `None` if there are none. Names in `keep` are not reported as removed.
    pub(super) fn due<C: 'static>(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        caller: &C,
        type_url: &str,
        keep: KeepRule<'_>,
    ) -> Option<Differences> {
        if !self.is_due() {
            return None;
        }
        if self.dirty || keep != KeepRule::Nothing {
            return self.differences(snapshot, caller, type_url, keep);
        }
        match self.partial(snapshot, caller, type_url) {
            Some((added, removed)) => {
                self.touched = Names::None;
                (!added.is_empty() || !removed.is_empty()).then_some((added, removed))
            }
            None => self.differences(snapshot, caller, type_url, keep),
        }
    }

    /// Answers to names just asked for and never answered, while all other names must wait: those are still to be looked at.
    pub(super) fn introduced<C: 'static>(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        caller: &C,
        type_url: &str,
    ) -> Option<Differences> {
        // A caller that asks for the type for the first time and holds nothing of it has just asked for all its names. Existing
        // routes may already lead to the resources that it asks for by their own names.
        let begins = self.greet && self.sent.is_empty();
        let asked = if begins { &self.names } else { &self.fresh };
        let (mut new, mut absent) = (BTreeMap::new(), BTreeSet::new());
        let mut answered = Vec::new();
        for name in asked {
            let nothing = match snapshot.resolve(caller, type_url, name) {
                Resolution::Found(found) => {
                    let is_new = |one: &Arc<Resource>| {
                        !self.sent.contains_key(&one.name) && !new.contains_key(&one.name)
                    };
                    let by_name = found.first().is_none_or(|first| first.name == *name);
                    if !(begins && by_name) && found.iter().all(is_new) {
                        let told = (0..).zip(found);
                        new.extend(told.map(|(index, one)| introduce(name, index, one)));
                        answered.push(name.clone());
                    }
                    continue;
                }
                Resolution::Unknown => vec![name.clone()],
                Resolution::Lacking(mut all) => {
                    all.push(name.clone());
                    all
                }
                Resolution::Refused(_) => continue,
            };
            // Removals wait.
            if !nothing.iter().any(|one| self.sent.contains_key(one)) {
                absent.extend(nothing);
                answered.push(name.clone());
            }
        }
        let bytes: usize = new.values().map(|one| one.resource.body.len()).sum();
        if answered.is_empty() || bytes > MAX_RESPONSE_BYTES {
            return None;
        }
        for one in new.values() {
            self.sent.insert(one.resource.name.clone(), one.version());
        }
        self.told_absent.extend(absent.iter().cloned());
        for name in &answered {
            self.fresh.remove(name);
        }
        self.greet &= !begins;
        self.dirty = true;
        Some((new.into_values().collect(), absent.into_iter().collect()))
    }

    /// The differences under what was touched; `None` when everything has to be looked at.
    fn partial<C: 'static>(
        &mut self,
        snapshot: &dyn Snapshot<C>,
        caller: &C,
        type_url: &str,
    ) -> Option<Differences> {
        if self.searches || self.greet || !self.fresh.is_empty() {
            return None;
        }
        // Nothing is changed before it is known that this is enough.
        let (mut answers, mut added, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut gone: BTreeSet<Arc<str>> = BTreeSet::new();
        for name in self.asked_again() {
            let before = self.answers.get(name);
            let first = before.and_then(|brought| brought.first());
            let Resolution::Found(found) = snapshot.resolve(caller, type_url, name) else {
                return None;
            };
            if first != found.first().map(|one| &one.name) {
                return None;
            }
            let names = || found.iter().map(|one| &one.name);
            if !before.is_some_and(|before| before.iter().eq(names())) {
                let brought: Vec<Arc<str>> = names().cloned().collect();
                let left = before.into_iter().flatten();
                gone.extend(left.filter(|old| !brought.contains(old)).cloned());
                answers.push((name.clone(), brought));
            }
            for resource in found {
                if self.sent.get(&resource.name) != Some(&resource.version) {
                    bytes += resource.body.len();
                    added.push(WantedResource {
                        resource,
                        owed: false,
                        asked: Vec::new(),
                    });
                }
            }
        }
        if bytes > MAX_RESPONSE_BYTES {
            return None;
        }
        self.answers.extend(answers);
        // Another name may have brought it as well.
        if !gone.is_empty() {
            for one in self.answers.values().flatten() {
                gone.remove(one);
            }
        }
        gone.retain(|name| self.sent.remove(name).is_some());
        added.sort_by(|one: &WantedResource, other| one.resource.name.cmp(&other.resource.name));
        added.dedup_by(|one, other| one.resource.name == other.resource.name);
        for one in &added {
            let resource = &one.resource;
            self.sent
                .insert(resource.name.clone(), resource.version.clone());
        }
        Some((added, gone.into_iter().collect()))
    }

    /// The names asked for that are touched, or that stand for what is.
    fn asked_again(&self) -> Vec<&Arc<str>> {
        if !self.renamed {
            let names = self.touched.iter();
            return names.filter_map(|name| self.names.get(name)).collect();
        }
        let first = |name: &Arc<str>| self.answers.get(name).and_then(|brought| brought.first());
        let is_touched = |name: &&Arc<str>| {
            self.touched.contains(name)
                || first(name).is_some_and(|first| self.touched.contains(first))
        };
        self.names.iter().filter(is_touched).collect()
    }
}

/// Resource at this index of a new name's answer.
fn introduce(name: &Arc<str>, index: usize, resource: Arc<Resource>) -> (Arc<str>, WantedResource) {
    let named = resource.name == *name || resource.aliases.contains(name);
    let asked = (!named && index == 0).then(|| name.clone());
    let one = WantedResource {
        owed: false,
        asked: asked.into_iter().collect(),
        resource,
    };
    (one.resource.name.clone(), one)
}
