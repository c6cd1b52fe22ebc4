//! `voile bench policy`: what a decision costs by the number of policies, and a token by the number of issuers.

use std::path::PathBuf;

use crate::commands::lab::bench::outcome::{Done, command, measured, program, show};
use crate::commands::values::OutputArgs;

/// Policies, rounds.
#[derive(Debug, clap::Args)]
pub(super) struct BenchPolicyArgs {
    /// Numbers of rules in one policy.
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,10000", value_parser = clap::value_parser!(u32).range(1..=99_000), value_name = "N,…")]
    rules: Vec<u32>,
    /// Numbers of policies of five rules each.
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,2000", value_parser = clap::value_parser!(u32).range(1..=19_800), value_name = "N,…")]
    policies: Vec<u32>,
    /// Numbers of token issuers.
    #[arg(long, value_delimiter = ',', default_value = "1,1000", value_parser = clap::value_parser!(u32).range(1..=99_000), value_name = "N,…")]
    issuers: Vec<u32>,
    /// Kinds of rules [default: all that `voile decide --list` names].
    #[arg(long = "kind", value_delimiter = ',', value_name = "KIND,…")]
    kinds: Vec<String>,
    /// Rounds of compiling each set and of decisions; fewer than 6 give no intervals.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    rounds: u32,
    /// Also count instructions, if valgrind is installed: a minute or two in a release build.
    #[arg(long)]
    count: bool,
    #[command(flatten)]
    output: OutputArgs,
    /// The record folder; without it nothing is written.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The voile program to measure [default: this one].
    #[arg(long, value_name = "PATH")]
    voile: Option<PathBuf>,
}

pub(super) fn run(args: &BenchPolicyArgs) -> Done {
    let settings = voile_lab::DecisionSettings {
        voile: program(args.voile.as_deref())?,
        rules: args.rules.clone(),
        policies: args.policies.clone(),
        issuers: args.issuers.clone(),
        kinds: args.kinds.clone(),
        rounds: args.rounds,
        count: args.count,
        command: command(),
    };
    let record = measured(|say, stopped| voile_lab::measure_decisions(&settings, say, stopped))?;
    show(&record, args.out.as_deref(), args.output.is_json(), None)
}
