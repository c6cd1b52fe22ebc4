//! Stock Envoys in the places of sidecars: an Envoy gets the resources that `voile_envoy` makes of the mesh for its workload.
//! One translation answers all types of one snapshot, so that an Envoy's resources fit together. An unchanged resource is the
//! same resource, and is not sent again. Resources of several Envoys are made once (`shared`).

mod shared;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use prost_types::value::Kind;
use voile_envoy::{
    CERTIFICATES, GATEWAY_NODE, IDENTITY, INTERCEPTION_MODE, InterceptMode, ROOT, SIDECAR_NODE,
    Translator,
};
use voile_model::check::MeshPatch;
use voile_model::mesh::{KeySource, Mesh, RequestAuthentication, TokenRule};
use voile_model::{Identity, Namespace, WorkloadKey};
use voile_proto::discovery::Node;
use voile_proto::type_url;
use voile_xds::server::{Resolution, Resource};

use self::shared::{ResourceSetPart, SharedResources};
use crate::keys::{Origin, Texts, key_set};
use crate::snapshot::{MeshSnapshot, SnapshotCaller};

/// Envoy's name for itself in a node.
const AGENT: &str = "envoy";
/// Longest name of a workload, in bytes: Kubernetes takes no longer ones.
pub(super) const MAX_WORKLOAD: usize = 253;
/// Longest path of a folder that an Envoy may name, in bytes: Linux takes no longer ones.
const MAX_FOLDER: usize = 4096;
/// The types that an Envoy asks for.
pub(crate) const TYPES: [&str; 5] = [
    type_url::CLUSTER,
    type_url::ENDPOINTS,
    type_url::LISTENER,
    type_url::ROUTES,
    type_url::SECRET,
];

/// Claims of an Envoy about itself. They grant nothing beyond its proven identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvoyNode {
    /// True if the Envoy claims to be a gateway.
    gateway: bool,
    /// Namespace and name of the workload that it stands for.
    workload: Option<(String, String)>,
    address: Option<IpAddr>,
    capture: InterceptMode,
    /// The folder with its certificates.
    certificates: Option<String>,
}

impl EnvoyNode {
    /// Reads the node of an Envoy that is a sidecar or a gateway; `None` for other nodes.
    pub(super) fn of(node: &Node) -> Option<Self> {
        let mut parts = node.id.split('~');
        let kind = parts.next()?;
        if node.user_agent_name != AGENT || ![SIDECAR_NODE, GATEWAY_NODE].contains(&kind) {
            return None;
        }
        let address = parts.next().and_then(|address| address.parse().ok());
        let name = parts.next().and_then(|name| name.rsplit_once('.'));
        let name = name.filter(|(pod, namespace)| pod.len().max(namespace.len()) <= MAX_WORKLOAD);
        let said = |key: &str| {
            let value = node.metadata.as_ref()?.fields.get(key)?;
            match value.kind.as_ref()? {
                Kind::StringValue(text) => Some(text.clone()),
                _ => None,
            }
        };
        Some(Self {
            gateway: kind == GATEWAY_NODE,
            workload: name.map(|(pod, namespace)| (namespace.to_owned(), pod.to_owned())),
            address,
            capture: match said(INTERCEPTION_MODE).as_deref() {
                Some("NONE") => InterceptMode::None,
                _ => InterceptMode::Redirect,
            },
            certificates: said(CERTIFICATES).filter(|folder| folder.len() <= MAX_FOLDER),
        })
    }
}

/// All that one Envoy is told.
struct EnvoyResources {
    /// The snapshot's.
    version: Arc<str>,
    seat: Arc<EnvoyNode>,
    /// Proven identity of the Envoy.
    owner: Identity,
    /// Resources of its workload alone.
    own: ResourceSetPart,
    /// Resources that all Envoys share which call from the same scope.
    calls: Arc<ResourceSetPart>,
}

impl EnvoyResources {
    /// Parts of the mesh that could not be translated.
    fn limits(&self) -> impl Iterator<Item = &String> {
        self.own.limits.iter().chain(&self.calls.limits)
    }

    fn get(&self, kind: &str, name: &str) -> Option<&Arc<Resource>> {
        let own = self.own.get(kind, name);
        own.or_else(|| self.calls.get(kind, name))
    }

