//! Outbound's part of HTTP: authority → service → endpoint, one indexed step each, and mutual TLS on the way.

mod requests;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::worker::listeners::captured_listeners::CapturedListeners;
use crate::worker::listeners::gateway_slot::AtGateway;
use crate::worker::listeners::outbound_slot::OutboundSlot;
use crate::worker::{Overload, Worker};
pub(in crate::worker) use requests::choose;
pub(crate) use requests::{DelayedRequest, OutboundTicket};

/// One connection of the application's.
pub(crate) struct OutboundRole {
    worker: Rc<Worker>,
    slot: Rc<OutboundSlot>,
    /// Set if no service has the address.
    names: Option<Box<Names>>,
    remote: SocketAddr,
    /// At a gateway; behind a pointer, since few connections have any.
    edge: Option<Box<AtGateway>>,
}

/// Destinations of the host names in the requests of a connection.
struct Names {
    captured: Rc<CapturedListeners>,
    /// By names as clients wrote them, the oldest first.
    meanings: RefCell<VecDeque<Meaning>>,
}

/// A name and its slot: `None` if no service has the name, an error if no answer came.
type Meaning = (Rc<str>, Result<Option<Rc<OutboundSlot>>, Overload>);
