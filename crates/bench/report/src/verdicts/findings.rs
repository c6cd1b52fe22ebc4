//! Findings of an experiment in sentences, the same for the terminal and the page. The heaviest path comes first. The noise seen
//! by the A/A control comes with it, because a difference means nothing without it.

use std::collections::BTreeSet;

use crate::record::{Control, Estimate, Record, Summary, ValueKind};
use crate::words::{bytes, duration, interval, load_title, ratio};

/// Figures of the control that the text mentions, and their names for the reader.
const CONTROLLED: [(&str, &str); 6] = [
    ("latency_us.p50", "p50"),
    ("latency_us.p90", "p90"),
    ("latency_us.p99", "p99"),
    ("sidecar.cpu_us_per_request", "CPU per proxy"),
    ("machine_cpu_us_per_request", "CPU of the machine"),
    ("sidecar.rss_bytes", "RSS"),
];

/// The contestant that sidecars are compared with: its name in records, and its written name.
const ENVOY: (&str, &str) = ("envoy", "Envoy");

/// Mode with a waypoint. Its sentences are about the waypoint alone, because all other parts of the path are the same.
const WAYPOINT: &str = "node+waypoint";

/// All sentences, in order.
#[must_use]
pub fn sentences(record: &Record) -> Vec<String> {
    let whole = |s: &Summary| ["both", "node", WAYPOINT].contains(&s.mode.as_str());
    let of_latency = |s: &&Summary| s.kind == ValueKind::Latency && whole(s) && s.runs_valid > 0;
    let mut told: Vec<&Summary> = record.summary.iter().filter(of_latency).collect();
    // Tools agree on even arrival. Without it, the text uses the first other arrival.
    let arrival = match told.iter().any(|s| s.arrival == "uniform") {
        true => "uniform".to_owned(),
        false => told.first().map(|s| s.arrival.clone()).unwrap_or_default(),
    };
    told.retain(|s| s.arrival == arrival);
    let rank = |s: &&Summary| {
        let mode = match s.mode.as_str() {
            "node" => 1,
            WAYPOINT => 2,
            _ => 0,
        };
        (mode, !s.tls, s.contestant != "voile")
    };
    told.sort_by_key(rank);
    let loads: BTreeSet<String> = told.iter().map(|s| load_title(&s.key())).collect();
    // If there are many loads, the text mentions only ours; the tables have the others.
    if loads.len() > 1 {
        told.retain(|summary| summary.contestant == "voile");
    }
    let mut sentences: Vec<String> = told
        .into_iter()
        .filter_map(|summary| {
            let cost = cost(summary)?;
            Some(match loads.len() {
                1 => cost,
                _ => format!("{}: {cost}", load_title(&summary.key())),
            })
        })
        .collect();
    sentences.extend(features(record));
    sentences.extend(record.control.as_ref().and_then(control));
    sentences.extend(repeats(record));
    if record.runs.is_empty() {
        return sentences;
    }
    let valid = record.runs.iter().filter(|run| run.valid).count();
    let again = record.runs.iter().filter(|run| run.again).count();
    let mut text = format!("{valid} of {} slices are valid", record.runs.len());
    if again > 0 {
        text += &format!("; {again} were taken again in their round");
    }
    if valid < record.runs.len() {
        text += "; invalid ones are listed with their reasons and not counted";
    }
    sentences.push(text + ".");
    sentences
}

/// Figures in which a feature set is set beside the contestant without it.
const BESIDE: [(&str, &str); 3] = [
    ("sidecar.cpu_us_per_request", "CPU per proxy"),
    ("latency_us.p50", "p50"),
    ("latency_us.p99", "p99"),
];

/// Cost of each feature set over all its loads: the range of the ratios to the same contestant without the set, and the loads
/// where a ratio can be told from noise.
fn features(record: &Record) -> Vec<String> {
    let mut names: Vec<&str> = Vec::new();
    for summary in &record.summary {
        if summary.contestant.contains('+') && !names.contains(&summary.contestant.as_str()) {
            names.push(&summary.contestant);
        }
    }
    names
        .into_iter()
        .filter_map(|name| feature(record, name))
        .collect()
}

