//! `voile plan`: what a mesh will cost a graph of services, by curves that were measured.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use voile_graph::Graph;
use voile_model::SourceFile;
use voile_plan::budget::{self, Budget};
use voile_plan::{Choice, Curves, Demand, Forecast, edges, page, predict, table};

use crate::commands::lab::graph::files;
use crate::commands::values::OutputArgs;

/// Wrong usage, or input that cannot be read.
const USAGE: u8 = 2;
/// No choice holds the budget.
const BEYOND: u8 = 1;

/// Predict the CPU, memory and latency of a mesh for a graph of services.
///
/// The graph is a file in the YAML of isotope (docs/reference/graph.md), or the calls of a running mesh: `voile edges -o json`. The
/// curves are what `voile bench curves` measured on this machine. The answer has vCPU and memory of the proxies, and latency, for each
/// service and in all, each with its interval. A star marks a figure at a load outside of the measured range.
///
/// CPU and memory follow the curves. Latency is a simulation of queues: the same seed gives the same answer.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Features: none, sidecar, mtls, node, waypoint; policies, tokens, access-logs, tracing, rate-limits, ext-authz.\n\nExit code: 0; 1 if no choice holds the budget; 2 if the input is wrong."
)]
pub(crate) struct PlanArgs {
    /// The graph (YAML), or the edges (JSON).
    graph: PathBuf,
    /// The file of curves.
    #[arg(long, default_value = "curves.json", value_name = "FILE")]
    curves: PathBuf,
    /// Requests per second at all entries together [default for edges: as counted].
    #[arg(long, value_parser = positive, value_name = "N")]
    rate: Option<f64>,
    /// What is switched on.
    #[arg(long, default_value = "sidecar,mtls", value_parser = Choice::parse, value_name = "FEATURE,…")]
    with: Choice,
    /// Compare with this choice.
    #[arg(long, value_parser = Choice::parse, value_name = "FEATURE,…")]
    what_if: Option<Choice>,
    /// Find the cheapest data plane that carries the features of --with within these bounds, such as cpu=2,memory=512MiB,p99=20ms.
    #[arg(long, value_parser = Budget::parse, conflicts_with = "what_if", value_name = "FIGURE=BOUND,…")]
    budget: Option<Budget>,
    /// Connections between each two services, and into each entry.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "N")]
    connections: u32,
    /// Worker threads of each proxy [default: as measured].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024), value_name = "N")]
    workers: Option<u32>,
    /// Nodes with a node proxy each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "N")]
    nodes: u32,
    /// Seed of the simulation.
    #[arg(long, default_value_t = 20_260_101, value_name = "N")]
    seed: u64,
    /// Also write a page with the graph coloured by price.
    #[arg(long, conflicts_with = "budget", value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

fn positive(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    rate.filter(|rate: &f64| rate.is_finite() && *rate > 0.0)
        .ok_or_else(|| "expected a rate above 0".to_owned())
}

pub(crate) fn run(args: &PlanArgs) -> ExitCode {
    match plan(args) {
        Ok(code) => code,
        Err(why) => {
            eprintln!("voile plan: {why}");
            ExitCode::from(USAGE)
        }
    }
}

fn plan(args: &PlanArgs) -> Result<ExitCode, String> {
    let curves = read_curves(&args.curves)?;
    let (graph, entries) = read_graph(&args.graph, args.rate)?;
    let demand = Demand {
        entries,
        connections: args.connections,
        workers: args.workers,
        nodes: args.nodes,
        seed: args.seed,
    };
    let with_place = |why: String| format!("{}: {why}", args.curves.display());
    let predicted = |choice: &Choice| predict(&graph, &demand, &curves, choice).map_err(with_place);
    if let Some(budget) = &args.budget {
        return within(args, budget, &predicted);
    }
    let one = predicted(&args.with)?;
    let other = args.what_if.as_ref().map(predicted).transpose()?;
    if let Some(file) = &args.html {
        let shown: Vec<&Forecast> = std::iter::once(&one).chain(&other).collect();
        voile_lab::write_file(file, &page::render(&graph, &shown))?;
    }
    match &other {
        None => print(args, &table::forecast(&one), &serde_json::json!(one)),
        Some(other) => print(
            args,
            &table::what_if(&one, other),
            &serde_json::json!([one, other]),
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// Predicts every data plane that was measured, and finds the cheapest.
fn within(
    args: &PlanArgs,
    wanted: &Budget,
    predicted: &dyn Fn(&Choice) -> Result<Forecast, String>,
) -> Result<ExitCode, String> {
    let mut forecasts = Vec::new();
    for choice in budget::candidates(&args.with) {
        match predicted(&choice) {
            Ok(forecast) => forecasts.push(forecast),
            Err(why) => eprintln!("voile plan: without {choice}: {why}"),
        }
    }
    if forecasts.is_empty() {
        return Err("no data plane that carries these features was measured".to_owned());
    }
    let best = budget::cheapest(wanted, &forecasts);
    let page = serde_json::json!({
        "budget": wanted,
        "cheapest": best.map(|best| &best.with),
        "choices": forecasts.iter().map(|forecast| serde_json::json!({
            "holds": wanted.judge(&forecast.total),
            "forecast": forecast,
        })).collect::<Vec<_>>(),
    });
    print(args, &table::budget(wanted, &forecasts, best), &page);
    Ok(match best {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::from(BEYOND),
    })
}

fn print(args: &PlanArgs, text: &str, page: &serde_json::Value) {
    match args.output.is_json() {
        true => println!("{page:#}"),
        false => print!("{text}"),
    }
}

fn read_curves(path: &Path) -> Result<Curves, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|why| {
        format!("{shown}: {why}; cure: measure the curves of this machine with `voile bench curves`, about ten minutes, or make them of records with --from")
    })?;
    Curves::parse(&text).map_err(|why| format!("{shown}: {why}"))
}

/// Reads a graph or edges, with the requests per second at each entry.
fn read_graph(path: &Path, rate: Option<f64>) -> Result<(Graph, Vec<(usize, f64)>), String> {
    let shown = path.display().to_string();
    let name = path.to_string_lossy();
    if name.starts_with("http://") || name.starts_with("https://") {
        return Err(format!(
            "{shown}: Prometheus and other servers are not read yet; cure: `voile edges -o json > edges.json`, and name that file"
        ));
    }
    if path.is_dir() {
        return Err(format!(
            "{shown}: a folder of resources does not say who calls whom; cure: run it under load, and name the file of `voile edges -o json`"
        ));
    }
    let text = voile_model::files::read_text(path).map_err(|why| format!("{shown}: {why}"))?;
    if text.trim_start().starts_with(['{', '[']) {
        let counted = edges::read(&text).map_err(|why| format!("{shown}: {why}"))?;
        let sum: f64 = counted.entries.iter().map(|(_, rate)| rate).sum();
        let factor = rate.map_or(1.0, |rate| rate / sum);
        let entries = counted.entries.into_iter();
        let entries = entries.map(|(entry, rate)| (entry, rate * factor));
        return Ok((counted.graph, entries.collect()));
    }
    let graph = files::parse(&SourceFile::new(shown.clone(), text), true)?;
    let Some(rate) = rate else {
        return Err(format!(
            "{shown}: a graph has no load of its own; cure: --rate"
        ));
    };
    let entries = graph.entries();
    let each = rate / entries.len() as f64;
    let entries = entries.into_iter().map(|entry| (entry, each)).collect();
    Ok((graph, entries))
}
