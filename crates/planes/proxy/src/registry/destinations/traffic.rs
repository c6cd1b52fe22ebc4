//! Traffic settings of DestinationRules, as plans have them, and the state of a destination that workers share. The shared
//! state lives as long as a plan uses it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use voile_model::Port;
use voile_model::mesh::traffic::{self as said, PortTraffic};
use voile_traffic::balance::Spread;
use voile_traffic::{BreakerLimits, EndpointHealth, OutlierDetection};
use voile_transport::KeepAlive;
use voile_transport::proxy_protocol::Version;
use voile_xds::wire::{HealthCheck, OutboundService};

use crate::health::{CheckRecord, Checks, Gate, HealthTally, Watch};
use crate::http::UpstreamTerms;
use crate::plan::{BalancePlan, EndpointPlan, ServicePlan, SharedPart, TrafficPlan};
use crate::registry::{Registry, origination, service_name};

/// A port of a service, or of one of its subsets.
type Destination = (Arc<str>, Port, Option<Arc<str>>);

/// State that workers share, by destination.
#[derive(Debug, Default)]
pub(crate) struct SharedHealth {
    watches: RefCell<BTreeMap<Destination, Weak<Watch>>>,
    gates: RefCell<BTreeMap<Destination, Weak<Gate>>>,
    asked: RefCell<BTreeMap<(Arc<str>, Port), CheckedEndpoints>>,
}

/// The endpoints of a port of a service, whole or in parts, as far as they are asked whether they are well.
#[derive(Debug)]
struct CheckedEndpoints {
    said: Arc<HealthCheck>,
    tally: Arc<HealthTally>,
    records: BTreeMap<Whereabouts, Weak<CheckRecord>>,
    /// Records from before the last change of the check's terms, unless the question itself changed.
    before: BTreeMap<Whereabouts, Weak<CheckRecord>>,
}

/// Target of a health check: the endpoint's name, if only that is known, and its address.
type Whereabouts = (Option<Arc<str>>, SocketAddr);

/// Health of the endpoints of a service port, and results of health checks.
#[derive(Debug)]
pub(crate) struct Findings {
    /// As access logs name it.
    pub(crate) cluster: String,
    /// The HealthCheck.
    pub(crate) by: Arc<str>,
    /// Address, health, and last failure of each endpoint.
    pub(crate) endpoints: Vec<(SocketAddr, EndpointHealth, Option<Box<str>>)>,
    pub(crate) good: u64,
    pub(crate) bad: u64,
}

impl CheckedEndpoints {
    /// Returns true if a plan still uses it.
    fn is_used(&self) -> bool {
        self.records.values().any(|held| held.strong_count() > 0)
    }
}

/// Number of entries from which on unused ones are removed.
const MANY: usize = 64;

impl SharedHealth {
    fn watch(
        &self,
        of: &Destination,
        policy: Option<OutlierDetection>,
        check: Option<&Arc<HealthCheck>>,
        endpoints: &[EndpointPlan],
    ) -> SharedPart<Watch> {
        let mut all = self.watches.borrow_mut();
        let before = all.get(of).and_then(Weak::upgrade);
        let addresses: Vec<_> = endpoints.iter().map(|one| one.address).collect();
        if let Some(same) = &before
            && same.policy == policy
            && same.endpoints == addresses
            && same.checks.as_ref().map(|checks| &checks.said) == check
        {
            return SharedPart(Arc::clone(same));
        }
        let checks = check.map(|check| self.checks((&of.0, of.1), check, endpoints));
        let before = before.as_deref();
        let fresh = Arc::new(Watch::follow(policy, addresses, checks, before));
        insert(&mut all, of, &fresh);
        SharedPart(fresh)
    }

