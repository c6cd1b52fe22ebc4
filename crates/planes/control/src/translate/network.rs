//! Workloads and services on other networks: the gateways to them, the identities expected there, and the preference for the own
//! network.

use voile_model::TrustDomain;
use voile_model::mesh::network::NetworkGateway;
use voile_model::mesh::{EndpointAddress, Mesh, MeshService};
use voile_proto::workload as wire;
use voile_xds::wire::{CLUSTER, address_bytes, encode_network_gateway, encode_network_gateways};

/// A workload on another network is reached through the gateways to that network, in mutual TLS. Without a gateway, the resource
/// says only that the workload is elsewhere. A reader that knows Istio's fields alone sees the first gateway.
pub(super) fn of_workload(mesh: &Mesh, network: &str, message: &mut wire::Workload) {
    let own = network == mesh.own_network();
    if network.is_empty() || own {
        return;
    }
    network.clone_into(&mut message.network);
    if let Some(gateway) = mesh.gateways_to(network).next() {
        message.network_gateway = Some(encode_network_gateway(&gateway));
        message.set_tunnel_protocol(wire::TunnelProtocol::Hbone);
        let domain = &mesh.config.trust_domain;
        let all = mesh.gateways_to(network);
        let all = all.map(|one| self::gateway(&one, domain));
        message.extensions.extend(encode_network_gateways(all));
    }
}

/// Endpoints on the own network are called as long as one of them is healthy; then those on other networks. A node proxy expects
/// an endpoint on another network to have one of these names.
pub(super) fn of_service(mesh: &Mesh, service: &MeshService, message: &mut wire::Service) {
    if !mesh.has_networks() {
        return;
    }
    let members = mesh.workloads_of(service).into_iter();
    let members = members.map(|member| member.workload);
    let members = members.filter(|one| mesh.is_behind_gateway(&one.network));
    let domain = &mesh.config.trust_domain;
    let identities = members.map(|one| one.identity(domain).to_string());
    // Endpoints known by a name alone are no workloads of the model.
    let named = service.endpoints.iter().filter(|one| {
        let by_name = matches!(one.address, EndpointAddress::Dns(_));
        by_name && mesh.is_behind_gateway(&one.network)
    });
    let named = named.map(|one| {
        let account = one.service_account.as_deref().unwrap_or("default");
        format!(
            "spiffe://{domain}/ns/{}/sa/{account}",
            service.key.namespace
        )
    });
    let mut away = identities.chain(named).peekable();
    if away.peek().is_none() {
        return;
    }
    let balancing = message.load_balancing.get_or_insert_default();
    // The service's own preference already begins with the network.
    let silent = balancing.routing_preference.is_empty();
    if silent && balancing.mode() != wire::load_balancing::Mode::Passthrough {
        let network = wire::load_balancing::Scope::Network;
        balancing.routing_preference = vec![network.into()];
        balancing.set_mode(wire::load_balancing::Mode::Failover);
    }
    message.subject_alt_names.extend(away);
    message.subject_alt_names.sort_unstable();
    message.subject_alt_names.dedup();
}

