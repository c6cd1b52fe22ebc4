//! A waypoint's listener: tunnels of the mesh's mutual TLS (HBONE), each to a destination behind it and no other. The content of
//! a tunnel is served as a gateway's connections are, by the policies and routes of its destination. The caller is the peer of
//! the tunnel's connection. The tunnel's head (`baggage`, `forwarded`) is not trusted and not read.
//!
//! ```text
//! tcp ═ TLS ═ HTTP/2 ─┬ CONNECT a destination ─► policies, routes ─► endpoint
//!                     └ CONNECT anything else ─► 404
//! ```

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rustls::AlertDescription;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use voile_hbone::{CONFIG, Tunnel, TunnelRequest, Wire};
use voile_http2::{Connection, Fields, Link};
use voile_transport::{self as transport, DetectedProtocol, TcpIo, TransportStream, alpn};
use voile_xds::wire::WireProtocol;

use crate::plan::TlsPlan;
use crate::worker::handlers::gateway::{ended, http, refuse};
use crate::worker::handlers::gateway_tcp::bytes;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::listeners::gateway_slot::{GatewaySlot, MatchedServer};
use crate::worker::policy::{authorization, connection_permit};
use crate::worker::{Conversation, Worker};

/// Status for a request that is no CONNECT, or that names nothing to call.
const BAD_REQUEST: u16 = 400;
/// A destination that is not behind this waypoint.
const NOT_FOUND: u16 = 404;
/// A caller that may not use this waypoint at all.
const UNAUTHORIZED: u16 = 401;

/// Time for the first request of a tunnel whose destination leaves the waypoint: its caller may not have heard of that.
const FIRST_WORD: Duration = Duration::from_secs(1);

/// Ends TLS, and hears who calls; gives what remains to be done.
pub(in crate::worker) async fn tunnels(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    tcp: TcpStream,
    mut caller: InboundCaller,
) -> Option<Conversation> {
    let tls = TlsPlan {
        credential: "".into(),
        config: None,
        mesh: true,
        unverified: false,
    };
    let stream = ended(&worker, &slot, &mut caller, tls, TcpIo::from(tcp)).await?;
    if stream.alpn() != Some(alpn::PLAIN_HTTP2) {
        refuse(
            &worker,
            &slot,
            &caller,
            "the client did not negotiate h2 (ALPN)",
        );
        transport::linger(stream).await;
        return None;
    }
    if let Err(why) =
        connection_permit::permit(&worker, &slot.inbound, &caller.arrival, caller.remote)
    {
        refuse(&worker, &slot, &caller, &why);
        transport::refuse(stream, AlertDescription::AccessDenied).await;
        return None;
    }
    Some(Box::pin(carry(worker, slot, stream, Rc::new(caller))))
}

/// Serves the tunnels of one connection, until it ends or everything must.
async fn carry(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    stream: TransportStream,
    caller: Rc<InboundCaller>,
) {
    let local = stream.local();
    let mut connection = Connection::server(&CONFIG, worker.tunnels.blocks().clone());
    connection.set_source(caller.source());
    let link = Link::new(connection);
    let mut wire = Wire::new(stream, link.clone());
    let serving = voile_hbone::serve(&mut wire, &link, slot.http.leaving(), |request| {
        let (worker, slot) = (Rc::clone(&worker), Rc::clone(&slot));
        let caller = Rc::clone(&caller);
        async move { tunnel(worker, slot, request, (&caller, local)).await }
    });
    tokio::select! {
        end = serving => tracing::debug!(?end, remote = %caller.remote, "an HBONE connection ended"),
        () = worker.stop.heard() => {}
    }
    wire.close().await;
}

/// Serves one tunnel. Returns true if it carried anything.
async fn tunnel(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    request: TunnelRequest,
    (caller, local): (&InboundCaller, Option<SocketAddr>),
) -> bool {
    let taker = match meant(&slot, request.head()) {
        Ok(taker) => taker,
        Err((status, why)) => {
            refuse(&worker, &slot, caller, why);
            request.refuse(status);
            return false;
        }
    };
    // Certificates are taken back, and trust is, while connections live.
    if let Err(why) =
        connection_permit::permit(&worker, &slot.inbound, &caller.arrival, caller.remote)
    {
        refuse(&worker, &slot, caller, &why);
        request.refuse(UNAUTHORIZED);
        return false;
    }
    let Some(halves) = request.accept() else {
        return false;
    };
    let tunnel = Tunnel::new(halves, caller.remote, local, None);
    let caller = caller.clone();
    let serving = Box::pin(inside(worker, slot, taker, tunnel, caller));
    match serving.await {
        Some(conversation) => {
            conversation.await;
            true
        }
        None => false,
    }
}

