//! `voile up`: the folder's mesh on this machine, until Ctrl-C. The work is `voile-local`'s; here are words and signals.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;

use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};

/// Run the mesh that a folder describes, on this machine.
///
/// Deployments and Pods become local processes (their containers' `command`), each with a sidecar if it is injected;
/// one control plane serves them all. The folder is watched: edits take effect without a restart, and a broken edit is
/// reported while the last good state stays. Services of type NodePort and LoadBalancer are published on 127.0.0.1.
/// Ctrl-C stops everything and leaves nothing behind.
///
/// Applications find services by Kubernetes' variables (REVIEWS_SERVICE_HOST, REVIEWS_SERVICE_PORT), and themselves by
/// POD_IP, POD_NAME and POD_NAMESPACE; VOILE is the path of this program. `$(NAME)` in command, args and env is replaced.
///
/// Standard output gets one line for each published service (its name, a tab, its URL) once all is ready; everything
/// else goes to standard error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder of YAML that describes the mesh.
    dir: PathBuf,

    /// How pods are kept apart.
    #[arg(long, value_enum, default_value_t = Isolation::Auto)]
    isolation: Isolation,

    /// Where the control plane keeps its keys (mode 0700). By default they are new in each run and gone after it.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Once all is ready, run this by /bin/sh (published services are in URL_NAMESPACE_SERVICE), then stop with its exit code.
    #[arg(long, value_name = "COMMAND")]
    once_ready: Option<String>,

    /// Show every line that any process writes, with its name before it, instead of the live state.
    #[arg(long)]
    logs: bool,

    /// Do not show the live state.
    #[arg(long)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Isolation {
    /// `netns` where this machine allows it and the folder names nothing that runs elsewhere, else `loopback`.
    Auto,
    /// Each pod has a network namespace of its own, and its sidecar captures its traffic by redirection. Needs root or
    /// unprivileged user namespaces, and `nft` or `iptables-restore`; the host's own network is not touched.
    Netns,
    /// Each pod has addresses of its own in 127.0.0.0/8; needs no privileges.
    Loopback,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match start(args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("voile up: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: Args) -> Result<u8, Box<dyn std::error::Error>> {
    let options = voile_local::Options {
        folder: args.dir,
        state: args.state.map(std::path::absolute).transpose()?,
        quiet: args.quiet,
        logs: args.logs,
        once_ready: args.once_ready,
        voile: std::env::current_exe()?,
    };
    let wanted = match args.isolation {
        Isolation::Auto => voile_local::Wanted::Auto,
        Isolation::Netns => voile_local::Wanted::Namespaces,
        Isolation::Loopback => voile_local::Wanted::Loopback,
    };
    Ok(voile_local::start(options, wanted, stop_signals)?)
}

/// One message for each SIGINT, SIGTERM or SIGHUP.
fn stop_signals() -> std::io::Result<mpsc::Receiver<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (sender, stop) = mpsc::channel();
    let (mut interrupt, mut terminate, mut hangup) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        )
    };
    std::thread::spawn(move || {
        runtime.block_on(async move {
            loop {
                let came = tokio::select! {
                    came = interrupt.recv() => came,
                    came = terminate.recv() => came,
                    came = hangup.recv() => came,
                };
                if came.is_none() || sender.send(()).is_err() {
                    return;
                }
            }
        });
    });
    Ok(stop)
}
