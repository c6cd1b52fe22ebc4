//! The result of a run: the figures, whether they may be believed, and the JSON that records them. Field names are
//! stable; `docs/reference/load.md` documents them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::clock::{MILLISECOND, SECOND};
use crate::condition::LoadCondition;
use crate::options::{LoadOptions, UNTIL_STOPPED};
use crate::profile::ProfileSegment;
use crate::samples::{Samples, Summary};
use crate::schedule::ArrivalPattern;
use crate::tally::{Failures, RequestOutcome, RunTally};
use crate::units::time;

/// The generator's own lateness at p99, in µs, beyond which latencies are partly its own.
pub const MAX_LATENESS_P99_US: u64 = 1_000;
/// Largest difference between the achieved and the scheduled rate, as a fraction.
pub const MAX_RATE_MISS: f64 = 0.01;
/// The fraction of requests that may fail before the latencies say nothing about the service.
pub const MAX_ERROR_FRACTION: f64 = 0.01;
/// With answers arriving up to this long after the last scheduled instant, the rate still counts as kept.
const TAIL_NS: u64 = 100 * MILLISECOND;

/// A finished run, in the shape of its JSON.
#[derive(Debug, Clone, Serialize)]
pub struct LoadResult {
    /// Version of this format.
    pub version: u32,
    /// Options of the run.
    pub options: EchoedOptions,
    /// Unix time at which the measured part began, in nanoseconds.
    pub start_unix_ns: u64,
    /// The same in RFC 3339, UTC.
    pub start_time: String,
    /// Length of the measured part of the schedule, in seconds.
    pub duration_s: f64,
    /// Requests per second asked for; 0 is maximum.
    pub requested_rps: f64,
    /// Responses per second.
    pub achieved_rps: f64,
    /// Requests that were due in the measured part.
    pub scheduled: u64,
    /// Of these, requests that were sent.
    pub sent: u64,
    /// Of these, requests that were answered as expected.
    pub ok: u64,
    /// The others, by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// All errors.
    pub errors_total: u64,
    /// Of these, failures whose cause is known, by its words; eight causes at most.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub causes: BTreeMap<String, u64>,
    /// From the intended send time to the end of the response (or to the failure), all requests.
    pub latency_us: Summary,
    /// The same, of requests that were answered as expected.
    pub ok_latency_us: Summary,
    /// From the actual send, all that were sent.
    pub service_us: Summary,
    /// Results by target, if there are several.
    pub targets: Vec<TargetResult>,
    /// From the actual send to the first byte of the answer.
    pub first_byte_us: Summary,
    /// Making a TCP connection, all of the run.
    pub connect_us: Summary,
    /// Its TLS handshake.
    pub tls_us: Summary,
    /// Parameters that TLS agreed on: version, suite, key exchange, ALPN.
    pub tls: Option<String>,
    /// As `latency_us`, of failed requests only.
    pub error_latency_us: Summary,
    /// The generator's own lateness: actual minus intended send, where a connection was free in time.
    pub lateness_us: Lateness,
    /// `latency_us` of the requests due in the first and in the second half of the measured part.
    pub halves_us: [Summary; 2],
    /// By the second in which requests were due.
    pub per_second: Vec<PerSecond>,
    /// Length of `intervals`, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<u64>,
    /// By the interval in which requests were due.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<IntervalResult>,
    /// All of `latency_us`, HdrHistogram V2 compressed, base64, values in µs.
    pub latency_histogram: String,
    /// All of `service_us`, likewise.
    pub service_histogram: String,
    /// Responses by status code.
    pub status: BTreeMap<String, u64>,
    /// Bytes moved in the measured part.
    pub bytes: Bytes,
    /// Connections opened in the measured part (reconnects, when keep-alive is on).
    pub connects: u64,
    /// Times that bytes came which no request had asked for.
    pub unsolicited: u64,
    /// CPU time of the generator's threads per request sent.
    pub cpu_us_per_request: f64,
    /// True if the figures may be believed.
    pub valid: bool,
    /// Reasons why the figures are invalid.
    pub invalid_reasons: Vec<String>,
    /// What the reader of the figures must know, though they are valid.
    pub caveats: Vec<String>,
    /// The thresholds of the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub thresholds: Vec<Threshold>,
    /// The run was ended before its time.
    pub interrupted: bool,
    /// The condition that ended it.
    pub aborted: Option<String>,
    /// The samples of `latency_us`.
    #[serde(skip)]
    pub(crate) latency: Samples,
    #[serde(skip)]
    pub(crate) error_latency: Samples,
    #[serde(skip)]
    pub(crate) failures: Failures,
    #[serde(skip)]
    pub(crate) good: GoodSamples,
}

