//! Configuration of a waypoint's proxy. For each port of each service behind it, and of each workload, it has the tunnel's target
//! name, the AuthorizationPolicies and the RequestAuthentications. Policies may target the Gateway or the service.
//!
//! AuthorizationPolicies with a selector hold at node proxies and not here, as in Istio. A gateway between networks gets the
//! services that other networks may call, and does not read their traffic.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use voile_model::Port;
use voile_model::mesh::gateway_api::Gateway;
use voile_model::mesh::waypoint::{HBONE_PORT, INBOUND_BINDING};
use voile_model::mesh::{AuthorizationPolicy, Mesh, MeshService, Workload};
use voile_xds::wire::{
    OutboundService, PolicyReference, Waypoint, WaypointDestination, WaypointTo, WireProtocol,
    protocol_of,
};

use super::listeners::target_ports;
use super::security::authorization::reference;
use super::telemetry::SharedTelemetry;
use crate::snapshot::MeshSnapshot;

/// None of a workload without an address.
pub(super) fn waypoint(
    mesh: &Mesh,
    workload: &Workload,
    snapshot: &MeshSnapshot,
    problems: &mut Vec<String>,
) -> Option<Waypoint> {
    let mut made = Waypoint {
        bind: SocketAddr::new(*workload.addresses.first()?, HBONE_PORT),
        destinations: Vec::new(),
        telemetries: Vec::new(),
    };
    if mesh.east_west_run_by(workload).is_some() {
        let exported = mesh.services.values().filter(|one| mesh.is_exported(one));
        made.destinations = exported.flat_map(|one| forwarded(one)).collect();
        return Some(made);
    }
    let Some(gateway) = mesh.waypoint_run_by(workload) else {
        problems.push(format!(
            "{}: no Gateway of the class istio-waypoint, and none in force of the class istio-east-west, runs this waypoint; it serves nothing",
            workload.key
        ));
        return Some(made);
    };
    if gateway.binding.is_some() {
        problems.push(format!(
            "{}: the annotation {INBOUND_BINDING} of {} is ignored: it is for waypoints of another program; this one accepts HBONE itself, and no PROXY header",
            workload.key, gateway.name
        ));
    }
    let mut taken = BTreeSet::new();
    let mut told = SharedTelemetry::new(mesh, workload);
    for service in mesh.services_behind(gateway) {
        let policies = policies(mesh, (gateway, workload), Some(service), snapshot);
        let telemetry = told.of(service, problems);
        let destinations = of_service(service, (&policies, telemetry), &mut taken);
        made.destinations.extend(destinations);
    }
    made.telemetries = told.made;
    let policies = policies(mesh, (gateway, workload), None, snapshot);
    for workload in mesh.workloads_behind(gateway) {
        made.destinations
            .extend(of_workload(mesh, workload, &policies, &mut taken));
    }
    Some(made)
}

/// The ports of a service that other networks may call, by its name alone: addresses mean something else there.
fn forwarded(service: &MeshService) -> Vec<WaypointDestination> {
    let ports = service.ports.iter().filter_map(|port| {
        protocol_of(port.protocol)?;
        Some(WaypointDestination {
            name: format!("{}:{}", service.key, port.number).into(),
            called: Vec::new(),
            protocol: WireProtocol::Tcp,
            to: to_port(service, port.number),
            authorization_policies: Vec::new(),
            request_authentications: Vec::new(),
            telemetry: None,
            forward: true,
        })
    });
    ports.collect()
}

fn to_port(service: &MeshService, port: Port) -> WaypointTo {
    WaypointTo::Service(OutboundService {
        key: service.key.clone(),
        port,
        authorities: Vec::new(),
    })
}

/// Policies of a destination.
struct DestinationPolicies {
    authorization: Vec<PolicyReference>,
    tokens: Vec<PolicyReference>,
}

fn policies(
    mesh: &Mesh,
    (gateway, own): (&Gateway, &Workload),
    service: Option<&MeshService>,
    snapshot: &MeshSnapshot,
) -> DestinationPolicies {
    let authorization = mesh.authorization_aimed_at(gateway, service).into_iter();
    let tokens = mesh.request_authentication_at(gateway, service, Some(own));
    DestinationPolicies {
        authorization: authorization
            .map(|policy: &Arc<AuthorizationPolicy>| reference(policy, snapshot))
            .collect(),
        tokens: tokens
            .into_iter()
            .map(|policy| super::tokens::reference(policy, snapshot))
            .collect(),
    }
}

fn of_service(
    service: &MeshService,
    (policies, telemetry): (&DestinationPolicies, Option<usize>),
    taken: &mut BTreeSet<SocketAddr>,
) -> Vec<WaypointDestination> {
    let ports = service.ports.iter().filter_map(|port| {
        let protocol = protocol_of(port.protocol)?;
        let addresses = service.addresses.iter();
        let called = addresses.map(|address| SocketAddr::new(*address, port.number.get()));
        // Of two services at one address the first has it.
        let called = called.filter(|one| taken.insert(*one));
        Some(WaypointDestination {
            name: format!("{}:{}", service.key, port.number).into(),
            called: called.collect(),
            protocol,
            to: to_port(service, port.number),
            authorization_policies: policies.authorization.clone(),
            request_authentications: policies.tokens.clone(),
            telemetry,
            forward: false,
        })
    });
    ports.collect()
}

/// The ports that it is known to have: those that services send to, and those that its containers declare.
fn of_workload(
    mesh: &Mesh,
    workload: &Workload,
    policies: &DestinationPolicies,
    taken: &mut BTreeSet<SocketAddr>,
) -> Vec<WaypointDestination> {
    let mut ports = target_ports(&mesh.services_of(workload));
    for port in &workload.container_ports {
        ports.entry(*port).or_insert(WireProtocol::Auto);
    }
    let destination = |(port, protocol): (Port, WireProtocol)| {
        let addresses = workload.addresses.iter();
        let called = addresses.map(|address| SocketAddr::new(*address, port.get()));
        let called = called.filter(|one| taken.insert(*one));
        WaypointDestination {
            name: format!("{}:{port}", workload.uid).into(),
            called: called.collect(),
            protocol,
            to: WaypointTo::Workload(workload.uid.clone()),
            authorization_policies: policies.authorization.clone(),
            request_authentications: policies.tokens.clone(),
            telemetry: None,
            forward: false,
        }
    };
    ports.into_iter().map(destination).collect()
}
