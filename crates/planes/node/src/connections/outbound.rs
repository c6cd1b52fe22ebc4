//! Outbound connections of a pod's application (15001). Finds the original destination and its endpoint, and opens a
//! tunnel to an endpoint that needs one.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use voile_hbone::{ATTEMPT, Lease, Owner, Tunnel, TunnelOpenError};
use voile_http2::{RecvStream, SendStream};
use voile_identity::{Identity, verify_expected};
use voile_telemetry::{Reporter, Security};
use voile_transport::{
    ConnectError, HandshakeError, TLS_HANDSHAKE_TIMEOUT, TcpIo, TransportStream, alpn, connect_tls,
    connect_tls_within, reset,
};

use crate::connections::close_reasons::{CERT_REVOKED, CONNECT, DENY, IDENTITY_ERROR};
use crate::connections::tunnel_pool::{OutboundError, TunnelKey};
use crate::plaintext::{PlainArrival, call, carry};
use crate::pod::{Pod, PodLife};
use crate::records::{ConnectionParties, Record};
use crate::registry::{RegistryView, Resident};
use crate::route::{ConnectionPurpose, Draw, NetworkGateway, RouteError, RouteTarget, decide};
use crate::same_node;
use crate::tunnel::{self, TunnelEnd};
use crate::verified_peers::{PeerBond, ProvenPeer, REVOKED};
use crate::worker::{NodeWorker, WorkerView, own};

/// Endpoints of a service whose names are looked up for one connection, until one leads somewhere. Its client waits meanwhile.
const MAX_NAMES_TRIED: usize = 3;

/// Pauses before a waypoint is asked again for a destination that it does not know, or another way is taken: the control plane
/// tells node proxies and waypoints of a new label one after another.
const WAYPOINT_PAUSES: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(40),
    Duration::from_millis(160),
    Duration::from_millis(640),
];
/// A waypoint's answer for a destination that it does not know.
const NOT_FOUND: u16 = 404;

const TLS_FAILURE: &str = "TLS_FAILURE";
const HANDSHAKE_FAILURE: &str = "H2_HANDSHAKE_FAILURE";

/// A proxy's port does not answer: often a firewall drops the packets.
const NETWORK_POLICY: &str = "NETWORK_POLICY";

/// A pod's tunnel connections take no more tunnels when the pod leaves. They are cut when the pod is gone, or when
/// the peer's certificate is revoked.
struct ConnectionBonds {
    pod: Arc<Pod>,
    bond: Rc<PeerBond>,
}

impl Owner for ConnectionBonds {
    async fn leaving(&self) {
        tokio::select! {
            () = self.pod.is_at(PodLife::Leaving) => {}
            () = self.bond.broken() => {}
        }
    }

    async fn gone(&self) {
        tokio::select! {
            () = self.pod.is_at(PodLife::Gone) => {}
            () = self.bond.broken() => {}
        }
    }

    fn why(&self) -> Option<&'static str> {
        self.bond.is_broken().then_some(CERT_REVOKED)
    }
}

/// Next hop of a connection.
enum OutboundPath {
    /// To another pod of this node, for the resident that calls.
    Home(Arc<Pod>, Arc<Resident>, SocketAddr),
    /// In plaintext, over this connection.
    Plain(TcpStream),
    /// Through a tunnel.
    Tunnel(Opened),
}

/// The same before a connection in plaintext is opened.
enum NextHop {
    Home(Arc<Pod>),
    Plain,
    Tunnel(Opened),
}

/// Serves one connection.
pub(crate) async fn serve(worker: &NodeWorker, pod: &Arc<Pod>, tcp: TcpStream, client: SocketAddr) {
    // Boxed: the start takes several times the memory of the relay, and connections stay open.
    let Some((way, record)) = Box::pin(begin(worker, pod, &tcp, client)).await else {
        return;
    };
    match way {
        OutboundPath::Home(there, source, to) => {
            let way = (client, to);
            Box::pin(same_node::carry(
                worker,
                (pod, &source),
                &there,
                tcp,
                way,
                record,
            ))
            .await;
        }
        OutboundPath::Plain(server) => {
            let gone = pin!(pod.is_at(PodLife::Gone));
            Box::pin(carry(tcp, server, gone, (record, || "-"))).await;
        }
        OutboundPath::Tunnel((lease, halves)) => {
            let down = TransportStream::Tcp(TcpIo::from(tcp));
            let done = tunnel::carry(down, halves, pin!(pod.is_at(PodLife::Gone))).await;
            let flags = lease.cut().unwrap_or("-");
            drop(lease);
            let error = (done.end != TunnelEnd::Finished).then(|| format!("{:?}", done.end));
            record.close(flags, (done.inward, done.outward), error);
        }
    }
}

