//! Workloads and services as Istio's Address, found by every name a proxy may ask by.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;
use voile_model::mesh::waypoint::InboundBinding;
use voile_model::mesh::{
    EndpointAddress, Location, Mesh, MeshService, Resolution, TargetPort, Workload,
};
use voile_model::{Hostname, Port, Ranges, ServiceKey};
use voile_proto::workload as wire;
use voile_xds::server::Resource;
use voile_xds::wire::{
    CLUSTER, WaypointAddress, address_bytes, encode_labels, encode_service, encode_workload,
};

use super::network;
use crate::resources::resource;
use crate::ztunnel;

/// The label of an endpoint that stands behind a proxy.
const TLS_MODE: &str = "security.istio.io/tlsMode";

/// A workload's Address, and the services it stands behind.
pub(super) fn of_workload(mesh: &Mesh, workload: &Workload) -> (Resource, Vec<Arc<str>>) {
    let members: BTreeMap<ServiceKey, BTreeMap<Port, Port>> = mesh
        .services_of(workload)
        .into_iter()
        .map(|member| (member.service.key.clone(), member.ports))
        .collect();
    let mut message = encode_workload(workload, &members, &mesh.config.trust_domain);
    ztunnel::name_policies(mesh, workload, &mut message);
    let waypoint = mesh.waypoint_of_workload(workload);
    message.waypoint = waypoint.as_ref().and_then(WaypointAddress::encode);
    message.application_tunnel = mesh.binding_of(workload).map(application_tunnel);
    network::of_workload(mesh, &workload.network, &mut message);
    let made = pack(
        workload.uid.clone(),
        workload_aliases(workload),
        wire::address::Type::Workload(message),
    );
    let services = members.keys().map(|key| key.to_string().into());
    (made, services.collect())
}

fn application_tunnel(said: InboundBinding) -> wire::ApplicationTunnel {
    use wire::application_tunnel::Protocol;
    let protocol = match said.proxy {
        true => Protocol::Proxy,
        false => Protocol::None,
    };
    wire::ApplicationTunnel {
        protocol: protocol.into(),
        port: said.port.map_or(0, |port| port.get().into()),
    }
}

/// A service's Address.
pub(super) fn of_service(mesh: &Mesh, service: &MeshService, name: &Arc<str>) -> Resource {
    let aliases = service
        .addresses
        .iter()
        .map(|address| by_address("", *address))
        .collect();
    let waypoint = mesh.waypoint_of(service);
    let mut message = wire::Service {
        waypoint: waypoint.as_ref().and_then(WaypointAddress::encode),
        ..encode_service(service)
    };
    network::of_service(mesh, service, &mut message);
    let message = wire::address::Type::Service(message);
    pack(name.clone(), aliases, message)
}

/// Services that have ranges of addresses.
pub(super) fn ranges(mesh: &Mesh) -> Ranges<Arc<str>> {
    let mut ranges = Ranges::default();
    for service in mesh.services.values() {
        for range in &service.address_ranges {
            ranges.insert(*range, service.key.to_string().into());
        }
    }
    ranges
}

/// Endpoints known only by a DNS name, as Addresses.
pub(super) fn named_endpoints(mesh: &Mesh, service: &MeshService) -> Vec<Resource> {
    let found = named_workloads(mesh, service).into_iter();
    found
        .map(|workload| {
            let uid: Arc<str> = workload.uid.as_str().into();
            pack(uid, Vec::new(), wire::address::Type::Workload(workload))
        })
        .collect()
}

/// Gateways to other networks, as Addresses.
pub(super) fn network_gateways(mesh: &Mesh) -> Vec<Resource> {
    let found = mesh.network_gateways();
    let found = found.map(|gateway| {
        let message = network::gateway(&gateway, &mesh.config.trust_domain);
        let (uid, at) = (message.uid.as_str().into(), gateway.address);
        let aliases = vec![by_address(&gateway.network, at)];
        pack(uid, aliases, wire::address::Type::Workload(message))
    });
    found.collect()
}

fn pack(name: Arc<str>, aliases: Vec<Arc<str>>, message: wire::address::Type) -> Resource {
    let address = wire::Address {
        r#type: Some(message),
    };
    resource(name, aliases, address.encode_to_vec())
}

fn by_address(network: &str, address: IpAddr) -> Arc<str> {
    format!("{network}/{address}").into()
}

fn workload_aliases(workload: &Workload) -> Vec<Arc<str>> {
    workload
        .addresses
        .iter()
        .map(|address| by_address(&workload.network, *address))
        .collect()
}

