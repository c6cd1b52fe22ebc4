//! What a pod's application calls (15001): where it was going, who is there, and through a tunnel to whom that needs one.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use voile_hbone::{Lease, Owner, Unopened};
use voile_http2::{RecvStream, SendStream};
use voile_identity::{Identity, verify_expected};
use voile_telemetry::{Reporter, Security};
use voile_transport::{Stream, TLS_HANDSHAKE_TIMEOUT, TcpIo, alpn, connect_tls, reset};

use crate::near;
use crate::plain::{Arrival, carry};
use crate::pod::{Life, Pod};
use crate::proven::{Bond, Proven};
use crate::records::{Parties, Record};
use crate::registry::Resident;
use crate::route::{Target, decide};
use crate::tunnel::{self, End};
use crate::worker::{Worker, own};

/// A relay's idle limit stands for none: the kernel's keep-alive notices who is gone.
pub(crate) const NO_IDLE_LIMIT: Duration = Duration::from_hours(24 * 365);

/// ztunnel's words for what went wrong.
pub(crate) const CONNECT: &str = "CONNECT";
pub(crate) const DENY: &str = "DENY";
const TLS_FAILURE: &str = "TLS_FAILURE";
const HANDSHAKE_FAILURE: &str = "H2_HANDSHAKE_FAILURE";
const IDENTITY_ERROR: &str = "IDENTITY_ERROR";

/// What makes two tunnels alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The pod that calls: its sockets are its own.
    place: (u64, u64),
    identity: Identity,
    expected: Vec<Identity>,
    to: SocketAddr,
    source: IpAddr,
}

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Trouble {
    /// ztunnel's word for it.
    pub(crate) flags: &'static str,
    pub(crate) reason: Arc<str>,
}

/// The connections to other proxies.
pub(crate) type Pool = voile_hbone::Pool<Key, Trouble>;

/// A pod's connections take no more when it leaves, and are cut when it is gone, or whoever answered is believed no longer.
struct Of {
    pod: Arc<Pod>,
    bond: Rc<Bond>,
}

impl Owner for Of {
    async fn leaving(&self) {
        tokio::select! {
            () = self.pod.is_at(Life::Leaving) => {}
            () = self.bond.broken() => {}
        }
    }

    async fn gone(&self) {
        tokio::select! {
            () = self.pod.is_at(Life::Gone) => {}
            () = self.bond.broken() => {}
        }
    }
}

/// Serves one connection.
pub(crate) async fn serve(worker: &Worker, pod: &Arc<Pod>, tcp: TcpStream, client: SocketAddr) {
    let began = Instant::now();
    Arrival::prepare(&tcp);
    let arrival = Arrival {
        worker,
        pod,
        peer: client,
        direction: "outbound",
    };
    let Some(to) = arrival.destination(&tcp) else {
        return;
    };
    let refused = |reason: &dyn std::fmt::Display| arrival.refuse(&tcp, reason);
    if !pod.has(client.ip()) {
        return refused(&format_args!("{} is not the pod's address", client.ip()));
    }
    let Some(view) = worker.known(&[client.ip(), to.ip()]).await else {
        return refused(&format_args!("nobody says who is at {}", to.ip()));
    };
    let Some(source) = own(&view, pod, client.ip()) else {
        return refused(&"the control plane does not know this pod");
    };
    let Some(view) = worker.known_waypoint(&view, source, to).await else {
        return refused(&format_args!("nobody says who stands before {to}"));
    };
    let Some(source) = own(&view, pod, client.ip()) else {
        return refused(&"the control plane does not know this pod");
    };
    let target = match decide(&view, source, to, fastrand::f64()) {
        Ok(target) => target,
        Err(refusal) => return refused(&refusal),
    };
    let answering = target.expected.as_ref().and_then(|all| all.first());
    let server = match target.expected {
        Some(_) => target.proxy(),
        None => target.to,
    };
    let parties = Parties {
        reporter: Reporter::Source,
        source: (Some(&**source), Some(&pod.badge.identity)),
        destination: (target.resident.as_deref(), answering),
        service: target.service.as_deref(),
        security: match target.expected {
            Some(_) => Security::MutualTls,
            None => Security::Unknown,
        },
        client,
        server,
        tunnelled: target.expected.as_ref().map(|_| target.to),
    };
    let record = Record::open(worker, &parties, began);
    if let Some(there) = near::home(worker, pod, &target) {
        let ends = (client, target.to);
        return near::carry(worker, (pod, source), &there, tcp, ends, record).await;
    }
    match &target.expected {
        None => carry(pod, tcp, (target.to, None), pod.is_at(Life::Gone), record).await,
        Some(_) => through(worker, pod, tcp, (client, source), &target, record).await,
    }
}