/// Gateway to another network, as a workload.
pub(super) fn gateway(gateway: &NetworkGateway, trust_domain: &TrustDomain) -> wire::Workload {
    let NetworkGateway {
        name,
        network,
        address,
        service_account,
    } = gateway;
    wire::Workload {
        uid: format!(
            "{CLUSTER}/gateway.networking.k8s.io/Gateway/{}/{}/{address}",
            name.namespace, name.name
        ),
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
        addresses: vec![address_bytes(*address)],
        network: network.to_string(),
        tunnel_protocol: wire::TunnelProtocol::Hbone.into(),
        trust_domain: trust_domain.to_string(),
        service_account: service_account.to_string(),
        canonical_name: name.name.to_string(),
        canonical_revision: "latest".to_owned(),
        workload_type: wire::WorkloadType::Pod.into(),
        workload_name: name.name.to_string(),
        cluster_id: CLUSTER.to_owned(),
        ..wire::Workload::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message;
    use voile_model::SourceFile;
    use voile_proto::proxy;
    use voile_proto::workload as wire;

    use crate::snapshot::MeshSnapshot;
    use crate::translate::translate;

    fn snapshot(text: &str) -> MeshSnapshot {
        let (mesh, problems) = voile_model::check(&[SourceFile::new("mesh.yaml", text)], None);
        let wrong = problems.iter().any(voile_model::Diagnostic::is_error);
        assert!(!wrong, "{problems:?}");
        translate(&mesh, None).0
    }

    const WEST: &str = r#"apiVersion: v1
kind: Namespace
metadata: {name: istio-system, labels: {topology.istio.io/network: west}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: east, namespace: shop}
spec: {address: 10.244.0.3, network: east, serviceAccount: far, labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: west, namespace: shop}
spec: {address: 10.244.0.3, network: west, serviceAccount: near, labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: north, namespace: shop}
spec: {address: 10.244.0.3, network: north, serviceAccount: lost, labels: {app: web}}
"#;

    const GATEWAY: &str = r#"---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: east
  namespace: edge
  labels: {topology.istio.io/network: east}
  annotations: {gateway.istio.io/service-account: gate}
spec:
  gatewayClassName: istio-remote
  addresses: [{value: 192.0.2.9}, {value: 192.0.2.8}]
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
"#;

    type Told = (BTreeMap<String, wire::Workload>, wire::Service);

    /// Workloads by name, and the service.
    fn told(snapshot: &MeshSnapshot) -> Told {
        let (mut workloads, mut web) = (BTreeMap::new(), wire::Service::default());
        for resource in snapshot.all_addresses.values() {
            let address = wire::Address::decode(&*resource.body).expect("a message");
            match address.r#type {
                Some(wire::address::Type::Workload(one)) => {
                    workloads.insert(one.name.clone(), one);
                }
                Some(wire::address::Type::Service(one)) if one.name == "web" => web = one,
                _ => {}
            }
        }
        (workloads, web)
    }

    #[test]
    fn who_is_behind_a_gateway_is_told_of_with_it_and_who_the_gateway_is() {
        let made = snapshot(&format!("{WEST}{GATEWAY}"));
        let (workloads, web) = told(&made);
        // Our own network has no name on the wire; the one without a gateway is said to be elsewhere, and no more.
        for (name, network) in [("west", ""), ("north", "north")] {
            assert_eq!(workloads[name].network, network);
            assert!(workloads[name].network_gateway.is_none());
        }
        let keeper = made
            .all_addresses
            .values()
            .find(|one| one.aliases.iter().any(|name| &**name == "east/192.0.2.9"));
        let keeper = wire::Address::decode(&*keeper.expect("asked for").body).expect("a message");
        let Some(wire::address::Type::Workload(keeper)) = keeper.r#type else {
            panic!("{keeper:?}");
        };
        assert_eq!(
            (
                &*keeper.namespace,
                &*keeper.service_account,
                &*keeper.network
            ),
            ("edge", "gate", "east")
        );
        assert_eq!(keeper.tunnel_protocol(), wire::TunnelProtocol::Hbone);
        let far = made.all_addresses.values().find_map(|one| {
            let address = wire::Address::decode(&*one.body).ok()?;
            match address.r#type? {
                wire::address::Type::Workload(one) if one.service_account == "far" => Some(one),
                _ => None,
            }
        });
        let far = far.expect("the workload in the east");
        assert_eq!(far.tunnel_protocol(), wire::TunnelProtocol::Hbone);
        // All the gateways, with who they must be.
        let read = voile_xds::wire::WireWorkload::check(&far).expect("good");
        let keepers = read.away.expect("elsewhere").keepers.into_iter();
        let keepers: Vec<String> = keepers
            .map(|one| format!("{} {}", one.at, one.identity))
            .collect();
        assert_eq!(
            keepers,
            [
                "192.0.2.9:15008 spiffe://cluster.local/ns/edge/sa/gate",
                "192.0.2.8:15008 spiffe://cluster.local/ns/edge/sa/gate"
            ]
        );
        let at = far.network_gateway.and_then(|one| one.destination);
        let Some(wire::gateway_address::Destination::Address(at)) = at else {
            panic!("{at:?}");
        };
        assert_eq!((&*at.network, at.address), ("east", vec![192, 0, 2, 9]));
        // The expected identities on the other network, and the preference for the own network.
        assert_eq!(
            web.subject_alt_names,
            ["spiffe://cluster.local/ns/shop/sa/far"]
        );
        let balancing = web.load_balancing.expect("a preference");
        assert_eq!(balancing.mode(), wire::load_balancing::Mode::Failover);
        assert_eq!(
            balancing.routing_preference,
            [i32::from(wire::load_balancing::Scope::Network)]
        );
        // Without a gateway nothing is preferred, nor anybody else expected.
        let (_, web) = told(&snapshot(WEST));
        assert!(web.load_balancing.is_none() && web.subject_alt_names.is_empty());
    }

    #[test]
    fn a_service_that_prefers_who_is_near_says_so_to_the_end() {
        let ports = "ports: [{name: http, port: 80}]}";
        let closest = format!("trafficDistribution: PreferClose, {ports}");
        let near = format!("{WEST}{GATEWAY}").replacen(ports, &closest, 1);
        let (_, near) = told(&snapshot(&near));
        let scopes = near
            .load_balancing
            .expect("a preference")
            .routing_preference;
        assert_eq!(scopes.len(), 3, "{scopes:?}");
        assert_eq!(scopes[0], i32::from(wire::load_balancing::Scope::Network));
    }

    #[test]
    fn a_gateway_between_networks_is_told_of_what_is_exported_and_of_nothing_else() {
        let service = |name: &str, said: &str| {
            format!(
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop, {said}}}\nspec: {{clusterIP: 10.96.0.9, \
                 selector: {{app: web}}, ports: [{{name: http, port: 80}}, {{name: u, port: 53, protocol: UDP}}]}}\n"
            )
        };
        let global = "istio.io/global: \"true\"";
        let services = [
            service("all", &format!("labels: {{{global}}}")),
            service("own", "labels: {}"),
            service("said", "labels: {istio.io/global: \"false\"}"),
            service(
                "gated",
                &format!("labels: {{{global}, istio.io/use-waypoint: w}}"),
            ),
            service(
                "kept",
                &format!(
                    "labels: {{{global}}}, annotations: {{networking.istio.io/exportTo: \".\"}}"
                ),
            ),
        ];
        let gate = |network: &str| {
            format!(
                "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: gate, namespace: edge, labels: \
                 {{topology.istio.io/network: {network}}}}}\nspec:\n  gatewayClassName: istio-east-west\n  listeners: [{{name: mesh, \
                 port: 15008, protocol: HBONE}}]\n---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: gate\n  namespace: edge\n  \
                 labels: {{gateway.networking.k8s.io/gateway-name: gate, sidecar.istio.io/inject: \"true\"}}\n  annotations: \
                 {{inject.istio.io/templates: waypoint}}\nspec: {{containers: [{{name: istio-proxy, image: auto}}]}}\nstatus: \
                 {{phase: Running, podIP: 10.244.0.7}}\n"
            )
        };
        for (network, expected) in [
            (
                "west",
                vec![
                    "shop/all.shop.svc.cluster.local:80",
                    "shop/gated.shop.svc.cluster.local:80",
                ],
            ),
            ("east", vec![]),
        ] {
            let made = snapshot(&format!("{WEST}{}{}", services.concat(), gate(network)));
            let own = made.configurations.get("edge/gate").expect("told");
            let body = proxy::ProxyConfiguration::decode(&*own.resource.body).expect("a message");
            let told = body.waypoint.expect("a gateway").destinations;
            assert!(told.iter().all(|one| one.forward && one.called.is_empty()));
            let names: Vec<&str> = told.iter().map(|one| &*one.name).collect();
            assert_eq!(names, expected, "of a Gateway for the network {network}");
            assert_eq!(own.problems.is_empty(), network == "west");
        }
    }
}
