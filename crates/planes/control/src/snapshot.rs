//! All resources that proxies may ask for at one moment, by every name they may ask by. The snapshot decides who may see them.

mod allowance;
mod changed_names;
mod exported;
mod name_lookup;
mod recent_lookups;
mod resolution;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use voile_identity::Revocations;
use voile_model::mesh::AddressRange;
use voile_model::mesh::{Visibility, WorkloadGroup};
use voile_model::{Hostname, Identity, Namespace, Ranges, ResourceName};
use voile_proto::type_url;
use voile_xds::server::Resource;
use voile_xds::wire::{Address, CLUSTER};

use crate::departed_workloads::DepartedWorkloads;
use crate::effective_policies::{EffectivePolicies, Names as Obeys};
use crate::foreign_proxies::TranslationCache;
use crate::foreign_proxies::envoy::{EnvoyNode, Envoys};
use crate::resources::hex;
use crate::shards::{ShardWeight, Shards};
use crate::translate::address_counts::AddressCounts;
use crate::translate::names::Names;
use crate::workload_counts::WorkloadCounts;
use crate::ztunnel::{AmbientWorkloads, NodePolicy};
use recent_lookups::RecentLookups;

/// The key sets that each token policy names.
pub(crate) type KeySets = HashMap<Arc<str>, BTreeSet<Arc<str>>>;

/// Reason given to a caller whose certificate was revoked.
const REVOKED: &str =
    "the certificate that opened this stream was revoked: reconnect with another credential";

/// Common name of all callers with a proof that can be revoked.
const BY_CERTIFICATE: &str = "by certificate";

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotCaller {
    /// Somebody who proved who it is.
    Known(voile_identity::AuthenticatedCaller),
    /// A stock Envoy that did, and what it says of itself.
    Envoy(voile_identity::AuthenticatedCaller, Arc<EnvoyNode>),
}

impl SnapshotCaller {
    pub(crate) fn namespace(&self) -> &Namespace {
        match self {
            Self::Known(caller) | Self::Envoy(caller, _) => &caller.identity.namespace,
        }
    }
}

impl fmt::Display for SnapshotCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(caller) | Self::Envoy(caller, _) => write!(f, "{}", caller.identity),
        }
    }
}

/// A sidecar's configuration and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnedConfiguration {
    pub(crate) owner: Identity,
    pub(crate) pod: Arc<str>,
    /// It joined by itself, and may do so again.
    pub(crate) joined: bool,
    /// The policies that it names.
    pub(crate) obeys: Arc<Obeys>,
    pub(crate) resource: Arc<Resource>,
    /// Parts that cannot be put into force.
    pub(crate) problems: Arc<[String]>,
}

/// A resource of a service that differs between client namespaces: its routes, or its policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ByNamespace {
    /// As clients are told whom nobody names; `None`: nothing is for them.
    pub(crate) general: Option<Arc<Resource>>,
    /// As clients of these namespaces are told.
    pub(crate) apart: BTreeMap<Namespace, Option<Arc<Resource>>>,
}

impl ByNamespace {
    /// Shares with `old` what says the same.
    pub(crate) fn share(&mut self, old: &Self) {
        let known = || old.apart.values().chain([&old.general]).flatten();
        let mine = self.apart.values_mut().chain([&mut self.general]).flatten();
        for one in mine {
            if let Some(same) = known().find(|known| *known == one) {
                *one = Arc::clone(same);
            }
        }
    }

    /// The resource for clients in a namespace.
    pub(crate) fn for_clients_of(&self, namespace: Option<&Namespace>) -> Option<&Arc<Resource>> {
        let apart = namespace.and_then(|namespace| self.apart.get(namespace));
        apart.unwrap_or(&self.general).as_ref()
    }
}

impl ShardWeight for ByNamespace {
    fn weigh(&self, hash: &mut Sha256) -> bool {
        let told = |one: &Option<Arc<Resource>>| match one {
            Some(one) => one.version.to_string(),
            None => "-".to_owned(),
        };
        hash.update(told(&self.general));
        for (namespace, one) in &self.apart {
            hash.update(format!(" {namespace} {}", told(one)));
        }
        true
    }
}

