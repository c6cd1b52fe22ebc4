//! Heads between a stream and an HTTP/1.1 server: the request in its words, the answer in those of a stream. WebSockets (RFC 8441)
//! become an upgrade, CONNECT stays what it is. Text that HTTP/1.1 could read as anything but this one request is refused.

use voile_http1::{
    Framing, MAX_REQUEST_LINE_BYTES, Reject, RequestSummary, ResponseHead, is_authority, is_path,
    parse_length,
};
use voile_http2::Fields;

use crate::http::reply::LocalReply;
use crate::http::{HeadEdit, HeadObserver, HttpHead, ResponseFlag};
use crate::http2::conversions::headers::{self, authority, travels};
use crate::http2::stream_copy::Replay;
use crate::http2::websocket;

/// The status of an upgrade.
const SWITCHING_PROTOCOLS: u16 = 101;

/// A request as it goes to an HTTP/1.1 server.
pub(crate) struct DowngradedRequest {
    pub(crate) text: Vec<u8>,
    /// Of the body that follows; until close where a tunnel's bytes follow once it is granted.
    pub(crate) framing: Framing,
    /// Nothing more belongs to the request.
    pub(crate) whole: bool,
    pub(crate) asked: RequestSummary,
    /// Answer that proves that a server read our WebSocket key.
    pub(crate) proof: Option<String>,
}

/// The target behind the method.
fn target<'a>(head: &'a Fields, edit: HeadEdit<'a>) -> &'a str {
    match websocket::is_plain_connect(head) {
        true => authority(head, edit),
        false => (edit.path).unwrap_or_else(|| HttpHead::Http2(head).path_and_query()),
    }
}

/// Reply to a request that HTTP/1.1 cannot carry, or not as what it is.
pub(in crate::http2) fn check(
    head: &Fields,
    edit: HeadEdit<'_>,
) -> Result<(), LocalReply<'static>> {
    if head.protocol().is_some() && !websocket::is_extended_connect(head) {
        // There is no upgrade for it that we know.
        return Err(LocalReply {
            reason: "this :protocol cannot be translated to HTTP/1.1",
            ..LocalReply::new(501, ResponseFlag::UpstreamProtocolError, "connect_protocol")
        });
    }
    check_text(head, edit).map_err(|reject| {
        let flag = ResponseFlag::DownstreamProtocolError;
        LocalReply::new(reject.status(), flag, reject.reason())
    })
}

/// Holds a request to the rules of text: bytes that are good in fields may mean something else there.
fn check_text(head: &Fields, edit: HeadEdit<'_>) -> Result<(), Reject> {
    let target = target(head, edit);
    if !is_authority(authority(head, edit).as_bytes()) {
        return Err(Reject::Host);
    }
    if !websocket::is_plain_connect(head) && !is_path(target.as_bytes()) {
        return Err(Reject::Target);
    }
    if head.method().len() + target.len() + b"  HTTP/1.1".len() > MAX_REQUEST_LINE_BYTES {
        return Err(Reject::TargetTooLong);
    }
    for (name, value) in head.iter() {
        match name {
            "content-length" => drop(parse_length(value)?),
            "expect" if !value.eq_ignore_ascii_case(b"100-continue") => {
                return Err(Reject::Expectation);
            }
            name if headers::is_ambiguous(name) => return Err(Reject::AmbiguousName),
            _ => {}
        }
    }
    Ok(())
}

