//! Shared steps of plaintext connections, inbound and outbound: the destination from the kernel's redirection, the
//! relay and the record.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use tokio::net::TcpStream;
use voile_transport::{RelayEnd, TcpIo, TransportStream, original_destination, relay, reset};

use crate::connections::close_reasons::{CONNECT, NO_IDLE_LIMIT};
use crate::pod::{Pod, keep_alive};
use crate::records::Record;
use crate::worker::NodeWorker;

/// A connection as it came.
pub(crate) struct PlainArrival<'a> {
    pub(crate) worker: &'a NodeWorker,
    pub(crate) pod: &'a Arc<Pod>,
    pub(crate) peer: SocketAddr,
    /// As logs call it.
    pub(crate) direction: &'static str,
}

impl PlainArrival<'_> {
    /// Prepares the socket for a relay.
    pub(crate) fn prepare(tcp: &TcpStream) {
        // Nagle's algorithm would hold small answers back; where it cannot be switched off, they come late.
        let _ = tcp.set_nodelay(true);
        keep_alive(tcp);
    }

    /// Notes that nothing comes of it.
    pub(crate) fn note_refused(&self, reason: &dyn Display) {
        let (worker, peer, pod) = (self.worker, self.peer, &self.pod.name);
        worker.refused.set(worker.refused.get() + 1);
        tracing::info!(target: "access", direction = self.direction, src.addr = %peer, pod = %pod, error = %reason, "connection refused");
    }

    /// The same of a caller without a certificate. It may come as often as it likes, so its lines are few.
    pub(crate) fn note_unproven(&self, reason: &str) {
        let worker = self.worker;
        match worker.unproven.is_line_due() {
            Some(0) => self.note_refused(&reason),
            Some(unsaid) => self.note_refused(&format_args!("{reason} ({unsaid} more before)")),
            None => worker.refused.set(worker.refused.get() + 1),
        }
    }

    /// The same, and its caller sees a reset.
    pub(crate) fn refuse(&self, tcp: &TcpStream, reason: &dyn Display) {
        self.note_refused(reason);
        reset(tcp);
    }

    /// Returns the destination before redirection. Without one, refuses the connection and returns None.
    pub(crate) fn destination(&self, tcp: &TcpStream) -> Option<SocketAddr> {
        match original_destination(tcp) {
            Ok(Some(to)) => return Some(to),
            Ok(None) => self.refuse(
                tcp,
                &"the connection was not redirected (no original destination)",
            ),
            Err(error) => self.refuse(tcp, &error),
        }
        None
    }
}

/// Connects to an address in the pod's network. Returns None after a failure, which it has logged already.
pub(crate) async fn call<'a>(
    pod: &Pod,
    tcp: &TcpStream,
    (to, source): (SocketAddr, Option<IpAddr>),
    record: Record<'a>,
) -> Option<(TcpStream, Record<'a>)> {
    match pod.connect(to, source).await {
        Ok(server) => Some((server, record)),
        Err(error) => {
            reset(tcp);
            record.close(CONNECT, (0, 0), Some(error.to_string()));
            None
        }
    }
}

/// Relays between two connections until either side ends, or `ended` is ready; `flags` then names the cause.
pub(crate) fn carry<C: Future<Output = ()>>(
    tcp: TcpStream,
    server: TcpStream,
    ended: Pin<&mut C>,
    (record, flags): (Record<'_>, impl FnOnce() -> &'static str),
) -> impl Future<Output = ()> {
    let [down, up] = [tcp, server].map(|tcp| TransportStream::Tcp(TcpIo::from(tcp)));
    let relay = relay(down, up, NO_IDLE_LIMIT, ended);
    async move {
        let done = relay.await;
        let error = match done.end {
            RelayEnd::Finished => None,
            other => Some(format!("{other:?}")),
        };
        record.close(flags(), (done.received, done.sent), error);
    }
}