impl ShardWeight for Arc<Resource> {
    fn weigh(&self, hash: &mut Sha256) -> bool {
        hash.update(&*self.version);
        true
    }
}

impl ShardWeight for OwnedConfiguration {
    fn weigh(&self, hash: &mut Sha256) -> bool {
        hash.update(format!(
            "{} {} {}",
            self.resource.version, self.owner, self.pod
        ));
        true
    }
}

impl ShardWeight for NodePolicy {
    fn weigh(&self, hash: &mut Sha256) -> bool {
        self.resource.weigh(hash)
    }
}

impl ShardWeight for Visibility {
    fn weigh(&self, hash: &mut Sha256) -> bool {
        hash.update(format!("{self:?}"));
        true
    }
}

/// Names that follow from what is elsewhere.
pub(crate) type Index = Shards<Arc<[Arc<str>]>>;

impl ShardWeight for Arc<[Arc<str>]> {
    fn weigh(&self, _: &mut Sha256) -> bool {
        false
    }
}

/// All there is at one moment. Cheap to clone: what two snapshots have in common they share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeshSnapshot {
    pub(crate) version: Arc<str>,
    /// Each Address once, by name.
    pub(crate) all_addresses: Shards<Arc<Resource>>,
    /// By every name and alias of an Address: the names of those that have it, workloads first.
    pub(crate) owners: Index,
    /// Workloads that are sent along with a service, by the service's name.
    pub(crate) behind: Index,
    /// And the services that bring a workload along.
    pub(crate) before: Index,
    /// Services that have ranges of addresses, by name.
    pub(crate) ranges: Arc<Ranges<Arc<str>>>,
    /// Address ranges of the mesh's workloads and virtual addresses, as every sidecar gets them.
    pub(crate) mesh_ranges: Arc<[AddressRange]>,
    /// Counted addresses that `mesh_ranges` follows from.
    pub(crate) places: Arc<AddressCounts>,
    pub(crate) policies: Shards<Arc<Resource>>,
    /// Of services that clients of some namespaces call otherwise: what `policies` has, and what these are told.
    pub(crate) policies_apart: Shards<ByNamespace>,
    /// By the name of the service that is called.
    pub(crate) routes: Shards<ByNamespace>,
    pub(crate) authorization: Shards<Arc<Resource>>,
    pub(crate) tokens: Shards<Arc<Resource>>,
    /// Public keys of token issuers, by a hash of what they say.
    pub(crate) key_sets: Shards<Arc<Resource>>,
    /// The key sets that each of `tokens` names.
    pub(crate) keys_of: Arc<KeySets>,
    /// Parts of `tokens` that cannot be put into force.
    pub(crate) token_problems: Arc<[String]>,
    pub(crate) configurations: Shards<OwnedConfiguration>,
    /// WorkloadGroups that workloads may join by.
    pub(crate) groups: Arc<BTreeMap<ResourceName, Arc<WorkloadGroup>>>,
    /// Identities of the WorkloadGroups.
    pub(crate) invited: Arc<BTreeSet<Identity>>,
    /// Identities that obey each policy.
    pub(crate) obeyed: Arc<EffectivePolicies>,
    /// Certificates that are taken back, where there are lists of them.
    pub(crate) revocations: Option<Arc<Resource>>,
    /// The same, as they are asked here.
    pub(crate) revoked: Arc<Revocations>,
    pub(crate) names: Arc<Names>,
    /// Services that not everybody sees.
    pub(crate) kept_close: Shards<Visibility>,
    /// Hosts that the mesh's own configuration sends every proxy to (collectors, authorizers), whoever sees them.
    pub(crate) providers: Arc<BTreeSet<Hostname>>,
    pub(crate) departed: Arc<DepartedWorkloads>,
    /// True if any workload is behind a node proxy (ztunnel).
    pub(crate) ambient: bool,
    /// True if anything may be behind a waypoint, or on another network.
    pub(crate) together: bool,
    /// Addresses for node proxies, in place of those with a tunnel that node proxies cannot speak.
    pub(crate) plain: Shards<Arc<Resource>>,
    /// Policies as node proxies keep them.
    pub(crate) node_policies: Shards<NodePolicy>,
    /// Callers that are node proxies.
    pub(crate) staff: Arc<AmbientWorkloads>,
    /// Number of workloads of each identity.
    pub(crate) workload_counts: Arc<WorkloadCounts>,
    /// Cache of the last answers by name.
    pub(crate) recent: RecentLookups,
    /// Cache of the resources made for programs that are not ours.
    pub(crate) made: TranslationCache,
    /// Envoys, and what they were told.
    pub(crate) envoys: Envoys,
}