    fn all(&self, kind: &str) -> Vec<Arc<Resource>> {
        let others = self.calls.of(kind);
        let others = others.filter(|(name, _)| self.own.get(kind, name).is_none());
        let all = self.own.of(kind).chain(others);
        all.map(|(_, resource)| resource.clone()).collect()
    }
}

/// So many are remembered, whoever they are; beyond that those who are gone are forgotten as often as the number doubles.
const FEW: usize = 256;

/// Resources of each workload's Envoy; or the reason of a refusal.
#[derive(Default)]
struct EnvoyConfigurations {
    told: HashMap<WorkloadKey, Result<Arc<EnvoyResources>, String>>,
    /// Number of entries above which departed workloads are searched and forgotten.
    enough: usize,
}

impl EnvoyConfigurations {
    /// Workloads come and go, and who has an identity may name any; gives what was told before.
    fn tell(
        &mut self,
        key: &WorkloadKey,
        told: Result<Arc<EnvoyResources>, String>,
        is_there: impl Fn(&WorkloadKey, &Result<Arc<EnvoyResources>, String>) -> bool,
    ) -> Option<Result<Arc<EnvoyResources>, String>> {
        let before = self.told.insert(key.clone(), told);
        if self.told.len() > self.enough.max(FEW) {
            self.told
                .retain(|one, told| one == key || is_there(one, told));
            self.enough = 2 * self.told.len();
        }
        before
    }
}

/// Inputs of the translations.
#[derive(Default)]
struct TranslationInputs {
    /// Held once an Envoy has asked: then an edit copies the mesh, which without Envoys it need not.
    held: Option<Arc<Mesh>>,
    mesh: Weak<Mesh>,
    keys: Texts,
    /// Lists of certificates that were taken back, in PEM.
    revoked: Option<String>,
}

#[derive(Default)]
struct EnvoyInner {
    used: AtomicBool,
    /// Taken before the ground: what is in it was made of that.
    shared: Mutex<SharedResources>,
    ground: Mutex<TranslationInputs>,
    told: Mutex<EnvoyConfigurations>,
}

/// The Envoys of one control plane; every snapshot has the same.
#[derive(Clone, Default)]
pub(crate) struct Envoys(Arc<EnvoyInner>);

impl fmt::Debug for Envoys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envoys").finish_non_exhaustive()
    }
}

/// They say nothing that the rest of a snapshot does not.
impl PartialEq for Envoys {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Envoys {}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Envoys {
    /// Returns true if an Envoy has ever connected.
    pub(crate) fn are_there(&self) -> bool {
        self.0.used.load(Ordering::Relaxed)
    }

    /// There is one.
    pub(super) fn came(&self) {
        self.0.used.store(true, Ordering::Relaxed);
    }

    /// The mesh that the next snapshot is made of, what of it changed if that is known, and what belongs to it.
    pub(crate) fn stand_on(
        &self,
        mesh: Option<&Arc<Mesh>>,
        changes: Option<&MeshPatch>,
        keys: &Texts,
        revoked: Option<&[u8]>,
    ) {
        let mut shared = locked(&self.0.shared);
        shared.follow(mesh.map(AsRef::as_ref).zip(changes));
        let mut ground = locked(&self.0.ground);
        ground.mesh = mesh.map(Arc::downgrade).unwrap_or_default();
        ground.held = mesh.filter(|_| self.are_there()).cloned();
        ground.keys.clone_from(keys);
        ground.revoked = revoked.map(|pem| String::from_utf8_lossy(pem).into_owned());
    }

    /// Parts of the mesh that could not be translated, by workload.
    pub(crate) fn limits(&self) -> BTreeMap<String, Vec<String>> {
        let everybody = locked(&self.0.told);
        let limits = everybody.told.iter().map(|(workload, told)| {
            let limits = match told {
                Ok(told) => told.limits().cloned().collect(),
                Err(reason) => vec![format!("refused: {reason}")],
            };
            (workload.to_string(), limits)
        });
        limits.filter(|(_, limits)| !limits.is_empty()).collect()
    }

