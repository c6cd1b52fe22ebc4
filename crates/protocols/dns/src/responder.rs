//! Responder to questions. It asks [`Names`] first, and passes unknown names on to a resolver as they came. The
//! number of questions passed on at once is bounded; the rest waits a moment or gets an answer at once.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::exchange::DnsTransport;
use crate::forwarder::DnsUpstream;
use crate::message::{self, Query, QueryKind, ReceivedMessage};
use crate::resolver::Resolver;
use crate::server::AnswerSource;
use crate::upstream::Upstreams;

/// TTL of answers made here, in seconds; Istio's.
pub const TTL_SECONDS: u32 = 30;

/// Meaning of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalName {
    /// These addresses; none is an answer too.
    Addresses(Vec<IpAddr>),
    /// Another name, which the resolver knows.
    Alias(String),
    /// The resolver decides.
    Outside,
    /// There is no such name, whatever the resolver says.
    Nobody,
    /// The source that must decide has not answered yet.
    Unsaid,
}

/// Owner of an address, for a reverse lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// It has this name.
    Host(String),
    /// It is known, and has no name.
    Nameless,
    /// The owner is not known.
    Unknown,
}

/// Source of names.
pub trait Names: 'static {
    /// Returns the meaning of a name, in lower case and without a dot at its end.
    fn meaning(&self, host: &str) -> impl Future<Output = LocalName>;

    /// Returns the owner of an address.
    fn owner(&self, address: IpAddr) -> Owner;
}

/// Counters of questions.
#[derive(Debug, Default, Clone, Copy)]
pub struct DnsCounters {
    /// Questions received.
    pub requests: u64,
    /// Passed on to the resolver.
    pub upstream_requests: u64,
    /// Of those, the unanswered ones, and those for which there was no turn.
    pub upstream_failures: u64,
    /// Time spent waiting for the resolver.
    pub upstream_time: Duration,
}

impl DnsCounters {
    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.upstream_requests += other.upstream_requests;
        self.upstream_failures += other.upstream_failures;
        self.upstream_time += other.upstream_time;
    }
}

/// See the module.
#[derive(Debug)]
pub struct Responder<N> {
    names: N,
    upstreams: Rc<Upstreams>,
    resolver: Rc<Resolver>,
    /// Questions that the resolver is being asked.
    line: DnsUpstream,
    figures: Cell<DnsCounters>,
}

impl<N: Names> Responder<N> {
    /// Creates a responder. It asks `names` first, then `resolver` for aliases that the names have, and `upstreams`
    /// as `line` allows.
    pub fn new(
        names: N,
        (upstreams, resolver): (Rc<Upstreams>, Rc<Resolver>),
        line: DnsUpstream,
    ) -> Self {
        Self {
            names,
            upstreams,
            resolver,
            line,
            figures: Cell::default(),
        }
    }

    /// Returns the counters.
    pub fn figures(&self) -> DnsCounters {
        self.figures.get()
    }

    fn count(&self, add: impl FnOnce(&mut DnsCounters)) {
        let mut figures = self.figures.get();
        add(&mut figures);
        self.figures.set(figures);
    }

    async fn query(&self, query: &Query<'_>, packet: &[u8], over: DnsTransport) -> Option<Vec<u8>> {
        let host = query.name.as_str();
        let udp = over == DnsTransport::Udp;
        if host == "localhost" || host.ends_with(".localhost") {
            let local = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            return Some(query.addresses(&local, None, TTL_SECONDS, udp));
        }
        if host.ends_with(".arpa") {
            let owner = message::reverse_address(host).map_or(Owner::Unknown, |ip| self.owner(ip));
            return match owner {
                Owner::Host(host) => Some(query.pointer(&host, TTL_SECONDS)),
                Owner::Nameless => Some(query.no_such_name()),
                Owner::Unknown => self.forward(packet, over).await,
            };
        }
        match self.names.meaning(host).await {
            LocalName::Addresses(mut addresses) => {
                if !addresses.is_empty() {
                    // Clients take the first; it should not be the same for all of them.
                    let turn = fastrand::usize(..addresses.len());
                    addresses.rotate_left(turn);
                }
                Some(query.addresses(&addresses, None, TTL_SECONDS, udp))
            }
            LocalName::Alias(target) => self.alias(query, &target, packet, udp).await,
            LocalName::Outside => self.forward(packet, over).await,
            LocalName::Nobody => Some(query.no_such_name()),
            LocalName::Unsaid => {
                tracing::debug!(
                    host,
                    "the control plane has not answered for this name; the response is SERVFAIL"
                );
                message::server_failure(packet)
            }
        }
    }

    fn owner(&self, address: IpAddr) -> Owner {
        match address.is_loopback() {
            true => Owner::Host("localhost".to_owned()),
            false => self.names.owner(address),
        }
    }

    /// Answers with another name and the resolver's records of it, since clients do not follow by themselves.
    async fn alias(
        &self,
        query: &Query<'_>,
        target: &str,
        packet: &[u8],
        udp: bool,
    ) -> Option<Vec<u8>> {
        if let QueryKind::Other(_) = query.kind {
            return Some(query.addresses(&[], Some(target), TTL_SECONDS, udp));
        }
        match self.resolver.lookup(target).await {
            Ok(found) => Some(query.addresses(&found.addresses, Some(target), TTL_SECONDS, udp)),
            Err(error) => {
                tracing::debug!(host = query.name, target, %error, "cannot resolve the external name");
                message::server_failure(packet)
            }
        }
    }

    async fn forward(&self, packet: &[u8], over: DnsTransport) -> Option<Vec<u8>> {
        if self.upstreams.is_nobody() {
            return message::no_such_name(packet);
        }
        let Some(_turn) = self.line.turn().await else {
            self.count(|figures| figures.upstream_failures += 1);
            return message::server_failure(packet);
        };
        let started = Instant::now();
        self.count(|figures| figures.upstream_requests += 1);
        let result = self.upstreams.forward(packet, over).await;
        self.count(|figures| figures.upstream_time += started.elapsed());
        match result {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.count(|figures| figures.upstream_failures += 1);
                tracing::debug!(question = message::shown(packet), %error, "no resolver answers; the response is SERVFAIL");
                message::server_failure(packet)
            }
        }
    }
}

impl<N: Names> AnswerSource for Responder<N> {
    async fn answer(&self, packet: &[u8], over: DnsTransport) -> Option<Vec<u8>> {
        self.count(|figures| figures.requests += 1);
        match message::receive(packet) {
            ReceivedMessage::Query(query) => Box::pin(self.query(&query, packet, over)).await,
            ReceivedMessage::Foreign => self.forward(packet, over).await,
            ReceivedMessage::Refuse(answer) => Some(answer),
            ReceivedMessage::Ignore(reason) => {
                tracing::debug!(reason, "a packet on the DNS port is ignored");
                None
            }
        }
    }
}
