//! The keys of token issuers: fetched where RequestAuthentications say (`jwksUri`, or the issuer's OpenID configuration),
//! refreshed in the background, and kept. Keys that were good stay until better ones come, over a restart too; keys that
//! never came are missing, and whoever needs them is told so. Nobody waits for a key server.
//!
//! ```text
//! mesh ─ want ─▶ table ─▶ task: ask, read, settle ─ changed ─▶ translation
//!                  ▲ kept in the state directory
//! ```

mod fetch;
mod fetch_schedule;
mod key_set;
mod key_set_folder;
mod key_set_url;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use voile_model::Mesh;
use voile_model::mesh::{AddressRange, KeySource, TokenRule};
use voile_telemetry::MetricFamily;

use fetch::FetchContext;
pub(crate) use key_set::key_set;
use key_set_folder::{KeySetFolder, seconds};

/// Interval between two fetches of good keys, the same as istiod's.
pub const REFRESH: Duration = Duration::from_secs(20 * 60);
/// Questions under way at once: a slow server holds up few others.
const MAX_AT_ONCE: usize = 32;
/// The longest that one question may take, whatever its rule says.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// The shortest: nobody answers sooner.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);
/// After keys changed, how long others are waited for, so that a thousand issuers are not a thousand snapshots.
const SETTLE: Duration = Duration::from_millis(20);
/// Age at which kept keys are written again, so that their file shows that they are in use.
const KEEP_AGAIN: Duration = Duration::from_secs(24 * 3600);
/// Path that is appended to an issuer to find its OpenID configuration.
const WELL_KNOWN: &str = "/.well-known/openid-configuration";

/// The operator's options for fetching keys.
#[derive(Debug, Clone)]
pub struct KeyOptions {
    /// Interval between two fetches of good keys.
    pub refresh: Duration,
    /// Certificate authorities (PEM) believed besides the system's.
    pub authorities: Option<PathBuf>,
    /// Addresses that nobody is asked at.
    pub blocked: Vec<AddressRange>,
    /// Allows addresses of this machine: for `voile up`, whose services listen there.
    pub loopback: bool,
}

impl Default for KeyOptions {
    fn default() -> Self {
        Self {
            refresh: REFRESH,
            authorities: None,
            blocked: Vec::new(),
            loopback: false,
        }
    }
}

/// Source of an issuer's keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Origin {
    /// `jwksUri`.
    Uri(Arc<str>),
    /// The OpenID configuration of this issuer.
    Discovery(Arc<str>),
}

impl Origin {
    /// Source of a rule's keys; `None` if the rule contains the keys.
    pub(crate) fn of(rule: &TokenRule) -> Option<Self> {
        match &rule.keys {
            KeySource::Inline(_) => None,
            KeySource::Uri(uri) => Some(Self::Uri(uri.clone())),
            KeySource::Discovery => Some(Self::Discovery(rule.issuer.clone())),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(uri) => f.write_str(uri),
            Self::Discovery(issuer) => {
                write!(f, "{}{WELL_KNOWN}", issuer.trim_end_matches('/'))
            }
        }
    }
}

/// Key sets at one moment.
pub(crate) type Texts = BTreeMap<Origin, Arc<str>>;

/// State of one origin.
#[derive(Debug)]
struct OriginKeys {
    limit: Duration,
    keys: Option<Arc<str>>,
    fetched_at: Option<SystemTime>,
    /// Why the last question failed.
    error: Option<String>,
    /// Failures since the last success.
    failures: u32,
    /// When to ask next; none while it is being asked.
    due: Option<Instant>,
}

/// One origin, for people.
#[derive(Debug, Serialize)]
pub(crate) struct KeyStatus {
    source: String,
    /// `good`; `kept` where the last question failed and older keys hold; `missing` without any; `asking` before the first answer.
    state: &'static str,
    fetched_at: Option<u64>,
    failures: u32,
    error: Option<String>,
}

/// All keys; shared by the loop that reads configuration, the task that asks, and the pages.
#[derive(Debug, Clone)]
pub(crate) struct Keys(Arc<KeyStoreState>);

#[derive(Debug)]
struct KeyStoreState {
    table: Mutex<BTreeMap<Origin, OriginKeys>>,
    wanted: Notify,
    changed: Notify,
    outside: FetchContext,
    refresh: Duration,
    kept: KeySetFolder,
    good: AtomicU64,
    failed: AtomicU64,
}