/// Decides the next hop and connects to it. Returns None after a failure, which it has logged already.
async fn begin<'a>(
    worker: &'a NodeWorker,
    pod: &Arc<Pod>,
    tcp: &TcpStream,
    client: SocketAddr,
) -> Option<(OutboundPath, Record<'a>)> {
    let began = Instant::now();
    PlainArrival::prepare(tcp);
    let arrival = PlainArrival {
        worker,
        pod,
        peer: client,
        direction: "outbound",
    };
    let to = arrival.destination(tcp)?;
    let refused = |reason: &dyn Display| {
        arrival.refuse(tcp, reason);
        None
    };
    if !pod.has(client.ip()) {
        return refused(&format_args!(
            "{} is not an address of the pod",
            client.ip()
        ));
    }
    let Some(view) = worker.known(&[client.ip(), to.ip()]).await else {
        return refused(&format_args!(
            "the control plane did not answer for {} in time",
            to.ip()
        ));
    };
    // A pod may call before the control plane has heard of its address.
    let knows = |view: &RegistryView| own(view, pod, client.ip()).is_some();
    let Some(view) = worker.known_later(view, knows).await else {
        return refused(&"the control plane does not know this pod");
    };
    let mut view = view;
    let mut pauses = WAYPOINT_PAUSES.iter();
    loop {
        let found = caller_and_target(worker, pod, &view, (client, to)).await;
        let (source, target) = match found {
            Ok(found) => found,
            Err(reason) => return refused(&reason),
        };
        let hop = match next_hop(worker, pod, (client, &source), &target).await {
            Err(trouble) if trouble.unknown_there && target.waypoint.is_some() => {
                if let Some(pause) = pauses.next() {
                    tokio::time::sleep(*pause).await;
                    view = worker.view();
                    continue;
                }
                Err(trouble)
            }
            hop => hop,
        };
        let record = record(worker, pod, (client, &source), &target, began);
        return match hop {
            Ok(NextHop::Tunnel(opened)) => Some((OutboundPath::Tunnel(opened), record)),
            Ok(NextHop::Home(there)) => {
                Some((OutboundPath::Home(there, source, target.to), record))
            }
            Ok(NextHop::Plain) => {
                let (server, record) = call(pod, tcp, (target.to, None), record).await?;
                Some((OutboundPath::Plain(server), record))
            }
            Err(trouble) => {
                reset(tcp);
                record.close(trouble.flags, (0, 0), Some(trouble.to_string()));
                None
            }
        };
    }
}

/// The calling pod and its target, once the control plane has told the hops to it.
async fn caller_and_target(
    worker: &NodeWorker,
    pod: &Arc<Pod>,
    view: &Rc<WorkerView>,
    (client, to): (SocketAddr, SocketAddr),
) -> Result<(Arc<Resident>, RouteTarget), String> {
    let unknown = || "the control plane does not know this pod".to_owned();
    let source = own(view, pod, client.ip()).ok_or_else(unknown)?;
    let view = worker.known_way(view, source, to).await;
    let view =
        view.ok_or_else(|| format!("the control plane did not send the waypoint of {to} in time"))?;
    let source = own(&view, pod, client.ip()).ok_or_else(unknown)?;
    let target = target(worker, pod, (&view, source), to).await;
    let target = target.map_err(|refusal| refusal.to_string())?;
    Ok((Arc::clone(source), target))
}

/// The next hop to a target. Opens the tunnel if it is one.
async fn next_hop(
    worker: &NodeWorker,
    pod: &Arc<Pod>,
    caller: (SocketAddr, &Arc<Resident>),
    target: &RouteTarget,
) -> Result<NextHop, OutboundError> {
    if let Some(there) = same_node::home(worker, target) {
        return Ok(NextHop::Home(there));
    }
    if target.expected.is_none() {
        return Ok(NextHop::Plain);
    }
    let opened = match &target.far {
        None => open_tunnel(worker, pod, caller, target).await,
        // Boxed: few connections leave their network.
        Some(far) => Box::pin(open_far(worker, pod, caller, target, far)).await,
    };
    opened.map(NextHop::Tunnel)
}

