//! The DNS proxy. It answers names of the mesh and passes every other question on to the resolver unchanged. The first
//! question for a name asks the control plane; an unused name is let go after a while.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use voile_dns::{
    DnsQuestion, DnsUpstream, LocalName, Names, Owner, QueryLimits, Resolver, Responder,
    TTL_SECONDS, Upstreams,
};
use voile_model::names::{is_mesh_name, is_service_name, pod_of_service};
use voile_process::{DnsServer, DnsSockets, RunError};
use voile_proto::type_url;
use voile_telemetry::{DnsFigures, MetricFamily};
use voile_transport::handover::InheritedSockets;
use voile_xds::client::XdsClient;
use voile_xds::wire::search_name;

use crate::control::discovery::discovery_state::DiscoveryState;
use crate::control::options::ProxyOptions;
use crate::registry::names::NameSubscriptions;

/// Questions passed on at once; each has a socket of its own.
const MAX_FORWARDED: usize = 256;
/// Questions that wait for their turn: with those passed on fewer than are answered at once (2,048), so that a resolver that
/// is silent does not cost the mesh its names.
const MAX_WAITING: usize = 1024;
/// Factor of a service's idle time after which an unused name is let go: clients remember some answers longer than we ask
/// them to. Never before our answers expire.
const PATIENT: u32 = 2;
/// The system's names of hosts.
const HOSTS: &str = "/etc/hosts";

/// Binds the sockets of the DNS server at `--dns`, before anything else begins. Questions that are `captured` over IPv6 are
/// redirected to IPv6's loopback address.
pub(in crate::control) fn bind(
    address: SocketAddr,
    captured: bool,
    inherited: &mut InheritedSockets,
) -> Result<DnsSockets, RunError> {
    if address.ip().is_unspecified() {
        return Err(RunError::Option(format!(
            "--dns {address} would answer the whole network; use a loopback address, or the pod's own"
        )));
    }
    let mut sockets = DnsSockets::default();
    let bound = sockets.bind(address, inherited, str::to_owned);
    bound.map_err(|error| RunError::Bind {
        address,
        purpose: "DNS",
        error,
    })?;
    if captured && address.ip() == Ipv4Addr::LOCALHOST {
        let sixth = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port());
        if let Err(error) = sockets.bind(sixth, inherited, str::to_owned) {
            tracing::info!(address = %sixth, %error, "cannot answer DNS over IPv6");
        }
    }
    Ok(sockets)
}

/// Servers to ask, as `--resolver` says.
pub(in crate::control) fn upstreams(options: &ProxyOptions) -> Rc<Upstreams> {
    let upstreams = options.process.resolver.upstreams();
    // Our own questions must not be redirected to ourselves.
    upstreams.set_mark(
        options
            .exemption()
            .and_then(voile_transport::CaptureExemption::outward_mark),
    );
    Rc::new(upstreams)
}

/// The resolver for names that lead out of the mesh.
pub(in crate::control) fn resolver(upstreams: &Rc<Upstreams>) -> Rc<Resolver> {
    Rc::new(Resolver::new(Path::new(HOSTS), Rc::clone(upstreams)))
}

/// See the module.
pub(in crate::control) struct Dns {
    known: Rc<ResolvedHosts>,
    pub(in crate::control) server: DnsServer<DnsView>,
}

/// Names of the mesh, as far as they were asked for.
struct ResolvedHosts {
    shared: Arc<Mutex<DiscoveryState>>,
    client: XdsClient,
    /// Notified after every response of the control plane.
    heard: Arc<Notify>,
    /// Time that a service may go unused.
    idle: Rc<Cell<Duration>>,
    /// Names subscribed to, with the time of the last question for each.
    asked: RefCell<DnsQuestion>,
}

