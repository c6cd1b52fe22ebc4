//! The control plane's state as an operator sees it: counters, and each proxy's stream with the resources it accepted
//! and refused.

mod documents;
pub(crate) mod gateway_api;
mod groups;
mod histogram;
mod in_force;
mod journal;
mod proxies;
mod unhealthy_endpoints;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use voile_identity::Revocations;
use voile_model::Identity;
use voile_model::mesh::Mesh;
use voile_proto::discovery::Node;
use voile_telemetry::{MetricFamily, ProcessFigures, Scrape};
use voile_xds::server::{
    Absent, Admission, ChangedNames, Observer, RequestEvent, SentResource, StreamId,
    SubscriptionIndex,
};

use crate::deferred_work::RestedConfiguration;
use crate::foreign_proxies::EnvoyLimits;
use crate::foreign_proxies::envoy::Envoys;
use crate::groups::Registrar;
use crate::keys::{KeyStatus, Keys};
use crate::provenance::{ExplainedResource, ResourceIndex};
use crate::snapshot::{MeshSnapshot, SnapshotCaller};
pub(crate) use documents::Documents;
use histogram::LatencyHistogram;
use in_force::{InForce, in_force, is_everywhere};
pub(crate) use journal::{Journal, JournalEvent};
use proxies::{Proxies, ProxyView};

/// Upper bounds of the push-time buckets, in seconds; the last bucket is everything.
const PUSH_BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];
/// The same for propagation: finer where the promise is (50 ms and 100 ms).
const PROPAGATION_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0,
];

/// Refused names shown of one type of one stream: a page is read by people.
const SHOWN_REFUSALS: usize = 20;

/// Counters and streams; shared by all tasks.
#[derive(Debug)]
pub(crate) struct Status {
    pub(crate) ready: AtomicBool,
    pub(crate) errors: AtomicU64,
    pub(crate) reloads: AtomicU64,
    pub(crate) failed_reloads: AtomicU64,
    pub(crate) refused_callers: AtomicU64,
    /// When a refused caller was logged last, in seconds since 1970.
    pub(crate) refusal_logged: AtomicU64,
    pub(crate) failed_handshakes: AtomicU64,
    revoked: AtomicU64,
    next_update: AtomicU64,
    pushes: AtomicU64,
    nacks: AtomicU64,
    certificates: AtomicU64,
    push_time: Mutex<LatencyHistogram>,
    propagation: Mutex<LatencyHistogram>,
    inner: Mutex<StatusInner>,
    keys: OnceLock<Keys>,
    groups: OnceLock<Arc<Registrar>>,
    interest: OnceLock<Arc<SubscriptionIndex>>,
    /// Why the state folder is not what it was.
    state_lost: Mutex<Option<String>>,
    pub(crate) journal: Journal,
    /// The configuration when it last rested.
    rested: watch::Sender<Arc<RestedConfiguration>>,
    /// Documents that are not in force.
    documents: Mutex<Documents>,
    /// Stock Envoys, and what could not be said to them.
    pub(crate) envoys: Envoys,
    /// Limits of the translation for stock gRPCs.
    pub(crate) limits: EnvoyLimits,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            ready: AtomicBool::default(),
            errors: AtomicU64::default(),
            reloads: AtomicU64::default(),
            failed_reloads: AtomicU64::default(),
            refused_callers: AtomicU64::default(),
            refusal_logged: AtomicU64::default(),
            failed_handshakes: AtomicU64::default(),
            revoked: AtomicU64::default(),
            next_update: AtomicU64::default(),
            pushes: AtomicU64::default(),
            nacks: AtomicU64::default(),
            certificates: AtomicU64::default(),
            push_time: Mutex::new(LatencyHistogram::new(PUSH_BUCKETS)),
            propagation: Mutex::new(LatencyHistogram::new(PROPAGATION_BUCKETS)),
            inner: Mutex::default(),
            keys: OnceLock::default(),
            groups: OnceLock::default(),
            interest: OnceLock::default(),
            state_lost: Mutex::default(),
            journal: Journal::default(),
            rested: watch::Sender::default(),
            documents: Mutex::default(),
            envoys: Envoys::default(),
            limits: EnvoyLimits::default(),
        }
    }
}

