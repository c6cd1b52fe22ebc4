//! A span as OTLP takes it, with the names and tags that Istio's proxies use.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use voile_model::log_format::HeaderSource;
use voile_model::mesh::telemetry::{CustomTag, TelemetrySide};
use voile_proto::trace as wire;
use wire::span::SpanKind;
use wire::status::StatusCode;

use super::context::Context;
use crate::PeerLabels;
use crate::access_log::{AccessLogEntry, HttpLogFields};

/// Default for the longest path in a span, in bytes. Istio's default.
const MAX_PATH_BYTES: usize = 256;

/// Longest value of any other tag, in bytes.
const MAX_TAG_BYTES: usize = 1024;

/// Tag, header, and the value where there is no header.
pub type HeaderTag = (Arc<str>, Arc<str>, Option<Arc<str>>);

/// Settings that the spans of one side share, besides the request's own attributes.
#[derive(Debug, Clone)]
pub struct SpanSettings {
    /// The side.
    pub side: TelemetrySide,
    /// Longest path.
    pub max_path: Option<NonZeroUsize>,
    /// Tags of the environment, resolved, and of literals.
    pub fixed: Vec<(Arc<str>, Arc<str>)>,
    /// Tag, header, default.
    pub headers: Vec<HeaderTag>,
    /// True if Istio's tags are among them.
    pub istio_tags: bool,
}

impl SpanSettings {
    /// Sorts custom tags by where their values come from; the environment is read now.
    #[must_use]
    pub fn new(
        side: TelemetrySide,
        tags: impl IntoIterator<Item = (Arc<str>, CustomTag)>,
        max_path: Option<NonZeroUsize>,
        istio_tags: bool,
    ) -> Self {
        let (mut fixed, mut headers) = (Vec::new(), Vec::new());
        for (name, tag) in tags {
            match tag {
                CustomTag::Literal(text) => fixed.push((name, text)),
                CustomTag::Environment {
                    name: variable,
                    default,
                } => {
                    let value = std::env::var(&*variable).ok().map(Arc::from);
                    fixed.extend(value.or(default).map(|value| (name, value)));
                }
                CustomTag::Header {
                    name: header,
                    default,
                } => headers.push((name, header, default)),
            }
        }
        Self {
            side,
            max_path,
            fixed,
            headers,
            istio_tags,
        }
    }
}

/// Attributes of a request for its span, besides its entry.
pub struct SpanFacts<'a> {
    /// The entry.
    pub entry: &'a AccessLogEntry<'a>,
    /// Its request's part.
    pub http: &'a HttpLogFields<'a>,
    /// Its place in its trace.
    pub context: &'a Context,
    /// `host:port/*` of the destination.
    pub operation: String,
    /// Our workload.
    pub own: &'a PeerLabels,
    /// `sidecar~…`.
    pub node_id: &'a str,
    /// Calling and called workload, as far as they are known.
    pub ends: [Option<&'a PeerLabels>; 2],
}

fn text(value: impl Into<String>) -> Option<wire::AnyValue> {
    Some(wire::AnyValue {
        value: Some(wire::any_value::Value::StringValue(value.into())),
    })
}

fn tag(key: &str, value: impl Into<String>) -> wire::KeyValue {
    wire::KeyValue {
        key: key.to_owned(),
        value: text(value),
    }
}

fn clipped(value: &str, limit: usize) -> &str {
    let mut end = value.len().min(limit);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    &value[..end]
}

/// The span of a finished request.
#[must_use]
pub fn span(facts: &SpanFacts<'_>, settings: &SpanSettings) -> wire::Span {
    let SpanFacts {
        entry,
        context,
        http,
        ..
    } = facts;
    let nanoseconds = |time: SystemTime| {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    };
    let failed = http.code >= 500 || http.code == 0;
    let grpc_failed = http.grpc_status.is_some_and(|status| status != 0);
    wire::Span {
        trace_id: context.trace.0.to_vec(),
        span_id: context.span.0.to_vec(),
        trace_state: context.state.clone().unwrap_or_default(),
        parent_span_id: context
            .parent
            .map(|span| span.0.to_vec())
            .unwrap_or_default(),
        name: facts.operation.clone(),
        kind: match settings.side {
            TelemetrySide::Client => SpanKind::Client,
            TelemetrySide::Server => SpanKind::Server,
        }
        .into(),
        start_time_unix_nano: nanoseconds(entry.start),
        end_time_unix_nano: nanoseconds(entry.start + entry.duration),
        attributes: attributes(facts, settings),
        status: (failed || grpc_failed).then(|| wire::Status {
            message: entry.details.to_owned(),
            code: StatusCode::Error.into(),
        }),
        flags: u32::from(context.sampled),
    }
}

