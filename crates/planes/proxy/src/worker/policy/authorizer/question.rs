//! Questions to an external service: the attributes of a request or connection in Envoy's terms, or an HTTP request that
//! resembles the original. A question holds verified facts and the request as it came, never an identity that a stranger
//! claims.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::SystemTime;

use voile_model::mesh::HttpAuthorizer;
use voile_proto::external_authorization as wire;

use super::Authorizer;
use super::answer::{self, is_told};
use crate::http::{BodyPrefix, BodyWanted, HttpHead, HttpVersion};
use crate::http2::travels;
use crate::worker::Worker;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::policy::request_changes::PlanChanges;

/// Field that says if the shown body is cut; Envoy's name.
const PARTIAL_BODY: &str = "x-envoy-auth-partial-body";

/// The authority of a request that names none.
const NO_AUTHORITY: &str = "localhost";

/// Subject of a question.
pub(crate) struct CheckSubject<'a> {
    pub(crate) caller: &'a InboundCaller,
    /// Address that the caller called.
    pub(crate) destination: SocketAddr,
    /// The request, and the path that it goes on with; none for an opaque connection.
    pub(crate) request: Option<(&'a HttpHead<'a>, &'a str)>,
    /// Changes that the token made to the request.
    pub(crate) changes: &'a PlanChanges,
}

/// A question. It is complete after [`Question::show`].
pub(crate) enum AuthorizerRequest {
    Grpc(Box<wire::CheckRequest>, bool),
    Http(OverHttp),
}

/// Request to an HTTP authorization service.
pub(crate) struct OverHttp {
    pub(super) bytes: Vec<u8>,
    /// It is answered without a body.
    pub(super) is_head: bool,
}

impl Authorizer {
    /// Limit of the body that the service sees.
    pub(crate) fn body(&self) -> Option<BodyWanted> {
        let body = self.plan.settings.body?;
        Some(BodyWanted {
            max: body.max_bytes as usize,
            partial: body.allow_partial,
        })
    }

    /// The question about a request or connection; `None` where it has no words for it.
    pub(crate) fn question(
        &self,
        worker: &Worker,
        about: &CheckSubject<'_>,
    ) -> Option<AuthorizerRequest> {
        match &self.plan.settings.http {
            Some(http) => {
                let (head, path) = about.request?;
                over_http(http, (head, about.changes), path).map(AuthorizerRequest::Http)
            }
            None => {
                let packed = self
                    .plan
                    .settings
                    .body
                    .is_some_and(|body| body.pack_as_bytes);
                let attributes = attributes(worker, about);
                let asked = wire::CheckRequest {
                    attributes: Some(attributes),
                };
                Some(AuthorizerRequest::Grpc(Box::new(asked), packed))
            }
        }
    }
}

impl AuthorizerRequest {
    /// Shows what there is of a body, and completes the question.
    pub(crate) fn show(&mut self, body: Option<BodyPrefix>) {
        match self {
            Self::Grpc(asked, packed) => {
                if let Some(body) = body
                    && let Some(attributes) = &mut asked.attributes
                    && let Some(request) = &mut attributes.request
                    && let Some(http) = &mut request.http
                {
                    show(http, body, *packed);
                }
            }
            Self::Http(asked) => asked.show(body),
        }
    }
}

fn show(http: &mut wire::HttpRequest, body: BodyPrefix, packed: bool) {
    let partial = (!body.whole).to_string();
    http.headers.insert(PARTIAL_BODY.to_owned(), partial);
    if body.whole {
        http.size = i64::try_from(body.bytes.len()).unwrap_or(i64::MAX);
    }
    match packed {
        true => http.raw_body = body.bytes,
        false => http.body = text(&body.bytes),
    }
}

/// Bytes as text: bytes that are no UTF-8 become `!`, as with Envoy.
fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => String::from_utf8_lossy(bytes).replace('\u{fffd}', "!"),
    }
}

fn attributes(worker: &Worker, about: &CheckSubject<'_>) -> wire::AttributeContext {
    let caller = about.caller;
    let own = match caller.principal.is_empty() {
        // In plaintext the caller has not seen our identity.
        true => String::new(),
        false => worker.principal.borrow().clone(),
    };
    let request = about.request.map(|(head, path)| wire::Request {
        time: Some(SystemTime::now().into()),
        http: Some(request(worker, (head, about.changes), path)),
    });
    wire::AttributeContext {
        source: Some(peer(caller.remote, caller.principal.clone())),
        destination: Some(peer(about.destination, own)),
        request,
        tls_session: caller.server_name().map(|name| wire::TlsSession {
            sni: name.to_owned(),
        }),
    }
}

