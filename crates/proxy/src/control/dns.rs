//! The DNS proxy: answers what the mesh knows, passes everything else on to the resolver as it came. Names are asked of the
//! control plane when somebody first asks for them, and let go when nobody has for a while.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use voile_dns::message::{self, Query, QueryKind, Received};
use voile_dns::{Answers, Line, Over, Resolver, Upstreams};
use voile_model::Hostname;
use voile_proto::type_url;
use voile_telemetry::Family;
use voile_transport::handover::Inherited;
use voile_xds::client::XdsClient;

use super::state::Shared;
use super::{Options, Outside, RunError};
use crate::registry::names::{
    Asker, Meaning, Owner, is_mesh_name, is_service_name, pod_of_service, search_name,
};

/// How long clients may keep our answers, in seconds; Istio's.
const MESH_TTL_SECONDS: u32 = 30;
/// How long to wait for the control plane's word on a name nobody asked for before. Clients ask again after 5 s.
const CONTROL_WAIT: Duration = Duration::from_secs(2);
/// Names asked of the control plane at once; the one unused for longest makes room.
const MAX_NAMES: usize = 4096;
/// Names let go at once when there is no room, so that finding them is not paid for by every name.
const NAMES_LET_GO: usize = 256;
/// Questions passed on at once; each has a socket of its own.
const MAX_FORWARDED: usize = 256;
/// Questions that wait for their turn: with those passed on fewer than are answered at once (2,048), so that a resolver that
/// is silent does not cost the mesh its names.
const MAX_WAITING: usize = 1024;
/// How long they do: together with the resolver's time (4 s) less than a client's patience (5 s).
const WAIT_FOR_TURN: Duration = Duration::from_millis(800);
/// A name that nobody asked for is let go after so many times what a service may go unused: clients remember some answers
/// longer than we ask them to. Never before our answers expire.
const PATIENT: u32 = 2;
/// What `resolv.conf` and `hosts` are called.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";

/// Counters of the page.
#[derive(Debug, Default)]
struct Figures {
    requests: Cell<u64>,
    upstream_requests: Cell<u64>,
    upstream_failures: Cell<u64>,
    upstream_time: Cell<Duration>,
}

/// Where DNS is answered, bound before anything else begins.
pub(super) struct Bound(Vec<(std::net::UdpSocket, std::net::TcpListener)>);

impl Bound {
    /// Binds UDP and TCP at `--dns`. Questions that are `captured` over IPv6 are redirected to IPv6's loopback address.
    pub(super) fn new(
        address: SocketAddr,
        captured: bool,
        inherited: &mut Inherited,
    ) -> Result<Self, RunError> {
        if address.ip().is_unspecified() {
            return Err(RunError::Option(format!(
                "--dns {address}: would answer the whole network; name a loopback address, or the pod's own"
            )));
        }
        let mut bind = |address: SocketAddr| -> io::Result<_> {
            let udp = inherited.bind_udp(ROLES[0], address)?;
            let tcp = inherited.bind(ROLES[1], udp.local_addr()?)?;
            Ok((udp, tcp))
        };
        let first = bind(address).map_err(|error| RunError::Bind {
            address,
            purpose: "DNS",
            error,
        })?;
        let mut bound = vec![first];
        if captured && address.ip() == Ipv4Addr::LOCALHOST {
            let sixth = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port());
            match bind(sixth) {
                Ok(sixth) => bound.push(sixth),
                Err(error) => tracing::info!(address = %sixth, %error, "no DNS over IPv6"),
            }
        }
        Ok(Self(bound))
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let both = |(udp, tcp): &(std::net::UdpSocket, std::net::TcpListener)| {
            Ok((udp.try_clone()?, tcp.try_clone()?))
        };
        self.0.iter().map(both).collect::<io::Result<_>>().map(Self)
    }

    /// Each socket, for a successor.
    pub(super) fn each(&self) -> impl Iterator<Item = Lent> {
        self.0.iter().flat_map(|(udp, tcp)| {
            [
                (ROLES[0], udp.local_addr(), udp.try_clone().map(Into::into)),
                (ROLES[1], tcp.local_addr(), tcp.try_clone().map(Into::into)),
            ]
        })
    }
}