fn attributes(facts: &SpanFacts<'_>, settings: &SpanSettings) -> Vec<wire::KeyValue> {
    let SpanFacts { entry, http, .. } = facts;
    let field = |name: &str| {
        let value = entry.header(HeaderSource::Request, name);
        let value = String::from_utf8_lossy(value.unwrap_or_default());
        clipped(&value, MAX_TAG_BYTES).to_owned()
    };
    let path = clipped(
        http.path,
        settings.max_path.map_or(MAX_PATH_BYTES, NonZeroUsize::get),
    );
    let mut tags = vec![
        tag("component", "proxy"),
        tag("node_id", facts.node_id),
        tag("http.method", http.method),
        tag(
            "http.url",
            format!(
                "{}://{}{path}",
                entry.scheme(),
                clipped(http.authority, MAX_TAG_BYTES)
            ),
        ),
        tag("http.protocol", http.version),
        tag("http.status_code", http.code.to_string()),
        tag("response_flags", entry.flags),
        tag("request_size", entry.received.to_string()),
        tag("response_size", entry.sent.to_string()),
        tag("upstream_cluster", entry.cluster),
        tag("upstream_cluster.name", entry.cluster),
        tag("user_agent", field("user-agent")),
        tag("guid:x-request-id", field("x-request-id")),
        tag("peer.address", entry.remote.ip().to_string()),
    ];
    if let Some(upstream) = entry.upstream {
        tags.push(tag("upstream_address", upstream.to_string()));
    }
    if let Some(status) = http.grpc_status {
        tags.push(tag("grpc.status_code", status.to_string()));
    }
    if http.code >= 500 || http.code == 0 {
        tags.push(tag("error", "true"));
    }
    if settings.istio_tags {
        istio(facts, &mut tags);
    }
    let fixed = settings.fixed.iter();
    tags.extend(fixed.map(|(name, value)| tag(name, &**value)));
    for (name, header, default) in &settings.headers {
        let value = field(header);
        match (value.as_str(), default) {
            ("", None) => {}
            ("", Some(default)) => tags.push(tag(name, &**default)),
            (value, _) => tags.push(tag(name, value)),
        }
    }
    tags
}

fn istio(facts: &SpanFacts<'_>, tags: &mut Vec<wire::KeyValue>) {
    let own = facts.own;
    tags.extend([
        tag("istio.canonical_service", own.canonical_service.clone()),
        tag("istio.canonical_revision", own.canonical_revision.clone()),
        tag("istio.namespace", own.namespace.clone()),
        tag("istio.mesh_id", own.cluster.clone()),
        tag("istio.cluster_id", own.cluster.clone()),
    ]);
    for (end, peer) in ["source", "destination"].into_iter().zip(facts.ends) {
        if let Some(peer) = peer {
            tags.push(tag(&format!("istio.{end}_workload"), peer.workload.clone()));
            tags.push(tag(
                &format!("istio.{end}_namespace"),
                peer.namespace.clone(),
            ));
        }
    }
}

/// Returns the resource that all spans of a proxy share. `service.name` is Istio's: canonical service and namespace.
#[must_use]
pub fn resource(own: &PeerLabels, detect_environment: bool) -> wire::Resource {
    let name = format!("{}.{}", own.canonical_service, own.namespace);
    let mut attributes = vec![
        tag("service.name", name),
        tag("service.version", own.version.clone()),
        tag("telemetry.sdk.name", "voile"),
        tag("telemetry.sdk.language", "rust"),
        tag("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
        tag("host.name", crate::process::hostname()),
    ];
    if detect_environment && let Ok(said) = std::env::var("OTEL_RESOURCE_ATTRIBUTES") {
        for pair in said.split(',') {
            if let Some((key, value)) = pair.split_once('=') {
                attributes.retain(|known| known.key != key.trim());
                attributes.push(tag(key.trim(), value.trim()));
            }
        }
    }
    wire::Resource { attributes }
}
