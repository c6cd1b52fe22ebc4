//! Limits of time of one exchange, whichever versions its two sides speak. The clock is read when a wait begins, not with each
//! read.

use std::task::Context;
use std::time::{Duration, Instant};

use crate::http::ending::{CLIENT_GONE, ExchangeEnd};
use crate::http::limits::HttpTimeouts;
use crate::http::timer::Timer;

/// See the module. Lives as long as the exchange, over all of its attempts.
pub(crate) struct ExchangeClock {
    /// When the head of the request was complete.
    started: Instant,
    /// When all of the request was received, where the time for its answer is limited.
    received: Option<Instant>,
    /// When bytes moved last, while that is limited.
    moved: Option<LastMove>,
    /// When the wait for the head of the present attempt's answer began, where that is limited.
    waiting: Option<Instant>,
}

/// Bytes that moved last.
struct LastMove {
    at: Instant,
    /// Bytes that had moved by then.
    bytes: u64,
    /// When the client was looked for last.
    looked: Instant,
}

/// Limits of one attempt.
#[derive(Clone, Copy)]
pub(crate) struct ExchangeLimits<'a> {
    pub(crate) timeouts: &'a HttpTimeouts,
    /// Of the wait for the head of the answer.
    pub(crate) head: Option<Duration>,
    /// Of all attempts together, to the end of the answer. A tunnel has none that could be waited for.
    pub(crate) answer: Option<Duration>,
}

/// How far an exchange has come.
#[derive(Clone, Copy, Default)]
pub(crate) struct ExchangeProgress {
    /// All of the request was received, or no more of it is wanted.
    pub(crate) received: bool,
    /// The client has more of its body to send. Once an answer began it is a conversation, whose pace is its own.
    pub(crate) sending: bool,
    /// The server takes no more of the body.
    pub(crate) stuck: bool,
    /// The client does not take the answer.
    pub(crate) stalled: bool,
    /// The head of the answer came.
    pub(crate) answered: bool,
    /// Bytes go both ways as they come.
    pub(crate) tunnel: bool,
    /// Bytes of the request's body, and of the answer's.
    pub(crate) bytes: (u64, u64),
}

impl ExchangeProgress {
    /// A body is received and held.
    pub(crate) fn sending(bytes: u64) -> Self {
        Self {
            sending: true,
            bytes: (bytes, 0),
            ..Self::default()
        }
    }
}

impl<'a> ExchangeLimits<'a> {
    /// `each` limits the wait in each attempt.
    pub(crate) fn new(
        timeouts: &'a HttpTimeouts,
        each: Option<Duration>,
        answer: Option<Duration>,
    ) -> Self {
        let head = [timeouts.request, each].into_iter().flatten().min();
        Self {
            timeouts,
            head,
            answer,
        }
    }
}

impl Default for ExchangeClock {
    fn default() -> Self {
        Self::new(Instant::now())
    }
}

impl ExchangeClock {
    pub(crate) fn new(started: Instant) -> Self {
        Self {
            started,
            received: None,
            moved: None,
            waiting: None,
        }
    }

    /// Another attempt, or another look at one, begins.
    pub(crate) fn restart(&mut self) {
        (self.moved, self.waiting) = (None, None);
    }

    /// Returns true if the time for an answer is over; to be asked when all of the request was received.
    pub(crate) fn is_over(
        &mut self,
        cx: &mut Context<'_>,
        timer: &mut Timer,
        limit: Option<Duration>,
    ) -> bool {
        let Some(limit) = limit else {
            return false;
        };
        let since = *self.received.get_or_insert_with(Instant::now);
        timer.passed(cx, since + limit)
    }

    /// Returns true if the time for an answer ends before a pause does.
    pub(crate) fn ends_within(&self, pause: Duration, limit: Option<Duration>) -> bool {
        let rest = limit.zip(self.received);
        rest.is_some_and(|(limit, since)| since.elapsed() + pause >= limit)
    }

    /// Reports a timeout. Waiting for the client is bounded, and silence in a tunnel; waiting for the server is if a route
    /// says so, or while it does not take a body. No wake-up tells that a client has left behind such a body: `has_left` is
    /// asked now and then.
    pub(crate) fn overdue(
        &mut self,
        cx: &mut Context<'_>,
        timer: &mut Timer,
        limits: ExchangeLimits<'_>,
        at: ExchangeProgress,
        has_left: impl Fn() -> bool,
    ) -> Option<ExchangeEnd> {
        if at.received && self.is_over(cx, timer, limits.answer) {
            return Some(ExchangeEnd::Expired);
        }
        if let Some(limit) = limits.head.filter(|_| at.received && !at.answered) {
            let since = *self.waiting.get_or_insert_with(Instant::now);
            if timer.passed(cx, since + limit) {
                return Some(ExchangeEnd::Timeout);
            }
        }
        if !(at.sending || at.stuck || at.stalled || at.tunnel) {
            self.moved = None;
            return None;
        }
        let timeouts = limits.timeouts;
        let bytes = at.bytes.0 + at.bytes.1;
        let last = match &mut self.moved {
            Some(last) if last.bytes == bytes => last,
            moved => {
                let at = Instant::now();
                let looked = at;
                moved.insert(LastMove { at, bytes, looked })
            }
        };
        if at.stuck && !(at.stalled || at.tunnel) {
            let end = last.at + timeouts.upload_idle;
            while timer.passed(cx, end.min(last.looked + timeouts.stream_idle)) {
                if has_left() {
                    return Some(CLIENT_GONE);
                }
                last.looked = Instant::now();
                if last.looked >= end {
                    return Some(ExchangeEnd::Idle);
                }
            }
            return None;
        }
        let idle = match at.tunnel {
            true => timeouts.tunnel_idle,
            false => timeouts.stream_idle,
        };
        let mut deadline = last.at + idle;
        if at.sending && timeouts.min_body_rate > 0 {
            let earned = at.bytes.0 / u64::from(timeouts.min_body_rate);
            let whole = self.started + timeouts.body_grace + Duration::from_secs(earned);
            deadline = deadline.min(whole);
        }
        timer.passed(cx, deadline).then_some(ExchangeEnd::Idle)
    }
}
