//! `voile proxy`: one sidecar, one gateway, one waypoint, or the proxy of one node, in one process.

mod node;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use voile_process::{ExternalResolver, ProcessOptions, RunError};
use voile_proxy::Membership;
use voile_telemetry::logging::LogLevelHandle;
use voile_transport::CaptureExemption;

use super::control_plane::ControlPlaneArgs;

use crate::commands::values::duration;

/// Run the sidecar of one workload, a gateway, a waypoint, or a node proxy.
///
/// It asks the control plane what to listen on, gets its certificate from there, and serves until SIGTERM or SIGINT:
/// then it stops accepting, finishes requests in flight and exits 0. A second signal ends it at once.
///
/// The variable ISTIO_KUBE_APP_PROBERS, as Istio's injector sets it, names the probes of the application (JSON by path)
/// that are asked for whoever GETs /app-health/CONTAINER/readyz, livez or startupz where metrics are served.
///
/// The variable ISTIO_PROMETHEUS_ANNOTATIONS, as Istio's injector sets it, names port and path of the application's metrics. They
/// follow the proxy's own where metrics are served.
///
/// With `--role node` it serves every pod of a node, at the level of connections only: whoever makes the pods' networks (Istio's
/// CNI agent, or `voile up`) hands them over at `--agent`, certificates are asked for in the pods' names by this proxy's own
/// token (`voile control --node-account`), and node proxies reach each other by HBONE at port 15008. docs/reference/node.md
/// lists what it does not do yet.
#[derive(Debug, clap::Args)]
pub(crate) struct ProxyArgs {
    /// The workload this proxy stands for; with `--role node` the pod that it is itself.
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        required_unless_present = "workload_group"
    )]
    workload: Option<String>,
    /// Join the mesh as a member of this WorkloadGroup, in place of `--workload`: the control plane makes a WorkloadEntry of the
    /// group's template for `--address`, named GROUP-ADDRESS. The proxy probes the application as the group's probe says. The
    /// credential must be of the template's service account.
    #[arg(
        long,
        value_name = "NAMESPACE/GROUP",
        conflicts_with = "workload",
        requires = "address"
    )]
    workload_group: Option<String>,
    /// Address of the workload that joins, in the mesh.
    #[arg(long, value_name = "ADDRESS", requires = "workload_group")]
    address: Option<IpAddr>,
    /// Let the control plane name a program that is run to learn how the application is (a probe by `exec`). Without it such a
    /// probe fails, and the workload takes no traffic.
    #[arg(long, requires = "workload_group")]
    exec_probes: bool,
    /// Role: the sidecar of an application, or a gateway, which accepts connections from outside at the ports of Gateway
    /// resources. It must match the workload (annotation inject.istio.io/templates of its Pod); else the proxy's configuration is
    /// refused. Or `waypoint`, which takes requests from node proxies for services and workloads that name it; its Pod is of a
    /// Gateway of the class istio-waypoint. Or `node`: the proxy of all pods of a node.
    #[arg(long, value_enum, value_name = "ROLE", default_value = "sidecar")]
    role: Role,
    /// With `--role node`: the socket at which the pods' networks are handed over (ztunnel's ZDS protocol).
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/var/run/ztunnel/ztunnel.sock"
    )]
    agent: PathBuf,
    /// With `--role node`: the name of the node.
    #[arg(long, value_name = "NAME", default_value = "")]
    node: String,
    /// With `--role node`: the service account of its own pod (`--workload`). It takes tunnels at port 15008 of its own network then,
    /// as that pod and under its policies, to its metrics and readiness and nothing else, so that they can be scraped in mutual TLS.
    #[arg(long, value_name = "NAME")]
    service_account: Option<String>,
    /// With `--role node`: the trust domain of the pods' identities. With `--ca-address`: that of the own identity.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local", value_parser = trust_domain)]
    trust_domain: voile_model::TrustDomain,
    /// With `--role node`: another name of the trust domain, whose identities are believed as callers (commas between several, or the
    /// option again): what `trustDomainAliases` of MeshConfig says.
    #[arg(long, value_name = "DOMAIN", value_delimiter = ',', value_parser = trust_domain)]
    trust_domain_alias: Vec<voile_model::TrustDomain>,
    /// With `--role node`: call applications from their clients' own addresses. The pods' rules must lead the answers back, as
    /// Istio's CNI agent's do and those of `voile up`.
    #[arg(long)]
    keep_source: bool,
    /// With `--role node`: what of the mesh it is told. `all` is right with every control plane. `on-demand` takes less memory and less
    /// work of the control plane where the mesh is large, and is for `voile control`: istiod does not tell whoever asks so of every pod
    /// that comes later.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "all")]
    subscribe: Subscribe,
    #[command(flatten)]
    control_plane: ControlPlaneArgs,
    /// A certificate authority beside the control plane, such as cert-manager's istio-csr: certificates are asked for there, by the
    /// token of `--token-file`. It is verified by `--root-cert`, too.
    #[arg(long, value_name = "URL", requires = "token_file")]
    ca_address: Option<String>,
    /// Address of the admin pages (GET /help lists them). Keep it on loopback.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15000")]
    admin: SocketAddr,
    /// Address of metrics (/stats/prometheus, /metrics).
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15020")]
    metrics: SocketAddr,
    /// Address of readiness (/healthz/ready).
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:15021")]
    readiness: SocketAddr,
    /// Capture of connections: `none` (clients connect to explicit listeners) or `redirect` (the kernel redirects them to
    /// the two addresses below, and SO_ORIGINAL_DST gives their destination). With `redirect` outbound sockets carry the
    /// mark 0x539 and sockets to the application 0x53a; redirection rules must skip both marks. This needs CAP_NET_ADMIN.
    /// `tproxy` is `redirect`, and the proxy calls the application from its client's own address. Packets with the mark
    /// 0x53a must then stay inside and untracked, and accepted connections inherit it (net.ipv4.tcp_fwmark_accept).
    /// `redirect-by-user` is `redirect` without marks and without capabilities: the rules must skip all connections of the
    /// proxy's user, and connections to the application come from 127.0.0.6 or ::6. `voile redirect` writes such rules.
    #[arg(long, value_enum, value_name = "HOW", default_value = "none")]
    capture: CaptureMode,
    /// Own addresses of the pod, joined by commas. With `--capture redirect-by-user` the proxy is not ready before the kernel
    /// redirects its connections to them.
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',')]
    capture_check: Vec<IpAddr>,
    /// Target of redirected outbound connections. 0.0.0.0 stands for [::], too.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:15001")]
    capture_outbound: SocketAddr,
    /// Target of redirected inbound connections. 0.0.0.0 stands for [::], too.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:15006")]
    capture_inbound: SocketAddr,
    /// With `--capture`, tunnels of HBONE are taken here: node proxies and ztunnel call by them. 0.0.0.0 stands for [::], too.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:15008")]
    capture_tunnels: SocketAddr,
    /// Answer DNS here, over UDP and TCP: mesh names from the mesh, everything else from the resolver. `off`: not at all.
    #[arg(long, value_name = "ADDRESS|off", default_value = "off", value_parser = dns_address)]
    dns: DnsAddress,
    /// The resolver for names outside the mesh [default: those of /etc/resolv.conf, read again when it changes]. `none`:
    /// there is no outside, and names that the mesh does not know do not exist.
    #[arg(long, value_name = "ADDRESS|none", value_parser = resolver)]
    resolver: Option<ExternalResolver>,
    /// Threads that carry traffic.
    #[arg(long, value_name = "N", default_value_t = 2)]
    workers: usize,
    /// Level of the log on stderr: off, error, warn, info, debug, trace, or `target=level,…`.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// Time limit for requests in flight at shutdown, such as 5s or 500ms.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    drain_timeout: Duration,
    /// Socket over which a new process takes over from the running one without losing a connection: start the new one
    /// with the same options while the old one runs. It takes the listening sockets, becomes ready, and the old one
    /// finishes what it has and exits 0. A new one that is not ready within a minute gives up, and the old one goes on.
    /// Both must be of the same user; the folder should be that user's own.
    #[arg(long, value_name = "PATH")]
    handover: Option<PathBuf>,
    /// Time limit for requests in flight and tunnels after a handover.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    handover_drain_timeout: Duration,
    /// Most downstream connections; more are closed at once. 0: as the configuration says, else as many as there are
    /// descriptors.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_connections: u32,
    /// Most requests in flight; more are answered 503 at once (flag UO). 0: as the configuration says, else any number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_requests: u32,
    /// Most requests in flight to one port of one service; more are answered 503 at once (flag UO). 0: as the
    /// configuration says, else any number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_requests_per_destination: u32,
    /// Resident memory the proxy stays below, such as 50M or 1G; `auto` is the configuration's or the cgroup's limit,
    /// whichever is less, and `off` is none. At 80 % idle connections are closed. At 90 % (of a limit below 80M: where 8M or an
    /// eighth of it are left) new requests are answered 503 (flag OM) and new connections closed, and the largest holders of
    /// memory end, until there is room again.
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = memory)]
    memory_limit: u64,
    /// Time after which an unused service, host name or caller is dropped, such as 5m or 90s (1s to 24h). The proxy then ends
    /// its subscription and frees the memory. The next request subscribes again. 0s: as the configuration says, else 5m.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = service_idle)]
    service_idle_timeout: Duration,
    /// Time limit for response headers; then the proxy answers 504 (flag UT). 0s: no limit.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    request_timeout: Duration,
    /// Bytes a second that a request body must bring once it has taken five minutes; slower ones are answered 408. 0: any.
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    min_body_rate: u32,
}

