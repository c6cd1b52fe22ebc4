//! All resources that proxies may ask for at one moment, by every name they may ask by. The snapshot decides who may see them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tonic::Status;
use voile_identity::Revocations;
use voile_model::mesh::{Visibility, WorkloadGroup};
use voile_model::{Hostname, Identity, Namespace, Ranges, ResourceName};
use voile_proto::discovery::Node;
use voile_proto::proxy::AddressRange;
use voile_proto::type_url;
use voile_xds::server::{Allowance, DEPARTED, Resolution, Resource, Snapshot};
use voile_xds::wire::{Address, CLUSTER, parse_search};

use crate::departed_workloads::DepartedWorkloads;
use crate::effective_policies::{EffectivePolicies, Names as Obeys};
use crate::foreign_proxies::envoy::{EnvoyNode, Envoys};
use crate::foreign_proxies::{self, TranslationCache};
use crate::shards::{ShardWeight, Shards};
use crate::translate::address_counts::AddressCounts;
use crate::translate::names::Names;
use crate::workload_counts::WorkloadCounts;
use crate::ztunnel::{AmbientWorkloads, NodePolicy};

mod allowance;
mod changed_names;
mod exported;
mod name_lookup;
mod recent_lookups;

use recent_lookups::RecentLookups;

/// The key sets that each token policy names.
pub(crate) type KeySets = HashMap<Arc<str>, BTreeSet<Arc<str>>>;

