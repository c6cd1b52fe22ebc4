//! `report.html`: one file that opens offline, on a phone, in the dark and on paper. Words first, then figures, then
//! plots, then everything needed to doubt them.

mod evidence;
mod profile;

use std::fmt::Write as _;

use crate::columns::{columns, divided};
use crate::plots::plot::Section;
use crate::plots::sections;
use crate::record::target_verdicts::TargetResult;
use crate::record::{Estimate, Record, Summary};
use crate::words::{self, escape, range, ratio};
use crate::{claims, findings, picture};
pub(crate) use evidence::environment;

const STYLE: &str = include_str!("../page.css");

/// The page's colours and rules, those of its plots included.
pub(crate) fn style() -> String {
    format!(
        "{}{STYLE}{}{}",
        picture::palette(),
        picture::RULES,
        picture::ON_PAPER
    )
}

/// Everything before a page's first paragraph.
pub(crate) fn head(title: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{}</style></head><body>\n<h1>{title}</h1>\n",
        style()
    )
}

/// Draws the report.
#[must_use]
pub fn render(record: &Record) -> String {
    let experiment = &record.experiment;
    let mut page = head(&format!("Cost of the mesh: {}", experiment.name));
    if !experiment.title.is_empty() {
        let _ = writeln!(page, "<p>{}</p>", escape(&experiment.title));
    }
    let _ = writeln!(
        page,
        "<p class=\"soft\">{} · {} · {} cores · {} · {} bytes, {} rounds of {} s slices, {} workers per proxy, profile <b>{}</b></p>",
        escape(&experiment.started_at),
        escape(&record.environment.cpu),
        record.environment.cores,
        escape(&record.environment.kernel),
        experiment.size_bytes,
        experiment.rounds_done,
        experiment.slice_seconds,
        experiment.workers,
        escape(&record.environment.profile),
    );
    for note in &record.notes {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(note));
    }
    words(&mut page, record);
    published(&mut page, record);
    targets(&mut page, record);
    table(&mut page, record);
    ratios(&mut page, record);
    plots(&mut page, record);
    profile::write(&mut page, record);
    evidence::write(&mut page, record);
    page.push_str("</body></html>\n");
    page
}

/// The answer in sentences.
fn words(page: &mut String, record: &Record) {
    page.push_str("<h2>In words</h2>\n<ul class=\"lead\">\n");
    for sentence in findings::sentences(record) {
        let _ = writeln!(page, "<li>{}</li>", escape(&sentence));
    }
    page.push_str("</ul>\n");
}

fn cell(estimate: Option<&Estimate>, show: fn(f64) -> String) -> String {
    let Some(estimate) = estimate else {
        return "<td>–</td>".to_owned();
    };
    let middle = show(estimate.median);
    match range(estimate, show) {
        Some(range) => format!("<td>{middle}<small>{range}</small></td>"),
        None => format!("<td>{middle}</td>"),
    }
}

/// Writes published claims beside the measurements.
fn published(page: &mut String, record: &Record) {
    let judged = claims::judge(record);
    if judged.is_empty() {
        return;
    }
    let _ = writeln!(
        page,
        "<h2>Published claims</h2>\n<p>{}</p>\n<p class=\"soft\">A claim holds if the whole interval lies within its bounds, and does not hold here if the whole interval lies outside. Absolute times depend on the machine; this is another one.</p>\n\
         <div class=\"scroll\"><table><thead><tr><th class=\"t\">whose</th><th class=\"t\">seen here</th><th class=\"t\">load</th>\
         <th class=\"t\">verdict</th></tr></thead><tbody>",
        escape(&claims::count(&judged))
    );
    for (claim, measured) in &judged {
        let _ = writeln!(
            page,
            "<tr class=\"head\"><td colspan=\"4\" class=\"t\">{}<small>{}{}</small></td></tr>",
            escape(&claim.claim),
            escape(&claim.source),
            if claim.judged.is_empty() {
                String::new()
            } else {
                format!("; judged: {}", escape(&claim.judged))
            }
        );
        for one in measured {
            let class = match one.verdict {
                claims::ClaimVerdict::Holds => "good",
                claims::ClaimVerdict::Less | claims::ClaimVerdict::More => "bad",
                claims::ClaimVerdict::CannotTell | claims::ClaimVerdict::NotMeasured => "soft",
            };
            let _ = writeln!(
                page,
                "<tr><td class=\"t\">{}</td><td class=\"t\">{}</td><td class=\"t soft\">{}</td><td class=\"t {class}\">{}</td></tr>",
                escape(&one.contestant),
                escape(&one.seen),
                escape(&one.load),
                one.verdict.in_words()
            );
        }
    }
    page.push_str("</tbody></table></div>\n");
}

