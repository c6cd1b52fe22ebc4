//! Istio's PeerAuthentication: whether a workload takes plaintext, mutual TLS, or both.

use std::collections::BTreeMap;

use crate::names::{Labels, Port, ResourceName};
use crate::source::Source;

/// The kinds of connection that a workload accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MutualTlsMode {
    /// Plaintext only.
    Disable,
    /// Both.
    Permissive,
    /// Mutual TLS only.
    Strict,
}

/// One policy. `voile-policy` selects the policy of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAuthentication {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// Workloads it is for; `None` is the whole namespace (or mesh, in the root namespace).
    pub selector: Option<Labels>,
    /// The mode; `None` (UNSET) inherits.
    pub mode: Option<MutualTlsMode>,
    /// Modes by WORKLOAD port; `None` (UNSET) inherits.
    pub port_modes: BTreeMap<Port, PortMode>,
}

/// The mode of one workload port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMode {
    /// The mode; `None` (UNSET) inherits the workload's.
    pub mode: Option<MutualTlsMode>,
    /// File and line of its definition.
    pub source: Source,
}
