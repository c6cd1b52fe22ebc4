//! The HTTP/2 engine: serves downstream connections stream by stream, shares upstream ones among streams. `voile_http2`
//! has the frames, HPACK and flow-control windows; the engine decides about forwarding.
//!
//! ```text
//! client ═ server.rs ═╤═ stream.rs ─ role.route ─ upstream.rs ═ server
//!                     ├─ stream.rs     pump.rs ─► (request)
//!                     └─ stream.rs   ◄─ pump.rs   (response)
//! ```

mod conversions;
mod flight;
mod keepalive;
pub mod limits;
mod server;
pub(crate) mod session;
pub(crate) mod socket;
mod stream;
mod stream_call;
mod stream_copy;
pub(crate) mod stream_tasks;
pub(crate) mod upstream;

pub(crate) use conversions::headers::{
    IDENTITY_FIELDS, is_idempotent, size as field_bytes, travels,
};
pub(crate) use conversions::{downgrade, grpc, trailers, upgrade, websocket};
pub use server::serve_connection;
pub(crate) use stream::{StreamWork, serve as serve_stream};
pub(crate) use websocket::{is_extended_connect, is_plain_connect};
