//! Logs and spans of one worker, written after the response. No record is built unless a log or a span wants it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use voile_model::log_format::HeaderSource;
use voile_model::mesh::telemetry::TelemetrySide;
use voile_telemetry::PeerLabels;
use voile_telemetry::access_log::{AccessLogEntry, Fields, HttpLogFields, PolicyMarks};
use voile_telemetry::trace::{self, SpanFacts};

use crate::http::{Exchange, HttpHead, HttpRole, UNREACHED};
use crate::worker::Worker;
use crate::worker::peers::PeerEntry;
use crate::worker::policy::tokens;
use crate::worker::records::downstream::Downstream;
use crate::worker::records::reporter::ReporterLabels;
use crate::worker::records::request_notes::{EngineNotes, RequestNotes};

/// Istio's name of the default route, without configuration.
const DEFAULT_ROUTE: &str = "default";

/// An opaque connection that ended, or one that was refused.
pub(crate) struct TcpRecord<'a> {
    pub(crate) from: ReporterLabels<'a>,
    pub(crate) start: SystemTime,
    pub(crate) duration: Duration,
    pub(crate) flags: &'static str,
    pub(crate) details: &'a str,
    /// Why we ended it.
    pub(crate) termination: &'a str,
    /// Why the upstream was not reached.
    pub(crate) failure: &'a str,
    /// Why the handshake with the caller failed.
    pub(crate) downstream_failure: &'a str,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) upstream: Option<SocketAddr>,
    pub(crate) upstream_local: Option<SocketAddr>,
    pub(crate) cluster: &'a str,
    /// SNI.
    pub(crate) server_name: &'a str,
    /// Audit and dry-run results of policies, which decide nothing.
    pub(crate) marks: PolicyMarks<'a>,
    pub(crate) downstream: Downstream<'a>,
}

impl<'a> TcpRecord<'a> {
    /// A connection of which nothing is known but who called.
    pub(crate) fn new(from: impl Into<ReporterLabels<'a>>, downstream: Downstream<'a>) -> Self {
        Self {
            from: from.into(),
            start: SystemTime::now(),
            duration: Duration::ZERO,
            flags: "-",
            details: "",
            termination: "",
            failure: "",
            downstream_failure: "",
            received: 0,
            sent: 0,
            upstream: None,
            upstream_local: None,
            cluster: "",
            server_name: "",
            marks: PolicyMarks::default(),
            downstream,
        }
    }
}

/// Returns true if an access log is configured there.
pub(crate) fn is_on<'a>(worker: &'a Worker, from: impl Into<ReporterLabels<'a>>) -> bool {
    let from = from.into();
    !from.recording(worker).side(from.side).logs.is_empty()
}

pub(crate) fn tcp(worker: &Worker, record: &TcpRecord<'_>) {
    let recording = record.from.recording(worker);
    let logs = &recording.side(record.from.side).logs;
    if logs.is_empty() {
        return;
    }
    let own = worker.principal.borrow();
    let entry = AccessLogEntry {
        http: None,
        start: record.start,
        duration: record.duration,
        flags: record.flags,
        details: record.details,
        termination: record.termination,
        upstream_failure: record.failure,
        downstream_failure: record.downstream_failure,
        received: record.received,
        sent: record.sent,
        upstream: record.upstream,
        upstream_local: record.upstream_local,
        cluster: record.cluster,
        local: record.downstream.local,
        remote: record.downstream.remote,
        server_name: record.server_name,
        route: "",
        tls: record.downstream.tls(&own),
        marks: record.marks,
    };
    logs.iter().for_each(|log| log.log(&entry));
}

/// Facts about a request that the engine does not know.
pub(crate) struct HttpContext<'a> {
    pub(crate) upstream: Option<SocketAddr>,
    pub(crate) cluster: &'a str,
    /// `host:port` of the service that was meant.
    pub(crate) operation: &'a dyn std::fmt::Display,
    pub(crate) peer: Option<&'a PeerLabels>,
    /// The name of the route that was taken, if it has one.
    pub(crate) route: Option<&'a str>,
    pub(crate) downstream: Downstream<'a>,
    /// Details of the end, if the role knows better than the engine.
    pub(crate) details: Option<&'a str>,
    /// Audit and dry-run results of policies, which decide nothing.
    pub(crate) marks: PolicyMarks<'a>,
}

/// Request headers as they went on, and of the response what was remembered.
struct LoggedHeaders<'a> {
    head: Option<HttpHead<'a>>,
    notes: Option<&'a RequestNotes>,
    seen: Option<&'a EngineNotes>,
}

impl Fields for LoggedHeaders<'_> {
    fn field(&self, direction: HeaderSource, name: &str) -> Option<&[u8]> {
        let remembered = match direction {
            HeaderSource::Request => {
                let id = self.notes.and_then(|notes| notes.request_id.as_deref());
                if let ("x-request-id", Some(id)) = (name, id) {
                    return Some(id.as_bytes());
                }
                return self.head.as_ref()?.header(name);
            }
            HeaderSource::Response => &self.seen?.fields,
            HeaderSource::Trailer => &self.seen?.trailers,
        };
        let found = remembered.iter().find(|(known, _)| **known == *name);
        found.map(|(_, value)| &**value)
    }
}

