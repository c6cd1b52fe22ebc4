//! `voile bench graph`: what a mesh costs a whole graph of services.

use std::path::PathBuf;
use std::time::Duration;

use crate::commands::lab::bench::outcome::{Done, command, finish, measured, program};

#[derive(Debug, clap::Args)]
pub(super) struct BenchGraphArgs {
    /// The graph.
    file: PathBuf,
    /// Requests a second at the first entry point; `auto` finds the maximum that both sides sustain with p99 below 100
    /// ms, and measures at 60 % of it.
    #[arg(long, default_value = "50", value_parser = rate, value_name = "N|auto")]
    rate: Rate,
    /// Connections to the entry point.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    connections: u32,
    /// Measurements of each side; fewer than 6 give no intervals.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    rounds: u32,
    /// Measured part of each slice.
    #[arg(long, default_value = "4s", value_parser = voile_load::parse_duration, value_name = "DURATION")]
    slice: Duration,
    /// Isolation of services, on both sides: loopback addresses, or (as root) a network namespace each, with sidecars
    /// that capture traffic.
    #[arg(long, value_enum, default_value_t = Isolation::Loopback)]
    isolation: Isolation,
    /// The record folder [default: voile-results/DATE-graph].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The voile program to measure [default: this one].
    #[arg(long, value_name = "PATH")]
    voile: Option<PathBuf>,
}

/// A rate, or none: it is to be found out.
#[derive(Debug, Clone, Copy)]
struct Rate(Option<f64>);

fn rate(text: &str) -> Result<Rate, String> {
    if text == "auto" {
        return Ok(Rate(None));
    }
    let rate = text
        .parse()
        .ok()
        .filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.map(|rate| Rate(Some(rate)))
        .ok_or_else(|| "expected a rate above 0, or auto".to_owned())
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Isolation {
    Loopback,
    Netns,
}

pub(super) fn run(args: &BenchGraphArgs) -> Done {
    let settings = voile_lab::GraphSettings {
        voile: program(args.voile.as_deref())?,
        graph: args.file.clone(),
        rate: args.rate.0,
        connections: args.connections,
        rounds: args.rounds,
        slice: args.slice,
        isolation: match args.isolation {
            Isolation::Loopback => voile_lab::Isolation::Loopback,
            Isolation::Netns => voile_lab::Isolation::Netns,
        },
        command: command(),
    };
    let record = measured(|say, stopped| voile_lab::measure_graph(&settings, say, stopped))?;
    finish(&record, args.out.as_deref(), false, None)
}