fn feature(record: &Record, name: &str) -> Option<String> {
    // Without its last set, as far as that was measured beside it.
    let of_it =
        |s: &&Summary| s.contestant == name && s.kind == ValueKind::Latency && s.runs_valid > 0;
    let base = name
        .match_indices('+')
        .rev()
        .map(|(at, _)| &name[..at])
        .find(|base| {
            record
                .summary
                .iter()
                .filter(of_it)
                .any(|s| s.ratios.contains_key(*base))
        })?;
    let cells: Vec<&Summary> = record.summary.iter().filter(of_it).collect();
    let (mut ranges, mut told, mut compared) = (Vec::new(), Vec::new(), 0);
    for (figure, words) in BESIDE {
        let found = cells
            .iter()
            .filter_map(|s| Some((*s, *s.ratios.get(base)?.get(figure)?)));
        let found: Vec<(&Summary, Estimate)> = found.collect();
        let least = found
            .iter()
            .map(|(_, one)| one.median)
            .fold(f64::INFINITY, f64::min);
        let most = found.iter().map(|(_, one)| one.median).fold(0.0, f64::max);
        match found.len() {
            0 => continue,
            1 => ranges.push(format!("{words} {}", interval(&found[0].1, ratio))),
            _ => ranges.push(format!("{words} {least:.2} to {most:.2}×")),
        }
        compared += found.len();
        for (summary, one) in found {
            let outside =
                one.low.is_some_and(|low| low > 1.0) || one.high.is_some_and(|high| high < 1.0);
            if outside {
                let key = summary.key();
                told.push(format!("{words} {} ({key})", interval(&one, ratio)));
            }
        }
    }
    if ranges.is_empty() {
        return None;
    }
    let noise = match told.len() {
        0 if compared == 1 => "it cannot be told from none at this noise".to_owned(),
        0 => format!("none of the {compared} ratios can be told from 1 at this noise"),
        // With intervals of 95 % one in twenty is chance.
        n => format!(
            "of {compared} ratios {n} can be told from 1: {}",
            told.join(", ")
        ),
    };
    let loads = match cells.len() {
        1 => "one load".to_owned(),
        n => format!("{n} loads"),
    };
    Some(format!(
        "{name} divided by {base}, within rounds, over {loads}: {}; {noise}.",
        ranges.join(", ")
    ))
}

