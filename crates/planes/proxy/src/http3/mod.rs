//! HTTP/3 at gateways. QUIC is quinn's, its cryptography rustls' as everywhere; frames and QPACK are `voile_http3`'s. A request
//! becomes a stream of an HTTP/2 connection in memory. The other end is the HTTP/2 engine, so that the same code judges, routes,
//! counts and bounds requests over TCP and UDP.
//!
//! ```text
//! UDP ═ endpoint (control thread) ─ connection ─► worker: carry.rs ═╤═ request.rs ─ stream of HTTP/2 ═ pipe.rs ═ the engine
//!        version, Retry, whose packet                               └─ streams.rs: settings, QPACK's
//! ```
//! When a process takes over from another, succession.rs keeps the other's connections alive.

mod crypto;
pub(crate) mod limits;
mod pipe;
mod quic_connection;
mod request;
mod socket_takeover;
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
