//! Current certificate and trust bundle of a process. Both change while connections live. Each new handshake takes the
//! newest by one short read lock and one reference count; no request touches them.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::{CertificateDer, TrustAnchor};
use tokio::sync::Notify;
use voile_model::{Identity, TrustDomain};

use crate::chain::issuer_key_id;
use crate::keys::{KeyError, MAX_CHAIN_CERTIFICATES, WorkloadCertificate, certificates_of};
use crate::revocation::Revocations;

/// Trust bundle: roots, and the trust domains whose identities they may certify.
#[derive(Debug, Clone)]
pub struct TrustBundle {
    trust_domain: TrustDomain,
    aliases: Vec<TrustDomain>,
    roots: Vec<CertificateDer<'static>>,
    anchors: Vec<TrustAnchor<'static>>,
    revocations: Arc<Revocations>,
}

impl TrustBundle {
    /// A bundle of at least one root.
    ///
    /// # Errors
    /// There is no root, or one cannot be parsed.
    pub fn new(
        trust_domain: TrustDomain,
        aliases: Vec<TrustDomain>,
        roots: Vec<CertificateDer<'static>>,
    ) -> Result<Self, KeyError> {
        if roots.is_empty() {
            return Err(KeyError::Chain("a trust bundle needs a root".into()));
        }
        let anchor = |root: &CertificateDer<'static>| {
            webpki::anchor_from_trusted_cert(root)
                .map(|anchor| anchor.to_owned())
                .map_err(|error| KeyError::Chain(format!("a root cannot be used: {error}")))
        };
        let anchors = roots.iter().map(anchor).collect::<Result<_, _>>()?;
        Ok(Self {
            trust_domain,
            aliases,
            roots,
            anchors,
            revocations: Arc::default(),
        })
    }

    /// A bundle from PEM, which may hold several roots.
    ///
    /// # Errors
    /// As [`TrustBundle::new`].
    pub fn from_pem(
        trust_domain: TrustDomain,
        aliases: Vec<TrustDomain>,
        pem: &str,
    ) -> Result<Self, KeyError> {
        Self::new(trust_domain, aliases, certificates_of(pem)?)
    }

    /// Our own trust domain.
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The other names of our trust domain.
    pub fn aliases(&self) -> &[TrustDomain] {
        &self.aliases
    }

    /// The roots.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// Revoked certificates.
    pub fn revocations(&self) -> &Arc<Revocations> {
        &self.revocations
    }

    pub(crate) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }

    /// Returns true if identities of this one's trust domain are accepted.
    pub fn trusts(&self, identity: &Identity) -> bool {
        let domain = &identity.trust_domain;
        *domain == self.trust_domain || self.aliases.contains(domain)
    }
}

/// The trust bundle of the moment. `None` until there is one: then everybody is refused.
#[derive(Debug, Default)]
pub struct TrustStore(RwLock<Option<Arc<TrustBundle>>>);

impl TrustStore {
    /// A store with a bundle.
    pub fn new(bundle: TrustBundle) -> Self {
        Self(RwLock::new(Some(Arc::new(bundle))))
    }

    /// The bundle of the moment.
    pub fn current(&self) -> Option<Arc<TrustBundle>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Trusts `bundle` from now on; live connections stay.
    pub fn set(&self, bundle: TrustBundle) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(bundle));
    }

    /// Changes the trust domain's aliases; does nothing while there is no bundle.
    pub fn set_aliases(&self, aliases: &[TrustDomain]) {
        self.change(|bundle| bundle.aliases = aliases.to_vec());
    }

    /// Changes our own trust domain and its aliases; does nothing while there is no bundle.
    pub fn set_trust_domain(&self, own: &TrustDomain, aliases: &[TrustDomain]) {
        self.change(|bundle| {
            bundle.trust_domain = own.clone();
            bundle.aliases = aliases.to_vec();
        });
    }

    /// Trusts these roots and no others; does nothing while there is no bundle.
    ///
    /// # Errors
    /// A root cannot be used; nothing changes then.
    pub fn set_roots(&self, roots: &[CertificateDer<'static>]) -> Result<(), KeyError> {
        let Some(held) = self.current().filter(|held| held.roots != roots) else {
            return Ok(());
        };
        let own = held.trust_domain.clone();
        let changed = TrustBundle::new(own, Vec::new(), roots.to_vec())?;
        self.change(|bundle| (bundle.roots, bundle.anchors) = (changed.roots, changed.anchors));
        Ok(())
    }

    /// Believes these certificates no longer; does nothing while there is no bundle.
    pub fn set_revocations(&self, revocations: &Arc<Revocations>) {
        self.change(|bundle| bundle.revocations = Arc::clone(revocations));
    }

    fn change(&self, change: impl FnOnce(&mut TrustBundle)) {
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(bundle) = held.as_mut() {
            change(Arc::make_mut(bundle));
        }
    }
}

/// The roots of the mesh as the control plane tells them, and who signs now. They come sooner than with the next certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeshRoots {
    /// The roots. None: those that came with the certificate are all.
    pub roots: Vec<CertificateDer<'static>>,
    /// Key identifier of the signer of new certificates; empty if it is not known.
    pub issuer_key_id: Vec<u8>,
}