/// A sentence about one cell with two sidecars, two node proxies or a waypoint. None if the cell has no figure for a sentence.
fn cost(summary: &Summary) -> Option<String> {
    let figure = |name: &str, show| summary.figures.get(name).map(|f| interval(f, show));
    let (tls, proxy, peer) = match (summary.mode.as_str(), summary.tls) {
        ("node", _) => ("Between two nodes", "node proxy", ("ztunnel", "ztunnel")),
        (WAYPOINT, _) => ("Between two nodes by a waypoint", "waypoint", ENVOY),
        (_, true) => ("With mutual TLS on both sides", "sidecar", ENVOY),
        (_, false) => ("In plaintext through two sidecars", "sidecar", ENVOY),
    };
    let name = &summary.contestant;
    let (whose, per) = match summary.mode.as_str() {
        WAYPOINT => ("waypoint", "at the"),
        _ => ("sidecar", "per"),
    };
    let (cpu, memory) = (
        format!("{whose}.cpu_us_per_request"),
        format!("{whose}.rss_bytes"),
    );
    let mut parts = Vec::new();
    if let Some(cpu) = figure(&cpu, duration) {
        parts.push(format!("costs {cpu} of CPU {per} {proxy}"));
    }
    let added = |name, at| Some(format!("{} longer at {at}", figure(name, duration)?));
    let added: Vec<String> = [added("added_us.p50", "p50"), added("added_us.p99", "p99")]
        .into_iter()
        .flatten()
        .collect();
    if !added.is_empty() {
        parts.push(format!("takes {}", added.join(" and ")));
    }
    if let Some(memory) = figure(&memory, bytes) {
        parts.push(format!("each {proxy} holds {memory}"));
    }
    if parts.is_empty() {
        return None;
    }
    let mut text = format!("{tls} a request through {name} {}.", parts.join(", "));
    if let Some(ratios) = summary.ratios.get(peer.0).filter(|_| name == "voile") {
        let part = |name: &str, words: &str| {
            let found: Option<&Estimate> = ratios.get(name);
            found.map(|r| format!("{} its {words}", interval(r, ratio)))
        };
        let parts: Vec<String> = [
            part(&cpu, "CPU"),
            part("added_us.p50", "added p50"),
            part("added_us.p99", "added p99"),
            part(&memory, "memory"),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !parts.is_empty() {
            text += &format!(" Against {}: {}.", peer.1, parts.join(", "));
        }
    }
    Some(text)
}

/// The result of the A/A control: the measured difference, and the smallest difference that could be told from noise.
fn control(control: &Control) -> Option<String> {
    let mut seen = Vec::new();
    let mut smallest = Vec::new();
    for (figure, words) in CONTROLLED {
        if let Some(ratio_seen) = control.ratios.get(figure) {
            seen.push(format!("{words} {}", interval(ratio_seen, ratio)));
        }
        if let Some(floor) = control.noise_floor.get(figure) {
            smallest.push(format!("{words} {:.1} %", floor * 100.0));
        }
    }
    if seen.is_empty() {
        return None;
    }
    let tls = if control.cell.tls {
        "mutual TLS"
    } else {
        "plaintext"
    };
    let mut text = format!(
        "A/A, {} {} {tls} measured twice, second over first: {}.",
        control.cell.contestant,
        control.cell.mode,
        seen.join(", ")
    );
    if !smallest.is_empty() {
        text += &format!(
            " The smallest effect this run could have seen: {}; less is noise.",
            smallest.join(", ")
        );
    }
    let alarms: Vec<&str> = CONTROLLED
        .iter()
        .filter(|(figure, _)| control.alarms.iter().any(|alarm| alarm == figure))
        .map(|(_, words)| *words)
        .collect();
    if !alarms.is_empty() {
        text += &format!(
            " False alarm: {} differ by more than their interval, where nothing does.",
            alarms.join(", ")
        );
    }
    Some(text)
}

/// In how many repeats the two halves of the control lay within their interval, figure by figure.
fn repeats(record: &Record) -> Option<String> {
    let counts: Vec<String> = within(record)
        .into_iter()
        .map(|(words, within, of)| format!("{words} in {within} of {of}"))
        .collect();
    (!counts.is_empty()).then(|| {
        format!(
            "A/A over {} runs, the two halves within their interval: {}.",
            record.repeats.len(),
            counts.join(", ")
        )
    })
}

/// For each figure of the control: its name, the repeats in which the halves lay within their interval, and all repeats. A repeat
/// with too few valid rounds for an interval does not count as within.
#[must_use]
pub fn within(record: &Record) -> Vec<(&'static str, usize, usize)> {
    let of = record.repeats.len();
    let holds = |control: &&Control, figure: &str| {
        let told = control
            .ratios
            .get(figure)
            .is_some_and(|ratio| ratio.low.is_some());
        told && !control.alarms.iter().any(|alarm| alarm == figure)
    };
    CONTROLLED
        .iter()
        .filter(|_| of > 0)
        .map(|(figure, words)| {
            let within = record.repeats.iter().filter(|c| holds(c, figure)).count();
            (*words, within, of)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Process, SliceRun};
    use crate::summarise::summarise;

    /// Repeats of six rounds of one cell measured twice; in the first `differing` repeats the second half takes 30 % longer.
    fn repeated(repeats: u32, differing: u32, rounds: u32) -> Record {
        let mut record = Record::default();
        for repeat in 1..=repeats {
            for round in 1..=rounds {
                for control in [false, true] {
                    let wobble = 1.0 + f64::from((round * 7 + u32::from(control) * 3) % 5) / 100.0;
                    let longer = if control && repeat <= differing {
                        1.3
                    } else {
                        1.0
                    };
                    let mut run = SliceRun {
                        contestant: "voile".to_owned(),
                        mode: "both".to_owned(),
                        tls: true,
                        arrival: "uniform".to_owned(),
                        round: (repeat - 1) * rounds + round,
                        repeat,
                        control,
                        valid: true,
                        ..SliceRun::default()
                    };
                    run.latency_us.p50 = Some(100.0 * wobble * longer);
                    record.runs.push(run);
                }
            }
        }
        summarise(&mut record);
        record
    }

    #[test]
    fn repeats_are_counted_figure_by_figure() {
        for (repeats, differing, rounds, expected) in [
            (20, 0, 6, Some(("p50", 20, 20))),
            (20, 1, 6, Some(("p50", 19, 20))),
            (5, 5, 6, Some(("p50", 0, 5))),
            (5, 0, 5, Some(("p50", 0, 5))), // too few rounds for an interval
            (1, 0, 6, None),
        ] {
            let record = repeated(repeats, differing, rounds);
            assert_eq!(
                within(&record).first().copied(),
                expected,
                "{repeats} {differing} {rounds}"
            );
        }
        let said = sentences(&repeated(20, 1, 6)).join("\n");
        assert!(said.contains("p50 in 19 of 20"), "{said}");
    }

    #[test]
    fn of_a_way_with_a_waypoint_the_waypoints_own_figures_are_told() {
        let mut record = Record::default();
        for round in 1..=8u32 {
            for (contestant, us) in [("voile", 40.0), ("envoy", 200.0)] {
                let wobble = 1.0 + f64::from(round % 3) / 100.0;
                let process = |(role, cpu): (&str, f64)| Process {
                    role: role.to_owned(),
                    cpu_us_per_request: cpu * wobble,
                    ..Process::default()
                };
                record.runs.push(SliceRun {
                    contestant: contestant.to_owned(),
                    mode: WAYPOINT.to_owned(),
                    tls: true,
                    arrival: "uniform".to_owned(),
                    round,
                    valid: true,
                    processes: [
                        ("client-node", 10.0),
                        ("waypoint", us),
                        ("server-node", 10.0),
                    ]
                    .map(process)
                    .into(),
                    ..SliceRun::default()
                });
            }
        }
        summarise(&mut record);
        let said = sentences(&record).join("\n");
        for part in [
            "Between two nodes by a waypoint a request through voile costs 40.",
            "of CPU at the waypoint",
            "Against Envoy: 0.20× [0.20–0.20] its CPU",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    /// Eight rounds of a feature set that takes `times` as long, with arrivals in phase.
    fn featured(times: f64) -> String {
        let mut record = Record::default();
        for round in 1..=8u32 {
            for (contestant, times) in [("voile", 1.0), ("voile+detection", times)] {
                for connections in [16, 64] {
                    let mut run = SliceRun {
                        contestant: contestant.to_owned(),
                        mode: "both".to_owned(),
                        arrival: "fortio".to_owned(),
                        connections,
                        round,
                        valid: true,
                        ..SliceRun::default()
                    };
                    let wobble = 1.0
                        + f64::from((round * 7 + connections + u32::from(times > 1.0)) % 5) / 100.0;
                    run.latency_us.p50 = Some(100.0 * wobble * times);
                    record.runs.push(run);
                }
            }
        }
        summarise(&mut record);
        sentences(&record).join("\n")
    }

    #[test]
    fn what_a_feature_costs_is_told_whatever_the_arrival() {
        let said = featured(1.2);
        assert!(
            said.contains("voile+detection divided by voile, within rounds, over 2 loads: p50 1."),
            "{said}"
        );
        assert!(
            said.contains("of 2 ratios 2 can be told from 1: p50"),
            "{said}"
        );
        let said = featured(1.0);
        assert!(
            said.contains("none of the 2 ratios can be told from 1"),
            "{said}"
        );
    }

    #[test]
    fn a_false_alarm_and_the_smallest_effect_are_told() {
        let said = sentences(&repeated(1, 1, 8)).join("\n");
        assert!(said.contains("False alarm: p50"), "{said}");
        let said = sentences(&repeated(1, 0, 8)).join("\n");
        assert!(
            said.contains("smallest effect this run could have seen: p50"),
            "{said}"
        );
        assert!(!said.contains("alarm"), "{said}");
    }
}