    /// Health records of checked endpoints. Endpoints keep their records over edits, and subsets share the records of the whole
    /// service.
    fn checks(
        &self,
        (service, port): (&Arc<str>, Port),
        check: &Arc<HealthCheck>,
        endpoints: &[EndpointPlan],
    ) -> Checks {
        let mut all = self.asked.borrow_mut();
        if all.len() >= MANY {
            all.retain(|_, asked| asked.is_used());
        }
        let asked = all
            .entry((Arc::clone(service), port))
            .or_insert_with(|| CheckedEndpoints {
                said: Arc::clone(check),
                tally: Arc::default(),
                records: BTreeMap::new(),
                before: BTreeMap::new(),
            });
        if asked.said != *check {
            asked.before = std::mem::take(&mut asked.records);
            if asked.said.terms.question != check.terms.question {
                asked.before.clear();
            }
            asked.said = Arc::clone(check);
        }
        let mut record = |endpoint: &EndpointPlan| {
            let name = endpoint.name.as_ref().map(|name| Arc::clone(&name.host));
            let place = (name, endpoint.address);
            if let Some(known) = asked.records.get(&place).and_then(Weak::upgrade) {
                return known;
            }
            let stood = asked.before.get(&place).and_then(Weak::upgrade);
            let fresh = stood.map_or_else(CheckRecord::default, |old| CheckRecord::follow(&old));
            let fresh = Arc::new(fresh);
            asked.records.insert(place, Arc::downgrade(&fresh));
            fresh
        };
        let records: Vec<_> = endpoints.iter().map(&mut record).collect();
        for known in [&mut asked.records, &mut asked.before] {
            known.retain(|_, held| held.strong_count() > 0);
        }
        Checks::new(check, records, Arc::clone(&asked.tally))
    }

    /// Health check results, by destinations with traffic.
    pub(crate) fn asked(&self) -> Vec<Findings> {
        let all = self.asked.borrow();
        let used = all.iter().filter(|(_, asked)| asked.is_used());
        let one = |((service, port), asked): (&(Arc<str>, Port), &CheckedEndpoints)| {
            let host = service.split_once('/').map_or(&**service, |(_, host)| host);
            let endpoints = asked.records.iter().filter_map(|((_, address), held)| {
                let record = held.upgrade()?;
                Some((*address, record.standing(), record.why()))
            });
            Findings {
                cluster: format!("outbound|{port}||{host}"),
                by: Arc::clone(&asked.said.name),
                endpoints: endpoints.collect(),
                good: asked.tally.good.load(Relaxed),
                bad: asked.tally.bad.load(Relaxed),
            }
        };
        used.map(one).collect()
    }

    fn gate(&self, of: &Destination, limits: BreakerLimits) -> SharedPart<Gate> {
        let mut all = self.gates.borrow_mut();
        let before = all.get(of).and_then(Weak::upgrade);
        if let Some(same) = before.filter(|before| before.limits == limits) {
            return SharedPart(same);
        }
        let fresh = Arc::new(Gate::new(limits));
        insert(&mut all, of, &fresh);
        SharedPart(fresh)
    }

    /// Number of ejected endpoints at this moment, by destination as access logs name it.
    pub(crate) fn out(&self, now: Duration) -> Vec<(String, usize)> {
        let all = self.watches.borrow();
        let held = all
            .iter()
            .filter_map(|(of, watch)| Some((of, watch.upgrade()?)));
        let one = |((service, port, subset), watch): (&Destination, Arc<Watch>)| {
            let host = service.split_once('/').map_or(&**service, |(_, host)| host);
            let subset = subset.as_deref().unwrap_or_default();
            let out = watch.out(now)?;
            Some((format!("outbound|{port}|{subset}|{host}"), out))
        };
        held.filter_map(one).collect()
    }
}

fn insert<T>(all: &mut BTreeMap<Destination, Weak<T>>, of: &Destination, fresh: &Arc<T>) {
    if all.len() >= MANY {
        all.retain(|_, held| held.strong_count() > 0);
    }
    all.insert(of.clone(), Arc::downgrade(fresh));
}

/// Time that an idle connection for one client is kept: only that client may use it.
const IDLE_ALONE: Duration = Duration::from_secs(5);

