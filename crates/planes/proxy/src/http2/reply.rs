//! Replies of our own. A gRPC caller gets a gRPC status in a head without a body, as Envoy gives it; others get a status and
//! a line of text.

use bytes::Bytes;
use voile_http2::{Fields, SendResponse};

use super::conversions::headers;
use super::grpc;
use crate::http::external_check::amend_fields;
use crate::http::{ExternalReply, HeadAmendment};

/// Figures of a sent reply.
#[derive(Default)]
pub(crate) struct SentReply {
    pub(crate) status: u16,
    pub(crate) grpc_status: Option<u16>,
    pub(crate) head: u64,
    pub(crate) body: u64,
}

/// Sends a local reply, with the fields that all local replies have. Sends nothing if the client has gone.
pub(crate) fn send(
    respond: &mut SendResponse,
    status: u16,
    reason: &str,
    (told, added): (Option<&ExternalReply>, &[HeadAmendment]),
    is_grpc: bool,
    head_only: bool,
) -> SentReply {
    let mut response = respond.block();
    if is_grpc {
        let said = told.and_then(|told| told.grpc_status);
        let code = said.unwrap_or_else(|| grpc::from_http(status));
        let message = match told.and_then(|told| told.body.as_deref()) {
            None => grpc::message(reason),
            Some(body) => grpc::message(&String::from_utf8_lossy(body)),
        };
        response.push_status(200);
        response.push("content-type", b"application/grpc");
        response.push("grpc-status", code.to_string().as_bytes());
        response.push("grpc-message", message.as_bytes());
        tell(told, &mut response, |name| name != b"content-type");
        amend_fields(&mut response, added);
        let head = headers::size(&response);
        if respond.send_response(response, true).is_err() {
            return SentReply::default();
        }
        return SentReply {
            status: 200,
            grpc_status: Some(code),
            head,
            body: 0,
        };
    }
    let own = told.and_then(|told| Some((told, told.body.as_deref()?)));
    let (body, typed) = match own {
        None => (Bytes::from(format!("{reason}\n")), false),
        Some((told, body)) => {
            let typed = body.is_empty() || told.says("content-type");
            (Bytes::copy_from_slice(body), typed)
        }
    };
    let head_only = head_only || matches!(status, 204 | 304);
    response.push_status(status);
    if !typed {
        response.push("content-type", b"text/plain");
    }
    if !matches!(status, 204 | 304) {
        response.push("content-length", body.len().to_string().as_bytes());
    }
    tell(told, &mut response, |_| true);
    amend_fields(&mut response, added);
    let head = headers::size(&response);
    let length = body.len() as u64;
    let Ok(mut send) = respond.send_response(response, head_only) else {
        return SentReply::default();
    };
    // A client that has gone meanwhile needs no body.
    let whole = !head_only && send.send_data(body, true).is_ok();
    SentReply {
        status,
        grpc_status: None,
        head,
        body: if whole { length } else { 0 },
    }
}

/// Adds another service's fields, and amendments.
fn tell(told: Option<&ExternalReply>, response: &mut Fields, wanted: impl Fn(&[u8]) -> bool) {
    let fields = told.into_iter().flat_map(ExternalReply::fields);
    for (name, value) in fields.filter(|(name, _)| wanted(&name.to_ascii_lowercase())) {
        response.push_checked(name, value);
    }
    amend_fields(response, told.map_or(&[], |told| &told.amends));
}
