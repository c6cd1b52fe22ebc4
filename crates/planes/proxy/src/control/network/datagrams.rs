//! HTTP/3's sockets: one QUIC endpoint per port, on the control thread. The endpoint assigns packets to connections and gives
//! each new connection to the least loaded worker, as with TCP. The worker decrypts and encrypts the packets.
//!
//! ```text
//! packets ─► endpoint ─┬─ of a connection ──────────────► its worker
//!                      ├─ a first one: Retry? refused? ─► the least loaded worker
//!                      └─ anything else: a version, a reset, or nothing
//! ```
//! The sockets are bound with TCP's, and handed over with them. The successor passes on packets of our connections
//! ([`http3::Socket`]).

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use quinn::{Endpoint, Incoming, ServerConfig, TokioRuntime};
use tokio::sync::watch;
use voile_transport::handover::{InheritedSockets, Lent};

use crate::control::network::accept::Dispatcher;
use crate::control::network::sockets::{ListenerDirection, Serving};
use crate::http3::limits::{MAX_HANDSHAKES, RETRY_FROM};
use crate::http3::{self, Names, PredecessorLink, ProcessStamp, ServerOffer, Socket};
use crate::plan::{GatewayPlan, ListenerId};
use crate::worker::HandshakePermit;

/// Role of a handed-over line, followed by the stamp of its process.
const LINE: &str = "http3-of-";

/// State of a port, for its task.
struct PortCommand {
    /// Listener of new connections, and their terms; none if no listener wants any.
    wanted: Option<(ListenerId, ServerConfig)>,
    /// No new connections are accepted.
    paused: bool,
}

/// One socket and its endpoint. Both live until no listener wants them and the last connection has ended.
struct Port {
    told: watch::Sender<PortCommand>,
    stamp: ProcessStamp,
    /// The endpoint's.
    socket: Weak<Socket>,
    serving: Serving,
    /// Our end of the line from the process that has the socket.
    line: Option<OwnedFd>,
}

/// See the module.
#[derive(Default)]
pub(in crate::control) struct Datagrams {
    /// Wanted ports, with their terms.
    wanted: BTreeMap<SocketAddr, (ListenerId, ServerConfig)>,
    ports: BTreeMap<SocketAddr, Port>,
}

impl Datagrams {
    /// Obeys a plan. Connections of a port that is wanted no longer finish.
    pub(in crate::control) fn follow(&mut self, plans: &[GatewayPlan], ids: &[ListenerId]) {
        let wanted = plans.iter().zip(ids);
        let wanted = wanted.filter(|(plan, _)| plan.http3.is_some());
        let terms =
            |(plan, id): (&GatewayPlan, &ListenerId)| (plan.bind, (*id, http3::terms(names(plan))));
        self.wanted = wanted.map(terms).collect();
        self.ports.retain(|_, port| port.serving.strong_count() > 0);
        for (bind, port) in &self.ports {
            let wanted = self.wanted.get(bind).cloned();
            port.told.send_modify(|told| told.wanted = wanted);
        }
    }

    /// Begins to serve on a socket, for which there may be connections of older processes.
    pub(in crate::control) fn listen(
        &mut self,
        address: SocketAddr,
        socket: OwnedFd,
        inherited: &mut InheritedSockets,
        dispatcher: &Rc<Dispatcher>,
    ) -> io::Result<Serving> {
        let older = inherited.take_all(LINE, address);
        let older = older.into_iter().filter_map(|(stamp, line)| {
            let stamp = stamp.parse().ok()?;
            Some(PredecessorLink { stamp, line })
        });
        let socket = Arc::new(Socket::new(UdpSocket::from(socket), older.collect())?);
        let stamp = ProcessStamp::fresh();
        let endpoint = Endpoint::new_with_abstract_socket(
            http3::endpoint(stamp),
            None,
            Arc::clone(&socket) as Arc<dyn quinn::AsyncUdpSocket>,
            Arc::new(TokioRuntime),
        )?;
        let (told, hears) = watch::channel(PortCommand {
            wanted: self.wanted.get(&address).cloned(),
            paused: false,
        });
        let alive = Arc::new(());
        let port = Port {
            told,
            stamp,
            socket: Arc::downgrade(&socket),
            serving: Arc::downgrade(&alive),
            line: None,
        };
        let serving = port.serving.clone();
        self.ports.insert(address, port);
        let dispatcher = Rc::clone(dispatcher);
        tokio::task::spawn_local(async move {
            serve(endpoint, hears, dispatcher).await;
            drop(alive);
        });
        Ok(serving)
    }

    /// Stops accepting new connections; existing ones finish.
    pub(in crate::control) fn pause(&self) {
        for port in self.ports.values() {
            port.told.send_modify(|told| told.paused = true);
        }
    }

