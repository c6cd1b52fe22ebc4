//! What an operator sees of the control plane: counters, and each proxy's stream with what it took and what it refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use voile_identity::Revocations;
use voile_telemetry::{Family, ProcessFigures, Scrape};
use voile_xds::server::{Event, Observer, StreamId};

use crate::keys::{KeyStatus, Keys};
use crate::snapshot::{Caller, MeshSnapshot};

/// Upper bounds of the push-time buckets, in seconds; the last bucket is everything.
const PUSH_BUCKETS: [f64; 9] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Counters and streams; shared by all tasks.
#[derive(Debug, Default)]
pub(crate) struct Status {
    pub(crate) ready: AtomicBool,
    pub(crate) errors: AtomicU64,
    pub(crate) reloads: AtomicU64,
    pub(crate) failed_reloads: AtomicU64,
    pub(crate) refused_callers: AtomicU64,
    pub(crate) failed_handshakes: AtomicU64,
    revoked: AtomicU64,
    next_update: AtomicU64,
    pushes: AtomicU64,
    nacks: AtomicU64,
    push_time: Mutex<PushTime>,
    inner: Mutex<Inner>,
    keys: OnceLock<Keys>,
}

#[derive(Debug, Default)]
struct PushTime {
    buckets: [u64; PUSH_BUCKETS.len()],
    count: u64,
    seconds: f64,
}

#[derive(Debug, Default)]
struct Inner {
    version: String,
    unready_workloads: usize,
    resources: Vec<(&'static str, usize)>,
    streams: BTreeMap<u64, StreamStatus>,
}

/// One connected proxy.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct StreamStatus {
    identity: String,
    node: String,
    connected_at: u64,
    types: BTreeMap<String, TypeStatus>,
}

#[derive(Debug, Clone, Default, Serialize)]
struct TypeStatus {
    pushes: u64,
    resources_sent: u64,
    acknowledged_version: Option<String>,
    acknowledged_at: Option<u64>,
    last_nack: Option<String>,
    last_nack_at: Option<u64>,
}

#[derive(Serialize)]
struct Page<'a> {
    ready: bool,
    version: &'a str,
    unready_workloads: usize,
    resources: BTreeMap<&'a str, usize>,
    errors: u64,
    reloads: u64,
    failed_reloads: u64,
    keys: Vec<KeyStatus>,
    proxies: Vec<&'a StreamStatus>,
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}

impl Status {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of these keys from now on.
    pub(crate) fn follow(&self, keys: Keys) {
        // There is one set of keys for one control plane.
        let _ = self.keys.set(keys);
    }

    pub(crate) fn published(&self, snapshot: &Arc<MeshSnapshot>) {
        let mut inner = self.inner();
        inner.version = snapshot.version.clone();
        inner.unready_workloads = snapshot.unready;
        inner.resources = snapshot.counts().to_vec();
    }

    /// What certificates are taken back now.
    pub(crate) fn revoked(&self, held: &Revocations) {
        let next = held.next_update();
        let next = next.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let next = next.unwrap_or_default().as_secs();
        self.revoked.store(held.len() as u64, Ordering::Relaxed);
        self.next_update.store(next, Ordering::Relaxed);
    }

    fn with_type(&self, id: StreamId, type_url: &str, change: impl FnOnce(&mut TypeStatus)) {
        if let Some(stream) = self.inner().streams.get_mut(&id.0) {
            change(stream.types.entry(type_url.to_owned()).or_default());
        }
    }

    /// `/debug/status`.
    pub(crate) fn json(&self) -> String {
        let inner = self.inner();
        let page = Page {
            ready: self.ready.load(Ordering::Relaxed),
            version: &inner.version,
            unready_workloads: inner.unready_workloads,
            resources: inner.resources.iter().copied().collect(),
            errors: self.errors.load(Ordering::Relaxed),
            reloads: self.reloads.load(Ordering::Relaxed),
            failed_reloads: self.failed_reloads.load(Ordering::Relaxed),
            keys: self.keys.get().map(Keys::status).unwrap_or_default(),
            proxies: inner.streams.values().collect(),
        };
        serde_json::to_string_pretty(&page).unwrap_or_default()
    }

