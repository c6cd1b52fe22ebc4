//! DNS in the pods (15053). The proxy answers a name from the services that the control plane shows to the pod's
//! namespace. It passes other names on from inside the pod. Each pod has its own sockets, queue and state of its
//! resolvers, so that a silent resolver costs other pods nothing. The same resolvers find the addresses of endpoints
//! that are known by a name.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use voile_dns::{
    DnsCounters, DnsQuestion, DnsUpstream, LocalName, Names, Owner, QueryLimits, Resolver,
    Responder,
};
use voile_model::Namespace;
use voile_model::names::{is_service_name, pod_of_service};
use voile_process::{DnsServer, DnsSockets, ExternalResolver};
use voile_telemetry::{DnsFigures, OnDemandFigures};
use voile_transport::OUTWARD_MARK;
use voile_transport::handover::InheritedSockets;
use voile_xds::wire::{NameMeaning, search_name_of};

use crate::agents::role;
use crate::names::Lookups;
use crate::pod::Pod;
use crate::registry::{RegistryView, SearchResult, ServedService, Subscription};
use crate::worker::ControlPlaneClient;

/// Port at the pod's loopback addresses to which its DNS queries are redirected.
const PORT: u16 = 15053;
/// Time after which an unused name is forgotten: many times the TTL of the answers.
const UNUSED_FOR: Duration = Duration::from_mins(10);
/// Questions of one pod that are passed on at once; each has a socket, and a node's pods share its descriptors.
const MAX_FORWARDED: usize = 32;
/// Questions of one pod that wait for their turn: with those passed on fewer than are answered at once.
const MAX_WAITING: usize = 128;
/// Limits for one pod: lower than in a pod's own proxy, since a node has a hundred pods.
const BOUNDS: QueryLimits = QueryLimits {
    outstanding: 256,
    connections: 16,
    queue_bytes: 256 * 1024,
};
/// No hosts file is the pod's that we could read.
const NO_HOSTS: &str = "";

/// Names of the mesh, as far as the pods of this node asked for them.
pub(crate) struct Directory {
    asker: ControlPlaneClient,
    view: watch::Receiver<Arc<RegistryView>>,
    /// Told after every response of the control plane.
    heard: Arc<Notify>,
    outside: ExternalResolver,
    /// Names asked of the control plane, as pods last looked for each.
    asked: RefCell<DnsQuestion>,
    /// Query counters of removed pods, and counters of the names resolved for their connections.
    gone: Cell<DnsCounters>,
    gone_lookups: Cell<OnDemandFigures>,
}

impl Directory {
    pub(crate) fn new(
        asker: ControlPlaneClient,
        (view, heard): (watch::Receiver<Arc<RegistryView>>, Arc<Notify>),
        outside: ExternalResolver,
    ) -> Rc<Self> {
        Rc::new(Self {
            asker,
            view,
            heard,
            outside,
            asked: RefCell::default(),
            gone: Cell::default(),
            gone_lookups: Cell::default(),
        })
    }

    /// Returns the meaning of a name to a namespace's pods; `say` derives it from the name's service.
    /// Asks the control plane if nobody has asked yet and the subscription is on demand.
    /// Returns None if the control plane does not answer in time.
    async fn meaning(
        self: &Rc<Self>,
        namespace: &Namespace,
        host: &str,
        say: impl Fn(&RegistryView, &ServedService) -> Option<LocalName>,
    ) -> Option<LocalName> {
        let lost = || self.asker.client.is_lost();
        if self.asker.subscription == Subscription::All {
            let known = || {
                let view = Arc::clone(&self.view.borrow());
                let named = || match view.named(namespace, host) {
                    Some(served) => say(&view, served),
                    None => Some(LocalName::Outside),
                };
                view.is_whole().then(named)
            };
            return voile_dns::told(&self.heard, known, lost).await?;
        }
        let name = search_name_of(namespace, host);
        self.ask(&name);
        let known = || {
            let sought = self.asker.registry().sought(&name)?;
            let SearchResult::Service(key) = sought else {
                return Some(Some(LocalName::Outside));
            };
            let view = Arc::clone(&self.view.borrow());
            view.service(&key).map(|served| say(&view, served))
        };
        voile_dns::told(&self.heard, known, lost).await?
    }

    fn ask(self: &Rc<Self>, name: &Arc<str>) {
        let asking = self.asked.borrow_mut().used(name, Instant::now());
        asking.let_go.iter().for_each(|name| self.let_go(name));
        if !asking.anew {
            return;
        }
        let wish = self.asker.registry().search(name);
        self.asker.follow(wish);
        if asking.sweep {
            let sweep = voile_dns::sweep(Rc::downgrade(self), Self::let_go_of_unused);
            tokio::task::spawn_local(sweep);
        }
    }

    fn let_go(&self, name: &Arc<str>) {
        let wish = self.asker.registry().search_no_more(name);
        self.asker.follow(wish);
    }

    fn let_go_of_unused(&self) -> Option<Instant> {
        let (unused, next) = self.asked.borrow_mut().unused(Instant::now(), UNUSED_FOR);
        unused.iter().for_each(|name| self.let_go(name));
        next
    }

    /// Returns the counters of all DNS queries so far, of these pods and of removed ones.
    pub(crate) fn figures(&self, pods: impl Iterator<Item = DnsCounters>) -> DnsFigures {
        let mut all = self.gone.get();
        pods.for_each(|one| all.add(&one));
        DnsFigures {
            requests: all.requests,
            upstream_requests: all.upstream_requests,
            upstream_failures: all.upstream_failures,
            upstream_time: all.upstream_time,
            names: self.asked.borrow().count(),
        }
    }

