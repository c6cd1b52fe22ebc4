//! What the page of a scene shows, and the parts of it that several scenes have: the table of findings, bars and rounds.

use crate::plots::plot::{Plot, Section};
use crate::record::scene::Finding;
use crate::record::{Estimate, Record};
use crate::summarise::figures;
use crate::svg::{Frame, PlotBar, PlotPoint, Scale, Series, bars, lines};
use crate::table::Row;
use crate::words::{duration, interval, per_second, ratio};

/// The contents of a page, in the order in which they stand there.
#[derive(Default)]
pub(super) struct SceneView {
    pub(super) title: String,
    /// Sentences.
    pub(super) words: Vec<String>,
    /// What a picture shows, and the SVG document, which has colours of its own.
    pub(super) picture: Option<(String, String)>,
    /// Tables of figures, before the plots.
    pub(super) tables: Vec<SceneTable>,
    pub(super) sections: Vec<Section>,
    /// Tables of evidence, after the plots, which a terminal does not show.
    pub(super) evidence: Vec<SceneTable>,
    /// Command lines and other texts, with their titles.
    pub(super) texts: Vec<(String, String)>,
}

/// A table: the first row is its heading.
pub(super) struct SceneTable {
    pub(super) title: &'static str,
    pub(super) words: &'static str,
    pub(super) rows: Vec<Row>,
    /// A page shows it only when asked to.
    pub(super) folded: bool,
}

impl SceneTable {
    pub(super) fn new(title: &'static str, rows: Vec<Row>) -> Self {
        Self {
            title,
            words: "",
            rows,
            folded: false,
        }
    }
}

/// A section of plots that is open.
pub(super) fn section(title: &'static str, words: &'static str, plots: Vec<Plot>) -> Section {
    Section {
        title,
        words,
        plots,
        folded: false,
    }
}

/// Formatter of the values of a unit.
pub(super) fn shower(unit: &str) -> fn(f64) -> String {
    match unit {
        "us" => duration,
        "ns" => nanoseconds,
        "/s" => per_second,
        "ms" => |value| digits(value) + " ms",
        "s" => |value| digits(value) + " s",
        "µs" => |value| digits(value) + " µs",
        "cores" => |value| digits(value) + " cores",
        "MB" => |value| digits(value) + " MB",
        "kB" => |value| digits(value) + " kB",
        "%" => |value| digits(value) + " %",
        _ => digits,
    }
}

/// As many digits as a figure of one run means.
fn digits(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        value if value < 1.0 => 3,
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

fn nanoseconds(ns: f64) -> String {
    match ns {
        ns if ns < 9_999.5 => format!("{ns:.0} ns"),
        ns if ns < 9_999_500.0 => format!("{:.0} µs", ns / 1e3),
        ns => format!("{:.0} ms", ns / 1e6),
    }
}

pub(super) fn shown(value: Option<&Estimate>, show: fn(f64) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), |value| interval(value, show))
}

/// Every finding: the figure, the one beside it, what is asked, and the verdict. Columns that nothing stands in are left out.
pub(super) fn verdicts(findings: &[&Finding]) -> SceneTable {
    let line = |finding: &&Finding| {
        let show = shower(&finding.unit);
        let beside = finding.beside.as_ref().map(|beside| {
            let other = shown(finding.other.as_ref(), show);
            format!("{} {other}", beside.label)
        });
        let added = finding.added.as_ref().map(|added| interval(added, show));
        let ratio = finding.ratio.as_ref().map(|found| interval(found, ratio));
        let outcome = finding.outcome.map(|outcome| outcome.in_words().to_owned());
        [
            joined(&[&finding.measure, &finding.of.label]),
            requirement(finding),
            shown(finding.value.as_ref(), show),
            beside.unwrap_or_default(),
            added.unwrap_or_default(),
            ratio.unwrap_or_default(),
            outcome.unwrap_or_default(),
        ]
    };
    let lines: Vec<[String; 7]> = findings.iter().map(line).collect();
    let titles = [
        "figure",
        "asked",
        "seen",
        "beside it",
        "added",
        "ratio",
        "verdict",
    ];
    let used: Vec<usize> = (0..titles.len())
        .filter(|at| lines.iter().any(|line| !line[*at].is_empty()))
        .collect();
    let pick = |line: &[String; 7]| used.iter().map(|at| line[*at].clone()).collect();
    let mut rows = vec![Row::Cells(pick(&titles.map(str::to_owned)))];
    let mut last = "";
    for (finding, line) in findings.iter().zip(&lines) {
        if finding.what != last {
            rows.push(Row::Title(finding.what.clone()));
            last = &finding.what;
        }
        rows.push(Row::Cells(pick(line)));
    }
    let over_rounds = |one: &&Finding| one.value.is_some_and(|value| value.rounds > 1);
    SceneTable {
        words: match findings.iter().any(over_rounds) {
            true => "Medians over rounds with 95 % intervals; ratios are paired within rounds.",
            false => "One run each.",
        },
        ..SceneTable::new("Figures", rows)
    }
}

