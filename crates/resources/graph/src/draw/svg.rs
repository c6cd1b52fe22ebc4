//! SVG: boxes, lines between them, and the words. Colours follow the reader's light or dark theme.

use std::fmt::Write as _;

use super::layout::{EdgePath, GraphLayout, layout};
use super::{beside, facts, grouped, told};
use crate::model::{Graph, GraphService};
use crate::weigh::weigh;

/// Pixels from one row to the next, and a box's height.
const ROW: f64 = 46.0;
const BOX: f64 = 34.0;
/// Pixels of a character of a name and of the small print, on the wide side of common sans-serif fonts.
const NAME_WIDTH: f64 = 7.6;
const FACT_WIDTH: f64 = 5.9;
/// Most characters of a name that are drawn; the rest is in the tooltip.
const NAME_CHARS: usize = 32;
/// Pixels between two levels at least, and more for each row that a line may have to cross.
const GAP: f64 = 70.0;
const MARGIN: f64 = 24.0;
/// Height of the title above everything.
const TITLE: f64 = 44.0;

/// Colour of a share, and its opacity at a share of 1: the words below stay readable.
const TINT: &str = "#e8590c";
const DEEPEST: f64 = 0.5;

const STYLE: &str = "
  svg { --ground: #ffffff; --ink: #1c2733; --soft: #5b6b7a; --line: #8fa1b3; --box: #eef3f8; --edge: #aebccb; --entry: #0b6bcb; --grpc: #7a4fbf; }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #12171d; --ink: #e6edf3; --soft: #9aa9b8; --line: #62748a; --box: #1d2631; --edge: #3a4a5c; --entry: #58a6ff; --grpc: #b392f0; }
  }
  .ground { fill: var(--ground); }
  text { fill: var(--ink); font: 13px system-ui, sans-serif; }
  .title { font-weight: 600; font-size: 15px; }
  .small { fill: var(--soft); font-size: 10.5px; }
  .box { fill: var(--box); stroke: var(--edge); }
  .grpc .box { stroke: var(--grpc); }
  .entry .box { stroke: var(--entry); stroke-width: 2.2; }
  .call { fill: none; stroke: var(--line); stroke-width: 1.2; }
  .seldom { stroke-dasharray: 4 3; }
  .head { fill: var(--line); }
  .beside { fill: var(--soft); font-size: 10.5px; paint-order: stroke; stroke: var(--ground); stroke-width: 3px; }
";

/// The picture.
#[must_use]
pub fn svg(graph: &Graph, title: &str) -> String {
    tinted(graph, title, &[])
}

/// The picture with each service's box coloured by a share from 0 to 1. Services beyond the shares stay plain.
#[must_use]
pub fn tinted(graph: &Graph, title: &str, shares: &[f64]) -> String {
    let layout = layout(graph);
    let columns = columns(graph, &layout);
    let entries = graph.entries();
    let rows = layout.spots.iter().map(|spot| spot.row).fold(0.0, f64::max);
    let summary = summary(graph, &entries);
    let widest = (title.chars().count().max(summary.chars().count())) as f64 * NAME_WIDTH;
    let right = columns
        .last()
        .map_or(0.0, |column| column.left + column.width);
    let width = right.max(widest + MARGIN) + MARGIN;
    let height = TITLE + MARGIN + rows * ROW + BOX + MARGIN;
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n\
         <defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7.5\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto-start-reverse\"><path class=\"head\" d=\"M0 0.8 8 4 0 7.2z\"/></marker></defs>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"28\">{}</text>\n<text class=\"small\" x=\"{MARGIN}\" y=\"46\">{}</text>",
        escaped(title),
        escaped(title),
        escaped(&summary),
    );
    for line in &layout.lines {
        call(&mut text, graph, &layout, &columns, line);
    }
    for (place, service) in graph.services.iter().enumerate() {
        let spot = &layout.spots[place];
        let column = &columns[spot.level];
        node(
            &mut text,
            graph,
            service,
            column,
            middle(spot.row),
            entries.contains(&place),
        );
        if let Some(share) = shares.get(place) {
            let top = middle(spot.row) - BOX / 2.0;
            let _ = writeln!(
                text,
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BOX}\" rx=\"7\" fill=\"{TINT}\" fill-opacity=\"{:.2}\" pointer-events=\"none\"/>",
                column.left,
                column.width,
                share.clamp(0.0, 1.0) * DEEPEST,
            );
        }
    }
    text.push_str("</svg>\n");
    text
}

struct Column {
    left: f64,
    width: f64,
}

fn columns(graph: &Graph, layout: &GraphLayout) -> Vec<Column> {
    let mut widths = vec![40.0f64; layout.levels];
    let mut rows = vec![0usize; layout.levels];
    for spot in &layout.spots {
        rows[spot.level] += 1;
        if let Some(service) = spot.service {
            let service = &graph.services[service];
            let name = service.name.chars().count().min(NAME_CHARS) as f64 * NAME_WIDTH;
            let facts = facts(service).chars().count() as f64 * FACT_WIDTH;
            widths[spot.level] = widths[spot.level].max(name.max(facts) + 20.0);
        }
    }
    let mut left = MARGIN;
    let mut columns = Vec::new();
    for (level, &width) in widths.iter().enumerate() {
        columns.push(Column { left, width });
        let crowd = rows[level].max(rows.get(level + 1).copied().unwrap_or(0));
        left += width + GAP + (crowd as f64 * 3.0).min(160.0);
    }
    columns
}

