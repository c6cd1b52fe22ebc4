//! `trafficPolicy` of a DestinationRule for one destination in Envoy's terms: for a cluster, for the routes to it, and for the
//! filter that carries bytes there. A setting that Envoy cannot follow has a limit's name.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use voile_model::mesh::traffic::{
    Algorithm, ConnectionPool, HashKey, LoadBalancer, OutlierDetection, PortTraffic, RetryBudget,
    TcpKeepAlive, Warmup,
};

use super::names::ClusterTraffic;
use crate::json::duration;
use crate::limit::{Limit, LimitName};

/// Value for no limit, in place of Envoy's own default.
const UNLIMITED: u32 = u32::MAX;
/// Percent of healthy endpoints below which all are called, healthy or not. An endpoint that may never be ejected is then called
/// all the same.
const SOMEBODY: u32 = 1;
/// Seconds of a duration that the kernel takes at least.
const SECOND: Duration = Duration::from_secs(1);

/// Puts into a cluster what is said of calls to it. `balanced`: whether Envoy chooses among its endpoints at all.
pub(super) fn treat(
    cluster: &mut Value,
    said: &PortTraffic,
    balanced: bool,
    (about, limits): (&str, &mut BTreeSet<Limit>),
) {
    if balanced {
        let mut limit = |why: &str| {
            limits.insert(Limit::new(LimitName::Warmup, about, why));
        };
        balance(cluster, &said.balancer, &mut limit);
    }
    if let Some(outliers) = &said.outliers {
        cluster["outlier_detection"] = detection(outliers);
    }
    let healthy = said.outliers.as_ref().map_or(0, panic_percent);
    // Half of the endpoints may be gone without the rest of the mesh's being tried against policy.
    cluster["common_lb_config"] = json!({ "healthy_panic_threshold": { "value": healthy } });
    let pool = &said.pool;
    if let Some(timeout) = pool.connect_timeout {
        cluster["connect_timeout"] = duration(timeout);
    }
    cluster["circuit_breakers"] = breakers(pool, said.retry_budget);
    if let Some(kept) = &pool.keep_alive {
        cluster["upstream_connection_options"] = json!({ "tcp_keepalive": keep_alive(kept) });
    }
}

fn balance(cluster: &mut Value, said: &LoadBalancer, limit: &mut dyn FnMut(&str)) {
    let (policy, config) = match said.algorithm {
        Algorithm::LeastCost | Algorithm::LeastRequest => {
            ("LEAST_REQUEST", Some("least_request_lb_config"))
        }
        Algorithm::RoundRobin => ("ROUND_ROBIN", Some("round_robin_lb_config")),
        Algorithm::Random => ("RANDOM", None),
        Algorithm::RingHash(least) => {
            cluster["ring_hash_lb_config"] = json!({ "minimum_ring_size": least.to_string() });
            ("RING_HASH", None)
        }
        Algorithm::Maglev(size) => {
            cluster["maglev_lb_config"] = json!({ "table_size": size.to_string() });
            ("MAGLEV", None)
        }
    };
    cluster["lb_policy"] = json!(policy);
    match (&said.warmup, config) {
        (None, _) => {}
        (Some(warmup), Some(config)) => {
            cluster[config] = json!({ "slow_start_config": slow_start(warmup) });
        }
        (Some(_), None) => limit(
            "`warmup` with RANDOM: a new endpoint gets its full share at once (Envoy supports slow start with ROUND_ROBIN and LEAST_REQUEST)",
        ),
    }
}

fn slow_start(warmup: &Warmup) -> Value {
    let mut made = json!({
        "slow_start_window": duration(warmup.duration),
        "min_weight_percent": { "value": warmup.minimum_percent },
    });
    if warmup.aggression_thousandths != 1_000 {
        made["aggression"] = json!({
            "default_value": f64::from(warmup.aggression_thousandths) / 1_000.0,
            "runtime_key": "voile.aggression",
        });
    }
    made
}

fn detection(said: &OutlierDetection) -> Value {
    // A row that may never be complete is counted by nobody.
    let enforcing = |number: u32| if number > 0 { 100 } else { 0 };
    // Envoy's own default would be to compare them.
    let rates = said.success_rate.map_or(0, |rate| rate.enforcing_percent);
    let mut made = json!({
        "consecutive_5xx": said.consecutive_5xx.max(1),
        "enforcing_consecutive_5xx": enforcing(said.consecutive_5xx),
        "consecutive_gateway_failure": said.consecutive_gateway.max(1),
        "enforcing_consecutive_gateway_failure": enforcing(said.consecutive_gateway),
        "enforcing_success_rate": rates,
        "interval": duration(said.interval),
        "base_ejection_time": duration(said.base_ejection),
        "max_ejection_percent": said.max_ejection_percent,
        // Of two or more one may always be out; the only one is asked all the same (see `SOMEBODY`).
        "always_eject_one_host": said.max_ejection_percent > 0,
    });
    if let Some(rate) = said.success_rate {
        made["success_rate_minimum_hosts"] = json!(rate.minimum_hosts);
        made["success_rate_request_volume"] = json!(rate.request_volume);
        made["success_rate_stdev_factor"] = json!(rate.stdev_factor);
    }
    if let Some(local) = said.consecutive_local {
        made["split_external_local_origin_errors"] = json!(true);
        made["consecutive_local_origin_failure"] = json!(local.max(1));
        made["enforcing_consecutive_local_origin_failure"] = json!(enforcing(local));
        made["enforcing_local_origin_success_rate"] = json!(rates);
    }
    made
}

