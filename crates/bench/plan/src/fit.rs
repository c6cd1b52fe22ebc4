//! Records of the lab to curves. A cell is a point; a feature's cost is the difference to the same load without it, within rounds.

use std::collections::BTreeMap;

use voile_report::record::{CellKey, Estimate, Record, Summary, ValueKind};
use voile_report::shape::CellShape;
use voile_report::statistics::estimate;
use voile_report::summarise::{figures, summarise};

use crate::curves::{CurvePoint, CurveSource, Curves, FORMAT, LatencyCost, SideCost};
use crate::features::{
    CLIENT_NODE, CLIENT_SIDECAR, DataPlane, SERVER_NODE, SERVER_SIDECAR, WAYPOINT,
};

const ROLES: [&str; 5] = [
    CLIENT_SIDECAR,
    SERVER_SIDECAR,
    CLIENT_NODE,
    SERVER_NODE,
    WAYPOINT,
];
/// Generated kinds that are policies.
const POLICIES: [&str; 5] = ["policies", "rules", "paths", "principals", "source_ips"];
/// Contestants of the lab that have one feature more.
const CONTESTANTS: [(&str, &str); 4] = [
    ("voile+access-log", "access-logs"),
    ("voile+tracing", "tracing"),
    ("voile+rate-limits", "rate-limits"),
    ("voile+ext-authz", "ext-authz"),
];

/// Figures of the valid slices of a cell, by round.
type Rounds = BTreeMap<u32, BTreeMap<String, f64>>;

/// Makes curves of records. Where two records have the same point, the first one's is kept.
///
/// # Errors
/// If the records are of different machines, builds' profiles or workers, or have no cell of Voile.
pub fn fit(records: Vec<Record>) -> Result<Curves, String> {
    let first = records.first().ok_or("no record is named")?;
    let mut curves = Curves {
        format: FORMAT,
        machine: first.environment.clone(),
        workers: first.experiment.workers,
        records: Vec::new(),
        sets: BTreeMap::new(),
    };
    for mut record in records {
        same_machine(&curves, &record)?;
        summarise(&mut record);
        let (experiment, environment) = (&record.experiment, &record.environment);
        curves.records.push(CurveSource {
            experiment: experiment.name.clone(),
            started_at: experiment.started_at.clone(),
            profile: environment.profile.clone(),
            voile_sha256: environment.voile_sha256.clone(),
        });
        let rounds = by_cell(&record);
        for cell in &record.summary {
            let Some((set, amount)) = set_of(cell) else {
                continue;
            };
            let is_plane = DataPlane::ALL.iter().any(|plane| plane.set() == set);
            let point = match is_plane {
                true => Some(measured(cell, experiment.size_bytes)),
                false => difference(cell, amount, &rounds, experiment.size_bytes),
            };
            let points = curves.sets.entry(set.to_owned()).or_default();
            points.extend(point.filter(|point| {
                let known = points.iter().any(|known| same_load(known, point));
                !known && (!point.sides.is_empty() || point.latency_us.p50.is_some())
            }));
        }
    }
    curves.sets.retain(|_, points| !points.is_empty());
    if curves.sets.keys().all(|set| set == "none") {
        return Err("these records have no valid cell of voile at a rate; cure: name records of `voile bench run`, such as of benchmarks/curves.toml".to_owned());
    }
    Ok(curves)
}

fn same_machine(curves: &Curves, record: &Record) -> Result<(), String> {
    let name = &record.experiment.name;
    let (ours, theirs) = (&curves.machine, &record.environment);
    if record.scene.is_some() {
        return Err(format!(
            "{name} is the record of a scene, which has no cells; cure: leave it out"
        ));
    }
    if (&ours.cpu, ours.cores) != (&theirs.cpu, theirs.cores) {
        return Err(format!(
            "{name} was measured on {} with {} cores, and the first record on {} with {}; cure: one file of curves for each machine",
            theirs.cpu, theirs.cores, ours.cpu, ours.cores
        ));
    }
    if ours.profile != theirs.profile {
        return Err(format!(
            "{name} measured a {} build, and the first record a {} one; cure: leave one out",
            theirs.profile, ours.profile
        ));
    }
    if curves.workers != record.experiment.workers {
        return Err(format!(
            "{name} has {} workers in each proxy, and the first record {}; cure: leave one out",
            record.experiment.workers, curves.workers
        ));
    }
    Ok(())
}

fn by_cell(record: &Record) -> BTreeMap<CellKey, Rounds> {
    let mut cells: BTreeMap<CellKey, Rounds> = BTreeMap::new();
    for run in record.runs.iter().filter(|run| run.valid && !run.control) {
        let rounds = cells.entry(run.key()).or_default();
        rounds.insert(run.round, figures(run));
    }
    cells
}

