//! Networks: pods of one network reach those of another only through the other's gateway. The label of the root
//! namespace names our own network. Resources with that name, or with none, belong to ours. A Gateway of the class
//! `istio-remote` gives the address and identity of another network's gateway. Traffic enters our network by a Gateway
//! of the class `istio-east-west`.

use std::net::IpAddr;
use std::sync::Arc;

use crate::mesh::gateway_api::{GATEWAY_NAME, Gateway, label_value};
use crate::mesh::waypoint::{HBONE, HBONE_PORT};
use crate::mesh::{Mesh, MeshService, ServiceWorkload, Visibility, Workload};
use crate::names::{Namespace, ResourceName};
use crate::source::Source;

/// Label of the root namespace, of Pods and of Gateways: the network's name.
pub const NETWORK: &str = "topology.istio.io/network";
/// Label of a service that other networks may call.
pub const GLOBAL: &str = "istio.io/global";
/// Class of the Gateways through which other networks come in.
pub const EAST_WEST_CLASS: &str = "istio-east-west";
/// Class of the Gateways that stand for those of other networks.
pub const REMOTE_CLASS: &str = "istio-remote";
/// Annotation of the latter: the service account as which it answers, of the Gateway's namespace.
pub const GATEWAY_ACCOUNT: &str = "gateway.istio.io/service-account";

/// The gateway into another network, and its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkGateway {
    /// The Gateway that says so.
    pub name: ResourceName,
    /// The network.
    pub network: Arc<str>,
    /// Its address; it accepts tunnels at [`HBONE_PORT`].
    pub address: IpAddr,
    /// Its service account, of the Gateway's namespace.
    pub service_account: Arc<str>,
}

/// Why a Gateway between networks is not in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkGatewayFlaw {
    /// File and line of its definition.
    pub source: Source,
    /// The fault.
    pub what: String,
    /// The correction.
    pub help: &'static str,
}

impl Gateway {
    /// Returns true if traffic of other networks enters through it.
    #[must_use]
    pub fn is_east_west(&self) -> bool {
        &*self.class.0 == EAST_WEST_CLASS
    }

    /// Returns true if it represents the gateway of another network.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        &*self.class.0 == REMOTE_CLASS
    }

    /// The network that it is of.
    #[must_use]
    pub fn network(&self) -> Option<&str> {
        self.own_labels.get(NETWORK).filter(|name| !name.is_empty())
    }

    fn takes_tunnels(&self) -> bool {
        let mut all = self.listeners.iter();
        all.any(|one| &*one.protocol == HBONE && one.port.get() == HBONE_PORT)
    }
}

/// The address of one of a Gateway's places; only those by number are called.
fn number((kind, value, _): &(Arc<str>, Arc<str>, Source)) -> Option<IpAddr> {
    let address: IpAddr = value.parse().ok()?;
    (&**kind == "IPAddress" && !address.is_unspecified() && !address.is_multicast())
        .then_some(address)
}

impl Mesh {
    /// The name of our own network; empty if unset.
    #[must_use]
    pub fn own_network(&self) -> &str {
        let root: &Namespace = &self.config.root_namespace;
        let labels = self.namespaces.get(root).map(|one| &one.labels);
        labels
            .and_then(|labels| labels.get(NETWORK))
            .unwrap_or_default()
    }