#[derive(Debug, Default)]
struct StatusInner {
    /// The current snapshot.
    snapshot: Arc<MeshSnapshot>,
    proxies: Proxies,
    /// The snapshot about which it was last said that everybody has it.
    in_sync: Arc<str>,
    /// By folder, the digest of the files whose reading led to `snapshot`.
    read: BTreeMap<PathBuf, String>,
}

#[derive(Serialize)]
struct Page<'a> {
    ready: bool,
    version: &'a str,
    in_force: InForce<'a>,
    /// By folder, the digest of the files that are obeyed.
    read: &'a BTreeMap<PathBuf, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_lost: Option<String>,
    resources: BTreeMap<&'a str, usize>,
    errors: u64,
    reloads: u64,
    failed_reloads: u64,
    keys: Vec<KeyStatus>,
    proxies: Vec<ProxyView<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    workload_groups: Vec<groups::WorkloadGroupStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gateway_api: Vec<gateway_api::ResourceStatus>,
    #[serde(skip_serializing_if = "Documents::is_well")]
    documents: Documents,
    /// Parts of the mesh that stock Envoys (by workload) and stock gRPCs (by subject) cannot do.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    translation_limits: BTreeMap<String, Vec<String>>,
}

impl Status {
    fn inner(&self) -> std::sync::MutexGuard<'_, StatusInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of these keys from now on.
    pub(crate) fn follow(&self, keys: Keys) {
        // There is one set of keys for one control plane.
        let _ = self.keys.set(keys);
    }

    /// Streams of who joins by itself are this one's business from now on.
    pub(crate) fn register_with(&self, groups: Arc<Registrar>) {
        // There is one for one control plane.
        let _ = self.groups.set(groups);
    }

    pub(crate) fn published(&self, snapshot: &Arc<MeshSnapshot>, touched: &ChangedNames) {
        if let Some(groups) = self.groups.get() {
            groups.published(snapshot);
        }
        self.limits.keep(|about| snapshot.speaks_of(about));
        let mut inner = self.inner();
        inner.snapshot = Arc::clone(snapshot);
        drop(inner);
        let changed = touched.counts();
        let changed = changed.map(|(kind, count)| (kind.to_owned(), count));
        self.journal.note(JournalEvent::Published {
            version: snapshot.version.to_string(),
            changed: changed.collect(),
        });
    }

    /// A certificate was issued.
    pub(crate) fn certified(
        &self,
        caller: &voile_identity::AuthenticatedCaller,
        subject: &Identity,
        until: SystemTime,
    ) {
        self.certificates.fetch_add(1, Ordering::Relaxed);
        self.inner().proxies.certified(caller, subject, until);
        let until = until.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.journal.note(JournalEvent::Certified {
            identity: subject.to_string(),
            asked_by: caller.identity.to_string(),
            until: until.as_secs(),
        });
    }

    /// Records the revocations in force.
    pub(crate) fn revoked(&self, held: &Revocations) {
        let next = held.next_update();
        let next = next.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let next = next.unwrap_or_default().as_secs();
        self.revoked.store(held.len() as u64, Ordering::Relaxed);
        self.next_update.store(next, Ordering::Relaxed);
    }

    /// Publishes the configuration that the current or the next snapshot is made of.
    pub(crate) fn explained_by(&self, rested: RestedConfiguration) {
        self.rested.send_replace(rested.into());
    }

    /// The configuration whenever it rests.
    pub(crate) fn configurations(&self) -> watch::Receiver<Arc<RestedConfiguration>> {
        self.rested.subscribe()
    }

    /// Stores the documents of the last reading that are not in force.
    pub(crate) fn found(&self, documents: Documents) {
        *self.documents() = documents;
    }

    /// They cannot be read any more.
    pub(crate) fn unreadable(&self, why: String) {
        let mut documents = self.documents();
        *documents = std::mem::take(&mut *documents).unreadable(why);
    }

    fn documents(&self) -> std::sync::MutexGuard<'_, Documents> {
        self.documents
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn mesh(&self) -> Arc<Mesh> {
        self.rested.borrow().mesh.clone()
    }

