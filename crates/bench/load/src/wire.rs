//! A wire is a protocol as the generator sees it: requests in, bytes out; bytes in, events out. A wire knows no socket, no clock
//! and no schedule. A new protocol is one file in this folder.
//!
//! ```text
//! lanes ─ send ─▶ wire ─ unsent ─▶ (TLS) ─▶ socket ─▶ (TLS) ─ feed ─▶ wire ─ events ─▶ lanes
//! ```

mod http1;
mod http2;
pub(crate) mod of_protocol;
mod tcp;
mod udp;
pub(crate) mod websocket;

use std::fmt::Debug;

use crate::body::Malformed;
use crate::http2::RequestShape;
use crate::tally::RequestOutcome;

/// One request, made ready before the run.
#[derive(Debug, Default)]
pub(crate) struct PreparedRequest {
    /// Its bytes, where they are always the same.
    pub(crate) bytes: Vec<u8>,
    /// Offsets in `bytes` of UUIDs that differ each time.
    pub(crate) uuids: Vec<usize>,
    /// HTTP/2 form of the request.
    pub(crate) shape: RequestShape,
    /// Over TCP and UDP: bytes of its answer.
    pub(crate) answer_bytes: u64,
    /// The answer has no body, even if its head declares one.
    pub(crate) head: bool,
    /// Weight relative to the other requests.
    pub(crate) weight: f64,
    /// The target it belongs to, and where connections for it go.
    pub(crate) target: usize,
    pub(crate) place: usize,
}

/// A whole answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HttpResponse {
    pub(crate) status: Option<u16>,
    /// Bytes of body; of gRPC messages, without their prefixes.
    pub(crate) body: u64,
    /// More came than an answer.
    pub(crate) surplus: bool,
}

/// Event that received bytes cause.
#[derive(Debug)]
pub(crate) enum WireEvent {
    /// Requests may be sent.
    Ready,
    /// A request that waited for its turn goes out now.
    Started(usize),
    /// The answer of a lane's request has begun.
    First(usize),
    Answered(usize, HttpResponse),
    Failed(usize, RequestOutcome),
    /// Bytes that no request had asked for.
    Unsolicited,
    /// The connection cannot be used again.
    Close,
}

/// The protocol's state of one connection.
pub(crate) trait Wire: Debug + Send {
    /// For a new connection.
    fn reset(&mut self);

    /// Reports if the wire sends [`Event::Ready`] itself, instead of being ready once connected.
    fn greets(&self) -> bool {
        false
    }

    /// Sends a request on a free lane.
    fn send(&mut self, lane: usize, which: usize);

    /// Bytes waiting to be written.
    fn unsent(&self) -> &[u8];

    /// `count` bytes have been written.
    fn wrote(&mut self, count: usize);

    /// Takes bytes, all of them.
    fn feed(&mut self, bytes: &[u8], events: &mut Vec<WireEvent>) -> Result<(), Malformed>;

    /// The server has ended the connection; an answer may end so.
    fn end(&mut self, _events: &mut Vec<WireEvent>) {}

    /// Gives a lane's request up; false when the connection must be given up with it.
    fn cancel(&mut self, _lane: usize) -> bool {
        false
    }

    /// The server takes no more requests here, and none is left.
    fn spent(&self) -> bool {
        false
    }

    /// Reports if any request has been sent.
    fn used(&self) -> bool {
        true
    }
}
