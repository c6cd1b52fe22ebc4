//! Memory as the control thread sees it: when it is short, and giving back to the kernel what the allocator keeps.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use voile_memory::{give_back, release_cold_pages};

use super::state::Control;
use crate::worker::{MemoryPressure, ToWorker};

/// Time that workers get to close idle connections before the freed memory is given back.
const RELIEF_TIME: Duration = Duration::from_millis(200);

/// Between two lines in the log about it, while it lasts.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Memory is short: all workers close idle connections, and the freed memory goes back to the kernel.
pub(super) fn relieve(control: &Rc<RefCell<Control>>) {
    if control.borrow().giving_back {
        return; // Somebody said so a moment ago.
    }
    control.borrow().dispatcher.broadcast(|| ToWorker::Relieve);
    let now = Instant::now();
    let said = control.borrow().said_short;
    if said.is_none_or(|then| now.duration_since(then) >= SAID_EVERY) {
        control.borrow_mut().said_short = Some(now);
        tracing::warn!("memory is short: idle connections are closed");
    }
    give_back_soon(control);
}

/// Gives freed memory back after a short time for the workers; requests in the meantime share one run.
pub(super) fn give_back_soon(control: &Rc<RefCell<Control>>) {
    if std::mem::replace(&mut control.borrow_mut().giving_back, true) {
        return;
    }
    let control = Rc::clone(control);
    tokio::task::spawn_local(async move {
        tokio::time::sleep(RELIEF_TIME).await;
        let mut control = control.borrow_mut();
        control.giving_back = false;
        control.dispatcher.ledger().forget_unused();
        give_back();
        let ledger = control.dispatcher.ledger();
        // The program's own pages are resident, too. Needed ones come back from the page cache; the others would keep a
        // proxy with a narrow limit from accepting any connection again.
        if ledger.look() > MemoryPressure::Free {
            release_cold_pages();
            ledger.look();
        }
    });
}
