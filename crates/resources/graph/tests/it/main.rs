//! Graphs at the crate's boundary: text in, complaints, counts, pictures and meshes out.

mod check;
mod draw;
mod generate;
mod mesh;
mod read;

use voile_graph::Graph;
use voile_model::{Diagnostic, SourceFile};

/// Reads a text as `g.yaml`.
fn read(text: &str) -> (Option<Graph>, Vec<Diagnostic>) {
    voile_graph::read(&SourceFile::new("g.yaml", text))
}

/// Reads a text that has no error.
#[track_caller]
fn good(text: &str) -> Graph {
    let (graph, problems) = read(text);
    graph.unwrap_or_else(|| panic!("{}", said(&problems)))
}

/// All complaints, a line each without the help.
fn said(problems: &[Diagnostic]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
