//! The lists of revoked certificates beside the authority's keys: read, verified, and made the resource that every proxy
//! holds. Lists that cannot be believed leave the last good ones in force, and stop a control plane that has none.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use rustls::pki_types::CertificateDer;
use voile_identity::Revocations;
use voile_identity::revocation::{CRL_FILE, lists_of, local};
use voile_proto::{proxy as wire, type_url};
use voile_xds::server::Resource;

use crate::snapshot::resource;

/// See the module.
pub(crate) struct RevocationFile {
    path: PathBuf,
    issuers: Vec<CertificateDer<'static>>,
    held: Arc<Revocations>,
    /// PEM text of the lists in force.
    pem: Vec<u8>,
    resource: Option<Arc<Resource>>,
}

impl RevocationFile {
    /// The file in the state directory; its lists must be signed by one of `issuers`.
    pub(crate) fn new(state: &Path, issuers: Vec<CertificateDer<'static>>) -> Self {
        Self {
            path: state.join(CRL_FILE),
            issuers,
            held: Arc::default(),
            pem: Vec::new(),
            resource: None,
        }
    }

    /// Revocations in force.
    pub(crate) fn held(&self) -> &Arc<Revocations> {
        &self.held
    }

    /// The same as proxies are told; none where there is no file.
    pub(crate) fn resource(&self) -> Option<&Arc<Resource>> {
        self.resource.as_ref()
    }

    /// The same as it was written; none where there is no file.
    pub(crate) fn pem(&self) -> Option<&[u8]> {
        self.resource.as_ref().map(|_| self.pem.as_slice())
    }

    /// Reads the file. An error says what is wrong and changes nothing.
    pub(crate) fn read(&mut self, now: SystemTime) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.path.display());
        let Some(pem) = local::read_file(&self.path).map_err(|error| failed(&error))? else {
            if self.resource.take().is_some() {
                tracing::warn!(file = %self.path.display(), "the certificate revocation list was removed: no certificate is revoked any more");
            }
            self.held = Arc::default();
            return Ok(());
        };
        // Every edit of the mesh comes by here, and signatures take their time.
        if self.resource.is_some() && self.pem == pem {
            return Ok(());
        }
        let lists = lists_of(&pem).map_err(|error| failed(&error))?;
        let read = Revocations::read(&lists, &self.issuers, now).map_err(|error| failed(&error))?;
        self.pem = pem;
        if read == *self.held && self.resource.is_some() {
            return Ok(());
        }
        tracing::info!(file = %self.path.display(), certificates = read.len(), "certificate revocation list read");
        let body = wire::RevocationLists {
            lists: lists.iter().map(|list| list.to_vec()).collect(),
        };
        let made = resource(
            type_url::REVOCATIONS.into(),
            Vec::new(),
            body.encode_to_vec(),
        );
        self.resource = Some(Arc::new(made));
        self.held = Arc::new(read);
        Ok(())
    }

    /// Warning for the operator if a list in force is stale. A stale list stays in force: refusing all callers because a
    /// list was not renewed would turn a forgotten timer into an outage. A certificate on the list is refused either way.
    pub(crate) fn stale(&self, now: SystemTime) -> Option<String> {
        let next = self.held.next_update().filter(|next| *next <= now)?;
        let since = next.duration_since(UNIX_EPOCH).ok()?.as_secs();
        let path = self.path.display();
        Some(format!(
            "{path}: a certificate revocation list expired at {since} (Unix time); it stays in force, and later revocations are unknown: replace the file"
        ))
    }
}
