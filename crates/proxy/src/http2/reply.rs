//! Replies of our own. A gRPC caller gets a gRPC status in a head without a body, as Envoy gives it; others get a status and
//! a line of text.

use voile_http2::SendResponse;

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
    respond: &mut SendResponse,
    status: u16,
    reason: &str,
    is_grpc: bool,
    head_only: bool,
) -> Sent {
    let mut response = respond.block();
    if is_grpc {
        let code = grpc::from_http(status);
        response.push_status(200);
        response.push("content-type", b"application/grpc");
        response.push("grpc-status", code.to_string().as_bytes());
        response.push("grpc-message", grpc::message(reason).as_bytes());
        let head = headers::size(&response);
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
    let body = format!("{reason}\n");
    response.push_status(status);
    response.push("content-type", b"text/plain");
    response.push("content-length", body.len().to_string().as_bytes());
    let head = headers::size(&response);
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