    /// `/metrics`.
    pub(crate) fn metrics(&self) -> String {
        let mut scrape = Scrape::default();
        for family in ProcessFigures::read().families() {
            scrape.family(family);
        }
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let inner = self.inner();
        for (name, kind, help, value) in [
            (
                "voile_control_connected_proxies",
                "gauge",
                "Open discovery streams.",
                inner.streams.len() as f64,
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
                "Discovery responses that a proxy refused, at least in part.",
                load(&self.nacks),
            ),
            (
                "voile_control_reloads_total",
                "counter",
                "Readings of the configuration.",
                load(&self.reloads),
            ),
            (
                "voile_control_reload_errors_total",
                "counter",
                "Readings with an error, or that failed altogether.",
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
                "Calls without a proof of identity that is believed.",
                load(&self.refused_callers),
            ),
            (
                "voile_control_failed_handshakes_total",
                "counter",
                "Connections that never became TLS.",
                load(&self.failed_handshakes),
            ),
        ] {
            scrape.family(Family::single(name, kind, help, value));
        }
        scrape.family(Family {
            name: "voile_control_resources",
            kind: "gauge",
            help: "Resources in force.",
            samples: inner
                .resources
                .iter()
                .map(|(kind, count)| (vec![("type", (*kind).to_owned())], *count as f64))
                .collect(),
        });
        drop(inner);
        self.rendered(scrape)
    }

    /// With what is not counted here.
    fn rendered(&self, mut scrape: Scrape) -> String {
        for family in self.keys.get().into_iter().flat_map(Keys::families) {
            scrape.family(family);
        }
        self.revocation(&mut scrape);
        format!("{}{}", scrape.render(), self.push_time())
    }

    fn revocation(&self, scrape: &mut Scrape) {
        let mut gauge = |name, help, value: &AtomicU64| {
            let value = value.load(Ordering::Relaxed) as f64;
            scrape.family(Family::single(name, "gauge", help, value));
        };
        gauge(
            "voile_control_revoked_certificates",
            "Certificates on the lists in force.",
            &self.revoked,
        );
        gauge(
            "voile_control_revocation_next_update_timestamp_seconds",
            "When the first of the lists should be replaced; 0 without lists.",
            &self.next_update,
        );
    }

    /// A histogram by hand: from sending a response to its acknowledgement.
    fn push_time(&self) -> String {
        use std::fmt::Write as _;
        const NAME: &str = "voile_control_push_seconds";
        let time = self
            .push_time
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut page = format!(
            "# HELP {NAME} From sending a response to its acknowledgement.\n# TYPE {NAME} histogram\n"
        );
        // Writing to a String cannot fail.
        for (bound, count) in PUSH_BUCKETS.iter().zip(time.buckets) {
            let _ = writeln!(page, "{NAME}_bucket{{le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(page, "{NAME}_bucket{{le=\"+Inf\"}} {}", time.count);
        let _ = writeln!(
            page,
            "{NAME}_sum {}\n{NAME}_count {}",
            time.seconds, time.count
        );
        page
    }

    fn acknowledged(&self, took: Duration) {
        let mut time = self
            .push_time
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let seconds = took.as_secs_f64();
        time.count += 1;
        time.seconds += seconds;
        for (bound, count) in PUSH_BUCKETS.iter().zip(&mut time.buckets) {
            *count += u64::from(seconds <= *bound);
        }
    }
}

impl Observer<Caller> for Status {
    fn opened(&self, id: StreamId, caller: &Caller) {
        tracing::info!(stream = id.0, %caller, "proxy connected");
        let stream = StreamStatus {
            identity: caller.to_string(),
            node: String::new(),
            connected_at: now(),
            types: BTreeMap::new(),
        };
        self.inner().streams.insert(id.0, stream);
    }

    fn named(&self, id: StreamId, node: &str) {
        const SHOWN_CHARS: usize = 200; // what a caller says of itself is shown, not believed
        if let Some(stream) = self.inner().streams.get_mut(&id.0) {
            stream.node = node.chars().take(SHOWN_CHARS).collect();
        }
    }

    fn event(&self, id: StreamId, type_url: &str, event: &Event) {
        match event {
            Event::Subscribed | Event::Stale => {}
            Event::Acknowledged { version, took } => {
                self.acknowledged(*took);
                self.with_type(id, type_url, |status| {
                    status.acknowledged_version = Some(version.to_string());
                    status.acknowledged_at = Some(now());
                });
            }
            Event::Refused { reason } => {
                self.nacks.fetch_add(1, Ordering::Relaxed);
                let reason: String = reason.chars().take(4096).collect();
                tracing::error!(
                    stream = id.0,
                    type_url,
                    reason,
                    "a proxy refuses configuration"
                );
                self.with_type(id, type_url, |status| {
                    status.last_nack = Some(reason);
                    status.last_nack_at = Some(now());
                });
            }
        }
    }

    fn sent(&self, id: StreamId, type_url: &str, resources: usize, removed: usize) {
        tracing::debug!(stream = id.0, type_url, resources, removed, "pushed");
        self.pushes.fetch_add(1, Ordering::Relaxed);
        self.with_type(id, type_url, |status| {
            status.pushes += 1;
            status.resources_sent += resources as u64;
        });
    }

    fn closed(&self, id: StreamId, reason: &str) {
        tracing::info!(stream = id.0, reason, "proxy disconnected");
        self.inner().streams.remove(&id.0);
    }
}
