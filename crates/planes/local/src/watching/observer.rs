//! Observer thread: asks sidecars for readiness and metrics, and checks that applications listen. It is separate from
//! the main loop, so that a pod that hangs delays no restart.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use voile_host::netns::Namespace;
use voile_host::ready::{Probe, ask, http_get};
use voile_model::ResourceName;

use crate::application::{METRICS_PORT, READINESS_PORT};
use crate::control_page::{ControlPage, ControlPages};
use crate::edges::Edges;

/// Pause between two rounds when all are ready.
const CALM: Duration = Duration::from_secs(1);
/// Pause between two rounds when some pod is not ready.
const EAGER: Duration = Duration::from_millis(50);
/// Between two scrapes of one sidecar.
const SCRAPE_EVERY: Duration = Duration::from_secs(1);

/// Pod to observe.
#[derive(Debug, Clone)]
pub struct ObservedProxy {
    /// The pod's address.
    pub address: Ipv4Addr,
    /// Its namespace, if it has one of its own: it is asked from within.
    pub namespace: Option<Namespace>,
    /// True if it has a sidecar that runs, or is the node proxy.
    pub sidecar: bool,
    /// Addresses at which its applications listen, once they run.
    pub endpoints: Vec<(Ipv4Addr, u16)>,
    /// Changes when an application was started again, so that it is asked again.
    pub generation: u32,
}

/// Last answers of a pod.
#[derive(Debug, Clone, Default)]
pub struct Observation {
    /// True if its sidecar is ready.
    pub sidecar_ready: bool,
    /// The generation whose applications all listen.
    pub listening: Option<u32>,
    /// The latest page of its sidecar.
    pub counters: Option<Page>,
    /// The page before.
    pub before: Option<Page>,
}

/// The traffic that a proxy counted, and when that was read.
pub type Page = (Instant, Edges);

impl Observation {
    /// Returns the counts since the page that was `shown` last, and the time they cover. Without a newer page or a
    /// page shown before, compares the latest two pages. Figures that are shown every five seconds cover five
    /// seconds.
    pub fn news(&self, shown: Option<&Page>) -> Option<(Edges, Duration)> {
        let (now, latest) = self.counters.as_ref()?;
        let earlier = shown.filter(|(then, _)| then < now);
        let (then, before) = earlier.or(self.before.as_ref())?;
        Some((latest.since(before), now.duration_since(*then)))
    }
}

#[derive(Debug, Default)]
struct ObserverState {
    targets: BTreeMap<ResourceName, ObservedProxy>,
    /// Addresses of the control planes' readiness.
    controls: Vec<SocketAddr>,
    controls_ready: usize,
    /// Last status page of each control plane.
    pages: Vec<Option<ControlPage>>,
    seen: BTreeMap<ResourceName, Observation>,
}

/// The thread; dropping it ends it.
#[derive(Debug)]
pub struct Observer {
    shared: Arc<Mutex<ObserverState>>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    /// Starts it; it asks `controls` (their monitoring addresses) too.
    pub fn start(controls: Vec<SocketAddr>) -> Self {
        let shared = Arc::new(Mutex::new(ObserverState {
            pages: vec![None; controls.len()],
            controls,
            ..ObserverState::default()
        }));
        let (stop, stopped) = mpsc::channel();
        let inside = shared.clone();
        let thread = std::thread::spawn(move || {
            let mut wait = EAGER;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = if round(&inside) { CALM } else { EAGER };
            }
        });
        Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Asks these from now on.
    pub fn set_targets(&self, targets: BTreeMap<ResourceName, ObservedProxy>) {
        let mut shared = lock(&self.shared);
        shared.seen.retain(|name, _| targets.contains_key(name));
        shared.targets = targets;
    }

