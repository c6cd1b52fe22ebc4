//! One endpoint of a service port, as one worker knows it: load, pool key, and how to connect. The connecting
//! worker verifies the endpoint's identity before it sends a byte of the application.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig};
use tokio::net::TcpStream;
use voile_identity::revocation::keys_of;
use voile_identity::{Identity, PeerError, identity_of, verify_expected};
use voile_telemetry::{GRPC, Labels, PeerLabels, Reporter, Security, SeriesId, ServiceLabels, TCP};
use voile_traffic::balance::EndpointVitals;
use voile_transport::{
    self as transport, ConnectError, HandshakeError, KeepAlive, TLS_HANDSHAKE_TIMEOUT,
    TransportStream,
};

use crate::clock;
use crate::http::{UNREACHED, UpstreamHttp, UpstreamResponse};
use crate::plan::{EndpointPlan, NamePlan, Origination, SharedPart, TrafficPlan, WorldTls};
use crate::worker::proxy_protocol::ConnectionPreamble;
use crate::worker::server_certificates::WorkerSnapshot;
use crate::worker::{Overload, Tls, Worker, count, tunnels};

/// See the module.
pub(crate) struct Endpoint {
    /// Pool key: equal only for the same address reached in the same way.
    pub(crate) key: u32,
    pub(crate) plan: EndpointPlan,
    /// Load statistics of this worker; all endpoints at the same address share them.
    vitals: Rc<RefCell<EndpointVitals>>,
    /// Connections that this worker has to it.
    pub(crate) lines: Rc<Cell<u32>>,
    /// The certificates it was verified by.
    shown: RefCell<Rc<WorkerSnapshot>>,
    http: CachedSeries,
    grpc: CachedSeries,
    tcp: CachedSeries,
}

/// Number of a series, valid until our own labels change.
#[derive(Default)]
pub(crate) struct CachedSeries(Cell<Option<(u32, SeriesId)>>);

impl CachedSeries {
    pub(crate) fn get(&self, worker: &Worker, labels: impl FnOnce() -> Labels) -> SeriesId {
        let epoch = worker.epoch.get();
        if let Some((then, id)) = self.0.get()
            && then == epoch
            && worker.shard.borrow().is_current(id)
        {
            return id;
        }
        let id = worker.shard.borrow_mut().series(&labels());
        self.0.set(Some((epoch, id)));
        id
    }
}

/// Parameters of connections to a destination.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionManner {
    /// Connect timeout in the kernel.
    pub(crate) timeout: Duration,
    pub(crate) keep_alive: Option<KeepAlive>,
    /// PROXY protocol header that begins each connection.
    introduction: Option<ConnectionPreamble>,
}

impl ConnectionManner {
    /// As a plan says, or else as the settings do.
    pub(crate) fn of(worker: &Worker, plan: &TrafficPlan) -> Self {
        let usual = || worker.settings.borrow().connect_timeout;
        Self {
            timeout: plan.connect_timeout.unwrap_or_else(usual),
            keep_alive: plan.keep_alive,
            introduction: plan.introduces.map(ConnectionPreamble::of_our_own),
        }
    }

    /// The same with the PROXY header of a client that called this address, if a header is wanted.
    pub(in crate::worker) fn on_behalf(
        self,
        client: SocketAddr,
        called: impl FnOnce() -> SocketAddr,
    ) -> Self {
        let of_client = |one: ConnectionPreamble| one.on_behalf(client, called());
        Self {
            introduction: self.introduction.map(of_client),
            ..self
        }
    }
}

/// One request or connection on its way; dropping it lightens the endpoint.
pub(crate) struct InFlight {
    pub(crate) endpoint: Rc<Endpoint>,
    /// Its place among the service's endpoints.
    pub(crate) place: u32,
    /// Start time in nanoseconds; none if endpoints are not compared. Small, since every connection keeps room for it.
    since: Option<NonZeroU64>,
}

impl InFlight {
    pub(crate) fn begin(endpoint: &Rc<Endpoint>, place: u32, since: Option<Duration>) -> Self {
        endpoint.vitals.borrow_mut().begin();
        Self {
            endpoint: Rc::clone(endpoint),
            place,
            since: since.and_then(|since| {
                let nanos = u64::try_from(since.as_nanos());
                NonZeroU64::new(nanos.unwrap_or(u64::MAX))
            }),
        }
    }

