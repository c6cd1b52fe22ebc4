//! Shared parts of the pages of other records than experiments: graphs, and generators beside each other. The order is that of an
//! experiment's report: words, plots, tables, environment, and the command to repeat.

use std::fmt::Write as _;

use crate::head::RecordHead;
use crate::html;
use crate::plots::plot::Section;
use crate::words::escape;

/// Everything before a page's first heading.
pub(crate) fn begin(title: &str, head: &RecordHead) -> String {
    let environment = &head.environment;
    let versions: Vec<String> = environment
        .versions
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let mut page = html::head(title);
    let _ = writeln!(
        page,
        "<p class=\"soft\">{} · {} · {} cores · {} · {} · profile <b>{}</b></p>",
        escape(&head.started_at),
        escape(&environment.cpu),
        environment.cores,
        escape(&environment.kernel),
        escape(&versions.join(", ")),
        escape(&environment.profile),
    );
    for note in &head.notes {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(note));
    }
    page
}

/// Writes the findings, a sentence a line.
pub(crate) fn words(page: &mut String, lines: &str) {
    page.push_str("<h2>In words</h2>\n<ul class=\"lead\">\n");
    for line in lines.lines() {
        let _ = writeln!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul>\n");
}

/// A table: headings of columns, then rows, whose cells are markup already. The first column is words.
pub(crate) fn table(page: &mut String, headings: &[&str], rows: &[Vec<String>]) {
    page.push_str("<div class=\"scroll\"><table><thead><tr>");
    for heading in headings {
        let _ = write!(page, "<th>{}</th>", escape(heading).replace('/', "/<wbr>"));
    }
    page.push_str("</tr></thead><tbody>\n");
    for row in rows {
        let _ = writeln!(page, "<tr><td>{}</td></tr>", row.join("</td><td>"));
    }
    page.push_str("</tbody></table></div>\n");
}

/// The rest: plots were drawn by [`html::draw`], now what one needs to doubt and to repeat it. `data` is the file that all of it is drawn from.
pub(crate) fn end(page: &mut String, head: &RecordHead, data: &str) {
    let took = ("took", format!("{:.0} s", head.took_seconds));
    html::environment(page, &head.environment, &[took]);
    let _ = writeln!(
        page,
        "<h2>Repeat it</h2>\n<pre>{}</pre>\n<p class=\"soft\">This page is drawn from <code>{data}</code> beside it: \
         <code>voile bench report FOLDER</code> draws it again, with <code>--plots svg,png</code> each plot as a file.</p>\n</body></html>",
        escape(&head.command)
    );
}

/// Sections that have plots, each plot under a name of its own.
pub(crate) fn with_plots(mut sections: Vec<Section>) -> Vec<Section> {
    sections.retain(|section| !section.plots.is_empty());
    crate::plots::plot::name_once(&mut sections);
    sections
}
