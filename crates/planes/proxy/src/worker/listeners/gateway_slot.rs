//! A gateway's or waypoint's listener in force: its servers, and the state of its connections that a sidecar's own calls do not
//! have (path normalization, scheme and cipher suite, the vantage of telemetry).

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use rustls::{CipherSuite, ServerConfig};
use voile_policy::authorization::{PathError, PathNormalization as Normalization};
use voile_telemetry::{SeriesId, ServiceLabels};
use voile_traffic::AuthorityTable;
use voile_xds::wire::{MutualTls, ServerKind, WireProtocol};

use crate::http::HttpHead;
use crate::plan::{
    DoorPlan, GatewayPlan, InboundPlan, OutboundPlan, PassthroughMode, ServerPlan, TlsPlan,
};
use crate::worker::Worker;
use crate::worker::handlers::gateway_http::GatewayRole;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::listeners::engine::ListenerEngine;
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::listeners::outbound_slot::OutboundSlot;
use crate::worker::listeners::termination::Stop;
use crate::worker::records::downstream::Downstream;
use crate::worker::records::reporter::ReporterLabels;

/// A gateway's listener in force.
pub(crate) struct GatewaySlot {
    pub(crate) plan: RefCell<Rc<GatewayPlan>>,
    /// The place that policies are asked about.
    pub(crate) inbound: InboundSlot,
    servers: RefCell<Servers>,
    pub(crate) http: ListenerEngine<GatewayRole>,
}

/// Servers of a gateway, and the connections that each takes.
#[derive(Default)]
struct Servers {
    /// In the order of the plan. Never empty.
    ways: Vec<Rc<OutboundSlot>>,
    /// Servers by the names that TLS clients ask for.
    by_name: AuthorityTable<usize>,
    /// For those that ask for another, or for none.
    any: Option<usize>,
    /// Set for a waypoint.
    doors: Option<Box<TunnelTargets>>,
}

/// Destinations of a waypoint, by the target of a tunnel.
#[derive(Default)]
struct TunnelTargets {
    by_address: HashMap<SocketAddr, usize>,
    by_host: HashMap<(Arc<str>, u16), usize>,
    /// In the order of the plan.
    all: Vec<Rc<WaypointDestination>>,
}

/// One destination of a waypoint, as its connections hold it.
pub(in crate::worker) struct WaypointDestination {
    /// Listener state by which policies are evaluated.
    pub(in crate::worker) place: InboundSlot,
    /// The service's; none of a workload's.
    pub(in crate::worker) host: Option<Arc<str>>,
    pub(in crate::worker) http: ListenerEngine<GatewayRole>,
    /// Given when it is no longer behind this waypoint.
    pub(in crate::worker) gone: Stop,
}

impl WaypointDestination {
    fn new(worker: &Worker, plan: &InboundPlan, door: &DoorPlan) -> Self {
        Self {
            place: InboundSlot::of_door(worker, plan, door),
            host: door.host.as_ref().map(|(host, _)| Arc::clone(host)),
            http: ListenerEngine::new(worker, &worker.settings()),
            gone: Stop::default(),
        }
    }

    /// Its requests finish; idle and opaque connections end, so that their clients connect again to the present
    /// destination.
    fn leave(&self) {
        self.http.leave();
        self.gone.give();
    }

    /// Ready when a connection that carries nothing yet is to close.
    pub(in crate::worker) async fn idle_unwelcome(&self) {
        self.http.idle_unwelcome().await;
    }
}

impl TunnelTargets {
    /// Adds a server, in its earlier state if there is one; returns true if other policies hold for it than
    /// before.
    fn add(
        &mut self,
        worker: &Worker,
        before: Option<Rc<WaypointDestination>>,
        server: &ServerPlan,
        door: &DoorPlan,
        renewed: bool,
    ) -> bool {
        let index = self.all.len();
        for called in &door.called {
            self.by_address.entry(*called).or_insert(index);
        }
        if let Some(host) = &door.host {
            self.by_host.entry(host.clone()).or_insert(index);
        }
        let plan = inbound_plan(&server.way.name, server.way.bind, server.way.protocol);
        let (door, changed) = match before {
            Some(before) => {
                if renewed {
                    before.http.renew(worker, &worker.settings());
                }
                let moved = before.place.follow(worker, &plan, false);
                let changed = before.place.obey(door) || moved;
                (before, changed)
            }
            None => (
                Rc::new(WaypointDestination::new(worker, &plan, door)),
                false,
            ),
        };
        self.all.push(door);
        changed
    }
}

