//! HBONE tunnels, both ends of a sidecar. The sidecar calls workloads of node proxies and of other networks through tunnels. It
//! takes tunnels of node proxies, and of callers on other networks that know only the service's name.
//!
//! ```text
//! endpoint ─► pool ─► CONNECT ─► Stream ─► http │ relay     15008 ─► mutual TLS ─► CONNECT ─► own address, or name? ─► inbound
//! ```

use std::fmt::Display;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use voile_hbone::{
    ATTEMPT, CONFIG, Lease, NoTunnel, Owner, PORT, Tunnel, TunnelOpenError, TunnelRequest, Wire,
    serve as serve_wire,
};
use voile_http2::{Connection, ErrorCode, Fields, Link, RecvStream, SendStream};
use voile_identity::revocation::keys_of;
use voile_identity::{Identity, PeerError, identity_of};
use voile_transport::{
    self as transport, TLS_HANDSHAKE_TIMEOUT, TransportStream, TunnelledStream, alpn,
};

use crate::plan::{FarPlan, Origination, SharedPart};
use crate::worker::admission::{ConnectionArrival, Verified};
use crate::worker::captured_listeners::CapturedListeners;
use crate::worker::endpoint::{Endpoint, Unreachable, connect_to, verify_chain};
use crate::worker::inbound::{self, InboundCaller};
use crate::worker::server_certificates::WorkerSnapshot;
use crate::worker::{Worker, count};
use voile_http2::source_number;

/// Message for clients if TLS failed.
const TLS_ERROR: &str = "upstream TLS error";

/// Key of equal tunnels. All tunnels of a sidecar have one client, its own workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SidecarTunnelKey {
    expected: Vec<Identity>,
    to: SocketAddr,
}

/// The connections to node proxies.
pub(crate) type Pool = voile_hbone::Pool<SidecarTunnelKey, Unreachable>;

/// Ends a connection when its peer is no longer trusted, and with the worker.
struct TunnelOwner(Rc<WorkerSnapshot>);

impl Owner for TunnelOwner {
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
) -> Result<TransportStream, Unreachable> {
    let plan = &endpoint.plan;
    let expected = plan.expected.clone().unwrap_or_default();
    if expected.is_empty() || plan.address.ip().is_unspecified() {
        let why = format!(
            "{}: no expected identity or no address is known",
            plan.address
        );
        return Err(Unreachable::new("upstream connect error", why));
    }
    let key = |expected| SidecarTunnelKey {
        expected,
        to: SocketAddr::new(plan.address.ip(), PORT),
    };
    let tunnel = match plan.origination.as_ref().map(|SharedPart(one)| &**one) {
        // Boxed: few calls leave their network.
        Some(Origination::Far(far)) => Box::pin(connect_far(worker, far, &expected, limit)).await?,
        Some(Origination::Through(called)) => open(worker, &key(expected), called, limit).await?,
        _ => open(worker, &key(expected), &plan.address, limit).await?,
    };
    Ok(TransportStream::Tunnel(Box::new(tunnel)))
}

/// Tunnel to a target, on a connection to the expected peer.
async fn open(
    worker: &Worker,
    key: &SidecarTunnelKey,
    called: &dyn Display,
    limit: Duration,
) -> Result<Tunnel, Unreachable> {
    let mut first = true;
    loop {
        let shown = worker.shown.begin();
        let owner = TunnelOwner(Rc::clone(&shown));
        let dialling = || dial(worker, key, &shown, limit);
        let lease = Box::pin(worker.tunnels.lease(owner, key.clone(), dialling)).await?;
        match ask(worker, &lease, called).await {
            Ok(halves) => return Ok(Tunnel::new(halves, key.to, None, Some(lease))),
            // It had begun to leave when we asked.
            Err(error) if first && error.is_unprocessed() => first = false,
            Err(error) => return Err(unopened(called, error)),
        }
    }
}

/// Tunnel inside another. The outer one goes to another network's gateway, which passes bytes on unread. The inner one has a
/// connection of its own, since each may reach another workload. That workload must prove one of the expected identities; the
/// gateway's word counts for nothing.
async fn connect_far(
    worker: &Worker,
    far: &FarPlan,
    expected: &[Identity],
    limit: Duration,
) -> Result<Tunnel, Unreachable> {
    let outer = enter(worker, far, limit).await?;
    let at = TunnelledStream::peer(&outer);
    // The name is neither sent nor compared; identities are.
    let name = ServerName::IpAddress(at.ip().into());
    let config = Arc::clone(&worker.tls.tunnel_client);
    let outer = Box::new(outer);
    let shaken = transport::connect_tls_within(config, name, outer, TLS_HANDSHAKE_TIMEOUT).await;
    let behind = format!("behind {at}");
    let within = shaken.map_err(|error| refused(worker, TLS_ERROR, &behind, &error))?;
    let shown = worker.shown.begin();
    let proven = (within.alpn(), within.peer_certificates());
    admit(worker, proven, expected, &behind, &shown)?;
    let lease = worker.tunnels.alone(TunnelOwner(shown), within.into());
    let asked = ask(worker, &lease, &far.called).await;
    let halves = asked.map_err(|error| unopened(&far.called, error))?;
    Ok(Tunnel::new(halves, at, None, Some(lease)))
}

