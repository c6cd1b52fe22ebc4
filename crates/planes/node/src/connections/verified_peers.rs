//! Peers that proved their identity, with the certificates they used. Certificates may be revoked while the peer is
//! connected.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;
use voile_identity::revocation::keys_of;
use voile_identity::{CertificateKey, Identity, PeerError, Revocations, identity_of};
use voile_transport::TransportStream;

/// Reason of a refusal or cut because of a revoked certificate.
pub(crate) const REVOKED: &str = "its certificate is revoked";

/// A peer that showed certificates.
#[derive(Debug)]
pub(crate) struct ProvenPeer {
    pub(crate) identity: Identity,
    certificates: Box<[CertificateKey]>,
}

impl ProvenPeer {
    /// Returns the peer of a TLS connection.
    pub(crate) fn of(stream: &TransportStream) -> Result<Self, PeerError> {
        Self::shown(stream.peer_certificates())
    }

    /// Returns the peer that presented these verified certificates.
    pub(crate) fn shown(chain: &[CertificateDer<'_>]) -> Result<Self, PeerError> {
        let leaf = chain.first().ok_or(PeerError::NoCertificate)?;
        Ok(Self {
            identity: identity_of(leaf)?,
            certificates: keys_of(chain),
        })
    }

    /// One of this process's own, by the certificate that it holds.
    pub(crate) fn by(identity: &Identity, chain: &[CertificateDer<'_>]) -> Self {
        Self {
            identity: identity.clone(),
            certificates: keys_of(chain),
        }
    }

    /// Returns true if one of the peer's certificates is revoked.
    pub(crate) fn is_revoked(&self, lists: &Revocations) -> bool {
        self.certificates.iter().any(|key| lists.includes(*key))
    }
}

/// An outgoing connection to a verified peer, and the notification that ends it.
#[derive(Debug)]
pub(crate) struct PeerBond {
    proven: RefCell<Option<ProvenPeer>>,
    broken: Cell<bool>,
    word: Notify,
}

impl PeerBond {
    /// It was proven by this.
    pub(crate) fn prove(&self, proven: ProvenPeer) {
        *self.proven.borrow_mut() = Some(proven);
    }

    /// Returns true if the peer's certificate is revoked.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Ready when the peer's certificate is revoked.
    pub(crate) async fn broken(&self) {
        while !self.broken.get() {
            self.word.notified().await;
        }
    }
}

/// All of a worker's.
#[derive(Debug, Default)]
pub(crate) struct PeerBonds(RefCell<Vec<Weak<PeerBond>>>);

impl PeerBonds {
    /// One more.
    pub(crate) fn begin(&self) -> Rc<PeerBond> {
        let bond = Rc::new(PeerBond {
            proven: RefCell::new(None),
            broken: Cell::new(false),
            word: Notify::new(),
        });
        let mut all = self.0.borrow_mut();
        if all.len() == all.capacity() {
            all.retain(|one| one.strong_count() > 0);
        }
        all.push(Rc::downgrade(&bond));
        bond
    }

    /// Ends the connections whose peers are on these lists.
    pub(crate) fn obey(&self, lists: &Revocations) {
        for bond in self.0.borrow().iter().filter_map(Weak::upgrade) {
            let proven = bond.proven.borrow();
            if proven.as_ref().is_some_and(|one| one.is_revoked(lists)) {
                bond.broken.set(true);
                // The leaving side and the cutting side may both wait.
                bond.word.notify_waiters();
                bond.word.notify_one();
            }
        }
    }
}
