//! Routing of a pod's connection: pure. Draws a service's endpoint once for each connection, by weight, among those
//! that share most with the client. Never calls a workload without the tunnel that it needs. The caller looks up an
//! endpoint that is known by name; the control plane's word on how to call it holds for any address of that name.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use voile_hbone::PORT;
use voile_identity::Identity;
use voile_model::{Hostname, Port, ServiceKey};
use voile_proto::workload::load_balancing::Scope;
use voile_xds::wire::{NetworkEntrance, RemoteGateway, Tunnel, WaypointAddress, WireWorkload};

use crate::registry::{RegistryView, Resident, ServedService};

/// Ports of a pod that are the node proxy's: to call them through it would be a loop.
pub(crate) const OWN_PORTS: [u16; 3] = [15001, 15006, PORT];

/// Where to.
#[derive(Debug, Clone)]
pub(crate) struct RouteTarget {
    /// The workload's address and port. For an address outside the mesh or behind a waypoint, the called address.
    pub(crate) to: SocketAddr,
    /// Address of the waypoint whose proxy is called, if the proxy is not at the target's own address.
    pub(crate) waypoint: Option<IpAddr>,
    /// Identities of which one must answer the tunnel; None for plaintext.
    pub(crate) expected: Option<Vec<Identity>>,
    /// The workload at the target, if it is in the mesh.
    pub(crate) resident: Option<Arc<Resident>>,
    /// The service that was meant.
    pub(crate) service: Option<Arc<ServedService>>,
    /// The way there, where it is on another network.
    pub(crate) far: Option<Box<NetworkGateway>>,
}

/// The way to another network: the expected peer is behind its gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetworkGateway {
    /// Gateways of that network: at least one, any of which may be called.
    pub(crate) gates: Vec<RemoteGateway>,
    /// Target of the CONNECT request, at the gateway and behind it: the service by its name. Addresses have another
    /// meaning there.
    pub(crate) called: String,
}

impl RouteTarget {
    /// Returns the address at which the answering proxy takes tunnels.
    pub(crate) fn proxy(&self) -> SocketAddr {
        if let Some(gate) = self.far.as_ref().and_then(|far| far.gates.first()) {
            return gate.at;
        }
        let at = self.waypoint.unwrap_or_else(|| self.to.ip());
        SocketAddr::new(at, PORT)
    }
}

/// Target of a connection, as far as it can be decided without a lookup.
#[derive(Debug, Clone)]
pub(crate) enum ConnectionPurpose {
    /// This.
    At(RouteTarget),
    /// An endpoint known by a name, which needs a lookup.
    Named(NamedEndpoint),
}

/// An endpoint that is known by its name alone.
#[derive(Debug, Clone)]
pub(crate) struct NamedEndpoint {
    /// The name.
    host: Hostname,
    port: Port,
    resident: Arc<Resident>,
    service: Arc<ServedService>,
    /// Called address. An address of the same family is preferred for the endpoint.
    called: IpAddr,
}

impl NamedEndpoint {
    pub(crate) fn host(&self) -> &str {
        self.host.as_str()
    }

    /// Its workload, for draws without it.
    pub(crate) fn uid(&self) -> &Arc<str> {
        &self.resident.workload.uid
    }

    /// There is no address to be had.
    pub(crate) fn nowhere(&self, why: Arc<str>) -> RouteError {
        RouteError::Nowhere(self.service.service.key.clone(), self.host.clone(), why)
    }

    /// Selects one of the addresses of the name; `turn` may be any number. The peer there must have the workload's
    /// identity. It is called in plaintext only if the workload is.
    pub(crate) fn at(&self, addresses: &[IpAddr], turn: usize) -> Result<RouteTarget, RouteError> {
        let alike = |one: &&IpAddr| one.is_ipv4() == self.called.is_ipv4();
        let alike: Vec<&IpAddr> = addresses.iter().filter(alike).collect();
        let among = match alike.is_empty() {
            true => addresses.iter().collect(),
            false => alike,
        };
        let drawn = turn.checked_rem(among.len()).map(|turn| among[turn]);
        let address = drawn.ok_or_else(|| self.nowhere("it has no address".into()))?;
        let to = SocketAddr::new(*address, self.port.get());
        workload(&self.resident, to, Some(Arc::clone(&self.service)))
    }
}

/// Inputs of drawing an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw<'a> {
    /// In 0..1.
    pub(crate) random: f64,
    /// Workloads that are not drawn: their names lead nowhere.
    pub(crate) nowhere: &'a [Arc<str>],
}

