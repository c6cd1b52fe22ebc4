//! `voile bench`: run an experiment, draw a record again, list peers. The laboratory itself is the crate `voile-lab`.

mod agent;
mod control_plane;
mod curves;
mod graph;
mod nodes;
mod outcome;
mod policy;
mod presets;
mod records;
mod several;
mod sidecars;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use voile_lab::{
    AgreementSettings, Definition, ExperimentOutcome, Overrides, RecordKeeping, Settings, SlicePlan,
};
use voile_report::record::Record;
use voile_report::scenes;

use crate::commands::lab::bench::outcome::{
    Done, command, failed, finish, interrupted, measured, program, usage,
};

/// Measure the cost of a mesh on this machine.
///
/// Each run writes a folder: report.html (opens offline), results.csv, record.json.gz, histograms and samples.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    /// Measure the modes baseline, clientonly, serveronly and both: about two minutes, four with Envoy.
    Quick(BenchOptions),
    /// Run experiments that TOML files define (see benchmarks/quick.toml), one after the other.
    ///
    /// If experiments have targets, a final table shows which were reached.
    Run {
        /// The experiments.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        run: BenchOptions,
    },
    /// Re-test what Istio published in 2019 on sidecars, connections and rate. Quick: about four minutes.
    ///
    /// Prints each published claim beside the figure measured here, with a verdict: holds, does not hold here, or
    /// cannot tell at this noise. Envoy's figures are added if Envoy is found. Claims about features that Voile lacks
    /// are listed.
    BestPractices(presets::BenchPresetArgs),
    /// Re-test what Istio published in 2020 on protocol detection. Quick: about four minutes.
    ProtocolDetection(presets::BenchPresetArgs),
    /// Re-test what Istio published in 2020 on security policies, on to 10,000 rules. Quick: eight minutes; whole: forty.
    SecurityPolicies(presets::BenchPresetArgs),
    /// Re-test a comparison of data planes of 2023, sidecars limited to 1 CPU and 512 MiB. Quick: about three minutes.
    DataPlanes(presets::BenchPresetArgs),
    /// Re-test Istio's documentation on performance and scalability, for the features that Voile has. Quick: about four
    /// minutes.
    PerformanceAndScalability(presets::BenchPresetArgs),
    /// Measure the cost of the routes of one host by their number, compared with Envoy, and a slow endpoint among ten.
    ///
    /// 1 to 10,000 routes by exact path, prefix and header; and which load balancer keeps a slow endpoint out of the
    /// tail: Voile's default, Envoy's round robin or its least request. Quick: about four minutes; whole: half an hour.
    Routing(presets::BenchPresetArgs),
    /// Run all presets, one after the other, each with its own record in a common folder [default:
    /// voile-results/DATE-all].
    All(presets::BenchPresetArgs),
    /// Write report.html and results.csv of a record folder again, and print its table.
    Report {
        /// The record folder.
        folder: PathBuf,
        /// Also write each plot into plots/ of that folder: svg follows the light or dark theme, png has a white
        /// background.
        #[arg(long, value_delimiter = ',', value_name = "FORMAT,…")]
        plots: Vec<PlotFormat>,
    },
    /// Print which targets were reached, over several record folders.
    Targets {
        /// The record folders.
        #[arg(required = true)]
        folders: Vec<PathBuf>,
    },
    /// Divide the figures of one record by those of another, for example before and after a change, or of two machines.
    ///
    /// Refused (exit code 2) for records of different build profiles or loads. Figures of two machines are multiples of
    /// each machine's own speed, if both records have a calibration.
    Compare(records::CompareArgs),
    /// Show each figure over many records of an experiment, and where it changed.
    ///
    /// Pettitt's test finds changes, at a false discovery rate of 5 % over all lines. Records whose build profile, load
    /// or (without calibration) machine differs from the newest are left out and listed.
    History(records::HistoryArgs),
    /// Fail if a record is provably worse than another: exit code 1 on a regression, 0 without one or if the noise
    /// hides it (the output says which), 2 if the records cannot be judged.
    ///
    /// Each figure is tested by ranks after its bound (5 % by default) is subtracted. If neither program nor machine
    /// changed, at most 5 gates in 100 fail; --beside cancels out a changed machine.
    Gate(records::GateArgs),
    /// Compare the results of `voile load` and Fortio: the latency of a server with a fixed delay, and which of them
    /// shows a stall.
    ///
    /// Also explains differences: histograms with wide buckets, clocks that start when a request is sent. Includes wrk
    /// and h2load if they are found. Writes a folder: report.html, agreement.json, slices.csv. About six minutes. Exit
    /// code 1 if they do not agree.
    Agreement(Comparison),
    /// Compare the cost of a request in `voile load`, Fortio, wrk and h2load, on the same server.
    ///
    /// Measures the maximum rate of requests over HTTP/1.1, HTTP/2, gRPC and TCP, per core of the generator, and in
    /// total with both sides sharing all cores. Also compares the latencies of a server with a fixed delay. Skips
    /// generators that are not installed. Writes a folder: report.html, generators.json. About eight minutes. Exit code
    /// 1 if a bound is missed.
    Generators(Comparison),
    /// Measure the cost of a mesh for a whole graph of services (see examples/graphs): end-to-end latency, CPU per
    /// request and hop.
    ///
    /// The graph runs twice, without a mesh and under `voile up` with mutual TLS, on loopback addresses or in network
    /// namespaces, and the load alternates between the two. Each round is valid only if the services and sidecars
    /// counted the calls that the graph makes. Writes a folder: report.html, results.csv, graph.json, graph.svg, plots.
    /// About two minutes.
    Graph(graph::BenchGraphArgs),
    /// Measure the curves by which `voile plan` predicts: cost by rate, connections and size, and of each feature.
    ///
    /// Runs benchmarks/curves.toml and, as root, curves-node.toml, each with its record in a common folder [default:
    /// voile-results/DATE-curves], and writes a file of curves. --resume continues. About ten minutes.
    Curves(Box<curves::BenchCurvesArgs>),
    /// Measure how fast a change reaches the proxies of a large mesh, and its cost for the control plane.
    ///
    /// Generates a folder of resources, runs `voile control` on it and `voile crowd` as its proxies (real streams over
    /// TLS, no traffic), and edits the folder. Prints each figure beside its target. Writes a folder:
    /// control-plane.json, report.html, report.md. About five minutes.
    ControlPlane(control_plane::BenchControlPlaneArgs),
    /// Measure the memory of thousands of real sidecars on this machine, and of one sidecar by the size of its mesh.
    ///
    /// Each sidecar is a `voile proxy` for a pod on loopback; one server is behind all. Measures the time until all are
    /// in sync, their memory and the kernel's (compared with the 100 GB that an article of 2019 counts for 2,000
    /// Envoys), threads, idle CPU, a policy for all, and light load through a sample. Then (as root) meshes of 10,
    /// 1,000 and 10,000 services in which a sidecar uses ten: its memory, and the first request to a service compared
    /// with the second. Writes a folder: sidecars.json, report.html, report.md. Five to ten minutes.
    Sidecars(sidecars::BenchSidecarsArgs),
    /// Measure a node proxy that serves a hundred pods, compared with ztunnel (--peer ztunnel=PATH). Needs root.
    ///
    /// Pods of one node, each with an address and an identity of its own, call a server on another node through both
    /// node proxies. Measures memory with ten connections per pod, up to 20,000 connections at once, 2,000 new
    /// connections a second, and the time until a new pod is served. Writes a folder: nodes.json, report.html,
    /// report.md. About two minutes for each program.
    Nodes(nodes::BenchNodesArgs),
    /// Measure the cost of a policy decision, with one to ten thousand rules of every kind, and with thousands of
    /// policies.
    ///
    /// Prints the time of a decision that the first rule matches, the last, none, or a different one each time (`any`,
    /// where memory access shows); the time to compile the sets and their memory; and the ratio of the largest to the
    /// smallest. Half a minute. Exit code 1 if a bound is missed: 1 µs and 1.2 × for rules of one kind, 3 µs for mixed
    /// ones, 2 MB for 10,000 paths.
    Policy(policy::BenchPolicyArgs),
    /// Run the far end of an experiment: its servers and the server's sidecars, for `voile bench run --agent` on
    /// another host.
    ///
    /// Prints its address and, without --token-file, the token for the near end. Both ends prove to each other that
    /// they know the token; it is never sent. Serves one session at a time. It runs only programs found on this
    /// machine, never a command line from the network, and stops them when the session's connection ends. Run it as an
    /// ordinary user: the proof of path then lacks the captures at this end, which need CAP_NET_RAW.
    Agent(agent::BenchAgentArgs),
    /// Serve the part of Linkerd's control plane that linkerd2-proxy needs, from a file that the lab writes.
    #[command(hide = true)]
    LinkerdControl {
        /// The mesh, as JSON.
        file: PathBuf,
    },
    /// List the contestants found on this machine, their versions, and how to get the others.
    Peers {
        /// Path of a peer: envoy=PATH, nginx=PATH, haproxy=PATH, ztunnel=PATH, linkerd2-proxy=PATH (linkerd=PATH), pipy=PATH.
        #[arg(long = "peer", value_name = "NAME=PATH")]
        peers: Vec<String>,
    },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum PlotFormat {
    Svg,
    Png,
}

