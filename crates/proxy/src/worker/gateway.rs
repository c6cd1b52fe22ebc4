//! A gateway's listener: what it obeys now, and a connection from outside, which is heard, told apart and served to its end.
//! Where its requests go is decided by the same tables as a sidecar's; whether they may is asked of the same policies.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use rustls::AlertDescription;
use tokio::net::TcpStream;
use voile_identity::identity_of;
use voile_identity::revocation::keys_of;
use voile_model::mesh::telemetry::Side;
use voile_telemetry::Service;
use voile_traffic::AuthorityTable;
use voile_transport::alpn::{self, Inner};
use voile_transport::{self as transport, Detected, Stream, TLS_HANDSHAKE_TIMEOUT, TcpIo};
use voile_xds::wire::{MutualTls, ServerKind};

use super::admission::{Arrival, Verified};
use super::gateway_http::GatewayRole;
use super::gateway_tcp::bytes;
use super::inbound::{Caller, behind};
use super::logged::{self, TcpRecord};
use super::slots::{Http, InboundSlot, OutboundSlot};
use super::{Conversation, Worker, count};
use crate::http::serve_connection;
use crate::http2;
use crate::plan::{GatewayPlan, InboundPlan, Otherwise, OutboundPlan, ServerPlan, TlsPlan};

/// A gateway's listener in force.
pub(crate) struct GatewaySlot {
    pub(crate) plan: RefCell<Rc<GatewayPlan>>,
    /// The place that policies are asked about.
    pub(crate) inbound: InboundSlot,
    servers: RefCell<Servers>,
    pub(crate) http: Http<GatewayRole>,
}

/// Who takes which connections.
#[derive(Default)]
struct Servers {
    /// In the order of the plan. Never empty.
    ways: Vec<Rc<OutboundSlot>>,
    /// By the names that clients of TLS ask for.
    by_name: AuthorityTable<usize>,
    /// For those that ask for another, or for none.
    any: Option<usize>,
}

impl Servers {
    /// Those of a plan; a server that is there as before keeps its connections and endpoints. What is there no longer leads its
    /// connections nowhere: their clients may have proved less, or something else, than who is served by another.
    fn follow(self, worker: &Worker, plan: &GatewayPlan, renewed: bool) -> Self {
        let mut made = Self::default();
        let mut before = self.ways;
        for (index, server) in plan.servers.iter().enumerate() {
            let same = before
                .iter()
                .position(|slot| slot.plan.borrow().name == server.way.name);
            let slot = match same {
                Some(same) => {
                    let slot = before.swap_remove(same);
                    slot.follow(worker, &server.way, renewed);
                    slot
                }
                None => Rc::new(OutboundSlot::new(worker, &server.way)),
            };
            made.ways.push(slot);
            for name in &server.names {
                match &**name {
                    ANY => drop(made.any.get_or_insert(index)),
                    name => drop(made.by_name.insert(name, index)),
                }
            }
        }
        for gone in before {
            let nowhere = OutboundPlan {
                services: Vec::new(),
                otherwise: Otherwise::NoRoute,
                ..OutboundPlan::clone(&gone.plan.borrow())
            };
            gone.follow(worker, &nowhere, renewed);
        }
        made
    }

    /// The one that a client means who asks for this name.
    fn named(&self, name: Option<&str>) -> Option<usize> {
        let named = name.and_then(|name| self.by_name.get(name.as_bytes()));
        named.copied().or(self.any)
    }
}

/// What stands for every name.
const ANY: &str = "*";

impl GatewaySlot {
    pub(crate) fn new(worker: &Worker, plan: &GatewayPlan) -> Self {
        let inbound = InboundPlan {
            name: plan.name.clone(),
            bind: plan.bind,
            protocol: voile_xds::wire::Protocol::Http,
            // Where a server takes the mesh's own TLS it takes nothing else.
            mutual_tls: MutualTls::Permissive,
            endpoint: plan.bind,
            service: Service::default(),
        };
        Self {
            plan: RefCell::new(Rc::new(plan.clone())),
            inbound: InboundSlot::new(worker, &inbound),
            servers: RefCell::new(Servers::default().follow(worker, plan, false)),
            http: Http::new(worker, &worker.settings()),
        }
    }