/// Reason why a connection has no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RouteError {
    /// The service has no such port.
    #[error("service {0} has no port {1}")]
    NoPort(ServiceKey, u16),
    /// No endpoint of the service may be called.
    #[error("service {0} has no endpoint for port {1} that may be called")]
    NoEndpoint(ServiceKey, u16),
    /// Its sidecar wants mutual TLS of its own kind.
    #[error(
        "workload {0} requires the mutual TLS of sidecars, which a node proxy does not support"
    )]
    SidecarTls(Arc<str>),
    /// The waypoint that must authorize is absent, and must not be bypassed.
    #[error("{0} is behind the waypoint {1}, which has no usable endpoint")]
    NoWaypoint(String, String),
    /// It is elsewhere.
    #[error("workload {0} is on network {1}: {2}")]
    Network(Arc<str>, Arc<str>, String),
    /// One of the node proxy's own ports.
    #[error("port {0} belongs to the node proxy")]
    OwnPort(u16),
    /// Only its name is known, and that leads nowhere.
    #[error("endpoint {1} of service {0} cannot be resolved: {2}")]
    Nowhere(ServiceKey, Hostname, Arc<str>),
}

/// Decides.
pub(crate) fn decide(
    view: &RegistryView,
    source: &Resident,
    to: SocketAddr,
    draw: Draw<'_>,
) -> Result<ConnectionPurpose, RouteError> {
    let services = view.services(to.ip());
    let ours =
        |served: &&Arc<ServedService>| served.service.key.namespace == source.workload.namespace;
    if let Some(served) = services.iter().find(ours).or(services.first()) {
        if let Some(waypoint) = before(source, served.service.waypoint.as_ref()) {
            let whom = || format!("service {}", served.service.key);
            return through(view, source, to, (waypoint, Some(served)), draw, whom)
                .map(ConnectionPurpose::At);
        }
        if !served.service.passthrough {
            return endpoint(view, source, served, to, draw);
        }
    }
    let service = services.first().cloned();
    let target = match view.workload(to.ip()) {
        Some(resident) => match before(source, resident.workload.waypoint.as_ref()) {
            // The service's own waypoint was checked before. A workload's waypoint counts only for connections to the
            // workload's address.
            Some(waypoint) if service.is_none() => {
                let whom = || format!("workload {}", resident.workload.uid);
                through(view, source, to, (waypoint, None), draw, whom)?
            }
            _ => workload(resident, to, service)?,
        },
        None => RouteTarget {
            to,
            waypoint: None,
            expected: None,
            resident: None,
            service,
            far: None,
        },
    };
    Ok(ConnectionPurpose::At(target))
}

/// Returns the waypoint for a connection of `source`. Returns None for the waypoint itself, whose own connections
/// would never arrive otherwise. The control plane says which pod is the waypoint; the pod's identity is proven.
fn before<'a>(
    source: &Resident,
    waypoint: Option<&'a WaypointAddress>,
) -> Option<&'a WaypointAddress> {
    let is_itself = |waypoint: &&WaypointAddress| match waypoint {
        WaypointAddress::Address(address) => source.workload.addresses.contains(address),
        WaypointAddress::Service(key) => source.workload.services.contains_key(key),
        WaypointAddress::Nobody(_) => false,
    };
    waypoint.filter(|waypoint| !is_itself(waypoint))
}

fn endpoint(
    view: &RegistryView,
    source: &Resident,
    served: &Arc<ServedService>,
    to: SocketAddr,
    draw: Draw<'_>,
) -> Result<ConnectionPurpose, RouteError> {
    let (resident, port) = drawn(
        view,
        source,
        served,
        (to.port(), ConnectionReach::Anywhere),
        draw,
    )?;
    let found = &resident.workload;
    let target = match (&found.away, found.addresses.first(), &found.hostname) {
        (None, Some(address), _) => {
            let to = SocketAddr::new(*address, port.get());
            workload(resident, to, Some(Arc::clone(served)))
        }
        (None, None, Some(host)) => {
            return Ok(ConnectionPurpose::Named(NamedEndpoint {
                host: host.clone(),
                port,
                resident: Arc::clone(resident),
                service: Arc::clone(served),
                called: to.ip(),
            }));
        }
        _ => far(view, resident, served, to),
    };
    target.map(ConnectionPurpose::At)
}

