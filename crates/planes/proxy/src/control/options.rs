//! Settings of a proxy as the command line has them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use voile_model::TrustDomain;
use voile_process::ProcessOptions;
use voile_transport::CaptureExemption;

use crate::control::{ApplicationMetrics, Probers};
use crate::worker::ProxyLimits;

/// Settings of a proxy.
#[derive(Debug)]
pub struct ProxyOptions {
    /// What every proxy has.
    pub process: ProcessOptions,
    /// `namespace/name` of the workload it stands for.
    pub workload: String,
    /// Group by which the workload joins the mesh; without it the mesh knows the workload.
    pub membership: Option<Membership>,
    /// True if programs may be run that the group's probe names.
    pub exec_probes: bool,
    /// `https://host:port` of a certificate authority beside the control plane, and the trust domain of its certificates.
    pub authority: Option<(String, TrustDomain)>,
    /// Service-account token, read anew whenever it is needed.
    pub token_file: Option<PathBuf>,
    /// Single-use join token for the first certificate.
    pub join_token_file: Option<PathBuf>,
    /// Address of the DNS server, if there is one.
    pub dns: Option<SocketAddr>,
    /// Limits of the proxy.
    pub limits: ProxyLimits,
    /// Time after which an unused subscription ends; `None` leaves it to the configuration.
    pub service_idle: Option<Duration>,
    /// Addresses of redirected connections; `None` without redirection.
    pub capture: Option<CapturePorts>,
    /// The pod's own addresses: not ready before the kernel redirects connections to them. Empty: no check.
    pub captured_addresses: Vec<IpAddr>,
    /// Probes of the application that the metrics port serves.
    pub probers: Probers,
    /// Metrics of the application that the metrics port serves, too.
    pub application_metrics: Option<ApplicationMetrics>,
    /// True for a gateway: no workload is behind it, and it takes connections from outside.
    pub gateway: bool,
    /// True for a waypoint: it takes tunnels to its destinations, and nothing else.
    pub waypoint: bool,
}

/// WorkloadGroup of a workload that joins by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The group's name, in the workload's namespace.
    pub group: String,
    /// Address of the workload.
    pub address: IpAddr,
}

/// Addresses to which the kernel redirects the connections of our pod. An IPv4 wildcard stands for IPv6's,
/// too.
#[derive(Debug, Clone, Copy)]
pub struct CapturePorts {
    /// Outbound connections of the application (15001).
    pub outbound: SocketAddr,
    /// Inbound connections to the application (15006).
    pub inbound: SocketAddr,
    /// Tunnels of node proxies and other sidecars to the application (15008), which are not redirected.
    pub tunnels: SocketAddr,
    /// How the redirect rules recognise the proxy's own connections.
    pub exemption: CaptureExemption,
    /// The application is called from its client's own address. Needs [`CaptureExemption::Marks`].
    pub keeps_source: bool,
}

impl ProxyOptions {
    /// How redirect rules recognise the proxy's own connections; `None` without capture.
    pub(super) fn exemption(&self) -> Option<CaptureExemption> {
        self.capture.map(|capture| capture.exemption)
    }
}

/// Time after which the subscription to an unused service, host name or caller ends, by default. Asking again costs a round
/// trip to the control plane (milliseconds) and the handshakes of new connections. A subscription costs some kilobytes, and
/// a push for each of its changes. Jobs that run every minute or few keep their subscriptions; those of a start, of a single
/// use or of another release end. The time is above the 30 s that our DNS answers last and the 60 s that idle connections
/// do.
pub(crate) const SERVICE_IDLE: Duration = Duration::from_mins(5);
