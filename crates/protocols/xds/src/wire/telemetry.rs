//! Telemetry of a proxy's traffic ⇄ `voile.proxy.v1.Telemetry`. Formats and filters are compiled here, once.
//! One that cannot be compiled refuses the configuration by name.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use voile_model::log_filter::LogFilter;
use voile_model::log_format::LogFormat;
use voile_model::mesh::telemetry::{
    CustomTag, Metric, RequestAttribute, SamplingShare, TagOverride, TelemetrySide,
};
use voile_model::{Port, ServiceKey};
use voile_proto::proxy as wire;

use super::fields::forms::required;
use super::fields::{wire_enum, wire_tuple, wire_type};
use super::{WireError, WireType};

/// Telemetry of one workload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Telemetry {
    /// Access logs of both sides.
    pub access_logs: Vec<AccessLog>,
    /// Spans, of each side once at most.
    pub tracing: Vec<Tracing>,
    /// In order; later ones win.
    pub metrics: Vec<MetricOverride>,
}

/// One access log of one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLog {
    /// The side.
    pub side: TelemetrySide,
    /// The provider's name, for people.
    pub provider: Arc<str>,
    /// Filter of the entries; `None` is everything.
    pub filter: Option<LogFilter>,
    /// Where to.
    pub sink: LogSink,
}

/// Target of an access log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogSink {
    /// A file.
    File {
        /// `/dev/stdout` or a file.
        path: Arc<str>,
        /// Format of the lines.
        format: LogFormat,
        /// True if missing values are left out.
        omit_empty: bool,
    },
    /// Envoy's gRPC access log service.
    Grpc(GrpcLog),
}

/// A log that goes to a service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GrpcLog {
    /// Collector of the entries.
    pub collector: Collector,
    /// `log_name` of the stream.
    pub log_name: Arc<str>,
    /// Requests, or else opaque connections.
    pub requests: bool,
    /// Sent along, in lower case.
    pub request_headers: Vec<Arc<str>>,
    /// Sent along, in lower case.
    pub response_headers: Vec<Arc<str>>,
    /// Sent along, in lower case.
    pub response_trailers: Vec<Arc<str>>,
}

/// Service that collects telemetry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Collector {
    /// The service.
    pub service: ServiceKey,
    /// Its port.
    pub port: Port,
    /// Timeout of one call; `None` is the named default.
    pub timeout: Option<Duration>,
    /// Name, value, and whether the value is a variable's name.
    pub headers: Vec<CollectorHeader>,
}

/// Name, value, and whether the value is a variable's name.
type CollectorHeader = (Arc<str>, Arc<str>, bool);

/// Spans of one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracing {
    /// The side.
    pub side: TelemetrySide,
    /// Collector of the spans.
    pub collector: Collector,
    /// Path of OTLP over HTTP; `None` is gRPC.
    pub http_path: Option<Arc<str>>,
    /// Of requests whose caller decided nothing.
    pub sampling: SamplingShare,
    /// True if spans are sent.
    pub report: bool,
    /// Tags by name, each with what it says where its source has nothing.
    pub custom_tags: BTreeMap<Arc<str>, CustomTag>,
    /// True if `x-request-id` carries the decision.
    pub use_request_id: bool,
    /// Longest path in a span; `None` is the named default.
    pub max_path_length: Option<NonZeroUsize>,
    /// True if spans carry Istio's tags.
    pub istio_tags: bool,
    /// True if `OTEL_RESOURCE_ATTRIBUTES` is part of the resource.
    pub environment_resource: bool,
}

/// A change of one metric or all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricOverride {
    /// Exposed name; `None` is all.
    pub metric: Option<Arc<str>>,
    /// The side.
    pub side: TelemetrySide,
    /// True if the metric is off; `None` leaves it.
    pub disabled: Option<bool>,
    /// Labels.
    pub tags: Vec<(Arc<str>, TagOverride)>,
}

impl Telemetry {
    /// Every service that takes something.
    pub fn collectors(&self) -> impl Iterator<Item = &Collector> {
        let logs = self.access_logs.iter().filter_map(|log| match &log.sink {
            LogSink::Grpc(log) => Some(&log.collector),
            LogSink::File { .. } => None,
        });
        let spans = self.tracing.iter().filter(|one| one.report);
        logs.chain(spans.map(|tracing| &tracing.collector))
    }

