//! HTTP of a gateway. Requests from outside are judged as at a sidecar's inbound side, and routed as at its outbound side.
//!
//! ```text
//! head → policies, tokens ─ no ─► refusal
//!            └ yes → https? → routes of the virtual host → endpoint, in mutual TLS
//! ```

mod requests;

use std::rc::Rc;

use crate::worker::Worker;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::handlers::outbound_http::OutboundRole;
use crate::worker::listeners::gateway_slot::{Edge, GatewaySlot, WaypointDestination};
use crate::worker::listeners::outbound_slot::OutboundSlot;
use crate::worker::policy::admission::Admission;

/// One connection from outside.
pub(crate) struct GatewayRole {
    worker: Rc<Worker>,
    slot: Rc<GatewaySlot>,
    server: Rc<OutboundSlot>,
    /// Set for a waypoint's destination, which has policies of its own.
    door: Option<Rc<WaypointDestination>>,
    caller: InboundCaller,
    admission: Admission,
    out: OutboundRole,
    edge: Edge,
    /// Its client speaks HTTP/3 already.
    over_udp: bool,
}
