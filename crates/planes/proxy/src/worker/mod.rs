//! A worker: one thread, one runtime, its own pools, buffers, counters and copy of the plan. It is told everything by
//! message; a connection is one local task.

mod handlers;
mod holders;
mod in_flight;
mod listeners;
mod peers;
mod policy;
mod records;
mod routing;
#[cfg(test)]
pub(crate) mod tests;
mod upstream;

use records::{access_logs, reporter, request_notes, request_series};

use upstream::{
    balance, dynamic_dns, endpoint, health_checks, proxy_protocol, server_certificates,
    service_state, tunnels, upstream_connection, upstream_outcome,
};

pub(crate) use routing::routes;
use routing::{mirror, requested_host, route_effects};

use policy::{
    admission, authorization, authorizer, external_call, policy_audit, rate_limits,
    request_changes, tokens,
};

use handlers::{
    forwarded_client_cert, gateway, gateway_context, gateway_http, gateway_http3, gateway_tcp,
    inbound, inbound_http, outbound, outbound_http, untrusted_headers, waypoint, waypoint_metrics,
};

use listeners::{captured_listeners, late_detection, listener_set, server_first, termination};

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) use authorization::AuthorizationFigures;
use quinn::Incoming;
use rustls::{ClientConfig, ServerConfig};
pub(crate) use tokens::TokenFigures;
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, oneshot};
use voile_hbone::Gateways;
use voile_memory::{ShedOrder, SourceConnections};
use voile_telemetry::{PeerLabels, Shard, Snapshot};
use voile_transport::{self as transport, Origin};

use crate::authorization::Authorization;
use crate::http::{Buffers, HttpRole, RoleRefusal, clock};
use crate::plan::{
    AuthorizerPlan, CapturedDestination, LimiterPlan, ListenerId, OutboundPlan, ProxyPlan, Settings,
};
use crate::rate_limits::RateLimits;
use crate::telemetry_settings::{Recording, Recordings};
use admission::TrustState;
use authorizer::Authorizer;
pub(crate) use endpoint::verify;
pub(crate) use gateway_http3::HandshakePermit;
pub use in_flight::ProxyLimits;
use in_flight::{Account, RequestInFlight};
pub(crate) use in_flight::{Ledger, Overload, WorkerAccount};
use listener_set::WorkerListeners;
use peers::{Peers, Provisional};
use rate_limits::WorkerRateLimits;
use server_certificates::AllShown;
use server_first::ServersFirst;
use termination::Stop;
use voile_http2::source_number;

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

/// Message to a worker.
pub(crate) enum ToWorker {
    /// A client connected.
    Accepted {
        listener: ListenerId,
        stream: TcpStream,
        peer: SocketAddr,
    },
    /// A client asks for an HTTP/3 connection.
    Http3 {
        listener: ListenerId,
        incoming: Box<(Incoming, HandshakePermit)>,
    },
    /// Obey this from now on; listeners are named in the order of the plan.
    Plan {
        plan: Arc<ProxyPlan>,
        inbound: Vec<ListenerId>,
        outbound: Vec<ListenerId>,
        gateway: Vec<ListenerId>,
        recording: Arc<Recordings>,
        /// When the last word that it is made of arrived.
        heard: Instant,
    },
    /// The answer about a stranger's address.
    Peer {
        address: IpAddr,
        peer: Option<Box<PeerLabels>>,
    },
    /// Plan of a captured destination; `None` when it is let go.
    Destination {
        to: CapturedDestination,
        plan: Option<Arc<OutboundPlan>>,
    },
    /// Another worker's lesson: does the server speak first there?
    ServerFirst {
        place: server_first::DestinationKey,
        server_first: bool,
    },
    /// Say what was used since the last time.
    Used(oneshot::Sender<InUse>),
    /// The control thread no longer follows these addresses.
    Strangers(Arc<BTreeSet<IpAddr>>),
    /// Our certificate changed: this is our identity now.
    Identity(String),
    /// Memory is short: close what is idle.
    Relieve,
    /// End the largest holders of memory.
    Shed(ShedOrder),
    /// Give a copy of the counters.
    Scrape(oneshot::Sender<WorkerFigures>),
    /// Finish what is in flight; gently, idle connections stay for a last request.
    Drain { gently: bool },
}

/// Destinations and addresses that a worker uses.
#[derive(Debug, Default)]
pub(crate) struct InUse {
    /// Captured destinations that are called, or were since the last question.
    pub(crate) destinations: Vec<CapturedDestination>,
    /// Addresses that called since then.
    pub(crate) strangers: Vec<IpAddr>,
}

