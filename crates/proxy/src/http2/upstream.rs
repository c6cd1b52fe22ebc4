//! Upstream HTTP/2 connections of one worker, by key: streams go to the first connection with room; when none has, one
//! more is opened, by one stream for all that wait.
//!
//! ```text
//! acquire ─┬─ a connection with room ────────────────► Lease (one stream's place)
//!          ├─ nobody dials: dial ─► driver task ─► back to the beginning, with everybody who waited
//!          └─ somebody dials: wait for the outcome
//! ```
//! A connection that closed or said GOAWAY takes no new stream; its driver ends when its last stream did.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future as _, poll_fn};
use std::hash::Hash;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{self, SendRequest};

use super::limits::{
    CONNECTION_WINDOW, MAX_FRAME, MAX_HEADER_LIST, MAX_PROVOKED_RESETS, MAX_REMEMBERED_RESETS,
    MAX_SEND_BUFFER, MAX_UPSTREAM_CONNECTIONS, MAX_UPSTREAM_STREAMS, REMEMBER_RESETS,
    STREAM_WINDOW,
};
use super::outlet::Outlet;
use crate::http::buffers::Buffers;
use crate::http::io::Io;
use crate::http::timer::Timer;
use crate::http::{ConnectFailure, HttpRole, Route};

/// See the module.
pub(crate) struct Upstreams<K> {
    by_key: RefCell<HashMap<K, Rc<Group>>>,
    buffers: Buffers,
    idle: Duration,
}

/// Everything about one key.
#[derive(Default)]
struct Group {
    connections: RefCell<Vec<Rc<Connection>>>,
    dialing: Cell<bool>,
    waiting: RefCell<Vec<Waiting>>,
}

/// A stream that waits for somebody else's dial.
type Waiting = Rc<Wait>;

#[derive(Default)]
struct Wait {
    waker: RefCell<Option<Waker>>,
    outcome: RefCell<Option<Result<(), ConnectFailure>>>,
}

/// How far a server introduced itself. Its settings are the first that it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Greeting {
    #[default]
    Awaited,
    Heard,
    /// The connection ended.
    Never,
}

/// One connection as its users see it.
struct Connection {
    send: RefCell<Option<SendRequest<Bytes>>>,
    streams: Cell<usize>,
    since: Cell<Instant>,
    driver: RefCell<Option<Waker>>,
    /// What is known of the server's settings.
    greeting: Cell<Greeting>,
    /// Who waits for them.
    curious: RefCell<Vec<Waker>>,
    /// Our end of it.
    local: Option<SocketAddr>,
}

/// One stream's place on a connection.
pub(crate) struct Lease {
    connection: Rc<Connection>,
    group: Weak<Group>,
    pub(crate) send: SendRequest<Bytes>,
    /// Whether the connection had carried a stream before.
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
            Greeting::Awaited => {
                connection.curious.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
            Greeting::Heard => Poll::Ready(Ok(self.send.is_extended_connect_protocol_enabled())),
            Greeting::Never => Poll::Ready(Err(ConnectFailure::new("upstream_http2_handshake"))),
        })
        .await
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
            connection.wake();
        }
    }
}

impl Connection {
    /// Takes no more streams and closes when the last one ended.
    fn retire(&self) {
        if self.send.borrow_mut().take().is_some() {
            self.wake();
        }
    }

    /// Tells those who wait for the server's settings.
    fn greeted(&self, greeting: Greeting) {
        self.greeting.set(greeting);
        for waker in self.curious.take() {
            waker.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.driver.borrow() {
            waker.wake_by_ref();
        }
    }

    fn has_room(&self) -> bool {
        let send = self.send.borrow();
        let Some(send) = send.as_ref() else {
            return false;
        };
        let allowed = send.current_max_send_streams();
        self.streams.get() < allowed.clamp(1, MAX_UPSTREAM_STREAMS)
    }

    fn lease(self: &Rc<Self>, group: &Rc<Group>, reused: bool) -> Option<Lease> {
        let send = self.send.borrow().clone()?;
        self.streams.set(self.streams.get() + 1);
        Some(Lease {
            connection: Rc::clone(self),
            group: Rc::downgrade(group),
            send,
            reused,
        })
    }
}

impl Group {
    fn forget(&self, connection: &Rc<Connection>) {
        self.connections
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, connection));
    }

    /// A place on a connection with room; on the least loaded when there may be no more connections.
    fn place(self: &Rc<Self>) -> Option<Lease> {
        let connections = self.connections.borrow();
        if let Some(free) = connections.iter().find(|one| one.has_room()) {
            return free.lease(self, true);
        }
        if connections.len() < MAX_UPSTREAM_CONNECTIONS {
            return None;
        }
        let least = connections.iter().min_by_key(|one| one.streams.get())?;
        least.lease(self, true)
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
struct Dialing<'a>(&'a Group);

impl Drop for Dialing<'_> {
    fn drop(&mut self) {
        if self.0.dialing.get() {
            self.0.settle(&Ok(()));
        }
    }
}

