//! Evidence by which a reader can doubt the figures: proof of path, invalid slices, terms, environment, and the command to
//! repeat.

use std::fmt::Write as _;

use crate::record::{CheckVerdict, Environment, Record};
use crate::words::{escape, interval, path_title, title};

pub(super) fn write(page: &mut String, record: &Record) {
    invalid(page, record);
    proofs(page, record);
    contestants(page, record);
    let experiment = &record.experiment;
    let more = [
        ("took", format!("{:.0} s", experiment.took_seconds)),
        ("seed", experiment.seed.to_string()),
    ];
    environment(page, &record.environment, &more);
    if let Some(far) = &record.far {
        machine(page, "Environment of servers and their sidecars", far, &[]);
    }
    repeat(page, record);
}

fn invalid(page: &mut String, record: &Record) {
    page.push_str("<h2>Invalid slices</h2>\n");
    let invalid: Vec<_> = record.runs.iter().filter(|run| !run.valid).collect();
    if invalid.is_empty() {
        page.push_str("<p>None.</p>\n");
    } else {
        page.push_str("<div class=\"scroll\"><table><thead><tr><th>round</th><th class=\"t\">cell</th><th class=\"t\">why it is invalid</th></tr></thead><tbody>\n");
        for run in invalid {
            let mut cell = format!("{}, {}", run.contestant, title(&run.key()));
            if run.control {
                cell.push_str(" (A/A control)");
            }
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td class=\"t\">{}</td><td class=\"t bad\">{}</td></tr>",
                run.round,
                escape(&cell),
                escape(&run.invalid_reasons.join("; "))
            );
        }
        page.push_str("</tbody></table></div>\n");
    }
    page.push_str("<details><summary>Conditions for a valid slice</summary><ul>");
    for bound in &record.experiment.validity {
        let _ = write!(page, "<li>{}</li>", escape(bound));
    }
    page.push_str("</ul></details>\n");
}

fn proofs(page: &mut String, record: &Record) {
    page.push_str("<h2>Proof of path</h2>\n<p class=\"soft\">Before the measurement, marked requests took each path once and were captured. A failed proof makes all slices of its path invalid.</p>\n");
    for proof in &record.proofs {
        let count = |verdict| {
            proof
                .checks
                .iter()
                .filter(|check| check.verdict == verdict)
                .count()
        };
        let (failed, open) = (count(CheckVerdict::Failed), count(CheckVerdict::NotProven));
        let mut result = format!(
            "<span class=\"good\">{} proven</span>",
            count(CheckVerdict::Proven)
        );
        if open > 0 {
            let _ = write!(result, ", {open} not proven here");
        }
        if failed > 0 {
            let _ = write!(result, ", <span class=\"bad\">{failed} failed</span>");
        }
        let mut title = format!("{}, {}", path_title(&proof.mode, proof.tls), proof.protocol);
        if !proof.verdict.is_empty() {
            let _ = write!(title, ", {}", proof.verdict);
        }
        if !proof.hit.is_empty() {
            let _ = write!(title, ", route hit: {}", proof.hit);
        }
        if !proof.token.is_empty() {
            let _ = write!(title, ", token {}", proof.token);
        }
        let _ = writeln!(
            page,
            "<details{}><summary>{}, {}: {result}</summary><div class=\"scroll\"><table><tbody>",
            if failed > 0 { " open" } else { "" },
            escape(&proof.contestant),
            escape(&title)
        );
        for check in &proof.checks {
            let (class, word) = match check.verdict {
                CheckVerdict::Proven => ("good", "proven"),
                CheckVerdict::NotProven => ("soft", "not proven"),
                CheckVerdict::Failed => ("bad", "FAILED"),
            };
            let _ = writeln!(
                page,
                "<tr><td class=\"{class}\">{word}</td><td class=\"t\">{}</td><td class=\"t soft\">{}</td></tr>",
                escape(&check.claim),
                escape(&check.evidence)
            );
        }
        page.push_str("</tbody></table></div></details>\n");
    }
}

fn contestants(page: &mut String, record: &Record) {
    page.push_str("<h2>Contestants and their terms</h2>\n");
    for contestant in record.contestants.iter().filter(|c| c.name != "baseline") {
        let version = record
            .environment
            .versions
            .get(&contestant.name)
            .map_or("", String::as_str);
        let _ = writeln!(
            page,
            "<h3>{} {}</h3>",
            escape(&contestant.name),
            escape(version)
        );
        if let Some(missing) = &contestant.missing {
            let _ = writeln!(page, "<p class=\"bad\">Left out: {}</p>", escape(missing));
        }
        page.push_str("<ul>");
        for term in &contestant.terms {
            let _ = write!(page, "<li>{}</li>", escape(term));
        }
        if let Some(tls) = record.environment.tls.get(&contestant.name) {
            let _ = write!(
                page,
                "<li>negotiated between its sidecars: {}</li>",
                escape(tls)
            );
        }
        page.push_str("</ul>\n");
        if !contestant.commands.is_empty() {
            let commands: Vec<String> = contestant
                .commands
                .iter()
                .map(|command| escape(command))
                .collect();
            let _ = writeln!(
                page,
                "<details><summary>Command lines</summary><pre>{}</pre></details>",
                commands.join("\n")
            );
        }
    }
}

/// Writes the environment of the run, and further facts about it.
pub(crate) fn environment(page: &mut String, environment: &Environment, more: &[(&str, String)]) {
    machine(page, "Environment", environment, more);
}

fn machine(page: &mut String, title: &str, environment: &Environment, more: &[(&str, String)]) {
    let load = environment
        .load_average
        .map_or_else(|| "unknown".to_owned(), |load| format!("{load:.2}"));
    let _ = write!(
        page,
        "<h2>{title}</h2>\n<div class=\"scroll\"><table><tbody>\n"
    );
    for (name, value) in [
        ("host", environment.host.clone()),
        ("processor", environment.cpu.clone()),
        ("cores", environment.cores.to_string()),
        (
            "memory",
            format!(
                "{:.1} GiB",
                environment.memory_bytes as f64 / f64::from(1 << 30)
            ),
        ),
        ("kernel", environment.kernel.clone()),
        ("load average at the start", load),
        ("profile", environment.profile.clone()),
    ]
    .iter()
    .chain(more)
    {
        let _ = writeln!(
            page,
            "<tr><td>{name}</td><td class=\"t\">{}</td></tr>",
            escape(value)
        );
    }
    if let Some(calibration) = &environment.calibration {
        for (name, found, show) in calibration.rows() {
            let Some(found) = found else { continue };
            let _ = writeln!(
                page,
                "<tr><td>{name}</td><td class=\"t\">{}</td></tr>",
                escape(&interval(&found, show))
            );
        }
    }
    page.push_str("</tbody></table></div>\n");
}

fn repeat(page: &mut String, record: &Record) {
    let _ = writeln!(
        page,
        "<h2>Repeat it</h2>\n<pre>{}</pre>\n<p class=\"soft\">This page is drawn from <code>record.json.gz</code> beside it: \
         <code>voile bench report FOLDER</code> draws it again. Each slice with its histogram is a line of \
         <code>samples/slices.jsonl.gz</code>; <code>definition.toml</code> is the experiment.</p>",
        escape(&record.experiment.command)
    );
}
