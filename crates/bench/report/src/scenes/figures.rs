//! Figures of one run beside their bounds: of a control plane, of many sidecars, of a node's proxy. Of a control plane there may be
//! several meshes, each a slice with figures of its own; they show how figures grow.

use super::view::{SceneTable, SceneView, bar, bar_plot, section, shower};
use crate::plots::plot::{Plot, Section};
use crate::record::scene::{BoundedValue, Finding, SceneBound, SceneFigure, SceneKind};
use crate::record::target_verdicts::TargetResult;
use crate::record::{Estimate, Record, SliceRun};
use crate::svg::{Frame, PlotPoint, Scale, Series, lines};
use crate::table::Row;
use crate::words::ratio;

/// Above the growth of the mesh by this factor it is no longer called linear: figures of one run shake.
const ROOM: f64 = 1.1;
/// Published needs of istiod, shown beside ours.
const ISTIOD: &str = "istiod, as published for 1,000 services and 2,000 proxies: 1 vCPU and 1.5 GB, and convergence in seconds. \
     Other machines, and a load test of 70,000 requests a second beside it.";
/// A key of figures in the words of a reader, and how they are called in plots.
const GROWING: [(&str, &str); 9] = [
    ("start", "until ready"),
    ("rss-alone", "RSS without proxies"),
    ("rss", "RSS with all proxies"),
    ("one-p99", "one endpoint changes that all use, p99"),
    ("one-cpu", "CPU of such a change"),
    ("policy-p99", "a policy for all, p99"),
    ("churn-cpu", "CPU under churn"),
    ("churn-p99", "churn, p99"),
    ("reconnected", "killed, until all are in sync"),
];
/// Values that are so many times apart are not drawn by one scale: the small one would be no bar.
const APART: f64 = 50.0;
/// More plots than this are folded: the table has the same figures.
const MANY: usize = 6;
/// Properties of a mesh, as figures of its slice, and their names in a plot; the first three are objects.
const ALONG: [(&str, &str); 4] = [
    ("services", "services"),
    ("workloads", "workloads"),
    ("proxies", "proxies"),
    ("churn", "changes a second"),
];

impl Finding {
    /// Lets the same figure of another mesh be found by this word.
    pub fn key(&mut self, key: &str) -> &mut Self {
        key.clone_into(&mut self.key);
        self
    }

    /// Makes the bound a minimum.
    pub fn at_least(&mut self) {
        for bound in &mut self.bounds {
            (bound.at_least, bound.at_most) = (bound.at_most, None);
        }
    }
}

impl Record {
    /// Begins a mesh with these properties. The record's own comes first.
    pub fn begin_mesh(&mut self, properties: &[(&str, f64)]) {
        let part = match self.runs.len() {
            0 => String::new(),
            others => format!("mesh {}", others + 1),
        };
        let known = properties.iter().filter(|(_, value)| *value > 0.0);
        let measured = known.map(|(name, value)| ((*name).to_owned(), *value));
        let run = SliceRun::of_scene("voile", &part, 1, measured.collect());
        self.runs.push(run);
    }

    /// Adds a figure of the last mesh, with the most that is asked.
    ///
    /// # Panics
    /// Without a mesh.
    pub fn add(
        &mut self,
        what: &str,
        measure: &str,
        (seen, unit): (f64, &str),
        asked: Option<f64>,
    ) -> &mut Finding {
        let run = self
            .runs
            .last_mut()
            .expect("invariant: figures are of a mesh");
        let figure = format!("{what}: {measure}");
        let of = SceneFigure::new("", &run.contestant, &run.mode, &figure);
        // JSON has no word for a number that is none.
        if seen.is_finite() {
            run.measured.insert(figure, seen);
        }
        let bounds = asked.map(|most| SceneBound {
            on: BoundedValue::Figure,
            at_most: Some(most),
            by_median: true,
            ..SceneBound::default()
        });
        let finding = Finding {
            bounds: bounds.into_iter().collect(),
            ..Finding::of(what, measure, unit, of)
        };
        let findings = &mut self.scene.get_or_insert_default().findings;
        findings.push(finding);
        let last = findings.len() - 1;
        &mut findings[last]
    }
}

/// A mesh of the record.
struct MeshSlice<'a> {
    run: &'a SliceRun,
    record: &'a Record,
}