impl PlotFormat {
    fn meaning(self) -> voile_lab::Format {
        match self {
            Self::Svg => voile_lab::Format::Svg,
            Self::Png => voile_lab::Format::Png,
        }
    }
}

#[derive(Debug, clap::Args)]
struct Comparison {
    /// The record folder [default: voile-results/DATE-agreement, or -generators].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Path of another generator: fortio=PATH; for `generators` also wrk=PATH, h2load=PATH. Default: the one on PATH or
    /// in the folder of `go install`.
    #[arg(long = "peer", value_name = "NAME=PATH")]
    peers: Vec<String>,
    /// Slices per generator and server; fewer than 6 give no intervals.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    rounds: u32,
    /// Length of a slice at the server with fixed delay; the stalling server takes 10 s.
    #[arg(long, default_value = "3s", value_parser = voile_load::parse_duration, value_name = "DURATION")]
    slice: Duration,
    /// The voile program to measure [default: this one].
    #[arg(long, value_name = "PATH")]
    voile: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct BenchOptions {
    /// The record folder [default: voile-results/DATE-NAME]. Each round is written as soon as it is measured. With
    /// several experiments, each has a folder of its own below it, by its name.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue the record in that folder after its last complete round: it was interrupted, or more --rounds are
    /// wanted. Definition, build and machine must be the same. With several experiments, complete ones are left as they
    /// are and missing ones are started.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    resume: Option<PathBuf>,
    /// Path of a peer: envoy=PATH, nginx=PATH, haproxy=PATH (by default found on PATH, in /usr/sbin and in Python
    /// environments); ztunnel=PATH, linkerd2-proxy=PATH, pipy=PATH.
    #[arg(long = "peer", value_name = "NAME=PATH")]
    peers: Vec<String>,
    /// Another build of voile, measured beside this one in every cell of Voile, under the given name.
    #[arg(long = "contestant", value_name = "NAME=PATH")]
    contestants: Vec<String>,
    /// Only these contestants (the baseline is always measured).
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    only: Option<Vec<String>>,
    /// Measurements of each cell; fewer than 6 give no intervals.
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Measured part of each slice; below 1 s at 1000 requests per second there are too few samples for a p99.
    #[arg(long, value_parser = voile_load::parse_duration, value_name = "DURATION")]
    slice: Option<Duration>,
    /// Run everything N times with new processes, into one record; counts in how many runs the A/A halves agree.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    repeat: u32,
    /// After all rounds, profile each cell in three extra slices: the time and bytes of a request on each hop (needs
    /// CAP_NET_RAW), and system calls and flame graphs of every process on the path (need perf).
    #[arg(long)]
    profile: bool,
    /// Run a few seconds only, to check that everything works; the figures mean nothing.
    #[arg(long)]
    smoke: bool,
    /// Print what would run and how long it would take.
    #[arg(long)]
    dry_run: bool,
    /// Run the server's end on another host, where `voile bench agent` listens; write an IPv6 address as `[ADDRESS]`.
    #[arg(long, value_name = "HOST:PORT[=TOKEN]")]
    agent: Option<String>,
    /// File with the agent's token, readable only by its owner.
    #[arg(long, value_name = "FILE", requires = "agent")]
    agent_token_file: Option<PathBuf>,
    /// The voile program to measure [default: this one].
    #[arg(long, value_name = "PATH")]
    voile: Option<PathBuf>,
}

pub(crate) fn run(args: BenchArgs) -> ExitCode {
    let done = match args.command {
        BenchCommand::Quick(run) => overridden(voile_lab::quick(), &run)
            .and_then(|quick| experiment(quick, &run, keeping(&run), None))
            .map(drop),
        BenchCommand::Run { files, run } => run_files(&files, &run),
        BenchCommand::Targets { folders } => targets(&folders),
        BenchCommand::BestPractices(args) => presets::run(Some("best-practices"), &args),
        BenchCommand::ProtocolDetection(args) => presets::run(Some("protocol-detection"), &args),
        BenchCommand::SecurityPolicies(args) => presets::run(Some("security-policies"), &args),
        BenchCommand::DataPlanes(args) => presets::run(Some("data-planes"), &args),
        BenchCommand::PerformanceAndScalability(args) => {
            presets::run(Some("performance-and-scalability"), &args)
        }
        BenchCommand::Routing(args) => presets::run(Some("routing"), &args),
        BenchCommand::All(args) => presets::run(None, &args),
        BenchCommand::Report { folder, plots } => redraw(&folder, &plots),
        BenchCommand::Compare(args) => records::compare(&args),
        BenchCommand::History(args) => records::history(&args),
        BenchCommand::Gate(args) => return records::gate(&args),
        BenchCommand::Agreement(comparison) => agreement(&comparison),
        BenchCommand::Generators(comparison) => generators(&comparison),
        BenchCommand::Graph(args) => graph::run(&args),
        BenchCommand::Curves(args) => curves::run(&args),
        BenchCommand::ControlPlane(args) => control_plane::run(&args),
        BenchCommand::Sidecars(args) => sidecars::run(&args),
        BenchCommand::Nodes(args) => nodes::run(&args),
        BenchCommand::Policy(args) => policy::run(&args),
        BenchCommand::Agent(args) => agent::run(&args),
        BenchCommand::LinkerdControl { file } => {
            voile_linkerd::run(&file).map_err(|e| failed(e.to_string()))
        }
        BenchCommand::Peers { peers } => list(&peers),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, why)) => {
            eprintln!("voile bench: {why}");
            ExitCode::from(code)
        }
    }
}