/// A condition on the whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Threshold {
    /// The condition as written.
    pub threshold: String,
    /// True if it is met.
    pub holds: bool,
    /// The figure found, in words.
    pub found: String,
}

/// Samples of the requests that were answered as expected, which the table shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct GoodSamples {
    pub(crate) latency: Samples,
    pub(crate) service: Summary,
    pub(crate) first_byte: Summary,
}

impl GoodSamples {
    fn of(tally: &RunTally) -> Self {
        let service = tally.service.without(&tally.error_service);
        let first_byte = tally.first_byte.without(&tally.error_first_byte);
        Self {
            latency: tally.latency.without(&tally.error_latency),
            service: service.summary(),
            first_byte: first_byte.summary(),
        }
    }
}

/// Result of one target's requests.
#[derive(Debug, Clone, Serialize)]
pub struct TargetResult {
    /// URL of the target.
    pub url: String,
    /// Protocol of the target.
    pub protocol: &'static str,
    /// Weight relative to the other targets.
    pub weight: f64,
    /// Answered as expected.
    pub ok: u64,
    /// Failed.
    pub errors: u64,
    /// From the intended send time.
    pub latency_us: Summary,
    /// The same, of requests that were answered as expected.
    pub ok_latency_us: Summary,
}

fn by_target(options: &LoadOptions, tally: &RunTally) -> Vec<TargetResult> {
    let counted = options.targets().zip(&tally.targets);
    counted
        .map(|((weight, target), counted)| TargetResult {
            url: target.url.clone(),
            protocol: options.spoken_at(target).name(),
            weight,
            ok: counted.ok,
            errors: counted.errors,
            latency_us: counted.latency.summary(),
            ok_latency_us: counted.latency.without(&counted.error_latency).summary(),
        })
        .collect()
}

/// The options as run.
#[derive(Debug, Clone, Serialize)]
pub struct EchoedOptions {
    /// Target.
    pub url: String,
    /// Protocol.
    pub protocol: &'static str,
    /// Method.
    pub method: String,
    /// Requests per second; 0 is maximum.
    pub rate: f64,
    /// Connections.
    pub connections: usize,
    /// Requests in flight on each, at most.
    pub streams: usize,
    /// Threads.
    pub threads: usize,
    /// The rate over time, where it is not constant; `rate` is its mean.
    pub rate_profile: Option<String>,
    /// Requests due at once.
    pub burst: u64,
    /// Arrival pattern; `closed` when the rate is 0, `replay` of a trace.
    pub arrival: &'static str,
    /// Seed of random arrivals.
    pub seed: u64,
    /// Seconds.
    pub duration_s: f64,
    /// Seconds.
    pub warmup_s: f64,
    /// Seconds.
    pub timeout_s: f64,
    /// Connections are reused.
    pub keepalive: bool,
    /// Source address.
    pub bind: Option<String>,
    /// Headers added.
    pub headers: Vec<String>,
    /// Request body bytes; the first of several sizes.
    pub payload_size: usize,
    /// Several sizes with their weights.
    pub payload_sizes: Vec<(usize, f64)>,
    /// Requests on a connection before it is closed, from and to.
    pub connection_reuse: Option<(u64, u64)>,
    /// Expected body length.
    pub expect_size: Option<u64>,
    /// Expected status.
    pub expect_status: Option<u16>,
    /// Requests after which a closed loop ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
}

/// The generator's own lateness in µs.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Lateness {
    /// Median.
    pub p50: u64,
    /// 99th percentile; the bound of validity is on it.
    pub p99: u64,
    /// Largest.
    pub max: u64,
    /// Sends that found a connection free.
    pub count: u64,
}

impl Lateness {
    fn of(samples: &Samples) -> Self {
        Self {
            p50: samples.quantile_us(0.50),
            p99: samples.quantile_us(0.99),
            max: samples.max_us(),
            count: samples.count(),
        }
    }
}

