//! Whether a connection may come in: the connection's facts put before `voile_policy`. A yes is a [`Permit`], and
//! forwarding asks for one. A connection asks once and again only when the listener's mode or the trust changed.

use std::cell::RefCell;
use std::rc::Rc;

use voile_identity::Identity;
use voile_policy::{ConnectionFacts, Denial, Mode, Permit, Trust, inbound};
use voile_xds::wire::MutualTls;

/// How a connection arrived, and by whom it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// In mutual TLS, verified.
    MutualTls(Identity),
    /// In plaintext, or in TLS that is the application's own.
    Plaintext,
}

pub(crate) fn admit(mode: MutualTls, arrival: &Arrival, trust: &Trust) -> Result<Permit, Denial> {
    let mode = match mode {
        MutualTls::Disable => Mode::Disable,
        MutualTls::Permissive => Mode::Permissive,
        MutualTls::Strict => Mode::Strict,
    };
    let facts = match arrival {
        Arrival::MutualTls(identity) => ConnectionFacts::MutualTls(Some(identity)),
        Arrival::Plaintext => ConnectionFacts::Plaintext,
    };
    inbound(mode, facts, trust)
}

/// A connection's standing permit.
pub(crate) struct Admission {
    arrival: Arrival,
    held: RefCell<Option<Held>>,
}

struct Held {
    mode: MutualTls,
    trust: Rc<Trust>,
    permit: Rc<Permit>,
}

impl Admission {
    pub(crate) fn new(arrival: Arrival) -> Self {
        Self {
            arrival,
            held: RefCell::new(None),
        }
    }

    /// The permit under what holds now: one comparison while nothing changed.
    pub(crate) fn permit(&self, mode: MutualTls, trust: &Rc<Trust>) -> Result<Rc<Permit>, Denial> {
        let mut held = self.held.borrow_mut();
        if let Some(held) = held.as_ref()
            && held.mode == mode
            && Rc::ptr_eq(&held.trust, trust)
        {
            return Ok(Rc::clone(&held.permit));
        }
        *held = None;
        let permit = Rc::new(admit(mode, &self.arrival, trust)?);
        *held = Some(Held {
            mode,
            trust: Rc::clone(trust),
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
        let trust = |domain: &str| {
            Rc::new(Trust::new(
                voile_identity::TrustDomain::new(domain).expect("a trust domain"),
                Vec::new(),
            ))
        };
        let ours = trust("cluster.local");
        let identity = "spiffe://cluster.local/ns/shop/sa/client"
            .parse()
            .expect("an identity");
        let verified = Admission::new(Arrival::MutualTls(identity));
        let plain = Admission::new(Arrival::Plaintext);
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
        let theirs = trust("elsewhere.example");
        assert!(verified.permit(MutualTls::Permissive, &theirs).is_err());
    }
}
