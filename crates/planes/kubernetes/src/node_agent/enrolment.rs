//! Enrolment of pods: their networks, the rules in them, the node proxy, and the record on the Pod. A function of the view: it
//! converges after any restart.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::Instant;
use voile_host::netns::Namespace;
use voile_host::netns::link;
use voile_host::netns::rules::{NodeCapture, ProbeRules, Rules, Tool, apply};
use voile_model::check::REDIRECTION;
use voile_zds::{NodeAgent, PodIdentity, ServedPods};

use super::calls::NewPod;
use super::networks;
use super::role::PodRole;
use super::view::{LocalPod, NodeView};
use crate::error::explain;

/// Longest wait for the node proxy to serve a pod.
const PROXY_LIMIT: Duration = Duration::from_secs(10);
/// Time that callers have to learn that a pod is called in plaintext again.
const FAREWELL: Duration = Duration::from_millis(500);
/// Unused addresses (RFC 5737, RFC 3849). Choosing a route to them shows a pod's own address.
const NOWHERE: [(&str, &str); 2] = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];

/// A pod that the node proxy serves, or is to serve.
#[derive(Debug)]
struct EnrolledPod {
    who: PodIdentity,
    network: Namespace,
    addresses: Vec<IpAddr>,
    /// True once rules and record are in place.
    is_done: bool,
    /// The pod leaves at this time.
    leaves_at: Option<Instant>,
}

impl EnrolledPod {
    fn new(pod: &LocalPod, network: Namespace) -> Self {
        Self {
            who: identity(pod),
            addresses: addresses(&network),
            network,
            is_done: false,
            leaves_at: None,
        }
    }
}

/// See the module.
pub(super) struct Enrolment {
    client: Client,
    /// The node's `/proc`.
    proc: PathBuf,
    node: Namespace,
    tool: Tool,
    rules: Rules,
    agent: NodeAgent<Namespace>,
    pods: BTreeMap<String, EnrolledPod>,
    /// Networks that plugins told of pods that are not enrolled yet, and who waits for it.
    told: BTreeMap<String, (Namespace, oneshot::Sender<Result<(), String>>)>,
    /// Addresses that the node's probe rules have.
    probed: Option<Vec<IpAddr>>,
}

impl Enrolment {
    /// # Errors
    /// A privilege is missing.
    pub(super) fn new(
        client: Client,
        proc: PathBuf,
        dns: bool,
        tool: Tool,
        agent: NodeAgent<Namespace>,
    ) -> io::Result<Self> {
        let capture = NodeCapture {
            exempts_probes: true,
            ..NodeCapture::default()
        };
        let capture = NodeCapture {
            dns: capture.dns.filter(|_| dns),
            ..capture
        };
        Ok(Self {
            client,
            node: networks::of_node(&proc)?,
            proc,
            tool,
            rules: Rules {
                node: Some(capture),
                ..Rules::default()
            },
            agent,
            pods: BTreeMap::new(),
            told: BTreeMap::new(),
            probed: None,
        })
    }

    /// Takes a plugin's call. The pod is enrolled with the next [`Self::reconcile`].
    pub(super) fn take(&mut self, new: NewPod) {
        let id = |network: &Namespace| network.id().ok();
        let known = self.pods.get(&new.uid);
        if known.is_some_and(|known| id(&known.network) != id(&new.network)) {
            // The pod's sandbox was made anew, with another network.
            self.pods.remove(&new.uid);
            self.tell_proxy();
        }
        self.told.insert(new.uid, (new.network, new.answer));
    }

    /// Makes the node as `view` says. Returns false if something is left to try again.
    pub(super) async fn reconcile(&mut self, view: &NodeSnapshot) -> bool {
        let mut complete = self.withdraw(view).await;
        let new = view.ambient.iter();
        let new = new.filter(|(uid, _)| !self.pods.contains_key(*uid));
        let new: BTreeMap<&String, &LocalPod> = new.collect();
        // A pod without an address is about to start: the plugin will tell, or the API server.
        let running = new
            .iter()
            .filter(|(uid, pod)| pod.has_network && !self.told.contains_key(**uid));
        let mut found = networks::find(&self.proc, &running.map(|(uid, _)| uid.as_str()).collect());
        for (uid, pod) in new {
            let told = self.told.get(uid).map(|(network, _)| network.clone());
            let Some(network) = told.or_else(|| found.remove(uid)) else {
                complete &= !pod.has_network;
                continue;
            };
            self.pods
                .insert(uid.clone(), EnrolledPod::new(pod, network));
        }
        self.exempt_probes();
        self.tell_proxy();
        complete &= self.finish(view).await;
        self.answer_rest(view);
        complete
    }