    /// State of one metric of one side: true if it is off, and the changes of its labels.
    #[must_use]
    pub fn metric(
        &self,
        side: TelemetrySide,
        exposed: &str,
    ) -> (bool, BTreeMap<Arc<str>, TagOverride>) {
        let (mut off, mut tags) = (false, BTreeMap::new());
        for change in self.metrics.iter().filter(|change| change.side == side) {
            if change.metric.as_deref().is_none_or(|name| name == exposed) {
                off = change.disabled.unwrap_or(off);
                tags.extend(change.tags.iter().cloned());
            }
        }
        (off, tags)
    }

    /// The values of requests that labels of one side have.
    #[must_use]
    pub fn computed(&self, side: TelemetrySide) -> BTreeSet<RequestAttribute> {
        let shown = Metric::NAMES
            .iter()
            .map(|(.., exposed)| self.metric(side, exposed));
        let tags = shown.filter(|(off, _)| !off).flat_map(|(_, tags)| tags);
        let computed = tags.filter_map(|(_, change)| match change {
            TagOverride::Computed(attribute) => Some(attribute),
            TagOverride::Remove | TagOverride::Set(_) => None,
        });
        computed.collect()
    }

    /// Returns true if all metrics of a side are off, so that nothing need be counted.
    #[must_use]
    pub fn metrics_are_off(&self, side: TelemetrySide) -> bool {
        Metric::NAMES
            .iter()
            .all(|(.., exposed)| self.metric(side, exposed).0)
    }

    /// Spans of one side.
    #[must_use]
    pub fn tracing(&self, side: TelemetrySide) -> Option<&Tracing> {
        self.tracing.iter().find(|one| one.side == side)
    }
}

wire_type! {
    Telemetry as wire::Telemetry { access_logs, tracing, metrics, }
    verify traces_each_side_once
}

fn traces_each_side_once(telemetry: &Telemetry) -> Result<(), WireError> {
    match &telemetry.tracing[..] {
        [] | [_] => Ok(()),
        [one, two] if one.side != two.side => Ok(()),
        [_, _, ..] => Err(WireError::new("tracing", "a side appears twice")),
    }
}

wire_enum! {
    TelemetrySide as wire::Side { Client, Server; refuse NoSide: "0 is not a side" }
}

wire_type! { AccessLog as wire::AccessLog { side, provider, filter, sink, } }

impl WireType<String> for Option<LogFilter> {
    fn to_wire(&self) -> String {
        self.as_ref().map_or("", LogFilter::source).to_owned()
    }

    fn from_wire(form: String) -> Result<Self, WireError> {
        let filter = Some(form).filter(|text| !text.is_empty());
        let filter = filter.map(|text| LogFilter::parse(&text)).transpose();
        filter.map_err(|error| WireError::new("", error.to_string()))
    }
}

impl WireType<Option<wire::access_log::Sink>> for LogSink {
    fn to_wire(&self) -> Option<wire::access_log::Sink> {
        use wire::file_log::Format;
        Some(match self {
            Self::File {
                path,
                format,
                omit_empty,
            } => wire::access_log::Sink::File(wire::FileLog {
                path: path.to_string(),
                format: Some(match format.is_json() {
                    true => Format::Json(format.source().to_owned()),
                    false => Format::Text(format.source().to_owned()),
                }),
                omit_empty: *omit_empty,
            }),
            Self::Grpc(log) => wire::access_log::Sink::Grpc(log.to_wire()),
        })
    }

    fn from_wire(form: Option<wire::access_log::Sink>) -> Result<Self, WireError> {
        match form {
            None => Err(WireError::new("", "missing")),
            Some(wire::access_log::Sink::File(file)) => {
                file_sink(file).map_err(|error| error.within("file"))
            }
            Some(wire::access_log::Sink::Grpc(log)) => GrpcLog::from_wire(log)
                .map(Self::Grpc)
                .map_err(|error| error.within("grpc")),
        }
    }
}

fn file_sink(file: wire::FileLog) -> Result<LogSink, WireError> {
    let parsed = match file.format {
        None => return Err(WireError::new("format", "missing")),
        Some(wire::file_log::Format::Text(text)) => LogFormat::text(&text),
        Some(wire::file_log::Format::Json(text)) => LogFormat::json(&text),
    };
    if !file.path.starts_with('/') {
        return Err(WireError::new("path", "not absolute"));
    }
    Ok(LogSink::File {
        path: file.path.into(),
        format: parsed.map_err(|error| WireError::new("format", error.to_string()))?,
        omit_empty: file.omit_empty,
    })
}

wire_type! {
    GrpcLog as wire::GrpcLog {
        collector with required,
        log_name,
        requests,
        request_headers by lowered,
        response_headers by lowered,
        response_trailers by lowered,
    }
}

