//! The highest rate at which bounds hold: found by probes at rates that the last answers choose, robust against one bad
//! probe, with the curve of latency against load that they leave and its knee.
//!
//! ```text
//! double until it fails ─▶ halve the gap (each doubt: best of three) ─▶ confirm for longer ─▶ fill the curve
//! ```

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use serde::Serialize;

use crate::condition::LoadCondition;
use crate::options::{LoadOptions, MAX_RATE};
use crate::outcome::{LoadResult, MAX_ERROR_FRACTION, MAX_LATENESS_P99_US, MAX_RATE_MISS};
use crate::stop::Stop;

/// The lowest rate that is tried: below, a probe has no percentile.
const MIN_RATE: f64 = 1.0;
/// Number of probes that decide a doubtful rate, and the largest number of probes of one search.
const BEST_OF: usize = 3;
const MAX_PROBES: usize = 120;
/// The confirming probe is so many times longer.
const CONFIRM: u32 = 2;
/// Shares of the capacity at which the curve is drawn.
const CURVE: [f64; 8] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1.03, 1.1];
/// A point this near, as a fraction of the rate, is the same.
const NEAR: f64 = 0.03;

/// One probe.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Probe {
    /// Requests per second asked for.
    pub rate: f64,
    /// Responses per second that came.
    pub achieved_rps: f64,
    /// Latency from the due instant, µs.
    pub p50_us: u64,
    /// As above.
    pub p90_us: u64,
    /// As above.
    pub p99_us: u64,
    /// As above.
    pub p999_us: u64,
    /// Failed requests as a fraction of all.
    pub errors: f64,
    /// True if all bounds held and the generator kept the rate.
    pub holds: bool,
    /// Reason of the failure.
    pub why: String,
    /// The probe failed because the generator itself could not keep up.
    pub generator_late: bool,
}

/// Result of a capacity search.
#[derive(Debug, Clone, Serialize)]
pub struct Capacity {
    /// Version of this format: 1.
    pub version: u32,
    /// URL of the target.
    pub url: String,
    /// Connections.
    pub connections: usize,
    /// The bounds.
    pub bounds: Vec<String>,
    /// Precision of the answer, as a fraction.
    pub precision: f64,
    /// Highest rate at which all bounds held; 0 if no rate passed.
    pub capacity_rps: f64,
    /// The bound that failed just above `capacity_rps`.
    pub limited_by: String,
    /// The generator failed first: the server can more.
    pub generator_limited: bool,
    /// Rate at which latency begins to rise faster than load.
    pub knee_rps: Option<f64>,
    /// Every probe, by rate.
    pub curve: Vec<Probe>,
    /// The search was ended before its time.
    pub interrupted: bool,
}

/// Searches with real load. The options' rate is the first, their duration that of a probe. `say` receives each probe.
///
/// # Errors
/// When a run cannot be made.
pub fn find(
    options: &LoadOptions,
    bounds: &[LoadCondition],
    precision: f64,
    stop: &Stop,
    say: &mut dyn FnMut(&Probe),
) -> io::Result<Capacity> {
    let mut broken = None;
    let mut give_up = options.give_up;
    let mut run = |rate: f64, times: u32| {
        if stop.raised() || broken.is_some() {
            return None;
        }
        let mut options = options.clone();
        options.parts.clear();
        options.rate = rate;
        options.duration *= times;
        // Only a server that has never answered ends the search; one that breaks under load fails its probe.
        options.give_up = give_up;
        give_up = Duration::ZERO;
        match crate::run::run(&options, stop, false) {
            Ok(result) if result.interrupted => None,
            Ok(result) if result.aborted.is_some() => {
                broken = result.aborted.map(io::Error::other);
                None
            }
            Ok(result) => {
                let probe = judge(&result, bounds);
                say(&probe);
                Some(probe)
            }
            Err(error) => {
                broken = Some(error);
                None
            }
        }
    };
    let found = search(options.rate.max(MIN_RATE), precision, &mut run);
    if let Some(error) = broken {
        return Err(error);
    }
    Ok(Capacity {
        version: 1,
        url: options.target.url.clone(),
        connections: options.connections,
        bounds: bounds.iter().map(ToString::to_string).collect(),
        interrupted: stop.raised(),
        ..found
    })
}

