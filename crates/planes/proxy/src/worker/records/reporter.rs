//! Point of view of telemetry: a side of the proxy, with the proxy's Telemetry, or a listener for requests. A waypoint's
//! destination is a listener that may have a Telemetry of its own; it reports as a server, as in Istio.

use std::cell::Ref;
use std::rc::Rc;

use voile_model::mesh::telemetry::TelemetrySide;

use crate::telemetry_settings::Recording;
use crate::worker::Worker;
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::policy::tokens::Tokens;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct ReporterLabels<'a> {
    pub(crate) side: TelemetrySide,
    place: Option<&'a InboundSlot>,
}

impl From<TelemetrySide> for ReporterLabels<'_> {
    fn from(side: TelemetrySide) -> Self {
        Self { side, place: None }
    }
}

impl<'a> ReporterLabels<'a> {
    /// Vantage of a gateway's or waypoint's listener.
    pub(in crate::worker) fn at(place: &'a InboundSlot) -> Self {
        let side = match place.is_apart() {
            true => TelemetrySide::Server,
            false => TelemetrySide::Client,
        };
        Self {
            side,
            place: Some(place),
        }
    }

    /// Returns true if the proxy stands between a client and a server, and is neither.
    pub(in crate::worker) fn is_between(self) -> bool {
        self.place.is_some_and(InboundSlot::is_apart)
    }

    /// Recording rules for this vantage.
    pub(crate) fn recording(self, worker: &'a Worker) -> Ref<'a, Rc<Recording>> {
        match self.place {
            None => worker.recording.borrow(),
            Some(place) => place.recording(worker),
        }
    }

    /// Rules by which logs find tokens; none for a caller's sidecar on its own calls.
    pub(in crate::worker) fn tokens(self, worker: &'a Worker) -> Option<&'a Tokens> {
        match (self.place, self.side) {
            (Some(place), _) => Some(place.tokens(worker)),
            (None, TelemetrySide::Server) => Some(&worker.tokens),
            (None, TelemetrySide::Client) => None,
        }
    }
}