impl Registry {
    /// Destination with the traffic settings of its DestinationRule.
    pub(in crate::registry) fn treated(
        &self,
        plan: ServicePlan,
        wanted: &OutboundService,
        said: &PortTraffic,
    ) -> ServicePlan {
        let of = || (service_name(wanted), wanted.port, plan.subset.clone());
        let check = self.health_check(wanted);
        let mut traffic = self.traffic(of, (said, check), &plan.endpoints);
        traffic
            .balance
            .zones
            .clone_from(&plan.traffic.balance.zones);
        traffic.origination = self.origination(said.tls.as_ref(), &wanted.key);
        let mut treated = ServicePlan {
            traffic,
            retry_budget: said.retry_budget.unwrap_or(plan.retry_budget),
            ..plan
        };
        origination::originate(&mut treated);
        treated
    }

    /// Health check of a service port's endpoints, if there is one.
    pub(in crate::registry) fn health_check(
        &self,
        wanted: &OutboundService,
    ) -> Option<&Arc<HealthCheck>> {
        let configuration = &self.configuration.as_ref()?.value;
        let mut all = configuration.health_checks.iter();
        all.find(|one| one.is_for(&wanted.key, wanted.port))
    }

    fn traffic(
        &self,
        of: impl Fn() -> Destination,
        (said, check): (&PortTraffic, Option<&Arc<HealthCheck>>),
        endpoints: &[EndpointPlan],
    ) -> TrafficPlan {
        let pool = &said.pool;
        let limits = BreakerLimits {
            connections: pool.max_connections,
            // Pending requests have a limit only if connections do.
            pending: pool
                .max_connections
                .map(|_| pool.max_pending.unwrap_or(u32::MAX)),
            requests: pool.max_requests,
            // As with Envoy a budget stands in for it.
            retries: pool.max_retries.filter(|_| said.retry_budget.is_none()),
        };
        // A connection that was opened for one client serves no other.
        let alone = said.proxy_protocol.map(|_| IDLE_ALONE);
        let idle = pool.http_idle.into_iter().chain(alone).min();
        let outliers = said.outliers.map(|outliers| OutlierDetection {
            // A rate that never ejects needs no counters.
            success_rate: outliers
                .success_rate
                .filter(|rate| rate.enforcing_percent > 0),
            ..outliers
        });
        let watched = outliers.is_some() || check.is_some();
        TrafficPlan {
            balance: balance(said, check),
            key: said.balancer.key.clone(),
            watch: watched.then(|| self.health.watch(&of(), outliers, check, endpoints)),
            breaker: (limits != BreakerLimits::default()).then(|| self.health.gate(&of(), limits)),
            origination: None,
            connect_timeout: pool.connect_timeout,
            tcp_idle: pool.tcp_idle,
            keep_alive: pool.keep_alive.map(|said| KeepAlive {
                probes: said.probes,
                time: said.time,
                interval: said.interval,
            }),
            upstream: UpstreamTerms {
                requests: pool.requests_per_connection.and_then(NonZeroU32::new),
                streams: pool.max_streams.and_then(NonZeroU32::new),
                idle: idle.and_then(milliseconds),
                age: pool.max_duration.and_then(milliseconds),
            },
            introduces: said.proxy_protocol.map(|version| match version {
                said::ProxyProtocol::V1 => Version::V1,
                said::ProxyProtocol::V2 => Version::V2,
            }),
        }
    }
}

fn milliseconds(time: Duration) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
}

fn balance(said: &PortTraffic, check: Option<&Arc<HealthCheck>>) -> BalancePlan {
    BalancePlan {
        algorithm: said.balancer.algorithm,
        warmup: said.balancer.warmup,
        spread: Spread {
            // If fewer endpoints than that are healthy, all receive traffic.
            panic_percent: said
                .outliers
                .map_or(0, |outliers| outliers.min_health_percent)
                .max(check.map_or(0, |check| check.terms.panic_percent)),
            ..Spread::default()
        },
        zones: None,
    }
}
