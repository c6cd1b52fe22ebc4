//! Comparison of two records of the same experiment, one divided by the other: before and after a change, or two machines. The
//! two were not measured in the same rounds, so nothing is paired, and every ratio includes the machine's change in between; the
//! page says so. Figures of two machines are first divided by each machine's own speed.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::plots::plot::Plot;
use crate::record::{CellKey, Estimate, Record};
use crate::side_by_side::{
    ComparedFigure, FIGURES, cells, comparable, depends_on_speed, differences, measure,
    same_machine, values,
};
use crate::statistics::unpaired_ratio;
use crate::svg::{Colours, PlotBar, dots};
use crate::table::{Row, aligned, heading};
use crate::words::{self, escape, interval, ratio};

/// A figure of one cell in both records.
#[derive(Debug, Clone, PartialEq)]
pub struct Compare {
    /// Contestant, path and load.
    pub cell: CellKey,
    /// The compared figure.
    pub figure: ComparedFigure,
    /// First divided by second.
    pub ratio: Estimate,
    /// True if both figures were first divided by the speed of their machine.
    pub multiple: bool,
}

impl Compare {
    /// Returns true if the interval of the ratio excludes 1.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.ratio.low.is_some_and(|low| low > 1.0)
            || self.ratio.high.is_some_and(|high| high < 1.0)
    }

    fn sign(&self) -> &'static str {
        match (self.differs(), self.ratio.median > 1.0) {
            (false, _) => "",
            (true, true) => " ▲",
            (true, false) => " ▼",
        }
    }
}

/// Compares two records, cell by cell.
///
/// # Errors
/// If the records cannot be compared: another build profile, another load, or no cell in common.
pub fn compare(first: &Record, second: &Record) -> Result<Vec<Compare>, String> {
    comparable(first, second)?;
    let same = same_machine(&first.environment, &second.environment);
    let (ours, theirs) = (cells(first), cells(second));
    let mut compared = Vec::new();
    for (cell, rounds) in &ours {
        let Some(others) = theirs.get(cell) else {
            continue;
        };
        for figure in FIGURES {
            let multiple = !same && depends_on_speed(figure.name);
            let by = |record: &Record| match multiple {
                true => measure(&record.environment, figure.name),
                false => Some(1.0),
            };
            // A figure of an uncalibrated machine says nothing beside another machine's.
            let (Some(a), Some(b)) = (by(first), by(second)) else {
                continue;
            };
            let over = |rounds, by: f64| -> Vec<f64> {
                let values = values(cell, rounds, figure.name).into_iter();
                values.map(|value| value / by).collect()
            };
            let (a, b) = (over(rounds, a), over(others, b));
            if let Some(ratio) = unpaired_ratio(&a, &b, first.experiment.seed) {
                compared.push(Compare {
                    cell: cell.clone(),
                    figure,
                    ratio,
                    multiple,
                });
            }
        }
    }
    if !compared.is_empty() {
        return Ok(compared);
    }
    Err(if ours.keys().any(|cell| theirs.contains_key(cell)) && !same {
        "the records are of different machines, and not both have a calibration (environment.calibration)"
    } else {
        "the records have no cell in common"
    }
    .to_owned())
}

/// Terms of the comparison, which the reader must know before any ratio.
fn terms(first: &Record, second: &Record, compared: &[Compare]) -> Vec<String> {
    let name = |record: &Record| {
        format!(
            "{} ({})",
            record.experiment.name, record.experiment.started_at
        )
    };
    let mut terms = vec![format!(
        "{} divided by {}: ratios of medians with 95 % intervals. Not measured in the same rounds, so nothing is paired: a machine that \
         changed in between looks like a difference.",
        name(first),
        name(second)
    )];
    let told = compared
        .iter()
        .filter(|one| one.ratio.low.is_some())
        .count();
    let differ = compared.iter().filter(|one| one.differs()).count();
    terms.push(format!(
        "▲ and ▼ mark ratios whose interval excludes 1: {differ} of {told}. About {:.0} of {told} would do so by chance alone, if nothing differed.",
        told as f64 * 0.05
    ));
    if compared.iter().any(|one| one.multiple) {
        terms.push(
            "The machines differ: latencies are in multiples of a message's round trip through a bare relay, CPU and requests per second in multiples \
             of the relay's CPU for it, throughput in multiples of AES-256-GCM, each of its own machine. Memory is absolute."
                .to_owned(),
        );
    }
    terms.extend(differences(first, second));
    terms
}

