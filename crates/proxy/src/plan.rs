//! What a worker obeys: the checked answers of the control plane, joined into one closed state. Nothing in a plan
//! points at something that is not in it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use voile_identity::{Identity, TrustDomain};
use voile_telemetry::{Peer, Service};
use voile_xds::wire::{AccessLog, MutualTls, Protocol};

/// Names a listener for as long as it lives; never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ListenerId(pub(crate) u32);

/// Everything at once.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) own: Peer,
    pub(crate) inbound: Vec<InboundPlan>,
    pub(crate) outbound: Vec<OutboundPlan>,
    pub(crate) trust_domain: TrustDomain,
    pub(crate) trust_domain_aliases: Vec<TrustDomain>,
    pub(crate) settings: Settings,
}

/// What holds for every connection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) connect_timeout: Duration,
    pub(crate) detection_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    pub(crate) header_timeout: Duration,
    pub(crate) source_address: Option<IpAddr>,
    pub(crate) access_log: Option<AccessLog>,
}

/// One inbound listener.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InboundPlan {
    pub(crate) name: Arc<str>,
    pub(crate) bind: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) mutual_tls: MutualTls,
    pub(crate) endpoint: SocketAddr,
    pub(crate) service: Service,
}

/// One outbound listener.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutboundPlan {
    pub(crate) name: Arc<str>,
    pub(crate) bind: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) services: Vec<ServicePlan>,
}

/// One port of one service as seen from one listener.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServicePlan {
    pub(crate) service: Service,
    pub(crate) port: u16,
    pub(crate) authorities: Vec<Arc<str>>,
    pub(crate) endpoints: Vec<EndpointPlan>,
}

/// One workload behind a service port.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndpointPlan {
    pub(crate) address: SocketAddr,
    /// Who must answer; `None` is plaintext. Never empty.
    pub(crate) expected: Option<Vec<Identity>>,
    pub(crate) weight: u32,
    pub(crate) available: bool,
    pub(crate) peer: Peer,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect_timeout: voile_transport::CONNECT_TIMEOUT,
            detection_timeout: voile_transport::DETECTION_TIMEOUT,
            idle_timeout: voile_transport::IDLE_TIMEOUT,
            header_timeout: crate::http::limits::HEADER_TIMEOUT,
            source_address: None,
            access_log: None,
        }
    }
}
