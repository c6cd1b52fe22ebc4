//! Check of `trafficPolicy`: balancers, outliers, pools. Istio's limits, and its defaults where a block is written and a field
//! is not.

use std::sync::Arc;
use std::time::Duration;

use crate::check::config::H2_UPGRADE_POLICIES;
use crate::check::request_authentication;
use crate::check::telemetry::header_name;
use crate::codes;
use crate::decode::{Cursor, Fields, Report, SpannedValue, Text};
use crate::mesh::PolicyLevel;
use crate::mesh::traffic::{
    Algorithm, ConnectionPool, Distribute, HashCookie, HashKey, LoadBalancer, LocalitySetting,
    OutlierDetection, REGION, RetryBudget, SUBZONE, TcpKeepAlive, Warmup, ZONE,
};

/// Places on a ring when nothing is said: Istio's and Envoy's.
const RING_SIZE: i64 = 1_024;
/// Most places of four endpoints on a ring: the sixteen megabytes that a proxy spends on one.
const MAX_RING_SIZE: i64 = 1 << 20;
/// Places in Maglev's table when nothing is said: Istio's and Envoy's.
const MAGLEV_SIZE: i64 = 65_537;
/// Most places in Maglev's table: four megabytes.
const MAX_MAGLEV_SIZE: i64 = 1 << 20;
/// Istio's and Envoy's least share of an endpoint that warms up.
const WARMUP_PERCENT: u32 = 10;
/// Endpoints among which zones matter when nothing is said: Istio's and Envoy's.
const MIN_CLUSTER_SIZE: u32 = 6;

/// The field that ranks endpoints by locality.
const LOCALITY: &str = "localityLbSetting";
/// The field that shares requests by zones.
const ZONES: &str = "zoneAwareLbSetting";

/// Written without a number of its own: the number, where it lies within bounds.
fn within(
    number: &SpannedValue<i64>,
    bounds: std::ops::RangeInclusive<i64>,
    what: &str,
    report: &Report,
) -> Option<i64> {
    if bounds.contains(&number.value) {
        return Some(number.value);
    }
    let message = format!("{} is not {what}", number.value);
    let help = format!("from {} to {}", bounds.start(), bounds.end());
    report.error(codes::BAD_VALUE, &number.at, message, help);
    None
}

fn count(number: Option<SpannedValue<i64>>, report: &Report) -> Option<u32> {
    let bounds = 0..=i64::from(u32::MAX);
    let value = within(&number?, bounds, "a number of things", report)?;
    u32::try_from(value).ok()
}

/// A limit; 0 is none, as in Istio.
fn limit(number: Option<SpannedValue<i64>>, report: &Report) -> Option<u32> {
    count(number, report).filter(|limit| *limit > 0)
}

fn percent(number: Option<SpannedValue<i64>>, report: &Report) -> Option<u32> {
    let value = within(&number?, 0..=100, "a percentage", report)?;
    u32::try_from(value).ok()
}

/// A duration that is not nothing.
fn some_time(text: Option<Text>, report: &Report) -> Option<Duration> {
    let text = text?;
    let time = report.duration(&text)?;
    if time < Duration::from_millis(1) {
        report.bad(&text, ": it must be longer than 0", "at least 1ms");
        return None;
    }
    Some(time)
}

/// The blocks that every level of a policy may have.
pub(in crate::check) fn level(fields: &mut Fields<'_>) -> PolicyLevel {
    PolicyLevel {
        balancer: fields.mapping("loadBalancer", balancer),
        outliers: fields.mapping("outlierDetection", outliers),
        pool: fields.mapping("connectionPool", pool),
        ..PolicyLevel::default()
    }
}