    /// `/debug/config`: what streams hold, and of which documents it was made.
    pub(crate) fn explain(&self, held: Vec<(StreamId, Vec<SentResource>)>) -> String {
        #[derive(Serialize)]
        struct Proxy {
            stream: u64,
            identity: String,
            resources: Vec<ExplainedResource>,
        }
        let mesh = self.mesh();
        let why = ResourceIndex::new(&mesh);
        let proxies: Vec<Proxy> = held
            .into_iter()
            .map(|(id, held)| Proxy {
                stream: id.0,
                identity: self.inner().proxies.identity(id),
                resources: held.into_iter().map(|one| why.explain(one)).collect(),
            })
            .collect();
        serde_json::to_string_pretty(&proxies).unwrap_or_default()
    }

    /// Streams that this word may mean.
    pub(crate) fn called(&self, word: &str) -> Vec<StreamId> {
        self.inner().proxies.called(word)
    }

    /// These streams' interest says whether something is on its way to them.
    pub(crate) fn deliver_by(&self, interest: Arc<SubscriptionIndex>) {
        // There is one for one control plane.
        let _ = self.interest.set(interest);
    }

    /// These files were read, by folder, and what is published now follows from them.
    pub(crate) fn obeys(&self, read: BTreeMap<PathBuf, String>) {
        self.inner().read = read;
    }

    /// Nothing changes at present: is what was published last in force?
    pub(crate) fn rested(&self) {
        self.settle(self.inner());
    }

    /// The state folder was lost, or is there again.
    pub(crate) fn state_is(&self, lost: Option<String>) {
        let before = std::mem::replace(&mut *self.state_lost(), lost.clone());
        match (before, lost) {
            (before, Some(reason)) if before.as_ref() != Some(&reason) => {
                tracing::error!(reason, "the state folder was lost or replaced");
                self.journal.note(JournalEvent::StateLost { reason });
            }
            (Some(_), None) => {
                tracing::info!("the state folder is restored");
                self.journal.note(JournalEvent::StateBack);
            }
            _ => {}
        }
    }

    fn state_lost(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.state_lost
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if every stream has been sent all that is published for it.
    fn is_quiet(&self) -> bool {
        self.interest
            .get()
            .is_none_or(|interest| interest.is_quiet())
    }

    /// Something was acknowledged or refused: is that the last of it?
    fn settle(&self, mut inner: std::sync::MutexGuard<'_, StatusInner>) {
        if inner.in_sync == inner.snapshot.version
            || inner.proxies.behind() > 0
            || !is_everywhere(&inner.proxies, self.is_quiet())
        {
            return;
        }
        inner.in_sync = inner.snapshot.version.clone();
        let happened = JournalEvent::InSync {
            version: inner.in_sync.to_string(),
            proxies: inner.proxies.len(),
        };
        drop(inner);
        self.journal.note(happened);
    }

    fn translation_limits(&self) -> BTreeMap<String, Vec<String>> {
        let mut all = self.envoys.limits();
        for (about, limits) in self.limits.all() {
            all.entry(about).or_default().extend(limits);
        }
        all
    }

    /// `/debug/status`.
    pub(crate) fn json(&self) -> String {
        let mesh = self.mesh();
        let inner = self.inner();
        let page = Page {
            ready: self.ready.load(Ordering::Relaxed),
            version: &inner.snapshot.version,
            in_force: in_force(&inner.proxies, self.is_quiet()),
            read: &inner.read,
            state_lost: self.state_lost().clone(),
            resources: inner.snapshot.counts().into_iter().collect(),
            errors: self.errors.load(Ordering::Relaxed),
            reloads: self.reloads.load(Ordering::Relaxed),
            failed_reloads: self.failed_reloads.load(Ordering::Relaxed),
            keys: self.keys.get().map(Keys::status).unwrap_or_default(),
            proxies: inner.proxies.views(&mesh),
            workload_groups: groups::groups(&mesh),
            gateway_api: gateway_api::shown(&mesh),
            documents: self.documents().clone(),
            translation_limits: self.translation_limits(),
        };
        serde_json::to_string_pretty(&page).unwrap_or_default()
    }

    /// `/debug/workloads`.
    pub(crate) fn workloads(&self) -> String {
        let snapshot = Arc::clone(&self.inner().snapshot);
        let all: Vec<_> = snapshot.workloads().collect();
        serde_json::to_string_pretty(&json!({"workloads": all})).unwrap_or_default()
    }

    /// `/metrics`.
    pub(crate) fn metrics(&self) -> String {
        let mut scrape = Scrape::default();
        for family in ProcessFigures::read().families() {
            scrape.family(family);
        }
        let inner = self.inner();
        of_proxies(&inner.proxies, &mut scrape);
        self.counters(&mut scrape);
        scrape.family(MetricFamily {
            name: "voile_control_resources",
            kind: "gauge",
            help: "Resources in force.",
            samples: inner
                .snapshot
                .counts()
                .into_iter()
                .map(|(kind, count)| (vec![("type", kind.to_owned())], count as f64))
                .collect(),
        });
        drop(inner);
        self.rendered(scrape)
    }

    fn counters(&self, scrape: &mut Scrape) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        for (name, kind, help, value) in [
            (
                "voile_control_certificates_issued_total",
                "counter",
                "Certificates signed for workloads.",
                load(&self.certificates),
            ),
            (
                "voile_control_pushes_total",
                "counter",
                "Discovery responses sent.",
                load(&self.pushes),
            ),
            (
                "voile_control_nacks_total",
                "counter",
                "Discovery responses that a proxy refused (NACK), at least in part.",
                load(&self.nacks),
            ),
            (
                "voile_control_reloads_total",
                "counter",
                "Reloads of the configuration.",
                load(&self.reloads),
            ),
            (
                "voile_control_reload_errors_total",
                "counter",
                "Reloads that failed or found an error.",
                load(&self.failed_reloads),
            ),
            (
                "voile_control_configuration_errors",
                "gauge",
                "Errors in the configuration as last read.",
                load(&self.errors),
            ),
            (
                "voile_control_refused_callers_total",
                "counter",
                "Calls without a valid credential.",
                load(&self.refused_callers),
            ),
            (
                "voile_control_joined_workloads",
                "gauge",
                "Workloads that joined through a WorkloadGroup over a stream to this control plane and have not left.",
                self.groups.get().map_or(0, |groups| groups.len()) as f64,
            ),
            (
                "voile_control_failed_handshakes_total",
                "counter",
                "Connections whose TLS handshake failed.",
                load(&self.failed_handshakes),
            ),
        ] {
            scrape.family(MetricFamily::single(name, kind, help, value));
        }
    }

