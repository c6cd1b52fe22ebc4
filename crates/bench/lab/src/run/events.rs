//! Events on the time axis of a slice. The lab makes each event at the contestant while the load goes on, and checks for its
//! effect from outside. Afterwards it reads the effect on requests off the generator's intervals.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use voile_host::child::SupervisedChild;
use voile_load::samples::Samples;
use voile_report::events::{Interval, SliceEvent as Happened};

use crate::contestants::contestant::{CellRoute, Contestant};
use crate::contestants::effect_evidence::{EffectEvidence, LOOK_EVERY};
use crate::definition::{EventAction, ScheduledEvent};
use crate::generator::{BrokenSlice, Generated, wait_until};
use crate::hooks;
use crate::plan::RequestPath;
use crate::shared_processes::Lab;

/// Effects are looked for until so long before the next event, or the end.
const APART: Duration = Duration::from_millis(50);

/// So many good intervals in a row are a recovery.
const GOOD_INTERVALS: usize = 3;
/// Time limit of a hook.
const HOOK_BOUND: Duration = Duration::from_secs(30);

/// Makes all events of a slice whose measured part begins and ends at these moments.
pub(crate) fn happen(
    lab: &Lab<'_>,
    load: &mut SupervisedChild,
    contestant: &mut dyn Contestant,
    (way, route): (&RequestPath, &CellRoute),
    events: &[ScheduledEvent],
    (begins, ends): (Instant, Instant),
) -> Result<Vec<(Happened, SystemTime)>, BrokenSlice> {
    let mut happened = Vec::new();
    for (number, event) in events.iter().enumerate() {
        wait_until(load, begins + event.at, lab)?;
        let next = events.get(number + 1).map_or(ends, |next| begins + next.at);
        let (at, wall) = (Instant::now(), SystemTime::now());
        let mut one = Happened {
            action: event.action.word().to_owned(),
            planned_seconds: event.at.as_secs_f64(),
            slow_factor: event.slow_factor,
            ..Happened::default()
        };
        let sign = match &event.action {
            EventAction::Hook(command) => hook(lab, contestant.name(), number, command)?,
            action => contestant.act(lab, action, way),
        };
        match sign {
            Err(why) => one.failure = Some(why),
            Ok(sign) => {
                one.observed = sign.observed();
                while Instant::now() + APART < next {
                    if (lab.stopped)() {
                        return Err(BrokenSlice::Stopped);
                    }
                    if sign.seen(route) {
                        one.effect_seconds = Some(at.elapsed().as_secs_f64());
                        break;
                    }
                    if load.wait(LOOK_EVERY).is_some() {
                        break;
                    }
                }
            }
        }
        happened.push((one, wall));
    }
    Ok(happened)
}

fn hook(
    lab: &Lab<'_>,
    contestant: &str,
    number: usize,
    command: &[String],
) -> Result<Result<EffectEvidence, String>, BrokenSlice> {
    let name = format!("hook-{}", number + 1);
    let spec = hooks::spec(lab, &name, contestant, command);
    match hooks::run(lab, &name, spec, HOOK_BOUND) {
        Ok(()) => Ok(Ok(EffectEvidence::AtOnce("the command's end".to_owned()))),
        Err(BrokenSlice::Failed(why)) => Ok(Err(format!("{name}: {why}"))),
        Err(BrokenSlice::Stopped) => Err(BrokenSlice::Stopped),
    }
}

/// One recorded interval, and the samples by which events are judged.
struct CountedInterval {
    shown: Interval,
    /// The latencies of the requests that were due in it.
    samples: Samples,
    /// Requests that failed in it, whenever they were due: those that waited for their turn when an event came are lost by that one,
    /// and not by the one before it.
    failed: u64,
}

/// The slice's intervals, and the effect of its events on requests.
pub(crate) fn conclude(
    generated: &Generated,
    happened: Vec<(Happened, SystemTime)>,
) -> (Vec<Interval>, Vec<Happened>) {
    let counted: Vec<CountedInterval> = generated
        .intervals
        .iter()
        .map(|interval| {
            let samples = Samples::decode(&interval.histogram).unwrap_or_default();
            let any = |value: u64| (samples.count() > 0).then_some(value as f64);
            let shown = Interval {
                at_seconds: interval.t_ms as f64 / 1e3,
                seconds: generated.interval_ms as f64 / 1e3,
                requests: samples.count(),
                errors: interval.errors,
                p50_us: any(samples.quantile_us(0.5)),
                p90_us: any(samples.quantile_us(0.9)),
                p99_us: any(samples.quantile_us(0.99)),
                max_us: any(samples.max_us()),
            };
            CountedInterval {
                shown,
                samples,
                failed: interval.failed,
            }
        })
        .collect();
    let unix = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos());
    let start = u128::from(generated.start_unix_ns);
    let mut events: Vec<Happened> = happened
        .into_iter()
        .map(|(event, wall)| Happened {
            at_seconds: unix(wall).saturating_sub(start) as f64 / 1e9,
            ..event
        })
        .collect();
    judge(&counted, &mut events);
    let series = counted.into_iter().map(|one| one.shown).collect();
    (series, events)
}

