//! A worker's listeners: their present configuration, and plan changes that leave the others alone. A connection holds its slot:
//! a change reaches it at its next request, and a removed listener lets its connections finish.

use std::cell::{Cell, Ref, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use quinn::Incoming;
use tokio::net::TcpStream;
use voile_identity::Revocations;
use voile_policy::Trust;
use voile_traffic::AuthorityTable;
use voile_xds::wire::{MutualTls, WireProtocol};

use crate::authorization::Authorization;
use crate::http::limits::UPSTREAM_IDLE;
use crate::http::{Drain, HttpRole, HttpTimeouts, HttpWorker};
use crate::plan::{
    CapturedDestination, DoorPlan, InboundPlan, ListenerId, OutboundPlan, PassthroughMode,
    ProxyPlan, Settings, SharedPart,
};
use crate::telemetry_settings::Recording;
use crate::worker::access_logs::Downstream;
use crate::worker::admission::TrustState;
use crate::worker::captured_listeners::{self, CapturedListeners};
use crate::worker::gateway::GatewaySlot;
use crate::worker::inbound_http::InboundRole;
use crate::worker::outbound_http::OutboundRole;
use crate::worker::service_state::ServiceState;
use crate::worker::termination::Stop;
use crate::worker::tokens::Tokens;
use crate::worker::{
    ConnectionPermit, HandshakePermit, Worker, gateway, gateway_http3, inbound, outbound, tunnels,
};

/// An inbound listener in force.
pub(crate) struct InboundSlot {
    pub(crate) plan: RefCell<Rc<InboundPlan>>,
    pub(crate) http: ListenerEngine<InboundRole>,
    /// Changes with the application's address, so that its pool does.
    pub(crate) endpoint_key: Cell<u32>,
    /// Given when connections that arrived in plaintext are no longer welcome.
    pub(crate) no_plaintext: RefCell<Stop>,
    /// Set for a listener with settings of its own.
    own: Option<Box<OwnSettings>>,
}

/// Settings of one listener alone.
#[derive(Default)]
struct OwnSettings {
    policies: RefCell<Option<Authorization>>,
    tokens: Tokens,
    /// The service that it is the destination of, if it is one's.
    host: RefCell<Option<Arc<str>>>,
    /// Index among the recordings of destinations that have their own.
    telemetry: Cell<Option<usize>>,
}

/// An outbound listener in force.
pub(crate) struct OutboundSlot {
    pub(crate) plan: RefCell<Rc<OutboundPlan>>,
    pub(crate) table: RefCell<Rc<Table>>,
    pub(crate) http: ListenerEngine<OutboundRole>,
}

/// Destinations of an outbound listener.
pub(crate) struct Table {
    pub(crate) services: Vec<Rc<ServiceState>>,
    pub(crate) by_authority: AuthorityTable<usize>,
    pub(crate) otherwise: PassthroughMode,
    by_name: bool,
}

/// A listener's HTTP engine: its own pool, so that removing a listener empties it.
pub(crate) struct ListenerEngine<R: HttpRole> {
    engine: RefCell<Rc<HttpWorker<R>>>,
    drain: Drain,
}

impl<R: HttpRole + 'static> ListenerEngine<R> {
    pub(in crate::worker) fn new(worker: &Worker, settings: &Settings) -> Self {
        let drain = Drain::new();
        Self {
            engine: RefCell::new(engine(worker, &drain, settings)),
            drain,
        }
    }

    pub(crate) fn engine(&self) -> Rc<HttpWorker<R>> {
        Rc::clone(&self.engine.borrow())
    }

    /// The listener is gone: its connections finish.
    pub(crate) fn leave(&self) {
        self.drain(false);
    }

    /// Closes idle connections of clients and to upstreams.
    pub(crate) fn relieve(&self) {
        self.engine.borrow().close_idle_upstreams();
        self.drain.retire_idle();
    }

    /// Its exchanges in flight are judged again.
    pub(crate) fn judge_again(&self) {
        self.drain.judge_again();
    }

    /// Judges its exchanges again, and closes idle upstream connections.
    pub(crate) fn doubt(&self) {
        self.engine.borrow().close_idle_upstreams();
        self.drain.judge_again();
    }

    /// Its connections finish; gently, idle ones may speak once more.
    pub(crate) fn drain(&self, gently: bool) {
        match gently {
            true => self.drain.begin(),
            false => self.drain.start(),
        }
    }

    /// Ready when its connections are to finish.
    pub(crate) async fn leaving(&self) {
        self.drain.given().await;
    }

    /// Ready when connections that carry nothing are to close.
    pub(crate) async fn idle_unwelcome(&self) {
        self.drain.idle_unwelcome().await;
    }

    pub(crate) fn idle_upstreams(&self) -> usize {
        self.engine.borrow().idle_upstreams()
    }

    pub(in crate::worker) fn renew(&self, worker: &Worker, settings: &Settings) {
        *self.engine.borrow_mut() = engine(worker, &self.drain, settings);
    }
}

