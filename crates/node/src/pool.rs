//! HBONE connections of one worker, kept for the next tunnel: by pod, by who calls, by who must answer, where. No two
//! identities ever share one. Of each key one is dialled at a time; those who wait for it share its success and its failure.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Sleep;
use voile_http2::{Connection, Link};
use voile_identity::Identity;
use voile_transport::Stream;

use crate::pod::{Life, Pod};
use crate::wire::{CONFIG, MAX_STREAMS, Wire};

/// How long a connection is kept that carries nothing: ztunnel's figure.
const MAX_IDLE: Duration = Duration::from_mins(5);

/// What makes two tunnels alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The pod that calls: its sockets are its own.
    pub(crate) place: (u64, u64),
    pub(crate) identity: Identity,
    pub(crate) expected: Vec<Identity>,
    pub(crate) to: SocketAddr,
    pub(crate) source: IpAddr,
}

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Trouble {
    /// ztunnel's word for it.
    pub(crate) flags: &'static str,
    pub(crate) reason: Arc<str>,
}

struct Open {
    link: Link,
    streams: Cell<usize>,
}

impl Open {
    fn has_room(&self) -> bool {
        let connection = self.link.borrow();
        let most = MAX_STREAMS.min(connection.max_local_streams() as usize);
        connection.takes_streams() && self.streams.get() < most
    }
}

#[derive(Default)]
struct Dialing {
    done: Notify,
    failed: RefCell<Option<Trouble>>,
}

#[derive(Default)]
struct Entry {
    open: Vec<Rc<Open>>,
    dialing: Option<Rc<Dialing>>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Pool {
    entries: RefCell<HashMap<Key, Entry>>,
    blocks: voile_http2::Pool,
}

/// One tunnel's place on a connection.
pub(crate) struct Lease(Rc<Open>);

impl Lease {
    fn new(open: &Rc<Open>) -> Self {
        open.streams.set(open.streams.get() + 1);
        Self(Rc::clone(open))
    }

    pub(crate) fn link(&self) -> &Link {
        &self.0.link
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

/// Ends a dialling, also when whoever dialled went away meanwhile: then the next who waits dials.
struct Turn<'a> {
    pool: &'a Pool,
    key: &'a Key,
    dialing: Rc<Dialing>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.pool.entries.borrow_mut().get_mut(self.key) {
            entry.dialing = None;
        }
        self.dialing.done.notify_waiters();
    }
}

impl Pool {
    /// What its connections borrow from.
    pub(crate) fn blocks(&self) -> &voile_http2::Pool {
        &self.blocks
    }

    /// How many connections are open.
    pub(crate) fn len(&self) -> usize {
        self.entries
            .borrow()
            .values()
            .map(|entry| entry.open.len())
            .sum()
    }

    /// A place on a connection of this key: one that is open, or the one that `dial` makes.
    pub(crate) async fn lease<D>(
        self: &Rc<Self>,
        pod: &Arc<Pod>,
        key: Key,
        dial: impl FnOnce() -> D,
    ) -> Result<Lease, Trouble>
    where
        D: Future<Output = Result<Stream, Trouble>>,
    {
        loop {
            let waiting = {
                let mut entries = self.entries.borrow_mut();
                let entry = entries.entry(key.clone()).or_default();
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
        let dialing = Rc::new(Dialing::default());
        if let Some(entry) = self.entries.borrow_mut().get_mut(&key) {
            entry.dialing = Some(Rc::clone(&dialing));
        }
        let turn = Turn {
            pool: self,
            key: &key,
            dialing,
        };
        match dial().await {
            Ok(stream) => {
                let link = Link::new(Connection::client(&CONFIG, self.blocks.clone()));
                let open = Rc::new(Open {
                    link: link.clone(),
                    streams: Cell::new(0),
                });
                let lease = Lease::new(&open);
                if let Some(entry) = self.entries.borrow_mut().get_mut(&key) {
                    entry.open.push(Rc::clone(&open));
                }
                drop(turn);
                let wire = Wire::new(stream, link);
                let driver = drive(Rc::clone(self), Arc::clone(pod), key, open, wire);
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

    fn forget(&self, key: &Key, gone: Option<&Rc<Open>>) {
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

/// Moves a connection's bytes until it ends, was idle for long enough, or its pod is gone.
async fn drive(pool: Rc<Pool>, pod: Arc<Pod>, key: Key, open: Rc<Open>, mut wire: Wire) {
    let mut idle: Option<Pin<Box<Sleep>>> = None;
    let moving = poll_fn(|cx| {
        // A socket that failed has ended the connection.
        let _ = wire.poll(cx);
        if open.link.borrow().end().is_some() {
            return Poll::Ready(());
        }
        if open.streams.get() > 0 {
            idle = None;
            return Poll::Pending;
        }
        let timer = idle.get_or_insert_with(|| Box::pin(tokio::time::sleep(MAX_IDLE)));
        if timer.as_mut().poll(cx).is_ready() {
            open.link.borrow().leave();
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    });
    let leaving = async {
        pod.is_at(Life::Leaving).await;
        open.link.borrow().leave();
        pod.is_at(Life::Gone).await;
    };
    tokio::select! {
        () = moving => {}
        () = async { leaving.await; } => {}
    }
    pool.forget(&key, Some(&open));
    wire.close().await;
    open.link.borrow().closed();
}
