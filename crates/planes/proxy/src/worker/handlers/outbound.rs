//! A connection of the application's: HTTP goes to the engine, which picks service and endpoint per request; everything
//! else picks both once and is relayed.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use tokio::net::TcpStream;
use voile_model::mesh::telemetry::TelemetrySide;
use voile_telemetry::{SeriesId, ServiceLabels, TCP};
use voile_traffic::UpstreamOutcome;
use voile_transport::{
    self as transport, DetectedProtocol, TLS_HANDSHAKE_TIMEOUT, TcpIo, TransportStream,
};
use voile_xds::wire::WireProtocol;

use crate::health::ConnectionSeat;
use crate::http::serve_connection;
use crate::http2;
use crate::plan::{CapturedDestination, PassthroughMode, SharedPart, TrafficPlan};
use crate::worker::handlers::inbound::flags;
use crate::worker::handlers::outbound_http::OutboundRole;
use crate::worker::listeners::captured_listeners::CapturedListeners;
use crate::worker::listeners::outbound_slot::OutboundSlot;
use crate::worker::listeners::server_first::DestinationKey;
use crate::worker::policy::authorization::count_revoked;
use crate::worker::records::access_logs::{self, TcpRecord};
use crate::worker::records::downstream::Downstream;
use crate::worker::records::reporter::ReporterLabels;
use crate::worker::routing::requested_host::host_name;
use crate::worker::routing::routes::TcpRoute;
use crate::worker::upstream::balance::EndpointPreference;
use crate::worker::upstream::endpoint::{
    ConnectionManner, Endpoint, InFlight, InnerTraffic, Unreachable, outbound_labels,
};
use crate::worker::upstream::service_state::ServiceState;
use crate::worker::{Conversation, Worker, count};

/// Serves one connection to its end. Boxed twice, as in [`super::inbound::serve`].
pub(crate) async fn serve(
    worker: Rc<Worker>,
    slot: Rc<OutboundSlot>,
    names: Option<Rc<CapturedListeners>>,
    tcp: TcpStream,
    remote: SocketAddr,
) {
    let opening = Box::pin(open(worker, slot, names, tcp, remote));
    if let Some(conversation) = opening.await {
        conversation.await;
    }
}

/// Detects the client's protocol and target; returns the future of the rest.
async fn open(
    worker: Rc<Worker>,
    mut slot: Rc<OutboundSlot>,
    names: Option<Rc<CapturedListeners>>,
    mut tcp: TcpStream,
    remote: SocketAddr,
) -> Option<Conversation> {
    let heard = hear(&worker, &slot, &mut tcp).await?;
    // A connection of TLS has one name; of HTTP each request has its own.
    if let (Some(names), DetectedProtocol::Tls(hello)) = (&names, &heard.detected)
        && let Some(host) = hello.server_name.as_deref().and_then(host_name)
    {
        let target = CapturedDestination {
            to: slot.plan.borrow().bind,
            host: Some(host.into()),
        };
        match Box::pin(names.destination(&worker, target)).await {
            Ok(named) => slot = named,
            // To go where the address leads would be a guess, and perhaps in plaintext.
            Err(why) => {
                count(&worker.counters.refused);
                tracing::debug!(%remote, reason = why.reason(), "connection refused");
                transport::reset(&tcp);
                return None;
            }
        }
    }
    let begun = heard.prefix.len() as u64;
    let stream = TransportStream::Tcp(TcpIo::new(tcp, heard.prefix));
    Some(if heard.detected == DetectedProtocol::Http2 {
        let engine = slot.http.engine();
        let role = Rc::new(OutboundRole::new(worker, slot, names, remote));
        Box::pin(async move {
            http2::serve_connection(&engine, role, stream).await;
        })
    } else if heard.detected == DetectedProtocol::Opaque && slot.protocol().is_http2() {
        // RFC 9113 section 3.4: bytes that are no preface end the connection, unless they are a request of
        // HTTP/1.1.
        Box::pin(transport::linger(stream))
    } else if heard.detected == DetectedProtocol::Http1 {
        let engine = slot.http.engine();
        let role = OutboundRole::new(worker, slot, names, remote);
        Box::pin(async move {
            serve_connection(&engine, &role, stream, &[]).await;
        })
    } else {
        let asked = match heard.detected {
            DetectedProtocol::Tls(hello) => Some(hello.server_name.unwrap_or_default()),
            _ => None,
        };
        let opaque = Opaque {
            remote,
            asked,
            watched: heard.watched.map(|place| (place, begun)),
        };
        Box::pin(relay(worker, slot, stream, opaque))
    })
}

