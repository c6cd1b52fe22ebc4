//! State of a downstream connection that its streams share.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use crate::http::{ExchangeRecord, ResponseFlag};
use crate::http2::limits::{MAX_PREMATURE_RESETS, PREMATURE};

/// Counters of a connection's streams, for its task.
#[derive(Default)]
pub(crate) struct Http2Session {
    /// Streams being served.
    pub(crate) live: Cell<usize>,
    /// Streams begun.
    begun: Cell<u32>,
    /// Number of these that the client gave up before they were worth anything.
    premature: Cell<u32>,
    /// When the last stream ended.
    pub(crate) rested: Cell<Option<Instant>>,
}

impl Http2Session {
    /// Counts streams that ended before they were served.
    pub(super) fn unseen(&self, streams: u32) {
        self.begun.set(self.begun.get().saturating_add(streams));
        let premature = self.premature.get().saturating_add(streams);
        self.premature.set(premature);
    }

    /// Returns true if the client makes requests and gives them up.
    pub(super) fn is_abused(&self) -> bool {
        let premature = self.premature.get();
        premature >= MAX_PREMATURE_RESETS && premature > self.begun.get() / 2
    }
}

/// One stream's place in its session.
pub(crate) struct Live(Rc<Http2Session>);

impl Live {
    pub(crate) fn begin(session: &Rc<Http2Session>) -> Self {
        session.live.set(session.live.get() + 1);
        session.begun.set(session.begun.get().saturating_add(1));
        Self(Rc::clone(session))
    }

    /// Counts the stream if the client gave it up early, without an answer.
    pub(super) fn judge(&self, record: &ExchangeRecord) {
        if record.flag == ResponseFlag::DownstreamRemoteReset
            && record.status == 0
            && record.duration < PREMATURE
        {
            let premature = &self.0.premature;
            premature.set(premature.get().saturating_add(1));
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.set(self.0.live.get() - 1);
        if self.0.live.get() == 0 {
            self.0.rested.set(Some(Instant::now()));
        }
    }
}
