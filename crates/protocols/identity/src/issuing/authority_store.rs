//! The authority of the moment. Each certificate is issued by the newest one, and listeners follow a change.

use std::sync::Arc;

use tokio::sync::watch;

use crate::authority::Authority;

/// The authority that signs, shared by all that issue or show its certificates.
#[derive(Debug, Clone)]
pub struct AuthorityStore(Arc<watch::Sender<Arc<Authority>>>);

impl From<Arc<Authority>> for AuthorityStore {
    fn from(authority: Arc<Authority>) -> Self {
        Self(Arc::new(watch::Sender::new(authority)))
    }
}

impl AuthorityStore {
    /// The authority of the moment.
    pub fn current(&self) -> Arc<Authority> {
        self.0.borrow().clone()
    }

    /// Issues by `authority` from now on.
    pub fn set(&self, authority: Authority) {
        self.0.send_replace(Arc::new(authority));
    }

    /// Tells of each new authority.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Authority>> {
        self.0.subscribe()
    }
}
