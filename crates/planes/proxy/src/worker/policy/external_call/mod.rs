//! A service that a worker calls on its own account before a request may go on (external authorization, rate limits). The
//! worker uses its own runtime and pools: its questions share connections and never wait for another worker's.
//!
//! ```text
//! question ─► endpoint ─► pool, or connect ─► answer, bounded ─► whoever asked
//!                └───────── another, if nobody answered ◄──┘
//! ```
//! The service may be slow, dead or lying. Each answer has a deadline and a size limit; the number of questions in flight
//! is limited.

mod calls;
mod grpc;
mod http;

use std::cell::Cell;
use std::rc::Rc;

use voile_transport::TransportStream;

use crate::http::pool::Pool;
use crate::http2::upstream::Upstreams;
use crate::plan::ServicePlan;
use crate::worker::upstream::service_state::ServiceState;
pub(in crate::worker) use calls::Dialer;

/// Largest body or message of an answer, in bytes: a page for people is allowed, a flood is not. Heads are bounded by the
/// engines.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// See the module.
pub(crate) struct Callee {
    /// The same as long as the same service is asked; never 0.
    id: u32,
    plan: ServicePlan,
    service: Rc<ServiceState>,
    pub(in crate::worker) lines: Lines,
    asking: Rc<Cell<usize>>,
}

/// Connections of a worker for its own calls, by the keys of endpoints.
#[derive(Clone)]
pub(in crate::worker) struct Lines {
    http1: Rc<Pool<u32, TransportStream>>,
    http2: Rc<Upstreams<u32>>,
}

impl Lines {
    /// Closes those that carry nothing.
    pub(in crate::worker) fn clear(&self) {
        self.http1.clear();
        self.http2.clear();
    }
}

impl Callee {
    /// Which service is asked: changes when it does.
    pub(in crate::worker) fn id(&self) -> u32 {
        self.id
    }

    /// Plan of the service, with its endpoints.
    pub(in crate::worker) fn plan(&self) -> &ServicePlan {
        &self.plan
    }

    /// Closes connections that carry nothing.
    pub(in crate::worker) fn relieve(&self) {
        self.lines.clear();
    }
}

/// Why there is no answer.
pub(in crate::worker) struct CallFailure {
    pub(in crate::worker) why: Box<str>,
    /// True if the worker may send the same question to another endpoint, or on another connection.
    pub(in crate::worker) again: bool,
}

impl CallFailure {
    pub(in crate::worker) fn new(why: impl Into<Box<str>>) -> Self {
        Self {
            why: why.into(),
            again: false,
        }
    }

    pub(in crate::worker) fn again(why: impl Into<Box<str>>) -> Self {
        Self {
            why: why.into(),
            again: true,
        }
    }
}