/// Returns true if a log or span wants the request's record; otherwise the record is not built.
pub(crate) fn wants<'a>(
    worker: &'a Worker,
    from: impl Into<ReporterLabels<'a>>,
    notes: Option<&RequestNotes>,
) -> bool {
    let sampled = notes.and_then(|notes| notes.context.as_ref());
    is_on(worker, from) || sampled.is_some_and(|context| context.sampled)
}

pub(crate) fn http<'a, R: HttpRole>(
    worker: &'a Worker,
    from: impl Into<ReporterLabels<'a>>,
    exchange: &Exchange<'_, R>,
    notes: Option<&RequestNotes>,
    context: &HttpContext<'_>,
) {
    let from = from.into();
    let recording = from.recording(worker);
    let wanted = recording.side(from.side);
    let seen = notes.map(RequestNotes::seen);
    let seen = seen.as_deref();
    let record = exchange.record;
    let told = LoggedHeaders {
        head: exchange.head,
        notes,
        seen,
    };
    let after = |moment: Option<Instant>| {
        moment.map(|moment| moment.saturating_duration_since(record.started))
    };
    let span_context = notes.and_then(|notes| notes.context.as_ref());
    let trace_id = span_context.map_or_else(String::new, |context| context.trace.to_string());
    let head = exchange.head.as_ref();
    let path = tokens::told_path(from.tokens(worker), head);
    let http = HttpLogFields {
        method: head.map(HttpHead::method).unwrap_or_default(),
        path: &path,
        authority: head.and_then(HttpHead::authority).unwrap_or_default(),
        version: head.map_or("HTTP/1.1", |head| head.version().name()),
        code: record.status,
        request_head: record.request_head_bytes,
        response_head: record.response_head_bytes,
        grpc_status: record.grpc.and_then(|grpc| grpc.status),
        fields: &told,
        request_duration: after(seen.and_then(|seen| seen.received)),
        response_duration: after(seen.and_then(|seen| seen.response)),
        decision_duration: after(seen.and_then(EngineNotes::decided)),
        queue_duration: seen.and_then(EngineNotes::queued),
        upstream_duration: seen.and_then(EngineNotes::upstream),
        attempts: record.attempts,
        trace_id: &trace_id,
    };
    let own = worker.principal.borrow();
    let unreached = record.details.strip_prefix(UNREACHED);
    let unreached = unreached.map(|why| why.trim_matches(['{', '}']));
    let entry = AccessLogEntry {
        http: Some(http),
        start: SystemTime::now()
            .checked_sub(record.started.elapsed())
            .unwrap_or(SystemTime::UNIX_EPOCH),
        duration: record.duration,
        flags: record.flag.code(),
        details: context.details.unwrap_or(record.details),
        termination: "",
        upstream_failure: match unreached {
            Some("") => record.details,
            why => why.unwrap_or_default(),
        },
        downstream_failure: "",
        received: record.request_body_bytes,
        sent: record.response_body_bytes,
        upstream: context.upstream,
        upstream_local: seen.and_then(|seen| seen.from),
        cluster: context.cluster,
        local: context.downstream.local,
        remote: context.downstream.remote,
        server_name: "",
        route: context.route.unwrap_or(DEFAULT_ROUTE),
        tls: context.downstream.tls(&own),
        marks: context.marks,
    };
    wanted.logs.iter().for_each(|log| log.log(&entry));
    if let Some(place) = span_context.filter(|place| place.sampled) {
        span(worker, from, (&entry, &http, place), context);
    }
}

/// Sends the span of a request, if a collector takes it.
fn span(
    worker: &Worker,
    from: ReporterLabels<'_>,
    (entry, http, place): (&AccessLogEntry<'_>, &HttpLogFields<'_>, &trace::Context),
    context: &HttpContext<'_>,
) {
    let recording = from.recording(worker);
    let Some(tracer) = &recording.side(from.side).tracer else {
        return;
    };
    let Some(spans) = &tracer.spans else { return };
    let own: &PeerLabels = &worker.own.borrow();
    let caller = caller(worker, from, &context.downstream);
    let facts = SpanFacts {
        entry,
        http,
        context: place,
        operation: format!("{}/*", context.operation),
        own,
        node_id: &recording.node_id,
        ends: ends(from, caller.as_deref(), own, context.peer),
    };
    let span = trace::span(&facts, &tracer.settings);
    let bytes = prost::Message::encoded_len(&span);
    spans.send(span, bytes);
}

/// Source and destination of a call.
fn ends<'a>(
    from: ReporterLabels<'_>,
    caller: Option<&'a PeerLabels>,
    own: &'a PeerLabels,
    peer: Option<&'a PeerLabels>,
) -> [Option<&'a PeerLabels>; 2] {
    match (from.is_between(), from.side) {
        (true, _) => [caller, peer],
        (false, TelemetrySide::Client) => [Some(own), peer],
        (false, TelemetrySide::Server) => [peer, Some(own)],
    }
}

/// Caller of a request through a gateway or waypoint; `None` at a sidecar.
fn caller(
    worker: &Worker,
    from: ReporterLabels<'_>,
    who: &Downstream<'_>,
) -> Option<Rc<PeerLabels>> {
    if !from.is_between() {
        return None;
    }
    match worker.peers.caller(who.remote.ip(), who.principal) {
        PeerEntry::Workload(peer) => Some(peer),
        PeerEntry::Stranger | PeerEntry::Asked => None,
    }
}