    /// With what is not counted here.
    fn rendered(&self, mut scrape: Scrape) -> String {
        for family in self.keys.get().into_iter().flat_map(Keys::families) {
            scrape.family(family);
        }
        self.revocation(&mut scrape);
        let lock = |histogram: &Mutex<LatencyHistogram>, name, help| {
            let histogram = histogram.lock().unwrap_or_else(PoisonError::into_inner);
            histogram.render(name, help)
        };
        let push_time = lock(
            &self.push_time,
            "voile_control_push_seconds",
            "Time from sending a response to its acknowledgement (ACK).",
        );
        let propagation = lock(
            &self.propagation,
            "voile_control_propagation_seconds",
            "Time from the change of a document to each proxy's acknowledgement (ACK).",
        );
        format!("{}{push_time}{propagation}", scrape.render())
    }

    fn revocation(&self, scrape: &mut Scrape) {
        let mut gauge = |name, help, value: &AtomicU64| {
            let value = value.load(Ordering::Relaxed) as f64;
            scrape.family(MetricFamily::single(name, "gauge", help, value));
        };
        gauge(
            "voile_control_revoked_certificates",
            "Revoked certificates on the lists in force.",
            &self.revoked,
        );
        gauge(
            "voile_control_revocation_next_update_timestamp_seconds",
            "Time at which the first revocation list expires; 0 without lists.",
            &self.next_update,
        );
    }
}

/// Gauges of the streams.
fn of_proxies(proxies: &Proxies, scrape: &mut Scrape) {
    for (name, help, value) in [
        (
            "voile_control_connected_proxies",
            "Open discovery streams.",
            proxies.len(),
        ),
        (
            "voile_control_proxies_behind",
            "Open streams with responses that the proxy has not acknowledged.",
            proxies.behind(),
        ),
        (
            "voile_control_proxies_refusing",
            "Open streams whose last reply for some type was a refusal (NACK).",
            proxies.refusing(),
        ),
    ] {
        scrape.family(MetricFamily::single(name, "gauge", help, value as f64));
    }
}