impl Servers {
    /// Follows a plan. A server that is there as before keeps its connections and endpoints. A removed server of a gateway leads
    /// its connections nowhere: their clients may have proved less, or something else, than clients of another server.
    fn follow(self, worker: &Worker, plan: &GatewayPlan, renewed: bool) -> (Self, bool) {
        let mut made = Self::default();
        let mut before = HashMap::new();
        let mut doors = self.doors.map(|doors| doors.all.into_iter());
        for slot in self.ways {
            let door = doors.as_mut().and_then(Iterator::next);
            let name = Arc::clone(&slot.plan.borrow().name);
            before.insert(name, (slot, door));
        }
        let mut judge = false;
        for (index, server) in plan.servers.iter().enumerate() {
            let (slot, known) = match before.remove(&server.way.name) {
                Some((slot, known)) => {
                    slot.follow(worker, &server.way, renewed);
                    (slot, known)
                }
                None => (Rc::new(OutboundSlot::new(worker, &server.way)), None),
            };
            made.ways.push(slot);
            if let Some(door) = &server.door {
                let doors = made.doors.get_or_insert_default();
                judge |= doors.add(worker, known, server, door, renewed);
            }
            for name in &server.names {
                match &**name {
                    ANY => drop(made.any.get_or_insert(index)),
                    name => drop(made.by_name.insert(name, index)),
                }
            }
        }
        for (gone, door) in before.into_values() {
            // A caller of a waypoint may have sent its request before it heard of the change. It is served as it was meant, the last
            // one of its connection.
            if let Some(door) = door {
                door.leave();
                continue;
            }
            let nowhere = OutboundPlan {
                services: Vec::new(),
                otherwise: PassthroughMode::NoRoute,
                ..OutboundPlan::clone(&gone.plan.borrow())
            };
            gone.follow(worker, &nowhere, renewed);
        }
        (made, judge)
    }

    /// The one that a client means who asks for this name.
    fn named(&self, name: Option<&str>) -> Option<usize> {
        let named = name.and_then(|name| self.by_name.get(name.as_bytes()));
        named.copied().or(self.any)
    }
}

/// Server name that matches every name.
const ANY: &str = "*";

impl GatewaySlot {
    pub(crate) fn new(worker: &Worker, plan: &GatewayPlan) -> Self {
        // A server says itself whether it takes requests or bytes.
        let inbound = inbound_plan(&plan.name, plan.bind, WireProtocol::Tcp);
        let (servers, _) = Servers::default().follow(worker, plan, false);
        Self {
            plan: RefCell::new(Rc::new(plan.clone())),
            inbound: InboundSlot::new(worker, &inbound),
            servers: RefCell::new(servers),
            http: ListenerEngine::new(worker, &worker.settings()),
        }
    }

    /// Obeys its plan; says whether what was let in is to be judged again.
    pub(crate) fn follow(&self, worker: &Worker, plan: &GatewayPlan, renewed: bool) -> bool {
        if renewed {
            self.http.renew(worker, &worker.settings());
        }
        if **self.plan.borrow() == *plan {
            return false;
        }
        let before = self.servers.take();
        let (servers, judge) = before.follow(worker, plan, renewed);
        *self.servers.borrow_mut() = servers;
        *self.plan.borrow_mut() = Rc::new(plan.clone());
        judge
    }

    /// Closes what is idle, and gives back what can be had again.
    pub(crate) fn relieve(&self) {
        self.each_http(ListenerEngine::relieve);
        let servers = self.servers.borrow();
        let doors = servers.doors.iter().flat_map(|doors| &doors.all);
        doors.for_each(|door| door.place.forget_tokens());
    }

    /// All its engines: one, and at a waypoint one for each destination.
    pub(crate) fn each_http(&self, mut work: impl FnMut(&ListenerEngine<GatewayRole>)) {
        work(&self.http);
        let servers = self.servers.borrow();
        let doors = servers.doors.iter().flat_map(|doors| &doors.all);
        doors.for_each(|door| work(&door.http));
    }

    /// Selects the server of a tunnel to this address.
    pub(in crate::worker) fn behind(&self, called: SocketAddr) -> Option<MatchedServer> {
        let index = {
            let servers = self.servers.borrow();
            *servers.doors.as_ref()?.by_address.get(&called)?
        };
        self.taker(index)
    }

    /// Selects the server of a tunnel to this name and port.
    pub(in crate::worker) fn named_behind(&self, host: &str, port: u16) -> Option<MatchedServer> {
        let index = {
            let servers = self.servers.borrow();
            let key = (host.into(), port);
            *servers.doors.as_ref()?.by_host.get(&key)?
        };
        self.taker(index)
    }

    /// Returns true if the listener takes TLS only.
    pub(in crate::worker) fn is_encrypted(&self) -> bool {
        let plan = self.plan.borrow();
        let in_tls = |server: &ServerPlan| server.tls.is_some() || server.kind.ends_behind();
        plan.servers.iter().any(in_tls)
    }

    /// Selects the server of plaintext connections.
    pub(in crate::worker) fn plain(&self) -> Option<MatchedServer> {
        self.taker(0)
    }

    /// Selects the server for a TLS client that asks for this name.
    pub(in crate::worker) fn named(&self, name: Option<&str>) -> Option<MatchedServer> {
        self.taker(self.servers.borrow().named(name)?)
    }