/// Message from a worker.
#[derive(Debug)]
pub(crate) enum FromWorker {
    /// Asks for the workload at this address, for labels.
    Stranger(IpAddr),
    /// Where does this captured destination lead?
    Destination(CapturedDestination),
    /// Idle connections should make room.
    MemoryShort,
    /// Much memory was freed: it can go back to the kernel.
    Freed,
    /// The control plane has not said in time where it leads.
    Overdue(CapturedDestination),
    /// Endpoints of this name are used; its addresses may have expired.
    Used(Arc<str>),
    /// Asks for the addresses of this name; a connection waits.
    Resolve(Arc<str>, oneshot::Sender<Resolved>),
    /// The same for a host outside that a client named: its addresses must not be the mesh's.
    ResolveOutside(Arc<str>, oneshot::Sender<Resolved>),
    /// Lesson for the other workers: does the server speak first there?
    ServerFirst {
        place: server_first::DestinationKey,
        server_first: bool,
    },
    /// A HealthCheck changed an endpoint's health, or the checked endpoints changed.
    Found,
}

/// The addresses of a name, or why there are none.
pub(crate) type Resolved = Result<Arc<[IpAddr]>, Arc<str>>;

/// Answer of a worker to a scrape.
pub(crate) struct WorkerFigures {
    pub(crate) snapshot: Snapshot,
    pub(crate) connections: u64,
    pub(crate) accepted: u64,
    pub(crate) handshake_failures_downstream: u64,
    pub(crate) handshake_failures_upstream: u64,
    pub(crate) refused: u64,
    pub(crate) idle_upstreams: u64,
    pub(crate) retries: u64,
    pub(crate) retries_over_budget: u64,
    pub(crate) mirrored: u64,
    pub(crate) mirrors_dropped: u64,
    pub(crate) outliers_ejected: u64,
    pub(crate) authorization: AuthorizationFigures,
    pub(crate) tokens: TokenFigures,
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
    pub(crate) authorization: authorization::DecisionCounters,
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
    limiting: RefCell<Option<Rc<WorkerRateLimits>>>,
    /// Changes whenever what was let in is to be judged again.
    pub(crate) judgement: Cell<u32>,
    /// When this proxy heard of the change that is in force now.
    pub(crate) changed_at: Cell<Instant>,
    /// Dry-run lines in the log.
    pub(crate) rehearsals: policy_audit::Lines,
    /// Given, and replaced, at the same time: for those who wait.
    pub(crate) judged: RefCell<Stop>,
    /// Given when the worker drains: listeners close, requests in flight finish.
    pub(crate) draining: Cell<bool>,
    /// Given when patience is over.
    pub(crate) stop: Stop,
    /// Certificates of the servers that answered us.
    pub(crate) shown: AllShown,
    load: Arc<AtomicUsize>,
    /// Our place at what all workers count together.
    pub(crate) seat: WorkerAccount,
    /// Requests in flight through this proxy.
    all: Rc<Account>,
    /// Copies of requests under way.
    pub(crate) copies: Cell<u32>,
    /// Most connections held since the last time that most of them ended.
    peak: Cell<usize>,
    /// When we last said that memory is short.
    short_since: Cell<Option<Instant>>,
    pub(crate) next_key: Cell<u32>,
    /// Changes whenever our own labels do.
    pub(crate) epoch: Cell<u32>,
    control: mpsc::UnboundedSender<FromWorker>,
    pub(crate) capture: Redirected,
    pub(crate) servers_first: ServersFirst,
    /// Connections to node proxies.
    pub(crate) tunnels: Rc<tunnels::Pool>,
    /// Downstream connections.
    connections: SourceConnections,
    /// Gateways of other networks that failed lately.
    gateways: Gateways,
    /// Health checkers of endpoints.
    pub(crate) checkers: health_checks::Checkers,
    /// Connections that are one client's alone.
    pub(crate) introduced: proxy_protocol::PreamblePoolKey,
    /// For tasks of its own.
    me: Weak<Worker>,
}

