//! A worker thread that carries connections, with its own runtime, pools and counters. It reads a [`RegistryView`] that never
//! changes. With a newer view it checks the policies of every inbound connection again.

mod event_loop;

pub(crate) use event_loop::run;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use slab::Slab;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use voile_hbone::Gateways;
use voile_identity::Identity;
use voile_memory::{ShedOrder, SourceConnections};
use voile_model::ServiceKey;
use voile_policy::connections::{CallerFacts, ConnectionDenial, ConnectionPermit, PolicySubject};
use voile_proto::type_url;
use voile_telemetry::tap::Tap;
use voile_telemetry::{Shard, Snapshot};
use voile_xds::client::XdsClient;

use crate::connections::close_reasons::{CERT_REVOKED, DENY};
use crate::connections::tunnel_pool::Pool;
use crate::dispatch::Load;
use crate::memory::{LARGE, NodeMemory};
use crate::names::{NameLookup, Resolved};
use crate::pod::{Pod, PodLife};
use crate::registry::{DiscoveryRequest, Registry, RegistryView, Resident, Subscription};
use crate::unproven::UnprovenCallers;
use crate::verified_peers::{PeerBonds, ProvenPeer};

/// Time that a connection waits to learn which workload has an address. The control plane answers in milliseconds. If
/// it is away, the worker does not guess.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// The same where the answer only names a caller in metrics.
const LABEL_PATIENCE: Duration = Duration::from_millis(500);

/// Connections of one worker that wait for such an answer.
const MAX_PARKED: usize = 4096;

/// By which of a pod's doors a connection came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodListener {
    /// Outbound connection of the pod's application (15001).
    Outbound,
    /// Another proxy calls (15008).
    Tunnel,
    /// Inbound connection in plaintext (15006).
    Plaintext,
}

impl PodListener {
    /// As a successor is told.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Outbound => "outbound",
            Self::Tunnel => "tunnels",
            Self::Plaintext => "plaintext",
        }
    }
}

/// Pods of this node by their addresses.
pub(crate) type Homes = HashMap<IpAddr, Arc<Pod>>;

/// Job of a worker.
#[derive(Debug)]
pub(crate) enum Job {
    /// A connection.
    Accepted {
        pod: Arc<Pod>,
        door: PodListener,
        stream: TcpStream,
        peer: SocketAddr,
        load: Load,
    },
    /// The pods of this node, from now on.
    Homes(Arc<Homes>),
    /// Memory is short: close idle connections.
    Relieve,
    /// End the largest holders of memory.
    Shed(ShedOrder),
    /// A wish to know the counters.
    Scrape(oneshot::Sender<NodeCounters>),
}

/// Counters of a worker.
#[derive(Debug)]
pub(crate) struct NodeCounters {
    pub(crate) snapshot: Snapshot,
    pub(crate) pooled: usize,
    pub(crate) denied: u64,
    pub(crate) cut: u64,
    pub(crate) refused: u64,
}

/// Requests to the control plane and to resolvers.
#[derive(Debug, Clone)]
pub(crate) struct ControlPlaneClient {
    pub(crate) client: XdsClient,
    pub(crate) registry: Arc<Mutex<Registry>>,
    pub(crate) subscription: Subscription,
    /// Resolves names for pods.
    pub(crate) names: mpsc::UnboundedSender<NameLookup>,
}

impl ControlPlaneClient {
    pub(crate) fn registry(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies changes of subscription.
    pub(crate) fn follow(&self, wish: DiscoveryRequest) {
        if let Some(name) = wish.unsubscribe {
            self.client.unsubscribe(type_url::ADDRESS, [name]);
        }
        if let Some(name) = wish.subscribe
            && let Err(error) = self.client.subscribe(type_url::ADDRESS, [name])
        {
            tracing::warn!(%error, "cannot subscribe to an address");
        }
    }

    fn ask(&self, address: IpAddr) {
        let wish = self.registry().ask(address);
        self.follow(wish);
    }
}

/// A connection that came in, as long as it is open.
struct Live {
    pod: Arc<Pod>,
    proven: Option<Rc<ProvenPeer>>,
    source: IpAddr,
    destination: SocketAddr,
    cut: Rc<ConnectionCut>,
}

/// The word that a connection must end, and ztunnel's word for why.
#[derive(Default)]
struct ConnectionCut {
    word: Notify,
    flags: Cell<Option<&'static str>>,
}

/// A view that one worker holds: its connections share it without touching memory of other threads.
pub(crate) struct WorkerView(Arc<RegistryView>);

impl Deref for WorkerView {
    type Target = RegistryView;

