//! One timer per connection, re-armed only when it must ring earlier, so that a steady connection never touches it.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Instant;

use tokio::time::Sleep;

/// See the module. Allocated at the first wait, kept for the connection's life.
#[derive(Default)]
pub(crate) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Whether `deadline` has passed; if not, the task is woken when it does (perhaps earlier as well).
    pub(crate) fn passed(&mut self, cx: &mut Context<'_>, deadline: Instant) -> bool {
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline.into())));
        if sleep.deadline() > deadline.into() {
            sleep.as_mut().reset(deadline.into());
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= deadline.into() {
                return true;
            }
            // It was armed for an earlier wait that ended well.
            sleep.as_mut().reset(deadline.into());
        }
        false
    }
}
