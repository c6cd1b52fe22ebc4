//! Waypoint configuration ⇄ `voile.proxy.v1.Waypoint`; and the waypoint of a service or workload, from Istio's
//! `GatewayAddress`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use voile_model::mesh::waypoint::{HBONE_PORT, waypoint_host};
use voile_model::{ResourceName, ServiceKey};
use voile_proto::{proxy as wire, workload};

use super::fields::forms::required;
use super::fields::wire_type;
use super::{Telemetry, WireError, WireProtocol, WireType, address, hostname, namespace};
use crate::wire::outbound::{OutboundService, PolicyReference};

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

wire_type! {
    Waypoint as wire::Waypoint { bind with required, destinations, telemetries, }
    verify can_tell_destinations_apart
}

/// A destination that two have is nobody's.
fn can_tell_destinations_apart(waypoint: &Waypoint) -> Result<(), WireError> {
    let (mut names, mut called) = (BTreeSet::new(), BTreeSet::new());
    for (index, one) in waypoint.destinations.iter().enumerate() {
        let refuse = |part, reason| {
            let field = format!("destinations[{index}].{part}");
            Err(WireError::new(field, reason))
        };
        if one.name.is_empty() || !names.insert(&one.name) {
            let name = super::shown(&one.name);
            return refuse("name", format!("`{name}` is missing or appears twice"));
        }
        if let Some(twice) = one.called.iter().find(|one| !called.insert(**one)) {
            return refuse("called", format!("{twice} appears twice"));
        }
        let all = waypoint.telemetries.len();
        if one.telemetry.is_some_and(|which| which >= all) {
            return refuse(
                "telemetry",
                format!("out of range: there are {all} telemetries"),
            );
        }
    }
    Ok(())
}

wire_type! {
    WaypointDestination as wire::WaypointDestination {
        name,
        called,
        protocol,
        to = (service, workload),
        authorization_policies,
        request_authentications,
        forward,
        telemetry with counted_from_one,
    }
    verify can_be_forwarded_to
}

/// Nobody could obey a policy about what is not read, nor does anybody ask for a service of another network by address.
fn can_be_forwarded_to(one: &WaypointDestination) -> Result<(), WireError> {
    let judged = one.authorization_policies.len() + one.request_authentications.len();
    let named = matches!(one.to, WaypointTo::Service(_)) && one.called.is_empty();
    match one.forward && (judged > 0 || !named) {
        true => {
            let reason = "only a service without addresses and policies can be forwarded to";
            Err(WireError::new("forward", reason))
        }
        false => Ok(()),
    }
}

impl WireType<(Option<wire::ServicePort>, String)> for WaypointTo {
    fn to_wire(&self) -> (Option<wire::ServicePort>, String) {
        match self {
            Self::Service(service) => (Some(service.to_wire()), String::new()),
            Self::Workload(uid) => (None, uid.to_string()),
        }
    }

    fn from_wire(form: (Option<wire::ServicePort>, String)) -> Result<Self, WireError> {
        match form {
            (Some(service), uid) if uid.is_empty() => {
                let service = OutboundService::from_wire(service);
                service
                    .map(Self::Service)
                    .map_err(|error| error.within("service"))
            }
            (None, uid) if !uid.is_empty() => Ok(Self::Workload(uid.into())),
            _ => Err(WireError::new(
                "service",
                "a service or a workload is required",
            )),
        }
    }
}

/// An index; 0 is none.
mod counted_from_one {
    use super::WireError;

    pub(super) fn to_wire(index: &Option<usize>) -> u32 {
        index.map_or(0, |index| u32::try_from(index + 1).unwrap_or(u32::MAX))
    }

    pub(super) fn from_wire(form: u32) -> Result<Option<usize>, WireError> {
        Ok((form as usize).checked_sub(1))
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