/// A tunnel to one of the gateways of another network.
async fn enter(worker: &Worker, far: &FarPlan, limit: Duration) -> Result<Tunnel, Unreachable> {
    let all: Vec<SocketAddr> = far.gates.iter().map(|gate| gate.at).collect();
    let known = &worker.gateways;
    let order = known.order(&all, worker.random(), Instant::now());
    let nobody = || {
        Unreachable::new(
            "upstream connect error",
            "no gateway of the network is known".to_owned(),
        )
    };
    let mut last = nobody();
    for (turn, place) in order.iter().enumerate() {
        let gate = &far.gates[*place];
        let key = SidecarTunnelKey {
            expected: vec![gate.identity.clone()],
            to: gate.at,
        };
        let attempt = open(worker, &key, &far.called, limit);
        let entered = match turn + 1 == order.len() {
            true => attempt.await,
            false => match tokio::time::timeout(ATTEMPT, attempt).await {
                Ok(entered) => entered,
                Err(_) => {
                    let why = format!("{}: no answer", gate.at);
                    Err(Unreachable::new("upstream connect error", why))
                }
            },
        };
        match entered {
            Ok(tunnel) => {
                known.reached(gate.at);
                return Ok(tunnel);
            }
            Err(error) => {
                known.failed(gate.at, Instant::now());
                let why = &error.detail;
                tracing::debug!(gateway = %gate.at, why, "cannot reach another network through this gateway");
                last = error;
            }
        }
    }
    Err(last)
}

fn unopened(to: &dyn Display, error: TunnelOpenError) -> Unreachable {
    let public = match error {
        TunnelOpenError::Denied => "upstream refused by its policy",
        _ => "upstream connect error",
    };
    Unreachable::new(public, format!("{to}: {error}"))
}

/// Asks for a tunnel to a target.
async fn ask(
    worker: &Worker,
    lease: &Lease,
    called: &dyn Display,
) -> Result<(RecvStream, SendStream), TunnelOpenError> {
    let mut head = worker.tunnels.blocks().block();
    say(worker, &mut head, called);
    voile_hbone::open(lease, head).await
}

fn say(worker: &Worker, head: &mut Fields, to: &dyn Display) {
    let own = worker.own.borrow();
    let baggage = [
        ("k8s.cluster.name", own.cluster.as_str()),
        ("k8s.namespace.name", own.namespace.as_str()),
        ("service.name", own.canonical_service.as_str()),
        ("service.version", own.canonical_revision.as_str()),
    ];
    let caller = voile_hbone::TunnelCaller {
        client: None,
        baggage: &baggage,
        host: None,
    };
    voile_hbone::connect(head, to, &caller, || worker.random());
}

async fn dial(
    worker: &Worker,
    key: &SidecarTunnelKey,
    shown: &WorkerSnapshot,
    limit: Duration,
) -> Result<TransportStream, Unreachable> {
    let tcp = connect_to(worker, key.to, limit).await?;
    // The name is neither sent nor compared; identities are.
    let name = ServerName::IpAddress(key.to.ip().into());
    let config = Arc::clone(&worker.tls.tunnel_client);
    let shaken = transport::connect_tls(config, name, tcp.into(), TLS_HANDSHAKE_TIMEOUT).await;
    let stream = shaken.map_err(|error| refused(worker, TLS_ERROR, &key.to, &error))?;
    let proven = (stream.alpn(), stream.peer_certificates());
    admit(worker, proven, &key.expected, &key.to, shown)?;
    Ok(stream)
}

fn refused(
    worker: &Worker,
    public: &'static str,
    at: &dyn Display,
    error: &dyn Display,
) -> Unreachable {
    count(&worker.counters.handshake_failures_upstream);
    Unreachable::new(public, format!("{at}: {error}"))
}