/// Returns a target through the gateway of a workload's network. The gateway chooses the endpoint, so any of the
/// service's identities may answer. If the identities or the gateway are unknown, the connection is refused.
fn far(
    view: &RegistryView,
    resident: &Arc<Resident>,
    served: &Arc<ServedService>,
    to: SocketAddr,
) -> Result<RouteTarget, RouteError> {
    let found = &resident.workload;
    let refused = |why: String| {
        let network = found.away.as_ref().map(|away| Arc::clone(&away.network));
        let network = network.unwrap_or_default();
        RouteError::Network(Arc::clone(&found.uid), network, why)
    };
    let Some(entrance) = entrance(resident) else {
        return Err(refused("the network has no gateway".to_owned()));
    };
    let gates = gates(view, found, entrance);
    if gates.is_empty() {
        let at = entrance.at;
        return Err(refused(format!(
            "the identity of its gateway {at} is unknown"
        )));
    }
    let expected = answering(found, Some(served));
    if expected.is_empty() {
        return Err(refused("the expected identity is unknown".to_owned()));
    }
    Ok(RouteTarget {
        to,
        waypoint: None,
        expected: Some(expected),
        resident: Some(Arc::clone(resident)),
        service: Some(Arc::clone(served)),
        far: Some(Box::new(NetworkGateway {
            gates,
            called: format!("{}:{}", served.service.key.hostname, to.port()),
        })),
    })
}

/// Returns the gateways of a workload's network. The first is the workload that the control plane reports at the
/// entrance; the others come with it.
fn gates(
    view: &RegistryView,
    workload: &WireWorkload,
    entrance: &NetworkEntrance,
) -> Vec<RemoteGateway> {
    let keeper = view.keeper(entrance).map(|keeper| &keeper.workload);
    let keeper = keeper.filter(|keeper| keeper.tunnel == Tunnel::Hbone);
    let first = keeper.and_then(|keeper| keeper.identity.clone());
    let first = first.map(|identity| RemoteGateway {
        at: entrance.at,
        identity,
    });
    let others = workload.away.iter().flat_map(|away| &away.keepers);
    let others = others.filter(|one| one.at != entrance.at);
    first.into_iter().chain(others.cloned()).collect()
}

/// Returns the entrance of a workload's network, if it is another network than the proxy's own and the entrance is
/// known.
fn entrance(resident: &Resident) -> Option<&NetworkEntrance> {
    resident
        .workload
        .away
        .as_ref()?
        .gateway
        .as_ref()?
        .as_ref()
        .ok()
}

/// Returns the entrances of other networks whose gateways must be known before a connection can be decided.
pub(crate) fn entrances(
    view: &RegistryView,
    source: &Resident,
    to: SocketAddr,
) -> Vec<NetworkEntrance> {
    if !view.knows_others() {
        return Vec::new();
    }
    let services = view.services(to.ip());
    let ours =
        |served: &&Arc<ServedService>| served.service.key.namespace == source.workload.namespace;
    let served = services.iter().find(ours).or(services.first());
    let behind = served.map_or(&[][..], |served| view.behind(&served.service.key));
    let mut found: Vec<NetworkEntrance> = Vec::new();
    for entrance in behind.iter().filter_map(|one| entrance(one)) {
        if !view.knows_entrance(entrance) && !found.contains(entrance) {
            found.push(entrance.clone());
        }
    }
    found
}

/// Returns the identities that may answer: the workload's own, and the service's subject alternative names.
fn answering(workload: &WireWorkload, service: Option<&Arc<ServedService>>) -> Vec<Identity> {
    let others = service
        .into_iter()
        .flat_map(|served| &served.service.subject_alt_names);
    let others = others.filter_map(|name| name.parse().ok());
    workload
        .identity
        .clone()
        .into_iter()
        .chain(others)
        .collect()
}

/// The waypoint that a connection goes to, if it does: whose name is to be known before anything is decided.
pub(crate) fn waypoint<'a>(
    view: &'a RegistryView,
    source: &Resident,
    to: SocketAddr,
) -> Option<&'a WaypointAddress> {
    let services = view.services(to.ip());
    let ours =
        |served: &&Arc<ServedService>| served.service.key.namespace == source.workload.namespace;
    let waypoint = match services.iter().find(ours).or(services.first()) {
        Some(served) => served.service.waypoint.as_ref(),
        None => view.workload(to.ip())?.workload.waypoint.as_ref(),
    };
    before(source, waypoint)
}

/// Returns a target at the waypoint, with the called address for the waypoint.
fn through(
    view: &RegistryView,
    source: &Resident,
    to: SocketAddr,
    (waypoint, service): (&WaypointAddress, Option<&Arc<ServedService>>),
    draw: Draw<'_>,
    whom: impl Fn() -> String,
) -> Result<RouteTarget, RouteError> {
    let nobody = || RouteError::NoWaypoint(whom(), waypoint.to_string());
    let (resident, sans) = match waypoint {
        WaypointAddress::Nobody(_) => (None, None),
        WaypointAddress::Address(address) => (view.workload(*address), None),
        WaypointAddress::Service(key) => {
            let served = view.service(key).ok_or_else(nobody)?;
            let found = drawn(view, source, served, (PORT, ConnectionReach::Near), draw);
            (found.ok().map(|(resident, _)| resident), Some(served))
        }
    };
    let resident = resident.ok_or_else(nobody)?;
    let found = &resident.workload;
    let at = found.addresses.first().copied().ok_or_else(nobody)?;
    if found.tunnel != Tunnel::Hbone || found.away.is_some() {
        return Err(nobody());
    }
    Ok(RouteTarget {
        to,
        waypoint: Some(at),
        expected: Some(answering(found, sans)),
        resident: Some(Arc::clone(resident)),
        service: service.cloned(),
        far: None,
    })
}

