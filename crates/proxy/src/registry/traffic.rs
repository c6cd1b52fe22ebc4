//! What DestinationRules say of calls, as plans have it; and what workers share about a destination, which lives as long as a
//! plan speaks of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

use voile_model::Port;
use voile_model::mesh::traffic::{self as said, HashKey, PortTraffic};
use voile_traffic::balance::{Algorithm, Cookie, KeySource, SlowStart, Spread};
use voile_traffic::{Limits, OutlierPolicy, RetryBudget};
use voile_transport::KeepAlive;
use voile_xds::wire::OutboundService;

use super::{Registry, origination, service_name};
use crate::health::{Gate, Watch};
use crate::http::UpstreamTerms;
use crate::plan::{BalancePlan, EndpointPlan, Measure, Same, ServicePlan, TrafficPlan};

/// A port of a service, or of one of its subsets.
type Destination = (Arc<str>, Port, Option<Arc<str>>);

/// What workers share, by destination.
#[derive(Debug, Default)]
pub(crate) struct SharedHealth {
    watches: RefCell<BTreeMap<Destination, Weak<Watch>>>,
    gates: RefCell<BTreeMap<Destination, Weak<Gate>>>,
}

/// Entries from which on those that nobody holds are looked for.
const MANY: usize = 64;

impl SharedHealth {
    fn watch(
        &self,
        of: &Destination,
        policy: OutlierPolicy,
        endpoints: &[EndpointPlan],
    ) -> Same<Watch> {
        let mut all = self.watches.borrow_mut();
        let before = all.get(of).and_then(Weak::upgrade);
        let addresses: Vec<_> = endpoints.iter().map(|one| one.address).collect();
        if let Some(same) = &before
            && same.policy == policy
            && same.endpoints == addresses
        {
            return Same(Arc::clone(same));
        }
        let fresh = Arc::new(Watch::follow(policy, addresses, before.as_deref()));
        insert(&mut all, of, &fresh);
        Same(fresh)
    }

    fn gate(&self, of: &Destination, limits: Limits) -> Same<Gate> {
        let mut all = self.gates.borrow_mut();
        let before = all.get(of).and_then(Weak::upgrade);
        if let Some(same) = before.filter(|before| before.limits == limits) {
            return Same(same);
        }
        let fresh = Arc::new(Gate::new(limits));
        insert(&mut all, of, &fresh);
        Same(fresh)
    }

    /// How many endpoints are out at this moment, by destination as access logs name it.
    pub(crate) fn out(&self, now: Duration) -> Vec<(String, usize)> {
        let all = self.watches.borrow();
        let held = all
            .iter()
            .filter_map(|(of, watch)| Some((of, watch.upgrade()?)));
        let one = |((service, port, subset), watch): (&Destination, Arc<Watch>)| {
            let host = service.split_once('/').map_or(&**service, |(_, host)| host);
            let subset = subset.as_deref().unwrap_or_default();
            (format!("outbound|{port}|{subset}|{host}"), watch.out(now))
        };
        held.map(one).collect()
    }
}

fn insert<T>(all: &mut BTreeMap<Destination, Weak<T>>, of: &Destination, fresh: &Arc<T>) {
    if all.len() >= MANY {
        all.retain(|_, held| held.strong_count() > 0);
    }
    all.insert(of.clone(), Arc::downgrade(fresh));
}

impl Registry {
    /// A destination with what a DestinationRule says of calls to it.
    pub(super) fn treated(
        &self,
        plan: ServicePlan,
        wanted: &OutboundService,
        said: &PortTraffic,
    ) -> ServicePlan {
        let of = || (service_name(wanted), wanted.port, plan.subset.clone());
        let mut traffic = self.traffic(of, said, &plan.endpoints);
        traffic.origination = self.origination(said.tls.as_ref(), &wanted.key);
        let budget = said.retry_budget.map(|budget| RetryBudget {
            percent: budget.percent_thousandths / 1_000,
            min: budget.min,
        });
        let mut treated = ServicePlan {
            traffic,
            retry_budget: budget.unwrap_or(plan.retry_budget),
            ..plan
        };
        origination::originate(&mut treated);
        treated
    }

    fn traffic(
        &self,
        of: impl Fn() -> Destination,
        said: &PortTraffic,
        endpoints: &[EndpointPlan],
    ) -> TrafficPlan {
        let pool = &said.pool;
        let limits = Limits {
            connections: pool.max_connections,
            // Who waits is counted only where there is something to wait for.
            pending: pool
                .max_connections
                .map(|_| pool.max_pending.unwrap_or(u32::MAX)),
            requests: pool.max_requests,
            // As with Envoy a budget stands in for it.
            retries: pool.max_retries.filter(|_| said.retry_budget.is_none()),
        };
        let outliers = said.outliers.as_ref().map(outlier_policy);
        TrafficPlan {
            balance: balance(said),
            key: said.balancer.key.as_ref().map(key_source),
            outliers: outliers.map(|policy| self.health.watch(&of(), policy, endpoints)),
            breaker: (limits != Limits::default()).then(|| self.health.gate(&of(), limits)),
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
                idle: pool.http_idle.and_then(|idle| {
                    let milliseconds = u32::try_from(idle.as_millis());
                    NonZeroU32::new(milliseconds.unwrap_or(u32::MAX))
                }),
            },
        }
    }
}

fn balance(said: &PortTraffic) -> BalancePlan {
    let (algorithm, measure) = match said.balancer.algorithm {
        said::Algorithm::LeastCost => (Algorithm::LeastCost, Measure::Latency),
        said::Algorithm::LeastRequest => (Algorithm::LeastCost, Measure::Load),
        said::Algorithm::RoundRobin => (Algorithm::RoundRobin, Measure::Load),
        said::Algorithm::Random => (Algorithm::Random, Measure::Load),
        said::Algorithm::RingHash(least) => (Algorithm::RingHash(least), Measure::Load),
        said::Algorithm::Maglev(size) => (Algorithm::Maglev(size), Measure::Load),
    };
    let slow_start = said.balancer.warmup.map(|warmup| SlowStart {
        window: warmup.duration,
        least_percent: warmup.minimum_percent,
        aggression: f64::from(warmup.aggression_thousandths) / 1_000.0,
    });
    BalancePlan {
        algorithm,
        measure,
        slow_start,
        spread: Spread {
            // Where fewer than that are well, all are asked.
            panic_percent: said
                .outliers
                .map_or(0, |outliers| outliers.min_health_percent),
            ..Spread::default()
        },
    }
}

fn key_source(said: &HashKey) -> KeySource {
    match said {
        HashKey::Header(name) => KeySource::Header(name.to_string()),
        HashKey::Query(name) => KeySource::Query(name.to_string()),
        HashKey::SourceIp => KeySource::SourceIp,
        HashKey::Cookie(cookie) => KeySource::Cookie(Cookie {
            name: cookie.name.to_string(),
            path: cookie.path.as_ref().map(ToString::to_string),
            ttl: cookie.ttl,
            attributes: cookie.attributes.iter().map(ToString::to_string).collect(),
        }),
    }
}

fn outlier_policy(said: &said::OutlierDetection) -> OutlierPolicy {
    OutlierPolicy {
        consecutive_5xx: said.consecutive_5xx,
        consecutive_gateway: said.consecutive_gateway,
        consecutive_local: said.consecutive_local,
        interval: said.interval,
        base_ejection: said.base_ejection,
        max_ejection_percent: said.max_ejection_percent,
        min_health_percent: said.min_health_percent,
        ..OutlierPolicy::default()
    }
}
