//! A worker: one thread, one runtime, its own pools, buffers, counters and copy of the plan. It is told everything by
//! message; a connection is one local task.

mod event_loop;
mod handlers;
mod holders;
mod in_flight;
mod listeners;
mod messages;
mod peers;
mod policy;
mod records;
mod routing;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod upstream;

pub(crate) use event_loop::{WorkerInputs, run};
pub use in_flight::ProxyLimits;
pub(crate) use in_flight::{Ledger, Overload, WorkerAccount};
pub(crate) use messages::{FromWorker, HandshakePermit, InUse, Resolved, ToWorker, WorkerFigures};
pub(crate) use policy::decision_counters::AuthorizationFigures;
pub(crate) use policy::tokens::TokenFigures;
pub(crate) use routing::routes::RequestAttributes;
pub(crate) use state::{
    AdmittedRequest, CONNECTION_BYTES, ConnectionPermit, Conversation, Redirected, Tls, Worker,
    count,
};
pub(crate) use upstream::dial::verify;