/// What a successor is told of a socket: its role, its address, itself.
pub(super) type Lent = (&'static str, io::Result<SocketAddr>, io::Result<OwnedFd>);

/// The roles of the two sockets.
const ROLES: [&str; 2] = ["dns-udp", "dns-tcp"];

/// Servers to ask, as `--resolver` says.
pub(super) fn upstreams(options: &Options) -> Rc<Upstreams> {
    let upstreams = match options.resolver {
        Outside::Server(server) => Upstreams::fixed(server),
        Outside::System => Upstreams::of_file(Path::new(RESOLV_CONF)),
        Outside::Nowhere => Upstreams::nobody(),
    };
    // Our own questions must not be redirected to ourselves.
    upstreams.set_mark(options.capture.map(|_| voile_transport::OUTWARD_MARK));
    Rc::new(upstreams)
}

/// The resolver for names that lead out of the mesh.
pub(super) fn resolver(upstreams: &Rc<Upstreams>) -> Rc<Resolver> {
    Rc::new(Resolver::new(Path::new(HOSTS), Rc::clone(upstreams)))
}

/// See the module.
pub(super) struct Dns {
    shared: Arc<Mutex<Shared>>,
    client: XdsClient,
    upstreams: Rc<Upstreams>,
    resolver: Rc<Resolver>,
    /// Told after every response of the control plane.
    heard: Arc<Notify>,
    /// How long a service may go unused.
    idle: Rc<Cell<Duration>>,
    /// Names asked of the control plane, and when a client last asked for each.
    asked: RefCell<HashMap<Arc<str>, Instant>>,
    sweeping: Cell<bool>,
    /// Questions that the resolver is being asked.
    line: Line,
    figures: Figures,
    services: RefCell<Vec<voile_dns::Service>>,
}

impl Dns {
    /// Answers on the bound sockets from now on.
    pub(super) fn start(
        bound: Bound,
        shared: Arc<Mutex<Shared>>,
        client: XdsClient,
        (upstreams, resolver): (Rc<Upstreams>, Rc<Resolver>),
        (heard, idle): (Arc<Notify>, Rc<Cell<Duration>>),
    ) -> io::Result<Rc<Self>> {
        let mut addresses = Vec::new();
        for (udp, _) in &bound.0 {
            let address = udp.local_addr()?;
            upstreams.avoid(address);
            addresses.push(address);
        }
        let dns = Rc::new(Self {
            shared,
            client,
            upstreams,
            resolver,
            heard,
            idle,
            asked: RefCell::default(),
            sweeping: Cell::new(false),
            line: Line::new(MAX_FORWARDED, MAX_WAITING, WAIT_FOR_TURN),
            figures: Figures::default(),
            services: RefCell::default(),
        });
        dns.listen(bound)?;
        tracing::info!(?addresses, "answering DNS");
        Ok(dns)
    }

    /// Takes questions on these sockets.
    pub(super) fn listen(self: &Rc<Self>, bound: Bound) -> io::Result<()> {
        for (udp, tcp) in bound.0 {
            let service = voile_dns::serve(udp, tcp, Rc::new(Door(Rc::clone(self))))?;
            self.services.borrow_mut().push(service);
        }
        Ok(())
    }

    /// Leaves new questions to whoever else holds the sockets.
    pub(super) fn stop(&self) {
        self.services
            .borrow()
            .iter()
            .for_each(voile_dns::Service::stop);
    }

    /// Whether every question is answered.
    pub(super) fn is_idle(&self) -> bool {
        self.services
            .borrow()
            .iter()
            .all(voile_dns::Service::is_idle)
    }

    async fn query(
        self: &Rc<Self>,
        query: &Query<'_>,
        packet: &[u8],
        over: Over,
    ) -> Option<Vec<u8>> {
        let host = query.name.as_str();
        let udp = over == Over::Udp;
        if host == "localhost" || host.ends_with(".localhost") {
            let local = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            return Some(query.addresses(&local, None, MESH_TTL_SECONDS, udp));
        }
        if host.ends_with(".arpa") {
            return match message::reverse_address(host).map_or(Owner::Unknown, |ip| self.owner(ip))
            {
                Owner::Host(host) => Some(query.pointer(host.as_str(), MESH_TTL_SECONDS)),
                Owner::Nameless => Some(query.no_such_name()),
                Owner::Unknown => self.forward(packet, over).await,
            };
        }
        match self.meaning(host).await {
            Some(Meaning::Addresses(mut addresses)) => {
                if !addresses.is_empty() {
                    // Clients take the first; it should not be the same for all of them.
                    let turn = fastrand::usize(..addresses.len());
                    addresses.rotate_left(turn);
                }
                Some(query.addresses(&addresses, None, MESH_TTL_SECONDS, udp))
            }
            Some(Meaning::Alias(target)) => self.alias(query, target.as_str(), packet, udp).await,
            Some(Meaning::Outside) => self.forward(packet, over).await,
            Some(Meaning::Nothing) if is_service_name(host) => Some(match self.pod(host).await {
                Some(addresses) => query.addresses(&addresses, None, MESH_TTL_SECONDS, udp),
                None => query.no_such_name(),
            }),
            Some(Meaning::Nothing) => self.forward(packet, over).await,
            None if is_mesh_name(host) => {
                tracing::debug!(
                    host,
                    "the control plane has not said what this name means; the answer is SERVFAIL"
                );
                message::server_failure(packet)
            }
            None => self.forward(packet, over).await,
        }
    }

    /// Another name: it and what the resolver knows of it, since clients do not follow by themselves.
    async fn alias(
        &self,
        query: &Query<'_>,
        target: &str,
        packet: &[u8],
        udp: bool,
    ) -> Option<Vec<u8>> {
        if let QueryKind::Other(_) = query.kind {
            return Some(query.addresses(&[], Some(target), MESH_TTL_SECONDS, udp));
        }
        match self.resolver.lookup(target).await {
            Ok(found) => {
                Some(query.addresses(&found.addresses, Some(target), MESH_TTL_SECONDS, udp))
            }
            Err(error) => {
                tracing::debug!(host = query.name, target, %error, "the name it stands for cannot be resolved");
                message::server_failure(packet)
            }
        }
    }

    /// A pod by its name below a headless service.
    async fn pod(self: &Rc<Self>, host: &str) -> Option<Vec<IpAddr>> {
        let (pod, service) = pod_of_service(host)?;
        self.meaning(service).await?;
        self.shared()
            .registry
            .pod_addresses(&search_name(service), pod)
    }

    /// What a name means; asks the control plane if nobody did yet. `None` when it does not say in time.
    async fn meaning(self: &Rc<Self>, host: &str) -> Option<Meaning> {
        let name = search_name(host);
        self.ask(&name);
        let deadline = tokio::time::Instant::now() + CONTROL_WAIT;
        loop {
            let heard = self.heard.notified();
            tokio::pin!(heard);
            heard.as_mut().enable();
            if let Some(meaning) = self.shared().registry.meaning(&name) {
                return Some(meaning);
            }
            if self.is_control_lost() {
                return None;
            }
            if tokio::time::timeout_at(deadline, heard).await.is_err() {
                return None;
            }
        }
    }

    /// Whether there was a control plane and is none now. One that was never there yet is waited for.
    fn is_control_lost(&self) -> bool {
        let state = self.client.state();
        let state = state.borrow();
        !state.connected && state.connections > 0
    }

    fn ask(self: &Rc<Self>, name: &Arc<str>) {
        let now = Instant::now();
        let mut asked = self.asked.borrow_mut();
        if let Some(used) = asked.get_mut(name) {
            *used = now;
            return;
        }
        if asked.len() >= MAX_NAMES {
            let mut by_age: Vec<(Instant, Arc<str>)> = asked
                .iter()
                .map(|(name, used)| (*used, name.clone()))
                .collect();
            by_age.select_nth_unstable(NAMES_LET_GO);
            for (_, name) in by_age.into_iter().take(NAMES_LET_GO) {
                asked.remove(&name);
                self.let_go(&name);
            }
        }
        asked.insert(name.clone(), now);
        if self.shared().registry.hold_name(name, Asker::Dns) {
            // Without room for one more name it counts as never answered.
            let _ = self.client.subscribe(type_url::ADDRESS, [name.clone()]);
        }
        if !self.sweeping.replace(true) {
            tokio::task::spawn_local(sweep(Rc::downgrade(self)));
        }
    }

    fn let_go(&self, name: &Arc<str>) {
        if self.shared().registry.release_name(name, Asker::Dns) {
            self.client.unsubscribe(type_url::ADDRESS, [name.clone()]);
        }
    }

    /// Lets go of names nobody used; says when the next one may be due, `None` when there are no names left.
    fn let_go_of_unused(&self, now: Instant) -> Option<Instant> {
        let mut asked = self.asked.borrow_mut();
        let unused_for = unused_for(self.idle.get());
        let stale = |used: &Instant| now.saturating_duration_since(*used) >= unused_for;
        let unused: Vec<Arc<str>> = asked
            .iter()
            .filter(|(_, used)| stale(used))
            .map(|(name, _)| name.clone())
            .collect();
        for name in unused {
            asked.remove(&name);
            self.let_go(&name);
        }
        asked.values().min().map(|oldest| *oldest + unused_for)
    }

    fn owner(&self, address: IpAddr) -> Owner {
        if address.is_loopback() {
            return Hostname::new("localhost").map_or(Owner::Nameless, Owner::Host);
        }
        self.shared().registry.owner(address)
    }

    async fn forward(&self, packet: &[u8], over: Over) -> Option<Vec<u8>> {
        if self.upstreams.is_nobody() {
            return message::no_such_name(packet);
        }
        let Some(_turn) = self.line.turn().await else {
            add(&self.figures.upstream_failures);
            return message::server_failure(packet);
        };
        let started = Instant::now();
        add(&self.figures.upstream_requests);
        let result = self.upstreams.forward(packet, over).await;
        let time = &self.figures.upstream_time;
        time.set(time.get() + started.elapsed());
        match result {
            Ok(answer) => Some(answer),
            Err(error) => {
                add(&self.figures.upstream_failures);
                tracing::debug!(question = message::shown(packet), %error, "no resolver answers; the answer is SERVFAIL");
                message::server_failure(packet)
            }
        }
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ztunnel's names.
    pub(super) fn families(&self) -> Vec<Family> {
        let figures = &self.figures;
        let counter = |name, help, value: &Cell<u64>| {
            Family::single(name, "counter", help, value.get() as f64)
        };
        vec![
            counter(
                "istio_dns_requests_total",
                "DNS questions received.",
                &figures.requests,
            ),
            counter(
                "istio_dns_upstream_requests_total",
                "DNS questions passed on to the resolver.",
                &figures.upstream_requests,
            ),
            counter(
                "istio_dns_upstream_failures_total",
                "DNS questions that no resolver answered.",
                &figures.upstream_failures,
            ),
            Family::single(
                "istio_dns_upstream_request_duration_seconds_sum",
                "counter",
                "Time spent waiting for the resolver.",
                figures.upstream_time.get().as_secs_f64(),
            ),
            Family::single(
                "voile_dns_names",
                "gauge",
                "Names asked of the control plane for DNS.",
                self.asked.borrow().len() as f64,
            ),
        ]
    }
}

/// How long a name may go unused.
fn unused_for(idle: Duration) -> Duration {
    idle.saturating_mul(PATIENT)
        .max(Duration::from_secs(MESH_TTL_SECONDS.into()))
}

fn add(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// Runs while there are names, sleeps until the oldest may be let go.
async fn sweep(dns: Weak<Dns>) {
    loop {
        let next = match dns.upgrade() {
            None => return,
            Some(dns) => match dns.let_go_of_unused(Instant::now()) {
                Some(next) => next,
                None => return dns.sweeping.set(false),
            },
        };
        tokio::time::sleep_until(next.into()).await;
    }
}

/// What the sockets see of it.
struct Door(Rc<Dns>);

impl Answers for Door {
    async fn answer(&self, packet: &[u8], over: Over) -> Option<Vec<u8>> {
        add(&self.0.figures.requests);
        match message::receive(packet) {
            Received::Query(query) => Box::pin(self.0.query(&query, packet, over)).await,
            Received::Foreign => self.0.forward(packet, over).await,
            Received::Refuse(answer) => Some(answer),
            Received::Ignore(reason) => {
                tracing::debug!(reason, "a packet on the DNS port is ignored");
                None
            }
        }
    }
}
