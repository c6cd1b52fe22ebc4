//! What `voile up` relays itself: published services on 127.0.0.1, and services for pods that have no sidecar.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use voile_model::mesh::{Service, ServicePort, Transport};
use voile_model::{Mesh, ResourceName};

use crate::expand::{Plan, Publication, endpoints_of};
use crate::pod_network::MeshNetwork;
use crate::relay::{Relay, RelayThread};

/// All relays that are open.
pub(super) struct Reach {
    published: BTreeMap<(ResourceName, u16), (Relay, bool)>,
    /// By the address where a pod without a sidecar finds the service.
    inner: BTreeMap<SocketAddr, Relay>,
    // After the relays, which live on it.
    thread: RelayThread,
}

impl Reach {
    pub(super) fn new(thread: RelayThread) -> Self {
        Self {
            published: BTreeMap::new(),
            inner: BTreeMap::new(),
            thread,
        }
    }

    /// `namespace/service` (with `:port` where it has several) and where to reach it.
    pub(super) fn published(&self) -> Vec<(String, String)> {
        let ports = |service: &ResourceName| {
            self.published
                .keys()
                .filter(|(name, _)| name == service)
                .count()
        };
        self.published
            .iter()
            .map(|((service, port), (relay, http))| {
                let name = if ports(service) > 1 {
                    format!("{service}:{port}")
                } else {
                    service.to_string()
                };
                let scheme = if *http { "http" } else { "tcp" };
                (name, format!("{scheme}://{}", relay.address()))
            })
            .collect()
    }

    /// Where relays run.
    pub(super) fn runtime(&self) -> &tokio::runtime::Handle {
        self.thread.handle()
    }

    /// Opens, closes and turns relays as the plan and the ready pods want it; returns what people should know.
    pub(super) fn follow(
        &mut self,
        mesh: &Mesh,
        plan: &Plan,
        ready: &BTreeSet<ResourceName>,
        network: Option<&MeshNetwork>,
    ) -> io::Result<Vec<String>> {
        let mut notes = Vec::new();
        let wanted: BTreeSet<_> = plan
            .published
            .iter()
            .map(|p| (p.service.clone(), p.port))
            .collect();
        self.published.retain(|key, _| wanted.contains(key));
        for publication in &plan.published {
            let key = (publication.service.clone(), publication.port);
            if !self.published.contains_key(&key) {
                let relay = self.publish(publication, network, &mut notes)?;
                self.published
                    .insert(key.clone(), (relay, publication.http));
            }
            let targets = publication
                .targets
                .iter()
                .filter(|(pod, _, _)| ready.contains(pod));
            let targets = targets
                .map(|(_, address, port)| SocketAddr::from((*address, *port)))
                .collect();
            if let Some((relay, _)) = self.published.get(&key) {
                relay.set_targets(targets);
            }
        }
        if network.is_none() {
            self.follow_inner(mesh, plan, ready, &mut notes)?;
        }
        Ok(notes)
    }

    fn publish(
        &self,
        publication: &Publication,
        network: Option<&MeshNetwork>,
        notes: &mut Vec<String>,
    ) -> io::Result<Relay> {
        let bind = |address: SocketAddr| match network {
            None => TcpListener::bind(address),
            Some(network) => network.listen(address),
        };
        let wish = SocketAddr::from((Ipv4Addr::LOCALHOST, publication.wish));
        let listener = match bind(wish) {
            Ok(listener) => listener,
            Err(error) => {
                let listener = bind((Ipv4Addr::LOCALHOST, 0).into())?;
                let service = &publication.service;
                notes.push(format!(
                    "{service} cannot be published on {wish} ({error}); on {} instead",
                    listener.local_addr()?
                ));
                listener
            }
        };
        Relay::start(self.thread.handle(), listener, None)
    }

    fn follow_inner(
        &mut self,
        mesh: &Mesh,
        plan: &Plan,
        ready: &BTreeSet<ResourceName>,
        notes: &mut Vec<String>,
    ) -> io::Result<()> {
        let mut wanted = BTreeMap::new();
        for pod in plan.pods.iter().filter(|pod| pod.sidecar.is_none()) {
            for (service, view) in pod.reach.iter().zip(&pod.services) {
                for port in service
                    .ports
                    .iter()
                    .filter(|port| port.transport == Transport::Tcp)
                {
                    let address = SocketAddr::from((view.address, port.number.get()));
                    wanted.insert(
                        address,
                        (pod.address, targets(mesh, plan, ready, service, port)),
                    );
                }
            }
        }
        self.inner.retain(|address, _| wanted.contains_key(address));
        for (address, (source, targets)) in wanted {
            if !self.inner.contains_key(&address) {
                match TcpListener::bind(address) {
                    Ok(listener) => {
                        let relay = Relay::start(self.thread.handle(), listener, Some(source))?;
                        self.inner.insert(address, relay);
                    }
                    Err(error) => notes.push(format!("cannot listen on {address}: {error}")),
                }
            }
            if let Some(relay) = self.inner.get(&address) {
                relay.set_targets(targets);
            }
        }
        Ok(())
    }
}

fn targets(
    mesh: &Mesh,
    plan: &Plan,
    ready: &BTreeSet<ResourceName>,
    service: &Service,
    port: &ServicePort,
) -> Vec<SocketAddr> {
    let pods = endpoints_of(service, port, &plan.pods);
    let pods = pods
        .filter(|(pod, _, _)| ready.contains(pod))
        .map(|(_, address, port)| (address, port).into());
    let others = mesh.near_workloads_of(service).into_iter();
    let others = others.filter_map(|behind| {
        let address = behind
            .workload
            .addresses
            .iter()
            .find(|address| matches!(address, IpAddr::V4(_)))?;
        Some(SocketAddr::from((
            *address,
            behind.ports.get(&port.number)?.get(),
        )))
    });
    pods.chain(others).collect()
}
