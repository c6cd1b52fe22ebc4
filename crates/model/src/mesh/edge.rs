//! What comes in at a gateway: which Gateways are for a workload, and which VirtualServices route what each of their servers takes.

use std::sync::Arc;

use super::intent::{Gateway, Server};
use super::{MESH, Mesh, Service, VirtualService, Visibility};
use crate::names::{Hostname, Labels, Namespace, ResourceName};

/// The Gateway that a VirtualService of a namespace names; none for the proxies of the mesh, and for what is no name.
#[must_use]
pub fn gateway_name(text: &str, own: &Namespace) -> Option<ResourceName> {
    match text.split_once('/') {
        None if text == MESH => None,
        None | Some((".", _)) => {
            let name = text.strip_prefix("./").unwrap_or(text);
            Some(ResourceName::new(own.clone(), name))
        }
        Some((namespace, name)) => Some(ResourceName::new(Namespace::new(namespace)?, name)),
    }
}

impl Hostname {
    /// The hosts that both stand for, if there are any: the narrower of two of which one covers the other.
    #[must_use]
    pub fn common<'a>(&'a self, other: &'a Self) -> Option<&'a Self> {
        match (self.covers(other), other.covers(self)) {
            (true, _) => Some(other),
            (false, true) => Some(self),
            (false, false) => None,
        }
    }
}

impl Mesh {
    /// The Gateways that are for a gateway's workload of a namespace, oldest first. An empty selector is for all, as in Istio.
    pub fn gateways_for<'m>(
        &'m self,
        namespace: &'m Namespace,
        labels: &'m Labels,
    ) -> impl Iterator<Item = &'m Arc<Gateway>> + 'm {
        let selects = move |one: &&Arc<Gateway>| {
            let selector = one.selector.as_ref();
            let within = one.namespace.as_ref();
            within.is_none_or(|within| within == namespace)
                && selector.is_some_and(|selector| selector.selects(labels))
        };
        self.gateways.iter().filter(selects)
    }

    /// The VirtualServices that route what comes to a Gateway, as its workloads in a namespace see them; oldest first.
    pub fn routed_at<'m>(
        &'m self,
        gateway: &'m ResourceName,
        client: &'m Namespace,
    ) -> impl Iterator<Item = &'m Arc<VirtualService>> + 'm {
        let names = |one: &VirtualService| {
            let mut named = one.gateways.iter();
            named.any(|(name, _)| name.as_ref() == Some(gateway))
        };
        let seen = |one: &VirtualService| match &one.visibility {
            Visibility::Public => true,
            visibility @ Visibility::Namespaces(_) => visibility.includes(client),
        };
        let all = self.virtual_services.iter();
        all.filter(move |one| names(one) && seen(one))
    }

    /// The services that requests may be sent to which come in at a workload of these labels.
    #[must_use]
    pub fn led_to_from_outside(&self, client: &Namespace, labels: &Labels) -> Vec<Arc<Service>> {
        let gateways = self.gateways_for(client, labels);
        let routed = gateways.flat_map(|one| self.routed_at(&one.name, client));
        let routed: Vec<Arc<VirtualService>> = routed.map(|one| self.handed(one)).collect();
        let destinations = routed.iter().flat_map(|one| one.destinations());
        let there = destinations.filter(|to| to.nowhere.is_none());
        let hosts: Vec<&Hostname> = there.map(|to| &to.host).collect();
        let all = self.services.values();
        all.filter(|one| hosts.contains(&&one.key.hostname))
            .cloned()
            .collect()
    }
}

impl Server {
    /// The hosts at which a VirtualService of a namespace is in force here: those that both name.
    pub fn hosts_of<'a>(
        &'a self,
        service: &'a VirtualService,
    ) -> impl Iterator<Item = &'a Hostname> + 'a {
        let own = &service.name.namespace;
        service.hosts.iter().flat_map(move |(host, _)| {
            let open = self
                .hosts
                .iter()
                .filter(move |one| one.namespace.as_ref().is_none_or(|only| only == own));
            open.filter_map(move |one| one.host.common(host))
        })
    }
}
