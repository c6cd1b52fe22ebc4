//! `voile graph mesh`: the folder that `voile up` runs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use voile_graph::mesh::{self, MeshOptions, Mtls};

use crate::commands::lab::graph::files;

/// Write a graph as a folder that `voile up` runs.
///
/// Writes for each service a file with ServiceAccount, ConfigMap (its part of the graph), Service, Deployment and
/// Sidecar; and mesh.yaml with the common settings. Entry points are published from --node-port on. Then: voile up DIR
#[derive(Debug, clap::Args)]
pub(super) struct GraphMeshArgs {
    /// The graph.
    file: PathBuf,
    /// The folder; created if missing, and must be empty.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Namespace of services that name none.
    #[arg(long, value_name = "NAME", default_value = "graph")]
    namespace: String,
    /// Mode of mutual TLS.
    #[arg(long, value_enum, default_value_t = Mode::Strict)]
    mtls: Mode,
    /// No sidecars: the same processes without a mesh, for comparison.
    #[arg(long)]
    no_sidecars: bool,
    /// Port of 127.0.0.1 on which the first entry point is published; each further one has the next.
    #[arg(long, value_name = "PORT", default_value_t = 30080, value_parser = clap::value_parser!(u16).range(1..))]
    node_port: u16,
    /// Makes error rates and probabilities repeatable.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Threads of each process.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Add a client with a sidecar that sends this many requests a second to the first entry point.
    #[arg(long, value_name = "RATE")]
    client: Option<f64>,
    /// Connections of the client.
    #[arg(long, value_name = "N", default_value_t = 8)]
    connections: usize,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Mode {
    /// Required for all callers; entry points also accept plaintext.
    Strict,
    /// Required for all callers, also at entry points: only --client is admitted.
    StrictEverywhere,
    /// Optional; sidecars use it.
    Permissive,
    /// Plaintext between sidecars.
    Disable,
}

pub(super) fn run(args: &GraphMeshArgs) -> files::Outcome {
    let graph = files::read(&args.file)?;
    if !voile_model::names::is_dns_label(&args.namespace) {
        return Err(format!(
            "`{}` is not the name of a namespace",
            args.namespace
        ));
    }
    if args
        .client
        .is_some_and(|rate| !rate.is_finite() || rate <= 0.0)
    {
        return Err("--client is a rate above 0".to_owned());
    }
    let options = MeshOptions {
        namespace: args.namespace.clone(),
        mtls: match args.mtls {
            Mode::Strict => Mtls::Strict,
            Mode::StrictEverywhere => Mtls::StrictEverywhere,
            Mode::Permissive => Mtls::Permissive,
            Mode::Disable => Mtls::Disable,
        },
        sidecars: !args.no_sidecars,
        node_port: args.node_port,
        seed: args.seed,
        threads: args.threads,
        client: args.client.map(|rate| (rate, args.connections)),
    };
    let files = mesh::mesh(&graph, &options)?;
    let failed = |error: std::io::Error| format!("cannot write {}: {error}", args.out.display());
    std::fs::create_dir_all(&args.out).map_err(failed)?;
    // A leftover service of another graph would run along.
    if std::fs::read_dir(&args.out)
        .map_err(failed)?
        .next()
        .is_some()
    {
        return Err(format!("{} is not empty", args.out.display()));
    }
    for file in &files {
        std::fs::write(args.out.join(&file.name), &file.text).map_err(failed)?;
    }
    eprintln!(
        "voile graph: {} files in {}; run them with: voile up {}",
        files.len(),
        args.out.display(),
        args.out.display()
    );
    Ok(ExitCode::SUCCESS)
}
