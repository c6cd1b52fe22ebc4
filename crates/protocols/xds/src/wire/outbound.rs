//! A service as an outbound listener or a waypoint has it, and references to policies.

use std::sync::Arc;

use voile_model::{Port, ServiceKey};
use voile_proto::proxy as wire;

use crate::wire::fields::forms::{each, lower_case, named};
use crate::wire::fields::wire_type;
use crate::wire::{WireError, WireType};

/// A policy and the version of it that belongs to a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PolicyReference {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
}

wire_type! { PolicyReference as wire::PolicyReference { name by named, version by named, } }

/// A service behind an outbound listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboundService {
    /// Its name, for both its Address and its ServicePolicy.
    pub key: ServiceKey,
    /// Its port.
    pub port: Port,
    /// Authorities that mean it, lower case, without port.
    pub authorities: Vec<Arc<str>>,
}

wire_type! {
    OutboundService as wire::ServicePort { key = service, port, authorities by lower_cases, }
}

fn lower_cases(form: Vec<String>) -> Result<Vec<Arc<str>>, WireError> {
    each(form, lower_case)
}
