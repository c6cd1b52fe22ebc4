//! Destinations of the mesh's own TLS that a gateway passes through (AUTO_PASSTHROUGH): names of the form
//! `outbound_.PORT_.SUBSET_.HOST`. There is one for each port of each service that the gateway may lead to and for each subset,
//! as in Istio. Any other name has no destination.

use std::collections::BTreeMap;
use std::sync::Arc;

use voile_model::mesh::action::HeaderRules;
use voile_model::mesh::routing_intent::{DeclaredServer, ServerTlsMode};
use voile_model::mesh::{
    Location, Mesh, MeshService, Resolution, RuleClient, ServicePort, Transport, Workload,
};
use voile_model::{Hostname, Port};
use voile_xds::wire::{
    ConnectionMatch, ConnectionRoute, GatewayServer, PackedRoutes, RouteDestination, RouteTarget,
    Routes, ServerKind,
};

use super::Servers;

/// Returns true if the server routes connections by name alone.
pub(super) fn is(server: &DeclaredServer) -> bool {
    let tls = server.tls.as_ref();
    tls.is_some_and(|tls| tls.mode == ServerTlsMode::AutoPassthrough)
}

/// The one server that all of these are; none where there are none.
pub(super) fn server(
    mesh: &Mesh,
    workload: &Workload,
    servers: &Servers<'_>,
) -> Option<GatewayServer> {
    if servers.is_empty() {
        return None;
    }
    let (mut names, mut connections) = (Vec::new(), Vec::new());
    for service in led_to(mesh, workload, servers).into_values() {
        let parts = parts(mesh, workload, service);
        for port in service.ports.iter().filter(|port| is_carried(port)) {
            for part in &parts {
                let name = name(service, port.number, part.as_deref());
                connections.push(route(service, port.number, part.clone(), &name));
                names.push(name);
            }
        }
    }
    Some(GatewayServer {
        names,
        tls: None,
        kind: ServerKind::AutoPassthrough,
        hosts: Vec::new(),
        connections: PackedRoutes::from(&Routes {
            routes: Vec::new(),
            connections,
        }),
    })
}

/// The services that the gateway sees and that one of its servers has among its hosts. Of several of one host that of its own namespace
/// counts.
fn led_to<'m>(
    mesh: &'m Mesh,
    workload: &Workload,
    servers: &Servers<'_>,
) -> BTreeMap<&'m Hostname, &'m MeshService> {
    let own = &workload.key.namespace;
    let served = |service: &MeshService| {
        let mut hosts = servers.iter().flat_map(|(_, server)| &server.hosts);
        let namespace = &service.key.namespace;
        hosts.any(|one| {
            let open = one.namespace.as_ref().is_none_or(|only| only == namespace);
            open && one.host.covers(&service.key.hostname)
        })
    };
    let mut found: BTreeMap<&Hostname, &MeshService> = BTreeMap::new();
    for service in mesh.services.values() {
        let seen = service.visibility.includes(own) && is_of_the_mesh(service);
        if !seen || !served(service) {
            continue;
        }
        let host = &service.key.hostname;
        if service.key.namespace == *own || !found.contains_key(host) {
            found.insert(host, service);
        }
    }
    found
}

/// Returns true if a workload of the mesh may answer for the service by a name that a client can ask for.
fn is_of_the_mesh(service: &MeshService) -> bool {
    service.location == Location::MeshInternal
        && !matches!(service.resolution, Resolution::Alias(_))
        && !service.key.hostname.is_wildcard()
}

fn is_carried(port: &ServicePort) -> bool {
    port.transport == Transport::Tcp
}

/// The whole, and the parts that the gateway's DestinationRule makes of it.
fn parts(mesh: &Mesh, workload: &Workload, service: &MeshService) -> Vec<Option<Arc<str>>> {
    let rule = mesh.destination_rule(service, RuleClient::of(workload));
    let said = rule.into_iter().flat_map(|rule| rule.subsets.keys());
    let said = said.cloned().map(Some);
    std::iter::once(None).chain(said).collect()
}

/// As Istio's proxies ask for it.
fn name(service: &MeshService, port: Port, part: Option<&str>) -> Arc<str> {
    let host = &service.key.hostname;
    format!("outbound_.{port}_.{}_.{host}", part.unwrap_or_default()).into()
}

