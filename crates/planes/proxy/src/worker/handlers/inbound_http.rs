//! Inbound's part of HTTP: every request asks the policy anew, goes to the one application behind the listener, and is
//! counted with the caller's identity.

mod requests;

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;

use voile_telemetry::SeriesId;

use crate::worker::Worker;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::policy::admission::Admission;
pub(crate) use requests::upstream;

/// One inbound connection.
pub(crate) struct InboundRole {
    worker: Rc<Worker>,
    slot: Rc<InboundSlot>,
    caller: InboundCaller,
    admission: Admission,
    series: Cell<SeriesId>,
    /// The same for gRPC calls, from the first one on.
    grpc: Cell<Option<SeriesId>>,
    /// For requests of HTTP/1.0 that name none.
    authority: Rc<str>,
}

/// Pool key of connections to the application: its address and, where that is kept, the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ApplicationKey {
    endpoint: u32,
    source: Option<IpAddr>,
}

impl Hash for ApplicationKey {
    /// As cheap as the number alone where there is nothing else.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.endpoint.hash(state);
        if let Some(source) = self.source {
            source.hash(state);
        }
    }
}
