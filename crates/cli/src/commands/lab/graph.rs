//! `voile graph`: service graphs, from text to pictures, meshes and running processes. One file per group of subcommands.

mod draw;
pub(super) mod files;
mod generate;
mod mesh;
mod run;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use voile_graph::{Graph, Probability, weigh};

use crate::commands::lab::graph::files::{Outcome, read, say};
use crate::commands::values::OutputArgs;

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
    #[command(flatten)]
    output: OutputArgs,
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

fn check(args: &Check) -> Outcome {
    let graph = read(&args.file)?;
    if args.output.is_json() {
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
