//! Telemetry of a proxy's traffic, checked from `voile.proxy.v1.Telemetry`. Formats and filters are compiled here, once.
//! One that cannot be compiled refuses the configuration by name.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use voile_model::log_filter::LogFilter;
use voile_model::log_format::LogFormat;
use voile_model::mesh::telemetry::{CustomTag, Metric, SamplingShare, TagOverride, TelemetrySide};
use voile_model::{Port, ServiceKey};
use voile_proto::proxy as wire;

use super::{WireError, port, service_key};

/// Telemetry of one workload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Telemetry {
    /// Access logs of both sides.
    pub access_logs: Vec<AccessLog>,
    /// Spans of calls the application makes.
    pub client_tracing: Option<Tracing>,
    /// Spans of calls the application takes.
    pub server_tracing: Option<Tracing>,
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
    pub headers: Vec<(Arc<str>, Arc<str>, bool)>,
}

/// Spans of one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracing {
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
    /// Checks a message.
    pub(super) fn check(message: Option<&wire::Telemetry>) -> Result<Self, WireError> {
        let Some(message) = message else {
            return Ok(Self::default());
        };
        let mut telemetry = Self::default();
        for (index, log) in message.access_logs.iter().enumerate() {
            let field = format!("telemetry.access_logs[{index}]");
            let log = access_log(log).map_err(|error| error.within(&field))?;
            telemetry.access_logs.push(log);
        }
        for (index, one) in message.tracing.iter().enumerate() {
            let field = format!("telemetry.tracing[{index}]");
            let side = side(one.side).map_err(|error| error.within(&field))?;
            let place = match side {
                TelemetrySide::Client => &mut telemetry.client_tracing,
                TelemetrySide::Server => &mut telemetry.server_tracing,
            };
            let checked = tracing(one).map_err(|error| error.within(&field))?;
            if place.replace(checked).is_some() {
                return Err(WireError::new(field, "the side appears twice"));
            }
        }
        for (index, one) in message.metrics.iter().enumerate() {
            let field = format!("telemetry.metrics[{index}]");
            let one = metric_override(one).map_err(|error| error.within(&field))?;
            telemetry.metrics.push(one);
        }
        Ok(telemetry)
    }

    /// Every service that takes something.
    pub fn collectors(&self) -> impl Iterator<Item = &Collector> {
        let logs = self.access_logs.iter().filter_map(|log| match &log.sink {
            LogSink::Grpc(log) => Some(&log.collector),
            LogSink::File { .. } => None,
        });
        let tracing = [&self.client_tracing, &self.server_tracing];
        let spans = tracing.into_iter().flatten().filter(|one| one.report);
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
        match side {
            TelemetrySide::Client => self.client_tracing.as_ref(),
            TelemetrySide::Server => self.server_tracing.as_ref(),
        }
    }
}

fn side(value: i32) -> Result<TelemetrySide, WireError> {
    match wire::Side::try_from(value) {
        Ok(wire::Side::Client) => Ok(TelemetrySide::Client),
        Ok(wire::Side::Server) => Ok(TelemetrySide::Server),
        Ok(wire::Side::NoSide) | Err(_) => Err(super::unknown_value("side", value)),
    }
}

fn access_log(message: &wire::AccessLog) -> Result<AccessLog, WireError> {
    let filter = match message.filter.as_str() {
        "" => None,
        text => {
            let parsed = LogFilter::parse(text);
            Some(parsed.map_err(|error| WireError::new("filter", error.to_string()))?)
        }
    };
    let sink = match &message.sink {
        None => return Err(WireError::new("sink", "missing")),
        Some(wire::access_log::Sink::File(file)) => {
            file_sink(file).map_err(|error| error.within("file"))?
        }
        Some(wire::access_log::Sink::Grpc(log)) => LogSink::Grpc(GrpcLog {
            collector: collector(log.collector.as_ref()).map_err(|error| error.within("grpc"))?,
            log_name: log.log_name.as_str().into(),
            requests: log.requests,
            request_headers: names(&log.request_headers),
            response_headers: names(&log.response_headers),
            response_trailers: names(&log.response_trailers),
        }),
    };
    Ok(AccessLog {
        side: side(message.side)?,
        provider: message.provider.as_str().into(),
        filter,
        sink,
    })
}