fn engine<R: HttpRole + 'static>(
    worker: &Worker,
    drain: &Drain,
    settings: &Settings,
) -> Rc<HttpWorker<R>> {
    let timeouts = HttpTimeouts {
        header: settings.header_timeout,
        downstream_idle: settings.idle_timeout,
        request: worker.seat.ledger.limits.request_timeout,
        min_body_rate: worker.seat.ledger.limits.min_body_rate,
        // A mesh's sidecars have one idle timeout: ours as a client is well within that of the other as a server.
        upstream_idle: UPSTREAM_IDLE.min(settings.idle_timeout / 2),
        ..HttpTimeouts::default()
    };
    let engine = HttpWorker::new(worker.buffers.clone(), drain.clone(), timeouts);
    tokio::task::spawn_local(engine.keeper());
    engine
}

/// See the module.
#[derive(Default)]
pub(crate) struct WorkerListeners {
    inbound: HashMap<ListenerId, Rc<InboundSlot>>,
    outbound: HashMap<ListenerId, Rc<OutboundSlot>>,
    gateway: HashMap<ListenerId, Rc<GatewaySlot>>,
    pub(crate) captured: Rc<CapturedListeners>,
}

impl WorkerListeners {
    /// Obeys a plan; its listeners are named in its order.
    pub(crate) fn apply(
        &mut self,
        worker: &Worker,
        plan: &ProxyPlan,
        [inbound, outbound, gateway]: [&[ListenerId]; 3],
    ) {
        let renewed = **worker.settings.borrow() != plan.settings;
        // Certificate facts are noted at the connect: a client without them connects again.
        let forwards = {
            let before = worker.settings.borrow();
            let told = |settings: &Settings| (settings.forwards, settings.details);
            told(&before) != told(&plan.settings)
        };
        if renewed {
            *worker.settings.borrow_mut() = Rc::new(plan.settings.clone());
        }
        worker.become_workload(&plan.own);
        let aliases = plan.trust_domain_aliases.clone();
        let mut judge = worker.believe(TrustState {
            trust: Trust::new(plan.trust_domain.clone(), aliases),
            revocations: plan.revocations.clone(),
        });
        if judge {
            self.doubt_servers(worker, plan.revocations.as_deref());
        }
        let limits = plan.rate_limits.as_ref().map(|SharedPart(limits)| limits);
        judge |= worker.limit(limits, &plan.limiters);
        judge |= worker.obey_policies(plan.authorization.as_ref());
        judge |= worker.ask_of(plan.authorizer.as_ref());
        judge |= worker.tokens.obey(plan.tokens.as_ref());
        self.inbound
            .retain(|id, slot| inbound.contains(id) || leave(&slot.http));
        self.outbound
            .retain(|id, slot| outbound.contains(id) || leave(&slot.http));
        self.gateway.retain(|id, slot| {
            let stays = gateway.contains(id);
            if !stays {
                slot.each_http(ListenerEngine::leave);
            }
            stays
        });
        judge |= self.captured.apply(worker, plan.capture.as_ref(), renewed);
        for (id, listener) in inbound.iter().zip(&plan.inbound) {
            match self.inbound.get(id) {
                Some(slot) => judge |= slot.follow(worker, listener, renewed),
                None => {
                    self.inbound
                        .insert(*id, Rc::new(InboundSlot::new(worker, listener)));
                }
            }
        }
        for (id, listener) in outbound.iter().zip(&plan.outbound) {
            match self.outbound.get(id) {
                Some(slot) => slot.follow(worker, listener, renewed),
                None => {
                    self.outbound
                        .insert(*id, Rc::new(OutboundSlot::new(worker, listener)));
                }
            }
        }
        for (id, listener) in gateway.iter().zip(&plan.gateway) {
            match self.gateway.get(id) {
                Some(slot) => judge |= slot.follow(worker, listener, renewed),
                None => {
                    let slot = Rc::new(GatewaySlot::new(worker, listener));
                    self.gateway.insert(*id, slot);
                }
            }
        }
        if judge || forwards {
            self.judge_again(worker);
        }
    }

