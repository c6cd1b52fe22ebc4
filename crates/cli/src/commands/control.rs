//! `voile control`: the control plane as a process. Reads the command line, handles signals and sets the exit code. All
//! decisions live in `voile-control`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use voile_control::{Control, ControlOptions, KeyOptions, NodeAccount, Report, Reporter};
use voile_identity::{RootFingerprint, RootPolicy};
use voile_model::Severity;
use voile_model::mesh::AddressRange;

/// Address of plaintext discovery, or `off`.
#[derive(Debug, Clone, Copy)]
enum Plaintext {
    Off,
    On(SocketAddr),
}

impl std::str::FromStr for Plaintext {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            address => address
                .parse()
                .map(Self::On)
                .map_err(|_| format!("`{address}` is neither ADDRESS:PORT nor `off`")),
        }
    }
}

/// Read folders of YAML, watch them, and tell each proxy what it needs; issue certificates to who proves who it is.
///
/// A broken edit is reported on stderr with file and line, and what was good stays in force. Stops cleanly on SIGTERM
/// and Ctrl-C; proxies keep serving with what they hold.
#[derive(Debug, Parser)]
pub(crate) struct ControlArgs {
    /// Folders of resources (`.yaml`, `.yml`, `.json`), taken together as one mesh.
    #[arg(value_name = "DIR", required_unless_present = "config")]
    directories: Vec<PathBuf>,

    /// A folder of resources; may be given several times, beside others.
    #[arg(long, value_name = "DIR")]
    config: Vec<PathBuf>,

    /// Folder for the root key, the token key and join tokens; made with mode 0700 if missing. Several control planes on the
    /// same folders and the same directory are one to their proxies: any may end.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,

    #[command(flatten)]
    root: RootArgs,

    /// The only root to serve, as `sha256:…` of its public key (in the file `DIR.root` beside the state directory): with another
    /// one, or none, in the state directory the control plane does not start.
    #[arg(long, value_name = "FINGERPRINT", conflicts_with = "new_root")]
    expect_root: Option<RootFingerprint>,

    /// Discovery and certificates over TLS.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15012")]
    listen: SocketAddr,

    /// A DNS name or address that proxies know it by; may be given several times. Its certificate always names localhost,
    /// 127.0.0.1, ::1, istiod.istio-system.svc and the address of `--listen`.
    #[arg(long, value_name = "NAME")]
    server_name: Vec<String>,

    /// Discovery without TLS, for tools on this machine, such as 127.0.0.1:15010 (`off` for none). A caller needs a token, as over
    /// TLS.
    #[arg(long, value_name = "ADDRESS|off", default_value = "off")]
    plaintext: Plaintext,

    /// Let `--plaintext` be an address that other machines reach.
    #[arg(long)]
    plaintext_beyond_loopback: bool,

    /// Life of workloads' certificates, such as 1h or 30m: 10s to 24h. They are renewed at half of it.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = certificate_ttl)]
    certificate_ttl: Duration,

    /// Service account whose pods are node proxies (ztunnel), as in `istio-system/ztunnel`; may be given several times. Such a
    /// pod, known by a token bound to it, may ask for certificates of the ambient workloads on its own node (`nodeName`). By
    /// default nobody may ask for anybody else.
    #[arg(long, value_name = "NS/SA")]
    node_account: Vec<NodeAccount>,

    /// Longest life of a connection, at least 1s. The control plane then closes it, and the proxy proves its identity
    /// again on the next one.
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = connection_age)]
    connection_age: Duration,

    /// Time without a stream to any control plane after which a workload of a WorkloadGroup has left the mesh, at least
    /// 100ms.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = workload_grace)]
    workload_grace: Duration,

    /// GET /ready, /metrics, /debug/status.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15014")]
    monitoring: SocketAddr,

    #[command(flatten)]
    keys: KeyArgs,

    /// Allow to fetch token issuers' keys from this machine (127.0.0.0/8, ::1): for issuers beside the control plane. `voile up`
    /// allows it to its own, since its services are there.
    #[arg(long, value_name = "allow|refuse", default_value = "refuse")]
    jwks_loopback: JwksLoopback,

    /// off, error, warn, info, debug or trace, or `target=level,…`.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

/// Permission to fetch keys from this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum JwksLoopback {
    Allow,
    Refuse,
}

/// Permission to make another root than proxies trust.
#[derive(Debug, clap::Args)]
pub(super) struct RootArgs {
    /// Begin with another root than the one that the state directory held before. Without this a state directory that was lost or
    /// exchanged is an error, because the proxies that run would refuse the new root: each of them needs the new root certificate and
    /// a new token. A root that is still there stays.
    #[arg(long)]
    pub(super) new_root: bool,
}

/// Fetching of token issuers' keys.
#[derive(Debug, clap::Args)]
pub(super) struct KeyArgs {
    /// Interval between fetches of token issuers' keys (`jwksUri`, OpenID discovery), at least 100ms; shorter after
    /// failures. Good keys stay until better ones come.
    #[arg(long, value_name = "DURATION", default_value = "20m", value_parser = jwks_refresh)]
    jwks_refresh: Duration,

    /// Certificate authorities (PEM) that key servers may be certified by, besides the system's.
    #[arg(long, value_name = "FILE")]
    jwks_ca: Option<PathBuf>,