    fn deref(&self) -> &RegistryView {
        &self.0
    }
}

/// See the module.
pub(crate) struct NodeWorker {
    view: RefCell<Rc<WorkerView>>,
    changes: watch::Receiver<Arc<RegistryView>>,
    asker: ControlPlaneClient,
    pub(crate) pool: Rc<Pool>,
    /// Gateways of other networks, and their failures.
    pub(crate) gateways: Gateways,
    /// Peers that this worker's connections have verified.
    pub(crate) bonds: PeerBonds,
    /// Our own pods, by address.
    homes: RefCell<Arc<Homes>>,
    pub(crate) shard: RefCell<Shard>,
    pub(crate) memory: Arc<NodeMemory>,
    /// For people who watch connections.
    pub(crate) tap: Arc<Tap>,
    /// Callers without a certificate yet.
    pub(crate) unproven: UnprovenCallers,
    /// All connections, by source, if there is a memory limit.
    connections: SourceConnections,
    live: RefCell<Slab<Live>>,
    parked: Cell<usize>,
    pub(crate) denied: Cell<u64>,
    cut: Cell<u64>,
    pub(crate) refused: Cell<u64>,
}

/// Why a connection that came in may not be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClosedReason {
    /// By a policy.
    #[error("{0}")]
    Denied(ConnectionDenial),
    /// The control plane does not know the pod, or knows it under another identity.
    #[error("the control plane does not know this pod at {0}")]
    Nobody(IpAddr),
    /// The caller's certificate is revoked.
    #[error("the certificate of {0} is revoked")]
    Revoked(Identity),
    /// A port at which a waypoint trusts the named client without proof. Only the node proxy may call it.
    #[error("port {0} of this waypoint may only be called by the node proxy")]
    Door(u16),
}

impl ClosedReason {
    /// ztunnel's word for it.
    pub(crate) fn flags(&self) -> &'static str {
        match self {
            Self::Revoked(_) => CERT_REVOKED,
            Self::Denied(_) | Self::Nobody(_) | Self::Door(_) => DENY,
        }
    }
}

/// Authorizes a connection that came in to a pod.
fn authorize(
    view: &RegistryView,
    pod: &Pod,
    proven: Option<&ProvenPeer>,
    (source, destination): (IpAddr, SocketAddr),
) -> Result<ConnectionPermit, ClosedReason> {
    if let Some(proven) = proven.filter(|proven| proven.is_revoked(&view.revocations)) {
        return Err(ClosedReason::Revoked(proven.identity.clone()));
    }
    let caller = CallerFacts {
        identity: proven.map(|proven| &proven.identity),
        source,
        destination,
    };
    let address = destination.ip();
    let own = own(view, pod, address).ok_or(ClosedReason::Nobody(address))?;
    let told = own.workload.application_tunnel.filter(|one| one.proxy);
    if let Some(door) = told.and_then(|one| one.port)
        && door.get() == destination.port()
    {
        return Err(ClosedReason::Door(door.get()));
    }
    let subject = PolicySubject {
        namespace: own.workload.namespace.as_str(),
        named: &own.policies,
    };
    let permit = view.policies.authorize(&subject, &caller);
    permit.map_err(ClosedReason::Denied)
}

/// Returns the pod's own workload, if the control plane and the agent agree on its name and identity.
pub(crate) fn own<'a>(
    view: &'a RegistryView,
    pod: &Pod,
    address: IpAddr,
) -> Option<&'a Arc<Resident>> {
    let identity = &pod.badge.identity;
    view.workload(address).filter(|resident| {
        let found = &resident.workload;
        found.name == pod.name
            && found.namespace == identity.namespace
            && found.identity.as_ref() == Some(identity)
    })
}

