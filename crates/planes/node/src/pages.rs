//! The pages for people and scrapers: admin (15000), metrics (15020), readiness (15021).

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinHandle};
use voile_telemetry::admin::{PageRequest, PageResponse, serve, serve_local};
use voile_telemetry::logging::LogLevelHandle;
use voile_telemetry::tap::{Tap, TapQuestion, tap_sessions};
use voile_telemetry::{MetricFamily, ProcessFigures, Scrape};
use voile_xds::wire::WireWorkload;

use crate::agents::NodePods;
use crate::dispatch::Dispatcher;
use crate::registry::RegistryView;

/// Time that a worker gets to answer a scrape. After it the page is sent without that worker.
const SCRAPE_PATIENCE: Duration = Duration::from_secs(2);

const HELP: &str = "\
GET  /config_dump        the pods of this node, and the configuration from the control plane
GET  /certs              the pods' certificates, by identity, and their expiry (never the keys)
POST /certs/renew        request new ones now; open connections continue
GET  /logging            the log level; PUT or POST /logging?level=LEVEL changes it
GET  /ready              200 when ready, 503 with the reasons when not
GET  /stats/prometheus   metrics
POST /tap                connections as they end, while somebody asks: voile tap
POST /quitquitquit       shut down gracefully, as on SIGTERM
GET  /help               this
";

/// State that the pages show.
pub(crate) struct PageSources {
    pub(crate) agency: Rc<NodePods>,
    pub(crate) dispatcher: Rc<Dispatcher>,
    pub(crate) view: watch::Receiver<Arc<RegistryView>>,
    pub(crate) ending: Notify,
    pub(crate) leaving: std::cell::Cell<bool>,
    pub(crate) log: Option<LogLevelHandle>,
}

/// The three sockets.
pub(crate) struct Sockets {
    pub(crate) admin: TcpListener,
    pub(crate) metrics: TcpListener,
    pub(crate) readiness: TcpListener,
}

impl Sockets {
    /// Each by its role, as a successor is told.
    pub(crate) fn each(&self) -> [(&'static str, &TcpListener); 3] {
        [
            ("admin", &self.admin),
            ("metrics", &self.metrics),
            ("readiness", &self.readiness),
        ]
    }
}

/// Starts the three servers; the lender keeps the sockets.
pub(crate) fn start(told: &Rc<PageSources>, sockets: &Sockets) -> io::Result<Vec<AbortHandle>> {
    let listen = |socket: &TcpListener| -> io::Result<_> {
        tokio::net::TcpListener::from_std(socket.try_clone()?)
    };
    let (one, two, three) = (Rc::clone(told), Rc::clone(told), Rc::clone(told));
    let servers = [
        tokio::task::spawn_local(serve_local(listen(&sockets.admin)?, move |question| {
            admin(Rc::clone(&one), question)
        })),
        tokio::task::spawn_local(serve(listen(&sockets.metrics)?, move |question| {
            metrics(Rc::clone(&two), question)
        })),
        tokio::task::spawn_local(serve(listen(&sockets.readiness)?, move |question| {
            std::future::ready(match question.path.as_str() {
                "/healthz/ready" => ready(&three),
                path => PageResponse::not_found(path),
            })
        })),
    ];
    Ok(servers.iter().map(JoinHandle::abort_handle).collect())
}

async fn admin(told: Rc<PageSources>, question: PageRequest) -> PageResponse {
    match (&question.method, question.path.as_str()) {
        (&Method::GET, "/config_dump") => PageResponse::json(dump(&told)),
        (&Method::GET, "/certs") => PageResponse::json(certificates(&told)),
        (&Method::POST, "/certs/renew") => {
            told.agency.renew();
            let asked = "renewal requested; GET /certs will show the new serial numbers\n";
            PageResponse::text(StatusCode::ACCEPTED, asked)
        }
        (&Method::GET, "/ready") => ready(&told),
        (&Method::GET, "/stats/prometheus" | "/metrics") => metrics(told, question).await,
        (&Method::POST, "/tap") => tap(&told.dispatcher.tap, &question).await,
        (&Method::POST, "/quitquitquit") => {
            told.ending.notify_one();
            PageResponse::text(StatusCode::OK, "draining\n")
        }
        (&Method::GET | &Method::PUT | &Method::POST, "/logging") => {
            PageResponse::log_level(told.log.as_ref(), &question)
        }
        (&Method::GET, "/" | "/help") => PageResponse::text(StatusCode::OK, HELP),
        (
            _,
            "/quitquitquit" | "/config_dump" | "/certs" | "/certs/renew" | "/ready"
            | "/stats/prometheus" | "/metrics" | "/logging" | "/tap",
        ) => PageResponse::wrong_method(),
        (_, path) => PageResponse::not_found(path),
    }
}

/// Connections as they end. The workers record them only while somebody asks.
async fn tap(tap: &Tap, question: &PageRequest) -> PageResponse {
    let question = match TapQuestion::parse(question) {
        Ok(question) => question,
        Err(reason) => return PageResponse::text(StatusCode::BAD_REQUEST, reason + "\n"),
    };
    match tap.begin(&question) {
        Ok(()) => PageResponse::json(tap.answer(&question).await),
        Err(reason) => PageResponse::text(StatusCode::TOO_MANY_REQUESTS, reason + "\n"),
    }
}

/// Lists what keeps this process from being ready.
pub(crate) fn unready(told: &PageSources) -> Vec<&'static str> {
    let mut reasons = Vec::new();
    let view = told.view.borrow();
    if !view.is_told {
        reasons.push("the control plane has not sent the policies yet");
    }
    if view.awaits_all() {
        reasons.push("the control plane has not sent the workloads yet");
    }
    if !told.agency.is_complete() {
        reasons.push("the agent (ZDS) has not sent all pods of the node yet");
    }
    if told.leaving.get() {
        reasons.push("draining");
    }
    reasons
}

