//! A gateway's listener: what it obeys now, and a connection from outside, which is heard, told apart and served to its end.
//! Where its requests go is decided by the same tables as a sidecar's; whether they may is asked of the same policies.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::TcpStream;
use voile_telemetry::Service;
use voile_transport::{self as transport, Detected, Stream, TcpIo};
use voile_xds::wire::MutualTls;

use super::gateway_http::{GatewayRole, PLAIN};
use super::inbound::{Caller, behind};
use super::slots::{Http, InboundSlot, OutboundSlot};
use super::{Conversation, Worker, count};
use crate::http::serve_connection;
use crate::http2;
use crate::plan::{GatewayPlan, InboundPlan, ServerPlan};

/// A gateway's listener in force.
pub(crate) struct GatewaySlot {
    pub(crate) plan: RefCell<Rc<GatewayPlan>>,
    /// The place that policies are asked about.
    pub(crate) inbound: InboundSlot,
    /// In the order of the plan. Never empty.
    servers: RefCell<Vec<Rc<OutboundSlot>>>,
    pub(crate) http: Http<GatewayRole>,
}

impl GatewaySlot {
    pub(crate) fn new(worker: &Worker, plan: &GatewayPlan) -> Self {
        let inbound = InboundPlan {
            name: plan.name.clone(),
            bind: plan.bind,
            protocol: voile_xds::wire::Protocol::Http,
            // Whoever comes from outside has no certificate of the mesh's.
            mutual_tls: MutualTls::Disable,
            endpoint: plan.bind,
            service: Service::default(),
        };
        let servers = plan.servers.iter();
        let servers = servers.map(|server| Rc::new(OutboundSlot::new(worker, &server.way)));
        Self {
            plan: RefCell::new(Rc::new(plan.clone())),
            inbound: InboundSlot::new(worker, &inbound),
            servers: RefCell::new(servers.collect()),
            http: Http::new(worker, &worker.settings()),
        }
    }

    /// Obeys its plan. A server that is there as before keeps its connections and endpoints.
    pub(crate) fn follow(&self, worker: &Worker, plan: &GatewayPlan, renewed: bool) {
        if renewed {
            self.http.renew(worker, &worker.settings());
        }
        if **self.plan.borrow() == *plan {
            return;
        }
        let before = self.servers.take();
        let follow = |(index, server): (usize, &ServerPlan)| match before.get(index) {
            Some(slot) => {
                slot.follow(worker, &server.way, renewed);
                Rc::clone(slot)
            }
            None => Rc::new(OutboundSlot::new(worker, &server.way)),
        };
        let servers = plan.servers.iter().enumerate().map(follow);
        *self.servers.borrow_mut() = servers.collect();
        *self.plan.borrow_mut() = Rc::new(plan.clone());
    }

    /// Who takes what comes in plaintext.
    fn plain(&self) -> Option<Rc<OutboundSlot>> {
        self.servers.borrow().first().cloned()
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

/// Hears who is there and what is spoken; gives what remains to be done.
async fn open(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    mut tcp: TcpStream,
    remote: SocketAddr,
) -> Option<Conversation> {
    let caller = introduced(&worker, &mut tcp, remote).await?;
    let mut prefix = Vec::new();
    let limit = worker.settings.borrow().idle_timeout;
    let detected = tokio::select! {
        detected = transport::read_http(&mut tcp, &mut prefix) => detected.ok()?,
        () = tokio::time::sleep(limit) => return None,
        () = slot.http.idle_unwelcome() => return None,
    };
    let stream = Stream::Tcp(TcpIo::new(tcp, prefix));
    let server = slot.plain()?;
    Some(http(worker, slot, server, stream, caller, detected))
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
    let role = GatewayRole::new(worker, slot, server, caller, PLAIN);
    match detected {
        Detected::Http2 => Box::pin(async move {
            http2::serve_connection(&engine, Rc::new(role), stream).await;
        }),
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