    /// Obeys its plan.
    pub(crate) fn follow(&self, worker: &Worker, plan: &GatewayPlan, renewed: bool) {
        if renewed {
            self.http.renew(worker, &worker.settings());
        }
        if **self.plan.borrow() == *plan {
            return;
        }
        let before = self.servers.take();
        *self.servers.borrow_mut() = before.follow(worker, plan, renewed);
        *self.plan.borrow_mut() = Rc::new(plan.clone());
    }

    /// Whether it takes nothing but TLS.
    fn is_encrypted(&self) -> bool {
        let plan = self.plan.borrow();
        let in_tls =
            |server: &ServerPlan| server.tls.is_some() || server.kind == ServerKind::Passthrough;
        plan.servers.iter().any(in_tls)
    }

    /// Who takes what comes in plaintext.
    fn plain(&self) -> Option<Taker> {
        self.taker(0)
    }

    /// Who takes what a client of TLS says that asks for this name.
    fn named(&self, name: Option<&str>) -> Option<Taker> {
        self.taker(self.servers.borrow().named(name)?)
    }

    fn taker(&self, index: usize) -> Option<Taker> {
        let plan = self.plan.borrow();
        let server = plan.servers.get(index)?;
        Some(Taker {
            way: Rc::clone(self.servers.borrow().ways.get(index)?),
            tls: server.tls.clone(),
            kind: server.kind,
        })
    }
}