    /// Addresses that keys are never fetched from, as ADDRESS or ADDRESS/BITS; may be given several times. Link-local,
    /// multicast and unspecified addresses never are.
    #[arg(long, value_name = "RANGE", value_parser = voile_model::mesh::authorization::values::address_range)]
    jwks_block: Vec<AddressRange>,
}

impl KeyArgs {
    /// The same as words for a control plane that another process is.
    pub(super) fn words(&self) -> std::io::Result<Vec<(&'static str, String)>> {
        let refresh = format!("{}ms", self.jwks_refresh.as_millis());
        let mut words = vec![
            ("--jwks-refresh", refresh),
            ("--jwks-loopback", "allow".to_owned()),
        ];
        if let Some(file) = &self.jwks_ca {
            let file = std::path::absolute(file)?;
            words.push(("--jwks-ca", file.to_string_lossy().into_owned()));
        }
        let blocked = self.jwks_block.iter();
        words.extend(blocked.map(|range| ("--jwks-block", range.to_string())));
        Ok(words)
    }
}

fn connection_age(text: &str) -> Result<Duration, String> {
    let age = super::proxy::duration(text)?;
    match age >= Duration::from_secs(1) {
        true => Ok(age),
        false => Err(format!("`{text}`: expected 1s or more")),
    }
}

fn workload_grace(text: &str) -> Result<Duration, String> {
    let grace = super::proxy::duration(text)?;
    match grace >= Duration::from_millis(100) {
        true => Ok(grace),
        false => Err(format!("`{text}`: expected 100ms or more")),
    }
}

fn jwks_refresh(text: &str) -> Result<Duration, String> {
    let refresh = super::proxy::duration(text)?;
    match refresh >= Duration::from_millis(100) {
        true => Ok(refresh),
        false => Err(format!("`{text}`: expected 100ms or more")),
    }
}

fn certificate_ttl(text: &str) -> Result<Duration, String> {
    let ttl = super::proxy::duration(text)?;
    match (voile_identity::MIN_TTL..=voile_identity::MAX_TTL).contains(&ttl) {
        true => Ok(ttl),
        false => Err(format!("`{text}`: expected 10s to 24h")),
    }
}

pub(crate) fn run(args: ControlArgs) -> ExitCode {
    if let Err(error) = voile_telemetry::logging::install(&args.log_level) {
        eprintln!("voile control: --log-level {error}");
        return ExitCode::from(2);
    }
    // Each proxy is a descriptor: take as many as the system lets us have.
    voile_transport::raise_descriptor_limit();
    let options = ControlOptions {
        config: [args.directories, args.config].concat(),
        state: args.state,
        root: RootPolicy {
            expected: args.expect_root,
            new_root: args.root.new_root,
        },
        listen: args.listen,
        names: args.server_name,
        plaintext: match args.plaintext {
            Plaintext::Off => None,
            Plaintext::On(address) => Some(address),
        },
        plaintext_beyond_loopback: args.plaintext_beyond_loopback,
        certificate_ttl: args.certificate_ttl,
        node_accounts: args.node_account.into_iter().collect(),
        connection_age: args.connection_age,
        farewell: voile_control::FAREWELL,
        workload_grace: args.workload_grace,
        monitoring: args.monitoring,
        keys: KeyOptions {
            refresh: args.keys.jwks_refresh,
            authorities: args.keys.jwks_ca,
            blocked: args.keys.jwks_block,
            loopback: args.jwks_loopback == JwksLoopback::Allow,
        },
    };
    voile_memory::frugal();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let served = match runtime {
        Ok(runtime) => runtime.block_on(serve(options)),
        Err(error) => Err(error.to_string()),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("voile control: {reason}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(options: ControlOptions) -> Result<(), String> {
    // Before anything is started, so that no signal falls between.
    let failed = |error: std::io::Error| format!("signals: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let control = Control::start(options, reporter())
        .await
        .map_err(|error| error.to_string())?;
    let addresses = control.addresses();
    let plaintext = match addresses.plaintext {
        Some(address) => format!(", plaintext discovery on {address}"),
        None => String::new(),
    };
    eprintln!(
        "voile control: discovery and certificates on {}{plaintext}, monitoring on http://{}/",
        addresses.tls, addresses.monitoring
    );
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    control.stop().await;
    Ok(())
}

/// Prints what is wrong, once as long as it stays the same.
fn reporter() -> Reporter {
    let mut last: Vec<String> = Vec::new();
    Box::new(move |report: &Report| {
        // Notes are for `voile analyze`, not for logs.
        let told = report
            .diagnostics
            .iter()
            .filter(|one| one.severity != Severity::Note);
        let mut lines: Vec<String> = told.map(ToString::to_string).collect();
        lines.extend(
            report
                .problems
                .iter()
                .map(|problem| format!("warning: {problem}")),
        );
        if let Some(error) = &report.unreadable {
            lines.push(format!(
                "error: {error}; the last good configuration stays in force"
            ));
        }
        if lines != last {
            for line in &lines {
                eprintln!("{line}");
            }
            let errors = report.diagnostics.iter().filter(|d| d.is_error()).count();
            match (errors, lines.is_empty()) {
                (_, true) => eprintln!("voile control: all problems are gone"),
                (0, false) => {}
                (1, false) => {
                    eprintln!("voile control: 1 error; what was good before stays in force");
                }
                (n, false) => {
                    eprintln!("voile control: {n} errors; what was good before stays in force");
                }
            }
            last = lines;
        }
    })
}
