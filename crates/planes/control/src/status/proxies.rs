//! Each proxy's stream as an operator sees it: who it is, whether it has all it was sent, how late it was, what it refused, and how
//! long its certificate lasts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use voile_identity::CallerProof;
use voile_model::{Identity, Mesh};
use voile_proto::type_url::shared;
use voile_xds::server::{Rejections, StreamId};

use super::unhealthy_endpoints::{ProxyHealthReport, UnhealthyEndpoints};
use crate::snapshot::SnapshotCaller;

/// Callers whose certificates are remembered: more than any mesh has, less than would exhaust us.
const MAX_CERTIFIED: usize = 100_000;

/// A caller that asked for certificates: an identity and the pod that its token names.
type Asker = (Identity, Option<String>);

#[derive(Debug, Default)]
pub(super) struct Proxies {
    /// Each in a box, or the tree would keep room for half as many again.
    streams: BTreeMap<u64, Box<Proxy>>,
    /// Until when certificates last, by who asked and in whose name.
    certified: HashMap<Asker, BTreeMap<Identity, SystemTime>>,
    /// Streams that have not acknowledged all they were sent.
    behind: usize,
    /// Streams that refuse something.
    refusing: usize,
    /// Findings of the proxies' HealthChecks.
    pub(super) unwell: UnhealthyEndpoints,
}

#[derive(Debug)]
struct Proxy {
    caller: SnapshotCaller,
    node: String,
    connected_at: u64,
    /// Version that it acknowledged last.
    version: Option<Arc<str>>,
    /// Changes that it has enforced, the last and the slowest.
    changes: u64,
    last: Option<Duration>,
    slowest: Duration,
    /// Types of which it has not acknowledged what it was sent.
    travelling: usize,
    /// Types of which it refuses something.
    refusals: usize,
    types: Types,
}

/// By type, the first that was heard of first: a few, looked up at each push.
#[derive(Debug, Default)]
struct Types(Vec<(Arc<str>, PushedType)>);

impl Types {
    fn of(&mut self, type_url: &str) -> &mut PushedType {
        // Mostly the name is the very copy that all have.
        let is = |of: &Arc<str>| of.as_ptr() == type_url.as_ptr() && of.len() == type_url.len();
        let known = self.0.iter().position(|(of, _)| is(of));
        let known = known.or_else(|| self.0.iter().position(|(of, _)| **of == *type_url));
        let place = known.unwrap_or_else(|| {
            // Types come one by one and hardly ever: no room is kept for more.
            self.0.reserve_exact(1);
            self.0.push((shared(type_url), PushedType::default()));
            self.0.len() - 1
        });
        &mut self.0[place].1
    }

    fn kinds(&self) -> impl Iterator<Item = &PushedType> {
        self.0.iter().map(|(_, kind)| kind)
    }
}

/// A map in the order of its names.
impl Serialize for Types {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sorted: BTreeMap<&str, &PushedType> =
            self.0.iter().map(|(of, kind)| (&**of, kind)).collect();
        sorted.serialize(serializer)
    }
}

/// Counters of one type that each push touches. Thousands of these lie cold between two pushes, so rare fields are kept
/// elsewhere.
#[derive(Debug, Clone, Default)]
struct PushedType {
    pushes: u64,
    resources_sent: u64,
    acknowledged_version: Option<Arc<str>>,
    acknowledged_at: Option<u64>,
    travelling_since: Option<Instant>,
    /// Resources that it refused, and of which it has taken no other version since.
    rejected: Rejections,
    trouble: Option<Box<ProxyError>>,
}

/// Errors of one type on a stream.
#[derive(Debug, Clone, Default)]
struct ProxyError {
    last_nack: Option<String>,
    last_nack_at: Option<u64>,
    /// Resources that it asks for and may not have, with the reasons.
    refused: BTreeMap<String, String>,
}

