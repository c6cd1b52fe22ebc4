//! The lists of revoked certificates beside the authority's keys: read, verified, and made the resource that every proxy
//! holds, with the roots of an authority that may change. Lists that cannot be believed leave the last good ones in force, and stop
//! a control plane that has none.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use voile_identity::revocation::{CRL_FILE, lists_of, local};
use voile_identity::{Authority, Revocations};
use voile_proto::{proxy as wire, type_url};
use voile_xds::server::Resource;

use crate::resources::resource;

/// See the module.
pub(crate) struct RevocationFile {
    path: PathBuf,
    /// Its roots sign the lists.
    authority: Arc<Authority>,
    /// True if the authority may change while proxies run.
    tells_roots: bool,
    held: Arc<Revocations>,
    /// PEM text of the lists in force, and the lists; none where there is no file.
    lists: Option<(Vec<u8>, Vec<Vec<u8>>)>,
    resource: Option<Arc<Resource>>,
}

impl RevocationFile {
    /// The file in the state directory. Proxies are told the roots of an authority that may change.
    pub(crate) fn new(state: &Path, authority: Arc<Authority>, tells_roots: bool) -> Self {
        let mut made = Self {
            path: state.join(CRL_FILE),
            authority,
            tells_roots,
            held: Arc::default(),
            lists: None,
            resource: None,
        };
        made.make_resource();
        made
    }

    /// Tells proxies the roots of this authority.
    pub(crate) fn set_authority(&mut self, authority: Arc<Authority>) {
        self.authority = authority;
        self.make_resource();
    }

    fn make_resource(&mut self) {
        let roots = self.tells_roots.then_some(&self.authority);
        if self.lists.is_none() && roots.is_none() {
            self.resource = None;
            return;
        }
        let lists = self.lists.as_ref().map(|(_, lists)| lists.clone());
        let body = wire::RevocationLists {
            lists: lists.unwrap_or_default(),
            roots: roots
                .map(|one| one.roots().iter().map(|root| root.to_vec()).collect())
                .unwrap_or_default(),
            issuer_key_id: roots
                .and_then(|one| one.key_id())
                .map(<[u8]>::to_vec)
                .unwrap_or_default(),
        };
        let made = resource(
            type_url::REVOCATIONS.into(),
            Vec::new(),
            body.encode_to_vec(),
        );
        let same = self.resource.as_ref().is_some_and(|held| **held == made);
        if !same {
            self.resource = Some(Arc::new(made));
        }
    }

    /// Revocations in force.
    pub(crate) fn held(&self) -> &Arc<Revocations> {
        &self.held
    }

    /// The same as proxies are told, with the roots; none where there is neither.
    pub(crate) fn resource(&self) -> Option<&Arc<Resource>> {
        self.resource.as_ref()
    }

    /// The same as it was written; none where there is no file.
    pub(crate) fn pem(&self) -> Option<&[u8]> {
        self.lists.as_ref().map(|(pem, _)| pem.as_slice())
    }

    /// Reads the file. An error says what is wrong and changes nothing.
    pub(crate) fn read(&mut self, now: SystemTime) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.path.display());
        let Some(pem) = local::read_file(&self.path).map_err(|error| failed(&error))? else {
            if self.lists.take().is_some() {
                tracing::warn!(file = %self.path.display(), "the certificate revocation list was removed: no certificate is revoked any more");
            }
            self.held = Arc::default();
            self.make_resource();
            return Ok(());
        };
        // Every edit of the mesh comes by here, and signatures take their time.
        if self.pem() == Some(&pem) {
            return Ok(());
        }
        let lists = lists_of(&pem).map_err(|error| failed(&error))?;
        let read = Revocations::read(&lists, self.authority.roots(), now)
            .map_err(|error| failed(&error))?;
        let lists = lists.iter().map(|list| list.to_vec()).collect();
        self.lists = Some((pem, lists));
        if read != *self.held || self.resource.is_none() {
            tracing::info!(file = %self.path.display(), certificates = read.len(), "certificate revocation list read");
        }
        self.held = Arc::new(read);
        self.make_resource();
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