    /// Returns true if another server than this one takes TLS clients that ask for this name.
    pub(in crate::worker) fn is_of_another(&self, host: &str, own: &Rc<OutboundSlot>) -> bool {
        let servers = self.servers.borrow();
        let takes = servers.named(Some(host));
        let takes = takes.and_then(|index| servers.ways.get(index));
        takes.is_some_and(|way| !Rc::ptr_eq(way, own))
    }

    fn taker(&self, index: usize) -> Option<MatchedServer> {
        let plan = self.plan.borrow();
        let server = plan.servers.get(index)?;
        let servers = self.servers.borrow();
        let doors = servers.doors.as_ref();
        Some(MatchedServer {
            way: Rc::clone(servers.ways.get(index)?),
            door: doors.and_then(|doors| doors.all.get(index).cloned()),
            tls: server.tls.clone(),
            kind: server.kind,
        })
    }
}

/// The place that policies are asked about.
fn inbound_plan(name: &Arc<str>, bind: SocketAddr, protocol: WireProtocol) -> InboundPlan {
    InboundPlan {
        name: Arc::clone(name),
        bind,
        protocol,
        // A server that takes the mesh's own TLS takes nothing else.
        mutual_tls: MutualTls::Permissive,
        endpoint: bind,
        service: ServiceLabels::default(),
    }
}

/// A server that takes a connection.
pub(in crate::worker) struct MatchedServer {
    pub(in crate::worker) way: Rc<OutboundSlot>,
    /// Set for a waypoint's destination, which has policies of its own.
    pub(in crate::worker) door: Option<Rc<WaypointDestination>>,
    pub(in crate::worker) tls: Option<TlsPlan>,
    pub(in crate::worker) kind: ServerKind,
}

impl MatchedServer {
    /// Returns true if the server takes requests over TLS that was made by these terms.
    pub(in crate::worker) fn takes_requests_by(&self, terms: &Arc<ServerConfig>) -> bool {
        let tls = self.tls.as_ref().filter(|tls| !tls.mesh);
        let own = tls.and_then(|tls| tls.config.as_ref());
        self.kind == ServerKind::Requests && own.is_some_and(|own| Arc::ptr_eq(own, terms))
    }

    /// Returns true if certificates of its clients are not verified.
    pub(in crate::worker) fn is_unverified(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.unverified)
    }

    /// Ready when a connection that carries nothing yet is to close.
    pub(in crate::worker) async fn idle_unwelcome(&self) {
        match &self.door {
            Some(door) => door.idle_unwelcome().await,
            None => std::future::pending().await,
        }
    }
}

/// See the module.
pub(in crate::worker) struct AtGateway {
    pub(in crate::worker) edge: Edge,
    pub(in crate::worker) slot: Rc<GatewaySlot>,
    /// At a waypoint: metrics state with the caller.
    pub(in crate::worker) through: Option<TunnelCalls>,
}

impl AtGateway {
    /// Vantage of its requests in telemetry.
    pub(in crate::worker) fn vantage(&self) -> ReporterLabels<'_> {
        match &self.through {
            Some(through) => through.vantage(),
            None => ReporterLabels::at(&self.slot.inbound),
        }
    }

    /// The caller's side of it.
    pub(in crate::worker) fn downstream(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Downstream<'_> {
        match &self.through {
            Some(through) => through.downstream(local),
            None => Downstream {
                local,
                remote,
                principal: "",
                suite: self.edge.suite,
            },
        }
    }
}

/// Properties by which routes of a gateway compare requests.
#[derive(Clone, Copy)]
pub(in crate::worker) struct Edge {
    pub(in crate::worker) normalization: Normalization,
    /// Scheme of the connection, `http` or `https`.
    pub(in crate::worker) scheme: &'static str,
    /// None in plaintext.
    pub(in crate::worker) suite: Option<CipherSuite>,
}

impl Edge {
    /// Normalized path and query, if they differ from the received ones; an error for an ambiguous path.
    pub(in crate::worker) fn path(
        self,
        head: &HttpHead<'_>,
    ) -> Result<Option<Box<str>>, PathError> {
        let came = head.path_and_query();
        Ok(match self.normalization.normalize(came.as_bytes())? {
            Cow::Owned(path) => String::from_utf8(path).ok().map(Into::into),
            Cow::Borrowed(_) => None,
        })
    }
}

/// The calls of one tunnel.
pub(in crate::worker) struct TunnelCalls {
    pub(in crate::worker) caller: InboundCaller,
    /// Destination that the tunnel asks for.
    pub(in crate::worker) door: Rc<WaypointDestination>,
    /// Series by our own labels' epoch, endpoint and protocol.
    pub(in crate::worker) known: RefCell<Vec<(Mark, SeriesId)>>,
}

pub(in crate::worker) type Mark = (u32, Option<u32>, &'static str);