    /// Ends what goes to servers whose certificates were taken back, and has those that are called next shake hands anew.
    fn doubt_servers(&self, worker: &Worker, lists: Option<&Revocations>) {
        if let Some(lists) = lists {
            worker.shown.revoke(lists);
        }
        self.outbound.values().for_each(|slot| slot.http.doubt());
        let gateways = self.gateway.values();
        gateways.for_each(|slot| slot.each_http(ListenerEngine::doubt));
        self.captured.doubt_servers();
    }

    /// Has everything admitted judged again.
    fn judge_again(&self, worker: &Worker) {
        worker.judge_again();
        self.inbound
            .values()
            .for_each(|slot| slot.http.judge_again());
        let gateways = self.gateway.values();
        gateways.for_each(|slot| slot.each_http(ListenerEngine::judge_again));
        self.captured.judge_again();
    }

    /// Applies the answer about a captured destination.
    pub(crate) fn learn(
        &self,
        worker: &Worker,
        to: CapturedDestination,
        plan: Option<Arc<OutboundPlan>>,
    ) {
        self.captured.learn(worker, to, plan.as_deref());
        worker.tell_of_checks(plan);
    }

    /// Serves a redirected connection in a task of its own.
    pub(crate) fn serve_captured(
        &self,
        worker: &Rc<Worker>,
        id: ListenerId,
        to: Option<SocketAddr>,
        stream: TcpStream,
        peer: SocketAddr,
        place: ConnectionPermit,
    ) {
        let (worker, captured) = (Rc::clone(worker), Rc::clone(&self.captured));
        let keeper = place.keeper();
        if id == ListenerId::CAPTURED_INBOUND {
            keeper.spawn(async move {
                captured_listeners::serve_inbound(worker, captured, to, stream, peer).await;
                drop(place);
            });
        } else if id == ListenerId::TUNNELS {
            keeper.spawn(async move {
                tunnels::serve(worker, captured, stream, peer).await;
                drop(place);
            });
        } else {
            keeper.spawn(async move {
                captured_listeners::serve_outbound(worker, captured, to, stream, peer).await;
                drop(place);
            });
        }
    }

    /// Serves a connection in a task of its own.
    pub(crate) fn serve(
        &self,
        worker: &Rc<Worker>,
        id: ListenerId,
        stream: TcpStream,
        peer: SocketAddr,
        place: ConnectionPermit,
    ) {
        let (worker, keeper) = (Rc::clone(worker), place.keeper());
        if let Some(slot) = self.inbound.get(&id).cloned() {
            keeper.spawn(async move {
                inbound::serve(worker, slot, stream, peer).await;
                drop(place);
            });
        } else if let Some(slot) = self.outbound.get(&id).cloned() {
            keeper.spawn(async move {
                outbound::serve(worker, slot, None, stream, peer).await;
                drop(place);
            });
        } else if let Some(slot) = self.gateway.get(&id).cloned() {
            keeper.spawn(async move {
                gateway::serve(worker, slot, stream, peer).await;
                drop(place);
            });
        }
        // Otherwise the listener was removed while the connection was handed over; it closes.
    }

    /// The same for an HTTP/3 connection, which only gateways have.
    pub(crate) fn serve_http3(
        &self,
        worker: &Rc<Worker>,
        id: ListenerId,
        incoming: Box<(Incoming, HandshakePermit)>,
        place: ConnectionPermit,
    ) {
        if let Some(slot) = self.gateway.get(&id).cloned() {
            let (worker, keeper) = (Rc::clone(worker), place.keeper());
            keeper.spawn(async move {
                gateway_http3::serve(worker, slot, incoming).await;
                drop(place);
            });
        }
    }

    /// Closes what is idle, on both sides.
    pub(crate) fn relieve(&self) {
        self.inbound.values().for_each(|slot| slot.http.relieve());
        self.outbound.values().for_each(|slot| slot.http.relieve());
        self.gateway.values().for_each(|slot| slot.relieve());
        self.captured.relieve();
    }

