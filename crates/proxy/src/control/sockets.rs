//! Listening sockets by what the configuration wants. They are bound as soon as the configuration arrives, so that a
//! taken port is answered with a NACK; accepting begins when the plan is closed.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use voile_transport::handover::Inherited;

use crate::plan::ListenerId;

/// Time between attempts at addresses that could not be bound.
pub(super) const BIND_RETRY: Duration = Duration::from_secs(1);

/// Which way connections go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Direction {
    Inbound,
    Outbound,
    Gateway,
    CapturedInbound,
    CapturedOutbound,
    Tunnels,
}

impl Direction {
    /// Whether its sockets are there whatever the configuration says.
    pub(super) fn is_captured(self) -> bool {
        matches!(
            self,
            Self::CapturedInbound | Self::CapturedOutbound | Self::Tunnels
        )
    }

    /// As a successor is told.
    pub(super) fn role(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
            Self::Gateway => "gateway",
            Self::CapturedInbound => "captured-inbound",
            Self::CapturedOutbound => "captured-outbound",
            Self::Tunnels => "tunnels",
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
            Self::Gateway => "gateway",
            Self::CapturedInbound => "captured inbound",
            Self::CapturedOutbound => "captured outbound",
            Self::Tunnels => "tunnels",
        }
    }
}

/// What makes a listener the same one over edits.
pub(super) type Key = (Direction, SocketAddr);

/// A listener that is wanted.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: ListenerId,
    pub(super) name: Arc<str>,
    pub(super) socket: Socket,
    /// The same socket, kept for a successor while a task accepts.
    pub(super) kept: Option<TcpListener>,
}

/// How far it has come.
#[derive(Debug)]
pub(super) enum Socket {
    /// Bound, nobody accepts yet.
    Bound(TcpListener),
    /// A task accepts.
    Accepting,
    /// The kernel refused.
    Failed(String),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    pub(super) entries: BTreeMap<Key, Entry>,
    /// What a predecessor left us.
    pub(super) inherited: Inherited,
    /// Whether a successor may ask for our sockets.
    pub(super) lends: bool,
    next: u32,
    retry: Option<Instant>,
}

impl Sockets {
    /// Takes in a socket that was bound at the start.
    pub(super) fn adopt(&mut self, direction: Direction, address: SocketAddr, socket: TcpListener) {
        let (id, name) = match direction {
            Direction::CapturedInbound => (ListenerId::CAPTURED_INBOUND, "capture/inbound"),
            Direction::Tunnels => (ListenerId::TUNNELS, "capture/tunnels"),
            _ => (ListenerId::CAPTURED_OUTBOUND, "capture/outbound"),
        };
        let entry = Entry {
            id,
            name: name.into(),
            socket: Socket::Bound(socket),
            kept: None,
        };
        self.entries.insert((direction, address), entry);
    }

    /// Binds what is new and names what cannot be bound. What is no longer wanted stays until [`Sockets::retain`].
    pub(super) fn want(
        &mut self,
        wanted: impl Iterator<Item = (Direction, SocketAddr, Arc<str>)>,
    ) -> Vec<String> {
        let mut refusals = Vec::new();
        for (direction, address, name) in wanted {
            let id = ListenerId(self.next);
            let inherited = &mut self.inherited;
            let entry = self.entries.entry((direction, address)).or_insert_with(|| {
                self.next += 1;
                Entry {
                    id,
                    name: name.clone(),
                    socket: bind(inherited, direction, address),
                    kept: None,
                }
            });
            entry.name = name;
            if let Socket::Failed(reason) = &entry.socket {
                refusals.push(format!(
                    "listener `{}`: cannot listen on {address}: {reason}",
                    entry.name
                ));
            }
        }
        self.plan_retry();
        refusals
    }

    /// Tries the failed ones again; says whether anything changed.
    pub(super) fn bind_again(&mut self) -> bool {
        let mut changed = false;
        for ((direction, address), entry) in &mut self.entries {
            if matches!(entry.socket, Socket::Failed(_)) {
                entry.socket = bind(&mut self.inherited, *direction, *address);
                changed |= matches!(entry.socket, Socket::Bound(_));
            }
        }
        self.plan_retry();
        changed
    }

    /// Forgets what is not wanted.
    pub(super) fn retain(&mut self, wanted: impl Fn(&Key) -> bool) {
        self.entries
            .retain(|key, _| key.0.is_captured() || wanted(key));
        self.plan_retry();
    }

    pub(super) fn next_attempt(&self) -> Option<Instant> {
        self.retry
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        self.entries
            .iter()
            .filter_map(|((_, address), entry)| match &entry.socket {
                Socket::Failed(reason) => Some(format!(
                    "listener `{}` cannot listen on {address}: {reason}",
                    entry.name
                )),
                Socket::Bound(_) | Socket::Accepting => None,
            })
    }

    fn plan_retry(&mut self) {
        let failed = self
            .entries
            .values()
            .any(|entry| matches!(entry.socket, Socket::Failed(_)));
        self.retry = failed.then(|| Instant::now() + BIND_RETRY);
    }
}

fn bind(inherited: &mut Inherited, direction: Direction, address: SocketAddr) -> Socket {
    match inherited.bind(direction.role(), address) {
        Ok(socket) => Socket::Bound(socket),
        Err(error) => Socket::Failed(error.to_string()),
    }
}

/// Sleeps until then; for ever when there is no then.
pub(super) async fn until(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then.into()).await,
        None => std::future::pending().await,
    }
}