    /// The head of an answer came; one that asks to be left alone is, for as long as it says.
    pub(crate) fn answers(&self, answer: UpstreamResponse) {
        let Some(since) = self.since else {
            return;
        };
        let since = Duration::from_nanos(since.get());
        let now = clock::now();
        let mut vitals = self.endpoint.vitals.borrow_mut();
        vitals.observe(now.saturating_sub(since), now);
        if matches!(answer.status, 429 | 503) {
            let seconds = answer.retry_after;
            vitals.shy(
                seconds.map(|seconds| Duration::from_secs(seconds.into())),
                now,
            );
        }
    }

    /// Records that no answer came. Otherwise an endpoint that fails at once would look like the fastest.
    pub(crate) fn fails(&self) {
        if self.since.is_some() {
            self.endpoint.vitals.borrow_mut().shy(None, clock::now());
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.endpoint.vitals.borrow_mut().end();
    }
}

/// Why an endpoint could not be reached.
#[derive(Debug, Clone)]
pub(crate) struct Unreachable {
    /// For a stranger: no addresses, no identities.
    pub(crate) public: &'static str,
    /// For the log.
    pub(crate) detail: String,
    /// True if there was no address to connect to.
    pub(crate) nobody: bool,
    /// For access logs of HTTP.
    pub(crate) details: &'static str,
}

impl Unreachable {
    pub(in crate::worker) fn new(public: &'static str, detail: String) -> Self {
        Self {
            public,
            detail,
            nobody: false,
            details: UNREACHED,
        }
    }

    /// TLS that cannot be made; in plaintext nothing goes instead.
    fn unmade(why: &str) -> Self {
        Self {
            details: "upstream_connection_failure{tls_origination}",
            ..Self::new(
                "upstream TLS error: the TLS settings of the DestinationRule are invalid",
                why.to_owned(),
            )
        }
    }

    /// Describes a TLS failure with a server outside the mesh, as far as clients may learn it.
    fn unshaken(address: SocketAddr, error: &HandshakeError) -> Self {
        use rustls::CertificateError as Wrong;
        let wrong = match error {
            HandshakeError::Refused(rustls::Error::InvalidCertificate(wrong)) => Some(wrong),
            _ => None,
        };
        let (public, details) = match (wrong, error) {
            (Some(Wrong::Expired | Wrong::ExpiredContext { .. }), _) => (
                "upstream TLS error: its certificate has expired",
                "upstream_connection_failure{tls_certificate_expired}",
            ),
            (Some(Wrong::Revoked), _) => (
                "upstream TLS error: its certificate is revoked",
                "upstream_connection_failure{tls_certificate_revoked}",
            ),
            (Some(Wrong::UnknownIssuer), _) => (
                "upstream TLS error: its certificate is from an unknown authority",
                "upstream_connection_failure{tls_unknown_authority}",
            ),
            (Some(Wrong::NotValidForName | Wrong::NotValidForNameContext { .. }), _) => (
                "upstream TLS error: its certificate is for another name",
                "upstream_connection_failure{tls_wrong_name}",
            ),
            (Some(_), _) => (
                "upstream TLS error: its certificate is not valid",
                "upstream_connection_failure{tls_certificate}",
            ),
            (None, HandshakeError::Timeout(_)) => (
                "upstream TLS error: no answer in time",
                "upstream_connection_failure{tls_timeout}",
            ),
            (None, _) => (
                "upstream TLS error",
                "upstream_connection_failure{tls_handshake}",
            ),
        };
        Self {
            details,
            ..Self::new(public, format!("{address}: {error}"))
        }
    }

    /// Describes a failed connect by the kernel's error.
    fn unconnected(error: &ConnectError) -> Self {
        let (public, details) = match error {
            ConnectError::Timeout { .. } => (
                "upstream connect error: no answer in time",
                "upstream_connection_failure{connect_timeout}",
            ),
            ConnectError::Failed { error, .. } => match error.kind() {
                ErrorKind::ConnectionRefused => (
                    "upstream connect error: connection refused",
                    "upstream_connection_failure{connection_refused}",
                ),
                ErrorKind::HostUnreachable => (
                    "upstream connect error: no route to host",
                    "upstream_connection_failure{no_route_to_host}",
                ),
                ErrorKind::NetworkUnreachable => (
                    "upstream connect error: network is unreachable",
                    "upstream_connection_failure{network_unreachable}",
                ),
                _ => ("upstream connect error", UNREACHED),
            },
            ConnectError::Source { .. } => ("upstream connect error", UNREACHED),
        };
        Self {
            details,
            ..Self::new(public, error.to_string())
        }
    }
}

/// Protocol inside TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InnerTraffic {
    Http,
    Http2,
    Bytes,
}

