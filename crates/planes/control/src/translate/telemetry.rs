//! Telemetry of one proxy: Telemetry's inheritance, Istio's rules. A rule without providers takes its parent's. The
//! narrowest resource that names providers decides which of them are in scope. If no resource speaks of access logs,
//! MeshConfig's default providers hold, and without those its `accessLogFile`.

use std::collections::BTreeMap;
use std::sync::Arc;

use voile_model::log_filter::LogFilter;
use voile_model::log_format::LogFormat;
use voile_model::mesh::telemetry::{
    CustomTag, LoggingRule, SamplingShare, TagOverride, Telemetry, TelemetrySide, TracingRule,
};
use voile_model::mesh::{
    AlsProvider, FileLogProvider, Mesh, MeshService, OpenTelemetryProvider, OtlpTransport,
    Provider, ProviderService, Workload,
};
use voile_proto::proxy as wire;

/// Share of requests traced when nobody says: Istio's default, 1 %.
const DEFAULT_SAMPLING_MILLIONTHS: u32 = 10_000;

/// Telemetry of one workload. Parts that cannot be put into force are left out and reported in `problems`.
pub(super) fn telemetry(
    mesh: &Mesh,
    workload: &Workload,
    problems: &mut Vec<String>,
) -> wire::Telemetry {
    let mut made = wire::Telemetry::default();
    let resources = mesh.telemetry_for(workload);
    for side in TelemetrySide::BOTH {
        tell(mesh, &resources, side, &mut made, problems);
    }
    made
}

/// Adds the telemetry of one side by these resources, which are ordered from wide to narrow.
fn tell(
    mesh: &Mesh,
    resources: &[&Arc<Telemetry>],
    side: TelemetrySide,
    made: &mut wire::Telemetry,
    problems: &mut Vec<String>,
) {
    made.access_logs
        .extend(access_logs(mesh, resources, side, problems));
    made.tracing
        .extend(tracing(mesh, resources, side, problems));
    made.metrics.extend(metrics(mesh, resources, side));
}

/// Telemetry of a waypoint's destinations that differs from the waypoint's own: each variant once, for all its destinations.
pub(super) struct SharedTelemetry<'m> {
    mesh: &'m Mesh,
    own: &'m Workload,
    /// Telemetry resources of the waypoint itself.
    usual: Vec<&'m Arc<Telemetry>>,
    unusual: Vec<Vec<&'m Arc<Telemetry>>>,
    pub(super) made: Vec<wire::Telemetry>,
}

impl<'m> SharedTelemetry<'m> {
    pub(super) fn new(mesh: &'m Mesh, own: &'m Workload) -> Self {
        Self {
            mesh,
            own,
            usual: mesh.telemetry_for(own),
            unusual: Vec::new(),
            made: Vec::new(),
        }
    }

    /// Which of them holds for a service, counted from 1; 0 is what holds for the waypoint.
    pub(super) fn of(&mut self, service: &MeshService, problems: &mut Vec<String>) -> u32 {
        let holding = self.mesh.telemetry_at(self.own, service);
        let same = |other: &Vec<&Arc<Telemetry>>| {
            let mut both = other.iter().zip(&holding);
            other.len() == holding.len() && both.all(|(one, other)| Arc::ptr_eq(one, other))
        };
        if same(&self.usual) {
            return 0;
        }
        let known = self.unusual.iter().position(same);
        let index = known.unwrap_or_else(|| {
            let (mut made, mut more) = (wire::Telemetry::default(), Vec::new());
            tell(
                self.mesh,
                &holding,
                TelemetrySide::Server,
                &mut made,
                &mut more,
            );
            more.retain(|problem| !problems.contains(problem));
            problems.extend(more);
            self.made.push(made);
            self.unusual.push(holding);
            self.made.len() - 1
        });
        u32::try_from(index + 1).unwrap_or(u32::MAX)
    }
}

