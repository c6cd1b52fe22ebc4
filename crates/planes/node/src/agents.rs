//! Pods of this node, as the agent reports them. Each pod gets listeners in its own network and keys of its own
//! identity. The proxy serves pods on while the agent is gone; when the agent is back, the proxy drops pods that the
//! agent no longer names. Listeners may come from the previous process. They accept only after the handover.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::{Rc, Weak as Faint};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use voile_host::netns::Namespace;
use voile_identity::{
    CertificateClient, CertificateKey, CertificateStore, ClientSettings, Identity, MeshRoots,
    Revocations, TrustDomain, retry_delay,
};
use voile_process::DnsSockets;
use voile_telemetry::{DnsFigures, OnDemandFigures};
use voile_transport::handover::{InheritedSockets, Lent, until_it_opens};
use voile_transport::{ACCEPT_PAUSE, AcceptFailure, Listener, SpareDescriptor};
use voile_zds::{AgentMessage, Channel, PodIdentity};

use crate::dispatch::Dispatcher;
use crate::dns::{self, Directory, PodDns};
use crate::names::NameLookup;
use crate::pod::{IdentityKeys, Pod, PodLife, Renewal, addresses};
use crate::route::OWN_PORTS;
use crate::verified_peers::REVOKED;
use crate::worker::{ControlPlaneClient, PodListener};

/// The node proxy's own pod, among those that the agent names. No agent calls a pod so.
const ITSELF: &str = "";

/// The doors of a pod.
const DOORS: [(PodListener, u16); 3] = [
    (PodListener::Outbound, OWN_PORTS[0]),
    (PodListener::Plaintext, OWN_PORTS[1]),
    (PodListener::Tunnel, OWN_PORTS[2]),
];

/// Identities that certificates are asked for at once. Each question has a connection and a handshake of its own: a node that starts
/// with a hundred pods would hold as many for a moment, and its heap would keep their shape; and the authority hears of whole nodes
/// at a time.
const ASKED_AT_ONCE: usize = 8;

/// Pods of one node, at most: Kubernetes' usual limit is 110, its largest in use about a thousand.
const MAX_PODS: usize = 4096;

/// Shared dependencies for serving pods.
pub(crate) struct ServingContext {
    pub(crate) asker: ControlPlaneClient,
    pub(crate) directory: Rc<Directory>,
    pub(crate) dispatcher: Rc<Dispatcher>,
    pub(crate) certificates: ClientSettings,
    pub(crate) trust_domain: TrustDomain,
    pub(crate) aliases: Vec<TrustDomain>,
    pub(crate) keeps_source: bool,
    pub(crate) drain: Duration,
}

type Listeners = Box<[(PodListener, Rc<Listener>)]>;

/// One pod's listeners, and their accepting tasks if they run.
struct PodListeners {
    pod: Arc<Pod>,
    listeners: Listeners,
    accepting: Vec<AbortHandle>,
    /// None for the proxy's own pod, whose DNS queries are not redirected.
    dns: Option<PodDns>,
}

impl PodListeners {
    fn stop(&mut self) {
        self.accepting.drain(..).for_each(|task| task.abort());
        self.dns.iter().for_each(|dns| dns.server.pause());
    }

    /// Stops listening at once. The agent may name the same network again in its next message, and the accepting
    /// tasks drop their sockets only at their next turn.
    fn close(&mut self) {
        self.dns.iter().for_each(|dns| dns.server.close());
        self.stop();
        for (_, listener) in &self.listeners {
            listener.close();
        }
    }
}

/// See the module.
pub(crate) struct NodePods {
    means: ServingContext,
    /// The agent's socket.
    path: PathBuf,
    talking: RefCell<Option<AbortHandle>>,
    pods: RefCell<BTreeMap<String, PodListeners>>,
    /// Listeners inherited from the previous process.
    inherited: RefCell<InheritedSockets>,
    /// True while connections are accepted.
    open: Cell<bool>,
    badges: RefCell<BTreeMap<Identity, Weak<IdentityKeys>>>,
    /// Roots of the mesh, for the keys of each identity.
    roots: RefCell<Arc<MeshRoots>>,
    /// Certificates that no identity believes.
    revocations: RefCell<Arc<Revocations>>,
    /// To ask for their certificates.
    turns: Arc<Semaphore>,
    spare: RefCell<SpareDescriptor>,
    complete: watch::Sender<bool>,
    /// True while a successor is not ready yet.
    deferred: watch::Sender<bool>,
}

