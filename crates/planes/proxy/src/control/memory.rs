//! Memory as the control thread sees it: when it is short, and giving back to the kernel what the allocator keeps.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use voile_memory::give_back;

use super::state::Control;
use crate::worker::{MemoryPressure, ShedOrder, ToWorker};

/// Time that workers get to close idle connections before the freed memory is given back.
const RELIEF_TIME: Duration = Duration::from_millis(200);

/// Least time between two runs of giving memory back while it is not short: a burst frees its memory over a while.
const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(3);

/// Time between two rounds of ending the largest holders while new work is refused: at first, and at most.
const FIRST_ROUND: Duration = Duration::from_millis(50);
const LAST_ROUND: Duration = Duration::from_secs(1);

/// Time after which ordinary exchanges end if refusing new work did not help.
const REFUSING_HELPS: Duration = Duration::from_secs(3);

/// Between two lines in the log about it, while it lasts.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Memory is short: all workers close idle connections, and the freed memory goes back to the kernel.
pub(super) fn relieve(control: &Rc<RefCell<Control>>) {
    shed_while_closed(control);
    if control.borrow().giving_back {
        return; // Somebody said so a moment ago.
    }
    control.borrow().dispatcher.broadcast(|| ToWorker::Relieve);
    let now = Instant::now();
    let said = control.borrow().said_short;
    if said.is_none_or(|then| now.duration_since(then) >= SAID_EVERY) {
        control.borrow_mut().said_short = Some(now);
        tracing::warn!("memory limit is near: closing idle connections");
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
        control.borrow_mut().giving_back = false;
        give_back_now(&control);
    });
}

/// Gives the memory of a burst back: soon after the first word that much was freed, then in intervals. No timer runs without such
/// a word.
pub(super) fn burst_is_over(control: &Rc<RefCell<Control>>) {
    if std::mem::replace(&mut control.borrow_mut().freed, true) {
        return;
    }
    let last = control.borrow().gave_back;
    let since = last.map_or(GIVE_BACK_INTERVAL, |last| last.elapsed());
    let wait = GIVE_BACK_INTERVAL.saturating_sub(since).max(RELIEF_TIME);
    let control = Rc::clone(control);
    tokio::task::spawn_local(async move {
        tokio::time::sleep(wait).await;
        control.borrow_mut().freed = false;
        give_back_now(&control);
    });
}

fn give_back_now(control: &RefCell<Control>) {
    control.borrow_mut().gave_back = Some(Instant::now());
    let control = control.borrow();
    let ledger = control.dispatcher.ledger();
    ledger.forget_unused();
    give_back();
    // The program's own pages are resident, too. Needed ones come back from the page cache; the others would keep a
    // proxy with a narrow limit from accepting any connection again.
    if ledger.look() > MemoryPressure::Free {
        ledger.ceiling.release_pages();
        ledger.look();
    }
}

/// Ends the largest holders of memory, round by round, while new work is refused. Ordinary exchanges end only if refusing did not
/// help.
fn shed_while_closed(control: &Rc<RefCell<Control>>) {
    let is_closed =
        |control: &Control| control.dispatcher.ledger().look() == MemoryPressure::Closed;
    if control.borrow().shedding || !is_closed(&control.borrow()) {
        return;
    }
    control.borrow_mut().shedding = true;
    let control = Rc::clone(control);
    tokio::task::spawn_local(async move {
        let (began, mut pause) = (Instant::now(), FIRST_ROUND);
        loop {
            give_back_now(&control);
            if !is_closed(&control.borrow()) {
                break;
            }
            let (excess, over) = control.borrow().dispatcher.ledger().ceiling.excess();
            let shed = ShedOrder {
                bytes: usize::try_from(excess).unwrap_or(usize::MAX),
                ordinary: over && began.elapsed() >= REFUSING_HELPS,
            };
            control
                .borrow()
                .dispatcher
                .broadcast(|| ToWorker::Shed(shed));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_ROUND);
        }
        control.borrow_mut().shedding = false;
    });
}
