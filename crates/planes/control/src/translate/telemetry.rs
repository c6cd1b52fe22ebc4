//! Telemetry of one proxy: Telemetry's inheritance, Istio's rules. A rule without providers takes its parent's. The
//! narrowest resource that names providers decides which of them are in scope. If no resource speaks of access logs,
//! MeshConfig's default providers hold, and without those its `accessLogFile`.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use voile_model::log_filter::LogFilter;
use voile_model::log_format::LogFormat;
use voile_model::mesh::telemetry::{
    CustomTag, LoggingRule, SamplingShare, Telemetry, TelemetrySide, TracingRule,
};
use voile_model::mesh::{
    AlsProvider, FileLogProvider, Mesh, MeshService, OpenTelemetryProvider, OtlpTransport,
    Provider, ProviderService, Workload,
};
use voile_xds::wire::{
    AccessLog, Collector, GrpcLog, LogSink, MetricOverride, Telemetry as WireTelemetry, Tracing,
};

/// Telemetry of one workload. Parts that cannot be put into force are left out and reported in `problems`.
pub(super) fn telemetry(
    mesh: &Mesh,
    workload: &Workload,
    problems: &mut Vec<String>,
) -> WireTelemetry {
    let mut made = WireTelemetry::default();
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
    made: &mut WireTelemetry,
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
    pub(super) made: Vec<Arc<WireTelemetry>>,
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

    /// Which of them holds for a service; `None` is what holds for the waypoint.
    pub(super) fn of(
        &mut self,
        service: &MeshService,
        problems: &mut Vec<String>,
    ) -> Option<usize> {
        let holding = self.mesh.telemetry_at(self.own, service);
        let same = |other: &Vec<&Arc<Telemetry>>| {
            let mut both = other.iter().zip(&holding);
            other.len() == holding.len() && both.all(|(one, other)| Arc::ptr_eq(one, other))
        };
        if same(&self.usual) {
            return None;
        }
        let known = self.unusual.iter().position(same);
        Some(known.unwrap_or_else(|| {
            let (mut made, mut more) = (WireTelemetry::default(), Vec::new());
            tell(
                self.mesh,
                &holding,
                TelemetrySide::Server,
                &mut made,
                &mut more,
            );
            more.retain(|problem| !problems.contains(problem));
            problems.extend(more);
            self.made.push(made.into());
            self.unusual.push(holding);
            self.made.len() - 1
        }))
    }
}

fn access_logs(
    mesh: &Mesh,
    resources: &[&Arc<Telemetry>],
    side: TelemetrySide,
    problems: &mut Vec<String>,
) -> Vec<AccessLog> {
    let config = &mesh.config;
    let speaks = resources.iter().any(|one| !one.access_logging.is_empty());
    if !speaks && config.default_providers.access_logging.is_empty() {
        let file = config.access_log.as_ref().map(|log| AccessLog {
            side,
            provider: "accessLogFile".into(),
            filter: None,
            sink: file_sink(&log.path, &log.format, false),
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
        logs.push(AccessLog {
            side,
            provider: name,
            filter: filter.cloned(),
            sink,
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

fn of_file(mesh: &Mesh, file: &FileLogProvider) -> LogSink {
    let format = file
        .format
        .as_ref()
        .unwrap_or(&mesh.config.access_log_format);
    file_sink(&file.path, format, file.omit_empty)
}

fn file_sink(path: &Arc<str>, format: &LogFormat, omit_empty: bool) -> LogSink {
    LogSink::File {
        path: path.clone(),
        format: format.clone(),
        omit_empty,
    }
}

fn of_als(mesh: &Mesh, als: &AlsProvider, requests: bool) -> Result<LogSink, String> {
    Ok(LogSink::Grpc(GrpcLog {
        collector: collector(mesh, &als.service)?,
        log_name: als.log_name.clone(),
        requests,
        request_headers: als.request_headers.clone(),
        response_headers: als.response_headers.clone(),
        response_trailers: als.response_trailers.clone(),
    }))
}

/// Address of a provider.
fn collector(mesh: &Mesh, wanted: &ProviderService) -> Result<Collector, String> {
    Ok(Collector {
        service: provider_service(mesh, wanted)?.key.clone(),
        port: wanted.port,
        timeout: None,
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
    sampling: Option<SamplingShare>,
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
        self.sampling = rule.sampling.or(self.sampling);
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
) -> Option<Tracing> {
    let config = &mesh.config;
    if !config.enable_tracing {
        return None;
    }
    let defaults = &config.proxy.tracing;
    let mut spans = Spans {
        provider: config.default_providers.tracing.first().cloned(),
        sampling: defaults.sampling,
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
    let length = provider.max_tag_length.or(defaults.max_path_tag_length);
    Some(Tracing {
        side,
        collector,
        http_path: match &provider.transport {
            OtlpTransport::Grpc => None,
            OtlpTransport::Http { path } => Some(path.clone()),
        },
        sampling: spans.sampling.unwrap_or(SamplingShare::DEFAULT),
        report: !spans.disabled,
        custom_tags: spans.tags.cloned().unwrap_or_default(),
        use_request_id: spans.use_request_id.unwrap_or(true),
        max_path_length: length.and_then(|length| NonZeroUsize::new(length as usize)),
        istio_tags: spans.istio_tags.unwrap_or(true),
        environment_resource: provider.environment_detector,
    })
}

fn span_collector(mesh: &Mesh, provider: &OpenTelemetryProvider) -> Result<Collector, String> {
    let header = |header: &voile_model::mesh::ProviderHeader| {
        let (name, value) = (header.name.clone(), header.value.clone());
        (name, value, header.from_environment)
    };
    Ok(Collector {
        timeout: provider.timeout,
        headers: provider.headers.iter().map(header).collect(),
        ..collector(mesh, &provider.service)?
    })
}

/// Overrides of the metrics that are scraped; those for other providers have nobody to change.
fn metrics(mesh: &Mesh, resources: &[&Arc<Telemetry>], side: TelemetrySide) -> Vec<MetricOverride> {
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
        made.extend(overrides.map(|change| MetricOverride {
            metric: change.metric.map(|metric| metric.exposed().into()),
            side,
            disabled: change.disabled,
            tags: change.tags.clone().into_iter().collect(),
        }));
    }
    made
}
