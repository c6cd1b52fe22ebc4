//! The commands, one file each, in four folders: `Args` (what the user may say) and `run` (what happens, and the exit code).

/// Replaces the standard macro, which panics after the reader has closed the pipe. `voile … | head` is no failure, and a run's
/// result must still be kept.
macro_rules! print {
    ($($said:tt)*) => {
        $crate::commands::told(&mut std::io::stdout(), format_args!($($said)*))
    };
}

/// As [`print!`].
macro_rules! println {
    ($($said:tt)*) => {
        print!("{}\n", format_args!($($said)*))
    };
}

/// As [`print!`], for stderr.
macro_rules! eprint {
    ($($said:tt)*) => {
        $crate::commands::told(&mut std::io::stderr(), format_args!($($said)*))
    };
}

/// As [`print!`], for stderr.
macro_rules! eprintln {
    ($($said:tt)*) => {
        eprint!("{}\n", format_args!($($said)*))
    };
}

mod help;
mod inspect;
mod kubernetes;
mod lab;
mod runtime;
mod serve;
mod values;

use std::process::ExitCode;

use clap::{FromArgMatches as _, Parser, Subcommand};

use self::inspect::traffic::{edges, routes, tap};
use self::inspect::{
    analyze, config, dashboard, events, explain, explain_code, export, generate, logs, status,
    stop, who_can,
};
use self::kubernetes::{
    bug_report, check, cni, inject, install, node_agent, tag, uninstall, upgrade,
};
use self::lab::{bench, crowd, decide, fortio, graph, load, plan};
use self::runtime::{on_runtime, print, told};
use self::serve::{agent, control, echo, proxy, redirect, relay, revoke, token, up, wait};

/// A service mesh, and the laboratory that measures it.
#[derive(Debug, Parser)]
#[command(name = "voile", version = env!("VOILE_VERSION"), propagate_version = true)]
pub(crate) struct Voile {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    // Not doc comments: those would take the place of the long help that each command's `Args` has.
    #[command(about = "Run the mesh that a folder of YAML describes, on this machine")]
    Up(up::UpArgs),
    #[command(about = "Check a folder of YAML and print every problem with file and line")]
    Analyze(analyze::AnalyzeArgs),
    #[command(about = "Explain a diagnostic code, with a wrong and a right example")]
    ExplainCode(explain_code::ExplainCodeArgs),
    #[command(about = "Tell whether a request would be allowed, and why")]
    Explain(explain::ExplainArgs),
    #[command(about = "List who may call a service")]
    WhoCan(who_can::WhoCanArgs),
    #[command(about = "Translate resources into the configuration of another proxy")]
    Export(export::ExportArgs),
    #[command(about = "Generate resources in large numbers, for experiments")]
    Generate(generate::GenerateArgs),
    #[command(about = "Install the control plane on a Kubernetes cluster")]
    Install(Box<install::InstallArgs>),
    #[command(about = "Install a newer control plane with the values of the one that runs")]
    Upgrade(Box<upgrade::UpgradeArgs>),
    #[command(about = "Remove the control plane from a Kubernetes cluster")]
    Uninstall(uninstall::UninstallArgs),
    #[command(about = "Check a Kubernetes cluster before and after an installation")]
    Check(check::CheckArgs),
    #[command(about = "Collect what a report of a fault on a cluster needs, as an archive")]
    BugReport(bug_report::BugReportArgs),
    #[command(about = "Name revisions of the control plane, for upgrades")]
    Tag(tag::TagArgs),
    #[command(about = "Run the control plane")]
    Control(Box<control::ControlArgs>),
    #[command(about = "Show for every proxy whether it is in sync")]
    Status(status::StatusArgs),
    #[command(about = "Show the resources of a proxy, and the documents they come from")]
    Config(config::ConfigArgs),
    #[command(about = "Follow the events of a control plane")]
    Events(events::EventsArgs),
    #[command(about = "Show who calls whom, with rates, refusals and latencies")]
    Edges(edges::EdgesArgs),
    #[command(about = "Show which routes requests take, how each fares, and where it is written")]
    Routes(routes::RoutesArgs),
    #[command(about = "Show requests and connections as they end, and why they were refused")]
    Tap(tap::TapArgs),
    #[command(about = "Show the mesh in a browser")]
    Dashboard(dashboard::DashboardArgs),
    #[command(about = "Show what each workload serves, with rates, refusals and latencies")]
    Top(edges::TopArgs),
    #[command(about = "Print what the processes of the mesh on this machine write")]
    Logs(logs::LogsArgs),
    #[command(about = "Stop the mesh that runs on this machine")]
    Stop(stop::StopArgs),
    #[command(
        about = "Simulate many proxies of a control plane, to measure how fast changes reach them"
    )]
    Crowd(crowd::CrowdArgs),
    #[command(about = "Run a proxy")]
    Proxy(Box<proxy::ProxyArgs>),
    #[command(
        about = "Keep the certificates of any program up to date, and write gRPC's bootstrap"
    )]
    Agent(agent::AgentArgs),
    #[command(about = "Give the Pods of a file of Kubernetes objects their proxies")]
    Inject(inject::InjectArgs),
    #[command(about = "Enrol the ambient pods of a Kubernetes node")]
    NodeAgent(Box<node_agent::NodeAgentArgs>),
    #[command(about = "Let a new pod start when the node agent is ready for it: the CNI plugin")]
    Cni(cni::CniArgs),
    #[command(about = "Redirect a pod's connections to its sidecar")]
    Redirect(redirect::RedirectArgs),
    #[command(about = "Wait until a proxy is ready")]
    Wait(wait::WaitArgs),
    #[command(about = "Create the tokens with which proxies authenticate")]
    Token(token::TokenArgs),
    #[command(about = "Revoke certificates before they expire")]
    Revoke(revoke::RevokeArgs),
    #[command(about = "Measure the cost of a mesh on this machine")]
    Bench(bench::BenchArgs),
    #[command(about = "Send load over HTTP, gRPC, WebSocket, TCP or UDP and measure latency")]
    Load(Box<load::LoadArgs>),
    #[command(about = "Send load like `fortio load`, with Fortio's flags")]
    Fortio(fortio::FortioArgs),
    #[command(about = "Check, make, draw and run graphs of synthetic services")]
    Graph(graph::GraphArgs),
    #[command(about = "Predict what a mesh will cost a graph of services")]
    Plan(Box<plan::PlanArgs>),
    #[command(about = "Serve HTTP, gRPC and TCP answers of chosen size, delay and status")]
    Echo(echo::EchoArgs),
    #[command(
        about = "Make policy decisions, and print the time of each",
        hide = true
    )]
    Decide(decide::DecideArgs),
    #[command(about = "Relay TCP bytes between two addresses: the lab's floor")]
    Relay(relay::RelayArgs),
    #[command(about = "Print a script that completes commands and options in a shell")]
    Completions(help::CompletionsArgs),
    #[command(about = "Write the manual pages into a folder")]
    Man(help::ManArgs),
}

