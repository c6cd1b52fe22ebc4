//! Connections of one worker, kept for the next tunnel by a key: caller, expected peer and address. No two keys ever
//! share one. For each key one connection is dialled at a time; its waiting tunnels share its success and its
//! failure.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::hash::Hash;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::Sleep;
use voile_http2::{Connection, HeadBudget, Link};
use voile_transport::TransportStream;

use crate::http2_link::{CONFIG, MAX_STREAMS, Wire, blocks};
use crate::keepalive::{Keepalive, KeepaliveAction, KeepaliveTimeouts};

/// Time for which an idle connection is kept: ztunnel's figure.
const MAX_IDLE: Duration = Duration::from_mins(5);

/// Owner of the connections, which limits their life.
pub trait Owner: 'static {
    /// Ready when they take no more tunnels.
    fn leaving(&self) -> impl Future<Output = ()>;
    /// Ready when open tunnels are cut.
    fn gone(&self) -> impl Future<Output = ()>;
    /// A word for cut tunnels: the reason, if it is another than that the owner is gone.
    fn why(&self) -> Option<&'static str> {
        None
    }
}

struct OpenConnection {
    link: Link,
    streams: Cell<usize>,
    /// Why its owner cut it.
    cut: Cell<Option<&'static str>>,
}

impl OpenConnection {
    fn has_room(&self) -> bool {
        let connection = self.link.borrow();
        let most = MAX_STREAMS.min(connection.max_local_streams() as usize);
        connection.takes_streams() && self.streams.get() < most
    }
}

struct DialState<E> {
    done: Notify,
    failed: RefCell<Option<E>>,
}

struct PooledTunnel<E> {
    open: Vec<Rc<OpenConnection>>,
    dialing: Option<Rc<DialState<E>>>,
}

/// See the module; `K` tells connections apart, `E` says why there is none.
pub struct Pool<K, E> {
    entries: RefCell<HashMap<K, PooledTunnel<E>>>,
    /// Connections that are not shared.
    alone: Cell<usize>,
    blocks: voile_http2::Pool,
    patience: KeepaliveTimeouts,
}

impl<K, E> Default for Pool<K, E> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<K, E> Pool<K, E> {
    /// A pool whose connections take room for large heads from a budget.
    pub fn new(heads: Option<Arc<HeadBudget>>) -> Self {
        Self {
            entries: RefCell::default(),
            alone: Cell::default(),
            blocks: blocks(heads),
            patience: KeepaliveTimeouts::default(),
        }
    }
}

/// One tunnel's place on a connection.
pub struct Lease(Rc<OpenConnection>);

impl Lease {
    fn new(open: &Rc<OpenConnection>) -> Self {
        open.streams.set(open.streams.get() + 1);
        Self(Rc::clone(open))
    }

    /// The connection.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.0.link
    }

    /// Why the connection's owner cut it, if it did and said why.
    #[must_use]
    pub fn cut(&self) -> Option<&'static str> {
        self.0.cut.get()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
        if self.0.streams.get() == 0 {
            // Its rest begins.
            self.0.link.borrow().wake_driver();
        }
    }
}

/// Ends a dialling, also when the dialling task was dropped: then the next waiting task dials.
struct DialTurn<'a, K: Hash + Eq, E> {
    pool: &'a Pool<K, E>,
    key: &'a K,
    dialing: Rc<DialState<E>>,
}

impl<K: Hash + Eq, E> Drop for DialTurn<'_, K, E> {
    fn drop(&mut self) {
        if let Some(entry) = self.pool.entries.borrow_mut().get_mut(self.key) {
            entry.dialing = None;
        }
        self.dialing.done.notify_waiters();
    }
}

