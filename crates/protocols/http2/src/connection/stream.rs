//! One stream: the state of each direction, data to read, data to write.

use std::collections::VecDeque;
use std::task::{Context, Waker};

use bytes::Bytes;

use super::Failure;
use crate::fields::Fields;

/// State of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HalfState {
    /// No head yet.
    Head,
    Open,
    Ended,
}

/// Part that waits because a window is closed or the stream may not be opened yet.
#[derive(Debug)]
pub(super) enum Queued {
    Head(Fields, bool),
    Data(Bytes, bool),
    Trailers(Fields),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Stream {
    /// 0 while it may not be opened.
    pub(super) id: u32,
    /// Handles.
    pub(super) refs: u32,
    /// The one task that holds them.
    waker: Option<Waker>,
    pub(super) send: HalfState,
    pub(super) recv: HalfState,
    /// Why it ended before its time.
    pub(super) failed: Option<Failure>,
    /// No more frames go or come.
    pub(super) closed: bool,
    /// Given to an accepting task.
    pub(super) accepted: bool,
    /// In the queue for room.
    pub(super) waiting: bool,
    /// Its request was HEAD, so that a length promises nothing.
    pub(super) bodiless: bool,
    pub(super) send_window: i64,
    pub(super) recv_window: i64,
    /// Bytes taken by the task, not yet given back to the peer.
    pub(super) released: u32,
    /// Bytes received, not yet released.
    pub(super) held: u32,
    /// Bytes of the body still to come, where the head said it.
    pub(super) expected: Option<u64>,
    /// Bytes of the heads that came for it.
    pub(super) heads: usize,
    /// Bytes of them that were taken from the budget of large heads.
    pub(super) budgeted: u32,
    /// Interim heads.
    pub(super) early: VecDeque<Fields>,
    pub(super) head: Option<Fields>,
    pub(super) data: Vec<u8>,
    /// Bytes of it that were taken last.
    pub(super) took: u32,
    pub(super) trailers: Option<Fields>,
    pub(super) queue: VecDeque<Queued>,
}

impl Stream {
    pub(super) fn new(id: u32, send_window: u32, recv_window: u32) -> Self {
        Self {
            id,
            refs: 0,
            waker: None,
            send: HalfState::Head,
            recv: HalfState::Head,
            failed: None,
            closed: false,
            accepted: false,
            waiting: false,
            bodiless: false,
            send_window: send_window.into(),
            recv_window: recv_window.into(),
            released: 0,
            held: 0,
            expected: None,
            heads: 0,
            budgeted: 0,
            early: VecDeque::new(),
            head: None,
            data: Vec::new(),
            took: 0,
            trailers: None,
            queue: VecDeque::new(),
        }
    }

    /// Wakes the task at the next event.
    pub(super) fn watch(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Returns true if new data of the stream is written at once.
    pub(super) fn is_next(&self) -> bool {
        self.id != 0 && self.queue.is_empty()
    }

    /// The peer said all and it was read.
    pub(super) fn is_read(&self) -> bool {
        self.recv == HalfState::Ended && self.data.is_empty() && self.trailers.is_none()
    }
}
