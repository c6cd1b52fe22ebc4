//! What calls a pod: tunnels of other proxies (15008), and plaintext (15006). Both are judged by the pod's policies, and again
//! whenever those change; the application is called from its client's own address where that is possible.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use tokio::net::TcpStream;
use voile_http2::{Connection, End, Fields, Link, Reason, RecvStream, SendResponse};
use voile_identity::{Identity, PeerError, identity_of};
use voile_telemetry::{Reporter, Security};
use voile_transport::{Stream, TLS_HANDSHAKE_TIMEOUT, TcpIo, accept_tls, alpn, reset};

use crate::heads::target;
use crate::outbound::{CONNECT, DENY};
use crate::plain::{Arrival, carry};
use crate::pod::{Life, Pod};
use crate::records::{Parties, Record};
use crate::route::OWN_PORTS;
use crate::tunnel::{self, End as TunnelEnd};
use crate::wire::{CONFIG, Wire};
use crate::worker::{Closed, Worker, own};

/// Tunnels of one connection that came to nothing, beyond which it is ended if they are most: who opens and resets, or is
/// refused again and again, makes work without wanting its results.
const MAX_FRUITLESS: u32 = 500;

/// What the tunnels of a connection tell its driver.
#[derive(Default)]
struct Session {
    open: Cell<usize>,
    begun: Cell<u32>,
    fruitless: Cell<u32>,
}

impl Session {
    fn is_abused(&self) -> bool {
        let fruitless = self.fruitless.get();
        fruitless >= MAX_FRUITLESS && fruitless > self.begun.get() / 2
    }
}

