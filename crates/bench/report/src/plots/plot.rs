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

/// Words that all titles share, and the titles without them. Words end at commas and colons.
pub(crate) fn hoisted(plots: &[Plot]) -> (String, Vec<String>) {
    let split: Vec<Vec<(&str, &str)>> = plots.iter().map(|plot| parts(&plot.title)).collect();
    let whole = || plots.iter().map(|plot| plot.title.clone()).collect();
    let shared = |part: &str| {
        split
            .iter()
            .all(|parts| parts.iter().any(|(_, one)| *one == part))
    };
    let [first, _, ..] = split.as_slice() else {
        return (String::new(), whole());
    };
    let joined = |parts: &[(&str, &str)], shown: &dyn Fn(&str) -> bool| -> String {
        let mut text = String::new();
        for (before, part) in parts.iter().filter(|(_, part)| shown(part)) {
            if !text.is_empty() {
                text += before;
            }
            text += part;
        }
        text
    };
    let common = joined(first, &shared);
    let titles: Vec<String> = split
        .iter()
        .map(|parts| joined(parts, &|part| !shared(part)))
        .collect();
    if titles.iter().any(String::is_empty) {
        return (String::new(), whole());
    }
    (common, titles)
}

/// The parts of a title, each with the sign before it.
fn parts(title: &str) -> Vec<(&str, &str)> {
    let mut parts = Vec::new();
    let (mut before, mut rest) = ("", title);
    loop {
        let ends = [", ", ": "]
            .into_iter()
            .filter_map(|sign| Some((rest.find(sign)?, sign)));
        let Some((at, sign)) = ends.min() else {
            parts.push((before, rest));
            return parts;
        };
        parts.push((before, &rest[..at]));
        (before, rest) = (sign, &rest[at + sign.len()..]);
    }
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
    fn common_words_of_titles_stand_above_them_once() {
        let plots = |titles: &[&str]| -> Vec<Plot> {
            let plot = |title: &&str| Plot::new("x", (*title).to_owned(), String::new());
            titles.iter().map(plot).collect()
        };
        for (titles, common, rest) in [
            (
                &[
                    "p50: HTTP/1.1, 16 connections",
                    "p99: HTTP/1.1, 16 connections",
                ][..],
                "HTTP/1.1, 16 connections",
                &["p50", "p99"][..],
            ),
            (
                &["both: two sidecars, 1/s", "node: two proxies, 1/s"],
                "1/s",
                &["both: two sidecars", "node: two proxies"],
            ),
            (&["alone, here"], "", &["alone, here"]),
            (&["same, a", "same, a"], "", &["same, a", "same, a"]),
            (&["one", "other"], "", &["one", "other"]),
        ] {
            let (told, left) = hoisted(&plots(titles));
            assert_eq!(told, common);
            assert_eq!(left, rest);
        }
    }

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
