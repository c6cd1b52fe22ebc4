//! Rate limits of requests that have leave, and the fields that tell clients about them. The buckets belong to the proxy
//! and use relaxed atomics; each worker has its own tables that select the rules.

mod global;
mod limit;
pub(in crate::worker) mod scope;

use std::rc::Rc;
use std::sync::Arc;

use voile_model::{Port, ServiceKey};
use voile_traffic::route::RouteTable;

use crate::rate_limits::RateLimits;
use crate::worker::policy::external_call::Callee;
pub(crate) use global::GlobalLimitCheck;
pub(crate) use limit::TooMany;
pub(in crate::worker) use limit::{LimitOutcome, flag, limited};

/// The limits as one worker asks them.
pub(crate) struct WorkerRateLimits {
    shared: Arc<RateLimits>,
    /// One for each resource; expressions remember their way, each worker's its own.
    tables: Rc<[RouteTable]>,
    /// Rate limit services, which count for several proxies.
    callees: Vec<((ServiceKey, Port), Rc<Callee>)>,
}

impl WorkerRateLimits {
    /// Returns true if both count in the same buckets. The rate limit services are not compared.
    pub(crate) fn is_same(one: Option<&Rc<Self>>, other: Option<&Rc<Self>>) -> bool {
        let shared = |limiting: &Rc<Self>| Arc::as_ptr(&limiting.shared);
        one.map(shared) == other.map(shared)
    }

    /// Closes connections that carry nothing.
    pub(crate) fn relieve(&self) {
        self.callees.iter().for_each(|(_, callee)| callee.relieve());
    }
}
