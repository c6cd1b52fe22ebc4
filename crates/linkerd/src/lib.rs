//! The part of Linkerd's control plane that its proxy cannot start without, for the laboratory: certificates
//! (`identity.Identity`), who may call a port (`inbound.InboundServerPolicies`), what is done with calls of an address
//! (`outbound.OutboundPolicies`) and who answers there (`destination.Destination`), from one file. No product: nothing changes
//! while it runs, and whoever has the file knows the keys.
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

pub use authority::{Authority, Refused};
pub use mesh::{Endpoint, Mesh, Service, Workload};
pub use server::{ServeError, Serving, run};
