//! Bytes of one HTTP/1 connection: buffers, bodies in both directions, tunnels and timers.

pub mod buffers;
pub(in crate::http) mod download;
pub(crate) mod exchange_clock;
pub mod io;
pub(in crate::http) mod remainder;
pub(crate) mod timer;
pub(in crate::http) mod tunnel;
pub(in crate::http) mod upload;
