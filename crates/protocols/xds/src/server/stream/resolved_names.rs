//! Result of resolving a stream's names.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{RequestChanges, Resource, WantedResource};

impl RequestChanges {
    /// There is nothing under this name.
    pub(super) fn lack(&mut self, name: Arc<str>) {
        self.depends_on.insert(name.clone());
        self.absent.insert(name);
    }

    /// A name stands for these, the first of which it is.
    pub(super) fn find(&mut self, name: &Arc<str>, found: Vec<Arc<Resource>>, fresh: bool) {
        // If a name is the resource's own name, the resource's copy of it is kept: other streams share that
        // copy.
        let own = match found.first() {
            Some(first) if first.name == *name => first.name.clone(),
            Some(first) => {
                self.depends_on.insert(first.name.clone());
                name.clone()
            }
            None => name.clone(),
        };
        self.depends_on.insert(own.clone());
        let brought = found.iter().map(|resource| resource.name.clone());
        self.answers.insert(own, brought.collect());
        for (index, resource) in found.into_iter().enumerate() {
            let named = resource.name == *name || resource.aliases.contains(name);
            let one = hold(&mut self.wanted, resource);
            // Of what a name brings, the thing itself is owed an answer; what merely comes along is not.
            if !named && index == 0 {
                self.searches = true;
                one.asked.push(name.clone());
            }
            one.owed |= fresh && (named || index == 0);
        }
    }
}

pub(super) fn hold(
    wanted: &mut BTreeMap<Arc<str>, WantedResource>,
    resource: Arc<Resource>,
) -> &mut WantedResource {
    wanted
        .entry(resource.name.clone())
        .or_insert_with(|| WantedResource {
            resource,
            owed: false,
            asked: Vec::new(),
        })
}
