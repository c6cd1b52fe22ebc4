//! State that the connections of one worker share: pool, buffers, drain signal, durations.

use std::future::Future;
use std::rc::Rc;

use super::buffers::Buffers;
use super::drain_signal::Drain;
use super::io::Io;
use super::limits::HttpTimeouts;
use super::pool::Pool;
use super::role::HttpRole;
use crate::http2::stream_tasks::Runners;
use crate::http2::upstream::Upstreams;

/// Shared by every connection a role serves on one worker. Several roles may share `buffers` and `drain`.
pub struct HttpWorker<R: HttpRole> {
    pub(crate) pool: Rc<Pool<R::Key, R::Upstream>>,
    /// Upstream connections that speak HTTP/2.
    pub(crate) http2: Rc<Upstreams<R::Key>>,
    /// Tasks that serve HTTP/2 streams.
    pub(crate) runners: Runners<R>,
    pub(crate) buffers: Buffers,
    pub(crate) drain: Drain,
    pub(crate) timeouts: HttpTimeouts,
}

impl<R: HttpRole> HttpWorker<R> {
    /// A worker's engine with an empty pool.
    pub fn new(buffers: Buffers, drain: Drain, timeouts: HttpTimeouts) -> Rc<Self> {
        Rc::new(Self {
            pool: Pool::new(timeouts.upstream_idle),
            http2: Upstreams::new(buffers.clone(), timeouts),
            runners: Runners::default(),
            buffers,
            drain,
            timeouts,
        })
    }

    /// Evicts idle upstream connections that closed, spoke out of turn or grew old. Spawn it once per worker on the local
    /// set; it sleeps while nothing is idle and ends when the worker is dropped.
    pub fn keeper(&self) -> impl Future<Output = ()> + use<R> {
        super::pool::keep(Rc::downgrade(&self.pool))
    }

    /// The same engine, its pools included, for another role with the same upstreams.
    pub(crate) fn shared<S: HttpRole<Key = R::Key, Upstream = R::Upstream>>(
        &self,
    ) -> Rc<HttpWorker<S>> {
        Rc::new(HttpWorker {
            pool: Rc::clone(&self.pool),
            http2: Rc::clone(&self.http2),
            runners: Runners::default(),
            buffers: self.buffers.clone(),
            drain: self.drain.clone(),
            timeouts: self.timeouts,
        })
    }

    /// Idle upstream connections at this moment.
    pub fn idle_upstreams(&self) -> usize {
        self.pool.idle() + self.http2.idle()
    }

    /// Closes every idle upstream connection, as when certificates changed.
    pub fn close_idle_upstreams(&self) {
        self.pool.clear();
        self.http2.clear();
    }
}

/// End of a downstream connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// Closed in good order, by either side.
    Clean,
    /// Closed after a request we refused to understand.
    Refused,
    /// The client went away, or a response was cut short.
    Aborted,
    /// Ended as a tunnel after an upgrade.
    Tunnel,
}

/// Serves one downstream connection until it ends. `early` holds bytes that were read from it already. No `async fn`: its
/// future would hold its arguments twice.
pub fn serve_connection<'a, S: Io, R: HttpRole>(
    worker: &'a Rc<HttpWorker<R>>,
    role: &'a R,
    stream: S,
    early: &[u8],
) -> impl Future<Output = ConnectionEnd> + use<'a, S, R> {
    let mut connection = super::connection::Http1Connection::new(worker, role, stream, early);
    async move { connection.serve().await }
}
