//! Workloads on other networks, and the gateways to those networks: from Istio's `Workload.network_gateway`. A gateway that
//! cannot be read leaves no address to call; the workload's own address would be a guess.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use prost::{Message as _, Name as _};
use voile_model::Identity;
use voile_model::mesh::network::NetworkGateway;
use voile_model::mesh::waypoint::HBONE_PORT;
use voile_proto::workload as wire;

use super::address::identity;
use super::{Tunnel, WireError, address, address_bytes, namespace, port};

/// Name of the extensions that say of a workload on another network where that is entered, one for each gateway: the gateway's own
/// message, so that whoever calls knows who it must be without asking. Istio's wire has room for one gateway, and no name.
const GATEWAYS_EXTENSION: &str = "voile.network_gateway";
/// Gateways of a network that are told of; of more the first by name.
const MAX_GATEWAYS: usize = 8;

/// Network of a workload that is not on ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteWorkload {
    /// Its network.
    pub network: Arc<str>,
    /// Gateway to that network, or the reason that it cannot be called; `None` if there is none.
    pub gateway: Option<Result<NetworkEntrance, Arc<str>>>,
    /// All gateways of that network, with who they must be, as far as our own control plane told.
    pub keepers: Vec<RemoteGateway>,
}

/// A gateway of a network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteGateway {
    /// Address at which it takes tunnels.
    pub at: SocketAddr,
    /// Identity that it must prove.
    pub identity: Identity,
}

impl RemoteGateway {
    /// None of one that cannot be called, or that could be anybody.
    fn read(message: &wire::Extension) -> Option<Self> {
        let config = message.config.as_ref()?;
        let gateway = wire::Workload::decode(&*config.value).ok()?;
        let address = address("addresses", gateway.addresses.first()?).ok()?;
        let namespace = namespace("namespace", &gateway.namespace).ok()?;
        let identity = identity(&gateway, &namespace, Tunnel::Hbone).ok()??;
        let takes = gateway.tunnel_protocol() == wire::TunnelProtocol::Hbone;
        takes.then_some(Self {
            at: SocketAddr::new(address, HBONE_PORT),
            identity,
        })
    }
}

/// Gateway address of a network, which takes tunnels. The workload with this network and address names the identity to expect.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkEntrance {
    /// The network that the address is told of with.
    pub network: Arc<str>,
    /// Address at which it takes tunnels.
    pub at: SocketAddr,
}

impl NetworkEntrance {
    /// The name that the control plane is asked by for who is there.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.network, self.at.ip())
    }
}

/// The network and the address that such a name says; none of our own network's.
#[must_use]
pub fn parse_away_address(name: &str) -> Option<(&str, IpAddr)> {
    let (network, address) = name.split_once('/')?;
    Some((network, address.parse().ok()?)).filter(|_| !network.is_empty())
}

impl RemoteWorkload {
    /// None of a workload on our own network, whatever gateway it is said to have.
    pub(super) fn read(message: &wire::Workload) -> Option<Self> {
        if message.network.is_empty() {
            return None;
        }
        let gateway = message.network_gateway.as_ref();
        let gateway = gateway.map(|one| entrance(one).map_err(|error| error.to_string().into()));
        let said = message.extensions.iter();
        let said = said.filter(|one| one.name == GATEWAYS_EXTENSION);
        Some(Self {
            network: message.network.as_str().into(),
            gateway,
            keepers: said
                .take(MAX_GATEWAYS)
                .filter_map(RemoteGateway::read)
                .collect(),
        })
    }
}

fn entrance(message: &wire::GatewayAddress) -> Result<NetworkEntrance, WireError> {
    match &message.destination {
        Some(wire::gateway_address::Destination::Address(one)) => {
            let number = port("network_gateway.hbone_mtls_port", message.hbone_mtls_port)?;
            let address = address("network_gateway.address", &one.address)?;
            Ok(NetworkEntrance {
                network: one.network.as_str().into(),
                at: SocketAddr::new(address, number.get()),
            })
        }
        Some(wire::gateway_address::Destination::Hostname(_)) => {
            let reason = "gateways of other networks by host name are not supported yet";
            Err(WireError::new("network_gateway.hostname", reason))
        }
        None => Err(WireError::new("network_gateway.destination", "missing")),
    }
}

/// The message for workloads that are reached through it.
#[must_use]
pub fn encode_network_gateway(gateway: &NetworkGateway) -> wire::GatewayAddress {
    let at = wire::NetworkAddress {
        network: gateway.network.to_string(),
        address: address_bytes(gateway.address),
        length: None,
    };
    wire::GatewayAddress {
        destination: Some(wire::gateway_address::Destination::Address(at)),
        hbone_mtls_port: HBONE_PORT.into(),
    }
}

/// The extensions for the same workloads, of the messages of all gateways that lead there.
pub fn encode_network_gateways(
    gateways: impl Iterator<Item = wire::Workload>,
) -> impl Iterator<Item = wire::Extension> {
    gateways.take(MAX_GATEWAYS).map(|gateway| wire::Extension {
        name: GATEWAYS_EXTENSION.to_owned(),
        config: Some(prost_types::Any {
            type_url: wire::Workload::type_url(),
            value: gateway.encode_to_vec(),
        }),
    })
}