    pub(crate) fn drain(&self, gently: bool) {
        self.inbound
            .values()
            .for_each(|slot| slot.http.drain(gently));
        self.outbound
            .values()
            .for_each(|slot| slot.http.drain(gently));
        let gateways = self.gateway.values();
        gateways.for_each(|slot| slot.each_http(|http| http.drain(gently)));
        self.captured.drain(gently);
    }

    pub(crate) fn idle_upstreams(&self) -> u64 {
        let inbound = self.inbound.values().map(|slot| slot.http.idle_upstreams());
        let outbound = self
            .outbound
            .values()
            .map(|slot| slot.http.idle_upstreams());
        let gateway = self.gateway.values();
        let gateway = gateway.map(|slot| {
            let mut idle = 0;
            slot.each_http(|http| idle += http.idle_upstreams());
            idle
        });
        (inbound.chain(outbound).chain(gateway).sum::<usize>() + self.captured.idle_upstreams())
            as u64
    }
}

/// Lets the connections of a removed listener finish; says `false` for `retain`.
fn leave<R: HttpRole + 'static>(http: &ListenerEngine<R>) -> bool {
    http.leave();
    false
}

impl InboundSlot {
    /// Istio's name of the way to the application.
    pub(crate) fn cluster(&self) -> String {
        format!("inbound|{}||", self.plan.borrow().endpoint.port())
    }

    /// A client of which only the address is known.
    pub(crate) fn stranger(&self, remote: SocketAddr) -> Downstream<'static> {
        Downstream {
            local: self.plan.borrow().bind,
            remote,
            principal: "",
            suite: None,
        }
    }

    pub(crate) fn new(worker: &Worker, plan: &InboundPlan) -> Self {
        Self {
            plan: RefCell::new(Rc::new(plan.clone())),
            http: ListenerEngine::new(worker, &worker.settings()),
            endpoint_key: Cell::new(worker.fresh_key()),
            no_plaintext: RefCell::default(),
            own: None,
        }
    }

    /// One that obeys a destination's policies alone.
    pub(crate) fn of_door(worker: &Worker, plan: &InboundPlan, door: &DoorPlan) -> Self {
        let slot = Self {
            own: Some(Box::default()),
            ..Self::new(worker, plan)
        };
        slot.obey(door);
        slot
    }

    /// Obeys others of its own; says whether they are.
    pub(crate) fn obey(&self, door: &DoorPlan) -> bool {
        let Some(own) = &self.own else {
            return false;
        };
        let changed = *own.policies.borrow() != door.authorization;
        if changed {
            own.policies.borrow_mut().clone_from(&door.authorization);
        }
        let host = door.host.as_ref().map(|(host, _)| Arc::clone(host));
        *own.host.borrow_mut() = host;
        own.telemetry.set(door.telemetry);
        own.tokens.obey(door.tokens.as_ref()) || changed
    }

    /// Returns true for a destination of a waypoint.
    pub(crate) fn is_apart(&self) -> bool {
        self.own.is_some()
    }

    /// Recording rules for its traffic.
    pub(crate) fn recording<'a>(&'a self, worker: &'a Worker) -> Ref<'a, Rc<Recording>> {
        let own = self.own.as_ref().and_then(|own| own.telemetry.get());
        let Some(index) = own else {
            return worker.recording.borrow();
        };
        let apart = Ref::filter_map(worker.recordings_apart.borrow(), |all| all.get(index));
        apart.unwrap_or_else(|_| worker.recording.borrow())
    }

    /// Policies of this listener.
    pub(crate) fn policies<'a>(&'a self, worker: &'a Worker) -> Ref<'a, Option<Authorization>> {
        let own = self.own.as_ref().map(|own| &own.policies);
        own.unwrap_or(&worker.authorization).borrow()
    }

    /// Rules about tokens of this listener.
    pub(crate) fn tokens<'a>(&'a self, worker: &'a Worker) -> &'a Tokens {
        let own = self.own.as_ref().map(|own| &own.tokens);
        own.unwrap_or(&worker.tokens)
    }

    /// The service of a waypoint's destination; none elsewhere.
    pub(crate) fn host(&self) -> Option<Arc<str>> {
        self.own.as_ref()?.host.borrow().clone()
    }

    /// Gives back the memory of this listener's verified tokens.
    pub(crate) fn forget_tokens(&self) {
        if let Some(own) = &self.own {
            own.tokens.forget();
        }
    }

    /// Obeys its plan; says whether it takes other connections than before.
    pub(crate) fn follow(&self, worker: &Worker, plan: &InboundPlan, renewed: bool) -> bool {
        if renewed {
            self.http.renew(worker, &worker.settings());
        }
        let before = std::mem::replace(&mut *self.plan.borrow_mut(), Rc::new(plan.clone()));
        if before.endpoint != plan.endpoint {
            self.endpoint_key.set(worker.fresh_key());
        }
        let refuses_plaintext = |mode| mode == MutualTls::Strict;
        if refuses_plaintext(plan.mutual_tls) && !refuses_plaintext(before.mutual_tls) {
            self.no_plaintext.take().give();
        }
        plan.mutual_tls != before.mutual_tls || plan.protocol != before.protocol
    }
}