fn wire_side(side: TelemetrySide) -> i32 {
    match side {
        TelemetrySide::Client => wire::Side::Client,
        TelemetrySide::Server => wire::Side::Server,
    }
    .into()
}

fn access_logs(
    mesh: &Mesh,
    resources: &[&Arc<Telemetry>],
    side: TelemetrySide,
    problems: &mut Vec<String>,
) -> Vec<wire::AccessLog> {
    let config = &mesh.config;
    let speaks = resources.iter().any(|one| !one.access_logging.is_empty());
    if !speaks && config.default_providers.access_logging.is_empty() {
        let file = config.access_log.as_ref().map(|log| wire::AccessLog {
            side: wire_side(side),
            provider: "accessLogFile".to_owned(),
            filter: String::new(),
            sink: Some(file_sink(&log.path, &log.format, false)),
        });
        return file.into_iter().collect();
    }
    let mut logs = Vec::new();
    for (name, filter) in providers_of_logs(mesh, resources, side) {
        let Some(provider) = config.provider(&name) else {
            continue; // Analysis says so, with its place.
        };
        let sink = match &provider {
            Provider::File(file) => of_file(mesh, file),
            Provider::HttpAls(als) => match of_als(mesh, als, true) {
                Ok(sink) => sink,
                Err(problem) => {
                    problems.push(format!("access log provider `{name}`: {problem}"));
                    continue;
                }
            },
            Provider::TcpAls(als) => match of_als(mesh, als, false) {
                Ok(sink) => sink,
                Err(problem) => {
                    problems.push(format!("access log provider `{name}`: {problem}"));
                    continue;
                }
            },
            Provider::OpenTelemetry(_)
            | Provider::Prometheus
            | Provider::ExtAuthz(_)
            | Provider::Other => continue,
        };
        logs.push(wire::AccessLog {
            side: wire_side(side),
            provider: name.to_string(),
            filter: filter.map_or_else(String::new, |filter| filter.source().to_owned()),
            sink: Some(sink),
        });
    }
    logs
}

/// Providers of one side, each with the filter of the last rule that is for it.
fn providers_of_logs<'a>(
    mesh: &'a Mesh,
    resources: &[&'a Arc<Telemetry>],
    side: TelemetrySide,
) -> BTreeMap<Arc<str>, Option<&'a LogFilter>> {
    let defaults = &mesh.config.default_providers.access_logging;
    let names = |rule: &LoggingRule| -> Vec<Arc<str>> {
        let names = rule.providers.iter();
        names.map(|provider| provider.name.clone()).collect()
    };
    let mut in_scope = defaults.clone();
    for resource in resources {
        // Rules for the other side leave this side's providers as they are.
        let meant = resource.access_logging.iter();
        let meant = meant.filter(|rule| rule.sides.has(side));
        let names: Vec<Arc<str>> = meant.flat_map(names).collect();
        if !names.is_empty() {
            in_scope = names;
        }
    }
    let mut found: BTreeMap<Arc<str>, Option<&LogFilter>> = BTreeMap::new();
    let speaks = resources.iter().any(|one| !one.access_logging.is_empty());
    if !speaks {
        return defaults.iter().map(|name| (name.clone(), None)).collect();
    }
    let mut parent = defaults.clone();
    for rule in resources.iter().flat_map(|one| &one.access_logging) {
        if !rule.providers.is_empty() {
            parent = names(rule);
        }
        if !rule.sides.has(side) {
            continue;
        }
        for name in parent.iter().filter(|name| in_scope.contains(name)) {
            if rule.disabled {
                found.remove(name);
            } else {
                found.insert(name.clone(), rule.filter.as_ref());
            }
        }
    }
    found
}

fn of_file(mesh: &Mesh, file: &FileLogProvider) -> wire::access_log::Sink {
    let format = file
        .format
        .as_ref()
        .unwrap_or(&mesh.config.access_log_format);
    file_sink(&file.path, format, file.omit_empty)
}