fn observe(histogram: &Mutex<LatencyHistogram>, took: Duration) {
    let mut histogram = histogram.lock().unwrap_or_else(PoisonError::into_inner);
    histogram.observe(took);
}

impl Observer<SnapshotCaller> for Status {
    fn opened(&self, id: StreamId, caller: &SnapshotCaller) {
        tracing::info!(stream = id.0, %caller, "proxy connected");
        self.inner().proxies.opened(id, caller);
        self.journal.note(JournalEvent::Connected {
            stream: id.0,
            identity: caller.to_string(),
        });
    }

    fn named(&self, id: StreamId, node: &str) {
        const SHOWN_CHARS: usize = 200; // what a caller says of itself is shown, not believed
        let node = node.chars().take(SHOWN_CHARS).collect();
        self.inner().proxies.named(id, node);
    }

    fn admit(
        &self,
        id: StreamId,
        caller: &SnapshotCaller,
        peer: Option<IpAddr>,
        node: &Node,
    ) -> Option<Admission> {
        self.groups.get()?.admit(id, caller, peer, node)
    }

    fn health(&self, id: StreamId, complaint: Option<&str>) {
        if let Some(groups) = self.groups.get() {
            groups.health(id, complaint);
        }
    }

    fn findings(&self, id: StreamId, details: &[u8]) {
        self.inner().proxies.unwell.told(id.0, details);
    }

    fn event(&self, id: StreamId, type_url: &str, event: &RequestEvent) {
        match event {
            RequestEvent::Subscribed | RequestEvent::Stale => {}
            RequestEvent::Acknowledged {
                version,
                took,
                changed,
                rejected,
            } => {
                observe(&self.push_time, *took);
                let propagated = changed.map(|at| at.elapsed());
                if let Some(propagated) = propagated {
                    observe(&self.propagation, propagated);
                }
                let mut inner = self.inner();
                inner
                    .proxies
                    .acknowledged(id, type_url, version, propagated, rejected);
                self.settle(inner);
            }
            RequestEvent::Refused { reason, rejected } => {
                const SHOWN_CHARS: usize = 4096; // a proxy may refuse with a book
                self.nacks.fetch_add(1, Ordering::Relaxed);
                let reason: String = reason.chars().take(SHOWN_CHARS).collect();
                tracing::error!(
                    stream = id.0,
                    type_url,
                    reason,
                    "a proxy refuses configuration"
                );
                let mut inner = self.inner();
                let identity = inner.proxies.identity(id);
                inner
                    .proxies
                    .refused(id, type_url, reason.clone(), rejected);
                let resources = rejected.iter().flat_map(|all| all.keys());
                let resources = resources.map(ToString::to_string);
                let resources = resources.filter(|name| !name.is_empty()).collect();
                self.journal.note(JournalEvent::Refused {
                    stream: id.0,
                    identity,
                    kind: type_url.to_owned(),
                    resources,
                    reason,
                });
                self.settle(inner);
            }
        }
    }

    fn sent(&self, id: StreamId, type_url: &str, resources: usize, removed: usize) {
        tracing::debug!(stream = id.0, type_url, resources, removed, "pushed");
        self.pushes.fetch_add(1, Ordering::Relaxed);
        self.inner().proxies.sent(id, type_url, resources);
    }

    fn refused(&self, id: StreamId, type_url: &str, absent: &Absent) {
        let reason =
            |reason: &Option<String>| reason.clone().unwrap_or_else(|| "unknown".to_owned());
        let shown = absent.iter().take(SHOWN_REFUSALS);
        let refused = shown
            .map(|(name, why)| (name.to_string(), reason(why)))
            .collect();
        self.inner().proxies.cannot_have(id, type_url, refused);
    }

    fn settled(&self) {
        self.rested();
    }

    fn closed(&self, id: StreamId, reason: &str) {
        tracing::info!(stream = id.0, reason, "proxy disconnected");
        if let Some(groups) = self.groups.get() {
            groups.closed(id);
        }
        let mut inner = self.inner();
        let identity = inner.proxies.identity(id);
        inner.proxies.closed(id);
        drop(inner);
        self.journal.note(JournalEvent::Disconnected {
            stream: id.0,
            identity,
            reason: reason.to_owned(),
        });
    }
}
