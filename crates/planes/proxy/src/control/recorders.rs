//! Writers of logs and spans: files with their threads, and tasks that send to collectors. Writers that the
//! configuration still wants stay as they are, so that an edit loses no line.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::task::JoinHandle;
use voile_model::mesh::telemetry::TelemetrySide;
use voile_proto::trace::Span;
use voile_telemetry::access_log::als::{AlsHeaders, AlsRecord};
use voile_telemetry::access_log::{AlsLog, FileLog, Logger, Renderer, Sink, WriterThread};
use voile_telemetry::export::{CollectorDialer, als, spans};
use voile_telemetry::outbox::{Outbox, outbox};
use voile_telemetry::tap::{Tap, tap_sessions};
use voile_telemetry::trace::{SpanSettings, resource};
use voile_telemetry::{MetricFamily, PeerLabels};
use voile_transport::Origin;
use voile_xds::wire::{AccessLog, Collector, GrpcLog, LogSink, Telemetry, Tracing};

use super::collector::CollectorEndpoints;
use crate::plan::{ProxyPlan, ServicePlan};
use crate::telemetry_settings::{Recording, Recordings, SideRecording, Tracer};

/// Time that an ending process waits for collectors.
const LAST_RECORDS: Duration = Duration::from_secs(2);

/// Key of a span exporter.
#[derive(PartialEq, Eq, Hash)]
struct SpanRoute {
    collector: Collector,
    http_path: Option<Arc<str>>,
    environment_resource: bool,
    /// Canonical service, namespace and version: they are in the resource.
    own: (String, String, String),
}

struct RecorderService<T> {
    records: Outbox<T>,
    collected: Arc<CollectorEndpoints>,
}

/// See the module.
pub(super) struct Recorders {
    tls: Arc<ClientConfig>,
    node_id: Arc<str>,
    files: HashMap<Arc<str>, FileLog>,
    logs: HashMap<GrpcLog, RecorderService<AlsRecord>>,
    spans: HashMap<SpanRoute, RecorderService<Span>>,
    /// For people who watch, while there are any.
    pub(super) tap: Option<Arc<Tap>>,
    remains: PendingRecorders,
    /// Dropped by those that are gone: (files, services, spans).
    dropped: (u64, u64, u64),
    /// Sent by those that are gone: (services, spans).
    sent: (u64, u64),
}

/// Writers that remain to be waited for after the workers have ended.
#[derive(Default)]
pub(super) struct PendingRecorders {
    writing: Vec<WriterThread>,
    sending: Vec<JoinHandle<()>>,
}

impl PendingRecorders {
    /// Sends and writes what is queued, within a bound.
    pub(super) async fn finish(self) {
        let all = async {
            for task in self.sending {
                // A task that panicked has nothing more to send.
                let _ = task.await;
            }
        };
        if tokio::time::timeout(LAST_RECORDS, all).await.is_err() {
            tracing::warn!("the last access log entries and spans did not reach their collectors");
        }
        if !self.writing.iter().all(WriterThread::finish) {
            tracing::warn!("the last entries of the access log were not written");
        }
    }
}

/// One configuration on its way to be followed.
struct FollowedConfiguration<'a> {
    plan: &'a ProxyPlan,
    origin: Origin,
    files: HashMap<Arc<str>, FileLog>,
    logs: HashMap<GrpcLog, RecorderService<AlsRecord>>,
    spans: HashMap<SpanRoute, RecorderService<Span>>,
}

impl Recorders {
    pub(super) fn new(tls: Arc<ClientConfig>, node_id: Arc<str>) -> Self {
        Self {
            tls,
            node_id,
            files: HashMap::new(),
            logs: HashMap::new(),
            spans: HashMap::new(),
            tap: None,
            remains: PendingRecorders::default(),
            dropped: (0, 0, 0),
            sent: (0, 0),
        }
    }

    /// Follows a plan; returns the settings of the workers.
    pub(super) fn follow(&mut self, plan: &ProxyPlan, origin: Origin) -> Recordings {
        let mut new = FollowedConfiguration {
            plan,
            origin,
            files: HashMap::new(),
            logs: HashMap::new(),
            spans: HashMap::new(),
        };
        let told = &plan.telemetry.telemetry;
        let own = Recording {
            client: self.side(told, TelemetrySide::Client, &mut new),
            server: self.side(told, TelemetrySide::Server, &mut new),
            node_id: Arc::clone(&self.node_id),
        };
        let apart = plan.telemetry.apart.iter().map(|told| Recording {
            client: SideRecording::default(),
            server: self.side(told, TelemetrySide::Server, &mut new),
            node_id: Arc::clone(&self.node_id),
        });
        let apart = apart.collect();
        let gone = std::mem::replace(&mut self.files, new.files);
        self.dropped.0 += unkept(&gone, &self.files, FileLog::dropped);
        let gone = std::mem::replace(&mut self.logs, new.logs);
        self.dropped.1 += unkept(&gone, &self.logs, |service| service.records.dropped());
        self.sent.0 += unkept(&gone, &self.logs, |service| service.records.delivered());
        let gone = std::mem::replace(&mut self.spans, new.spans);
        self.dropped.2 += unkept(&gone, &self.spans, |service| service.records.dropped());
        self.sent.1 += unkept(&gone, &self.spans, |service| service.records.delivered());
        self.remains.sending.retain(|task| !task.is_finished());
        Recordings { own, apart }
    }