    fn told(
        &self,
        snapshot: &MeshSnapshot,
        known: &voile_identity::AuthenticatedCaller,
        seat: &Arc<EnvoyNode>,
    ) -> Result<Arc<EnvoyResources>, String> {
        let key = who(known, seat)?;
        let name = key.to_string();
        let before = locked(&self.0.told).told.get(&key).cloned();
        let before = before.and_then(Result::ok);
        if let Some(told) = &before
            && told.version == snapshot.version
            && told.seat == *seat
        {
            return Ok(told.clone());
        }
        let told = self.translated(snapshot, (&key, known, seat), before.as_deref());
        let told = match (told, before) {
            (Err(WithheldReason::NotNow), Some(before)) => return Ok(before),
            (Err(WithheldReason::Gone), Some(before))
                if snapshot.departed.includes(&known.identity) =>
            {
                return Ok(before);
            }
            (told, _) => told.map(Arc::new).map_err(|reason| reason.say(&name)),
        };
        let mesh = locked(&self.0.ground).mesh.upgrade();
        let is_there = |key: &WorkloadKey, told: &Result<Arc<EnvoyResources>, String>| {
            let is_known = mesh
                .as_ref()
                .is_some_and(|mesh| mesh.workloads.contains_key(key));
            // A workload that left keeps its resources until its streams end.
            is_known
                || told
                    .as_ref()
                    .is_ok_and(|told| snapshot.departed.includes(&told.owner))
        };
        let before = locked(&self.0.told).tell(&key, told.clone(), is_there);
        say(&name, before, &told);
        told
    }

