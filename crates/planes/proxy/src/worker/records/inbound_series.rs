//! Server-side metric series of a caller.

use voile_telemetry::{Labels, PeerLabels, Reporter, Security, SeriesId};

use crate::worker::Worker;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::peers::PeerEntry;
use crate::worker::policy::admission::ConnectionArrival;

/// Server-side series of a caller. While the caller's workload is unknown, a provisional series stands in and takes its labels
/// with the answer. Nothing is counted under `unknown` that is known a moment later.
pub(crate) fn inbound_series(
    worker: &Worker,
    slot: &InboundSlot,
    caller: &InboundCaller,
    protocol: &'static str,
) -> SeriesId {
    let address = caller.remote.ip();
    let known = worker.peers.caller(address, &caller.principal);
    let mut source = match &known {
        PeerEntry::Workload(peer) => PeerLabels::clone(peer),
        PeerEntry::Stranger | PeerEntry::Asked => PeerLabels::default(),
    };
    source.principal.clone_from(&caller.principal);
    let mut destination = PeerLabels::clone(&worker.own.borrow());
    let security = match caller.arrival {
        ConnectionArrival::MutualTls(_) | ConnectionArrival::Tunnel(_) => {
            destination.principal.clone_from(&worker.principal.borrow());
            Security::MutualTls
        }
        ConnectionArrival::Plaintext => Security::None,
    };
    let labels = Labels {
        reporter: Reporter::Destination,
        source,
        destination,
        service: slot.plan.borrow().service.clone(),
        protocol,
        security,
        values: Vec::new(),
    };
    match known {
        PeerEntry::Asked => worker.provisional.series(&worker.shard, address, &labels),
        PeerEntry::Workload(_) | PeerEntry::Stranger => worker.shard.borrow_mut().series(&labels),
    }
}
