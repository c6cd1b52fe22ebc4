//! `voile control`: the control plane as a process. Reads the command line, handles signals and sets the exit code. All
//! decisions live in `voile-control`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use voile_control::{
    Addresses, Control, ControlOptions, KeyOptions, NodeAccount, Report, Reporter,
};
use voile_identity::{RootFingerprint, RootPolicy};
use voile_kubernetes::{ClusterOptions, ControlPlane, DEFAULT_REVISION};
use voile_model::Severity;
use voile_model::mesh::AddressRange;
use voile_process::Signals;

use crate::commands::inspect::analyze::counted;
use crate::commands::kubernetes::cluster::KubeconfigArgs;

/// An address, or `off`.
#[derive(Debug, Clone, Copy)]
enum OptionalAddress {
    Off,
    On(SocketAddr),
}

impl std::str::FromStr for OptionalAddress {
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

/// Read folders of YAML, watch them, and send each proxy its configuration; issue certificates to authenticated
/// workloads.
///
/// A broken edit is reported on stderr with file and line, and the last good version stays in force. Stops cleanly on
/// SIGTERM and Ctrl-C; proxies keep their configuration and keep serving.
#[derive(Debug, Parser)]
pub(crate) struct ControlArgs {
    /// Folders of resources (`.yaml`, `.yml`, `.json`), read together as one mesh.
    #[arg(value_name = "DIR", required_unless_present_any = ["config", "kubernetes"])]
    directories: Vec<PathBuf>,

    /// A folder of resources; may be repeated, and combined with DIR.
    #[arg(long, value_name = "DIR")]
    config: Vec<PathBuf>,

    #[command(flatten)]
    cluster: ClusterSourceArgs,

    /// State directory for the root key, the token key and join tokens; created with mode 0700 if missing. Several
    /// control planes on the same folders and the same state directory are replicas: any of them may stop.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,

    #[command(flatten)]
    root: RootArgs,

    /// The only root key to serve, as `sha256:…` of its public key (see the file `DIR.root` beside the state
    /// directory). The control plane does not start if the state directory has another root, or none.
    #[arg(long, value_name = "FINGERPRINT", conflicts_with = "new_root")]
    expect_root: Option<RootFingerprint>,

    /// Address for discovery and certificates over TLS.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15012")]
    listen: SocketAddr,

    /// A DNS name or address by which proxies reach the control plane; may be repeated. Its certificate always includes
    /// localhost, 127.0.0.1, ::1, istiod.istio-system.svc and the address of `--listen`.
    #[arg(long, value_name = "NAME")]
    server_name: Vec<String>,

    /// Address for discovery without TLS, for tools on this machine, such as 127.0.0.1:15010 (`off` for none). A caller
    /// needs a token, as over TLS.
    #[arg(long, value_name = "ADDRESS|off", default_value = "off")]
    plaintext: OptionalAddress,

    /// Allow `--plaintext` on an address that other machines can reach.
    #[arg(long)]
    plaintext_beyond_loopback: bool,

    /// Lifetime of workload certificates, such as 1h or 30m: 10s to 24h. Proxies renew them at half of it.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = certificate_ttl)]
    certificate_ttl: Duration,

    /// Service account whose pods are node proxies (ztunnel), as in `istio-system/ztunnel`; may be repeated. Such a
    /// pod, authenticated by a token bound to it, may request certificates for the ambient workloads on its own node
    /// (`nodeName`). By default a caller may request certificates only for itself.
    #[arg(long, value_name = "NS/SA")]
    node_account: Vec<NodeAccount>,

    /// Maximum age of a connection, at least 1s. The control plane then closes it, and the proxy authenticates again on
    /// the next one.
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = connection_age)]
    connection_age: Duration,

    /// Time without a stream to any control plane after which a workload of a WorkloadGroup has left the mesh, at least
    /// 100ms.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = workload_grace)]
    workload_grace: Duration,

    /// Address for GET /ready, /metrics and /debug/status.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15014")]
    monitoring: SocketAddr,

    #[command(flatten)]
    keys: KeyArgs,

    /// Permit fetching keys of token issuers from loopback addresses (127.0.0.0/8, ::1), for issuers beside the control
    /// plane. `voile up` always permits it, because its services use loopback.
    #[arg(long, value_name = "allow|refuse", default_value = "refuse")]
    jwks_loopback: JwksLoopback,

    /// Log level: off, error, warn, info, debug or trace, or `target=level,…`.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

/// The cluster, in place of folders.
#[derive(Debug, clap::Args)]
#[command(
    next_help_heading = "Kubernetes",
    mut_arg("kubeconfig", |arg| arg.requires("kubernetes")),
    mut_arg("context", |arg| arg.requires("kubernetes"))
)]
struct ClusterSourceArgs {
    /// Read the resources of a Kubernetes cluster in place of folders. Callers prove themselves by tokens of the cluster's service
    /// accounts (audience istio-ca), and the authority's key is in the Secret `cacerts` or `istio-ca-secret`. Inside a pod the
    /// pod's service account is used.
    #[arg(long, conflicts_with_all = ["directories", "config", "new_root", "expect_root"])]
    kubernetes: bool,