/// Who calls, over one connection between proxies.
struct Calling {
    pod: Arc<Pod>,
    identity: Rc<Identity>,
    peer: SocketAddr,
    local: SocketAddr,
    session: Rc<Session>,
    link: Link,
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Serves the tunnels of one connection.
pub(crate) async fn tunnels(worker: &Rc<Worker>, pod: &Arc<Pod>, tcp: TcpStream, peer: SocketAddr) {
    Arrival::prepare(&tcp);
    let arrival = Arrival {
        worker,
        pod,
        peer,
        direction: "inbound",
    };
    // Until there is HTTP/2 to say it in, a refused caller just finds the connection closed.
    let refused = |reason: &dyn std::fmt::Display| arrival.note_refused(reason);
    let local = match tcp.local_addr() {
        Ok(local) => canonical(local),
        Err(error) => return refused(&error),
    };
    if !pod.badge.is_certified().await {
        return refused(&format_args!("{} has no certificate", pod.badge.identity));
    }
    let config = Arc::clone(&pod.badge.server);
    let accepted = accept_tls(config, TcpIo::from(tcp), TLS_HANDSHAKE_TIMEOUT).await;
    let stream = match accepted {
        Ok(stream) => stream,
        Err(error) => return refused(&error),
    };
    if stream.alpn() != Some(alpn::PLAIN_HTTP2) {
        return refused(&"the caller does not speak h2");
    }
    let leaf = stream.peer_certificates().first();
    let identity = match leaf.map_or(Err(PeerError::NoCertificate), identity_of) {
        Ok(identity) => identity,
        Err(error) => return refused(&error),
    };
    let link = Link::new(Connection::server(&CONFIG, worker.pool.blocks().clone()));
    let calling = Rc::new(Calling {
        pod: Arc::clone(pod),
        identity: Rc::new(identity),
        peer,
        local,
        session: Rc::default(),
        link: link.clone(),
    });
    let mut wire = Wire::new(stream, link.clone());
    let end = tokio::select! {
        end = moving(worker, &calling, &mut wire) => end,
        () = pod.is_at(Life::Gone) => {
            link.borrow().abort(Reason::NO_ERROR);
            End::Closed
        }
    };
    tracing::debug!(?end, %peer, "a connection of another proxy ended");
    wire.close().await;
    link.borrow().closed();
}

/// Moves bytes and begins tunnels until the connection is over.
async fn moving(worker: &Rc<Worker>, calling: &Rc<Calling>, wire: &mut Wire) -> End {
    let link = calling.link.clone();
    let leaving = async {
        calling.pod.is_at(Life::Leaving).await;
        link.borrow().leave();
        std::future::pending::<()>().await;
    };
    let moving = poll_fn(|cx| {
        // A socket that failed has ended the connection.
        let _ = wire.poll(cx);
        while let Some((head, receive, respond)) = link.accept() {
            let session = &calling.session;
            session.begun.set(session.begun.get().saturating_add(1));
            session.open.set(session.open.get() + 1);
            let (worker, calling) = (Rc::clone(worker), Rc::clone(calling));
            tokio::task::spawn_local(async move {
                let fruitful = tunnel(&worker, &calling, head, receive, respond).await;
                let session = &calling.session;
                session.open.set(session.open.get() - 1);
                if !fruitful {
                    session.fruitless.set(session.fruitless.get() + 1);
                    calling.link.borrow().wake_driver();
                }
            });
        }
        let mut connection = link.borrow();
        let unseen = connection.take_unseen();
        let session = &calling.session;
        session
            .begun
            .set(session.begun.get().saturating_add(unseen));
        session
            .fruitless
            .set(session.fruitless.get().saturating_add(unseen));
        if session.is_abused() {
            connection.abort(Reason::ENHANCE_YOUR_CALM);
        }
        match connection.end() {
            Some(end) => Poll::Ready(end),
            None => Poll::Pending,
        }
    });
    tokio::select! {
        end = moving => end,
        () = leaving => End::Closed,
    }
}

fn answer(mut respond: SendResponse, status: u16) {
    let mut head = respond.block();
    head.push_status(status);
    // Who is gone hears nothing.
    let _ = respond.send_response(head, true);
}

/// One tunnel. Says whether it carried anything.
async fn tunnel(
    worker: &Rc<Worker>,
    calling: &Calling,
    head: Fields,
    receive: RecvStream,
    mut respond: SendResponse,
) -> bool {
    let began = Instant::now();
    let to = match target(&head, calling.local) {
        Ok(to) => to,
        Err(reason) => {
            worker.refused.set(worker.refused.get() + 1);
            tracing::info!(target: "access", direction = "inbound", src.addr = %calling.peer, src.identity = %calling.identity, error = %reason, "tunnel refused (400)");
            answer(respond, 400);
            return false;
        }
    };
    let work = async {
        let opened = admit(worker, calling, to, began).await;
        let (watched, record, stream) = match opened {
            Ok(opened) => opened,
            Err(status) => return Err(status),
        };
        Ok((watched, record, stream))
    };
    // Who takes the tunnel back before it is there need not wait for us, nor we for the application.
    let opened = tokio::select! {
        opened = work => opened,
        _ = poll_fn(|cx| respond.poll_failed(cx)) => return false,
    };
    let (watched, record, stream) = match opened {
        Ok(opened) => opened,
        Err(status) => {
            answer(respond, status);
            return false;
        }
    };
    let mut head = respond.block();
    head.push_status(200);
    let Ok(send) = respond.send_response(head, false) else {
        return false;
    };
    let down = Stream::Tcp(TcpIo::from(stream));
    let done = tunnel::carry(down, (receive, send), watched.ended()).await;
    let error = (done.end != TunnelEnd::Finished).then(|| format!("{:?}", done.end));
    record.close("-", (done.outward, done.inward), error);
    done.inward + done.outward > 0 || done.end == TunnelEnd::Finished
}

type Admitted<'a> = (crate::worker::Watched<'a>, Record<'a>, TcpStream);

/// Judges a tunnel and calls the application; or the status that says why not.
async fn admit<'a>(
    worker: &'a Worker,
    calling: &Calling,
    to: SocketAddr,
    began: Instant,
) -> Result<Admitted<'a>, u16> {
    const DENIED: u16 = 401;
    const UNAVAILABLE: u16 = 503;
    let pod = &calling.pod;
    let known = worker.known_both(to.ip(), calling.peer.ip()).await;
    let Some(view) = known else {
        return Err(UNAVAILABLE);
    };
    let Some(own) = own(&view, pod, to.ip()) else {
        return Err(UNAVAILABLE);
    };
    let parties = Parties {
        reporter: Reporter::Destination,
        source: (
            source(&view, calling.peer.ip(), Some(&calling.identity)),
            Some(&calling.identity),
        ),
        destination: (Some(&**own), Some(&pod.badge.identity)),
        service: None,
        security: Security::MutualTls,
        client: calling.peer,
        server: calling.local,
        tunnelled: Some(to),
    };
    let record = Record::open(worker, &parties, began);
    let ends = (calling.peer.ip(), to);
    let watched = match worker.admit(&view, pod, Some(&calling.identity), ends) {
        Ok(watched) => watched,
        Err(closed) => {
            record.close(DENY, (0, 0), Some(closed.to_string()));
            return Err(match closed {
                Closed::Denied(_) => DENIED,
                Closed::Nobody(_) => UNAVAILABLE,
            });
        }
    };
    let source = pod.keeps_source.then(|| calling.peer.ip());
    match pod.connect(to, source).await {
        Ok(stream) => Ok((watched, record, stream)),
        Err(error) => {
            record.close(CONNECT, (0, 0), Some(error.to_string()));
            Err(UNAVAILABLE)
        }
    }
}

