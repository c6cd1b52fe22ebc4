//! The inbound half of transparent capture: what each port of a workload speaks, which kind of connection it takes, and
//! where the application listens if not where it was called. Ports nobody declared are carried too, by the workload's mode.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use voile_model::Port;
use voile_model::mesh::{
    EgressNamespace, Mesh, Protocol as Written, Sidecar, Workload, WorkloadService,
};
use voile_policy::{Mode, effective, inherited};
use voile_proto::proxy as wire;
use voile_xds::wire::{WireProtocol, protocol_of, socket_address};

use super::listeners;

/// A port before its mode is known.
struct DeclaredPort {
    protocol: WireProtocol,
    endpoint: Option<SocketAddr>,
}

pub(super) fn capture(
    mesh: &Mesh,
    workload: &Workload,
    sidecar: Option<&Sidecar>,
) -> wire::Capture {
    let services = mesh.services_of(workload);
    let default = inherited(mesh, &workload.key.namespace, &workload.labels).mode;
    let declared = match sidecar {
        Some(sidecar) if !sidecar.ingress.is_empty() => from_ingress(workload, sidecar),
        _ => from_services(&services),
    };
    let mut ports: BTreeMap<Port, wire::CapturedPort> = declared
        .into_iter()
        .map(|(port, declared)| {
            let made = on_the_wire(mesh, workload, &services, port, &declared);
            (port, made)
        })
        .collect();
    // Ports that nothing but a policy or a container speaks of are listed where their mode is not the workload's.
    let spoken_of = mesh
        .peer_authentications
        .iter()
        .flat_map(|policy| policy.port_modes.keys())
        .chain(&workload.container_ports);
    for port in spoken_of.copied() {
        if !ports.contains_key(&port) && effective(mesh, workload, port).mode != default {
            let undeclared = DeclaredPort {
                protocol: protocol_of(Written::undeclared(port)).unwrap_or(WireProtocol::Auto),
                endpoint: None,
            };
            let made = on_the_wire(mesh, workload, &services, port, &undeclared);
            ports.insert(port, made);
        }
    }
    wire::Capture {
        mutual_tls: mutual_tls(default).into(),
        ports: ports.into_values().collect(),
        mesh_ranges: Vec::new(),
        limited: sidecar.is_some_and(|sidecar| !sidecar.egress.is_empty()),
        reachable: reachable(workload, sidecar),
    }
}

/// Hosts that a Sidecar lets its workload reach. Listeners of their own bound the captured addresses as well.
fn reachable(workload: &Workload, sidecar: Option<&Sidecar>) -> Vec<wire::ReachableHosts> {
    let hosts = sidecar.into_iter().flat_map(|sidecar| &sidecar.egress);
    let hosts = hosts.flat_map(|listener| &listener.hosts);
    hosts
        .filter_map(|host| {
            let namespace = match &host.namespace {
                EgressNamespace::Any => String::new(),
                EgressNamespace::Own => workload.key.namespace.to_string(),
                EgressNamespace::Named(namespace) => namespace.to_string(),
                EgressNamespace::Nothing => return None,
            };
            Some(wire::ReachableHosts {
                namespace,
                host: host.hostname.to_string(),
            })
        })
        .collect()
}

fn from_services(services: &[WorkloadService]) -> BTreeMap<Port, DeclaredPort> {
    let ports = listeners::target_ports(services).into_iter();
    ports
        .map(|(port, protocol)| {
            let endpoint = None;
            (port, DeclaredPort { protocol, endpoint })
        })
        .collect()
}

fn from_ingress(workload: &Workload, sidecar: &Sidecar) -> BTreeMap<Port, DeclaredPort> {
    let Some(own) = workload.addresses.first().copied() else {
        return BTreeMap::new();
    };
    let mut ports = BTreeMap::new();
    for listener in &sidecar.ingress {
        let Some(protocol) = protocol_of(listener.port.protocol) else {
            continue;
        };
        let (port, endpoint) = listeners::ingress_endpoint(listener, own);
        let called = SocketAddr::new(own, port.get());
        let endpoint = (endpoint != called).then_some(endpoint);
        ports
            .entry(port)
            .or_insert(DeclaredPort { protocol, endpoint });
    }
    ports
}

fn on_the_wire(
    mesh: &Mesh,
    workload: &Workload,
    services: &[WorkloadService],
    port: Port,
    declared: &DeclaredPort,
) -> wire::CapturedPort {
    let (service, service_port) = listeners::service_at(services, port);
    wire::CapturedPort {
        port: port.get().into(),
        protocol: declared.protocol.to_proxy().into(),
        mutual_tls: mutual_tls(effective(mesh, workload, port).mode).into(),
        service,
        service_port,
        endpoint: declared.endpoint.map(socket_address),
    }
}

pub(super) fn mutual_tls(mode: Mode) -> wire::MutualTls {
    match mode {
        Mode::Disable => wire::MutualTls::Disable,
        Mode::Permissive => wire::MutualTls::Permissive,
        Mode::Strict => wire::MutualTls::Strict,
    }
}