/// One short interval of a run.
#[derive(Debug, Clone, Serialize)]
pub struct IntervalResult {
    /// Milliseconds since the measurement began.
    pub t_ms: u64,
    /// Good ones of the requests due in it.
    pub ok: u64,
    /// Failed ones.
    pub errors: u64,
    /// Those that failed in it, whenever they were due; of the last interval, also those that failed later.
    pub failed: u64,
    /// Latency histogram, as `latency_histogram`.
    pub histogram: String,
}

/// One second of a run.
#[derive(Debug, Clone, Serialize)]
pub struct PerSecond {
    /// Seconds since the measurement began.
    pub t: usize,
    /// Requests due in this second that were sent.
    pub sent: u64,
    /// Of these, requests that were answered as expected.
    pub ok: u64,
    /// Failed ones.
    pub errors: u64,
    /// Median latency, µs.
    pub p50: u64,
    /// 99th percentile, µs.
    pub p99: u64,
    /// Largest, µs.
    pub max: u64,
    /// Latency histogram, as `latency_histogram`.
    pub histogram: String,
}

/// Bytes moved.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Bytes {
    /// Request bytes written.
    pub sent: u64,
    /// Response bytes read, heads included.
    pub received: u64,
    /// Of these, bytes of bodies of counted responses.
    pub body: u64,
}

impl LoadResult {
    pub(crate) fn new(
        options: &LoadOptions,
        tally: &RunTally,
        start_unix_ns: u64,
        interrupted: bool,
    ) -> Self {
        let span = tally.end.saturating_sub(tally.start);
        let duration_s = span as f64 / SECOND as f64;
        let good = GoodSamples::of(tally);
        let errors_total = tally.errors.total();
        let mut result = Self {
            version: 1,
            options: EchoedOptions::of(options),
            start_unix_ns,
            start_time: rfc3339(start_unix_ns),
            duration_s,
            requested_rps: options.rate,
            achieved_rps: rate(tally.answered, achieved_span(tally, span)),
            scheduled: tally.scheduled,
            sent: tally.sent,
            ok: tally.ok,
            errors: tally.errors.by_kind(),
            errors_total,
            causes: tally.errors.by_cause(),
            latency_us: tally.latency.summary(),
            ok_latency_us: good.latency.summary(),
            service_us: tally.service.summary(),
            targets: by_target(options, tally),
            first_byte_us: tally.first_byte.summary(),
            connect_us: tally.connecting.summary(),
            tls_us: tally.handshake.summary(),
            tls: tally.agreed.clone(),
            error_latency_us: tally.error_latency.summary(),
            lateness_us: Lateness::of(&tally.lateness),
            halves_us: [tally.halves[0].summary(), tally.halves[1].summary()],
            per_second: per_second(tally),
            interval_ms: (!options.interval.is_zero())
                .then_some(options.interval.as_millis() as u64),
            intervals: intervals(tally, options),
            latency_histogram: tally.latency.encode(),
            service_histogram: tally.service.encode(),
            status: named(&tally.statuses),
            bytes: Bytes {
                sent: tally.bytes_sent,
                received: tally.bytes_received,
                body: tally.body_bytes,
            },
            connects: tally.connects,
            unsolicited: tally.unsolicited,
            cpu_us_per_request: tally.cpu_ns as f64 / 1_000.0 / tally.sent.max(1) as f64,
            valid: true,
            invalid_reasons: Vec::new(),
            caveats: Vec::new(),
            thresholds: thresholds(&options.thresholds, &good.latency, errors_total),
            interrupted,
            aborted: None,
            latency: tally.latency.clone(),
            error_latency: tally.error_latency.clone(),
            failures: tally.errors.clone(),
            good,
        };
        result.judge(tally, span);
        result
    }

    /// Decides whether the figures may be believed.
    fn judge(&mut self, tally: &RunTally, span: u64) {
        self.caveats
            .extend(self.lateness_caveat().filter(|_| self.ok > 0));
        self.invalid_reasons = match self.ok {
            0 => vec![self.unanswered(tally)],
            _ => self.mistrusted(tally, span),
        };
        if self.interrupted {
            let why = "the run was interrupted".to_owned();
            self.invalid_reasons.push(why);
        }
        self.valid = self.invalid_reasons.is_empty();
    }

