//! One slice: the generator as a process, samplers around its measured part, and the results of both, as one [`SliceRun`].
//!
//! ```text
//! start ─ connect ─ warm-up ─┬──────────── measured by the generator ────────────┬─ end
//!                            80 ms ├──────── samplers' window ────────┤ 20 ms
//! ```
//!
//! CPU is read at both ends of a window that lies inside the measured part, and divided by the requests of that window
//! (achieved rate × its length), so that neither process start nor connection setup is charged to requests. Of a cold start
//! they are what is asked for: nothing is warmed up, and clocks are read before there is a generator.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use voile_host::cgroup::Throttling;
use voile_host::child::SupervisedChild;
use voile_host::machine::{CoreSplit, CoreTime};
use voile_host::sampler::{ProcessResources, Usage};
use voile_load::samples::Samples;
use voile_report::record::{MachineSplit, MachineUse, Process, SliceRun};

use crate::agent::FarLook;
use crate::contestants::contestant::CellRoute;
use crate::events;
use crate::generator::{
    BrokenSlice, Generated, GeneratorRequest, finish_load, prepare_load, wait_until,
};
use crate::machine::instance::Instance;
use crate::shared_processes::Lab;
use voile_report::record::CellKey as Cell;

/// The generator may take this long to start and connect before the window would begin too early.
const LEAD: Duration = Duration::from_millis(80);
/// The window ends this long before the measured part can.
const TRAIL: Duration = Duration::from_millis(20);
/// A clock that is kept right by slewing moves a slice of a second by less than a millisecond.
const CLOCK_STEP: Duration = Duration::from_millis(10);
/// Reason of a slice during which the clock was set.
pub(crate) const CLOCK_SET: &str = "the machine's clock was set during the slice";
/// Time that the generator may take beyond its own plan (it waits for outstanding answers, 3 s at most).
const OVERTIME: Duration = Duration::from_secs(8);

/// Readings of the machine and of each instance at one moment.
struct SliceReading {
    at: Instant,
    wall: SystemTime,
    machine: Option<CoreTime>,
    split: Option<CoreSplit>,
    usage: Vec<Usage>,
    throttling: Vec<Option<Throttling>>,
    /// Reading of the agent's machine; instances that are not there count nothing.
    far: Option<FarLook>,
}

/// Begin or end of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edge {
    Begin,
    End,
}

impl SliceReading {
    /// The window at the agent's lies inside ours, however long the question travels.
    fn take(instances: &[Instance], lab: &Lab<'_>, edge: Edge) -> Result<Self, BrokenSlice> {
        let look = || {
            let far = lab.far.map(|far| far.look(instances));
            far.transpose().map_err(BrokenSlice::Failed)
        };
        let far_first = if edge == Edge::End { look()? } else { None };
        let usage = instances
            .iter()
            .map(|instance| Usage::of_all(instance.pids_here()))
            .collect();
        let mut reading = Self {
            at: Instant::now(),
            wall: SystemTime::now(),
            machine: CoreTime::now().ok(),
            split: CoreSplit::now().ok(),
            usage,
            throttling: instances
                .iter()
                .map(|instance| lab.bounds.throttling(instance))
                .collect(),
            far: far_first,
        };
        if edge == Edge::Begin {
            reading.far = look()?;
        }
        Ok(reading)
    }
}

/// Work that the lab does while the generator measures. It gets the generator, and begin and end of the measured part.
pub(crate) type Meanwhile<'a> = dyn FnMut(
        &mut SupervisedChild,
        (Instant, Instant),
    ) -> Result<Vec<(voile_report::events::SliceEvent, SystemTime)>, BrokenSlice>
    + 'a;

