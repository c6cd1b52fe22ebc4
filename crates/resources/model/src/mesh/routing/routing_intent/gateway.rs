//! Istio's Gateways, and what Gateway API's become when they are attached.

use std::net::IpAddr;
use std::sync::Arc;

use crate::mesh::TrustedCertificates;
use crate::names::{Hostname, Labels, Namespace, Port, ResourceName};
use crate::source::Source;

/// One Gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// The workloads that are it.
    pub selector: Option<Labels>,
    /// Only those of this namespace; Istio's are of any.
    pub namespace: Option<Namespace>,
    /// Its servers.
    pub servers: Vec<DeclaredServer>,
}

/// One of `servers`, or of `listeners`.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclaredServer {
    /// File and line of its definition.
    pub source: Source,
    /// Its name, may be empty.
    pub name: Arc<str>,
    /// Its port.
    pub port: Port,
    /// The port at which its workloads take that, if it is another one.
    pub listens: Option<Port>,
    /// Its protocol, in upper case.
    pub protocol: Arc<str>,
    /// Bind address; `None` is the workload's own address.
    pub bind: Option<IpAddr>,
    /// Hosts that are served.
    pub hosts: Vec<ServerHost>,
    /// TLS settings (Istio's API).
    pub tls: Option<ServerTls>,
    /// Secrets that hold its certificate; without a namespace that of the workload.
    pub credentials: Vec<(Option<Namespace>, Arc<str>, Source)>,
    /// True if a Secret of another namespace than the workload's may be used: a ReferenceGrant permits it.
    pub granted: bool,
}

/// `tls` of a server of Istio's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// TLS mode.
    pub mode: ServerTlsMode,
    /// Clients in plaintext are sent to `https`.
    pub https_redirect: bool,
    /// The oldest version that is spoken.
    pub oldest: TlsVersion,
    /// The newest.
    pub newest: TlsVersion,
    /// The suites of TLS 1.2, by OpenSSL's names; none is all there are.
    pub cipher_suites: Vec<Arc<str>>,
    /// Certificate, key and authorities in files of the proxy's own machine.
    pub files: Option<ServerFiles>,
    /// Authorities of client certificates in the place of those of the Secrets: Gateway API's `caCertificateRefs`.
    pub authorities: Option<Arc<TrustedCertificates>>,
    /// Beside `OptionalMutual`: clients with an invalid certificate are served as those without one.
    pub unverified: bool,
}

/// `serverCertificate`, `privateKey`, `caCertificates` and `caCrl`: paths on the machine of the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate and those between it and its root.
    pub certificate: Arc<str>,
    /// Its key.
    pub key: Arc<str>,
    /// Trusted authorities for client certificates, if clients need one.
    pub authorities: Option<Arc<str>>,
    /// `caCrl`: CRLs of those authorities.
    pub revocations: Option<Arc<str>>,
}

/// `tls.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerTlsMode {
    /// It ends behind us: routes look at the name alone.
    Passthrough,
    /// It ends here.
    Simple,
    /// The same, and clients show a certificate.
    Mutual,
    /// The same, if they have one.
    OptionalMutual,
    /// The mesh's own.
    IstioMutual,
    /// To the service that the name says, without routes.
    AutoPassthrough,
}

/// A version of TLS that is spoken here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TlsVersion {
    /// 1.2.
    V12,
    /// 1.3.
    V13,
}

/// A served host, and the namespace of its routes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerHost {
    /// Routes of this namespace; `None` is any.
    pub namespace: Option<Namespace>,
    /// The host.
    pub host: Hostname,
}

impl ServerHost {
    /// Returns true if it serves some host of `host` for a route of `namespace`.
    #[must_use]
    pub fn serves(&self, host: &Hostname, namespace: &Namespace) -> bool {
        let open = self.namespace.as_ref().is_none_or(|own| own == namespace);
        open && (self.host.covers(host) || host.covers(&self.host))
    }
}
