//! One slice: the generator as a process, samplers around its measured part, and what both say, as one [`Run`].
//!
//! ```text
//! start ─ connect ─ warm-up ─┬──────────── measured by the generator ────────────┬─ end
//!                            80 ms ├──────── samplers' window ────────┤ 20 ms
//! ```
//!
//! CPU is read at both ends of a window that lies inside the measured part, and divided by the requests of that window
//! (achieved rate × its length), so that neither process start nor connection setup is charged to requests.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use voile_host::cgroup::Throttling;
use voile_host::child::Supervised;
use voile_host::machine::{CoreSplit, CoreTime};
use voile_host::sampler::{Holdings, Usage};
use voile_load::samples::Samples;
use voile_report::record::{MachineSplit, Process, Run};

use crate::contestants::{Instance, Route};
use crate::events;
use crate::generator::{Broken, Generated, Order, finish_load, start_load, wait_until};
use crate::plan::Cell;
use crate::target::Lab;

/// The generator may take this long to start and connect before the window would begin too early.
const LEAD: Duration = Duration::from_millis(80);
/// The window ends this long before the measured part can.
const TRAIL: Duration = Duration::from_millis(20);
/// A clock that is kept right by slewing moves a slice of a second by less than a millisecond.
const CLOCK_STEP: Duration = Duration::from_millis(10);
/// How long the generator may take beyond its own plan (it waits for outstanding answers, 3 s at most).
const OVERTIME: Duration = Duration::from_secs(8);

/// Readings of the machine and of each instance at one moment.
struct Reading {
    at: Instant,
    wall: SystemTime,
    machine: Option<CoreTime>,
    split: Option<CoreSplit>,
    usage: Vec<Usage>,
    throttling: Vec<Option<Throttling>>,
}

impl Reading {
    fn take(instances: &[Instance], lab: &Lab<'_>) -> Self {
        let usage = instances
            .iter()
            .map(|instance| Usage::of_all(&instance.pids))
            .collect();
        Self {
            at: Instant::now(),
            wall: SystemTime::now(),
            machine: CoreTime::now().ok(),
            split: CoreSplit::now().ok(),
            usage,
            throttling: instances
                .iter()
                .map(|instance| lab.bounds.throttling(instance))
                .collect(),
        }
    }
}

/// What is done while the generator measures: it is given the generator, and when the measured part begins and ends.
pub(crate) type Meanwhile<'a> = dyn FnMut(
        &mut Supervised,
        (Instant, Instant),
    ) -> Result<Vec<(voile_report::events::Event, SystemTime)>, Broken>
    + 'a;

/// Runs one slice. The second part of the answer is the slice's histogram.
pub(crate) fn measure(
    lab: &Lab<'_>,
    cell: &Cell,
    route: &Route,
    order: &Order,
    shared: &[Instance],
    host: &str,
    meanwhile: &mut Meanwhile<'_>,
) -> Result<(Run, Generated), Broken> {
    let began = Instant::now();
    let (mut load, out) = start_load(lab, route, order).map_err(Broken::Failed)?;
    let mut instances = shared.to_vec();
    instances.push(Instance {
        name: "load".to_owned(),
        role: "load",
        pids: vec![load.pid()],
    });
    let window_starts = began + order.warmup + LEAD.min(order.duration / 4);
    let window_ends = began + order.warmup + order.duration - TRAIL.min(order.duration / 8);
    wait_until(&mut load, window_starts, lab)?;
    let before = Reading::take(&instances, lab);
    let begins = began + order.warmup;
    let happened = meanwhile(&mut load, (begins, begins + order.duration))?;
    wait_until(&mut load, window_ends, lab)?;
    let after = Reading::take(&instances, lab);
    let generated = finish_load(&mut load, &out, OVERTIME, lab)?;
    let (series, events) = events::conclude(&generated, happened);
    let mut run = Run {
        series,
        events,
        seconds: generated.duration_s,
        achieved_rps: generated.achieved_rps,
        requests: generated.sent,
        errors: generated.errors_total,
        generator_late_us_p99: Some(generated.lateness_us.p99 as f64),
        gigabits_per_second: generated.gbit_per_s,
        latency_us: generated.latency_us.into(),
        service_us: generated.service_us.into(),
        ..Run::of(cell)
    };
    if let Some(reason) =
        clock_stepped(&before, &after).or_else(|| window_misplaced(&before, &after, &generated))
    {
        run.invalid_reasons.push(reason);
    }
    charge(&mut run, &instances, &before, &after, host);
    for process in &mut run.processes {
        process.cores = lab.bounds.cores(&process.role);
    }
    Ok((run, generated))
}

