//! Listening sockets that the configuration wants. They are bound as soon as the configuration arrives, so that the
//! proxy answers a taken port with a NACK. Accepting begins when the plan is closed.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use voile_transport::handover::InheritedSockets;

use crate::control::network::datagrams;
use crate::plan::ListenerId;

/// Time between attempts at addresses that could not be bound.
const BIND_RETRY: Duration = Duration::from_secs(1);

/// Which way connections go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::control) enum ListenerDirection {
    Inbound,
    Outbound,
    Gateway,
    /// HTTP/3 of a gateway: UDP from outside.
    Datagrams,
    CapturedInbound,
    CapturedOutbound,
    Tunnels,
}

impl ListenerDirection {
    /// Returns true if its sockets exist whatever the configuration says.
    pub(in crate::control) fn is_captured(self) -> bool {
        matches!(
            self,
            Self::CapturedInbound | Self::CapturedOutbound | Self::Tunnels
        )
    }

    /// Role of the socket in a handover.
    pub(in crate::control) fn role(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
            Self::Gateway => "gateway",
            Self::Datagrams => "http3",
            Self::CapturedInbound => "captured-inbound",
            Self::CapturedOutbound => "captured-outbound",
            Self::Tunnels => "tunnels",
        }
    }

    pub(in crate::control) fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
            Self::Gateway => "gateway",
            Self::Datagrams => "HTTP/3",
            Self::CapturedInbound => "captured inbound",
            Self::CapturedOutbound => "captured outbound",
            Self::Tunnels => "tunnels",
        }
    }

    /// Suffix of an address in error messages.
    fn over(self) -> &'static str {
        match self {
            Self::Datagrams => " over UDP",
            _ => "",
        }
    }
}

/// Key of a listener over edits.
pub(in crate::control) type Key = (ListenerDirection, SocketAddr);

/// A listener that is wanted.
#[derive(Debug)]
pub(in crate::control) struct WantedListener {
    pub(in crate::control) id: ListenerId,
    pub(in crate::control) name: Arc<str>,
    pub(in crate::control) socket: Socket,
    /// The same socket, kept for a successor while a task accepts.
    pub(in crate::control) kept: Option<OwnedFd>,
    /// For HTTP/3, once it is served.
    pub(in crate::control) serving: Option<Serving>,
}

/// Alive while an HTTP/3 port is open, which it is as long as it has connections, wanted or not.
pub(in crate::control) type Serving = Weak<()>;

impl WantedListener {
    fn is_open(&self) -> bool {
        let serving = self.serving.as_ref();
        serving.is_some_and(|serving| serving.strong_count() > 0)
    }

    /// It was served, and is no longer: its socket is closed.
    pub(in crate::control) fn is_over(&self) -> bool {
        self.serving.is_some() && !self.is_open()
    }
}

/// State of a listener's socket.
#[derive(Debug)]
pub(in crate::control) enum Socket {
    /// Bound, not accepting yet.
    Bound(OwnedFd),
    /// A task accepts.
    Accepting,
    /// The kernel refused.
    Failed(String),
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::control) struct Sockets {
    pub(in crate::control) entries: BTreeMap<Key, WantedListener>,
    /// Sockets of a predecessor.
    pub(in crate::control) inherited: InheritedSockets,
    /// True if a successor may ask for our sockets.
    pub(in crate::control) lends: bool,
    /// True while the previous process still serves; nothing is accepted until it ends.
    pub(in crate::control) awaits: bool,
    next: u32,
    retry: Option<Instant>,
}

impl Sockets {
    /// Adopts a socket that was bound at the start.
    pub(in crate::control) fn adopt(
        &mut self,
        direction: ListenerDirection,
        address: SocketAddr,
        socket: TcpListener,
    ) {
        let (id, name) = match direction {
            ListenerDirection::CapturedInbound => (ListenerId::CAPTURED_INBOUND, "capture/inbound"),
            ListenerDirection::Tunnels => (ListenerId::TUNNELS, "capture/tunnels"),
            _ => (ListenerId::CAPTURED_OUTBOUND, "capture/outbound"),
        };
        let entry = WantedListener {
            id,
            name: name.into(),
            socket: Socket::Bound(socket.into()),
            kept: None,
            serving: None,
        };
        self.entries.insert((direction, address), entry);
    }

    /// Binds new sockets and returns the failures by name. Unwanted sockets stay until [`Sockets::retain`].
    pub(in crate::control) fn want(
        &mut self,
        wanted: impl Iterator<Item = (ListenerDirection, SocketAddr, Arc<str>)>,
    ) -> Vec<String> {
        let mut refusals = Vec::new();
        self.entries.retain(|_, entry| !entry.is_over());
        for (direction, address, name) in wanted {
            let id = ListenerId(self.next);
            let inherited = &mut self.inherited;
            let entry = self.entries.entry((direction, address)).or_insert_with(|| {
                self.next += 1;
                WantedListener {
                    id,
                    name: name.clone(),
                    socket: bind(inherited, direction, address),
                    kept: None,
                    serving: None,
                }
            });
            entry.name = name;
            if let Socket::Failed(reason) = &entry.socket {
                refusals.push(format!(
                    "listener `{}`: cannot listen on {address}{}: {reason}",
                    entry.name,
                    direction.over()
                ));
            }
        }
        self.plan_retry();
        refusals
    }

    /// Tries the failed ones again; says whether anything changed.
    pub(in crate::control) fn bind_again(&mut self) -> bool {
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

    /// Forgets what is not wanted, once it is closed.
    pub(in crate::control) fn retain(&mut self, wanted: impl Fn(&Key) -> bool) {
        self.entries
            .retain(|key, entry| key.0.is_captured() || wanted(key) || entry.is_open());
        self.plan_retry();
    }

    pub(in crate::control) fn next_attempt(&self) -> Option<Instant> {
        self.retry
    }

    pub(in crate::control) fn failures(&self) -> impl Iterator<Item = String> {
        self.entries
            .iter()
            .filter_map(|((direction, address), entry)| match &entry.socket {
                Socket::Failed(reason) => Some(format!(
                    "listener `{}` cannot listen on {address}{}: {reason}",
                    entry.name,
                    direction.over()
                )),
                Socket::Bound(_) | Socket::Accepting => None,
            })
    }

    pub(in crate::control) fn plan_retry(&mut self) {
        let failed = self
            .entries
            .values()
            .any(|entry| matches!(entry.socket, Socket::Failed(_)));
        self.retry = failed.then(|| Instant::now() + BIND_RETRY);
    }
}

/// Takes a predecessor's socket, or binds a new one.
pub(in crate::control) fn bind(
    inherited: &mut InheritedSockets,
    direction: ListenerDirection,
    address: SocketAddr,
) -> Socket {
    let role = direction.role();
    let bound = match (direction, inherited.find(role, address)) {
        (_, Some(socket)) => Ok(socket),
        (ListenerDirection::Datagrams, None) => datagrams::bind(address),
        (_, None) => voile_transport::bind(address).map(Into::into),
    };
    match bound {
        Ok(socket) => Socket::Bound(socket),
        Err(error) => Socket::Failed(error.to_string()),
    }
}

/// Sleeps until then; for ever when there is no then.
pub(in crate::control) async fn until(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then.into()).await,
        None => std::future::pending().await,
    }
}
