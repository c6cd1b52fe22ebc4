//! A service as an outbound listener or a waypoint has it, and references to policies.

use std::sync::Arc;

use voile_model::{Port, ServiceKey};
use voile_proto::proxy as wire;

use crate::wire::{WireError, port, service_key};

/// A policy and the version of it that belongs to a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PolicyReference {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
}

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

impl OutboundService {
    pub(super) fn check(message: &wire::ServicePort) -> Result<Self, WireError> {
        let mut authorities = Vec::with_capacity(message.authorities.len());
        for (index, authority) in message.authorities.iter().enumerate() {
            if authority.is_empty() || authority.bytes().any(|b| b.is_ascii_uppercase()) {
                return Err(WireError::new(
                    format!("authorities[{index}]"),
                    format!("`{}` is not a lower-case host", super::shown(authority)),
                ));
            }
            authorities.push(authority.as_str().into());
        }
        Ok(Self {
            key: service_key("service", &message.service)?,
            port: port("port", message.port)?,
            authorities,
        })
    }
}

pub(super) fn references(
    field: &str,
    list: &[wire::PolicyReference],
) -> Result<Vec<PolicyReference>, WireError> {
    let one = |(index, message): (usize, &wire::PolicyReference)| match message.name.is_empty()
        || message.version.is_empty()
    {
        true => Err(WireError::new(
            format!("{field}[{index}]"),
            "a name and a version are required",
        )),
        false => Ok(PolicyReference {
            name: message.name.as_str().into(),
            version: message.version.as_str().into(),
        }),
    };
    list.iter().enumerate().map(one).collect()
}
