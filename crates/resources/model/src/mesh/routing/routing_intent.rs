//! Routes, gateways and destinations as written, in force or not. Proxies never receive them. Analysis reads them, so
//! that faults across resources are known before a proxy applies them.

mod gateway;

use std::sync::Arc;

use crate::mesh::{VirtualService, Visibility};
use crate::names::{Hostname, Labels, Port, ResourceName};
use crate::source::Source;
pub use gateway::{
    DeclaredServer, Gateway, ServerFiles, ServerHost, ServerTls, ServerTlsMode, TlsVersion,
};

/// All of it, in the order of the documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoutingIntents {
    /// VirtualServices with all that they say, in force or not.
    pub virtual_services: Vec<Arc<VirtualService>>,
    /// Istio's Gateways.
    pub gateways: Vec<Arc<Gateway>>,
    /// DestinationRules with all that they say, in force or not.
    pub destinations: Vec<Arc<Destination>>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RoutingIntent {
    VirtualService(Arc<VirtualService>),
    Gateway(Arc<Gateway>),
    Destination(Arc<Destination>),
}

impl RoutingIntents {
    pub(crate) fn add(&mut self, one: RoutingIntent) {
        match one {
            RoutingIntent::VirtualService(one) => self.virtual_services.push(one),
            RoutingIntent::Gateway(one) => self.gateways.push(one),
            RoutingIntent::Destination(one) => self.destinations.push(one),
        }
    }

    /// Returns true if there is none of them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A DestinationRule as written, with the parts that are not yet in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Destination {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// Services it is for; a short name is made whole by its own namespace.
    pub host: Hostname,
    /// Clients it is for.
    pub visibility: Visibility,
    /// Clients of its namespace that it is for (`workloadSelector`); `None` is all.
    pub selector: Option<Labels>,
    /// Named parts.
    pub subsets: Vec<DestinationSubset>,
    /// Every `tls` there is, of the whole, of ports and of subsets.
    pub tls: Vec<ClientTls>,
    /// Location of a failover setting without outlier detection, which alone would trigger it.
    pub failover_without_ejection: Option<Source>,
}

/// One of `subsets`.
#[derive(Debug, Clone, PartialEq)]
pub struct DestinationSubset {
    /// Its name.
    pub name: Arc<str>,
    /// Its workloads have these.
    pub labels: Labels,
    /// File and line of its definition.
    pub source: Source,
}

/// One `tls` of a DestinationRule.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientTls {
    /// File and line of its definition.
    pub source: Source,
    /// TLS mode of the clients.
    pub mode: ClientTlsMode,
    /// On this service port; `None` is all.
    pub port: Option<Port>,
    /// To this subset; `None` is the whole.
    pub subset: Option<Arc<str>>,
    /// `credentialName`: a Secret, or its name within a `kubernetes://` address.
    pub credential: Option<Arc<str>>,
    /// True if the server's certificate is not verified (`insecureSkipVerify`).
    pub unverified: bool,
}

/// `mode` of a DestinationRule's `tls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientTlsMode {
    /// Plaintext.
    Disable,
    /// TLS that is not the mesh's.
    Simple,
    /// TLS that is not the mesh's, with a certificate of the client's.
    Mutual,
    /// The mesh's own.
    IstioMutual,
}

impl ClientTlsMode {
    /// Istio's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Disable => "DISABLE",
            Self::Simple => "SIMPLE",
            Self::Mutual => "MUTUAL",
            Self::IstioMutual => "ISTIO_MUTUAL",
        }
    }
}