/// Writes the targets and their verdicts.
fn targets(page: &mut String, record: &Record) {
    if record.verdicts.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Targets</h2>\n<p class=\"soft\">Reached or missed only if the whole interval lies on that side.</p>\n\
         <div class=\"scroll\"><table><thead><tr><th class=\"t\">target</th><th class=\"t\">wanted</th><th class=\"t\">seen</th>\
         <th class=\"t\">beside it</th><th class=\"t\">verdict</th></tr></thead><tbody>\n",
    );
    let mut last = "";
    for verdict in &record.verdicts {
        if verdict.row != last {
            let row = escape(&verdict.row);
            let _ = writeln!(page, "<tr class=\"head\"><td colspan=\"5\">{row}</td></tr>");
            last = &verdict.row;
        }
        let class = match verdict.outcome {
            TargetResult::Reached => "good",
            TargetResult::Missed => "bad",
            TargetResult::CannotTell | TargetResult::NotMeasured => "soft",
        };
        let _ = writeln!(
            page,
            "<tr><td class=\"t\">{}</td><td class=\"t\">{}</td><td class=\"t\">{}</td><td class=\"t soft\">{}</td><td class=\"t {class}\">{}</td></tr>",
            escape(&verdict.cell),
            escape(&verdict.wanted),
            escape(&verdict.seen).replace(", ", ",<br>"),
            escape(&verdict.beside),
            verdict.outcome.in_words()
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn table(page: &mut String, record: &Record) {
    page.push_str("<h2>Figures</h2>\n<p class=\"soft\">Median over rounds; below it the 95 % interval over rounds, if there are at least six. Latency counts from when a request was due. Added: over the baseline of the same arrival, within rounds.</p>\n\
        <div class=\"scroll\"><table><thead><tr><th>contestant</th>");
    let shown = columns(record, true);
    for column in &shown {
        let _ = write!(page, "<th>{}</th>", column.title.replace('/', "/<wbr>"));
    }
    page.push_str("<th>rounds</th></tr></thead><tbody>\n");
    let mut last = String::new();
    for summary in &record.summary {
        let title = words::title(&summary.key());
        if title != last {
            let _ = writeln!(
                page,
                "<tr class=\"head\"><td colspan=\"{}\">{}</td></tr>",
                shown.len() + 2,
                escape(&title)
            );
            last = title;
        }
        let _ = write!(page, "<tr><td>{}</td>", escape(&summary.contestant));
        for column in &shown {
            page.push_str(&cell(column.of(summary), column.show));
        }
        let invalid = if summary.runs_invalid > 0 {
            format!(
                "<small class=\"bad\">{} invalid</small>",
                summary.runs_invalid
            )
        } else {
            String::new()
        };
        let _ = writeln!(page, "<td>{}{invalid}</td></tr>", summary.runs_valid);
    }
    page.push_str("</tbody></table></div>\n");
}

fn ratios(page: &mut String, record: &Record) {
    let ours: Vec<&Summary> = record
        .summary
        .iter()
        .filter(|s| s.contestant == "voile" && !s.ratios.is_empty())
        .collect();
    if ours.is_empty() {
        return;
    }
    page.push_str("<h2>Voile divided by others</h2>\n<p class=\"soft\">Paired within rounds; below 1 Voile has less. \
        Ratios of added latency are ratios of medians, resampled together.</p>\n<div class=\"scroll\"><table><thead><tr>\
        <th class=\"t\">divided by</th>");
    let shown = divided(record);
    for column in &shown {
        let _ = write!(page, "<th>{}</th>", column.title.replace('/', "/<wbr>"));
    }
    page.push_str("</tr></thead><tbody>\n");
    for summary in ours {
        let title = escape(&words::title(&summary.key()));
        let width = shown.len() + 1;
        let _ = writeln!(
            page,
            "<tr class=\"head\"><td colspan=\"{width}\">{title}</td></tr>"
        );
        for against in summary.ratios.keys() {
            let _ = write!(page, "<tr><td class=\"t\">{}</td>", escape(against));
            for column in &shown {
                page.push_str(&cell(column.ratio(summary, against), ratio));
            }
            page.push_str("</tr>\n");
        }
    }
    page.push_str("</tbody></table></div>\n");
}

/// The plots by the question they answer; those that only say more of the same are folded.
pub(crate) fn plots(page: &mut String, record: &Record) {
    draw(page, &sections(record));
}

/// These sections.
pub(crate) fn draw(page: &mut String, sections: &[Section]) {
    for section in sections {
        let _ = writeln!(
            page,
            "<h2>{}</h2>\n<p class=\"soft\">{}</p>",
            section.title, section.words
        );
        if section.folded {
            let _ = writeln!(
                page,
                "<details><summary>{} plots, one for each path and load</summary>",
                section.plots.len()
            );
        }
        page.push_str("<div class=\"plots\">\n");
        for plot in &section.plots {
            let _ = write!(
                page,
                "<figure id=\"{}\"><h3>{}</h3>{}",
                plot.id,
                escape(&plot.title),
                plot.svg
            );
            if !plot.caption.is_empty() {
                let _ = write!(page, "<figcaption>{}</figcaption>", escape(&plot.caption));
            }
            page.push_str("</figure>\n");
        }
        page.push_str("</div>\n");
        if section.folded {
            page.push_str("</details>\n");
        }
    }
}
