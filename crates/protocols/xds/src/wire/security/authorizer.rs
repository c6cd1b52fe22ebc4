//! External services that decide ⇄ `voile.proxy.v1.Authorizer`: who is asked, how, and what becomes of what
//! would have been asked while nobody can be.

use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::authorization::StringMatch;
use voile_model::mesh::{BodyInCheck, HttpAuthorizer, MAX_BODY_IN_CHECK};
use voile_model::{Port, ServiceKey};
use voile_proto::proxy as wire;

use crate::wire::fields::forms::{each, named};
use crate::wire::fields::{wire_tuple, wire_type};
use crate::wire::{WireError, WireType};

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
    pub http: Option<HttpAuthorizer>,
}

wire_type! {
    Authorizer as wire::Authorizer {
        name by named,
        service,
        port,
        timeout = timeout_ms,
        fail_open,
        status_on_error by status,
        body,
        http,
    }
}

fn status(form: u32) -> Result<Option<u16>, WireError> {
    match u16::try_from(form) {
        Ok(0) => Ok(None),
        Ok(status @ 200..=599) => Ok(Some(status)),
        _ => Err(WireError::new("", format!("{form}"))),
    }
}

wire_type! {
    BodyInCheck as wire::AuthorizerBody { max_bytes, allow_partial, pack_as_bytes, }
    verify is_bounded
}

fn is_bounded(body: &BodyInCheck) -> Result<(), WireError> {
    match body.max_bytes {
        1..=MAX_BODY_IN_CHECK => Ok(()),
        bytes => {
            let reason = format!("{bytes} is not 1 to {MAX_BODY_IN_CHECK}");
            Err(WireError::new("max_bytes", reason))
        }
    }
}

wire_type! {
    HttpAuthorizer as wire::AuthorizerHttp {
        path_prefix by path,
        request_headers by names,
        additional_headers by headers,
        upstream_on_allow by names,
        downstream_on_deny by names,
        downstream_on_allow by names,
    }
}

fn path(form: String) -> Result<Arc<str>, WireError> {
    let printable = form.bytes().all(|byte| matches!(byte, 0x21..=0x7e));
    match (form.is_empty() || form.starts_with('/')) && printable {
        true => Ok(form.into()),
        false => Err(WireError::new("", "not a path")),
    }
}

impl WireType<String> for StringMatch {
    fn to_wire(&self) -> String {
        self.to_string()
    }

    fn from_wire(form: String) -> Result<Self, WireError> {
        Ok(Self::parse(&form))
    }
}

fn names(form: Vec<String>) -> Result<Vec<StringMatch>, WireError> {
    each(form, |name| {
        StringMatch::from_wire(name.to_ascii_lowercase())
    })
}

type Header = (Arc<str>, Arc<str>);

wire_tuple! { (Arc<str>, Arc<str>) as wire::AuthorizerHeader { name, value } }

fn headers(form: Vec<wire::AuthorizerHeader>) -> Result<Vec<Header>, WireError> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    each(form, |mut header| {
        let visible = header.value.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
        if header.name.is_empty() || !header.name.bytes().all(token) || !visible {
            return Err(WireError::new("", "not a header"));
        }
        header.name.make_ascii_lowercase();
        WireType::from_wire(header)
    })
}
