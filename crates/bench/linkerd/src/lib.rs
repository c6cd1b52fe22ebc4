//! The part of Linkerd's control plane that its proxy cannot start without, for the laboratory. One file gives certificates
//! (`identity.Identity`), policies of ports (`inbound.InboundServerPolicies`), policies of outbound calls
//! (`outbound.OutboundPolicies`) and endpoints (`destination.Destination`). This is no product: nothing changes while it runs,
//! and every reader of the file knows the keys.
//!
//! ```text
//! proxy ── TLS, no certificate yet ──▶ Certify(name, token, CSR) ──▶ authority
//! proxy ── TLS, a certificate where it has one ──▶ WatchPort, Watch, Get, GetProfile ──▶ mesh (pure)
//! ```

mod authority;
mod mesh;
pub mod messages;
mod server;
mod service;

pub use authority::{Authority, CertificationError};
pub use mesh::{LinkerdEndpoint, LinkerdService, LinkerdWorkload, Mesh};
pub use server::{ServeError, ServingState, run};