    /// The generator's own lateness, where it is so large that latencies are partly its own.
    fn lateness_caveat(&self) -> Option<String> {
        let late = self.lateness_us.p99;
        (self.requested_rps > 0.0 && late > MAX_LATENESS_P99_US).then(|| {
            format!(
                "the generator was late: {} at p99, which latencies contain",
                time(late)
            )
        })
    }

    /// Why no request was answered as expected. Everything else follows from that.
    fn unanswered(&self, tally: &RunTally) -> String {
        let what = match tally.answered {
            0 => "no request was answered",
            _ => "no request was answered as expected",
        };
        match self.failures.in_words().first() {
            Some((_, _, cause)) => format!("{what}: {cause}"),
            None => what.to_owned(),
        }
    }

    /// Reasons why the figures may not be believed.
    fn mistrusted(&self, tally: &RunTally, span: u64) -> Vec<String> {
        let mut reasons = Vec::new();
        let planned = rate(self.scheduled, span);
        if self.requested_rps > 0.0 && self.achieved_rps < planned * (1.0 - MAX_RATE_MISS) {
            let achieved = self.achieved_rps;
            reasons.push(format!(
                "the rate was missed by more than {}%: {achieved:.1} responses/s of {planned:.1} scheduled",
                MAX_RATE_MISS * 100.0
            ));
        }
        if self.errors_total as f64 > self.scheduled as f64 * MAX_ERROR_FRACTION {
            let (errors, scheduled) = (self.errors_total, self.scheduled);
            let bound = MAX_ERROR_FRACTION * 100.0;
            reasons.push(format!(
                "more than {bound}% of requests failed: {errors} of {scheduled}"
            ));
        }
        let unsent = tally.errors.of(RequestOutcome::Unsent);
        if unsent > 0 {
            reasons.push(format!(
                "{unsent} due requests never found a free connection"
            ));
        }
        reasons
    }

    /// Ends the judgement of a run that was ended for this reason: everything else follows from it.
    pub(crate) fn abort(&mut self, why: String) {
        self.valid = false;
        self.invalid_reasons = vec![why.clone()];
        self.aborted = Some(why);
    }

    /// The JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("invariant: the result has string keys only")
    }
}

impl EchoedOptions {
    fn of(options: &LoadOptions) -> Self {
        Self {
            url: options.target.url.clone(),
            protocol: options.protocol.name(),
            method: options.spoken_method().to_owned(),
            rate: options.rate,
            connections: options.connections,
            streams: options.streams,
            threads: options.threads,
            rate_profile: profile_text(&options.parts),
            burst: options.burst,
            arrival: match options.replay {
                Some(_) => "replay",
                None => arrival_name(options.rate, options.arrival),
            },
            seed: options.seed,
            // 0 is "until it was stopped", or until `requests` were answered.
            duration_s: if options.duration < UNTIL_STOPPED {
                options.duration.as_secs_f64()
            } else {
                0.0
            },
            warmup_s: options.warmup.as_secs_f64(),
            timeout_s: options.timeout.as_secs_f64(),
            keepalive: options.keepalive,
            bind: options.bind.map(|source| source.to_string()),
            headers: options
                .headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}"))
                .collect(),
            payload_size: options
                .sizes
                .first()
                .map_or(options.body.len(), |(size, _)| *size),
            payload_sizes: options.sizes.clone(),
            connection_reuse: options.reuse,
            expect_size: options.expect_size,
            expect_status: options.expect_status,
            requests: options.requests,
        }
    }
}

/// The rate over time as it may be written; none where it is constant.
fn profile_text(parts: &[ProfileSegment]) -> Option<String> {
    let each = parts.iter().map(|part| {
        let rate = if part.from == part.to {
            part.from.to_string()
        } else {
            format!("{}..{}", part.from, part.to)
        };
        match part.length {
            Some(length) => format!("{rate}@{length:?}"),
            None => rate,
        }
    });
    let text = each.collect::<Vec<_>>().join(",");
    (!text.is_empty()).then_some(text)
}

/// The word for how requests were spaced; there is no schedule at maximum rate.
fn arrival_name(rate: f64, arrival: ArrivalPattern) -> &'static str {
    if rate > 0.0 { arrival.name() } else { "closed" }
}

