//! Properties of the codecs of HTTP: heads, bodies, frames and field compression, and HBONE's CONNECT.

pub(super) mod chunked;
pub(super) mod hbone;
pub(super) mod http1;
pub(super) mod http2;
pub(super) mod http3;
pub(super) mod page;