impl MeshSlice<'_> {
    fn number(&self, property: &str) -> f64 {
        self.run.measured.get(property).copied().unwrap_or(0.0)
    }

    /// Services, workloads and proxies.
    fn objects(&self) -> f64 {
        ALONG[..3].iter().map(|(name, _)| self.number(name)).sum()
    }

    fn figure(&self, key: &str) -> Option<(f64, &str)> {
        let mut findings = self.record.own_scene().findings.iter();
        let found = findings.find(|one| one.key == key && one.of.part == self.run.mode)?;
        Some((found.value?.median, &found.unit))
    }

    fn title(&self) -> String {
        format!(
            "{} services, {} workloads, {} proxies, {} changes a second",
            self.number("services"),
            self.number("workloads"),
            self.number("proxies"),
            self.number("churn")
        )
    }
}

/// All of them, the smallest first.
fn meshes(record: &Record) -> Vec<MeshSlice<'_>> {
    let mesh = |run| MeshSlice { run, record };
    let mut all: Vec<MeshSlice<'_>> = record.runs.iter().map(mesh).collect();
    all.sort_by(|a, b| {
        let by_churn = a.number("churn").total_cmp(&b.number("churn"));
        a.objects().total_cmp(&b.objects()).then(by_churn)
    });
    all
}

pub(super) fn view(record: &Record, own: &[&Finding]) -> SceneView {
    let kind = record.own_scene().kind;
    let all = meshes(record);
    let title = match kind {
        SceneKind::Sidecars => "Cost of many sidecars",
        SceneKind::Nodes => "A node proxy with many pods",
        _ => "Cost of a control plane",
    };
    let mut words = vec![subject(record, kind) + "."];
    if kind == SceneKind::ControlPlane {
        words.push(ISTIOD.to_owned());
    }
    words.extend(growth(&all));
    SceneView {
        title: title.to_owned(),
        words,
        tables: (all.len() > 1).then(|| by_mesh(&all)).into_iter().collect(),
        sections: plots(own, &all, record),
        ..SceneView::default()
    }
}

/// Findings of the record's own mesh.
pub(super) fn own(record: &Record) -> Vec<&Finding> {
    let findings = record.own_scene().findings.iter();
    findings
        .filter(|finding| finding.of.part.is_empty())
        .collect()
}

/// The mesh, in words.
fn subject(record: &Record, kind: SceneKind) -> String {
    let number = |name: &str| {
        let first = record.runs.first();
        first
            .and_then(|run| run.measured.get(name))
            .copied()
            .unwrap_or(0.0)
    };
    let each = format!("that use {} services each", number("used"));
    let services = number("services");
    match kind {
        SceneKind::Nodes => format!(
            "{} pods of one node, which call a server on another",
            number("nodes")
        ),
        SceneKind::Sidecars => format!(
            "{services} services, {} real sidecars {each}",
            number("sidecars")
        ),
        _ => format!(
            "{services} services, {} workloads, {} simulated proxies {each}",
            number("workloads"),
            number("proxies")
        ),
    }
}

