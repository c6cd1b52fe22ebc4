//! Cost of a mesh for a whole graph of services: slices with the mesh and without, per request at the entry point, per service and
//! per call. Extrapolated figures are marked.

mod plots;

use super::data::SceneFigures;
use super::view::{SceneTable, SceneView, shown};
use crate::record::scene::{BARE, Finding, MESH, SceneFigure, ServiceGraph};
use crate::record::{Estimate, Record, SliceRun};
use crate::table::{Row, heading};
use crate::words::{bytes, cores, duration, interval, micro};

/// Istio's published load: service requests a second over the whole mesh, and its sidecars.
const CLAIMED_RATE: f64 = 70_000.0;
const CLAIMED_SIDECARS: f64 = 2_000.0;

/// A figure on both sides.
fn sides(figure: &str) -> [SceneFigure; 2] {
    [
        SceneFigure::new("with the mesh", MESH, "", figure),
        SceneFigure::new("without", BARE, "", figure),
    ]
}

pub(super) fn asked() -> Vec<Finding> {
    let figures = [
        ("p50", "p50_us"),
        ("p90", "p90_us"),
        ("p99", "p99_us"),
        ("CPU of the machine per request", "machine_us"),
        ("CPU of the services per request", "cpu_us.service"),
    ];
    let finding = |(measure, figure): (&str, &str)| {
        let [with, without] = sides(figure);
        Finding::of("At the entry point", measure, "us", with).beside(without)
    };
    figures.map(finding).into()
}

/// A figure on both sides over rounds, and what the mesh adds within rounds.
struct PairedFigure {
    without: Option<Estimate>,
    with: Option<Estimate>,
    added: Option<Estimate>,
}

impl PairedFigure {
    fn of(figures: &SceneFigures, figure: &str) -> Self {
        let [with, without] = sides(figure);
        Self {
            added: figures.added(&with, &without),
            with: figures.estimate(&with),
            without: figures.estimate(&without),
        }
    }

    /// Both sides as cells.
    fn two(&self, show: fn(f64) -> String) -> [String; 2] {
        [&self.without, &self.with].map(|side| shown(side.as_ref(), show))
    }
}

/// Figures of a service or a call: `services.NAME` or `edges.NAME`.
struct GraphPart<'a> {
    name: &'a str,
    figures: &'a SceneFigures,
    group: &'static str,
}

impl GraphPart<'_> {
    fn figure(&self, figure: &str) -> PairedFigure {
        let name = format!("{}.{}.{figure}", self.group, self.name);
        PairedFigure::of(self.figures, &name)
    }

    fn two(&self, figure: &str, show: fn(f64) -> String) -> [String; 2] {
        self.figure(figure).two(show)
    }

    fn with(&self, figure: &str, show: fn(f64) -> String) -> String {
        shown(self.figure(figure).with.as_ref(), show)
    }

    fn added(&self) -> String {
        shown(self.figure("took.mean_us").added.as_ref(), duration)
    }
}

/// All of a group, by a figure that each has.
fn parts<'a>(
    record: &'a Record,
    figures: &'a SceneFigures,
    group: &'static str,
    counted: &str,
) -> Vec<GraphPart<'a>> {
    let names = record.runs.iter().flat_map(|run| run.measured.keys());
    let name = |figure: &'a String| {
        let inner = figure.strip_prefix(group)?.strip_prefix('.')?;
        inner.strip_suffix(counted)?.strip_suffix('.')
    };
    let mut names: Vec<&str> = names.filter_map(name).collect();
    // `svc-10` after `svc-9`.
    names.sort_by_key(|name| natural(name));
    names.dedup();
    let part = |name| GraphPart {
        name,
        figures,
        group,
    };
    names.into_iter().map(part).collect()
}

/// A name in pieces that sort as people count.
fn natural(name: &str) -> Vec<(u64, String)> {
    let piece = |piece: &str| (piece.parse().unwrap_or(u64::MAX), piece.to_owned());
    name.split('-').map(piece).collect()
}

