//! What the mesh is trusted by in a cluster: the authority's key, the roots where others look for them, and the verification of
//! callers' tokens.

pub(crate) mod authority;
pub(crate) mod roots;
pub(crate) mod tokens;
pub(crate) mod trust_bundle;
