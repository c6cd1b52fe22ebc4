//! The inbound half of transparent capture: what each port of a workload speaks, which kind of connection it takes, and
//! where the application listens if not where it was called. Ports nobody declared are carried too, by the workload's mode.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use voile_model::Port;
use voile_model::mesh::{
    EgressNamespace, Mesh, Protocol as Written, Sidecar, Workload, WorkloadService,
};
use voile_policy::{Mode, effective, inherited};
use voile_xds::wire::{
    CapturedPort, InboundCapture, MutualTls, ReachableHosts, WireProtocol, by_key, protocol_of,
};

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
) -> InboundCapture {
    let services = mesh.services_of(workload);
    let default = inherited(mesh, &workload.key.namespace, &workload.labels).mode;
    let declared = match sidecar {
        Some(sidecar) if !sidecar.ingress.is_empty() => from_ingress(workload, sidecar),
        _ => from_services(&services),
    };
    let made = |port, declared: &_| captured_port(mesh, workload, &services, port, declared);
    let mut ports = by_key(
        declared
            .iter()
            .map(|(port, declared)| made(*port, declared)),
    );
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
            ports.insert(port, made(port, &undeclared));
        }
    }
    let limiting = sidecar.filter(|sidecar| !sidecar.egress.is_empty());
    InboundCapture {
        mutual_tls: mutual_tls(default),
        ports,
        mesh_ranges: Vec::new(),
        reachable: limiting.map(|sidecar| reachable(workload, sidecar)),
    }
}

/// Hosts that a Sidecar lets its workload reach. Listeners of their own bound the captured addresses as well.
fn reachable(workload: &Workload, sidecar: &Sidecar) -> Vec<ReachableHosts> {
    let hosts = sidecar.egress.iter().flat_map(|listener| &listener.hosts);
    hosts
        .filter_map(|host| {
            let namespace = match &host.namespace {
                EgressNamespace::Any => None,
                EgressNamespace::Own => Some(workload.key.namespace.clone()),
                EgressNamespace::Named(namespace) => Some(namespace.clone()),
                EgressNamespace::Nothing => return None,
            };
            let host = host.hostname.clone();
            Some(ReachableHosts { namespace, host })
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

fn captured_port(
    mesh: &Mesh,
    workload: &Workload,
    services: &[WorkloadService],
    port: Port,
    declared: &DeclaredPort,
) -> CapturedPort {
    CapturedPort {
        port,
        protocol: declared.protocol,
        mutual_tls: mutual_tls(effective(mesh, workload, port).mode),
        service: listeners::service_at(services, port),
        endpoint: declared.endpoint,
    }
}

pub(super) fn mutual_tls(mode: Mode) -> MutualTls {
    match mode {
        Mode::Disable => MutualTls::Disable,
        Mode::Permissive => MutualTls::Permissive,
        Mode::Strict => MutualTls::Strict,
    }
}
