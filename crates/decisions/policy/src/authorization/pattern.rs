//! Parses the values of a term, once per policy. The meaning of a star and the refused values depend on the attribute,
//! exactly as in Istio's admission. Values that Istio admits although they mean nothing (a namespace with a slash) are
//! refused here too.

use std::fmt;
use std::sync::Arc;

use super::attribute::Attribute;
use super::cidr::{Cidr, CidrError};
use super::template::{PathTemplate, TemplateError};

/// One value of a term.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// A text: principals, namespaces, trust domains, hosts, methods, paths, headers, claims, server names.
    Text(Text),
    /// A service account of one namespace.
    ServiceAccount {
        /// Its namespace.
        namespace: Arc<str>,
        /// Its name.
        name: Arc<str>,
    },
    /// Issuer and subject of a token.
    RequestPrincipal(Box<RequestPrincipal>),
    /// Addresses.
    Cidr(Cidr),
    /// A port.
    Port(u16),
    /// A path with `{*}` or `{**}`.
    Template(PathTemplate),
    /// A value of an attribute that Voile cannot evaluate.
    Unanswerable(Arc<str>),
}

/// The comparison of a text with a value. An empty text is never `Prefix` or `Suffix`: it is `Present`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Text {
    /// The whole text.
    Exact(Arc<str>),
    /// Its beginning (`abc*`).
    Prefix(Arc<str>),
    /// Its end (`*abc`).
    Suffix(Arc<str>),
    /// That there is one (`*`).
    Present,
    /// Stars elsewhere; only in namespaces.
    Glob(Arc<str>),
}

/// `ISSUER/SUBJECT`, each compared on its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestPrincipal {
    /// Claim `iss`.
    pub issuer: Text,
    /// Claim `sub`.
    pub subject: Text,
    written: Arc<str>,
}

/// Why a value is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Nothing stands there.
    #[error("an empty value for {0}")]
    Empty(Attribute),
    /// Not a block of addresses.
    #[error(transparent)]
    Cidr(#[from] CidrError),
    /// Not a port.
    #[error("`{0}` is not a port (0 to 65535)")]
    Port(String),
    /// Not a service account.
    #[error("`{0}` is not SERVICE-ACCOUNT or NAMESPACE/SERVICE-ACCOUNT without wildcards")]
    ServiceAccount(String),
    /// Not a trust domain.
    #[error("`{0}` is not a trust domain with at most one star, at its beginning or end")]
    TrustDomain(String),
    /// Not a namespace.
    #[error("`{0}` is not a namespace: it has a slash")]
    Namespace(String),
    /// Not a path template.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// The part of a hostile text that an error repeats.
pub(super) fn excerpt(value: &str) -> String {
    value.chars().take(100).collect()
}

impl Pattern {
    /// Reads one value of an attribute. `namespace` is the policy's.
    pub fn parse(attribute: &Attribute, namespace: &str, value: &str) -> Result<Self, ValueError> {
        if value.is_empty() {
            return Err(ValueError::Empty(attribute.clone()));
        }
        match attribute {
            Attribute::SourceIp | Attribute::RemoteIp | Attribute::DestinationIp => {
                Ok(Self::Cidr(value.parse()?))
            }
            Attribute::DestinationPort => Ok(Self::Port(port(value)?)),
            Attribute::SourceServiceAccount => service_account(namespace, value),
            Attribute::SourceTrustDomain => Ok(Self::Text(trust_domain(value)?)),
            Attribute::SourceNamespace | Attribute::PeerNamespace => {
                Ok(Self::Text(namespaces(value)?))
            }
            Attribute::RequestPrincipal => Ok(Self::RequestPrincipal(Box::new(
                RequestPrincipal::parse(value),
            ))),
            Attribute::Path => match PathTemplate::parse(value)? {
                Some(template) => Ok(Self::Template(template)),
                None => Ok(Self::Text(Text::parse(value))),
            },
            Attribute::Unanswerable(_) => Ok(Self::Unanswerable(value.into())),
            Attribute::SourcePrincipal
            | Attribute::RequestAudiences
            | Attribute::RequestPresenter
            | Attribute::RequestClaim(_)
            | Attribute::RequestHeader(_)
            | Attribute::Host
            | Attribute::Method
            | Attribute::Sni => Ok(Self::Text(Text::parse(value))),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => text.fmt(f),
            Self::ServiceAccount { namespace, name } => write!(f, "{namespace}/{name}"),
            Self::RequestPrincipal(principal) => f.write_str(&principal.written),
            Self::Cidr(cidr) => cidr.fmt(f),
            Self::Port(port) => port.fmt(f),
            Self::Template(template) => template.fmt(f),
            Self::Unanswerable(value) => f.write_str(value),
        }
    }
}

impl Text {
    /// Reads a value by Istio's rule: `*` alone, at the beginning, at the end; a star elsewhere is itself.
    pub fn parse(value: &str) -> Self {
        if value == "*" {
            Self::Present
        } else if let Some(end) = value.strip_prefix('*') {
            Self::Suffix(end.into())
        } else if let Some(beginning) = value.strip_suffix('*') {
            Self::Prefix(beginning.into())
        } else {
            Self::Exact(value.into())
        }
    }

    /// Returns true if the value matches. `Present` matches a value that is not empty and has one line, as Envoy's `.+`
    /// does.
    pub fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(text) => value == text.as_bytes(),
            Self::Prefix(text) => value.starts_with(text.as_bytes()),
            Self::Suffix(text) => value.ends_with(text.as_bytes()),
            Self::Present => is_present(value),
            Self::Glob(glob) => super::glob::matches(glob.as_bytes(), value),
        }
    }

    /// The same, ignoring the case of ASCII letters.
    pub fn matches_any_case(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(text) => value.eq_ignore_ascii_case(text.as_bytes()),
            Self::Prefix(text) => {
                let beginning = value.get(..text.len());
                beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(text.as_bytes()))
            }
            Self::Suffix(text) => {
                let start = value.len().checked_sub(text.len());
                start.is_some_and(|start| value[start..].eq_ignore_ascii_case(text.as_bytes()))
            }
            Self::Present | Self::Glob(_) => self.matches(value),
        }
    }
}

