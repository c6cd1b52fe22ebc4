//! Proofs of a cell's path: routes, identity, and requests that no route leads.

pub(crate) mod identity_proof;
pub(crate) mod proof;
pub(crate) mod unrouted_proof;