fn balancer(fields: &mut Fields<'_>) -> LoadBalancer {
    let report = fields.report();
    let simple = fields.text("simple");
    let hash = fields.mapping("consistentHash", |hash| (hash.at().clone(), hashing(hash)));
    let (algorithm, key) = match (&simple, hash) {
        (Some(_), Some((at, _))) => {
            let message = "`simple` and `consistentHash` exclude each other";
            report.error(codes::CONTRADICTION, &at, message, "keep one");
            (Algorithm::default(), None)
        }
        (None, Some((_, hashing))) => hashing,
        (Some(simple), None) => (self::simple(simple, report), None),
        (None, None) => (Algorithm::default(), None),
    };
    let warmup = warmup(fields);
    let hashes = matches!(algorithm, Algorithm::RingHash(_) | Algorithm::Maglev(_));
    if warmup.is_some() && hashes {
        let message = "warmup has no effect with `consistentHash`: the key selects the endpoint";
        let help = "use LEAST_REQUEST, ROUND_ROBIN or RANDOM";
        report.error(codes::CONTRADICTION, fields.at(), message, help);
    }
    let locality = fields.mapping(LOCALITY, locality);
    let by_zone = fields.mapping(ZONES, |zones| {
        if locality.is_some() {
            let message = "`localityLbSetting` and `zoneAwareLbSetting` exclude each other";
            report.error(codes::CONTRADICTION, zones.at(), message, "keep one");
        }
        let setting = zone_aware(zones);
        if setting.zone_aware.is_some() && hashes {
            let message = "zones have no effect with `consistentHash`: the key selects the endpoint, except that other regions have a lower priority";
            let help = "remove one of the two, or use `localityLbSetting`";
            report.warning(codes::NOT_OBEYED, zones.at(), message, help);
        }
        setting
    });
    LoadBalancer {
        algorithm,
        key,
        warmup,
        locality: by_zone.or(locality),
    }
}

/// The locality preference of MeshConfig. `zoneAwareLbSetting` takes precedence over `localityLbSetting`, even if it is
/// disabled, as in Istio.
pub(in crate::check) fn locality_of_mesh(fields: &mut Fields<'_>) -> Option<LocalitySetting> {
    let by_locality = fields.mapping(LOCALITY, |one| (one.at().clone(), locality(one)));
    let by_zone = fields.mapping(ZONES, zone_aware);
    if let (Some((at, said)), Some(_)) = (&by_locality, &by_zone)
        && said.enabled
    {
        let message = "`localityLbSetting` has no effect: `zoneAwareLbSetting` takes precedence";
        let report = fields.report();
        report.warning(codes::NOT_OBEYED, at, message, "keep one");
    }
    by_zone.or(by_locality.map(|(_, said)| said))
}

fn is_enabled(fields: &mut Fields<'_>) -> bool {
    fields.boolean("enabled").is_none_or(|flag| flag.value)
}

fn zone_aware(fields: &mut Fields<'_>) -> LocalitySetting {
    let report = fields.report();
    let enabled = is_enabled(fields);
    let failover = failover(fields);
    let priority = fields.texts("failoverPriority");
    for label in &priority {
        if [REGION, ZONE, SUBZONE].contains(&&*label.value) {
            let help = "remove it: `failover` orders the regions, and zones share the requests";
            report.bad(label, " in `failoverPriority` of zones", help);
        }
    }
    let size = fields.integer("minClusterSize").and_then(|size| {
        let most = i64::from(u32::MAX);
        within(&size, 1..=most, "a number of endpoints", report)
    });
    let size = size.and_then(|size| u32::try_from(size).ok());
    LocalitySetting {
        enabled,
        failover,
        priority: priority.into_iter().map(|label| label.value).collect(),
        always: enabled,
        zone_aware: enabled.then_some(size.unwrap_or(MIN_CLUSTER_SIZE)),
        ..LocalitySetting::default()
    }
}

/// From regions to those that come first after them.
fn failover(fields: &mut Fields<'_>) -> Vec<(Arc<str>, Arc<str>)> {
    let report = fields.report();
    fields.mappings("failover", |fields| {
        let [from, to] = ["from", "to"].map(|name| {
            let text = report.required(fields.text(name), fields.at(), name)?;
            if text.value.contains(['/', '*']) {
                report.bad(&text, " as a region", "write a region without zones");
            }
            Some(text.value)
        });
        let (from, to) = (from?, to?);
        if from == to {
            let message = format!("failover from {from} to itself has no effect");
            let help = "name another region";
            report.error(codes::CONTRADICTION, fields.at(), message, help);
        }
        Some((from, to))
    })
}

fn locality(fields: &mut Fields<'_>) -> LocalitySetting {
    let mut shares = false;
    let said = LocalitySetting {
        enabled: is_enabled(fields),
        distribute: fields.mappings("distribute", |one| {
            shares = true;
            distribute(one)
        }),
        failover: failover(fields),
        priority: fields.values("failoverPriority"),
        ..LocalitySetting::default()
    };
    if shares && !(said.failover.is_empty() && said.priority.is_empty()) {
        let message = "`distribute` excludes `failover` and `failoverPriority`";
        let report = fields.report();
        report.error(codes::CONTRADICTION, fields.at(), message, "keep one");
    }
    said
}

