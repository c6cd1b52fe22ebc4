//! Encodes the checked model as Istio's workload messages. Parts that the wire cannot express (UDP ports) are left out here,
//! once.

use std::collections::BTreeMap;

use prost::{Message as _, Name as _};
use voile_model::mesh::{self, Resolution, TargetPort, TrafficDistribution, Transport};
use voile_model::{Labels, Port, ServiceKey, TrustDomain};
use voile_proto::{proxy, workload as wire};

use super::address::{APP, GATEWAY_EXTENSION, LABELS_EXTENSION, VERSION};
use super::{WireProtocol, WireType, address_bytes};

/// The proxy's protocol for a protocol of the model; `None` for UDP, which no proxy touches.
pub fn protocol_of(protocol: mesh::Protocol) -> Option<WireProtocol> {
    Some(match protocol {
        mesh::Protocol::Auto => WireProtocol::Auto,
        mesh::Protocol::Http => WireProtocol::Http,
        mesh::Protocol::Http2 => WireProtocol::Http2,
        mesh::Protocol::Grpc => WireProtocol::Grpc,
        mesh::Protocol::Tcp => WireProtocol::Tcp,
        mesh::Protocol::Tls => WireProtocol::Tls,
        mesh::Protocol::Udp => return None,
    })
}

/// A service as `istio.workload.Service`.
pub fn encode_service(service: &mesh::MeshService) -> wire::Service {
    let single = |address| wire::NetworkAddress {
        network: String::new(),
        address: address_bytes(address),
        length: None,
    };
    let ranges = service
        .address_ranges
        .iter()
        .map(|range| wire::NetworkAddress {
            length: Some(range.prefix.into()),
            ..single(range.address)
        });
    wire::Service {
        name: service.name.to_string(),
        namespace: service.key.namespace.to_string(),
        hostname: service.key.hostname.to_string(),
        addresses: service
            .addresses
            .iter()
            .map(|a| single(*a))
            .chain(ranges)
            .collect(),
        ports: service.ports.iter().filter_map(service_port).collect(),
        subject_alt_names: service
            .subject_alt_names
            .iter()
            .map(ToString::to_string)
            .collect(),
        load_balancing: load_balancing(service),
        canonical: service.origin == mesh::ServiceOrigin::Kubernetes,
        visibility: match service.visibility {
            mesh::Visibility::Public => wire::service::Visibility::Public,
            mesh::Visibility::Namespaces(_) => wire::service::Visibility::Namespace,
        }
        .into(),
        ..wire::Service::default()
    }
}

/// Endpoint preference of a node proxy, or a ztunnel.
fn load_balancing(service: &mesh::MeshService) -> Option<wire::LoadBalancing> {
    use wire::load_balancing::{Mode, Scope};
    const SCOPES: [Scope; 5] = [
        Scope::Network,
        Scope::Region,
        Scope::Zone,
        Scope::Subzone,
        Scope::Node,
    ];
    let (mode, scopes) = match service.distribution {
        _ if is_passthrough(service) => (Mode::Passthrough, &[][..]),
        None => return None,
        Some(TrafficDistribution::SameZone) => (Mode::Failover, &SCOPES[..3]),
        Some(TrafficDistribution::SameNode) => (Mode::Failover, &SCOPES[..]),
    };
    Some(wire::LoadBalancing {
        routing_preference: scopes.iter().map(|scope| (*scope).into()).collect(),
        mode: mode.into(),
        ..wire::LoadBalancing::default()
    })
}

/// Returns true if traffic goes to the address that the client named.
fn is_passthrough(service: &mesh::MeshService) -> bool {
    service.resolution == Resolution::Passthrough && !service.headless
}

fn service_port(port: &mesh::ServicePort) -> Option<wire::Port> {
    if port.transport == Transport::Udp {
        return None;
    }
    Some(wire::Port {
        service_port: port.number.get().into(),
        target_port: match &port.target {
            TargetPort::Number(number) => number.get().into(),
            TargetPort::Named(_) => 0,
        },
        app_protocol: protocol_of(port.protocol)?.to_workload().into(),
    })
}