impl<K: Clone + Eq + Hash + 'static> Upstreams<K> {
    pub(crate) fn new(buffers: Buffers, idle: Duration) -> Rc<Self> {
        Rc::new(Self {
            by_key: RefCell::default(),
            buffers,
            idle,
        })
    }

    /// Connections without a stream.
    pub(crate) fn idle(&self) -> usize {
        let groups = self.by_key.borrow();
        let idle = |group: &Rc<Group>| {
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

    fn group(&self, key: &K) -> Rc<Group> {
        if let Some(group) = self.by_key.borrow().get(key) {
            return Rc::clone(group);
        }
        let group = Rc::new(Group::default());
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
        route: &Route<R>,
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
                "the server takes no WebSockets over HTTP/2 (RFC 8441)",
            )),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(ConnectFailure::new("upstream_http2_settings_timeout")),
        }
    }

    async fn place<R: HttpRole<Key = K>>(
        self: &Rc<Self>,
        role: &R,
        route: &Route<R>,
    ) -> Result<Lease, ConnectFailure> {
        loop {
            let group = self.group(&route.key);
            if let Some(lease) = group.place() {
                return Ok(lease);
            }
            if group.dialing.get() {
                wait(&group).await?;
                continue;
            }
            group.dialing.set(true);
            let dialing = Dialing(&group);
            // Boxed: it is rare, and every stream would pay for its size.
            let dialed = Box::pin(self.dial(role, route, &group)).await;
            group.settle(&dialed.as_ref().map(|_| ()).map_err(Clone::clone));
            drop(dialing);
            return dialed;
        }
    }

    async fn dial<R: HttpRole<Key = K>>(
        self: &Rc<Self>,
        role: &R,
        route: &Route<R>,
        group: &Rc<Group>,
    ) -> Result<Lease, ConnectFailure> {
        let connecting = tokio::time::timeout(route.connect_timeout, role.connect(route));
        let stream = connecting
            .await
            .map_err(|_| ConnectFailure::new("upstream_connect_timeout"))??;
        let local = stream.local_address();
        let (outlet, io) = Outlet::new(stream, self.buffers.clone());
        // The preface and our settings wait in the outlet and leave with the first request.
        let handshake = builder().handshake::<_, Bytes>(io);
        let (send, driven) = handshake
            .await
            .map_err(|_| ConnectFailure::new("upstream_http2_handshake"))?;
        let connection = Rc::new(Connection {
            send: RefCell::new(Some(send)),
            streams: Cell::new(0),
            since: Cell::new(Instant::now()),
            driver: RefCell::default(),
            greeting: Cell::default(),
            curious: RefCell::default(),
            local,
        });
        group.connections.borrow_mut().push(Rc::clone(&connection));
        let lease = connection.lease(group, false);
        let (key, pool) = (route.key.clone(), Rc::downgrade(self));
        let (group, idle) = (Rc::clone(group), self.idle);
        tokio::task::spawn_local(async move {
            drive(driven, outlet, &connection, idle).await;
            connection.greeted(Greeting::Never);
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

async fn wait(group: &Rc<Group>) -> Result<(), ConnectFailure> {
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

fn builder() -> client::Builder {
    let mut builder = client::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_send_buffer_size(MAX_SEND_BUFFER)
        .max_concurrent_reset_streams(MAX_REMEMBERED_RESETS)
        .reset_stream_duration(REMEMBER_RESETS)
        .max_local_error_reset_streams(Some(MAX_PROVOKED_RESETS))
        .initial_max_send_streams(MAX_UPSTREAM_STREAMS);
    builder
}

/// Moves a connection's frames until it is over; closes it when it was idle for too long.
async fn drive<S: Io + 'static>(
    driven: client::Connection<super::outlet::Coalesced<S>, Bytes>,
    outlet: Outlet<S>,
    connection: &Connection,
    idle: Duration,
) {
    let mut driven = pin!(driven);
    let mut timer = Timer::default();
    poll_fn(|cx| {
        note(&connection.driver, cx);
        loop {
            if driven.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            if connection.greeting.get() == Greeting::Awaited && outlet.is_greeted() {
                connection.greeted(Greeting::Heard);
            }
            match outlet.poll_flush(cx) {
                Poll::Ready(Ok(true)) => continue,
                Poll::Ready(Ok(false)) | Poll::Pending => {}
                // h2 learns of it by reading; nothing was promised to anybody that it does not undo.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
            }
            let resting = connection.streams.get() == 0 && connection.send.borrow().is_some();
            if !resting || !timer.passed(cx, connection.since.get() + idle) {
                return Poll::Pending;
            }
            // The last handle goes, so h2 says goodbye.
            connection.send.borrow_mut().take();
        }
    })
    .await;
}

fn note(place: &RefCell<Option<Waker>>, cx: &Context<'_>) {
    let mut place = place.borrow_mut();
    match &mut *place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}
