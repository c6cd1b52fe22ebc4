//! A connection that came in: detect or terminate TLS, learn who it is, ask the policy, then serve HTTP or relay.
//!
//! ```text
//! accept ─► Opened (bytes peeked, if any) ─► Identified (stream, arrival, principal, kind) ─► Permit ─► http │ relay
//! ```

mod relay;

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rustls::AlertDescription;
use tokio::net::TcpStream;
use voile_hbone::Tunnel;
use voile_identity::identity_of;
use voile_identity::revocation::keys_of;
use voile_model::mesh::telemetry::TelemetrySide;
use voile_transport::alpn::{self, InnerProtocol};
use voile_transport::{
    self as transport, DetectedProtocol, FirstSpeaker, TLS_HANDSHAKE_TIMEOUT, TcpIo,
    TransportStream,
};
use voile_xds::wire::{MutualTls, WireProtocol};

use crate::http::serve_connection;
use crate::http2;
use crate::worker::handlers::forwarded_client_cert;
use crate::worker::handlers::inbound_caller::{InboundCaller, ProxyHeaderInfo, behind, stranger};
use crate::worker::handlers::inbound_http::InboundRole;
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::listeners::late_detection::{self, Ahead};
use crate::worker::listeners::server_first::DestinationKey;
use crate::worker::policy::admission::{ConnectionArrival, Verified};
use crate::worker::policy::authorization;
use crate::worker::policy::connection_permit::permit;
use crate::worker::policy::denial::Denied;
use crate::worker::records::access_logs::{self, TcpRecord};
use crate::worker::records::downstream::Downstream;
use crate::worker::{Conversation, Worker, count};
pub(crate) use relay::flags;

/// Protocol of an admitted connection's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InboundBytes {
    Http,
    Http2,
    Opaque,
}

/// A connection whose nature is known.
struct IdentifiedConnection {
    stream: TransportStream,
    caller: InboundCaller,
    kind: InboundBytes,
    /// The application's connection, if it had to be opened already.
    ahead: Option<Ahead>,
}

/// Serves one connection to its end.
///
/// The opening of a connection is large and short-lived, and each continuation has its own size. Both are boxed, so that a
/// connection never holds room for the other.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    slot: Rc<InboundSlot>,
    tcp: TcpStream,
    remote: SocketAddr,
) {
    let opening = Box::pin(async move {
        let identified = introduced(&worker, &slot, tcp, remote).await?;
        open(worker, slot, identified).await
    });
    if let Some(conversation) = opening.await {
        conversation.await;
    }
}

/// Serves a connection from a tunnel, whose caller is verified already.
pub(in crate::worker) async fn serve_tunnel(
    worker: Rc<Worker>,
    slot: Rc<InboundSlot>,
    tunnel: Tunnel,
    caller: InboundCaller,
) {
    let opening = Box::pin(async move {
        let identified = tunnelled(&worker, &slot, tunnel, caller).await?;
        open(worker, slot, identified).await
    });
    if let Some(conversation) = opening.await {
        conversation.await;
    }
}

/// Learns whether what is known of a connection may be; gives what remains to be done.
async fn open(
    worker: Rc<Worker>,
    slot: Rc<InboundSlot>,
    identified: IdentifiedConnection,
) -> Option<Conversation> {
    let IdentifiedConnection {
        stream,
        caller,
        kind,
        ahead,
    } = identified;
    let remote = caller.remote;
    let admitted = permit(&worker, &slot, &caller.arrival, remote);
    let admitted = admitted.map_err(|why| Denied::new(403, "refused_by_policy", why));
    let leave = match (kind, admitted) {
        (_, Err(denied)) => Err(denied),
        // Each request asks for itself.
        (InboundBytes::Http | InboundBytes::Http2, Ok(_)) => Ok(None),
        (InboundBytes::Opaque, Ok(permit)) => {
            let judged = authorization::connection(&worker, &slot, &caller, permit);
            unless_reset(&stream, judged).await?.map(Some)
        }
    };
    let leave = match leave {
        Ok(leave) => leave,
        Err(denied) => {
            let local = slot.plan.borrow().bind;
            refused(&worker, &slot, &denied, caller.downstream(local));
            transport::refuse(stream, AlertDescription::AccessDenied).await;
            return None;
        }
    };
    // The engine opens connections of its own, per request; `ahead` is of use only to a relay.
    Some(match (kind, leave) {
        (InboundBytes::Opaque, Some(leave)) => Box::pin(relay::to_application(
            worker, slot, stream, ahead, caller, leave,
        )),
        (InboundBytes::Opaque, None) => return None,
        (InboundBytes::Http, _) => {
            let engine = slot.http.engine();
            let role = InboundRole::new(worker, slot, caller);
            Box::pin(async move {
                serve_connection(&engine, &role, stream, &[]).await;
            })
        }
        (InboundBytes::Http2, _) => {
            let engine = slot.http.engine();
            let role = Rc::new(InboundRole::new(worker, slot, caller));
            Box::pin(async move {
                http2::serve_connection(&engine, role, stream).await;
            })
        }
    })
}

