//! Messages between a worker and the control thread, and the figures that a worker reports. No socket, no decision.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use quinn::Incoming;
use tokio::sync::oneshot;
use voile_memory::ShedOrder;
use voile_telemetry::{PeerLabels, Snapshot};

use crate::plan::{CapturedDestination, ListenerId, OutboundPlan, ProxyPlan};
use crate::telemetry_settings::Recordings;
use crate::worker::listeners::server_first;
use crate::worker::policy::decision_counters::AuthorizationFigures;
use crate::worker::policy::tokens::TokenFigures;

/// Message to a worker.
pub(crate) enum ToWorker {
    /// A client connected.
    Accepted {
        listener: ListenerId,
        stream: TcpStream,
        peer: SocketAddr,
    },
    /// A client asks for an HTTP/3 connection.
    Http3 {
        listener: ListenerId,
        incoming: Box<(Incoming, HandshakePermit)>,
    },
    /// Obey this from now on; listeners are named in the order of the plan.
    Plan {
        plan: Arc<ProxyPlan>,
        inbound: Vec<ListenerId>,
        outbound: Vec<ListenerId>,
        gateway: Vec<ListenerId>,
        recording: Arc<Recordings>,
        /// When the last word that it is made of arrived.
        heard: Instant,
    },
    /// Record requests and connections like this from now on.
    Recording(Arc<Recordings>),
    /// The answer about a stranger's address.
    Peer {
        address: IpAddr,
        peer: Option<Box<PeerLabels>>,
    },
    /// Plan of a captured destination; `None` when it is let go.
    Destination {
        to: CapturedDestination,
        plan: Option<Arc<OutboundPlan>>,
    },
    /// Another worker's lesson: does the server speak first there?
    ServerFirst {
        place: server_first::DestinationKey,
        server_first: bool,
    },
    /// Say what was used since the last time.
    Used(oneshot::Sender<InUse>),
    /// The control thread no longer follows these addresses.
    Strangers(Arc<BTreeSet<IpAddr>>),
    /// Our certificate changed: this is our identity now.
    Identity(String),
    /// Memory is short: close what is idle.
    Relieve,
    /// End the largest holders of memory.
    Shed(ShedOrder),
    /// Give a copy of the counters.
    Scrape(oneshot::Sender<WorkerFigures>),
    /// Finish what is in flight; gently, idle connections stay for a last request.
    Drain { gently: bool },
}

/// A handshake's place among those of its port; dropping it gives the place back.
pub(crate) struct HandshakePermit(Arc<AtomicUsize>);

impl HandshakePermit {
    pub(crate) fn begin(under_way: &Arc<AtomicUsize>) -> Self {
        under_way.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(under_way))
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Destinations and addresses that a worker uses.
#[derive(Debug, Default)]
pub(crate) struct InUse {
    /// Captured destinations that are called, or were since the last question.
    pub(crate) destinations: Vec<CapturedDestination>,
    /// Addresses that called since then.
    pub(crate) strangers: Vec<IpAddr>,
}

/// Message from a worker.
#[derive(Debug)]
pub(crate) enum FromWorker {
    /// Asks for the workload at this address, for labels.
    Stranger(IpAddr),
    /// Where does this captured destination lead?
    Destination(CapturedDestination),
    /// Idle connections should make room.
    MemoryShort,
    /// Much memory was freed: it can go back to the kernel.
    Freed,
    /// The control plane has not said in time where it leads.
    Overdue(CapturedDestination),
    /// Endpoints of this name are used; its addresses may have expired.
    Used(Arc<str>),
    /// Asks for the addresses of this name; a connection waits.
    Resolve(Arc<str>, oneshot::Sender<Resolved>),
    /// The same for a host outside that a client named: its addresses must not be the mesh's.
    ResolveOutside(Arc<str>, oneshot::Sender<Resolved>),
    /// Lesson for the other workers: does the server speak first there?
    ServerFirst {
        place: server_first::DestinationKey,
        server_first: bool,
    },
    /// A HealthCheck changed an endpoint's health, or the checked endpoints changed.
    Found,
}

/// The addresses of a name, or why there are none.
pub(crate) type Resolved = Result<Arc<[IpAddr]>, Arc<str>>;

/// Answer of a worker to a scrape.
pub(crate) struct WorkerFigures {
    pub(crate) snapshot: Snapshot,
    pub(crate) connections: u64,
    pub(crate) accepted: u64,
    pub(crate) handshake_failures_downstream: u64,
    pub(crate) handshake_failures_upstream: u64,
    pub(crate) refused: u64,
    pub(crate) idle_upstreams: u64,
    pub(crate) retries: u64,
    pub(crate) retries_over_budget: u64,
    pub(crate) mirrored: u64,
    pub(crate) mirrors_dropped: u64,
    pub(crate) outliers_ejected: u64,
    pub(crate) authorization: AuthorizationFigures,
    pub(crate) tokens: TokenFigures,
}
