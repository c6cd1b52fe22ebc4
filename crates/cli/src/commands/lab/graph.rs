//! `voile graph`: service graphs, from text to pictures, meshes and running processes. One file per group of subcommands.

mod draw;
mod generate;
mod mesh;
mod run;
mod serve;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use voile_graph::{Graph, Probability, weigh};
use voile_model::SourceFile;

/// Check, make, draw and run graphs of synthetic services.
///
/// A graph is a file in the YAML of isotope (istio/tools): services, and for each a script of calls, pauses and work. Every
/// field is described in docs/reference/graph.md; examples are in examples/graphs.
#[derive(Debug, clap::Args)]
pub(crate) struct GraphArgs {
    #[command(subcommand)]
    command: GraphCommand,
}

#[derive(Debug, Subcommand)]
enum GraphCommand {
    /// Print every problem of a graph with its place, and how many requests one request causes.
    Check(Check),
    #[command(about = "Make a graph of a chosen shape, as YAML on standard output")]
    Generate(generate::GraphGenerateArgs),
    #[command(about = "Draw a graph as SVG, or as DOT for Graphviz")]
    Draw(draw::GraphDrawArgs),
    #[command(about = "Write a graph as a folder that `voile up` runs")]
    Mesh(mesh::GraphMeshArgs),
    #[command(about = "Run all services of a graph on this machine, without a mesh")]
    Run(run::GraphRunArgs),
    #[command(about = "Run one service of a graph")]
    Serve(serve::GraphServeArgs),
}

#[derive(Debug, clap::Args)]
struct Check {
    /// The graph.
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: GraphArgs) -> ExitCode {
    let ended = match args.command {
        GraphCommand::Check(args) => check(&args),
        GraphCommand::Generate(args) => generate::run(&args),
        GraphCommand::Draw(args) => draw::run(&args),
        GraphCommand::Mesh(args) => mesh::run(&args),
        GraphCommand::Run(args) => run::run(args),
        GraphCommand::Serve(args) => serve::run(args),
    };
    match ended {
        Ok(code) => code,
        Err(error) => {
            eprintln!("voile graph: {error}");
            ExitCode::from(1)
        }
    }
}

/// Exit code, or an error message for people. The message is empty if the error was printed
/// already.
type Outcome = Result<ExitCode, String>;

/// Reads a graph; its problems go to standard error.
fn read(path: &Path) -> Result<Graph, String> {
    parse(&load(path), true)
}

/// Reads a graph as `read` does, but says only what is an error: for the many processes of one graph.
fn read_quietly(path: &Path) -> Result<Graph, String> {
    parse(&load(path), false)
}

fn load(path: &Path) -> SourceFile {
    let name = path.to_string_lossy().into_owned();
    match voile_model::files::read_text(path) {
        Ok(text) => SourceFile::new(name, text),
        Err(reason) => SourceFile::unreadable(name, reason),
    }
}

fn parse(file: &SourceFile, warn: bool) -> Result<Graph, String> {
    let (graph, problems) = voile_graph::read(file);
    for problem in problems.iter().filter(|problem| warn || problem.is_error()) {
        eprintln!("{problem}");
    }
    graph.ok_or_else(|| {
        let errors = problems.iter().filter(|problem| problem.is_error()).count();
        let s = if errors == 1 { "" } else { "s" };
        format!("{}: {errors} error{s}", file.name)
    })
}

fn check(args: &Check) -> Outcome {
    let graph = read(&args.file)?;
    if args.json {
        return say(&json(&graph));
    }
    let mut text = String::new();
    for entry in graph.entries() {
        let weights = weigh::weigh(&graph, entry);
        text.push_str(&format!(
            "1 request to {} makes {} requests at {} of {} services, {} deep\n",
            graph.services[entry].name,
            weigh::shown(weights.total()),
            weights.reached(),
            graph.services.len(),
            weights.depth
        ));
        for (service, requests) in graph.services.iter().zip(&weights.requests) {
            if *requests > 0.0 {
                text.push_str(&format!(
                    "  {}\t{}\n",
                    service.name,
                    weigh::shown(*requests)
                ));
            }
        }
    }
    for call in away(&graph) {
        text.push_str(&format!("to another cluster: {call}\n"));
    }
    say(&text)
}

/// The calls that lead to another cluster, each once, with their added latency.
fn away(graph: &Graph) -> impl Iterator<Item = String> {
    let all = graph.services.iter().enumerate();
    let calls = all.flat_map(|(from, service)| service.calls().map(move |call| (from, call)));
    let calls = calls.map(|(from, call)| (from, call.service));
    let away: std::collections::BTreeSet<_> = calls
        .filter(|(from, to)| graph.leaves_cluster(*from, *to))
        .collect();
    let name = |place: usize| graph.services[place].name.clone();
    away.into_iter().map(move |(from, to)| {
        let longer = graph.between_clusters(from, to);
        format!("{} → {}, {longer:?} longer", name(from), name(to))
    })
}

fn json(graph: &Graph) -> String {
    let entries = graph.entries().into_iter().map(|entry| {
        let weights = weigh::weigh(graph, entry);
        let services = graph.services.iter().zip(&weights.requests);
        let by_service: serde_json::Map<_, _> = services
            .map(|(service, requests)| (service.name.to_string(), (*requests).into()))
            .collect();
        serde_json::json!({
            "service": &*graph.services[entry].name,
            "requests": weights.total(),
            "depth": weights.depth,
            "by_service": by_service,
        })
    });
    let chance = |service: &voile_graph::GraphService| {
        service.error_rate != Probability::NONE
            || service
                .calls()
                .any(|call| call.probability != Probability::ALL)
    };
    let away: Vec<String> = away(graph).collect();
    let checked = serde_json::json!({
        "services": graph.services.len(),
        "between_clusters": away,
        "entries": entries.collect::<Vec<_>>(),
        "certain": !graph.services.iter().any(chance),
    });
    format!("{checked:#}\n")
}

/// Writes to standard output. A reader that has seen enough (`| head`) is no error.
fn say(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write: {error}"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