/// A place among the waiting connections.
struct Parked<'a>(&'a Cell<usize>);

impl<'a> Parked<'a> {
    /// None when too many do.
    fn among(waiting: &'a Cell<usize>) -> Option<Self> {
        (waiting.get() < MAX_PARKED).then(|| {
            waiting.set(waiting.get() + 1);
            Self(waiting)
        })
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// One judged connection; dropping it ends the judging.
pub(crate) struct Watched<'a> {
    worker: &'a NodeWorker,
    key: usize,
    cut: Rc<ConnectionCut>,
    pod: Arc<Pod>,
    _permit: ConnectionPermit,
}

impl Watched<'_> {
    /// Resolves when it must end: its permission is gone, or its pod.
    pub(crate) async fn ended(&self) {
        tokio::select! {
            () = self.cut.word.notified() => {}
            () = self.pod.is_at(PodLife::Gone) => {}
        }
    }

    /// Returns ztunnel's word for the cut; `-` while the connection is allowed.
    pub(crate) fn flags(&self) -> &'static str {
        self.cut.flags.get().unwrap_or("-")
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.worker.live.borrow_mut().remove(self.key);
    }
}

impl NodeWorker {
    fn new(
        first: Arc<RegistryView>,
        changes: watch::Receiver<Arc<RegistryView>>,
        asker: ControlPlaneClient,
        (memory, tap): (Arc<NodeMemory>, Arc<Tap>),
    ) -> Self {
        let pool = Pool::new(Some(Arc::clone(&memory.heads)));
        memory.watch(pool.blocks());
        Self {
            view: RefCell::new(Rc::new(WorkerView(first))),
            changes,
            asker,
            pool: Rc::new(pool),
            gateways: Gateways::default(),
            bonds: PeerBonds::default(),
            homes: RefCell::default(),
            shard: RefCell::default(),
            memory,
            tap,
            unproven: UnprovenCallers::default(),
            connections: SourceConnections::default(),
            live: RefCell::default(),
            parked: Cell::new(0),
            denied: Cell::new(0),
            cut: Cell::new(0),
            refused: Cell::new(0),
        }
    }

    /// Returns the current view.
    pub(crate) fn view(&self) -> Rc<WorkerView> {
        Rc::clone(&self.view.borrow())
    }

    /// Returns a view that knows these addresses; None if the control plane does not answer in time.
    pub(crate) async fn known(&self, addresses: &[IpAddr]) -> Option<Rc<WorkerView>> {
        self.known_within(ANSWER_PATIENCE, addresses).await
    }

    /// Returns a view with something that comes by itself; None if it does not come in time.
    pub(crate) async fn known_later(
        &self,
        view: Rc<WorkerView>,
        knows: impl Fn(&RegistryView) -> bool,
    ) -> Option<Rc<WorkerView>> {
        match knows(&view) {
            true => Some(view),
            false => self.once(ANSWER_PATIENCE, knows).await,
        }
    }

    /// Returns a view that also knows the waypoint of a pod's destination; None if the control plane does not answer
    /// in time.
    async fn known_waypoint(
        &self,
        view: &Rc<WorkerView>,
        source: &Resident,
        to: SocketAddr,
    ) -> Option<Rc<WorkerView>> {
        let Some(waypoint) = crate::route::waypoint(view, source, to) else {
            return Some(Rc::clone(view));
        };
        if view.knows_waypoint(waypoint) {
            return Some(Rc::clone(view));
        }
        let wish = self.asker.registry().ask_waypoint(waypoint);
        self.asker.follow(wish);
        self.once(ANSWER_PATIENCE, |view| view.knows_waypoint(waypoint))
            .await
    }

    /// Returns a view that also knows this service; None if the control plane does not answer in time.
    pub(crate) async fn known_service(
        &self,
        view: Rc<WorkerView>,
        service: &ServiceKey,
    ) -> Option<Rc<WorkerView>> {
        if view.knows_service(service) {
            return Some(view);
        }
        let wish = self.asker.registry().ask_service(service);
        self.asker.follow(wish);
        self.once(ANSWER_PATIENCE, |view| view.knows_service(service))
            .await
    }

