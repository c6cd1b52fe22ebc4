//! The three figures that a report begins with, on the page and in the terminal: added latency, CPU and memory of one cell, each with a
//! plain sentence, and how far to trust them.

use crate::record::{Record, Summary, ValueKind};
use crate::words::{bytes, core_share, duration, load_title};

/// The load that articles about meshes use, which comes first: requests per second, connections.
const USUAL: (f64, f64) = (1000.0, 16.0);
/// Contestants that Voile is compared with in a sentence: the first that was measured.
pub(crate) const PEERS: [(&str, &str); 3] = [
    ("envoy", "Envoy"),
    ("ztunnel", "ztunnel"),
    ("linkerd", "Linkerd"),
];
/// Proxies whose figures stand for a path: the prefix of the figures, and its word.
const PROXIES: [(&str, &str); 3] = [
    ("sidecar", "sidecar"),
    ("waypoint", "waypoint"),
    ("gateway", "gateway"),
];

/// One figure of the first screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tile {
    /// Its heading.
    pub title: &'static str,
    /// Values, each with the word that stands beside it.
    pub values: Vec<(String, &'static str)>,
    /// What it means.
    pub sentence: String,
}

/// The first screen.
#[derive(Debug, Clone, PartialEq)]
pub struct Headline<'a> {
    /// The cell that the figures are of.
    pub cell: &'a Summary,
    /// Path and load of the cell.
    pub load: String,
    /// The figures that it has, three at most.
    pub tiles: Vec<Tile>,
    /// How far to trust them.
    pub trust: String,
}

/// The first screen of a record; none if it measured no proxy.
#[must_use]
pub fn headline(record: &Record) -> Option<Headline<'_>> {
    let cell = record
        .summary
        .iter()
        .filter(|summary| summary.runs_valid > 0 && summary.mode != "baseline")
        .min_by_key(|summary| rank(summary))?;
    let tiles: Vec<Tile> = [added(cell), cpu(cell), memory(cell)]
        .into_iter()
        .flatten()
        .collect();
    (!tiles.is_empty()).then(|| Headline {
        cell,
        load: format!(
            "{}, {}, {}",
            cell.contestant,
            path(&cell.mode, cell.tls),
            load_title(&cell.key())
        ),
        tiles,
        trust: trust(record),
    })
}

/// The least comes first: Voile, latency, the whole path, encrypted, nothing special, near the usual load.
fn rank(summary: &Summary) -> impl Ord + use<> {
    let key = summary.key();
    let mode = ["both", "node", "node+waypoint", "gateway"];
    let mode = mode.iter().position(|mode| *mode == summary.mode);
    let far = |value: u32, usual: f64| (f64::from(value.max(1)) / usual).ln().abs();
    let distance = far(key.rate, USUAL.0) + far(key.connections, USUAL.1);
    (
        summary.contestant != "voile",
        summary.kind != ValueKind::Latency,
        mode.unwrap_or(usize::MAX),
        !summary.tls,
        !key.shape.is_plain(),
        summary.arrival != "uniform",
        summary.protocol != "http1",
        !summary.figures.contains_key("added_us.p50"),
        (distance * 100.0) as u64,
    )
}

/// A path as a person would say it.
pub(crate) fn path(mode: &str, tls: bool) -> String {
    let path = match mode {
        "baseline" => return "no proxy".to_owned(),
        "clientonly" | "serveronly" => "one sidecar",
        "both" => "two sidecars",
        "node" => "two node proxies",
        "node+waypoint" => "two node proxies and a waypoint",
        "gateway" => "a gateway",
        other => other,
    };
    match tls {
        true => format!("{path} with mutual TLS"),
        false => path.to_owned(),
    }
}

/// How much more another contestant has of these figures.
fn beside(cell: &Summary, figures: &[&str]) -> String {
    let found = PEERS.iter().find_map(|(name, word)| {
        let ratios = cell
            .ratios
            .get(*name)
            .filter(|_| cell.contestant != *name)?;
        let times = figures.iter().filter_map(|figure| {
            let ours = ratios.get(*figure)?.median;
            (ours > 0.0).then(|| format!("{:.1}×", 1.0 / ours))
        });
        let times: Vec<String> = times.collect();
        (!times.is_empty()).then(|| format!(" {word}: {} as much.", times.join(" and ")))
    });
    found.unwrap_or_default()
}

