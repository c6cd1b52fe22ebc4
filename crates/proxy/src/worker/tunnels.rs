//! Tunnels of HBONE, both ends of a sidecar: by them it calls workloads that a node proxy serves, and is called by node proxies.
//!
//! ```text
//! endpoint ─► pool ─► CONNECT ─► Stream ─► http │ relay          15008 ─► mutual TLS ─► CONNECT ─► own address? ─► inbound
//! ```

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use voile_hbone::{CONFIG, Owner, PORT, Request, Tunnel, Unopened, Wire, serve as serve_wire};
use voile_http2::{Connection, Link, Reason};
use voile_identity::revocation::keys_of;
use voile_identity::{Identity, PeerError, identity_of};
use voile_transport::{self as transport, Stream, TLS_HANDSHAKE_TIMEOUT, alpn};

use super::admission::{Arrival, Verified};
use super::captured::Captured;
use super::endpoint::{Endpoint, Unreachable, connect_to, verify};
use super::inbound::{self, Caller};
use super::shown::Shown;
use super::{Worker, count};
use crate::plan::{Origination, Same};

/// What makes two tunnels alike: all of a sidecar's have one client, its own workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    expected: Vec<Identity>,
    to: SocketAddr,
}

/// The connections to node proxies.
pub(crate) type Pool = voile_hbone::Pool<Key, Unreachable>;

/// A connection ends when whoever answered is believed no more, and with the worker.
struct Of(Rc<Shown>);

impl Owner for Of {
    async fn leaving(&self) {
        self.0.cut().await;
    }

    async fn gone(&self) {}
}

/// A connection to the endpoint, inside one that others share.
pub(crate) async fn connect(
    worker: &Worker,
    endpoint: &Endpoint,
    limit: Duration,
) -> Result<Stream, Unreachable> {
    let plan = &endpoint.plan;
    let expected = plan.expected.clone().unwrap_or_default();
    if expected.is_empty() || plan.address.ip().is_unspecified() {
        let why = format!("{}: nobody is known who would answer", plan.address);
        return Err(Unreachable::new("upstream connect error", why));
    }
    let to = SocketAddr::new(plan.address.ip(), PORT);
    let key = Key { expected, to };
    let mut first = true;
    loop {
        let shown = worker.shown.begin();
        let owner = Of(Rc::clone(&shown));
        let dialling = || dial(worker, &key, &shown, limit);
        let lease = Box::pin(worker.tunnels.lease(owner, key.clone(), dialling)).await?;
        let mut head = worker.tunnels.blocks().block();
        match plan.origination.as_ref().map(|Same(one)| &**one) {
            Some(Origination::Through(called)) => say(worker, &mut head, called),
            _ => say(worker, &mut head, plan.address),
        }
        match voile_hbone::open(&lease, head).await {
            Ok(halves) => {
                let tunnel = Tunnel::new(halves, to, None, Some(lease));
                return Ok(Stream::Tunnel(Box::new(tunnel)));
            }
            // It had begun to leave when we asked.
            Err(error) if first && error.is_unprocessed() => first = false,
            Err(error) => return Err(unopened(plan.address, error)),
        }
    }
}

fn unopened(to: SocketAddr, error: Unopened) -> Unreachable {
    let public = match error {
        Unopened::Denied => "upstream refused by its policy",
        _ => "upstream connect error",
    };
    Unreachable::new(public, format!("{to}: {error}"))
}

fn say(worker: &Worker, head: &mut voile_http2::Fields, to: impl std::fmt::Display) {
    let own = worker.own.borrow();
    let baggage = [
        ("k8s.cluster.name", own.cluster.as_str()),
        ("k8s.namespace.name", own.namespace.as_str()),
        ("service.name", own.canonical_service.as_str()),
        ("service.version", own.canonical_revision.as_str()),
    ];
    let caller = voile_hbone::Caller {
        client: None,
        baggage: &baggage,
        host: None,
    };
    voile_hbone::connect(head, to, &caller, || worker.random());
}