/// Shares that do not sum to a hundred are an error, as in Istio.
fn distribute(fields: &mut Fields<'_>) -> Option<Distribute> {
    let report = fields.report();
    let place = |text: &Text| {
        let whole = match &*text.value {
            "*" => "any",
            other => other.strip_suffix("/*").unwrap_or(other),
        };
        let mut parts = whole.split('/');
        let named = parts.all(|part| !part.is_empty() && !part.contains('*'));
        if !named || whole.split('/').count() > 3 {
            let help = "region/zone/subzone, or the beginning of it and `*`";
            report.bad(text, " as a locality", help);
        }
        text.value.clone()
    };
    let written = fields.get("to").map(|to| to.entries());
    let share = |(to, share): (Text, Cursor<'_>)| Some((to, share.integer()?));
    let written: Vec<_> = written.into_iter().flatten().filter_map(share).collect();
    let from = place(&report.required(fields.text("from"), fields.at(), "from")?);
    let mut to = Vec::new();
    for (text, share) in written {
        let value = within(&share, 1..=100, "a percentage", report)?;
        to.push((place(&text), u32::try_from(value).ok()?));
    }
    let sum: u32 = to.iter().map(|(_, share)| share).sum();
    if sum != 100 {
        let message = format!("the shares from {from} add up to {sum}");
        let help = "they must add up to 100";
        report.error(codes::BAD_VALUE, fields.at(), message, help);
    }
    Some(Distribute { from, to })
}

pub(in crate::check) fn retry_budget(fields: &mut Fields<'_>) -> RetryBudget {
    let report = fields.report();
    let usual = RetryBudget::default();
    let percent = fields.number("percent").map(|percent| {
        if !(0.0..=100.0).contains(&percent.value) {
            let message = format!("{} is not a percentage", percent.value);
            report.error(codes::BAD_VALUE, &percent.at, message, "from 0 to 100");
        }
        (percent.value.clamp(0.0, 100.0) * 1_000.0) as u32
    });
    let min = count(fields.integer("minRetryConcurrency"), report);
    fields.without_effect(&[(
        "budgetInterval",
        "the budget is a share of the requests that are open now",
    )]);
    RetryBudget {
        percent_thousandths: percent.unwrap_or(usual.percent_thousandths),
        min: min.unwrap_or(usual.min),
    }
}

fn simple(text: &Text, report: &Report) -> Algorithm {
    if &*text.value == "PASSTHROUGH" {
        let message = "PASSTHROUGH is not yet supported in a DestinationRule";
        let help = "use a ServiceEntry with resolution NONE to forward to the original address";
        report.error(codes::NOT_YET, &text.at, message, help);
        return Algorithm::default();
    }
    let words = [
        ("UNSPECIFIED", Algorithm::LeastCost),
        ("LEAST_REQUEST", Algorithm::LeastRequest),
        ("LEAST_CONN", Algorithm::LeastRequest),
        ("ROUND_ROBIN", Algorithm::RoundRobin),
        ("RANDOM", Algorithm::Random),
        ("PASSTHROUGH", Algorithm::LeastCost),
    ];
    report.one_of(text, &words).unwrap_or_default()
}

fn hashing(fields: &mut Fields<'_>) -> (Algorithm, Option<HashKey>) {
    let report = fields.report();
    let ring = fields.mapping("ringHash", |ring| ring.integer("minimumRingSize"));
    let maglev = fields.mapping("maglev", |maglev| maglev.integer("tableSize"));
    let key = hash_key(fields);
    // As Istio had it first.
    let first = fields.integer("minimumRingSize");
    let ring = ring.flatten().or(first);
    if let (Some(_), Some(ring)) = (&maglev, &ring) {
        let message = "`ringHash` and `maglev` exclude each other";
        report.error(codes::CONTRADICTION, &ring.at, message, "keep one");
    }
    let size = |size| within(&size, 1..=MAX_RING_SIZE, "a size of a ring", report);
    let algorithm = match maglev {
        Some(size) => {
            let size = size.and_then(|size| maglev_size(&size, report));
            Algorithm::Maglev(size.unwrap_or(MAGLEV_SIZE as u32))
        }
        None => Algorithm::RingHash(ring.and_then(size).unwrap_or(RING_SIZE).unsigned_abs()),
    };
    (algorithm, key)
}

fn maglev_size(size: &SpannedValue<i64>, report: &Report) -> Option<u32> {
    let bounds = 2..=MAX_MAGLEV_SIZE;
    let value = within(size, bounds, "a size of Maglev's table", report)?;
    if !is_prime(value) {
        let message = format!("{value} is not a prime, which Maglev's table needs");
        let help = format!("such as {MAGLEV_SIZE}");
        report.error(codes::BAD_VALUE, &size.at, message, help);
    }
    u32::try_from(value).ok()
}

fn is_prime(number: i64) -> bool {
    number >= 2
        && (2..)
            .take_while(|d| d * d <= number)
            .all(|d| number % d != 0)
}

fn hash_key(fields: &mut Fields<'_>) -> Option<HashKey> {
    let report = fields.report();
    let header = fields.text("httpHeaderName").map(|text| {
        let name = header_name(&text, report)?;
        Some(HashKey::Header(name.to_ascii_lowercase().into()))
    });
    let cookie = fields.mapping("httpCookie", |one| hash_cookie(one).map(HashKey::Cookie));
    let source = fields.flag("useSourceIp");
    let source = source.then_some(Some(HashKey::SourceIp));
    let query = fields.value("httpQueryParameterName");
    let query = query.map(|name| Some(HashKey::Query(name)));
    let mut said: Vec<Option<HashKey>> = [header, cookie, source, query]
        .into_iter()
        .flatten()
        .collect();
    if said.len() != 1 {
        let message = "a consistent hash has exactly one key";
        let help =
            "write one of httpHeaderName, httpCookie, useSourceIp: true and httpQueryParameterName";
        report.error(codes::CONTRADICTION, fields.at(), message, help);
    }
    said.pop()?
}

fn hash_cookie(fields: &mut Fields<'_>) -> Option<HashCookie> {
    let report = fields.report();
    let plain = |text: &Text, what: &str| {
        let fits =
            |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b';' | b',' | b'"' | b'\\');
        let good = text.value.bytes().all(|byte| fits(byte) || byte == b' ');
        let help = "printable ASCII without quotes, commas and semicolons";
        report.parsed(
            text,
            what,
            |text| good.then(|| Arc::<str>::from(text)),
            help,
        )
    };
    let token = |text: &str| {
        let mut bytes = text.bytes();
        let good = !text.is_empty() && bytes.all(request_authentication::is_token_byte);
        good.then(|| text.into())
    };
    let name = report.required(fields.text("name"), fields.at(), "name");
    let help = "a token of RFC 9110";
    let name = name.and_then(|name| report.parsed(&name, "the name of a cookie", token, help));
    let path = fields.text("path");
    let path = path.and_then(|path| plain(&path, "a path"));
    let ttl = fields.duration("ttl");
    let attributes = fields.mappings("attributes", |fields| {
        let name = report.required(fields.text("name"), fields.at(), "name");
        let value = fields.text("value");
        let name = plain(&name?, "an attribute")?;
        match value {
            Some(value) => {
                let value = plain(&value, "an attribute's value")?;
                Some(format!("{name}={value}").into())
            }
            None => Some(name),
        }
    });
    Some(HashCookie {
        name: name?,
        path,
        ttl,
        attributes,
    })
}

