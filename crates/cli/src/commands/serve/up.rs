//! `voile up`: the folder's mesh on this machine, until Ctrl-C. The work is `voile-local`'s; here are words and signals.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};

use crate::commands::inspect::dashboard;
use crate::commands::inspect::monitoring::WatchedMesh;

/// Run the mesh that a folder describes, on this machine.
///
/// Deployments and Pods become local processes (their containers' `command`), each with a sidecar if it is injected;
/// one control plane serves them all. The folder is watched, and edits take effect without a restart. Errors in the folder
/// are printed with their places; only what they name is left out, or keeps its last good state. Services of type NodePort
/// and LoadBalancer are published on 127.0.0.1.
/// Ctrl-C stops everything and leaves nothing behind.
///
/// SIGUSR2 replaces every sidecar by a new process of the program that is then at this one's path, such as a newer version:
/// each takes over the listening sockets of the one before it, and no request is lost. The node proxy is replaced so, too.
/// Applications stay as they are.
///
/// Applications find services by Kubernetes' variables (REVIEWS_SERVICE_HOST, REVIEWS_SERVICE_PORT), and themselves by
/// POD_IP, POD_NAME and POD_NAMESPACE; VOILE is the path of this program. `$(NAME)` in command, args and env is replaced.
///
/// Standard output gets one line for each published service (its name, a tab, its URL) once all is ready; everything
/// else goes to standard error.
#[derive(Debug, clap::Args)]
pub(crate) struct UpArgs {
    /// The folder of YAML that describes the mesh.
    dir: PathBuf,

    /// Isolation of pods.
    #[arg(long, value_enum, default_value_t = Isolation::Auto)]
    isolation: Isolation,

    /// Folder for the control plane's keys (mode 0700). By default each run makes new keys and removes them at
    /// its end.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    #[command(flatten)]
    root: crate::commands::serve::control::RootArgs,

    /// End with exit code 1 if the folder has any error when it is first read, or a pod is not ready in time. Without
    /// this option that is so only if no pod can be started.
    #[arg(long)]
    strict: bool,

    /// Once all is ready, run this by /bin/sh (published services are in URL_NAMESPACE_SERVICE), then stop with its exit code.
    #[arg(long, value_name = "COMMAND")]
    once_ready: Option<String>,

    /// Show every line that any process writes, with its name before it, instead of the live state.
    #[arg(long)]
    logs: bool,

    /// Do not show the live state.
    #[arg(long)]
    quiet: bool,

    /// Show the mesh in a browser, too, as `voile dashboard` does: on this loopback address, port 0 takes a free one.
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = dashboard::DEFAULT_ADDRESS
    )]
    web: Option<SocketAddr>,

    /// Egress of pods in namespaces: `none`, or `host`: TCP to every address that this machine reaches, except
    /// loopback, and its name server. This program opens the outgoing connections, so nothing is set up on the host.
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = Egress::None)]
    egress: Egress,

    /// The data plane: `sidecar`, a proxy in each injected pod; `node`, one proxy for all of them in place of sidecars,
    /// at the level of connections (see `voile proxy --role node`); or `mixed`, sidecars in injected pods and a node proxy for
    /// ambient pods (`istio.io/dataplane-mode: ambient` of the pod or its namespace). An edit moves a Deployment from one to the
    /// other, pod by pod. `node` and `mixed` need `--isolation netns`; no DNS server answers in the node proxy's pods. Without
    /// this option the labels of the folder decide: `mixed` if a pod is ambient, else `sidecar`.
    #[arg(long, value_enum, value_name = "WHO")]
    dataplane: Option<Dataplane>,

    /// Lifetime of the sidecars' tokens, at least 10s and at most 24h; they are renewed after half of it.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = token_ttl)]
    token_ttl: Duration,

    /// Number of control planes, at most 3. They are replicas on the same folder and state. Each sidecar connects to
    /// one of them, and to another when that one ends.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = control_planes)]
    control_planes: usize,

    #[command(flatten)]
    keys: crate::commands::serve::control::KeyArgs,
}