impl Keys {
    pub(crate) fn new(state: &Path, options: &KeyOptions) -> Self {
        Self(Arc::new(KeyStoreState {
            table: Mutex::default(),
            wanted: Notify::new(),
            changed: Notify::new(),
            outside: FetchContext {
                blocked: options.blocked.clone(),
                loopback: options.loopback,
                authorities: options.authorities.clone(),
            },
            refresh: options.refresh,
            kept: KeySetFolder::new(state),
            good: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }))
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<Origin, OriginKeys>> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for what a mesh's rules need, and for nothing else any more.
    pub(crate) fn want(&self, mesh: &Mesh) {
        let mut wanted: BTreeMap<Origin, Duration> = BTreeMap::new();
        let policies = mesh.request_authentications.iter();
        for rule in policies.flat_map(|policy| &policy.rules) {
            if let Some(origin) = Origin::of(rule) {
                let limit = wanted.entry(origin).or_default();
                *limit = rule.timeout.clamp(MIN_TIMEOUT, MAX_TIMEOUT).max(*limit);
            }
        }
        let mut table = self.table();
        if table.is_empty() {
            self.0.kept.sweep(wanted.keys());
        }
        table.retain(|origin, _| wanted.contains_key(origin));
        for (origin, limit) in wanted {
            if let Some(entry) = table.get_mut(&origin) {
                entry.limit = limit;
                continue;
            }
            let (keys, fetched_at) = self.0.kept.load(&origin).unzip();
            let entry = OriginKeys {
                limit,
                keys,
                fetched_at,
                error: None,
                failures: 0,
                due: Some(Instant::now()),
            };
            table.insert(origin, entry);
        }
        drop(table);
        self.0.wanted.notify_one();
    }

    /// Keys known now, by origin.
    pub(crate) fn texts(&self) -> Texts {
        let table = self.table();
        let known = table.iter();
        known
            .filter_map(|(origin, entry)| Some((origin.clone(), entry.keys.clone()?)))
            .collect()
    }

    /// Stores these answers as if servers had sent them. Returns true if one of them is new.
    #[cfg(test)]
    pub(crate) fn bring(&self, answers: &Texts) -> bool {
        let mut news = false;
        for (origin, entry) in self.table().iter_mut() {
            let answer = answers.get(origin);
            news |= answer.is_some() && entry.keys.as_ref() != answer;
            entry.keys = answer.cloned().or(entry.keys.take());
        }
        news
    }

    /// Keys that are missing although they were asked for, and why; for people.
    pub(crate) fn missing(&self) -> Vec<String> {
        let table = self.table();
        let missing = table.iter().filter(|(_, entry)| entry.keys.is_none());
        missing
            .filter_map(|(origin, entry)| {
                let why = entry.error.as_ref()?;
                Some(format!(
                    "no keys from {origin}: {why}; tokens of its issuer are refused until keys arrive"
                ))
            })
            .collect()
    }

    /// Returns when keys came, changed, or turned out to be missing.
    pub(crate) async fn changed(&self) {
        self.0.changed.notified().await;
        tokio::time::sleep(SETTLE).await;
    }

    pub(crate) fn status(&self) -> Vec<KeyStatus> {
        let table = self.table();
        table
            .iter()
            .map(|(origin, entry)| KeyStatus {
                source: origin.to_string(),
                state: match (&entry.keys, &entry.error) {
                    (Some(_), None) => "good",
                    (Some(_), Some(_)) => "kept",
                    (None, Some(_)) => "missing",
                    (None, None) => "asking",
                },
                fetched_at: entry.fetched_at.map(seconds),
                failures: entry.failures,
                error: entry.error.clone(),
            })
            .collect()
    }

    pub(crate) fn families(&self) -> Vec<MetricFamily> {
        let outcome = |word: &str, count: &AtomicU64| {
            let label = vec![("outcome", word.to_owned())];
            (label, count.load(Ordering::Relaxed) as f64)
        };
        let missing = self.table().values().filter(|e| e.keys.is_none()).count();
        vec![
            MetricFamily {
                name: "voile_control_key_fetches_total",
                kind: "counter",
                help: "Fetches of keys from token issuers.",
                samples: vec![
                    outcome("good", &self.0.good),
                    outcome("failed", &self.0.failed),
                ],
            },
            MetricFamily::single(
                "voile_control_key_sets_missing",
                "gauge",
                "Key sets that RequestAuthentications name and that have not been fetched yet.",
                missing as f64,
            ),
        ]
    }

    /// Asks for what is due, for ever.
    pub(crate) async fn run(self) {
        let mut asking = JoinSet::new();
        loop {
            let next = self.begin(&mut asking);
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(done) = asking.join_next() => match done {
                    Ok((origin, answer)) => self.settle(&origin, answer),
                    Err(error) => tracing::error!(%error, "a fetch of keys failed"),
                },
                () = self.0.wanted.notified() => {}
                () = due => {}
            }
        }
    }

