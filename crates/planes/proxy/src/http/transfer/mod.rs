//! Bytes of one HTTP/1 connection: buffers, bodies in both directions, tunnels and timers; and what both versions ask of the
//! client's side of an exchange.

pub(crate) mod attempt;
pub mod buffers;
pub(crate) mod codec;
pub(in crate::http) mod download;
pub(crate) mod downstream_request;
pub(crate) mod exchange_clock;
pub(in crate::http) mod held_body;
pub(crate) mod http1_upstream;
pub mod io;
pub(in crate::http) mod remainder;
pub(crate) mod stream_upstream;
pub(crate) mod timer;
pub(in crate::http) mod tunnel;
pub(in crate::http) mod upload;
