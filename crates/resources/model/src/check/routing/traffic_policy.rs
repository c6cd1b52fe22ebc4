//! Check of `trafficPolicy`: balancers, outliers, pools. Istio's limits, and its defaults where a block is written and a field
//! is not.

use std::sync::Arc;
use std::time::Duration;

use crate::check::config::H2_UPGRADE_POLICIES;
use crate::check::telemetry::header_name;
use crate::codes;
use crate::decode::{FieldPath, Report, SpannedValue};
use crate::mesh::traffic::{
    Algorithm, ConnectionPool, Distribute, HashCookie, HashKey, LoadBalancer, LocalitySetting,
    OutlierDetection, REGION, RetryBudget, SUBZONE, TcpKeepAlive, Warmup, ZONE,
};
use crate::written::{Text, traffic as written};

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

fn count(number: Option<&SpannedValue<i64>>, report: &Report) -> Option<u32> {
    let value = within(
        number?,
        0..=i64::from(u32::MAX),
        "a number of things",
        report,
    )?;
    u32::try_from(value).ok()
}

/// A limit; 0 is none, as in Istio.
fn limit(number: Option<&SpannedValue<i64>>, report: &Report) -> Option<u32> {
    count(number, report).filter(|limit| *limit > 0)
}

fn percent(number: Option<&SpannedValue<i64>>, report: &Report) -> Option<u32> {
    let value = within(number?, 0..=100, "a percentage", report)?;
    u32::try_from(value).ok()
}

/// A duration that is not nothing.
fn some_time(text: Option<&Text>, report: &Report) -> Option<Duration> {
    let text = text?;
    let time = report.duration(text)?;
    if time < Duration::from_millis(1) {
        report.bad(text, ": it must be longer than 0", "at least 1ms");
        return None;
    }
    Some(time)
}

