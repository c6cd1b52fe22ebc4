//! Idle upstream connections of one worker, by key, the most recently used first.
//!
//! Every idle connection has the keeper's waker: a connection that closes or speaks out of turn is dropped at once, and
//! a checkout needs no system call. One timer runs while a connection is idle; none otherwise.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::ReadBuf;

use super::io::Io;
use super::limits::{KEEP_ALIVE_MARGIN, MAX_IDLE_PER_KEY, MAX_IDLE_PER_POOL};
use super::timer::Timer;

struct Idle<S> {
    stream: S,
    /// When it is too old to be used.
    until: Instant,
}

/// See the module.
pub(crate) struct Pool<K, S> {
    /// Sorted, since a few keys are found sooner so than by a hash that withstands strangers.
    idle: RefCell<BTreeMap<K, Vec<Idle<S>>>>,
    count: Cell<usize>,
    keeper: RefCell<Option<Waker>>,
    /// When the keeper's timer rings.
    timer: Cell<Option<Instant>>,
    timeout: Duration,
}

impl<K: Ord + Clone, S: Io> Pool<K, S> {
    pub(crate) fn new(timeout: Duration) -> Rc<Self> {
        Rc::new(Self {
            idle: RefCell::default(),
            count: Cell::new(0),
            keeper: RefCell::default(),
            timer: Cell::new(None),
            timeout,
        })
    }

    pub(crate) fn idle(&self) -> usize {
        self.count.get()
    }

    pub(crate) fn clear(&self) {
        self.idle.borrow_mut().clear();
        self.count.set(0);
    }

    /// The youngest idle connection that is neither closed nor out of turn, as far as is known without asking the kernel.
    pub(crate) fn checkout(&self, key: &K) -> Option<S> {
        let mut idle = self.idle.borrow_mut();
        let list = idle.get_mut(key)?;
        while let Some(mut candidate) = list.pop() {
            self.count.set(self.count.get() - 1);
            // A false alarm is found out by reading; it is nearly never heard.
            if !candidate.stream.is_readable()
                || is_quiet(
                    &mut candidate.stream,
                    &mut Context::from_waker(Waker::noop()),
                )
            {
                return Some(candidate.stream);
            }
        }
        None
    }

    /// Keeps a connection for the next request with this key, if there is room. `patience` is the server's stated idle
    /// timeout, if any; ours is shorter by a margin, so that a request and the server's close do not cross.
    pub(crate) fn checkin(&self, key: &K, mut stream: S, now: Instant, patience: Option<Duration>) {
        let Some(until) = self.until(now, patience) else {
            return;
        };
        let keeper = self.keeper.borrow();
        let waker = keeper.as_ref().map_or(Waker::noop(), |waker| waker);
        if self.count.get() >= MAX_IDLE_PER_POOL
            || !is_quiet(&mut stream, &mut Context::from_waker(waker))
        {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        let item = Idle { stream, until };
        match idle.get_mut(key) {
            Some(list) if list.len() >= MAX_IDLE_PER_KEY => return,
            Some(list) => list.push(item),
            None => {
                idle.insert(key.clone(), vec![item]);
            }
        }
        self.count.set(self.count.get() + 1);
        if self.timer.get().is_none_or(|rings| until < rings) {
            waker.wake_by_ref();
        }
    }

    fn until(&self, now: Instant, patience: Option<Duration>) -> Option<Instant> {
        let obeyed = patience.map(|patience| patience.saturating_sub(KEEP_ALIVE_MARGIN));
        let idle = obeyed.map_or(self.timeout, |obeyed| obeyed.min(self.timeout));
        (!idle.is_zero()).then(|| now + idle)
    }

    /// Drops what is closed, out of turn or too old, and says when the next one grows old.
    fn sweep(&self, cx: &mut Context<'_>, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut left = 0;
        self.idle.borrow_mut().retain(|_, list| {
            list.retain_mut(|item| {
                let keep = now < item.until && is_quiet(&mut item.stream, cx);
                if keep {
                    left += 1;
                    next = Some(next.map_or(item.until, |until| until.min(item.until)));
                }
                keep
            });
            !list.is_empty()
        });
        self.count.set(left);
        next
    }
}

/// Returns true if a connection has no data to read. Readiness alone may be a false alarm, so reading one byte confirms
/// it.
fn is_quiet<S: Io>(stream: &mut S, cx: &mut Context<'_>) -> bool {
    if stream.poll_readable(cx).is_pending() {
        return true;
    }
    let mut byte = [0];
    Pin::new(stream)
        .poll_read(cx, &mut ReadBuf::new(&mut byte))
        .is_pending()
}

/// The keeper's task.
pub(crate) async fn keep<K: Ord + Clone, S: Io>(pool: Weak<Pool<K, S>>) {
    let mut timer = Timer::default();
    poll_fn(move |cx| {
        let Some(pool) = pool.upgrade() else {
            return Poll::Ready(());
        };
        *pool.keeper.borrow_mut() = Some(cx.waker().clone());
        loop {
            let Some(next) = pool.sweep(cx, Instant::now()) else {
                timer = Timer::default();
                pool.timer.set(None);
                return Poll::Pending;
            };
            pool.timer.set(Some(next));
            if !timer.passed(cx, next) {
                return Poll::Pending;
            }
        }
    })
    .await;
}

impl<K, S> Drop for Pool<K, S> {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.borrow_mut().take() {
            keeper.wake();
        }
    }
}