/// The request in HTTP/1.1's words, with the attempt's number from the second on. `empty` says that no body follows.
pub(in crate::http2) fn request(
    head: &Fields,
    empty: bool,
    observer: Option<&dyn HeadObserver>,
    edit: HeadEdit<'_>,
    attempt: u32,
) -> DowngradedRequest {
    let asked = RequestSummary {
        head: head.method() == "HEAD",
        upgrade: websocket::is_extended_connect(head),
        connect: websocket::is_plain_connect(head),
    };
    let length = head.get("content-length").map(parse_length);
    let framing = match length {
        _ if asked.upgrade || asked.connect => Framing::UntilClose,
        Some(length) => Framing::Length(length.unwrap_or_default()),
        None if empty => Framing::None,
        None => Framing::Chunked,
    };
    let key = asked.upgrade.then(websocket::key);
    let mut text = Vec::with_capacity(512);
    let method = if asked.upgrade { "GET" } else { head.method() };
    put(
        &mut text,
        &[method, " ", target(head, edit), " HTTP/1.1\r\n"],
    );
    put(&mut text, &["host: ", authority(head, edit), "\r\n"]);
    let left_out = |name: &str| headers::is_left_out(observer, name);
    let mut cookies = false;
    for (name, value) in head.iter() {
        match name {
            "cookie" => cookies = true,
            "host" | "http2-settings" => {}
            "sec-websocket-key" if asked.upgrade => {}
            name if travels(name, value) && !left_out(name) => field(&mut text, name, value),
            _ => {}
        }
    }
    if cookies && !left_out("cookie") {
        // HTTP/2 may cut cookies into several fields; HTTP/1.1 may not (RFC 9113 section 8.2.3).
        let crumbs: Vec<_> = head.get_all("cookie").collect();
        field(&mut text, "cookie", &crumbs.join(&b"; "[..]));
    }
    let bodiless = asked.connect || matches!(method, "GET" | "HEAD" | "OPTIONS" | "DELETE");
    if let Some(key) = &key {
        let upgrade = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: ";
        put(&mut text, &[upgrade, key, "\r\n"]);
    } else if framing == Framing::Chunked {
        put(&mut text, &["transfer-encoding: chunked\r\n"]);
    } else if !bodiless && length.is_none() {
        put(&mut text, &["content-length: 0\r\n"]);
    }
    text.extend_from_slice(observer.map_or(&[], |observer| observer.adds()));
    if attempt > 1 {
        let number = attempt.to_string();
        put(&mut text, &["x-envoy-attempt-count: ", &number, "\r\n"]);
    }
    text.extend_from_slice(b"\r\n");
    DowngradedRequest {
        text,
        framing,
        // A handshake is whole without a body, and its tunnel is none.
        whole: asked.upgrade || (empty && matches!(framing, Framing::None | Framing::Length(0))),
        asked,
        proof: key.map(|key| websocket::accept(key.as_bytes())),
    }
}

/// A request that went on, in HTTP/1.1's words; none where its body was too long to be kept.
pub(in crate::http2) fn copied(head: &Fields, replay: &Replay) -> Option<Vec<u8>> {
    let body = replay.bytes()?;
    let mut copy = head.clone();
    if !body.is_empty() && !head.contains("content-length") {
        copy.push("content-length", body.len().to_string().as_bytes());
    }
    let mut text = request(&copy, true, None, HeadEdit::default(), 1).text;
    text.extend_from_slice(&body);
    Some(text)
}

fn put(out: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
}

fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes the head of an answer into `out`, for a stream.
pub(crate) fn answer(
    head: &ResponseHead<'_>,
    asked: RequestSummary,
    proof: Option<&str>,
    out: &mut Fields,
) -> Result<(), Reject> {
    let status = head.status();
    // A server that does not switch has opened no tunnel, whatever its answer says about the request. To the client of an
    // extended CONNECT any 2xx would mean a tunnel (RFC 8441 section 5).
    if asked.upgrade && (200..300).contains(&status) {
        return Err(Reject::FramedTunnel);
    }
    // A server that switches must have read the handshake (RFC 6455 section 4.1).
    if status == SWITCHING_PROTOCOLS && !is_proven(head, proof) {
        return Err(Reject::UnexpectedUpgrade);
    }
    out.push_status(match status {
        SWITCHING_PROTOCOLS => 200,
        status => status,
    });
    for (name, value) in head.fields_of_message() {
        if !out.push_checked(name, value) {
            return Err(Reject::HeaderLine);
        }
    }
    if status == SWITCHING_PROTOCOLS {
        out.remove("sec-websocket-accept");
    }
    if out.contains("grpc-status") || head.opens_tunnel() {
        // HTTP/1.1's way to say that there is no body; trailers have no length.
        out.remove("content-length");
    }
    Ok(())
}

fn is_proven(head: &ResponseHead<'_>, proof: Option<&str>) -> bool {
    let mut said = head.headers();
    let said = said.find(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-accept"));
    proof.is_some() && said.map(|(_, value)| value) == proof.map(str::as_bytes)
}
