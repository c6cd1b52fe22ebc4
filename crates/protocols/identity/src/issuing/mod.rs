//! The certificate authority: keys, joins, tokens, signing, and revocation.

pub mod authority;
pub(crate) mod csr;
pub mod join;
pub mod revocation;
pub(crate) mod root_record;
pub mod store;
pub mod token;