    /// Returns a view that also knows the hops to a pod's destination: its waypoint and the gateways of other
    /// networks. Without an answer in time for a hop, the connection does not take that way.
    pub(crate) async fn known_way(
        &self,
        view: &Rc<WorkerView>,
        source: &Resident,
        to: SocketAddr,
    ) -> Option<Rc<WorkerView>> {
        let view = self.known_waypoint(view, source, to).await?;
        let entrances = crate::route::entrances(&view, source, to);
        if entrances.is_empty() {
            return Some(view);
        }
        for entrance in &entrances {
            let wish = self.asker.registry().ask_entrance(entrance);
            self.asker.follow(wish);
        }
        let known = |view: &RegistryView| entrances.iter().all(|one| view.knows_entrance(one));
        Some(self.once(ANSWER_PATIENCE, known).await.unwrap_or(view))
    }

    /// Returns a view that knows a local pod. Waits only briefly for its caller, which is needed for labels alone.
    pub(crate) async fn known_both(&self, ours: IpAddr, caller: IpAddr) -> Option<Rc<WorkerView>> {
        let view = self.known(&[ours]).await?;
        let both = self.known_within(LABEL_PATIENCE, &[ours, caller]).await;
        Some(both.unwrap_or(view))
    }

    async fn known_within(
        &self,
        patience: Duration,
        addresses: &[IpAddr],
    ) -> Option<Rc<WorkerView>> {
        let knows = |view: &RegistryView| {
            let mut all = addresses.iter();
            view.is_told && all.all(|address| self.is_known(view, *address))
        };
        let view = self.view();
        if knows(&view) {
            return Some(view);
        }
        let unknown = addresses.iter().filter(|address| !view.knows(**address));
        let asked: Vec<IpAddr> = unknown.copied().collect();
        if self.parked.get() >= MAX_PARKED {
            return None;
        }
        asked
            .into_iter()
            .for_each(|address| self.asker.ask(address));
        self.once(patience, knows).await
    }

    /// Returns true if the view knows this address. With a subscription to everything, a missing address of a local
    /// pod counts as not yet received: the agent is often quicker than the control plane.
    fn is_known(&self, view: &RegistryView, address: IpAddr) -> bool {
        let is_coming = || view.is_whole() && !view.names(address) && self.home(address).is_some();
        view.knows(address) && !is_coming()
    }

    /// Waits for a view that satisfies `knows`.
    async fn once(
        &self,
        patience: Duration,
        knows: impl Fn(&RegistryView) -> bool,
    ) -> Option<Rc<WorkerView>> {
        let _place = Parked::among(&self.parked)?;
        let mut changes = self.changes.clone();
        let answered = changes.wait_for(|view| knows(view));
        let answered = tokio::time::timeout(patience, answered).await;
        let view = Arc::clone(&*answered.ok()?.ok()?);
        Some(Rc::new(WorkerView(view)))
    }

    /// Resolves a name for a pod.
    pub(crate) async fn resolve(&self, pod: &Arc<Pod>, host: &str) -> Resolved {
        let Some(_place) = Parked::among(&self.parked) else {
            return Err("too many connections wait for DNS".into());
        };
        let (answer, answered) = oneshot::channel();
        // The resolver task lives as long as the worker; without it the answer is dropped.
        let _ = self.asker.names.send(NameLookup {
            pod: Arc::clone(pod),
            host: host.into(),
            answer,
        });
        match tokio::time::timeout(ANSWER_PATIENCE, answered).await {
            Ok(Ok(resolved)) => resolved,
            Ok(Err(_)) => Err("the pod was removed".into()),
            Err(_) => Err("no resolver answered in time".into()),
        }
    }

    /// The pod of this node that has this address.
    pub(crate) fn home(&self, address: IpAddr) -> Option<Arc<Pod>> {
        self.homes.borrow().get(&address).cloned()
    }

