//! Options of a control plane.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use voile_identity::RootPolicy;

use crate::keys::KeyOptions;
use crate::ztunnel::NodeAccount;

/// Istiod's `keepaliveMaxServerConnectionAge`. A caller proves itself when a stream begins; this bounds how long a stream
/// outlives the token or certificate that opened it.
pub(crate) const CONNECTION_AGE: Duration = Duration::from_secs(30 * 60);

/// Time for which a removed workload's proxy still gets answers. It is longer than any drain, since an application that finishes
/// its work may still make new calls.
pub const FAREWELL: Duration = Duration::from_secs(300);

/// Istiod's own: how long a workload that joined by itself may be without a stream before it has left.
pub const WORKLOAD_GRACE: Duration = Duration::from_secs(10);

/// Options of the control plane: its sources, its state directory, and its listeners.
#[derive(Debug, Clone)]
pub struct ControlOptions {
    /// Folders of resources, read together.
    pub config: Vec<PathBuf>,
    /// Directory of the root and token keys.
    pub state: PathBuf,
    /// Which root is served, where proxies may trust one already.
    pub root: RootPolicy,
    /// Discovery and certificates over TLS.
    pub listen: SocketAddr,
    /// DNS names and addresses that proxies know it by, besides those that every control plane is certified for.
    pub names: Vec<String>,
    /// Discovery in plaintext, for callers with a token; `None` is off.
    pub plaintext: Option<SocketAddr>,
    /// Allows the plaintext listener beyond loopback.
    pub plaintext_beyond_loopback: bool,
    /// Longest life of a workload's certificate.
    pub certificate_ttl: Duration,
    /// Service accounts whose pods are node proxies (ztunnel), which may ask for certificates of their node's ambient workloads.
    pub node_accounts: BTreeSet<NodeAccount>,
    /// Age at which a connection ends and its caller must prove itself again.
    pub connection_age: Duration,
    /// Time for which a removed workload's proxy still gets answers.
    pub farewell: Duration,
    /// Time without a stream after which a workload that joined by itself has left.
    pub workload_grace: Duration,
    /// Readiness, metrics and status.
    pub monitoring: SocketAddr,
    /// Options for fetching token issuers' keys.
    pub keys: KeyOptions,
}

impl ControlOptions {
    /// Istio's ports on the loopback address.
    pub fn new(config: Vec<PathBuf>, state: PathBuf) -> Self {
        let local = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        Self {
            config,
            state,
            root: RootPolicy::default(),
            listen: local(15012),
            names: Vec::new(),
            plaintext: None,
            plaintext_beyond_loopback: false,
            certificate_ttl: voile_identity::DEFAULT_TTL,
            node_accounts: BTreeSet::new(),
            connection_age: CONNECTION_AGE,
            farewell: FAREWELL,
            workload_grace: WORKLOAD_GRACE,
            monitoring: local(15014),
            keys: KeyOptions::default(),
        }
    }
}
