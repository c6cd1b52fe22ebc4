//! Whether a connection may come in, by PeerAuthentication's mode. A yes is a [`Permit`], and forwarding asks for one.

use voile_xds::wire::MutualTls;

/// How a connection arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// In mutual TLS, verified.
    MutualTls,
    /// In plaintext, or in TLS that is the application's own.
    Plaintext,
}

/// The receipt of a yes. Made here only.
#[derive(Debug)]
pub(crate) struct Permit(());

/// Why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denial {
    /// STRICT, and the client spoke plaintext.
    PlaintextToStrict,
    /// DISABLE, and the client came in mutual TLS before the mode changed.
    MutualTlsToDisable,
}

impl Denial {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::PlaintextToStrict => "plaintext refused: PeerAuthentication is STRICT",
            Self::MutualTlsToDisable => "mutual TLS refused: PeerAuthentication is DISABLE",
        }
    }
}

pub(crate) fn admit(mode: MutualTls, arrival: Arrival) -> Result<Permit, Denial> {
    match (mode, arrival) {
        (MutualTls::Strict, Arrival::Plaintext) => Err(Denial::PlaintextToStrict),
        (MutualTls::Disable, Arrival::MutualTls) => Err(Denial::MutualTlsToDisable),
        (MutualTls::Strict | MutualTls::Permissive, Arrival::MutualTls)
        | (MutualTls::Permissive | MutualTls::Disable, Arrival::Plaintext) => Ok(Permit(())),
    }
}