fn warmup(fields: &mut Fields<'_>) -> Option<Warmup> {
    let report = fields.report();
    let warmup = fields.mapping("warmup", |ramp| (ramp.at().clone(), self::ramp(ramp)));
    // As Istio had it first.
    let first = fields.text("warmupDurationSecs");
    let Some((at, warmup)) = warmup else {
        return Some(Warmup {
            duration: some_time(first, report)?,
            minimum_percent: WARMUP_PERCENT,
            aggression_thousandths: 1_000,
        });
    };
    if let Some(text) = first {
        let message = format!(
            "`warmup` and `warmupDurationSecs: {}` exclude each other",
            text.value
        );
        report.error(codes::CONTRADICTION, &at, message, "keep `warmup`");
    }
    warmup
}

fn ramp(fields: &mut Fields<'_>) -> Option<Warmup> {
    let report = fields.report();
    let duration = report.required(fields.text("duration"), fields.at(), "duration");
    let mut bounded = |name: &'static str, least: f64, most: f64, default: f64| {
        let Some(number) = fields.number(name) else {
            return default;
        };
        if !(least..=most).contains(&number.value) {
            let message = format!("{} is out of bounds", number.value);
            let help = format!("from {least} to {most}");
            report.error(codes::BAD_VALUE, &number.at, message, help);
        }
        number.value.clamp(least, most)
    };
    let least = bounded("minimumPercent", 0.0, 100.0, f64::from(WARMUP_PERCENT));
    let aggression = bounded("aggression", 0.001, 1_000.0, 1.0);
    Some(Warmup {
        duration: some_time(duration, report)?,
        minimum_percent: least as u32,
        aggression_thousandths: (aggression * 1_000.0) as u32,
    })
}