pub(in crate::check) fn balancer(written: &written::LoadBalancer, report: &Report) -> LoadBalancer {
    let (algorithm, key) = match (&written.simple, &written.hash) {
        (Some(_), Some(hash)) => {
            let message = "`simple` and `consistentHash` exclude each other";
            report.error(codes::CONTRADICTION, &hash.at, message, "keep one");
            (Algorithm::default(), None)
        }
        (None, Some(hash)) => (hashing(hash, report), hash_key(hash, report)),
        (Some(simple), None) => (self::simple(simple, report), None),
        (None, None) => (Algorithm::default(), None),
    };
    let warmup = warmup(written, report);
    let hashes = matches!(algorithm, Algorithm::RingHash(_) | Algorithm::Maglev(_));
    if warmup.is_some() && hashes {
        let message = "warmup has no effect with `consistentHash`: the key selects the endpoint";
        let help = "use LEAST_REQUEST, ROUND_ROBIN or RANDOM";
        report.error(codes::CONTRADICTION, &written.at, message, help);
    }
    let locality = written.locality.as_ref();
    let locality = locality.map(|one| self::locality(one, report));
    let zones = written.zones.as_ref();
    if let (Some(_), Some(zones)) = (&locality, zones) {
        let message = "`localityLbSetting` and `zoneAwareLbSetting` exclude each other";
        report.error(codes::CONTRADICTION, &zones.at, message, "keep one");
    }
    let by_zone = zones.map(|zones| {
        let setting = zone_aware(zones, report);
        if setting.zone_aware.is_some() && hashes {
            let message = "zones have no effect with `consistentHash`: the key selects the endpoint, except that other regions have a lower priority";
            let help = "remove one of the two, or use `localityLbSetting`";
            report.warning(codes::NOT_OBEYED, &zones.at, message, help);
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
pub(in crate::check) fn locality_of_mesh(
    locality: Option<&written::LocalitySetting>,
    zones: Option<&written::ZoneAwareSetting>,
    report: &Report,
) -> Option<LocalitySetting> {
    let by_locality = locality.map(|one| self::locality(one, report));
    if let (Some(said), Some(_)) = (locality, zones)
        && by_locality.as_ref().is_some_and(|said| said.enabled)
    {
        let message = "`localityLbSetting` has no effect: `zoneAwareLbSetting` takes precedence";
        report.warning(codes::NOT_OBEYED, &said.at, message, "keep one");
    }
    let by_zone = zones.map(|one| zone_aware(one, report));
    by_zone.or(by_locality)
}

fn zone_aware(written: &written::ZoneAwareSetting, report: &Report) -> LocalitySetting {
    let enabled = written.enabled.as_ref().is_none_or(|flag| flag.value);
    for label in &written.priority {
        if [REGION, ZONE, SUBZONE].contains(&&*label.value) {
            let help = "remove it: `failover` orders the regions, and zones share the requests";
            report.bad(label, " in `failoverPriority` of zones", help);
        }
    }
    let size = written.min_cluster_size.as_ref();
    let size = size.and_then(|size| {
        let most = i64::from(u32::MAX);
        within(size, 1..=most, "a number of endpoints", report)
    });
    let size = size.and_then(|size| u32::try_from(size).ok());
    LocalitySetting {
        enabled,
        failover: failover(&written.failover, report),
        priority: labels(&written.priority),
        always: enabled,
        zone_aware: enabled.then_some(size.unwrap_or(MIN_CLUSTER_SIZE)),
        ..LocalitySetting::default()
    }
}

/// From regions to those that come first after them.
fn failover(written: &[written::Failover], report: &Report) -> Vec<(Arc<str>, Arc<str>)> {
    let region = |text: &Option<Text>, at: &FieldPath, name: &'static str| {
        let text = report.required(text.as_ref(), at, name)?;
        if text.value.contains(['/', '*']) {
            report.bad(text, " as a region", "write a region without zones");
        }
        Some(text.value.clone())
    };
    let all = written.iter().filter_map(|(from, to, at)| {
        let (from, to) = (region(from, at, "from"), region(to, at, "to"));
        let (from, to) = (from?, to?);
        if from == to {
            let message = format!("failover from {from} to itself has no effect");
            report.error(codes::CONTRADICTION, at, message, "name another region");
        }
        Some((from, to))
    });
    all.collect()
}

fn labels(written: &[Text]) -> Vec<Arc<str>> {
    written.iter().map(|label| label.value.clone()).collect()
}

fn locality(written: &written::LocalitySetting, report: &Report) -> LocalitySetting {
    let enabled = written.enabled.as_ref().is_none_or(|flag| flag.value);
    let ways = [
        !written.distribute.is_empty(),
        !written.failover.is_empty() || !written.priority.is_empty(),
    ];
    if ways == [true, true] {
        let message = "`distribute` excludes `failover` and `failoverPriority`";
        report.error(codes::CONTRADICTION, &written.at, message, "keep one");
    }
    LocalitySetting {
        enabled,
        distribute: written
            .distribute
            .iter()
            .filter_map(|one| distribute(one, report))
            .collect(),
        failover: failover(&written.failover, report),
        priority: labels(&written.priority),
        ..LocalitySetting::default()
    }
}

/// Shares that do not sum to a hundred are an error, as in Istio.
fn distribute(written: &written::Distribute, report: &Report) -> Option<Distribute> {
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
    let from = place(report.required(written.from.as_ref(), &written.at, "from")?);
    let mut to = Vec::new();
    for (text, share) in &written.to {
        let value = within(share, 1..=100, "a percentage", report)?;
        to.push((place(text), u32::try_from(value).ok()?));
    }
    let sum: u32 = to.iter().map(|(_, share)| share).sum();
    if sum != 100 {
        let message = format!("the shares from {from} add up to {sum}");
        report.error(
            codes::BAD_VALUE,
            &written.at,
            message,
            "they must add up to 100",
        );
    }
    Some(Distribute { from, to })
}

pub(in crate::check) fn retry_budget(
    written: &written::RetryBudget,
    report: &Report,
) -> RetryBudget {
    let usual = RetryBudget::default();
    let percent = written.percent.as_ref().map(|percent| {
        if !(0.0..=100.0).contains(&percent.value) {
            let message = format!("{} is not a percentage", percent.value);
            report.error(codes::BAD_VALUE, &percent.at, message, "from 0 to 100");
        }
        (percent.value.clamp(0.0, 100.0) * 1_000.0) as u32
    });
    RetryBudget {
        percent_thousandths: percent.unwrap_or(usual.percent_thousandths),
        min: count(written.min.as_ref(), report).unwrap_or(usual.min),
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

fn hashing(written: &written::ConsistentHash, report: &Report) -> Algorithm {
    if let (Some(_), Some(ring)) = (&written.maglev, &written.ring_size) {
        let message = "`ringHash` and `maglev` exclude each other";
        report.error(codes::CONTRADICTION, &ring.at, message, "keep one");
    }
    if let Some(size) = &written.maglev {
        let size = size.as_ref().map_or(Some(MAGLEV_SIZE), |size| {
            let value = within(
                size,
                2..=MAX_MAGLEV_SIZE,
                "a size of Maglev's table",
                report,
            )?;
            if !is_prime(value) {
                let message = format!("{value} is not a prime, which Maglev's table needs");
                let help = format!("such as {MAGLEV_SIZE}");
                report.error(codes::BAD_VALUE, &size.at, message, help);
            }
            Some(value)
        });
        let size = size.and_then(|size| u32::try_from(size).ok());
        return Algorithm::Maglev(size.unwrap_or(MAGLEV_SIZE as u32));
    }
    let size = written.ring_size.as_ref();
    let size = size.map_or(Some(RING_SIZE), |size| {
        within(size, 1..=MAX_RING_SIZE, "a size of a ring", report)
    });
    Algorithm::RingHash(size.unwrap_or(RING_SIZE).unsigned_abs())
}

fn is_prime(number: i64) -> bool {
    number >= 2
        && (2..)
            .take_while(|d| d * d <= number)
            .all(|d| number % d != 0)
}

fn hash_key(written: &written::ConsistentHash, report: &Report) -> Option<HashKey> {
    let header = written.header.as_ref().map(|text| {
        let name = header_name(text, report)?;
        Some(HashKey::Header(name.to_ascii_lowercase().into()))
    });
    let cookie = written.cookie.as_ref();
    let cookie = cookie.map(|cookie| hash_cookie(cookie, report).map(HashKey::Cookie));
    let source = written.source_ip.as_ref().filter(|flag| flag.value);
    let source = source.map(|_| Some(HashKey::SourceIp));
    let query = written.query.as_ref();
    let query = query.map(|text| Some(HashKey::Query(text.value.clone())));
    let mut said: Vec<Option<HashKey>> = [header, cookie, source, query]
        .into_iter()
        .flatten()
        .collect();
    if said.len() != 1 {
        let message = "a consistent hash has exactly one key";
        let help =
            "write one of httpHeaderName, httpCookie, useSourceIp: true and httpQueryParameterName";
        report.error(codes::CONTRADICTION, &written.at, message, help);
    }
    said.pop()?
}

fn hash_cookie(written: &written::Cookie, report: &Report) -> Option<HashCookie> {
    let name = report.required(written.name.as_ref(), &written.at, "name")?;
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
    let name = report.parsed(
        name,
        "the name of a cookie",
        |text| {
            (!text.is_empty()
                && text
                    .bytes()
                    .all(crate::check::request_authentication::is_token_byte))
            .then(|| text.into())
        },
        "a token of RFC 9110",
    );
    let path = match &written.path {
        Some(path) => Some(plain(path, "a path")?),
        None => None,
    };
    let ttl = match &written.ttl {
        Some(ttl) => Some(report.duration(ttl)?),
        None => None,
    };
    let mut attributes = Vec::new();
    for (name, value, at) in &written.attributes {
        let name = plain(report.required(name.as_ref(), at, "name")?, "an attribute")?;
        let value = match value {
            Some(value) => format!("{name}={}", plain(value, "an attribute's value")?).into(),
            None => name,
        };
        attributes.push(value);
    }
    Some(HashCookie {
        name: name?,
        path,
        ttl,
        attributes,
    })
}

fn warmup(written: &written::LoadBalancer, report: &Report) -> Option<Warmup> {
    if let (Some(text), Some(warmup)) = (&written.warmup_duration, &written.warmup) {
        let message = format!(
            "`warmup` and `warmupDurationSecs: {}` exclude each other",
            text.value
        );
        report.error(codes::CONTRADICTION, &warmup.at, message, "keep `warmup`");
    }
    let Some(warmup) = &written.warmup else {
        return Some(Warmup {
            duration: some_time(written.warmup_duration.as_ref(), report)?,
            minimum_percent: WARMUP_PERCENT,
            aggression_thousandths: 1_000,
        });
    };
    let duration = report.required(warmup.duration.as_ref(), &warmup.at, "duration");
    let bounded = |number: Option<&SpannedValue<f64>>, least: f64, most: f64, default: f64| {
        let Some(number) = number else {
            return default;
        };
        if !(least..=most).contains(&number.value) {
            let message = format!("{} is out of bounds", number.value);
            let help = format!("from {least} to {most}");
            report.error(codes::BAD_VALUE, &number.at, message, help);
        }
        number.value.clamp(least, most)
    };
    let least = bounded(
        warmup.minimum_percent.as_ref(),
        0.0,
        100.0,
        f64::from(WARMUP_PERCENT),
    );
    let aggression = bounded(warmup.aggression.as_ref(), 0.001, 1_000.0, 1.0);
    Some(Warmup {
        duration: some_time(duration, report)?,
        minimum_percent: least as u32,
        aggression_thousandths: (aggression * 1_000.0) as u32,
    })
}

pub(in crate::check) fn outliers(
    written: &written::OutlierDetection,
    report: &Report,
) -> OutlierDetection {
    let usual = OutlierDetection::default();
    let count = |number: &Option<_>| count(number.as_ref(), report);
    let time = |text: &Option<Text>, usual| match text {
        Some(text) => some_time(Some(text), report).unwrap_or(usual),
        None => usual,
    };
    let split = written.split.as_ref().is_some_and(|flag| flag.value);
    let local = count(&written.local);
    if let (Some(number), false) = (&written.local, split) {
        let message = "`consecutiveLocalOriginFailures` counts nothing";
        let help = "it needs `splitExternalLocalOriginErrors: true`";
        report.error(codes::CONTRADICTION, &number.at, message, help);
    }
    OutlierDetection {
        consecutive_5xx: count(&written.five).unwrap_or(usual.consecutive_5xx),
        consecutive_gateway: count(&written.gateway).unwrap_or(usual.consecutive_gateway),
        // Envoy's default.
        consecutive_local: split.then(|| local.unwrap_or(5)),
        interval: time(&written.interval, usual.interval),
        base_ejection: time(&written.base_ejection, usual.base_ejection),
        max_ejection_percent: percent(written.max_ejection_percent.as_ref(), report)
            .unwrap_or(usual.max_ejection_percent),
        min_health_percent: percent(written.min_health_percent.as_ref(), report)
            .unwrap_or(usual.min_health_percent),
        // Success rates are said beside `spec`, and put in where all of it is read.
        ..usual
    }
}

pub(in crate::check) fn pool(
    written: &written::ConnectionPool,
    report: &Report,
) -> Option<ConnectionPool> {
    let (tcp, http) = (&written.tcp, &written.http);
    let [keep, upgrade] = H2_UPGRADE_POLICIES.map(|(word, value)| (word, Some(value)));
    let words = [("DEFAULT", None), keep, upgrade];
    let http2_upgrade = match &http.h2_upgrade_policy {
        Some(text) => report.one_of(text, &words)?,
        None => None,
    };
    let limit = |number: &Option<_>| limit(number.as_ref(), report);
    let time = |text: &Option<Text>| some_time(text.as_ref(), report);
    let use_client_protocol = http.use_client_protocol.as_ref();
    Some(ConnectionPool {
        http2_upgrade,
        use_client_protocol: use_client_protocol.is_some_and(|flag| flag.value),
        max_connections: limit(&tcp.max_connections),
        connect_timeout: time(&tcp.connect_timeout),
        tcp_idle: time(&tcp.idle_timeout),
        keep_alive: tcp.keep_alive.as_ref().map(|said| TcpKeepAlive {
            probes: limit(&said.probes),
            time: time(&said.time),
            interval: time(&said.interval),
        }),
        max_pending: limit(&http.max_pending),
        max_requests: limit(&http.max_requests),
        max_retries: limit(&http.max_retries),
        requests_per_connection: limit(&http.requests_per_connection),
        http_idle: time(&http.idle_timeout),
    })
}
