//! Programs of a mesh: proxies, the control plane, a mesh from a folder, and what starts, prepares or waits for them.

pub(crate) mod agent;
pub(crate) mod control;
mod control_plane;
pub(crate) mod echo;
pub(crate) mod proxy;
pub(crate) mod redirect;
pub(crate) mod relay;
pub(crate) mod revoke;
pub(crate) mod token;
pub(crate) mod token_files;
pub(crate) mod up;
pub(crate) mod wait;
