//! Check of HealthCheck. Refuses a check that a proxy would not run as written, or would run without a pause.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use crate::check::destination::whole;
use crate::check::probe;
use crate::check::values::{self, Meta};
use crate::codes;
use crate::decode::{Fields, Report, Text};
use crate::mesh::HealthCheck;
use crate::mesh::health_check::{CheckQuestion, CheckTerms, MAX_EXPECTED};

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
    fields.ignore(&["status"]);
    let mut spec = report.required(fields.inner("spec"), &meta.at, "spec")?;
    let host = report.required(spec.text("host"), spec.at(), "host");
    let host = host.and_then(|text| whole(&text, &meta.name, report));
    let port = spec.integer("port").map(|number| report.port(&number));
    let selector = values::selected(&mut spec, "selector", "matchLabels");
    let terms = terms(&mut spec);
    spec.finish();
    Some(HealthCheck {
        selector,
        terms: terms?,
        host: host?,
        port: port.flatten(),
        name: meta.name,
        source: meta.source,
    })
}

fn terms(spec: &mut Fields<'_>) -> Option<CheckTerms> {
    let report = spec.report();
    let interval = time(
        spec.text("interval").as_ref(),
        LEAST_INTERVAL,
        INTERVAL,
        report,
    );
    let usual = interval.map_or(TIMEOUT, |interval| TIMEOUT.min(interval));
    let least = Duration::from_millis(1);
    let jitter = number(spec, "intervalJitterPercent", 0..=100, JITTER_PERCENT);
    let limit = spec.text("timeout");
    let timeout = time(limit.as_ref(), least, usual, report);
    if let (Some(text), Some(timeout), Some(interval)) = (&limit, timeout, interval)
        && timeout > interval
    {
        let help = format!("at most the interval, {interval:?}");
        report.bad(text, ": it is longer than the interval", help);
    }
    let healthy = number(spec, "healthyThreshold", 1..=MAX_THRESHOLD, HEALTHY);
    let unhealthy = number(spec, "unhealthyThreshold", 1..=MAX_THRESHOLD, UNHEALTHY);
    let panic = number(spec, "panicThreshold", 0..=100, 0);
    Some(CheckTerms {
        question: question(spec)?,
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

fn number(
    spec: &mut Fields<'_>,
    name: &'static str,
    range: RangeInclusive<i64>,
    usual: u32,
) -> Option<u32> {
    let Some(number) = spec.integer(name) else {
        return Some(usual);
    };
    let fits = range.contains(&number.value);
    if !fits {
        let message = format!("{} is not allowed", number.value);
        let help = format!("write a number from {} to {}", range.start(), range.end());
        let report = spec.report();
        report.error(codes::BAD_VALUE, &number.at, message, help);
    }
    u32::try_from(number.value).ok().filter(|_| fits)
}

fn question(spec: &mut Fields<'_>) -> Option<CheckQuestion> {
    let report = spec.report();
    let questions = [
        spec.mapping("http", http),
        spec.mapping("grpc", grpc),
        spec.mapping("tcp", |_| Some(CheckQuestion::Tcp)),
    ];
    let mut questions = questions.into_iter().flatten();
    match (questions.next(), questions.next()) {
        (Some(question), None) => question,
        (None, _) => {
            let message = "the check has no protocol";
            let help = "give it one of http, grpc, tcp; `tcp: {}` asks for a connection";
            report.error(codes::MISSING, spec.at(), message, help);
            None
        }
        (Some(_), Some(_)) => {
            let message = "a check has exactly one protocol";
            let help = "give it one of http, grpc, tcp";
            report.error(codes::CONTRADICTION, spec.at(), message, help);
            None
        }
    }
}

fn grpc(fields: &mut Fields<'_>) -> Option<CheckQuestion> {
    let service = match fields.text("service") {
        None => "".into(),
        Some(text) => probe::service(&text, fields.report())?,
    };
    Some(CheckQuestion::Grpc { service })
}

fn http(fields: &mut Fields<'_>) -> Option<CheckQuestion> {
    let report = fields.report();
    let path = report.required(fields.text("path"), fields.at(), "path");
    let path = path.and_then(|text| probe::path(&text, report));
    let host = fields.text("host").map(|text| host(&text, report));
    let statuses = |fields: &mut Fields<'_>| Some((fields.at().clone(), statuses(fields)));
    let expected = fields.mappings("expectedStatuses", statuses);
    if let Some((at, _)) = expected.get(MAX_EXPECTED) {
        let message = format!("a check expects at most {MAX_EXPECTED} ranges of statuses");
        report.error(codes::LIMIT, at, message, "");
    }
    let expected = expected.into_iter().map(|(_, range)| range);
    let mut expected: Vec<Range<u16>> = expected.collect::<Option<_>>()?;
    if expected.is_empty() {
        expected.push(200..201);
    }
    Some(CheckQuestion::Http {
        path: path?,
        host: host.flatten(),
        expected,
    })
}

fn host(text: &Text, report: &Report) -> Option<Arc<str>> {
    let name = values::hostname(text, report)?;
    if name.as_str().contains('*') {
        let help = "write one name; without it the destination's own host is named";
        report.bad(text, " in a request", help);
        return None;
    }
    Some(name.as_str().into())
}

/// From `start` to before `end`, as in Envoy.
fn statuses(fields: &mut Fields<'_>) -> Option<Range<u16>> {
    let report = fields.report();
    let (start, end) = (fields.integer("start"), fields.integer("end"));
    let start = report.required(start, fields.at(), "start")?.value;
    let end = report.required(end, fields.at(), "end")?.value;
    if !(100 <= start && start < end && end <= 600) {
        let message = format!("no status is in the range from {start} to before {end}");
        let help = "such as {start: 200, end: 300}, within 100 and 600";
        report.error(codes::BAD_VALUE, fields.at(), message, help);
        return None;
    }
    Some(u16::try_from(start).ok()?..u16::try_from(end).ok()?)
}