/// Selects the target of a connection. Looks up an endpoint that is known by its name; if the name has no address,
/// selects another endpoint.
async fn target(
    worker: &NodeWorker,
    pod: &Arc<Pod>,
    (view, source): (&RegistryView, &Resident),
    to: SocketAddr,
) -> Result<RouteTarget, RouteError> {
    let (mut nowhere, mut last) = (Vec::new(), None);
    loop {
        let draw = Draw {
            random: fastrand::f64(),
            nowhere: &nowhere,
        };
        let named = match decide(view, source, to, draw) {
            Ok(ConnectionPurpose::At(target)) => return Ok(target),
            Ok(ConnectionPurpose::Named(named)) => named,
            // The failure of the last name says more than that no endpoint is left.
            Err(refusal) => return Err(last.unwrap_or(refusal)),
        };
        // Boxed: few connections are for a name.
        match Box::pin(worker.resolve(pod, named.host())).await {
            Ok(addresses) => return named.at(&addresses, fastrand::usize(..)),
            Err(why) => {
                let refusal = named.nowhere(why);
                nowhere.push(Arc::clone(named.uid()));
                if nowhere.len() >= MAX_NAMES_TRIED {
                    return Err(refusal);
                }
                last = Some(refusal);
            }
        }
    }
}

fn record<'a>(
    worker: &'a NodeWorker,
    pod: &Pod,
    (client, source): (SocketAddr, &Arc<Resident>),
    target: &RouteTarget,
    began: Instant,
) -> Record<'a> {
    let answering = target.expected.as_ref().and_then(|all| all.first());
    let parties = ConnectionParties {
        reporter: Reporter::Source,
        source: (Some(&**source), Some(&pod.badge.identity)),
        destination: (target.resident.as_deref(), answering),
        service: target.service.as_deref(),
        security: match target.expected {
            Some(_) => Security::MutualTls,
            None => Security::Unknown,
        },
        client,
        server: match target.expected {
            Some(_) => target.proxy(),
            None => target.to,
        },
        tunnelled: target.expected.as_ref().map(|_| target.to),
    };
    Record::open(worker, &parties, began)
}

fn trouble(flags: &'static str, reason: impl Display) -> OutboundError {
    OutboundError {
        flags,
        reason: reason.to_string().into(),
        unknown_there: false,
    }
}

/// An open tunnel: its place on a connection, and its two directions.
type Opened = (Lease, (RecvStream, SendStream));

/// Builds the tunnel key: calling pod and identity, expected identities, address.
fn key(
    pod: &Pod,
    source: IpAddr,
    (to, expected): (SocketAddr, &[Identity]),
) -> Result<TunnelKey, OutboundError> {
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    Ok(TunnelKey {
        place: pod.inside.id().map_err(|error| trouble(CONNECT, error))?,
        identity: pod.badge.identity.clone(),
        expected,
        to,
        source,
    })
}

/// A tunnel to the target.
async fn open_tunnel(
    worker: &NodeWorker,
    pod: &Arc<Pod>,
    caller: (SocketAddr, &Arc<Resident>),
    target: &RouteTarget,
) -> Result<Opened, OutboundError> {
    let expected = target.expected.as_deref().unwrap_or_default();
    let whom = (target.proxy(), expected);
    open(worker, pod, caller, whom, (&target.to, target)).await
}

/// Opens a tunnel to the destination, by the proxy at its address.
async fn open(
    worker: &NodeWorker,
    pod: &Arc<Pod>,
    caller: (SocketAddr, &Arc<Resident>),
    whom: (SocketAddr, &[Identity]),
    (called, target): (&dyn Display, &RouteTarget),
) -> Result<Opened, OutboundError> {
    let mut first = true;
    loop {
        let lease = lease(worker, pod, caller.0.ip(), whom).await?;
        match ask(worker, &lease, called, caller, target).await {
            Ok(halves) => return Ok((lease, halves)),
            // The connection had begun to leave before this tunnel was asked for.
            Err(error) if first && error.is_unprocessed() => first = false,
            Err(error) => return Err(unopened(error)),
        }
    }
}

