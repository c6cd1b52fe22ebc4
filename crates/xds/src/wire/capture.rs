//! What a sidecar does with connections that the kernel redirects to it, checked from `voile.proxy.v1.Capture`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use voile_model::{Port, ServiceKey};
use voile_proto::proxy as wire;

use super::configuration::MutualTls;
use super::{Protocol, WireError, port, service_key, socket};

/// The inbound half of transparent capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// Mode of workload ports that are not listed.
    pub mutual_tls: MutualTls,
    /// By workload port.
    pub ports: BTreeMap<Port, CapturedPort>,
}

/// One port of the workload, as callers name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedPort {
    /// What is spoken.
    pub protocol: Protocol,
    /// What kind of connection it takes.
    pub mutual_tls: MutualTls,
    /// The service whose target port this is, and the service's port; for metrics only.
    pub service: Option<(ServiceKey, Port)>,
    /// Where the application listens, when that is not where the caller called.
    pub endpoint: Option<SocketAddr>,
}

impl Capture {
    pub(super) fn check(message: &wire::Capture) -> Result<Self, WireError> {
        let mut ports = BTreeMap::new();
        for (index, entry) in message.ports.iter().enumerate() {
            let field = format!("ports[{index}]");
            let number = port(&format!("{field}.port"), entry.port)?;
            let checked = CapturedPort::check(entry).map_err(|error| error.within(&field))?;
            if ports.insert(number, checked).is_some() {
                let reason = format!("port {number} is there twice");
                return Err(WireError::new(format!("{field}.port"), reason));
            }
        }
        Ok(Self {
            mutual_tls: MutualTls::check("mutual_tls", message.mutual_tls)?,
            ports,
        })
    }
}

impl CapturedPort {
    fn check(message: &wire::CapturedPort) -> Result<Self, WireError> {
        let service = match message.service.as_str() {
            "" => None,
            name => Some((
                service_key("service", name)?,
                port("service_port", message.service_port)?,
            )),
        };
        let endpoint = match &message.endpoint {
            None => None,
            some => Some(socket("endpoint", some.as_ref())?),
        };
        Ok(Self {
            protocol: Protocol::from_proxy("protocol", message.protocol)?,
            mutual_tls: MutualTls::check("mutual_tls", message.mutual_tls)?,
            service,
            endpoint,
        })
    }
}
