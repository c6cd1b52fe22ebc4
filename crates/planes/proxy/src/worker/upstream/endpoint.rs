//! One endpoint of a service port, as one worker knows it: load, pool key, and how to connect. The connecting
//! worker verifies the endpoint's identity before it sends a byte of the application.

mod connect;
mod series;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use voile_telemetry::SeriesId;
use voile_traffic::balance::EndpointVitals;
use voile_transport::{ConnectError, HandshakeError, KeepAlive};

use crate::clock;
use crate::http::{UNREACHED, UpstreamHttp, UpstreamResponse};
use crate::plan::EndpointPlan;
use crate::worker::upstream::proxy_protocol::ConnectionPreamble;
use crate::worker::upstream::server_certificates::WorkerSnapshot;
pub(crate) use series::outbound_labels;

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
    pub(in crate::worker) fn unconnected(error: &ConnectError) -> Self {
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

impl Endpoint {
    /// Load statistics by which this worker balances.
    pub(crate) fn vitals(&self) -> &RefCell<EndpointVitals> {
        &self.vitals
    }

    /// Certificates by which the endpoint was verified so far, and the signal that ends its connections.
    pub(crate) fn shown(&self) -> Rc<WorkerSnapshot> {
        Rc::clone(&self.shown.borrow())
    }

    /// Returns true if connections to this endpoint must end.
    pub(crate) fn is_cut(&self) -> bool {
        self.shown.borrow().is_cut()
    }
}
