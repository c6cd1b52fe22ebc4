//! `tls` of a whole Gateway: certificates that its clients must show, and the one that it shows to backends.

use std::collections::BTreeMap;

use super::Reference;
use crate::names::Port;

/// `tls` of a Gateway.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GatewayTlsConfig {
    /// `frontend.default`: verification of clients of listeners that terminate TLS.
    pub default: Option<ClientValidation>,
    /// `frontend.perPort`, in the place of the default.
    pub ports: BTreeMap<Port, Option<ClientValidation>>,
    /// `backend.clientCertificateRef`: the certificate for backends that a BackendTLSPolicy is for.
    pub client_certificate: Option<Reference>,
}

impl GatewayTlsConfig {
    /// The verification of clients of a port.
    #[must_use]
    pub fn validation(&self, port: Port) -> Option<&ClientValidation> {
        let own = self.ports.get(&port);
        own.unwrap_or(&self.default).as_ref()
    }

    /// Returns true if clients of some port need no valid certificate although authorities are named.
    #[must_use]
    pub fn has_fallback(&self) -> bool {
        let all = self.ports.values().chain([&self.default]);
        all.flatten().any(|one| one.fallback)
    }
}

/// `validation`: the authorities of clients' certificates.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientValidation {
    /// `caCertificateRefs`.
    pub authorities: Vec<Reference>,
    /// `mode: AllowInsecureFallback`: clients without a valid certificate are served, too.
    pub fallback: bool,
}