/// Notes the peer's certificates, if its identity is one of the expected and no certificate was revoked during the handshake.
fn admit(
    worker: &Worker,
    (protocol, chain): (Option<&[u8]>, &[CertificateDer<'_>]),
    expected: &[Identity],
    at: &dyn Display,
    shown: &WorkerSnapshot,
) -> Result<(), Unreachable> {
    if protocol != Some(alpn::PLAIN_HTTP2) {
        return Err(refused(
            worker,
            TLS_ERROR,
            at,
            &"it did not negotiate h2 (ALPN)",
        ));
    }
    let verified = verify_chain(chain, expected).and_then(|()| believed(worker, chain));
    let keys =
        verified.map_err(|error| refused(worker, "upstream identity refused", at, &error))?;
    shown.remember(&keys);
    Ok(())
}

/// The peer's certificates, if all of them are believed.
fn believed(
    worker: &Worker,
    chain: &[CertificateDer<'_>],
) -> Result<Box<[voile_identity::CertificateKey]>, PeerError> {
    let keys = keys_of(chain);
    let belief = worker.belief.borrow();
    let lists = belief.as_ref().and_then(|one| one.revocations.as_ref());
    match lists.is_some_and(|lists| keys.iter().any(|key| lists.includes(*key))) {
        true => Err(PeerError::Revoked),
        false => Ok(keys),
    }
}

/// Caller of one connection.
struct TunnelCalling {
    worker: Rc<Worker>,
    captured: Rc<CapturedListeners>,
    peer: Rc<Verified>,
    suite: Option<rustls::CipherSuite>,
    remote: SocketAddr,
    local: SocketAddr,
}

/// Serves the tunnels of one connection.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    captured: Rc<CapturedListeners>,
    tcp: TcpStream,
    remote: SocketAddr,
) {
    let refused = |error: &dyn Display| {
        count(&worker.counters.handshake_failures_downstream);
        tracing::debug!(%remote, %error, "HBONE connection refused");
    };
    let Ok(local) = tcp.local_addr() else {
        return;
    };
    let config = Arc::clone(&worker.tls.tunnel_server);
    let shaken = worker.accept_tls(config, tcp.into());
    let stream = match Box::pin(shaken).await {
        Ok(stream) => stream,
        Err(error) => return refused(&error),
    };
    if stream.alpn() != Some(alpn::PLAIN_HTTP2) {
        return refused(&"the client did not negotiate h2 (ALPN)");
    }
    let leaf = stream.peer_certificates().first();
    let identity = match leaf.map_or(Err(PeerError::NoCertificate), identity_of) {
        Ok(identity) => identity,
        Err(error) => return refused(&error),
    };
    let calling = Rc::new(TunnelCalling {
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
    let mut connection = Connection::server(&CONFIG, worker.tunnels.blocks().clone());
    connection.set_source(source_number(remote.ip(), ""));
    let link = Link::new(connection);
    let mut wire = Wire::new(stream, link.clone());
    let leaving = calling.captured.leaving.heard();
    tokio::select! {
        _ = serve_wire(&mut wire, &link, leaving, |request| tunnel(Rc::clone(&calling), request)) => {}
        () = worker.stop.heard() => link.borrow().abort(ErrorCode::NO_ERROR),
    }
    wire.close().await;
    link.borrow().closed();
}

/// Serves one tunnel. Returns true if it was accepted.
async fn tunnel(calling: Rc<TunnelCalling>, request: TunnelRequest) -> bool {
    const BAD: u16 = 400;
    const DENIED: u16 = 401;
    const UNAVAILABLE: u16 = 503;
    let worker = &calling.worker;
    let (remote, own_ports) = (calling.remote, &worker.capture.ports);
    let refused = |request: TunnelRequest, status, reason: &dyn Display| {
        count(&worker.counters.refused);
        tracing::debug!(%remote, status, %reason, "tunnel refused");
        request.refuse(status);
        false
    };
    let to = match voile_hbone::target(request.head(), calling.local, own_ports) {
        Ok(to) => to,
        Err(reason @ NoTunnel::NoAddress(_)) => {
            let Some((host, number)) = voile_hbone::named(request.head()) else {
                return refused(request, BAD, &reason);
            };
            let found = calling.captured.named(&host, number);
            let Some(port) = found.filter(|port| !own_ports.contains(port)) else {
                let why = format!("the workload is not an endpoint of {host} with port {number}");
                return refused(request, UNAVAILABLE, &why);
            };
            SocketAddr::new(calling.local.ip(), port)
        }
        Err(reason) => return refused(request, BAD, &reason),
    };
    let Some(slot) = calling.captured.own(worker, to) else {
        return refused(
            request,
            UNAVAILABLE,
            &"the address is not one of this workload",
        );
    };
    let caller = InboundCaller {
        arrival: ConnectionArrival::Tunnel(Rc::clone(&calling.peer)),
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
