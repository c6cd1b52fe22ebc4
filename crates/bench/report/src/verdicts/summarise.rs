//! From slices to figures: medians over rounds, added latency over the baseline of the same arrival, ratios paired
//! within rounds, the A/A control. Invalid slices are never looked at.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{CellKey, Control, Estimate, Latency, Record, SliceRun, Summary, ValueKind};
use crate::statistics::{estimate, paired_ratio, ratio_of_medians};
use crate::targets::verdicts;

/// Roles of proxies on a request's way, for figures of each: in records they are `sidecar.…`, as they were called when there were
/// no others.
const PROXIES: [&str; 6] = [
    "client-sidecar",
    "server-sidecar",
    "client-node",
    "server-node",
    "waypoint",
    "gateway",
];
/// Figures that the A/A control reports.
const CONTROL_FIGURES: [&str; 6] = [
    "latency_us.p50",
    "latency_us.p90",
    "latency_us.p99",
    "sidecar.cpu_us_per_request",
    "machine_cpu_us_per_request",
    "sidecar.rss_bytes",
];
/// Figures that are differences, so that ratios of them are ratios of medians.
const ADDED: &str = "added_us.";

/// The figures of one slice, by name.
pub(crate) type Figures = BTreeMap<String, f64>;
/// The figures of one cell's valid slices, by round.
pub(crate) type Rounds = BTreeMap<u32, Figures>;

/// Fills `summary` and `control` from `runs`.
pub fn summarise(record: &mut Record) {
    let seed = record.experiment.seed;
    let cells = by_cell(record);
    record.summary = order_of_cells(&record.runs)
        .into_iter()
        .filter_map(|key| {
            let of_cell = |run: &&SliceRun| !run.control && run.key() == key;
            let first = record.runs.iter().find(of_cell)?;
            let (valid, invalid): (Vec<_>, Vec<_>) = record
                .runs
                .iter()
                .filter(of_cell)
                .partition(|run| run.valid);
            let rounds = cells.get(&key).cloned().unwrap_or_default();
            Some(Summary {
                contestant: key.contestant.clone(),
                mode: key.mode.clone(),
                tls: key.tls,
                kind: key.kind,
                protocol: first.protocol.clone(),
                arrival: key.arrival.clone(),
                rate: first.rate,
                connections: first.connections,
                shape: key.shape.clone(),
                runs_valid: valid.len() as u32,
                runs_invalid: invalid.len() as u32,
                figures: medians(&rounds),
                ratios: ratios(&key, &rounds, &cells, seed),
            })
        })
        .collect();
    record.control = control(&record.runs, seed);
    record.repeats = repeats(&record.runs, seed);
    record.verdicts = verdicts(record);
}

/// Cells in the order they first ran in a plan's sense: by contestant and mode as a reader expects them.
fn order_of_cells(runs: &[SliceRun]) -> Vec<CellKey> {
    let rank = |key: &CellKey| {
        let contestant = ["baseline", "voile", "envoy", "nginx", "haproxy", "relay"]
            .iter()
            .position(|name| *name == key.contestant)
            .unwrap_or(usize::MAX);
        let mode = [
            "baseline",
            "clientonly",
            "serveronly",
            "node",
            "node+waypoint",
            "both",
            "gateway",
        ]
        .iter()
        .position(|mode| *mode == key.mode);
        (
            mode.unwrap_or(usize::MAX),
            key.tls,
            (key.kind, key.protocol.clone()),
            key.arrival != "uniform",
            key.arrival.clone(),
            (key.rate, key.connections, key.shape.clone()),
            (contestant, key.contestant.clone()),
        )
    };
    let mut keys: Vec<CellKey> = runs
        .iter()
        .filter(|run| !run.control)
        .map(SliceRun::key)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    keys.sort_by_key(rank);
    keys
}