    #[command(flatten)]
    address: KubeconfigArgs,

    /// Namespace of the control plane: there are the ConfigMap `istio` with the mesh's settings, the authority's Secret and the
    /// Lease of the elected replica.
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "POD_NAMESPACE",
        default_value = "istio-system"
    )]
    namespace: String,

    /// Revision of this control plane (`istio.io/rev`). With another one than `default` the settings are in the ConfigMap
    /// `istio-REVISION`.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_REVISION)]
    revision: String,

    /// Address of the webhooks that inject Pods (`off` for none).
    #[arg(
        long,
        value_name = "ADDRESS|off",
        default_value = "off",
        requires = "kubernetes"
    )]
    webhooks: OptionalAddress,

    /// Image of the proxies of injected Pods: one with this program.
    #[arg(long, value_name = "IMAGE", default_value = "voile:latest")]
    proxy_image: String,

    /// When a node pulls that image; without it Kubernetes decides by the tag.
    #[arg(long, value_name = "POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    proxy_image_pull_policy: Option<String>,

    /// A CNI plugin redirects the connections of injected Pods: they get no init container `istio-init`.
    #[arg(long, requires = "kubernetes")]
    cni: bool,

    /// Time for which new roots of the authority are trusted before a key below them signs, 0s to 24h. Kubelets bring the changed
    /// ConfigMap to pods within about 90 seconds.
    #[arg(long, value_name = "DURATION", default_value = "180s", value_parser = root_overlap)]
    root_overlap: Duration,

    /// Signer of Kubernetes' CertificateSigningRequests, as in `example.com/mesh`: it signs the certificates of workloads. Its roots
    /// are in the Secret `external-ca-cert` (`root-cert.pem`). The authority of the control plane signs only the control plane's own
    /// certificates then.
    #[arg(long, value_name = "NAME", requires = "kubernetes", value_parser = NonEmptyStringValueParser::new())]
    external_ca_signer: Option<String>,

    /// Authority that injected proxies ask for their certificates in place of the control plane, such as cert-manager's istio-csr. It
    /// speaks Istio's protocol (IstioCertificateService).
    #[arg(long, value_name = "HOST:PORT", requires = "kubernetes", value_parser = NonEmptyStringValueParser::new())]
    ca_address: Option<String>,

    /// Sign nothing. The control plane's own certificate is in the Secret `istiod-tls`, and the roots are in the ConfigMap
    /// `istio-ca-root-cert`, which others write. It starts when both are there.
    #[arg(long, requires = "ca_address", conflicts_with = "external_ca_signer")]
    no_ca_server: bool,

    /// Keep the roots in the ClusterTrustBundle `istio.io:istiod-ca:root-cert`, which injected pods mount, in place of a ConfigMap in
    /// every namespace. The cluster has the API `certificates.k8s.io/v1beta1`, and its nodes ClusterTrustBundleProjection.
    #[arg(long, requires = "kubernetes", conflicts_with = "no_ca_server")]
    cluster_trust_bundle: bool,

    /// Name of this replica, which no other has [default: HOST-PID].
    #[arg(long, value_name = "NAME", env = "POD_NAME", default_value_t = replica(), hide_default_value = true)]
    replica: String,
}

/// Name of a replica that runs outside a pod.
fn replica() -> String {
    let host = rustix::system::uname();
    format!(
        "{}-{}",
        host.nodename().to_string_lossy(),
        std::process::id()
    )
}

impl ClusterSourceArgs {
    fn options(self) -> Option<ClusterOptions> {
        self.kubernetes.then_some(ClusterOptions {
            address: self.address.into(),
            namespace: self.namespace,
            revision: self.revision,
            replica: self.replica,
            injection: match self.webhooks {
                OptionalAddress::Off => None,
                OptionalAddress::On(address) => Some((address, self.proxy_image)),
            },
            image_pull_policy: self.proxy_image_pull_policy,
            cni: self.cni,
            root_overlap: self.root_overlap,
            external_signer: self.external_ca_signer,
            ca_address: self.ca_address,
            signs_nothing: self.no_ca_server,
            trust_bundle: self.cluster_trust_bundle,
        })
    }
}

/// Permission to fetch keys from this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum JwksLoopback {
    Allow,
    Refuse,
}

/// Permission to make another root than proxies trust.
#[derive(Debug, clap::Args)]
pub(crate) struct RootArgs {
    /// Start with a new root if the state directory no longer has the previous one. Without this option a lost or
    /// replaced state directory is an error, because running proxies would refuse the new root: each of them needs the
    /// new root certificate and a new token. An existing root stays.
    #[arg(long)]
    pub(crate) new_root: bool,
}

