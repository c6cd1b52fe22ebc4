//! `voile graph run`: all services, without a mesh.

use std::path::PathBuf;
use std::process::ExitCode;

use voile_synthetic::RunOptions;

use crate::commands::lab::graph::files;

/// Run all services of a graph on this machine, without a mesh.
///
/// Each replica is a process on 127.0.0.1 that calls the others directly: the baseline that a mesh is compared with.
/// Standard output gets a line for each entry point (its name, a tab, its URL) once all is ready. Ctrl-C leaves nothing
/// behind.
#[derive(Debug, clap::Args)]
pub(super) struct GraphRunArgs {
    /// The graph.
    file: PathBuf,
    /// Threads of each process.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Makes error rates and probabilities repeatable.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Once all is ready, run this by /bin/sh (the first entry point is in $URL, each in $URL_NAME), then stop with its exit
    /// code.
    #[arg(long, value_name = "COMMAND")]
    once_ready: Option<String>,
}

pub(super) fn run(args: GraphRunArgs) -> files::Outcome {
    let graph = files::read(&args.file)?;
    let options = RunOptions {
        graph,
        file: args.file,
        voile: std::env::current_exe().map_err(|error| error.to_string())?,
        threads: args.threads,
        seed: args.seed,
        once_ready: args.once_ready,
    };
    let ready = |entries: &[(String, std::net::SocketAddr)]| {
        for (name, address) in entries {
            println!("{name}\thttp://{address}/");
        }
        eprintln!("voile graph: ready; Ctrl-C stops all");
    };
    let code = voile_synthetic::run(options, ready).map_err(|error| error.to_string())?;
    Ok(ExitCode::from(code))
}