    /// Permits a connection that came in, and watches that it stays permitted.
    pub(crate) fn admit(
        &self,
        view: &RegistryView,
        pod: &Arc<Pod>,
        proven: Option<&Rc<ProvenPeer>>,
        (source, destination): (IpAddr, SocketAddr),
    ) -> Result<Watched<'_>, ClosedReason> {
        let permitted = authorize(view, pod, proven.map(|one| &**one), (source, destination));
        let permit = permitted.inspect_err(|_| self.denied.set(self.denied.get() + 1))?;
        let cut = Rc::new(ConnectionCut::default());
        let key = self.live.borrow_mut().insert(Live {
            pod: Arc::clone(pod),
            proven: proven.cloned(),
            source,
            destination,
            cut: Rc::clone(&cut),
        });
        Ok(Watched {
            worker: self,
            key,
            cut,
            pod: Arc::clone(pod),
            _permit: permit,
        })
    }

    /// Applies a newer view, to new connections and to open ones.
    fn obey(&self, view: Arc<RegistryView>) {
        for (_, live) in self.live.borrow().iter() {
            let ends = (live.source, live.destination);
            if let Err(reason) = authorize(&view, &live.pod, live.proven.as_deref(), ends) {
                tracing::debug!(%reason, "a connection is closed by policy");
                self.cut.set(self.cut.get() + 1);
                live.cut.flags.set(Some(reason.flags()));
                live.cut.word.notify_one();
            }
        }
        self.bonds.obey(&view.revocations);
        *self.view.borrow_mut() = Rc::new(WorkerView(view));
    }

    fn figures(&self) -> NodeCounters {
        let mut shard = self.shard.borrow_mut();
        shard.expire(Instant::now());
        NodeCounters {
            snapshot: shard.snapshot(),
            pooled: self.pool.connections(),
            denied: self.denied.get(),
            cut: self.cut.get(),
            refused: self.refused.get(),
        }
    }

    /// Ends the largest holders of memory.
    fn shed(&self, order: ShedOrder) {
        let (freed, mut ended) = self.pool.blocks().shed(order.bytes, LARGE);
        if order.ordinary && freed < order.bytes {
            ended += self.connections.end_largest_source();
        }
        if ended > 0 {
            let ordinary = order.ordinary;
            tracing::warn!(
                ended,
                bytes = freed,
                ordinary,
                "memory limit is near: the largest tunnels are closed"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use voile_proto::discovery::Node;
    use voile_xds::client::{ClientConfig, TokenFile, Update};

    use super::*;
    use crate::registry::tests::Said;

    /// Returns a worker whose views come from `changes`.
    fn worker(changes: watch::Receiver<Arc<RegistryView>>) -> NodeWorker {
        let config = ClientConfig {
            addresses: Vec::new(),
            root_certificate: None,
            node: Node::default(),
        };
        let credentials = Arc::new(TokenFile(PathBuf::new()));
        let runtime = tokio::runtime::Handle::current();
        let never = std::future::pending();
        let handler = Box::new(|_: &Update| Vec::new());
        let (names, _) = mpsc::unbounded_channel();
        let asker = ControlPlaneClient {
            client: XdsClient::start_after(never, config, credentials, handler, &runtime),
            registry: Arc::new(Mutex::new(Registry::subscribed_to(Subscription::All))),
            subscription: Subscription::All,
            names,
        };
        NodeWorker::new(
            Arc::default(),
            changes,
            asker,
            (NodeMemory::new(0), Arc::default()),
        )
    }

    #[tokio::test]
    async fn nobody_is_taken_for_a_stranger_before_all_was_told() {
        let (publish, changes) = watch::channel(Arc::new(RegistryView::default()));
        let worker = worker(changes);
        let stranger = [IpAddr::from([192, 0, 2, 1])];
        let mut said = Said::told_all();
        said.policies(&[], &[]);
        publish.send_replace(Arc::new(said.registry.view()));
        let mut known = pin!(worker.known(&stranger));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(known.as_mut().poll(&mut cx).is_pending(), "it waits");
        said.addresses(Vec::new(), &[]);
        publish.send_replace(Arc::new(said.registry.view()));
        let view = known.await.expect("all was told");
        assert!(view.knows(stranger[0]) && !view.names(stranger[0]));
    }
}