    /// Finishes pods that are not done. All wait for the proxy together.
    async fn finish(&mut self, view: &NodeSnapshot) -> bool {
        let deadline = Instant::now() + PROXY_LIMIT;
        let open = self.pods.iter();
        let open = open.filter(|(uid, pod)| !pod.is_done && view.ambient.contains_key(*uid));
        let open: Vec<String> = open.map(|(uid, _)| uid.clone()).collect();
        let mut complete = true;
        for uid in open {
            let done = self.finish_one(&uid, view, deadline).await;
            if let Err(reason) = &done {
                tracing::warn!(uid, "a pod is not enrolled yet: {reason}");
                complete = false;
                // The next attempt may find another network.
                self.pods.remove(&uid);
            } else if let Some(pod) = self.pods.get_mut(&uid) {
                pod.is_done = true;
                tracing::info!(uid, pod = %pod.who.name, namespace = %pod.who.namespace, "a pod is enrolled");
            }
            if let Some((_, answer)) = self.told.remove(&uid) {
                // A plugin that waits no longer has told the runtime so.
                let _ = answer.send(done);
            }
        }
        complete
    }

    async fn finish_one(
        &self,
        uid: &str,
        view: &NodeSnapshot,
        deadline: Instant,
    ) -> Result<(), String> {
        let Some(pod) = self.pods.get(uid) else {
            return Ok(());
        };
        let served = tokio::time::timeout_at(deadline, self.agent.served(uid)).await;
        served.map_err(|_| format!("the node proxy does not serve it after {PROXY_LIMIT:?}"))?;
        apply(&self.tool, &pod.network, &self.rules, link::has_v6())
            .map_err(|error| error.to_string())?;
        match view.ambient.get(uid) {
            Some(local) if !local.is_recorded => self.record(&pod.who, json!("enabled")).await,
            _ => Ok(()),
        }
    }

    /// Takes pods out that are gone or no longer ask for it: first the record, later rules and proxy. Returns false if a pod has not
    /// left yet.
    async fn withdraw(&mut self, view: &NodeSnapshot) -> bool {
        self.pods.retain(|uid, _| view.uids.contains(uid));
        self.told.retain(|uid, _| view.uids.contains(uid));
        for pod in self
            .pods
            .iter_mut()
            .filter(|(uid, _)| view.ambient.contains_key(*uid))
        {
            // It has asked again meanwhile.
            pod.1.leaves_at = None;
        }
        let mut complete = true;
        for (uid, pod) in &view.leaving {
            if pod.is_recorded
                && let Err(reason) = self.record(&identity(pod), Value::Null).await
            {
                tracing::warn!(pod = pod.name, "a pod is not withdrawn yet: {reason}");
                complete = false;
                continue;
            }
            let Some(enrolled) = self.enrolled(uid, pod) else {
                continue;
            };
            enrolled.is_done = false;
            let leaves_at = *enrolled.leaves_at.get_or_insert(Instant::now() + FAREWELL);
            if Instant::now() < leaves_at {
                complete = false;
                continue;
            }
            let Some(enrolled) = self.pods.remove(uid) else {
                continue;
            };
            self.release(&enrolled);
            tracing::info!(
                uid,
                pod = pod.name,
                namespace = pod.namespace,
                "a pod is withdrawn"
            );
        }
        complete
    }

    /// The pod as it is enrolled, by this agent or by an earlier one.
    fn enrolled(&mut self, uid: &str, pod: &LocalPod) -> Option<&mut EnrolledPod> {
        if !self.pods.contains_key(uid) {
            let network = networks::find(&self.proc, &BTreeSet::from([uid])).remove(uid)?;
            self.pods
                .insert(uid.to_owned(), EnrolledPod::new(pod, network));
        }
        self.pods.get_mut(uid)
    }

