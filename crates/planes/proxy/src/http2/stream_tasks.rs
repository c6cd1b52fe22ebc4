//! Tasks that serve streams, one at a time, and wait for the next when they are done. A task of the runtime is a large
//! aligned allocation that is filled, emptied and listed; a steady connection should not pay for one with every call.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use super::stream::{self, StreamWork};
use crate::http::HttpRole;
use crate::http::codec::Http2Codec;

type Work<R> = StreamWork<R, Http2Codec>;

/// Tasks of one worker that may wait for a stream; each holds about as much as a stream does. More than this are
/// begun and end as they are needed.
const MAX_WAITING: usize = 16;

/// See the module.
pub(crate) struct Runners<R: HttpRole>(Rc<WaitingTask<R>>);

struct WaitingTask<R: HttpRole>(RefCell<Vec<Rc<TaskSlot<R>>>>);

/// Place where a waiting task receives its next stream.
struct TaskSlot<R: HttpRole> {
    work: Cell<Option<Work<R>>>,
    waker: Cell<Option<Waker>>,
}

impl<R: HttpRole> Default for Runners<R> {
    fn default() -> Self {
        Self(Rc::new(WaitingTask(RefCell::default())))
    }
}

impl<R: HttpRole + 'static> Runners<R> {
    /// Has a stream served.
    pub(crate) fn serve(&self, work: Work<R>) {
        let waiting = self.0.0.borrow_mut().pop();
        if let Some(desk) = waiting {
            desk.work.set(Some(work));
            desk.wake();
        } else {
            tokio::task::spawn_local(run(work, Rc::downgrade(&self.0)));
        }
    }
}

impl<R: HttpRole> TaskSlot<R> {
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Next stream; none when no owner can give one any more.
    fn poll_work(self: &Rc<Self>, cx: &Context<'_>) -> Poll<Option<Work<R>>> {
        match self.work.take() {
            Some(work) => Poll::Ready(Some(work)),
            None if Rc::strong_count(self) == 1 => Poll::Ready(None),
            None => {
                self.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl<R: HttpRole> Drop for WaitingTask<R> {
    fn drop(&mut self) {
        for desk in self.0.take() {
            let waker = desk.waker.take();
            drop(desk);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

async fn run<R: HttpRole + 'static>(first: Work<R>, waiting: Weak<WaitingTask<R>>) {
    let desk = Rc::new(TaskSlot {
        work: Cell::new(Some(first)),
        waker: Cell::new(None),
    });
    while let Some(work) = std::future::poll_fn(|cx| desk.poll_work(cx)).await {
        stream::serve(work).await;
        let Some(waiting) = waiting.upgrade() else {
            return;
        };
        let mut waiting = waiting.0.borrow_mut();
        if waiting.len() == MAX_WAITING {
            return;
        }
        waiting.push(Rc::clone(&desk));
    }
}