fn file_sink(path: &str, format: &LogFormat, omit_empty: bool) -> wire::access_log::Sink {
    let source = format.source().to_owned();
    wire::access_log::Sink::File(wire::FileLog {
        path: path.to_owned(),
        format: Some(match format.is_json() {
            true => wire::file_log::Format::Json(source),
            false => wire::file_log::Format::Text(source),
        }),
        omit_empty,
    })
}

fn of_als(
    mesh: &Mesh,
    als: &AlsProvider,
    requests: bool,
) -> Result<wire::access_log::Sink, String> {
    let names = |names: &[Arc<str>]| names.iter().map(ToString::to_string).collect();
    Ok(wire::access_log::Sink::Grpc(wire::GrpcLog {
        collector: Some(collector(mesh, &als.service)?),
        log_name: als.log_name.to_string(),
        requests,
        request_headers: names(&als.request_headers),
        response_headers: names(&als.response_headers),
        response_trailers: names(&als.response_trailers),
    }))
}

/// Address of a provider.
pub(super) fn collector(mesh: &Mesh, wanted: &ProviderService) -> Result<wire::Collector, String> {
    let service = provider_service(mesh, wanted)?;
    Ok(wire::Collector {
        service: service.key.to_string(),
        port: wanted.port.get().into(),
        timeout_ms: 0,
        headers: Vec::new(),
    })
}

/// The service of the mesh that is named. Without a namespace the root's is first, then the first by name.
pub(super) fn provider_service<'m>(
    mesh: &'m Mesh,
    wanted: &ProviderService,
) -> Result<&'m Arc<MeshService>, String> {
    let matching = |service: &&Arc<MeshService>| {
        let there = wanted
            .namespace
            .as_ref()
            .is_none_or(|ns| service.key.namespace == *ns);
        there && service.key.hostname == wanted.host
    };
    let mut found: Vec<_> = mesh.services.values().filter(matching).collect();
    found.sort_by_key(|service| service.key.namespace != mesh.config.root_namespace);
    let port =
        |service: &&&Arc<MeshService>| service.ports.iter().any(|port| port.number == wanted.port);
    match (found.iter().find(port), found.first()) {
        (Some(service), _) => Ok(service),
        (None, Some(service)) => Err(format!(
            "service {} has no port {}",
            service.key, wanted.port
        )),
        (None, None) => Err(format!("there is no service {}", wanted.host)),
    }
}

/// Result of the rules for one side's tracing.
#[derive(Default)]
struct Spans<'a> {
    provider: Option<Arc<str>>,
    disabled: bool,
    sampling: Option<u32>,
    tags: Option<&'a BTreeMap<Arc<str>, CustomTag>>,
    use_request_id: Option<bool>,
    istio_tags: Option<bool>,
}

impl<'a> Spans<'a> {
    fn follow(&mut self, rule: &'a TracingRule) {
        if let Some(first) = rule.providers.first() {
            self.provider = Some(first.name.clone());
        }
        self.disabled = rule.disable_span_reporting.unwrap_or(self.disabled);
        self.sampling = rule
            .sampling
            .map(SamplingShare::millionths)
            .or(self.sampling);
        self.tags = rule.custom_tags.as_ref().or(self.tags);
        self.use_request_id = rule.use_request_id.or(self.use_request_id);
        self.istio_tags = rule.istio_tags.or(self.istio_tags);
    }
}

