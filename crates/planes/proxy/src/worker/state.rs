//! State that the connections of one worker share, and what every room may ask of it: limits, labels, origins of connections and
//! messages to the control thread. It calls no listener and no handler.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ServerConfig};
use tokio::sync::{mpsc, oneshot};
use voile_hbone::Gateways;
use voile_http2::{MemoryChange, Pool};
use voile_memory::{MemoryPressure, SourceConnections};
use voile_telemetry::{PeerLabels, Shard};
use voile_transport::{self as transport, FirstSpeaker, Origin};

use crate::authorization::Authorization;
use crate::http::{Buffers, HttpRole, RoleRefusal};
use crate::plan::{AuthorizerPlan, LimiterPlan, Settings};
use crate::rate_limits::RateLimits;
use crate::telemetry_settings::{Recording, Recordings};
use crate::worker::in_flight::{Account, Ledger, Overload, RequestInFlight, WorkerAccount};
use crate::worker::listeners::server_first::{DestinationKey, ServersFirst, lesson};
use crate::worker::listeners::termination::Stop;
use crate::worker::messages::{FromWorker, Resolved};
use crate::worker::peers::{Peers, Provisional};
use crate::worker::policy::admission::TrustState;
use crate::worker::policy::authorizer::Authorizer;
use crate::worker::policy::rate_limits::WorkerRateLimits;
use crate::worker::policy::{audit_lines, decision_counters, tokens};
use crate::worker::upstream::server_certificates::AllShown;
use crate::worker::upstream::{health_checks, proxy_protocol, tunnel_pool};

/// TLS as both sides need it; certificates and trust are read anew in each handshake.
#[derive(Debug, Clone)]
pub(crate) struct Tls {
    pub(crate) server: Arc<ServerConfig>,
    /// TLS of tunnels, both ends.
    pub(crate) tunnel_server: Arc<ServerConfig>,
    pub(crate) tunnel_client: Arc<ClientConfig>,
    pub(crate) client_http: Arc<ClientConfig>,
    pub(crate) client_http2: Arc<ClientConfig>,
    pub(crate) client_tcp: Arc<ClientConfig>,
}

/// Plain counters of one worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerCounters {
    pub(crate) accepted: Cell<u64>,
    pub(crate) handshake_failures_downstream: Cell<u64>,
    pub(crate) handshake_failures_upstream: Cell<u64>,
    pub(crate) refused: Cell<u64>,
    pub(crate) retries: Cell<u64>,
    pub(crate) retries_over_budget: Cell<u64>,
    /// Copies of requests sent.
    pub(crate) mirrored: Cell<u64>,
    /// Copies not sent: too many under way, or the request too long to be kept.
    pub(crate) mirrors_dropped: Cell<u64>,
    pub(crate) outliers_ejected: Cell<u64>,
    pub(crate) authorization: decision_counters::DecisionCounters,
    pub(crate) tokens: tokens::TokenCounters,
}

pub(crate) fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// State that the connections of one worker share.
pub(crate) struct Worker {
    pub(crate) tls: Tls,
    pub(crate) buffers: Buffers,
    pub(crate) shard: RefCell<Shard>,
    pub(crate) counters: WorkerCounters,
    pub(crate) peers: Peers,
    pub(crate) provisional: Provisional,
    pub(crate) settings: RefCell<Rc<Settings>>,
    pub(crate) own: RefCell<Rc<PeerLabels>>,
    /// None until the first plan; without it no peer is trusted.
    pub(crate) belief: RefCell<Option<Rc<TrustState>>>,
    pub(crate) principal: RefCell<String>,
    pub(crate) recording: RefCell<Rc<Recording>>,
    /// Recordings of waypoint destinations that have their own.
    pub(crate) recordings_apart: RefCell<Vec<Rc<Recording>>>,
    /// True if any of them writes a log.
    pub(crate) logs: Cell<bool>,
    pub(crate) random: RefCell<fastrand::Rng>,
    /// Compiled policies; none without any.
    pub(crate) authorization: RefCell<Option<Authorization>>,
    /// External service of CUSTOM policies; none without such policies, or if it cannot be asked.
    pub(crate) authorizer: RefCell<Option<Rc<Authorizer>>>,
    /// Rules about tokens, and verified tokens.
    pub(crate) tokens: tokens::Tokens,
    /// Rate limits; none without any.
    pub(super) limiting: RefCell<Option<Rc<WorkerRateLimits>>>,
    /// Changes whenever what was let in is to be judged again.
    pub(crate) judgement: Cell<u32>,
    /// When this proxy heard of the change that is in force now.
    pub(crate) changed_at: Cell<Instant>,
    /// Dry-run lines in the log.
    pub(crate) rehearsals: audit_lines::Lines,
    /// Given, and replaced, at the same time: for those who wait.
    pub(crate) judged: RefCell<Stop>,
    /// Given when the worker drains: listeners close, requests in flight finish.
    pub(crate) draining: Cell<bool>,
    /// Given when patience is over.
    pub(crate) stop: Stop,
    /// Certificates of the servers that answered us.
    pub(crate) shown: AllShown,
    pub(super) load: Arc<AtomicUsize>,
    /// Our place at what all workers count together.
    pub(crate) seat: WorkerAccount,
    /// Requests in flight through this proxy.
    pub(super) all: Rc<Account>,
    /// Copies of requests under way.
    pub(crate) copies: Cell<u32>,
    /// Most connections held since the last time that most of them ended.
    pub(super) peak: Cell<usize>,
    /// When we last said that memory is short.
    pub(super) short_since: Cell<Option<Instant>>,
    pub(crate) next_key: Cell<u32>,
    /// Changes whenever our own labels do.
    pub(crate) epoch: Cell<u32>,
    control: mpsc::UnboundedSender<FromWorker>,
    pub(crate) capture: Redirected,
    pub(crate) servers_first: ServersFirst,
    /// Connections to node proxies.
    pub(crate) tunnels: Rc<tunnel_pool::Pool>,
    /// Downstream connections.
    pub(super) connections: SourceConnections,
    /// Gateways of other networks that failed lately.
    pub(super) gateways: Gateways,
    /// Health checkers of endpoints.
    pub(crate) checkers: health_checks::Checkers,
    /// Connections that are one client's alone.
    pub(crate) introduced: proxy_protocol::PreamblePoolKey,
    /// For tasks of its own.
    pub(super) me: Weak<Worker>,
}