impl Serialize for PushedType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            pushes: u64,
            resources_sent: u64,
            acknowledged_version: Option<&'a str>,
            acknowledged_at: Option<u64>,
            last_nack: Option<&'a str>,
            last_nack_at: Option<u64>,
            refuses: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            rejected: Option<BTreeMap<&'a str, &'a str>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            refused: Option<&'a BTreeMap<String, String>>,
        }
        let trouble = self.trouble.as_deref();
        let refused = trouble.map(|trouble| &trouble.refused);
        let shown = Shown {
            pushes: self.pushes,
            resources_sent: self.resources_sent,
            acknowledged_version: self.acknowledged_version.as_deref(),
            acknowledged_at: self.acknowledged_at,
            last_nack: trouble.and_then(|trouble| trouble.last_nack.as_deref()),
            last_nack_at: trouble.and_then(|trouble| trouble.last_nack_at),
            refuses: self.rejected.is_some(),
            rejected: self.rejected.as_ref().map(|all| {
                let all = all.iter();
                all.map(|(name, why)| (&**name, &**why)).collect()
            }),
            refused: refused.filter(|refused| !refused.is_empty()),
        };
        shown.serialize(serializer)
    }
}

impl PushedType {
    fn trouble(&mut self) -> &mut ProxyError {
        self.trouble.get_or_insert_default()
    }
}

/// A resource that a proxy refuses.
#[derive(Debug, Serialize)]
pub(super) struct RejectedResource<'a> {
    stream: u64,
    /// Node id of the proxy, or else its pod.
    proxy: &'a str,
    identity: String,
    #[serde(rename = "type")]
    kind: &'a str,
    /// Empty where the proxy does not say.
    resource: &'a str,
    reason: &'a str,
}

/// One connected proxy.
#[derive(Debug, Serialize)]
pub(super) struct ProxyView<'a> {
    stream: u64,
    identity: String,
    pod: Option<&'a str>,
    node: &'a str,
    connected_at: u64,
    /// It has acknowledged something, and all that it was sent, and refuses nothing.
    synced: bool,
    /// For how long it has not acknowledged what it was sent.
    lag_ms: u64,
    version: Option<&'a str>,
    /// Until when the first of its certificates lasts that were issued or shown here, in seconds since 1970.
    certificate_until: Option<u64>,
    propagation: Propagation,
    /// Endpoints that it found unwell.
    #[serde(flatten)]
    unwell: ProxyHealthReport<'a>,
    types: &'a Types,
}

/// From the change of a document to its acknowledgement.
#[derive(Debug, Serialize)]
struct Propagation {
    changes: u64,
    last_ms: Option<f64>,
    slowest_ms: f64,
}

impl Proxy {
    fn is_behind(&self) -> bool {
        self.travelling > 0
    }

    /// Node id of the proxy, or else its pod.
    fn called(&self) -> &str {
        let (SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _)) = &self.caller;
        match self.node.as_str() {
            "" => caller.pod.as_deref().unwrap_or_default(),
            node => node,
        }
    }

    /// It has acknowledged something, and all that it was sent, and refuses nothing.
    fn is_synced(&self) -> bool {
        self.version.is_some() && !self.is_behind() && self.refusals == 0
    }
}

impl Proxies {
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn behind(&self) -> usize {
        self.behind
    }

    pub(super) fn refusing(&self) -> usize {
        self.refusing
    }

