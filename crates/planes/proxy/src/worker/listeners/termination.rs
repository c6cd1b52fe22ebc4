//! A word given once on one thread and heard by many tasks: "the listener's policy no longer lets you in", "time is up".

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

/// Clones share the signal.
#[derive(Clone, Default)]
pub(crate) struct Stop(Rc<DrainState>);

#[derive(Default)]
struct DrainState {
    given: Cell<bool>,
    waiting: RefCell<Slab<Waker>>,
}

impl Stop {
    pub(crate) fn give(&self) {
        self.0.given.set(true);
        for waker in self.0.waiting.borrow_mut().drain() {
            waker.wake();
        }
    }

    pub(crate) fn is_given(&self) -> bool {
        self.0.given.get()
    }

    /// Ready once the signal is given.
    pub(crate) fn heard(&self) -> StopListener {
        StopListener {
            stop: self.clone(),
            place: None,
        }
    }
}

pub(crate) struct StopListener {
    stop: Stop,
    place: Option<usize>,
}

impl Future for StopListener {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.stop.is_given() {
            self.place = None;
            return Poll::Ready(());
        }
        let shared = Rc::clone(&self.stop.0);
        let mut waiting = shared.waiting.borrow_mut();
        match self.place {
            Some(place) => waiting[place].clone_from(cx.waker()),
            None => self.place = Some(waiting.insert(cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for StopListener {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            // Giving the signal empties the list.
            self.stop.0.waiting.borrow_mut().try_remove(place);
        }
    }
}

/// Ready when either signal is given.
pub(crate) async fn either(one: &Stop, other: &Stop) {
    tokio::select! {
        () = one.heard() => {}
        () = other.heard() => {}
    }
}
