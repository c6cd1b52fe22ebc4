//! RateLimits ⇄ `voile.proxy.v1.RateLimit`. A message with a part that this end does not know is refused whole: without one
//! condition, the limit would count other requests.

use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::rate_limit::{
    Descriptor, DescriptorEntry, DescriptorValue, Limit, LimitBy, MAX_KEYS,
};
use voile_model::{Port, ServiceKey};
use voile_proto::proxy as wire;

use crate::wire::fields::forms::positive;
use crate::wire::fields::wire_type;
use crate::wire::{RequestMatch, WireError, WireType};

/// A RateLimit as a proxy obeys it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// The first that takes a request counts.
    pub rules: Vec<LimitRule>,
    /// Service that counts for all proxies by the rules' descriptors.
    pub global: Option<GlobalLimits>,
    /// Of a waypoint's: hosts of the services whose requests it counts; none is all that the proxy takes.
    pub hosts: Vec<Arc<str>>,
}

/// A service that counts for several proxies together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalLimits {
    /// Address of the service; `None` if there is no service of this name, so that it cannot be asked.
    pub service: Option<(ServiceKey, Port)>,
    /// Domain of its limits.
    pub domain: Arc<str>,
    /// Longest wait for an answer.
    pub timeout: Duration,
    /// True if requests pass while the service cannot be asked.
    pub fail_open: bool,
}

/// One of its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRule {
    /// Name of the rule, as clients read it.
    pub name: Arc<str>,
    /// One of these; none matches everything.
    pub matches: Vec<RequestMatch>,
    /// All of them hold; none lets everything pass.
    pub limits: Vec<Limit>,
    /// Descriptors for the global service; if there are none, the service is not asked.
    pub descriptors: Vec<Descriptor>,
    /// Weight of a request there.
    pub hits: u32,
}

wire_type! {
    RateLimit as wire::RateLimit { name, rules, global, hosts, }
    verify has_somebody_to_ask
}

fn has_somebody_to_ask(limit: &RateLimit) -> Result<(), WireError> {
    match limit.global.is_none() && limit.rules.iter().any(|rule| !rule.descriptors.is_empty()) {
        true => Err(WireError::new("global", "missing")),
        false => Ok(()),
    }
}

wire_type! {
    GlobalLimits as wire::GlobalLimits {
        service = (service, port) by called_service,
        domain,
        timeout = timeout_ms by positive,
        fail_open,
    }
}

fn called_service(form: (String, u32)) -> Result<Option<(ServiceKey, Port)>, WireError> {
    WireType::from_wire(form).map_err(|error: WireError| match &*error.field {
        "service_port" => WireError::new("port", error.reason),
        _ => error,
    })
}

wire_type! {
    LimitRule as wire::LimitRule { name, matches, limits, descriptors, hits by at_least_one, }
}

fn at_least_one(hits: u32) -> Result<u32, WireError> {
    Ok(hits.max(1))
}

wire_type! { Descriptor as wire::LimitDescriptor { entries, } }
wire_type! { DescriptorEntry as wire::LimitEntry { key, value = says, } }

impl WireType<Option<wire::limit_entry::Says>> for DescriptorValue {
    fn to_wire(&self) -> Option<wire::limit_entry::Says> {
        use wire::RequestSubject as Subject;
        use wire::limit_entry::Says;
        let subject = |subject: Subject| Says::Subject(subject.into());
        Some(match self {
            Self::Text(text) => Says::Text(text.to_string()),
            Self::Header(name) => Says::Header(name.to_string()),
            Self::Identity => subject(Subject::Identity),
            Self::Address => subject(Subject::Address),
            Self::Method => subject(Subject::Method),
            Self::Path => subject(Subject::Path),
        })
    }

    fn from_wire(form: Option<wire::limit_entry::Says>) -> Result<Self, WireError> {
        use wire::RequestSubject as Subject;
        use wire::limit_entry::Says;
        Ok(match form {
            None => return Err(WireError::new("", "an entry has no value")),
            Some(Says::Text(text)) => Self::Text(text.into()),
            Some(Says::Header(name)) => Self::Header(name.into()),
            Some(Says::Subject(said)) => match Subject::try_from(said) {
                Ok(Subject::Identity) => Self::Identity,
                Ok(Subject::Address) => Self::Address,
                Ok(Subject::Method) => Self::Method,
                Ok(Subject::Path) => Self::Path,
                Ok(Subject::Unspecified) | Err(_) => {
                    return Err(crate::wire::unknown_value("subject", said));
                }
            },
        })
    }
}

wire_type! {
    Limit as wire::RequestLimit {
        requests by positive,
        per = per_ns with nanoseconds,
        burst by positive,
        by = (by_identity, by_address, by_headers),
        keys by positive,
    }
    verify tells_few_keys_apart
}

fn tells_few_keys_apart(limit: &Limit) -> Result<(), WireError> {
    match limit.keys {
        ..=MAX_KEYS => Ok(()),
        keys => Err(WireError::new(
            "keys",
            format!("{keys} is more than {MAX_KEYS}"),
        )),
    }
}

mod nanoseconds {
    use super::{Duration, WireError};

    pub(super) fn to_wire(value: &Duration) -> u64 {
        // At most a year, which is how long a duration may be written.
        u64::try_from(value.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn from_wire(form: u64) -> Result<Duration, WireError> {
        super::positive(form).map(Duration::from_nanos)
    }
}

impl WireType<(bool, bool, Vec<String>)> for LimitBy {
    fn to_wire(&self) -> (bool, bool, Vec<String>) {
        (self.identity, self.address, self.headers.to_wire())
    }

    fn from_wire(
        (identity, address, headers): (bool, bool, Vec<String>),
    ) -> Result<Self, WireError> {
        Ok(Self {
            identity,
            address,
            headers: WireType::from_wire(headers)?,
        })
    }
}