/// First bytes of a connection.
struct FirstBytes {
    detected: DetectedProtocol,
    prefix: Vec<u8>,
    /// Set if neither side has spoken, or the client sent no more than a word: the next speaker is remembered for
    /// this place.
    watched: Option<DestinationKey>,
}

impl FirstBytes {
    /// The port says it; not a byte is looked at.
    fn declared(detected: DetectedProtocol) -> Self {
        Self {
            detected,
            prefix: Vec::new(),
            watched: None,
        }
    }
}

/// Reads the client's first bytes as long as its port's protocol needs them. A silent client of an undeclared port
/// becomes an opaque connection at the deadline, whatever it sends later.
async fn hear(worker: &Worker, slot: &OutboundSlot, tcp: &mut TcpStream) -> Option<FirstBytes> {
    let protocol = slot.protocol();
    let bind = slot.plan.borrow().bind;
    let undeclared = protocol == WireProtocol::Auto;
    let limit = match protocol {
        WireProtocol::Http | WireProtocol::Http2 | WireProtocol::Grpc => {
            return which_http(worker, slot, tcp).await;
        }
        WireProtocol::Tcp => return Some(FirstBytes::declared(DetectedProtocol::Opaque)),
        // The server name selects nothing here.
        WireProtocol::Tls if !slot.asks_for_names() => {
            return Some(FirstBytes::declared(DetectedProtocol::Opaque));
        }
        WireProtocol::Tls => TLS_HANDSHAKE_TIMEOUT,
        WireProtocol::Auto => {
            let place = DestinationKey::Outbound(bind);
            if worker.servers_first.knows(place) {
                return Some(FirstBytes {
                    watched: Some(place),
                    ..FirstBytes::declared(DetectedProtocol::Undecided)
                });
            }
            worker.settings.borrow().detection_timeout
        }
    };
    let mut prefix = Vec::new();
    let detected = match undeclared && worker.servers_first.knows(DestinationKey::Word(bind)) {
        true => transport::read_opening(tcp, &mut prefix, limit).await,
        false => transport::read_prefix(tcp, &mut prefix, Some(limit)).await,
    };
    let detected = detected.ok()?;
    let watched = match undeclared && detected == DetectedProtocol::Undecided {
        true if prefix.is_empty() => Some(DestinationKey::Outbound(bind)),
        true if transport::is_word(&prefix) => Some(DestinationKey::Word(bind)),
        _ => None,
    };
    Some(FirstBytes {
        detected,
        prefix,
        watched,
    })
}

/// Which version a client of declared HTTP speaks. It may have opened its connection long before it uses it.
async fn which_http(
    worker: &Worker,
    slot: &OutboundSlot,
    tcp: &mut TcpStream,
) -> Option<FirstBytes> {
    let limit = worker.settings.borrow().idle_timeout;
    let declared = slot.protocol();
    let mut prefix = Vec::new();
    let detected = tokio::select! {
        detected = transport::read_http(tcp, &mut prefix) => detected.ok()?,
        () = tokio::time::sleep(limit) => return None,
        () = slot.http.idle_unwelcome() => return None,
    };
    let detected = match detected {
        DetectedProtocol::Http2 => DetectedProtocol::Http2,
        DetectedProtocol::Opaque if declared.is_http2() => DetectedProtocol::Opaque,
        // The engine answers bytes that are not HTTP with its 400.
        _ => DetectedProtocol::Http1,
    };
    Some(FirstBytes {
        detected,
        prefix,
        watched: None,
    })
}