/// State of one conversation with an agent.
#[derive(Default)]
struct Conversation {
    named: BTreeSet<String>,
    complete: bool,
}

impl NodePods {
    pub(crate) fn new(
        means: ServingContext,
        path: PathBuf,
        inherited: InheritedSockets,
    ) -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            means,
            path,
            talking: RefCell::default(),
            pods: RefCell::default(),
            inherited: RefCell::new(inherited),
            open: Cell::new(false),
            badges: RefCell::default(),
            roots: RefCell::default(),
            revocations: RefCell::default(),
            turns: Arc::new(Semaphore::new(ASKED_AT_ONCE)),
            spare: RefCell::new(SpareDescriptor::reserve()?),
            complete: watch::Sender::new(false),
            deferred: watch::Sender::new(false),
        }))
    }

    /// Returns true once an agent has listed all pods.
    pub(crate) fn is_complete(&self) -> bool {
        *self.complete.borrow()
    }

    /// The pods that are served.
    pub(crate) fn pods(&self) -> Vec<Arc<Pod>> {
        let pods = self.pods.borrow();
        pods.values().map(|doors| Arc::clone(&doors.pod)).collect()
    }

    /// Returns the counters of the pods' DNS queries.
    pub(crate) fn looked_up(&self) -> DnsFigures {
        let pods = self.pods.borrow();
        let each = pods.values().filter_map(|doors| doors.dns.as_ref());
        let each = each.map(|dns| dns.server.figures());
        self.means.directory.figures(each)
    }

    /// Returns the counters of the names resolved for the pods' connections.
    pub(crate) fn lookups(&self) -> OnDemandFigures {
        let pods = self.pods.borrow();
        let each = pods.values().filter_map(|doors| doors.dns.as_ref());
        let each = each.map(|dns| dns.lookups.figures());
        self.means.directory.lookups(each)
    }

    /// Resolves a host name for a connection of a pod. For a removed pod it drops the question; the waiting
    /// connection sees the closed channel.
    pub(crate) fn resolve(&self, question: NameLookup) {
        let pods = self.pods.borrow();
        if let Some(doors) = pods.get(&*question.pod.uid)
            && Arc::ptr_eq(&doors.pod, &question.pod)
            && let Some(dns) = &doors.dns
        {
            dns.lookups.resolve(&question.host, question.answer);
        }
    }

    /// Begins to talk with the agent.
    pub(crate) fn talk(self: &Rc<Self>) {
        let talking = tokio::task::spawn_local(Rc::clone(self).run());
        self.talking.replace(Some(talking.abort_handle()));
    }

    /// While a successor is not ready yet, an agent that comes anew is left to it: an agent tells the latest to greet it of new pods.
    pub(crate) fn defer(&self, deferred: bool) {
        self.deferred.send_replace(deferred);
    }

    /// Hangs up: it tells us of no more pods.
    pub(crate) fn hang_up(&self) {
        if let Some(talking) = self.talking.take() {
            talking.abort();
        }
    }

    /// Accepts connections, for pods that are and for those to come.
    pub(crate) fn open(self: &Rc<Self>) {
        self.open.set(true);
        for doors in self.pods.borrow_mut().values_mut() {
            self.accept_at(doors);
        }
    }

    /// Stops accepting; new connections wait in the kernel.
    pub(crate) fn pause(&self) {
        self.open.set(false);
        for doors in self.pods.borrow_mut().values_mut() {
            doors.stop();
        }
    }

    fn accept_at(self: &Rc<Self>, doors: &mut PodListeners) {
        for (door, listener) in &doors.listeners {
            let (pod, listener) = (Arc::clone(&doors.pod), Rc::clone(listener));
            let accepting = accept(Rc::downgrade(self), pod, *door, listener);
            let accepting = tokio::task::spawn_local(accepting);
            doors.accepting.push(accepting.abort_handle());
        }
        if let Some(Err(error)) = doors.dns.as_ref().map(|dns| dns.server.open()) {
            tracing::warn!(%error, pod = %doors.pod.name, "cannot answer DNS queries of the pod; trying again");
            let again = open_dns_again(Rc::downgrade(self), Arc::clone(&doors.pod));
            doors
                .accepting
                .push(tokio::task::spawn_local(again).abort_handle());
        }
    }

    /// Every pod's listeners, for a successor.
    pub(crate) fn lend(&self) -> io::Result<Vec<Lent>> {
        let mut all = Vec::new();
        for doors in self.pods.borrow().values() {
            let place = doors.pod.inside.id()?;
            for (door, listener) in &doors.listeners {
                let socket = listener.try_clone()?.into();
                all.push((role(door.name(), place), listener.address(), socket));
            }
            if let Some(dns) = &doors.dns {
                all.extend(dns.server.lend(|name| role(name, place))?);
            }
        }
        Ok(all)
    }

    /// Closes inherited listeners of pods that the agent did not name.
    pub(crate) fn forget_inherited(&self) {
        self.inherited.take();
    }

    /// Talks with the agent at its path, and connects again for ever.
    async fn run(self: Rc<Self>) {
        let path = &self.path;
        let mut failures = 0_u32;
        let mut deferred = self.deferred.subscribe();
        loop {
            // We hold its sender.
            let _ = deferred.wait_for(|deferred| !deferred).await;
            match Channel::connect(path).await {
                Ok(channel) => {
                    failures = 0;
                    tracing::info!(path = %path.display(), "connected to the agent (ZDS)");
                    if let Err(error) = self.converse(&channel).await {
                        tracing::warn!(%error, "the connection to the agent (ZDS) failed");
                    }
                    tracing::warn!("the agent (ZDS) disconnected; its pods are still served");
                }
                Err(error) if failures == 0 => {
                    tracing::warn!(path = %path.display(), %error, "cannot connect to the agent (ZDS) yet");
                }
                Err(_) => {}
            }
            failures = failures.saturating_add(1);
            tokio::time::sleep(retry_delay(failures, fastrand::f64())).await;
        }
    }

    async fn converse(self: &Rc<Self>, channel: &Channel) -> io::Result<()> {
        let mut conversation = Conversation::default();
        while let Some(told) = channel.hear().await? {
            let done = self.obey(&mut conversation, told);
            if let Err(reason) = &done {
                tracing::error!(reason, "a message of the agent (ZDS) is refused");
            }
            let answer = match &done {
                Ok(()) => Ok(()),
                Err(reason) => Err(reason.as_str()),
            };
            channel.answer(answer).await?;
        }
        Ok(())
    }

    fn obey(
        self: &Rc<Self>,
        conversation: &mut Conversation,
        told: AgentMessage,
    ) -> Result<(), String> {
        match told {
            AgentMessage::Add { uid, .. } | AgentMessage::Remove(uid) if uid == ITSELF => {
                Err("the pod has no uid".to_owned())
            }
            AgentMessage::Add { uid, who, inside } => {
                if !conversation.complete {
                    conversation.named.insert(uid.clone());
                }
                self.add(uid, &who, inside.into())
            }
            AgentMessage::Keep(uid) if !conversation.complete => {
                conversation.named.insert(uid);
                Ok(())
            }
            AgentMessage::Keep(uid) => Err(format!(
                "pod {uid}: Keep is only allowed before SnapshotSent"
            )),
            AgentMessage::Remove(uid) => {
                conversation.named.remove(&uid);
                self.remove(&uid);
                Ok(())
            }
            AgentMessage::Complete if conversation.complete => {
                Err("SnapshotSent is only allowed once per connection".to_owned())
            }
            AgentMessage::Complete => {
                conversation.complete = true;
                let gone: Vec<String> = {
                    let pods = self.pods.borrow();
                    let named =
                        |uid: &&String| **uid == ITSELF || conversation.named.contains(*uid);
                    let gone = pods.keys().filter(|uid| !named(uid));
                    gone.cloned().collect()
                };
                gone.iter().for_each(|uid| self.remove(uid));
                conversation.named.clear();
                self.complete.send_replace(true);
                Ok(())
            }
        }
    }

    fn add(
        self: &Rc<Self>,
        uid: String,
        who: &PodIdentity,
        inside: Namespace,
    ) -> Result<(), String> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            format!(
                "pod {}/{} ({uid}): {what}: {error}",
                who.namespace, who.name
            )
        };
        let id = inside
            .id()
            .map_err(|error| failed("its network namespace", &error))?;
        let identity = self.identity(who).ok_or_else(|| {
            failed(
                "its identity",
                &"the namespace or service account is not a valid name",
            )
        })?;
        let known = {
            let pods = self.pods.borrow();
            pods.get(&uid).map(|doors| Arc::clone(&doors.pod))
        };
        if let Some(known) = known {
            let same = known.inside.id().is_ok_and(|known| known == id);
            if same && known.badge.identity == identity && *known.name == *who.name {
                return Ok(());
            }
            self.remove(&uid);
        }
        if self.pods.borrow().len() >= MAX_PODS {
            return Err(failed(
                "too many pods",
                &format_args!("{MAX_PODS} pods are served already"),
            ));
        }
        let addresses = addresses(&inside).map_err(|error| failed("its addresses", &error))?;
        let bind = || bound(&mut self.inherited.borrow_mut(), id);
        let (listeners, sockets) = inside
            .within(bind)
            .and_then(|bound| bound)
            .map_err(|error| failed("its listeners", &error))?;
        let badge = self
            .badge(identity)
            .map_err(|error| failed("its TLS", &error))?;
        let pod = Arc::new(Pod {
            uid: uid.as_str().into(),
            name: who.name.as_str().into(),
            inside,
            addresses,
            badge,
            life: watch::Sender::new(PodLife::Served),
            keeps_source: self.means.keeps_source,
            pages: None,
        });
        for address in &pod.addresses {
            let wish = self.means.asker.registry().own(*address);
            self.means.asker.follow(wish);
        }
        let mut doors = PodListeners {
            pod: Arc::clone(&pod),
            listeners,
            accepting: Vec::new(),
            dns: Some(PodDns::new(&self.means.directory, &pod, sockets)),
        };
        if self.open.get() {
            self.accept_at(&mut doors);
        }
        tracing::info!(uid = %pod.uid, pod = %pod.name, identity = %pod.badge.identity, addresses = ?pod.addresses, "a pod is served");
        self.pods.borrow_mut().insert(uid, doors);
        self.tell_homes();
        Ok(())
    }

    /// Takes tunnels in the proxy's own network, which is the calling thread's, to the proxy's own pages and nothing
    /// else. The policies of the proxy's own pod apply.
    pub(crate) fn serve_itself(&self, who: &PodIdentity, pages: Box<[u16]>) -> io::Result<()> {
        let unnamed = || io::Error::other("the namespace or service account is not a valid name");
        let identity = self.identity(who).ok_or_else(unnamed)?;
        let inside = Namespace::current()?;
        let tunnels = &DOORS[2..];
        let listeners = listeners(&mut self.inherited.borrow_mut(), inside.id()?, tunnels)?;
        let badge = self.badge(identity).map_err(io::Error::other)?;
        let pod = Arc::new(Pod {
            uid: ITSELF.into(),
            name: who.name.as_str().into(),
            inside,
            // This pod calls no other, and is called by tunnels alone: each names its own address.
            addresses: Vec::new(),
            badge,
            life: watch::Sender::new(PodLife::Served),
            keeps_source: false,
            pages: Some(pages),
        });
        tracing::info!(pod = %pod.name, identity = %pod.badge.identity, "accepting HBONE to the node proxy's own metrics and readiness");
        let doors = PodListeners {
            pod,
            listeners,
            accepting: Vec::new(),
            dns: None,
        };
        self.pods.borrow_mut().insert(ITSELF.to_owned(), doors);
        Ok(())
    }

    /// Tells the workers the pods of this node, by address.
    fn tell_homes(&self) {
        let pods = self.pods.borrow();
        let at = |pod: &Arc<Pod>| -> Vec<_> {
            let of = |address: &IpAddr| (*address, Arc::clone(pod));
            pod.addresses.iter().map(of).collect()
        };
        let homes = pods.values().flat_map(|doors| at(&doors.pod)).collect();
        self.means.dispatcher.tell_homes(&Arc::new(homes));
    }

    fn identity(&self, who: &PodIdentity) -> Option<Identity> {
        let account = &who.service_account;
        voile_model::names::is_dns_subdomain(account).then_some(())?;
        Some(Identity {
            trust_domain: self.means.trust_domain.clone(),
            namespace: voile_model::Namespace::new(&who.namespace)?,
            service_account: account.as_str().into(),
        })
    }

    /// The keys of an identity: those that another pod of it has already, or new ones.
    fn badge(&self, identity: Identity) -> Result<Arc<IdentityKeys>, voile_identity::KeyError> {
        let mut badges = self.badges.borrow_mut();
        badges.retain(|_, badge| badge.strong_count() > 0);
        if let Some(badge) = badges.get(&identity).and_then(Weak::upgrade) {
            return Ok(badge);
        }
        let store = Arc::new(CertificateStore::believing(&self.means.aliases));
        store.tell_roots(&self.roots.borrow());
        store.tell_revocations(&self.revocations.borrow());
        let (server, client) = IdentityKeys::tls(&store)?;
        let certificates =
            CertificateClient::new(self.means.certificates.clone(), Arc::clone(&store))
                .in_the_name_of(identity.clone())
                .taking_turns(&self.turns);
        let news = certificates.subscribe();
        let renewing = tokio::task::spawn_local(certificates.run(std::future::pending()));
        let badge = Arc::new(IdentityKeys {
            identity: identity.clone(),
            store,
            server,
            client,
            news,
            _renewal: Renewal(renewing.abort_handle()),
        });
        badges.insert(identity, Arc::downgrade(&badge));
        Ok(badge)
    }

    /// Asks for another certificate, for a new key, in the name of each pod.
    pub(crate) fn renew(&self) {
        for badge in self.badges.borrow().values().filter_map(Weak::upgrade) {
            badge.store.ask_to_renew();
        }
    }

    /// Trusts these roots in the name of each pod, and of those that come.
    pub(crate) fn tell_roots(&self, roots: &Arc<MeshRoots>) {
        *self.roots.borrow_mut() = Arc::clone(roots);
        for badge in self.badges.borrow().values().filter_map(Weak::upgrade) {
            badge.store.tell_roots(roots);
        }
    }

    /// Refuses revoked certificates in handshakes. Those of ours are of no use any more: others are asked for, for new keys.
    pub(crate) fn revoke(&self, lists: &Arc<Revocations>) {
        *self.revocations.borrow_mut() = Arc::clone(lists);
        for badge in self.badges.borrow().values().filter_map(Weak::upgrade) {
            badge.store.tell_revocations(lists);
            if lists.is_closed() {
                continue;
            }
            let held = badge.store.current();
            let leaf = held
                .as_ref()
                .and_then(|held| held.certified_key().cert.first());
            let key = leaf.and_then(CertificateKey::of);
            if key.is_some_and(|key| lists.includes(key)) {
                tracing::warn!(identity = %badge.identity, "{REVOKED}: requesting another");
                badge.store.ask_to_renew();
            }
        }
    }

    fn remove(&self, uid: &str) {
        let removed = self.pods.borrow_mut().remove(uid);
        let Some(mut removed) = removed else {
            return;
        };
        removed.close();
        let pod = removed.pod;
        tracing::info!(uid = %pod.uid, pod = %pod.name, "a pod is no longer served");
        self.tell_homes();
        for address in &pod.addresses {
            let pods = self.pods.borrow();
            let still_ours = pods.values().any(|other| other.pod.has(*address));
            if !still_ours {
                let wish = self.means.asker.registry().disown(*address);
                self.means.asker.follow(wish);
            }
        }
        pod.life.send_replace(PodLife::Leaving);
        let drain = self.means.drain;
        tokio::task::spawn_local(async move {
            tokio::time::sleep(drain).await;
            pod.life.send_replace(PodLife::Gone);
        });
    }

    /// Accepts nothing more; open connections may end, and DNS questions that were taken are answered.
    pub(crate) fn leave(&self) {
        self.pause();
        for doors in self.pods.borrow_mut().values_mut() {
            doors.listeners = Box::default();
            doors.pod.life.send_replace(PodLife::Leaving);
        }
    }

    /// Returns true if every DNS question that was taken is answered.
    pub(crate) fn has_answered(&self) -> bool {
        let pods = self.pods.borrow();
        let mut each = pods.values().filter_map(|doors| doors.dns.as_ref());
        each.all(|dns| dns.server.is_idle())
    }

    /// Cuts open connections, and drops all pods.
    pub(crate) fn cut(&self) {
        for doors in self.pods.take().into_values() {
            doors.pod.life.send_replace(PodLife::Gone);
        }
        self.tell_homes();
    }
}