impl Worker {
    pub(super) fn new(
        tls: Tls,
        control: mpsc::UnboundedSender<FromWorker>,
        load: Arc<AtomicUsize>,
        capture: Redirected,
        seat: WorkerAccount,
    ) -> Rc<Self> {
        let heads = Arc::clone(&seat.ledger.heads);
        let buffers = Buffers::with_heads(Arc::clone(&heads));
        let tunnels = tunnel_pool::Pool::new(Some(heads));
        for pool in [&buffers.http2, tunnels.blocks()] {
            watch(pool, &seat.ledger, &control);
        }
        Rc::new_cyclic(|me| Self {
            tls,
            buffers,
            shard: RefCell::default(),
            counters: WorkerCounters::default(),
            peers: Peers::new(control.clone()),
            provisional: Provisional::default(),
            settings: RefCell::new(Rc::new(Settings::default())),
            own: RefCell::default(),
            belief: RefCell::default(),
            principal: RefCell::default(),
            recording: RefCell::new(Rc::new(Recording::new("".into()))),
            recordings_apart: RefCell::default(),
            logs: Cell::new(false),
            random: RefCell::new(fastrand::Rng::new()),
            authorization: RefCell::default(),
            authorizer: RefCell::default(),
            tokens: tokens::Tokens::default(),
            limiting: RefCell::default(),
            judgement: Cell::new(0),
            changed_at: Cell::new(Instant::now()),
            rehearsals: audit_lines::Lines::default(),
            judged: RefCell::default(),
            draining: Cell::new(false),
            stop: Stop::default(),
            shown: AllShown::default(),
            load,
            all: seat.all(),
            seat,
            copies: Cell::new(0),
            peak: Cell::new(0),
            short_since: Cell::new(None),
            next_key: Cell::new(0),
            epoch: Cell::new(0),
            control,
            capture,
            servers_first: ServersFirst::default(),
            tunnels: Rc::new(tunnels),
            connections: SourceConnections::default(),
            gateways: Gateways::default(),
            checkers: health_checks::Checkers::default(),
            introduced: proxy_protocol::PreamblePoolKey::default(),
            me: me.clone(),
        })
    }

    /// Asks the control thread for the addresses of a name.
    pub(crate) async fn resolve(&self, host: &Arc<str>) -> Resolved {
        self.ask(|answer| FromWorker::Resolve(Arc::clone(host), answer))
            .await
    }

    /// The same for a host that a client named, whose addresses must be outside the mesh.
    pub(crate) async fn resolve_outside(&self, host: &Arc<str>) -> Resolved {
        self.ask(|answer| FromWorker::ResolveOutside(Arc::clone(host), answer))
            .await
    }

    async fn ask(
        &self,
        question: impl FnOnce(oneshot::Sender<Resolved>) -> FromWorker,
    ) -> Resolved {
        let (answer, answered) = oneshot::channel();
        self.tell(question(answer));
        let gone = || Err("the proxy is shutting down".into());
        answered.await.unwrap_or_else(|_| gone())
    }

