//! Reading one request head: strict, and no more than the server needs to know of it. No I/O.

use std::mem::MaybeUninit;

use crate::body::Framing;

/// The largest request head accepted; beyond it the answer is 431.
pub(crate) const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The most header fields accepted.
const MAX_HEADERS: usize = 128;

/// Fields that a service passes on when it calls others, so that a trace stays whole.
const TRACE_FIELDS: [&str; 11] = [
    "x-request-id",
    "traceparent",
    "tracestate",
    "baggage",
    "b3",
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
    "x-ot-span-context",
];

/// A request head, borrowed from the bytes it came in.
pub(crate) struct EchoRequestHead<'a> {
    pub(crate) method: &'a str,
    pub(crate) target: &'a str,
    pub(crate) http11: bool,
    pub(crate) framing: Framing,
    pub(crate) expects_continue: bool,
    /// The answer may be compressed, and the target asks for it.
    pub(crate) gzip: bool,
    /// The type of the request's body, for it to go back with.
    pub(crate) kind: Option<&'a str>,
    /// Key of an upgrade to WebSocket; none without an upgrade.
    pub(crate) websocket: Option<&'a str>,
    /// Bytes of the head.
    pub(crate) length: usize,
    pub(crate) trace: String,
    /// Method, target and fields as text, for `/debug`.
    pub(crate) description: String,
}

/// Refusal of a request: status and reason.
pub(crate) struct RequestRefusal(pub(crate) u16, pub(crate) &'static str);

/// Parses a head; none when it is not all there. `describe` also keeps the fields as text, `trace` the trace context.
pub(crate) fn parse(
    bytes: &[u8],
    trace: bool,
) -> Result<Option<EchoRequestHead<'_>>, RequestRefusal> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(bytes, &mut fields) {
        Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD_BYTES => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
        Ok(_) => return Err(RequestRefusal(431, "request head larger than 64 KiB")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(RequestRefusal(431, "more than 128 header fields"));
        }
        Err(_) => return Err(RequestRefusal(400, "not an HTTP/1.1 request")),
    };
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Err(RequestRefusal(400, "not an HTTP/1.1 request"));
    };
    let http11 = request.version == Some(1);
    let fields = &*request.headers;
    let framing =
        Framing::of(fields, http11).map_err(|_| RequestRefusal(400, "ambiguous body length"))?;
    let hosts = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case("host"))
        .count();
    if hosts > 1 || (hosts == 0 && http11) {
        return Err(RequestRefusal(400, "expected exactly one Host field"));
    }
    let expects_continue = http11
        && fields.iter().any(|field| {
            field.name.eq_ignore_ascii_case("expect")
                && field.value.eq_ignore_ascii_case(b"100-continue")
        });
    let wanted = |name: &str| {
        trace
            && TRACE_FIELDS
                .iter()
                .any(|field| field.eq_ignore_ascii_case(name))
    };
    let description = if target.contains("/debug") {
        format!(
            "{method} {target} HTTP/1.{}\n{}",
            u8::from(http11),
            text(fields, "\n", |_| true)
        )
    } else {
        String::new()
    };
    let trace = text(fields, "\r\n", wanted);
    Ok(Some(EchoRequestHead {
        method,
        target,
        http11,
        framing,
        expects_continue,
        // Or the query that stands for none asks for it.
        gzip: (target.contains("gzip") || !target.contains('?'))
            && fields.iter().any(|field| {
                field.name.eq_ignore_ascii_case("accept-encoding") && takes_gzip(field.value)
            }),
        kind: value(fields, "content-type"),
        websocket: websocket(method, http11, fields),
        length,
        trace,
        description,
    }))
}

/// The value of a field, if it is text.
fn value<'a>(fields: &[httparse::Header<'a>], name: &str) -> Option<&'a str> {
    let field = fields
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(field.value).ok()
}

/// The key of an upgrade to WebSocket (RFC 6455, section 4.2.1).
fn websocket<'a>(method: &str, http11: bool, fields: &[httparse::Header<'a>]) -> Option<&'a str> {
    let upgrade = value(fields, "upgrade")?;
    let listed = |name: &str, word: &str| {
        value(fields, name).is_some_and(|value| {
            value
                .split(',')
                .any(|part| part.trim().eq_ignore_ascii_case(word))
        })
    };
    let wanted = upgrade.eq_ignore_ascii_case("websocket") && listed("connection", "upgrade");
    let known = value(fields, "sec-websocket-version") == Some("13");
    let key = value(fields, "sec-websocket-key").filter(|key| !key.is_empty());
    key.filter(|_| method == "GET" && http11 && wanted && known)
}

/// A value of `Accept-Encoding` names gzip, and not with weight 0.
pub(crate) fn takes_gzip(value: &[u8]) -> bool {
    String::from_utf8_lossy(value).split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let gzip = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case("gzip") || name == "*");
        let refused = parts.any(|part| {
            part.strip_prefix("q=")
                .is_some_and(|weight| weight.parse::<f64>().is_ok_and(|weight| weight == 0.0))
        });
        gzip && !refused
    })
}

/// The lines of `fields` that belong to the trace context, as header lines.
pub(crate) fn trace_of(fields: &str) -> String {
    let mut trace = String::new();
    for line in fields.lines() {
        let name = line.split(':').next().unwrap_or_default();
        if TRACE_FIELDS.contains(&name) {
            trace.push_str(line);
            trace.push_str("\r\n");
        }
    }
    trace
}

/// Fields as lines; empty, and without an allocation, when none is wanted.
fn text(fields: &[httparse::Header<'_>], end: &str, wanted: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    for field in fields.iter().filter(|field| wanted(field.name)) {
        text.push_str(field.name);
        text.push_str(": ");
        text.push_str(&String::from_utf8_lossy(field.value));
        text.push_str(end);
    }
    text
}
