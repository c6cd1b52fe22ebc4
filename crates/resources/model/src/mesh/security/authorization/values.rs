//! The texts of an AuthorizationPolicy as meaning: the same reading for what people write and for what travels to proxies,
//! so that neither side takes what the other refuses. An error is one sentence.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Matches, PathMatch, ServiceAccountName, StringMatch, WhenCondition};
use crate::mesh::AddressRange;

/// Longest value that is taken, in bytes: more than any path or name a proxy lets in, little enough to index.
pub const MAX_VALUE_BYTES: usize = 8 * 1024;
/// Longest `NAMESPACE/NAME`, in characters: Istio's.
const MAX_SERVICE_ACCOUNT_CHARS: usize = 320;
/// Most of them in one list: Istio's.
pub const MAX_SERVICE_ACCOUNTS: usize = 16;
/// Deepest claim (`request.auth.claims[a][b]…`) that a condition may test.
const MAX_CLAIM_DEPTH: usize = 16;

/// Every key of a condition, brackets left out.
pub const CONDITION_KEYS: [&str; 14] = [
    "request.headers",
    "source.ip",
    "remote.ip",
    "source.namespace",
    "source.serviceAccount",
    "source.principal",
    "source.trustDomain",
    "request.auth.principal",
    "request.auth.audiences",
    "request.auth.presenter",
    "request.auth.claims",
    "destination.ip",
    "destination.port",
    "connection.sni",
];

/// Any text but none.
pub fn text(value: &str) -> Result<&str, String> {
    match value.len() {
        0 => Err("an empty value is not allowed".to_owned()),
        length if length > MAX_VALUE_BYTES => Err(format!(
            "a value has at most {MAX_VALUE_BYTES} bytes, this one {length}"
        )),
        _ => Ok(value),
    }
}

/// `abc`, `abc*`, `*abc` or `*`.
pub fn string(value: &str) -> Result<StringMatch, String> {
    Ok(StringMatch::parse(text(value)?))
}

/// A namespace, with `*` for any letters. Istio accepts names that no namespace can have; they match nothing.
pub fn namespace(value: &str) -> Result<Arc<str>, String> {
    match text(value)?.contains('/') {
        false => Ok(value.into()),
        true => Err("the name of a namespace has no `/`".to_owned()),
    }
}

/// An address or a range of them. An IPv4 address in IPv6 clothes is the IPv4 address.
pub fn address_range(value: &str) -> Result<AddressRange, String> {
    const MAPPED_BITS: u8 = 96;
    let wrong = || {
        format!(
            "`{}` is neither an IP address nor a range such as 10.0.0.0/8",
            crate::text::clip(value)
        )
    };
    let (address, prefix) = match value.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (value, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
    let prefix: u8 = match prefix {
        None => bits(address),
        Some(digits) => {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            let number = plain.then(|| digits.parse().ok()).flatten();
            number.filter(|n| *n <= bits(address)).ok_or_else(wrong)?
        }
    };
    let canonical = address.to_canonical();
    if canonical != address && prefix >= MAPPED_BITS {
        return Ok(AddressRange {
            address: canonical,
            prefix: prefix - MAPPED_BITS,
        });
    }
    Ok(AddressRange { address, prefix })
}

/// A port; 0 is allowed, as in Istio, and never matches.
pub fn port(value: &str) -> Result<u16, String> {
    let plain = value.bytes().all(|b| b.is_ascii_digit());
    let number = plain.then(|| value.parse().ok()).flatten();
    number.ok_or_else(|| format!("`{}` is not a port, 0 to 65535", crate::text::clip(value)))
}

/// `NAMESPACE/NAME`, or `NAME` of the policy's own namespace.
pub fn service_account(value: &str, own: &str) -> Result<ServiceAccountName, String> {
    if text(value)?.chars().count() > MAX_SERVICE_ACCOUNT_CHARS {
        return Err(format!(
            "a service account has at most {MAX_SERVICE_ACCOUNT_CHARS} characters"
        ));
    }
    let (namespace, name) = value.split_once('/').unwrap_or((own, value));
    let fine = |part: &str| !part.is_empty() && !part.contains(['*', '/']);
    match fine(namespace) && fine(name) {
        true => Ok(ServiceAccountName {
            namespace: namespace.into(),
            name: name.into(),
        }),
        false => Err(
            "write NAMESPACE/NAME, or NAME for one of the policy's namespace, without `*`"
                .to_owned(),
        ),
    }
}

/// A trust domain, with `*` first or last.
pub fn trust_domain(value: &str) -> Result<StringMatch, String> {
    let read = string(value)?;
    match read.literal().contains(['*', '/']) {
        true => {
            Err("a trust domain has no `/`, and `*` only as the first or last character".to_owned())
        }
        false => Ok(read),
    }
}

/// A path, or a template where `{*}` or `{**}` is in it.
pub fn path(value: &str) -> Result<PathMatch, String> {
    let is_template = text(value)?.contains("{*}") || value.contains("{**}");
    let mut last = false;
    for segment in value.trim_matches('/').split('/') {
        if matches!(segment, "{*}" | "{**}") {
            if last {
                return Err("`{**}` is the last operator of a template".to_owned());
            }
            last = segment == "{**}";
        } else if segment.contains(['{', '}']) {
            return Err("`{` and `}` only as `{*}` or `{**}`, each a whole segment".to_owned());
        } else if is_template && !is_literal(segment) {
            return Err(format!(
                "`{}` is not a segment of a template",
                crate::text::clip(segment)
            ));
        }
    }
    match is_template {
        true if !value.starts_with('/') => Err("a template begins with `/`".to_owned()),
        true => Ok(PathMatch::Template(value.into())),
        false => Ok(PathMatch::Text(StringMatch::parse(value))),
    }
}

/// RFC 3986's `pchar`, but `*`.
fn is_literal(segment: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-._~%!$&'()+,;:@=".contains(&b);
    !segment.is_empty() && segment.bytes().all(fine)
}

/// The fault of a condition: in its key, or in the value at an index of `values`, then of `notValues`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConditionError {
    /// Of the key.
    Key(String),
    /// Of one value.
    Value(usize, String),
}