fn middle(row: f64) -> f64 {
    TITLE + MARGIN + row * ROW + BOX / 2.0
}

fn node(
    text: &mut String,
    graph: &Graph,
    service: &GraphService,
    column: &Column,
    y: f64,
    entry: bool,
) {
    let facts = facts(service);
    let class = match (entry, service.protocol) {
        (true, _) => "entry",
        (false, crate::ServiceProtocol::Grpc) => "grpc",
        (false, crate::ServiceProtocol::Http) => "plain",
    };
    let mut name: String = service.name.chars().take(NAME_CHARS).collect();
    if name.len() < service.name.len() {
        name.pop();
        name.push('…');
    }
    let told = told(graph, service);
    let tip = format!(
        "{} ({}, {} bytes){}{told}",
        service.name,
        service.protocol.as_str(),
        service.response_size,
        if told.is_empty() { "" } else { "\n" },
    );
    let (x, top) = (column.left, y - BOX / 2.0);
    let name_y = if facts.is_empty() { y + 4.5 } else { y - 2.0 };
    let _ = write!(
        text,
        "<g class=\"{class}\"><title>{}</title><rect class=\"box\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BOX}\" rx=\"7\"/><text x=\"{:.1}\" y=\"{name_y:.1}\">{}</text>",
        escaped(&tip),
        column.width,
        x + 10.0,
        escaped(&name),
    );
    if !facts.is_empty() {
        let _ = write!(
            text,
            "<text class=\"small\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 10.0,
            y + 11.5,
            escaped(&facts)
        );
    }
    text.push_str("</g>\n");
}

fn call(
    text: &mut String,
    graph: &Graph,
    layout: &GraphLayout,
    columns: &[Column],
    line: &EdgePath,
) {
    let groups = grouped(&graph.services[line.from]);
    let calls = groups.iter().find(|(callee, _)| *callee == line.to);
    let beside = calls.map(|(_, calls)| beside(calls)).unwrap_or_default();
    let seldom = calls.is_some_and(|(_, calls)| {
        calls
            .iter()
            .all(|call| call.probability < crate::Probability::ALL)
    });
    let spot = |place: usize| {
        let spot = &layout.spots[place];
        (&columns[spot.level], middle(spot.row))
    };
    let mut path = String::new();
    let (first, mut y) = spot(line.spots[0]);
    let mut x = first.left + first.width;
    let start = (x, y);
    let _ = write!(path, "M{x:.1} {y:.1}");
    if line.from == line.to {
        // A loop over the box's right edge.
        let _ = write!(
            path,
            "C{0:.1} {1:.1} {0:.1} {2:.1} {x:.1} {2:.1}",
            x + 34.0,
            y - 12.0,
            y + 10.0
        );
    } else {
        for &place in &line.spots[1..] {
            let (column, to_y) = spot(place);
            let bend = layout.spots[place].service.is_none();
            let half = (column.left - x) / 2.0;
            let _ = write!(
                path,
                "C{:.1} {y:.1} {:.1} {to_y:.1} {:.1} {to_y:.1}",
                x + half,
                column.left - half,
                column.left
            );
            (x, y) = (column.left, to_y);
            if bend {
                x += column.width;
                let _ = write!(path, "H{x:.1}");
            }
        }
    }
    let marker = if line.turned && line.from != line.to {
        "marker-start"
    } else {
        "marker-end"
    };
    let class = if seldom { "call seldom" } else { "call" };
    let _ = writeln!(
        text,
        "<path class=\"{class}\" {marker}=\"url(#head)\" d=\"{path}\"/>"
    );
    if !beside.is_empty() {
        // At the end where fewer lines meet, so that words do not lie on each other.
        let near_start =
            line.turned || crowd(layout, line.to, false) > crowd(layout, line.from, true);
        let (at_x, at_y, anchor) = match near_start {
            true => (start.0 + 8.0, start.1 - 4.0, "start"),
            false => (x - 12.0, y - 4.0, "end"),
        };
        let _ = writeln!(
            text,
            "<text class=\"beside\" x=\"{at_x:.1}\" y=\"{at_y:.1}\" text-anchor=\"{anchor}\">{}</text>",
            escaped(&beside)
        );
    }
}

/// Lines that leave or reach a service.
fn crowd(layout: &GraphLayout, service: usize, leaving: bool) -> usize {
    let end = |line: &&EdgePath| {
        if leaving {
            line.from == service
        } else {
            line.to == service
        }
    };
    layout.lines.iter().filter(end).count()
}

fn summary(graph: &Graph, entries: &[usize]) -> String {
    let mut parts = vec![format!("{} services", graph.services.len())];
    for &entry in entries.iter().take(3) {
        let weights = weigh(graph, entry);
        parts.push(format!(
            "1 request to {} makes {} in all, {} deep",
            graph.services[entry].name,
            crate::weigh::shown(weights.total()),
            weights.depth
        ));
    }
    parts.join(" · ")
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}