fn read(file: &Path) -> Result<Definition, (u8, String)> {
    let text =
        std::fs::read_to_string(file).map_err(|e| usage(format!("{}: {e}", file.display())))?;
    Definition::parse(&file.display().to_string(), &text).map_err(|e| usage(e.to_string()))
}

fn run_files(files: &[PathBuf], run: &BenchOptions) -> Done {
    let definitions: Vec<Definition> = files
        .iter()
        .map(|file| read(file))
        .collect::<Result<_, _>>()?;
    let (records, done) = several::run_all(definitions, run, None)?;
    if records.len() > 1 {
        println!("\n{}", voile_report::table::targets(&records));
    }
    done
}

fn targets(folders: &[PathBuf]) -> Done {
    let records = folders
        .iter()
        .map(|folder| {
            let mut record = voile_lab::read(folder)?;
            voile_report::summarise::summarise(&mut record);
            Ok(record)
        })
        .collect::<Result<Vec<_>, String>>()
        .map_err(failed)?;
    print!("{}", voile_report::table::targets(&records));
    Ok(())
}

/// Outcome of one experiment.
enum FinishedExperiment {
    /// Only the plan was asked for: about how long the experiment takes.
    Planned(Duration),
    Measured(Box<Record>),
}

/// As the command line wants it.
fn overridden(definition: Definition, run: &BenchOptions) -> Result<Definition, (u8, String)> {
    let only = run
        .only
        .as_ref()
        .map(|names| names.iter().cloned().collect());
    let overrides = Overrides {
        rounds: run.rounds,
        slice: run.slice,
        only,
        smoke: run.smoke,
        contestants: run.contestants.clone(),
    };
    definition.with(&overrides).map_err(usage)
}

