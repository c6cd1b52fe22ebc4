//! Upstream HTTP/2 connections of one worker, by key. Streams go to the first connection with room. If none has room,
//! one stream opens another connection for all that wait.
//!
//! ```text
//! acquire ─┬─ a connection with room ────────────────► Lease (one stream's place)
//!          ├─ nobody dials: dial ─► driver task ─► back to the beginning, with everybody who waited
//!          └─ somebody dials: wait for the outcome
//! ```
//! A connection that closed or said GOAWAY takes no new stream; its driver ends when its last stream did.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::Hash;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Instant;

use voile_http2::{Connection as Wires, Failure, Link};
use voile_traffic::Attempt;

use super::keepalive::{UpstreamKeepalive, UpstreamKeepaliveAction};
use super::limits::{CONFIG, MAX_UPSTREAM_CONNECTIONS, MAX_UPSTREAM_STREAMS};
use super::socket::Wire;
use crate::http::buffers::Buffers;
use crate::http::io::Io;
use crate::http::timer::Timer;
use crate::http::{ConnectFailure, HttpRole, HttpTimeouts, RequestRoute, ResponseFlag};
use voile_http2::number_of;

/// See the module.
pub(crate) struct Upstreams<K> {
    by_key: RefCell<HashMap<K, Rc<UpstreamGroup>>>,
    buffers: Buffers,
    timeouts: HttpTimeouts,
}

/// Everything about one key.
#[derive(Default)]
struct UpstreamGroup {
    connections: RefCell<Vec<Rc<UpstreamConnection>>>,
    dialing: Cell<bool>,
    waiting: RefCell<Vec<Waiting>>,
}

/// A stream that waits for another stream's dial.
type Waiting = Rc<UpstreamWait>;

#[derive(Default)]
struct UpstreamWait {
    waker: RefCell<Option<Waker>>,
    outcome: RefCell<Option<Result<(), ConnectFailure>>>,
}

/// State of a server's settings, which are its first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum SettingsState {
    #[default]
    Awaited,
    Heard,
    /// The connection ended.
    Never,
}

/// One connection as its users see it.
struct UpstreamConnection {
    link: Link,
    /// It takes no more streams.
    retired: Cell<bool>,
    streams: Cell<usize>,
    since: Cell<Instant>,
    /// Since when it has streams.
    busy: Cell<Instant>,
    /// When the driver will look whether the connection rests.
    alarm: Cell<Option<Instant>>,
    /// State of the server's settings.
    greeting: Cell<SettingsState>,
    /// Tasks that wait for the settings.
    curious: RefCell<Vec<Waker>>,
    /// Our end of it.
    local: Option<SocketAddr>,
    /// Streams that it may still begin.
    left: Cell<u32>,
    /// When it is too old to begin another.
    end: Option<Instant>,
}

/// One stream's place on a connection.
pub(crate) struct Lease {
    connection: Rc<UpstreamConnection>,
    group: Weak<UpstreamGroup>,
    pub(crate) link: Link,
    /// True if the connection carried a stream before.
    pub(crate) reused: bool,
}

