//! `trafficPolicy` of a DestinationRule for one destination in gRPC's terms (gRFCs A32, A42, A48, A52): load balancing, and the
//! number of calls under way. gRPC ignores unknown settings in silence, so each of them has a limit's name here. Every field is
//! translated or named: a new field does not compile.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use voile_model::mesh::traffic::{
    Algorithm, ClientTls, ConnectionPool, HashKey, LoadBalancer, PortTraffic,
};

use crate::json::typed;
use crate::limit::{Limit, LimitName};

/// Value for no limit: without a value gRPC allows 1,024 calls under way (A32) and fails the next.
const UNLIMITED: u32 = u32::MAX;
/// Places that gRPC's ring has at most, unless the client itself allows more (A42).
const RING_CAP: u64 = 4_096;
/// The filter state by which gRPC keeps all calls of a channel together (A42).
const CHANNEL: &str = "io.grpc.channel_id";

/// Endpoints of a destination, as far as balancing needs to know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DestinationEndpoints {
    /// One DNS name is all that is known.
    pub is_name: bool,
    /// Within a locality some are to have more than others.
    pub is_weighted: bool,
    /// The locality of some of them is known.
    pub is_placed: bool,
}

/// Puts into a cluster what is said of calls to it.
pub(super) fn treat(cluster: &mut Value, said: &PortTraffic) {
    balance(cluster, &said.balancer);
    let requests = said.pool.max_requests.unwrap_or(UNLIMITED);
    cluster["circuit_breakers"] = json!({ "thresholds": [{ "max_requests": requests }] });
}

fn balance(cluster: &mut Value, said: &LoadBalancer) {
    cluster["lb_policy"] = json!("ROUND_ROBIN");
    match said.algorithm {
        Algorithm::LeastCost | Algorithm::RoundRobin | Algorithm::Random => {}
        // The first that a client knows counts; one that knows no such list goes by `lb_policy`.
        Algorithm::LeastRequest => {
            let policy = |name: &str, kind: &str| {
                let kind = format!("extensions.load_balancing_policies.{kind}");
                json!({ "typed_extension_config": typed(name, &kind, json!({})) })
            };
            let picking = json!({ "policies": [
                policy("least_request", "least_request.v3.LeastRequest"),
                policy("round_robin", "round_robin.v3.RoundRobin"),
            ] });
            let nearby = typed(
                "wrr_locality",
                "extensions.load_balancing_policies.wrr_locality.v3.WrrLocality",
                json!({ "endpoint_picking_policy": picking }),
            );
            cluster["load_balancing_policy"] =
                json!({ "policies": [{ "typed_extension_config": nearby }] });
        }
        // A ring without anything to place calls by would only be chance.
        Algorithm::RingHash(_) | Algorithm::Maglev(_)
            if said.key.as_ref().is_none_or(|key| hash(key).is_none()) => {}
        Algorithm::RingHash(least) => {
            cluster["lb_policy"] = json!("RING_HASH");
            cluster["ring_hash_lb_config"] = json!({ "minimum_ring_size": least.to_string() });
        }
        Algorithm::Maglev(_) => cluster["lb_policy"] = json!("RING_HASH"),
    }
}

/// One value by which calls are kept together; `None` where gRPC has none such.
fn hash(key: &HashKey) -> Option<Value> {
    match key {
        HashKey::Header(name) if super::routes::is_unseen(name) || name.starts_with(':') => None,
        HashKey::Header(name) => Some(json!({ "header": { "header_name": &**name } })),
        HashKey::SourceIp => Some(json!({ "filter_state": { "key": CHANNEL } })),
        HashKey::Cookie(_) | HashKey::Query(_) => None,
    }
}

/// By what calls of a route are kept together.
pub(super) fn hash_policy(keys: &[HashKey]) -> Option<Value> {
    let made: Vec<Value> = keys.iter().filter_map(hash).collect();
    (!made.is_empty()).then(|| json!(made))
}