    /// Returns the counters of all resolved names so far, of these pods and of removed ones.
    pub(crate) fn lookups(&self, pods: impl Iterator<Item = OnDemandFigures>) -> OnDemandFigures {
        let mut all = self.gone_lookups.get();
        pods.for_each(|one| all.add(&one));
        all
    }
}

/// Answers the DNS queries of one pod from the mesh's names.
pub(crate) struct PodResolver {
    directory: Rc<Directory>,
    namespace: Namespace,
}

impl PodResolver {
    /// A pod by its name below a service that has no address of its own.
    async fn pod(&self, host: &str) -> Option<LocalName> {
        let (pod, service) = pod_of_service(host)?;
        let found = |view: &RegistryView, served: &ServedService| {
            let mut behind = view.behind(&served.service.key).iter();
            served.service.addresses.is_empty().then_some(())?;
            let found = behind.find(|resident| *resident.workload.name == *pod)?;
            Some(LocalName::Addresses(found.workload.addresses.clone()))
        };
        let found = self.directory.meaning(&self.namespace, service, found);
        found.await.filter(|found| *found != LocalName::Outside)
    }
}

impl Names for PodResolver {
    /// A name without an answer goes to the resolver. The resolver may know names of the cluster by itself, and the
    /// proxy asks the control plane again about the address that is called.
    async fn meaning(&self, host: &str) -> LocalName {
        let found = self.directory.meaning(&self.namespace, host, said).await;
        match found {
            Some(LocalName::Outside) if is_service_name(host) => {
                self.pod(host).await.unwrap_or(LocalName::Outside)
            }
            found => found.unwrap_or(LocalName::Outside),
        }
    }

    /// A pod must not learn which pod has an address.
    fn owner(&self, _: IpAddr) -> Owner {
        Owner::Unknown
    }
}

/// Returns the meaning of a service's name to a pod whose connections this proxy carries.
fn said(view: &RegistryView, served: &ServedService) -> Option<LocalName> {
    let behind = || view.behind(&served.service.key).iter();
    let behind = || behind().map(|one| &one.workload);
    Some(match served.service.meaning(behind) {
        NameMeaning::Addresses(addresses) => LocalName::Addresses(addresses),
        NameMeaning::Alias(alias) => LocalName::Alias(alias.to_string()),
        NameMeaning::Outside => LocalName::Outside,
    })
}

/// Binds the sockets of one pod: those inherited of this place, or new ones of the calling thread's network.
pub(crate) fn bind(inherited: &mut InheritedSockets, place: (u64, u64)) -> io::Result<DnsSockets> {
    let mut sockets = DnsSockets::default();
    let mut bind = |ip: IpAddr| {
        let address = SocketAddr::new(ip, PORT);
        let bound = sockets.bind(address, inherited, |name| role(name, place));
        bound.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot answer DNS at {address}: {error}"),
            )
        })
    };
    bind(Ipv4Addr::LOCALHOST.into())?;
    match bind(Ipv6Addr::LOCALHOST.into()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
        // A machine without IPv6 has no queries over IPv6.
        Err(error) => tracing::debug!(%error, "cannot answer DNS over IPv6"),
    }
    Ok(sockets)
}

/// DNS of one pod.
pub(crate) struct PodDns {
    directory: Rc<Directory>,
    pub(crate) server: DnsServer<PodResolver>,
    /// Resolves names to which connections of the pod go.
    pub(crate) lookups: Rc<Lookups>,
}

impl PodDns {
    pub(crate) fn new(directory: &Rc<Directory>, pod: &Arc<Pod>, sockets: DnsSockets) -> Self {
        let upstreams = directory.outside.upstreams();
        let inside = Arc::clone(pod);
        upstreams.set_mark(Some(OUTWARD_MARK));
        upstreams.ask_within(Rc::new(move |make| inside.inside.within(make)));
        for ip in [
            IpAddr::from(Ipv4Addr::LOCALHOST),
            Ipv6Addr::LOCALHOST.into(),
        ] {
            upstreams.avoid(SocketAddr::new(ip, PORT));
        }
        let upstreams = Rc::new(upstreams);
        let resolver = Resolver::new(Path::new(NO_HOSTS), Rc::clone(&upstreams));
        let resolver = Rc::new(resolver);
        let lookups = Lookups::new(Rc::clone(&resolver));
        let desk = PodResolver {
            directory: Rc::clone(directory),
            namespace: pod.badge.identity.namespace.clone(),
        };
        let line = DnsUpstream::new(MAX_FORWARDED, MAX_WAITING);
        let responder = Responder::new(desk, (upstreams, resolver), line);
        Self {
            directory: Rc::clone(directory),
            server: DnsServer::new(sockets, responder, BOUNDS),
            lookups,
        }
    }
}

impl Drop for PodDns {
    fn drop(&mut self) {
        let mut gone = self.directory.gone.get();
        gone.add(&self.server.figures());
        self.directory.gone.set(gone);
        let lookups = self.lookups.figures();
        let mut gone = self.directory.gone_lookups.get();
        // Counts only lookups and failures: the names held for the pod are dropped with it.
        gone.add(&OnDemandFigures {
            lookups: lookups.lookups,
            failures: lookups.failures,
            ..OnDemandFigures::default()
        });
        self.directory.gone_lookups.set(gone);
    }
}