/// The workload at the caller's address, if it is the caller: an address alone proves nothing.
fn source<'a>(
    view: &'a crate::registry::View,
    address: IpAddr,
    identity: Option<&Identity>,
) -> Option<&'a crate::registry::Resident> {
    let found = view.workload(address)?;
    let is_caller = identity.is_none() || found.workload.identity.as_ref() == identity;
    is_caller.then_some(&**found)
}

/// Serves one connection that came in plaintext.
pub(crate) async fn plaintext(
    worker: &Rc<Worker>,
    pod: &Arc<Pod>,
    tcp: TcpStream,
    peer: SocketAddr,
) {
    let began = Instant::now();
    Arrival::prepare(&tcp);
    let arrival = Arrival {
        worker,
        pod,
        peer,
        direction: "inbound",
    };
    let Some(to) = arrival.destination(&tcp) else {
        return;
    };
    let refused = |reason: &dyn std::fmt::Display| arrival.refuse(&tcp, reason);
    // A neighbour can send packets for any address: forwarding those would make us everybody's relay.
    let is_here = pod.has(to.ip())
        && tcp
            .local_addr()
            .is_ok_and(|at| pod.has(at.ip().to_canonical()));
    if !is_here || OWN_PORTS.contains(&to.port()) {
        return refused(&format_args!("{to} is not the application's"));
    }
    let Some(view) = worker.known_both(to.ip(), peer.ip()).await else {
        return refused(&"nobody says what this pod obeys");
    };
    let parties = Parties {
        reporter: Reporter::Destination,
        source: (source(&view, peer.ip(), None), None),
        destination: (
            own(&view, pod, to.ip()).map(|own| &**own),
            Some(&pod.badge.identity),
        ),
        service: None,
        security: Security::None,
        client: peer,
        server: to,
        tunnelled: None,
    };
    let record = Record::open(worker, &parties, began);
    let watched = match worker.admit(&view, pod, None, (peer.ip(), to)) {
        Ok(watched) => watched,
        Err(closed) => {
            reset(&tcp);
            return record.close(DENY, (0, 0), Some(closed.to_string()));
        }
    };
    let source = pod.keeps_source.then(|| peer.ip());
    carry(pod, tcp, (to, source), watched.ended(), record).await;
}