    /// Reasons that keep a Gateway between networks out of force; empty for other Gateways.
    #[must_use]
    pub fn flaws(&self, gateway: &Gateway) -> Vec<NetworkGatewayFlaw> {
        if !gateway.is_east_west() && !gateway.is_remote() {
            return Vec::new();
        }
        let mut flaws = Vec::new();
        let mut say = |source: &Source, what: String, help| {
            flaws.push(NetworkGatewayFlaw {
                source: source.clone(),
                what: format!("Gateway {}: {what}", gateway.name),
                help,
            });
        };
        let own = self.own_network();
        match (gateway.network(), gateway.is_remote()) {
            (None, _) => say(
                &gateway.source,
                format!("it has no label {NETWORK}: its network is unknown"),
                "set the label in `metadata.labels`",
            ),
            (Some(of), true) if of == own => say(
                &gateway.source,
                format!(
                    "gatewayClassName istio-remote is for other networks, and {of} is this network"
                ),
                "write the other network's name, or `gatewayClassName: istio-east-west`",
            ),
            (Some(of), false) if of != own => say(
                &gateway.source,
                format!(
                    "gatewayClassName istio-east-west is for this network, and its label is {of}, while this network is `{own}`"
                ),
                "set the same network label on the root namespace and on the Gateway",
            ),
            _ => {}
        }
        if !gateway.takes_tunnels() {
            let what = format!("none of its listeners takes {HBONE} at port {HBONE_PORT}");
            let help = "write `listeners: [{name: mesh, port: 15008, protocol: HBONE}]`";
            say(&gateway.source, what, help);
        }
        if gateway.is_east_west() {
            return flaws;
        }
        if gateway.account.is_none() {
            let what = format!(
                "it has no annotation {GATEWAY_ACCOUNT}: clients cannot verify the gateway's identity"
            );
            let help = "write the service account of the other network's gateway in this namespace";
            say(&gateway.source, what, help);
        }
        let help = "write `addresses: [{type: IPAddress, value: …}]`";
        if gateway.places.is_empty() {
            let what = "it has no address: clients cannot reach the other network";
            say(&gateway.source, what.to_owned(), help);
        }
        for place in gateway.places.iter().filter(|one| number(one).is_none()) {
            let (kind, value, source) = place;
            let what = format!("{kind} `{value}` is no IP address");
            say(source, what, help);
        }
        flaws
    }

    /// The gateways into a network, of the Gateways in force.
    pub fn gateways_to(&self, network: &str) -> impl Iterator<Item = NetworkGateway> {
        self.network_gateways()
            .filter(move |one| &*one.network == network)
    }

    /// The same of all networks but ours.
    pub fn network_gateways(&self) -> impl Iterator<Item = NetworkGateway> {
        let all = self.gateway_api.gateways.iter();
        let remote = all.filter(|one| one.is_remote() && self.flaws(one).is_empty());
        remote.flat_map(|gateway| {
            let places = gateway.places.iter().filter_map(number);
            places.filter_map(|address| {
                Some(NetworkGateway {
                    name: gateway.name.clone(),
                    network: gateway.network()?.into(),
                    address,
                    service_account: gateway.account.clone()?,
                })
            })
        })
    }

    /// Returns true if the network is reached through a gateway. Addresses of its workloads are not reachable from
    /// ours.
    #[must_use]
    pub fn is_behind_gateway(&self, network: &str) -> bool {
        !network.is_empty() && self.gateways_to(network).next().is_some()
    }

    /// The workloads behind a service that can be called by their addresses.
    #[must_use]
    pub fn near_workloads_of(&self, service: &MeshService) -> Vec<ServiceWorkload> {
        let mut found = self.workloads_of(service);
        found.retain(|one| !self.is_behind_gateway(&one.workload.network));
        found
    }

    /// Returns true if a Gateway connects this network with others.
    #[must_use]
    pub fn has_networks(&self) -> bool {
        let mut all = self.gateway_api.gateways.iter();
        all.any(|one| one.is_remote() || one.is_east_west())
    }

    /// The Gateway through which other networks come in, if this workload runs it and it is in force.
    #[must_use]
    pub fn east_west_run_by(&self, workload: &Workload) -> Option<&Arc<Gateway>> {
        let label = workload.labels.get(GATEWAY_NAME)?;
        let mut all = self.gateway_api.gateways.iter();
        let found = all.find(|one| {
            one.is_east_west()
                && one.name.namespace == workload.key.namespace
                && label_value(&one.name.name) == label
        })?;
        (workload.waypoint && self.flaws(found).is_empty()).then_some(found)
    }

    /// Returns true if other networks may call the service, by its own label. They call a service behind a waypoint
    /// through the waypoint.
    #[must_use]
    pub fn is_exported(&self, service: &MeshService) -> bool {
        service.global && service.visibility == Visibility::Public
    }
}