    fn side(
        &mut self,
        telemetry: &Telemetry,
        side: TelemetrySide,
        new: &mut FollowedConfiguration<'_>,
    ) -> SideRecording {
        let wanted = telemetry.access_logs.iter().filter(|log| log.side == side);
        let mut logs: Vec<_> = wanted.filter_map(|log| self.logger(log, new)).collect();
        let tap = self.tap.as_ref();
        logs.extend(tap.map(|tap| Logger::new(None, Sink::Tap(Arc::clone(tap), side))));
        let tracer = telemetry.tracing(side);
        let tracer = tracer.map(|tracing| self.tracer(side, tracing, new));
        let off = telemetry.metrics_are_off(side);
        let values = telemetry.computed(side).into_iter();
        SideRecording {
            values: values
                .map(|attribute| (attribute.clone(), attribute.to_string().into()))
                .collect(),
            ..SideRecording::of(logs, tracer, !off)
        }
    }

    fn logger(&mut self, log: &AccessLog, new: &mut FollowedConfiguration<'_>) -> Option<Logger> {
        let sink = match &log.sink {
            LogSink::File {
                path,
                format,
                omit_empty,
            } => {
                let file = self.file(path, new)?;
                Sink::File(file, Renderer::new(format.clone(), *omit_empty).into())
            }
            LogSink::Grpc(wanted) => Sink::Grpc(self.service(wanted, new)?),
        };
        Some(Logger::new(log.filter.clone(), sink))
    }

    fn file(&mut self, path: &Arc<str>, new: &mut FollowedConfiguration<'_>) -> Option<FileLog> {
        let known = new.files.get(path).or_else(|| self.files.get(path));
        let file = match known {
            Some(file) => file.clone(),
            None => match FileLog::start(path) {
                Ok((file, writing)) => {
                    self.remains.writing.push(writing);
                    file
                }
                Err(error) => {
                    tracing::error!(%path, %error, "cannot open the access log; requests are not logged");
                    return None;
                }
            },
        };
        new.files.insert(Arc::clone(path), file.clone());
        Some(file)
    }

    fn service(&mut self, wanted: &GrpcLog, new: &mut FollowedConfiguration<'_>) -> Option<AlsLog> {
        let reached = new.plan.telemetry.collectors.get(&wanted.collector)?;
        let records = match (new.logs.get(wanted), self.logs.get(wanted)) {
            (Some(known), _) => known.records.clone(),
            (None, Some(known)) => {
                known.collected.follow(reached, new.origin);
                let kept = RecorderService {
                    records: known.records.clone(),
                    collected: Arc::clone(&known.collected),
                };
                new.logs.insert(wanted.clone(), kept);
                known.records.clone()
            }
            (None, None) => {
                let (records, inbox) = outbox();
                let collected = self.collected(reached, new.origin);
                let own = &new.plan.own;
                let sender = als::Sender {
                    node_id: self.node_id.to_string(),
                    cluster: format!("{}.{}", own.canonical_service, own.namespace),
                    log_name: wanted.log_name.to_string(),
                };
                let dial: Arc<dyn CollectorDialer> = Arc::<CollectorEndpoints>::clone(&collected);
                self.start(als::run(inbox, dial, sender));
                let service = RecorderService {
                    records: records.clone(),
                    collected,
                };
                new.logs.insert(wanted.clone(), service);
                records
            }
        };
        let headers = AlsHeaders {
            request: wanted.request_headers.clone(),
            response: wanted.response_headers.clone(),
            trailers: wanted.response_trailers.clone(),
        };
        Some(AlsLog::new(records, wanted.requests, headers))
    }

    fn tracer(
        &mut self,
        side: TelemetrySide,
        tracing: &Tracing,
        new: &mut FollowedConfiguration<'_>,
    ) -> Tracer {
        let reported = tracing.report.then(|| self.exporter(tracing, new));
        let tags = tracing.custom_tags.iter();
        let tags = tags.map(|(name, tag)| (Arc::clone(name), tag.clone()));
        let settings = SpanSettings::new(side, tags, tracing.max_path_length, tracing.istio_tags);
        Tracer {
            sampling: tracing.sampling.millionths(),
            use_request_id: tracing.use_request_id,
            spans: reported.flatten(),
            settings: settings.into(),
        }
    }

