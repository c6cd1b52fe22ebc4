//! Rate limits of our own workload. The control thread makes them from the control plane's resources; all workers share them,
//! so that a limit holds for the proxy and not for each worker. Counts survive edits of other parts.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use voile_model::mesh::rate_limit::{Descriptor, Limit, LimitBy};
use voile_model::{Port, ServiceKey};
use voile_policy::authorization::PathNormalization;
use voile_traffic::route::{Match, RouteInput, RouteTable};
use voile_traffic::{Bucket, KeyedBuckets, LimitKey, LimitVerdict, Rate};
use voile_xds::wire::{GlobalLimits, LimitRule, ProxyConfiguration, RateLimit};

use crate::registry::routes::matching;

/// Everything that limits one workload's requests.
#[derive(Debug)]
pub(crate) struct RateLimits {
    /// As it was told, to know it again.
    said: Vec<RateLimit>,
    /// Each has its say about every request.
    pub(crate) resources: Vec<Resource>,
    /// Normalization of paths before they are compared.
    pub(crate) normalization: PathNormalization,
    /// Proxies in front whose word in `x-forwarded-for` is believed.
    pub(crate) trusted_proxies: u32,
    /// Secret seed of the keys.
    seed: u64,
}

/// One RateLimit.
#[derive(Debug)]
pub(crate) struct Resource {
    /// `namespace/name`.
    pub(crate) name: Arc<str>,
    /// Which rule takes a request; workers ask clones of their own.
    pub(crate) table: RouteTable,
    /// Rules by the numbers that the table returns.
    pub(crate) rules: Vec<RateLimitRule>,
    /// Rate limit service that counts the descriptors.
    pub(crate) global: Option<GlobalLimits>,
    /// Hosts whose requests it counts, at a waypoint; empty is all.
    hosts: Vec<Arc<str>>,
}

/// One of its rules.
#[derive(Debug)]
pub(crate) struct RateLimitRule {
    pub(crate) name: Arc<str>,
    /// Response field with all its limits.
    pub(crate) policy: String,
    pub(crate) limits: Vec<CountedLimit>,
    /// Descriptors for the rate limit service; most rules have none.
    pub(crate) descriptors: Vec<Descriptor>,
    /// Hits that a request counts at the rate limit service.
    pub(crate) hits: u32,
    counters: Arc<RuleCounters>,
}

/// Counters of a rule's requests.
#[derive(Debug, Default)]
struct RuleCounters {
    /// Requests that it refused.
    refused: AtomicU64,
    /// Requests without an answer of the rate limit service.
    unanswered: AtomicU64,
}

impl RateLimitRule {
    /// It refused one more.
    pub(crate) fn count_refused(&self) {
        self.counters.refused.fetch_add(1, Relaxed);
    }

    /// Counts a request that the rate limit service did not answer.
    pub(crate) fn count_unanswered(&self) {
        self.counters.unanswered.fetch_add(1, Relaxed);
    }
}

/// One limit, and its counts.
#[derive(Debug)]
pub(crate) struct CountedLimit {
    /// Name of the limit in response fields.
    name: String,
    by: LimitBy,
    counted: Arc<LimitCounter>,
}

/// Counted requests, and their limit.
#[derive(Debug)]
struct LimitCounter {
    limit: Limit,
    buckets: Buckets,
}

#[derive(Debug)]
enum Buckets {
    One(Bucket),
    Keyed(KeyedBuckets),
}

/// Sender of a request, as far as limits distinguish senders.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender<'a> {
    /// None where it is not proven.
    pub(crate) identity: Option<&'a str>,
    pub(crate) address: IpAddr,
}

/// Earlier counts, by their source: resource and rule, for limits also the index in the rule.
#[derive(Default)]
struct EarlierCounters {
    limits: HashMap<(Arc<str>, Arc<str>, usize), Arc<LimitCounter>>,
    counters: HashMap<(Arc<str>, Arc<str>), Arc<RuleCounters>>,
}

impl Resource {
    /// Returns true if it counts requests to this host. Without a host, only a resource for all hosts counts
    /// them.
    pub(crate) fn counts(&self, host: Option<&str>) -> bool {
        let mut hosts = self.hosts.iter();
        self.hosts.is_empty() || host.is_some_and(|host| hosts.any(|one| **one == *host))
    }

    /// Service of the rate limit service, if there is one.
    pub(crate) fn service(&self) -> Option<&(ServiceKey, Port)> {
        self.global.as_ref()?.service.as_ref()
    }
}

impl RateLimits {
    /// Follows a configuration; keeps the same value if nothing changed. `None` without limits.
    pub(crate) fn follow(
        configuration: &ProxyConfiguration,
        before: Option<&Arc<Self>>,
    ) -> Result<Option<Arc<Self>>, String> {
        let said = &configuration.rate_limits;
        if said.is_empty() {
            return Ok(None);
        }
        let normalization = configuration.path_normalization.into();
        let trusted_proxies = configuration.trusted_proxies;
        let same = before.filter(|before| {
            before.said == *said
                && before.normalization == normalization
                && before.trusted_proxies == trusted_proxies
        });
        if let Some(same) = same {
            return Ok(Some(Arc::clone(same)));
        }
        let mut known = before.map(|before| before.known()).unwrap_or_default();
        let resources = said.iter().map(|one| resource(one, &mut known));
        Ok(Some(Arc::new(Self {
            resources: resources.collect::<Result<_, _>>()?,
            said: said.clone(),
            normalization,
            trusted_proxies,
            seed: match before {
                Some(before) => before.seed,
                None => RandomState::new().hash_one(0),
            },
        })))
    }

