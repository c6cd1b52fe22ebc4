//! Connections of a gateway from outside, from their first byte to their end. `listeners/gateway_slot.rs` has the configuration.
//! Requests use the same route tables as a sidecar's and the same authorization policies.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use rustls::AlertDescription;
use tokio::net::TcpStream;
use voile_identity::identity_of;
use voile_identity::revocation::keys_of;
use voile_model::mesh::telemetry::TelemetrySide;
use voile_transport::alpn::{self, InnerProtocol};
use voile_transport::{
    self as transport, DetectedProtocol, TLS_HANDSHAKE_TIMEOUT, TcpIo, TransportStream,
};
use voile_xds::wire::ServerKind;

use crate::http::serve_connection;
use crate::http2;
use crate::plan::TlsPlan;
use crate::worker::handlers::gateway_http::GatewayRole;
use crate::worker::handlers::gateway_tcp::bytes;
use crate::worker::handlers::inbound_caller::{InboundCaller, behind};
use crate::worker::handlers::{forwarded_client_cert, waypoint};
use crate::worker::listeners::gateway_slot::{GatewaySlot, MatchedServer};
use crate::worker::policy::admission::{ConnectionArrival, Verified};
use crate::worker::records::access_logs::{self, TcpRecord};
use crate::worker::{Conversation, Worker, count};

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

/// Reads the client's first bytes; returns the future of the rest.
async fn open(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    mut tcp: TcpStream,
    remote: SocketAddr,
) -> Option<Conversation> {
    let caller = introduced(&worker, &mut tcp, remote).await?;
    if slot.plan.borrow().waypoint {
        return waypoint::tunnels(worker, slot, tcp, caller).await;
    }
    if slot.is_encrypted() {
        return in_tls(worker, slot, tcp, caller).await;
    }
    let server = slot.plain()?;
    if server.kind == ServerKind::Bytes {
        let stream = TransportStream::Tcp(tcp.into());
        return Some(bytes(worker, slot, server, stream, caller, None));
    }
    let mut prefix = Vec::new();
    let limit = worker.settings.borrow().idle_timeout;
    let detected = tokio::select! {
        detected = transport::read_http(&mut tcp, &mut prefix) => detected.ok()?,
        () = tokio::time::sleep(limit) => return None,
        () = slot.http.idle_unwelcome() => return None,
    };
    let stream = TransportStream::Tcp(TcpIo::new(tcp, prefix));
    Some(http(worker, slot, server, stream, caller, detected))
}

/// Reads the server name of a TLS client, then ends TLS with that server's terms, or passes it on.
async fn in_tls(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    mut tcp: TcpStream,
    mut caller: InboundCaller,
) -> Option<Conversation> {
    let mut prefix = Vec::new();
    let heard = transport::read_prefix(&mut tcp, &mut prefix, Some(TLS_HANDSHAKE_TIMEOUT));
    let DetectedProtocol::Tls(hello) = heard.await.ok()? else {
        let why = "plaintext on a port that accepts only TLS";
        refuse(&worker, &slot, &caller, why);
        transport::linger(TransportStream::Tcp(TcpIo::new(tcp, prefix))).await;
        return None;
    };
    let is_mesh = hello.is_mesh();
    let name = hello.server_name.map(|name| name.to_ascii_lowercase());
    let server = slot.named(name.as_deref());
    let server = server.ok_or("no server of the Gateway matches the SNI");
    let server = server.and_then(|server| match server.kind {
        // A proxy of the mesh may pass foreign TLS on to an application, so this gateway refuses it here.
        ServerKind::AutoPassthrough if !is_mesh => {
            Err("not the TLS of the mesh (AUTO_PASSTHROUGH)")
        }
        _ => Ok(server),
    });
    let server = match server {
        Ok(server) => server,
        Err(why) => {
            refuse(&worker, &slot, &caller, why);
            transport::reset(&tcp);
            return None;
        }
    };
    if let Some(name) = &name {
        caller.tell(|told| told.server_name = Some(name.as_str().into()));
    }
    let name = name.unwrap_or_default();
    let io = TcpIo::new(tcp, prefix);
    let Some(tls) = server.tls.clone() else {
        let stream = TransportStream::Tcp(io);
        return Some(bytes(worker, slot, server, stream, caller, Some(name)));
    };
    let stream = ended(&worker, &slot, &mut caller, tls, io).await?;
    if server.kind == ServerKind::Bytes {
        return Some(bytes(worker, slot, server, stream, caller, Some(name)));
    }
    let detected = match alpn::inner(stream.alpn()) {
        InnerProtocol::Http2 => DetectedProtocol::Http2,
        InnerProtocol::Http1 | InnerProtocol::Opaque | InnerProtocol::Unnamed => {
            DetectedProtocol::Http1
        }
    };
    Some(http(worker, slot, server, stream, caller, detected))
}