/// Waits for a word about a connection; `None` where its client broke it off meanwhile. One that only closed its sending
/// side may still read.
async fn unless_reset<T>(stream: &TransportStream, judged: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        word = judged => Some(word),
        () = stream.failed() => None,
    }
}

/// The line of a connection that never got as far as a request.
fn refused(worker: &Worker, slot: &InboundSlot, denied: &Denied, downstream: Downstream<'_>) {
    if access_logs::is_on(worker, TelemetrySide::Server) {
        let record = TcpRecord {
            flags: "UAEX",
            details: &denied.details,
            termination: &denied.reason,
            marks: denied.marks(),
            cluster: &slot.cluster(),
            ..TcpRecord::new(TelemetrySide::Server, downstream)
        };
        access_logs::tcp(worker, &record);
    }
}

/// Reads the PROXY header of the balancer in front, if one is expected.
async fn introduced(
    worker: &Worker,
    slot: &InboundSlot,
    mut tcp: TcpStream,
    remote: SocketAddr,
) -> Option<IdentifiedConnection> {
    let (expected, limit) = {
        let settings = worker.settings.borrow();
        (settings.proxy_protocol, settings.header_timeout)
    };
    let mut client = None;
    if expected {
        client = match transport::read_proxy_header(&mut tcp, limit).await {
            Ok(client) => client,
            Err(error) => {
                count(&worker.counters.refused);
                tracing::debug!(%remote, %error, "refused: no valid PROXY header");
                unintroduced(worker, slot, remote, &error.to_string());
                transport::reset(&tcp);
                return None;
            }
        };
    }
    let mut identified = identify(worker, slot, tcp, remote, client).await?;
    if client.is_some() {
        identified.caller.tell(|told| told.client = client);
    }
    forwarded_client_cert::note(worker, &identified.stream, &mut identified.caller);
    Some(identified)
}

/// Logs a connection whose balancer sent no PROXY header.
fn unintroduced(worker: &Worker, slot: &InboundSlot, remote: SocketAddr, why: &str) {
    if access_logs::is_on(worker, TelemetrySide::Server) {
        let record = TcpRecord {
            flags: "DPE",
            details: "proxy_protocol_error",
            termination: why,
            cluster: &slot.cluster(),
            ..TcpRecord::new(TelemetrySide::Server, slot.stranger(remote))
        };
        access_logs::tcp(worker, &record);
    }
}

