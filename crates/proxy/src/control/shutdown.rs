//! Ending in good order: stop accepting, say so on the readiness port, let requests in flight finish within the drain
//! timeout. A second signal ends at once.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::accept::Dispatcher;
use super::state::Control;
use crate::worker::ToWorker;

/// How often a draining proxy looks whether everybody left.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// Somebody asked over the admin port to end.
#[derive(Default)]
pub(super) struct Ending(Notify);

impl Ending {
    pub(super) fn ask(&self) {
        self.0.notify_one();
    }

    pub(super) async fn asked(&self) {
        self.0.notified().await;
    }
}

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

pub(super) async fn drain(
    control: &RefCell<Control>,
    dispatcher: &Rc<Dispatcher>,
    signals: &mut Signals,
) {
    control.borrow_mut().stop_accepting();
    // Accepting tasks take what already waits in the kernel before they close their sockets.
    tokio::task::yield_now().await;
    dispatcher.broadcast(|| ToWorker::Drain);
    let limit = {
        let control = control.borrow();
        let shared = control.shared();
        let said = shared
            .registry
            .configuration
            .as_ref()
            .and_then(|held| held.value.connection.drain_timeout);
        said.unwrap_or(control.drain_timeout)
    };
    tracing::info!(connections = dispatcher.load(), ?limit, "draining");
    let everybody_left = async {
        while dispatcher.load() > 0 {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    tokio::select! {
        done = tokio::time::timeout(limit, everybody_left) => {
            if done.is_err() {
                tracing::warn!(connections = dispatcher.load(), "drain timeout: closing what is left");
            }
        }
        () = signals.next() => tracing::warn!(connections = dispatcher.load(), "second signal: ending at once"),
    }
    dispatcher.dismiss();
}
