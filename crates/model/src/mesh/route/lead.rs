//! Where routes lead: a destination as it is written, as the service, part and port that a client is sent to.
//! Whoever tells somebody of routes asks here, so that all are told the same.

use std::collections::HashMap;
use std::sync::Arc;

use super::{HttpMatch, HttpRoute, RouteDestination, VirtualService, WeightedDestination};
use crate::mesh::{Client, Mesh, Service, Visibility};
use crate::names::{Hostname, Namespace, Port, ResourceName};

/// The services of a mesh by host.
#[derive(Debug)]
pub struct Leads<'m> {
    mesh: &'m Mesh,
    hosts: HashMap<&'m Hostname, Vec<&'m Arc<Service>>>,
}

/// What a destination is.
#[derive(Debug, Clone, PartialEq)]
pub struct Lead<'m> {
    /// Which service.
    pub service: &'m Arc<Service>,
    /// Which part of it; `None` is the whole.
    pub subset: Option<Arc<str>>,
    /// Which port; `None` is the one that was called.
    pub port: Option<Port>,
}

impl<'m> Leads<'m> {
    /// Of a mesh.
    #[must_use]
    pub fn new(mesh: &'m Mesh) -> Self {
        let mut hosts: HashMap<&Hostname, Vec<&Arc<Service>>> = HashMap::new();
        for service in mesh.services.values() {
            hosts
                .entry(&service.key.hostname)
                .or_default()
                .push(service);
        }
        Self { mesh, hosts }
    }

    /// All of one host, whoever may see them.
    pub fn services(&self, host: &Hostname) -> impl Iterator<Item = &'m Arc<Service>> {
        self.hosts.get(host).into_iter().flatten().copied()
    }

    /// What a destination of a VirtualService is for a client.
    ///
    /// # Errors
    /// What of it is not there. As in Istio, that is 503 for those who come by this route, and for nobody else.
    pub fn of(
        &self,
        one: &VirtualService,
        to: &RouteDestination,
        client: Client<'_>,
    ) -> Result<Lead<'m>, String> {
        if let Some(why) = &to.nowhere {
            return Err(why.to_string());
        }
        let service = self
            .service(&to.host, &one.name.namespace, client.namespace)
            .ok_or_else(|| format!("no service {} can be seen", to.host))?;
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
        Ok(Lead {
            service,
            subset,
            port,
        })
    }

    /// Of several services of one host the resource's own namespace has precedence. What its clients do not see is not there.
    fn service(
        &self,
        host: &Hostname,
        own: &Namespace,
        client: Option<&Namespace>,
    ) -> Option<&'m Arc<Service>> {
        let is_seen = |service: &&Arc<Service>| match (&service.visibility, client) {
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

/// Where routes are to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// At the proxies of the mesh.
    Mesh,
    /// Where a Gateway's traffic comes in.
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
        place: Place<'_>,
    ) -> Option<Vec<&HttpMatch>> {
        let matches = self.matches.iter();
        let matches: Vec<&HttpMatch> = matches
            .filter(|one| super::is_theirs(&one.criteria, own, client, place))
            .collect();
        (self.matches.is_empty() || !matches.is_empty()).then_some(matches)
    }

    /// Those of its destinations that take something, with their shares: one that is alone takes everything, whatever its weight.
    pub fn shares(&self) -> impl Iterator<Item = (&WeightedDestination, u32)> {
        super::shares(&self.route)
    }
}