/// Selects the folder for the record of one experiment.
fn keeping(run: &BenchOptions) -> RecordKeeping {
    match (&run.resume, &run.out) {
        (Some(folder), _) => RecordKeeping::Resume(folder.clone()),
        (None, Some(folder)) => RecordKeeping::New(folder.clone()),
        (None, None) => RecordKeeping::Default,
    }
}

/// Runs one experiment and writes its record. `goes_on` is the value for --resume after an interruption, if that is not the
/// record's own folder.
fn experiment(
    definition: Definition,
    run: &BenchOptions,
    keeping: RecordKeeping,
    goes_on: Option<&Path>,
) -> Result<FinishedExperiment, (u8, String)> {
    let agent = agent::address(run.agent.as_deref(), run.agent_token_file.as_deref())?;
    let found = voile_lab::peers(&run.peers).map_err(usage)?;
    for (name, peer) in found.all() {
        let mut cells = definition.cells.iter();
        let wanted = cells.any(|cell| voile_lab::program_of(&cell.contestant) == name);
        if let (Err(how), true) = (peer, wanted) {
            eprintln!("{how}");
        }
    }
    for missing in &definition.missing {
        eprintln!("missing: {missing}");
    }
    if run.dry_run {
        for claim in definition.claims.iter().filter(|c| !c.needs.is_empty()) {
            eprintln!("missing: \"{}\": {}", claim.claim, claim.needs);
        }
        if let Err(why) = voile_lab::can_run(&definition, agent.is_some()) {
            eprintln!("this machine cannot: {why}");
        }
        let plan = SlicePlan::new(&definition, &|cell| found.has(&cell.contestant));
        print!(
            "{} ({})\n{}",
            definition.name,
            definition.title,
            plan.describe()
        );
        if run.profile {
            let seconds = SlicePlan::looking(&definition).as_secs();
            println!("  and about {seconds} s to profile each cell");
        }
        if run.repeat > 1 {
            let all = plan.duration() * run.repeat;
            println!("  {} times, about {} s in all", run.repeat, all.as_secs());
        }
        let looking = SlicePlan::looking(&definition) * u32::from(run.profile);
        return Ok(FinishedExperiment::Planned(
            plan.duration() * run.repeat + looking,
        ));
    }
    let voile = program(run.voile.as_deref())?;
    let settings = Settings {
        definition,
        voile,
        found,
        repeats: run.repeat,
        profile: run.profile,
        command: command(),
        keeping,
        agent,
    };
    let outcome = measured(|say, stopped| voile_lab::run(&settings, say, stopped))?;
    keep(&outcome, goes_on)?;
    Ok(FinishedExperiment::Measured(Box::new(outcome.record)))
}

