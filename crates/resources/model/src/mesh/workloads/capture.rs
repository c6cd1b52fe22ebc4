//! Which connections of a Pod its sidecar takes, where the kernel redirects them.

use crate::mesh::service::AddressRange;
use crate::names::Port;

/// Everything but some, or some alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaptureSelection<T> {
    /// Everything but these.
    AllBut(Vec<T>),
    /// These alone.
    Only(Vec<T>),
}

impl<T> Default for CaptureSelection<T> {
    fn default() -> Self {
        Self::AllBut(Vec::new())
    }
}

impl<T: PartialEq> CaptureSelection<T> {
    /// Returns true if the scope contains it.
    pub fn contains(&self, one: &T) -> bool {
        match self {
            Self::AllBut(these) => !these.contains(one),
            Self::Only(these) => these.contains(one),
        }
    }

    /// The named elements, included or excluded.
    pub fn named(&self) -> &[T] {
        match self {
            Self::AllBut(these) | Self::Only(these) => these,
        }
    }
}

/// Istio's `traffic.sidecar.istio.io/…` annotations of a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CaptureScope {
    /// Ports of the Pod.
    pub inbound_ports: CaptureSelection<Port>,
    /// Destination ranges of its connections.
    pub outbound_ranges: CaptureSelection<AddressRange>,
    /// Ranges that are left out of a list in `outbound_ranges`.
    pub excluded_outbound_ranges: Vec<AddressRange>,
    /// Ports that are captured for every destination.
    pub outbound_ports: Vec<Port>,
    /// Ports that are not captured for any destination.
    pub excluded_outbound_ports: Vec<Port>,
    /// `interceptionMode`: true if the application sees its client's address (`TPROXY`). Unset: MeshConfig decides.
    pub keeps_source: Option<bool>,
}