/// Ends TLS. In the mesh's own TLS the client proves its identity.
pub(in crate::worker) async fn ended(
    worker: &Worker,
    slot: &GatewaySlot,
    caller: &mut InboundCaller,
    tls: TlsPlan,
    io: TcpIo,
) -> Option<TransportStream> {
    let config = match tls.mesh {
        true => Some(Arc::clone(&worker.tls.server)),
        false => tls.config,
    };
    let Some(config) = config else {
        let why = format!("the server has no certificate: {}", tls.credential);
        refuse(worker, slot, caller, &why);
        transport::reset(io.tcp());
        return None;
    };
    let stream = match worker.accept_tls(config, io).await {
        Ok(stream) => stream,
        Err(error) => {
            count(&worker.counters.handshake_failures_downstream);
            refuse(worker, slot, caller, &error.to_string());
            return None;
        }
    };
    caller.suite = stream.cipher_suite();
    if tls.unverified {
        caller.tell(|told| told.unverified = true);
    }
    if tls.mesh {
        let Some(Ok(identity)) = stream.peer_certificates().first().map(identity_of) else {
            count(&worker.counters.handshake_failures_downstream);
            refuse(
                worker,
                slot,
                caller,
                "the client certificate has no SPIFFE identity",
            );
            transport::refuse(stream, AlertDescription::BadCertificate).await;
            return None;
        };
        caller.principal = identity.to_string();
        caller.arrival = ConnectionArrival::MutualTls(Rc::new(Verified {
            identity,
            certificates: keys_of(stream.peer_certificates()),
        }));
    }
    Some(stream)
}

/// Counts a connection that got nowhere, and writes its line.
pub(in crate::worker) fn refuse(
    worker: &Worker,
    slot: &GatewaySlot,
    caller: &InboundCaller,
    why: &str,
) {
    count(&worker.counters.refused);
    tracing::debug!(remote = %caller.client(), why, "connection refused");
    let (bind, side) = {
        let plan = slot.plan.borrow();
        let side = match plan.waypoint {
            true => TelemetrySide::Server,
            false => TelemetrySide::Client,
        };
        (plan.bind, side)
    };
    if access_logs::is_on(worker, side) {
        let record = TcpRecord {
            flags: "NR",
            details: "filter_chain_not_found",
            downstream_failure: why,
            ..TcpRecord::new(side, caller.downstream(bind))
        };
        access_logs::tcp(worker, &record);
    }
}

pub(in crate::worker) fn http(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    server: MatchedServer,
    stream: TransportStream,
    mut caller: InboundCaller,
    detected: DetectedProtocol,
) -> Conversation {
    forwarded_client_cert::note(&worker, &stream, &mut caller);
    let engine = match &server.door {
        Some(door) => door.http.engine(),
        None => slot.http.engine(),
    };
    let role = GatewayRole::new(worker, slot, server, caller);
    match detected {
        DetectedProtocol::Http2 => {
            let role = Rc::new(role);
            Box::pin(async move {
                http2::serve_connection(&engine, role, stream).await;
            })
        }
        // The engine answers bytes that are not HTTP with its 400.
        _ => Box::pin(async move {
            serve_connection(&engine, &role, stream, &[]).await;
        }),
    }
}

/// Reads the PROXY header of the balancer in front, if one is expected.
async fn introduced(
    worker: &Worker,
    tcp: &mut TcpStream,
    remote: SocketAddr,
) -> Option<InboundCaller> {
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
            tracing::debug!(%remote, %error, "refused: no valid PROXY header");
            transport::reset(tcp);
            None
        }
    }
}