impl MeshSnapshot {
    /// Number of resources, by type.
    pub fn counts(&self) -> [(&'static str, usize); 9] {
        [
            (type_url::ADDRESS, self.all_addresses.len()),
            (type_url::SERVICE_POLICY, self.policies.len()),
            (type_url::SERVICE_ROUTES, self.routes.len()),
            (type_url::AUTHORIZATION_POLICY, self.authorization.len()),
            (type_url::AUTHORIZATION, self.node_policies.len()),
            (type_url::REQUEST_AUTHENTICATION, self.tokens.len()),
            (type_url::KEY_SET, self.key_sets.len()),
            (type_url::PROXY_CONFIGURATION, self.configurations.len()),
            (
                type_url::REVOCATION_LISTS,
                usize::from(self.revocations.is_some()),
            ),
        ]
    }

    /// Every workload as proxies are told of it, for people.
    pub(crate) fn workloads(&self) -> impl Iterator<Item = Value> {
        let all = self.all_addresses.iter();
        let all = all.filter(|(name, _)| name.starts_with(CLUSTER));
        all.filter_map(|(uid, made)| {
            let Ok(Address::Workload(workload)) = Address::decode(&made.body) else {
                return None;
            };
            Some(json!({
                "uid": &**uid,
                "name": &*workload.name,
                "namespace": workload.namespace.as_str(),
                "healthy": workload.healthy,
            }))
        })
    }

    /// The version of the whole: changes when, and only when, a resource does.
    pub(crate) fn seal(&mut self) {
        self.recent = RecentLookups::default();
        let mut hash = Sha256::new();
        for sum in [
            self.all_addresses.sum(),
            self.policies.sum(),
            self.policies_apart.sum(),
            self.routes.sum(),
            self.authorization.sum(),
            self.tokens.sum(),
            self.key_sets.sum(),
            self.configurations.sum(),
            self.kept_close.sum(),
            self.node_policies.sum(),
        ] {
            hash.update(sum.to_be_bytes());
        }
        if let Some(lists) = &self.revocations {
            hash.update(&*lists.version);
        }
        self.version = hex(&hash.finalize()).into();
    }

    /// Puts the certificates that are taken back in the place of those before.
    pub(crate) fn revoke(&mut self, lists: Option<&Arc<Resource>>, revoked: &Arc<Revocations>) {
        self.revocations = lists.cloned();
        self.revoked = Arc::clone(revoked);
        self.seal();
    }

    /// A workload that left keeps the policies that it obeyed before.
    pub(crate) fn keep_obeyed(&mut self, before: &Self) {
        if Arc::ptr_eq(&self.obeyed, &before.obeyed) {
            return;
        }
        let departed = &self.departed;
        let obeyed = Arc::make_mut(&mut self.obeyed);
        obeyed.keep(&before.obeyed, |identity| departed.includes(identity));
        if *obeyed == *before.obeyed {
            self.obeyed = before.obeyed.clone();
        }
    }

    /// Returns true if there is a service, or a workload with a sidecar, of this name.
    pub(crate) fn speaks_of(&self, name: &str) -> bool {
        self.all_addresses.get(name).is_some() || self.configurations.get(name).is_some()
    }

    /// Puts an Address in, under all its names.
    pub(crate) fn put_address(&mut self, made: Arc<Resource>) {
        let old = self.all_addresses.get(&made.name);
        if old.is_some_and(|old| Arc::ptr_eq(old, &made)) {
            return;
        }
        if let Some(old) = self.all_addresses.insert(made.name.clone(), made.clone()) {
            if old.aliases == made.aliases {
                return;
            }
            self.disown(&old);
        }
        for name in made.aliases.iter().chain([&made.name]) {
            let known = self.owners.get(name).into_iter().flat_map(|all| all.iter());
            let mut owners: Vec<Arc<str>> = known.cloned().collect();
            owners.push(made.name.clone());
            // A service's name begins with a namespace, which has no capitals.
            owners.sort_by_cached_key(|owner| (!owner.starts_with(CLUSTER), owner.clone()));
            owners.dedup();
            self.owners.insert(name.clone(), owners.into());
        }
    }

    /// Takes an Address out.
    pub(crate) fn remove_address(&mut self, name: &str) {
        if let Some(old) = self.all_addresses.remove(name) {
            self.disown(&old);
        }
    }

    fn disown(&mut self, old: &Resource) {
        for name in old.aliases.iter().chain([&old.name]) {
            let known = self.owners.get(name).into_iter().flat_map(|all| all.iter());
            let left: Arc<[Arc<str>]> =
                known.filter(|owner| **owner != old.name).cloned().collect();
            match left.is_empty() {
                true => drop(self.owners.remove(name)),
                false => drop(self.owners.insert(name.clone(), left)),
            }
        }
    }

    /// Addresses for a name or alias: the owners of the name, each service with its workloads.
    fn brought(&self, name: &str) -> Vec<Arc<Resource>> {
        self.recent.or_else(name, || self.found(name))
    }

    fn found(&self, name: &str) -> Vec<Arc<Resource>> {
        let mut found = Vec::new();
        for owner in self.owners.get(name).into_iter().flat_map(|all| all.iter()) {
            found.extend(self.all_addresses.get(owner).cloned());
            let behind = self
                .behind
                .get(owner)
                .into_iter()
                .flat_map(|all| all.iter());
            found.extend(behind.filter_map(|uid| self.all_addresses.get(uid).cloned()));
        }
        found
    }

    /// Returns true if both snapshots have the same identities and pods.
    pub(crate) fn has_same_callers(&self, other: &Self) -> bool {
        let same = |one: &OwnedConfiguration, other: &OwnedConfiguration| {
            one.owner == other.owner && one.pod == other.pod
        };
        let (ours, others) = (&self.configurations, &other.configurations);
        ours.differences(others, same).is_empty() && self.invited == other.invited
    }

    /// Problems that keep parts of the mesh out of force, sorted.
    pub(crate) fn problems(&self) -> Vec<String> {
        let all = self.configurations.values();
        let mut all: Vec<String> = all.flat_map(|one| one.problems.iter().cloned()).collect();
        all.extend(self.token_problems.iter().cloned());
        let of_nodes = self.node_policies.values();
        all.extend(of_nodes.flat_map(|one| one.problems.iter().cloned()));
        all.sort_unstable();
        all
    }

    /// The routes (`voile.proxy.v1.Routes`) of requests to a service (`namespace/hostname`), as clients in a namespace are told.
    #[must_use]
    pub fn routes_told(&self, service: &str, namespace: &Namespace) -> Option<&[u8]> {
        let routed = self.routes.get(service)?;
        let resource = routed.for_clients_of(Some(namespace))?;
        Some(&resource.body)
    }

    /// The policy by which the caller calls a service or a workload.
    pub(crate) fn policy_of(&self, caller: &SnapshotCaller, name: &str) -> Option<&Arc<Resource>> {
        match self.policies_apart.get(name) {
            Some(apart) => apart.for_clients_of(Some(caller.namespace())),
            None => self.policies.get(name),
        }
    }
}
