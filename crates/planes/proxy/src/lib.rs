//! The data plane: one sidecar in one process.
//!
//! ```text
//! control thread                                   worker threads (each its own runtime, pools, counters)
//!   xDS ─► registry ─► plan ───────plan───────────►  slots ─► inbound │ outbound ─► http │ relay
//!   certificates ─► store (read per handshake) ···►
//!   listening sockets ─► least loaded ──connection─►
//!   admin, metrics ◄──────────────snapshot──────────
//! ```
//! Workers learn of changes by message and keep what they learn in plain cells: a request touches no lock, no atomic
//! and no shared reference count.

mod actions;
mod authorization;
mod clock;
mod control;
mod health;
pub mod http;
pub mod http2;
mod http3;
mod plan;
mod predicted_routes;
mod rate_limits;
mod registry;
mod telemetry_settings;
mod tokens;
mod worker;

pub use control::{ApplicationMetrics, CapturePorts, Membership, Probers, ProxyOptions, run};
pub use predicted_routes::{PredictedRoute, PredictedRoutes};
pub use worker::ProxyLimits;
