//! One timer per connection, re-armed only when it must ring earlier, so that a steady connection never touches it.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Instant;

use tokio::time::Sleep;

use crate::http::clock::{self, Alarm};

/// See the module. Allocated at the first wait, kept for the connection's life.
#[derive(Default)]
pub(crate) struct Timer {
    wait: Option<ConnectionTimer>,
}

enum ConnectionTimer {
    Alarm(Alarm),
    /// On threads without a clock.
    Sleep(Pin<Box<Sleep>>),
}

impl ConnectionTimer {
    fn until(deadline: Instant) -> Self {
        match clock::current() {
            Some(clock) => Self::Alarm(Alarm::new(clock, deadline)),
            None => Self::Sleep(Box::pin(tokio::time::sleep_until(deadline.into()))),
        }
    }

    fn deadline(&self) -> Instant {
        match self {
            Self::Alarm(alarm) => alarm.at(),
            Self::Sleep(sleep) => sleep.deadline().into(),
        }
    }

    fn reset(&mut self, deadline: Instant) {
        match self {
            Self::Alarm(alarm) => alarm.reset(deadline),
            Self::Sleep(sleep) => sleep.as_mut().reset(deadline.into()),
        }
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        match self {
            Self::Alarm(alarm) => alarm.rang(cx),
            Self::Sleep(sleep) => sleep.as_mut().poll(cx).is_ready(),
        }
    }
}

impl Timer {
    /// Returns true if `deadline` has passed; if not, the task is woken when it does (perhaps earlier as
    /// well).
    pub(crate) fn passed(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let wait = self
            .wait
            .get_or_insert_with(|| ConnectionTimer::until(deadline));
        if wait.deadline() > deadline {
            // It rang for this one, perhaps, when a later one was asked for: an alarm is not set to ring in the past.
            if deadline <= Instant::now() {
                return true;
            }
            wait.reset(deadline);
        }
        while wait.is_over(cx) {
            if wait.deadline() >= deadline {
                return true;
            }
            // It was armed for an earlier wait that ended well.
            wait.reset(deadline);
        }
        false
    }
}
