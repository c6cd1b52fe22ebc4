//! The certificate of a server of the control plane itself, signed by the mesh's authority. It is made anew when it is needed at
//! half its life, or after another authority has begun to sign: no timer, no file.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use crate::authority::{Authority, SERVER_TTL};
use crate::authority_store::AuthorityStore;

/// A server's certificate, or a configuration `T` made of it.
#[derive(Debug)]
pub struct OwnCertificate<T> {
    authority: AuthorityStore,
    /// The authority that signed it.
    issuer: Arc<Authority>,
    issued: T,
    at: Instant,
}

impl<T> OwnCertificate<T> {
    /// The first one, as `issue` makes it.
    ///
    /// # Errors
    /// `issue` fails.
    pub fn new<E>(
        authority: AuthorityStore,
        issue: impl FnOnce(&Authority) -> Result<T, E>,
    ) -> Result<Self, E> {
        let issuer = authority.current();
        Ok(Self {
            issued: issue(&issuer)?,
            authority,
            issuer,
            at: Instant::now(),
        })
    }

    /// The certificate, renewed by `issue` if it is time. If that fails, the one before it.
    pub fn current<E: Display>(&mut self, issue: impl FnOnce(&Authority) -> Result<T, E>) -> &T {
        let authority = self.authority.current();
        if self.at.elapsed() > SERVER_TTL / 2 || !Arc::ptr_eq(&authority, &self.issuer) {
            match issue(&authority) {
                Ok(issued) => {
                    self.issued = issued;
                    self.issuer = authority;
                    self.at = Instant::now();
                }
                Err(error) => tracing::error!(%error, "cannot renew the own certificate"),
            }
        }
        &self.issued
    }
}
