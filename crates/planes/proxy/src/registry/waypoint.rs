//! Waypoints. Each destination of a waypoint is a listener without a socket, found by the target of a tunnel; its routes work as
//! a sidecar's outbound listener. Policies hold for each destination separately. Every other proxy calls a destination through
//! its waypoint, or not at all.

use std::collections::{BTreeSet, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use voile_model::ServiceKey;
use voile_model::mesh::waypoint::HBONE_PORT;
use voile_traffic::{Conditions, RetryBudget, RetryPolicy};
use voile_xds::wire::{
    OutboundListener, OutboundService, PolicyReference, ProxyConfiguration, ServerKind, Service,
    Tunnel, Waypoint, WaypointAddress, WaypointDestination, WaypointTo, WireProtocol, WireWorkload,
};

use super::{Registry, peer};
use crate::authorization::Authorization;
use crate::plan::{
    DoorPlan, EndpointPlan, GatewayPlan, OutboundPlan, PassthroughMode, ServerPlan, ServicePlan,
};

/// Name of the waypoint's listener.
const NAME: &str = "waypoint";

/// The resource name of a waypoint that is called by a service's.
fn service_of(waypoint: &WaypointAddress) -> Option<Arc<str>> {
    match waypoint {
        WaypointAddress::Service(key) => Some(key.to_string().into()),
        WaypointAddress::Address(_) | WaypointAddress::Nobody(_) => None,
    }
}

impl Registry {
    fn destinations(&self) -> impl Iterator<Item = &WaypointDestination> {
        let configuration = self.configuration.iter();
        let waypoints = configuration.filter_map(|held| held.value.waypoint.as_ref());
        waypoints.flat_map(|waypoint| &waypoint.destinations)
    }

    /// The services that tunnels may be for.
    pub(super) fn behind_waypoint(&self) -> impl Iterator<Item = &OutboundService> {
        self.destinations().filter_map(|one| match &one.to {
            WaypointTo::Service(service) => Some(service),
            WaypointTo::Workload(_) => None,
        })
    }

    /// Returns true if a direct call of the service's workloads would bypass a waypoint and its policies. Only that waypoint
    /// itself calls them directly.
    pub(super) fn is_past_waypoint(&self, service: &Service) -> bool {
        let ours = || self.behind_waypoint().any(|one| one.key == service.key);
        service.waypoint.is_some() && !ours()
    }

    /// The same for a workload that is called by its own address.
    pub(super) fn is_past_waypoint_of(&self, workload: &WireWorkload) -> bool {
        let ours = || self.workloads_wanted().contains(&workload.uid);
        workload.waypoint.is_some() && !ours()
    }

    /// The waypoint that a service is called through.
    pub(super) fn waypoint_before(&self, service: &ServiceKey) -> Option<&WaypointAddress> {
        let held = self.services.get(service.to_string().as_str())?;
        let service = &held.value;
        let waypoint = service.waypoint.as_ref()?;
        self.is_past_waypoint(service).then_some(waypoint)
    }

    /// Services that are waypoints of known services and workloads.
    pub(super) fn waypoints_wanted(&self) -> BTreeSet<Arc<str>> {
        let services = self.services.values();
        let services = services.filter_map(|held| held.value.waypoint.as_ref());
        let workloads = self.workloads.values();
        let workloads = workloads.filter_map(|held| held.value.waypoint.as_ref());
        let both = services.chain(workloads).filter(|_| !self.is_waypoint);
        let all = both.chain(self.waypoints_led_to());
        all.filter_map(service_of).collect()
    }

    /// The waypoints to which a gateway between networks leads on.
    fn waypoints_led_to(&self) -> impl Iterator<Item = &WaypointAddress> {
        let forwarded = self.destinations().filter(|one| one.forward);
        let services = forwarded.filter_map(|one| match &one.to {
            WaypointTo::Service(service) => self.services.get(&*service.key.to_string()),
            WaypointTo::Workload(_) => None,
        });
        services.filter_map(|held| held.value.waypoint.as_ref())
    }

    /// Returns true if the waypoint's service was asked for and has no answer yet.
    pub(super) fn is_untold(&self, waypoint: Option<&WaypointAddress>) -> bool {
        let name = waypoint.filter(|_| !self.is_waypoint).and_then(service_of);
        name.is_some_and(|name| !self.service_answered(&name))
    }

    /// Plan of a service behind a waypoint, for other proxies. The waypoint applies the service's settings; this proxy applies
    /// none of them.
    pub(super) fn through_waypoint(&self, wanted: &OutboundService) -> Option<ServicePlan> {
        let waypoint = self.waypoint_before(&wanted.key)?;
        let held = self.services.get(wanted.key.to_string().as_str())?;
        let port = wanted.port.get();
        let called = match held.value.addresses.first() {
            Some(address) => SocketAddr::new(*address, port).to_string(),
            None => format!("{}:{port}", wanted.key.hostname),
        };
        // The waypoint asks again where that helps.
        let on = Conditions::CONNECT_FAILURE.and(Conditions::REFUSED);
        let retry = RetryPolicy {
            on: on.and(Conditions::RESET_BEFORE_REQUEST),
            ..RetryPolicy::default()
        };
        Some(ServicePlan {
            retry,
            retry_budget: RetryBudget::default(),
            traffic: Default::default(),
            service: self.service_labels(&wanted.key),
            port,
            subset: None,
            protocol: self.spoken(wanted),
            http2_upgrade: false,
            client_protocol: true,
            authorities: wanted.authorities.clone(),
            endpoints: self.waypoint_endpoints(waypoint, &called),
            routes: None,
        })
    }

    /// The Pods of a waypoint, each to be told what is called. None where it is not there, and of another waypoint's: a waypoint
    /// goes through no other.
    pub(super) fn waypoint_endpoints(
        &self,
        waypoint: &WaypointAddress,
        called: &str,
    ) -> Vec<EndpointPlan> {
        let WaypointAddress::Service(key) = waypoint else {
            return Vec::new();
        };
        let there = self.services.contains_key(key.to_string().as_str());
        let pods = self.members.get(key).filter(|_| there && !self.is_waypoint);
        let pods = pods.filter_map(|uid| self.workloads.get(uid));
        let endpoint = |pod: &WireWorkload| {
            let takes = pod.tunnel == Tunnel::Hbone && pod.away.is_none();
            let identity = pod.identity.clone().filter(|_| takes)?;
            Some(EndpointPlan {
                address: SocketAddr::new(*pod.addresses.first()?, HBONE_PORT),
                name: None,
                expected: Some(vec![identity]),
                origination: Some(self.originations.through(called)),
                weight: pod.weight.max(1),
                available: pod.healthy,
                rank: Default::default(),
                peer: peer(pod),
            })
        };
        pods.filter_map(|held| endpoint(&held.value)).collect()
    }

    /// Tunnels inside tunnels. Streams of another network's proxies to a service's workloads, or to its waypoint, are passed on
    /// unread to the endpoint that takes those tunnels. That endpoint decides on callers and targets. Only workloads of our own
    /// network are destinations, and none bypasses a waypoint.
    fn forwarded(&self, wanted: &OutboundService, name: &Arc<str>) -> OutboundPlan {
        let held = self.services.get(&*wanted.key.to_string());
        let waypoint = held.map(|held| held.value.waypoint.as_ref());
        let taking = match waypoint {
            Some(None) => Some(&wanted.key),
            Some(Some(WaypointAddress::Service(key))) => Some(key),
            Some(Some(WaypointAddress::Address(_) | WaypointAddress::Nobody(_))) | None => None,
        };
        let taking = taking.filter(|key| self.services.contains_key(&*key.to_string()));
        let pods = taking.into_iter().flat_map(|key| self.members.get(key));
        let pods = pods.filter_map(|uid| self.workloads.get(uid));
        let serves = |pod: &WireWorkload| {
            let ports = pod.services.get(&wanted.key);
            ports.is_some_and(|ports| ports.contains_key(&wanted.port))
        };
        let endpoint = |pod: &WireWorkload| {
            let served = taking != Some(&wanted.key) || serves(pod);
            let takes = served && pod.takes_tunnels() && pod.away.is_none();
            let address = pod.addresses.first().filter(|_| takes)?;
            Some(EndpointPlan {
                address: SocketAddr::new(*address, HBONE_PORT),
                name: None,
                expected: None,
                origination: None,
                weight: pod.weight.max(1),
                available: pod.healthy,
                rank: Default::default(),
                peer: peer(pod),
            })
        };
        let service = ServicePlan {
            retry: RetryPolicy::default(),
            retry_budget: RetryBudget::default(),
            traffic: Default::default(),
            service: self.service_labels(&wanted.key),
            port: wanted.port.get(),
            subset: None,
            protocol: WireProtocol::Tcp,
            http2_upgrade: false,
            client_protocol: true,
            authorities: wanted.authorities.clone(),
            endpoints: pods.filter_map(|held| endpoint(&held.value)).collect(),
            routes: None,
        };
        OutboundPlan {
            name: Arc::clone(name),
            bind: (Ipv4Addr::UNSPECIFIED, HBONE_PORT).into(),
            protocol: WireProtocol::Tcp,
            services: vec![service],
            otherwise: PassthroughMode::NoRoute,
            by_name: false,
        }
    }

    /// The workloads that tunnels may be for, by uid.
    pub(crate) fn workloads_wanted(&self) -> BTreeSet<Arc<str>> {
        let uids = self.destinations().filter_map(|one| match &one.to {
            WaypointTo::Workload(uid) => Some(Arc::clone(uid)),
            WaypointTo::Service(_) => None,
        });
        uids.collect()
    }

    /// The policies that hold for any of it.
    pub(super) fn policies_of_waypoint(&self) -> impl Iterator<Item = &PolicyReference> {
        self.destinations()
            .flat_map(|one| &one.authorization_policies)
    }

    /// The RequestAuthentications that do.
    pub(super) fn tokens_of_waypoint(&self) -> impl Iterator<Item = &PolicyReference> {
        self.destinations()
            .flat_map(|one| &one.request_authentications)
    }

    /// Policies of all destinations together.
    pub(super) fn policies_at_waypoint(
        &self,
        configuration: &ProxyConfiguration,
    ) -> Option<Authorization> {
        let mut all: Vec<PolicyReference> = self.policies_of_waypoint().cloned().collect();
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        all.dedup();
        self.authorization.compiled_of(&all, configuration)
    }

    /// Address and name of a waypoint's tunnel listener.
    pub(crate) fn tunnels(&self) -> Option<(SocketAddr, Arc<str>)> {
        let configuration = self.configuration.as_ref()?;
        let waypoint = configuration.value.waypoint.as_ref()?;
        Some((waypoint.bind, NAME.into()))
    }

    /// The plan of a waypoint's listener.
    pub(super) fn waypoint(&self, configuration: &ProxyConfiguration) -> Option<GatewayPlan> {
        let waypoint: &Waypoint = configuration.waypoint.as_ref()?;
        let destinations = waypoint.destinations.iter();
        let servers = destinations
            .filter_map(|one| self.door(configuration, one))
            .collect();
        Some(GatewayPlan {
            name: NAME.into(),
            bind: waypoint.bind,
            trusted_proxies: configuration.trusted_proxies,
            normalization: configuration.path_normalization,
            servers,
            waypoint: true,
            http3: None,
        })
    }

    /// None of a workload that is gone.
    fn door(
        &self,
        configuration: &ProxyConfiguration,
        destination: &WaypointDestination,
    ) -> Option<ServerPlan> {
        let called = destination.called.first().copied();
        let bind = called.unwrap_or((Ipv4Addr::UNSPECIFIED, HBONE_PORT).into());
        let (way, host) = match &destination.to {
            WaypointTo::Service(service) if destination.forward => {
                let host: Arc<str> = service.key.hostname.to_string().into();
                let way = self.forwarded(service, &destination.name);
                (way, Some((host, service.port.get())))
            }
            WaypointTo::Service(service) => {
                let listener = OutboundListener {
                    name: Arc::clone(&destination.name),
                    bind,
                    protocol: destination.protocol,
                    services: vec![service.clone()],
                };
                let host: Arc<str> = service.key.hostname.to_string().into();
                (self.outbound(&listener), Some((host, service.port.get())))
            }
            WaypointTo::Workload(uid) => {
                let workload = &self.workloads.get(uid)?.value;
                let way = OutboundPlan {
                    name: Arc::clone(&destination.name),
                    protocol: destination.protocol,
                    ..self.to_workload(called?, &[workload])
                };
                (way, None)
            }
        };
        let policies = &destination.authorization_policies;
        Some(ServerPlan {
            names: Vec::new(),
            tls: None,
            kind: ServerKind::Requests,
            redirects: HashSet::new(),
            door: Some(DoorPlan {
                called: destination.called.clone(),
                host,
                authorization: self.authorization.compiled_of(policies, configuration),
                tokens: self
                    .tokens
                    .compiled_of(&destination.request_authentications),
                telemetry: destination.telemetry,
            }),
            way,
        })
    }
}
