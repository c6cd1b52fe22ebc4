//! `voile graph generate`: graphs of chosen shapes.

use std::time::Duration;

use clap::ValueEnum;
use voile_graph::generate::{GraphShape, ShapeKind, generate};
use voile_graph::{Probability, ScriptStep, ServiceProtocol, size, to_yaml};

use crate::commands::lab::graph::files;

/// Make a graph of a chosen shape, as YAML on standard output.
///
/// The same options give the same graph. Istio's load-test shape of 19 services:
///   voile graph generate tree --services 19 --branches 9,1 --request-size 128 --response-size "1 KB"
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct GraphGenerateArgs {
    /// The shape.
    #[arg(value_enum)]
    shape: ShapeOption,
    /// Services.
    #[arg(long, value_name = "N", default_value_t = 10)]
    services: usize,
    /// Callees of each service of a tree, level by level; the last number holds for all further levels.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "3")]
    branches: Vec<usize>,
    /// Seed of random choices (multitier, realistic).
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Payload of requests.
    #[arg(long, value_name = "SIZE", default_value = "128", value_parser = bytes)]
    request_size: u64,
    /// Payload of answers.
    #[arg(long, value_name = "SIZE", default_value = "1 KB", value_parser = bytes)]
    response_size: u64,
    /// Processes of each service.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    replicas: u32,
    /// All services are gRPC.
    #[arg(long)]
    grpc: bool,
    /// The share of requests that each service fails: 0.1%, or 0.001.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = share)]
    error_rate: Probability,
    /// CPU time that each service uses before it calls others.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    cpu: Option<Duration>,
    /// Pause of each service before it calls others.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    sleep: Option<Duration>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ShapeOption {
    /// Each service calls several others at the same time, level by level.
    Tree,
    /// Each service calls the next.
    Chain,
    /// The first service calls all others at the same time.
    Star,
    /// Every service calls every other, all but the first rarely: connects every pair.
    Mesh,
    /// Tiers from front to store.
    Multitier,
    /// Like traces of real systems: shared leaves, sequential and concurrent calls, some of them rare.
    Realistic,
}

fn bytes(text: &str) -> Result<u64, String> {
    size::parse(text)
        .filter(|bytes| *bytes <= size::MAX_SIZE)
        .ok_or_else(|| format!("`{text}`: expected a size of at most 1 GiB such as 128 or 10 KB"))
}

fn share(text: &str) -> Result<Probability, String> {
    voile_graph::parse_share(text).ok_or_else(|| {
        format!("`{text}`: expected a percentage such as 0.1%, or a number from 0 to 1")
    })
}

fn duration(text: &str) -> Result<Duration, String> {
    voile_model::parse_duration(text)
        .ok_or_else(|| format!("`{text}`: expected a duration such as 200us or 5ms"))
}

pub(super) fn run(args: &GraphGenerateArgs) -> files::Outcome {
    let plan = GraphShape {
        shape: match args.shape {
            ShapeOption::Tree => ShapeKind::Tree(args.branches.clone()),
            ShapeOption::Chain => ShapeKind::Chain,
            ShapeOption::Star => ShapeKind::Star,
            ShapeOption::Mesh => ShapeKind::Mesh,
            ShapeOption::Multitier => ShapeKind::Multitier,
            ShapeOption::Realistic => ShapeKind::Realistic,
        },
        services: args.services,
        request_size: args.request_size,
        response_size: args.response_size,
        replicas: args.replicas,
        protocol: if args.grpc {
            ServiceProtocol::Grpc
        } else {
            ServiceProtocol::Http
        },
        error_rate: args.error_rate,
        work: [
            args.cpu.map(ScriptStep::Cpu),
            args.sleep.map(ScriptStep::Sleep),
        ]
        .into_iter()
        .flatten()
        .collect(),
        seed: args.seed,
    };
    files::say(&to_yaml(&generate(&plan)?))
}