/// Fetching of token issuers' keys.
#[derive(Debug, clap::Args)]
pub(crate) struct KeyArgs {
    /// Interval between fetches of token issuers' keys (`jwksUri`, OpenID discovery), at least 100ms; shorter after
    /// failures. Valid keys stay until newer ones arrive.
    #[arg(long, value_name = "DURATION", default_value = "20m", value_parser = jwks_refresh)]
    jwks_refresh: Duration,

    /// Certificate authorities (PEM) trusted for key servers, besides the system's.
    #[arg(long, value_name = "FILE")]
    jwks_ca: Option<PathBuf>,

    /// Addresses from which keys are never fetched, as ADDRESS or ADDRESS/BITS; may be repeated. Link-local, multicast
    /// and unspecified addresses are always blocked.
    #[arg(long, value_name = "RANGE", value_parser = voile_model::mesh::authorization::values::address_range)]
    jwks_block: Vec<AddressRange>,
}

impl KeyArgs {
    /// The same as words for a control plane that another process is.
    pub(crate) fn words(&self) -> std::io::Result<Vec<(&'static str, String)>> {
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
    let age = crate::commands::values::duration(text)?;
    match age >= Duration::from_secs(1) {
        true => Ok(age),
        false => Err(format!("`{text}`: expected 1s or more")),
    }
}

fn workload_grace(text: &str) -> Result<Duration, String> {
    let grace = crate::commands::values::duration(text)?;
    match grace >= Duration::from_millis(100) {
        true => Ok(grace),
        false => Err(format!("`{text}`: expected 100ms or more")),
    }
}

fn jwks_refresh(text: &str) -> Result<Duration, String> {
    let refresh = crate::commands::values::duration(text)?;
    match refresh >= Duration::from_millis(100) {
        true => Ok(refresh),
        false => Err(format!("`{text}`: expected 100ms or more")),
    }
}

fn certificate_ttl(text: &str) -> Result<Duration, String> {
    let ttl = crate::commands::values::duration(text)?;
    match (voile_identity::MIN_TTL..=voile_identity::MAX_TTL).contains(&ttl) {
        true => Ok(ttl),
        false => Err(format!("`{text}`: expected 10s to 24h")),
    }
}

fn root_overlap(text: &str) -> Result<Duration, String> {
    let overlap = crate::commands::values::duration(text)?;
    match overlap <= voile_identity::MAX_TTL {
        true => Ok(overlap),
        false => Err(format!("`{text}`: expected 0s to 24h")),
    }
}

pub(crate) fn run(args: ControlArgs) -> ExitCode {
    if let Err(error) = voile_telemetry::logging::install(&args.log_level) {
        eprintln!("voile control: --log-level {error}");
        return ExitCode::from(2);
    }
    // Each proxy is a descriptor: take as many as the system lets us have.
    voile_transport::raise_descriptor_limit();
    let cluster = args.cluster.options();
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
            OptionalAddress::Off => None,
            OptionalAddress::On(address) => Some(address),
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
        Ok(runtime) => runtime.block_on(serve(options, cluster)),
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

/// A control plane of folders or of a cluster.
enum Running {
    Folders(Control),
    Cluster(ControlPlane),
}

impl Running {
    async fn start(
        options: ControlOptions,
        cluster: Option<ClusterOptions>,
    ) -> Result<Self, String> {
        Ok(match cluster {
            None => {
                let control = Control::start(options, reporter()).await;
                Self::Folders(control.map_err(|error| error.to_string())?)
            }
            Some(cluster) => {
                let control = ControlPlane::start(cluster, options, reporter()).await;
                Self::Cluster(control.map_err(|error| error.to_string())?)
            }
        })
    }

    fn addresses(&self) -> Addresses {
        match self {
            Self::Folders(control) => control.addresses(),
            Self::Cluster(control) => control.addresses(),
        }
    }

    async fn stop(self) {
        match self {
            Self::Folders(control) => control.stop().await,
            Self::Cluster(control) => control.stop().await,
        }
    }
}

async fn serve(options: ControlOptions, cluster: Option<ClusterOptions>) -> Result<(), String> {
    // Before anything is started, so that no signal falls between.
    let mut signals = Signals::install().map_err(|error| format!("signals: {error}"))?;
    let control = tokio::select! {
        started = Running::start(options, cluster) => started?,
        // A cluster may keep us waiting.
        _ = signals.next() => return Ok(()),
    };
    let addresses = control.addresses();
    let plaintext = match addresses.plaintext {
        Some(address) => format!(", plaintext discovery on {address}"),
        None => String::new(),
    };
    eprintln!(
        "voile control: discovery and certificates on {}{plaintext}, monitoring on http://{}/",
        addresses.tls, addresses.monitoring
    );
    signals.next().await;
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
                (_, true) => eprintln!("voile control: all problems are fixed"),
                (0, false) => {}
                (errors, false) => {
                    let errors = counted(errors, "error");
                    eprintln!("voile control: {errors}; the last good version stays in force");
                }
            }
            last = lines;
        }
    })
}
