//! What a gateway's workload takes from outside: the servers of the Gateways that select it, and the VirtualServices that name
//! those. As in Istio: servers of one port are one listener, and of several VirtualServices for one host each has its routes there,
//! the oldest first, those that take everything last.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use voile_model::mesh::intent::{Gateway, Server};
use voile_model::mesh::{Mesh, Place, TextMatch, Workload};
use voile_model::{Hostname, Port};
use voile_proto::proxy as wire;
use voile_xds::wire::{
    self as checked, GatewayListener, GatewayServer, RequestMatch, Route, Routes, VirtualHost,
};

use super::routes::Answers;

/// Servers of one address and port, each with its Gateway; the oldest first.
type Servers<'a> = Vec<(&'a Arc<Gateway>, &'a Server)>;

pub(super) fn gateway(mesh: &Mesh, workload: &Workload) -> wire::Gateway {
    let answers = Answers::new(mesh);
    let mut listeners: BTreeMap<SocketAddr, (Port, Servers<'_>)> = BTreeMap::new();
    let own: Option<IpAddr> = workload.addresses.first().copied();
    for gateway in mesh.gateways_for(&workload.labels) {
        for server in &gateway.servers {
            if let Some(address) = server.bind.or(own) {
                let bind = SocketAddr::new(address, server.port.get());
                let (_, servers) = listeners.entry(bind).or_insert((server.port, Vec::new()));
                servers.push((gateway, server));
            }
        }
    }
    let listeners = listeners.into_iter().map(|(bind, (port, servers))| {
        let hosts = hosts(mesh, workload, &answers, &servers);
        GatewayListener {
            name: format!("gateway/{bind}").into(),
            bind,
            port,
            servers: vec![GatewayServer { hosts }],
        }
    });
    let gateway = checked::Gateway {
        listeners: listeners.collect(),
    };
    gateway.encode()
}

/// What becomes of requests for one host.
#[derive(Default)]
struct Host {
    routes: Vec<Route>,
    https_redirect: bool,
}

fn hosts(
    mesh: &Mesh,
    workload: &Workload,
    answers: &Answers<'_>,
    servers: &Servers<'_>,
) -> Vec<VirtualHost> {
    let client = &workload.key.namespace;
    let mut hosts: BTreeMap<&Hostname, Host> = BTreeMap::new();
    let redirects = |server: &Server| server.tls.as_ref().is_some_and(|tls| tls.https_redirect);
    for (_, server) in servers.iter().filter(|(_, server)| redirects(server)) {
        for one in &server.hosts {
            hosts.entry(&one.host).or_default().https_redirect = true;
        }
    }
    let names: BTreeSet<_> = servers.iter().map(|(gateway, _)| &gateway.name).collect();
    // Each once, in the order of age, which that of the mesh is.
    let routed: BTreeMap<_, _> = names
        .into_iter()
        .map(|name| (name, mesh.routed_at(name, client).collect::<Vec<_>>()))
        .collect();
    for service in &mesh.virtual_services {
        let whole = mesh.handed(service);
        let mut done = BTreeSet::new();
        for (gateway, server) in servers {
            let here = routed.get(&gateway.name).into_iter().flatten();
            if !here.into_iter().any(|one| Arc::ptr_eq(one, service)) {
                continue;
            }
            for host in server.hosts_of(service) {
                if !done.insert((host, &gateway.name)) {
                    continue;
                }
                let place = Place::Gateway(&gateway.name);
                let entry = hosts.entry(host).or_default();
                entry.https_redirect |= redirects(server);
                let routes = answers.routes(&whole, Some(client), place);
                entry.routes.extend(routes);
            }
        }
    }
    let virtual_host = |(host, made): (&Hostname, Host)| {
        let (mut routes, last): (Vec<_>, Vec<_>) =
            made.routes.into_iter().partition(|one| !takes_all(one));
        routes.extend(last);
        VirtualHost {
            host: host.as_str().into(),
            routes: Routes { routes },
            https_redirect: made.https_redirect,
        }
    };
    hosts.into_iter().map(virtual_host).collect()
}

/// Whether no request passes a route.
fn takes_all(route: &Route) -> bool {
    let any = |one: &RequestMatch| {
        let path = match &one.uri {
            None | Some(TextMatch::Present) => true,
            Some(TextMatch::Prefix(prefix)) => &**prefix == "/",
            Some(TextMatch::Exact(_) | TextMatch::Regex(_)) => false,
        };
        let rest = RequestMatch {
            uri: None,
            any_case: false,
            ..one.clone()
        };
        path && rest == RequestMatch::default()
    };
    route.matches.is_empty() || route.matches.iter().any(any)
}