/// The figures of each cell's valid slices, by round, added latency included.
pub(crate) fn by_cell(record: &Record) -> BTreeMap<CellKey, Rounds> {
    let mut cells = figures_by_cell(&record.runs, false);
    add_latency_over_baseline(&mut cells);
    cells
}

fn figures_by_cell(runs: &[SliceRun], control: bool) -> BTreeMap<CellKey, Rounds> {
    let mut cells: BTreeMap<CellKey, Rounds> = BTreeMap::new();
    for run in runs
        .iter()
        .filter(|run| run.valid && run.control == control)
    {
        cells
            .entry(run.key())
            .or_default()
            .insert(run.round, figures(run));
    }
    cells
}

/// Everything one slice says, by name.
#[must_use]
pub fn figures(run: &SliceRun) -> BTreeMap<String, f64> {
    let mut figures = Figures::new();
    latency(&mut figures, "latency_us", &run.latency_us);
    latency(&mut figures, "service_us", &run.service_us);
    if run.achieved_rps > 0.0 {
        figures.insert("achieved_rps".to_owned(), run.achieved_rps);
    }
    let counted = run.kind != ValueKind::Bulk;
    if let Some(cpu) = run.machine_cpu_us_per_request.filter(|_| counted) {
        figures.insert("machine_cpu_us_per_request".to_owned(), cpu);
    }
    if let Some(cpu) = less_load_and_server(run).filter(|_| counted) {
        figures.insert(
            "machine_cpu_less_load_server_us_per_request".to_owned(),
            cpu,
        );
    }
    if let Some(split) = run.machine_split_sampled.filter(|_| counted) {
        for (name, value) in [
            ("user", split.user_us_per_request),
            ("system", split.system_us_per_request),
            ("softirq", split.softirq_us_per_request),
            ("steal", split.steal_us_per_request),
        ] {
            figures.insert(format!("machine_{name}_us_per_request_sampled"), value);
        }
    }
    idle(&mut figures, run);
    bulk(&mut figures, run);
    for (number, event) in run.events.iter().enumerate() {
        figures.extend(event.figures(number + 1));
    }
    processes(&mut figures, run);
    figures.extend(run.measured.clone());
    figures
}

/// Figures of each process, and per proxy the mean over the proxies on the path.
fn processes(figures: &mut Figures, run: &SliceRun) {
    for process in &run.processes {
        let limited = [
            (
                "nr_throttled",
                process.nr_throttled.map(|periods| periods as f64),
            ),
            ("throttled_seconds", process.throttled_seconds),
        ];
        for (name, value) in limited {
            figures.extend(value.map(|value| (format!("{}.{name}", process.role), value)));
        }
        for (name, value) in [
            ("cpu_us_per_request", process.cpu_us_per_request),
            ("vcpu", process.vcpu),
            ("rss_bytes", process.rss_bytes as f64),
            ("pss_bytes", process.pss_bytes as f64),
            ("anonymous_bytes", process.anonymous_bytes as f64),
            (
                "user_us_per_request_sampled",
                process.user_us_per_request_sampled,
            ),
            (
                "system_us_per_request_sampled",
                process.system_us_per_request_sampled,
            ),
            ("ctx_switches_per_request", process.ctx_switches_per_request),
            (
                "voluntary_ctx_switches_per_request",
                process.voluntary_ctx_switches_per_request,
            ),
        ] {
            // Bytes in bulk are no requests.
            if run.kind == ValueKind::Bulk && name.contains("_per_request") {
                continue;
            }
            figures.insert(format!("{}.{name}", process.role), value);
            // "Per proxy" is the mean of those on the path, so that modes with one and with two compare.
            if PROXIES.contains(&process.role.as_str()) {
                let proxies = run
                    .processes
                    .iter()
                    .filter(|p| PROXIES.contains(&p.role.as_str()))
                    .count();
                *figures.entry(format!("sidecar.{name}")).or_default() += value / proxies as f64;
            }
        }
    }
}