async fn dial(
    worker: &Worker,
    key: &Key,
    shown: &Shown,
    limit: Duration,
) -> Result<Stream, Unreachable> {
    let tcp = connect_to(worker, key.to, limit).await?;
    // The name is neither sent nor compared; identities are.
    let name = ServerName::IpAddress(key.to.ip().into());
    let config = Arc::clone(&worker.tls.tunnel_client);
    let shaken = transport::connect_tls(config, name, tcp.into(), TLS_HANDSHAKE_TIMEOUT).await;
    let refused = |public, error: &dyn std::fmt::Display| {
        count(&worker.counters.handshake_failures_upstream);
        Unreachable::new(public, format!("{}: {error}", key.to))
    };
    let stream = shaken.map_err(|error| refused("upstream TLS error", &error))?;
    if stream.alpn() != Some(alpn::PLAIN_HTTP2) {
        return Err(refused("upstream TLS error", &"it does not speak h2"));
    }
    let verified = verify(&stream, &key.expected).and_then(|()| believed(worker, &stream));
    let keys = verified.map_err(|error| refused("upstream identity refused", &error))?;
    shown.remember(&keys);
    Ok(stream)
}

/// The peer's certificates, if none was taken back while hands were shaken.
fn believed(
    worker: &Worker,
    stream: &Stream,
) -> Result<Box<[voile_identity::CertificateKey]>, PeerError> {
    let keys = keys_of(stream.peer_certificates());
    let belief = worker.belief.borrow();
    let lists = belief.as_ref().and_then(|one| one.revocations.as_ref());
    match lists.is_some_and(|lists| keys.iter().any(|key| lists.includes(*key))) {
        true => Err(PeerError::Revoked),
        false => Ok(keys),
    }
}

/// Who calls, over one connection.
struct Calling {
    worker: Rc<Worker>,
    captured: Rc<Captured>,
    peer: Rc<Verified>,
    suite: Option<rustls::CipherSuite>,
    remote: SocketAddr,
    local: SocketAddr,
}

/// Serves the tunnels of one connection.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    captured: Rc<Captured>,
    tcp: TcpStream,
    remote: SocketAddr,
) {
    let refused = |error: &dyn std::fmt::Display| {
        count(&worker.counters.handshake_failures_downstream);
        tracing::debug!(%remote, %error, "no tunnels from there");
    };
    let Ok(local) = tcp.local_addr() else {
        return;
    };
    let config = Arc::clone(&worker.tls.tunnel_server);
    let shaken = transport::accept_tls(config, tcp.into(), TLS_HANDSHAKE_TIMEOUT);
    let stream = match Box::pin(shaken).await {
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
    let calling = Rc::new(Calling {
        peer: Rc::new(Verified {
            identity,
            certificates: keys_of(stream.peer_certificates()),
        }),
        suite: stream.cipher_suite(),
        remote,
        local: SocketAddr::new(local.ip().to_canonical(), local.port()),
        worker,
        captured,
    });
    let worker = Rc::clone(&calling.worker);
    let link = Link::new(Connection::server(&CONFIG, worker.tunnels.blocks().clone()));
    let mut wire = Wire::new(stream, link.clone());
    let leaving = calling.captured.leaving.heard();
    tokio::select! {
        _ = serve_wire(&mut wire, &link, leaving, |request| tunnel(Rc::clone(&calling), request)) => {}
        () = worker.stop.heard() => link.borrow().abort(Reason::NO_ERROR),
    }
    wire.close().await;
    link.borrow().closed();
}

/// One tunnel. Says whether it came to anything.
async fn tunnel(calling: Rc<Calling>, request: Request) -> bool {
    const BAD: u16 = 400;
    const DENIED: u16 = 401;
    const UNAVAILABLE: u16 = 503;
    let worker = &calling.worker;
    let (remote, own_ports) = (calling.remote, &worker.capture.ports);
    let refused = |request: Request, status, reason: &dyn std::fmt::Display| {
        count(&worker.counters.refused);
        tracing::debug!(%remote, status, %reason, "tunnel refused");
        request.refuse(status);
        false
    };
    let to = match voile_hbone::target(request.head(), calling.local, own_ports) {
        Ok(to) => to,
        Err(reason) => return refused(request, BAD, &reason),
    };
    let Some(slot) = calling.captured.own(worker, to) else {
        return refused(request, UNAVAILABLE, &"nothing is known of this workload");
    };
    let caller = Caller {
        arrival: Arrival::Tunnel(Rc::clone(&calling.peer)),
        principal: calling.peer.identity.to_string(),
        suite: calling.suite,
        remote,
        told: None,
    };
    if inbound::permit(worker, &slot, &caller.arrival, remote).is_err() {
        request.refuse(DENIED);
        return false;
    }
    let Some(halves) = request.accept() else {
        return false;
    };
    let tunnel = Tunnel::new(halves, remote, Some(calling.local), None);
    let worker = Rc::clone(worker);
    // The connection is held by its driver; this holds only what a connection of its own would.
    drop(calling);
    inbound::serve_tunnel(worker, slot, tunnel, caller).await;
    true
}
