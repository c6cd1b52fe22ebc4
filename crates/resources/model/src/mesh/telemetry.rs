//! Istio's Telemetry: the metrics, spans and access logs of a workload's proxy. A workload's settings are the sum of
//! the mesh's, its namespace's and those that select it, from wide to narrow ([`Mesh::telemetry_for`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::authorization::TargetReference;
use super::waypoint::is_meant;
use super::{Mesh, MeshService, Workload};
use crate::logs::log_filter::LogFilter;
use crate::names::{Labels, Namespace, ResourceName};
use crate::source::Source;

/// One resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// Workloads it is for; `None` is the whole namespace (or mesh, in the root namespace).
    pub selector: Option<Labels>,
    /// Targets in its own namespace: gateways and waypoints, by their Gateways (Gateway API), and Services and
    /// ServiceEntries, on which waypoints report. Empty if it has no targets.
    pub targets: Vec<TargetReference>,
    /// Metrics, in order.
    pub metrics: Vec<MetricsRule>,
    /// Spans, in order.
    pub tracing: Vec<TracingRule>,
    /// Access logs, in order.
    pub access_logging: Vec<LoggingRule>,
}

/// One side of the traffic, as seen from the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TelemetrySide {
    /// Outbound: our application calls.
    Client,
    /// Inbound: our application is called.
    Server,
}

impl TelemetrySide {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Client, Self::Server];
}

/// The sides a rule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TelemetrySides {
    /// Outbound.
    pub client: bool,
    /// Inbound.
    pub server: bool,
}

impl TelemetrySides {
    /// Both sides.
    pub const BOTH: Self = Self {
        client: true,
        server: true,
    };

    /// Returns true if it includes the side.
    #[must_use]
    pub fn has(self, side: TelemetrySide) -> bool {
        match side {
            TelemetrySide::Client => self.client,
            TelemetrySide::Server => self.server,
        }
    }
}

/// A provider as a rule names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderName {
    /// Its name.
    pub name: Arc<str>,
    /// File and line of its definition.
    pub source: Source,
}

/// A rule for access logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggingRule {
    /// Empty is the parent's, and at last MeshConfig's default.
    pub providers: Vec<ProviderName>,
    /// The sides it is for.
    pub sides: TelemetrySides,
    /// True if these providers are off.
    pub disabled: bool,
    /// Filter of log entries; `None` is everything.
    pub filter: Option<LogFilter>,
}

/// A share of requests, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SamplingShare(u32);

impl SamplingShare {
    /// All of them.
    pub const ALL: Self = Self(1_000_000);
    /// Istio's default, 1 %.
    pub const DEFAULT: Self = Self(10_000);

    /// A percentage from 0 to 100.
    #[must_use]
    pub fn percent(percent: f64) -> Option<Self> {
        let fits = (0.0..=100.0).contains(&percent);
        fits.then(|| Self((percent * 10_000.0).round() as u32))
    }

    /// So many millionths, at most all.
    #[must_use]
    pub fn from_millionths(millionths: u32) -> Option<Self> {
        (millionths <= Self::ALL.0).then_some(Self(millionths))
    }

    /// Millionths.
    #[must_use]
    pub fn millionths(self) -> u32 {
        self.0
    }
}

/// A rule for spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingRule {
    /// Empty is the parent's, and at last MeshConfig's default. The first one counts.
    pub providers: Vec<ProviderName>,
    /// The sides it is for.
    pub sides: TelemetrySides,
    /// Share of sampled requests, if the caller made no sampling decision.
    pub sampling: Option<SamplingShare>,
    /// Trace context is passed on, spans are not reported.
    pub disable_span_reporting: Option<bool>,
    /// Replaces the parent's.
    pub custom_tags: Option<BTreeMap<Arc<str>, CustomTag>>,
    /// True if `x-request-id` carries the sampling decision, as Envoy's does.
    pub use_request_id: Option<bool>,
    /// True if spans carry Istio's own tags.
    pub istio_tags: Option<bool>,
}

