//! Conversions between HTTP/2 streams, HTTP/1.1, gRPC and WebSockets.

pub(in crate::http2) mod downgrade;
pub(crate) mod grpc;
pub(in crate::http2) mod headers;
pub(in crate::http2) mod trailers;
pub(crate) mod upgrade;
pub(crate) mod websocket;
