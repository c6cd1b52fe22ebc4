//! `voile bench nodes`: what a node proxy does for a crowd of pods, beside ztunnel where its program is given.

use std::path::PathBuf;
use std::time::Duration;

use crate::commands::lab::bench::outcome::{Done, command, finish, measured, program, usage};
use crate::commands::values::OutputArgs;

#[derive(Debug, clap::Args)]
pub(super) struct BenchNodesArgs {
    /// Ten workloads, 200 connections at once, 100 new ones a second, ten new workloads. Half a minute.
    #[arg(long)]
    quick: bool,
    /// Pods of the node, each with an address and an identity of its own [default: 100].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=2000), value_name = "N")]
    workloads: Option<u32>,
    /// Connections of each pod, for the memory figure.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    each: u32,
    /// Connections through one node proxy at once, limited by file descriptors; 0: skip [default: 20000].
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// New connections a second, from all pods in turn [default: 2000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    rate: Option<u32>,
    /// Duration of the new connections; 0: skip [default: 10s, quick 3s].
    #[arg(long, value_parser = voile_load::parse_duration, value_name = "DURATION")]
    rate_for: Option<Duration>,
    /// Workloads added to the node while it runs, one after the other [default: 100].
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1000), value_name = "N")]
    joins: Option<u32>,
    /// Threads of each proxy.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256), value_name = "N")]
    workers: u32,
    /// A peer's program, as NAME=PATH: ztunnel=PATH.
    #[arg(long = "peer", value_name = "NAME=PATH")]
    peers: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
    /// The record folder [default: voile-results/DATE-nodes].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The voile program to measure [default: this one].
    #[arg(long, value_name = "PATH")]
    voile: Option<PathBuf>,
}

pub(super) fn run(args: &BenchNodesArgs) -> Done {
    let number = |given: Option<u32>, whole: u32, few: u32| {
        given.unwrap_or(if args.quick { few } else { whole })
    };
    let seconds = if args.quick { 3 } else { 10 };
    let settings = voile_lab::NodeCrowdSettings {
        voile: program(args.voile.as_deref())?,
        found: voile_lab::peers(&args.peers).map_err(usage)?,
        workloads: number(args.workloads, 100, 10),
        each: args.each,
        connections: number(args.connections, 20_000, 200),
        rate: number(args.rate, 2_000, 100),
        rate_for: args.rate_for.unwrap_or(Duration::from_secs(seconds)),
        joins: number(args.joins, 100, 10),
        workers: args.workers,
        command: command(),
    };
    let measure = voile_lab::measure_node_crowd;
    let (record, broken) = measured(|say, stopped| measure(&settings, say, stopped))?;
    finish(&record, args.out.as_deref(), args.output.is_json(), broken)
}
