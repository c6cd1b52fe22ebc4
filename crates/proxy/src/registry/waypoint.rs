//! What a waypoint takes: each of its destinations is a listener that nobody binds, found by what a tunnel asks for, and led on as
//! a sidecar's outbound listener is. Policies hold for each destination apart.

use std::collections::{BTreeSet, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use voile_model::mesh::waypoint::HBONE_PORT;
use voile_xds::wire::{
    OutboundListener, OutboundService, PolicyReference, ProxyConfiguration, ServerKind, Service,
    Waypoint, WaypointDestination, WaypointTo, Workload,
};

use super::Registry;
use crate::authorization::Authorization;
use crate::plan::{DoorPlan, GatewayPlan, OutboundPlan, ServerPlan};

/// What its listener is called.
const NAME: &str = "waypoint";

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

    /// Whether to call its workloads would go past a waypoint, and so past its policies: nobody does but that waypoint itself.
    pub(super) fn is_past_waypoint(&self, service: &Service) -> bool {
        let ours = || self.behind_waypoint().any(|one| one.key == service.key);
        service.waypoint.is_some() && !ours()
    }

    /// The same of a workload that is called by its own address.
    pub(super) fn is_past_waypoint_of(&self, workload: &Workload) -> bool {
        let ours = || self.workloads_wanted().contains(&workload.uid);
        workload.waypoint.is_some() && !ours()
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

    /// What all of them come to together, whatever each is for.
    pub(super) fn policies_at_waypoint(
        &self,
        configuration: &ProxyConfiguration,
    ) -> Option<Authorization> {
        let mut all: Vec<PolicyReference> = self.policies_of_waypoint().cloned().collect();
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        all.dedup();
        self.authorization.compiled_of(&all, configuration)
    }

    /// Where a waypoint takes tunnels, and what it is called.
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
            }),
            way,
        })
    }
}
