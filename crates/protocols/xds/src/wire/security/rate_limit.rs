//! RateLimits ⇄ `voile.proxy.v1.RateLimit`. A message with a part that this end does not know is refused whole: without one
//! condition, the limit would count other requests.

use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::rate_limit::{
    Descriptor, DescriptorEntry, DescriptorValue, Limit, LimitBy, MAX_KEYS,
};
use voile_model::{Port, ServiceKey};
use voile_proto::proxy as wire;

use crate::wire::routes::{encode_match, request_match};
use crate::wire::{RequestMatch, WireError, port, service_key};

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

impl RateLimit {
    /// Checks a message.
    pub fn check(message: &wire::RateLimit) -> Result<Self, WireError> {
        let one = |(index, message)| {
            rule(message).map_err(|error| error.within(&format!("rules[{index}]")))
        };
        let rules = message.rules.iter().enumerate().map(one);
        let rules = rules.collect::<Result<Vec<LimitRule>, _>>()?;
        let global = message.global.as_ref().map(global).transpose();
        let global = global.map_err(|error| error.within("global"))?;
        if global.is_none() && rules.iter().any(|rule| !rule.descriptors.is_empty()) {
            return Err(WireError::new("global", "missing"));
        }
        Ok(Self {
            name: message.name.as_str().into(),
            rules,
            global,
            hosts: message
                .hosts
                .iter()
                .map(|host| host.as_str().into())
                .collect(),
        })
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> wire::RateLimit {
        let rule = |rule: &LimitRule| wire::LimitRule {
            name: rule.name.to_string(),
            matches: rule.matches.iter().map(encode_match).collect(),
            limits: rule.limits.iter().map(encode_limit).collect(),
            descriptors: rule.descriptors.iter().map(encode_descriptor).collect(),
            hits: rule.hits,
        };
        wire::RateLimit {
            name: self.name.to_string(),
            rules: self.rules.iter().map(rule).collect(),
            global: self.global.as_ref().map(encode_global),
            hosts: self.hosts.iter().map(ToString::to_string).collect(),
        }
    }
}

fn global(message: &wire::GlobalLimits) -> Result<GlobalLimits, WireError> {
    if message.timeout_ms == 0 {
        return Err(WireError::new("timeout_ms", "it is 0"));
    }
    Ok(GlobalLimits {
        service: match message.service.as_str() {
            "" => None,
            service => Some((
                service_key("service", service)?,
                port("port", message.port)?,
            )),
        },
        domain: message.domain.as_str().into(),
        timeout: Duration::from_millis(message.timeout_ms.into()),
        fail_open: message.fail_open,
    })
}

fn encode_global(global: &GlobalLimits) -> wire::GlobalLimits {
    let service = global.service.as_ref();
    wire::GlobalLimits {
        service: service.map_or_else(String::new, |(key, _)| key.to_string()),
        port: service.map_or(0, |(_, port)| port.get().into()),
        domain: global.domain.to_string(),
        // At least one: what is shorter is a millisecond.
        timeout_ms: u32::try_from(global.timeout.as_millis().max(1)).unwrap_or(u32::MAX),
        fail_open: global.fail_open,
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
    let mut descriptors = Vec::with_capacity(message.descriptors.len());
    for (index, one) in message.descriptors.iter().enumerate() {
        let within = |error: WireError| error.within(&format!("descriptors[{index}]"));
        let entries = one.entries.iter().map(entry);
        let entries = entries.collect::<Result<_, _>>().map_err(within)?;
        descriptors.push(Descriptor { entries });
    }
    Ok(LimitRule {
        name: message.name.as_str().into(),
        matches,
        limits,
        descriptors,
        hits: message.hits.max(1),
    })
}

fn entry(message: &wire::LimitEntry) -> Result<DescriptorEntry, WireError> {
    use wire::RequestSubject as Subject;
    use wire::limit_entry::Says;
    let value = match &message.says {
        Some(Says::Text(text)) => DescriptorValue::Text(text.as_str().into()),
        Some(Says::Header(name)) => DescriptorValue::Header(name.as_str().into()),
        Some(Says::Subject(said)) => match Subject::try_from(*said) {
            Ok(Subject::Identity) => DescriptorValue::Identity,
            Ok(Subject::Address) => DescriptorValue::Address,
            Ok(Subject::Method) => DescriptorValue::Method,
            Ok(Subject::Path) => DescriptorValue::Path,
            Ok(Subject::Unspecified) | Err(_) => {
                return Err(crate::wire::unknown_value("entries.subject", *said));
            }
        },
        None => return Err(WireError::new("entries", "an entry has no value")),
    };
    Ok(DescriptorEntry {
        key: message.key.as_str().into(),
        value,
    })
}

fn encode_descriptor(descriptor: &Descriptor) -> wire::LimitDescriptor {
    use wire::RequestSubject as Subject;
    use wire::limit_entry::Says;
    let subject = |subject: Subject| Says::Subject(subject.into());
    let entry = |entry: &DescriptorEntry| wire::LimitEntry {
        key: entry.key.to_string(),
        says: Some(match &entry.value {
            DescriptorValue::Text(text) => Says::Text(text.to_string()),
            DescriptorValue::Header(name) => Says::Header(name.to_string()),
            DescriptorValue::Identity => subject(Subject::Identity),
            DescriptorValue::Address => subject(Subject::Address),
            DescriptorValue::Method => subject(Subject::Method),
            DescriptorValue::Path => subject(Subject::Path),
        }),
    };
    wire::LimitDescriptor {
        entries: descriptor.entries.iter().map(entry).collect(),
    }
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
