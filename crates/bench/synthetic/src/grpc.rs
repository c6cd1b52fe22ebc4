//! The little of gRPC that a synthetic service needs: unary calls whose messages are framed by `Payload`, and health.
//!
//! ```text
//! service voile.graph.v1.Service { rpc Call(Message) returns (Message); }   message Message { bytes payload = 1; }
//! ```

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};

use crate::body::{Payload, PayloadBody};

/// The method that runs a script.
pub(crate) const METHOD: &str = "/voile.graph.v1.Service/Call";
/// The method that asks whether we serve.
pub(crate) const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// gRPC's `INTERNAL`, for failures that were asked for and for failed callees, as isotope's 500.
pub(crate) const INTERNAL: u32 = 13;
/// gRPC's `UNAVAILABLE`: too much at a time.
pub(crate) const UNAVAILABLE: u32 = 14;
/// gRPC's `RESOURCE_EXHAUSTED`: a message that is too large.
pub(crate) const EXHAUSTED: u32 = 8;
/// gRPC's `UNIMPLEMENTED`: no such method.
pub(crate) const UNIMPLEMENTED: u32 = 12;

/// Returns true if a request is gRPC.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Status and message, where they are.
pub(crate) fn status(headers: &HeaderMap) -> Option<(u32, String)> {
    let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let message = headers
        .get("grpc-message")
        .and_then(|message| message.to_str().ok());
    Some((code, message.unwrap_or_default().to_owned()))
}

/// A good answer.
pub(crate) fn answer(payload: &Payload) -> Response<PayloadBody> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let mut response = Response::new(PayloadBody::new(payload).with_trailers(trailers));
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// `grpc.health.v1.HealthCheckResponse{status: SERVING}`.
pub(crate) fn healthy() -> Response<PayloadBody> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let message = Bytes::from_static(&[0, 0, 0, 0, 2, 0x08, 0x01]);
    let mut response = Response::new(PayloadBody::text(message).with_trailers(trailers));
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// A failure: trailers only.
pub(crate) fn failure(code: u32, reason: &str) -> Response<PayloadBody> {
    let mut response = Response::new(PayloadBody::text(Bytes::new()));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    headers.insert("grpc-status", HeaderValue::from(code));
    if let Ok(message) = HeaderValue::from_str(&percent(reason)) {
        headers.insert("grpc-message", message);
    }
    response
}

/// gRPC's percent-encoding of messages: all but printable ASCII, and the percent sign.
fn percent(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' => encoded.push_str("%25"),
            b' '..=b'~' => encoded.push(byte as char),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
