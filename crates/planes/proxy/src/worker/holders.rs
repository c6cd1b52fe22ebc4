//! Holders of a worker's memory: who is told when it grows or shrinks, and which of them end where there is too little. Usual
//! exchanges end last.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use rustls::ServerConfig;
use slab::Slab;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use voile_http2::{MemoryChange, Pool};
use voile_transport::{
    self as transport, HandshakeError, TLS_HANDSHAKE_TIMEOUT, TcpIo, TransportStream,
};

use super::{
    CONNECTION_BYTES, ConnectionPermit, FromWorker, Ledger, MemoryPressure, Overload, Worker,
};

/// Streams that hold less are ordinary: their heads are usual and their peers take what comes.
const LARGE: usize = 64 * 1024;

/// Part of the connections of a worker that end in one round, where everything else did not help.
const ROUND: usize = 16;

/// An order to end holders of memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShedOrder {
    /// Bytes that must go.
    pub(crate) bytes: usize,
    /// Ordinary exchanges, too.
    pub(crate) ordinary: bool,
}

/// Has the control thread told of what the users of a pool take and free.
pub(super) fn watch(
    pool: &Pool,
    ledger: &Arc<Ledger>,
    control: &mpsc::UnboundedSender<FromWorker>,
) {
    let (ledger, control) = (Arc::clone(ledger), control.clone());
    pool.on_change(move |change| {
        let news = match change {
            MemoryChange::Freed => FromWorker::Freed,
            MemoryChange::Grown if ledger.look() > MemoryPressure::Free => FromWorker::MemoryShort,
            MemoryChange::Grown => return,
        };
        // Without a receiver the process is ending.
        let _ = control.send(news);
    });
}

/// Number of a connection that is in no list, as all are without a memory limit.
pub(super) const UNLISTED: usize = usize::MAX;

/// Downstream connections of a worker, by source.
#[derive(Default)]
pub(super) struct DownstreamConnections(RefCell<Slab<(u64, Option<AbortHandle>)>>);

impl DownstreamConnections {
    pub(super) fn begin(&self, source: u64) -> usize {
        self.0.borrow_mut().insert((source, None))
    }

    pub(super) fn end(&self, number: usize) {
        let mut all = self.0.borrow_mut();
        all.try_remove(number);
        if all.is_empty() {
            all.shrink_to_fit();
        }
    }

    /// Connections of the source that has most of them, at most a part of all.
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

impl ConnectionPermit {
    /// Gives the entry of the list for the task that serves the connection and owns this permit.
    pub(super) fn keeper(&self) -> ConnectionTask {
        ConnectionTask(Rc::clone(&self.0), self.1)
    }
}

/// Starts the task of a connection and lists it, so that it can be ended.
pub(super) struct ConnectionTask(Rc<Worker>, usize);

impl ConnectionTask {
    pub(super) fn spawn(self, serving: impl Future<Output = ()> + 'static) {
        let task = tokio::task::spawn_local(serving);
        if let Some((_, handle)) = self.0.connections.0.borrow_mut().get_mut(self.1) {
            *handle = Some(task.abort_handle());
        }
    }
}

/// Memory of a connection whose handshake is not over.
pub(super) struct ExpectedConnection(Arc<Ledger>);

impl Drop for ExpectedConnection {
    fn drop(&mut self) {
        self.0.ceiling.came(CONNECTION_BYTES as u64);
    }
}

impl Worker {
    /// Counts the memory of a connection whose handshake begins, until the value is dropped. `None` refuses the handshake, where new
    /// work is refused: many connections and requests may have been accepted before the first handshake took memory.
    pub(super) fn expect_connection(&self) -> Option<ExpectedConnection> {
        let ledger = &self.seat.ledger;
        ledger.ceiling.expect(CONNECTION_BYTES as u64);
        let expected = ExpectedConnection(Arc::clone(ledger));
        self.buffers.http2.grew(CONNECTION_BYTES);
        if ledger.ceiling.is_closed() {
            ledger.count_refused(Overload::Memory);
            return None;
        }
        Some(expected)
    }

    /// Ends the TLS of a client, if there is memory for it.
    pub(super) async fn accept_tls(
        &self,
        config: Arc<ServerConfig>,
        io: TcpIo,
    ) -> Result<TransportStream, HandshakeError> {
        let Some(_expected) = self.expect_connection() else {
            transport::reset(io.tcp());
            return Err(io::Error::other(Overload::Memory.reason()).into());
        };
        transport::accept_tls(config, io, TLS_HANDSHAKE_TIMEOUT).await
    }

    /// Ends the largest holders of memory.
    pub(super) fn shed(&self, order: ShedOrder) {
        let (mut freed, mut ended) = (0, 0);
        for pool in [&self.buffers.http2, self.tunnels.blocks()] {
            let wanted = order.bytes.saturating_sub(freed);
            let (bytes, count) = pool.shed(wanted, LARGE);
            (freed, ended) = (freed + bytes, ended + count);
        }
        if order.ordinary && freed < order.bytes {
            let handles = self.connections.of_largest_source();
            ended += handles.len();
            handles.iter().for_each(AbortHandle::abort);
        }
        if ended > 0 {
            tracing::warn!(
                ended,
                bytes = freed,
                ordinary = order.ordinary,
                "memory limit is near: the largest connections are closed"
            );
        }
    }
}
