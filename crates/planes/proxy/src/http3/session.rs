//! State of a client's connection that its requests share: their number, and the bytes that they make us hold. The limits are
//! those of an HTTP/2 connection.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use slab::Slab;
use tokio::sync::Notify;
use voile_http2::{ErrorCode, MemoryHolder, MemoryHolders, Pool};

use super::stream::QuicStream;
use crate::http2::session::Http2Session;

/// See the module.
pub(super) struct Http3Session {
    pub(super) pool: Pool,
    /// Number of the client among those whose heads are counted.
    pub(super) source: u64,
    /// Requests being served.
    pub(super) requests: Rc<Http2Session>,
    /// Told when one of them was served.
    pub(super) served: Notify,
    /// No more requests are taken.
    pub(super) leaving: Cell<bool>,
    streams: RefCell<Slab<Weak<RefCell<QuicStream>>>>,
    /// Place among the pool's holders of memory.
    place: Cell<usize>,
    /// Bytes of heads, both ways, of requests that are not over.
    pub(super) heads: Cell<usize>,
    /// Bytes of bodies that came and did not go on.
    pub(super) bodies: Cell<usize>,
}

impl Http3Session {
    pub(super) fn new(pool: Pool, source: u64) -> Rc<Self> {
        let session = Rc::new(Self {
            pool,
            source,
            requests: Rc::default(),
            served: Notify::new(),
            leaving: Cell::new(false),
            streams: RefCell::default(),
            place: Cell::new(0),
            heads: Cell::new(0),
            bodies: Cell::new(0),
        });
        let listed: Weak<Self> = Rc::downgrade(&session);
        session.place.set(session.pool.list(listed));
        session
    }

    /// Lists a stream; gives its place.
    pub(super) fn add(&self, stream: &Rc<RefCell<QuicStream>>) -> usize {
        self.streams.borrow_mut().insert(Rc::downgrade(stream))
    }

    pub(super) fn remove(&self, place: usize) {
        self.streams.borrow_mut().try_remove(place);
    }

    /// Has every request look at everything again.
    pub(super) fn wake_requests(&self) {
        for (_, stream) in self.streams.borrow().iter() {
            if let Some(stream) = stream.upgrade() {
                stream.borrow().wake();
            }
        }
    }
}

impl MemoryHolders for Http3Session {
    fn holders(&self) -> Vec<(usize, MemoryHolder)> {
        let streams = self.streams.borrow();
        let holds = streams.iter().filter_map(|(place, stream)| {
            let stream = stream.upgrade()?;
            let bytes = stream.try_borrow().ok()?.holds();
            Some((bytes, MemoryHolder::Stream(place)))
        });
        holds.collect()
    }

    fn end_holder(&self, holder: MemoryHolder) -> bool {
        let MemoryHolder::Stream(place) = holder else {
            return false;
        };
        let stream = self.streams.borrow().get(place).and_then(Weak::upgrade);
        let Some(stream) = stream else {
            return false;
        };
        let Ok(mut stream) = stream.try_borrow_mut() else {
            return false;
        };
        stream.reset(ErrorCode::ENHANCE_YOUR_CALM);
        stream.wake();
        true
    }
}

impl Drop for Http3Session {
    fn drop(&mut self) {
        self.pool.unlist(self.place.get());
    }
}

/// Adds to one of a connection's sums.
pub(super) fn add(sum: &Cell<usize>, bytes: usize) {
    sum.set(sum.get() + bytes);
}

/// Takes from one.
pub(super) fn take(sum: &Cell<usize>, bytes: usize) {
    sum.set(sum.get() - bytes);
}