fn control_planes(text: &str) -> Result<usize, String> {
    let count = text.parse().ok();
    count
        .filter(|count| (1..=voile_local::MAX_CONTROL_PLANES).contains(count))
        .ok_or_else(|| {
            format!(
                "`{text}`: expected 1 to {}",
                voile_local::MAX_CONTROL_PLANES
            )
        })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Egress {
    /// None: a call to an address outside the mesh fails at once with "unreachable".
    None,
    /// The host's network.
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dataplane {
    /// A sidecar in each pod that is injected.
    Sidecar,
    /// One node proxy in place of those sidecars.
    Node,
    /// Sidecars where they are injected, a node proxy for pods that are ambient.
    Mixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Isolation {
    /// `netns` if this machine allows it and the folder has no workload that runs elsewhere, else `loopback`.
    Auto,
    /// Each pod has a network namespace of its own, and its sidecar captures its traffic by redirection. Needs root or
    /// unprivileged user namespaces, and `nft` or `iptables-restore`; the host's own network is not touched.
    Netns,
    /// Each pod has addresses of its own in 127.0.0.0/8; needs no privileges.
    Loopback,
}

pub(crate) fn run(args: UpArgs) -> ExitCode {
    match start(args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("voile up: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: UpArgs) -> Result<u8, Box<dyn std::error::Error>> {
    let dataplane = match args.dataplane {
        None | Some(Dataplane::Sidecar) => voile_local::Dataplane::Sidecars,
        Some(Dataplane::Node) => voile_local::Dataplane::Node,
        Some(Dataplane::Mixed) => voile_local::Dataplane::Mixed,
    };
    if dataplane.has_node() && args.isolation != Isolation::Netns {
        let word = args.dataplane.and_then(|word| word.to_possible_value());
        let word = word.as_ref().map_or("", |word| word.get_name());
        let why = "the node proxy enters the network namespaces of its pods";
        return Err(format!("--dataplane {word} needs --isolation netns: {why}").into());
    }
    let options = voile_local::RunnerOptions {
        folder: args.dir,
        state: args.state.map(std::path::absolute).transpose()?,
        new_root: args.root.new_root,
        strict: args.strict,
        quiet: args.quiet,
        logs: args.logs,
        once_ready: args.once_ready,
        voile: std::env::current_exe()?,
        token_ttl: args.token_ttl,
        control_planes: args.control_planes,
        control: args.keys.words()?,
        egress: args.egress == Egress::Host,
        dataplane,
        by_labels: args.dataplane.is_none(),
    };
    let wanted = match args.isolation {
        Isolation::Auto => voile_local::WantedIsolation::Auto,
        Isolation::Netns => voile_local::WantedIsolation::Namespaces,
        Isolation::Loopback => voile_local::WantedIsolation::Loopback,
    };
    let page = args.web.map(dashboard::bind).transpose();
    let page = page.map_err(|error| format!("--web: {error}"))?;
    if let Some(page) = &page {
        eprintln!("voile up: dashboard {}", page.url()?);
    }
    // By this number the commands find the mesh; in namespaces the runner is another process.
    let pid = std::process::id();
    // Threads come after the runner's namespaces, the listener before them.
    let threads = || {
        if let Some(page) = page {
            let thread = std::thread::Builder::new().name("dashboard".to_owned());
            let mesh = WatchedMesh::of_process(pid);
            thread.spawn(move || {
                let served = dashboard::serve_pages(page, mesh, Vec::new(), std::future::pending());
                served.inspect_err(|error| eprintln!("voile up: --web: {error}"))
            })?;
        }
        signals()
    };
    Ok(voile_local::start(options, wanted, threads)?)
}

fn token_ttl(text: &str) -> Result<Duration, String> {
    /// Less leaves no time to write it anew on a busy machine, in seconds.
    const LEAST: u64 = 10;
    /// Longest life that the authority accepts, in seconds.
    const MOST: u64 = 24 * 3600;
    let ttl = crate::commands::values::duration(text)?;
    match (LEAST..=MOST).contains(&ttl.as_secs()) {
        true => Ok(ttl),
        false => Err(format!("`{text}`: expected 10s to 24h")),
    }
}

/// A message to stop for each SIGINT, SIGTERM or SIGHUP; SIGUSR2 asks for new sidecars.
fn signals() -> io::Result<voile_local::SignalMessages> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (sender, stop) = mpsc::channel();
    let replace = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&replace);
    let (mut interrupt, mut terminate, mut hangup, mut again) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::user_defined2())?,
        )
    };
    std::thread::spawn(move || {
        runtime.block_on(async move {
            loop {
                let came = tokio::select! {
                    came = interrupt.recv() => came,
                    came = terminate.recv() => came,
                    came = hangup.recv() => came,
                    _ = again.recv() => {
                        asked.store(true, Ordering::Relaxed);
                        continue;
                    }
                };
                if came.is_none() || sender.send(()).is_err() {
                    return;
                }
            }
        });
    });
    Ok(voile_local::SignalMessages { stop, replace })
}