/// Compares them, in text.
///
/// # Errors
/// As [`compare`].
pub fn render(first: &Record, second: &Record) -> Result<String, String> {
    let compared = compare(first, second)?;
    let shown: Vec<ComparedFigure> = shown(&compared);
    let titles: Vec<&str> = [""]
        .into_iter()
        .chain(shown.iter().map(|f| f.title))
        .collect();
    let mut rows = vec![heading(&titles)];
    let mut last = String::new();
    for (cell, of_cell) in by_cell(&compared) {
        let title = words::title(cell);
        if title != last {
            rows.push(Row::Title(title.clone()));
            last = title;
        }
        let figures = shown.iter().map(|figure| {
            let found = of_cell.iter().find(|one| one.figure == *figure);
            found.map_or_else(|| "–".to_owned(), |one| told(one))
        });
        rows.push(Row::Cells(
            [cell.contestant.clone()]
                .into_iter()
                .chain(figures)
                .collect(),
        ));
    }
    let terms = terms(first, second, &compared).join("\n");
    Ok(format!("{terms}\n\n{}", aligned(&rows)))
}

/// Compares them, for programs.
///
/// # Errors
/// As [`compare`].
pub fn to_json(first: &Record, second: &Record) -> Result<Value, String> {
    let compared = compare(first, second)?;
    let figures: Vec<Value> = compared
        .iter()
        .map(|one| {
            json!({
                "cell": one.cell,
                "figure": one.figure.name,
                "ratio": one.ratio,
                "in_machine_speeds": one.multiple,
                "differs": one.differs(),
            })
        })
        .collect();
    Ok(json!({
        "version": 1,
        "terms": terms(first, second, &compared),
        "figures": figures,
    }))
}

fn told(one: &Compare) -> String {
    format!("{}{}", interval(&one.ratio, ratio), one.sign())
}

fn shown(compared: &[Compare]) -> Vec<ComparedFigure> {
    let is_there = |figure: &ComparedFigure| compared.iter().any(|one| one.figure == *figure);
    FIGURES.into_iter().filter(is_there).collect()
}

fn by_cell(compared: &[Compare]) -> Vec<(&CellKey, Vec<&Compare>)> {
    let mut cells: Vec<(&CellKey, Vec<&Compare>)> = Vec::new();
    for one in compared {
        match cells.last_mut().filter(|(cell, _)| **cell == one.cell) {
            Some((_, of_cell)) => of_cell.push(one),
            None => cells.push((&one.cell, vec![one])),
        }
    }
    cells
}

/// One plot for each figure: a dot with its interval for each cell.
#[must_use]
pub fn plots(compared: &[Compare]) -> Vec<Plot> {
    let colours = Colours::of(compared.iter().map(|one| one.cell.contestant.as_str()));
    let plot = |figure: &ComparedFigure| {
        let of_figure = compared.iter().filter(|one| one.figure == *figure);
        let rows: Vec<PlotBar> = of_figure
            .map(|one| PlotBar {
                label: crate::plots::plot::brief(&one.cell),
                class: colours.class(&one.cell.contestant),
                value: one.ratio,
            })
            .collect();
        let title = format!("{}: first divided by second", figure.title);
        let svg = dots(&title, &rows);
        Plot::new("compare", title, svg)
    };
    shown(compared).iter().map(plot).collect()
}