/// CPU use of the machine without generator and server. For older records, the figure is computed from those of the processes.
#[must_use]
pub fn less_load_and_server(run: &SliceRun) -> Option<f64> {
    run.machine_cpu_less_load_server_us_per_request.or_else(|| {
        let ends = run
            .processes
            .iter()
            .filter(|process| ["load", "server"].contains(&process.role.as_str()))
            .map(|process| process.cpu_us_per_request)
            .sum::<f64>();
        Some(run.machine_cpu_us_per_request? - ends)
    })
}

/// Results of an idle slice. The figure per proxy is the mean over the proxies on the path.
fn idle(figures: &mut Figures, run: &SliceRun) {
    figures.extend(run.idle.iter().map(|(name, value)| (name.clone(), *value)));
    let on_path = |name: &str| -> Vec<f64> {
        PROXIES
            .iter()
            .filter_map(|role| run.idle.get(&format!("{role}.{name}")).copied())
            .collect()
    };
    let names: BTreeSet<&str> = run
        .idle
        .keys()
        .filter_map(|name| {
            PROXIES
                .iter()
                .find_map(|role| name.strip_prefix(role)?.strip_prefix('.'))
        })
        .collect();
    for name in names {
        let values = on_path(name);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        figures.insert(format!("sidecar.{name}"), mean);
    }
}

/// Gigabits per second, and per core that the proxies on the path used.
fn bulk(figures: &mut Figures, run: &SliceRun) {
    let Some(gigabits) = run.gigabits_per_second else {
        return;
    };
    figures.insert("gigabits_per_second".to_owned(), gigabits);
    let cores: f64 = run
        .processes
        .iter()
        .filter(|process| PROXIES.contains(&process.role.as_str()))
        .map(|process| process.vcpu)
        .sum();
    if cores > 0.0 {
        figures.insert("gigabits_per_core".to_owned(), gigabits / cores);
    }
}

fn latency(figures: &mut Figures, name: &str, latency: &Latency) {
    for (percentile, value) in [
        ("p50", latency.p50),
        ("p90", latency.p90),
        ("p99", latency.p99),
        ("p999", latency.p999),
        ("max", latency.max),
        ("mean", latency.mean),
    ] {
        if let Some(value) = value {
            figures.insert(format!("{name}.{percentile}"), value);
        }
    }
}

/// Latency minus that of the baseline under the same load in the same round.
fn add_latency_over_baseline(cells: &mut BTreeMap<CellKey, Rounds>) {
    let baselines: Vec<(CellKey, Rounds)> = cells
        .iter()
        .filter(|(key, _)| key.is_baseline())
        .map(|(key, rounds)| (key.clone(), rounds.clone()))
        .collect();
    for (key, rounds) in cells.iter_mut().filter(|(key, _)| !key.is_baseline()) {
        let mut loads = baselines.iter();
        let Some((_, baseline)) = loads.find(|(baseline, _)| baseline.same_load(key)) else {
            continue;
        };
        for (round, figures) in rounds {
            let Some(baseline) = baseline.get(round) else {
                continue;
            };
            for percentile in ["p50", "p90", "p99", "mean"] {
                let name = format!("latency_us.{percentile}");
                if let (Some(with), Some(without)) = (figures.get(&name), baseline.get(&name)) {
                    let added = with - without;
                    figures.insert(format!("{ADDED}{percentile}"), added);
                }
            }
        }
    }
}

fn medians(rounds: &Rounds) -> BTreeMap<String, Estimate> {
    names(rounds)
        .into_iter()
        .filter_map(|name| {
            let values: Vec<f64> = rounds
                .values()
                .filter_map(|figures| figures.get(&name).copied())
                .collect();
            Some((name, estimate(&values)?))
        })
        .collect()
}

fn names(rounds: &Rounds) -> BTreeSet<String> {
    rounds
        .values()
        .flat_map(|figures| figures.keys().cloned())
        .collect()
}

