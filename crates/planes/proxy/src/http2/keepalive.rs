//! Keep-alive of upstream connections. While streams wait and no byte comes, a PING checks the connection; if still no
//! byte comes, the connection is given up. A connection without streams is left alone, so that an idle proxy never
//! wakes.

use std::task::Context;
use std::time::{Duration, Instant};

use crate::http::timer::Timer;

/// Action now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpstreamKeepaliveAction {
    Nothing,
    Ask,
    GiveUp,
}

/// See the module.
pub(super) struct UpstreamKeepalive {
    /// When something came last.
    heard: Instant,
    /// Since when an answer is awaited.
    asked: Option<Instant>,
    /// When the timer rings.
    alarm: Option<Instant>,
    timer: Timer,
    after: Duration,
    patience: Duration,
}

impl UpstreamKeepalive {
    pub(super) fn new(after: Duration, patience: Duration) -> Self {
        Self {
            heard: Instant::now(),
            asked: None,
            alarm: None,
            timer: Timer::default(),
            after,
            patience,
        }
    }

    /// Called when the driver of a connection with streams has moved what there was; `busy` is since when it has any.
    pub(super) fn beat(
        &mut self,
        cx: &mut Context<'_>,
        heard: bool,
        busy: Instant,
    ) -> UpstreamKeepaliveAction {
        let now = Instant::now();
        if heard {
            (self.heard, self.asked) = (now, None);
        }
        // The answer to a question before a rest came, or the streams of that time failed.
        self.asked = self.asked.filter(|asked| *asked >= busy);
        let deadline = match self.asked {
            Some(asked) => asked + self.patience,
            None => self.heard.max(busy) + self.after,
        };
        if self.alarm.is_some_and(|at| now < at && at <= deadline) {
            return UpstreamKeepaliveAction::Nothing;
        }
        if !self.timer.passed(cx, deadline) {
            self.alarm = Some(deadline);
            return UpstreamKeepaliveAction::Nothing;
        }
        self.alarm = None;
        if self.asked.is_some() {
            return UpstreamKeepaliveAction::GiveUp;
        }
        self.asked = Some(now);
        UpstreamKeepaliveAction::Ask
    }
}
