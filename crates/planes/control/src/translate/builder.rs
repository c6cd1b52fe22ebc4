//! A snapshot in the making. Each kind of resource adds its own; an unchanged one keeps its identity.

use std::collections::HashSet;
use std::sync::Arc;

use voile_model::Mesh;
use voile_xds::server::Resource;

use crate::effective_policies::Names;
use crate::shards::Shards;
use crate::snapshot::MeshSnapshot;

/// A snapshot in the making: one function for each kind of resource. An unchanged resource is the same `Arc` as before.
pub(super) struct SnapshotBuilder<'a> {
    pub(super) mesh: &'a Mesh,
    pub(super) previous: Option<&'a MeshSnapshot>,
    pub(super) snapshot: MeshSnapshot,
    /// Sets of names that configurations refer to, each set once.
    pub(super) obeys: HashSet<Arc<Names>>,
    /// Somebody obeys something else than before.
    pub(super) obeyed_anew: bool,
}

type Resources = Shards<Arc<Resource>>;

impl<'a> SnapshotBuilder<'a> {
    pub(super) fn new(
        mesh: &'a Mesh,
        previous: Option<&'a MeshSnapshot>,
        snapshot: MeshSnapshot,
    ) -> Self {
        Self {
            mesh,
            previous,
            snapshot,
            obeys: HashSet::new(),
            obeyed_anew: false,
        }
    }

    pub(super) fn kept(
        &self,
        of: fn(&MeshSnapshot) -> &Resources,
        made: Resource,
    ) -> Arc<Resource> {
        let old = self.previous.and_then(|old| of(old).get(&made.name));
        match old {
            Some(old) if **old == made => old.clone(),
            _ => Arc::new(made),
        }
    }
}

/// Puts in what is not there already, so that a snapshot goes on sharing what did not change.
pub(super) fn put_resource(map: &mut Resources, made: Arc<Resource>) {
    if !map
        .get(&made.name)
        .is_some_and(|old| Arc::ptr_eq(old, &made))
    {
        map.insert(made.name.clone(), made);
    }
}

pub(super) fn put(map: &mut crate::snapshot::Index, name: &Arc<str>, list: Vec<Arc<str>>) {
    let old = map.get(name);
    if list.is_empty() {
        map.remove(name);
    } else if old.is_none_or(|old| **old != *list) {
        map.insert(name.clone(), list.into());
    }
}
