//! Check of HealthCheck. Refuses a check that a proxy would not run as written, or would run without a pause.

use std::ops::Range;
use std::time::Duration;

use crate::check::destination::whole;
use crate::check::probe;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Fields, Report, SpannedValue};
use crate::mesh::HealthCheck;
use crate::mesh::health_check::{CheckQuestion, CheckTerms, MAX_EXPECTED};
use crate::written::{Text, health_check as written};

/// Default interval: Kubernetes' `periodSeconds`.
const INTERVAL: Duration = Duration::from_secs(10);

/// The least of it: each proxy asks each endpoint.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

/// Default time limit of a response, unless the interval is shorter: Kubernetes' `timeoutSeconds`.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Default jitter of the interval, in hundredths: proxies that start together soon diverge.
const JITTER_PERCENT: u32 = 10;

/// Default number of good answers in a row: Kubernetes' `successThreshold`.
const HEALTHY: u32 = 1;

/// Default number of bad answers in a row: Kubernetes' `failureThreshold`.
const UNHEALTHY: u32 = 3;

/// Most answers in a row that are waited for.
const MAX_THRESHOLD: i64 = 1_000;

pub(in crate::check) fn health_check(
    meta: Meta,
    fields: &mut Fields<'_>,
    report: &Report,
) -> Option<HealthCheck> {
    let read = written::HealthCheck::read(fields);
    let written = report.required(read, &meta.at, "spec")?;
    let host = report.required(written.host.as_ref(), &written.at, "host");
    let host = host.and_then(|text| whole(text, &meta.name, report));
    let port = match &written.port {
        Some(number) => Some(report.port(number)?),
        None => None,
    };
    Some(HealthCheck {
        selector: values::selector(written.selector.as_ref(), report),
        terms: terms(&written, report)?,
        host: host?,
        port,
        name: meta.name,
        source: meta.source,
    })
}

fn terms(written: &written::HealthCheck, report: &Report) -> Option<CheckTerms> {
    let question = question(written, report);
    let interval = time(written.interval.as_ref(), LEAST_INTERVAL, INTERVAL, report);
    let usual = interval.map_or(TIMEOUT, |interval| TIMEOUT.min(interval));
    let least = Duration::from_millis(1);
    let timeout = time(written.timeout.as_ref(), least, usual, report);
    if let (Some(text), Some(timeout), Some(interval)) = (&written.timeout, timeout, interval)
        && timeout > interval
    {
        let help = format!("at most the interval, {interval:?}");
        report.bad(text, ": it is longer than the interval", help);
    }
    let number = |number: Option<&SpannedValue<i64>>, least, most, usual| match number {
        Some(number) => within(number, least, most, report),
        None => Some(usual),
    };
    let jitter = number(written.jitter.as_ref(), 0, 100, JITTER_PERCENT);
    let healthy = number(written.healthy.as_ref(), 1, MAX_THRESHOLD, HEALTHY);
    let unhealthy = number(written.unhealthy.as_ref(), 1, MAX_THRESHOLD, UNHEALTHY);
    let panic = number(written.panic.as_ref(), 0, 100, 0);
    Some(CheckTerms {
        question: question?,
        interval: interval?,
        timeout: timeout?,
        jitter_percent: jitter?,
        healthy_threshold: healthy?,
        unhealthy_threshold: unhealthy?,
        panic_percent: panic?,
    })
}

fn time(
    text: Option<&Text>,
    least: Duration,
    usual: Duration,
    report: &Report,
) -> Option<Duration> {
    let Some(text) = text else {
        return Some(usual);
    };
    let time = report.duration(text)?;
    if time < least {
        report.bad(text, " here", format!("at least {least:?}"));
        return None;
    }
    Some(time)
}

fn within(number: &SpannedValue<i64>, least: i64, most: i64, report: &Report) -> Option<u32> {
    let fits = (least..=most).contains(&number.value);
    if !fits {
        let message = format!("{} is not allowed", number.value);
        let help = format!("write a number from {least} to {most}");
        report.error(codes::BAD_VALUE, &number.at, message, help);
    }
    u32::try_from(number.value).ok().filter(|_| fits)
}

fn question(written: &written::HealthCheck, report: &Report) -> Option<CheckQuestion> {
    match (&written.http, &written.grpc, &written.tcp) {
        (Some(http), None, None) => self::http(http, report),
        (None, Some(grpc), None) => {
            let service = match &grpc.service {
                None => "".into(),
                Some(text) => probe::service(text, report)?,
            };
            Some(CheckQuestion::Grpc { service })
        }
        (None, None, Some(_)) => Some(CheckQuestion::Tcp),
        (None, None, None) => {
            let message = "the check has no protocol";
            let help = "give it one of http, grpc, tcp; `tcp: {}` asks for a connection";
            report.error(codes::MISSING, &written.at, message, help);
            None
        }
        _ => {
            let message = "a check has exactly one protocol";
            let help = "give it one of http, grpc, tcp";
            report.error(codes::CONTRADICTION, &written.at, message, help);
            None
        }
    }
}

fn http(written: &written::HttpQuestion, report: &Report) -> Option<CheckQuestion> {
    let path = report.required(written.path.as_ref(), &written.at, "path");
    let path = path.and_then(|text| probe::path(text, report));
    let host = match &written.host {
        None => None,
        Some(text) => {
            let name = values::hostname(text, report)?;
            if name.as_str().contains('*') {
                let help = "write one name; without it the destination's own host is named";
                report.bad(text, " in a request", help);
                return None;
            }
            Some(name.as_str().into())
        }
    };
    if let Some(one) = written.expected.get(MAX_EXPECTED) {
        let message = format!("a check expects at most {MAX_EXPECTED} ranges of statuses");
        report.error(codes::LIMIT, &one.at, message, "");
    }
    let expected = written.expected.iter();
    let mut expected: Vec<Range<u16>> = expected
        .map(|one| statuses(one, report))
        .collect::<Option<_>>()?;
    if expected.is_empty() {
        expected.push(200..201);
    }
    Some(CheckQuestion::Http {
        path: path?,
        host,
        expected,
    })
}

/// From `start` to before `end`, as in Envoy.
fn statuses(written: &written::Statuses, report: &Report) -> Option<Range<u16>> {
    let start = report.required(written.start.as_ref(), &written.at, "start")?;
    let end = report.required(written.end.as_ref(), &written.at, "end")?;
    if !(100 <= start.value && start.value < end.value && end.value <= 600) {
        let message = format!(
            "no status is in the range from {} to before {}",
            start.value, end.value
        );
        let help = "such as {start: 200, end: 300}, within 100 and 600";
        report.error(codes::BAD_VALUE, &written.at, message, help);
        return None;
    }
    Some(u16::try_from(start.value).ok()?..u16::try_from(end.value).ok()?)
}
