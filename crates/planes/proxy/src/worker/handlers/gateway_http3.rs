//! An HTTP/3 connection of a gateway on its worker: the handshake, the selection of the server, and its requests. Only their
//! version distinguishes these requests from others.

use std::rc::Rc;

use quinn::Incoming;
use voile_transport::TLS_HANDSHAKE_TIMEOUT;

use crate::http3::{self, CarriedConnection};
use crate::worker::handlers::forwarded_client_cert;
use crate::worker::handlers::gateway::refuse;
use crate::worker::handlers::gateway_http::GatewayRole;
use crate::worker::handlers::inbound_caller::behind;
use crate::worker::listeners::gateway_slot::GatewaySlot;
use crate::worker::messages::HandshakePermit;
use crate::worker::{Worker, count};

/// Serves one connection to its end. Boxed twice, as in [`super::inbound::serve`].
pub(in crate::worker) async fn serve(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    incoming: Box<(Incoming, HandshakePermit)>,
) {
    let opening = Box::pin(open(worker, slot, incoming));
    if let Some(conversation) = opening.await {
        conversation.await;
    }
}

async fn open(
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    incoming: Box<(Incoming, HandshakePermit)>,
) -> Option<crate::worker::Conversation> {
    let (incoming, handshaking) = *incoming;
    let mut caller = behind(incoming.remote_address(), None);
    let carried = match CarriedConnection::accept(incoming, TLS_HANDSHAKE_TIMEOUT).await {
        Ok(carried) => carried,
        Err(why) => {
            count(&worker.counters.handshake_failures_downstream);
            refuse(&worker, &slot, &caller, &why);
            return None;
        }
    };
    drop(handshaking);
    let shown = &carried.shown;
    if let Some(name) = &shown.server_name {
        caller.tell(|told| told.server_name = Some(name.as_str().into()));
    }
    // The client's certificate was verified by the terms of one server, which may no longer be in force.
    let server = slot.named(shown.server_name.as_deref());
    let server = server.filter(|server| server.takes_requests_by(&shown.of) && shown.is_http3);
    let Some(server) = server else {
        refuse(
            &worker,
            &slot,
            &caller,
            "the TLS settings of the server have changed",
        );
        carried.refuse();
        return None;
    };
    caller.suite = shown.suite;
    if server.is_unverified() {
        caller.tell(|told| told.unverified = true);
    }
    forwarded_client_cert::note_shown(&worker, || &carried.certificates, &mut caller);
    let engine = slot.http.engine();
    let takes_stream = {
        let worker = Rc::clone(&worker);
        move || worker.takes_stream()
    };
    let role = Rc::new(GatewayRole::new(worker, slot, server, caller).over_udp());
    let serving = http3::serve(engine, role, carried.connection, takes_stream);
    Some(Box::pin(serving))
}