fn peer(address: SocketAddr, principal: String) -> wire::Peer {
    wire::Peer {
        address: Some(wire::Address {
            socket_address: Some(wire::SocketAddress {
                address: address.ip().to_canonical().to_string(),
                port_value: address.port().into(),
            }),
        }),
        principal,
    }
}

fn request(
    worker: &Worker,
    (head, changes): (&HttpHead<'_>, &PlanChanges),
    path: &str,
) -> wire::HttpRequest {
    let method = head.method_meant();
    let host = head.authority().unwrap_or_default();
    let scheme = match head {
        HttpHead::Http2(fields) => fields.scheme().unwrap_or("http"),
        HttpHead::Http1(_) => "http",
    };
    let said = head.header("x-request-id").map(text);
    let mut headers = headers(head, changes);
    for (name, value) in [
        (":method", method),
        (":path", path),
        (":authority", host),
        (":scheme", scheme),
    ] {
        headers.insert(name.to_owned(), value.to_owned());
    }
    wire::HttpRequest {
        id: said.unwrap_or_else(|| worker.random().to_string()),
        method: method.to_owned(),
        path: path.to_owned(),
        host: host.to_owned(),
        scheme: scheme.to_owned(),
        size: size(head),
        protocol: head.version().name().to_owned(),
        headers,
        body: String::new(),
        raw_body: Vec::new(),
    }
}

/// Every field but those that claim what only we can know; several lines of one name are one value.
fn headers(head: &HttpHead<'_>, changes: &PlanChanges) -> BTreeMap<String, String> {
    let mut all = BTreeMap::<String, String>::new();
    for (name, value) in changes.seen(head) {
        let name = name.to_ascii_lowercase();
        if answer::claims_identity(&name) {
            continue;
        }
        let between = if name == "cookie" { "; " } else { "," };
        let value = text(value);
        all.entry(name)
            .and_modify(|known| {
                known.push_str(between);
                known.push_str(&value);
            })
            .or_insert(value);
    }
    all
}

/// Bytes of the body, as far as the head tells.
fn size(head: &HttpHead<'_>) -> i64 {
    let said = head.header("content-length");
    let said = said.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
    let streamed = matches!(head.version(), HttpVersion::Http2 | HttpVersion::Http3);
    let open = streamed || head.header("transfer-encoding").is_some();
    said.unwrap_or(if open { -1 } else { 0 })
}

/// A request like this one; CONNECT has none.
fn over_http(
    http: &HttpAuthorizer,
    (head, changes): (&HttpHead<'_>, &PlanChanges),
    path: &str,
) -> Option<OverHttp> {
    if path.is_empty() {
        return None;
    }
    // `*` is all of a server, of which there is no part.
    let path = match path {
        "*" if !http.path_prefix.is_empty() => "",
        path => path,
    };
    let method = head.method_meant();
    let mut bytes = Vec::with_capacity(512);
    let mut add = |parts: &[&[u8]]| {
        for part in parts {
            bytes.extend_from_slice(part);
        }
    };
    let host = head.authority().unwrap_or(NO_AUTHORITY);
    let prefix = http.path_prefix.as_bytes();
    add(&[
        method.as_bytes(),
        b" ",
        prefix,
        path.as_bytes(),
        b" HTTP/1.1\r\nhost: ",
    ]);
    add(&[host.as_bytes(), b"\r\n"]);
    for (name, value) in changes.seen(head) {
        let name = name.to_ascii_lowercase();
        let added = http
            .additional_headers
            .iter()
            .any(|(known, _)| **known == *name);
        let ours = matches!(
            &*name,
            "host" | "content-length" | "expect" | "te" | "trailer"
        ) || answer::claims_identity(&name);
        if !ours && !added && travels(&name, value) && is_told(http, &name) {
            add(&[name.as_bytes(), b": ", value, b"\r\n"]);
        }
    }
    for (name, value) in &http.additional_headers {
        add(&[name.as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    Some(OverHttp {
        bytes,
        is_head: method == "HEAD",
    })
}

impl OverHttp {
    fn show(&mut self, body: Option<BodyPrefix>) {
        if let Some(body) = &body {
            let line = format!("{PARTIAL_BODY}: {}\r\n", !body.whole);
            self.bytes.extend_from_slice(line.as_bytes());
        }
        let body = body.map(|body| body.bytes).unwrap_or_default();
        let end = format!("content-length: {}\r\n\r\n", body.len());
        self.bytes.extend_from_slice(end.as_bytes());
        self.bytes.extend_from_slice(&body);
    }
}
