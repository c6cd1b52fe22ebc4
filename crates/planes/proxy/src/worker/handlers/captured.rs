//! Redirected connections: each is served by the listener of its original destination, or refused.
//!
//! ```text
//! accept ─► original destination ─┬─ inbound:  own address? ─► slot of its port ────────────► inbound::serve
//!                                 └─ outbound: known? ─ no ─► ask, park ─► slot of the address ─► outbound::serve
//! ```

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::TcpStream;
use voile_transport as transport;

use crate::plan::CapturedDestination;
use crate::worker::handlers::{inbound, outbound};
use crate::worker::listeners::captured_listeners::CapturedListeners;
use crate::worker::{Worker, count};

fn refuse(worker: &Worker, stream: &TcpStream, remote: SocketAddr, reason: &str) {
    count(&worker.counters.refused);
    tracing::debug!(%remote, reason, "captured connection refused");
    transport::reset(stream);
}

/// Serves what called us, to its end.
pub(crate) async fn serve_inbound(
    worker: Rc<Worker>,
    captured: Rc<CapturedListeners>,
    to: Option<SocketAddr>,
    stream: TcpStream,
    remote: SocketAddr,
) {
    let Some(to) = to else {
        return refuse(
            &worker,
            &stream,
            remote,
            "the connection was not redirected (no original destination)",
        );
    };
    let Some(slot) = captured.own(&worker, to) else {
        return refuse(
            &worker,
            &stream,
            remote,
            "the original destination is not an address of this workload",
        );
    };
    drop(captured);
    inbound::serve(worker, slot, stream, remote).await;
}

/// Serves what our application called, to its end.
pub(crate) async fn serve_outbound(
    worker: Rc<Worker>,
    captured: Rc<CapturedListeners>,
    to: Option<SocketAddr>,
    stream: TcpStream,
    remote: SocketAddr,
) {
    let Some(to) = to else {
        return refuse(
            &worker,
            &stream,
            remote,
            "the connection was not redirected (no original destination)",
        );
    };
    let target = CapturedDestination { to, host: None };
    let slot = Box::pin(captured.destination(&worker, target)).await;
    let Ok(slot) = slot else {
        return refuse(
            &worker,
            &stream,
            remote,
            "the control plane did not answer for the destination",
        );
    };
    let names = slot.plan.borrow().by_name.then_some(captured);
    outbound::serve(worker, slot, names, stream, remote).await;
}