/// Role of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// It stands before an application.
    Sidecar,
    /// No application is behind it.
    Gateway,
    /// It stands between node proxies, for services and workloads that name it.
    Waypoint,
    /// It serves the pods of a node.
    Node,
}

/// Subscription of a node proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Subscribe {
    /// All workloads and their addresses, as a ztunnel does.
    All,
    /// Peers of its pods, and names that they look up, at first use.
    OnDemand,
}

/// Capture of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CaptureMode {
    /// Clients connect to its listeners.
    None,
    /// The kernel redirects them.
    Redirect,
    /// It does, and the application sees its client's address.
    Tproxy,
    /// It does, and its rules recognise the proxy by its user.
    RedirectByUser,
}

/// A size in bytes with an optional unit of K, M or G (powers of 1024); `auto` and `off`.
fn memory(text: &str) -> Result<u64, String> {
    match text {
        "auto" => return Ok(u64::MAX),
        "off" => return Ok(0),
        _ => {}
    }
    let (number, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = number.parse::<u64>().ok();
    bytes
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("`{text}`: expected a size such as 50M or 1G, `auto` or `off`"))
}

pub(crate) fn run(args: ProxyArgs) -> ExitCode {
    let log = match voile_telemetry::logging::install(&args.log_level) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("voile proxy: --log-level {error}");
            return ExitCode::from(2);
        }
    };
    if let Err(code) = args.control_plane.check_token_files("proxy") {
        return code;
    }
    let probers = match probers() {
        Ok(probers) => probers,
        Err(error) => {
            eprintln!("voile proxy: {PROBERS}: {error}");
            return ExitCode::from(2);
        }
    };
    if args.role == Role::Node {
        return node::run(args, log);
    }
    if matches!(args.role, Role::Gateway | Role::Waypoint) && args.capture != CaptureMode::None {
        eprintln!(
            "voile proxy: --role gateway and waypoint do not support --capture: clients connect to them directly"
        );
        return ExitCode::from(2);
    }
    if !args.capture_check.is_empty() && args.capture != CaptureMode::RedirectByUser {
        eprintln!("voile proxy: --capture-check needs --capture redirect-by-user");
        return ExitCode::from(2);
    }
    let application_metrics = match application_metrics(args.metrics) {
        Ok(metrics) => metrics,
        Err(error) => {
            eprintln!("voile proxy: {APPLICATION_METRICS}: {error}");
            return ExitCode::from(2);
        }
    };
    let who = match who(&args) {
        Ok(who) => who,
        Err(error) => {
            eprintln!("voile proxy: {error}");
            return ExitCode::from(2);
        }
    };
    let options = voile_proxy::ProxyOptions {
        application_metrics,
        ..options(args, log, probers, who)
    };
    exit_code(voile_proxy::run(options))
}