fn panic_percent(said: &OutlierDetection) -> u32 {
    match said.max_ejection_percent {
        100 => said.min_health_percent,
        _ => said.min_health_percent.max(SOMEBODY),
    }
}

/// Of what nobody may say anything: calls to the application itself, and to whoever nobody knows.
pub(super) fn unlimited() -> Value {
    breakers(&ConnectionPool::default(), None)
}

fn breakers(pool: &ConnectionPool, budget: Option<RetryBudget>) -> Value {
    let limit = |said: Option<u32>| said.unwrap_or(UNLIMITED);
    let mut thresholds = json!({
        "max_connections": limit(pool.max_connections),
        "max_pending_requests": limit(pool.max_pending),
        "max_requests": limit(pool.max_requests),
    });
    match (budget, pool.max_retries) {
        (None, Some(retries)) => thresholds["max_retries"] = json!(retries),
        (budget, _) => {
            let budget = budget.unwrap_or_default();
            let percent = f64::from(budget.percent_thousandths) / 1_000.0;
            thresholds["retry_budget"] = json!({
                "budget_percent": { "value": percent },
                "min_retry_concurrency": budget.min,
            });
        }
    }
    json!({ "thresholds": [thresholds] })
}

fn keep_alive(said: &TcpKeepAlive) -> Value {
    // In whole seconds, as the kernel counts.
    let seconds = |time: Duration| json!(time.max(SECOND).as_secs());
    let mut made = json!({});
    if let Some(probes) = said.probes {
        made["keepalive_probes"] = json!(probes);
    }
    if let Some(time) = said.time {
        made["keepalive_time"] = seconds(time);
    }
    if let Some(interval) = said.interval {
        made["keepalive_interval"] = seconds(interval);
    }
    made
}

/// Protocol options of a cluster, and the lifetime of its connections; `None` for bytes.
pub(super) fn protocol_options(carried: ClusterTraffic, pool: &ConnectionPool) -> Option<Value> {
    const KEY: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let mut options = super::cluster::protocol_options(carried)?;
    let mut common = json!({});
    if let Some(requests) = pool
        .requests_per_connection
        .filter(|requests| *requests > 0)
    {
        common["max_requests_per_connection"] = json!(requests);
    }
    if let Some(idle) = pool.http_idle.filter(|idle| !idle.is_zero()) {
        common["idle_timeout"] = duration(idle);
    }
    if let Some(duration_of_all) = pool.max_duration {
        common["max_connection_duration"] = duration(duration_of_all);
    }
    if common != json!({}) {
        options[KEY]["common_http_protocol_options"] = common;
    }
    if let (Some(streams), ClusterTraffic::Http2) = (pool.max_streams, carried) {
        let http2 = &mut options[KEY]["explicit_http_config"]["http2_protocol_options"];
        http2["max_concurrent_streams"] = json!(streams);
    }
    Some(options)
}

/// By what requests of a route are kept together. A route has one answer to that for all its destinations.
pub(super) fn hash_policy(keys: &[&HashKey]) -> Option<Value> {
    let one = |key: &&HashKey| match key {
        HashKey::Header(name) => json!({ "header": { "header_name": &**name } }),
        HashKey::Query(name) => json!({ "query_parameter": { "name": &**name } }),
        HashKey::SourceIp => json!({ "connection_properties": { "source_ip": true } }),
        HashKey::Cookie(cookie) => {
            let mut made = json!({ "name": &*cookie.name });
            if let Some(ttl) = cookie.ttl {
                made["ttl"] = duration(ttl);
            }
            if let Some(path) = &cookie.path {
                made["path"] = json!(&**path);
            }
            let attribute = |text: &std::sync::Arc<str>| match text.split_once('=') {
                Some((name, value)) => json!({ "name": name, "value": value }),
                None => json!({ "name": &**text, "value": "" }),
            };
            let attributes: Vec<Value> = cookie.attributes.iter().map(attribute).collect();
            if !attributes.is_empty() {
                made["attributes"] = json!(attributes);
            }
            json!({ "cookie": made })
        }
    };
    let made: Vec<Value> = keys.iter().map(one).collect();
    (!made.is_empty()).then(|| json!(made))
}

/// Settings of byte connections to a destination, in the filter that carries them.
pub(super) fn carry(filter: &mut Value, said: &PortTraffic) {
    let config = &mut filter["typed_config"];
    if let Some(idle) = said.pool.tcp_idle {
        config["idle_timeout"] = duration(idle);
    }
    // Of connections nothing else is known.
    if said.balancer.key == Some(HashKey::SourceIp) {
        config["hash_policy"] = json!([{ "source_ip": {} }]);
    }
}