/// Facts about an opaque connection.
struct Opaque {
    remote: SocketAddr,
    /// The name that a client of TLS asks for, empty for none; `None` where it was not heard, or speaks something else.
    asked: Option<String>,
    /// Place that can learn from the connection, and the number of bytes that its client has sent.
    watched: Option<(DestinationKey, u64)>,
}

/// Labels by which a connection is counted, with or without an endpoint.
pub(in crate::worker) trait ConnectionLabels: Copy {
    /// Where.
    fn series(
        &self,
        worker: &Worker,
        service: &ServiceLabels,
        to: Option<&Rc<Endpoint>>,
    ) -> SeriesId;

    /// Vantage of the connection in telemetry.
    fn vantage(&self) -> ReporterLabels<'_>;
}

/// As its client, which we are or speak for.
#[derive(Clone, Copy)]
pub(in crate::worker) struct AsClient;

impl ConnectionLabels for AsClient {
    fn series(
        &self,
        worker: &Worker,
        service: &ServiceLabels,
        to: Option<&Rc<Endpoint>>,
    ) -> SeriesId {
        let nobody = || {
            let labels = outbound_labels(worker, service, None, TCP);
            worker.shard.borrow_mut().series(&labels)
        };
        to.map_or_else(nobody, |to| to.tcp_series(worker, service))
    }

    fn vantage(&self) -> ReporterLabels<'_> {
        TelemetrySide::Client.into()
    }
}

/// Result of an opaque connection.
pub(in crate::worker) struct RelayedConnection {
    series: SeriesId,
    flags: &'static str,
    failure: String,
    received: u64,
    sent: u64,
    upstream: Option<SocketAddr>,
    upstream_local: Option<SocketAddr>,
}

/// Carries an opaque connection to its end, and tells of it. No `async fn`: the future of one holds each argument twice.
fn relay(
    worker: Rc<Worker>,
    slot: Rc<OutboundSlot>,
    stream: TransportStream,
    opaque: Opaque,
) -> impl Future<Output = ()> {
    let (start, started) = (SystemTime::now(), Instant::now());
    let Opaque {
        remote,
        asked,
        watched,
    } = opaque;
    let client = OpaqueClient { remote, asked };
    async move {
        let worker = &worker;
        let led = led(worker, &slot, client.asked.as_deref());
        let relayed = match &led {
            Err(flags) => refuse(worker, &black_hole(), &stream, flags, AsClient),
            Ok(service) => {
                let ending = (std::future::pending(), AsClient);
                to_service(worker, service, (stream, &client, &*slot), watched, ending).await
            }
        };
        let downstream = Downstream {
            local: slot.plan.borrow().bind,
            remote: client.remote,
            principal: "",
            suite: None,
        };
        let record = TcpRecord {
            start,
            duration: started.elapsed(),
            server_name: client.asked.as_deref().unwrap_or_default(),
            cluster: cluster(&led),
            ..TcpRecord::new(TelemetrySide::Client, downstream)
        };
        relayed.record(worker, record);
    }
}

/// Service that takes a connection, or the response flag of the failure.
pub(in crate::worker) type Led = Result<Rc<ServiceState>, &'static str>;

/// Routes a connection: to the service that its name means, then by the service's routes. `asked` is as of [`Opaque`].
pub(in crate::worker) fn led(worker: &Worker, slot: &OutboundSlot, asked: Option<&str>) -> Led {
    let table = slot.table.borrow();
    let named = asked.filter(|name| !name.is_empty());
    let Some(service) = table.opaque(named) else {
        return Err(match table.otherwise {
            PassthroughMode::NoRoute => "NR",
            // Envoy's black hole is a cluster without endpoints.
            PassthroughMode::BlackHole | PassthroughMode::Service(_) => "UH",
        });
    };
    let Some(routes) = &service.routes else {
        return Ok(Rc::clone(service));
    };
    let called = slot.plan.borrow().bind.ip();
    match routes.lead(worker, asked, called) {
        TcpRoute::Straight => Ok(Rc::clone(service)),
        TcpRoute::To(service) => Ok(service),
        TcpRoute::Nowhere => Err("NR"),
        TcpRoute::Missing(what) => {
            let service = &service.cluster;
            tracing::debug!(
                service,
                what = &*what,
                "the destination of the route does not exist"
            );
            Err("NC")
        }
    }
}

