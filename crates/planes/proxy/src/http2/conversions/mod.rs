//! Conversions between HTTP/2 streams, HTTP/1.1, gRPC and WebSockets.

pub(crate) mod downgrade;
pub(crate) mod grpc;
pub(in crate::http2) mod headers;
pub(crate) mod trailers;
pub(crate) mod upgrade;
pub(crate) mod websocket;
