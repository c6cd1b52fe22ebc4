//! Checks of routes, gateways and destinations across resources.

pub(crate) mod destinations;
pub(crate) mod gateway_selectors;
pub(crate) mod gateways;
pub(crate) mod networks;
pub(crate) mod routes;
pub(crate) mod sidecars;