impl Worker {
    fn new(
        tls: Tls,
        control: mpsc::UnboundedSender<FromWorker>,
        load: Arc<AtomicUsize>,
        capture: Redirected,
        seat: WorkerAccount,
    ) -> Rc<Self> {
        let heads = Arc::clone(&seat.ledger.heads);
        let buffers = Buffers::with_heads(Arc::clone(&heads));
        let tunnels = tunnels::Pool::new(Some(heads));
        for pool in [&buffers.http2, tunnels.blocks()] {
            holders::watch(pool, &seat.ledger, &control);
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
            rehearsals: policy_audit::Lines::default(),
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
    fn relieve(&self) {
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
    fn memory_is_short(&self) {
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
    fn become_workload(&self, own: &PeerLabels) {
        if **self.own.borrow() != *own {
            *self.own.borrow_mut() = Rc::new(own.clone());
            self.epoch.set(self.epoch.get().wrapping_add(1));
        }
    }

    /// Replaces the trust only if it changed: connections compare the pointer to learn if their permit stands. Returns true if
    /// it did.
    fn believe(&self, belief: TrustState) -> bool {
        let changed = self.belief.borrow().as_deref() != Some(&belief);
        if changed {
            *self.belief.borrow_mut() = Some(Rc::new(belief));
        }
        changed
    }

    /// Obeys other policies; says whether they are.
    fn obey_policies(&self, policies: Option<&Authorization>) -> bool {
        let changed = self.authorization.borrow().as_ref() != policies;
        if changed {
            *self.authorization.borrow_mut() = policies.cloned();
        }
        changed
    }

    /// Follows a plan of the external service; returns true if it is another service.
    fn ask_of(&self, plan: Option<&AuthorizerPlan>) -> bool {
        let before = self.authorizer.borrow().clone();
        let now = plan.map(|plan| Authorizer::follow(self, before.as_ref(), plan));
        let id = |whom: &Option<Rc<Authorizer>>| whom.as_ref().map(|whom| whom.id());
        let changed = id(&before) != id(&now);
        *self.authorizer.borrow_mut() = now;
        changed
    }

    /// Counts requests by other limits from now on; says whether they are.
    fn limit(&self, limits: Option<&Arc<RateLimits>>, limiters: &[LimiterPlan]) -> bool {
        let before = self.limiting.borrow().clone();
        let now = WorkerRateLimits::follow(self, before.as_ref(), limits, limiters);
        let changed = !WorkerRateLimits::is_same(before.as_ref(), now.as_ref());
        *self.limiting.borrow_mut() = now;
        changed
    }

    /// Everything admitted is judged again before it moves on.
    fn judge_again(&self) {
        self.judgement.set(self.judgement.get().wrapping_add(1));
        self.judged.take().give();
    }

    fn become_principal(&self, principal: String) {
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
const CONNECTION_BYTES: usize = 64 * 1024;

/// A connection's place in the worker's load; dropping it gives the place back.
pub(crate) struct ConnectionPermit(Rc<Worker>, usize);

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

/// Parts from which a worker is made.
pub(crate) struct WorkerInputs {
    pub(crate) tls: Tls,
    pub(crate) inbox: mpsc::UnboundedReceiver<ToWorker>,
    pub(crate) control: mpsc::UnboundedSender<FromWorker>,
    pub(crate) capture: Redirected,
    /// Connections handed over and not yet ended; the accepting thread counts up, we count down.
    pub(crate) load: Arc<AtomicUsize>,
    pub(crate) seat: WorkerAccount,
}

/// Runs a worker on this thread until it has drained.
pub(crate) fn run(birth: WorkerInputs) -> std::io::Result<()> {
    // Tasks on the runtime itself: a `LocalSet` would be a second scheduler inside the first.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(LocalOptions::default())?;
    let worker = Worker::new(
        birth.tls,
        birth.control,
        birth.load,
        birth.capture,
        birth.seat,
    );
    runtime.block_on(async {
        let _clock = clock::start()?;
        serve(worker, birth.inbox).await;
        Ok(())
    })
}

/// Ends when the sender is gone (the control thread ends us) or when everything drained.
async fn serve(worker: Rc<Worker>, mut inbox: mpsc::UnboundedReceiver<ToWorker>) {
    let mut slots = WorkerListeners::default();
    while let Some(message) = inbox.recv().await {
        match message {
            ToWorker::Accepted {
                listener,
                stream,
                peer,
            } => accepted(&worker, &slots, listener, stream, peer),
            ToWorker::Http3 { listener, incoming } => {
                let place = placed(&worker, incoming.0.remote_address().ip());
                slots.serve_http3(&worker, listener, incoming, place);
            }
            ToWorker::Plan {
                plan,
                inbound,
                outbound,
                gateway,
                recording,
                heard,
            } => {
                worker.changed_at.set(heard);
                worker.record(&recording);
                slots.apply(&worker, &plan, [&inbound, &outbound, &gateway]);
                worker.tell_of_checks(plan);
            }
            ToWorker::Peer { address, peer } => {
                worker
                    .provisional
                    .settle(&worker.shard, address, peer.as_deref());
                worker.peers.learn(address, peer.map(|peer| *peer));
            }
            ToWorker::Destination { to, plan } => slots.learn(&worker, to, plan),
            ToWorker::ServerFirst {
                place,
                server_first,
            } => worker.servers_first.learn(place, server_first),
            ToWorker::Used(answer) => {
                let _ = answer.send(InUse {
                    destinations: slots.captured.used(),
                    strangers: worker.peers.used(),
                });
            }
            ToWorker::Strangers(gone) => worker.peers.forget(&gone),
            ToWorker::Identity(principal) => worker.become_principal(principal),
            ToWorker::Scrape(answer) => {
                // A scraper that went away needs no answer.
                let _ = answer.send(figures(&worker, &slots));
            }
            ToWorker::Relieve => {
                slots.relieve();
                worker.relieve();
            }
            ToWorker::Shed(shed) => worker.shed(shed),
            ToWorker::Drain { gently } => {
                worker.draining.set(true);
                slots.drain(gently);
            }
        }
    }
    worker.stop.give();
    worker.shown.stop();
    // Cut relays end in resets, not in what looks like a finished stream; their tasks need a turn for that.
    for _ in 0..LAST_TURNS {
        tokio::task::yield_now().await;
    }
}

/// Turns of the runtime for the tasks that must stop, before everything is dropped.
const LAST_TURNS: usize = 16;

fn figures(worker: &Worker, slots: &WorkerListeners) -> WorkerFigures {
    worker.shard.borrow_mut().expire(Instant::now());
    WorkerFigures {
        snapshot: worker.shard.borrow().snapshot(),
        connections: worker.load.load(Ordering::Relaxed) as u64,
        accepted: worker.counters.accepted.get(),
        handshake_failures_downstream: worker.counters.handshake_failures_downstream.get(),
        handshake_failures_upstream: worker.counters.handshake_failures_upstream.get(),
        refused: worker.counters.refused.get(),
        idle_upstreams: slots.idle_upstreams(),
        retries: worker.counters.retries.get(),
        retries_over_budget: worker.counters.retries_over_budget.get(),
        mirrored: worker.counters.mirrored.get(),
        mirrors_dropped: worker.counters.mirrors_dropped.get(),
        outliers_ejected: worker.counters.outliers_ejected.get(),
        authorization: worker.counters.authorization.figures(),
        tokens: worker.counters.tokens.figures(),
    }
}

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
    fn record(&self, recordings: &Recordings) {
        *self.recording.borrow_mut() = Rc::new(recordings.own.clone());
        let apart = recordings.apart.iter();
        let apart = apart.map(|one| Rc::new(one.clone())).collect();
        *self.recordings_apart.borrow_mut() = apart;
        self.logs.set(recordings.logs());
    }
}

/// A connection that was handed over.
fn placed(worker: &Rc<Worker>, peer: IpAddr) -> ConnectionPermit {
    let held = worker.load.load(Ordering::Relaxed);
    worker.peak.set(worker.peak.get().max(held));
    count(&worker.counters.accepted);
    let number = match worker.seat.ledger.ceiling.is_set() {
        true => worker.connections.begin(source_number(peer, "")),
        false => SourceConnections::UNLISTED,
    };
    ConnectionPermit(Rc::clone(worker), number)
}

fn accepted(
    worker: &Rc<Worker>,
    slots: &WorkerListeners,
    listener: ListenerId,
    stream: TcpStream,
    peer: SocketAddr,
) {
    let place = placed(worker, peer.ip());
    worker.seat.ledger.ceiling.accepted();
    if worker.seat.ledger.ceiling.is_closed() {
        worker.seat.ledger.count_refused(Overload::Memory);
        return;
    }
    let captured = [ListenerId::CAPTURED_OUTBOUND, ListenerId::CAPTURED_INBOUND];
    let redirected = match listener {
        ListenerId::TUNNELS => Some(None),
        _ => captured
            .contains(&listener)
            .then(|| captured_listeners::original(worker, &stream)),
    };
    // Latency before packets: requests and answers are small.
    let stream = stream
        .set_nodelay(true)
        .and_then(|()| tokio::net::TcpStream::from_std(stream));
    let Ok(stream) = stream else {
        return; // The client left while it was handed over.
    };
    match redirected {
        None => slots.serve(worker, listener, stream, peer, place),
        Some(to) => slots.serve_captured(worker, listener, to, stream, peer, place),
    }
}
