//! `report.html`: one file that opens offline, on a phone, in the dark and on paper. Three figures and one plot first, then curves, then
//! folded everything else, with all that is needed to doubt them.

mod evidence;
mod profile;

use std::fmt::Write as _;

use crate::columns::{columns, divided};
use crate::headline::headline;
use crate::plots::paths::paths;
use crate::plots::plot::{Section, hoisted};
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
#[must_use]
pub fn head(title: &str) -> String {
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
    first(&mut page, record);
    for note in &record.notes {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(note));
    }
    let (mut folded, open): (Vec<Section>, Vec<Section>) = sections(record)
        .into_iter()
        .partition(|section| section.folded);
    // Their headings fold them already.
    folded.iter_mut().for_each(|section| section.folded = false);
    let mut curves = String::new();
    draw(&mut curves, &open);
    let mut rest = String::new();
    published(&mut rest, record);
    targets(&mut rest, record);
    words(&mut rest, record);
    table(&mut rest, record);
    ratios(&mut rest, record);
    draw(&mut rest, &folded);
    profile::write(&mut rest, record);
    evidence::write(&mut rest, record);
    let rest = fold(&rest);
    page.push_str(&rest.contents);
    page.push_str(&curves);
    page.push_str(&rest.text);
    page.push_str("</body></html>\n");
    page
}

/// The first screen: three figures with a sentence each, how far to trust them, and one plot.
fn first(page: &mut String, record: &Record) {
    let Some(headline) = headline(record) else {
        return;
    };
    let _ = writeln!(
        page,
        "<p><b>{}</b></p>\n<div class=\"tiles\">",
        escape(&headline.load)
    );
    for tile in &headline.tiles {
        let _ = write!(page, "<section><h3>{}</h3><p class=\"big\">", tile.title);
        for (value, word) in &tile.values {
            let _ = write!(
                page,
                "<span>{} <small>{word}</small></span> ",
                escape(value)
            );
        }
        let _ = writeln!(page, "</p><p>{}</p></section>", escape(&tile.sentence));
    }
    let _ = writeln!(
        page,
        "</div>\n<p class=\"soft trust\">{}</p>",
        escape(&headline.trust)
    );
    if let Some(plot) = paths(record, &headline) {
        let title = escape(&plot.title);
        let _ = writeln!(
            page,
            "<figure class=\"first\"><h3>{title}</h3>{}</figure>",
            plot.svg
        );
    }
}

/// Parts of a page that are folded, and links to them.
struct Folded {
    contents: String,
    text: String,
}

/// Folds each part that begins with a heading.
fn fold(text: &str) -> Folded {
    let mut folded = Folded {
        contents: "<nav>Below: ".to_owned(),
        text: String::new(),
    };
    for (number, part) in text.split("<h2>").skip(1).enumerate() {
        let (title, body) = part.split_once("</h2>").unwrap_or((part, ""));
        let _ = write!(folded.contents, "<a href=\"#part-{number}\">{title}</a> ");
        let _ = writeln!(
            folded.text,
            "<details class=\"part\"><summary>{title}</summary><div id=\"part-{number}\">{body}</div></details>"
        );
    }
    folded.contents.push_str("</nav>\n");
    folded
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

/// These sections. Words that all titles of a section share stand above its plots once.
pub(crate) fn draw(page: &mut String, sections: &[Section]) {
    for section in sections {
        let (common, titles) = hoisted(&section.plots);
        let common = match common.as_str() {
            "" => String::new(),
            common => format!(" All: {}.", escape(common)),
        };
        let fold = match section.folded {
            true => format!("<details><summary>{} plots</summary>", section.plots.len()),
            false => String::new(),
        };
        let _ = writeln!(
            page,
            "<h2>{}</h2>\n<p class=\"soft\">{}{common}</p>{}\n<div class=\"plots\">",
            section.title, section.words, fold
        );
        for (plot, title) in section.plots.iter().zip(titles) {
            let _ = write!(
                page,
                "<figure id=\"{}\"><h3>{}</h3>{}",
                plot.id,
                escape(&title),
                plot.svg
            );
            if !plot.caption.is_empty() {
                let _ = write!(page, "<figcaption>{}</figcaption>", escape(&plot.caption));
            }
            page.push_str("</figure>\n");
        }
        page.push_str(if section.folded {
            "</div></details>\n"
        } else {
            "</div>\n"
        });
    }
}