impl Voile {
    pub(crate) fn run(self) -> ExitCode {
        match self.command {
            Command::Up(args) => up::run(args),
            Command::Analyze(args) => analyze::run(&args),
            Command::ExplainCode(args) => explain_code::run(&args),
            Command::Explain(args) => explain::run(args),
            Command::WhoCan(args) => who_can::run(&args),
            Command::Export(args) => export::run(&args),
            Command::Generate(args) => generate::run(args),
            Command::Install(args) => install::run(&args),
            Command::Upgrade(args) => upgrade::run(&args),
            Command::Uninstall(args) => uninstall::run(&args),
            Command::Check(args) => check::run(&args),
            Command::BugReport(args) => bug_report::run(&args),
            Command::Tag(args) => tag::run(&args),
            Command::Control(args) => control::run(*args),
            Command::Status(args) => status::run(&args),
            Command::Config(args) => config::run(&args),
            Command::Events(args) => events::run(&args),
            Command::Edges(args) => edges::run(&args),
            Command::Routes(args) => routes::run(&args),
            Command::Tap(args) => tap::run(&args),
            Command::Dashboard(args) => dashboard::run(args),
            Command::Top(args) => edges::run_top(&args),
            Command::Logs(args) => logs::run(&args),
            Command::Stop(args) => stop::run(&args),
            Command::Crowd(args) => crowd::run(args),
            Command::Proxy(args) => proxy::run(*args),
            Command::Inject(args) => inject::run(args),
            Command::NodeAgent(args) => node_agent::run(*args),
            Command::Cni(_) => cni::run(),
            Command::Redirect(args) => redirect::run(&args),
            Command::Wait(args) => wait::run(&args),
            Command::Agent(args) => agent::run(args),
            Command::Token(args) => token::run(args),
            Command::Revoke(args) => revoke::run(args),
            Command::Bench(args) => bench::run(args),
            Command::Load(args) => load::run(&args),
            Command::Fortio(args) => fortio::run(args),
            Command::Graph(args) => graph::run(args),
            Command::Plan(args) => plan::run(&args),
            Command::Echo(args) => echo::run(args),
            Command::Decide(args) => decide::run(&args),
            Command::Relay(args) => relay::run(args),
            Command::Completions(args) => args.run(),
            Command::Man(args) => args.run(),
        }
    }
}

/// Chooses the command by the arguments, or by the program's name: a container runtime runs its plugins without arguments.
pub(crate) fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    match std::path::Path::new(&program).file_name() {
        Some(name) if name == voile_kubernetes::cni::PLUGIN => return cni::run(),
        _ if arguments.next().is_none() => return help::print_first_steps(),
        _ => {}
    }
    let chosen = Voile::from_arg_matches(&help::command().get_matches());
    chosen.unwrap_or_else(|error| error.exit()).run()
}