/// The largest mesh beside the smallest, a sentence a line; none for a single mesh.
fn growth(all: &[MeshSlice<'_>]) -> Vec<String> {
    let (Some(small), Some(large)) = (all.first(), all.last()) else {
        return Vec::new();
    };
    if (small.objects() - large.objects()).abs() < f64::EPSILON {
        return Vec::new();
    }
    let times = |name: &str| large.number(name) / small.number(name).max(1.0);
    let [services, workloads, proxies] = ["services", "workloads", "proxies"].map(times);
    let mut words = vec![format!(
        "From {} to {} ({} the services, {} the workloads, {} the proxies):",
        small.title(),
        large.title(),
        ratio(services),
        ratio(workloads),
        ratio(proxies)
    )];
    let most = services.max(workloads).max(proxies);
    for (key, title) in GROWING {
        let (Some((few, _)), Some((many, _))) = (small.figure(key), large.figure(key)) else {
            continue;
        };
        if few > 0.0 {
            let word = match many / few <= most * ROOM {
                true => "linear or better",
                false => "MORE THAN LINEAR",
            };
            words.push(format!("{title}: {}, {word}", ratio(many / few)));
        }
    }
    words
}

fn by_mesh(all: &[MeshSlice<'_>]) -> SceneTable {
    let titles = all.iter().map(MeshSlice::title);
    let heading = std::iter::once("figure".to_owned()).chain(titles);
    let mut rows = vec![Row::Cells(heading.collect())];
    rows.extend(GROWING.iter().map(|(key, title)| {
        let seen = all.iter().map(|mesh| {
            let figure = mesh.figure(key);
            figure.map_or_else(|| "–".to_owned(), |(seen, unit)| shower(unit)(seen))
        });
        Row::Cells(std::iter::once((*title).to_owned()).chain(seen).collect())
    }));
    SceneTable::new("By size of the mesh", rows)
}

/// Bars first, then curves where there are several meshes.
fn plots(own: &[&Finding], all: &[MeshSlice<'_>], record: &Record) -> Vec<Section> {
    // Counts of different things share no scale.
    let drawable = own.iter().filter(|one| !["", "%"].contains(&&*one.unit));
    let drawable: Vec<&Finding> = drawable.copied().collect();
    let several = grouped("several", &drawable, |one| (&one.measure, &one.what));
    let each = grouped("each", &drawable, |one| (&one.what, &one.measure));
    let folded = |section: Section| Section {
        folded: section.plots.len() > MANY,
        ..section
    };
    vec![
        section(
            "Targets and measured values",
            "Each figure as a share of its target: a bar shorter than the first one reaches the target. For minimum targets the share is inverted.",
            shares(own).into_iter().collect(),
        ),
        folded(section(
            "Comparison",
            "One figure of everything that has it. One run each.",
            several,
        )),
        folded(section(
            "Figures of each",
            "All figures of one subject that share a scale.",
            each,
        )),
        section(
            "Cost curves",
            "Each curve varies one dimension of the mesh; everything else is as in the record's own mesh. One run each: lines only join measured points.",
            curves(all, record),
        ),
    ]
}

fn once(value: f64) -> Estimate {
    Estimate {
        median: value,
        rounds: 1,
        ..Estimate::default()
    }
}

/// Plots the share of each bound that is used. A figure whose bound is 0 has no share.
fn shares(own: &[&Finding]) -> Option<Plot> {
    let share = |finding: &&Finding| {
        let bound = finding.bounds.first()?;
        let seen = finding.value?.median;
        let share = match (bound.at_most, bound.at_least) {
            (Some(most), _) if most > 0.0 => seen / most,
            (_, Some(least)) if seen > 0.0 && least > 0.0 => least / seen,
            _ => return None,
        };
        let class = match finding.outcome {
            Some(TargetResult::Missed) => "c-other",
            _ => "c-voile",
        };
        let label = format!("{}, {}", finding.measure, finding.what);
        bar(&label, class, Some(once(share)))
    };
    let shares: Vec<_> = own.iter().map(share).filter(Option::is_some).collect();
    if shares.is_empty() {
        return None;
    }
    let asked = bar("the target", "c-other", Some(once(1.0)));
    let title = "Measured value, as a share of the target".to_owned();
    let bars = std::iter::once(asked).chain(shares);
    bar_plot("asked", title, bars, |share| format!("{share:.2}"))
}

/// Values with their labels.
type Labelled<'a> = Vec<(&'a str, f64)>;

/// Plots of at least two bars each, one for each first word and unit, with the second words as labels; parted where values are
/// far apart.
fn grouped(
    kind: &str,
    findings: &[&Finding],
    words: fn(&Finding) -> (&String, &String),
) -> Vec<Plot> {
    let mut groups: Vec<((&str, &str), Labelled<'_>)> = Vec::new();
    for finding in findings {
        let (title, label) = words(finding);
        let key = (title.as_str(), finding.unit.as_str());
        let bar = (
            label.as_str(),
            finding.value.map_or(0.0, |value| value.median),
        );
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, bars)) => bars.push(bar),
            None => groups.push((key, vec![bar])),
        }
    }
    let mut plots = Vec::new();
    for ((title, unit), mut rows) in groups {
        while rows.len() > 1 {
            let most = rows.iter().map(|(_, value)| *value).fold(0.0, f64::max);
            let near = |(_, value): &(&str, f64)| *value * APART >= most;
            let (near, rest): (Labelled<'_>, _) = rows.into_iter().partition(near);
            rows = if near.is_empty() { Vec::new() } else { rest };
            let bars = near
                .iter()
                .map(|(label, value)| bar(label, "c-voile", Some(once(*value))));
            if near.len() > 1 {
                plots.extend(bar_plot(kind, title.to_owned(), bars, shower(unit)));
            }
        }
    }
    plots
}

/// A plot for each measure in which meshes differ, and each figure that meshes have which differ in this alone.
fn curves(all: &[MeshSlice<'_>], record: &Record) -> Vec<Plot> {
    let own = record.runs.first().map(|run| MeshSlice { run, record });
    let Some(own) = own else { return Vec::new() };
    let mut plots = Vec::new();
    for (property, across) in ALONG {
        let alike = |mesh: &&MeshSlice<'_>| {
            let mut others = ALONG.iter().filter(|(other, _)| *other != property);
            others.all(|(other, _)| (mesh.number(other) - own.number(other)).abs() < f64::EPSILON)
        };
        let meshes: Vec<&MeshSlice<'_>> = all.iter().filter(alike).collect();
        let plot = |(key, title): &(&str, &str)| curve(&meshes, (property, across), key, title);
        plots.extend(GROWING.iter().filter_map(plot));
    }
    plots
}

fn curve(
    meshes: &[&MeshSlice<'_>],
    (property, across): (&str, &str),
    key: &str,
    title: &str,
) -> Option<Plot> {
    let figures = meshes.iter().filter_map(|mesh| {
        let (seen, unit) = mesh.figure(key)?;
        let point = PlotPoint {
            x: mesh.number(property),
            y: once(seen),
            invalid: false,
        };
        Some((point, unit))
    });
    let (mut points, units): (Vec<PlotPoint>, Vec<&str>) = figures.unzip();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    if points.len() < 2 {
        return None;
    }
    let title = format!("{title}, by {across}");
    let frame = Frame {
        title: &title,
        across,
        x: Scale::Linear,
        y: Scale::Linear,
        show: shower(units[0]),
        joined: true,
        each: true,
    };
    let series = Series {
        label: "voile control".to_owned(),
        class: "c-voile",
        dash: 0,
        points,
    };
    let svg = lines(&frame, &[series], &[]);
    Some(Plot::new(key, title, svg))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::scene::SceneRecord;
    use crate::scenes::{conclude, drawings, sections, terminal};

    fn record(kind: SceneKind, mesh: &[(&str, f64)]) -> Record {
        let scene = SceneRecord {
            kind,
            ..SceneRecord::default()
        };
        let mut record = Record {
            scene: Some(scene),
            ..Record::default()
        };
        record.begin_mesh(mesh);
        record
    }

    /// Services, workloads, proxies and changes a second.
    fn mesh([services, workloads, proxies, churn]: [f64; 4]) -> [(&'static str, f64); 4] {
        [
            ("services", services),
            ("workloads", workloads),
            ("proxies", proxies),
            ("churn", churn),
        ]
    }

    fn titles(record: &Record) -> Vec<(&'static str, Vec<String>)> {
        let titles = |section: Section| {
            let plots = section.plots.into_iter().map(|plot| plot.title);
            (section.title, plots.collect())
        };
        sections(record).into_iter().map(titles).collect()
    }

    #[test]
    fn the_table_says_what_was_asked_seen_and_reached() {
        let mut record = record(SceneKind::ControlPlane, &[]);
        record.add("start", "until ready", (0.5, "s"), Some(1.0));
        record.add("churn", "CPU", (0.3, "cores"), Some(0.2));
        record.add("memory", "RSS", (88.25, "MB"), None);
        let least = record.add("certificates", "signed", (1900.0, ""), Some(2000.0));
        least.at_least();
        conclude(&mut record);
        let rows: Vec<Vec<String>> = crate::scenes::view_of(&record).tables[0]
            .rows
            .iter()
            .filter_map(|row| match row {
                Row::Cells(cells) => Some(cells.clone()),
                Row::Title(_) => None,
            })
            .collect();
        assert_eq!(
            rows,
            [
                ["figure", "asked", "seen", "verdict"],
                ["until ready", "≤ 1.00 s", "0.500 s", "reached"],
                ["CPU", "≤ 0.200 cores", "0.300 cores", "missed"],
                ["RSS", "", "88.2 MB", ""],
                ["signed", "≥ 2000", "1900", "missed"],
            ]
        );
        let again = Record::from_json(&record.to_json()).expect("a record");
        assert_eq!(again, record);
    }

    #[test]
    fn a_figure_that_is_no_number_is_not_measured_and_the_record_is_written() {
        let mut record = record(SceneKind::ControlPlane, &[]);
        record.add("connecting", "CPU of a proxy", (f64::NAN, "µs"), Some(1.0));
        conclude(&mut record);
        let outcome = record.own_scene().findings[0].outcome;
        assert_eq!(outcome, Some(TargetResult::NotMeasured));
        assert_eq!(
            Record::from_json(&record.to_json()).expect("a record"),
            record
        );
    }

    #[test]
    fn growth_is_told_beside_that_of_the_mesh_and_what_grows_faster_is_named() {
        let large = mesh([10_000.0, 50_000.0, 10_000.0, 0.0]);
        let mut record = record(SceneKind::ControlPlane, &large);
        let measure = |record: &mut Record, start: f64, rss: f64| {
            let start = record.add("start", "until ready", (start, "s"), None);
            start.key("start");
            record.add("memory", "RSS", (rss, "MB"), None).key("rss");
            conclude(record);
        };
        measure(&mut record, 5.0, 9_000.0);
        assert!(
            growth(&meshes(&record)).is_empty(),
            "one mesh does not grow"
        );
        record.begin_mesh(&mesh([1_000.0, 2_000.0, 2_000.0, 0.0]));
        measure(&mut record, 0.2, 200.0);
        let text = terminal(&record);
        for words in [
            "until ready: 25.00×, linear or better",
            "RSS with all proxies: 45.00×, MORE THAN LINEAR",
            "istiod",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn a_curve_is_drawn_along_what_alone_differs() {
        let own = [1_000.0, 2_000.0, 2_000.0, 100.0];
        let mut record = record(SceneKind::ControlPlane, &mesh(own));
        let half = [1_000.0, 2_000.0, 1_000.0, 100.0];
        let both = [500.0, 1_000.0, 2_000.0, 100.0];
        for (number, other) in [own, half, both].into_iter().enumerate() {
            if number > 0 {
                record.begin_mesh(&mesh(other));
            }
            record.add("memory", "RSS", (200.0, "MB"), None).key("rss");
        }
        conclude(&mut record);
        let curves = titles(&record).pop().expect("a section");
        let wanted = vec!["RSS with all proxies, by proxies".to_owned()];
        assert_eq!(curves, ("Cost curves", wanted));
    }

    #[test]
    fn every_figure_that_goes_by_a_scale_is_a_bar_beside_its_like() {
        let mut record = record(SceneKind::ControlPlane, &[]);
        for (what, measure, seen, asked) in [
            ("an edit", "p50", (20.0, "ms"), Some(50.0)),
            ("an edit", "p99", (60.0, "ms"), Some(50.0)),
            ("a policy", "p99", (90.0, "ms"), None),
            ("a policy", "told", (2_000.0, ""), None),
            ("a policy", "not told", (1_000.0, ""), None),
            ("memory", "of all", (4_000.0, "MB"), None),
            ("memory", "of the kernel", (400.0, "MB"), None),
            ("memory", "of each", (2.0, "MB"), None),
            ("memory", "of the largest", (8.0, "MB"), None),
            ("the end", "failed", (0.0, ""), Some(0.0)),
        ] {
            record.add(what, measure, seen, asked);
        }
        let signed = record.add("certificates", "signed", (4_000.0, ""), Some(2_000.0));
        signed.at_least();
        conclude(&mut record);
        let asked = "Measured value, as a share of the target";
        let wanted = [
            ("Targets and measured values", vec![asked]),
            ("Comparison", vec!["p99"]),
            ("Figures of each", vec!["an edit", "memory", "memory"]),
        ];
        let wanted = wanted.map(|(title, plots)| {
            let plots = plots.into_iter().map(str::to_owned);
            (title, plots.collect::<Vec<_>>())
        });
        assert_eq!(titles(&record), wanted);
        let found = sections(&record);
        let shares = &found[0].plots[0].svg;
        for share in [">1.00<", ">0.40<", ">1.20<", ">0.50<"] {
            assert!(shares.contains(share), "{share}: {shares}");
        }
        assert_eq!(shares.matches("<rect").count(), 4, "{shares}");
        let parted: Vec<usize> = found[2].plots[1..]
            .iter()
            .map(|plot| plot.svg.matches("<rect").count())
            .collect();
        assert_eq!(parted, [2, 2], "what is far apart is drawn apart");
    }

    #[test]
    fn a_page_names_the_file_that_it_is_drawn_from() {
        for (kind, file) in [
            (SceneKind::ControlPlane, "control-plane.json"),
            (SceneKind::Sidecars, "sidecars.json"),
            (SceneKind::Nodes, "nodes.json"),
        ] {
            let page = &drawings(&record(kind, &[]))[0].1;
            assert!(page.contains(&format!("<code>{file}</code>")), "{file}");
            let others = page.contains("istiod, as published");
            assert_eq!(others, file == "control-plane.json", "{file}");
        }
    }
}
