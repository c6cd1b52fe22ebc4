//! `voile graph serve`: the process behind one service.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use voile_model::SourceFile;
use voile_synthetic::{ServeOptions, serve};

use crate::commands::lab::graph::files;

/// Run one service of a graph.
///
/// Serves HTTP/1.1, HTTP/2 without TLS, and gRPC (voile.graph.v1.Service/Call) on one port; every request runs the
/// service's script and is answered with its response size. It also serves GET /metrics, GET /healthz and
/// grpc.health.v1.Health/Check.
///
/// Callees are called by HTTP/1.1 or gRPC as their `type` says, at --at, else at $NAME_SERVICE_HOST:$NAME_SERVICE_PORT, else
/// at NAME:8080 by DNS. Ends on SIGTERM or SIGINT, answering requests begun.
#[derive(Debug, clap::Args)]
pub(super) struct GraphServeArgs {
    /// The graph; without it, the text in $VOILE_GRAPH, or the file that isotope's $CONFIG_PATH names.
    #[arg(long, value_name = "FILE")]
    graph: Option<PathBuf>,
    /// Which service; without it, $SERVICE_NAME, as in isotope.
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Address to serve on.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Address of a callee, several replicas by commas. May be repeated.
    #[arg(long, value_name = "NAME=ADDR,…", value_parser = at)]
    at: Vec<(String, Vec<SocketAddr>)>,
    /// Threads; connections are shared among them.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Makes error rate and probabilities repeatable: the n-th request to this replica always has the same outcome.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Which replica this is, so that replicas do not all fail together; without it, $POD_NAME.
    #[arg(long, value_name = "NAME")]
    replica: Option<String>,
    /// Time limit of a call.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = crate::commands::values::duration)]
    call_timeout: Duration,
    /// Time limit for requests in flight at shutdown.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = crate::commands::values::duration)]
    drain: Duration,
    /// Do not print the listen address.
    #[arg(long)]
    quiet: bool,
}

fn at(text: &str) -> Result<(String, Vec<SocketAddr>), String> {
    let (name, addresses) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}`: expected NAME=ADDRESS:PORT"))?;
    let parse = |address: &str| {
        address
            .parse()
            .map_err(|_| format!("`{address}`: expected ADDRESS:PORT"))
    };
    let addresses = addresses.split(',').map(parse).collect::<Result<_, _>>()?;
    Ok((name.to_owned(), addresses))
}

pub(super) fn run(args: GraphServeArgs) -> files::Outcome {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let graph = match (args.graph, variable("VOILE_GRAPH"), variable("CONFIG_PATH")) {
        (Some(path), _, _) => files::read_quietly(&path)?,
        (None, Some(text), _) => files::parse(&SourceFile::new("$VOILE_GRAPH", text), false)?,
        (None, None, Some(path)) => files::read_quietly(path.as_ref())?,
        (None, None, None) => return Err("no graph: use --graph FILE".to_owned()),
    };
    let name = args
        .service
        .or_else(|| variable("SERVICE_NAME"))
        .ok_or("no service: use --service NAME")?;
    let service = graph
        .find(&name)
        .ok_or_else(|| format!("the graph has no service `{name}`"))?;
    let own_namespace = graph.services[service].namespace.clone();
    let options = ServeOptions {
        service,
        listen: args.listen,
        threads: args.threads.into(),
        seed: args.seed,
        replica: args
            .replica
            .or_else(|| variable("POD_NAME"))
            .unwrap_or_default(),
        namespace: own_namespace
            .map(|namespace| namespace.to_string())
            .or_else(|| variable("POD_NAMESPACE"))
            .unwrap_or_else(|| "default".to_owned()),
        places: args.at.into_iter().collect::<BTreeMap<_, _>>(),
        call_timeout: args.call_timeout,
        drain: args.drain,
        graph,
    };
    let quiet = args.quiet;
    let ready = |address| {
        if !quiet {
            eprintln!("voile graph: {name} listening on {address}");
        }
    };
    serve(options, ready).map_err(|error| error.to_string())?;
    Ok(ExitCode::SUCCESS)
}