impl Lease {
    /// Our end of the connection.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        self.connection.local
    }

    /// Ready when the server said what it can: whether it takes an extended CONNECT (RFC 8441).
    async fn takes_extended_connect(&self) -> Result<bool, ConnectFailure> {
        let connection = &self.connection;
        poll_fn(|cx| match connection.greeting.get() {
            SettingsState::Awaited => {
                connection.curious.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
            SettingsState::Heard => Poll::Ready(Ok(self.link.borrow().allows_extended_connect())),
            SettingsState::Never => {
                Poll::Ready(Err(ConnectFailure::new("upstream_http2_handshake")))
            }
        })
        .await
    }

    /// The attempt that the server ended like this. Gives up a connection without a future.
    pub(crate) fn attempt(&self, cause: Failure) -> Attempt {
        match cause {
            Failure::Unprocessed => {
                self.spoiled();
                Attempt::Refused
            }
            // A reset is the server's word, the end of an idle connection is not.
            cause => Attempt::Unanswered {
                reused: self.reused && cause == Failure::Connection,
            },
        }
    }

    /// The connection takes no more streams.
    pub(crate) fn spoiled(&self) {
        self.connection.retire();
        if let Some(group) = self.group.upgrade() {
            group.forget(&self.connection);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.streams.set(connection.streams.get() - 1);
        if connection.streams.get() == 0 {
            connection.since.set(Instant::now());
            match connection.left.get() {
                0 => self.spoiled(),
                _ => connection.rest(),
            }
        }
    }
}

impl UpstreamConnection {
    /// Takes no more streams and closes when the last one ended.
    fn retire(&self) {
        if !self.retired.replace(true) {
            self.link.borrow().leave();
        }
    }

    /// The last stream ended; the driver looks at the clock, unless it will.
    fn rest(&self) {
        if self.alarm.get().is_none() {
            self.link.borrow().wake_driver();
        }
    }

    /// Tells those who wait for the server's settings.
    fn greeted(&self, greeting: SettingsState) {
        self.greeting.set(greeting);
        for waker in self.curious.take() {
            waker.wake();
        }
    }

    fn has_room(&self) -> bool {
        if self.retired.get() || self.left.get() == 0 {
            return false;
        }
        let link = self.link.borrow();
        let allowed = link.max_local_streams() as usize;
        link.takes_streams()
            && !link.is_congested()
            && self.streams.get() < allowed.clamp(1, MAX_UPSTREAM_STREAMS)
    }

    fn lease(self: &Rc<Self>, group: &Rc<UpstreamGroup>, reused: bool) -> Option<Lease> {
        if self.retired.get() || self.left.get() == 0 {
            return None;
        }
        if self.streams.replace(self.streams.get() + 1) == 0 {
            self.busy.set(Instant::now());
        }
        self.left.set(self.left.get() - 1);
        Some(Lease {
            connection: Rc::clone(self),
            group: Rc::downgrade(group),
            link: self.link.clone(),
            reused,
        })
    }
}

impl UpstreamGroup {
    fn forget(&self, connection: &Rc<UpstreamConnection>) {
        self.connections
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, connection));
    }

    /// A place on a connection with room; on the least loaded when there may be no more connections.
    fn place(self: &Rc<Self>) -> Option<Lease> {
        self.forget_old();
        let connections = self.connections.borrow();
        if let Some(free) = connections.iter().find(|one| one.has_room()) {
            return free.lease(self, true);
        }
        if connections.len() < MAX_UPSTREAM_CONNECTIONS {
            return None;
        }
        self.least_loaded()
    }

    /// Gives up connections whose time is over.
    fn forget_old(&self) {
        let mut connections = self.connections.borrow_mut();
        if connections.iter().any(|one| one.end.is_some()) {
            let now = Instant::now();
            connections.retain(|one| {
                let young = one.end.is_none_or(|end| now < end);
                if !young {
                    one.retire();
                }
                young
            });
        }
    }

    /// A place on the connection with the fewest streams.
    fn least_loaded(self: &Rc<Self>) -> Option<Lease> {
        let connections = self.connections.borrow();
        let open = |one: &&Rc<UpstreamConnection>| one.left.get() > 0 && !one.retired.get();
        let open = connections.iter().filter(open);
        open.min_by_key(|one| one.streams.get())?.lease(self, true)
    }

    /// A place where there may be no more connections.
    fn crowded(self: &Rc<Self>, failure: ConnectFailure) -> Result<Lease, ConnectFailure> {
        let full = failure.flag == ResponseFlag::UpstreamOverflow;
        let least = full.then(|| self.least_loaded()).flatten();
        least.ok_or(failure)
    }

    fn settle(&self, outcome: &Result<(), ConnectFailure>) {
        self.dialing.set(false);
        for wait in self.waiting.take() {
            *wait.outcome.borrow_mut() = Some(outcome.clone());
            if let Some(waker) = wait.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }
}

/// While it lives, its holder dials; dropped early, another takes over.
struct DialGuard<'a>(&'a UpstreamGroup);

impl Drop for DialGuard<'_> {
    fn drop(&mut self) {
        if self.0.dialing.get() {
            self.0.settle(&Ok(()));
        }
    }
}