pub(super) fn view(record: &Record, figures: &SceneFigures) -> SceneView {
    let scene = record.own_scene();
    let unknown = ServiceGraph::default();
    let graph = scene.graph.as_ref().unwrap_or(&unknown);
    let services = parts(record, figures, "services", "requests");
    let calls = parts(record, figures, "edges", "calls");
    let mut words = vec![about(graph)];
    words.extend(carried(graph));
    let added = scene.findings.first().and_then(|p50| p50.added);
    words.extend(added.map(|added| {
        let level = added.median / f64::from(graph.depth.max(1));
        format!(
            "Added to the median per level of calls: {}.",
            duration(level)
        )
    }));
    words.extend(of_calls(&calls));
    let sidecars = Sidecars::of(graph, figures);
    words.extend(sidecars.iter().flat_map(|found| found.words(graph)));
    words.extend(record.runs.iter().filter(|run| !run.valid).map(invalid));
    let picture = (!graph.picture.is_empty()).then(|| (graph.graph.clone(), graph.picture.clone()));
    SceneView {
        title: format!("Cost of a mesh for {}", graph.graph),
        words,
        picture,
        tables: sidecars.iter().map(|found| found.table(graph)).collect(),
        sections: plots::sections(record, graph, figures, (&services, &calls)),
        evidence: vec![
            services_table(graph, &services),
            calls_table(&calls),
            proof(record, graph),
        ],
        texts: vec![("The graph".to_owned(), graph.graph_text.clone())],
    }
}

fn about(graph: &ServiceGraph) -> String {
    let isolation = match graph.isolation.as_str() {
        "netns" => "each service in a network namespace of its own",
        _ => "on loopback addresses",
    };
    format!(
        "{}: {} services, {:.2} requests for each at the entry point, {} deep, {isolation}; {}/s at the entry point over {} connections.",
        graph.graph, graph.services, graph.requests, graph.depth, graph.rate, graph.connections
    )
}

fn carried(graph: &ServiceGraph) -> Option<String> {
    let carried = graph.carried.as_ref()?;
    Some(format!(
        "This machine carries {:.0}/s at the entry point without a mesh, {:.0}/s with it ({}): {:.0} and {:.0} requests a second at services. Measured at {:.0} % of the lower.",
        carried.without,
        carried.with,
        carried.bounds,
        carried.without * graph.requests,
        carried.with * graph.requests,
        carried.share * 100.0
    ))
}

/// The cost that the mesh adds to one call: the middle of all calls of the graph.
fn of_calls(calls: &[GraphPart<'_>]) -> Option<String> {
    let added = calls.iter().filter_map(|call| {
        let added = call.figure("took.mean_us").added?;
        Some((
            added.median,
            format!("{} ({})", interval(&added, duration), call.name),
        ))
    });
    let mut added: Vec<(f64, String)> = added.collect();
    added.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (least, most) = (&added.first()?.1, &added.last()?.1);
    Some(match added.len() {
        1 => format!("Added to the mean of its one kind of call: {least}."),
        kinds => format!(
            "Added to the mean of a call, over {kinds} pairs of services: {} in the middle, from {least} to {most}.",
            duration(added[kinds / 2].0)
        ),
    })
}

fn side(run: &SliceRun) -> &'static str {
    if run.contestant == MESH {
        "with"
    } else {
        "without"
    }
}

fn invalid(run: &SliceRun) -> String {
    let why = run.invalid_reasons.join("; ");
    format!("Invalid: round {} {} the mesh: {why}", run.round, side(run))
}

/// What all sidecars cost.
struct Sidecars {
    /// CPU for a request at the entry point.
    cpu: Estimate,
    /// Memory of one.
    memory: Estimate,
}

impl Sidecars {
    fn of(graph: &ServiceGraph, figures: &SceneFigures) -> Option<Self> {
        let with = |figure: &str| PairedFigure::of(figures, figure).with;
        let known = graph.requests > 0.0;
        Some(Self {
            cpu: with("cpu_us.sidecar").filter(|_| known)?,
            memory: with("memory_bytes.sidecar")?,
        })
    }

    fn words(&self, graph: &ServiceGraph) -> [String; 3] {
        let part = |value: f64| value / graph.requests;
        let each = Estimate {
            median: part(self.cpu.median),
            low: self.cpu.low.map(part),
            high: self.cpu.high.map(part),
            ..self.cpu
        };
        [
            format!(
                "CPU of all sidecars per request at the entry point: {}; per request at a service, its two sidecars together: {}.",
                interval(&self.cpu, duration),
                interval(&each, duration)
            ),
            format!("Memory of a sidecar: {}.", interval(&self.memory, bytes)),
            format!(
                "Measured: {:.0} service requests a second. EXTRAPOLATED in a straight line, not measured: {CLAIMED_RATE:.0} a second, Istio's published \
                 load test, would take {} cores for all sidecars, and its {CLAIMED_SIDECARS:.0} sidecars {:.1} GiB of memory.",
                graph.rate * graph.requests,
                cores(each.median * CLAIMED_RATE / 1e6),
                self.memory.median * CLAIMED_SIDECARS / f64::from(1 << 30)
            ),
        ]
    }