impl OutboundSlot {
    pub(crate) fn new(worker: &Worker, plan: &OutboundPlan) -> Self {
        Self {
            plan: RefCell::new(Rc::new(plan.clone())),
            table: RefCell::new(Rc::new(Table::follow(
                worker,
                &Table::empty(plan.otherwise),
                plan,
            ))),
            http: ListenerEngine::new(worker, &worker.settings()),
        }
    }

    pub(crate) fn renew(&self, worker: &Worker, renewed: bool) {
        if renewed {
            self.http.renew(worker, &worker.settings());
        }
    }

    pub(crate) fn follow(&self, worker: &Worker, plan: &OutboundPlan, renewed: bool) {
        self.renew(worker, renewed);
        if **self.plan.borrow() != *plan {
            let table = Table::follow(worker, &self.table.borrow(), plan);
            *self.table.borrow_mut() = Rc::new(table);
            *self.plan.borrow_mut() = Rc::new(plan.clone());
        }
    }

    pub(crate) fn protocol(&self) -> WireProtocol {
        self.plan.borrow().protocol
    }

    /// Returns true if routing needs the server name of a TLS client.
    pub(crate) fn asks_for_names(&self) -> bool {
        let services = &self.table.borrow().services;
        let mut routes = services.iter().filter_map(|one| one.routes.as_ref());
        services.len() > 1 || routes.any(|routes| routes.asks_for_names())
    }
}

impl Table {
    /// Leads nowhere.
    fn empty(otherwise: PassthroughMode) -> Self {
        Self {
            services: Vec::new(),
            by_authority: AuthorityTable::default(),
            otherwise,
            by_name: false,
        }
    }

    /// Selects the service of an opaque connection: a lone service takes everything; of several, the server name decides. Without
    /// a name it is the first, or `otherwise` on a listener by name.
    pub(crate) fn opaque(&self, server_name: Option<&str>) -> Option<&Rc<ServiceState>> {
        if let Some(only) = self.lone() {
            return Some(only);
        }
        let Some(name) = server_name else {
            return if self.by_name {
                self.otherwise()
            } else {
                self.services.first()
            };
        };
        match self.by_authority.get(name.as_bytes()) {
            Some(index) => self.services.get(*index),
            None => self.otherwise(),
        }
    }

    /// The only service, where that needs no naming.
    pub(crate) fn lone(&self) -> Option<&Rc<ServiceState>> {
        match self.services.as_slice() {
            [only] if !self.by_name => Some(only),
            _ => None,
        }
    }

    /// Service of a request that names none of several services.
    pub(crate) fn otherwise(&self) -> Option<&Rc<ServiceState>> {
        match self.otherwise {
            PassthroughMode::Service(index) => self.services.get(index),
            PassthroughMode::NoRoute | PassthroughMode::BlackHole => None,
        }
    }

    fn follow(worker: &Worker, old: &Self, plan: &OutboundPlan) -> Self {
        let mut table = Self {
            by_name: plan.by_name,
            ..Self::empty(plan.otherwise)
        };
        for service in &plan.services {
            let before = old.services.iter().find(|before| {
                before.plan.service.host == service.service.host && before.plan.port == service.port
            });
            let state = match before {
                Some(before) if before.plan == *service => Rc::clone(before),
                _ => ServiceState::instead(worker, before, service),
            };
            for authority in &service.authorities {
                table.by_authority.insert(authority, table.services.len());
            }
            table.services.push(state);
        }
        table
    }
}
