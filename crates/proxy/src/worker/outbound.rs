//! A connection of the application's: HTTP goes to the engine, which picks service and endpoint per request; everything
//! else picks both once and is relayed.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use tokio::net::TcpStream;
use voile_telemetry::{SeriesId, Service};
use voile_transport::{self as transport, Detected, Stream, TcpIo};
use voile_xds::wire::Protocol;

use super::Worker;
use super::endpoint::{InFlight, Unreachable, outbound_labels};
use super::inbound::{either, flags};
use super::logged::{self, TcpRecord};
use super::outbound_http::OutboundRole;
use super::slots::{OutboundSlot, ServiceState};
use super::stop::Stop;
use crate::http::serve_connection;
use crate::http2;

/// Serves one connection to its end.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    slot: Rc<OutboundSlot>,
    mut tcp: TcpStream,
    remote: SocketAddr,
) {
    let protocol = slot.protocol();
    let (detected, prefix) = match protocol {
        Protocol::Http => (Detected::Http1, Vec::new()),
        Protocol::Auto | Protocol::Http2 | Protocol::Grpc => {
            let mut prefix = Vec::new();
            let deadline = match protocol {
                Protocol::Auto => worker.settings.borrow().detection_timeout,
                _ => worker.settings.borrow().header_timeout,
            };
            let Ok(detected) = transport::read_prefix(&mut tcp, &mut prefix, Some(deadline)).await
            else {
                return;
            };
            (detected, prefix)
        }
        Protocol::Tcp | Protocol::Tls => (Detected::Opaque, Vec::new()),
    };
    let stream = Stream::Tcp(TcpIo::new(tcp, prefix));
    if detected == Detected::Http2 {
        let engine = slot.http.engine();
        let role = Rc::new(OutboundRole::new(worker, slot, remote));
        http2::serve_connection(&engine, role, stream).await;
    } else if detected == Detected::Http1 && !protocol.is_http2() {
        let engine = slot.http.engine();
        let role = OutboundRole::new(worker, slot, remote);
        serve_connection(&engine, &role, stream, &[]).await;
    } else {
        relay(&worker, &slot, stream, remote).await;
    }
}

/// What became of an opaque connection.
struct Relayed {
    series: SeriesId,
    flags: &'static str,
    failure: String,
    received: u64,
    sent: u64,
    upstream: Option<SocketAddr>,
}

async fn relay(worker: &Rc<Worker>, slot: &OutboundSlot, stream: Stream, remote: SocketAddr) {
    let (start, started) = (SystemTime::now(), Instant::now());
    let service = slot.table.borrow().services.first().cloned();
    let relayed = match &service {
        None => refuse(worker, &black_hole(), &stream, "NR"),
        Some(service) => to_service(worker, service, stream).await,
    };
    let Relayed {
        series,
        flags,
        failure,
        received,
        sent,
        upstream,
    } = relayed;
    worker
        .shard
        .borrow_mut()
        .tcp_closed(series, flags, received, sent);
    let record = TcpRecord {
        start,
        duration: started.elapsed(),
        flags,
        failure: &failure,
        received,
        sent,
        upstream,
        cluster: service
            .as_ref()
            .map(|service| service.cluster.as_str())
            .unwrap_or_default(),
        local: slot.plan.borrow().bind,
        remote,
        principal: "",
    };
    logged::tcp(worker, &record);
}

async fn to_service(worker: &Rc<Worker>, service: &ServiceState, stream: Stream) -> Relayed {
    let Some(endpoint) = service.pick(worker) else {
        return refuse(worker, &service.plan.service, &stream, "UH");
    };
    let in_flight = InFlight::begin(endpoint);
    let endpoint = &in_flight.0;
    let series = endpoint.tcp_series(worker, &service.plan.service);
    worker.shard.borrow_mut().tcp_opened(series);
    let upstream = Some(endpoint.plan.address);
    match Box::pin(endpoint.connect(worker, &worker.tls.client_tcp)).await {
        Err(Unreachable { public, detail }) => {
            tracing::debug!(
                service = service.cluster,
                error = detail,
                "upstream not reached"
            );
            transport::reset(stream.tcp());
            Relayed {
                series,
                flags: "UF",
                failure: public.to_owned(),
                received: 0,
                sent: 0,
                upstream,
            }
        }
        Ok(connected) => {
            let idle = worker.settings.borrow().idle_timeout;
            let never = Stop::default();
            let outcome =
                transport::relay(stream, connected, idle, either(&never, &worker.stop)).await;
            let flags = flags(&outcome.end);
            Relayed {
                series,
                flags,
                failure: String::new(),
                received: outcome.received,
                sent: outcome.sent,
                upstream,
            }
        }
    }
}

/// Nobody to relay to: the application sees a reset, not an empty answer.
fn refuse(worker: &Worker, service: &Service, stream: &Stream, flags: &'static str) -> Relayed {
    transport::reset(stream.tcp());
    let mut shard = worker.shard.borrow_mut();
    let series = shard.series(&outbound_labels(worker, service, None, "tcp"));
    shard.tcp_opened(series);
    Relayed {
        series,
        flags,
        failure: String::new(),
        received: 0,
        sent: 0,
        upstream: None,
    }
}

/// Istio's name for where traffic ends that leads nowhere.
pub(crate) fn black_hole() -> Service {
    Service {
        host: String::new(),
        name: "BlackHoleCluster".to_owned(),
        namespace: String::new(),
    }
}
