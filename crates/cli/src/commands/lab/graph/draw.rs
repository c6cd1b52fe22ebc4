//! `voile graph draw`: pictures.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use voile_graph::draw;

use crate::commands::lab::graph::files;

/// Draw a graph as SVG, or as DOT for Graphviz.
///
/// The SVG is self-contained, and follows the light or dark theme. Hovering over a service shows its script. Boxes name
/// replicas, work and errors; dashed lines are calls that are not always made.
#[derive(Debug, clap::Args)]
pub(super) struct GraphDrawArgs {
    /// The graph.
    file: PathBuf,
    /// Output file; without it, standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Svg)]
    format: Format,
    /// Its title; without it, the graph's file name.
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// For browsers and documents.
    Svg,
    /// For Graphviz.
    Dot,
}

pub(super) fn run(args: &GraphDrawArgs) -> files::Outcome {
    let graph = files::read(&args.file)?;
    let name = args.file.file_stem().unwrap_or_default().to_string_lossy();
    let title = args.title.as_deref().unwrap_or(&name);
    let picture = match args.format {
        Format::Svg => draw::svg(&graph, title),
        Format::Dot => draw::dot(&graph),
    };
    match &args.output {
        None => files::say(&picture),
        Some(path) => std::fs::write(path, picture)
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| format!("cannot write {}: {error}", path.display())),
    }
}
