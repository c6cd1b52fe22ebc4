//! Destinations as the control plane describes them: endpoints, localities, names and traffic settings.

pub(in crate::registry) mod client_rules;
pub(in crate::registry) mod destination;
pub(in crate::registry) mod dns_endpoints;
pub(in crate::registry) mod locality;
pub(crate) mod names;
pub(crate) mod path_questions;
pub(in crate::registry) mod remote_networks;
pub(in crate::registry) mod traffic;
pub(in crate::registry) mod zones;