    fn exporter(
        &mut self,
        tracing: &Tracing,
        new: &mut FollowedConfiguration<'_>,
    ) -> Option<Outbox<Span>> {
        let reached = new.plan.telemetry.collectors.get(&tracing.collector)?;
        let own = &new.plan.own;
        let route = SpanRoute {
            collector: tracing.collector.clone(),
            http_path: tracing.http_path.clone(),
            environment_resource: tracing.environment_resource,
            own: (
                own.canonical_service.clone(),
                own.namespace.clone(),
                own.version.clone(),
            ),
        };
        if let Some(known) = new.spans.get(&route) {
            return Some(known.records.clone());
        }
        let service = match self.spans.get(&route) {
            Some(known) => {
                known.collected.follow(reached, new.origin);
                RecorderService {
                    records: known.records.clone(),
                    collected: Arc::clone(&known.collected),
                }
            }
            None => {
                let (records, inbox) = outbox();
                let collected = self.collected(reached, new.origin);
                let dial: Arc<dyn CollectorDialer> = Arc::<CollectorEndpoints>::clone(&collected);
                self.start(spans::run(inbox, dial, span_settings(tracing, own)));
                RecorderService { records, collected }
            }
        };
        let records = service.records.clone();
        new.spans.insert(route, service);
        Some(records)
    }

    fn collected(&self, reached: &ServicePlan, origin: Origin) -> Arc<CollectorEndpoints> {
        Arc::new(CollectorEndpoints::new(
            reached,
            origin,
            Arc::clone(&self.tls),
        ))
    }

    fn start(&mut self, task: impl Future<Output = ()> + 'static) {
        self.remains.sending.push(tokio::task::spawn_local(task));
    }

    /// The next lines go to newly opened files.
    pub(super) fn reopen(&self) {
        self.files.values().for_each(FileLog::reopen);
    }

    /// Drops all writers; returns those that remain to be waited for after the workers have ended.
    pub(super) fn end(&mut self) -> PendingRecorders {
        self.files.clear();
        self.logs.clear();
        self.spans.clear();
        std::mem::take(&mut self.remains)
    }

    /// Metrics: records that were dropped, and records that reached a collector.
    pub(super) fn families(&self) -> Vec<MetricFamily> {
        let files: u64 = self.files.values().map(FileLog::dropped).sum();
        let logs: u64 = self.logs.values().map(|log| log.records.dropped()).sum();
        let spans: u64 = self.spans.values().map(|one| one.records.dropped()).sum();
        let sent_logs = self.logs.values().map(|log| log.records.delivered());
        let sent_logs = self.sent.0 + sent_logs.sum::<u64>();
        let sent_spans = self.spans.values().map(|one| one.records.delivered());
        let sent_spans = self.sent.1 + sent_spans.sum::<u64>();
        let sink = |name: &str| vec![("sink", name.to_owned())];
        vec![
            MetricFamily {
                name: "voile_access_log_dropped_total",
                kind: "counter",
                help: "Access log entries dropped because the queue was full or the service did not accept them.",
                samples: vec![
                    (sink("file"), (self.dropped.0 + files) as f64),
                    (sink("grpc"), (self.dropped.1 + logs) as f64),
                ],
            },
            MetricFamily::single(
                "voile_spans_dropped_total",
                "counter",
                "Spans dropped because the queue was full or the collector did not accept them.",
                (self.dropped.2 + spans) as f64,
            ),
            MetricFamily {
                name: "voile_access_log_sent_total",
                kind: "counter",
                help: "Access log entries written to a service's stream, which confirms none.",
                samples: vec![(sink("grpc"), sent_logs as f64)],
            },
            tap_sessions(self.tap.as_ref().map_or(0, |tap| tap.len())),
            MetricFamily::single(
                "voile_spans_sent_total",
                "counter",
                "Spans that a collector accepted.",
                sent_spans as f64,
            ),
        ]
    }
}

/// Number of records that the removed writers dropped.
fn unkept<K: Eq + std::hash::Hash, V>(
    before: &HashMap<K, V>,
    now: &HashMap<K, V>,
    dropped: impl Fn(&V) -> u64,
) -> u64 {
    let gone = before.iter().filter(|(key, _)| !now.contains_key(key));
    gone.map(|(_, value)| dropped(value)).sum()
}

fn span_settings(tracing: &Tracing, own: &PeerLabels) -> spans::Settings {
    let header = |(name, value, from_environment): &(Arc<str>, Arc<str>, bool)| {
        let value = match from_environment {
            false => Arc::clone(value),
            true => std::env::var(&**value).ok()?.into(),
        };
        Some((Arc::clone(name), value))
    };
    spans::Settings {
        http_path: tracing.http_path.clone(),
        timeout: tracing.collector.timeout,
        headers: tracing
            .collector
            .headers
            .iter()
            .filter_map(header)
            .collect(),
        resource: resource(own, tracing.environment_resource),
    }
}
