//! Traffic that enters at a gateway: the Gateways of a workload, and the VirtualServices for the traffic of each
//! server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::mesh::routing_intent::{DeclaredServer, Gateway};
use crate::mesh::{
    MESH, Mesh, MeshService, Secret, ServicePort, TargetPort, Transport, VirtualService,
    Visibility, Workload,
};
use crate::names::{Hostname, Labels, Namespace, Port, ResourceName};

/// The Gateway that a VirtualService of a namespace names; `None` for the proxies of the mesh, and for an invalid name.
#[must_use]
pub fn gateway_name(text: &str, own: &Namespace) -> Option<ResourceName> {
    match text.split_once('/') {
        None if text == MESH => None,
        // An old form for a Gateway of another namespace: NAME.NAMESPACE, with any further parts.
        None if text.contains('.') => {
            let (name, rest) = text.split_once('.')?;
            let namespace = rest.split('.').next()?;
            Some(ResourceName::new(Namespace::new(namespace)?, name))
        }
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

    /// The VirtualServices that route the traffic of a Gateway, as its workloads in a namespace see them; oldest first.
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

    /// The port by which a Service in front of a workload leads over UDP to this one of it: for a gateway that is how HTTP/3 is asked for.
    #[must_use]
    pub fn udp_port_before(&self, workload: &Workload, listens: Port) -> Option<Port> {
        let target = |port: &ServicePort| match &port.target {
            TargetPort::Number(number) => Some(*number),
            TargetPort::Named(name) => workload.named_ports.get(name).copied(),
        };
        let leads =
            |port: &&ServicePort| port.transport == Transport::Udp && target(port) == Some(listens);
        let services = self.services_of(workload);
        let mut ports = services.iter().flat_map(|one| &one.service.ports);
        ports.find(leads).map(|port| port.number)
    }

    /// The port at which a gateway's workload listens for this port: the target port of a Service in front of it, as in
    /// Istio.
    #[must_use]
    pub fn port_behind(&self, workload: &Workload, port: Port) -> Option<Port> {
        let services = self.services_of(workload);
        let ports = services.iter().flat_map(|one| &one.service.ports);
        let mut ports = ports.filter(|one| one.transport == Transport::Tcp && one.number == port);
        ports.find_map(|one| match &one.target {
            TargetPort::Number(number) => Some(*number),
            TargetPort::Named(name) => workload.named_ports.get(name).copied(),
        })
    }

    /// The services that requests may be sent to which come in at a workload of these labels.
    #[must_use]
    pub fn led_to_from_outside(
        &self,
        client: &Namespace,
        labels: &Labels,
    ) -> Vec<Arc<MeshService>> {
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

/// The VirtualServices that route requests for one host.
#[derive(Debug, Default)]
pub struct HostRouting<'m> {
    /// VirtualServices with delegated routes in place, oldest first, each with its Gateway.
    pub services: Vec<(Arc<VirtualService>, &'m ResourceName)>,
    /// Clients in plaintext are sent to `https`.
    pub https_redirect: bool,
}

impl Mesh {
    /// The VirtualServices for the servers of one listener, by host, for a gateway's workload in a namespace.
    #[must_use]
    pub fn hosts_at<'m>(
        &'m self,
        client: &'m Namespace,
        servers: &[(&'m Arc<Gateway>, &'m DeclaredServer)],
    ) -> BTreeMap<&'m Hostname, HostRouting<'m>> {
        let mut hosts: BTreeMap<&Hostname, HostRouting<'_>> = BTreeMap::new();
        let redirects =
            |server: &DeclaredServer| server.tls.as_ref().is_some_and(|tls| tls.https_redirect);
        for (_, server) in servers.iter().filter(|(_, server)| redirects(server)) {
            for one in &server.hosts {
                hosts.entry(&one.host).or_default().https_redirect = true;
            }
        }
        let names: BTreeSet<_> = servers.iter().map(|(gateway, _)| &gateway.name).collect();
        // Each once, in the order of age, which that of the mesh is.
        let routed: BTreeMap<_, _> = names
            .into_iter()
            .map(|name| (name, self.routed_at(name, client).collect::<Vec<_>>()))
            .collect();
        for service in &self.virtual_services {
            let whole = self.handed(service);
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
                    let entry = hosts.entry(host).or_default();
                    entry.https_redirect |= redirects(server);
                    entry.services.push((Arc::clone(&whole), &gateway.name));
                }
            }
        }
        hosts
    }
}

/// The value of the first of these keys that the Secret has.
fn held(secret: &Secret, keys: [&str; 2]) -> Option<Vec<u8>> {
    let found = keys.into_iter().find_map(|key| secret.data.get(key));
    found
        .map(|bytes| bytes.to_vec())
        .filter(|bytes| !bytes.is_empty())
}

/// The certificates and the key of a Secret.
///
/// # Errors
/// The missing entry.
pub fn certificate(mesh: &Mesh, id: &ResourceName) -> Result<(Vec<u8>, Vec<u8>), Arc<str>> {
    let secret = mesh.secrets.get(id);
    let secret = secret.ok_or_else(|| format!("the Secret {id} is not there"))?;
    let [certificate, key] = [["tls.crt", "cert"], ["tls.key", "key"]].map(|keys| {
        held(secret, keys)
            .ok_or_else(|| Arc::<str>::from(format!("the Secret {id} has no `{}`", keys[0])))
    });
    Ok((certificate?, key?))
}

/// Trusted authorities, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedCertificates {
    /// The authorities.
    pub authorities: Vec<u8>,
    /// CRLs of these authorities, empty if there are none. An error if the CRLs that the Secret names are missing.
    pub revocations: Result<Vec<u8>, Arc<str>>,
}

/// The trusted authorities and their CRLs. A separate Secret with authorities takes precedence over entries within the
/// Secret.
#[must_use]
pub fn believed(mesh: &Mesh, id: &ResourceName) -> Option<TrustedCertificates> {
    let beside = ResourceName::new(id.namespace.clone(), format!("{}-cacert", id.name));
    [&beside, id].into_iter().find_map(|id| trusted(mesh, id))
}

/// The trusted authorities and their CRLs within a Secret.
pub(crate) fn trusted(mesh: &Mesh, id: &ResourceName) -> Option<TrustedCertificates> {
    const LISTS: [&str; 2] = ["ca.crl", "crl"];
    let secret = mesh.secrets.get(id)?;
    let authorities = held(secret, ["ca.crt", "cacert"])?;
    let meant = LISTS.iter().find(|key| secret.data.contains_key(**key));
    let revocations = match (meant, held(secret, LISTS)) {
        (Some(key), None) => Err(format!("`{key}` of the Secret {id} is empty").into()),
        (_, lists) => Ok(lists.unwrap_or_default()),
    };
    Some(TrustedCertificates {
        authorities,
        revocations,
    })
}

impl DeclaredServer {
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