impl From<UpstreamHttp> for InnerTraffic {
    fn from(upstream: UpstreamHttp) -> Self {
        match upstream {
            UpstreamHttp::Http1 => Self::Http,
            UpstreamHttp::Http2 => Self::Http2,
        }
    }
}

impl InnerTraffic {
    fn of_mesh(self, tls: &Tls) -> &Arc<ClientConfig> {
        match self {
            Self::Http => &tls.client_http,
            Self::Http2 => &tls.client_http2,
            Self::Bytes => &tls.client_tcp,
        }
    }
}

/// The same, but that the name is sent.
fn asking(config: &ClientConfig) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.enable_sni = true;
    Arc::new(config)
}

/// Endpoints that were there before, found by where they are.
pub(crate) struct EarlierEndpoints<'a>(HashMap<EndpointAddress<'a>, Vec<&'a Rc<Endpoint>>>);

/// Location of an endpoint: its name, if the endpoint is a name, or its address.
#[derive(PartialEq, Eq, Hash)]
enum EndpointAddress<'a> {
    Name(&'a str, u16),
    Address(SocketAddr),
}

impl<'a> EndpointAddress<'a> {
    fn of(plan: &'a EndpointPlan) -> Self {
        match &plan.name {
            Some(name) if name.logical => Self::Name(&name.host, plan.address.port()),
            _ => Self::Address(plan.address),
        }
    }
}

impl<'a> EarlierEndpoints<'a> {
    pub(crate) fn new(all: impl IntoIterator<Item = &'a Rc<Endpoint>>) -> Self {
        let mut known = HashMap::<_, Vec<_>>::new();
        for endpoint in all {
            let there = known
                .entry(EndpointAddress::of(&endpoint.plan))
                .or_default();
            there.push(endpoint);
        }
        Self(known)
    }

    /// The one at the same place, reached in the same way.
    fn like(&self, plan: &EndpointPlan) -> Option<&'a Rc<Endpoint>> {
        let there = self.0.get(&EndpointAddress::of(plan))?;
        let mut there = there.iter().copied();
        there.find(|known| {
            known.plan.expected == plan.expected && known.plan.origination == plan.origination
        })
    }
}

/// Addresses of a name that was just resolved which one connection tries; the next one finds the others.
const MAX_TRIES: usize = 3;

impl Endpoint {
    /// An endpoint for a plan: the same one if nothing changed, one with the same pool if only its standing did.
    pub(crate) fn follow(
        worker: &Worker,
        old: &EarlierEndpoints<'_>,
        plan: &EndpointPlan,
    ) -> Rc<Self> {
        let before = old.like(plan);
        if let Some(before) = before.filter(|before| before.plan == *plan) {
            return Rc::clone(before);
        }
        let key = before.map_or_else(|| worker.fresh_key(), |before| before.key);
        let shown = before.map_or_else(|| worker.shown.begin(), |before| before.shown());
        let fresh = || Rc::new(RefCell::new(EndpointVitals::new(clock::now())));
        Rc::new(Self {
            key,
            plan: plan.clone(),
            vitals: before.map_or_else(fresh, |before| Rc::clone(&before.vitals)),
            lines: before
                .map(|before| Rc::clone(&before.lines))
                .unwrap_or_default(),
            shown: RefCell::new(shown),
            http: CachedSeries::default(),
            grpc: CachedSeries::default(),
            tcp: CachedSeries::default(),
        })
    }

    /// Load statistics by which this worker balances.
    pub(crate) fn vitals(&self) -> &RefCell<EndpointVitals> {
        &self.vitals
    }

    /// Series of requests to this endpoint, by Istio's protocol label.
    pub(crate) fn http_series(
        &self,
        worker: &Worker,
        service: &ServiceLabels,
        protocol: &'static str,
    ) -> SeriesId {
        let cached = if protocol == GRPC {
            &self.grpc
        } else {
            &self.http
        };
        cached.get(worker, || {
            outbound_labels(worker, service, Some(self), protocol)
        })
    }

