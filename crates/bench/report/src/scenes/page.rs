//! The page of any scene, its small report in Markdown, its text for a terminal, and its slices as CSV.

use std::fmt::Write as _;

use super::view::{SceneTable, SceneView};
use crate::html;
use crate::record::Record;
use crate::record::scene::SceneKind;
use crate::summarise::figures;
use crate::table::{Row, aligned};
use crate::words::escape;

/// The machine and when it was measured.
fn machine(record: &Record) -> [String; 6] {
    let environment = &record.environment;
    let versions = environment.versions.iter();
    let versions: Vec<String> = versions
        .map(|(name, word)| format!("{name} {word}"))
        .collect();
    [
        record.experiment.started_at.clone(),
        environment.cpu.clone(),
        format!("{} cores", environment.cores),
        environment.kernel.clone(),
        versions.join(", "),
        format!("profile {}", environment.profile),
    ]
}

/// `report.html`. Writing into a String cannot fail, here and below.
pub(super) fn html(record: &Record, view: &SceneView) -> String {
    let mut page = html::head(&view.title);
    let machine = escape(&machine(record).join(" · "));
    let _ = writeln!(page, "<p class=\"soft\">{machine}</p>");
    for note in &record.notes {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(note));
    }
    if !view.words.is_empty() {
        page.push_str("<h2>In words</h2>\n<ul class=\"lead\">\n");
        for line in &view.words {
            let _ = writeln!(page, "<li>{}</li>", escape(line));
        }
        page.push_str("</ul>\n");
    }
    if let Some((graph, picture)) = &view.picture {
        let _ = writeln!(
            page,
            "<h2>The graph</h2>\n<figure class=\"scroll\"><img alt=\"the services of {} and their calls\" src=\"data:image/svg+xml,{}\"></figure>",
            escape(graph),
            percent_encoded(picture)
        );
    }
    view.tables.iter().for_each(|one| table(&mut page, one));
    html::draw(&mut page, &view.sections);
    view.evidence.iter().for_each(|one| table(&mut page, one));
    let took = format!("{:.0} s", record.experiment.took_seconds);
    html::environment(&mut page, &record.environment, &[("took", took)]);
    let command = escape(&record.experiment.command);
    let _ = writeln!(page, "<h2>Repeat it</h2>\n<pre>{command}</pre>");
    for (title, text) in &view.texts {
        let (title, text) = (escape(title), escape(text));
        let _ = writeln!(
            page,
            "<details><summary>{title}</summary><pre>{text}</pre></details>"
        );
    }
    let _ = writeln!(
        page,
        "<p class=\"soft\">This page is drawn from <code>{}</code> beside it: <code>voile bench report FOLDER</code> \
         draws it again, with <code>--plots svg,png</code> each plot as a file.</p>\n</body></html>",
        record.own_scene().kind.file()
    );
    page
}

/// Escapes text for a `data:` address within an attribute.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 5 / 4);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => encoded.push(char::from(byte)),
            _ if b" -_.~/:=,;()".contains(&byte) => encoded.push(char::from(byte)),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

fn table(page: &mut String, table: &SceneTable) {
    let _ = writeln!(page, "<h2>{}</h2>", table.title);
    if !table.words.is_empty() {
        let _ = writeln!(page, "<p class=\"soft\">{}</p>", table.words);
    }
    let (before, after) = match table.folded {
        true => ("<details><summary>All of them</summary>", "</details>"),
        false => ("", ""),
    };
    let _ = write!(page, "{before}<div class=\"scroll\"><table>");
    let mut width = 0;
    for row in &table.rows {
        let cells = match row {
            Row::Title(title) => {
                format!(
                    "<tr class=\"head\"><td colspan=\"{width}\">{}</td>",
                    escape(title)
                )
            }
            Row::Cells(cells) if width == 0 => {
                width = cells.len();
                let cells = cells.iter().map(|cell| escape(cell).replace('/', "/<wbr>"));
                format!(
                    "<tr><th>{}</th>",
                    cells.collect::<Vec<_>>().join("</th><th>")
                )
            }
            Row::Cells(cells) => {
                format!("<tr>{}", cells.iter().map(|c| cell(c)).collect::<String>())
            }
        };
        let _ = writeln!(page, "{cells}</tr>");
    }
    let _ = writeln!(page, "</table></div>{after}");
}

/// A cell; an interval stands below its median.
fn cell(text: &str) -> String {
    let text = match text {
        "reached" => "<span class=\"good\">reached</span>".to_owned(),
        "missed" => "<span class=\"bad\">missed</span>".to_owned(),
        text => escape(text),
    };
    match text.split_once(" [") {
        Some((middle, range)) if range.ends_with(']') => {
            let range = range.trim_end_matches(']');
            format!("<td>{middle}<small>{range}</small></td>")
        }
        _ => format!("<td>{text}</td>"),
    }
}

/// `report.md`.
pub(super) fn markdown(record: &Record, view: &SceneView) -> String {
    let mut text = format!("# {}\n\n{}\n\n", view.title, machine(record).join(" · "));
    for note in &record.notes {
        let _ = writeln!(text, "> {note}\n");
    }
    for line in &view.words {
        let _ = writeln!(text, "- {line}");
    }
    for table in view.tables.iter().chain(&view.evidence) {
        let _ = write!(text, "\n## {}\n\n", table.title);
        let mut width = 0;
        for row in &table.rows {
            let cells = match row {
                Row::Title(title) => vec![format!("**{title}**")],
                Row::Cells(cells) => cells.clone(),
            };
            let cells = cells.into_iter().map(|cell| cell.replace('|', "/"));
            let cells: Vec<String> = cells.collect();
            let line = cells.join(" | ").replace('\n', " ");
            let _ = writeln!(text, "| {line} |");
            if width == 0 {
                width = cells.len();
                let _ = writeln!(text, "|{}", "---|".repeat(width));
            }
        }
    }
    for (title, lines) in &view.texts {
        let _ = write!(text, "\n## {title}\n\n```text\n{}\n```\n", lines.trim_end());
    }
    let _ = writeln!(text, "\nRepeat it: `{}`", record.experiment.command);
    text
}

/// Tables of figures, then sentences.
pub(super) fn terminal(view: &SceneView) -> String {
    let mut text = String::new();
    for table in &view.tables {
        if !text.is_empty() {
            let _ = writeln!(text, "\n{}", table.title);
        }
        text.push_str(&aligned(&table.rows));
    }
    if !view.words.is_empty() {
        let _ = writeln!(text, "\n{}", view.words.join("\n"));
    }
    text
}

pub(super) fn csv_file(record: &Record) -> &'static str {
    match record.own_scene().kind {
        SceneKind::Agreement => "slices.csv",
        _ => "results.csv",
    }
}

/// Every figure of every slice, a line each.
pub(super) fn csv(record: &Record) -> String {
    let mut text = "scene,contestant,round,sequence,valid,figure,value\n".to_owned();
    for run in &record.runs {
        for (figure, value) in figures(run) {
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{value}",
                crate::csv::quote(&run.mode),
                crate::csv::quote(&run.contestant),
                run.round,
                run.sequence,
                run.valid,
                crate::csv::quote(&figure),
            );
        }
    }
    text
}