impl<K: Clone + Eq + Hash + 'static> Upstreams<K> {
    pub(crate) fn new(buffers: Buffers, timeouts: HttpTimeouts) -> Rc<Self> {
        Rc::new(Self {
            by_key: RefCell::default(),
            buffers,
            timeouts,
        })
    }

    /// Connections without a stream.
    pub(crate) fn idle(&self) -> usize {
        let groups = self.by_key.borrow();
        let idle = |group: &Rc<UpstreamGroup>| {
            let connections = group.connections.borrow();
            connections
                .iter()
                .filter(|one| one.streams.get() == 0)
                .count()
        };
        groups.values().map(idle).sum()
    }

    /// Lets every connection finish its streams and close.
    pub(crate) fn clear(&self) {
        for (_, group) in self.by_key.borrow_mut().drain() {
            for connection in group.connections.take() {
                connection.retire();
            }
        }
    }

    fn group(&self, key: &K) -> Rc<UpstreamGroup> {
        if let Some(group) = self.by_key.borrow().get(key) {
            return Rc::clone(group);
        }
        let group = Rc::new(UpstreamGroup::default());
        self.by_key
            .borrow_mut()
            .insert(key.clone(), Rc::clone(&group));
        group
    }

    /// A place for one stream; for one that needs RFC 8441's extended CONNECT only where the server takes it, which a new
    /// connection has to say first.
    pub(crate) async fn acquire<R: HttpRole<Key = K>>(
        self: &Rc<Self>,
        role: &R,
        route: &RequestRoute<R>,
        extended_connect: bool,
    ) -> Result<Lease, ConnectFailure> {
        let lease = self.place(role, route).await?;
        if !extended_connect {
            return Ok(lease);
        }
        let asking = tokio::time::timeout(route.connect_timeout, lease.takes_extended_connect());
        // Boxed: it is rare, and every stream would pay for its size.
        match Box::pin(asking).await {
            Ok(Ok(true)) => Ok(lease),
            Ok(Ok(false)) => Err(ConnectFailure::incapable(
                "the server does not support WebSockets over HTTP/2 (RFC 8441)",
            )),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(ConnectFailure::new("upstream_http2_settings_timeout")),
        }
    }

    async fn place<R: HttpRole<Key = K>>(
        self: &Rc<Self>,
        role: &R,
        route: &RequestRoute<R>,
    ) -> Result<Lease, ConnectFailure> {
        loop {
            let group = self.group(&route.key);
            if let Some(lease) = group.place() {
                return Ok(lease);
            }
            if group.dialing.get() {
                match wait(&group).await {
                    Ok(()) => continue,
                    Err(failure) => return group.crowded(failure),
                }
            }
            group.dialing.set(true);
            let dialing = DialGuard(&group);
            // Boxed: it is rare, and every stream would pay for its size.
            let dialed = Box::pin(self.dial(role, route, &group)).await;
            group.settle(&dialed.as_ref().map(|_| ()).map_err(Clone::clone));
            drop(dialing);
            return dialed.or_else(|failure| group.crowded(failure));
        }
    }

    async fn dial<R: HttpRole<Key = K>>(
        self: &Rc<Self>,
        role: &R,
        route: &RequestRoute<R>,
        group: &Rc<UpstreamGroup>,
    ) -> Result<Lease, ConnectFailure> {
        let connecting = tokio::time::timeout(route.connect_timeout, role.connect(route));
        let stream = connecting
            .await
            .map_err(|_| ConnectFailure::new("upstream_connect_timeout"))??;
        let local = stream.local_address();
        // The preface and our settings leave with the first request.
        let mut wires = Wires::client(&CONFIG, self.buffers.http2.clone());
        wires.set_source(number_of(&route.key));
        if let Some(streams) = route.terms.streams {
            wires.limit_local_streams(streams.get());
        }
        let link = Link::new(wires);
        let wire = Wire::new(stream, link.clone(), self.buffers.clone());
        let connection = Rc::new(UpstreamConnection {
            link,
            retired: Cell::new(false),
            alarm: Cell::default(),
            streams: Cell::new(0),
            since: Cell::new(Instant::now()),
            busy: Cell::new(Instant::now()),
            greeting: Cell::default(),
            curious: RefCell::default(),
            local,
            left: Cell::new(route.terms.requests.map_or(u32::MAX, NonZeroU32::get)),
            end: route.terms.end(Instant::now()),
        });
        group.connections.borrow_mut().push(Rc::clone(&connection));
        let lease = connection.lease(group, false);
        let (key, pool) = (route.key.clone(), Rc::downgrade(self));
        let (group, mut timeouts) = (Rc::clone(group), self.timeouts);
        let idle = route.terms.idle().unwrap_or(timeouts.upstream_idle);
        timeouts.upstream_idle = idle.min(timeouts.upstream_idle);
        let after = match route.to_sidecar {
            true => timeouts.keep_alive,
            false => timeouts.keep_alive_of_applications,
        };
        let pulse = UpstreamKeepalive::new(after, timeouts.keep_alive_patience);
        tokio::task::spawn_local(async move {
            drive(wire, pulse, &connection, timeouts).await;
            connection.greeted(SettingsState::Never);
            connection.retire();
            group.forget(&connection);
            if let Some(pool) = pool.upgrade() {
                pool.sweep(&key);
            }
        });
        lease.ok_or_else(|| ConnectFailure::new("upstream_http2_handshake"))
    }

    /// Forgets a key of which nothing is left.
    fn sweep(&self, key: &K) {
        let mut groups = self.by_key.borrow_mut();
        if groups.get(key).is_some_and(|group| {
            group.connections.borrow().is_empty()
                && !group.dialing.get()
                && Rc::strong_count(group) == 1
        }) {
            groups.remove(key);
        }
    }
}