impl<K, E> Pool<K, E>
where
    K: Hash + Eq + Clone + 'static,
    E: Clone + 'static,
{
    /// Returns the pool of blocks for its connections.
    pub fn blocks(&self) -> &voile_http2::Pool {
        &self.blocks
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        let entries = self.entries.borrow();
        let shared = entries.values().map(|entry| entry.open.len());
        shared.sum::<usize>() + self.alone.get()
    }

    /// Closes connections without a tunnel.
    pub fn close_idle(&self) {
        for entry in self.entries.borrow().values() {
            for open in entry.open.iter().filter(|open| open.streams.get() == 0) {
                let mut connection = open.link.borrow();
                connection.leave();
                connection.wake_driver();
            }
        }
    }

    fn begin(&self) -> (Rc<OpenConnection>, Lease) {
        let open = Rc::new(OpenConnection {
            link: Link::new(Connection::client(&CONFIG, self.blocks.clone())),
            streams: Cell::new(0),
            cut: Cell::default(),
        });
        let lease = Lease::new(&open);
        (open, lease)
    }

    /// Returns the only place on a connection that is not shared, and that ends with it.
    pub fn alone(self: &Rc<Self>, owner: impl Owner, stream: TransportStream) -> Lease {
        let (open, lease) = self.begin();
        self.alone.set(self.alone.get() + 1);
        let wire = Wire::new(stream, open.link.clone());
        tokio::task::spawn_local(drive(Rc::clone(self), owner, None, open, wire));
        lease
    }

    /// A place on a connection of this key: one that is open, or the one that `dial` makes for its owner.
    ///
    /// # Errors
    /// When there is none and none can be made.
    pub async fn lease<D>(
        self: &Rc<Self>,
        owner: impl Owner,
        key: K,
        dial: impl FnOnce() -> D,
    ) -> Result<Lease, E>
    where
        D: Future<Output = Result<TransportStream, E>>,
    {
        loop {
            let waiting = {
                let mut entries = self.entries.borrow_mut();
                let entry = entries.entry(key.clone()).or_insert_with(|| PooledTunnel {
                    open: Vec::new(),
                    dialing: None,
                });
                if let Some(open) = entry.open.iter().find(|open| open.has_room()) {
                    return Ok(Lease::new(open));
                }
                entry.dialing.clone()
            };
            let Some(dialing) = waiting else {
                break;
            };
            dialing.done.notified().await;
            if let Some(trouble) = dialing.failed.borrow().clone() {
                return Err(trouble);
            }
        }
        let dialing = Rc::new(DialState {
            done: Notify::new(),
            failed: RefCell::new(None),
        });
        if let Some(entry) = self.entries.borrow_mut().get_mut(&key) {
            entry.dialing = Some(Rc::clone(&dialing));
        }
        let turn = DialTurn {
            pool: self,
            key: &key,
            dialing,
        };
        match dial().await {
            Ok(stream) => {
                let (open, lease) = self.begin();
                if let Some(entry) = self.entries.borrow_mut().get_mut(&key) {
                    entry.open.push(Rc::clone(&open));
                }
                drop(turn);
                let wire = Wire::new(stream, open.link.clone());
                let driver = drive(Rc::clone(self), owner, Some(key), open, wire);
                tokio::task::spawn_local(driver);
                Ok(lease)
            }
            Err(trouble) => {
                *turn.dialing.failed.borrow_mut() = Some(trouble.clone());
                drop(turn);
                self.forget(&key, None);
                Err(trouble)
            }
        }
    }

    fn forget(&self, key: &K, gone: Option<&Rc<OpenConnection>>) {
        let mut entries = self.entries.borrow_mut();
        if let Some(entry) = entries.get_mut(key) {
            entry
                .open
                .retain(|open| gone.is_none_or(|gone| !Rc::ptr_eq(open, gone)));
            if entry.open.is_empty() && entry.dialing.is_none() {
                entries.remove(key);
            }
        }
    }
}