/// Runs one slice. The second part of the answer is the slice's histogram.
pub(crate) fn measure(
    lab: &Lab<'_>,
    cell: &Cell,
    route: &CellRoute,
    order: &GeneratorRequest,
    shared: &[Instance],
    host: &str,
    meanwhile: &mut Meanwhile<'_>,
) -> Result<(SliceRun, Generated), BrokenSlice> {
    let (spec, out) = prepare_load(lab, route, order).map_err(BrokenSlice::Failed)?;
    let cold = cell.shape.is_cold();
    let mut instances = shared.to_vec();
    instances.push(Instance::here("load".to_owned(), "load", Vec::new()));
    let untouched = cold.then(|| SliceReading::take(&instances, lab, Edge::Begin));
    let untouched = untouched.transpose()?;
    let (began, began_wall) = (Instant::now(), SystemTime::now());
    let mut load = spec
        .start()
        .map_err(|e| BrokenSlice::Failed(e.to_string()))?;
    instances.pop();
    instances.push(Instance::here("load".to_owned(), "load", vec![load.pid()]));
    let window_starts = began + order.warmup + LEAD.min(order.duration / 4);
    let window_ends = began + order.warmup + order.duration - TRAIL.min(order.duration / 8);
    let before = match untouched {
        Some(untouched) => untouched,
        None => {
            wait_until(&mut load, window_starts, lab)?;
            SliceReading::take(&instances, lab, Edge::Begin)?
        }
    };
    let begins = began + order.warmup;
    let happened = meanwhile(&mut load, (begins, begins + order.duration))?;
    wait_until(&mut load, window_ends, lab)?;
    let after = SliceReading::take(&instances, lab, Edge::End)?;
    let generated = finish_load(&mut load, &out, OVERTIME, lab)?;
    let (series, events) = events::conclude(&generated, happened);
    let mut run = SliceRun {
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
        ..SliceRun::of(cell)
    };
    let stepped = clock_stepped((began, began_wall), (after.at, after.wall));
    if let Some(reason) = stepped.or_else(|| window_misplaced(&before, &after, &generated, cold)) {
        run.invalid_reasons.push(reason);
    }
    let ahead = if cold {
        ahead(&before, &generated)
    } else {
        Duration::ZERO
    };
    charge(&mut run, lab, &instances, (&before, &after, ahead), host)?;
    for process in &mut run.processes {
        process.cores = lab.bounds.cores(&process.role);
    }
    Ok((run, generated))
}

/// Time that the clocks ran before the first request was due.
fn ahead(before: &SliceReading, generated: &Generated) -> Duration {
    let due = UNIX_EPOCH + Duration::from_nanos(generated.start_unix_ns);
    due.duration_since(before.wall).unwrap_or_default()
}