impl MeshRoots {
    /// Roots that a trusted sender told.
    ///
    /// # Errors
    /// There are too many, or one cannot be used.
    pub fn told(roots: Vec<Vec<u8>>, issuer_key_id: Vec<u8>) -> Result<Self, KeyError> {
        if roots.len() > MAX_CHAIN_CERTIFICATES {
            return Err(KeyError::Chain(format!(
                "{} roots, at most {MAX_CHAIN_CERTIFICATES} are read",
                roots.len()
            )));
        }
        let roots: Vec<_> = roots.into_iter().map(CertificateDer::from).collect();
        for root in &roots {
            webpki::anchor_from_trusted_cert(root)
                .map_err(|error| KeyError::Chain(format!("a root cannot be used: {error}")))?;
        }
        Ok(Self {
            roots,
            issuer_key_id,
        })
    }
}

/// The certificate of the moment, offered to every new handshake, and the trust that came with it.
#[derive(Debug, Default)]
pub struct CertificateStore {
    certificate: RwLock<Option<Arc<WorkloadCertificate>>>,
    /// The trust domain's aliases that hold with the first certificate.
    aliases: Vec<TrustDomain>,
    trust: Arc<TrustStore>,
    /// Held while the trust changes: a certificate and what is told may come at once.
    told: Mutex<ToldTrust>,
    /// Another authority signs than did.
    issuer: Notify,
    trouble: RwLock<Option<String>>,
    renewal: Notify,
}

/// Trust that the control plane tells beside a certificate.
#[derive(Debug, Default)]
struct ToldTrust {
    roots: Arc<MeshRoots>,
    revocations: Arc<Revocations>,
}

impl CertificateStore {
    /// An empty store: handshakes fail until a certificate is published.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same that believes identities of these trust domains, too, from the first certificate on.
    pub fn believing(aliases: &[TrustDomain]) -> Self {
        Self {
            aliases: aliases.to_vec(),
            ..Self::default()
        }
    }

    /// The certificate of the moment.
    pub fn current(&self) -> Option<Arc<WorkloadCertificate>> {
        self.certificate
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Why the last attempt at a certificate failed; `None` when it did not.
    pub fn trouble(&self) -> Option<String> {
        self.trouble
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.write().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Wants a new certificate now, not at half of this one's life. Wishes that come while one is being fetched are one
    /// wish; what is in hand is used until the new one is there.
    pub fn ask_to_renew(&self) {
        self.renewal.notify_one();
    }

    /// Resolves when somebody asked.
    pub(crate) async fn asked_to_renew(&self) {
        self.renewal.notified().await;
    }

    /// Trust store of the handshakes.
    pub fn trust(&self) -> &Arc<TrustStore> {
        &self.trust
    }

    /// Shows `certificate` in every handshake from now on and trusts the roots that came with it and those that were told; the
    /// aliases of the trust domain stay, and so does what is revoked.
    ///
    /// # Errors
    /// A root that came with it cannot be used; nothing changes then.
    pub fn publish(
        &self,
        certificate: WorkloadCertificate,
    ) -> Result<Arc<WorkloadCertificate>, KeyError> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.trust.current();
        let aliases = old.map_or_else(|| self.aliases.clone(), |old| old.aliases.clone());
        let own = certificate.identity().trust_domain.clone();
        let mut bundle =
            TrustBundle::new(own, aliases, all_roots(certificate.roots(), &told.roots))?;
        bundle.revocations = Arc::clone(&told.revocations);
        let certificate = Arc::new(certificate);
        self.trust.set(bundle);
        *self
            .certificate
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&certificate));
        Ok(certificate)
    }

    /// Trusts the roots that the control plane tells beside those that came with the certificate. A root ends when neither has it.
    /// A certificate of another signer is renewed soon.
    pub fn tell_roots(&self, roots: &Arc<MeshRoots>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.roots == *roots {
            return;
        }
        told.roots = Arc::clone(roots);
        if let Some(certificate) = self.current() {
            // Each root was usable on its own.
            let set = self
                .trust
                .set_roots(&all_roots(certificate.roots(), &told.roots));
            if let Err(error) = set {
                tracing::error!(%error, "the roots of the mesh cannot be used");
            }
        }
        drop(told);
        self.issuer.notify_one();
    }

    /// Refuses these certificates in every handshake from now on, and those after the first certificate.
    pub fn tell_revocations(&self, revocations: &Arc<Revocations>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.revocations = Arc::clone(revocations);
        self.trust.set_revocations(revocations);
    }

    /// Returns true if new certificates are signed by another authority than the one in hand.
    pub(crate) fn issuer_changed(&self) -> bool {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let own = self.current();
        let leaf = own
            .as_ref()
            .and_then(|own| own.certified_key().cert.first());
        let own = leaf.and_then(issuer_key_id);
        let signer = &told.roots.issuer_key_id;
        !signer.is_empty() && own.is_some_and(|own| own != *signer)
    }

    /// Resolves when other roots or another signer were told.
    pub(crate) async fn roots_told(&self) {
        self.issuer.notified().await;
    }

    fn resolve_for(&self, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let key = Arc::clone(self.current()?.certified_key());
        let ours = key.key.algorithm() == SignatureAlgorithm::ECDSA;
        (ours && key.key.choose_scheme(schemes).is_some()).then_some(key)
    }
}

/// The roots of a certificate, and those that were told.
fn all_roots(
    certificate: &[CertificateDer<'static>],
    told: &MeshRoots,
) -> Vec<CertificateDer<'static>> {
    let further = told.roots.iter().filter(|root| !certificate.contains(root));
    certificate.iter().chain(further).cloned().collect()
}

impl ResolvesServerCert for CertificateStore {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.resolve_for(hello.signature_schemes())
    }
}

impl ResolvesClientCert for CertificateStore {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.resolve_for(schemes)
    }

    fn has_certs(&self) -> bool {
        true
    }
}
