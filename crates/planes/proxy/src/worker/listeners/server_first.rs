//! Destinations at which waiting for the client's next byte is useless: their servers speak first, or answer a bare word
//! that might have become a request line. Only the first connection waits for the deadline. Only servers teach, and a
//! worker's lesson goes to all workers. A wrong lesson is undone: if a client speaks first, or a word is answered in HTTP,
//! the next connection is detected again.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use voile_transport::FirstSpeaker;

/// Places remembered; the oldest makes room.
const MAX_PLACES: usize = 1024;

/// Destination of connections of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DestinationKey {
    /// To our application, by the called address and the caller's. A caller that waited for the server once has no sidecar.
    /// Callers with a sidecar are unaffected; their ClientHello may be late.
    Inbound(SocketAddr, IpAddr),
    /// The same inside a connection that is encrypted already. Kept apart from the above: a server that speaks first inside
    /// teaches nothing about the ClientHello before.
    Inside(SocketAddr, IpAddr),
    /// From our application, by the address that was called.
    Outbound(SocketAddr),
    /// The same for clients that begin with a word and without a line's end.
    Word(SocketAddr),
}

/// See the module.
#[derive(Default)]
pub(crate) struct ServersFirst {
    places: RefCell<HashSet<DestinationKey>>,
    order: RefCell<VecDeque<DestinationKey>>,
}

impl ServersFirst {
    pub(crate) fn knows(&self, place: DestinationKey) -> bool {
        self.places.borrow().contains(&place)
    }

    /// Stores a worker's lesson.
    pub(crate) fn learn(&self, place: DestinationKey, server_first: bool) {
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

/// Lesson of a connection's first bytes about its destination, given the present belief; `None` if there is
/// nothing new.
pub(crate) fn lesson(place: DestinationKey, known: bool, opening: FirstSpeaker) -> Option<bool> {
    let word = matches!(place, DestinationKey::Word(_));
    match (known, opening) {
        (false, FirstSpeaker::Server) => Some(true),
        // A client that says more after its word says nothing about its server.
        (true, FirstSpeaker::Client) => (!word).then_some(false),
        // A server of HTTP that speaks first ran out of patience; that says nothing about the next connection. One that
        // answers a word does.
        (true, FirstSpeaker::HttpServer) => word.then_some(false),
        (false, FirstSpeaker::HttpServer | FirstSpeaker::Client) | (true, FirstSpeaker::Server) => {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_who_spoke_first_and_is_bounded() {
        let silence = DestinationKey::Outbound(([192, 0, 2, 1], 25).into());
        let word = DestinationKey::Word(([192, 0, 2, 1], 25).into());
        let cases = [
            (silence, false, FirstSpeaker::Server, true),
            (silence, true, FirstSpeaker::Server, true),
            (silence, false, FirstSpeaker::Client, false),
            (silence, true, FirstSpeaker::Client, false),
            (silence, false, FirstSpeaker::HttpServer, false),
            (silence, true, FirstSpeaker::HttpServer, true),
            (word, false, FirstSpeaker::Server, true),
            (word, true, FirstSpeaker::Server, true),
            // Actions of clients teach nothing.
            (word, false, FirstSpeaker::Client, false),
            (word, true, FirstSpeaker::Client, true),
            (word, false, FirstSpeaker::HttpServer, false),
            (word, true, FirstSpeaker::HttpServer, false),
        ];
        for (place, before, opening, after) in cases {
            let all = ServersFirst::default();
            all.learn(place, before);
            if let Some(lesson) = lesson(place, all.knows(place), opening) {
                all.learn(place, lesson);
            }
            assert_eq!(all.knows(place), after, "{place:?} {before} {opening:?}");
        }
        let all = ServersFirst::default();
        let place = |port: usize| {
            let port = u16::try_from(port).expect("a port");
            DestinationKey::Inbound(([192, 0, 2, 1], port).into(), [192, 0, 2, 2].into())
        };
        (1..=MAX_PLACES + 10).for_each(|port| all.learn(place(port), true));
        assert!(!all.knows(place(10)) && all.knows(place(11)));
        assert_eq!(all.places.borrow().len(), MAX_PLACES);
        assert_eq!(all.order.borrow().len(), MAX_PLACES);
    }
}
