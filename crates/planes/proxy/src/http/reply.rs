//! Local replies: short, plain, without a `server` field. A gRPC caller gets a gRPC status in a head without a body, as Envoy
//! gives it, and reads our reason instead of its library's guess; others get a status and a line of text.

use std::borrow::Cow;

use bytes::Bytes;
use voile_http1::Version;
use voile_http2::Fields;

use super::codec::{AnswerSink, BodySink as _};
use super::external_check::{ExternalReply, HeadAmendment, amend_fields, amend_lines};
use super::role::{ConnectFailure, ExchangeRecord, HttpRole, ResponseFlag, RoleRefusal};
use crate::http2::{field_bytes, grpc};

/// A reply to the client when no upstream answers: decided, not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalReply<'a> {
    pub(crate) status: u16,
    pub(crate) flag: ResponseFlag,
    pub(crate) details: &'static str,
    /// A line of text for the client.
    pub(crate) reason: &'a str,
    /// Response of another service instead.
    pub(crate) told: Option<&'a ExternalReply>,
    /// The request went no further than us: a sidecar that asked is told.
    pub(crate) unprocessed: bool,
}

/// Traits of a request that its reply depends on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReplyTraits {
    pub(crate) grpc: bool,
    /// HEAD: everything but the body.
    pub(crate) head_only: bool,
    /// CONNECT, whatever protocol the tunnel carries.
    pub(crate) tunnel: bool,
}

/// A reply in the words for one request.
pub(crate) struct ReplyWords<'a> {
    status: u16,
    grpc_status: Option<u16>,
    fields: Vec<(&'static str, Cow<'a, str>)>,
    /// Response whose fields it has, too.
    told: Option<&'a ExternalReply>,
    body: Cow<'a, [u8]>,
}

impl<'a> LocalReply<'a> {
    pub(crate) fn new(status: u16, flag: ResponseFlag, details: &'static str) -> Self {
        Self {
            status,
            flag,
            details,
            reason: details,
            told: None,
            unprocessed: false,
        }
    }

    /// Of a request that the role does not forward.
    pub(crate) fn refused<R: HttpRole>(refusal: &'a RoleRefusal<R>) -> Self {
        Self {
            reason: &refusal.reason,
            told: refusal.told.as_deref(),
            unprocessed: refusal.flag.is_overload(),
            ..Self::new(refusal.status, refusal.flag, refusal.details)
        }
    }

    /// Of a request that reached no endpoint.
    pub(crate) fn unreached(failure: &'a ConnectFailure) -> Self {
        Self {
            reason: &failure.reason,
            unprocessed: true,
            ..Self::new(failure.status, failure.flag, failure.details)
        }
    }

    /// Words it for a request.
    pub(crate) fn words(&self, asked: ReplyTraits) -> ReplyWords<'a> {
        let told = self.told;
        let own = told.and_then(|told| told.body.as_deref());
        // Success would tell the client of a tunnel that there is one (RFC 9110 section 9.3.6, RFC 8441 section 5).
        let status = match self.status {
            200..300 if asked.tunnel => 502,
            status => status,
        };
        if asked.grpc && !asked.tunnel {
            let code = told.and_then(|told| told.grpc_status);
            let code = code.unwrap_or_else(|| grpc::from_http(status));
            let message = own.map_or(self.reason.into(), String::from_utf8_lossy);
            return ReplyWords {
                status: 200,
                grpc_status: Some(code),
                fields: vec![
                    ("content-type", "application/grpc".into()),
                    ("grpc-status", code.to_string().into()),
                    ("grpc-message", grpc::message(&message).into()),
                ],
                told,
                body: Cow::default(),
            };
        }
        let body = match own {
            None => format!("{}\n", self.reason).into_bytes().into(),
            Some(own) => Cow::Borrowed(own),
        };
        let typed = own.is_some_and(<[u8]>::is_empty)
            || told.is_some_and(|told| own.is_some() && told.says("content-type"));
        let bodiless = matches!(status, 204 | 304);
        let mut fields = Vec::new();
        if !bodiless {
            fields.extend((!typed).then_some(("content-type", "text/plain".into())));
            fields.push(("content-length", body.len().to_string().into()));
        }
        ReplyWords {
            status,
            grpc_status: None,
            fields,
            told,
            body: match asked.head_only || bodiless {
                true => Cow::default(),
                false => body,
            },
        }
    }

    /// Records it, as far as it was sent: bytes of (head, body); none if it was not.
    pub(crate) fn record(
        &self,
        words: &ReplyWords<'_>,
        sent: Option<(u64, u64)>,
        record: &mut ExchangeRecord,
    ) {
        (record.flag, record.details) = (self.flag, self.details);
        (record.response_head_bytes, record.response_body_bytes) = sent.unwrap_or_default();
        record.status = sent.map_or(0, |_| words.status);
        if words.grpc_status.is_some() {
            record.grpc.get_or_insert_default().status = sent.and(words.grpc_status);
        }
    }
}