/// Endpoints known only by a DNS name: workloads without address or identity, which the proxy resolves itself.
fn named_workloads(mesh: &Mesh, service: &MeshService) -> Vec<wire::Workload> {
    let plain = BTreeMap::new();
    match &service.resolution {
        Resolution::Alias(hostname) => vec![named(service, hostname, &plain)],
        // A pattern stands for the hosts that it covers, each of which a proxy asks for when a client names it.
        Resolution::DynamicDns => vec![named(service, &service.key.hostname, &plain)],
        Resolution::Dns | Resolution::DnsRoundRobin if service.endpoints.is_empty() => {
            match service.key.hostname.is_wildcard() {
                true => Vec::new(),
                false => vec![named(service, &service.key.hostname, &plain)],
            }
        }
        Resolution::Static
        | Resolution::Passthrough
        | Resolution::Dns
        | Resolution::DnsRoundRobin => service
            .endpoints
            .iter()
            .filter_map(|endpoint| match &endpoint.address {
                EndpointAddress::Dns(hostname) => {
                    let mut workload = named(service, hostname, &endpoint.ports);
                    if !endpoint.labels.is_empty() {
                        let (name, revision) =
                            (&workload.canonical_name, &workload.canonical_revision);
                        let labels = encode_labels(&endpoint.labels, name, revision);
                        workload.extensions.extend(labels);
                    }
                    // It says that it takes mutual TLS, and who it is then. Nobody outside the mesh is asked for that.
                    let inside = service.location == Location::MeshInternal;
                    let auto = inside && mesh.config.enable_auto_mtls;
                    network::of_workload(mesh, &endpoint.network, &mut workload);
                    let through_gateway = workload.network_gateway.is_some();
                    if through_gateway || (auto && endpoint.labels.get(TLS_MODE) == Some("istio")) {
                        let account = endpoint.service_account.as_deref();
                        workload.service_account = account.unwrap_or("default").to_owned();
                        workload.trust_domain = mesh.config.trust_domain.to_string();
                        if !through_gateway {
                            workload.set_tunnel_protocol(wire::TunnelProtocol::LegacyIstioMtls);
                        }
                    }
                    Some(workload)
                }
                EndpointAddress::Ip(_) => None,
            })
            .collect(),
    }
}

fn named(
    service: &MeshService,
    hostname: &Hostname,
    ports: &BTreeMap<Arc<str>, Port>,
) -> wire::Workload {
    let target = |port: &voile_model::mesh::ServicePort| {
        ports.get(&port.name).copied().unwrap_or(match port.target {
            TargetPort::Number(number) => number,
            TargetPort::Named(_) => port.number,
        })
    };
    let list = service.ports.iter().map(|port| wire::Port {
        service_port: port.number.get().into(),
        target_port: target(port).get().into(),
        app_protocol: 0,
    });
    wire::Workload {
        uid: format!(
            "{CLUSTER}/networking.istio.io/Hostname/{}/{hostname}",
            service.key
        ),
        name: hostname.to_string(),
        namespace: service.key.namespace.to_string(),
        // An address literal in place of a name needs no resolving.
        addresses: hostname
            .as_str()
            .parse()
            .map(address_bytes)
            .into_iter()
            .collect(),
        hostname: hostname.to_string(),
        canonical_name: service.name.to_string(),
        canonical_revision: "latest".to_owned(),
        workload_type: wire::WorkloadType::Pod.into(),
        workload_name: service.name.to_string(),
        cluster_id: CLUSTER.to_owned(),
        services: [(
            service.key.to_string(),
            wire::PortList {
                ports: list.collect(),
            },
        )]
        .into(),
        ..wire::Workload::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;
    use voile_proto::workload as wire;

    /// Two endpoints with a label that asks for mutual TLS, one by address and one by name, and two without.
    fn entry(name: &str, location: &str) -> String {
        format!(
            r#"
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.test]
  {location}
  ports: [{{number: 80, name: http}}]
  resolution: DNS
  endpoints:
  - {{address: a.{name}.test, serviceAccount: far, labels: {{security.istio.io/tlsMode: istio}}}}
  - {{address: b.{name}.test}}
  - {{address: 192.0.2.1, serviceAccount: far, labels: {{security.istio.io/tlsMode: istio}}}}
  - {{address: 192.0.2.2}}
"#
        )
    }

    #[test]
    fn only_endpoints_inside_the_mesh_that_ask_for_mutual_tls_are_given_it() {
        let text = entry("internal", "location: MESH_INTERNAL")
            + &entry("external", "location: MESH_EXTERNAL")
            + &entry("unsaid", "");
        let files = [voile_model::SourceFile::new("mesh.yaml", text)];
        let (mesh, problems) = voile_model::check(&files, None);
        let wrong = problems.iter().any(voile_model::Diagnostic::is_error);
        assert!(!wrong, "{problems:?}");
        let (snapshot, _) = crate::translate::translate(&mesh, None);
        let spared: BTreeSet<_> = mesh
            .services
            .values()
            .flat_map(|service| super::super::client_policies::told(&mesh, service, None).ports)
            .flat_map(|(_, port)| port.plaintext_workloads)
            .collect();
        let mut asked = Vec::new();
        for resource in snapshot.all_addresses.values() {
            let address = wire::Address::decode(&*resource.body).expect("a message");
            if let Some(wire::address::Type::Workload(workload)) = address.r#type
                && workload.tunnel_protocol == i32::from(wire::TunnelProtocol::LegacyIstioMtls)
                && !spared.contains(workload.uid.as_str())
            {
                asked.push(format!("{} as {}", workload.name, workload.service_account));
            }
        }
        asked.sort();
        assert_eq!(
            asked,
            ["a.internal.test as far", "internal/192.0.2.1 as far"]
        );
    }
}
