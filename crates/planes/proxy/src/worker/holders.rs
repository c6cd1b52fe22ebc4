//! Holders of a worker's memory: the expected connections, and which holders end where there is too little. Usual exchanges end
//! last.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use rustls::ServerConfig;
use voile_memory::{ExpectedMemory, ShedOrder};
use voile_transport::{
    self as transport, HandshakeError, TLS_HANDSHAKE_TIMEOUT, TcpIo, TransportStream,
};

use super::{CONNECTION_BYTES, ConnectionPermit, Overload, Worker};

/// Streams that hold less are ordinary: their heads are usual and their peers take what comes.
const LARGE: usize = 64 * 1024;

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
        self.0.connections.started(self.1, task.abort_handle());
    }
}

impl Worker {
    /// Counts the memory of a connection whose handshake begins, until the value is dropped. `None` refuses the handshake, where new
    /// work is refused: many connections and requests may have been accepted before the first handshake took memory.
    pub(super) fn expect_connection(&self) -> Option<ExpectedMemory<'_>> {
        let ledger = &self.seat.ledger;
        let expected = ledger.ceiling.expect(CONNECTION_BYTES as u64);
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
            ended += self.connections.end_largest_source();
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
