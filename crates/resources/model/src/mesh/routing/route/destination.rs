//! Resolves a route's destination into service, subset and port for a client. All code that publishes routes calls
//! this, so that all clients get the same answer.

use std::collections::HashMap;
use std::sync::Arc;

use super::{HttpMatch, HttpRoute, RouteDestination, VirtualService, WeightedDestination};
use crate::mesh::{Mesh, MeshService, RuleClient, Visibility};
use crate::names::{Hostname, Namespace, Port, ResourceName};

/// The services of a mesh by host.
#[derive(Debug)]
pub struct ServicesByHost<'m> {
    mesh: &'m Mesh,
    hosts: HashMap<&'m Hostname, Vec<&'m Arc<MeshService>>>,
}

/// A resolved destination.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteDestinationKind<'m> {
    /// The service.
    pub service: &'m Arc<MeshService>,
    /// The subset; `None` is the whole service.
    pub subset: Option<Arc<str>>,
    /// The port; `None` is the called port.
    pub port: Option<Port>,
}

impl<'m> ServicesByHost<'m> {
    /// Of a mesh.
    #[must_use]
    pub fn new(mesh: &'m Mesh) -> Self {
        let mut hosts: HashMap<&Hostname, Vec<&Arc<MeshService>>> = HashMap::new();
        for service in mesh.services.values() {
            hosts
                .entry(&service.key.hostname)
                .or_default()
                .push(service);
        }
        Self { mesh, hosts }
    }

    /// All services of one host, visible or not.
    pub fn services(&self, host: &Hostname) -> impl Iterator<Item = &'m Arc<MeshService>> {
        self.hosts.get(host).into_iter().flatten().copied()
    }

    /// Resolves a destination of a VirtualService for a client.
    ///
    /// # Errors
    /// The missing part. As in Istio, requests of this route get 503, and no others.
    pub fn of(
        &self,
        one: &VirtualService,
        to: &RouteDestination,
        client: RuleClient<'_>,
    ) -> Result<RouteDestinationKind<'m>, String> {
        if let Some(why) = &to.nowhere {
            return Err(why.to_string());
        }
        let service = self
            .service(&to.host, &one.name.namespace, client.namespace)
            .ok_or_else(|| format!("no service {} is visible", to.host))?;
        let port = match (&to.port, service.ports.as_slice()) {
            (Some((port, _)), _) if service.port(*port).is_none() => {
                return Err(format!("{} has no port {port}", service.key));
            }
            (Some((port, _)), _) => Some(*port),
            (None, [only]) => Some(only.number),
            (None, _) => None,
        };
        let subset = to.subset.as_ref().map(|(name, _)| name.clone());
        if let Some(name) = &subset
            && !self.mesh.has_subset(service, name, client)
        {
            return Err(format!("{} has no subset {name}", service.key));
        }
        Ok(RouteDestinationKind {
            service,
            subset,
            port,
        })
    }

    /// Finds the service of a host. The resource's own namespace has precedence. A service that the client does not see
    /// does not exist.
    fn service(
        &self,
        host: &Hostname,
        own: &Namespace,
        client: Option<&Namespace>,
    ) -> Option<&'m Arc<MeshService>> {
        let is_seen = |service: &&Arc<MeshService>| match (&service.visibility, client) {
            (Visibility::Public, _) => true,
            (visibility, Some(client)) => visibility.includes(client),
            (Visibility::Namespaces(_), None) => false,
        };
        let mut seen = self.services(host).filter(is_seen);
        let first = seen.next()?;
        if first.key.namespace == *own {
            return Some(first);
        }
        let of_own = seen.find(|service| service.key.namespace == *own);
        of_own.or(Some(first))
    }
}

/// The proxies that apply routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteAttachment<'a> {
    /// At the proxies of the mesh.
    Mesh,
    /// At this Gateway.
    Gateway(&'a ResourceName),
}

impl HttpRoute {
    /// The alternatives that requests of clients in a namespace can be; `None` where none can take this route. Empty: everything.
    /// `own` is the VirtualService's namespace.
    #[must_use]
    pub fn matches_of(
        &self,
        own: &Namespace,
        client: Option<&Namespace>,
        place: RouteAttachment<'_>,
    ) -> Option<Vec<&HttpMatch>> {
        let matches = self.matches.iter();
        let matches: Vec<&HttpMatch> = matches
            .filter(|one| super::is_theirs(&one.criteria, own, client, place))
            .collect();
        (self.matches.is_empty() || !matches.is_empty()).then_some(matches)
    }

    /// Destinations with a share of the traffic, and their shares. A single destination takes everything, independent
    /// of its weight.
    pub fn shares(&self) -> impl Iterator<Item = (&WeightedDestination, u32)> {
        super::shares(&self.route)
    }
}