fn names(names: &[String]) -> Vec<Arc<str>> {
    let lower = |name: &String| name.to_ascii_lowercase().into();
    names.iter().map(lower).collect()
}

fn file_sink(file: &wire::FileLog) -> Result<LogSink, WireError> {
    let parsed = match &file.format {
        None => return Err(WireError::new("format", "missing")),
        Some(wire::file_log::Format::Text(text)) => LogFormat::text(text),
        Some(wire::file_log::Format::Json(text)) => LogFormat::json(text),
    };
    if !file.path.starts_with('/') {
        return Err(WireError::new("path", "not absolute"));
    }
    Ok(LogSink::File {
        path: file.path.as_str().into(),
        format: parsed.map_err(|error| WireError::new("format", error.to_string()))?,
        omit_empty: file.omit_empty,
    })
}

fn collector(message: Option<&wire::Collector>) -> Result<Collector, WireError> {
    let message = message.ok_or_else(|| WireError::new("collector", "missing"))?;
    let headers = message.headers.iter().map(|header| {
        let name = header.name.to_ascii_lowercase().into();
        (name, header.value.as_str().into(), header.from_environment)
    });
    let timeout = u64::from(message.timeout_ms);
    Ok(Collector {
        service: service_key("collector.service", &message.service)?,
        port: port("collector.port", message.port)?,
        timeout: (timeout != 0).then(|| Duration::from_millis(timeout)),
        headers: headers.collect(),
    })
}

fn tracing(message: &wire::Tracing) -> Result<Tracing, WireError> {
    let sampling = SamplingShare::from_millionths(message.sampling_millionths)
        .ok_or_else(|| WireError::new("sampling_millionths", "more than 100 %"))?;
    let mut custom_tags = BTreeMap::new();
    for tag in &message.custom_tags {
        let default = tag.default_value.as_deref().map(Arc::from);
        let value = match &tag.source {
            None => return Err(WireError::new("custom_tags.source", "missing")),
            Some(wire::custom_tag::Source::Literal(text)) => {
                CustomTag::Literal(text.as_str().into())
            }
            Some(wire::custom_tag::Source::Environment(name)) => CustomTag::Environment {
                name: name.as_str().into(),
                default,
            },
            Some(wire::custom_tag::Source::Header(name)) => CustomTag::Header {
                name: name.to_ascii_lowercase().into(),
                default,
            },
        };
        custom_tags.insert(tag.name.as_str().into(), value);
    }
    Ok(Tracing {
        collector: collector(message.collector.as_ref())?,
        http_path: (!message.http_path.is_empty()).then(|| message.http_path.as_str().into()),
        sampling,
        report: message.report,
        custom_tags,
        use_request_id: message.use_request_id,
        max_path_length: NonZeroUsize::new(message.max_path_length as usize),
        istio_tags: message.istio_tags,
        environment_resource: message.environment_resource,
    })
}

fn metric_override(message: &wire::MetricOverride) -> Result<MetricOverride, WireError> {
    let tag = |tag: &wire::TagOverride| {
        let change = match &tag.value {
            None => TagOverride::Remove,
            Some(value) => TagOverride::Set(value.as_str().into()),
        };
        (tag.name.as_str().into(), change)
    };
    Ok(MetricOverride {
        metric: (!message.metric.is_empty()).then(|| message.metric.as_str().into()),
        side: side(message.side)?,
        disabled: message.disabled,
        tags: message.tags.iter().map(tag).collect(),
    })
}
