//! HBONE tunnels that a sidecar takes: of node proxies, and of callers on other networks that know only the service's name.
//!
//! ```text
//! 15008 ─► mutual TLS ─► CONNECT ─► own address, or name? ─► inbound
//! ```

use std::fmt::Display;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::net::TcpStream;
use voile_hbone::{CONFIG, NoTunnel, Tunnel, TunnelRequest, Wire, serve as serve_wire};
use voile_http2::{Connection, ErrorCode, Link, source_number};
use voile_identity::revocation::keys_of;
use voile_identity::{PeerError, identity_of};
use voile_transport::alpn;

use crate::worker::handlers::inbound;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::listeners::captured_listeners::CapturedListeners;
use crate::worker::policy::admission::{ConnectionArrival, Verified};
use crate::worker::policy::connection_permit;
use crate::worker::{Worker, count};

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
    if connection_permit::permit(worker, &slot, &caller.arrival, remote).is_err() {
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
