//! Replies of our own. A gRPC caller gets a gRPC status in a head without a body, as Envoy gives it; others get a status and
//! a line of text.

use bytes::Bytes;
use h2::server::SendResponse;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use super::{grpc, headers};

/// What was sent.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) status: u16,
    pub(crate) grpc_status: Option<u16>,
    pub(crate) head: u64,
    pub(crate) body: u64,
}

/// Answers a stream ourselves. Nothing was sent if the client has gone.
pub(crate) fn send(
    respond: &mut SendResponse<Bytes>,
    status: u16,
    reason: &str,
    is_grpc: bool,
    head_only: bool,
) -> Sent {
    let mut response = Response::new(());
    if is_grpc {
        let code = grpc::from_http(status);
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        fields.insert("grpc-status", HeaderValue::from(code));
        if let Ok(message) = HeaderValue::from_str(&grpc::message(reason)) {
            fields.insert("grpc-message", message);
        }
        let head = headers::size(response.headers());
        if respond.send_response(response, true).is_err() {
            return Sent::default();
        }
        return Sent {
            status: 200,
            grpc_status: Some(code),
            head,
            body: 0,
        };
    }
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    let body = format!("{reason}\n");
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    fields.insert("content-length", HeaderValue::from(body.len()));
    let head = headers::size(response.headers());
    let length = body.len() as u64;
    let Ok(mut send) = respond.send_response(response, head_only) else {
        return Sent::default();
    };
    // A client that has gone meanwhile needs no body.
    let whole = !head_only && send.send_data(body.into(), true).is_ok();
    Sent {
        status,
        grpc_status: None,
        head,
        body: if whole { length } else { 0 },
    }
}
