//! The opaque relay between an inbound connection and the application. `inbound` calls it with a permit; it never reads the bytes.

use std::future::Future;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use voile_model::mesh::telemetry::TelemetrySide;
use voile_transport::{self as transport, RelayEnd, TransportStream};

use crate::http::REVOKED;
use crate::worker::Worker;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::listeners::late_detection::Ahead;
use crate::worker::policy::authorization::ForwardPermit;
use crate::worker::records::access_logs::{self, TcpRecord};
use crate::worker::records::inbound_series::inbound_series;

/// Relays to the application. Demands a leave, so that no connection gets here without one.
pub(super) fn to_application(
    worker: Rc<Worker>,
    slot: Rc<InboundSlot>,
    stream: TransportStream,
    ahead: Option<Ahead>,
    caller: InboundCaller,
    leave: ForwardPermit,
) -> impl Future<Output = ()> {
    let (start, started) = (SystemTime::now(), Instant::now());
    async move {
        let (worker, slot) = (&worker, &slot);
        let series = inbound_series(worker, slot, &caller, "tcp");
        worker.shard.borrow_mut().tcp_opened(series);
        let endpoint = slot.plan.borrow().endpoint;
        let connected = match ahead {
            Some(connected) => connected,
            None => {
                let limit = worker.settings.borrow().connect_timeout;
                let origin = worker.homeward(caller.remote, endpoint);
                Box::pin(transport::connect(endpoint, origin, limit)).await
            }
        };
        let mut details = "";
        let (moved, flags, failure, upstream_local) = match connected {
            Err(error) => {
                stream.reset();
                ((0, 0), "UF", error.to_string(), None)
            }
            Ok(upstream) => {
                let upstream_local = match access_logs::is_on(worker, TelemetrySide::Server) {
                    true => upstream.local_addr().ok(),
                    false => None,
                };
                let upstream = TransportStream::Tcp(upstream.into());
                let idle = worker.settings.borrow().idle_timeout;
                let mut revoked = false;
                let stop = async {
                    tokio::select! {
                        biased;
                        () = leave.lost(worker, slot, &caller) => revoked = true,
                        () = worker.stop.heard() => {}
                    }
                };
                let outcome = transport::relay(stream, upstream, idle, stop).await;
                let moved = (outcome.received, outcome.sent);
                let flags = match revoked {
                    true => "UAEX",
                    false => flags(&outcome.end),
                };
                details = if revoked { REVOKED } else { "" };
                (moved, flags, String::new(), upstream_local)
            }
        };
        let (received, sent) = moved;
        let mut shard = worker.shard.borrow_mut();
        shard.tcp_closed(series, flags, received, sent);
        drop(shard);
        if access_logs::is_on(worker, TelemetrySide::Server) {
            // Made only now: while bytes pass it would be held by every connection.
            let record = TcpRecord {
                start,
                duration: started.elapsed(),
                flags,
                details,
                failure: &failure,
                marks: leave.marks(),
                received,
                sent,
                upstream: Some(endpoint),
                upstream_local,
                cluster: &slot.cluster(),
                ..TcpRecord::new(
                    TelemetrySide::Server,
                    caller.downstream(slot.plan.borrow().bind),
                )
            };
            access_logs::tcp(worker, &record);
        }
    }
}

/// Envoy's flag for how a relay ended.
pub(crate) fn flags(end: &RelayEnd) -> &'static str {
    match end {
        RelayEnd::Finished | RelayEnd::Stopped => "-",
        RelayEnd::Idle => "SI",
        RelayEnd::DownstreamFailed(_) => "DC",
        RelayEnd::UpstreamFailed(_) => "UC",
    }
}
