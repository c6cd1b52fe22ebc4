//! The validity gate: reasons why a slice does not count. Each is a sentence that the report shows.

use voile_report::record::{SliceRun, ValueKind};

use crate::definition::{Definition, Validity};
use crate::generator::Generated;

/// Percent in a sentence.
fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The bounds in words, for the record.
pub(crate) fn in_words(validity: &Validity) -> Vec<String> {
    if !validity.heed_generator && validity.max_error_share >= 1.0 {
        return vec!["experiment with events: errors, misses and drift are measured, not judged; the lateness of the generator is judged".to_owned()];
    }
    if !validity.heed_generator {
        return vec!["smoke test: timing is not judged; errors and paths are".to_owned()];
    }
    vec![
        format!(
            "generator's own lateness at p99 at most {:?}, if there is a schedule",
            validity.max_lateness
        ),
        format!(
            "achieved rate within {} of the requested rate, if any (for bursts in phase: of the due requests)",
            percent(validity.max_rate_error)
        ),
        format!(
            "failed requests (wrong size and status included) at most {}",
            percent(validity.max_error_share)
        ),
        format!(
            "median latency of the slice's halves within a factor of {}",
            validity.max_drift
        ),
        format!(
            "at most {} of the generator's threads busy (in cells with a proxy), and {} of the machine's cores, if there is a schedule",
            percent(validity.max_generator_busy),
            percent(validity.max_machine_busy)
        ),
        "the generator itself reports a valid run, apart from its lateness".to_owned(),
        "the samplers' window lies inside the generator's measured part, and the clock was not set"
            .to_owned(),
        "every proxy on the path counted at least the requests sent".to_owned(),
        "no proof of the cell's path failed".to_owned(),
    ]
}

/// Rate of the due requests in the slice. Connections in phase send in bursts. A slice has a whole number of bursts, so it may
/// have one burst more than its part of the rate, or one less.
fn planned(run: &SliceRun, generated: &Generated) -> f64 {
    let due = generated.scheduled as f64 / generated.duration_s;
    let burst = f64::from(run.connections) / generated.duration_s;
    match run.arrival == "fortio" && (due - run.rate).abs() <= burst {
        true => due,
        // The slice has no length, or another schedule.
        false => run.rate,
    }
}

/// Reasons why the slice does not count; empty if it counts.
pub(crate) fn reasons(
    definition: &Definition,
    run: &SliceRun,
    generated: &Generated,
) -> Vec<String> {
    let validity = &definition.validity;
    let mut reasons = Vec::new();
    let lateness = std::time::Duration::from_micros(generated.lateness_us.p99);
    let scheduled = run.kind == ValueKind::Latency;
    if scheduled && lateness > validity.max_lateness {
        reasons.push(format!(
            "generator late: {lateness:?} at p99, bound {:?}",
            validity.max_lateness
        ));
    }
    let planned = planned(run, generated);
    let miss = (run.achieved_rps - planned).abs() / planned.max(1.0);
    if scheduled && miss > validity.max_rate_error {
        reasons.push(format!(
            "rate missed by {}: {:.0} of {:.0} requests per second",
            percent(miss),
            run.achieved_rps,
            planned
        ));
        if run.key().is_baseline() {
            // The reason covers both: generator or server too slow, or the machine filled by other programs.
            reasons.push(
                "lab saturated: this path has no proxy, so the rate is beyond what the generator and the server can do on this machine now"
                    .to_owned(),
            );
        }
    }
    reasons.extend(saturated(validity, run, generated));
    let failed = run.errors as f64 / (generated.scheduled.max(1)) as f64;
    if failed > validity.max_error_share {
        let kinds: Vec<String> = generated
            .errors
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        reasons.push(format!(
            "{} requests failed ({})",
            run.errors,
            kinds.join(", ")
        ));
    }
    if let Some(drift) = generated.drift.filter(|drift| *drift > validity.max_drift) {
        reasons.push(format!(
            "drift: one half's median is {drift:.1} times the other's"
        ));
    }
    if !generated.valid && reasons.is_empty() && validity.heed_generator {
        let own = generated.invalid_reasons.join("; ");
        reasons.push(format!("generator: {own}"));
    }
    reasons
}

