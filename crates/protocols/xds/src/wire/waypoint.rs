//! Waypoint configuration, checked from `voile.proxy.v1.Waypoint`; and the waypoint of a service or workload, from Istio's
//! `GatewayAddress`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use voile_model::mesh::waypoint::{HBONE_PORT, waypoint_host};
use voile_model::{ResourceName, ServiceKey};
use voile_proto::{proxy as wire, workload};

use super::{Telemetry, WireError, WireProtocol, address, hostname, namespace, socket};
use crate::wire::outbound::{OutboundService, PolicyReference, references};

/// Waypoint configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waypoint {
    /// Address at which it takes tunnels.
    pub bind: SocketAddr,
    /// For what.
    pub destinations: Vec<WaypointDestination>,
    /// Telemetry of some destinations.
    pub telemetries: Vec<Arc<Telemetry>>,
}

/// Destination of tunnels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaypointDestination {
    /// Unique in its configuration, stable over edits.
    pub name: Arc<str>,
    /// Addresses that tunnels ask for.
    pub called: Vec<SocketAddr>,
    /// Protocol of the destination.
    pub protocol: WireProtocol,
    /// The service or workload.
    pub to: WaypointTo,
    /// Policies that hold for it; all of them, or nothing is obeyed.
    pub authorization_policies: Vec<PolicyReference>,
    /// The same of RequestAuthentications.
    pub request_authentications: Vec<PolicyReference>,
    /// True if the stream inside is a tunnel itself. The waypoint then forwards it unread to the tunnel port of the service's
    /// workload.
    pub forward: bool,
    /// Which of the waypoint's telemetries holds for it, on the server's side; none: the configuration's.
    pub telemetry: Option<usize>,
}

/// Target of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaypointTo {
    /// To an endpoint of a service.
    Service(OutboundService),
    /// To this workload, by uid.
    Workload(Arc<str>),
}

impl Waypoint {
    /// Checks a message. A destination that two have is nobody's.
    pub fn check(message: &wire::Waypoint) -> Result<Self, WireError> {
        let mut destinations = Vec::with_capacity(message.destinations.len());
        let (mut names, mut called) = (BTreeSet::new(), BTreeSet::new());
        let mut telemetries = Vec::with_capacity(message.telemetries.len());
        for (index, one) in message.telemetries.iter().enumerate() {
            let checked = Telemetry::check(Some(one));
            let checked =
                checked.map_err(|error| error.within(&format!("telemetries[{index}]")))?;
            telemetries.push(Arc::new(checked));
        }
        for (index, destination) in message.destinations.iter().enumerate() {
            let field = format!("destinations[{index}]");
            let checked = WaypointDestination::check(destination);
            let checked = checked.map_err(|error| error.within(&field))?;
            if checked.name.is_empty() || !names.insert(Arc::clone(&checked.name)) {
                let reason = format!(
                    "`{}` is missing or appears twice",
                    super::shown(&checked.name)
                );
                return Err(WireError::new(format!("{field}.name"), reason));
            }
            if let Some(twice) = checked.called.iter().find(|one| !called.insert(**one)) {
                let reason = format!("{twice} appears twice");
                return Err(WireError::new(format!("{field}.called"), reason));
            }
            if checked
                .telemetry
                .is_some_and(|which| which >= telemetries.len())
            {
                let reason = format!("out of range: there are {} telemetries", telemetries.len());
                return Err(WireError::new(format!("{field}.telemetry"), reason));
            }
            destinations.push(checked);
        }
        Ok(Self {
            bind: socket("bind", message.bind.as_ref())?,
            destinations,
            telemetries,
        })
    }
}

impl WaypointDestination {
    fn check(message: &wire::WaypointDestination) -> Result<Self, WireError> {
        let mut called = Vec::with_capacity(message.called.len());
        for (index, one) in message.called.iter().enumerate() {
            called.push(socket(&format!("called[{index}]"), Some(one))?);
        }
        let to = match (&message.service, message.workload.as_str()) {
            (Some(service), "") => {
                let service = OutboundService::check(service);
                WaypointTo::Service(service.map_err(|error| error.within("service"))?)
            }
            (None, uid) if !uid.is_empty() => WaypointTo::Workload(uid.into()),
            _ => {
                return Err(WireError::new(
                    "service",
                    "a service or a workload is required",
                ));
            }
        };
        // Nobody could obey a policy about what is not read, nor does anybody ask for a service of another network by address.
        let judged = message.authorization_policies.len() + message.request_authentications.len();
        let named = matches!(to, WaypointTo::Service(_)) && called.is_empty();
        if message.forward && (judged > 0 || !named) {
            let reason = "only a service without addresses and policies can be forwarded to";
            return Err(WireError::new("forward", reason));
        }
        Ok(Self {
            forward: message.forward,
            telemetry: (message.telemetry as usize).checked_sub(1),
            name: message.name.as_str().into(),
            called,
            protocol: WireProtocol::from_proxy("protocol", message.protocol)?,
            to,
            authorization_policies: references(
                "authorization_policies",
                &message.authorization_policies,
            )?,
            request_authentications: references(
                "request_authentications",
                &message.request_authentications,
            )?,
        })
    }
}

/// Waypoint before a service or a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaypointAddress {
    /// The workloads of this service.
    Service(ServiceKey),
    /// The workload with this address.
    Address(IpAddr),
    /// Somebody who cannot be called, for this reason: to go past would go past policies.
    Nobody(Arc<str>),
}

impl WaypointAddress {
    /// Reads a message.
    #[must_use]
    pub fn read(message: &workload::GatewayAddress) -> Self {
        Self::check(message).unwrap_or_else(|error| Self::Nobody(error.to_string().into()))
    }

    fn check(message: &workload::GatewayAddress) -> Result<Self, WireError> {
        let port = u32::from(HBONE_PORT);
        if ![0, port].contains(&message.hbone_mtls_port) {
            let reason = format!("{} is not the port of HBONE", message.hbone_mtls_port);
            return Err(WireError::new("waypoint.hbone_mtls_port", reason));
        }
        match &message.destination {
            Some(workload::gateway_address::Destination::Hostname(named)) => {
                Ok(Self::Service(ServiceKey {
                    namespace: namespace("waypoint.hostname.namespace", &named.namespace)?,
                    hostname: hostname("waypoint.hostname.hostname", &named.hostname)?,
                }))
            }
            Some(workload::gateway_address::Destination::Address(one)) => {
                if !one.network.is_empty() {
                    let reason = "waypoints on other networks are not supported yet";
                    return Err(WireError::new("waypoint.address.network", reason));
                }
                let address = address("waypoint.address", &one.address)?;
                Ok(Self::Address(address))
            }
            None => Err(WireError::new("waypoint.destination", "missing")),
        }
    }

    /// The message for a waypoint of this name.
    #[must_use]
    pub fn encode(waypoint: &ResourceName) -> Option<workload::GatewayAddress> {
        let named = workload::NamespacedHostname {
            namespace: waypoint.namespace.to_string(),
            hostname: waypoint_host(waypoint)?.to_string(),
        };
        Some(workload::GatewayAddress {
            destination: Some(workload::gateway_address::Destination::Hostname(named)),
            hbone_mtls_port: HBONE_PORT.into(),
        })
    }
}

impl std::fmt::Display for WaypointAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Service(key) => write!(f, "{key}"),
            Self::Address(address) => write!(f, "{address}"),
            Self::Nobody(why) => write!(f, "({why})"),
        }
    }
}
