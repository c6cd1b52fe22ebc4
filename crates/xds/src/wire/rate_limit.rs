//! RateLimits ⇄ `voile.proxy.v1.RateLimit`. What this end does not know is refused whole: a condition less would count others'
//! requests.

use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::rate_limit::{Limit, LimitBy, MAX_KEYS};
use voile_proto::proxy as wire;

use super::routes::{encode_match, request_match};
use super::{RequestMatch, WireError};

/// A RateLimit as a proxy obeys it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimit {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// The first that takes a request counts.
    pub rules: Vec<LimitRule>,
}

/// One of its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRule {
    /// What clients read it is called.
    pub name: Arc<str>,
    /// One of these; none matches everything.
    pub matches: Vec<RequestMatch>,
    /// All of them hold; none lets everything pass.
    pub limits: Vec<Limit>,
}

impl RateLimit {
    /// Checks a message.
    pub fn check(message: &wire::RateLimit) -> Result<Self, WireError> {
        let one = |(index, message)| {
            rule(message).map_err(|error| error.within(&format!("rules[{index}]")))
        };
        let rules = message.rules.iter().enumerate().map(one);
        Ok(Self {
            name: message.name.as_str().into(),
            rules: rules.collect::<Result<_, _>>()?,
        })
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> wire::RateLimit {
        let rule = |rule: &LimitRule| wire::LimitRule {
            name: rule.name.to_string(),
            matches: rule.matches.iter().map(encode_match).collect(),
            limits: rule.limits.iter().map(encode_limit).collect(),
        };
        wire::RateLimit {
            name: self.name.to_string(),
            rules: self.rules.iter().map(rule).collect(),
        }
    }
}

fn rule(message: &wire::LimitRule) -> Result<LimitRule, WireError> {
    let mut matches = Vec::with_capacity(message.matches.len());
    for (index, one) in message.matches.iter().enumerate() {
        matches.push(request_match(one).map_err(|e| e.within(&format!("matches[{index}]")))?);
    }
    let mut limits = Vec::with_capacity(message.limits.len());
    for (index, one) in message.limits.iter().enumerate() {
        limits.push(limit(one).map_err(|e| e.within(&format!("limits[{index}]")))?);
    }
    Ok(LimitRule {
        name: message.name.as_str().into(),
        matches,
        limits,
    })
}

fn limit(message: &wire::RequestLimit) -> Result<Limit, WireError> {
    let numbers = [
        ("requests", u64::from(message.requests)),
        ("per_ns", message.per_ns),
        ("burst", message.burst.into()),
        ("keys", message.keys.into()),
    ];
    if let Some((field, _)) = numbers.iter().find(|(_, number)| *number == 0) {
        return Err(WireError::new(*field, "it is 0"));
    }
    if message.keys > MAX_KEYS {
        let reason = format!("{} is more than {MAX_KEYS}", message.keys);
        return Err(WireError::new("keys", reason));
    }
    let headers = message.by_headers.iter();
    Ok(Limit {
        requests: message.requests,
        per: Duration::from_nanos(message.per_ns),
        burst: message.burst,
        by: LimitBy {
            identity: message.by_identity,
            address: message.by_address,
            headers: headers.map(|name| name.as_str().into()).collect(),
        },
        keys: message.keys,
    })
}

fn encode_limit(limit: &Limit) -> wire::RequestLimit {
    let headers = limit.by.headers.iter();
    wire::RequestLimit {
        requests: limit.requests,
        // At most a year, which is how long a duration may be written.
        per_ns: u64::try_from(limit.per.as_nanos()).unwrap_or(u64::MAX),
        burst: limit.burst,
        by_identity: limit.by.identity,
        by_address: limit.by.address,
        by_headers: headers.map(ToString::to_string).collect(),
        keys: limit.keys,
    }
}