impl Dns {
    /// Answers on the bound sockets from now on.
    pub(in crate::control) fn start(
        sockets: DnsSockets,
        shared: Arc<Mutex<DiscoveryState>>,
        client: XdsClient,
        (upstreams, resolver): (Rc<Upstreams>, Rc<Resolver>),
        (heard, idle): (Arc<Notify>, Rc<Cell<Duration>>),
    ) -> io::Result<Rc<Self>> {
        let addresses = sockets.addresses()?;
        addresses
            .iter()
            .for_each(|address| upstreams.avoid(*address));
        let known = Rc::new(ResolvedHosts {
            shared,
            client,
            heard,
            idle,
            asked: RefCell::default(),
        });
        let line = DnsUpstream::new(MAX_FORWARDED, MAX_WAITING);
        let responder = Responder::new(DnsView(Rc::clone(&known)), (upstreams, resolver), line);
        let server = DnsServer::new(sockets, responder, QueryLimits::default());
        server.open()?;
        tracing::info!(?addresses, "answering DNS");
        Ok(Rc::new(Self { known, server }))
    }

    /// For the metrics page.
    pub(in crate::control) fn families(&self) -> impl Iterator<Item = MetricFamily> {
        let figures = self.server.figures();
        DnsFigures {
            requests: figures.requests,
            upstream_requests: figures.upstream_requests,
            upstream_failures: figures.upstream_failures,
            upstream_time: figures.upstream_time,
            names: self.known.asked.borrow().count(),
        }
        .families()
        .into_iter()
    }
}

impl ResolvedHosts {
    /// Meaning of a name; the first caller asks the control plane. `None` if the answer does not come in
    /// time.
    async fn meaning(self: &Rc<Self>, host: &str) -> Option<LocalName> {
        let name = search_name(host);
        self.ask(&name);
        let known = || self.shared().registry.meaning(&name);
        voile_dns::told(&self.heard, known, || self.client.is_lost()).await
    }

    /// A pod by its name below a headless service.
    async fn pod(self: &Rc<Self>, host: &str) -> Option<Vec<IpAddr>> {
        let (pod, service) = pod_of_service(host)?;
        self.meaning(service).await?;
        self.shared()
            .registry
            .pod_addresses(&search_name(service), pod)
    }

    fn ask(self: &Rc<Self>, name: &Arc<str>) {
        let asking = self.asked.borrow_mut().used(name, Instant::now());
        asking.let_go.iter().for_each(|name| self.let_go(name));
        if !asking.anew {
            return;
        }
        if self
            .shared()
            .registry
            .hold_name(name, NameSubscriptions::Dns)
        {
            // Without room for one more name it counts as never answered.
            let _ = self.client.subscribe(type_url::ADDRESS, [name.clone()]);
        }
        if asking.sweep {
            let sweep = voile_dns::sweep(Rc::downgrade(self), Self::let_go_of_unused);
            tokio::task::spawn_local(sweep);
        }
    }

    fn let_go(&self, name: &Arc<str>) {
        if self
            .shared()
            .registry
            .release_name(name, NameSubscriptions::Dns)
        {
            self.client.unsubscribe(type_url::ADDRESS, [name.clone()]);
        }
    }

    /// Lets go of unused names. Returns the time when the next one may be due; `None` without names.
    fn let_go_of_unused(&self) -> Option<Instant> {
        let unused_for = unused_for(self.idle.get());
        let (unused, next) = self.asked.borrow_mut().unused(Instant::now(), unused_for);
        unused.iter().for_each(|name| self.let_go(name));
        next
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, DiscoveryState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time that a name may go unused.
fn unused_for(idle: Duration) -> Duration {
    idle.saturating_mul(PATIENT)
        .max(Duration::from_secs(TTL_SECONDS.into()))
}

/// View of the DNS server on the mesh's names. Below `svc` of the cluster's domain only the mesh decides
/// which names exist.
pub(in crate::control) struct DnsView(Rc<ResolvedHosts>);

impl Names for DnsView {
    async fn meaning(&self, host: &str) -> LocalName {
        match self.0.meaning(host).await {
            Some(LocalName::Nobody) if is_service_name(host) => {
                let pod = self.0.pod(host).await;
                pod.map_or(LocalName::Nobody, LocalName::Addresses)
            }
            Some(LocalName::Nobody) => LocalName::Outside,
            Some(meaning) => meaning,
            None if is_mesh_name(host) => LocalName::Unsaid,
            None => LocalName::Outside,
        }
    }

    fn owner(&self, address: IpAddr) -> Owner {
        self.0.shared().registry.owner(address)
    }
}
