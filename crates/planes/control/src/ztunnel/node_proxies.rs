//! Node proxies, by the mesh's declarations and never by a caller's claim. A node proxy may have certificates for the
//! ambient workloads of its own node, and for no others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use voile_identity::{AuthenticatedCaller, CallerProof};
use voile_model::mesh::Mesh;
use voile_model::{Identity, Namespace, WorkloadKey};

/// A service account whose pods are node proxies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeAccount {
    namespace: Namespace,
    name: Arc<str>,
}

impl FromStr for NodeAccount {
    type Err = String;

    /// `NAMESPACE/SERVICE-ACCOUNT`.
    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (namespace, name) = text.split_once('/')?;
            let good = voile_model::names::is_dns_subdomain(name);
            Some(Self {
                namespace: Namespace::new(namespace)?,
                name: good.then(|| name.into())?,
            })
        };
        read().ok_or_else(|| {
            format!("`{text}`: expected NAMESPACE/SERVICE-ACCOUNT, as in `istio-system/ztunnel`")
        })
    }
}

impl fmt::Display for NodeAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An ambient workload, as far as it matters who serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AmbientWorkload {
    uid: Arc<str>,
    identity: Identity,
    node: Arc<str>,
}

/// Ambient workloads and their nodes. Empty as long as no workload is ambient.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AmbientWorkloads {
    accounts: Arc<BTreeSet<NodeAccount>>,
    /// Ambient workloads.
    ambient: BTreeMap<WorkloadKey, AmbientWorkload>,
    /// Identities that ambient workloads have and workloads with sidecars have not.
    identities: BTreeSet<Identity>,
    /// The nodes on which an identity has ambient workloads.
    nodes: BTreeMap<Identity, BTreeSet<Arc<str>>>,
    /// Nodes with ambient workloads.
    node_count: usize,
    /// Pods of node proxies, and where they run.
    proxies: BTreeMap<WorkloadKey, Arc<str>>,
}

impl AmbientWorkloads {
    pub(crate) fn of(mesh: &Mesh, accounts: &Arc<BTreeSet<NodeAccount>>) -> Self {
        let mut staff = Self {
            accounts: Arc::clone(accounts),
            ..Self::default()
        };
        let mut with_sidecar = BTreeSet::new();
        for workload in mesh.workloads.values() {
            let identity = workload.identity(&mesh.config.trust_domain);
            if workload.has_sidecar {
                with_sidecar.insert(identity);
                continue;
            }
            if staff.is_account(&identity) && !workload.node.is_empty() {
                let (key, node) = (workload.key.clone(), workload.node.clone());
                staff.proxies.insert(key, node);
            }
            // A pod that asks for it is served soon, and its node's proxy needs the certificate first.
            if !(workload.ambient || workload.asks_for_ambient) {
                continue;
            }
            let served = AmbientWorkload {
                uid: workload.uid.clone(),
                identity: identity.clone(),
                node: workload.node.clone(),
            };
            staff.ambient.insert(workload.key.clone(), served);
            staff.identities.insert(identity.clone());
            if !workload.node.is_empty() {
                let nodes = staff.nodes.entry(identity).or_default();
                nodes.insert(workload.node.clone());
            }
        }
        if staff.ambient.is_empty() {
            return Self::default();
        }
        let nodes: BTreeSet<&Arc<str>> = staff.nodes.values().flatten().collect();
        staff.node_count = nodes.len();
        staff
            .identities
            .retain(|identity| !with_sidecar.contains(identity));
        staff
    }

    /// Returns true if there is no ambient workload.
    pub(crate) fn is_empty(&self) -> bool {
        self.ambient.is_empty()
    }

    /// Number of nodes with ambient workloads.
    pub(crate) fn node_count(&self) -> usize {
        self.node_count
    }

    fn is_account(&self, identity: &Identity) -> bool {
        let account = |one: &NodeAccount| {
            one.namespace == identity.namespace && one.name == identity.service_account
        };
        self.accounts.iter().any(account)
    }

    /// Returns true if this caller serves a whole node.
    pub(crate) fn serves_node(&self, caller: &AuthenticatedCaller) -> bool {
        !self.is_empty() && self.is_account(&caller.identity)
    }

    /// Returns true if this caller is a node proxy, of a node or of one pod. If pods with and without a sidecar share an
    /// account, only the pod that a token is bound to decides.
    pub(crate) fn includes(&self, caller: &AuthenticatedCaller) -> bool {
        match &caller.pod {
            _ if self.serves_node(caller) => true,
            Some(pod) => {
                let namespace = caller.identity.namespace.clone();
                let key = WorkloadKey::new(namespace, pod.as_str());
                self.ambient.contains_key(&key)
            }
            None => self.identities.contains(&caller.identity),
        }
    }

    /// The workloads that a node proxy serves, by uid: its pod, or those of its node.
    pub(crate) fn served_by(
        &self,
        caller: &AuthenticatedCaller,
    ) -> impl Iterator<Item = &Arc<str>> {
        let pod = caller.pod.as_ref();
        let key = pod.map(|pod| WorkloadKey::new(caller.identity.namespace.clone(), pod.as_str()));
        let node = match self.serves_node(caller) {
            true => key.as_ref().and_then(|key| self.proxies.get(key)).cloned(),
            false => None,
        };
        let identity = caller.identity.clone();
        let serves = move |(of, served): &(&WorkloadKey, &AmbientWorkload)| match (&node, &key) {
            (Some(node), _) => served.node == *node,
            (None, Some(key)) => *of == key,
            (None, None) => served.identity == identity,
        };
        let found = self.ambient.iter().filter(serves);
        found.map(|(_, served)| &served.uid)
    }

    /// Checks that the caller may have a certificate in the name of `asked`.
    pub(crate) fn may_stand_for(
        &self,
        caller: &AuthenticatedCaller,
        asked: &Identity,
    ) -> Result<(), String> {
        let who = &caller.identity;
        if *asked == *who {
            return Ok(());
        }
        if !self.serves_node(caller) {
            return Err(format!(
                "{who} may only request certificates for itself, not for {asked}: it is not a `--node-account` of this control plane"
            ));
        }
        let (Some(pod), CallerProof::Token) = (&caller.pod, caller.proof) else {
            return Err(format!(
                "{who} did not send a token that is bound to its pod, so its node is unknown"
            ));
        };
        let key = WorkloadKey::new(who.namespace.clone(), pod.as_str());
        let Some(node) = self.proxies.get(&key) else {
            return Err(format!(
                "pod {key} of {who} is not in the mesh, or has no nodeName there"
            ));
        };
        match self.nodes.get(asked) {
            Some(nodes) if nodes.contains(node) => Ok(()),
            _ => Err(format!(
                "no workload of {asked} is declared for a node proxy on node {node}"
            )),
        }
    }
}

#[cfg(test)]
mod tests;
