//! Attributes that the terms of an authorization rule test. The fields of `from.source` and `to.operation` and the keys
//! of `when` are two spellings of the same attributes.

use std::fmt;
use std::sync::Arc;

/// One attribute of a request or of its connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attribute {
    /// The peer's verified identity without `spiffe://` (`principals`, `source.principal`).
    SourcePrincipal,
    /// Its namespace (`namespaces`, `source.namespace`).
    SourceNamespace,
    /// Its namespace as a node proxy compares it: alone, and not as a part of the principal. No resource names it.
    PeerNamespace,
    /// Its service account (`serviceAccounts`, `source.serviceAccount`).
    SourceServiceAccount,
    /// Its trust domain (`trustDomains`, `source.trustDomain`).
    SourceTrustDomain,
    /// The address of the direct peer (`ipBlocks`, `source.ip`).
    SourceIp,
    /// The address of the original client (`remoteIpBlocks`, `remote.ip`).
    RemoteIp,
    /// Issuer and subject of the verified token (`requestPrincipals`, `request.auth.principal`).
    RequestPrincipal,
    /// Claim `aud` (`request.auth.audiences`).
    RequestAudiences,
    /// Claim `azp` (`request.auth.presenter`).
    RequestPresenter,
    /// A claim by its path (`request.auth.claims[a][b]`).
    RequestClaim(Arc<[Arc<str>]>),
    /// A header by its name in lower case (`request.headers[x]`).
    RequestHeader(Arc<str>),
    /// The authority asked for, port included (`hosts`).
    Host,
    /// The method (`methods`).
    Method,
    /// The normalised path without query and fragment (`paths`).
    Path,
    /// The address the connection was made to (`destination.ip`).
    DestinationIp,
    /// The workload's port (`ports`, `destination.port`).
    DestinationPort,
    /// The server name of the TLS handshake (`connection.sni`).
    Sni,
    /// A key that Voile cannot evaluate (`experimental.envoy.filters.…`, misspelt ones): its terms fail closed.
    Unanswerable(Arc<str>),
}

/// Why a key of `when` is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not of the form KEY[NAME]")]
pub struct KeyError(String);

const HEADERS: &str = "request.headers";
const CLAIMS: &str = "request.auth.claims";

impl Attribute {
    /// The attribute a key of `when` names. A key that Istio does not know is `Unanswerable`; one that it refuses is an
    /// error.
    pub fn of_condition(key: &str) -> Result<Self, KeyError> {
        let refused = || KeyError(key.chars().take(100).collect());
        if let Some(rest) = key.strip_prefix(HEADERS) {
            let name = in_brackets(rest).ok_or_else(refused)?;
            return Ok(Self::RequestHeader(name.to_ascii_lowercase().into()));
        }
        if let Some(rest) = key.strip_prefix(CLAIMS) {
            return Ok(Self::RequestClaim(claim_path(rest).ok_or_else(refused)?));
        }
        Ok(match key {
            "source.principal" => Self::SourcePrincipal,
            "source.namespace" => Self::SourceNamespace,
            "source.serviceAccount" => Self::SourceServiceAccount,
            "source.trustDomain" => Self::SourceTrustDomain,
            "source.ip" => Self::SourceIp,
            "remote.ip" => Self::RemoteIp,
            "request.auth.principal" => Self::RequestPrincipal,
            "request.auth.audiences" => Self::RequestAudiences,
            "request.auth.presenter" => Self::RequestPresenter,
            "destination.ip" => Self::DestinationIp,
            "destination.port" => Self::DestinationPort,
            "connection.sni" => Self::Sni,
            _ => Self::Unanswerable(key.into()),
        })
    }

    /// The attribute a name of ours stands for: a key of `when`, or `request.host`, `request.method`, `request.path`,
    /// which Istio can ask only in `to.operation`. The inverse of `Display`, for the wire.
    pub fn of_name(name: &str) -> Result<Self, KeyError> {
        match name {
            "request.host" => Ok(Self::Host),
            "request.method" => Ok(Self::Method),
            "request.path" => Ok(Self::Path),
            key => Self::of_condition(key),
        }
    }

    /// Returns true if only an HTTP request has this attribute. On a connection whose protocol is not HTTP, a term on
    /// it makes an ALLOW rule match nothing. Every other rule ignores the term.
    pub fn is_http(&self) -> bool {
        matches!(
            self,
            Self::RequestPrincipal
                | Self::RequestAudiences
                | Self::RequestPresenter
                | Self::RequestClaim(_)
                | Self::RequestHeader(_)
                | Self::Host
                | Self::Method
                | Self::Path
        )
    }

    /// Returns true if the proxy can read this attribute.
    pub fn is_answerable(&self) -> bool {
        !matches!(self, Self::Unanswerable(_))
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SourcePrincipal => "source.principal",
            Self::SourceNamespace | Self::PeerNamespace => "source.namespace",
            Self::SourceServiceAccount => "source.serviceAccount",
            Self::SourceTrustDomain => "source.trustDomain",
            Self::SourceIp => "source.ip",
            Self::RemoteIp => "remote.ip",
            Self::RequestPrincipal => "request.auth.principal",
            Self::RequestAudiences => "request.auth.audiences",
            Self::RequestPresenter => "request.auth.presenter",
            Self::RequestClaim(path) => {
                f.write_str(CLAIMS)?;
                return path.iter().try_for_each(|name| write!(f, "[{name}]"));
            }
            Self::RequestHeader(name) => return write!(f, "{HEADERS}[{name}]"),
            Self::Host => "request.host",
            Self::Method => "request.method",
            Self::Path => "request.path",
            Self::DestinationIp => "destination.ip",
            Self::DestinationPort => "destination.port",
            Self::Sni => "connection.sni",
            Self::Unanswerable(key) => key,
        })
    }
}

/// The text between the first and the last bracket, if the whole text is bracketed.
fn in_brackets(text: &str) -> Option<&str> {
    let name = text.strip_prefix('[')?.strip_suffix(']')?;
    (!name.is_empty()).then_some(name)
}

/// Splits `[a][b]` into a path of two names. Any other text is one name, as Istio reads it (`[a[b]]` is `a[b]`).
fn claim_path(text: &str) -> Option<Arc<[Arc<str>]>> {
    let whole = in_brackets(text)?;
    let mut names: Vec<Arc<str>> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let name = rest.strip_prefix('[').and_then(|inner| {
            let end = inner.find(['[', ']'])?;
            (inner.as_bytes()[end] == b']').then(|| &inner[..end])
        });
        let Some(name) = name else {
            return Some([Arc::from(whole)].into());
        };
        names.push(name.into());
        rest = &rest[name.len() + 2..];
    }
    Some(names.into())
}
