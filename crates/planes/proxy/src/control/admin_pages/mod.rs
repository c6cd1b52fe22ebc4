//! Pages of the admin, metrics and readiness ports, and probes of the application.

pub(in crate::control) mod admin;
pub(in crate::control) mod application_metrics;
pub(in crate::control) mod dump;
pub(in crate::control) mod health;
pub(in crate::control) mod metrics;
pub(in crate::control) mod page_opening;
pub(in crate::control) mod probers;
