//! One plot, and the plots that answer one question; how plots name and group cells.

use std::collections::BTreeSet;

use crate::record::{CellKey, Record, Summary, ValueKind};
use crate::words;

/// One plot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plot {
    /// A file's name without its ending; no two plots of a record share one.
    pub id: String,
    /// Title of the plot.
    pub title: String,
    /// The drawing, coloured by classes.
    pub svg: String,
    /// Caption that must stand beside the plot.
    pub caption: String,
}

/// Plots that answer one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// Explanation of the plots.
    pub words: &'static str,
    /// The plots, at least one.
    pub plots: Vec<Plot>,
    /// True if the plots show others in more detail. A page may then keep them folded.
    pub folded: bool,
}

impl Plot {
    pub(crate) fn new(kind: &str, title: String, svg: String) -> Self {
        Self {
            id: slug(&format!("{kind} {title}")),
            title,
            svg,
            caption: String::new(),
        }
    }
}

/// Letters, digits and single dashes.
fn slug(title: &str) -> String {
    let mut slug = String::new();
    for c in title.replace("HTTP/1.1", "http1").chars() {
        if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        } else if !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.trim_matches('-').to_owned()
}

/// Cells by heading, in the order of the summary.
pub(super) fn groups(record: &Record) -> Vec<(String, Vec<&Summary>)> {
    let mut groups: Vec<(String, Vec<&Summary>)> = Vec::new();
    for summary in record
        .summary
        .iter()
        .filter(|summary| summary.runs_valid > 0)
    {
        let title = words::title(&summary.key());
        match groups.last_mut().filter(|(last, _)| *last == title) {
            Some((_, cells)) => cells.push(summary),
            None => groups.push((title, vec![summary])),
        }
    }
    groups
}

/// Short name of contestant and path, for a legend.
pub(super) fn who(cell: &CellKey) -> String {
    let shape = match cell.shape.is_plain() {
        true => String::new(),
        false => format!(", {}", cell.shape),
    };
    if cell.is_baseline() {
        return format!("no proxy{shape}");
    }
    let tls = if cell.tls { " mTLS" } else { "" };
    format!("{} {}{tls}{shape}", cell.contestant, cell.mode)
}

/// A cell's name, short enough for a plot's margin: contestant, path, and load in figures.
pub(crate) fn brief(cell: &CellKey) -> String {
    let load = match cell.kind {
        ValueKind::Latency => format!("{}×{}/s", cell.connections, cell.rate),
        ValueKind::Saturation | ValueKind::Bulk => format!("{}×max", cell.connections),
        ValueKind::Idle => format!("{} idle", cell.connections),
    };
    let protocol = match cell.protocol.as_str() {
        "http1" | "" => String::new(),
        other => format!(" {other}"),
    };
    format!("{}{protocol} {load}", who(cell))
}

pub(crate) fn name_once(sections: &mut [Section]) {
    let mut taken = BTreeSet::new();
    for plot in sections.iter_mut().flat_map(|section| &mut section.plots) {
        let (first, mut number) = (plot.id.clone(), 2);
        while !taken.insert(plot.id.clone()) {
            plot.id = format!("{first}-{number}");
            number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_plain() {
        assert_eq!(slug("p99 <b>, HTTP/1.1 µs: 1000/s"), "p99-b-http1-s-1000-s");
        let plot = |id: &str| Plot {
            id: id.to_owned(),
            title: String::new(),
            svg: String::new(),
            caption: String::new(),
        };
        let mut sections = [Section {
            title: "",
            words: "",
            plots: vec![plot("a"), plot("a"), plot("a-2")],
            folded: false,
        }];
        name_once(&mut sections);
        let names: BTreeSet<_> = sections[0].plots.iter().map(|p| p.id.clone()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }
}