    /// Resources that proxies refuse, at most `most` of them.
    pub(super) fn refusals(&self, most: usize) -> Vec<RejectedResource<'_>> {
        let refusing = self.streams.iter().filter(|(_, proxy)| proxy.refusals > 0);
        let all = refusing.flat_map(|(stream, proxy)| {
            proxy.types.0.iter().flat_map(move |(kind, of)| {
                let rejected = of.rejected.iter().flat_map(|all| all.iter());
                rejected.map(move |(resource, reason)| RejectedResource {
                    stream: *stream,
                    proxy: proxy.called(),
                    identity: proxy.caller.to_string(),
                    kind,
                    resource,
                    reason,
                })
            })
        });
        all.take(most).collect()
    }

    /// Streams that have acknowledged all that they were sent.
    pub(super) fn synced(&self) -> usize {
        self.streams
            .values()
            .filter(|proxy| proxy.is_synced())
            .count()
    }

    pub(super) fn opened(&mut self, id: StreamId, caller: &SnapshotCaller) {
        let proxy = Proxy {
            caller: caller.clone(),
            node: String::new(),
            connected_at: seconds(SystemTime::now()),
            version: None,
            changes: 0,
            last: None,
            slowest: Duration::ZERO,
            travelling: 0,
            refusals: 0,
            types: Types::default(),
        };
        self.streams.insert(id.0, Box::new(proxy));
    }

    /// Records the resources of a type that a stream asks for and may not have.
    pub(super) fn cannot_have(
        &mut self,
        id: StreamId,
        type_url: &str,
        refused: BTreeMap<String, String>,
    ) {
        if let Some(proxy) = self.streams.get_mut(&id.0) {
            let kind = proxy.types.of(type_url);
            // Nothing is wrong with most, and nothing is kept of that.
            if !refused.is_empty() || kind.trouble.is_some() {
                kind.trouble().refused = refused;
            }
        }
    }

    pub(super) fn named(&mut self, id: StreamId, node: String) {
        if let Some(proxy) = self.streams.get_mut(&id.0) {
            proxy.node = node;
        }
    }

    /// Identity of the proxy while its stream is open.
    pub(super) fn identity(&self, id: StreamId) -> String {
        let proxy = self.streams.get(&id.0);
        proxy
            .map(|proxy| proxy.caller.to_string())
            .unwrap_or_default()
    }

    /// Streams that this word may mean: a number, an identity, a pod, or what a proxy calls itself.
    pub(super) fn called(&self, word: &str) -> Vec<StreamId> {
        let fits = |id: u64, proxy: &Proxy| match &proxy.caller {
            _ if id.to_string() == word || proxy.node == word => true,
            SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _) => {
                let identity = &caller.identity;
                let of_pod = |pod: &String| format!("{}/{pod}", identity.namespace) == word;
                identity.to_string() == word
                    || caller
                        .pod
                        .as_ref()
                        .is_some_and(|pod| of_pod(pod) || pod == word)
                    || proxy.node.starts_with(&format!("{word}~"))
            }
        };
        let found = self.streams.iter().filter(|(id, proxy)| fits(**id, proxy));
        found.map(|(id, _)| StreamId(*id)).collect()
    }

    fn change(
        &mut self,
        id: StreamId,
        type_url: &str,
        change: impl FnOnce(&mut PushedType),
    ) -> Option<&mut Proxy> {
        let proxy = self.streams.get_mut(&id.0)?;
        let kind = proxy.types.of(type_url);
        let was = (kind.travelling_since.is_some(), kind.rejected.is_some());
        change(kind);
        let is = (kind.travelling_since.is_some(), kind.rejected.is_some());
        match (was.1, is.1) {
            (false, true) => {
                self.refusing += usize::from(proxy.refusals == 0);
                proxy.refusals += 1;
            }
            (true, false) => {
                proxy.refusals = proxy.refusals.saturating_sub(1);
                let over = usize::from(proxy.refusals == 0);
                self.refusing = self.refusing.saturating_sub(over);
            }
            _ => {}
        }
        match (was.0, is.0) {
            (false, true) => {
                self.behind += usize::from(proxy.travelling == 0);
                proxy.travelling += 1;
            }
            (true, false) => {
                proxy.travelling = proxy.travelling.saturating_sub(1);
                let settled = usize::from(proxy.travelling == 0);
                self.behind = self.behind.saturating_sub(settled);
            }
            _ => {}
        }
        Some(proxy)
    }

    pub(super) fn sent(&mut self, id: StreamId, type_url: &str, resources: usize) {
        self.change(id, type_url, |kind| {
            kind.pushes += 1;
            kind.resources_sent += resources as u64;
            kind.travelling_since = Some(Instant::now());
        });
    }

    /// Records that the proxy put a version in force. `took` is the time since the sources changed, if a change was part of the
    /// version.
    pub(super) fn acknowledged(
        &mut self,
        id: StreamId,
        type_url: &str,
        version: &Arc<str>,
        took: Option<Duration>,
        rejected: &Rejections,
    ) {
        let proxy = self.change(id, type_url, |kind| {
            kind.acknowledged_version = Some(version.clone());
            kind.acknowledged_at = Some(seconds(SystemTime::now()));
            kind.rejected = rejected.clone();
            kind.travelling_since = None;
        });
        if let Some(proxy) = proxy {
            proxy.version = Some(version.clone());
            if let Some(took) = took {
                proxy.changes += 1;
                proxy.last = Some(took);
                proxy.slowest = proxy.slowest.max(took);
            }
        }
    }

    pub(super) fn refused(
        &mut self,
        id: StreamId,
        type_url: &str,
        reason: String,
        rejected: &Rejections,
    ) {
        self.change(id, type_url, |kind| {
            let trouble = kind.trouble();
            trouble.last_nack = Some(reason);
            trouble.last_nack_at = Some(seconds(SystemTime::now()));
            kind.rejected = rejected.clone();
            kind.travelling_since = None;
        });
    }

    pub(super) fn closed(&mut self, id: StreamId) {
        self.unwell.closed(id.0);
        if let Some(proxy) = self.streams.remove(&id.0) {
            let was = |is: bool| usize::from(is);
            self.behind = self.behind.saturating_sub(was(proxy.is_behind()));
            self.refusing = self.refusing.saturating_sub(was(proxy.refusals > 0));
        }
    }

    pub(super) fn certified(
        &mut self,
        caller: &voile_identity::AuthenticatedCaller,
        subject: &Identity,
        until: SystemTime,
    ) {
        let now = SystemTime::now();
        if self.certified.len() >= MAX_CERTIFIED {
            self.certified
                .retain(|_, all| all.values().any(|until| *until > now));
        }
        let asker = (caller.identity.clone(), caller.pod.clone());
        if self.certified.len() >= MAX_CERTIFIED && !self.certified.contains_key(&asker) {
            return;
        }
        let all = self.certified.entry(asker).or_default();
        all.retain(|_, until| *until > now);
        all.insert(subject.clone(), until);
    }

    fn certificate_until(&self, caller: &SnapshotCaller) -> Option<u64> {
        let (SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _)) = caller;
        let asker = (caller.identity.clone(), caller.pod.clone());
        let issued = self.certified.get(&asker);
        let issued = issued.and_then(|all| all.values().min().copied());
        let shown = (caller.proof == CallerProof::Certificate).then_some(caller.until);
        // A renewal is newer than what opened the stream.
        issued.or(shown).map(seconds)
    }

    pub(super) fn views(&self, mesh: &Mesh) -> Vec<ProxyView<'_>> {
        let all = self.streams.iter();
        all.map(|(id, proxy)| self.view(*id, proxy, mesh)).collect()
    }

    fn view<'a>(&'a self, stream: u64, proxy: &'a Proxy, mesh: &Mesh) -> ProxyView<'a> {
        let kinds = || proxy.types.kinds();
        let lag = kinds().filter_map(|kind| Some(kind.travelling_since?.elapsed()));
        let lag = lag.max().unwrap_or_default().as_millis();
        let milliseconds = |took: Duration| took.as_secs_f64() * 1e3;
        ProxyView {
            stream,
            identity: proxy.caller.to_string(),
            pod: match &proxy.caller {
                SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _) => {
                    caller.pod.as_deref()
                }
            },
            node: &proxy.node,
            connected_at: proxy.connected_at,
            synced: proxy.is_synced(),
            lag_ms: u64::try_from(lag).unwrap_or(u64::MAX),
            version: proxy.version.as_deref(),
            certificate_until: self.certificate_until(&proxy.caller),
            propagation: Propagation {
                changes: proxy.changes,
                last_ms: proxy.last.map(milliseconds),
                slowest_ms: milliseconds(proxy.slowest),
            },
            unwell: self.unwell.of(stream, mesh),
            types: &proxy.types,
        }
    }
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