fn outliers(fields: &mut Fields<'_>) -> OutlierDetection {
    let report = fields.report();
    let usual = OutlierDetection::default();
    let five = fields.integer("consecutive5xxErrors");
    let split = fields.flag("splitExternalLocalOriginErrors");
    let local = fields.integer("consecutiveLocalOriginFailures");
    if let (Some(number), false) = (&local, split) {
        let message = "`consecutiveLocalOriginFailures` counts nothing";
        let help = "it needs `splitExternalLocalOriginErrors: true`";
        report.error(codes::CONTRADICTION, &number.at, message, help);
    }
    let local = count(local, report);
    let gateway = count(fields.integer("consecutiveGatewayErrors"), report);
    // As Istio had it first.
    let first = fields.integer("consecutiveErrors");
    let five = count(five.or(first), report);
    let interval = some_time(fields.text("interval"), report);
    let base_ejection = some_time(fields.text("baseEjectionTime"), report);
    let max_ejection = percent(fields.integer("maxEjectionPercent"), report);
    let min_health = percent(fields.integer("minHealthPercent"), report);
    fields.without_effect(&[(
        "outlierDetectionHttpErrorCodes",
        "statuses of 500 and above count as errors, and no others",
    )]);
    OutlierDetection {
        consecutive_5xx: five.unwrap_or(usual.consecutive_5xx),
        consecutive_gateway: gateway.unwrap_or(usual.consecutive_gateway),
        // Envoy's default.
        consecutive_local: split.then(|| local.unwrap_or(5)),
        interval: interval.unwrap_or(usual.interval),
        base_ejection: base_ejection.unwrap_or(usual.base_ejection),
        max_ejection_percent: max_ejection.unwrap_or(usual.max_ejection_percent),
        min_health_percent: min_health.unwrap_or(usual.min_health_percent),
        // Success rates are said beside `spec`, and put in where all of it is read.
        ..usual
    }
}

fn pool(fields: &mut Fields<'_>) -> ConnectionPool {
    let mut pool = ConnectionPool::default();
    fields.mapping("tcp", |tcp| tcp_pool(&mut pool, tcp));
    fields.mapping("http", |http| http_pool(&mut pool, http));
    pool
}

fn tcp_pool(pool: &mut ConnectionPool, fields: &mut Fields<'_>) {
    let report = fields.report();
    pool.keep_alive = fields.mapping("tcpKeepalive", |fields| TcpKeepAlive {
        probes: limit(fields.integer("probes"), report),
        time: some_time(fields.text("time"), report),
        interval: some_time(fields.text("interval"), report),
    });
    pool.max_connections = limit(fields.integer("maxConnections"), report);
    pool.connect_timeout = some_time(fields.text("connectTimeout"), report);
    pool.tcp_idle = some_time(fields.text("idleTimeout"), report);
    pool.max_duration = some_time(fields.text("maxConnectionDuration"), report);
}

fn http_pool(pool: &mut ConnectionPool, fields: &mut Fields<'_>) {
    let report = fields.report();
    let [keep, upgrade] = H2_UPGRADE_POLICIES.map(|(word, value)| (word, Some(value)));
    let words = [("DEFAULT", None), keep, upgrade];
    pool.http2_upgrade = fields.one_of("h2UpgradePolicy", &words).flatten();
    pool.use_client_protocol = fields.flag("useClientProtocol");
    pool.max_pending = limit(fields.integer("http1MaxPendingRequests"), report);
    pool.max_requests = limit(fields.integer("http2MaxRequests"), report);
    pool.requests_per_connection = limit(fields.integer("maxRequestsPerConnection"), report);
    pool.max_retries = limit(fields.integer("maxRetries"), report);
    pool.http_idle = some_time(fields.text("idleTimeout"), report);
    pool.max_streams = limit(fields.integer("maxConcurrentStreams"), report);
    fields.without_effect(&[("http2KeepAlive", "idle connections are not probed")]);
}