fn judge(result: &LoadResult, bounds: &[LoadCondition]) -> Probe {
    let mut why = Vec::new();
    for bound in bounds {
        let (holds, found) = bound.of(&result.good.latency, result.errors_total);
        if !holds {
            why.push(format!("{found}, not {bound}"));
        }
    }
    // Latencies are those of answers as expected, so that the others need a bound, too.
    let failed = result.errors_total as f64 / result.scheduled.max(1) as f64;
    if failed > MAX_ERROR_FRACTION && !bounds.iter().any(LoadCondition::on_errors) {
        why.push(format!("{:.1}% of requests failed", failed * 100.0));
    }
    let planned = result.scheduled as f64 / result.duration_s.max(f64::MIN_POSITIVE);
    if why.is_empty() && result.achieved_rps < planned * (1.0 - MAX_RATE_MISS) {
        why.push(format!(
            "{:.1} responses/s of {planned:.1}",
            result.achieved_rps
        ));
    }
    let late = result.lateness_us.p99;
    let generator_late = late > MAX_LATENESS_P99_US;
    // Latency counts from the due instant and so contains it: bounds that hold, hold.
    if generator_late && !why.is_empty() {
        why.push(format!("the generator was late: p99 {late} µs"));
    }
    let latency = &result.ok_latency_us;
    Probe {
        rate: result.requested_rps,
        achieved_rps: result.achieved_rps,
        p50_us: latency.p50,
        p90_us: latency.p90,
        p99_us: latency.p99,
        p999_us: latency.p999,
        errors: failed,
        holds: why.is_empty(),
        why: why.join("; "),
        generator_late,
    }
}

/// The search itself: `run` probes a rate for so many times the usual length, or says that it must end.
pub(crate) fn search(
    first: f64,
    precision: f64,
    run: &mut dyn FnMut(f64, u32) -> Option<Probe>,
) -> Capacity {
    let mut search = Search {
        run,
        probes: Vec::new(),
    };
    let capacity = search.capacity(first, precision);
    if let Some(capacity) = capacity.filter(|capacity| *capacity > 0.0) {
        search.fill(capacity);
    }
    search.told(capacity.unwrap_or(0.0), precision)
}

struct Search<'a> {
    run: &'a mut dyn FnMut(f64, u32) -> Option<Probe>,
    probes: Vec<Probe>,
}

impl Search<'_> {
    fn probe(&mut self, rate: f64, times: u32) -> Option<bool> {
        if self.probes.len() >= MAX_PROBES {
            return None;
        }
        let probe = (self.run)(rate, times)?;
        let holds = probe.holds;
        self.probes.push(probe);
        Some(holds)
    }

    /// Reports if the bounds hold at a rate. A failure must repeat, because the machine may cause one bad probe.
    fn holds(&mut self, rate: f64, times: u32) -> Option<bool> {
        let (mut good, mut bad) = (0, 0);
        while good * 2 <= BEST_OF && bad * 2 <= BEST_OF {
            if self.probe(rate, times)? {
                good += 1;
            } else {
                bad += 1;
            }
            // One pass at the first attempt is enough: noise makes things slower, not faster.
            if good == 1 && bad == 0 {
                return Some(true);
            }
        }
        Some(good > bad)
    }

    /// The highest rate at which bounds hold, to the precision; none when it had to end before anything held.
    fn capacity(&mut self, first: f64, precision: f64) -> Option<f64> {
        let mut low = 0.0;
        let mut high = first.clamp(MIN_RATE, MAX_RATE);
        loop {
            let Some(holds) = self.holds(high, 1) else {
                return (low > 0.0).then_some(low);
            };
            if !holds {
                break;
            }
            low = high;
            if high >= MAX_RATE {
                return Some(low);
            }
            high = (high * 2.0).min(MAX_RATE);
        }
        while low == 0.0 {
            let rate = high / 2.0;
            if rate < MIN_RATE {
                return Some(0.0);
            }
            if self.holds(rate, 1)? {
                low = rate;
            } else {
                high = rate;
            }
        }
        while high / low > 1.0 + precision {
            // The geometric mean halves the gap as a ratio, and a whole rate is easier to read.
            let middle = (high * low).sqrt();
            let middle = if middle > 100.0 {
                middle.round()
            } else {
                middle
            };
            match self.holds(middle, 1) {
                Some(true) => low = middle,
                Some(false) => high = middle,
                None => return Some(low),
            }
        }
        loop {
            match self.holds(low, CONFIRM) {
                Some(false) if low / (1.0 + precision) >= MIN_RATE => low /= 1.0 + precision,
                Some(false) => return Some(0.0),
                Some(true) | None => return Some(low),
            }
        }
    }

    fn fill(&mut self, capacity: f64) {
        for share in CURVE {
            let rate = (capacity * share).clamp(MIN_RATE, MAX_RATE);
            let near = |probe: &Probe| (probe.rate / rate - 1.0).abs() < NEAR;
            if !self.probes.iter().any(near) && self.probe(rate, 1).is_none() {
                return;
            }
        }
    }

    fn told(mut self, capacity: f64, precision: f64) -> Capacity {
        let above = self
            .probes
            .iter()
            .filter(|probe| !probe.holds && probe.rate > capacity);
        let first = above.min_by(|a, b| a.rate.total_cmp(&b.rate)).cloned();
        self.probes.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        let curve: Vec<(f64, f64)> = self
            .probes
            .iter()
            .map(|probe| (probe.rate, probe.p99_us as f64))
            .collect();
        Capacity {
            version: 1,
            url: String::new(),
            connections: 0,
            bounds: Vec::new(),
            precision,
            capacity_rps: capacity,
            limited_by: first
                .as_ref()
                .map(|probe| probe.why.clone())
                .unwrap_or_default(),
            generator_limited: first.is_some_and(|probe| probe.generator_late),
            knee_rps: knee(&curve),
            curve: self.probes,
            interrupted: false,
        }
    }
}