fn ready(told: &PageSources) -> PageResponse {
    PageResponse::readiness(&unready(told))
}

fn dump(told: &PageSources) -> String {
    let view = told.view.borrow().clone();
    let pods = told.agency.pods();
    let pods = pods.iter().map(|pod| {
        let certificate = pod.badge.store.current();
        json!({
            "uid": &*pod.uid,
            "name": &*pod.name,
            "identity": pod.badge.identity.to_string(),
            "addresses": pod.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "certificate": certificate.map(|held| held.serial().to_owned()),
            "trouble": pod.badge.store.trouble(),
        })
    });
    let page = json!({
        "pods": pods.collect::<Vec<_>>(),
        "services": view.known_services().into_iter().map(|key| json!({"resource": key.to_string()})).collect::<Vec<_>>(),
        "workloads": view.workloads().into_iter().map(workload).collect::<Vec<_>>(),
        "policies": view.policies_known(),
        "connections": told.dispatcher.load(),
    });
    format!("{page:#}\n")
}

fn workload(workload: &WireWorkload) -> Value {
    json!({
        "resource": &*workload.uid,
        "name": &*workload.name,
        "namespace": workload.namespace.as_str(),
        "addresses": workload.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "identity": workload.identity.as_ref().map(ToString::to_string),
        "tunnel": format!("{:?}", workload.tunnel),
        "healthy": workload.healthy,
        "services": workload.services.keys().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// One for each identity, however many pods have it.
fn certificates(told: &PageSources) -> String {
    let pods = told.agency.pods();
    let badges = pods.iter().map(|pod| &pod.badge);
    let all: BTreeMap<String, _> = badges
        .map(|badge| (badge.identity.to_string(), badge.store.current()))
        .collect();
    let all = all.iter().map(|(identity, held)| {
        let left = |end: SystemTime| end.duration_since(SystemTime::now()).unwrap_or_default();
        json!({
            "identity": identity,
            "serial": held.as_ref().map(|held| held.serial().to_owned()),
            "expires_in_seconds": held.as_ref().map(|held| left(held.not_after()).as_secs()),
        })
    });
    let page = json!({"certificates": all.collect::<Vec<_>>()});
    format!("{page:#}\n")
}

async fn metrics(told: Rc<PageSources>, question: PageRequest) -> PageResponse {
    if !matches!(question.path.as_str(), "/metrics" | "/stats/prometheus") {
        return PageResponse::not_found(&question.path);
    }
    let mut scrape = Scrape::default();
    let (mut pooled, mut denied, mut cut, mut refused) = (0, 0, 0, 0);
    for asked in told.dispatcher.scrape() {
        if let Ok(Ok(figures)) = tokio::time::timeout(SCRAPE_PATIENCE, asked).await {
            scrape.add(figures.snapshot);
            pooled += figures.pooled;
            denied += figures.denied;
            cut += figures.cut;
            refused += figures.refused;
        }
    }
    let mut single = |name, kind, help, value: f64| {
        scrape.family(MetricFamily::single(name, kind, help, value));
    };
    let pods = told.agency.pods();
    let pods = pods.iter().filter(|pod| pod.pages.is_none()).count();
    single(
        "voile_node_pods",
        "gauge",
        "Pods that this node proxy serves.",
        pods as f64,
    );
    let connections = told.dispatcher.load();
    single(
        "voile_connections",
        "gauge",
        "Connections accepted and open.",
        connections as f64,
    );
    single(
        "voile_node_pooled_tunnels",
        "gauge",
        "Connections to other node proxies.",
        pooled as f64,
    );
    single(
        "voile_node_denied_total",
        "counter",
        "Inbound connections denied by policy.",
        denied as f64,
    );
    let help = "Inbound connections closed by a change of policy.";
    single("voile_node_cut_total", "counter", help, cut as f64);
    let help = "Connections refused for another reason.";
    single("voile_node_refused_total", "counter", help, refused as f64);
    let help = "Connections closed at once because a connection or descriptor limit was reached.";
    let shed = told.dispatcher.shed.total() as f64;
    single("voile_connections_shed_total", "counter", help, shed);
    let short = told.dispatcher.refused_for_memory() as f64;
    let help = "Connections and tunnels refused near the memory limit.";
    single(
        "voile_node_refused_for_memory_total",
        "counter",
        help,
        short,
    );
    scrape.family(tap_sessions(told.dispatcher.tap.len()));
    let names = told.agency.looked_up().families();
    names.into_iter().for_each(|family| scrape.family(family));
    let lookups = told.agency.lookups().families();
    lookups.into_iter().for_each(|family| scrape.family(family));
    let process = ProcessFigures::read().families();
    process.into_iter().for_each(|family| scrape.family(family));
    PageResponse::metrics(scrape.render(), &question)
}