/// Cluster name for logs.
pub(in crate::worker) fn cluster(led: &Led) -> &str {
    match led {
        Ok(service) => &service.cluster,
        Err(_) => BLACK_HOLE,
    }
}

impl RelayedConnection {
    /// Counts it, and writes its line.
    pub(in crate::worker) fn record(self, worker: &Worker, record: TcpRecord<'_>) {
        let (received, sent) = (self.received, self.sent);
        let mut shard = worker.shard.borrow_mut();
        shard.tcp_closed(self.series, self.flags, received, sent);
        drop(shard);
        let record = TcpRecord {
            flags: self.flags,
            failure: &self.failure,
            received,
            sent,
            upstream: self.upstream,
            upstream_local: self.upstream_local,
            ..record
        };
        access_logs::tcp(worker, &record);
    }
}

/// The key of a connection, of which nothing is known but where it comes from.
fn by_source(traffic: &TrafficPlan, remote: SocketAddr) -> Option<u64> {
    let source = traffic.key.as_ref()?;
    source.key_of_source(remote.ip())
}

/// Client of a connection, and the name that it asks for, as of [`Opaque`].
pub(in crate::worker) struct OpaqueClient {
    pub(in crate::worker) remote: SocketAddr,
    pub(in crate::worker) asked: Option<String>,
}

/// Carries a connection to one of a service's endpoints, until either side ends it, or `ending` does.
#[expect(
    clippy::manual_async_fn,
    reason = "the future of an async function holds its arguments twice, and one lasts as long as each connection"
)]
pub(in crate::worker) fn to_service<'a>(
    worker: &'a Rc<Worker>,
    service: &'a ServiceState,
    (stream, client, slot): (TransportStream, &'a OpaqueClient, &'a OutboundSlot),
    watched: Option<(DestinationKey, u64)>,
    (ending, counted): (impl Future<Output = ()> + 'a, impl ConnectionLabels + 'a),
) -> impl Future<Output = RelayedConnection> + 'a {
    async move {
        // The way there is boxed, and gone when it is known.
        match Box::pin(reach(worker, service, (&stream, client, slot), counted)).await {
            Ok(reached) => {
                carry(worker, service, reached, stream, (watched, ending, counted)).await
            }
            Err(refused) => refused,
        }
    }
}

/// An endpoint that an opaque connection goes to.
struct ReachedEndpoint {
    connected: TransportStream,
    in_flight: InFlight,
    /// Boxed: few have a limit.
    seated: Option<Box<ConnectionSeat>>,
}

/// Connects to an endpoint; on failure returns the result of the connection.
async fn reach(
    worker: &Rc<Worker>,
    service: &ServiceState,
    (stream, client, slot): (&TransportStream, &OpaqueClient, &OutboundSlot),
    counted: impl ConnectionLabels,
) -> Result<ReachedEndpoint, RelayedConnection> {
    let traffic = &service.plan.traffic;
    // The circuit breaker counts a connection as long as it lasts.
    let seated = match &traffic.breaker {
        None => None,
        Some(SharedPart(gate)) => match gate.seat() {
            None => return Err(refuse(worker, &service.plan.service, stream, "UO", counted)),
            Some(seated) => Some(Box::new(seated)),
        },
    };
    let named = match service.is_on_demand() {
        true => client.asked.as_deref().and_then(host_name),
        false => None,
    };
    let wish = EndpointPreference {
        key: by_source(traffic, client.remote),
        opaque: true,
        host: named.as_deref(),
        ..EndpointPreference::default()
    };
    let Some(in_flight) = service.choose(worker, wish) else {
        return Err(refuse(worker, &service.plan.service, stream, "UH", counted));
    };
    let endpoint = &in_flight.endpoint;
    let series = counted.series(worker, &service.plan.service, Some(endpoint));
    worker.shard.borrow_mut().tcp_opened(series);
    let called = || slot.plan.borrow().bind;
    let manner = ConnectionManner::of(worker, traffic).on_behalf(client.remote, called);
    let connected = endpoint.connect(worker, InnerTraffic::Bytes, manner).await;
    let outcome = match &connected {
        Ok(_) => UpstreamOutcome::Answered(200),
        Err(_) => UpstreamOutcome::Failed,
    };
    service.report(worker, &in_flight, outcome);
    match connected {
        Ok(connected) => Ok(ReachedEndpoint {
            connected,
            in_flight,
            seated,
        }),
        Err(Unreachable {
            public,
            detail,
            nobody,
            ..
        }) => {
            tracing::debug!(
                service = service.cluster,
                error = detail,
                "cannot connect to the upstream"
            );
            stream.reset();
            in_flight.fails();
            Err(RelayedConnection {
                series,
                flags: if nobody { "UH" } else { "UF" },
                failure: public.to_owned(),
                received: 0,
                sent: 0,
                upstream: Some(endpoint.plan.address),
                upstream_local: None,
            })
        }
    }
}

