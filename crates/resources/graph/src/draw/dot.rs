//! Graphviz' language.

use std::fmt::Write as _;

use super::{beside, facts, grouped};
use crate::model::Graph;

/// The graph in DOT.
#[must_use]
pub fn dot(graph: &Graph) -> String {
    let mut text = String::from(
        "digraph services {\n  rankdir=LR;\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n",
    );
    let entries = graph.entries();
    for (place, service) in graph.services.iter().enumerate() {
        let facts = facts(service);
        let label = match facts.is_empty() {
            true => escaped(&service.name),
            false => format!("{}\\n{}", escaped(&service.name), escaped(&facts)),
        };
        let bold = if entries.contains(&place) {
            ", penwidth=2"
        } else {
            ""
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  \"{}\" [label=\"{label}\"{bold}];",
            escaped(&service.name)
        );
    }
    for service in &graph.services {
        for (callee, calls) in grouped(service) {
            let beside = beside(&calls);
            let (from, to) = (
                escaped(&service.name),
                escaped(&graph.services[callee].name),
            );
            let label = match beside.is_empty() {
                true => String::new(),
                false => format!(" [label=\"{}\"]", escaped(&beside)),
            };
            let _ = writeln!(text, "  \"{from}\" -> \"{to}\"{label};");
        }
    }
    text.push_str("}\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