async fn through(
    worker: &Worker,
    pod: &Arc<Pod>,
    tcp: TcpStream,
    caller: (SocketAddr, &Arc<Resident>),
    target: &Target,
    record: Record<'_>,
) {
    let opened = open_tunnel(worker, pod, caller, target).await;
    let (lease, halves) = match opened {
        Ok(opened) => opened,
        Err(trouble) => {
            reset(&tcp);
            return record.close(trouble.flags, (0, 0), Some(trouble.to_string()));
        }
    };
    let down = Stream::Tcp(TcpIo::from(tcp));
    let done = tunnel::carry(down, halves, pod.is_at(Life::Gone)).await;
    drop(lease);
    let error = (done.end != End::Finished).then(|| format!("{:?}", done.end));
    record.close("-", (done.inward, done.outward), error);
}

fn trouble(flags: &'static str, reason: impl std::fmt::Display) -> Trouble {
    Trouble {
        flags,
        reason: reason.to_string().into(),
    }
}

/// A tunnel to the target: a place on a connection, and its two directions.
async fn open_tunnel(
    worker: &Worker,
    pod: &Arc<Pod>,
    (client, source): (SocketAddr, &Arc<Resident>),
    target: &Target,
) -> Result<(Lease, (RecvStream, SendStream)), Trouble> {
    let mut expected = target.expected.clone().unwrap_or_default();
    expected.sort_unstable();
    let place = pod.inside.id().map_err(|error| trouble(CONNECT, error))?;
    let key = Key {
        place,
        identity: pod.badge.identity.clone(),
        expected,
        to: target.proxy(),
        source: client.ip(),
    };
    let (to, expected) = (key.to, key.expected.clone());
    let bond = worker.bonds.begin();
    let owner = Of {
        pod: Arc::clone(pod),
        bond: Rc::clone(&bond),
    };
    let lease = worker
        .pool
        .lease(owner, key, || dial(worker, pod, to, expected, &bond));
    let lease = Box::pin(lease).await?;
    let mut head = worker.pool.blocks().block();
    let service = target.service.as_deref();
    let who = (&**source, service);
    crate::heads::connect(&mut head, target.to, client, who, || fastrand::u64(..));
    let opened = voile_hbone::open(&lease, head).await;
    let halves = opened.map_err(|error| match error {
        Unopened::Denied => trouble(DENY, error),
        _ => trouble(CONNECT, error),
    })?;
    Ok((lease, halves))
}

/// A connection to the proxy at `to`, which is who it must be.
async fn dial(
    worker: &Worker,
    pod: &Arc<Pod>,
    to: SocketAddr,
    expected: Vec<Identity>,
    bond: &Bond,
) -> Result<Stream, Trouble> {
    if !pod.badge.is_certified().await {
        let why = pod.badge.store.trouble().unwrap_or_default();
        let who = &pod.badge.identity;
        return Err(trouble(
            IDENTITY_ERROR,
            format_args!("{who} has no certificate: {why}"),
        ));
    }
    let tcp = pod.connect(to, None).await;
    let tcp = tcp.map_err(|error| trouble(CONNECT, error))?;
    let (config, name) = (Arc::clone(&pod.badge.client), ServerName::from(to.ip()));
    let stream = connect_tls(config, name, TcpIo::from(tcp), TLS_HANDSHAKE_TIMEOUT).await;
    let stream = stream.map_err(|error| trouble(TLS_FAILURE, format_args!("{to}: {error}")))?;
    if stream.alpn() != Some(alpn::PLAIN_HTTP2) {
        return Err(trouble(
            HANDSHAKE_FAILURE,
            format_args!("{to} does not speak h2"),
        ));
    }
    let refused =
        |reason: &dyn std::fmt::Display| trouble(TLS_FAILURE, format_args!("{to}: {reason}"));
    let found = Proven::of(&stream).map_err(|error| refused(&error))?;
    verify_expected(&found.identity, &expected).map_err(|error| refused(&error))?;
    if found.is_revoked(&worker.view().revocations) {
        return Err(refused(&"its certificate is revoked"));
    }
    bond.prove(found);
    Ok(stream)
}