    /// Begins the questions that are due; says when the next one is.
    fn begin(&self, asking: &mut JoinSet<(Origin, Result<Arc<str>, String>)>) -> Option<Instant> {
        let now = Instant::now();
        let mut table = self.table();
        for (origin, entry) in table.iter_mut() {
            if asking.len() >= MAX_AT_ONCE {
                return None; // The next one to end brings us back.
            }
            if entry.due.is_some_and(|due| due <= now) {
                entry.due = None;
                let (keys, origin, limit) = (self.clone(), origin.clone(), entry.limit);
                asking.spawn(async move {
                    let answer = fetch(&keys.0.outside, &origin, limit).await;
                    (origin, answer)
                });
            }
        }
        table.values().filter_map(|entry| entry.due).min()
    }

    fn settle(&self, origin: &Origin, answer: Result<Arc<str>, String>) {
        let count = match answer {
            Ok(_) => &self.0.good,
            Err(_) => &self.0.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let mut table = self.table();
        // Nobody wants it any more.
        let Some(entry) = table.get_mut(origin) else {
            return;
        };
        let now = SystemTime::now();
        let (news, keep) = match answer {
            Ok(keys) => {
                let news = entry.keys.as_ref() != Some(&keys);
                let recovered = entry.error.take().is_some();
                if news || recovered {
                    tracing::info!(%origin, changed = news, "keys fetched");
                }
                let aged = entry.fetched_at.and_then(|at| at.elapsed().ok());
                let keep = news || aged.is_some_and(|age| age > KEEP_AGAIN);
                (entry.failures, entry.fetched_at) = (0, Some(now));
                entry.keys = Some(Arc::clone(&keys));
                (news, keep.then_some(keys))
            }
            Err(why) => {
                let kept = entry.keys.is_some();
                let new = entry.error.as_deref() != Some(&*why);
                if new {
                    tracing::warn!(%origin, why, kept, "cannot fetch keys");
                }
                entry.failures = entry.failures.saturating_add(1);
                entry.error = Some(why);
                (new && !kept, None)
            }
        };
        let pause = fetch_schedule::pause(entry.failures, self.0.refresh, fastrand::f64());
        entry.due = Some(Instant::now() + pause);
        drop(table);
        if let Some(keys) = keep {
            let (shared, origin) = (Arc::clone(&self.0), origin.clone());
            // Disks are slow, and pushes go on this thread.
            tokio::task::spawn_blocking(move || shared.kept.keep(&origin, &keys, now));
        }
        if news {
            self.0.changed.notify_one();
        }
    }
}

async fn fetch(
    outside: &FetchContext,
    origin: &Origin,
    limit: Duration,
) -> Result<Arc<str>, String> {
    let uri = match origin {
        Origin::Uri(uri) => uri.to_string(),
        Origin::Discovery(issuer) => {
            let at = origin.to_string();
            let document = fetch::get(outside, &at, limit).await?;
            let uri = key_set::keys_uri(&document, issuer)?;
            if at.starts_with("https:") && !uri.starts_with("https:") {
                return Err(format!("its `jwks_uri` leaves https: {uri}"));
            }
            uri
        }
    };
    let document = fetch::get(outside, &uri, limit).await;
    let document = document.map_err(|why| match origin {
        Origin::Uri(_) => why,
        Origin::Discovery(_) => format!("{uri}: {why}"),
    })?;
    key_set::keys_of(&document)
}
