//! Relays of `voile up` itself: published services on 127.0.0.1, by TCP and UDP, and services for pods that have no
//! sidecar.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use tokio::runtime::Handle;
use voile_model::mesh::{MeshService, ServicePort, Transport};
use voile_model::{Mesh, ResourceName};

use crate::datagrams::Datagrams;
use crate::expand::{PublishedPort, RunPlan, endpoints_of};
use crate::pod_network::MeshNetwork;
use crate::relay::{PortRelay, RelayThread};

/// Below this a port needs a privilege; it is then published so much higher.
const PRIVILEGED: u16 = 1024;
const HIGHER: u16 = 8000;

/// A published port.
enum Port {
    /// Of TCP, and whether HTTP is spoken there.
    Stream(PortRelay, bool),
    Datagrams(Datagrams),
}

impl Port {
    fn url(&self) -> String {
        match self {
            Self::Stream(relay, true) => format!("http://{}", relay.address()),
            Self::Stream(relay, false) => format!("tcp://{}", relay.address()),
            Self::Datagrams(relay) => format!("udp://{}", relay.address()),
        }
    }

    fn set_targets(&self, targets: Vec<SocketAddr>) {
        match self {
            Self::Stream(relay, _) => relay.set_targets(targets),
            Self::Datagrams(relay) => relay.set_targets(targets),
        }
    }
}

/// Key by which a published port stays the same over edits.
type Key = (ResourceName, u16, Transport);

fn key(publication: &PublishedPort) -> Key {
    let PublishedPort {
        service,
        port,
        transport,
        ..
    } = publication;
    (service.clone(), *port, *transport)
}

/// All relays that are open.
pub(super) struct OpenRelays {
    published: BTreeMap<Key, Port>,
    /// By the address where a pod without a sidecar finds the service.
    inner: BTreeMap<SocketAddr, PortRelay>,
    // After the relays, which live on it.
    thread: RelayThread,
}

impl OpenRelays {
    pub(super) fn new(thread: RelayThread) -> Self {
        Self {
            published: BTreeMap::new(),
            inner: BTreeMap::new(),
            thread,
        }
    }

    /// `namespace/service` (with `:port` where it has several, and `:port/udp` of UDP) and where to reach it.
    pub(super) fn published(&self) -> Vec<(String, String)> {
        let ports = |service: &ResourceName| {
            let keys = self.published.keys();
            keys.filter(|(name, _, transport)| name == service && *transport == Transport::Tcp)
                .count()
        };
        let named = |((service, port, transport), open): (&Key, &Port)| {
            let name = match transport {
                Transport::Udp => format!("{service}:{port}/udp"),
                Transport::Tcp if ports(service) > 1 => format!("{service}:{port}"),
                Transport::Tcp => service.to_string(),
            };
            (name, open.url())
        };
        self.published.iter().map(named).collect()
    }

    /// Returns the runtime of the relays.
    pub(super) fn runtime(&self) -> &Handle {
        self.thread.handle()
    }

    /// Opens, closes and updates relays for the plan and the ready pods; returns messages for the user.
    pub(super) fn follow(
        &mut self,
        mesh: &Mesh,
        plan: &RunPlan,
        ready: &BTreeSet<ResourceName>,
        network: Option<&MeshNetwork>,
    ) -> io::Result<Vec<String>> {
        let mut notes = Vec::new();
        let wanted: BTreeSet<_> = plan.published.iter().map(key).collect();
        self.published.retain(|key, _| wanted.contains(key));
        for publication in &plan.published {
            let key = key(publication);
            if !self.published.contains_key(&key) {
                let port = self.publish(publication, network, &mut notes)?;
                self.published.insert(key.clone(), port);
            }
            let targets = publication
                .targets
                .iter()
                .filter(|(pod, _, _)| ready.contains(pod));
            let targets = targets
                .map(|(_, address, port)| SocketAddr::from((*address, *port)))
                .collect();
            if let Some(port) = self.published.get(&key) {
                port.set_targets(targets);
            }
        }
        if network.is_none() {
            self.follow_inner(mesh, plan, ready, &mut notes)?;
        }
        Ok(notes)
    }

    fn publish(
        &self,
        publication: &PublishedPort,
        network: Option<&MeshNetwork>,
        notes: &mut Vec<String>,
    ) -> io::Result<Port> {
        let runtime = self.thread.handle();
        let open = |address: SocketAddr| match (publication.transport, network) {
            (Transport::Tcp, None) => stream(runtime, TcpListener::bind(address)?, publication),
            (Transport::Tcp, Some(network)) => {
                stream(runtime, network.listen(address)?, publication)
            }
            (Transport::Udp, None) => datagrams(runtime, UdpSocket::bind(address)?),
            (Transport::Udp, Some(network)) => datagrams(runtime, network.receive(address)?),
        };
        let wish = SocketAddr::from((Ipv4Addr::LOCALHOST, publication.wish));
        match open(wish) {
            Ok(port) => Ok(port),
            Err(error) => {
                // Without the right to port 80, the service is published at 8080, if that is free.
                let low = publication.wish < PRIVILEGED;
                let second = low.then_some(publication.wish + HIGHER).into_iter();
                let mut places = second
                    .chain([0])
                    .map(|port| open((Ipv4Addr::LOCALHOST, port).into()));
                let port = match places.next() {
                    Some(Ok(port)) => port,
                    first => places
                        .next()
                        .or(first)
                        .unwrap_or(Err(error.kind().into()))?,
                };
                let service = &publication.service;
                notes.push(format!(
                    "{service} cannot be published on {wish} ({error}); on {} instead",
                    port.url()
                ));
                Ok(port)
            }
        }
    }

    fn follow_inner(
        &mut self,
        mesh: &Mesh,
        plan: &RunPlan,
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
                        let relay = PortRelay::start(self.thread.handle(), listener, Some(source))?;
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

fn stream(runtime: &Handle, listener: TcpListener, of: &PublishedPort) -> io::Result<Port> {
    let relay = PortRelay::start(runtime, listener, None)?;
    Ok(Port::Stream(relay, of.http))
}

fn datagrams(runtime: &Handle, socket: UdpSocket) -> io::Result<Port> {
    Ok(Port::Datagrams(Datagrams::start(runtime, socket)?))
}

fn targets(
    mesh: &Mesh,
    plan: &RunPlan,
    ready: &BTreeSet<ResourceName>,
    service: &MeshService,
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