fn ratios(
    key: &CellKey,
    rounds: &Rounds,
    cells: &BTreeMap<CellKey, Rounds>,
    seed: u64,
) -> BTreeMap<String, BTreeMap<String, Estimate>> {
    cells
        .iter()
        .filter(|(other, _)| other.contestant != key.contestant && key.same_but_contestant(other))
        .map(|(other, others)| {
            (
                other.contestant.clone(),
                ratios_between(rounds, others, seed),
            )
        })
        .collect()
}

fn ratios_between(ours: &Rounds, theirs: &Rounds, seed: u64) -> BTreeMap<String, Estimate> {
    names(ours)
        .into_iter()
        .filter_map(|name| {
            let pairs: Vec<(f64, f64)> = ours
                .iter()
                .filter_map(|(round, figures)| {
                    Some((*figures.get(&name)?, *theirs.get(round)?.get(&name)?))
                })
                .collect();
            let ratio = if name.starts_with(ADDED) {
                ratio_of_medians(&pairs, seed)
            } else {
                paired_ratio(&pairs)
            };
            Some((name, ratio?))
        })
        .collect()
}

/// The control of each repeat, when there are several.
fn repeats(runs: &[SliceRun], seed: u64) -> Vec<Control> {
    let last = runs.iter().map(|run| run.repeat).max().unwrap_or(0);
    if last < 2 {
        return Vec::new();
    }
    (1..=last)
        .filter_map(|repeat| {
            let of_it: Vec<SliceRun> = runs
                .iter()
                .filter(|run| run.repeat == repeat)
                .cloned()
                .collect();
            control(&of_it, seed)
        })
        .collect()
}

fn control(runs: &[SliceRun], seed: u64) -> Option<Control> {
    let key = runs.iter().find(|run| run.control)?.key();
    let first = figures_by_cell(runs, false)
        .remove(&key)
        .unwrap_or_default();
    let second = figures_by_cell(runs, true).remove(&key).unwrap_or_default();
    let mut ratios = ratios_between(&second, &first, seed);
    ratios.retain(|name, _| CONTROL_FIGURES.contains(&name.as_str()));
    let outside = |ratio: &Estimate| {
        ratio.low.is_some_and(|low| low > 1.0) || ratio.high.is_some_and(|high| high < 1.0)
    };
    Some(Control {
        cell: key,
        alarms: ratios
            .iter()
            .filter(|(_, ratio)| outside(ratio))
            .map(|(name, _)| name.clone())
            .collect(),
        noise_floor: ratios
            .iter()
            .filter_map(|(name, ratio)| {
                Some((
                    name.clone(),
                    (1.0 - ratio.low?).abs().max((ratio.high? - 1.0).abs()),
                ))
            })
            .collect(),
        ratios,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Process;

    #[test]
    fn figures_of_each_proxy_are_the_mean_of_those_on_the_way_whatever_they_are() {
        for (roles, wanted) in [
            (
                &["client-sidecar", "server-sidecar", "load"][..],
                Some(15.0),
            ),
            (&["client-node", "server-node", "control"], Some(15.0)),
            (
                &["client-node", "waypoint", "server-node"],
                Some(430.0 / 3.0),
            ),
            (&["gateway", "server"], Some(10.0)),
            (&["load", "server"], None),
        ] {
            let process = |(role, cpu): (&&str, f64)| Process {
                role: (*role).to_owned(),
                cpu_us_per_request: cpu,
                ..Process::default()
            };
            let used = [10.0, 20.0, 400.0];
            let run = SliceRun {
                processes: roles.iter().zip(used).map(process).collect(),
                ..SliceRun::default()
            };
            let found = figures(&run).get("sidecar.cpu_us_per_request").copied();
            assert_eq!(found, wanted, "{roles:?}");
        }
    }
}