    fn translated(
        &self,
        snapshot: &MeshSnapshot,
        (key, known, seat): (
            &WorkloadKey,
            &voile_identity::AuthenticatedCaller,
            &Arc<EnvoyNode>,
        ),
        before: Option<&EnvoyResources>,
    ) -> Result<EnvoyResources, WithheldReason> {
        // Other Envoys wait for this lock, and then find the shared resources made.
        let mut shared = locked(&self.0.shared);
        let (mesh, keys, revoked) = {
            let mut ground = locked(&self.0.ground);
            let mesh = ground.mesh.upgrade().ok_or(WithheldReason::NotNow)?;
            ground.held = Some(mesh.clone());
            (mesh, ground.keys.clone(), ground.revoked.clone())
        };
        let workload = mesh.workloads.get(key).filter(|one| one.has_sidecar);
        let workload = workload.ok_or(WithheldReason::Gone)?;
        let owner = workload.identity(&mesh.config.trust_domain);
        if owner != known.identity {
            return Err(WithheldReason::Refused(format!(
                "it belongs to {owner}, not to {}",
                known.identity
            )));
        }
        if let Some(address) = seat.address
            && !workload.addresses.contains(&address)
        {
            return Err(WithheldReason::Refused(format!(
                "{address} is not its address"
            )));
        }
        if workload.gateway != seat.gateway {
            let (is, says) = match seat.gateway {
                true => ("a sidecar", GATEWAY_NODE),
                false => ("a gateway", SIDECAR_NODE),
            };
            return Err(WithheldReason::Refused(format!(
                "the workload is {is}, but node.id begins with `{says}`"
            )));
        }
        let translator = Translator::new(&mesh);
        let mut made = translator.own(workload, seat.capture, &EnvoyKeySets(keys));
        let calls = match workload.gateway {
            true => shared.called(&translator, &std::mem::take(&mut made.callees)),
            false => shared.calls(&translator, translator.scope(workload, seat.capture)),
        };
        drop(shared);
        let mut secrets = secrets(seat, revoked.as_deref());
        // Keys of a gateway's own Secrets: who asks proved to be it.
        secrets.append(&mut made.secrets);
        let own = ResourceSetPart::new(made, secrets, before.map(|before| &before.own));
        Ok(EnvoyResources {
            version: snapshot.version.clone(),
            seat: seat.clone(),
            owner,
            own,
            calls,
        })
    }
}

/// Which workload the caller is, as far as it proved it.
fn who(
    known: &voile_identity::AuthenticatedCaller,
    seat: &EnvoyNode,
) -> Result<WorkloadKey, String> {
    let unsaid =
        "node.id does not name the workload: expected sidecar~ADDRESS~NAME.NAMESPACE~DOMAIN";
    let (namespace, name) = seat.workload.as_ref().ok_or(unsaid)?;
    let namespace = Namespace::new(namespace).ok_or(unsaid)?;
    if name.len() > MAX_WORKLOAD {
        return Err(unsaid.to_owned());
    }
    if namespace != known.identity.namespace {
        return Err(format!(
            "workload {namespace}/{name} is in another namespace than {}",
            known.identity
        ));
    }
    match &known.pod {
        Some(pod) if pod != name => Err(format!(
            "the caller's token is bound to pod {pod}, not to {name}"
        )),
        _ => Ok(WorkloadKey::new(namespace, name.as_str())),
    }
}

/// Why nothing is told.
enum WithheldReason {
    /// The mesh is being changed just now; whoever asks is told when it is.
    NotNow,
    /// There is no such workload with a sidecar.
    Gone,
    Refused(String),
}

impl WithheldReason {
    fn say(self, name: &str) -> String {
        match self {
            Self::NotNow => "the configuration is still being loaded; try again".to_owned(),
            Self::Gone => format!("there is no workload {name} with a sidecar"),
            Self::Refused(why) => format!("workload {name}: {why}"),
        }
    }
}

/// Logs new limits of the translation.
fn say(
    name: &str,
    before: Option<Result<Arc<EnvoyResources>, String>>,
    told: &Result<Arc<EnvoyResources>, String>,
) {
    match (before, told) {
        (Some(Err(before)), Err(reason)) if before == *reason => {}
        (_, Err(reason)) => {
            tracing::warn!(workload = name, "no configuration for an Envoy: {reason}");
        }
        (before, Ok(told)) => {
            let before = before.and_then(Result::ok);
            let known = |limit: &String| {
                let mut said = before.iter().flat_map(|one| one.limits());
                said.any(|said| said == limit)
            };
            for limit in told.limits().filter(|limit| !known(limit)) {
                tracing::error!(workload = name, "not supported by stock Envoy: {limit}");
            }
        }
    }
}

/// Keys of token issuers, as our own proxies get them.
struct EnvoyKeySets(Texts);

impl voile_envoy::Keys for EnvoyKeySets {
    fn of(&self, _: &RequestAuthentication, rule: &TokenRule) -> Option<Arc<str>> {
        match (&rule.keys, Origin::of(rule)) {
            (KeySource::Inline(text), _) => key_set(text).ok(),
            (_, Some(origin)) => self.0.get(&origin).cloned(),
            (_, None) => None,
        }
    }
}

/// SDS secrets of an Envoy: paths of its certificate and of the mesh's roots.
fn secrets(seat: &EnvoyNode, revoked: Option<&str>) -> BTreeMap<String, serde_json::Value> {
    let mut secrets = BTreeMap::new();
    if let Some(folder) = &seat.certificates {
        secrets.insert(IDENTITY.to_owned(), voile_envoy::identity_secret(folder));
        secrets.insert(ROOT.to_owned(), voile_envoy::root_secret(folder, revoked));
    }
    secrets
}

/// Answers an Envoy's request for a resource by name.
pub(super) fn resolve(
    snapshot: &MeshSnapshot,
    known: &voile_identity::AuthenticatedCaller,
    seat: &Arc<EnvoyNode>,
    type_url: &str,
    name: &str,
) -> Resolution {
    let told = match snapshot.envoys.told(snapshot, known, seat) {
        Ok(told) => told,
        Err(reason) => return Resolution::Refused(reason),
    };
    match told.get(type_url, name) {
        Some(resource) => Resolution::Found(vec![resource.clone()]),
        None if type_url == type_url::SECRET && seat.certificates.is_none() => Resolution::Refused(
            format!("node.metadata has no {CERTIFICATES}, the folder of its certificates"),
        ),
        None => Resolution::Unknown,
    }
}

/// All of a type, if the caller is an Envoy and the type one of its own.
pub(crate) fn everything(
    snapshot: &MeshSnapshot,
    caller: &SnapshotCaller,
    type_url: &str,
) -> Option<Resolution> {
    let SnapshotCaller::Envoy(known, seat) = caller else {
        return None;
    };
    if !TYPES.contains(&type_url) {
        return None;
    }
    Some(match snapshot.envoys.told(snapshot, known, seat) {
        Ok(told) => Resolution::Found(told.all(type_url)),
        Err(reason) => Resolution::Refused(reason),
    })
}