    /// Admits and counts one more request, if the limits allow it.
    pub(crate) fn admit<R: HttpRole>(
        &self,
        destination: Option<&Rc<Account>>,
    ) -> Result<AdmittedRequest, RoleRefusal<R>> {
        if self.seat.ledger.ceiling.arrived().is_some() {
            self.memory_is_short();
        }
        match self.seat.admit(&self.all, destination) {
            Ok(()) => Ok(AdmittedRequest {
                _all: self.all.begin(),
                _destination: destination.map(Account::begin),
            }),
            Err(why) => Err(RoleRefusal::new(503, why.flag(), why.reason())),
        }
    }

    /// Forgets what can be had again.
    pub(super) fn relieve(&self) {
        if let Some(authorizer) = &*self.authorizer.borrow() {
            authorizer.relieve();
        }
        if let Some(limiting) = &*self.limiting.borrow() {
            limiting.relieve();
        }
        self.tokens.forget();
    }

    /// Counts a stream whose head has yet to come. Returns false if memory is too short to wait for it.
    pub(crate) fn takes_stream(&self) -> bool {
        let ledger = &self.seat.ledger;
        if ledger.ceiling.arrived().is_some() {
            self.memory_is_short();
        }
        let takes = !ledger.ceiling.is_closed();
        if !takes {
            ledger.count_refused(Overload::Memory);
        }
        takes
    }

    /// Reports short memory, at most once in the interval in which the control thread can act on it.
    pub(super) fn memory_is_short(&self) {
        let now = Instant::now();
        let recent = |then: Instant| now.duration_since(then) < RELIEF_INTERVAL;
        if !self.short_since.get().is_some_and(recent) {
            self.short_since.set(Some(now));
            self.tell(FromWorker::MemoryShort);
        }
    }

    /// Sends a message to the control thread. Without a receiver the process is ending.
    pub(crate) fn tell(&self, news: FromWorker) {
        let _ = self.control.send(news);
    }

    /// Origin of outward connections: our own address, and a mark where redirect rules recognise us by marks.
    pub(crate) fn outward(&self) -> Origin {
        Origin {
            source: self.settings.borrow().source_address,
            mark: self
                .capture
                .exemption
                .and_then(transport::CaptureExemption::outward_mark),
            foreign: false,
        }
    }

    /// Origin of connections to our own application, at this address, for this caller.
    pub(crate) fn homeward(&self, caller: SocketAddr, application: SocketAddr) -> Origin {
        let exempt = self.capture.exemption;
        let own = exempt.map(|by| by.to_application(application.ip()));
        let own = own.unwrap_or_default();
        match self.kept_source(caller) {
            None => own,
            source @ Some(_) => Origin {
                source,
                foreign: true,
                ..own
            },
        }
    }

    /// The address from which the application is called in this caller's name, where it asks for that.
    pub(crate) fn kept_source(&self, caller: SocketAddr) -> Option<IpAddr> {
        let kept = self.capture.keeps_source;
        kept.then(|| caller.ip().to_canonical())
    }

    pub(crate) fn random(&self) -> u64 {
        self.random.borrow_mut().u64(..)
    }

    /// A pool key that was never used before.
    pub(crate) fn fresh_key(&self) -> u32 {
        let key = self.next_key.get();
        self.next_key.set(key.wrapping_add(1));
        key
    }

    /// Sets our workload's labels; every series is looked up again if they changed.
    pub(super) fn become_workload(&self, own: &PeerLabels) {
        if **self.own.borrow() != *own {
            *self.own.borrow_mut() = Rc::new(own.clone());
            self.epoch.set(self.epoch.get().wrapping_add(1));
        }
    }

    /// Replaces the trust only if it changed: connections compare the pointer to learn if their permit stands. Returns true if
    /// it did.
    pub(super) fn believe(&self, belief: TrustState) -> bool {
        let changed = self.belief.borrow().as_deref() != Some(&belief);
        if changed {
            *self.belief.borrow_mut() = Some(Rc::new(belief));
        }
        changed
    }

    /// Obeys other policies; says whether they are.
    pub(super) fn obey_policies(&self, policies: Option<&Authorization>) -> bool {
        let changed = self.authorization.borrow().as_ref() != policies;
        if changed {
            *self.authorization.borrow_mut() = policies.cloned();
        }
        changed
    }

    /// Follows a plan of the external service; returns true if it is another service.
    pub(super) fn ask_of(&self, plan: Option<&AuthorizerPlan>) -> bool {
        let before = self.authorizer.borrow().clone();
        let now = plan.map(|plan| Authorizer::follow(self, before.as_ref(), plan));
        let id = |whom: &Option<Rc<Authorizer>>| whom.as_ref().map(|whom| whom.id());
        let changed = id(&before) != id(&now);
        *self.authorizer.borrow_mut() = now;
        changed
    }

