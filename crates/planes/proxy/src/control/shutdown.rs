//! Ending in good order: stop accepting, say so on the readiness port, let requests in flight finish within the drain
//! timeout. A second signal ends at once. When another process serves in our place there is no hurry: idle connections
//! may speak once more, and requests get longer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::Notify;
use voile_process::{Signals, until_over};

use super::discovery::state::Control;
use super::network::accept::Dispatcher;
use crate::worker::ToWorker;

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
    let dns = control.borrow().dns.clone();
    let is_over = || dispatcher.load() == 0 && dns.iter().all(|dns| dns.server.is_idle());
    let everybody_left = async {
        if let Some(gentle) = gentle {
            dispatcher.broadcast(|| ToWorker::Drain { gently: true });
            let _ = tokio::time::timeout(gentle, until_over(is_over)).await;
        }
        dispatcher.broadcast(|| ToWorker::Drain { gently: false });
        until_over(is_over).await;
    };
    let haste = async {
        signals.next().await;
    };
    voile_process::drain(limit, || dispatcher.load(), everybody_left, haste).await;
    dispatcher.dismiss();
}
