//! Opaque connections of a gateway: plain TCP, the content of TLS that ended here, and TLS passthrough. The policies for
//! connections hold as long as the connection lasts; the routes of its server select the endpoint.
//!
//! ```text
//! stream, name asked for → policies ─ no ─► reset
//!                             └ yes → closest route → weights → endpoint
//! ```

use std::rc::Rc;
use std::time::{Instant, SystemTime};

use voile_transport::TransportStream;

use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::handlers::outbound::{
    AsClient, OpaqueClient, black_hole, cluster, led, refuse, to_service,
};
use crate::worker::listeners::gateway_slot::{GatewaySlot, MatchedServer, TunnelCalls};
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::policy::authorization::{self, ForwardPermit};
use crate::worker::policy::connection_permit;
use crate::worker::policy::denial::Denied;
use crate::worker::records::access_logs::{self, TcpRecord};
use crate::worker::records::reporter::ReporterLabels;
use crate::worker::{Conversation, Worker};

/// Serves a connection to its end. `asked` is the name that a client of TLS asks for, empty for none, and `None` without TLS.
pub(in crate::worker) fn bytes(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    server: MatchedServer,
    stream: TransportStream,
    caller: InboundCaller,
    asked: Option<String>,
) -> Conversation {
    Box::pin(async move {
        let MatchedServer { way, door, .. } = server;
        let inbound = door.as_ref().map(|door| &door.place);
        let inbound = inbound.unwrap_or(&slot.inbound);
        // Boxed: no gateway's connection has one.
        let through = door
            .as_ref()
            .map(|door| Box::new(TunnelCalls::new(caller.clone(), Rc::clone(door))));
        let admitted = let_in(&worker, inbound, stream, &caller);
        let Some((stream, leave)) = Box::pin(admitted).await else {
            return;
        };
        let (start, started) = (SystemTime::now(), Instant::now());
        let led = led(&worker, &way, asked.as_deref());
        let ending = async {
            let lost = leave.lost(&worker, inbound, &caller);
            match &door {
                None => lost.await,
                Some(door) => tokio::select! {
                    () = lost => {}
                    () = door.gone.heard() => {}
                },
            }
        };
        let client = OpaqueClient {
            remote: caller.client(),
            asked,
        };
        let streams = (stream, &client, &*way);
        let relayed = match (&led, &through) {
            (Err(flags), None) => refuse(&worker, &black_hole(), &streams.0, flags, AsClient),
            (Err(flags), Some(through)) => {
                refuse(&worker, &black_hole(), &streams.0, flags, &**through)
            }
            (Ok(service), None) => {
                to_service(&worker, service, streams, None, (ending, AsClient)).await
            }
            (Ok(service), Some(through)) => {
                let counted = &**through;
                Box::pin(to_service(
                    &worker,
                    service,
                    streams,
                    None,
                    (ending, counted),
                ))
                .await
            }
        };
        let record = TcpRecord {
            start,
            duration: started.elapsed(),
            server_name: client.asked.as_deref().unwrap_or_default(),
            cluster: cluster(&led),
            marks: leave.marks(),
            ..TcpRecord::new(
                ReporterLabels::at(inbound),
                caller.downstream(inbound.plan.borrow().bind),
            )
        };
        relayed.record(&worker, record);
    })
}

/// Judges the connection by the policies; resets and logs a denied one.
async fn let_in(
    worker: &Worker,
    inbound: &InboundSlot,
    stream: TransportStream,
    caller: &InboundCaller,
) -> Option<(TransportStream, ForwardPermit)> {
    let permit = connection_permit::permit(worker, inbound, &caller.arrival, caller.remote);
    let judged = match permit {
        Ok(permit) => authorization::connection(worker, inbound, caller, permit).await,
        Err(why) => Err(Denied::new(403, "refused_by_policy", why)),
    };
    match judged {
        Ok(leave) => Some((stream, leave)),
        Err(denied) => {
            let from = ReporterLabels::at(inbound);
            if access_logs::is_on(worker, from) {
                let record = TcpRecord {
                    flags: "UAEX",
                    details: &denied.details,
                    termination: &denied.reason,
                    marks: denied.marks(),
                    ..TcpRecord::new(from, caller.downstream(inbound.plan.borrow().bind))
                };
                access_logs::tcp(worker, &record);
            }
            stream.reset();
            None
        }
    }
}
