//! What the pages of a node proxy show, and what people may ask of it there.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use voile_process::PageSource;
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

impl PageSource for PageSources {
    const HELP: &'static str = HELP;

    /// Lists what keeps this process from being ready.
    fn unready(&self) -> Vec<String> {
        let view = self.view.borrow();
        let reasons = [
            (
                !view.is_told,
                "the control plane has not sent the policies yet",
            ),
            (
                view.awaits_all(),
                "the control plane has not sent the workloads yet",
            ),
            (
                !self.agency.is_complete(),
                "the agent (ZDS) has not sent all pods of the node yet",
            ),
            (self.leaving.get(), "draining"),
        ];
        let reasons = reasons.into_iter().filter(|(holds, _)| *holds);
        reasons.map(|(_, reason)| reason.to_owned()).collect()
    }

    fn config_dump(&self) -> String {
        dump(self)
    }

    fn certificates(&self) -> String {
        certificates(self)
    }

    fn renew(&self) {
        self.agency.renew();
    }

    fn log(&self) -> Option<LogLevelHandle> {
        self.log.clone()
    }

    fn end(&self) {
        self.ending.notify_one();
    }

    async fn metrics(self: Rc<Self>) -> String {
        metrics(&self).await
    }

    /// The workers record connections only while somebody asks.
    fn begin_tap(self: Rc<Self>, question: &TapQuestion) -> Result<Arc<Tap>, String> {
        let tap = &self.dispatcher.tap;
        tap.begin(question).map(|()| Arc::clone(tap))
    }
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

async fn metrics(told: &PageSources) -> String {
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
    scrape.render()
}