    pub(crate) fn tcp_series(&self, worker: &Worker, service: &ServiceLabels) -> SeriesId {
        self.tcp
            .get(worker, || outbound_labels(worker, service, Some(self), TCP))
    }

    /// Connects, and if it must be, speaks mutual TLS and verifies who answered.
    pub(crate) async fn connect(
        &self,
        worker: &Worker,
        inside: InnerTraffic,
        manner: ConnectionManner,
    ) -> Result<TransportStream, Unreachable> {
        let limit = manner.timeout;
        let _expected = worker.expect_connection().ok_or_else(|| {
            let why = Overload::Memory.reason();
            Unreachable::new(why, why.to_owned())
        })?;
        let origination = self.plan.origination.as_ref().map(|SharedPart(one)| &**one);
        if let Some(Origination::Unmade(why)) = origination {
            return Err(Unreachable::unmade(why));
        }
        if origination.is_some_and(Origination::is_tunnel) {
            let mut tunnel = Box::pin(tunnels::connect(worker, self, limit)).await?;
            if let Some(introduction) = manner.introduction {
                introduction.make(&mut tunnel, None).await?;
            }
            return Ok(tunnel);
        }
        let mut tcp = self.reach(worker, manner).await?;
        if let Some(introduction) = manner.introduction {
            let ends = tcp.local_addr().ok().zip(tcp.peer_addr().ok());
            introduction.make(&mut tcp, ends).await?;
        }
        if let Some(Origination::Unread) = origination {
            return Ok(TransportStream::Tcp(tcp.into()));
        }
        if let Some(Origination::World(world)) = origination {
            return Box::pin(self.shake(worker, world, inside, tcp)).await;
        }
        let Some(expected) = &self.plan.expected else {
            return Ok(TransportStream::Tcp(tcp.into()));
        };
        let (tls, name) = match origination {
            Some(Origination::Mesh(name)) => (asking(inside.of_mesh(&worker.tls)), name.clone()),
            // The name is neither sent nor compared; identities are.
            _ => (
                Arc::clone(inside.of_mesh(&worker.tls)),
                ServerName::IpAddress(self.plan.address.ip().into()),
            ),
        };
        let handshake = transport::connect_tls(tls, name, tcp.into(), TLS_HANDSHAKE_TIMEOUT);
        let stream = Box::pin(handshake).await.map_err(|error| {
            count(&worker.counters.handshake_failures_upstream);
            Unreachable::new(
                "upstream TLS error",
                format!("{}: {error}", self.plan.address),
            )
        })?;
        let verified = verify(&stream, expected);
        let Err(error) = verified.and_then(|()| self.remember(worker, &stream)) else {
            return Ok(stream);
        };
        count(&worker.counters.handshake_failures_upstream);
        // The caller does not wait until the refused peer has read the alert.
        let refusal = transport::refuse(stream, AlertDescription::AccessDenied);
        tokio::task::spawn_local(refusal);
        Err(Unreachable::new(
            "upstream identity refused",
            format!("{}: {error}", self.plan.address),
        ))
    }

    /// A connection to where it is.
    async fn reach(
        &self,
        worker: &Worker,
        manner: ConnectionManner,
    ) -> Result<TcpStream, Unreachable> {
        let limit = manner.timeout;
        let tcp = match &self.plan.name {
            Some(name) if self.plan.address.ip().is_unspecified() => {
                Box::pin(self.connect_by_name(worker, name, limit)).await?
            }
            _ => connect_to(worker, self.plan.address, limit).await?,
        };
        if let Some(keep_alive) = manner.keep_alive
            && let Err(error) = keep_alive.set(&tcp)
        {
            tracing::debug!(address = %self.plan.address, %error, "keep-alive is the kernel's own");
        }
        Ok(tcp)
    }

    /// Speaks TLS of the world's, which verifies who answered by itself.
    async fn shake(
        &self,
        worker: &Worker,
        world: &WorldTls,
        inside: InnerTraffic,
        tcp: TcpStream,
    ) -> Result<TransportStream, Unreachable> {
        let config = Arc::clone(match inside {
            InnerTraffic::Http => &world.http,
            InnerTraffic::Http2 => &world.http2,
            InnerTraffic::Bytes => &world.tcp,
        });
        let name = world.name.clone();
        let handshake = transport::connect_tls(config, name, tcp.into(), TLS_HANDSHAKE_TIMEOUT);
        handshake.await.map_err(|error| {
            count(&worker.counters.handshake_failures_upstream);
            Unreachable::unshaken(self.plan.address, &error)
        })
    }