/// Relays bytes to an endpoint and back. No `async fn`: its future would hold each argument twice.
fn carry<'a>(
    worker: &'a Rc<Worker>,
    service: &'a ServiceState,
    reached: ReachedEndpoint,
    stream: TransportStream,
    (watched, ending, counted): (
        Option<(DestinationKey, u64)>,
        impl Future<Output = ()> + 'a,
        impl ConnectionLabels + 'a,
    ),
) -> impl Future<Output = RelayedConnection> + 'a {
    let ReachedEndpoint {
        connected,
        in_flight,
        seated,
    } = reached;
    let idle = service.plan.traffic.tcp_idle;
    let idle = idle.unwrap_or_else(|| worker.settings.borrow().idle_timeout);
    let upstream_local = match access_logs::is_on(worker, counted.vantage()) {
        true => connected.local().map(Box::new),
        false => None,
    };
    let begun = watched.map_or(0, |(_, begun)| begun);
    let opened = move |opening| {
        if let Some((place, _)) = watched {
            worker.teach(place, opening);
        }
    };
    let shown = in_flight.endpoint.shown();
    let cut = shown.cut();
    drop(shown);
    let stop = async {
        // In order, since random order costs at each poll; the first ready branch ends the connection.
        tokio::select! {
            biased;
            () = cut => {}
            () = ending => {}
        }
    };
    let relaying = transport::relay_watched(stream, connected, idle, stop, begun, opened);
    // Boxed: a block that captures a future and awaits it holds it twice.
    let relaying = Box::pin(relaying);
    async move {
        let outcome = relaying.await;
        let endpoint = &in_flight.endpoint;
        let revoked = endpoint.is_cut() && !worker.stop.is_given();
        let (flags, failure) = match revoked {
            true => ("UC", "upstream certificate revoked"),
            false => (flags(&outcome.end), ""),
        };
        if revoked {
            count_revoked(worker);
        }
        drop(seated);
        RelayedConnection {
            series: counted.series(worker, &service.plan.service, Some(endpoint)),
            flags,
            failure: failure.to_owned(),
            received: outcome.received,
            sent: outcome.sent,
            upstream: Some(endpoint.plan.address),
            upstream_local: upstream_local.map(|local| *local),
        }
    }
}

/// Ends a connection without an endpoint: the application sees a reset, not an empty answer.
pub(in crate::worker) fn refuse(
    worker: &Worker,
    service: &ServiceLabels,
    stream: &TransportStream,
    flags: &'static str,
    counted: impl ConnectionLabels,
) -> RelayedConnection {
    stream.reset();
    let series = counted.series(worker, service, None);
    worker.shard.borrow_mut().tcp_opened(series);
    RelayedConnection {
        series,
        flags,
        failure: String::new(),
        received: 0,
        sent: 0,
        upstream: None,
        upstream_local: None,
    }
}

/// Istio's name for where traffic ends that leads nowhere.
const BLACK_HOLE: &str = "BlackHoleCluster";

pub(crate) fn black_hole() -> ServiceLabels {
    ServiceLabels {
        host: String::new(),
        name: BLACK_HOLE.to_owned(),
        namespace: String::new(),
    }
}
