//! External services that decide, checked from `voile.proxy.v1.Authorizer`: who is asked, how, and what becomes of what
//! would have been asked while nobody can be.

use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::authorization::StringMatch;
use voile_model::mesh::{BodyInCheck, MAX_BODY_IN_CHECK};
use voile_model::{Port, ServiceKey};
use voile_proto::proxy as wire;

use crate::wire::{WireError, port, service_key};

/// An external service that decides about requests and connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorizer {
    /// The provider's name, as policies say it.
    pub name: Arc<str>,
    /// Service that answers the checks.
    pub service: ServiceKey,
    /// Its port.
    pub port: Port,
    /// Longest wait for an answer; `None` is the proxy's named default.
    pub timeout: Option<Duration>,
    /// True if requests pass while the authorizer cannot be called.
    pub fail_open: bool,
    /// Status for clients while it cannot be called; `None` is 403.
    pub status_on_error: Option<u16>,
    /// Part of the request's body that it gets.
    pub body: Option<BodyInCheck>,
    /// Settings of checks over HTTP; `None` is gRPC.
    pub http: Option<AuthorizerHttp>,
}

/// Headers and paths of checks over HTTP, and of their answers. Names are in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthorizerHttp {
    /// Before the request's own path; empty, or begins with `/`.
    pub path_prefix: Arc<str>,
    /// Headers of the request that it is told.
    pub request_headers: Vec<StringMatch>,
    /// Headers that it is told whatever the request says.
    pub additional_headers: Vec<(Arc<str>, Arc<str>)>,
    /// Headers of its yes that the application is told.
    pub upstream_on_allow: Vec<StringMatch>,
    /// Headers of its no that the client is told; none: all of them.
    pub downstream_on_deny: Vec<StringMatch>,
    /// Headers of its yes that the client is told.
    pub downstream_on_allow: Vec<StringMatch>,
}

impl Authorizer {
    /// Checks a message.
    pub fn check(message: &wire::Authorizer) -> Result<Self, WireError> {
        if message.name.is_empty() {
            return Err(WireError::new("name", "missing"));
        }
        let timeout = u64::from(message.timeout_ms);
        let status_on_error = match message.status_on_error {
            0 => None,
            said => match u16::try_from(said).ok() {
                Some(status @ 200..=599) => Some(status),
                _ => return Err(WireError::new("status_on_error", format!("{said}"))),
            },
        };
        Ok(Self {
            name: message.name.as_str().into(),
            service: service_key("service", &message.service)?,
            port: port("port", message.port)?,
            timeout: (timeout != 0).then(|| Duration::from_millis(timeout)),
            fail_open: message.fail_open,
            status_on_error,
            body: match &message.body {
                None => None,
                Some(body) => Some(body_in_check(body).map_err(|error| error.within("body"))?),
            },
            http: match &message.http {
                None => None,
                Some(said) => Some(http(said).map_err(|error| error.within("http"))?),
            },
        })
    }
}

fn body_in_check(message: &wire::AuthorizerBody) -> Result<BodyInCheck, WireError> {
    if !(1..=MAX_BODY_IN_CHECK).contains(&message.max_bytes) {
        let reason = format!("{} is not 1 to {MAX_BODY_IN_CHECK}", message.max_bytes);
        return Err(WireError::new("max_bytes", reason));
    }
    Ok(BodyInCheck {
        max_bytes: message.max_bytes,
        allow_partial: message.allow_partial,
        pack_as_bytes: message.pack_as_bytes,
    })
}

fn http(message: &wire::AuthorizerHttp) -> Result<AuthorizerHttp, WireError> {
    let prefix = message.path_prefix.as_str();
    let printable = prefix.bytes().all(|byte| matches!(byte, 0x21..=0x7e));
    if !(prefix.is_empty() || prefix.starts_with('/')) || !printable {
        return Err(WireError::new("path_prefix", "not a path"));
    }
    let names = |names: &[String]| -> Vec<StringMatch> {
        let one = |name: &String| StringMatch::parse(&name.to_ascii_lowercase());
        names.iter().map(one).collect()
    };
    let mut additional = Vec::new();
    for header in &message.additional_headers {
        let visible = header.value.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if header.name.is_empty() || !header.name.bytes().all(token) || !visible {
            return Err(WireError::new("additional_headers", "not a header"));
        }
        let name = header.name.to_ascii_lowercase();
        additional.push((name.into(), header.value.as_str().into()));
    }
    Ok(AuthorizerHttp {
        path_prefix: prefix.into(),
        request_headers: names(&message.request_headers),
        additional_headers: additional,
        upstream_on_allow: names(&message.upstream_on_allow),
        downstream_on_deny: names(&message.downstream_on_deny),
        downstream_on_allow: names(&message.downstream_on_allow),
    })
}