/// Finds the knee of a curve of (rate, latency), sorted by rate. The knee is the point furthest below the straight line between
/// the ends, with rate and the logarithm of latency both scaled to 1. Returns None for fewer than four rates, and for a curve
/// that does not rise.
pub(crate) fn knee(curve: &[(f64, f64)]) -> Option<f64> {
    // The median latency of each rate.
    let mut points: Vec<(f64, f64)> = Vec::new();
    for group in curve.chunk_by(|a, b| a.0 == b.0) {
        let mut latencies: Vec<f64> = group.iter().map(|point| point.1.max(1.0)).collect();
        latencies.sort_by(f64::total_cmp);
        points.push((group[0].0, latencies[latencies.len() / 2].ln()));
    }
    let (first, last) = (*points.first()?, *points.last()?);
    let (width, height) = (last.0 - first.0, last.1 - first.1);
    if points.len() < 4 || width <= 0.0 || height < std::f64::consts::LN_2 {
        return None;
    }
    let below = |point: &(f64, f64)| (point.0 - first.0) / width - (point.1 - first.1) / height;
    let bend = points.iter().max_by(|a, b| below(a).total_cmp(&below(b)))?;
    Some(bend.0)
}

impl Capacity {
    /// The JSON text.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("invariant: the result has string keys only")
    }

    /// The table for people: the curve, then the answer.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut text = format!(
            "{}, {} connections, bounds {}\n\n{:>12}{:>12}{:>10}{:>10}{:>10}{:>10}{:>9}\n",
            self.url,
            self.connections,
            self.bounds.join(", "),
            "rate/s",
            "achieved/s",
            "p50 µs",
            "p90 µs",
            "p99 µs",
            "p99.9 µs",
            "errors"
        );
        for probe in &self.curve {
            let _ = writeln!(
                text,
                "{:>12.1}{:>12.1}{:>10}{:>10}{:>10}{:>10}{:>8.2}%  {}",
                probe.rate,
                probe.achieved_rps,
                probe.p50_us,
                probe.p90_us,
                probe.p99_us,
                probe.p999_us,
                probe.errors * 100.0,
                if probe.holds { "holds" } else { &probe.why }
            );
        }
        if let Some(knee) = self.knee_rps {
            let _ = writeln!(
                text,
                "\nknee      {knee:.1}/s: from there p99 rises faster than the load"
            );
        }
        let _ = match (self.capacity_rps > 0.0, self.limited_by.as_str()) {
            (false, "") => writeln!(text, "capacity  none: no probe finished"),
            (false, why) => writeln!(text, "capacity  none: {why}"),
            (true, "") => writeln!(
                text,
                "capacity  at least {:.1}/s: nothing failed",
                self.capacity_rps
            ),
            (true, why) => writeln!(
                text,
                "capacity  {:.1}/s (to {:.0} %); above it {why}",
                self.capacity_rps,
                self.precision * 100.0
            ),
        };
        if self.generator_limited {
            text += "          the generator was the bottleneck, not the server\n";
        }
        text
    }
}

