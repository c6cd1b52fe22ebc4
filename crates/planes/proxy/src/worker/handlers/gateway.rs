//! A gateway's listener: its configuration, and connections from outside from their first byte to their end. Requests use
//! the same route tables as a sidecar's and the same authorization policies.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use rustls::{AlertDescription, ServerConfig};
use tokio::net::TcpStream;
use voile_identity::identity_of;
use voile_identity::revocation::keys_of;
use voile_model::mesh::telemetry::TelemetrySide;
use voile_telemetry::ServiceLabels;
use voile_traffic::AuthorityTable;
use voile_transport::alpn::{self, InnerProtocol};
use voile_transport::{
    self as transport, DetectedProtocol, TLS_HANDSHAKE_TIMEOUT, TcpIo, TransportStream,
};
use voile_xds::wire::{MutualTls, ServerKind, WireProtocol};

use crate::http::serve_connection;
use crate::http2;
use crate::plan::{
    DoorPlan, GatewayPlan, InboundPlan, OutboundPlan, PassthroughMode, ServerPlan, TlsPlan,
};
use crate::worker::access_logs::{self, TcpRecord};
use crate::worker::admission::{ConnectionArrival, Verified};
use crate::worker::forwarded_client_cert;
use crate::worker::gateway_http::GatewayRole;
use crate::worker::gateway_tcp::bytes;
use crate::worker::inbound::{InboundCaller, behind};
use crate::worker::listener_set::{InboundSlot, ListenerEngine, OutboundSlot};
use crate::worker::termination::Stop;
use crate::worker::{Conversation, Worker, count, waypoint};

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
    http: ListenerEngine<GatewayRole>,
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
    fn is_encrypted(&self) -> bool {
        let plan = self.plan.borrow();
        let in_tls = |server: &ServerPlan| server.tls.is_some() || server.kind.ends_behind();
        plan.servers.iter().any(in_tls)
    }

    /// Selects the server of plaintext connections.
    fn plain(&self) -> Option<MatchedServer> {
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
    tls: Option<TlsPlan>,
    kind: ServerKind,
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

/// Serves one connection to its end. Boxed twice, as in [`super::inbound::serve`].
pub(crate) async fn serve(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    tcp: TcpStream,
    remote: SocketAddr,
) {
    let opening = Box::pin(open(worker, slot, tcp, remote));
    if let Some(conversation) = opening.await {
        conversation.await;
    }
}

/// Reads the client's first bytes; returns the future of the rest.
async fn open(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    mut tcp: TcpStream,
    remote: SocketAddr,
) -> Option<Conversation> {
    let caller = introduced(&worker, &mut tcp, remote).await?;
    if slot.plan.borrow().waypoint {
        return waypoint::tunnels(worker, slot, tcp, caller).await;
    }
    if slot.is_encrypted() {
        return in_tls(worker, slot, tcp, caller).await;
    }
    let server = slot.plain()?;
    if server.kind == ServerKind::Bytes {
        let stream = TransportStream::Tcp(tcp.into());
        return Some(bytes(worker, slot, server, stream, caller, None));
    }
    let mut prefix = Vec::new();
    let limit = worker.settings.borrow().idle_timeout;
    let detected = tokio::select! {
        detected = transport::read_http(&mut tcp, &mut prefix) => detected.ok()?,
        () = tokio::time::sleep(limit) => return None,
        () = slot.http.idle_unwelcome() => return None,
    };
    let stream = TransportStream::Tcp(TcpIo::new(tcp, prefix));
    Some(http(worker, slot, server, stream, caller, detected))
}

/// Reads the server name of a TLS client, then ends TLS with that server's terms, or passes it on.
async fn in_tls(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    mut tcp: TcpStream,
    mut caller: InboundCaller,
) -> Option<Conversation> {
    let mut prefix = Vec::new();
    let heard = transport::read_prefix(&mut tcp, &mut prefix, Some(TLS_HANDSHAKE_TIMEOUT));
    let DetectedProtocol::Tls(hello) = heard.await.ok()? else {
        let why = "plaintext on a port that accepts only TLS";
        refuse(&worker, &slot, &caller, why);
        transport::linger(TransportStream::Tcp(TcpIo::new(tcp, prefix))).await;
        return None;
    };
    let is_mesh = hello.is_mesh();
    let name = hello.server_name.map(|name| name.to_ascii_lowercase());
    let server = slot.named(name.as_deref());
    let server = server.ok_or("no server of the Gateway matches the SNI");
    let server = server.and_then(|server| match server.kind {
        // A proxy of the mesh may pass foreign TLS on to an application, so this gateway refuses it here.
        ServerKind::AutoPassthrough if !is_mesh => {
            Err("not the TLS of the mesh (AUTO_PASSTHROUGH)")
        }
        _ => Ok(server),
    });
    let server = match server {
        Ok(server) => server,
        Err(why) => {
            refuse(&worker, &slot, &caller, why);
            transport::reset(&tcp);
            return None;
        }
    };
    if let Some(name) = &name {
        caller.tell(|told| told.server_name = Some(name.as_str().into()));
    }
    let name = name.unwrap_or_default();
    let io = TcpIo::new(tcp, prefix);
    let Some(tls) = server.tls.clone() else {
        let stream = TransportStream::Tcp(io);
        return Some(bytes(worker, slot, server, stream, caller, Some(name)));
    };
    let stream = ended(&worker, &slot, &mut caller, tls, io).await?;
    if server.kind == ServerKind::Bytes {
        return Some(bytes(worker, slot, server, stream, caller, Some(name)));
    }
    let detected = match alpn::inner(stream.alpn()) {
        InnerProtocol::Http2 => DetectedProtocol::Http2,
        InnerProtocol::Http1 | InnerProtocol::Opaque | InnerProtocol::Unnamed => {
            DetectedProtocol::Http1
        }
    };
    Some(http(worker, slot, server, stream, caller, detected))
}

/// Ends TLS. In the mesh's own TLS the client proves its identity.
pub(in crate::worker) async fn ended(
    worker: &Worker,
    slot: &GatewaySlot,
    caller: &mut InboundCaller,
    tls: TlsPlan,
    io: TcpIo,
) -> Option<TransportStream> {
    let config = match tls.mesh {
        true => Some(Arc::clone(&worker.tls.server)),
        false => tls.config,
    };
    let Some(config) = config else {
        let why = format!("the server has no certificate: {}", tls.credential);
        refuse(worker, slot, caller, &why);
        transport::reset(io.tcp());
        return None;
    };
    let stream = match worker.accept_tls(config, io).await {
        Ok(stream) => stream,
        Err(error) => {
            count(&worker.counters.handshake_failures_downstream);
            refuse(worker, slot, caller, &error.to_string());
            return None;
        }
    };
    caller.suite = stream.cipher_suite();
    if tls.unverified {
        caller.tell(|told| told.unverified = true);
    }
    if tls.mesh {
        let Some(Ok(identity)) = stream.peer_certificates().first().map(identity_of) else {
            count(&worker.counters.handshake_failures_downstream);
            refuse(
                worker,
                slot,
                caller,
                "the client certificate has no SPIFFE identity",
            );
            transport::refuse(stream, AlertDescription::BadCertificate).await;
            return None;
        };
        caller.principal = identity.to_string();
        caller.arrival = ConnectionArrival::MutualTls(Rc::new(Verified {
            identity,
            certificates: keys_of(stream.peer_certificates()),
        }));
    }
    Some(stream)
}

/// Counts a connection that got nowhere, and writes its line.
pub(in crate::worker) fn refuse(
    worker: &Worker,
    slot: &GatewaySlot,
    caller: &InboundCaller,
    why: &str,
) {
    count(&worker.counters.refused);
    tracing::debug!(remote = %caller.client(), why, "connection refused");
    let (bind, side) = {
        let plan = slot.plan.borrow();
        let side = match plan.waypoint {
            true => TelemetrySide::Server,
            false => TelemetrySide::Client,
        };
        (plan.bind, side)
    };
    if access_logs::is_on(worker, side) {
        let record = TcpRecord {
            flags: "NR",
            details: "filter_chain_not_found",
            downstream_failure: why,
            ..TcpRecord::new(side, caller.downstream(bind))
        };
        access_logs::tcp(worker, &record);
    }
}

pub(in crate::worker) fn http(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    server: MatchedServer,
    stream: TransportStream,
    mut caller: InboundCaller,
    detected: DetectedProtocol,
) -> Conversation {
    forwarded_client_cert::note(&worker, &stream, &mut caller);
    let engine = match &server.door {
        Some(door) => door.http.engine(),
        None => slot.http.engine(),
    };
    let role = GatewayRole::new(worker, slot, server, caller);
    match detected {
        DetectedProtocol::Http2 => {
            let role = Rc::new(role);
            Box::pin(async move {
                http2::serve_connection(&engine, role, stream).await;
            })
        }
        // The engine answers bytes that are not HTTP with its 400.
        _ => Box::pin(async move {
            serve_connection(&engine, &role, stream, &[]).await;
        }),
    }
}

/// Reads the PROXY header of the balancer in front, if one is expected.
async fn introduced(
    worker: &Worker,
    tcp: &mut TcpStream,
    remote: SocketAddr,
) -> Option<InboundCaller> {
    let (expected, limit) = {
        let settings = worker.settings.borrow();
        (settings.proxy_protocol, settings.header_timeout)
    };
    if !expected {
        return Some(behind(remote, None));
    }
    match transport::read_proxy_header(tcp, limit).await {
        Ok(client) => Some(behind(remote, client)),
        Err(error) => {
            count(&worker.counters.refused);
            tracing::debug!(%remote, %error, "refused: no valid PROXY header");
            transport::reset(tcp);
            None
        }
    }
}
