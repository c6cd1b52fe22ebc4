//! Logs, traces and metrics of traffic, by the configuration. The control thread builds the settings; workers follow
//! them. A side without any costs its requests one check.

use std::sync::Arc;

use voile_model::mesh::telemetry::{RequestAttribute, TelemetrySide};
use voile_proto::trace::Span;
use voile_telemetry::access_log::{LogNeeds, Logger};
use voile_telemetry::outbox::Outbox;
use voile_telemetry::trace::SpanSettings;

/// All of a proxy's.
#[derive(Debug)]
pub(crate) struct Recordings {
    pub(crate) own: Recording,
    /// Recordings of waypoint destinations that have their own, in the order of the plan: the server's side only.
    pub(crate) apart: Vec<Recording>,
}

impl Recordings {
    /// Returns true if any part writes a log.
    pub(crate) fn logs(&self) -> bool {
        let all = std::iter::once(&self.own).chain(&self.apart);
        all.flat_map(|one| [&one.client, &one.server])
            .any(|side| !side.logs.is_empty())
    }
}

/// Both sides.
#[derive(Debug, Clone)]
pub(crate) struct Recording {
    pub(crate) client: SideRecording,
    pub(crate) server: SideRecording,
    /// `sidecar~…`, in spans.
    pub(crate) node_id: Arc<str>,
}

/// One side.
#[derive(Debug, Clone)]
pub(crate) struct SideRecording {
    pub(crate) logs: Vec<Logger>,
    /// Fields that the logs need.
    pub(crate) wants: LogNeeds,
    pub(crate) tracer: Option<Tracer>,
    /// True if any metric is on.
    pub(crate) metrics: bool,
    /// Values of requests that metrics have as labels, with the names that they are counted by.
    pub(crate) values: Vec<(RequestAttribute, Arc<str>)>,
}

/// Trace context, and spans if they are sent.
#[derive(Debug, Clone)]
pub(crate) struct Tracer {
    /// Sampling rate in millionths, for requests without a decision of their caller.
    pub(crate) sampling: u32,
    pub(crate) use_request_id: bool,
    pub(crate) spans: Option<Outbox<Span>>,
    pub(crate) settings: Arc<SpanSettings>,
}

impl Recording {
    /// Metrics only.
    pub(crate) fn new(node_id: Arc<str>) -> Self {
        Self {
            client: SideRecording::default(),
            server: SideRecording::default(),
            node_id,
        }
    }

    pub(crate) fn side(&self, side: TelemetrySide) -> &SideRecording {
        match side {
            TelemetrySide::Client => &self.client,
            TelemetrySide::Server => &self.server,
        }
    }
}

impl Default for SideRecording {
    fn default() -> Self {
        Self::of(Vec::new(), None, true)
    }
}

impl SideRecording {
    pub(crate) fn of(logs: Vec<Logger>, tracer: Option<Tracer>, metrics: bool) -> Self {
        let wants = logs
            .iter()
            .fold(LogNeeds::default(), |wants, log| wants.or(log.wants()));
        Self {
            logs,
            wants,
            tracer,
            metrics,
            values: Vec::new(),
        }
    }

    /// Returns true if requests need notes while they are served.
    pub(crate) fn takes_notes(&self) -> bool {
        self.tracer.is_some() || !self.wants.is_nothing()
    }
}