fn agreement(comparison: &Comparison) -> Done {
    let fortio = voile_lab::fortio(&comparison.peers).map_err(usage)?;
    let settings = AgreementSettings {
        voile: program(comparison.voile.as_deref())?,
        fortio,
        rounds: comparison.rounds,
        slice: comparison.slice,
        command: command(),
    };
    let record = measured(|say, stopped| voile_lab::agree(&settings, say, stopped))?;
    finish(&record, comparison.out.as_deref(), false, None)
}

fn generators(comparison: &Comparison) -> Done {
    let settings = voile_lab::GeneratorSettings {
        voile: program(comparison.voile.as_deref())?,
        others: voile_lab::generators(&comparison.peers).map_err(usage)?,
        rounds: comparison.rounds,
        slice: comparison.slice,
        command: command(),
    };
    let measure = voile_lab::measure_generators;
    let record = measured(|say, stopped| measure(&settings, say, stopped))?;
    finish(&record, comparison.out.as_deref(), false, None)
}

fn keep(outcome: &ExperimentOutcome, goes_on: Option<&Path>) -> Done {
    let experiment = &outcome.record.experiment;
    let folder = outcome.folder.display();
    let whole = experiment.rounds_whole;
    let kept = match whole {
        0 => "no round is complete".to_owned(),
        1 => "round 1 is kept".to_owned(),
        n => format!("rounds 1 to {n} are kept"),
    };
    let go_on = goes_on.unwrap_or(&outcome.folder).display();
    let go_on = format!("{kept}; continue with --resume {go_on}");
    print!("{}", voile_report::table::render(&outcome.record));
    for note in &outcome.record.notes {
        println!("\n{note}");
    }
    outcome
        .write()
        .map_err(|why| failed(format!("{why}; {go_on}")))?;
    println!("\n{folder}/report.html");
    if voile_host::interrupt::asked() {
        return Err(interrupted(format!("interrupted: {go_on}")));
    }
    if let Some(why) = &outcome.failed {
        return Err(failed(format!("{why}; {go_on}")));
    }
    if outcome.record.runs.iter().all(|run| !run.valid) {
        return Err(failed(
            "no slice is valid; report.html lists the reasons".to_owned(),
        ));
    }
    Ok(())
}

fn redraw(folder: &Path, plots: &[PlotFormat]) -> Done {
    let formats: Vec<_> = plots.iter().map(|format| format.meaning()).collect();
    let record = voile_lab::redraw(folder).map_err(failed)?;
    let (words, sections) = match record.scene {
        Some(_) => (scenes::terminal(&record), scenes::sections(&record)),
        None => (
            voile_report::table::render(&record),
            voile_report::plots::sections(&record),
        ),
    };
    print!("{words}");
    if !formats.is_empty() {
        let plots = sections.iter().flat_map(|section| &section.plots);
        let count = voile_lab::write_plots(plots, folder, &formats).map_err(failed)?;
        println!("\n{count} files in {}", folder.join("plots").display());
    }
    println!("\n{}", folder.join("report.html").display());
    Ok(())
}

fn list(peers: &[String]) -> Done {
    let found = voile_lab::peers(peers).map_err(usage)?;
    println!(
        "voile {} (this program; also relay, the floor)",
        env!("CARGO_PKG_VERSION")
    );
    for (name, peer) in found.all() {
        match peer {
            Ok(peer) => {
                println!("{name} {} {}", peer.version, peer.path.display());
                if name == "envoy" {
                    println!(
                        "envoy-xds {} (the same program, configured by voile control)",
                        peer.version
                    );
                }
            }
            Err(how) => println!("{how}"),
        }
    }
    Ok(())
}
