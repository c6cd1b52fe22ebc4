//! The certificate authority: keys, joins, tokens, signing, and revocation.

pub mod authority;
pub(crate) mod authority_store;
pub(crate) mod csr;
pub(crate) mod external;
pub mod join;
pub(crate) mod own_certificate;
pub mod revocation;
pub(crate) mod root_record;
mod root_renewal;
pub mod store;
pub mod token;

pub use root_renewal::renew_root;
