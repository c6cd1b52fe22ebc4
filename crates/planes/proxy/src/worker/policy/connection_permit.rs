//! Permit of an inbound connection, by the listener's mode and the trust in force.

use std::net::SocketAddr;

use voile_policy::Permit;

use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::policy::admission::{ConnectionArrival, admit};
use crate::worker::{Worker, count};

pub(in crate::worker) fn permit(
    worker: &Worker,
    slot: &InboundSlot,
    arrival: &ConnectionArrival,
    remote: SocketAddr,
) -> Result<Permit, String> {
    let mode = slot.plan.borrow().mutual_tls;
    // A listener without a plan does not exist, nor one without trust.
    let belief = worker.belief.borrow().clone();
    let belief = belief.ok_or_else(|| "the trust domain is not known yet".to_owned())?;
    admit(mode, arrival, &belief).map_err(|denial| {
        count(&worker.counters.refused);
        tracing::debug!(%remote, %denial, "connection refused");
        denial.to_string()
    })
}