/// A workload as `istio.workload.Workload` (without `authorization_policies`), with the services it stands behind (workload port by service port).
pub fn encode_workload(
    workload: &mesh::Workload,
    services: &BTreeMap<ServiceKey, BTreeMap<Port, Port>>,
    trust_domain: &TrustDomain,
) -> wire::Workload {
    wire::Workload {
        uid: workload.uid.to_string(),
        name: workload.key.name.to_string(),
        namespace: workload.key.namespace.to_string(),
        addresses: workload
            .addresses
            .iter()
            .map(|a| address_bytes(*a))
            .collect(),
        hostname: workload
            .hostname
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        network: workload.network.to_string(),
        // A gateway takes what its Gateways say, and nothing in the mesh's mutual TLS by itself; a waypoint takes tunnels.
        tunnel_protocol: match (
            workload.has_sidecar && !workload.gateway,
            workload.ambient || workload.waypoint,
        ) {
            (true, _) => wire::TunnelProtocol::LegacyIstioMtls,
            (false, true) => wire::TunnelProtocol::Hbone,
            (false, false) => wire::TunnelProtocol::None,
        }
        .into(),
        node: workload.node.to_string(),
        trust_domain: trust_domain.to_string(),
        service_account: workload.service_account.to_string(),
        canonical_name: workload.canonical_name.to_string(),
        canonical_revision: workload.canonical_revision.to_string(),
        workload_type: workload_type(workload.workload_type).into(),
        workload_name: workload.workload_name.to_string(),
        status: match workload.ready {
            true => wire::WorkloadStatus::Healthy,
            false => wire::WorkloadStatus::Unhealthy,
        }
        .into(),
        cluster_id: CLUSTER.to_owned(),
        services: services
            .iter()
            .map(|(key, ports)| (key.to_string(), port_list(ports)))
            .collect(),
        locality: locality(&workload.locality),
        capacity: workload.weight,
        extensions: encode_labels(
            &workload.labels,
            &workload.canonical_name,
            &workload.canonical_revision,
        )
        .into_iter()
        .chain(
            (workload.gateway && !workload.waypoint).then(|| wire::Extension {
                name: GATEWAY_EXTENSION.to_owned(),
                config: None,
            }),
        )
        .collect(),
        ..wire::Workload::default()
    }
}

/// All labels, where they are more or others than the canonical names say: subsets are chosen by them, and metrics say what the
/// resource says.
#[must_use]
pub fn encode_labels(
    labels: &Labels,
    canonical_name: &str,
    canonical_revision: &str,
) -> Option<wire::Extension> {
    let label = |name| labels.get(name).unwrap_or_default().to_owned();
    let others = labels
        .iter()
        .filter(|(name, _)| ![APP, VERSION].contains(&&***name));
    let others: Labels = others
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let labels = proxy::WorkloadLabels {
        app: label(APP),
        version: label(VERSION),
        others: others.to_wire(),
    };
    let canonical = labels.app == canonical_name && labels.version == canonical_revision;
    (!canonical || !others.is_empty()).then(|| wire::Extension {
        name: LABELS_EXTENSION.to_owned(),
        config: Some(prost_types::Any {
            type_url: proxy::WorkloadLabels::type_url(),
            value: labels.encode_to_vec(),
        }),
    })
}

/// The one cluster of a mesh without Kubernetes; the name Istio gives a cluster nobody named.
pub const CLUSTER: &str = "Kubernetes";

fn workload_type(kind: mesh::WorkloadType) -> wire::WorkloadType {
    match kind {
        mesh::WorkloadType::Deployment => wire::WorkloadType::Deployment,
        mesh::WorkloadType::CronJob => wire::WorkloadType::Cronjob,
        mesh::WorkloadType::Pod => wire::WorkloadType::Pod,
        mesh::WorkloadType::Job => wire::WorkloadType::Job,
    }
}

fn port_list(ports: &BTreeMap<Port, Port>) -> wire::PortList {
    let entry = |(number, target): (&Port, &Port)| wire::Port {
        service_port: number.get().into(),
        target_port: target.get().into(),
        app_protocol: 0,
    };
    wire::PortList {
        ports: ports.iter().map(entry).collect(),
    }
}

fn locality(text: &str) -> Option<wire::Locality> {
    let mut parts = text.splitn(3, '/').map(str::to_owned);
    let region = parts.next().filter(|region| !region.is_empty())?;
    Some(wire::Locality {
        region,
        zone: parts.next().unwrap_or_default(),
        subzone: parts.next().unwrap_or_default(),
    })
}