    /// Returns the last answers of all pods, the number of ready control planes, and their status pages.
    pub fn look(&self) -> (BTreeMap<ResourceName, Observation>, usize, ControlPages) {
        let shared = lock(&self.shared);
        let pages = ControlPages(shared.pages.clone());
        (shared.seen.clone(), shared.controls_ready, pages)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // It ends after the question it is asking; a panic there has been printed.
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Mutex<ObserverState>) -> MutexGuard<'_, ObserverState> {
    // Every change is a single assignment: half-done work cannot be seen.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks all pods once, without holding the lock; returns true if all are ready.
fn round(shared: &Mutex<ObserverState>) -> bool {
    let (targets, controls) = {
        let shared = lock(shared);
        (shared.targets.clone(), shared.controls.clone())
    };
    let is_ready =
        |address: &&SocketAddr| ask(&Probe::Http(**address, "/ready".to_owned())).is_ok();
    let ready = controls.iter().filter(is_ready).count();
    lock(shared).controls_ready = ready;
    for (place, address) in controls.iter().enumerate() {
        // Without an answer, the last page stays.
        if let Ok((200, page)) = http_get(*address, "/debug/status")
            && let Some(page) = ControlPage::parse(&page, Instant::now())
        {
            lock(shared).pages[place] = Some(page);
        }
    }
    let mut all = ready == controls.len();
    for (name, target) in targets {
        let before = lock(shared).seen.get(&name).cloned().unwrap_or_default();
        let now = match &target.namespace {
            None => observe(&target, before),
            Some(namespace) => namespace
                .run(|| observe(&target, before))
                .unwrap_or_default(),
        };
        all &= now.sidecar_ready == target.sidecar;
        all &= target.endpoints.is_empty() || now.listening == Some(target.generation);
        let mut shared = lock(shared);
        if shared.targets.contains_key(&name) {
            shared.seen.insert(name, now);
        }
    }
    all
}

fn observe(target: &ObservedProxy, mut seen: Observation) -> Observation {
    let sidecar = match target.namespace {
        None => target.address,
        Some(_) => Ipv4Addr::LOCALHOST,
    };
    let at = |port| SocketAddr::from((sidecar, port));
    let probe = |endpoint: (Ipv4Addr, u16)| match target.namespace {
        None => Probe::Tcp(endpoint.into()),
        Some(_) => Probe::Direct(endpoint.into()),
    };
    seen.sidecar_ready = target.sidecar
        && ask(&Probe::Http(
            at(READINESS_PORT),
            "/healthz/ready".to_owned(),
        ))
        .is_ok();
    if seen.listening != Some(target.generation) && !target.endpoints.is_empty() {
        let all = target
            .endpoints
            .iter()
            .all(|endpoint| ask(&probe(*endpoint)).is_ok());
        seen.listening = all.then_some(target.generation);
    }
    let due = seen
        .counters
        .as_ref()
        .is_none_or(|(when, _)| when.elapsed() >= SCRAPE_EVERY);
    if seen.sidecar_ready
        && due
        && let Ok((200, page)) = http_get(at(METRICS_PORT), "/metrics")
    {
        let mut edges = Edges::default();
        edges.add(&String::from_utf8_lossy(&page));
        seen.before = seen.counters.replace((Instant::now(), edges));
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_speak_of_the_whole_time_since_they_were_shown() {
        let start = Instant::now();
        let page = |second: u64, requests: f64| {
            let mut edges = Edges::default();
            edges.add(&format!(
                "istio_requests_total{{reporter=\"destination\"}} {requests}"
            ));
            (start + Duration::from_secs(second), edges)
        };
        let seen = Observation {
            counters: Some(page(9, 3000.0)),
            before: Some(page(8, 3000.0)),
            ..Observation::default()
        };
        // A burst of three thousand that was over a second before the line is in it.
        let table = [
            (Some(page(4, 0.0)), 3000.0, 5),
            (Some(page(8, 3000.0)), 0.0, 1),
            // Drawn again before anything was read.
            (Some(page(9, 3000.0)), 0.0, 1),
            (None, 0.0, 1),
        ];
        for (shown, requests, seconds) in table {
            let (news, span) = seen.news(shown.as_ref()).expect("two pages");
            let counted = news.0.values().map(|edge| edge.counters().requests);
            let counted: f64 = counted.sum();
            assert_eq!((counted, span.as_secs()), (requests, seconds));
        }
        assert!(Observation::default().news(None).is_none());
    }
}