/// The code that a proxy ends with. The reason of a failure goes to the terminal.
fn exit_code(ended: Result<(), RunError>) -> ExitCode {
    let Err(error) = ended else {
        return ExitCode::SUCCESS;
    };
    eprintln!("voile proxy: {error}");
    match error {
        RunError::Option(_) => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// Options that every role has.
fn process(args: &ProxyArgs, log: LogLevelHandle) -> ProcessOptions {
    ProcessOptions {
        control: args.control_plane.control.clone(),
        root_cert: args.control_plane.root_cert.clone(),
        resolver: args.resolver.unwrap_or(ExternalResolver::System),
        admin: args.admin,
        metrics: args.metrics,
        readiness: args.readiness,
        workers: args.workers,
        drain_timeout: args.drain_timeout,
        handover: args.handover.clone(),
        handover_drain_timeout: args.handover_drain_timeout,
        log: Some(log),
    }
}

/// Converts the command line into options of the proxy.
fn options(
    args: ProxyArgs,
    log: LogLevelHandle,
    probers: voile_proxy::Probers,
    (workload, membership): (String, Option<Membership>),
) -> voile_proxy::ProxyOptions {
    voile_proxy::ProxyOptions {
        process: process(&args, log),
        gateway: args.role == Role::Gateway,
        waypoint: args.role == Role::Waypoint,
        probers,
        application_metrics: None,
        limits: limits(&args),
        capture: capture(&args),
        captured_addresses: args.capture_check.clone(),
        workload,
        membership,
        exec_probes: args.exec_probes,
        authority: args.ca_address.map(|address| (address, args.trust_domain)),
        token_file: args.control_plane.token_file,
        join_token_file: args.control_plane.join_token_file,
        dns: args.dns.0,
        service_idle: (!args.service_idle_timeout.is_zero()).then_some(args.service_idle_timeout),
    }
}

fn limits(args: &ProxyArgs) -> voile_proxy::ProxyLimits {
    voile_proxy::ProxyLimits {
        connections: args.max_connections,
        requests: args.max_requests,
        requests_per_destination: args.max_requests_per_destination,
        memory: args.memory_limit,
        request_timeout: (!args.request_timeout.is_zero()).then_some(args.request_timeout),
        min_body_rate: args.min_body_rate,
    }
}

fn capture(args: &ProxyArgs) -> Option<voile_proxy::CapturePorts> {
    (args.capture != CaptureMode::None).then_some(voile_proxy::CapturePorts {
        outbound: args.capture_outbound,
        inbound: args.capture_inbound,
        tunnels: args.capture_tunnels,
        exemption: match args.capture {
            CaptureMode::RedirectByUser => CaptureExemption::User,
            CaptureMode::None | CaptureMode::Redirect | CaptureMode::Tproxy => {
                CaptureExemption::Marks
            }
        },
        keeps_source: args.capture == CaptureMode::Tproxy,
    })
}

/// The workload, and the group by which it joins if it does.
fn who(args: &ProxyArgs) -> Result<(String, Option<Membership>), String> {
    let (Some(named), Some(address)) = (&args.workload_group, args.address) else {
        return Ok((args.workload.clone().unwrap_or_default(), None));
    };
    let Some((namespace, group)) = named.split_once('/').filter(|(_, name)| !name.is_empty())
    else {
        return Err(format!(
            "--workload-group `{named}`: expected NAMESPACE/GROUP"
        ));
    };
    if address.is_unspecified() || address.is_multicast() {
        return Err(format!(
            "--address {address}: expected the address of one host"
        ));
    }
    let address = address.to_canonical();
    let name = voile_model::mesh::WorkloadGroup::member(group, address);
    let membership = Membership {
        group: group.to_owned(),
        address,
    };
    Ok((format!("{namespace}/{name}"), Some(membership)))
}

/// Environment variable with port and path of the application's metrics, as Istio's injector writes it.
const APPLICATION_METRICS: &str = "ISTIO_PROMETHEUS_ANNOTATIONS";

fn application_metrics(own: SocketAddr) -> Result<Option<voile_proxy::ApplicationMetrics>, String> {
    let text = match std::env::var(APPLICATION_METRICS) {
        Ok(text) if !text.is_empty() => text,
        Ok(_) | Err(std::env::VarError::NotPresent) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let metrics: voile_proxy::ApplicationMetrics = text.parse()?;
    match metrics.port() == own.port() {
        true => Err(format!("port {} is the proxy's own", own.port())),
        false => Ok(Some(metrics)),
    }
}

/// Environment variable with the probes of the application, as Istio's injector writes it.
const PROBERS: &str = "ISTIO_KUBE_APP_PROBERS";

fn probers() -> Result<voile_proxy::Probers, String> {
    match std::env::var(PROBERS) {
        Ok(text) if !text.is_empty() => text.parse(),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(voile_proxy::Probers::default()),
        Err(error) => Err(error.to_string()),
    }
}

/// Address of the DNS listener; None if off.
#[derive(Debug, Clone, Copy)]
struct DnsAddress(Option<SocketAddr>);

fn dns_address(text: &str) -> Result<DnsAddress, String> {
    if text == "off" {
        return Ok(DnsAddress(None));
    }
    let address = text.parse().map_err(|_| {
        format!("`{text}`: expected ADDRESS:PORT, such as 127.0.0.1:15053, or `off`")
    })?;
    Ok(DnsAddress(Some(address)))
}

/// An address with or without a port, 53 without; or `none`.
fn resolver(text: &str) -> Result<ExternalResolver, String> {
    const PORT: u16 = 53;
    if text == "none" {
        return Ok(ExternalResolver::Nowhere);
    }
    text.parse::<SocketAddr>()
        .or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT)))
        .map(ExternalResolver::Server)
        .map_err(|_| {
            format!("`{text}`: expected an address such as 10.0.0.2 or 10.0.0.2:53, or `none`")
        })
}

fn trust_domain(text: &str) -> Result<voile_model::TrustDomain, String> {
    voile_model::TrustDomain::new(text)
        .ok_or_else(|| format!("`{text}`: expected a trust domain, such as cluster.local"))
}

/// None, or within what the configuration may say.
fn service_idle(text: &str) -> Result<Duration, String> {
    let said = duration(text)?;
    let good = said.is_zero() || (1..=24 * 3600).contains(&said.as_secs());
    good.then_some(said)
        .ok_or_else(|| format!("`{text}`: expected 1s to 24h, or 0s"))
}