/// Opens a tunnel inside another. The outer tunnel ends at the gateway of another network, which forwards to the
/// service without reading. The inner tunnel has a connection of its own, since each may lead to another pod. The
/// peer of the inner connection must have one of the expected identities; the gateway cannot vouch for it.
async fn open_far(
    worker: &NodeWorker,
    pod: &Arc<Pod>,
    caller: (SocketAddr, &Arc<Resident>),
    target: &RouteTarget,
    far: &NetworkGateway,
) -> Result<Opened, OutboundError> {
    let (tunnel, gateway) = enter(worker, pod, caller, target, far).await?;
    let expected = target.expected.clone().unwrap_or_default();
    let bond = worker.bonds.begin();
    let inner = within(worker, pod, (tunnel, gateway), &expected, &bond).await?;
    let owner = ConnectionBonds {
        pod: Arc::clone(pod),
        bond,
    };
    let lease = worker.pool.alone(owner, inner);
    let asked = ask(worker, &lease, &far.called, caller, target).await;
    Ok((lease, asked.map_err(unopened)?))
}

/// A tunnel to one of the gateways of another network, and which that is.
async fn enter(
    worker: &NodeWorker,
    pod: &Arc<Pod>,
    caller: (SocketAddr, &Arc<Resident>),
    target: &RouteTarget,
    far: &NetworkGateway,
) -> Result<(Tunnel, SocketAddr), OutboundError> {
    let all: Vec<SocketAddr> = far.gates.iter().map(|gate| gate.at).collect();
    let known = &worker.gateways;
    let order = known.order(&all, fastrand::u64(..), Instant::now());
    let mut last = trouble(CONNECT, "no gateway of the network is known");
    for (turn, place) in order.iter().enumerate() {
        let gate = &far.gates[*place];
        let attempt = async {
            let whom = (gate.at, slice::from_ref(&gate.identity));
            let (outer, halves) = open(worker, pod, caller, whom, (&far.called, target)).await?;
            Ok::<_, OutboundError>(Tunnel::new(halves, gate.at, None, Some(outer)))
        };
        let entered = match turn + 1 == order.len() {
            true => attempt.await,
            false => match tokio::time::timeout(ATTEMPT, attempt).await {
                Ok(entered) => entered,
                Err(_) => Err(trouble(CONNECT, format_args!("{}: no answer", gate.at))),
            },
        };
        match entered {
            Ok(tunnel) => {
                known.reached(gate.at);
                return Ok((tunnel, gate.at));
            }
            Err(error) => {
                known.failed(gate.at, Instant::now());
                tracing::debug!(gateway = %gate.at, %error, "cannot reach another network through this gateway");
                last = error;
            }
        }
    }
    Err(last)
}

/// Returns a place on a connection to the proxy at this address, which must have an expected identity.
async fn lease(
    worker: &NodeWorker,
    pod: &Arc<Pod>,
    source: IpAddr,
    (to, expected): (SocketAddr, &[Identity]),
) -> Result<Lease, OutboundError> {
    let key = key(pod, source, (to, expected))?;
    let expected = key.expected.clone();
    let bond = worker.bonds.begin();
    let owner = ConnectionBonds {
        pod: Arc::clone(pod),
        bond: Rc::clone(&bond),
    };
    let lease = worker
        .pool
        .lease(owner, key, || dial(worker, pod, to, expected, &bond));
    Box::pin(lease).await
}

/// Asks the proxy for a tunnel to the destination.
async fn ask(
    worker: &NodeWorker,
    lease: &Lease,
    called: &dyn Display,
    (client, source): (SocketAddr, &Arc<Resident>),
    target: &RouteTarget,
) -> Result<(RecvStream, SendStream), TunnelOpenError> {
    let mut head = worker.pool.blocks().block();
    let who = (&**source, target.service.as_deref());
    crate::connect_heads::connect(&mut head, called, client, who, || fastrand::u64(..));
    voile_hbone::open(lease, head).await
}

fn unopened(error: TunnelOpenError) -> OutboundError {
    match error {
        TunnelOpenError::Denied => trouble(DENY, error),
        TunnelOpenError::Status(NOT_FOUND) => OutboundError {
            unknown_there: true,
            ..trouble(CONNECT, error)
        },
        _ => trouble(CONNECT, error),
    }
}