/// How a reply travels in HTTP/1.1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyFraming {
    pub(crate) client: Version,
    pub(crate) persist: bool,
    /// Tell the sidecar that asked that nothing was done.
    pub(crate) unprocessed: bool,
}

impl ReplyWords<'_> {
    /// Fields of the response that another service chose.
    fn told(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let fields = self.told.into_iter().flat_map(ExternalReply::fields);
        let grpc = self.grpc_status.is_some();
        fields.filter(move |(name, _)| !(grpc && name.eq_ignore_ascii_case(b"content-type")))
    }

    fn amends(&self) -> &[HeadAmendment] {
        self.told.map_or(&[], |told| &told.amends)
    }

    /// Writes all of it in HTTP/1.1, with the fields that all local replies have; returns the length of its head.
    pub(crate) fn write(
        &self,
        out: &mut Vec<u8>,
        framing: ReplyFraming,
        added: &[HeadAmendment],
    ) -> usize {
        out.clear();
        let mut add = |parts: &[&[u8]]| parts.iter().for_each(|part| out.extend_from_slice(part));
        let status = self.status.to_string();
        let known = http::StatusCode::from_u16(self.status).ok();
        let phrase = known.and_then(|code| code.canonical_reason());
        let phrase = phrase.unwrap_or_default().as_bytes();
        add(&[b"HTTP/1.1 ", status.as_bytes(), b" ", phrase, b"\r\n"]);
        for (name, value) in &self.fields {
            add(&[name.as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
        if self.grpc_status.is_some() {
            add(&[b"content-length: 0\r\n"]);
        }
        if !framing.persist {
            add(&[b"connection: close\r\n"]);
        } else if framing.client == Version::Http10 {
            add(&[b"connection: keep-alive\r\n"]);
        }
        if framing.unprocessed {
            add(&[b"x-voile-unprocessed: 1\r\n"]);
        }
        for (name, value) in self.told() {
            add(&[name, b": ", value, b"\r\n"]);
        }
        add(&[b"\r\n"]);
        amend_lines(out, 0, self.amends());
        amend_lines(out, 0, added);
        let head = out.len();
        out.extend_from_slice(&self.body);
        head
    }

    /// Sends it on a stream, with the fields that all local replies have; returns the bytes of (head, body), none if the client
    /// has gone.
    pub(crate) fn send(
        &self,
        respond: &mut impl AnswerSink,
        added: &[HeadAmendment],
    ) -> Option<(u64, u64)> {
        let mut response: Fields = respond.block();
        response.push_status(self.status);
        for (name, value) in &self.fields {
            response.push(name, value.as_bytes());
        }
        for (name, value) in self.told() {
            response.push_checked(name, value);
        }
        amend_fields(&mut response, self.amends());
        amend_fields(&mut response, added);
        let head = field_bytes(&response);
        let end = self.body.is_empty();
        let mut send = respond.send_response(response, end).ok()?;
        // A client that has gone meanwhile needs no body.
        let whole = !end
            && send
                .send_data(Bytes::copy_from_slice(&self.body), true)
                .is_ok();
        Some((head, if whole { self.body.len() as u64 } else { 0 }))
    }
}
