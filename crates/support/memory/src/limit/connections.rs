//! Connections of a worker by their source, so that those of the source with most of them can be ended.

use std::cell::RefCell;
use std::collections::HashMap;

use slab::Slab;
use tokio::task::AbortHandle;

/// Part of the connections of a worker that end in one round, where everything else did not help.
const ROUND: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct SourceConnections(RefCell<Slab<(u64, Option<AbortHandle>)>>);

impl SourceConnections {
    /// Number of a connection that is in no list.
    pub const UNLISTED: usize = usize::MAX;

    /// Lists a connection of this source; gives its number.
    pub fn begin(&self, source: u64) -> usize {
        self.0.borrow_mut().insert((source, None))
    }

    /// This task serves the connection.
    pub fn started(&self, number: usize, task: AbortHandle) {
        if let Some((_, handle)) = self.0.borrow_mut().get_mut(number) {
            *handle = Some(task);
        }
    }

    /// The connection has ended.
    pub fn end(&self, number: usize) {
        let mut all = self.0.borrow_mut();
        all.try_remove(number);
        if all.is_empty() {
            all.shrink_to_fit();
        }
    }

    /// Ends connections of the source that has most of them, at most a part of all. Gives their number.
    pub fn end_largest_source(&self) -> usize {
        let handles = self.of_largest_source();
        handles.iter().for_each(AbortHandle::abort);
        handles.len()
    }

    fn of_largest_source(&self) -> Vec<AbortHandle> {
        let all = self.0.borrow();
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for (_, (source, _)) in all.iter() {
            *counts.entry(*source).or_default() += 1;
        }
        let largest = counts.into_iter().max_by_key(|(_, count)| *count);
        let of_it = all
            .iter()
            .filter(|(_, (source, _))| largest.is_some_and(|(largest, _)| *source == largest));
        let handles = of_it.filter_map(|(_, (_, handle))| handle.clone());
        handles.take(all.len().div_ceil(ROUND)).collect()
    }
}