    /// Counts requests by other limits from now on; says whether they are.
    pub(super) fn limit(&self, limits: Option<&Arc<RateLimits>>, limiters: &[LimiterPlan]) -> bool {
        let before = self.limiting.borrow().clone();
        let now = WorkerRateLimits::follow(self, before.as_ref(), limits, limiters);
        let changed = !WorkerRateLimits::is_same(before.as_ref(), now.as_ref());
        *self.limiting.borrow_mut() = now;
        changed
    }

    /// Everything admitted is judged again before it moves on.
    pub(super) fn judge_again(&self) {
        self.judgement.set(self.judgement.get().wrapping_add(1));
        self.judged.take().give();
    }

    pub(super) fn become_principal(&self, principal: String) {
        if *self.principal.borrow() != principal {
            *self.principal.borrow_mut() = principal;
            self.epoch.set(self.epoch.get().wrapping_add(1));
        }
    }

    pub(crate) fn settings(&self) -> Rc<Settings> {
        Rc::clone(&self.settings.borrow())
    }
}

/// A request that was let in, counted until it is dropped.
pub(crate) struct AdmittedRequest {
    _all: RequestInFlight,
    _destination: Option<RequestInFlight>,
}

/// Number of connections from which on a worker gives memory back when three quarters of them have ended.
const MANY_CONNECTIONS: usize = 256;

/// Time between two words of one worker that memory is short.
const RELIEF_INTERVAL: Duration = Duration::from_secs(1);

/// Memory that is freed with a connection, its TLS session included, as a rule.
pub(crate) const CONNECTION_BYTES: usize = 64 * 1024;

/// A connection's place in the worker's load; dropping it gives the place back.
pub(crate) struct ConnectionPermit(pub(super) Rc<Worker>, pub(super) usize);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let left = self
            .0
            .load
            .fetch_sub(1, Ordering::Relaxed)
            .saturating_sub(1);
        let peak = self.0.peak.get();
        if peak >= MANY_CONNECTIONS && left < peak / 4 {
            self.0.peak.set(left);
            self.0.tell(FromWorker::Freed);
        }
        self.0.connections.end(self.1);
        if left == 0 {
            self.0.buffers.http2.freed(CONNECTION_BYTES);
        }
    }
}

/// Redirection by the kernel.
#[derive(Debug, Clone)]
pub(crate) struct Redirected {
    /// Ports to which it does; empty where nothing is captured.
    pub(crate) ports: Vec<u16>,
    /// How the rules recognise our own connections; `None` where nothing is captured.
    pub(crate) exemption: Option<transport::CaptureExemption>,
    /// True if the application is called from its client's own address.
    pub(crate) keeps_source: bool,
}

/// Future of a connection's rest, once its protocol is known.
pub(crate) type Conversation = Pin<Box<dyn Future<Output = ()>>>;

impl Worker {
    /// Reports that the checked endpoints may have changed. Drops `obeyed` first, so that removed checkers hold no health
    /// records.
    pub(crate) fn tell_of_checks<T>(&self, obeyed: T) {
        drop(obeyed);
        if self.checkers.are_any() {
            self.tell(FromWorker::Found);
        }
    }

    /// Tells from now on what these say.
    pub(super) fn record(&self, recordings: &Recordings) {
        *self.recording.borrow_mut() = Rc::new(recordings.own.clone());
        let apart = recordings.apart.iter();
        let apart = apart.map(|one| Rc::new(one.clone())).collect();
        *self.recordings_apart.borrow_mut() = apart;
        self.logs.set(recordings.logs());
    }
}

/// Has the control thread told of what the users of a pool take and free.
fn watch(pool: &Pool, ledger: &Arc<Ledger>, control: &mpsc::UnboundedSender<FromWorker>) {
    let (ledger, control) = (Arc::clone(ledger), control.clone());
    pool.on_change(move |change| {
        let news = match change {
            MemoryChange::Freed => FromWorker::Freed,
            MemoryChange::Grown if ledger.ceiling.look() > MemoryPressure::Free => {
                FromWorker::MemoryShort
            }
            MemoryChange::Grown => return,
        };
        // Without a receiver the process is ending.
        let _ = control.send(news);
    });
}

impl Worker {
    /// Learns from how a connection began, and lets the others know.
    pub(crate) fn teach(&self, place: DestinationKey, opening: FirstSpeaker) {
        if let Some(server_first) = lesson(place, self.servers_first.knows(place), opening) {
            self.servers_first.learn(place, server_first);
            self.tell(FromWorker::ServerFirst {
                place,
                server_first,
            });
        }
    }
}
