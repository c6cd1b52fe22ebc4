//! `voile crowd`: simulated proxies of a control plane. Reads the command line and handles signals; the proxies live in
//! `voile-crowd`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use voile_process::Signals;

/// Simulate many proxies of a control plane, without traffic: each is a discovery stream over TLS with its own token.
///
/// Prints a line of JSON when all are in sync, and one at the end (Ctrl-C). With --commands a program that changes the
/// configuration announces each change on that socket and learns when it reached each proxy. `voile bench control-plane`
/// measures this way.
#[derive(Debug, Parser)]
pub(crate) struct CrowdArgs {
    /// The folder of resources that the control plane reads: its workloads with sidecars are simulated.
    #[arg(long, value_name = "DIR")]
    config: PathBuf,
    /// The control plane's state directory: the root to trust, and the key of the proxies' tokens.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// A folder with a token for each proxy, in files NAMESPACE_POD, such as a cluster's API server makes them. The state directory
    /// then holds only the root.
    #[arg(long, value_name = "DIR")]
    tokens: Option<PathBuf>,
    /// The control plane; of several (separated by commas, or the option repeated) each proxy picks one at random.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "https://127.0.0.1:15012"
    )]
    control: Vec<String>,
    /// Number of proxies.
    #[arg(long, default_value_t = 100, value_name = "N")]
    proxies: usize,
    /// Services that each proxy uses.
    #[arg(long, default_value_t = 10, value_name = "N")]
    services: usize,
    /// Number of these services that are the same for all.
    #[arg(long, default_value_t = 0, value_name = "N")]
    shared: usize,
    /// Unix socket of the program that gives commands; the crowd ends when its connection closes.
    #[arg(long, value_name = "SOCKET")]
    commands: Option<PathBuf>,
    /// Log level: off, error, warn, info, debug or trace, or `target=level,…`.
    #[arg(long, value_name = "LEVEL", default_value = "error")]
    log_level: String,
}

pub(crate) fn run(args: CrowdArgs) -> ExitCode {
    if let Err(error) = voile_telemetry::logging::install(&args.log_level) {
        eprintln!("voile crowd: --log-level {error}");
        return ExitCode::from(2);
    }
    voile_transport::raise_descriptor_limit();
    let settings = voile_crowd::Settings {
        control: args.control,
        state: args.state,
        tokens: args.tokens,
        config: args.config,
        proxies: args.proxies,
        services: args.services,
        shared: args.shared,
        commands: args.commands,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(async {
            let signals = Signals::install();
            let mut signals = signals.map_err(|error| format!("signals: {error}"))?;
            let stop = async move {
                signals.next().await;
            };
            voile_crowd::run(settings, stop, |line| println!("{line}")).await
        }),
        Err(error) => Err(error.to_string()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("voile crowd: {reason}");
            ExitCode::FAILURE
        }
    }
}