/// Names of headers.
fn lowered(form: Vec<String>) -> Result<Vec<Arc<str>>, WireError> {
    let lower = |name: String| name.to_ascii_lowercase().into();
    Ok(form.into_iter().map(lower).collect())
}

wire_type! {
    Collector as wire::Collector { service, port, timeout = timeout_ms, headers by lowered_headers, }
}

wire_tuple! {
    (Arc<str>, Arc<str>, bool) as wire::CollectorHeader { name, value, from_environment }
}

fn lowered_headers(
    mut form: Vec<wire::CollectorHeader>,
) -> Result<Vec<CollectorHeader>, WireError> {
    form.iter_mut()
        .for_each(|one| one.name.make_ascii_lowercase());
    WireType::from_wire(form)
}

wire_type! {
    Tracing as wire::Tracing {
        side,
        collector with required,
        http_path,
        sampling = sampling_millionths,
        report,
        custom_tags with tags,
        use_request_id,
        max_path_length,
        istio_tags,
        environment_resource,
    }
}

impl WireType<u32> for SamplingShare {
    fn to_wire(&self) -> u32 {
        self.millionths()
    }

    fn from_wire(form: u32) -> Result<Self, WireError> {
        Self::from_millionths(form).ok_or_else(|| WireError::new("", "more than 100 %"))
    }
}

impl WireType<u32> for Option<NonZeroUsize> {
    fn to_wire(&self) -> u32 {
        self.map_or(0, |length| u32::try_from(length.get()).unwrap_or(u32::MAX))
    }

    fn from_wire(form: u32) -> Result<Self, WireError> {
        Ok(NonZeroUsize::new(form as usize))
    }
}

/// Tags by name.
mod tags {
    use wire::custom_tag::Source;

    use super::{Arc, BTreeMap, CustomTag, WireError, WireType, wire};

    type Tags = BTreeMap<Arc<str>, CustomTag>;

    pub(super) fn to_wire(tags: &Tags) -> Vec<wire::CustomTag> {
        let tag = |(name, tag): (&Arc<str>, &CustomTag)| {
            let (source, default) = match tag {
                CustomTag::Literal(text) => (Source::Literal(text.to_string()), &None),
                CustomTag::Environment { name, default } => {
                    (Source::Environment(name.to_string()), default)
                }
                CustomTag::Header { name, default } => (Source::Header(name.to_string()), default),
            };
            wire::CustomTag {
                name: name.to_string(),
                source: Some(source),
                default_value: default.to_wire(),
            }
        };
        tags.iter().map(tag).collect()
    }

    pub(super) fn from_wire(form: Vec<wire::CustomTag>) -> Result<Tags, WireError> {
        let tag = |tag: wire::CustomTag| {
            let default: Option<Arc<str>> = tag.default_value.map(Into::into);
            let value = match tag.source {
                None => return Err(WireError::new("source", "missing")),
                Some(Source::Literal(text)) => CustomTag::Literal(text.into()),
                Some(Source::Environment(name)) => CustomTag::Environment {
                    name: name.into(),
                    default,
                },
                Some(Source::Header(name)) => CustomTag::Header {
                    name: name.to_ascii_lowercase().into(),
                    default,
                },
            };
            Ok((tag.name.into(), value))
        };
        form.into_iter().map(tag).collect()
    }
}

wire_type! { MetricOverride as wire::MetricOverride { metric, side, disabled, tags, } }

impl WireType<wire::TagOverride> for (Arc<str>, TagOverride) {
    fn to_wire(&self) -> wire::TagOverride {
        let (value, computed) = match &self.1 {
            TagOverride::Remove => (None, None),
            TagOverride::Set(value) => (Some(value.to_string()), None),
            TagOverride::Computed(attribute) => (None, Some(attribute.to_string())),
        };
        wire::TagOverride {
            name: self.0.to_string(),
            value,
            computed,
        }
    }

    fn from_wire(form: wire::TagOverride) -> Result<Self, WireError> {
        let change = match (form.value, form.computed) {
            (None, None) => TagOverride::Remove,
            (Some(value), None) => TagOverride::Set(value.into()),
            (None, Some(computed)) => {
                let attribute = RequestAttribute::parse(&computed);
                TagOverride::Computed(attribute.ok_or_else(|| {
                    WireError::new("computed", format!("`{computed}` is no value of a request"))
                })?)
            }
            (Some(_), Some(_)) => {
                return Err(WireError::new("computed", "a label has one value"));
            }
        };
        Ok((form.name.into(), change))
    }
}