fn rate(count: u64, span: u64) -> f64 {
    count as f64 * SECOND as f64 / span.max(1) as f64
}

/// The time in which the answers came: the schedule's, and longer if the last came well after it.
fn achieved_span(tally: &RunTally, span: u64) -> u64 {
    let until_last = tally.last_done.saturating_sub(tally.start);
    if until_last > span + TAIL_NS {
        until_last
    } else {
        span
    }
}

fn intervals(tally: &RunTally, options: &LoadOptions) -> Vec<IntervalResult> {
    let length = options.interval.as_millis() as u64;
    let last = tally.intervals.len().saturating_sub(1);
    let failed = |at: usize| -> u64 {
        let from = tally.failures.get(at..).unwrap_or_default();
        let until = if at == last { from.len() } else { 1 };
        from.iter().take(until).sum()
    };
    let intervals = tally.intervals.iter().enumerate();
    intervals
        .map(|(at, interval)| IntervalResult {
            t_ms: at as u64 * length,
            ok: interval.ok,
            errors: interval.errors,
            failed: failed(at),
            histogram: interval.latency.encode(),
        })
        .collect()
}

fn per_second(tally: &RunTally) -> Vec<PerSecond> {
    let seconds = tally.seconds.iter().enumerate();
    seconds
        .map(|(t, second)| PerSecond {
            t,
            sent: second.sent,
            ok: second.ok,
            errors: second.errors,
            p50: second.latency.quantile_us(0.50),
            p99: second.latency.quantile_us(0.99),
            max: second.latency.max_us(),
            histogram: second.latency.encode(),
        })
        .collect()
}

fn named(statuses: &BTreeMap<u16, u64>) -> BTreeMap<String, u64> {
    let statuses = statuses.iter();
    statuses
        .map(|(status, count)| (status.to_string(), *count))
        .collect()
}

fn thresholds(conditions: &[LoadCondition], good: &Samples, errors: u64) -> Vec<Threshold> {
    let judged = conditions.iter().map(|condition| {
        let (holds, found) = condition.of(good, errors);
        Threshold {
            threshold: condition.to_string(),
            holds,
            found,
        }
    });
    judged.collect()
}

