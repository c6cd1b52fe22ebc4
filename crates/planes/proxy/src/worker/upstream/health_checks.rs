//! Active health checks of one worker. The worker checks each endpoint of a destination with traffic, over the path that its
//! traffic takes. All workers share the results.
//!
//! ```text
//! destination in force ─► Checker ─► due, and claimed before other workers ─► question ─► Watch ─► balance
//! ```
//! A worker that stops sending traffic to a destination stops checking it.

mod checking;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use tokio::task::AbortHandle;

use crate::health::Watch;
use crate::http::UpstreamHttp;
use crate::worker::policy::external_call::Lines;
use crate::worker::upstream::endpoint::{ConnectionManner, Endpoint};

/// Largest number of health checks that one worker has in flight; each holds a connection. Further checks wait
/// for a place.
const MAX_UNDER_WAY: usize = 128;

/// The checkers of a worker.
#[derive(Default)]
pub(crate) struct Checkers {
    /// Checkers in use, and some earlier ones.
    all: RefCell<Vec<Weak<Checker>>>,
    under_way: Rc<Cell<usize>>,
}

/// Health checker of a destination's endpoints; it ends with the last service state that holds it.
pub(crate) struct Checker {
    watch: Arc<Watch>,
    /// As this worker reaches them, in the order of the plan.
    endpoints: RefCell<Vec<Rc<Endpoint>>>,
    way: RefCell<CheckTransport>,
    lines: Lines,
    task: Cell<Option<AbortHandle>>,
}

/// Parameters of requests to the endpoints.
#[derive(Clone)]
struct CheckTransport {
    cluster: Rc<str>,
    authority: Rc<str>,
    manner: ConnectionManner,
    upstream: UpstreamHttp,
}

impl Drop for Checker {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

/// A question under way.
struct UnderWay(Rc<Cell<usize>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Checkers {
    /// Returns true if a health checker exists, or existed.
    pub(in crate::worker) fn are_any(&self) -> bool {
        !self.all.borrow().is_empty()
    }

    fn place(&self) -> Option<UnderWay> {
        let under_way = self.under_way.get();
        (under_way < MAX_UNDER_WAY).then(|| {
            self.under_way.set(under_way + 1);
            UnderWay(Rc::clone(&self.under_way))
        })
    }

    fn of(&self, watch: &Arc<Watch>) -> Option<Rc<Checker>> {
        let mut all = self.all.borrow_mut();
        all.retain(|one| one.strong_count() > 0);
        let mut known = all.iter().filter_map(Weak::upgrade);
        known.find(|one| Arc::ptr_eq(&one.watch, watch))
    }
}