    /// Every rule, with its resource.
    fn rules(&self) -> impl Iterator<Item = (&Resource, &RateLimitRule)> {
        let resources = self.resources.iter();
        resources.flat_map(|one| one.rules.iter().map(move |rule| (one, rule)))
    }

    fn known(&self) -> EarlierCounters {
        let mut known = EarlierCounters::default();
        for (resource, rule) in self.rules() {
            let own = (Arc::clone(&resource.name), Arc::clone(&rule.name));
            for (number, held) in rule.limits.iter().enumerate() {
                let spot = (Arc::clone(&own.0), Arc::clone(&own.1), number);
                known.limits.insert(spot, Arc::clone(&held.counted));
            }
            known.counters.insert(own, Arc::clone(&rule.counters));
        }
        known
    }

    /// Numbers of refused requests, and of requests without an answer of the rate limit service, by resource and
    /// rule.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, [u64; 2])> {
        self.rules().map(|(one, rule)| {
            let RuleCounters {
                refused,
                unanswered,
            } = &*rule.counters;
            let figures = [refused.load(Relaxed), unanswered.load(Relaxed)];
            (&one.name, &rule.name, figures)
        })
    }

    /// The services that count for all, each once.
    pub(crate) fn services(&self) -> impl Iterator<Item = &(ServiceKey, Port)> {
        let all = self.resources.iter().enumerate();
        all.filter_map(|(number, one)| {
            let service = one.service()?;
            let mut earlier = self.resources[..number].iter();
            let known = earlier.any(|other| other.service() == Some(service));
            (!known).then_some(service)
        })
    }

    /// Takes a token of each limit of a rule, in order, up to the first that has none; tokens taken before stay taken.
    /// Calls `told` with the fields for clients, if there are any.
    pub(crate) fn take(
        &self,
        rule: &RateLimitRule,
        request: &impl RouteInput,
        sender: Sender<'_>,
        now: Duration,
        mut told: impl FnMut(&str, LimitVerdict),
    ) -> bool {
        for held in &rule.limits {
            let verdict = match &held.counted.buckets {
                Buckets::One(bucket) => bucket.take(now),
                Buckets::Keyed(buckets) => buckets.take(self.key(&held.by, request, sender), now),
            };
            told(&held.name, verdict);
            if !verdict.allowed {
                rule.count_refused();
                return false;
            }
        }
        true
    }

    /// Key of a request's bucket.
    fn key(&self, by: &LimitBy, request: &impl RouteInput, sender: Sender<'_>) -> LimitKey {
        let mut key = LimitKey::new(self.seed);
        if by.identity {
            key = key.and(sender.identity.map(str::as_bytes));
        }
        if by.address {
            key = match sender.address.to_canonical() {
                IpAddr::V4(address) => key.and(Some(&address.octets())),
                IpAddr::V6(address) => key.and(Some(&address.octets())),
            };
        }
        by.headers
            .iter()
            .fold(key, |key, name| key.and(request.header(name).as_deref()))
    }
}

fn resource(said: &RateLimit, known: &mut EarlierCounters) -> Result<Resource, String> {
    let mut alternatives = Vec::with_capacity(said.rules.len());
    let mut rules = Vec::with_capacity(said.rules.len());
    for one in &said.rules {
        let within = |error| format!("RateLimit {}: rule `{}`: {error}", said.name, one.name);
        let matches = one.matches.iter().map(matching);
        let mut matches = matches.collect::<Result<Vec<_>, _>>().map_err(within)?;
        if matches.is_empty() {
            matches.push(Match::default());
        }
        alternatives.push(matches);
        rules.push(rule(&said.name, one, known).map_err(within)?);
    }
    Ok(Resource {
        name: said.name.clone(),
        table: RouteTable::new(alternatives),
        rules,
        global: said.global.clone(),
        hosts: said.hosts.clone(),
    })
}

fn rule(
    resource: &Arc<str>,
    said: &LimitRule,
    known: &mut EarlierCounters,
) -> Result<RateLimitRule, String> {
    let own = (Arc::clone(resource), Arc::clone(&said.name));
    let mut limits = Vec::with_capacity(said.limits.len());
    let mut policies = Vec::with_capacity(said.limits.len());
    for (number, limit) in said.limits.iter().enumerate() {
        let rate = Rate::new(limit.requests, limit.per, limit.burst);
        let rate = rate.map_err(|error| error.to_string())?;
        let name = match number {
            0 => said.name.to_string(),
            number => format!("{}-{}", said.name, number + 1),
        };
        policies.push(rate.policy(&name));
        let spot = (Arc::clone(resource), Arc::clone(&said.name), number);
        let before = known
            .limits
            .remove(&spot)
            .filter(|known| known.limit == *limit);
        let fresh = || {
            Arc::new(LimitCounter {
                limit: limit.clone(),
                buckets: match limit.by.is_nothing() {
                    true => Buckets::One(Bucket::new(rate)),
                    false => Buckets::Keyed(KeyedBuckets::new(rate, limit.keys as usize)),
                },
            })
        };
        limits.push(CountedLimit {
            name,
            by: limit.by.clone(),
            counted: before.unwrap_or_else(fresh),
        });
    }
    Ok(RateLimitRule {
        name: said.name.clone(),
        policy: policies.join(", "),
        limits,
        descriptors: said.descriptors.clone(),
        hits: said.hits,
        counters: known.counters.remove(&own).unwrap_or_default(),
    })
}
