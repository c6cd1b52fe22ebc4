//! Admission of inbound connections: passes the facts of a connection to `voile_policy`. An admitted connection
//! holds a [`Permit`], which forwarding code demands. The worker asks once per connection, and again only after
//! the listener's mode or the trust changed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use voile_identity::{CertificateKey, Identity, Revocations};
use voile_policy::{ConnectionFacts, Denial, Mode, Permit, Trust, inbound};
use voile_xds::wire::MutualTls;

/// Transport of an inbound connection, with the verified peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConnectionArrival {
    /// In mutual TLS, verified.
    MutualTls(Rc<Verified>),
    /// The same, through a tunnel of HBONE. Tunnels are accepted in every mode, as by node proxies: the caller's identity
    /// is verified.
    Tunnel(Rc<Verified>),
    /// In plaintext, or in TLS that is the application's own.
    Plaintext,
}

/// Verified identity of a peer, with its certificates: an authority may revoke them while the peer is
/// connected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) identity: Identity,
    pub(crate) certificates: Box<[CertificateKey]>,
}

/// Trust domains and revocation lists in force. Connections compare the pointer to learn if their permit
/// still stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TrustState {
    pub(crate) trust: Trust,
    pub(crate) revocations: Option<Arc<Revocations>>,
}

impl ConnectionArrival {
    /// Verified peer, if the client proved its identity.
    pub(crate) fn peer(&self) -> Option<&Verified> {
        match self {
            Self::MutualTls(peer) | Self::Tunnel(peer) => Some(peer),
            Self::Plaintext => None,
        }
    }
}

impl TrustState {
    fn is_revoked(&self, peer: &Verified) -> bool {
        let lists = self.revocations.as_ref();
        lists.is_some_and(|lists| peer.certificates.iter().any(|key| lists.includes(*key)))
    }
}

pub(crate) fn admit(
    mode: MutualTls,
    arrival: &ConnectionArrival,
    belief: &TrustState,
) -> Result<Permit, Denial> {
    let mode = match (mode, arrival) {
        (MutualTls::Strict, _) => Mode::Strict,
        (MutualTls::Permissive, _) | (MutualTls::Disable, ConnectionArrival::Tunnel(_)) => {
            Mode::Permissive
        }
        (MutualTls::Disable, _) => Mode::Disable,
    };
    let facts = match arrival {
        ConnectionArrival::MutualTls(peer) | ConnectionArrival::Tunnel(peer)
            if belief.is_revoked(peer) =>
        {
            ConnectionFacts::Revoked(&peer.identity)
        }
        ConnectionArrival::MutualTls(peer) | ConnectionArrival::Tunnel(peer) => {
            ConnectionFacts::MutualTls(Some(&peer.identity))
        }
        ConnectionArrival::Plaintext => ConnectionFacts::Plaintext,
    };
    inbound(mode, facts, &belief.trust)
}

/// A connection's standing permit.
pub(crate) struct Admission {
    arrival: ConnectionArrival,
    held: RefCell<Option<AdmittedConnection>>,
}

struct AdmittedConnection {
    mode: MutualTls,
    belief: Rc<TrustState>,
    permit: Rc<Permit>,
}

impl Admission {
    pub(crate) fn new(arrival: ConnectionArrival) -> Self {
        Self {
            arrival,
            held: RefCell::new(None),
        }
    }

    /// The permit under what holds now: one comparison while nothing changed.
    pub(crate) fn permit(
        &self,
        mode: MutualTls,
        belief: &Rc<TrustState>,
    ) -> Result<Rc<Permit>, Denial> {
        let mut held = self.held.borrow_mut();
        if let Some(held) = held.as_ref()
            && held.mode == mode
            && Rc::ptr_eq(&held.belief, belief)
        {
            return Ok(Rc::clone(&held.permit));
        }
        *held = None;
        let permit = Rc::new(admit(mode, &self.arrival, belief)?);
        *held = Some(AdmittedConnection {
            mode,
            belief: Rc::clone(belief),
            permit: Rc::clone(&permit),
        });
        Ok(permit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_is_asked_for_anew_when_the_mode_changes_and_is_lost_with_it() {
        let belief = |domain: &str| {
            let domain = voile_identity::TrustDomain::new(domain).expect("a trust domain");
            Rc::new(TrustState {
                trust: Trust::new(domain, Vec::new()),
                revocations: None,
            })
        };
        let ours = belief("cluster.local");
        let identity = "spiffe://cluster.local/ns/shop/sa/client"
            .parse()
            .expect("an identity");
        let verified = Admission::new(ConnectionArrival::MutualTls(Rc::new(Verified {
            identity,
            certificates: Box::default(),
        })));
        let plain = Admission::new(ConnectionArrival::Plaintext);
        let cases = [
            (MutualTls::Permissive, true, true),
            (MutualTls::Strict, true, false),
            (MutualTls::Disable, false, true),
            (MutualTls::Permissive, true, true),
        ];
        for (mode, verified_may, plain_may) in cases {
            assert_eq!(
                verified.permit(mode, &ours).is_ok(),
                verified_may,
                "{mode:?}"
            );
            assert_eq!(plain.permit(mode, &ours).is_ok(), plain_may, "{mode:?}");
        }
        let theirs = belief("elsewhere.example");
        assert!(verified.permit(MutualTls::Permissive, &theirs).is_err());
    }
}
