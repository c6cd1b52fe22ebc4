//! Ending in good order: stop accepting, say so on the readiness port, let requests in flight finish within the drain
//! timeout. A second signal ends at once. When another process serves in our place there is no hurry: idle connections
//! may speak once more, and requests get longer.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use super::discovery::state::Control;
use super::network::accept::Dispatcher;
use super::network::dns::Dns;
use crate::worker::ToWorker;

/// Interval in which a draining proxy checks if all connections have ended.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// Request over the admin port to end the process.
#[derive(Default)]
pub(super) struct ShutdownRequest {
    notify: Notify,
    handed_over: Cell<bool>,
}

impl ShutdownRequest {
    pub(super) fn ask(&self) {
        self.notify.notify_one();
    }

    /// Another process serves in our place.
    pub(super) fn hand_over(&self) {
        self.handed_over.set(true);
        self.ask();
    }

    pub(super) async fn asked(&self) {
        self.notify.notified().await;
    }
}

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// SIGUSR1: open the access log anew.
    reopen: Option<Signal>,
}

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reopen: Some(signal(SignalKind::user_defined1())?),
        })
    }

    /// The other signal, to be waited for beside [`Self::next`].
    pub(super) fn take_reopen(&mut self) -> Option<Signal> {
        self.reopen.take()
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The next signal of one kind.
pub(super) async fn asked(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

pub(super) async fn drain(
    control: &RefCell<Control>,
    ending: &ShutdownRequest,
    dispatcher: &Rc<Dispatcher>,
    signals: &mut Signals,
) {
    control.borrow_mut().begin_drain();
    // Accepting tasks take what already waits in the kernel before they close their sockets.
    tokio::task::yield_now().await;
    let mut limit = {
        let control = control.borrow();
        let shared = control.shared();
        let said = shared
            .registry
            .configuration
            .as_ref()
            .and_then(|held| held.value.connection.drain_timeout);
        said.unwrap_or(control.drain_timeout)
    };
    let mut gentle = None;
    if ending.handed_over.get() {
        gentle = Some(limit);
        limit = limit.max(control.borrow().handover_drain_timeout);
    }
    tracing::info!(connections = dispatcher.load(), ?limit, "draining");
    let dns = control.borrow().dns.clone();
    let everybody_left = async {
        if let Some(gentle) = gentle {
            dispatcher.broadcast(|| ToWorker::Drain { gently: true });
            let _ = tokio::time::timeout(gentle, nobody_is_left(dispatcher, dns.as_deref())).await;
        }
        dispatcher.broadcast(|| ToWorker::Drain { gently: false });
        nobody_is_left(dispatcher, dns.as_deref()).await;
    };
    tokio::select! {
        done = tokio::time::timeout(limit, everybody_left) => {
            if done.is_err() {
                tracing::warn!(connections = dispatcher.load(), "drain timeout: closing the remaining connections");
            }
        }
        () = signals.next() => tracing::warn!(connections = dispatcher.load(), "second signal: shutting down at once"),
    }
    dispatcher.dismiss();
}

async fn nobody_is_left(dispatcher: &Dispatcher, dns: Option<&Dns>) {
    while dispatcher.load() > 0 || dns.is_some_and(|dns| !dns.server.is_idle()) {
        tokio::time::sleep(DRAIN_LOOK).await;
    }
}
