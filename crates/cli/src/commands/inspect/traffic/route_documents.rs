//! The documents of routes: from what a proxy records of a request to the place where its route is written.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use voile_analysis::explain::service_called;
use voile_model::mesh::{
    HttpRoute, MeshService, RouteDestination, Routing, VirtualService, holding,
};
use voile_model::{Hostname, Mesh, Namespace, Source};

/// A document, and the place of a route in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RouteDocument {
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// `FILE:LINE`, or the object of a cluster.
    pub(super) place: String,
}

impl fmt::Display for RouteDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, name, place } = self;
        // An object of a cluster has its name in its place.
        match place.ends_with(&format!("/{name}")) {
            true => f.write_str(place),
            false => write!(f, "{kind} {name} {place}"),
        }
    }
}

/// What is known of a request's route.
#[derive(Debug, Clone)]
pub(super) struct FoundRoute {
    /// The service, as `NAMESPACE/NAME`, or the host.
    pub(super) called: String,
    /// None where no document routes the service.
    pub(super) document: Option<RouteDocument>,
}

/// See the module. It remembers what it found.
pub(super) struct RouteDocuments {
    mesh: Option<Mesh>,
    /// By namespace of the proxy, authority, route and cluster.
    found: HashMap<[String; 4], FoundRoute>,
}

impl RouteDocuments {
    /// Routes of a mesh. Without one they have no documents.
    pub(super) fn new(mesh: Result<Mesh, String>) -> Self {
        Self {
            mesh: mesh
                .inspect_err(|reason| eprintln!("routes are shown without documents: {reason}"))
                .ok(),
            found: HashMap::new(),
        }
    }

    /// The route by which a proxy sent a request to a cluster.
    pub(super) fn find(
        &mut self,
        proxy: &str,
        authority: &str,
        route: &str,
        cluster: &str,
    ) -> FoundRoute {
        let (namespace, _) = proxy.split_once('/').unwrap_or(("default", proxy));
        let key = [namespace, authority, route, cluster].map(str::to_owned);
        if let Some(found) = self.found.get(&key) {
            return found.clone();
        }
        let mesh = self.mesh.as_ref();
        let found = mesh.and_then(|mesh| find(mesh, namespace, authority, (route, cluster)));
        let found = found.unwrap_or_else(|| FoundRoute {
            called: host_of(authority).to_owned(),
            document: None,
        });
        self.found.insert(key, found.clone());
        found
    }
}

fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

fn find(
    mesh: &Mesh,
    namespace: &str,
    authority: &str,
    (route, cluster): (&str, &str),
) -> Option<FoundRoute> {
    let own = Namespace::new(namespace)?;
    let host = host_of(authority);
    let mut parts = cluster.splitn(4, '|').skip(2);
    let subset = parts.next().unwrap_or_default();
    let host_called = parts.next().unwrap_or_default();
    // A client may name the service by its address; then it is the one that was reached.
    let called = service_called(mesh, host, &own);
    let called = called.or_else(|| {
        mesh.services
            .values()
            .find(|one| one.key.hostname.as_str() == host_called)
    })?;
    let leads = |one: &&HttpRoute| {
        let name = one.name.as_deref().unwrap_or("default");
        let mut shares = one.shares().map(|(share, _)| &share.to);
        let reaches = |to: &RouteDestination| {
            let named = to.subset.as_ref().map_or("", |(name, _)| &**name);
            (to.host.as_str(), named) == (host_called, subset)
        };
        // A route that answers itself leads nowhere.
        name == route && (one.route.is_empty() || shares.any(reaches))
    };
    let routing = Routing::new(mesh);
    let held = holding(&routing.of(called), called, Some(&own)).cloned();
    let of_mesh = held.iter().flat_map(|one| &one.http);
    let document = one_place(mesh, of_mesh.filter(leads)).or_else(|| {
        let of_gateways = of_gateways(mesh, host).flat_map(|one| &one.http);
        one_place(mesh, of_gateways.filter(leads))
    });
    Some(FoundRoute {
        called: display(called),
        document,
    })
}

fn display(service: &MeshService) -> String {
    format!("{}/{}", service.key.namespace, service.name)
}

/// The VirtualServices that gateways obey for a host.
fn of_gateways<'m>(mesh: &'m Mesh, host: &str) -> impl Iterator<Item = &'m Arc<VirtualService>> {
    let host = Hostname::new(host);
    mesh.virtual_services.iter().filter(move |one| {
        let at_gateway = one.gateways.iter().any(|(gateway, _)| gateway.is_some());
        let covers = |host: &Hostname| one.hosts.iter().any(|(own, _)| own.covers(host));
        at_gateway && host.as_ref().is_some_and(covers)
    })
}

/// The place of the only route among these; the document where several are alike, as far as the proxies tell.
fn one_place<'m>(
    mesh: &Mesh,
    mut routes: impl Iterator<Item = &'m HttpRoute>,
) -> Option<RouteDocument> {
    let first = routes.next()?;
    let (kind, name, whole) = document_of(mesh, &first.source)?;
    let alone = routes.all(|one| one.source == first.source);
    let source = if alone { &first.source } else { whole };
    let place = match source.position() {
        None => source.file.to_string(),
        Some((line, _)) => format!("{}:{line}", source.file),
    };
    Some(RouteDocument { kind, name, place })
}

/// The document that a route is a part of, and its place.
fn document_of<'m>(mesh: &'m Mesh, part: &Source) -> Option<(&'static str, String, &'m Source)> {
    let written = mesh.intents.virtual_services.iter();
    let written = written.map(|one| ("VirtualService", one.name.to_string(), &one.source));
    let attached = mesh.gateway_api.routes.iter();
    let attached = attached.map(|one| (one.kind.word(), one.name.to_string(), &one.source));
    let holds = |source: &Source| source.file == part.file && source.line <= part.line;
    let all = written
        .chain(attached)
        .filter(|(_, _, source)| holds(source));
    all.max_by_key(|(_, _, source)| source.line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_a_cluster_is_named_once() {
        for (place, shown) in [
            (
                "virtualservices.networking.istio.io/shop/web",
                "virtualservices.networking.istio.io/shop/web",
            ),
            ("mesh/web.yaml:3", "VirtualService shop/web mesh/web.yaml:3"),
        ] {
            let document = RouteDocument {
                kind: "VirtualService",
                name: "shop/web".to_owned(),
                place: place.to_owned(),
            };
            assert_eq!(document.to_string(), shown);
        }
    }
}