fn route(
    service: &MeshService,
    port: Port,
    part: Option<Arc<str>>,
    name: &Arc<str>,
) -> ConnectionRoute {
    ConnectionRoute {
        matches: vec![ConnectionMatch {
            server_names: vec![Arc::clone(name)],
            ..ConnectionMatch::default()
        }],
        destinations: vec![RouteDestination {
            to: Ok(RouteTarget {
                service: service.key.clone(),
                subset: part,
                port: Some(port),
            }),
            weight: 1,
            headers: HeaderRules::default(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use voile_model::SourceFile;
    use voile_proto::proxy;

    use crate::translate::translate;

    /// A gateway's Pod in the namespace `edge`, and what it may lead to, or may not.
    const MESH: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: gate, namespace: edge, labels: {app: gate, sidecar.istio.io/inject: "true"}, annotations: {inject.istio.io/templates: gateway}}
spec: {containers: [{name: istio-proxy, image: auto}]}
status: {phase: Running, podIP: 10.244.0.7}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: http, port: 80}, {name: tcp, port: 90}, {name: u, port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: kept, namespace: shop, annotations: {networking.istio.io/exportTo: "."}}
spec: {clusterIP: 10.96.0.2, selector: {app: kept}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere, namespace: shop}
spec: {type: ExternalName, externalName: web.example, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: out, namespace: shop}
spec: {hosts: [out.cluster.local], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 80, name: http}], endpoints: [{address: 192.0.2.1}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: in, namespace: far}
spec: {hosts: [in.cluster.local], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 81, name: tcp}], endpoints: [{address: 10.244.0.9}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web, subsets: [{name: v1, labels: {version: v1}}]}
"#;

    fn gateway(name: &str, port: u16, hosts: &str, mode: &str) -> String {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: {name}, namespace: edge}}\nspec: {{selector: \
             {{app: gate}}, servers: [{{port: {{number: {port}, name: tls, protocol: TLS}}, hosts: [{hosts}], tls: {{mode: {mode}}}}}]}}\n"
        )
    }

    /// The servers that the gateway is told of, each with its kind and its names.
    fn told(gateways: &str) -> Vec<(proxy::ServerKind, Vec<String>)> {
        let source = SourceFile::new("mesh.yaml", format!("{MESH}{gateways}"));
        let (mesh, problems) = voile_model::check(&[source], None);
        let wrong = problems.iter().any(voile_model::Diagnostic::is_error);
        assert!(!wrong, "{problems:?}");
        let (made, _) = translate(&mesh, None);
        let own = made.configurations.get("edge/gate").expect("told");
        let body = proxy::ProxyConfiguration::decode(&*own.resource.body).expect("a message");
        let listeners = body.gateway.expect("a gateway").listeners;
        let servers = listeners.into_iter().flat_map(|one| one.servers);
        let said = servers.map(|one| {
            let routes = proxy::Routes::decode(&*one.connections).expect("routes");
            if one.kind() == proxy::ServerKind::AutoPassthrough {
                let matches = routes.connections.iter().flat_map(|route| &route.matches);
                let routed: Vec<_> = matches.flat_map(|one| &one.server_names).collect();
                assert_eq!(routed, one.names.iter().collect::<Vec<_>>());
            }
            (one.kind(), one.names)
        });
        said.collect()
    }

    #[test]
    fn a_name_leads_to_each_port_and_part_of_what_a_gateway_may_lead_to_and_to_nothing_else() {
        let web = [
            "outbound_.80_._.web.shop.svc.cluster.local",
            "outbound_.80_.v1_.web.shop.svc.cluster.local",
            "outbound_.90_._.web.shop.svc.cluster.local",
            "outbound_.90_.v1_.web.shop.svc.cluster.local",
        ];
        let far = ["outbound_.81_._.in.cluster.local"];
        let both: Vec<&str> = far.into_iter().chain(web).collect();
        let table: [(&str, &[&str]); 8] = [
            ("\"*\"", &both),
            ("\"*.local\"", &both),
            ("\"*.svc.cluster.local\"", &web),
            ("web.shop.svc.cluster.local", &web),
            ("shop/*.local", &web),
            ("far/*, \"./*\"", &far),
            ("\"*.example\"", &[]),
            ("kept.shop.svc.cluster.local, out.cluster.local", &[]),
        ];
        for (hosts, expected) in table {
            let servers = told(&gateway("a", 15_443, hosts, "AUTO_PASSTHROUGH"));
            let [(kind, names)] = &servers[..] else {
                panic!("{servers:?}");
            };
            assert_eq!(*kind, proxy::ServerKind::AutoPassthrough);
            assert_eq!(names, expected, "{hosts}");
        }
    }

    #[test]
    fn gateways_of_one_port_are_one_server_beside_those_that_have_routes() {
        let gateways = [
            gateway("a", 15_443, "\"far/*\"", "AUTO_PASSTHROUGH"),
            gateway("b", 15_443, "\"*.svc.cluster.local\"", "PASSTHROUGH"),
            gateway("c", 15_443, "\"shop/*\"", "AUTO_PASSTHROUGH"),
        ];
        let servers = told(&gateways.concat());
        let kinds: Vec<_> = servers
            .iter()
            .map(|(kind, names)| (*kind, names.len()))
            .collect();
        let expected = [
            (proxy::ServerKind::Passthrough, 1),
            (proxy::ServerKind::AutoPassthrough, 5),
        ];
        assert_eq!(kinds, expected, "{servers:?}");
    }
}