    fn release(&self, pod: &EnrolledPod) {
        if let Err(error) = apply(&self.tool, &pod.network, &Rules::default(), link::has_v6()) {
            tracing::warn!(pod = pod.who.name, %error, "the rules of a pod stay");
        }
    }

    /// Takes the rules off all pods and off the node, because the mesh is uninstalled. The records go if the API server still lets.
    pub(super) async fn dissolve(&mut self) {
        for pod in std::mem::take(&mut self.pods).into_values() {
            if let Err(reason) = self.record(&pod.who, Value::Null).await {
                tracing::debug!(pod = pod.who.name, reason, "the record of a pod stays");
            }
            self.release(&pod);
        }
        self.exempt_probes();
    }

    /// Answers plugins whose pods need nothing any more.
    fn answer_rest(&mut self, view: &NodeSnapshot) {
        let settled = self
            .told
            .extract_if(.., |uid, _| !view.ambient.contains_key(uid));
        for (_, (_, answer)) in settled {
            let _ = answer.send(Ok(()));
        }
        let done = self.told.extract_if(.., |uid, _| {
            self.pods.get(uid).is_some_and(|pod| pod.is_done)
        });
        for (_, (_, answer)) in done {
            let _ = answer.send(Ok(()));
        }
    }

    fn tell_proxy(&self) {
        let pods = self.pods.iter();
        let pods = pods.map(|(uid, pod)| (uid.clone(), (pod.who.clone(), pod.network.clone())));
        self.agent.tell(pods.collect::<ServedPods<Namespace>>());
    }

    /// Tells the node which pods' probes come from the exempt address.
    fn exempt_probes(&mut self) {
        let addresses = self
            .pods
            .values()
            .flat_map(|pod| pod.addresses.iter().copied());
        let addresses: Vec<_> = addresses.collect();
        if self.probed.as_ref() == Some(&addresses) {
            return;
        }
        let rules = ProbeRules { pods: addresses };
        match rules.apply(&self.node) {
            Ok(()) => self.probed = Some(rules.pods),
            Err(error) => {
                tracing::warn!(%error, "kubelets' probes are not exempt: under STRICT they fail");
            }
        }
    }

    /// Writes the record of a pod's redirection, or removes it.
    async fn record(&self, who: &PodIdentity, value: Value) -> Result<(), String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &who.namespace);
        let patch = json!({"metadata": {"annotations": {REDIRECTION: value}}});
        let patched = pods
            .patch_status(&who.name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match patched {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(format!("annotation {REDIRECTION}: {}", explain(&error))),
            Ok(_) => Ok(()),
        }
    }
}

/// What one reconciliation needs of the view, so that the view may change meanwhile.
#[derive(Debug, Default)]
pub(super) struct NodeSnapshot {
    /// Pods to enrol, by uid.
    ambient: BTreeMap<String, LocalPod>,
    /// Pods to withdraw.
    leaving: BTreeMap<String, LocalPod>,
    /// All pods.
    uids: BTreeSet<String>,
}

impl NodeSnapshot {
    pub(super) fn of(view: &NodeView, enrolment: &Enrolment) -> Self {
        let outside = view.of_role(PodRole::Outside);
        let leaving =
            outside.filter(|(uid, pod)| pod.is_recorded || enrolment.pods.contains_key(*uid));
        let copy = |(uid, pod): (&String, &LocalPod)| (uid.clone(), pod.clone());
        Self {
            ambient: view.of_role(PodRole::Ambient).map(copy).collect(),
            leaving: leaving.map(copy).collect(),
            uids: view.pods.keys().cloned().collect(),
        }
    }
}

fn identity(pod: &LocalPod) -> PodIdentity {
    PodIdentity {
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        service_account: pod.account.clone(),
    }
}

/// The addresses by which a pod calls the world. Nothing is sent: the kernel only chooses.
fn addresses(network: &Namespace) -> Vec<IpAddr> {
    let of = |(any, nowhere): &(&str, &str)| -> Option<IpAddr> {
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(nowhere.parse::<SocketAddr>().ok()?).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let found = network.within(|| NOWHERE.iter().filter_map(of).collect());
    found.unwrap_or_default()
}