/// Divides what was used in the window by the requests of the window.
fn charge(run: &mut Run, instances: &[Instance], before: &Reading, after: &Reading, host: &str) {
    let window = after.at.duration_since(before.at);
    let requests = (run.achieved_rps * window.as_secs_f64()).max(1.0);
    if let (Some(before), Some(after)) = (before.machine, after.machine) {
        let used = after.since(before);
        run.machine_cpu_us_per_request = Some(used.busy_ns() as f64 / 1000.0 / requests);
        run.machine_busy = Some(used.busy_share());
    }
    if let (Some(before), Some(after)) = (before.split, after.split) {
        let used = after.since(before);
        let each = |ns: u64| ns as f64 / 1000.0 / requests;
        run.machine_split_sampled = Some(MachineSplit {
            user_us_per_request: each(used.user_ns),
            system_us_per_request: each(used.system_ns),
            softirq_us_per_request: each(used.softirq_ns),
            steal_us_per_request: each(used.steal_ns),
        });
    }
    for (at, instance) in instances.iter().enumerate() {
        let used = after.usage[at].since(before.usage[at]);
        // The generator has ended by now; it holds nothing that matters.
        let held = Holdings::of_all(&instance.pids);
        let throttled = before.throttling[at].zip(after.throttling[at]);
        let throttled = throttled.map(|(before, after)| after.since(before));
        let per_request = |ns: u64| ns as f64 / 1000.0 / requests;
        run.processes.push(Process {
            name: instance.name.clone(),
            role: instance.role.to_owned(),
            host: host.to_owned(),
            pids: instance.pids.clone(),
            cpu_us_per_request: per_request(used.cpu_ns),
            user_us_per_request_sampled: per_request(used.user_ns),
            system_us_per_request_sampled: per_request(used.system_ns),
            vcpu: used.cpu_ns as f64 / window.as_nanos().max(1) as f64,
            rss_bytes: held.rss_bytes,
            pss_bytes: held.pss_bytes,
            anonymous_bytes: held.anonymous_bytes,
            ctx_switches_per_request: (used.voluntary_switches + used.involuntary_switches) as f64
                / requests,
            voluntary_ctx_switches_per_request: used.voluntary_switches as f64 / requests,
            threads: held.threads,
            descriptors: held.descriptors,
            cores: Vec::new(),
            nr_throttled: throttled.map(|t| t.throttled),
            throttled_seconds: throttled.map(|t| t.throttled_ns as f64 / 1e9),
        });
    }
    run.machine_cpu_less_load_server_us_per_request =
        voile_report::summarise::less_load_and_server(run);
}

/// Whether somebody set the clock meanwhile: then times of two processes cannot be laid beside each other.
fn clock_stepped(before: &Reading, after: &Reading) -> Option<String> {
    let went = after.at.duration_since(before.at).as_secs_f64();
    let showed = match after.wall.duration_since(before.wall) {
        Ok(forward) => forward.as_secs_f64(),
        Err(backward) => -backward.duration().as_secs_f64(),
    };
    let step = showed - went;
    (step.abs() > CLOCK_STEP.as_secs_f64()).then(|| {
        format!("the machine's clock was set during the slice: it stepped by {step:+.3} s")
    })
}

fn window_misplaced(before: &Reading, after: &Reading, generated: &Generated) -> Option<String> {
    let unix = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos())
    };
    let starts = u128::from(generated.start_unix_ns);
    let ends = starts + (generated.duration_s * 1e9) as u128;
    let inside = unix(before.wall) >= starts && unix(after.wall) <= ends;
    (!inside).then(|| "samplers' window outside the measured part: the generator took long to start, or ended early".to_owned())
}

/// Adds a slice's histogram to the merged one of its cell.
pub(crate) fn merge_histogram(merged: &mut Samples, text: &str) -> Result<(), String> {
    merged.merge(&Samples::decode(text)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_during_a_slice_is_named() {
        let (at, wall) = (Instant::now(), SystemTime::now());
        let reading = |after: Duration, step: i64| Reading {
            at: at + after,
            wall: if step < 0 {
                wall + after - Duration::from_millis(step.unsigned_abs())
            } else {
                wall + after + Duration::from_millis(step.unsigned_abs())
            },
            machine: None,
            split: None,
            usage: Vec::new(),
            throttling: Vec::new(),
        };
        let second = Duration::from_secs(1);
        for (step, told) in [
            (0, None),
            (5, None),
            (3_600_000, Some("+3600.000 s")),
            (-2_000, Some("-2.000 s")),
        ] {
            let reason = clock_stepped(&reading(Duration::ZERO, 0), &reading(second, step));
            match told {
                None => assert_eq!(reason, None, "{step}"),
                Some(told) => assert!(
                    reason.clone().is_some_and(|r| r.contains(told)),
                    "{reason:?}"
                ),
            }
        }
    }
}
