//! Notes on one request while it is served, only if a log or a tracer wants them: its trace context, the header lines
//! that replace received ones, and facts that only the engine sees.

use std::borrow::Cow;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use voile_model::mesh::telemetry::TelemetrySide;
use voile_telemetry::trace::{CONTEXT_FIELDS, Context, IncomingContext, context_lines, request_id};

use crate::http::{HeadObserver, HttpHead, Names};
use crate::telemetry_settings::{Recording, SideRecording, Tracer};
use crate::worker::Worker;
use crate::worker::records::reporter::ReporterLabels;

const REQUEST_ID: &str = "x-request-id";

/// Longest value remembered of one header, in bytes.
const MAX_VALUE_BYTES: usize = 8 * 1024;

/// See the module.
pub(crate) struct RequestNotes {
    recording: Rc<Recording>,
    side: TelemetrySide,
    /// Header lines that replace the removed ones.
    lines: String,
    leaves_out: &'static Names,
    pub(crate) context: Option<Context>,
    /// Request ID that goes on, if it differs from the received one.
    pub(crate) request_id: Option<String>,
    seen: RefCell<EngineNotes>,
}

type Remembered = Vec<(Arc<str>, Box<[u8]>)>;

/// Facts that the engine reported.
#[derive(Default)]
pub(crate) struct EngineNotes {
    /// When the first and the last attempt needed a connection.
    pub(crate) sought: Option<(Instant, Instant)>,
    /// When the last attempt had one.
    pub(crate) sent: Option<Instant>,
    pub(crate) received: Option<Instant>,
    pub(crate) response: Option<Instant>,
    pub(crate) from: Option<SocketAddr>,
    pub(crate) fields: Remembered,
    pub(crate) trailers: Remembered,
}

impl EngineNotes {
    /// When it was first known that an endpoint is needed.
    pub(crate) fn decided(&self) -> Option<Instant> {
        self.sought.map(|(first, _)| first)
    }

    /// How long the last attempt waited for its connection.
    pub(crate) fn queued(&self) -> Option<Duration> {
        let (_, last) = self.sought?;
        self.sent?.checked_duration_since(last)
    }

    /// How long the last attempt waited for the response's head.
    pub(crate) fn upstream(&self) -> Option<Duration> {
        self.response?.checked_duration_since(self.sent?)
    }
}

impl RequestNotes {
    /// Begins notes on a request, if a log or tracer wants them.
    pub(crate) fn begin<'a>(
        worker: &'a Worker,
        from: impl Into<ReporterLabels<'a>>,
        head: &HttpHead<'_>,
    ) -> Option<Rc<Self>> {
        let from = from.into();
        let (recording, side) = (from.recording(worker), from.side);
        let wanted = recording.side(side);
        if !wanted.takes_notes() {
            return None;
        }
        let (context, id) = match &wanted.tracer {
            Some(tracer) => traced(worker, tracer, head),
            None => (None, untraced(worker, wanted, head)),
        };
        let leaves_out: &Names = match (&context, &id) {
            (Some(_), _) => CONTEXT_FIELDS,
            (None, Some(_)) => &[Cow::Borrowed(REQUEST_ID)],
            (None, None) => &[],
        };
        Some(Rc::new(Self {
            recording: Rc::clone(&recording),
            side,
            lines: context_lines(context.as_ref(), id.as_deref()),
            leaves_out,
            context,
            request_id: id,
            seen: RefCell::default(),
        }))
    }

    pub(crate) fn seen(&self) -> std::cell::Ref<'_, EngineNotes> {
        self.seen.borrow()
    }

    fn wanted(&self) -> &SideRecording {
        self.recording.side(self.side)
    }
}

/// Continues or begins a trace. A caller's decision holds; without one, `x-request-id` may carry it, and at last chance
/// decides.
fn traced(
    worker: &Worker,
    tracer: &Tracer,
    head: &HttpHead<'_>,
) -> (Option<Context>, Option<String>) {
    const ALL: u64 = 1_000_000;
    let incoming = IncomingContext::read(head.headers());
    let sampled = incoming.decision().is_none()
        && ((tracer.use_request_id && incoming.request_id_is_traced())
            || worker.random() % ALL < tracer.sampling.into());
    let context = Context::follow(&incoming, sampled, || worker.random());
    let mark = tracer.use_request_id.then_some(context.sampled);
    let id = request_id(incoming.request_id(), mark, || worker.random());
    (Some(context), Some(id))
}

/// Logs that tell the request id want one in every request.
fn untraced(worker: &Worker, wanted: &SideRecording, head: &HttpHead<'_>) -> Option<String> {
    let missing = wanted.wants.request_id && head.header(REQUEST_ID).is_none();
    missing.then(|| request_id(None, None, || worker.random()))
}

fn remember(wanted: &[Arc<str>], fields: &mut dyn Iterator<Item = (&str, &[u8])>) -> Remembered {
    let mut found: Remembered = Vec::new();
    if wanted.is_empty() {
        return found;
    }
    for (name, value) in fields {
        let known = wanted.iter().find(|known| known.eq_ignore_ascii_case(name));
        if let Some(known) = known
            && !found.iter().any(|(name, _)| name == known)
        {
            let value = &value[..value.len().min(MAX_VALUE_BYTES)];
            found.push((Arc::clone(known), value.into()));
        }
    }
    found
}

impl HeadObserver for RequestNotes {
    fn leaves_out(&self) -> &Names {
        self.leaves_out
    }

    fn adds(&self) -> &[u8] {
        self.lines.as_bytes()
    }

    fn seeks_connection(&self) {
        if self.wanted().wants.response {
            let now = Instant::now();
            let mut seen = self.seen.borrow_mut();
            let first = seen.sought.map_or(now, |(first, _)| first);
            (seen.sought, seen.sent) = (Some((first, now)), None);
        }
    }

    fn sends(&self, from: Option<SocketAddr>) {
        let mut seen = self.seen.borrow_mut();
        seen.from = from;
        seen.sent = self.wanted().wants.response.then(Instant::now);
    }

    fn received(&self) {
        let mut seen = self.seen.borrow_mut();
        if self.wanted().wants.response && seen.received.is_none() {
            seen.received = Some(Instant::now());
        }
    }

    fn response(&self, fields: &mut dyn Iterator<Item = (&str, &[u8])>) {
        let wants = &self.wanted().wants;
        if wants.response {
            let mut seen = self.seen.borrow_mut();
            seen.response = Some(Instant::now());
            seen.fields = remember(&wants.response_fields, fields);
        }
    }

    fn trailers(&self, fields: &mut dyn Iterator<Item = (&str, &[u8])>) {
        let wants = &self.wanted().wants;
        self.seen.borrow_mut().trailers = remember(&wants.trailer_fields, fields);
    }
}
