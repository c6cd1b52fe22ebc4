//! May this connection come in? The answer is a receipt: a `Permit` can only be made here, and code that forwards bytes
//! takes one as an argument, so that no path exists on which the question was not asked.

use std::fmt;

use voile_model::{Identity, TrustDomain};

/// The kinds of connection that a port accepts, after inheritance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Plaintext only.
    Disable,
    /// Both.
    Permissive,
    /// Mutual TLS only.
    Strict,
}

/// The trust domains of this mesh: its own and the aliases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    domain: TrustDomain,
    aliases: Vec<TrustDomain>,
}

impl Trust {
    /// The mesh's own trust domain, and others that mean the same.
    pub fn new(domain: TrustDomain, aliases: Vec<TrustDomain>) -> Self {
        Self { domain, aliases }
    }

    /// Returns true if identities of this trust domain belong to the mesh.
    pub fn includes(&self, domain: &TrustDomain) -> bool {
        *domain == self.domain || self.aliases.contains(domain)
    }
}

/// Facts about a connection after detection of its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionFacts<'a> {
    /// No TLS that we ended: plaintext, or TLS meant for the application.
    Plaintext,
    /// Mutual TLS that we ended, of which a certificate was taken back since.
    Revoked(&'a Identity),
    /// Mutual TLS that we ended, with the identity of the verified peer certificate (`None`: it names no workload).
    MutualTls(Option<&'a Identity>),
}

/// Leave to forward one connection, with the peer's verified identity if it showed one. Only `inbound` makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    peer: Option<Identity>,
}

impl Permit {
    /// Identity that the peer proved; `None` over plaintext.
    pub fn peer(&self) -> Option<&Identity> {
        self.peer.as_ref()
    }

    /// Returns true if the connection is mutual TLS (`connection_security_policy` in metrics).
    pub fn is_mutual_tls(&self) -> bool {
        self.peer.is_some()
    }
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DenialReason {
    /// STRICT, and no mutual TLS.
    PlaintextUnderStrict,
    /// DISABLE, and mutual TLS of the mesh.
    MutualTlsUnderDisable,
    /// The certificate names no workload.
    NoIdentity,
    /// The identity is of a trust domain that is not ours.
    ForeignTrustDomain,
    /// A certificate of the peer was taken back.
    Revoked,
}

impl DenialReason {
    /// A short name for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PlaintextUnderStrict => "plaintext_under_strict",
            Self::MutualTlsUnderDisable => "mutual_tls_under_disable",
            Self::NoIdentity => "no_identity",
            Self::ForeignTrustDomain => "foreign_trust_domain",
            Self::Revoked => "revoked",
        }
    }
}

/// A refusal. Only `inbound` makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    reason: DenialReason,
    peer: Option<Identity>,
}

impl Denial {
    /// Why.
    pub fn reason(&self) -> DenialReason {
        self.reason
    }

    /// Identity of the refused peer, if known.
    pub fn peer(&self) -> Option<&Identity> {
        self.peer.as_ref()
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            DenialReason::PlaintextUnderStrict => {
                "plaintext is refused: peer authentication is STRICT"
            }
            DenialReason::MutualTlsUnderDisable => {
                "mutual TLS is refused: peer authentication is DISABLE"
            }
            DenialReason::NoIdentity => "the peer's certificate names no workload",
            DenialReason::Revoked => "the peer's certificate is revoked",
            DenialReason::ForeignTrustDomain => {
                "the peer's trust domain is neither the mesh's nor an alias of it"
            }
        })?;
        match &self.peer {
            Some(peer) => write!(f, " ({peer})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Denial {}

/// Decides about one inbound connection.
pub fn inbound(mode: Mode, facts: ConnectionFacts<'_>, trust: &Trust) -> Result<Permit, Denial> {
    let deny = |reason, peer: Option<&Identity>| {
        Err(Denial {
            reason,
            peer: peer.cloned(),
        })
    };
    match (mode, facts) {
        (Mode::Strict, ConnectionFacts::Plaintext) => {
            deny(DenialReason::PlaintextUnderStrict, None)
        }
        (Mode::Disable | Mode::Permissive, ConnectionFacts::Plaintext) => Ok(Permit { peer: None }),
        (_, ConnectionFacts::Revoked(peer)) => deny(DenialReason::Revoked, Some(peer)),
        (Mode::Disable, ConnectionFacts::MutualTls(peer)) => {
            deny(DenialReason::MutualTlsUnderDisable, peer)
        }
        // PERMISSIVE takes what shows no identity, not what shows a wrong one.
        (Mode::Permissive | Mode::Strict, ConnectionFacts::MutualTls(None)) => {
            deny(DenialReason::NoIdentity, None)
        }
        (Mode::Permissive | Mode::Strict, ConnectionFacts::MutualTls(Some(peer))) => {
            if trust.includes(&peer.trust_domain) {
                Ok(Permit {
                    peer: Some(peer.clone()),
                })
            } else {
                deny(DenialReason::ForeignTrustDomain, Some(peer))
            }
        }
    }
}