/// Selects the destination of a tunnel.
fn meant(slot: &GatewaySlot, head: &Fields) -> Result<MatchedServer, (u16, &'static str)> {
    if head.method() != "CONNECT" || head.protocol().is_some() || head.is_cut() {
        return Err((BAD_REQUEST, "not a CONNECT"));
    }
    let authority = head.authority().unwrap_or_default();
    let found = match authority.parse::<SocketAddr>() {
        Ok(to) => slot.behind(SocketAddr::new(to.ip().to_canonical(), to.port())),
        Err(_) => {
            let named = voile_hbone::named(head);
            let (host, port) = named.ok_or((
                BAD_REQUEST,
                "the :authority is neither ADDRESS:PORT nor NAME:PORT",
            ))?;
            slot.named_behind(&host, port)
        }
    };
    found.ok_or((NOT_FOUND, "the destination is not behind this waypoint"))
}

/// Detects the protocol in a tunnel, and serves it.
async fn inside(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    taker: MatchedServer,
    mut tunnel: Tunnel,
    caller: InboundCaller,
) -> Option<Conversation> {
    let protocol = taker.way.protocol();
    let takes_bytes = taker
        .door
        .as_ref()
        .is_none_or(|door| authorization::carries_bytes(&worker, &door.place));
    let (patience, silent) = {
        let settings = worker.settings.borrow();
        // On a port for requests only, a silent client may still send one.
        match !takes_bytes {
            true => (settings.idle_timeout, None),
            false => (settings.detection_timeout, Some(DetectedProtocol::Opaque)),
        }
    };
    let detected = match protocol {
        WireProtocol::Tcp | WireProtocol::Tls => DetectedProtocol::Opaque,
        _ => {
            let mut heard = Vec::new();
            let detected = tokio::select! {
                detected = hear(&mut tunnel, &mut heard, patience) => detected.or(silent)?,
                () = abandoned(&taker) => return None,
            };
            let is_connect = transport::begins_connect(&heard);
            tunnel.unread(heard);
            match is_connect {
                // A server that grants no tunnel reads on, and policy must see what it reads.
                true => DetectedProtocol::Http1,
                false => detected,
            }
        }
    };
    let stream = TransportStream::Tunnel(Box::new(tunnel));
    Some(match detected {
        DetectedProtocol::Http2 => {
            http(worker, slot, taker, stream, caller, DetectedProtocol::Http2)
        }
        // The engine answers other bytes on a declared HTTP port with its 400: a client cannot bypass policies about
        // requests with another protocol.
        _ if protocol.is_http() => {
            http(worker, slot, taker, stream, caller, DetectedProtocol::Http1)
        }
        DetectedProtocol::Http1 => {
            http(worker, slot, taker, stream, caller, DetectedProtocol::Http1)
        }
        DetectedProtocol::Tls(hello) => {
            let name = hello.server_name.map(|name| name.to_ascii_lowercase());
            let name = name.unwrap_or_default();
            bytes(worker, slot, taker, stream, caller, Some(name))
        }
        _ => bytes(worker, slot, taker, stream, caller, None),
    })
}

/// Ready when the destination has left the waypoint, and the caller sends no request that it had begun before.
async fn abandoned(taker: &MatchedServer) {
    taker.idle_unwelcome().await;
    tokio::time::sleep(FIRST_WORD).await;
}

/// Reads until the protocol is known; `None` if the client sends nothing in time, or closes.
async fn hear(
    tunnel: &mut Tunnel,
    heard: &mut Vec<u8>,
    patience: Duration,
) -> Option<DetectedProtocol> {
    let hearing = async {
        loop {
            if let Some(detected) = transport::detect(heard) {
                return Some(detected);
            }
            match tunnel.read_buf(heard).await {
                Ok(1..) => {}
                Ok(0) if !heard.is_empty() => return Some(DetectedProtocol::Opaque),
                Ok(0) | Err(_) => return Some(DetectedProtocol::Silent),
            }
        }
    };
    tokio::time::timeout(patience, hearing).await.ok()?
}