/// Returns true if `.+` matches the whole value: it is not empty and has one line.
pub(super) fn is_present(value: &[u8]) -> bool {
    !value.is_empty() && !value.contains(&b'\n')
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) | Self::Glob(text) => f.write_str(text),
            Self::Prefix(text) => write!(f, "{text}*"),
            Self::Suffix(text) => write!(f, "*{text}"),
            Self::Present => f.write_str("*"),
        }
    }
}

impl RequestPrincipal {
    /// Splits at the last slash, since issuers are URLs. A star at the beginning belongs to the issuer, and what follows
    /// the slash is then compared whole, star or not.
    fn parse(value: &str) -> Self {
        let parts = value.rsplit_once('/');
        let (issuer, subject) = if value == "*" {
            (Text::Present, Text::Present)
        } else if let Some(end) = value.strip_prefix('*') {
            match parts {
                Some((issuer, subject)) => (Text::parse(issuer), Text::Exact(subject.into())),
                None => (Text::Present, Text::Suffix(end.into())),
            }
        } else if let Some(beginning) = value.strip_suffix('*') {
            match parts {
                Some((issuer, subject)) => (Text::Exact(issuer.into()), Text::parse(subject)),
                None => (Text::Prefix(beginning.into()), Text::Present),
            }
        } else {
            let (issuer, subject) = parts.unwrap_or((value, ""));
            (Text::Exact(issuer.into()), Text::Exact(subject.into()))
        };
        Self {
            issuer,
            subject,
            written: value.into(),
        }
    }
}

fn port(value: &str) -> Result<u16, ValueError> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse().ok().filter(|_| digits);
    number.ok_or_else(|| ValueError::Port(excerpt(value)))
}

/// Longest service account with its namespace, in bytes: Istio's limit.
const MAX_SERVICE_ACCOUNT_BYTES: usize = 320;

fn service_account(namespace: &str, value: &str) -> Result<Pattern, ValueError> {
    let (namespace, name) = value.split_once('/').unwrap_or((namespace, value));
    let good = !namespace.is_empty()
        && !name.is_empty()
        && !name.contains('/')
        && !value.contains('*')
        && value.len() <= MAX_SERVICE_ACCOUNT_BYTES;
    good.then(|| Pattern::ServiceAccount {
        namespace: namespace.into(),
        name: name.into(),
    })
    .ok_or_else(|| ValueError::ServiceAccount(excerpt(value)))
}

fn trust_domain(value: &str) -> Result<Text, ValueError> {
    let text = Text::parse(value);
    let inner = match &text {
        Text::Exact(text) | Text::Prefix(text) | Text::Suffix(text) | Text::Glob(text) => text,
        Text::Present => "",
    };
    if inner.contains(['*', '/']) {
        return Err(ValueError::TrustDomain(excerpt(value)));
    }
    Ok(text)
}

fn namespaces(value: &str) -> Result<Text, ValueError> {
    if value.contains('/') {
        return Err(ValueError::Namespace(excerpt(value)));
    }
    let text = Text::parse(value);
    match &text {
        Text::Exact(inner) | Text::Prefix(inner) | Text::Suffix(inner) if inner.contains('*') => {
            Ok(Text::Glob(value.into()))
        }
        _ => Ok(text),
    }
}
