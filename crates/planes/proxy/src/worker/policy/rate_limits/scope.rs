//! Which listeners the rate limits count requests of.

use crate::worker::Worker;
use crate::worker::listeners::inbound_slot::InboundSlot;

/// Returns true if rate limits count requests of this listener.
pub(in crate::worker) fn is_counted(worker: &Worker, slot: &InboundSlot) -> bool {
    let limiting = worker.limiting.borrow();
    let Some(limiting) = limiting.as_ref() else {
        return false;
    };
    let host = slot.host();
    let mut resources = limiting.shared.resources.iter();
    resources.any(|resource| resource.counts(host.as_deref()))
}