/// Counts failed and slow requests after each event, and finds the time of recovery.
fn judge(series: &[CountedInterval], events: &mut [Happened]) {
    let Some(first) = events.first().map(|event| event.at_seconds) else {
        return;
    };
    let mut before = Samples::default();
    let ended = |interval: &Interval| interval.at_seconds + interval.seconds <= first;
    for one in series.iter().filter(|one| ended(&one.shown)) {
        before.merge(&one.samples);
    }
    let median = before.quantile_us(0.5);
    let times: Vec<f64> = events.iter().map(|event| event.at_seconds).collect();
    for (number, event) in events.iter_mut().enumerate() {
        event.median_before_us = median as f64;
        // An event that could not be made has no effect.
        if before.count() == 0 || event.failure.is_some() {
            continue;
        }
        let bound = median as f64 * event.slow_factor;
        let until = times.get(number + 1).copied().unwrap_or(f64::INFINITY);
        let after: Vec<&CountedInterval> = series
            .iter()
            .filter(|one| {
                // The interval in which an event happened is that event's.
                let ends = one.shown.at_seconds + one.shown.seconds;
                ends > event.at_seconds && ends <= until + 1e-9
            })
            .collect();
        event.failed = after.iter().map(|one| one.failed).sum();
        event.slow = after
            .iter()
            .map(|one| one.samples.count() - one.samples.count_up_to(bound as u64))
            .sum();
        let good = |one: &&CountedInterval| {
            let is_fast = one.shown.p50_us.is_some_and(|p50| p50 <= bound);
            one.shown.errors == 0 && one.failed == 0 && is_fast
        };
        let recovered = after
            .windows(GOOD_INTERVALS.min(after.len()).max(1))
            .find(|window| window.iter().all(good));
        event.recovery_seconds =
            recovered.map(|window| (window[0].shown.at_seconds - event.at_seconds).max(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Intervals of 100 ms with ten requests each, of so many µs; a negative number is that many failures.
    fn series(medians: &[i64]) -> Vec<CountedInterval> {
        let one = |(at, median): (usize, &i64)| {
            let mut samples = Samples::default();
            for _ in 0..10 {
                samples.record(median.unsigned_abs() * 1000);
            }
            let failed = if *median < 0 { 10 } else { 0 };
            let shown = Interval {
                at_seconds: at as f64 / 10.0,
                seconds: 0.1,
                requests: 10,
                errors: failed,
                p50_us: Some(median.unsigned_abs() as f64),
                ..Interval::default()
            };
            CountedInterval {
                shown,
                samples,
                failed,
            }
        };
        medians.iter().enumerate().map(one).collect()
    }

    fn event(at_seconds: f64) -> Happened {
        Happened {
            at_seconds,
            slow_factor: 3.0,
            ..Happened::default()
        }
    }

    #[test]
    fn what_failed_and_was_slow_after_an_event_is_counted_until_all_is_as_before() {
        let series = series(&[100, 100, 100, -100, 500, 100, 500, 100, 110, 100, 100]);
        let mut events = vec![event(0.35)];
        judge(&series, &mut events);
        let [one] = events.as_slice() else { panic!() };
        assert_eq!(
            (one.failed, one.slow, one.median_before_us),
            (10, 20, 100.0)
        );
        let recovery = one.recovery_seconds.expect("it recovers at 0.7 s");
        assert!((recovery - 0.35).abs() < 1e-9, "{recovery}");
    }

    /// On a slow machine most due requests wait for their turn, and an event in that time loses them.
    #[test]
    fn what_was_due_before_an_event_and_failed_after_it_is_that_events() {
        let mut series = series(&[100, 100, 100, -100, -100, -100, 100, 100, 100]);
        for (one, failed) in series.iter_mut().zip([0, 0, 0, 0, 0, 30, 0, 0, 0]) {
            one.failed = failed;
        }
        let mut events = [event(0.25), event(0.55)];
        judge(&series, &mut events);
        assert_eq!(events.map(|one| one.failed), [0, 30]);
    }

    #[test]
    fn each_event_answers_until_the_next_and_one_without_harm_recovers_at_once() {
        let series = series(&[100, 100, 100, 100, 100, 100, 900, 900, 900, 900]);
        let mut events = vec![event(0.25), event(0.6)];
        judge(&series, &mut events);
        assert_eq!((events[0].slow, events[0].recovery_seconds), (0, Some(0.0)));
        assert_eq!((events[1].slow, events[1].recovery_seconds), (40, None));
    }
}
