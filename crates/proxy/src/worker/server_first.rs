//! Places whose servers speak first: there is nothing to detect in their clients' silence, so only the first connection
//! waits for the deadline. What one worker learns all hear. The memory heals itself: where a client speaks first after
//! all, detection begins anew with the next connection.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;

use voile_transport::Opening;

use super::{FromWorker, Worker};

/// Places remembered; the oldest makes room.
const MAX_PLACES: usize = 1024;

/// Where connections of one kind go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// To our application, by the address that was called.
    Inbound(SocketAddr),
    /// From our application, by the address that was called.
    Outbound(SocketAddr),
}

/// See the module.
#[derive(Default)]
pub(crate) struct ServersFirst {
    places: RefCell<HashSet<Place>>,
    order: RefCell<VecDeque<Place>>,
}

impl ServersFirst {
    pub(crate) fn knows(&self, place: Place) -> bool {
        self.places.borrow().contains(&place)
    }

    /// Takes in what a worker learned.
    pub(crate) fn learn(&self, place: Place, server_first: bool) {
        let (mut places, mut order) = (self.places.borrow_mut(), self.order.borrow_mut());
        if !server_first {
            places.remove(&place);
            order.retain(|other| *other != place);
        } else if places.insert(place) {
            order.push_back(place);
            if order.len() > MAX_PLACES
                && let Some(oldest) = order.pop_front()
            {
                places.remove(&oldest);
            }
        }
    }
}

/// What the first bytes of a connection teach about its place, given what was believed; `None` when nothing new.
pub(crate) fn lesson(known: bool, opening: Opening) -> Option<bool> {
    match (known, opening) {
        (false, Opening::Server) => Some(true),
        (true, Opening::Client) => Some(false),
        // A server of HTTP that speaks first ran out of patience; that says nothing about the next connection.
        (_, Opening::HttpServer) | (true, Opening::Server) | (false, Opening::Client) => None,
    }
}

impl Worker {
    /// Learns from how a connection began, and lets the others know.
    pub(crate) fn teach(&self, place: Place, opening: Opening) {
        if let Some(server_first) = lesson(self.servers_first.knows(place), opening) {
            self.servers_first.learn(place, server_first);
            self.tell(FromWorker::ServerFirst {
                place,
                server_first,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_who_spoke_first_and_is_bounded() {
        let cases = [
            (false, Opening::Server, true),
            (true, Opening::Server, true),
            (false, Opening::Client, false),
            (true, Opening::Client, false),
            (false, Opening::HttpServer, false),
            (true, Opening::HttpServer, true),
        ];
        for (before, opening, after) in cases {
            let all = ServersFirst::default();
            let place = Place::Outbound(([192, 0, 2, 1], 25).into());
            all.learn(place, before);
            if let Some(lesson) = lesson(all.knows(place), opening) {
                all.learn(place, lesson);
            }
            assert_eq!(all.knows(place), after, "{before} {opening:?}");
        }
        let all = ServersFirst::default();
        let place = |port: usize| {
            let port = u16::try_from(port).expect("a port");
            Place::Inbound(([192, 0, 2, 1], port).into())
        };
        (1..=MAX_PLACES + 10).for_each(|port| all.learn(place(port), true));
        assert!(!all.knows(place(10)) && all.knows(place(11)));
        assert_eq!(all.places.borrow().len(), MAX_PLACES);
        assert_eq!(all.order.borrow().len(), MAX_PLACES);
    }
}
