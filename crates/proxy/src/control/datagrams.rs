//! HTTP/3's sockets: one endpoint for each port that is asked for, on this thread, which tells whose packet is whose and gives each new
//! connection to the least loaded worker, as with TCP. What is in its packets is the worker's: there they are opened and sealed.
//!
//! ```text
//! packets ─► endpoint ─┬─ of a connection ──────────────► its worker
//!                      ├─ a first one: Retry? refused? ─► the least loaded worker
//!                      └─ anything else: a version, a reset, or nothing
//! ```

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quinn::{Endpoint, Incoming, ServerConfig, TokioRuntime};
use tokio::sync::watch;

use super::accept::Dispatcher;
use super::sockets::BIND_RETRY;
use crate::http3::limits::{MAX_HANDSHAKES, RETRY_FROM};
use crate::http3::{self, Names, Offer};
use crate::plan::{GatewayPlan, ListenerId};
use crate::worker::Handshaking;

/// What a port's task is told.
struct Told {
    id: ListenerId,
    terms: ServerConfig,
    /// Nobody new is let in.
    paused: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Datagrams {
    ports: BTreeMap<SocketAddr, watch::Sender<Told>>,
}

impl Datagrams {
    /// Serves those of a plan, and no others. Connections of a port that is wanted no longer finish.
    pub(super) fn follow(
        &mut self,
        plans: &[GatewayPlan],
        ids: &[ListenerId],
        dispatcher: &Rc<Dispatcher>,
    ) {
        let wanted = plans.iter().zip(ids);
        let wanted: BTreeMap<_, _> = wanted
            .filter(|(plan, _)| plan.http3.is_some())
            .map(|(plan, id)| (plan.bind, (*id, plan)))
            .collect();
        self.ports.retain(|bind, _| wanted.contains_key(bind));
        for (bind, (id, plan)) in wanted {
            let terms = http3::terms(names(plan));
            let told = Told {
                id,
                terms,
                paused: false,
            };
            match self.ports.get(&bind) {
                // Its task lives as long as we do.
                Some(port) => drop(port.send_replace(told)),
                None => {
                    let (port, hears) = watch::channel(told);
                    let serving = serve(bind, hears, Rc::clone(dispatcher));
                    tokio::task::spawn_local(serving);
                    self.ports.insert(bind, port);
                }
            }
        }
    }

    /// Whether nobody new is let in, while those who are finish.
    pub(super) fn pause(&self, paused: bool) {
        for port in self.ports.values() {
            port.send_modify(|told| told.paused = paused);
        }
    }
}

/// Whom clients of a listener may ask for. The first server that has a name keeps it, as over TCP.
fn names(plan: &GatewayPlan) -> Names {
    let mut names = Names::default();
    for server in &plan.servers {
        let tls = server.tls.as_ref().filter(|tls| !tls.mesh);
        let requests = server.kind == voile_xds::wire::ServerKind::Requests;
        let config = tls.and_then(|tls| tls.config.as_ref());
        let offer = config.filter(|_| requests).and_then(Offer::new);
        for name in &server.names {
            names.insert(name, offer.clone());
        }
    }
    names
}

fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(address),
        socket2::Type::DGRAM.nonblocking(),
        Some(socket2::Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Binds, however long that takes: the port may be a predecessor's until the last of its connections ended, and clients come over TCP
/// meanwhile.
async fn endpoint(address: SocketAddr) -> Endpoint {
    let mut said = false;
    loop {
        let bound = bind(address).and_then(|socket| {
            let runtime = Arc::new(TokioRuntime);
            Endpoint::new(http3::endpoint(), None, socket, runtime)
        });
        match bound {
            Ok(endpoint) => return endpoint,
            Err(error) if !std::mem::replace(&mut said, true) => {
                tracing::warn!(%address, %error, "HTTP/3 cannot listen yet: clients come over TCP");
            }
            Err(_) => {}
        }
        tokio::time::sleep(BIND_RETRY).await;
    }
}

/// Serves a port until nobody wants that any more.
async fn serve(address: SocketAddr, mut told: watch::Receiver<Told>, dispatcher: Rc<Dispatcher>) {
    let endpoint = tokio::select! {
        endpoint = endpoint(address) => endpoint,
        () = forgotten(&mut told) => return,
    };
    tracing::info!(%address, "listening for HTTP/3");
    let handshakes = Arc::new(AtomicUsize::new(0));
    let mut id = obey(&endpoint, &told.borrow_and_update());
    loop {
        tokio::select! {
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { return };
                match id {
                    Some(id) => judge(incoming, id, &handshakes, &dispatcher),
                    None => incoming.refuse(),
                }
            }
            changed = told.changed() => match changed {
                Ok(()) => id = obey(&endpoint, &told.borrow_and_update()),
                Err(_) => {
                    endpoint.set_server_config(None);
                    return;
                }
            },
        }
    }
}

/// Ready when nobody wants the port any more.
async fn forgotten(told: &mut watch::Receiver<Told>) {
    let mut other = told.clone();
    while other.changed().await.is_ok() {}
}

/// Shows new connections these terms; gives whose they are, unless nobody new is let in.
fn obey(endpoint: &Endpoint, told: &Told) -> Option<ListenerId> {
    endpoint.set_server_config(Some(told.terms.clone()));
    (!told.paused).then_some(told.id)
}

/// Gives a new connection to a worker, unless its client has to show first where it is, or there is no room.
fn judge(
    incoming: Incoming,
    id: ListenerId,
    handshakes: &Arc<AtomicUsize>,
    dispatcher: &Dispatcher,
) {
    let under_way = handshakes.load(Ordering::Relaxed);
    if under_way >= RETRY_FROM && !incoming.remote_address_validated() {
        // One that may not be asked again has shown it.
        let _ = incoming.retry();
    } else if under_way >= MAX_HANDSHAKES {
        incoming.refuse();
    } else {
        dispatcher.hand_over_http3(id, incoming, Handshaking::begin(handshakes));
    }
}
