//! The authority of a cluster: its key and its change, authorities beside it, and the roots where others look for them.

mod authority;
mod ca_elsewhere;
mod external_ca;
mod rotation;
mod trust_bundle;