/// Limit of a connection's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionReach {
    /// On our own network, at an address.
    Near,
    /// To addresses behind a name and through gateways of other networks, too.
    Anywhere,
}

/// An endpoint of a service, and the port at which it serves this one.
fn drawn<'a>(
    view: &'a RegistryView,
    source: &Resident,
    served: &Arc<ServedService>,
    (number, reach): (u16, ConnectionReach),
    draw: Draw<'_>,
) -> Result<(&'a Arc<Resident>, Port), RouteError> {
    let key = &served.service.key;
    let port = Port::new(number).filter(|port| served.service.port(*port).is_some());
    let port = port.ok_or_else(|| RouteError::NoPort(key.clone(), number))?;
    let usable = view.behind(key).iter().filter_map(|resident| {
        let at = *resident.workload.services.get(key)?.get(&port)?;
        let found = &resident.workload;
        let well = found.healthy || served.unhealthy_too;
        let there = match (&found.away, found.addresses.is_empty(), reach) {
            (None, false, _) => true,
            (None, true, ConnectionReach::Anywhere) => {
                found.hostname.is_some() && !draw.nowhere.contains(&found.uid)
            }
            (Some(_), _, ConnectionReach::Anywhere) => entrance(resident).is_some(),
            (_, _, ConnectionReach::Near) => false,
        };
        (well && there).then_some((resident, at))
    });
    let ranked = usable.filter_map(|(resident, at)| {
        let rank = rank(source, resident, &served.preference);
        let all = rank == served.preference.len();
        (all || !served.strict).then_some((rank, resident, at))
    });
    let ranked: Vec<_> = ranked.collect();
    let best = ranked.iter().map(|(rank, ..)| *rank).max().unwrap_or(0);
    let near: Vec<_> = ranked.iter().filter(|(rank, ..)| *rank == best).collect();
    let weight = |resident: &Resident| f64::from(resident.workload.weight);
    let mut left = draw.random * near.iter().map(|(_, one, _)| weight(one)).sum::<f64>();
    let drawn = near.iter().find(|(_, resident, _)| {
        left -= weight(resident);
        left < 0.0
    });
    let (_, resident, at) = drawn.ok_or_else(|| RouteError::NoEndpoint(key.clone(), number))?;
    Ok((*resident, *at))
}

/// Returns how many of the preferred attributes two workloads share, counted from the most important.
fn rank(source: &Resident, other: &Resident, preference: &[Scope]) -> usize {
    let same = |index: usize| {
        let [own, of] = [source, other].map(|one| one.workload.locality.split('/').nth(index));
        own.unwrap_or_default() == of.unwrap_or_default()
    };
    let is_common = |scope: &&Scope| match scope {
        Scope::Region => same(0),
        Scope::Zone => same(1),
        Scope::Subzone => same(2),
        Scope::Node => source.workload.node == other.workload.node,
        Scope::Cluster => source.workload.labels.cluster == other.workload.labels.cluster,
        Scope::Network => network(source) == network(other),
        Scope::UnspecifiedScope => false,
    };
    preference.iter().take_while(is_common).count()
}

/// None of our own.
fn network(resident: &Resident) -> Option<&str> {
    resident.workload.away.as_ref().map(|away| &*away.network)
}

fn workload(
    resident: &Arc<Resident>,
    to: SocketAddr,
    service: Option<Arc<ServedService>>,
) -> Result<RouteTarget, RouteError> {
    let found = &resident.workload;
    if let Some(away) = &found.away {
        let (uid, network) = (Arc::clone(&found.uid), Arc::clone(&away.network));
        let why = "workloads on other networks are called through their services only".to_owned();
        return Err(RouteError::Network(uid, network, why));
    }
    let expected = match found.tunnel {
        Tunnel::None => None,
        Tunnel::Mtls => return Err(RouteError::SidecarTls(Arc::clone(&found.uid))),
        Tunnel::Hbone if OWN_PORTS.contains(&to.port()) => {
            return Err(RouteError::OwnPort(to.port()));
        }
        Tunnel::Hbone => Some(answering(found, service.as_ref())),
    };
    Ok(RouteTarget {
        to,
        waypoint: None,
        expected,
        resident: Some(Arc::clone(resident)),
        service,
        far: None,
    })
}

#[cfg(test)]
mod tests;