    /// Extrapolated figures apart from measured ones.
    fn table(&self, graph: &ServiceGraph) -> SceneTable {
        let line = |name: &str, rate: f64, sidecars: f64, unit: &str| {
            let cores = self.cpu.median / graph.requests * rate / 1e6;
            Row::Cells(vec![
                name.to_owned(),
                format!("{rate:.0}"),
                format!("{cores:.2}"),
                format!("{sidecars:.0}{unit}"),
                bytes(self.memory.median * sidecars),
            ])
        };
        let services = f64::from(graph.services);
        let titles = [
            "",
            "service requests/s",
            "cores of all sidecars",
            "sidecars",
            "memory of all sidecars (PSS)",
        ];
        let claimed = "EXTRAPOLATED in a straight line, not measured";
        SceneTable {
            words: "The second line is Istio's published load test. A straight line assumes that the cost of a request depends neither on their number nor on the number of machines; this is not shown here.",
            ..SceneTable::new(
                "Measured, and extrapolated",
                vec![
                    heading(&titles),
                    line(
                        "measured here",
                        graph.rate * graph.requests,
                        services,
                        " services",
                    ),
                    line(claimed, CLAIMED_RATE, CLAIMED_SIDECARS, ""),
                ],
            )
        }
    }
}

/// Mean with what the mesh adds, p50 and p99.
fn times(part: &GraphPart<'_>) -> Vec<String> {
    let mut cells = Vec::from(part.two("took.mean_us", duration));
    cells.push(part.added());
    cells.extend(part.two("took.p50_us", duration));
    cells.extend(part.two("took.p99_us", duration));
    cells
}

const TIMES: [&str; 7] = [
    "mean without",
    "mean with",
    "added",
    "p50 without",
    "p50 with",
    "p99 without",
    "p99 with",
];

fn services_table(graph: &ServiceGraph, services: &[GraphPart<'_>]) -> SceneTable {
    let first = ["service", "requests for one at the entry"];
    let last = [
        "CPU/request without, µs",
        "CPU/request with, µs",
        "CPU/request of its sidecar, µs",
        "RSS of its sidecar",
    ];
    let mut rows = vec![heading(&[&first[..], &TIMES, &last].concat())];
    rows.extend(services.iter().map(|part| {
        let expected = graph.by_service.get(part.name);
        let expected = expected.map_or_else(|| "–".to_owned(), |n| format!("{n:.2}"));
        let mut cells = vec![part.name.to_owned(), expected];
        cells.extend(times(part));
        cells.extend(part.two("cpu_us", micro));
        cells.push(part.with("sidecar_cpu_us", micro));
        cells.push(part.with("sidecar_rss_bytes", bytes));
        Row::Cells(cells)
    }));
    SceneTable {
        words: "Medians over rounds with 95 % intervals below. Times from a request's head to its answer, the service's own calls included. \
                Means are exact; percentiles are read between the bounds of a histogram that lie a quarter apart at most below 10 ms.",
        ..SceneTable::new("Every service", rows)
    }
}

fn calls_table(calls: &[GraphPart<'_>]) -> SceneTable {
    let last = ["failed in a slice without", "failed with"];
    let mut rows = vec![heading(&[&["call"][..], &TIMES, &last].concat())];
    rows.extend(calls.iter().map(|part| {
        let mut cells = vec![part.name.to_owned()];
        cells.extend(times(part));
        cells.extend(part.two("failed", |count| format!("{count:.0}")));
        Row::Cells(cells)
    }));
    SceneTable {
        words: "From the call to the end of its answer, connecting included, as measured by the calling service.",
        ..SceneTable::new("Every call", rows)
    }
}

fn proof(record: &Record, graph: &ServiceGraph) -> SceneTable {
    let titles = [
        "round",
        "requests at the entry",
        "calls the graph makes of them",
        "calls counted by mutual TLS",
    ];
    let mut rows = vec![heading(&titles)];
    rows.extend(record.runs.iter().filter_map(|run| {
        let counted = run.measured.get("by_mutual_tls")?;
        let ok = run.measured.get("ok")?;
        let expected = ok * (graph.requests - 1.0);
        let numbers = [f64::from(run.round), *ok, expected, *counted];
        Some(Row::Cells(
            numbers.map(|number| format!("{number:.0}")).into(),
        ))
    }));
    SceneTable {
        words: "A round is valid only if the sidecars accepted as many calls over mutual TLS as the graph makes for the answered requests.",
        ..SceneTable::new("Proof of path", rows)
    }
}