fn tracing(
    mesh: &Mesh,
    resources: &[&Arc<Telemetry>],
    side: TelemetrySide,
    problems: &mut Vec<String>,
) -> Option<wire::Tracing> {
    let config = &mesh.config;
    if !config.enable_tracing {
        return None;
    }
    let defaults = &config.proxy.tracing;
    let mut spans = Spans {
        provider: config.default_providers.tracing.first().cloned(),
        sampling: defaults.sampling.map(SamplingShare::millionths),
        tags: Some(&defaults.custom_tags),
        istio_tags: defaults.istio_tags,
        ..Spans::default()
    };
    let rules = resources.iter().flat_map(|one| &one.tracing);
    rules
        .filter(|rule| rule.sides.has(side))
        .for_each(|rule| spans.follow(rule));
    let name = spans.provider?;
    let Some(Provider::OpenTelemetry(provider)) = config.provider(&name) else {
        return None; // Analysis says so, with its place.
    };
    let collector = match span_collector(mesh, &provider) {
        Ok(collector) => collector,
        Err(problem) => {
            problems.push(format!("tracing provider `{name}`: {problem}"));
            return None;
        }
    };
    Some(wire::Tracing {
        side: wire_side(side),
        collector: Some(collector),
        http_path: match &provider.transport {
            OtlpTransport::Grpc => String::new(),
            OtlpTransport::Http { path } => path.to_string(),
        },
        sampling_millionths: spans.sampling.unwrap_or(DEFAULT_SAMPLING_MILLIONTHS),
        report: !spans.disabled,
        custom_tags: spans.tags.into_iter().flatten().map(custom_tag).collect(),
        use_request_id: spans.use_request_id.unwrap_or(true),
        max_path_length: provider
            .max_tag_length
            .or(defaults.max_path_tag_length)
            .unwrap_or_default(),
        istio_tags: spans.istio_tags.unwrap_or(true),
        environment_resource: provider.environment_detector,
    })
}

fn span_collector(
    mesh: &Mesh,
    provider: &OpenTelemetryProvider,
) -> Result<wire::Collector, String> {
    let mut made = collector(mesh, &provider.service)?;
    let timeout = provider.timeout.unwrap_or_default().as_millis();
    made.timeout_ms = u32::try_from(timeout).unwrap_or(u32::MAX);
    let header = |header: &voile_model::mesh::ProviderHeader| wire::CollectorHeader {
        name: header.name.to_string(),
        value: header.value.to_string(),
        from_environment: header.from_environment,
    };
    made.headers = provider.headers.iter().map(header).collect();
    Ok(made)
}

fn custom_tag((name, tag): (&Arc<str>, &CustomTag)) -> wire::CustomTag {
    use wire::custom_tag::Source;
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
        default_value: default.as_ref().map(ToString::to_string),
    }
}

/// Overrides of the metrics that are scraped; those for other providers have nobody to change.
fn metrics(
    mesh: &Mesh,
    resources: &[&Arc<Telemetry>],
    side: TelemetrySide,
) -> Vec<wire::MetricOverride> {
    let scraped = |name: &Arc<str>| mesh.config.provider(name) == Some(Provider::Prometheus);
    let defaults = &mesh.config.default_providers.metrics;
    let mut ours = defaults.is_empty() || defaults.iter().any(scraped);
    let mut made = Vec::new();
    for rule in resources.iter().flat_map(|one| &one.metrics) {
        if !rule.providers.is_empty() {
            ours = rule
                .providers
                .iter()
                .any(|provider| scraped(&provider.name));
        }
        if !ours {
            continue;
        }
        let overrides = rule.overrides.iter();
        let overrides = overrides.filter(|change| change.sides.has(side));
        made.extend(overrides.map(|change| {
            wire::MetricOverride {
                metric: change
                    .metric
                    .map_or("", |metric| metric.exposed())
                    .to_owned(),
                side: wire_side(side),
                disabled: change.disabled,
                tags: change.tags.iter().map(tag_override).collect(),
            }
        }));
    }
    made
}

fn tag_override((name, change): (&Arc<str>, &TagOverride)) -> wire::TagOverride {
    wire::TagOverride {
        name: name.to_string(),
        value: match change {
            TagOverride::Remove => None,
            TagOverride::Set(value) => Some(value.to_string()),
        },
    }
}
