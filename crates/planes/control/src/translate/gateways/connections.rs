//! Routes of a gateway's connections that are known by the TLS server name only. `tls` of VirtualServices routes TLS that ends
//! behind the gateway. `tcp` routes TLS that ends here, and plaintext.

use std::sync::Arc;

use voile_model::Hostname;
use voile_model::mesh::routing_intent::{DeclaredServer, ServerTlsMode};
use voile_model::mesh::{Mesh, RouteAttachment, VirtualService, Workload};
use voile_xds::wire::{ConnectionMatch, ConnectionRoute, PackedRoutes, Routes};

use super::super::routes::RouteResponses;
use super::Servers;

/// Routes of servers that are one: all of plaintext, or one of TLS.
pub(super) fn routes(
    mesh: &Mesh,
    workload: &Workload,
    answers: &RouteResponses<'_>,
    servers: &Servers<'_>,
) -> PackedRoutes {
    let client = &workload.key.namespace;
    let mut connections = Vec::new();
    for service in &mesh.virtual_services {
        for (gateway, server) in servers {
            let mut routed = mesh.routed_at(&gateway.name, client);
            if !routed.any(|one| Arc::ptr_eq(one, service)) {
                continue;
            }
            let place = RouteAttachment::Gateway(&gateway.name);
            let mode = server.tls.as_ref().map(|tls| tls.mode);
            let layer = match mode {
                Some(ServerTlsMode::Passthrough) => &service.tls,
                _ => &service.tcp,
            };
            let said = answers.connections(service, layer.iter(), Some(client), place);
            connections.extend(said.filter_map(|route| here(route, server, service)));
        }
    }
    PackedRoutes::from(&Routes {
        routes: Vec::new(),
        connections,
    })
}

/// A route as far as its VirtualService may route what the server takes: for the names that both have.
fn here(
    route: ConnectionRoute,
    server: &DeclaredServer,
    service: &VirtualService,
) -> Option<ConnectionRoute> {
    let hosts: Vec<&Hostname> = server.hosts_of(service).collect();
    if hosts.is_empty() {
        return None;
    }
    // A plaintext connection carries no name.
    if server.tls.is_none() {
        return Some(route);
    }
    let names = |said: &[Arc<str>]| -> Vec<Arc<str>> {
        if said.is_empty() {
            return hosts.iter().map(|host| host.as_str().into()).collect();
        }
        let said = said.iter().filter_map(|name| Hostname::new(name));
        let both = said.flat_map(|name| {
            let common = hosts.iter().filter_map(|host| host.common(&name));
            common.map(|name| name.as_str().into()).collect::<Vec<_>>()
        });
        both.collect()
    };
    let matches = match route.matches.is_empty() {
        true => vec![ConnectionMatch::default()],
        false => route.matches,
    };
    let matches = matches.into_iter().filter_map(|one| {
        let server_names = names(&one.server_names);
        (!server_names.is_empty()).then_some(ConnectionMatch {
            server_names,
            ..one
        })
    });
    let matches: Vec<_> = matches.collect();
    (!matches.is_empty()).then_some(ConnectionRoute { matches, ..route })
}
