//! The memory limit of a node proxy, which its threads share. Workers say when memory is short and when much was freed; the main
//! thread has them close and end what holds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;
use voile_http2::{HeadBudget, MemoryChange, Pool};
use voile_memory::{Ceiling, MemoryPressure, MemoryRelief, cgroup_limit};

use crate::dispatch::Dispatcher;

/// Memory of a connection and its TLS session, as a rule; an unproven caller can make it hold no more.
pub(crate) const CONNECTION_BYTES: usize = 64 * 1024;

/// Streams that hold less are ordinary: their peers take what comes.
pub(crate) const LARGE: usize = 64 * 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct NodeMemory {
    pub(crate) ceiling: Ceiling,
    /// Large heads of `CONNECT` of all connections. A usual one is not counted.
    pub(crate) heads: Arc<HeadBudget>,
    /// Connections and tunnels that were refused because the limit is near.
    refused: AtomicU64,
    short: Notify,
    freed: Notify,
}

impl NodeMemory {
    /// With a limit in bytes; 0 is none, and `u64::MAX` the cgroup's.
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        let limit = match limit {
            u64::MAX => cgroup_limit().unwrap_or(0),
            own => own,
        };
        if limit > 0 {
            tracing::info!(bytes = limit, "memory limit");
        }
        let heads = Arc::new(HeadBudget::of_process());
        heads.fit_into(limit);
        let budget = Arc::clone(&heads);
        Arc::new(Self {
            ceiling: Ceiling::new(limit, move |level| {
                budget.close(level == MemoryPressure::Closed);
            }),
            heads,
            refused: AtomicU64::new(0),
            short: Notify::new(),
            freed: Notify::new(),
        })
    }

    /// Watches what the users of a pool take and free.
    pub(crate) fn watch(self: &Arc<Self>, pool: &Pool) {
        let memory = Arc::clone(self);
        pool.on_change(move |change| match change {
            MemoryChange::Freed => memory.freed.notify_one(),
            MemoryChange::Grown if memory.ceiling.look() > MemoryPressure::Free => {
                memory.short.notify_one();
            }
            MemoryChange::Grown => {}
        });
    }

    /// Counts work that arrived. Returns false if it is refused.
    pub(crate) fn takes_work(&self) -> bool {
        if self.ceiling.arrived().is_some() {
            self.short.notify_one();
        }
        if !self.ceiling.is_closed() {
            return true;
        }
        // What is refused makes no room by itself.
        self.short.notify_one();
        self.refused.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Work that was refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Makes room whenever memory is short, and gives back what bursts leave.
    pub(crate) async fn look_after(self: Arc<Self>, relief: MemoryRelief<Dispatcher>) {
        loop {
            tokio::select! {
                () = self.short.notified() => relief.relieve(),
                () = self.freed.notified() => relief.burst_is_over(),
            }
        }
    }
}
