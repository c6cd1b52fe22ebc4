//! One worker's drain signal: requests in flight finish and end their connections; idle connections close, at once or
//! after a while in which they may still speak.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

/// Drain signal, given once or twice and seen by every connection of the worker. Clones share the signal.
#[derive(Clone, Default)]
pub struct Drain {
    shared: Rc<Shared>,
}

#[derive(Default)]
struct Shared {
    draining: Cell<bool>,
    close_idle: Cell<bool>,
    /// Number of times that idle connections were told to close without a drain.
    retired: Cell<u32>,
    /// Number of times that open exchanges were to be judged again.
    judged: Cell<u32>,
    waiting: RefCell<Slab<Waker>>,
}

impl Drain {
    /// A signal not yet given.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the drain: each response is its connection's last. Idle connections stay, since closing one could cross a
    /// request. A response with `Connection: close` ends it without a race.
    pub fn begin(&self) {
        self.shared.draining.set(true);
        self.wake();
    }

    /// Closes idle connections as well.
    pub fn start(&self) {
        self.shared.draining.set(true);
        self.shared.close_idle.set(true);
        self.wake();
    }

    fn wake(&self) {
        for (_, waker) in self.shared.waiting.borrow().iter() {
            waker.wake_by_ref();
        }
    }

    /// Idle connections close, others stay, and new ones are welcome.
    pub fn retire_idle(&self) {
        self.shared
            .retired
            .set(self.shared.retired.get().wrapping_add(1));
        self.wake();
    }

    /// Everything in flight asks its role whether it may go on.
    pub fn judge_again(&self) {
        self.shared
            .judged
            .set(self.shared.judged.get().wrapping_add(1));
        self.wake();
    }

    /// Changes when everything in flight is judged again.
    pub(crate) fn judgements(&self) -> u32 {
        self.shared.judged.get()
    }

    /// Changes when idle connections are asked to leave.
    pub(crate) fn retirements(&self) -> u32 {
        self.shared.retired.get()
    }

    /// Returns true if idle connections close.
    pub(crate) fn closes_idle(&self) -> bool {
        self.shared.close_idle.get()
    }

    /// Returns true if the drain signal was given.
    pub fn is_draining(&self) -> bool {
        self.shared.draining.get()
    }

    /// Connections being served at this moment.
    pub fn connections(&self) -> usize {
        self.shared.waiting.borrow().len()
    }

    /// Ready when idle connections are to close; for those that wait outside an engine.
    pub(crate) async fn idle_unwelcome(&self) {
        self.until(Self::closes_idle).await;
    }

    /// Ready when it is given.
    pub(crate) async fn given(&self) {
        self.until(Self::is_draining).await;
    }

    async fn until(&self, is_so: fn(&Self) -> bool) {
        let mut listening = None;
        poll_fn(|cx| {
            if is_so(self) {
                return Poll::Ready(());
            }
            match &listening {
                None => listening = Some(self.listen(cx)),
                Some(listening) => listening.refresh(cx),
            }
            Poll::Pending
        })
        .await;
    }

    pub(crate) fn listen(&self, cx: &Context<'_>) -> DrainListener {
        let slot = self.shared.waiting.borrow_mut().insert(cx.waker().clone());
        DrainListener {
            drain: self.clone(),
            slot,
        }
    }
}

/// One connection's place among the listeners.
pub(crate) struct DrainListener {
    drain: Drain,
    slot: usize,
}

impl DrainListener {
    /// Keeps the place's waker true; nearly always it is the task's own already.
    pub(crate) fn refresh(&self, cx: &Context<'_>) {
        self.drain.shared.waiting.borrow_mut()[self.slot].clone_from(cx.waker());
    }
}

impl Drop for DrainListener {
    fn drop(&mut self) {
        self.drain.shared.waiting.borrow_mut().remove(self.slot);
    }
}
