//! The value of the field for one connection, by the mode in force.

use voile_xds::wire::ClientCertificateDetails;
use voile_xds::wire::ForwardClientCertificate::{
    self, AlwaysForwardOnly, AppendForward, ForwardOnly, Sanitize, SanitizeSet,
};

pub(in crate::worker) const FORWARDED_CERTIFICATE: &str = "x-forwarded-client-cert";

/// Certificate facts of one connection's client, if the mode forwards any.
#[derive(Debug, Clone)]
pub(crate) struct Forwarded {
    /// True if the client showed a certificate.
    pub(super) shown: bool,
    /// Verified value for this client, if the mode writes it.
    pub(super) own: Option<Box<str>>,
    /// The parts that this is.
    pub(super) details: ClientCertificateDetails,
}

impl Forwarded {
    /// Verified value with these parts; `None` if the connection noted other parts.
    pub(super) fn own_as(&self, details: ClientCertificateDetails) -> Option<&[u8]> {
        let own = self.own.as_deref().filter(|_| self.details == details);
        own.map(str::as_bytes)
    }

    /// Returns true if the received value goes on, and the value that is written after it.
    pub(super) fn goes_on(
        &self,
        mode: ForwardClientCertificate,
        details: ClientCertificateDetails,
    ) -> (bool, Option<&[u8]>) {
        let own = self.own_as(details);
        match mode {
            AlwaysForwardOnly => (true, None),
            ForwardOnly => (self.shown, None),
            // Never what came without what is true.
            AppendForward => (own.is_some(), own),
            SanitizeSet => (false, own),
            Sanitize => (false, None),
        }
    }
}