/// Hex digits of a version: 64 bits of the content's hash tell versions of one resource apart.
const VERSION_BYTES: usize = 8;

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

    /// Returns true if a certificate that proved the caller has been revoked since.
    fn is_revoked(&self, caller: &voile_identity::AuthenticatedCaller) -> bool {
        let mut proof = caller.certificates.iter();
        proof.any(|certificate| self.revoked.includes(*certificate))
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

    /// Addresses at an address that the caller may see. Owners of that very address come first, then services with a range
    /// around it, the narrowest first. Services that are not exported to the caller do not exist for it.
    fn at_address(&self, caller: &SnapshotCaller, name: &str) -> Resolution {
        // A node's proxy calls for pods of every namespace.
        let all = self.serves_node(caller);
        let is_seen = |resource: &&Arc<Resource>| all || self.sees(caller, &resource.name);
        let mut seen = self.brought(name);
        seen.retain(|resource| is_seen(&resource));
        let mut ranged = Vec::new();
        if let Some(Ok(address)) = name.strip_prefix('/').map(str::parse) {
            for (_, service) in self.ranges.around(address) {
                let found = self.brought(service);
                if found.first().as_ref().is_some_and(is_seen) {
                    ranged.extend(found.iter().filter(is_seen).cloned());
                }
            }
        }
        let answers = |resource: &Arc<Resource>| resource.aliases.iter().any(|a| **a == *name);
        if ranged.is_empty() && !seen.iter().any(answers) {
            return Resolution::Unknown;
        }
        // The caller is told of the first that this is its answer; whoever has the address alone it knows by that.
        if seen.iter().any(answers) {
            ranged.append(&mut seen);
        }
        Resolution::Found(self.told_of(caller, ranged))
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

    /// The policy or the routes of a service, as the caller's namespace gets them.
    fn of_clients(&self, caller: &SnapshotCaller, type_url: &str, name: &str) -> Resolution {
        if let Some(reason) = self.withheld(caller, name) {
            return Resolution::Refused(reason);
        }
        let told = match type_url {
            type_url::SERVICE_ROUTES => {
                let routed = self.routes.get(name);
                routed.and_then(|routed| routed.for_clients_of(Some(caller.namespace())))
            }
            _ => self.policy_of(caller, name),
        };
        match told {
            Some(told) => Resolution::Found(vec![told.clone()]),
            None => Resolution::Unknown,
        }
    }

    fn address(&self, caller: &SnapshotCaller, name: &str) -> Resolution {
        if name.starts_with('/') {
            return self.at_address(caller, name);
        }
        let found = match parse_search(name) {
            Some((named, host)) => {
                // A caller that serves a node asks for pods of every namespace; any other caller asks for itself.
                let asker = match &named {
                    Some(_) if !self.serves_node(caller) => {
                        return Resolution::Refused(
                            "the caller asks for another namespace, and is not a node proxy"
                                .to_owned(),
                        );
                    }
                    Some(_) => named.as_ref(),
                    None => Some(caller.namespace()),
                };
                self.names.find(asker, host).map(|name| &**name)
            }
            None => Some(name),
        };
        let Some(name) = found else {
            return Resolution::Unknown;
        };
        match self.withheld(caller, name) {
            Some(reason) => Resolution::Refused(reason),
            // The name may be an address on another network, which belongs to services that are not exported.
            None => match self.told_of(caller, self.brought(name)) {
                found if found.is_empty() => Resolution::Unknown,
                found => Resolution::Found(found),
            },
        }
    }

    fn is_node_proxy(&self, caller: &SnapshotCaller) -> bool {
        matches!(caller, SnapshotCaller::Known(caller) if self.staff.includes(caller))
    }

    fn serves_node(&self, caller: &SnapshotCaller) -> bool {
        matches!(caller, SnapshotCaller::Known(caller) if self.staff.serves_node(caller))
    }

    /// Returns true if a node proxy may see a policy. A node's proxy keeps all policies; a pod's proxy keeps those of its
    /// namespace and of the mesh.
    fn concerns(&self, caller: &SnapshotCaller, policy: &NodePolicy) -> bool {
        let SnapshotCaller::Known(caller) = caller else {
            return false;
        };
        let here = || policy.global || policy.namespace == caller.identity.namespace;
        self.staff.serves_node(caller) || (self.staff.includes(caller) && here())
    }

    fn without_tunnels(&self, found: Resolution) -> Resolution {
        let Resolution::Found(mut all) = found else {
            return found;
        };
        for one in &mut all {
            if let Some(plain) = self.plain.get(&one.name) {
                *one = plain.clone();
            }
        }
        Resolution::Found(all)
    }

    /// One of the policies that the caller's workloads obey, or the keys of one. Of others it is told nothing: what a policy
    /// says is for whoever enforces it, and whether there is one is nobody else's business either.
    fn private(
        &self,
        caller: &SnapshotCaller,
        kind: &str,
        name: &str,
        all: &Shards<Arc<Resource>>,
    ) -> Resolution {
        let SnapshotCaller::Known(caller) = caller else {
            return Resolution::Refused(
                "only an authenticated Voile proxy may subscribe to it".to_owned(),
            );
        };
        match all.get(name) {
            Some(found) if self.obeyed.includes(&caller.identity, kind, name) => {
                Resolution::Found(vec![found.clone()])
            }
            Some(_) => {
                Resolution::Refused(format!("it applies to no workload of {}", caller.identity))
            }
            None => Resolution::Unknown,
        }
    }

    fn configuration(&self, caller: &SnapshotCaller, name: &str) -> Resolution {
        let SnapshotCaller::Known(caller) = caller else {
            return Resolution::Refused(
                "only an authenticated Voile proxy may subscribe to it".to_owned(),
            );
        };
        let Some(private) = self.configurations.get(name) else {
            return Resolution::Unknown;
        };
        if caller.identity != private.owner {
            return Resolution::Refused(format!(
                "it belongs to {}, not to {}",
                private.owner, caller.identity
            ));
        }
        match &caller.pod {
            Some(pod) if **pod != *private.pod => Resolution::Refused(format!(
                "the caller's token is bound to pod {pod}, not to {}",
                private.pod
            )),
            _ => Resolution::Found(vec![private.resource.clone()]),
        }
    }
}

impl Snapshot<SnapshotCaller> for MeshSnapshot {
    fn version(&self) -> Arc<str> {
        self.version.clone()
    }

    fn resolve(&self, caller: &SnapshotCaller, type_url: &str, name: &str) -> Resolution {
        match type_url {
            type_url::ADDRESS if self.is_node_proxy(caller) => {
                by_name(self.without_tunnels(self.address(caller, name)), name)
            }
            type_url::ADDRESS => self.address(caller, name),
            type_url::AUTHORIZATION => match self.node_policies.get(name) {
                Some(policy) if self.concerns(caller, policy) => {
                    Resolution::Found(vec![policy.resource.clone()])
                }
                _ => Resolution::Unknown,
            },
            type_url::SERVICE_POLICY | type_url::SERVICE_ROUTES
                if name_lookup::is_question(name) =>
            {
                self.of_meant(caller, type_url, name)
            }
            type_url::SERVICE_POLICY | type_url::SERVICE_ROUTES => {
                self.of_clients(caller, type_url, name)
            }
            type_url::AUTHORIZATION_POLICY => {
                self.private(caller, type_url, name, &self.authorization)
            }
            type_url::REQUEST_AUTHENTICATION => self.private(caller, type_url, name, &self.tokens),
            type_url::KEY_SET => self.private(caller, type_url, name, &self.key_sets),
            type_url::PROXY_CONFIGURATION => self.configuration(caller, name),
            // Lists are public: whom they name, everybody may know.
            type_url::REVOCATION_LISTS if name == type_url::REVOCATIONS => {
                match &self.revocations {
                    Some(lists) => Resolution::Found(vec![lists.clone()]),
                    None => Resolution::Unknown,
                }
            }
            _ => foreign_proxies::resolve(self, caller, type_url, name)
                .unwrap_or(Resolution::Unknown),
        }
    }

    fn everything(&self, caller: &SnapshotCaller, type_url: &str) -> Resolution {
        match type_url {
            type_url::ADDRESS => {
                let all = self.all_addresses.values();
                match self.is_node_proxy(caller) {
                    true => self.without_tunnels(Resolution::Found(all.cloned().collect())),
                    false => {
                        // Nobody need know who stands only behind what is kept from it.
                        let concerns = |one: &&Arc<Resource>| {
                            let kept = |service: &str| self.withheld(caller, service).is_some();
                            !self.stands_behind(&one.name, kept)
                                || self.stands_behind(&one.name, |service| !kept(service))
                        };
                        let all = all.filter(concerns).cloned().collect();
                        Resolution::Found(self.told_of(caller, all))
                    }
                }
            }
            type_url::AUTHORIZATION => {
                let all = self.node_policies.values();
                let all = all.filter(|policy| self.concerns(caller, policy));
                Resolution::Found(all.map(|policy| policy.resource.clone()).collect())
            }
            type_url::SERVICE_POLICY
            | type_url::SERVICE_ROUTES
            | type_url::AUTHORIZATION_POLICY
            | type_url::REQUEST_AUTHENTICATION
            | type_url::KEY_SET
            | type_url::REVOCATION_LISTS
            | type_url::PROXY_CONFIGURATION => {
                Resolution::Refused("resources of this type must be requested by name".to_owned())
            }
            // Others may ask for types we have nothing of (ztunnel: Authorization) and wait for an answer.
            _ => foreign_proxies::envoy::everything(self, caller, type_url)
                .unwrap_or(Resolution::Found(Vec::new())),
        }
    }

    fn is_told_at_once(&self, caller: &SnapshotCaller, type_url: &str) -> bool {
        type_url == type_url::ADDRESS && self.is_node_proxy(caller)
    }

    fn besides(&self, caller: &SnapshotCaller, type_url: &str) -> Option<Vec<Arc<Resource>>> {
        let SnapshotCaller::Known(known) = caller else {
            return None;
        };
        if type_url != type_url::ADDRESS || !self.staff.includes(known) {
            return None;
        }
        let served = self.staff.served_by(known);
        let found = served.filter_map(|uid| self.all_addresses.get(uid).cloned());
        match self.without_tunnels(Resolution::Found(found.collect())) {
            Resolution::Found(all) => Some(all),
            Resolution::Unknown | Resolution::Lacking(_) | Resolution::Refused(_) => None,
        }
    }

    fn rests_on(
        &self,
        caller: &SnapshotCaller,
        type_url: &str,
        name: &str,
    ) -> Vec<(&'static str, Arc<str>)> {
        foreign_proxies::rests_on(self, caller, type_url, name)
    }

    fn serves(&self, type_url: &str) -> bool {
        allowance::SERVED.contains(&type_url)
    }

    fn account(&self, caller: &SnapshotCaller) -> Arc<str> {
        allowance::account(caller)
    }

    fn allowance(&self, caller: &SnapshotCaller) -> Allowance {
        allowance::of(self, caller)
    }

    fn introduce(&self, caller: &mut SnapshotCaller, node: &Node) {
        foreign_proxies::introduce(self, caller, node);
    }

    fn known_as(&self, caller: &SnapshotCaller) -> Vec<Arc<str>> {
        match caller {
            SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _) => {
                let by_certificate = !caller.certificates.is_empty();
                let both = by_certificate.then(|| BY_CERTIFICATE.into());
                both.into_iter()
                    .chain([DepartedWorkloads::called(caller)])
                    .collect()
            }
        }
    }

    fn farewell(&self, caller: &SnapshotCaller) -> Option<Instant> {
        match caller {
            SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _)
                if self.is_revoked(caller) =>
            {
                Some(Instant::now())
            }
            SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _) => {
                self.departed.farewell(caller)
            }
        }
    }

    fn parting(&self, caller: &SnapshotCaller) -> Status {
        match caller {
            SnapshotCaller::Known(caller) | SnapshotCaller::Envoy(caller, _)
                if self.is_revoked(caller) =>
            {
                Status::unauthenticated(REVOKED)
            }
            SnapshotCaller::Known(_) | SnapshotCaller::Envoy(..) => {
                Status::permission_denied(DEPARTED)
            }
        }
    }
}

/// Adds the answer once more under the requested name: a ztunnel that asks on demand waits for that name and ignores aliases.
fn by_name(found: Resolution, name: &str) -> Resolution {
    let Resolution::Found(mut all) = found else {
        return found;
    };
    let is_alias = |one: &&Arc<Resource>| one.aliases.iter().any(|alias| **alias == *name);
    let answer = all.iter().find(is_alias).cloned();
    all.extend(answer.map(|one| {
        Arc::new(Resource {
            name: name.into(),
            aliases: Vec::new(),
            ..Resource::clone(&one)
        })
    }));
    Resolution::Found(all)
}

/// Makes a resource, versioned by what it says.
pub(crate) fn resource(name: Arc<str>, aliases: Vec<Arc<str>>, body: Vec<u8>) -> Resource {
    let mut hash = Sha256::new();
    hash.update(&body);
    for alias in &aliases {
        hash.update([0]);
        hash.update(alias.as_bytes());
    }
    Resource {
        version: hex(&hash.finalize()).into(),
        name,
        aliases,
        body: body.into(),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(VERSION_BYTES)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
