//! Local replies: short, plain, without a `server` field. A gRPC caller, which only a sidecar can have translated to
//! HTTP/1.1, gets a gRPC status. It then reads our reason and not its library's guess.

use std::borrow::Cow;

use voile_http1::Version;

use super::external_check::{ExternalReply, HeadAmendment, amend_lines};
use crate::http2::grpc;

/// Local reply to the client, when no upstream answers.
pub(crate) struct Reply<'a> {
    pub(crate) status: u16,
    pub(crate) reason: &'a str,
    /// Response of another service instead.
    pub(crate) told: Option<&'a ExternalReply>,
    pub(crate) persist: bool,
    pub(crate) client: Version,
    /// The request was HEAD: everything but the body.
    pub(crate) head_only: bool,
    /// Tell the sidecar that asked that nothing was done.
    pub(crate) unprocessed: bool,
    /// The request was a gRPC call.
    pub(crate) grpc: bool,
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

impl Reply<'_> {
    /// The status that goes out; with a gRPC call's own beside it.
    pub(crate) fn statuses(&self) -> (u16, Option<u16>) {
        match self.grpc {
            true => {
                let said = self.told.and_then(|told| told.grpc_status);
                (
                    200,
                    Some(said.unwrap_or_else(|| grpc::from_http(self.status))),
                )
            }
            false => (self.status, None),
        }
    }

    /// Body and type of it.
    fn content(&self) -> (Cow<'_, [u8]>, &'static str) {
        const TEXT: &str = "content-type: text/plain\r\n";
        let body = self
            .told
            .and_then(|told| Some((told, told.body.as_deref()?)));
        match body {
            None => (format!("{}\n", self.reason).into_bytes().into(), TEXT),
            Some((told, body)) if body.is_empty() || told.says("content-type") => (body.into(), ""),
            Some((_, body)) => (body.into(), TEXT),
        }
    }

    /// Message for a gRPC caller.
    fn message(&self) -> String {
        match self.told.and_then(|told| told.body.as_deref()) {
            None => grpc::message(self.reason),
            Some(body) => grpc::message(&String::from_utf8_lossy(body)),
        }
    }

    /// Writes the whole reply, with the fields that all local replies have; returns the length of its head.
    pub(crate) fn write(&self, out: &mut Vec<u8>, added: &[HeadAmendment]) -> usize {
        out.clear();
        let (body, kind) = self.content();
        let bodiless = matches!(self.status, 204 | 304);
        let mut add = |parts: &[&str]| {
            for part in parts {
                out.extend_from_slice(part.as_bytes());
            }
        };
        let (mut digits, mut number) = ([0; 20], [0; 20]);
        let (status, grpc_status) = self.statuses();
        let line = decimal(status.into(), &mut number);
        add(&["HTTP/1.1 ", line, " ", phrase(status), "\r\n"]);
        if let Some(code) = grpc_status {
            add(&[
                "content-type: application/grpc\r\ncontent-length: 0\r\ngrpc-status: ",
                decimal(code.into(), &mut digits),
                "\r\ngrpc-message: ",
                &self.message(),
                "\r\n",
            ]);
        } else {
            let length = decimal(body.len(), &mut digits);
            if !bodiless {
                add(&[kind, "content-length: ", length, "\r\n"]);
            }
        }
        if !self.persist {
            add(&["connection: close\r\n"]);
        } else if self.client == Version::Http10 {
            add(&["connection: keep-alive\r\n"]);
        }
        if self.unprocessed {
            add(&["x-voile-unprocessed: 1\r\n"]);
        }
        for (name, value) in self.told.iter().flat_map(|told| told.fields()) {
            if !(self.grpc && name.eq_ignore_ascii_case(b"content-type")) {
                for part in [name, b": ", value, b"\r\n"] {
                    out.extend_from_slice(part);
                }
            }
        }
        out.extend_from_slice(b"\r\n");
        if let Some(told) = self.told {
            amend_lines(out, 0, &told.amends);
        }
        amend_lines(out, 0, added);
        let head = out.len();
        if !self.head_only && !self.grpc && !bodiless {
            out.extend_from_slice(&body);
        }
        head
    }
}

fn decimal(mut number: usize, room: &mut [u8; 20]) -> &str {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    std::str::from_utf8(&room[at..]).unwrap_or_default()
}