/// The set of a cell, and the number of its policies or issuers; none if a property differs that no curve has.
fn set_of(cell: &Summary) -> Option<(&'static str, u32)> {
    if !matches!(cell.kind, ValueKind::Latency | ValueKind::Idle) || cell.protocol == "tcp" {
        return None;
    }
    let shape = &cell.shape;
    let load = CellShape {
        request_bytes: shape.request_bytes,
        response_bytes: shape.response_bytes,
        generated: shape.generated.clone(),
        verdict: shape.verdict.clone(),
        token: shape.token.clone(),
        ..CellShape::default()
    };
    if *shape != load {
        return None;
    }
    let mut generated = shape.generated.iter().filter(|(kind, _)| *kind != SERVICES);
    let more = generated
        .next()
        .map(|(kind, number)| (kind.as_str(), *number));
    if generated.next().is_some() {
        return None;
    }
    let mutual = (cell.mode.as_str(), cell.tls) == ("both", true);
    match (cell.contestant.as_str(), more, shape.verdict.as_str()) {
        ("baseline", None, "") => Some((DataPlane::None.set(), 0)),
        ("voile", None, "") if shape.token.is_empty() => Some((plane(cell)?.set(), 0)),
        ("voile", Some((kind, number)), "allow-last")
            if mutual && POLICIES.contains(&kind) && shape.token.is_empty() =>
        {
            Some(("policies", number))
        }
        ("voile", Some(("issuers", number)), "") if mutual && shape.token == "same" => {
            Some(("tokens", number))
        }
        (contestant, None, "") if mutual && shape.token.is_empty() => {
            let known = CONTESTANTS.iter().find(|(name, _)| *name == contestant);
            known.map(|(_, set)| (*set, 0))
        }
        _ => None,
    }
}

fn plane(cell: &Summary) -> Option<DataPlane> {
    match (cell.mode.as_str(), cell.tls) {
        ("both", false) => Some(DataPlane::Sidecar),
        ("both", true) => Some(DataPlane::MutualTls),
        ("node", true) => Some(DataPlane::Node),
        ("node+waypoint", true) => Some(DataPlane::Waypoint),
        _ => None,
    }
}

const SERVICES: &str = "services";

fn at_load(cell: &Summary, amount: u32, answer: u64) -> CurvePoint {
    let shape = &cell.shape;
    CurvePoint {
        protocol: cell.protocol.clone(),
        rate: cell.rate,
        connections: cell.connections,
        body_bytes: shape.request_bytes.unwrap_or(0) + shape.response_bytes.unwrap_or(answer),
        services: shape.generated.get(SERVICES).copied().unwrap_or(0),
        amount,
        sides: BTreeMap::new(),
        latency_us: LatencyCost::default(),
    }
}

/// Returns true if a second point would be another measurement of the first.
fn same_load(one: &CurvePoint, other: &CurvePoint) -> bool {
    let load = |point: &CurvePoint| {
        let CurvePoint { protocol, rate, .. } = point;
        let numbers = (point.connections, point.services, point.amount);
        (protocol.clone(), rate.to_bits(), point.body_bytes, numbers)
    };
    load(one) == load(other)
}

fn measured(cell: &Summary, answer: u64) -> CurvePoint {
    let figure = |name: String| cell.figures.get(&name).copied();
    let idle = cell.kind == ValueKind::Idle;
    let latency = match cell.contestant.as_str() {
        "baseline" => "latency_us",
        _ => "added_us",
    };
    CurvePoint {
        sides: sides(|role| SideCost {
            cpu_us: figure(format!("{role}.cpu_us_per_request")).filter(|_| !idle),
            memory_bytes: match idle {
                true => figure(format!("{role}.idle_rss_bytes")),
                false => figure(format!("{role}.rss_bytes")),
            },
        }),
        latency_us: latency_cost(|percentile| figure(format!("{latency}.{percentile}"))),
        ..at_load(cell, 0, answer)
    }
}

/// The difference to the same load over two sidecars with mutual TLS, paired within rounds. None if that was not measured.
fn difference(
    cell: &Summary,
    amount: u32,
    cells: &BTreeMap<CellKey, Rounds>,
    answer: u64,
) -> Option<CurvePoint> {
    let of_cell = |key: &CellKey, contestant: &str, shape: &CellShape| {
        let load = (&*key.protocol, &*key.arrival, key.connections, key.kind);
        let wanted = (&*cell.protocol, &*cell.arrival, cell.connections, cell.kind);
        let path = (&*key.contestant, &*key.mode, key.tls);
        load == wanted
            && path == (contestant, &*cell.mode, cell.tls)
            && f64::from(key.rate) == cell.rate.round()
            && key.shape == *shape
    };
    let plain = CellShape {
        request_bytes: cell.shape.request_bytes,
        response_bytes: cell.shape.response_bytes,
        ..CellShape::default()
    };
    let rounds = |contestant: &str, shape: &CellShape| {
        let mut cells = cells.iter();
        cells.find_map(|(key, rounds)| of_cell(key, contestant, shape).then_some(rounds))
    };
    let with = rounds(&cell.contestant, &cell.shape)?;
    let without = rounds("voile", &plain)?;
    let figure = |name: String| -> Option<Estimate> {
        let pairs = with.iter().filter_map(|(round, figures)| {
            Some(figures.get(&name)? - without.get(round)?.get(&name)?)
        });
        estimate(&pairs.collect::<Vec<f64>>())
    };
    Some(CurvePoint {
        sides: sides(|role| SideCost {
            cpu_us: figure(format!("{role}.cpu_us_per_request")),
            memory_bytes: figure(format!("{role}.rss_bytes")),
        }),
        latency_us: latency_cost(|percentile| figure(format!("latency_us.{percentile}"))),
        ..at_load(cell, amount, answer)
    })
}

fn sides(cost: impl Fn(&str) -> SideCost) -> BTreeMap<String, SideCost> {
    let all = ROLES.into_iter().map(|role| (role.to_owned(), cost(role)));
    all.filter(|(_, cost)| *cost != SideCost::default())
        .collect()
}

fn latency_cost(figure: impl Fn(&str) -> Option<Estimate>) -> LatencyCost {
    LatencyCost {
        mean: figure("mean"),
        p50: figure("p50"),
        p90: figure("p90"),
        p99: figure("p99"),
    }
}