/// Divides what was used in the window by the requests of the window; at the agent's by its own clock, so that the two need
/// not agree on the time. For so long at its beginning no request was due yet.
fn charge(
    run: &mut SliceRun,
    lab: &Lab<'_>,
    instances: &[Instance],
    (before, after, ahead): (&SliceReading, &SliceReading, Duration),
    host: &str,
) -> Result<(), BrokenSlice> {
    let here = after.at.duration_since(before.at);
    let rate = run.achieved_rps;
    let requests = |window: Duration| (rate * window.saturating_sub(ahead).as_secs_f64()).max(1.0);
    let far = before.far.as_ref().zip(after.far.as_ref()).zip(lab.far);
    if let (Some(before), Some(after)) = (before.machine, after.machine) {
        run.machines
            .push(machine(host, after.since(before), requests(here)));
    }
    if let Some(((before, after), far)) = far.filter(|(_, far)| !far.one_machine())
        && let (Some(was), Some(is)) = (before.machine(), after.machine())
    {
        let requests = requests(after.since(before));
        run.machines
            .push(machine(far.host(), is.since(was), requests));
    }
    run.machine_split_sampled = split(before, after, requests(here));
    all_machines(run);
    for (at, instance) in instances.iter().enumerate() {
        let (used, throttled, window, held, host) = match far.filter(|_| !instance.far.is_empty()) {
            Some(((before, after), far)) => (
                after.usage(at).since(before.usage(at)),
                before.throttling(at).zip(after.throttling(at)),
                after.since(before),
                far.hold(instance).map_err(BrokenSlice::Failed)?,
                far.host(),
            ),
            None => (
                after.usage[at].since(before.usage[at]),
                before.throttling[at].zip(after.throttling[at]),
                here,
                // The generator has ended by now; it holds nothing that matters.
                ProcessResources::of_all(&instance.pids),
                host,
            ),
        };
        let throttled = throttled.map(|(before, after)| after.since(before));
        let requests = requests(window);
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
    Ok(())
}

/// The kernel's split; of two machines that of one would say nothing.
fn split(before: &SliceReading, after: &SliceReading, requests: f64) -> Option<MachineSplit> {
    let used = after.split?.since(before.split?);
    let each = |ns: u64| ns as f64 / 1000.0 / requests;
    before.far.is_none().then(|| MachineSplit {
        user_us_per_request: each(used.user_ns),
        system_us_per_request: each(used.system_ns),
        softirq_us_per_request: each(used.softirq_ns),
        steal_us_per_request: each(used.steal_ns),
    })
}

fn machine(host: &str, used: CoreTime, requests: f64) -> MachineUse {
    MachineUse {
        host: host.to_owned(),
        cpu_us_per_request: used.busy_ns() as f64 / 1000.0 / requests,
        busy: used.busy_share(),
    }
}

/// The cost of a request is the sum over all machines; the busy share is that of the busiest machine. A single machine is not
/// listed.
fn all_machines(run: &mut SliceRun) {
    let machines = &run.machines;
    if machines.is_empty() {
        return;
    }
    run.machine_cpu_us_per_request = Some(machines.iter().map(|one| one.cpu_us_per_request).sum());
    run.machine_busy = Some(machines.iter().map(|one| one.busy).fold(0.0, f64::max));
    if machines.len() == 1 {
        run.machines.clear();
    }
}

/// Checks if the machine's clock was set during the slice: times of two processes cannot be compared then. The check begins
/// before the generator starts, because the generator reports its begin by its own clock.
fn clock_stepped(
    (began, began_wall): (Instant, SystemTime),
    (ended, ended_wall): (Instant, SystemTime),
) -> Option<String> {
    let went = ended.duration_since(began).as_secs_f64();
    let showed = match ended_wall.duration_since(began_wall) {
        Ok(forward) => forward.as_secs_f64(),
        Err(backward) => -backward.duration().as_secs_f64(),
    };
    let step = showed - went;
    (step.abs() > CLOCK_STEP.as_secs_f64())
        .then(|| format!("{CLOCK_SET}: it stepped by {step:+.3} s"))
}

fn window_misplaced(
    before: &SliceReading,
    after: &SliceReading,
    generated: &Generated,
    cold: bool,
) -> Option<String> {
    let unix = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos())
    };
    let starts = u128::from(generated.start_unix_ns);
    let ends = starts + (generated.duration_s * 1e9) as u128;
    let inside = (cold || unix(before.wall) >= starts) && unix(after.wall) <= ends;
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
    fn a_request_costs_what_it_costs_on_both_machines_and_one_is_not_listed_twice() {
        let used = |available_ns, idle_ns| CoreTime {
            available_ns,
            idle_ns,
        };
        let mut run = SliceRun::default();
        run.machines
            .push(machine("near", used(2_000_000, 1_000_000), 100.0));
        run.machines
            .push(machine("far", used(4_000_000, 1_000_000), 100.0));
        all_machines(&mut run);
        assert_eq!(run.machine_cpu_us_per_request, Some(40.0));
        assert_eq!(run.machine_busy, Some(0.75));
        assert_eq!(run.machines.len(), 2);
        run.machines.pop();
        all_machines(&mut run);
        assert_eq!(
            (run.machine_cpu_us_per_request, run.machine_busy),
            (Some(10.0), Some(0.5))
        );
        assert!(
            run.machines.is_empty(),
            "the one machine is the environment's"
        );
    }

    #[test]
    fn a_clock_that_is_set_during_a_slice_is_named() {
        let (at, wall) = (Instant::now(), SystemTime::now());
        let second = Duration::from_secs(1);
        let a_second_later = |step: i64| {
            let by = Duration::from_millis(step.unsigned_abs());
            let showed = if step < 0 {
                wall + second - by
            } else {
                wall + second + by
            };
            (at + second, showed)
        };
        for (step, told) in [
            (0, None),
            (5, None),
            (3_600_000, Some("+3600.000 s")),
            (-2_000, Some("-2.000 s")),
        ] {
            let reason = clock_stepped((at, wall), a_second_later(step));
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
