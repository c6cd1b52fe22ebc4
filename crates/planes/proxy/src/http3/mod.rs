//! HTTP/3 at gateways. QUIC is quinn's, its cryptography rustls' as everywhere; frames and QPACK are `voile_http3`'s. A request
//! is served by the exchange that serves streams of HTTP/2, through handles of its own, so that the same code judges, routes,
//! counts and bounds requests over TCP and UDP.
//!
//! ```text
//! UDP ═ endpoint (control thread) ─ connection ─► worker: quic_connection.rs ═╤═ request.rs ─ stream.rs ═ the exchange
//!        version, Retry, whose packet                                         └─ streams.rs: settings, QPACK's
//! ```
//! When a process takes over from another, socket_takeover.rs keeps the other's connections alive.

mod crypto;
pub(crate) mod limits;
mod quic_connection;
mod request;
mod request_frames;
mod session;
mod socket_takeover;
mod stream;
mod streams;
mod tokens;

pub(crate) use crypto::{Names, ServerOffer};
pub(crate) use limits::{endpoint, terms};
pub(crate) use quic_connection::{CarriedConnection, serve};
pub(crate) use socket_takeover::{PredecessorLink, ProcessStamp, Socket, line};

/// ALPN protocol name.
pub(crate) const ALPN: &[u8] = b"h3";

/// A code as QUIC carries it.
fn quic(code: voile_http3::Code) -> quinn::VarInt {
    quinn::VarInt::from_u32(code.0)
}
