//! Keys of session affinity: a header, a cookie, the source address or a parameter. Requests with the same key go to
//! the same endpoint. Istio's `consistentHash`, hashed as Envoy hashes it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::hash::xxh64;
use crate::route::{RouteInput, query_parameter};

/// Input of the hash in `consistentHash`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HashKey {
    /// `httpHeaderName`, in lower case.
    Header(Arc<str>),
    /// `httpCookie`.
    Cookie(HashCookie),
    /// `useSourceIp`: the source address of the connection.
    SourceIp,
    /// `httpQueryParameterName`.
    Query(Arc<str>),
}

/// `httpCookie`: a cookie by which requests keep together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashCookie {
    /// Its name.
    pub name: Arc<str>,
    /// Path attribute of the cookie; `/` if not set.
    pub path: Option<Arc<str>>,
    /// Lifetime of a new cookie: 0 until the browser is closed. Without a lifetime no cookie is set.
    pub ttl: Option<Duration>,
    /// Further attributes, as written: `Secure`, `SameSite=Lax`.
    pub attributes: Vec<Arc<str>>,
}

/// Key of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestKey {
    /// Requests with this key go to one endpoint.
    Of(u64),
    /// Nothing: any endpoint will do.
    None,
    /// A new cookie is to be given out: the key that goes with it, and the value of `Set-Cookie`.
    New(u64, String),
}

impl HashKey {
    /// The key of a request; `random` makes a new cookie's value. Cookies of several lines are expected joined by `; `.
    #[must_use]
    pub fn key(
        &self,
        request: &(impl RouteInput + ?Sized),
        source: IpAddr,
        random: impl FnOnce() -> u64,
    ) -> RequestKey {
        let of = |value: &[u8]| RequestKey::Of(xxh64(value, 0));
        match self {
            Self::Header(name) => request
                .header(name)
                .map_or(RequestKey::None, |value| of(&value)),
            Self::Query(name) => {
                query_parameter(request.query(), name.as_bytes()).map_or(RequestKey::None, of)
            }
            Self::SourceIp => of(source.to_string().as_bytes()),
            Self::Cookie(cookie) => {
                let cookies = request.header("cookie");
                match cookies.as_deref().and_then(|cookies| cookie.find(cookies)) {
                    Some(value) => of(value),
                    None => cookie.give_out(random),
                }
            }
        }
    }
}

impl HashKey {
    /// The key of a connection of which nothing is known but where it comes from.
    #[must_use]
    pub fn key_of_source(&self, source: IpAddr) -> Option<u64> {
        (*self == Self::SourceIp).then(|| xxh64(source.to_string().as_bytes(), 0))
    }
}

impl HashCookie {
    fn find<'c>(&self, cookies: &'c [u8]) -> Option<&'c [u8]> {
        let mut pairs = cookies.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        pairs.find_map(|pair| {
            let value = pair
                .strip_prefix(self.name.as_bytes())?
                .strip_prefix(b"=")?;
            let bare = value
                .strip_prefix(b"\"")
                .and_then(|value| value.strip_suffix(b"\""));
            Some(bare.unwrap_or(value)).filter(|value| !value.is_empty())
        })
    }

    fn give_out(&self, random: impl FnOnce() -> u64) -> RequestKey {
        let Some(ttl) = self.ttl else {
            return RequestKey::None;
        };
        let value = format!("{:016x}", random());
        let mut line = format!("{}=\"{value}\"", self.name);
        if ttl > Duration::ZERO {
            line += &format!("; Max-Age={}", ttl.as_secs().max(1));
        }
        line += &format!("; Path={}", self.path.as_deref().unwrap_or("/"));
        for attribute in &self.attributes {
            line += "; ";
            line += attribute;
        }
        line += "; HttpOnly";
        RequestKey::New(xxh64(value.as_bytes(), 0), line)
    }
}
