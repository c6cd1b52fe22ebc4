//! PROXY protocol headers of upstream connections, if a DestinationRule wants them (`proxyProtocol`). The header comes once, so a
//! connection that begins with a client's addresses serves that client alone. Requests use only connections with an equal header.
//!
//! ```text
//! endpoint, version, client's address, address called → pool key
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use voile_transport::proxy_protocol::{self, Version};

use crate::plan::TrafficPlan;
use crate::worker::upstream::endpoint::{Endpoint, Unreachable};

/// Largest number of clients whose pool keys one worker remembers. At the limit the worker forgets all of them, and their next
/// requests open new connections.
const MAX_CLIENTS: usize = 4_096;

/// PROXY protocol header of a connection.
#[derive(Debug, Clone, Copy)]
pub(in crate::worker) struct ConnectionPreamble {
    version: Version,
    /// Client address and called address; `None` if the proxy connects on its own behalf.
    client: Option<(SocketAddr, SocketAddr)>,
}

impl ConnectionPreamble {
    pub(in crate::worker) fn of_our_own(version: Version) -> Self {
        Self {
            version,
            client: None,
        }
    }

    pub(in crate::worker) fn on_behalf(self, client: SocketAddr, called: SocketAddr) -> Self {
        Self {
            client: Some((client, called)),
            ..self
        }
    }

    /// Sends the header on a connection between these ends, as its first bytes. As with Envoy, the proxy's own requests are LOCAL
    /// in the second version, and come from its own address in the first.
    pub(in crate::worker) async fn make(
        self,
        stream: &mut (impl AsyncWrite + Unpin),
        between: Option<(SocketAddr, SocketAddr)>,
    ) -> Result<(), Unreachable> {
        let ends = match (self.client, self.version) {
            (None, Version::V1) => between,
            (client, _) => client,
        };
        let header = proxy_protocol::introduction(self.version, ends);
        let said = async {
            stream.write_all(&header).await?;
            stream.flush().await
        };
        said.await.map_err(|error| {
            let detail = format!("cannot send the PROXY header: {error}");
            Unreachable::new("upstream connect error", detail)
        })
    }
}

/// Key of connections that may serve the same clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PreambleKey {
    endpoint: u32,
    version: Version,
    client: SocketAddr,
    called: SocketAddr,
}

/// Pool keys of connections that begin with a client's addresses.
#[derive(Debug, Default)]
pub(crate) struct PreamblePoolKey {
    known: RefCell<HashMap<PreambleKey, u32>>,
}

impl PreamblePoolKey {
    /// The pool key of requests of a client that called this.
    pub(in crate::worker) fn of_client(
        &self,
        (endpoint, traffic): (&Endpoint, &TrafficPlan),
        client: SocketAddr,
        called: impl FnOnce() -> SocketAddr,
        fresh: impl FnOnce() -> u32,
    ) -> u32 {
        let Some(version) = traffic.introduces else {
            return endpoint.key;
        };
        let words = PreambleKey {
            endpoint: endpoint.key,
            version,
            client,
            called: called(),
        };
        self.key(words, fresh)
    }

    fn key(&self, words: PreambleKey, fresh: impl FnOnce() -> u32) -> u32 {
        let mut known = self.known.borrow_mut();
        if known.len() >= MAX_CLIENTS && !known.contains_key(&words) {
            known.clear();
        }
        *known.entry(words).or_insert_with(fresh)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn words(endpoint: u32, version: Version, client: &str, called: &str) -> PreambleKey {
        let at = |text: &str| text.parse().expect("an address");
        PreambleKey {
            endpoint,
            version,
            client: at(client),
            called: at(called),
        }
    }

    #[test]
    fn connections_are_alike_only_where_everything_is_that_they_say() {
        let introduced = PreamblePoolKey::default();
        let next = Cell::new(0);
        let key = |words: PreambleKey| {
            introduced.key(words, || {
                next.set(next.get() + 1);
                next.get()
            })
        };
        let (client, called) = ("192.0.2.1:1", "198.51.100.2:80");
        let one = || words(7, Version::V1, client, called);
        let first = key(one());
        assert_eq!(key(one()), first);
        for other in [
            words(8, Version::V1, client, called),
            words(7, Version::V2, client, called),
            words(7, Version::V1, "192.0.2.1:2", called),
            words(7, Version::V1, "192.0.2.2:1", called),
            words(7, Version::V1, client, "198.51.100.2:81"),
        ] {
            assert_ne!(key(other.clone()), first, "{other:?}");
        }
    }

    #[test]
    fn no_more_clients_are_remembered_than_there_is_room_for() {
        let introduced = PreamblePoolKey::default();
        let next = Cell::new(0);
        for port in 0..=u16::try_from(MAX_CLIENTS).expect("a few thousand") {
            let client = format!("192.0.2.1:{port}");
            introduced.key(words(7, Version::V1, &client, "198.51.100.2:80"), || {
                next.set(next.get() + 1);
                next.get()
            });
        }
        assert_eq!(introduced.known.borrow().len(), 1);
        // No key is used twice.
        assert_eq!(next.get() as usize, MAX_CLIENTS + 1);
    }
}