/// Source of a span's tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CustomTag {
    /// As written.
    Literal(Arc<str>),
    /// A variable of the proxy's environment.
    Environment {
        /// Its name.
        name: Arc<str>,
        /// When there is none.
        default: Option<Arc<str>>,
    },
    /// A header of the request, in lower case.
    Header {
        /// Its name.
        name: Arc<str>,
        /// When there is none.
        default: Option<Arc<str>>,
    },
}

/// A rule for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsRule {
    /// Empty is the parent's, and at last MeshConfig's default.
    pub providers: Vec<ProviderName>,
    /// In order; later ones win.
    pub overrides: Vec<MetricOverride>,
}

/// Changes one metric or all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricOverride {
    /// The metric; `None` is all.
    pub metric: Option<Metric>,
    /// The sides it is for.
    pub sides: TelemetrySides,
    /// True if the metric is off; `None` keeps the wider setting.
    pub disabled: Option<bool>,
    /// Labels by name.
    pub tags: BTreeMap<Arc<str>, TagOverride>,
}

/// Change of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TagOverride {
    /// It is removed.
    Remove,
    /// It says this, whether it was there or not.
    Set(Arc<str>),
    /// The same with a value of each request.
    Computed(RequestAttribute),
}

/// A value of a request that a label may have, by CEL's words for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestAttribute {
    /// `request.method`.
    Method,
    /// `request.host`.
    Host,
    /// `request.scheme`.
    Scheme,
    /// `request.path`: path and query.
    Path,
    /// `request.url_path`: the path alone.
    UrlPath,
    /// `request.headers['name']`; the name in lower case.
    Header(Arc<str>),
}

impl RequestAttribute {
    /// Those without a name of their own.
    const WORDS: [(&'static str, Self); 5] = [
        ("request.method", Self::Method),
        ("request.host", Self::Host),
        ("request.scheme", Self::Scheme),
        ("request.path", Self::Path),
        ("request.url_path", Self::UrlPath),
    ];

    /// What an expression names, if it is nothing but the name of a value.
    #[must_use]
    pub fn parse(expression: &str) -> Option<Self> {
        let words = &Self::WORDS;
        if let Some((_, found)) = words.iter().find(|(word, _)| *word == expression) {
            return Some(found.clone());
        }
        if expression == "request.useragent" {
            return Some(Self::Header("user-agent".into()));
        }
        let key = expression.strip_prefix("request.headers[")?;
        let name = quoted(key.strip_suffix(']')?.trim())?;
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        (!name.is_empty() && name.bytes().all(token))
            .then(|| Self::Header(name.to_ascii_lowercase().into()))
    }
}

impl fmt::Display for RequestAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "request.headers['{name}']"),
            other => {
                let word = Self::WORDS.iter().find(|(_, known)| known == other);
                f.write_str(word.map_or("", |(word, _)| word))
            }
        }
    }
}

/// The text within quotes of either kind; `None` if it is something else.
#[must_use]
pub fn quoted(expression: &str) -> Option<&str> {
    let quote = expression
        .chars()
        .next()
        .filter(|quote| "'\"".contains(*quote))?;
    let inner = expression[1..].strip_suffix(quote)?;
    (!inner.contains([quote, '\\'])).then_some(inner)
}

/// Istio's standard metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// `istio_requests_total`.
    RequestCount,
    /// `istio_request_duration_milliseconds`.
    RequestDuration,
    /// `istio_request_bytes`.
    RequestSize,
    /// `istio_response_bytes`.
    ResponseSize,
    /// `istio_tcp_connections_opened_total`.
    TcpOpenedConnections,
    /// `istio_tcp_connections_closed_total`.
    TcpClosedConnections,
    /// `istio_tcp_sent_bytes_total`.
    TcpSentBytes,
    /// `istio_tcp_received_bytes_total`.
    TcpReceivedBytes,
    /// `istio_request_messages_total`.
    GrpcRequestMessages,
    /// `istio_response_messages_total`.
    GrpcResponseMessages,
}