/// Settings that gRPC does not get, or treats differently.
#[must_use]
pub fn untold(about: &str, said: &PortTraffic, crowd: DestinationEndpoints) -> BTreeSet<Limit> {
    let PortTraffic {
        balancer,
        outliers,
        pool,
        retry_budget,
        tls,
        proxy_protocol,
    } = said;
    let mut found = Vec::new();
    of_balancer(balancer, crowd, &mut found);
    let ranks = said.ranks_localities();
    let always = (balancer.locality.as_ref()).is_some_and(|said| said.always);
    if ranks && (always || crowd.is_placed) {
        let why = "locality preference (localityLbSetting, zoneAwareLbSetting, trafficDistribution) is not supported: localities take calls by the weights of their endpoints";
        found.push((LimitName::Locality, why.to_owned()));
    }
    if outliers.is_some() {
        let why = "gRPC does not eject endpoints for consecutive errors (outlierDetection): it only skips endpoints that it cannot connect to";
        found.push((LimitName::OutlierDetection, why.to_owned()));
        if outliers.is_some_and(|said| said.success_rate.is_some()) {
            let why = "gRPC does not compare success rates of endpoints (voile.dev/success_rate_stdev_factor and related annotations)";
            found.push((LimitName::OutlierDetection, why.to_owned()));
        }
    }
    if let Some(why) = of_pool(pool) {
        found.push((LimitName::ConnectionPool, why));
    }
    if retry_budget.is_some() {
        let why = "gRPC limits retries by number only (retryBudget)";
        found.push((LimitName::RetryBudget, why.to_owned()));
    }
    if proxy_protocol.is_some() {
        let why = "gRPC does not send a PROXY header (proxyProtocol): servers that require one refuse its connections";
        found.push((LimitName::ProxyProtocol, why.to_owned()));
    }
    if let Some(ClientTls::Mutual(Some(name))) = tls {
        let why = format!("gRPC does not send this server name (sni: {name})");
        found.push((LimitName::ServerName, why));
    }
    let limit = |(name, why): (LimitName, String)| Limit::new(name, about, why);
    found.into_iter().map(limit).collect()
}

fn of_balancer(
    said: &LoadBalancer,
    crowd: DestinationEndpoints,
    found: &mut Vec<(LimitName, String)>,
) {
    let LoadBalancer {
        algorithm,
        key,
        warmup,
        locality: _,
    } = said;
    let mut limit = |name, why: &str| found.push((name, why.to_owned()));
    if warmup.is_some() {
        let why =
            "gRPC does not support slow start: a new endpoint gets its full share at once (warmup)";
        limit(LimitName::Warmup, why);
    }
    if crowd.is_name {
        if *algorithm != Algorithm::LeastCost {
            let why = "for a DNS name, the first address that accepts a connection takes all calls";
            limit(LimitName::LoadBalancer, why);
        }
        return;
    }
    match algorithm {
        Algorithm::LeastCost | Algorithm::RoundRobin => {}
        Algorithm::LeastRequest => limit(
            LimitName::LoadBalancer,
            "gRPC supports LEAST_REQUEST in Go and Java; other languages use round robin",
        ),
        Algorithm::Random => limit(
            LimitName::LoadBalancer,
            "gRPC does not support RANDOM: it uses round robin",
        ),
        Algorithm::RingHash(least) if *least > RING_CAP => limit(
            LimitName::ConsistentHash,
            &format!(
                "the ring has {RING_CAP} entries, not {least}, unless the client itself allows more"
            ),
        ),
        Algorithm::RingHash(_) => {}
        Algorithm::Maglev(_) => limit(
            LimitName::ConsistentHash,
            "gRPC does not support maglev: it uses a ring hash, which selects other endpoints than Envoys and sidecars do",
        ),
    }
    match key {
        None => {}
        Some(HashKey::SourceIp) => limit(
            LimitName::ConsistentHash,
            "`useSourceIp`: gRPC hashes the channel: calls of one channel stay together, not those of all channels of a client",
        ),
        Some(key) if hash(key).is_none() => limit(
            LimitName::ConsistentHash,
            "gRPC hashes headers and channels only: these calls use round robin",
        ),
        Some(_) => {}
    }
    let by_weight = matches!(algorithm, Algorithm::RingHash(_) | Algorithm::Maglev(_))
        && key.as_ref().is_some_and(|key| hash(key).is_some());
    if crowd.is_weighted && !by_weight {
        let why = "endpoint weights are ignored: endpoints of a locality take calls in turn";
        limit(LimitName::EndpointWeights, why);
    }
}

fn of_pool(said: &ConnectionPool) -> Option<String> {
    let ConnectionPool {
        // gRPC speaks HTTP/2, whatever others speak.
        http2_upgrade: _,
        use_client_protocol: _,
        max_requests: _,
        max_connections,
        connect_timeout,
        tcp_idle,
        keep_alive,
        max_pending,
        max_retries,
        requests_per_connection,
        http_idle,
        max_streams,
        max_duration,
    } = said;
    let fields = [
        ("tcp.maxConnections", max_connections.is_some()),
        ("tcp.connectTimeout", connect_timeout.is_some()),
        ("tcp.idleTimeout", tcp_idle.is_some()),
        ("tcp.tcpKeepalive", keep_alive.is_some()),
        ("http.http1MaxPendingRequests", max_pending.is_some()),
        ("http.maxRetries", max_retries.is_some()),
        (
            "http.maxRequestsPerConnection",
            requests_per_connection.is_some(),
        ),
        ("http.idleTimeout", http_idle.is_some()),
        ("http.maxConcurrentStreams", max_streams.is_some()),
        ("tcp.maxConnectionDuration", max_duration.is_some()),
    ];
    let said: Vec<&str> = fields
        .iter()
        .filter_map(|(name, said)| said.then_some(*name))
        .collect();
    (!said.is_empty()).then(|| format!("gRPC does not support `{}`", said.join("`, `")))
}
