//! Detection after its deadline. A client that has said nothing may wait for the server to begin, so the application is
//! connected; but until either speaks nothing is decided, for the client may as well be a sidecar on a busy machine
//! whose ClientHello is late.
//!
//! ```text
//! deadline ─► connect the application ─┬─ it speaks or closes: a protocol in which the server begins, in plaintext
//!                                      └─ the client speaks: told by its bytes, as if it had been in time
//! ```
//! Bytes of the application stay in the kernel until it is decided: none goes out unencrypted to a client that turns
//! out to speak TLS.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use voile_transport::{
    self as transport, ConnectError, DETECTION_BUFFER, DetectedProtocol, FirstSpeaker, Readable,
    TLS_HANDSHAKE_RECORD, TLS_HANDSHAKE_TIMEOUT,
};
use voile_xds::wire::{MutualTls, WireProtocol};

use crate::worker::Worker;
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::listeners::server_first::DestinationKey;
use crate::worker::listeners::termination::either;
use crate::worker::policy::authorization::ForwardPermit;

/// The application's connection, opened before it was known what for; or why there is none.
pub(crate) type Ahead = Result<TcpStream, ConnectError>;

/// Detects the protocol after the deadline. `None` if the client is gone. Demands a leave, since the application
/// notices the connection. Without one the application is not connected until the caller is known.
pub(crate) async fn detect(
    worker: &Worker,
    slot: &InboundSlot,
    tcp: &mut impl Readable,
    prefix: &mut Vec<u8>,
    (remote, place): (SocketAddr, DestinationKey),
    (leave, before): (Option<&ForwardPermit>, Option<Ahead>),
) -> Option<(DetectedProtocol, Option<Ahead>)> {
    let (protocol, mode, endpoint) = {
        let plan = slot.plan.borrow();
        (plan.protocol, plan.mutual_tls, plan.endpoint)
    };
    let settings = worker.settings();
    let mut rest = Duration::ZERO;
    let mut ahead = None;
    // The worker does not open a second upstream connection if one was opened before the ClientHello came.
    let (before, leave) = match before {
        Some(before) if leave.is_some() && prefix.is_empty() => (Some(before), leave),
        before => {
            ahead = before;
            (None, leave)
        }
    };
    if prefix.is_empty() && leave.is_none() {
        // The application must not notice the connection, so only the client can speak first.
        let no_plaintext = slot.no_plaintext.borrow().clone();
        let client_spoke = tokio::select! {
            biased;
            read = first_bytes(tcp, prefix) => read.ok()? > 0,
            () = tokio::time::sleep(settings.idle_timeout) => return None,
            () = either(&no_plaintext, &worker.stop) => return None,
        };
        if !client_spoke {
            return None;
        }
        if protocol == WireProtocol::Auto {
            rest = settings.detection_timeout;
        }
    } else if prefix.is_empty() {
        let connected = connect(worker, endpoint, remote, before).await;
        let Ok(application) = &connected else {
            return Some((DetectedProtocol::Silent, Some(connected)));
        };
        let no_plaintext = slot.no_plaintext.borrow().clone();
        let mut first = [0; 7];
        let client_spoke = tokio::select! {
            biased;
            read = first_bytes(tcp, prefix) => read.ok()? > 0,
            // Its end is a word as well; the relay passes it on.
            peeked = application.peek(&mut first) => {
                match peeked {
                    Ok(count) if first[..count].starts_with(b"HTTP/1.") => {
                        worker.teach(place, FirstSpeaker::HttpServer);
                    }
                    Ok(1..) => worker.teach(place, FirstSpeaker::Server),
                    Ok(0) | Err(_) => {}
                }
                false
            }
            () = tokio::time::sleep(settings.idle_timeout) => return None,
            () = either(&no_plaintext, &worker.stop) => return None,
        };
        ahead = Some(connected);
        if !client_spoke {
            return Some((DetectedProtocol::Silent, ahead));
        }
        worker.teach(place, FirstSpeaker::Client);
        if protocol == WireProtocol::Auto {
            rest = settings.detection_timeout;
        }
    }
    if mode == MutualTls::Permissive && prefix.first() == Some(&TLS_HANDSHAKE_RECORD) {
        rest = TLS_HANDSHAKE_TIMEOUT;
    }
    if protocol == WireProtocol::Auto && transport::may_become_request(prefix) {
        // Half a word of a request does not lead past what holds for requests.
        rest = settings.header_timeout;
    }
    let detected = transport::read_prefix(tcp, prefix, Some(rest)).await.ok()?;
    Some((detected, ahead))
}

/// The application's connection: the one that was opened before, or one that is opened now.
async fn connect(
    worker: &Worker,
    endpoint: SocketAddr,
    remote: SocketAddr,
    before: Option<Ahead>,
) -> Ahead {
    if let Some(before) = before {
        return before;
    }
    let limit = worker.settings().connect_timeout;
    transport::connect(endpoint, worker.homeward(remote, endpoint), limit).await
}

/// Waits without a buffer, and reads what came; 0 is the client's end.
async fn first_bytes(tcp: &mut impl Readable, prefix: &mut Vec<u8>) -> io::Result<usize> {
    transport::readable(tcp).await?;
    prefix.reserve_exact(DETECTION_BUFFER);
    // Cancel safe: a byte is either still in the kernel or in `prefix`.
    tcp.read_buf(prefix).await
}
