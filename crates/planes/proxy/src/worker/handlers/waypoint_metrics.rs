//! Metrics of a waypoint (`reporter="waypoint"`, as in Istio). The caller is known by the identity of its tunnel. The waypoint
//! counts the endpoint that answers or takes the connection, since neither side's proxy can see requests.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use voile_telemetry::{Labels, PeerLabels, Reporter, Security, SeriesId, ServiceLabels, TCP};

use crate::worker::Worker;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::handlers::outbound::ConnectionLabels;
use crate::worker::listeners::gateway_slot::{TunnelCalls, WaypointDestination};
use crate::worker::peers::PeerEntry;
use crate::worker::records::downstream::Downstream;
use crate::worker::records::reporter::ReporterLabels;
use crate::worker::upstream::endpoint::Endpoint;

/// Endpoints whose series one connection remembers; the labels of others are looked up each time.
const MAX_SERIES: usize = 64;

impl ConnectionLabels for &TunnelCalls {
    fn series(
        &self,
        worker: &Worker,
        service: &ServiceLabels,
        to: Option<&Rc<Endpoint>>,
    ) -> SeriesId {
        TunnelCalls::series(self, worker, service, to, TCP)
    }

    fn vantage(&self) -> ReporterLabels<'_> {
        TunnelCalls::vantage(self)
    }
}

impl TunnelCalls {
    pub(in crate::worker) fn new(caller: InboundCaller, door: Rc<WaypointDestination>) -> Self {
        Self {
            caller,
            door,
            known: RefCell::default(),
        }
    }

    pub(in crate::worker) fn vantage(&self) -> ReporterLabels<'_> {
        ReporterLabels::at(&self.door.place)
    }

    /// The caller's side, which was called at this address.
    pub(in crate::worker) fn downstream(&self, local: SocketAddr) -> Downstream<'_> {
        self.caller.downstream(local)
    }

    /// Metric series of calls of a service; `to` is the endpoint that took them, if any.
    pub(in crate::worker) fn series(
        &self,
        worker: &Worker,
        service: &ServiceLabels,
        to: Option<&Rc<Endpoint>>,
        protocol: &'static str,
    ) -> SeriesId {
        let mark = (worker.epoch.get(), to.map(|to| to.key), protocol);
        let mut known = self.known.borrow_mut();
        if let Some((_, id)) = known.iter().find(|(of, _)| *of == mark)
            && worker.shard.borrow().is_current(*id)
        {
            return *id;
        }
        let (labels, settled) = self.labels(worker, service, to, protocol);
        let address = self.caller.remote.ip();
        if !settled {
            // The caller's workload is being asked for: its labels come when the answer does.
            return worker.provisional.series(&worker.shard, address, &labels);
        }
        let id = worker.shard.borrow_mut().series(&labels);
        known.retain(|(of, _)| *of != mark && of.0 == mark.0);
        if known.len() < MAX_SERIES {
            known.push((mark, id));
        }
        id
    }

    /// Labels of source and destination, and true if the caller's address is known.
    fn labels(
        &self,
        worker: &Worker,
        service: &ServiceLabels,
        to: Option<&Rc<Endpoint>>,
        protocol: &'static str,
    ) -> (Labels, bool) {
        let address = self.caller.remote.ip();
        let found = worker.peers.caller(address, &self.caller.principal);
        let settled = !matches!(found, PeerEntry::Asked);
        let mut source = match found {
            PeerEntry::Workload(peer) => PeerLabels::clone(&peer),
            PeerEntry::Stranger | PeerEntry::Asked => PeerLabels::default(),
        };
        source.principal.clone_from(&self.caller.principal);
        let to = to.map(|to| &to.plan);
        let mut destination = to.map(|to| to.peer.clone()).unwrap_or_default();
        let expected = to.iter().filter_map(|to| to.expected.as_ref());
        let expected = expected.flatten().next();
        destination.principal = expected.map(ToString::to_string).unwrap_or_default();
        let labels = Labels {
            reporter: Reporter::Waypoint,
            source,
            destination,
            service: service.clone(),
            protocol,
            security: Security::MutualTls,
            values: Vec::new(),
        };
        (labels, settled)
    }
}