impl<K> Drop for Upstreams<K> {
    fn drop(&mut self) {
        for group in self.by_key.borrow().values() {
            for connection in group.connections.borrow().iter() {
                connection.retire();
            }
        }
    }
}

async fn wait(group: &Rc<UpstreamGroup>) -> Result<(), ConnectFailure> {
    let wait = Waiting::default();
    group.waiting.borrow_mut().push(Rc::clone(&wait));
    poll_fn(|cx| {
        if let Some(outcome) = wait.outcome.borrow_mut().take() {
            return Poll::Ready(outcome);
        }
        *wait.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    })
    .await
}

/// Moves a connection's frames until it is over; closes it when it was idle for too long.
async fn drive<S: Io + 'static>(
    mut wire: Wire<S>,
    mut pulse: UpstreamKeepalive,
    connection: &UpstreamConnection,
    timeouts: HttpTimeouts,
) {
    let mut timer = Timer::default();
    let link = &connection.link;
    poll_fn(|cx| {
        loop {
            let moved = wire.poll(cx);
            if matches!(moved, Poll::Ready(Err(_))) {
                link.borrow().closed();
            }
            let mut state = link.borrow();
            if connection.greeting.get() == SettingsState::Awaited && state.is_greeted() {
                connection.greeted(SettingsState::Heard);
            }
            if state.end().is_some() {
                return Poll::Ready(());
            }
            if moved.is_ready() && !state.output().is_empty() {
                continue;
            }
            let heard = wire.take_heard();
            if connection.streams.get() > 0 {
                match pulse.beat(cx, heard, connection.busy.get()) {
                    UpstreamKeepaliveAction::Nothing => {}
                    UpstreamKeepaliveAction::Ask => {
                        state.ask();
                        continue;
                    }
                    UpstreamKeepaliveAction::GiveUp => {
                        state.closed();
                        wire.abort();
                        return Poll::Ready(());
                    }
                }
            }
            drop(state);
            let resting = connection.streams.get() == 0 && !connection.retired.get();
            if !resting {
                // The alarm rang in vain; the next rest sets another.
                let due = |at: &Instant| *at > Instant::now();
                connection.alarm.set(connection.alarm.get().filter(due));
                return Poll::Pending;
            }
            let idle = connection.since.get() + timeouts.upstream_idle;
            let until = connection.end.map_or(idle, |end| end.min(idle));
            if !timer.passed(cx, until) {
                connection.alarm.set(Some(until));
                return Poll::Pending;
            }
            connection.retire();
        }
    })
    .await;
    let _ = tokio::time::timeout(timeouts.linger, wire.close()).await;
}
