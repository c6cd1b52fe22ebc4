//! Checked policies as configuration of a stock Envoy, in the JSON that Envoy reads: the filters that Istio would generate
//! from the same resources. For foreign proxies that our control plane serves, for the laboratory's peers, and for the
//! test that holds our own engine to Envoy's.

mod custom;
mod filters;
mod matchers;
mod rbac;
mod token;

pub use custom::{CUSTOM_PREFIX, custom_filter};
pub use rbac::{Layer, Peer, Translation};
pub use token::token_filter;