    /// Parts that a successor needs: each socket, a line to us, and the lines to earlier processes.
    pub(in crate::control) fn lend(&mut self) -> io::Result<Vec<Lent>> {
        let mut all = Vec::new();
        for (address, port) in &mut self.ports {
            let Some(socket) = port.socket.upgrade() else {
                continue;
            };
            let (copy, before) = socket.lend()?;
            let (to_us, from_it) = http3::line()?;
            port.line = Some(from_it);
            all.push((
                ListenerDirection::Datagrams.role().to_owned(),
                *address,
                copy,
            ));
            all.push((format!("{LINE}{}", port.stamp), *address, to_us));
            let older = before.into_iter();
            all.extend(older.map(|one| (format!("{LINE}{}", one.stamp), *address, one.line)));
        }
        Ok(all)
    }

    /// A successor reads from now on.
    pub(in crate::control) fn give_way(&mut self) {
        for (address, port) in &mut self.ports {
            if let (Some(socket), Some(line)) = (port.socket.upgrade(), port.line.take())
                && let Err(error) = socket.read_by(line)
            {
                tracing::error!(%address, %error, "the handover of HTTP/3 failed; its connections end");
            }
        }
    }

    /// It does not.
    pub(in crate::control) fn take_back(&self) {
        for port in self.ports.values() {
            if let Some(socket) = port.socket.upgrade() {
                socket.read_again();
            }
        }
    }
}

/// Server names that clients of a listener may ask for. The first server that has a name keeps it, as over
/// TCP.
fn names(plan: &GatewayPlan) -> Names {
    let mut names = Names::default();
    for server in &plan.servers {
        let tls = server.tls.as_ref().filter(|tls| !tls.mesh);
        let requests = server.kind == voile_xds::wire::ServerKind::Requests;
        let config = tls.and_then(|tls| tls.config.as_ref());
        let offer = config.filter(|_| requests).and_then(ServerOffer::new);
        for name in &server.names {
            names.insert(name, offer.clone());
        }
    }
    names
}

/// Binds a port that was not handed over.
pub(in crate::control) fn bind(address: SocketAddr) -> io::Result<OwnedFd> {
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

/// Serves a port until no listener wants it and its connections have ended.
async fn serve(
    endpoint: Endpoint,
    mut told: watch::Receiver<PortCommand>,
    dispatcher: Rc<Dispatcher>,
) {
    let handshakes = Arc::new(AtomicUsize::new(0));
    loop {
        let (id, is_wanted) = obey(&endpoint, &told.borrow_and_update());
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
                    Ok(()) => break,
                    Err(_) => return,
                },
                () = endpoint.wait_idle(), if !is_wanted => return,
            }
        }
    }
}

/// Sets the terms of new connections. Returns their listener, unless none are accepted, and true if the port is wanted.
fn obey(endpoint: &Endpoint, told: &PortCommand) -> (Option<ListenerId>, bool) {
    let terms = told.wanted.as_ref().map(|(_, terms)| terms.clone());
    endpoint.set_server_config(terms);
    let id = told.wanted.as_ref().map(|(id, _)| *id);
    (id.filter(|_| !told.paused), id.is_some())
}

/// Gives a new connection to a worker, unless its client must first prove its address, or there is no room.
fn judge(
    incoming: Incoming,
    id: ListenerId,
    handshakes: &Arc<AtomicUsize>,
    dispatcher: &Dispatcher,
) {
    let under_way = handshakes.load(Ordering::Relaxed);
    match verdict(under_way, incoming.remote_address_validated()) {
        // One that may not be asked again has shown it.
        DatagramAdmission::Ask => drop(incoming.retry()),
        DatagramAdmission::Refuse => incoming.refuse(),
        DatagramAdmission::Take => {
            dispatcher.hand_over_http3(id, incoming, HandshakePermit::begin(handshakes));
        }
    }
}

/// Decision on a new connection.
#[derive(Debug, PartialEq, Eq)]
enum DatagramAdmission {
    /// The client must first prove its address.
    Ask,
    Refuse,
    Take,
}

fn verdict(under_way: usize, is_where_he_says: bool) -> DatagramAdmission {
    match under_way {
        _ if under_way >= RETRY_FROM && !is_where_he_says => DatagramAdmission::Ask,
        MAX_HANDSHAKES.. => DatagramAdmission::Refuse,
        _ => DatagramAdmission::Take,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_handshakes_are_under_way_the_more_is_asked_of_whoever_comes() {
        for (under_way, to_anybody, to_who_showed_it) in [
            (0, DatagramAdmission::Take, DatagramAdmission::Take),
            (
                RETRY_FROM - 1,
                DatagramAdmission::Take,
                DatagramAdmission::Take,
            ),
            (RETRY_FROM, DatagramAdmission::Ask, DatagramAdmission::Take),
            (
                MAX_HANDSHAKES - 1,
                DatagramAdmission::Ask,
                DatagramAdmission::Take,
            ),
            (
                MAX_HANDSHAKES,
                DatagramAdmission::Ask,
                DatagramAdmission::Refuse,
            ),
            (
                usize::MAX,
                DatagramAdmission::Ask,
                DatagramAdmission::Refuse,
            ),
        ] {
            assert_eq!(verdict(under_way, false), to_anybody, "{under_way}");
            assert_eq!(verdict(under_way, true), to_who_showed_it, "{under_way}");
        }
    }
}