async fn identify(
    worker: &Worker,
    slot: &InboundSlot,
    mut tcp: TcpStream,
    remote: SocketAddr,
    client: Option<SocketAddr>,
) -> Option<IdentifiedConnection> {
    let (mode, protocol) = {
        let plan = slot.plan.borrow();
        (plan.mutual_tls, plan.protocol)
    };
    if mode == MutualTls::Strict {
        return strict(worker, slot, tcp, remote).await;
    }
    if mode == MutualTls::Disable && matches!(protocol, WireProtocol::Tcp | WireProtocol::Tls) {
        return Some(plaintext(tcp.into(), remote, InboundBytes::Opaque));
    }
    if mode == MutualTls::Disable && protocol == WireProtocol::Http {
        let limit = worker.settings.borrow().header_timeout;
        let mut prefix = Vec::new();
        let spoke = transport::read_http(&mut tcp, &mut prefix);
        let kind = match tokio::time::timeout(limit, spoke).await.ok()?.ok()? {
            DetectedProtocol::Http2 => InboundBytes::Http2,
            _ => InboundBytes::Http,
        };
        return Some(plaintext(TcpIo::new(tcp, prefix), remote, kind));
    }
    let mut prefix = Vec::new();
    let place = from(slot, remote);
    let deadline = patience(worker, protocol, place);
    let mut detected = transport::read_prefix(&mut tcp, &mut prefix, Some(deadline))
        .await
        .ok()?;
    let mut ahead = None;
    if detected == DetectedProtocol::Undecided {
        if !protocol.is_http() {
            let permit = permit(worker, slot, &ConnectionArrival::Plaintext, remote).ok()?;
            let leave = authorization::rehearse(worker, slot, &behind(remote, client), permit);
            let leave = leave.as_ref();
            let (whence, leave) = ((remote, place), (leave, None));
            (detected, ahead) =
                late_detection::detect(worker, slot, &mut tcp, &mut prefix, whence, leave).await?;
        } else if prefix.is_empty() {
            return None; // An HTTP client that has nothing to say has no claim to an answer.
        }
    }
    let kind = kind(&detected, protocol, &prefix);
    let io = TcpIo::new(tcp, prefix);
    Some(match detected {
        DetectedProtocol::Tls(hello) if mode == MutualTls::Permissive && hello.is_mesh() => {
            worker.teach(place, FirstSpeaker::Client);
            terminate(worker, slot, io, (remote, ahead)).await?
        }
        detected => {
            let Some(kind) = kind else {
                not_spoken(worker, slot, remote, &detected);
                transport::linger(TransportStream::Tcp(io)).await;
                return None;
            };
            let mut plain = plaintext(io, remote, kind);
            plain.caller.hear(detected);
            plain.ahead = ahead;
            plain
        }
    })
}

/// Selects the protocol by the first bytes outside the mesh's TLS; `None` closes the connection.
fn kind(
    detected: &DetectedProtocol,
    protocol: WireProtocol,
    prefix: &[u8],
) -> Option<InboundBytes> {
    Some(match detected {
        // The proxy cannot read inside, so rules about HTTP would be bypassed.
        DetectedProtocol::Tls(_) if protocol.is_http() => return None,
        // TLS that is not ours belongs to the application.
        DetectedProtocol::Tls(_) => InboundBytes::Opaque,
        DetectedProtocol::Http1 if protocol == WireProtocol::Auto => InboundBytes::Http,
        DetectedProtocol::Http2 if protocol == WireProtocol::Auto || protocol.is_http() => {
            InboundBytes::Http2
        }
        // RFC 9113 section 3.4: bytes that are no preface end the connection, unless they are a request of HTTP/1.1.
        DetectedProtocol::Opaque if protocol.is_http2() && !transport::begins_connect(prefix) => {
            return None;
        }
        // A request for a tunnel is one: a server that grants none reads on, and policy must see what it reads.
        DetectedProtocol::Opaque
            if protocol == WireProtocol::Auto && transport::begins_connect(prefix) =>
        {
            InboundBytes::Http
        }
        // The engine answers other bytes on a declared HTTP port with its 400, and a slow client with its 408.
        _ if protocol.is_http() => InboundBytes::Http,
        _ => InboundBytes::Opaque,
    })
}

/// Protocol inside a tunnel or TLS that ended here, by the port's declaration and the first bytes.
struct InspectedBytes {
    /// None: it is to be closed.
    kind: Option<InboundBytes>,
    detected: DetectedProtocol,
    /// Bytes that were read for it.
    prefix: Vec<u8>,
    ahead: Option<Ahead>,
}