impl Metric {
    /// Istio's word, the metric, and the name it is exposed by.
    pub const NAMES: [(&'static str, Self, &'static str); 10] = [
        ("REQUEST_COUNT", Self::RequestCount, "istio_requests_total"),
        (
            "REQUEST_DURATION",
            Self::RequestDuration,
            "istio_request_duration_milliseconds",
        ),
        ("REQUEST_SIZE", Self::RequestSize, "istio_request_bytes"),
        ("RESPONSE_SIZE", Self::ResponseSize, "istio_response_bytes"),
        (
            "TCP_OPENED_CONNECTIONS",
            Self::TcpOpenedConnections,
            "istio_tcp_connections_opened_total",
        ),
        (
            "TCP_CLOSED_CONNECTIONS",
            Self::TcpClosedConnections,
            "istio_tcp_connections_closed_total",
        ),
        (
            "TCP_SENT_BYTES",
            Self::TcpSentBytes,
            "istio_tcp_sent_bytes_total",
        ),
        (
            "TCP_RECEIVED_BYTES",
            Self::TcpReceivedBytes,
            "istio_tcp_received_bytes_total",
        ),
        (
            "GRPC_REQUEST_MESSAGES",
            Self::GrpcRequestMessages,
            "istio_request_messages_total",
        ),
        (
            "GRPC_RESPONSE_MESSAGES",
            Self::GrpcResponseMessages,
            "istio_response_messages_total",
        ),
    ];

    /// The name it is exposed by.
    #[must_use]
    pub fn exposed(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, metric, _)| *metric == self);
        found.map_or("", |(_, _, name)| name)
    }
}

impl Telemetry {
    /// Returns true if it applies to a whole namespace or the whole mesh.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.selector.is_none() && self.targets.is_empty()
    }

    /// Returns true if it applies to workloads of its namespace with these labels, and not to all.
    #[must_use]
    pub fn selects(&self, labels: &Labels) -> bool {
        let selector = self.selector.as_ref();
        selector.is_some_and(|wanted| wanted.selects(labels))
            || self.targets.iter().any(|one| one.is_gateway_of(labels))
    }

    /// Returns true if it targets this service.
    fn aims(&self, service: &MeshService) -> bool {
        let mut targets = self.targets.iter();
        targets.any(|target| is_meant(&self.name.namespace, target, service))
    }
}

impl Mesh {
    /// The Telemetry resources that hold for a workload, from wide to narrow: the root namespace's, its namespace's, of each the
    /// oldest, and all that select it, the youngest last.
    #[must_use]
    pub fn telemetry_for(&self, workload: &Workload) -> Vec<&Arc<Telemetry>> {
        let whole = self.telemetry_of_all(&[&workload.key.namespace]);
        whole
            .into_iter()
            .chain(self.telemetry_selecting(workload))
            .collect()
    }

    /// The same for what a waypoint's Pod takes for a service: the service's namespace is nearer than the waypoint's, and what aims at
    /// the service, the youngest last, nearer than what aims at the waypoint.
    #[must_use]
    pub fn telemetry_at(&self, own: &Workload, service: &MeshService) -> Vec<&Arc<Telemetry>> {
        let whole = self.telemetry_of_all(&[&own.key.namespace, &service.key.namespace]);
        let aimed = self.telemetries.iter().filter(|one| one.aims(service));
        let near = self.telemetry_selecting(own).chain(aimed);
        whole.into_iter().chain(near).collect()
    }

    /// The Telemetries of the mesh, then those of these whole namespaces.
    fn telemetry_of_all(&self, namespaces: &[&Namespace]) -> Vec<&Arc<Telemetry>> {
        let mut scopes = vec![&self.config.root_namespace];
        for namespace in namespaces {
            if !scopes.contains(namespace) {
                scopes.push(namespace);
            }
        }
        let whole = |namespace: &Namespace| {
            let mut all = self.telemetries.iter();
            all.find(|one| one.name.namespace == *namespace && one.is_whole())
        };
        scopes.into_iter().filter_map(whole).collect()
    }

    fn telemetry_selecting(&self, workload: &Workload) -> impl Iterator<Item = &Arc<Telemetry>> {
        let all = self.telemetries.iter();
        all.filter(|one| {
            one.name.namespace == workload.key.namespace && one.selects(&workload.labels)
        })
    }
}