    /// Certificates by which the endpoint was verified so far, and the signal that ends its connections.
    pub(crate) fn shown(&self) -> Rc<WorkerSnapshot> {
        Rc::clone(&self.shown.borrow())
    }

    /// Returns true if connections to this endpoint must end.
    pub(crate) fn is_cut(&self) -> bool {
        self.shown.borrow().is_cut()
    }

    /// Notes the certificates of a new connection; they may have been revoked during the handshake.
    fn remember(&self, worker: &Worker, stream: &TransportStream) -> Result<(), PeerError> {
        let keys = keys_of(stream.peer_certificates());
        let belief = worker.belief.borrow();
        let lists = belief
            .as_ref()
            .and_then(|belief| belief.revocations.as_ref());
        if lists.is_some_and(|lists| keys.iter().any(|key| lists.includes(*key))) {
            return Err(PeerError::Revoked);
        }
        if self.is_cut() && !worker.stop.is_given() {
            // A cut stays in force for the old keys; from here on the endpoint is verified by new keys.
            *self.shown.borrow_mut() = worker.shown.begin();
        }
        self.shown.borrow().remember(&keys);
        Ok(())
    }

    /// The first to call a name has it resolved, and takes the first address that answers.
    async fn connect_by_name(
        &self,
        worker: &Worker,
        name: &NamePlan,
        limit: Duration,
    ) -> Result<TcpStream, Unreachable> {
        let host = &name.host;
        let resolved = match name.on_demand {
            true => worker.resolve_outside(host).await,
            false => worker.resolve(host).await,
        };
        let addresses = resolved.map_err(|why| Unreachable {
            public: "no healthy upstream",
            detail: format!("{host}: {why}"),
            nobody: true,
            details: UNREACHED,
        })?;
        let mut failure = None;
        for address in addresses.iter().take(MAX_TRIES) {
            let to = SocketAddr::new(*address, self.plan.address.port());
            match connect_to(worker, to, limit).await {
                Ok(tcp) => return Ok(tcp),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure
            .unwrap_or_else(|| Unreachable::new("no healthy upstream", format!("{host}: empty"))))
    }
}

pub(in crate::worker) async fn connect_to(
    worker: &Worker,
    to: SocketAddr,
    limit: Duration,
) -> Result<TcpStream, Unreachable> {
    let connecting = transport::connect(to, worker.outward(), limit);
    connecting
        .await
        .map_err(|error| Unreachable::unconnected(&error))
}

/// Returns an error unless the peer's identity is one of the expected.
pub(crate) fn verify(stream: &TransportStream, expected: &[Identity]) -> Result<(), PeerError> {
    verify_chain(stream.peer_certificates(), expected)
}

/// The same by the certificates that were shown.
pub(in crate::worker) fn verify_chain(
    chain: &[CertificateDer<'_>],
    expected: &[Identity],
) -> Result<(), PeerError> {
    let leaf = chain.first().ok_or(PeerError::NoCertificate)?;
    verify_expected(&identity_of(leaf)?, expected)
}

/// The client's side of a series. Without an endpoint the destination is unknown.
pub(crate) fn outbound_labels(
    worker: &Worker,
    service: &ServiceLabels,
    endpoint: Option<&Endpoint>,
    protocol: &'static str,
) -> Labels {
    let expected = endpoint.and_then(|endpoint| endpoint.plan.expected.as_ref());
    let mut source = PeerLabels::clone(&worker.own.borrow());
    let mut destination = endpoint
        .map(|endpoint| endpoint.plan.peer.clone())
        .unwrap_or_default();
    if let Some(expected) = expected {
        source.principal.clone_from(&worker.principal.borrow());
        destination.principal = expected
            .first()
            .map(ToString::to_string)
            .unwrap_or_default();
    }
    Labels {
        reporter: Reporter::Source,
        source,
        destination,
        service: service.clone(),
        protocol,
        security: Security::Unknown,
    }
}