/// A Unix time as RFC 3339 in UTC with nanoseconds (days to civil date by the usual era arithmetic).
pub(crate) fn rfc3339(unix_ns: u64) -> String {
    let (seconds, nanoseconds) = (unix_ns / SECOND, unix_ns % SECOND);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds:09}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::options::LoadTarget;
    use crate::tally::FinishedRequest;

    /// A run of 1,000 requests in one second, each answered after 100 µs, changed by the case.
    fn judged(change: impl Fn(&mut RunTally)) -> Vec<String> {
        run(change).invalid_reasons
    }

    fn run(change: impl Fn(&mut RunTally)) -> LoadResult {
        let target = LoadTarget::parse("http://127.0.0.1:1/").expect("a literal address resolves");
        let mut options = LoadOptions::new(target);
        options.rate = 1_000.0;
        let mut tally = RunTally::new(SECOND, 2 * SECOND, false);
        tally.end = 2 * SECOND;
        for index in 0..1_000 {
            let intended = SECOND + index * MILLISECOND;
            tally.lateness.record(20_000);
            tally.finish(FinishedRequest {
                intended,
                sent: Some(intended),
                first: None,
                done: intended + MILLISECOND / 10,
                outcome: RequestOutcome::Ok,
                answered: true,
                status: Some(200),
                body: 0,
                target: 0,
            });
        }
        change(&mut tally);
        tally.settle();
        let result = LoadResult::new(&options, &tally, 0, false);
        assert_eq!(result.valid, result.invalid_reasons.is_empty());
        result
    }

    fn failed(outcome: RequestOutcome) -> FinishedRequest {
        let (intended, done) = (SECOND, 2 * SECOND);
        FinishedRequest {
            intended,
            sent: None,
            first: None,
            done,
            outcome,
            answered: false,
            status: None,
            body: 0,
            target: 0,
        }
    }

    #[test]
    fn a_punctual_run_is_valid() {
        assert_eq!(judged(|_| {}), Vec::<String>::new());
        let one_in_a_hundred = |tally: &mut RunTally| {
            (0..10).for_each(|_| tally.finish(failed(RequestOutcome::Reset)));
        };
        assert_eq!(judged(one_in_a_hundred), Vec::<String>::new());
    }

    #[test]
    fn the_halves_of_a_run_are_told_apart() {
        let mut tally = RunTally::new(SECOND, 2 * SECOND, false);
        for (intended, took) in [
            (0, 9_000),
            (SECOND, 100),
            (3 * SECOND / 2 - 1, 100),
            (3 * SECOND / 2, 300),
        ] {
            tally.finish(FinishedRequest {
                done: intended + took * 1_000,
                intended,
                ..failed(RequestOutcome::Ok)
            });
        }
        let mut twice = RunTally::new(SECOND, 2 * SECOND, false);
        twice.merge(&tally);
        twice.merge(&tally);
        let halves = twice
            .halves
            .map(|half| (half.count(), half.quantile_us(0.5)));
        assert_eq!(halves, [(4, 100), (2, 300)]);
    }

    #[test]
    fn a_run_that_cannot_be_believed_says_why() {
        let slow = judged(|tally| tally.last_done = 3 * SECOND);
        assert!(
            slow[0].starts_with("the rate was missed by more than 1%: 500.0"),
            "{slow:?}"
        );
        let failing =
            judged(|tally| (0..50).for_each(|_| tally.finish(failed(RequestOutcome::Reset))));
        assert!(
            failing
                .concat()
                .contains("more than 1% of requests failed: 50 of 1050"),
            "{failing:?}"
        );
        let starved = judged(|tally| tally.finish(failed(RequestOutcome::Unsent)));
        assert_eq!(starved, ["1 due requests never found a free connection"]);
    }

    #[test]
    fn a_late_generator_is_a_caveat_of_a_valid_run() {
        let late = run(|tally| (0..20).for_each(|_| tally.lateness.record(2 * MILLISECOND)));
        assert!(late.valid, "{:?}", late.invalid_reasons);
        assert_eq!(
            late.caveats,
            ["the generator was late: 2.00 ms at p99, which latencies contain"]
        );
        assert_eq!(run(|_| {}).caveats, Vec::<String>::new());
    }

    #[test]
    fn a_run_without_an_answer_has_one_reason_and_its_cause() {
        let dead = run(|tally| {
            *tally = RunTally::new(SECOND, 2 * SECOND, false);
            tally.end = 2 * SECOND;
            (0..9).for_each(|_| tally.finish(failed(RequestOutcome::Connect)));
            tally
                .errors
                .explain(RequestOutcome::Connect, "refused".into(), 9);
        });
        assert_eq!(dead.invalid_reasons, ["no request was answered: refused"]);
        assert_eq!((dead.ok_latency_us.count, dead.latency_us.count), (0, 9));
    }

    #[test]
    fn an_interval_tells_what_was_due_in_it_and_failed_and_what_failed_in_it() {
        let target = LoadTarget::parse("http://127.0.0.1:1/").expect("a literal address resolves");
        let mut options = LoadOptions::new(target);
        options.interval = Duration::from_millis(100);
        let mut tally = RunTally::new(SECOND, 2 * SECOND, false);
        tally.interval = 100 * MILLISECOND;
        // When each was due and when it failed, in milliseconds.
        for (due, done) in [(50, 250), (60, 250), (110, 190), (250, 900)] {
            let mut other = RunTally::new(SECOND, 2 * SECOND, false);
            other.interval = tally.interval;
            other.finish(FinishedRequest {
                intended: SECOND + due * MILLISECOND,
                done: SECOND + done * MILLISECOND,
                ..failed(RequestOutcome::Reset)
            });
            tally.merge(&other);
        }
        let told = intervals(&tally, &options);
        let told: Vec<_> = told
            .iter()
            .map(|one| (one.t_ms, one.errors, one.failed))
            .collect();
        assert_eq!(told, [(0, 2, 0), (100, 1, 1), (200, 1, 3)]);
    }

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000000Z"),
            (1_795_242_456, "2026-11-21T06:27:36.000000000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000000Z"),
        ] {
            assert_eq!(rfc3339(seconds * SECOND), text);
        }
    }
}