/// Connects to the proxy at `to`, which must have an expected identity.
async fn dial(
    worker: &NodeWorker,
    pod: &Arc<Pod>,
    to: SocketAddr,
    expected: Vec<Identity>,
    bond: &PeerBond,
) -> Result<TransportStream, OutboundError> {
    let certified = pod.badge.certified().await;
    certified.map_err(|why| trouble(IDENTITY_ERROR, why))?;
    let tcp = pod.connect(to, None).await;
    let tcp = tcp.map_err(|error| match error {
        ConnectError::Timeout { .. } => trouble(
            NETWORK_POLICY,
            format_args!("{error}: does a NetworkPolicy block port {}?", to.port()),
        ),
        other => trouble(CONNECT, other),
    })?;
    let (config, name) = (Arc::clone(&pod.badge.client), ServerName::from(to.ip()));
    let stream = connect_tls(config, name, TcpIo::from(tcp), TLS_HANDSHAKE_TIMEOUT).await;
    let stream = stream.map_err(|error| unsealed(&error, format_args!("{to}")))?;
    let shown = (stream.alpn(), stream.peer_certificates());
    bond.prove(verified(worker, shown, &expected, to)?);
    Ok(stream)
}

/// The same at the other end of a tunnel through the gateway at `at`.
async fn within(
    worker: &NodeWorker,
    pod: &Pod,
    (tunnel, at): (Tunnel, SocketAddr),
    expected: &[Identity],
    bond: &PeerBond,
) -> Result<TransportStream, OutboundError> {
    let (config, name) = (Arc::clone(&pod.badge.client), ServerName::from(at.ip()));
    let within = connect_tls_within(config, name, Box::new(tunnel), TLS_HANDSHAKE_TIMEOUT).await;
    let within = within.map_err(|error| unsealed(&error, format_args!("behind {at}")))?;
    let shown = (within.alpn(), within.peer_certificates());
    bond.prove(verified(worker, shown, expected, at)?);
    Ok(within.into())
}

/// Returns the failure of a handshake with `whom`.
fn unsealed(error: &HandshakeError, whom: std::fmt::Arguments<'_>) -> OutboundError {
    let flags = match error.is_for_revocation() {
        true => CERT_REVOKED,
        false => TLS_FAILURE,
    };
    trouble(flags, format_args!("{whom}: {error}"))
}

/// Verifies the peer that answered: an expected identity, and no revoked certificate.
fn verified(
    worker: &NodeWorker,
    (protocol, chain): (Option<&[u8]>, &[CertificateDer<'_>]),
    expected: &[Identity],
    at: SocketAddr,
) -> Result<ProvenPeer, OutboundError> {
    if protocol != Some(alpn::PLAIN_HTTP2) {
        return Err(trouble(
            HANDSHAKE_FAILURE,
            format_args!("{at} did not negotiate h2 (ALPN)"),
        ));
    }
    let refused = |reason: &dyn Display| trouble(TLS_FAILURE, format_args!("{at}: {reason}"));
    let found = ProvenPeer::shown(chain).map_err(|error| refused(&error))?;
    verify_expected(&found.identity, expected).map_err(|error| refused(&error))?;
    if found.is_revoked(&worker.view().revocations) {
        return Err(trouble(CERT_REVOKED, format_args!("{at}: {REVOKED}")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbound::{plaintext, tunnel, tunnels};

    /// Bytes of the future that an async function returns.
    fn size<A, B, C, D, F>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    fn size_of_tunnel<A, B, C, F>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// Every connection holds one of these for as long as it is open.
    #[test]
    fn what_carries_a_connection_is_small() {
        let table = [
            (
                "out of a pod",
                size(|w: &'static NodeWorker, p: &'static Arc<Pod>, t, c| serve(w, p, t, c)),
                1_000,
            ),
            (
                "into a pod, in plaintext",
                size(|w: &'static Rc<NodeWorker>, p: &'static Arc<Pod>, t, c| {
                    plaintext(w, p, t, c)
                }),
                1_900,
            ),
            (
                "tunnels into a pod",
                size(|w: &'static Rc<NodeWorker>, p: &'static Arc<Pod>, t, c| tunnels(w, p, t, c)),
                2_300,
            ),
            ("one of those", size_of_tunnel(tunnel), 1_400),
        ];
        for (what, bytes, most) in table {
            println!("{what}: {bytes}");
            assert!(bytes <= most, "{what}: {bytes} bytes");
        }
    }
}
