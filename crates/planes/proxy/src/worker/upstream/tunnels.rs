//! HBONE tunnels that a sidecar opens: to workloads of node proxies and of other networks. `handlers/tunnel_server.rs` takes
//! tunnels.
//!
//! ```text
//! endpoint ─► pool ─► CONNECT ─► Stream ─► http │ relay
//! ```

use std::fmt::Display;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, ServerName};
use voile_hbone::{ATTEMPT, Lease, Owner, PORT, Tunnel, TunnelOpenError};
use voile_http2::{Fields, RecvStream, SendStream};
use voile_identity::revocation::keys_of;
use voile_identity::{Identity, PeerError};
use voile_transport::{
    self as transport, TLS_HANDSHAKE_TIMEOUT, TransportStream, TunnelledStream, alpn,
};

use crate::plan::{FarPlan, Origination, SharedPart};
use crate::worker::upstream::dial::{connect_to, verify_chain};
use crate::worker::upstream::endpoint::{Endpoint, Unreachable};
use crate::worker::upstream::server_certificates::WorkerSnapshot;
use crate::worker::upstream::tunnel_pool::SidecarTunnelKey;
use crate::worker::{Worker, count};

/// Message for clients if TLS failed.
const TLS_ERROR: &str = "upstream TLS error";

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