/// Reasons why generator or machine were saturated, so that the figures are theirs and not the contestant's.
fn saturated(validity: &Validity, run: &SliceRun, generated: &Generated) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut processes = run.processes.iter();
    let threads = generated.options.threads.max(1);
    let load = processes.find(|process| process.role == "load");
    let busy = load.map_or(0.0, |load| load.vcpu / f64::from(threads));
    let scheduled = run.kind == ValueKind::Latency;
    // The highest rate without a proxy is the limit of generator or server, so a busy generator is no error there.
    let floor = !scheduled && run.key().is_baseline();
    if busy > validity.max_generator_busy && !floor {
        reasons.push(format!(
            "generator saturated: {} of its {threads} thread{} busy, bound {}",
            percent(busy),
            if threads == 1 { "" } else { "s" },
            percent(validity.max_generator_busy)
        ));
    }
    if let Some(busy) = run
        .machine_busy
        .filter(|busy| scheduled && *busy > validity.max_machine_busy)
    {
        reasons.push(format!(
            "machine saturated: {} of its cores busy, bound {}",
            percent(busy),
            percent(validity.max_machine_busy)
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use voile_report::record::Process;

    use super::*;
    use crate::definition::quick;

    fn load(vcpu: f64) -> Process {
        Process {
            role: "load".to_owned(),
            vcpu,
            ..Process::default()
        }
    }

    #[test]
    fn who_saturates_a_contestant_may_not_be_saturated_itself() {
        let cases = [("baseline", 0), ("relay", 1)];
        for (contestant, expected) in cases {
            let run = SliceRun {
                contestant: contestant.to_owned(),
                mode: if contestant == "baseline" {
                    "baseline"
                } else {
                    "both"
                }
                .to_owned(),
                kind: ValueKind::Saturation,
                machine_busy: Some(1.0),
                processes: vec![load(0.98)],
                ..SliceRun::default()
            };
            let generated = Generated {
                valid: true,
                scheduled: 1000,
                ..Generated::default()
            };
            let reasons = reasons(&quick(), &run, &generated);
            assert_eq!(reasons.len(), expected, "{contestant}: {reasons:?}");
        }
    }

    #[test]
    fn a_rate_that_is_missed_with_nothing_in_between_is_the_labs_own_end() {
        for (mode, expected) in [("baseline", true), ("both", false)] {
            let run = SliceRun {
                mode: mode.to_owned(),
                rate: 1000.0,
                achieved_rps: 900.0,
                ..SliceRun::default()
            };
            let generated = Generated {
                valid: true,
                scheduled: 1000,
                ..Generated::default()
            };
            let reasons = reasons(&quick(), &run, &generated);
            let named = reasons.iter().any(|why| why.starts_with("lab saturated: "));
            assert_eq!(named, expected, "{mode}: {reasons:?}");
        }
    }

    /// 64 connections in phase, every 64 ms: 32 bursts begin in two seconds, which are 31 and a quarter of them.
    #[test]
    fn a_burst_more_than_its_part_of_the_rate_is_no_rate_that_was_missed() {
        for (arrival, scheduled, achieved, missed) in [
            ("fortio", 2048, 1024.0, false),
            ("fortio", 2048, 1000.0, true),
            ("fortio", 1800, 900.0, true),
            ("uniform", 2048, 1024.0, true),
        ] {
            let run = SliceRun {
                mode: "both".to_owned(),
                arrival: arrival.to_owned(),
                connections: 64,
                rate: 1000.0,
                achieved_rps: achieved,
                ..SliceRun::default()
            };
            let generated = Generated {
                valid: true,
                scheduled,
                duration_s: 2.0,
                ..Generated::default()
            };
            let reasons = reasons(&quick(), &run, &generated);
            let named = reasons.iter().any(|why| why.starts_with("rate missed"));
            assert_eq!(
                named, missed,
                "{arrival} {scheduled} {achieved}: {reasons:?}"
            );
        }
    }

    #[test]
    fn each_bound_is_named_when_it_is_broken() {
        type Break = fn(&mut SliceRun, &mut Generated);
        let cases: [(&str, Break); 9] = [
            ("", |_, _| {}),
            ("generator late", |_, g| g.lateness_us.p99 = 1_001),
            ("rate missed", |r, _| {
                r.mode = "both".to_owned();
                r.achieved_rps = 900.0;
            }),
            ("requests failed (3 size)", |r, g| {
                r.errors = 3;
                g.errors.insert("size".to_owned(), 3);
            }),
            ("drift", |_, g| g.drift = Some(4.5)),
            ("machine saturated: 99.0 %", |r, _| {
                r.machine_busy = Some(0.99);
            }),
            (
                "generator saturated: 97.0 % of its 1 thread busy",
                |r, g| {
                    r.processes = vec![load(0.97)];
                    g.options.threads = 1;
                },
            ),
            ("", |r, g| {
                r.processes = vec![load(0.97)];
                g.options.threads = 2;
            }),
            ("generator: why", |_, g| {
                g.valid = false;
                g.invalid_reasons = vec!["why".to_owned()];
            }),
        ];
        for (expected, break_it) in cases {
            let mut run = SliceRun {
                rate: 1000.0,
                achieved_rps: 1000.0,
                ..SliceRun::default()
            };
            let mut generated = Generated {
                valid: true,
                scheduled: 1000,
                ..Generated::default()
            };
            break_it(&mut run, &mut generated);
            let reasons = reasons(&quick(), &run, &generated);
            assert_eq!(
                reasons.len(),
                usize::from(!expected.is_empty()),
                "{expected}: {reasons:?}"
            );
            assert!(
                reasons.iter().all(|reason| reason.contains(expected)),
                "{expected}: {reasons:?}"
            );
        }
    }
}