/// Compares them, as a page of its own.
///
/// # Errors
/// As [`compare`].
pub fn page(first: &Record, second: &Record) -> Result<String, String> {
    let compared = compare(first, second)?;
    let names = [first, second].map(|record| record.experiment.name.as_str());
    let mut page = crate::html::head(&names.join(" beside "));
    for term in terms(first, second, &compared) {
        let _ = writeln!(page, "<p>{}</p>", escape(&term));
    }
    page.push_str("<div class=\"plots\">\n");
    for plot in plots(&compared) {
        let _ = writeln!(
            page,
            "<figure id=\"{}\"><h3>{}</h3>{}</figure>",
            plot.id,
            escape(&plot.title),
            plot.svg
        );
    }
    page.push_str(
        "</div>\n<h2>Ratios</h2>\n<div class=\"scroll\"><table><thead><tr><th>contestant</th>",
    );
    let shown = shown(&compared);
    for figure in &shown {
        let _ = write!(page, "<th>{}</th>", figure.title.replace('/', "/<wbr>"));
    }
    page.push_str("</tr></thead><tbody>\n");
    let mut last = String::new();
    for (cell, of_cell) in by_cell(&compared) {
        let title = words::title(cell);
        if title != last {
            let _ = writeln!(
                page,
                "<tr class=\"head\"><td colspan=\"{}\">{}</td></tr>",
                shown.len() + 1,
                escape(&title)
            );
            last = title;
        }
        let _ = write!(page, "<tr><td>{}</td>", escape(&cell.contestant));
        for figure in &shown {
            let found = of_cell.iter().find(|one| one.figure == *figure);
            let _ = write!(
                page,
                "<td>{}</td>",
                found.map_or_else(|| "–".to_owned(), |one| escape(&told(one)))
            );
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n</body></html>\n");
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Calibration, SliceRun};

    fn record(p50: f64, profile: &str) -> Record {
        let mut record = Record::default();
        record.environment.profile = profile.to_owned();
        for round in 1..=8 {
            let mut run = SliceRun {
                contestant: "voile".to_owned(),
                mode: "both".to_owned(),
                tls: true,
                arrival: "uniform".to_owned(),
                round,
                valid: true,
                rate: 1000.0,
                ..SliceRun::default()
            };
            run.latency_us.p50 = Some(p50 + f64::from(round));
            record.runs.push(run);
        }
        record
    }

    #[test]
    fn a_record_is_divided_by_another() {
        let text =
            render(&record(200.0, "release"), &record(400.0, "release")).expect("comparable");
        assert!(text.contains("0.51×") && text.contains("▼"), "{text}");
        let text =
            render(&record(200.0, "release"), &record(200.0, "release")).expect("comparable");
        assert!(text.contains("1.00×") && text.contains("0 of 1"), "{text}");
        let json =
            to_json(&record(200.0, "release"), &record(400.0, "release")).expect("comparable");
        let figure = &json["figures"][0];
        assert_eq!(figure["figure"], "latency_us.p50");
        assert_eq!(
            (&figure["differs"], &figure["cell"]["contestant"]),
            (&json!(true), &json!("voile"))
        );
        assert!(
            figure["ratio"]["median"]
                .as_f64()
                .is_some_and(|ratio| ratio < 0.6),
            "{json:#}"
        );
        let page = page(&record(200.0, "release"), &record(400.0, "release")).expect("comparable");
        assert!(
            page.contains("<svg") && page.contains("0.51×") && page.contains("nothing is paired")
        );
    }

    #[test]
    fn what_cannot_be_compared_is_refused_with_the_reason() {
        let release = record(200.0, "release");
        let mut larger = release.clone();
        larger.experiment.size_bytes = 9;
        let mut other = release.clone();
        other
            .runs
            .iter_mut()
            .for_each(|run| run.mode = "clientonly".to_owned());
        let mut elsewhere = release.clone();
        elsewhere.environment.cpu = "another".to_owned();
        for (second, why) in [
            (
                record(200.0, "debug"),
                "different profiles are not compared",
            ),
            (larger, "different loads"),
            (other, "no cell in common"),
            (elsewhere, "different machines"),
        ] {
            let error = render(&release, &second).expect_err("not comparable");
            assert!(error.contains(why), "{error}");
        }
    }

    /// Twice as slow a machine, on which everything takes twice as long: nothing differs.
    #[test]
    fn records_of_two_machines_are_compared_in_multiples_of_their_speed() {
        let on = |mut record: Record, cpu: &str, us| {
            record.environment.cpu = cpu.to_owned();
            record.environment.calibration = Some(Calibration {
                relay_round_trip_us: Some(Estimate {
                    median: us,
                    ..Estimate::default()
                }),
                ..Calibration::default()
            });
            record
        };
        let slow = on(record(396.0, "release"), "slow", 40.0);
        let fast = on(record(196.0, "release"), "fast", 20.0);
        let text = render(&slow, &fast).expect("comparable");
        assert!(
            text.contains("1.00×") && text.contains("multiples"),
            "{text}"
        );
    }
}