/// Reads a condition. `own` is the policy's namespace.
pub fn condition<'a>(
    key: &str,
    values: &[&'a str],
    not_values: &[&'a str],
    own: &str,
) -> Result<WhenCondition, ConditionError> {
    let account = |value: &'a str| service_account(value, own);
    Ok(match key {
        "source.ip" => WhenCondition::SourceIp(matches(values, not_values, address_range)?),
        "remote.ip" => WhenCondition::RemoteIp(matches(values, not_values, address_range)?),
        "source.namespace" => {
            WhenCondition::SourceNamespace(matches(values, not_values, namespace)?)
        }
        "source.serviceAccount" => {
            WhenCondition::SourceServiceAccount(matches(values, not_values, account)?)
        }
        "source.principal" => WhenCondition::SourcePrincipal(matches(values, not_values, string)?),
        "source.trustDomain" => {
            WhenCondition::SourceTrustDomain(matches(values, not_values, trust_domain)?)
        }
        "request.auth.principal" => {
            WhenCondition::RequestPrincipal(matches(values, not_values, string)?)
        }
        "request.auth.audiences" => {
            WhenCondition::RequestAudiences(matches(values, not_values, string)?)
        }
        "request.auth.presenter" => {
            WhenCondition::RequestPresenter(matches(values, not_values, string)?)
        }
        "destination.ip" => {
            WhenCondition::DestinationIp(matches(values, not_values, address_range)?)
        }
        "destination.port" => WhenCondition::DestinationPort(matches(values, not_values, port)?),
        "connection.sni" => WhenCondition::ServerName(matches(values, not_values, string)?),
        _ => {
            let path = bracketed(key).map_err(ConditionError::Key)?;
            match path {
                ("request.headers", path) if path.len() == 1 => {
                    let name = header_name(&path[0]).map_err(ConditionError::Key)?;
                    WhenCondition::Header(name, matches(values, not_values, string)?)
                }
                ("request.auth.claims", path) => {
                    WhenCondition::RequestClaim(path, matches(values, not_values, string)?)
                }
                _ => return Err(ConditionError::Key(unknown_key(key))),
            }
        }
    })
}

/// Reads both lists.
fn matches<'a, T>(
    values: &[&'a str],
    not_values: &[&'a str],
    read: impl Fn(&'a str) -> Result<T, String>,
) -> Result<Matches<T>, ConditionError> {
    let list = |list: &[&'a str], before: usize| -> Result<Vec<T>, ConditionError> {
        let one = |(index, value): (usize, &&'a str)| {
            read(value).map_err(|why| ConditionError::Value(before + index, why))
        };
        list.iter().enumerate().map(one).collect()
    };
    Ok(Matches {
        any_of: list(values, 0)?,
        none_of: list(not_values, values.len())?,
    })
}

/// `a.b[c][d]` as `a.b` and `c`, `d`.
fn bracketed(key: &str) -> Result<(&str, Vec<Arc<str>>), String> {
    let Some((head, rest)) = key.split_once('[') else {
        return Err(unknown_key(key));
    };
    let inner = rest.strip_suffix(']').ok_or("a key ends with `]`")?;
    let path: Vec<Arc<str>> = inner.split("][").map(Into::into).collect();
    let fine = |part: &Arc<str>| !part.is_empty() && !part.contains(['[', ']']);
    if !path.iter().all(fine) || path.len() > MAX_CLAIM_DEPTH {
        return Err(format!(
            "`{}` is not `{head}[NAME]`",
            crate::text::clip(key)
        ));
    }
    Ok((head, path))
}

/// Begins the conditions about what filters of Envoy say.
pub const EXPERIMENTAL: &str = "experimental.envoy.filters.";

fn unknown_key(key: &str) -> String {
    match key {
        "destination.namespace" => "`destination.namespace` is not supported: the policy's namespace sets it".to_owned(),
        "destination.name" | "destination.user" => format!("`{key}` was removed with v1alpha1"),
        _ if key.starts_with("destination.labels") => "`destination.labels` is not supported: use `selector`".to_owned(),
        _ if key.starts_with(EXPERIMENTAL) => {
            "`experimental.envoy.filters` is not supported: it reads Envoy's filter metadata, which Voile does not have".to_owned()
        }
        _ => format!("there is no condition `{}`", crate::text::clip(key)),
    }
}

/// In lower case; `:method` and its like are said by `to`.
fn header_name(name: &str) -> Result<Arc<str>, String> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let pseudo = matches!(name, ":method" | ":path" | ":authority" | ":scheme");
    match name.bytes().all(token) || pseudo {
        true => Ok(name.to_ascii_lowercase().into()),
        false => Err(format!(
            "`{}` is not the name of a header",
            crate::text::clip(name)
        )),
    }
}