/// Looks at the first bytes inside, as at plaintext. `None` if the client is gone.
async fn inspect(
    worker: &Worker,
    slot: &InboundSlot,
    stream: &mut impl transport::Readable,
    caller: &InboundCaller,
    mut ahead: Option<Ahead>,
) -> Option<InspectedBytes> {
    let (protocol, place) = {
        let plan = slot.plan.borrow();
        let place = DestinationKey::Inside(plan.bind, caller.remote.ip());
        (plan.protocol, place)
    };
    let mut prefix = Vec::new();
    let deadline = patience(worker, protocol, place);
    let read = transport::read_prefix(stream, &mut prefix, Some(deadline)).await;
    let mut detected = read.ok()?;
    if detected == DetectedProtocol::Undecided && !protocol.is_http() {
        let permit = permit(worker, slot, &caller.arrival, caller.remote).ok()?;
        let leave = authorization::rehearse(worker, slot, caller, permit);
        let (leave, whence) = ((leave.as_ref(), ahead), (caller.remote, place));
        let late = late_detection::detect(worker, slot, stream, &mut prefix, whence, leave);
        (detected, ahead) = late.await?;
    } else if detected == DetectedProtocol::Undecided && prefix.is_empty() {
        return None;
    }
    Some(InspectedBytes {
        kind: kind(&detected, protocol, &prefix),
        detected,
        prefix,
        ahead,
    })
}

/// Learns what travels in a tunnel: its bytes are as the application's client wrote them.
async fn tunnelled(
    worker: &Worker,
    slot: &InboundSlot,
    mut tunnel: Tunnel,
    mut caller: InboundCaller,
) -> Option<IdentifiedConnection> {
    let protocol = slot.plan.borrow().protocol;
    let mut ahead = None;
    let mut kind = Some(InboundBytes::Opaque);
    if !matches!(protocol, WireProtocol::Tcp | WireProtocol::Tls) {
        let inspected = inspect(worker, slot, &mut tunnel, &caller, None).await?;
        (kind, ahead) = (inspected.kind, inspected.ahead);
        if kind.is_none() {
            not_spoken(worker, slot, caller.remote, &inspected.detected);
        }
        caller.hear(inspected.detected);
        tunnel.unread(inspected.prefix);
    }
    let stream = TransportStream::Tunnel(Box::new(tunnel));
    let Some(kind) = kind else {
        transport::linger(stream).await;
        return None;
    };
    Some(IdentifiedConnection {
        stream,
        caller,
        kind,
        ahead,
    })
}

/// Accepts TLS only. Plaintext is closed in good order, without an alert that its client could not read.
async fn strict(
    worker: &Worker,
    slot: &InboundSlot,
    mut tcp: TcpStream,
    remote: SocketAddr,
) -> Option<IdentifiedConnection> {
    let mut prefix = Vec::new();
    let first = transport::read_first(&mut tcp, &mut prefix, TLS_HANDSHAKE_TIMEOUT)
        .await
        .ok()?;
    if first != Some(transport::TLS_HANDSHAKE_RECORD) {
        count(&worker.counters.refused);
        tracing::debug!(%remote, "plaintext refused: PeerAuthentication is STRICT");
        no_chain(
            worker,
            slot,
            remote,
            "plaintext refused: PeerAuthentication is STRICT",
        );
        transport::linger(TransportStream::Tcp(tcp.into())).await;
        return None;
    }
    terminate(worker, slot, TcpIo::new(tcp, prefix), (remote, None)).await
}

/// Counts and logs foreign TLS on a declared HTTP port. A wrong preface is not logged.
fn not_spoken(
    worker: &Worker,
    slot: &InboundSlot,
    remote: SocketAddr,
    detected: &DetectedProtocol,
) {
    if matches!(detected, DetectedProtocol::Tls(_)) {
        count(&worker.counters.refused);
        tracing::debug!(%remote, FOREIGN_TLS);
        no_chain(worker, slot, remote, FOREIGN_TLS);
    }
}

const FOREIGN_TLS: &str = "TLS that is not the mesh's own refused: the port is declared HTTP";

/// Logs, in Envoy's terms, a connection that no filter chain takes.
fn no_chain(worker: &Worker, slot: &InboundSlot, remote: SocketAddr, why: &str) {
    if access_logs::is_on(worker, TelemetrySide::Server) {
        let record = TcpRecord {
            flags: "NR",
            details: "filter_chain_not_found",
            termination: why,
            cluster: &slot.cluster(),
            ..TcpRecord::new(TelemetrySide::Server, slot.stranger(remote))
        };
        access_logs::tcp(worker, &record);
    }
}

/// Key under which the worker remembers if this caller waits for the server. A caller with mutual TLS does not wait, even if an
/// earlier caller at its address did.
fn from(slot: &InboundSlot, remote: SocketAddr) -> DestinationKey {
    DestinationKey::Inbound(slot.plan.borrow().bind, remote.ip())
}