/// Timers of an outgoing connection: one for an idle connection, one for a silent peer.
struct Watch {
    /// The connection is not shared, and never idles.
    alone: bool,
    idle: Option<Pin<Box<Sleep>>>,
    pulse: Keepalive,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Watch {
    fn poll(&mut self, cx: &mut Context<'_>, open: &OpenConnection, wire: &mut Wire) {
        self.poll_pulse(cx, open, wire);
        if open.streams.get() > 0 {
            self.idle = None;
            return;
        }
        if self.alone {
            open.link.borrow().leave();
            return;
        }
        let rest = || Box::pin(tokio::time::sleep(MAX_IDLE));
        let timer = self.idle.get_or_insert_with(rest);
        if timer.as_mut().poll(cx).is_ready() {
            open.link.borrow().leave();
            cx.waker().wake_by_ref();
        }
    }

    fn poll_pulse(&mut self, cx: &mut Context<'_>, open: &OpenConnection, wire: &mut Wire) {
        let (heard, said) = wire.take_moved();
        self.pulse.moved(heard, said, Instant::now);
        let Some(due) = self.pulse.due() else {
            // A timer that rings once too often costs less than one that is set for each request.
            if let Some(alarm) = &mut self.alarm
                && alarm.as_mut().poll(cx).is_ready()
            {
                self.alarm = None;
            }
            return;
        };
        let rest = || Box::pin(tokio::time::sleep_until(due.into()));
        let alarm = self.alarm.get_or_insert_with(rest);
        while alarm.as_mut().poll(cx).is_ready() {
            match self.pulse.ring(Instant::now()) {
                KeepaliveAction::Wait(until) => alarm.as_mut().reset(until.into()),
                KeepaliveAction::Ask(until) => {
                    open.link.borrow().ask();
                    alarm.as_mut().reset(until.into());
                    cx.waker().wake_by_ref();
                }
                KeepaliveAction::GiveUp => {
                    open.link.borrow().closed();
                    cx.waker().wake_by_ref();
                    return;
                }
            }
        }
    }
}

/// Moves a connection's bytes until it ends, was idle for long enough, or its owner is gone. Without a key it is not
/// shared.
async fn drive<K, E>(
    pool: Rc<Pool<K, E>>,
    owner: impl Owner,
    key: Option<K>,
    open: Rc<OpenConnection>,
    mut wire: Wire,
) where
    K: Hash + Eq + Clone + 'static,
    E: Clone + 'static,
{
    let mut watch = Watch {
        alone: key.is_none(),
        idle: None,
        pulse: Keepalive::new(pool.patience),
        alarm: None,
    };
    let moving = poll_fn(|cx| {
        // A socket that failed has ended the connection.
        let _ = wire.poll(cx);
        if open.link.borrow().end().is_some() {
            return Poll::Ready(());
        }
        watch.poll(cx, &open, &mut wire);
        Poll::Pending
    });
    let leaving = async {
        owner.leaving().await;
        open.link.borrow().leave();
        owner.gone().await;
    };
    tokio::select! {
        () = moving => {}
        () = leaving => open.cut.set(owner.why()),
    }
    match key {
        Some(key) => pool.forget(&key, Some(&open)),
        None => pool.alone.set(pool.alone.get() - 1),
    }
    wire.close().await;
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::LocalSet;
    use voile_http2::Failure;
    use voile_transport::TcpIo;

    use super::*;
    use crate::{TunnelOpenError, open};

    /// Owner whose connections live as long as the test.
    pub(crate) struct TestKey;

    impl Owner for TestKey {
        fn leaving(&self) -> impl Future<Output = ()> {
            std::future::pending()
        }

        fn gone(&self) -> impl Future<Output = ()> {
            std::future::pending()
        }
    }

    /// The types of the frames in a client's bytes, after its preface.
    fn frames(said: &[u8]) -> Vec<u8> {
        const PREFACE: usize = 24;
        const HEAD: usize = 9;
        let (mut types, mut left) = (Vec::new(), said.get(PREFACE..).unwrap_or_default());
        while let Some((head, rest)) = left.split_at_checked(HEAD) {
            types.push(head[3]);
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            left = rest.get(length as usize..).unwrap_or_default();
        }
        types
    }

    #[test]
    fn a_peer_that_says_nothing_is_asked_by_a_ping_and_then_given_up() {
        const PING: u8 = 6;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        LocalSet::new().block_on(&runtime, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let at = listener.local_addr().expect("an address");
            let silent = tokio::task::spawn_local(async move {
                let (mut tcp, _) = listener.accept().await.expect("a caller");
                let mut said = Vec::new();
                // A reset is an end, too.
                let _ = tcp.read_to_end(&mut said).await;
                said
            });
            let short = Duration::from_millis(100);
            let pool: Rc<Pool<(), String>> = Rc::new(Pool {
                patience: KeepaliveTimeouts {
                    first: short,
                    last: short,
                },
                ..Pool::default()
            });
            let dial = || async move {
                let tcp = TcpStream::connect(at).await.expect("a listener");
                Ok(TransportStream::Tcp(TcpIo::from(tcp)))
            };
            let lease = pool.lease(TestKey, (), dial).await.expect("a connection");
            let mut head = pool.blocks().block();
            head.push(":method", b"CONNECT");
            head.push(":authority", b"10.0.0.1:80");
            let opened = open(&lease, head).await.map(drop);
            let failed = opened.expect_err("nobody answers");
            assert!(
                matches!(failed, TunnelOpenError::Ended(Failure::Connection)),
                "{failed:?}"
            );
            drop(lease);
            let said = frames(&silent.await.expect("heard"));
            assert!(said.contains(&PING), "{said:?}");
            assert_eq!(pool.connections(), 0, "it is forgotten");
        });
    }
}