fn added(cell: &Summary) -> Option<Tile> {
    let of = |name: &str| cell.figures.get(name).map(|figure| figure.median);
    let path = path(&cell.mode, cell.tls);
    let (title, [p50, p99], sentence) = if of("added_us.p50").is_some() {
        let names = ["added_us.p50", "added_us.p99"];
        let sentence = format!(
            "How much longer requests take through {path} than without a proxy.{}",
            beside(cell, &names)
        );
        ("Added latency", names, sentence)
    } else {
        let names = ["latency_us.p50", "latency_us.p99"];
        let sentence = format!(
            "How long requests take through {path}; the path without a proxy was not measured.{}",
            beside(cell, &names)
        );
        ("Latency", names, sentence)
    };
    let values = [(p50, "p50"), (p99, "p99")].map(|(name, word)| Some((duration(of(name)?), word)));
    let values: Vec<_> = values.into_iter().flatten().collect();
    (!values.is_empty()).then_some(Tile {
        title,
        values,
        sentence,
    })
}

fn cpu(cell: &Summary) -> Option<Tile> {
    PROXIES.iter().find_map(|(prefix, word)| {
        let name = format!("{prefix}.cpu_us_per_request");
        let us = cell.figures.get(&name)?.median;
        let share = core_share(us * f64::from(cell.key().rate) / 1e6);
        let at = match cell.key().rate {
            0 => String::new(),
            rate => format!(" At {rate} requests per second, that is {share} of a core."),
        };
        Some(Tile {
            title: "CPU per request",
            values: vec![(duration(us), "per proxy")],
            sentence: format!(
                "CPU time of each {word} for a request.{at}{}",
                beside(cell, &[name.as_str()])
            ),
        })
    })
}

fn memory(cell: &Summary) -> Option<Tile> {
    PROXIES.iter().find_map(|(prefix, word)| {
        let (name, when) = [
            ("rss_bytes", "under this load"),
            ("idle_rss_bytes", "while idle"),
        ]
        .into_iter()
        .map(|(name, when)| (format!("{prefix}.{name}"), when))
        .find(|(name, _)| cell.figures.contains_key(name))?;
        let held = cell.figures.get(&name)?.median;
        Some(Tile {
            title: "Memory",
            values: vec![(bytes(held), "per proxy")],
            sentence: format!(
                "Resident memory of each {word} {when}.{}",
                beside(cell, &[name.as_str()])
            ),
        })
    })
}

/// One sentence: where it was measured, how often, and the smallest difference that is no noise.
fn trust(record: &Record) -> String {
    let environment = &record.environment;
    let rounds = record.experiment.rounds_done;
    let valid = record.runs.iter().filter(|run| run.valid).count();
    let floor = |figure: &str| {
        let control = record.control.as_ref()?;
        Some(control.noise_floor.get(figure)? * 100.0)
    };
    let noise = match (floor("latency_us.p50"), floor("latency_us.p99")) {
        (Some(p50), Some(p99)) => format!(
            "one cell measured twice shows that differences below {p50:.0} % at p50 and {p99:.0} % at p99 are noise"
        ),
        (Some(p50), None) => format!(
            "one cell measured twice shows that differences below {p50:.0} % at p50 are noise"
        ),
        _ => "no cell was measured twice, so the intervals alone tell the noise".to_owned(),
    };
    let build = match environment.profile.as_str() {
        "release" => "",
        _ => "not a release build, so no figure counts; ",
    };
    format!(
        "How far to trust it: {build}medians of {rounds} rounds on one machine ({}, {} cores), {valid} of {} slices valid; {noise}.",
        environment.cpu,
        environment.cores,
        record.runs.len()
    )
}

/// The first screen, for the terminal.
#[must_use]
pub fn render(record: &Record) -> String {
    let Some(headline) = headline(record) else {
        return String::new();
    };
    let mut text = format!("{}\n", headline.load);
    for tile in &headline.tiles {
        let values = tile.values.iter();
        let values: Vec<String> = values
            .map(|(value, word)| format!("{value} {word}"))
            .collect();
        text += &format!(
            "  {:<16} {:<28} {}\n",
            tile.title,
            values.join(", "),
            tile.sentence
        );
    }
    text + &headline.trust + "\n"
}