/// HTTP clients speak first, so there is no hurry to call a silent one opaque.
fn patience(worker: &Worker, protocol: WireProtocol, place: DestinationKey) -> Duration {
    let settings = worker.settings.borrow();
    match protocol {
        protocol if protocol.is_http() => settings.header_timeout,
        // The protocol is still open: the application is connected, and the side that speaks first decides.
        _ if worker.servers_first.knows(place) => Duration::ZERO,
        _ => settings.detection_timeout,
    }
}

fn plaintext(io: TcpIo, remote: SocketAddr, kind: InboundBytes) -> IdentifiedConnection {
    IdentifiedConnection {
        stream: TransportStream::Tcp(io),
        caller: stranger(remote),
        kind,
        ahead: None,
    }
}

/// Ends the mesh's TLS. ALPN may name a version of HTTP; without one the first bytes decide.
async fn terminate(
    worker: &Worker,
    slot: &InboundSlot,
    io: TcpIo,
    (remote, ahead): (SocketAddr, Option<Ahead>),
) -> Option<IdentifiedConnection> {
    let refused = |error: &dyn std::fmt::Display| {
        count(&worker.counters.handshake_failures_downstream);
        tracing::debug!(%remote, %error, "handshake failed");
        if access_logs::is_on(worker, TelemetrySide::Server) {
            let record = TcpRecord {
                downstream_failure: &error.to_string(),
                termination: "tls_handshake_failed",
                cluster: &slot.cluster(),
                ..TcpRecord::new(TelemetrySide::Server, slot.stranger(remote))
            };
            access_logs::tcp(worker, &record);
        }
    };
    let config = worker.tls.server.clone();
    let stream = match worker.accept_tls(config, io).await {
        Ok(stream) => stream,
        Err(error) => {
            refused(&error);
            return None;
        }
    };
    let leaf = stream.peer_certificates().first()?;
    let identity = match identity_of(leaf) {
        Ok(identity) => identity,
        Err(error) => {
            refused(&error);
            transport::refuse(stream, AlertDescription::BadCertificate).await;
            return None;
        }
    };
    let certificates = keys_of(stream.peer_certificates());
    let suite = stream.cipher_suite();
    let server_name = stream.server_name();
    let told = server_name.map(|name| ProxyHeaderInfo {
        server_name: Some(name.into()),
        ..ProxyHeaderInfo::default()
    });
    let caller = InboundCaller {
        suite,
        principal: identity.to_string(),
        arrival: ConnectionArrival::MutualTls(Rc::new(Verified {
            identity,
            certificates,
        })),
        remote,
        told: told.map(Box::new),
    };
    spoken(worker, slot, stream, caller, ahead).await
}

/// Detects the protocol inside the mesh's TLS: the HTTP version of ALPN, else the port's declaration and the bytes.
async fn spoken(
    worker: &Worker,
    slot: &InboundSlot,
    mut stream: TransportStream,
    caller: InboundCaller,
    ahead: Option<Ahead>,
) -> Option<IdentifiedConnection> {
    let protocol = slot.plan.borrow().protocol;
    let named = match (alpn::inner(stream.alpn()), protocol) {
        (_, WireProtocol::Tcp | WireProtocol::Tls) => Some(InboundBytes::Opaque),
        (InnerProtocol::Http1, _) => Some(InboundBytes::Http),
        (InnerProtocol::Http2, _) => Some(InboundBytes::Http2),
        (InnerProtocol::Opaque | InnerProtocol::Unnamed, _) => None,
    };
    let (kind, ahead) = match named {
        Some(kind) => (kind, ahead),
        None => {
            // Boxed: few connections between sidecars come without a version of HTTP.
            let inspected = Box::pin(inspect(worker, slot, &mut stream, &caller, ahead)).await?;
            let Some(kind) = inspected.kind else {
                not_spoken(worker, slot, caller.remote, &inspected.detected);
                transport::linger(stream).await;
                return None;
            };
            stream.unread(inspected.prefix);
            (kind, inspected.ahead)
        }
    };
    Some(IdentifiedConnection {
        stream,
        caller,
        kind,
        ahead,
    })
}