/// A server that takes a connection.
struct Taker {
    way: Rc<OutboundSlot>,
    tls: Option<TlsPlan>,
    kind: ServerKind,
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

/// Hears who is there and what is spoken; gives what remains to be done.
async fn open(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    mut tcp: TcpStream,
    remote: SocketAddr,
) -> Option<Conversation> {
    let caller = introduced(&worker, &mut tcp, remote).await?;
    if slot.is_encrypted() {
        return in_tls(worker, slot, tcp, caller).await;
    }
    let server = slot.plain()?;
    if server.kind == ServerKind::Bytes {
        let stream = Stream::Tcp(tcp.into());
        return Some(bytes(worker, slot, server.way, stream, caller, None));
    }
    let mut prefix = Vec::new();
    let limit = worker.settings.borrow().idle_timeout;
    let detected = tokio::select! {
        detected = transport::read_http(&mut tcp, &mut prefix) => detected.ok()?,
        () = tokio::time::sleep(limit) => return None,
        () = slot.http.idle_unwelcome() => return None,
    };
    let stream = Stream::Tcp(TcpIo::new(tcp, prefix));
    Some(http(worker, slot, server.way, stream, caller, detected))
}

/// Hears whom a client of TLS asks for, and ends TLS as that server wants it, or leaves that to who is behind us.
async fn in_tls(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    mut tcp: TcpStream,
    mut caller: Caller,
) -> Option<Conversation> {
    let mut prefix = Vec::new();
    let heard = transport::read_prefix(&mut tcp, &mut prefix, Some(TLS_HANDSHAKE_TIMEOUT));
    let Detected::Tls(hello) = heard.await.ok()? else {
        let why = "not TLS, on a port that takes nothing else";
        refuse(&worker, &slot, &caller, why);
        transport::linger(Stream::Tcp(TcpIo::new(tcp, prefix))).await;
        return None;
    };
    let name = hello.server_name.map(|name| name.to_ascii_lowercase());
    let Some(server) = slot.named(name.as_deref()) else {
        let why = "no server has the name that was asked for";
        refuse(&worker, &slot, &caller, why);
        transport::reset(&tcp);
        return None;
    };
    if let Some(name) = &name {
        caller.tell(|told| told.server_name = Some(name.as_str().into()));
    }
    let name = name.unwrap_or_default();
    let io = TcpIo::new(tcp, prefix);
    let Some(tls) = server.tls else {
        let stream = Stream::Tcp(io);
        return Some(bytes(worker, slot, server.way, stream, caller, Some(name)));
    };
    let stream = ended(&worker, &slot, &mut caller, tls, io).await?;
    if server.kind == ServerKind::Bytes {
        return Some(bytes(worker, slot, server.way, stream, caller, Some(name)));
    }
    let detected = match alpn::inner(stream.alpn()) {
        Inner::Http2 => Detected::Http2,
        Inner::Http1 | Inner::Opaque | Inner::Unnamed => Detected::Http1,
    };
    Some(http(worker, slot, server.way, stream, caller, detected))
}

/// Ends TLS. In the mesh's own, whoever calls proves who it is.
async fn ended(
    worker: &Worker,
    slot: &GatewaySlot,
    caller: &mut Caller,
    tls: TlsPlan,
    io: TcpIo,
) -> Option<Stream> {
    let config = match tls.mesh {
        true => Some(Arc::clone(&worker.tls.server)),
        false => tls.config,
    };
    let Some(config) = config else {
        let why = format!("there is no certificate to show: {}", tls.credential);
        refuse(worker, slot, caller, &why);
        transport::reset(io.tcp());
        return None;
    };
    let stream = match transport::accept_tls(config, io, TLS_HANDSHAKE_TIMEOUT).await {
        Ok(stream) => stream,
        Err(error) => {
            count(&worker.counters.handshake_failures_downstream);
            refuse(worker, slot, caller, &error.to_string());
            return None;
        }
    };
    caller.suite = stream.cipher_suite();
    if tls.mesh {
        let Some(Ok(identity)) = stream.peer_certificates().first().map(identity_of) else {
            count(&worker.counters.handshake_failures_downstream);
            refuse(worker, slot, caller, "a certificate without an identity");
            transport::refuse(stream, AlertDescription::BadCertificate).await;
            return None;
        };
        caller.principal = identity.to_string();
        caller.arrival = Arrival::MutualTls(Rc::new(Verified {
            identity,
            certificates: keys_of(stream.peer_certificates()),
        }));
    }
    Some(stream)
}

/// Counts a connection that got nowhere, and writes its line.
pub(super) fn refuse(worker: &Worker, slot: &GatewaySlot, caller: &Caller, why: &str) {
    count(&worker.counters.refused);
    tracing::debug!(remote = %caller.client(), why, "connection refused");
    if logged::is_on(worker, Side::Client) {
        let bind = slot.plan.borrow().bind;
        let record = TcpRecord {
            flags: "NR",
            details: "filter_chain_not_found",
            downstream_failure: why,
            ..TcpRecord::new(Side::Client, caller.downstream(bind))
        };
        logged::tcp(worker, &record);
    }
}

fn http(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    server: Rc<OutboundSlot>,
    stream: Stream,
    caller: Caller,
    detected: Detected,
) -> Conversation {
    let engine = slot.http.engine();
    let role = GatewayRole::new(worker, slot, server, caller);
    match detected {
        Detected::Http2 => {
            let role = Rc::new(role);
            Box::pin(async move {
                http2::serve_connection(&engine, role, stream).await;
            })
        }
        // What is no HTTP at all gets its 400 from the engine.
        _ => Box::pin(async move {
            serve_connection(&engine, &role, stream, &[]).await;
        }),
    }
}

/// Hears the balancer in front first, where there is one that says for whom it connects.
async fn introduced(worker: &Worker, tcp: &mut TcpStream, remote: SocketAddr) -> Option<Caller> {
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
            tracing::debug!(%remote, %error, "refused: no PROXY header");
            transport::reset(tcp);
            None
        }
    }
}