/// Default length of a probe: some hundred samples lie beyond the 99th percentile at rates that matter.
pub const PROBE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    /// A server of one queue that serves `most` a second, and spoils each probe with that probability.
    fn found(most: f64, noise: f64, seed: u64, first: f64) -> Capacity {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut run = |rate: f64, _: u32| {
            let busy = rate / most;
            let mut p99 = if busy < 1.0 {
                4600.0 / most * 1e3 / (1.0 - busy)
            } else {
                1e7
            };
            if random.f64() < noise {
                p99 += 1e6;
            }
            // Twice what an idle server needs: half its capacity.
            let holds = p99 < 2.0 * 4600.0 / most * 1e3;
            Some(Probe {
                rate,
                p99_us: p99 as u64,
                holds,
                why: if holds {
                    String::new()
                } else {
                    "slow".to_owned()
                },
                ..Probe::default()
            })
        };
        search(first, 0.05, &mut run)
    }

    #[test]
    fn the_capacity_is_found_from_above_and_below() {
        for most in [20.0, 3_000.0, 1_234_567.0] {
            for first in [1.0, 100.0, 5_000_000.0] {
                let found = found(most, 0.0, 1, first);
                let off = found.capacity_rps / (most / 2.0);
                assert!((0.94..=1.0).contains(&off), "{most} from {first}: {off}");
                assert_eq!(found.limited_by, "slow");
                assert!(found.curve.is_sorted_by_key(|probe| probe.rate as u64));
                assert!(found.curve.len() < 60, "{}", found.curve.len());
            }
        }
    }

    #[test]
    fn one_bad_probe_in_ten_does_not_move_it() {
        let near = (1..=50).filter(|seed| {
            let off = found(3_000.0, 0.1, *seed, 100.0).capacity_rps / 1_500.0;
            (0.90..=1.0).contains(&off)
        });
        // Two of three bad together: 3 in 100 at each of a dozen doubts.
        assert!(near.count() >= 40);
    }

    #[test]
    fn a_server_that_never_or_always_holds_ends_the_search() {
        let never = &mut |rate: f64, _: u32| {
            Some(Probe {
                rate,
                why: "down".to_owned(),
                ..Probe::default()
            })
        };
        let found = search(1000.0, 0.05, never);
        assert_eq!(
            (found.capacity_rps, found.limited_by.as_str()),
            (0.0, "down")
        );
        let always = &mut |rate: f64, _: u32| {
            Some(Probe {
                rate,
                holds: true,
                ..Probe::default()
            })
        };
        let found = search(1000.0, 0.05, always);
        assert!((found.capacity_rps, found.limited_by.as_str()) == (MAX_RATE, ""));
        let mut left = 3;
        let ended = &mut |rate: f64, _: u32| {
            left -= 1;
            (left >= 0).then(|| Probe {
                rate,
                holds: true,
                ..Probe::default()
            })
        };
        assert!(
            search(100.0, 0.05, ended).capacity_rps >= 400.0,
            "what held is kept"
        );
    }

    #[test]
    fn the_knee_is_where_the_curve_bends() {
        let queue: Vec<(f64, f64)> = (1..100)
            .map(|rate| (f64::from(rate), 1e5 / (100.0 - f64::from(rate))))
            .collect();
        let bend = knee(&queue).expect("it bends");
        assert!((70.0..95.0).contains(&bend), "{bend}");
        assert_eq!(
            knee(&[(1.0, 100.0), (2.0, 101.0), (3.0, 99.0), (4.0, 100.0)]),
            None,
            "flat"
        );
        assert_eq!(knee(&[(1.0, 1.0), (2.0, 100.0)]), None, "too few");
        assert_eq!(knee(&[]), None);
    }
}