/// The requirement in words; those of a bound on the figure alone follow from it.
fn requirement(finding: &Finding) -> String {
    let bound = finding.bounds.first().filter(|_| finding.asked.is_empty());
    let Some(bound) = bound else {
        return finding.asked.clone();
    };
    let words = |sign: &str, value: f64| format!("{sign} {}", shower(&finding.unit)(value));
    let least = bound.at_least.map(|least| words("≥", least));
    let most = bound.at_most.map(|most| words("≤", most));
    least.or(most).unwrap_or_default()
}

fn joined(words: &[&str]) -> String {
    let words: Vec<&str> = words.iter().filter(|w| !w.is_empty()).copied().collect();
    words.join(", ")
}

pub(super) fn bar(label: &str, class: &'static str, value: Option<Estimate>) -> Option<PlotBar> {
    let label = label.to_owned();
    value.map(|value| PlotBar {
        label,
        class,
        value,
    })
}

/// A plot of bars; none without any.
pub(super) fn bar_plot(
    kind: &str,
    title: String,
    bars_of: impl IntoIterator<Item = Option<PlotBar>>,
    show: fn(f64) -> String,
) -> Option<Plot> {
    let rows: Vec<PlotBar> = bars_of.into_iter().flatten().collect();
    let svg = (!rows.is_empty()).then(|| bars(&title, &rows, show))?;
    Some(Plot::new(kind, title, svg))
}

/// Contestants in a plot: name, label, class.
pub(super) type Sides = [(&'static str, &'static str, &'static str); 2];

/// Every slice of a part by its round; crosses do not count.
pub(super) fn by_round(
    record: &Record,
    title: String,
    (part, figure): (&str, &str),
    sides: &Sides,
) -> Plot {
    let side = |(contestant, label, class): &(&str, &str, &'static str)| Series {
        label: (*label).to_owned(),
        class,
        dash: 0,
        points: record
            .runs
            .iter()
            .filter(|run| run.contestant == *contestant && run.mode == part)
            .filter_map(|run| {
                let median = *figures(run).get(figure)?;
                Some(PlotPoint {
                    x: f64::from(run.round),
                    y: Estimate {
                        median,
                        ..Estimate::default()
                    },
                    invalid: !run.valid,
                })
            })
            .collect(),
    };
    let frame = Frame {
        title: &title,
        across: "round",
        x: Scale::Linear,
        y: Scale::Linear,
        show: duration,
        joined: false,
        each: true,
    };
    let series: Vec<Series> = sides.iter().map(side).collect();
    let svg = lines(&frame, &series, &[]);
    Plot::new("rounds", title.clone(), svg)
}

/// A column of the table of slices: heading, figure, formatter.
pub(super) type SliceColumn = (&'static str, &'static str, fn(f64) -> String);

/// Every slice with these figures.
pub(super) fn slices(record: &Record, columns: &[SliceColumn]) -> SceneTable {
    let titles = columns.iter().map(|(title, ..)| *title);
    let titles = ["scene", "round", "contestant"].into_iter().chain(titles);
    let mut rows = vec![Row::Cells(
        titles
            .chain(["why it is invalid"])
            .map(str::to_owned)
            .collect(),
    )];
    rows.extend(record.runs.iter().map(|run| {
        let figures = figures(run);
        let figure = |(_, name, show): &SliceColumn| {
            figures
                .get(*name)
                .map_or_else(|| "–".to_owned(), |value| show(*value))
        };
        let first = [
            run.mode.clone(),
            run.round.to_string(),
            run.contestant.clone(),
        ];
        let cells = first.into_iter().chain(columns.iter().map(figure));
        Row::Cells(cells.chain([run.invalid_reasons.join("; ")]).collect())
    }));
    SceneTable {
        folded: true,
        ..SceneTable::new("Every slice", rows)
    }
}