/// Opens the DNS of a pod: there were no descriptors for a moment. Ends with the accepting tasks of the pod.
async fn open_dns_again(agency: Faint<NodePods>, pod: Arc<Pod>) {
    let open = || {
        let Some(agency) = agency.upgrade() else {
            return Ok(());
        };
        let pods = agency.pods.borrow();
        let doors = pods.get(&*pod.uid);
        let dns = doors.and_then(|doors| doors.dns.as_ref());
        dns.map_or(Ok(()), |dns| dns.server.open())
    };
    until_it_opens("DNS of a pod", open).await;
}

/// Returns a socket's name for a successor: its purpose and its network.
pub(crate) fn role(name: &str, (device, inode): (u64, u64)) -> String {
    format!("{name}@{device}:{inode}")
}

/// All sockets of a pod.
fn bound(
    inherited: &mut InheritedSockets,
    place: (u64, u64),
) -> io::Result<(Listeners, DnsSockets)> {
    let listeners = listeners(inherited, place, &DOORS)?;
    Ok((listeners, dns::bind(inherited, place)?))
}

/// These doors, for both families where the machine has both: those inherited of this place, or new ones of the calling
/// thread's network.
fn listeners(
    inherited: &mut InheritedSockets,
    place: (u64, u64),
    doors: &[(PodListener, u16)],
) -> io::Result<Listeners> {
    let mut all = Vec::new();
    for (door, port) in doors.iter().copied() {
        let role = role(door.name(), place);
        let named = |error: io::Error| {
            io::Error::new(
                error.kind(),
                format!("cannot listen on port {port}: {error}"),
            )
        };
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        all.push((door, inherited.bind(&role, address).map_err(named)?));
        match inherited.bind(&role, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
            Ok(listener) => all.push((door, listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(named(error)),
            // A machine without IPv6 has no clients over IPv6.
            Err(error) => tracing::debug!(port, %error, "no IPv6"),
        }
    }
    let listening =
        |(door, socket)| -> io::Result<_> { Ok((door, Rc::new(Listener::new(socket)?))) };
    all.into_iter().map(listening).collect()
}

/// Accepts connections at one listener of a pod, until the pod leaves.
async fn accept(agency: Faint<NodePods>, pod: Arc<Pod>, door: PodListener, listener: Rc<Listener>) {
    loop {
        let Some(agency) = agency.upgrade() else {
            return;
        };
        let accepted = tokio::select! {
            accepted = listener.accept(&agency.spare) => accepted,
            () = pod.is_at(PodLife::Leaving) => return,
        };
        match accepted {
            Ok((stream, peer)) => agency.means.dispatcher.hand_over(&pod, door, stream, peer),
            Err(AcceptFailure::Shed) => {
                agency.means.dispatcher.shed.count("out of descriptors");
                // Let connections end before the next is shed.
                tokio::task::yield_now().await;
            }
            Err(AcceptFailure::Exhausted(error)) => {
                tracing::debug!(%error, "cannot accept; pausing");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            Err(AcceptFailure::Broken(error)) => {
                tracing::error!(%error, pod = %pod.name, "a listener failed");
                return;
            }
        }
    }
}
