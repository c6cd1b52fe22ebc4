//! Listeners of redirected connections, by the original destination: of an inbound one by its port's plan, of an outbound one
//! by the control thread's plan for the address. A worker asks once about an address and keeps the answer; the connection is
//! parked meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream as StdStream};
use std::rc::{Rc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use voile_transport as transport;

use crate::plan::{CapturePlan, CapturedDestination, OutboundPlan};
use crate::worker::listeners::inbound_slot::InboundSlot;
use crate::worker::listeners::outbound_slot::OutboundSlot;
use crate::worker::listeners::termination::Stop;
use crate::worker::{FromWorker, Overload, Worker};

/// Connections of one worker that may wait to learn where their destination leads; a control plane that is slow must not
/// fill the memory.
pub(crate) const MAX_PARKED: usize = 1024;

/// Time that a connection waits for the control plane. Then the control thread decides by the configuration
/// it has.
const LOOKUP_PATIENCE: Duration = Duration::from_secs(2);

/// Time that a connection waits after that; the control thread of the same process needs microseconds.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Default)]
pub(crate) struct CapturedListeners {
    plan: RefCell<Option<CapturePlan>>,
    inbound: RefCell<HashMap<SocketAddr, CapturedListener>>,
    outbound: RefCell<HashMap<CapturedDestination, Destination>>,
    parked: Cell<usize>,
    /// Given when tunnels are no longer taken.
    pub(crate) leaving: Stop,
}

/// A slot of ours. Declared ports keep theirs; others live as long as their connections, or a scan would fill the memory.
enum CapturedListener {
    Declared(Rc<InboundSlot>),
    Undeclared(Weak<InboundSlot>),
}

impl CapturedListener {
    fn slot(&self) -> Option<Rc<InboundSlot>> {
        match self {
            Self::Declared(slot) => Some(Rc::clone(slot)),
            Self::Undeclared(slot) => slot.upgrade(),
        }
    }
}

/// State of an outbound destination.
enum Destination {
    /// Asked; these wait.
    Asked(Vec<oneshot::Sender<Rc<OutboundSlot>>>),
    Known {
        slot: Rc<OutboundSlot>,
        used: Cell<bool>,
    },
}

/// A parked connection; dropping it gives its place back.
struct Parked<'a>(&'a Cell<usize>);

impl<'a> Parked<'a> {
    fn begin(count: &'a Cell<usize>) -> Option<Self> {
        let parked = count.get();
        (parked < MAX_PARKED).then(|| {
            count.set(parked + 1);
            Self(count)
        })
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl CapturedListeners {
    /// Follows a plan, with every live port. Returns true if any port now accepts other connections than
    /// before.
    pub(crate) fn apply(&self, worker: &Worker, plan: Option<&CapturePlan>, renewed: bool) -> bool {
        let mut judge = false;
        let mut inbound = self.inbound.borrow_mut();
        inbound.retain(|to, held| match (plan, held.slot()) {
            (Some(plan), Some(slot)) => {
                judge |= slot.follow(worker, &plan.inbound(*to), renewed);
                *held = hold(plan, *to, &slot);
                true
            }
            (None, Some(slot)) => {
                slot.http.leave();
                false
            }
            (_, None) => false,
        });
        for destination in self.outbound.borrow().values() {
            if let Destination::Known { slot, .. } = destination {
                slot.renew(worker, renewed);
            }
        }
        *self.plan.borrow_mut() = plan.cloned();
        judge
    }

    /// Has what was let in judged again.
    pub(crate) fn judge_again(&self) {
        let inbound = self.inbound.borrow();
        let slots = inbound.values().filter_map(CapturedListener::slot);
        slots.for_each(|slot| slot.http.judge_again());
    }

    /// The same for the outbound destinations.
    pub(crate) fn doubt_servers(&self) {
        for destination in self.outbound.borrow().values() {
            if let Destination::Known { slot, .. } = destination {
                slot.http.doubt();
            }
        }
    }

    /// The answer about a destination; `None` lets it go, unless it is in use after all, and then it is asked for again.
    pub(crate) fn learn(
        &self,
        worker: &Worker,
        to: CapturedDestination,
        plan: Option<&OutboundPlan>,
    ) {
        let mut all = self.outbound.borrow_mut();
        let Some(plan) = plan else {
            match all.get(&to) {
                Some(Destination::Known { slot, used })
                    if used.get() || Rc::strong_count(slot) > 1 =>
                {
                    worker.tell(FromWorker::Destination(to));
                }
                Some(Destination::Asked(waiting)) if is_awaited(waiting) => {
                    worker.tell(FromWorker::Destination(to));
                }
                _ => {
                    all.remove(&to);
                    shrink(&mut all);
                }
            }
            return;
        };
        match all.get_mut(&to) {
            Some(Destination::Known { slot, .. }) => slot.follow(worker, plan, false),
            // Another worker asked; a connection here asks too and is answered at once.
            None => {}
            Some(Destination::Asked(waiting)) => {
                let slot = Rc::new(OutboundSlot::new(worker, plan));
                for parked in std::mem::take(waiting) {
                    // A connection that gave up waiting receives nothing.
                    let _ = parked.send(Rc::clone(&slot));
                }
                let used = Cell::new(true);
                all.insert(to, Destination::Known { slot, used });
            }
        }
    }

    /// The destinations that were called since the last time, or are being served.
    pub(crate) fn used(&self) -> Vec<CapturedDestination> {
        let all = self.outbound.borrow();
        all.iter()
            .filter(|(_, destination)| match destination {
                Destination::Asked(waiting) => is_awaited(waiting),
                Destination::Known { slot, used } => {
                    // A destination with open connections counts as used, and once more when its last
                    // connection ends.
                    let is_served = Rc::strong_count(slot) > 1;
                    used.replace(is_served) || is_served
                }
            })
            .map(|(to, _)| to.clone())
            .collect()
    }

    pub(crate) fn relieve(&self) {
        for held in self.inbound.borrow().values() {
            if let Some(slot) = held.slot() {
                slot.http.relieve();
            }
        }
        for destination in self.outbound.borrow().values() {
            if let Destination::Known { slot, .. } = destination {
                slot.http.relieve();
            }
        }
    }

    pub(crate) fn drain(&self, gently: bool) {
        self.leaving.give();
        for held in self.inbound.borrow().values() {
            if let Some(slot) = held.slot() {
                slot.http.drain(gently);
            }
        }
        for destination in self.outbound.borrow().values() {
            if let Destination::Known { slot, .. } = destination {
                slot.http.drain(gently);
            }
        }
    }

    pub(crate) fn idle_upstreams(&self) -> usize {
        let inbound = self.inbound.borrow();
        let inbound = inbound.values().filter_map(CapturedListener::slot);
        let outbound = self.outbound.borrow();
        let outbound = outbound.values().map(|destination| match destination {
            Destination::Asked(_) => 0,
            Destination::Known { slot, .. } => slot.http.idle_upstreams(),
        });
        inbound
            .map(|slot| slot.http.idle_upstreams())
            .chain(outbound)
            .sum()
    }

    /// The slot for calls to one of our own addresses; `None` when the address is not ours.
    pub(in crate::worker) fn own(
        &self,
        worker: &Worker,
        to: SocketAddr,
    ) -> Option<Rc<InboundSlot>> {
        let mut all = self.inbound.borrow_mut();
        if let Some(slot) = all.get(&to).and_then(CapturedListener::slot) {
            return Some(slot);
        }
        // A neighbour may send us packets for any address; forwarding those would make us an open relay.
        if !transport::is_local(to.ip()) {
            return None;
        }
        let plan = self.plan.borrow();
        let plan = plan.as_ref()?;
        let slot = Rc::new(InboundSlot::new(worker, &plan.inbound(to)));
        if all.len() == all.capacity() {
            all.retain(|_, held| held.slot().is_some());
        }
        all.insert(to, hold(plan, to, &slot));
        Some(slot)
    }

    /// Our own port for a port of a service of this host; `None` if our workload is behind no such service.
    pub(in crate::worker) fn named(&self, host: &str, port: u16) -> Option<u16> {
        let plan = self.plan.borrow();
        plan.as_ref()?.named.get(host)?.get(&port).copied()
    }

    /// Slot of an address; asks and waits if it is unknown. An error if too many connections wait already, or no answer
    /// comes in time.
    pub(crate) async fn destination(
        &self,
        worker: &Worker,
        to: CapturedDestination,
    ) -> Result<Rc<OutboundSlot>, Overload> {
        let refused = || {
            worker.seat.ledger.count_refused(Overload::Waiting);
            Overload::Waiting
        };
        let (parked, mut answer) = {
            let mut all = self.outbound.borrow_mut();
            if let Some(Destination::Known { slot, used }) = all.get(&to) {
                used.set(true);
                return Ok(Rc::clone(slot));
            }
            let parked = Parked::begin(&self.parked).ok_or_else(refused)?;
            let (sender, answer) = oneshot::channel();
            match all.get_mut(&to) {
                Some(Destination::Asked(waiting)) => {
                    waiting.retain(|parked| !parked.is_closed());
                    waiting.push(sender);
                }
                _ => {
                    all.insert(to.clone(), Destination::Asked(vec![sender]));
                    worker.tell(FromWorker::Destination(to.clone()));
                }
            }
            (parked, answer)
        };
        let mut found = tokio::time::timeout(LOOKUP_PATIENCE, &mut answer).await;
        if found.is_err() {
            worker.tell(FromWorker::Overdue(to));
            found = tokio::time::timeout(LAST_PATIENCE, answer).await;
        }
        drop(parked);
        found.ok().and_then(Result::ok).ok_or_else(refused)
    }
}

/// A map that once was large gives its room back.
fn shrink(all: &mut HashMap<CapturedDestination, Destination>) {
    const LEAST: usize = 64; // entries: less is not worth the copy
    if all.len() < all.capacity() / 4 {
        all.shrink_to((all.len() * 2).max(LEAST));
    }
}

fn is_awaited(waiting: &[oneshot::Sender<Rc<OutboundSlot>>]) -> bool {
    waiting.iter().any(|parked| !parked.is_closed())
}

fn hold(plan: &CapturePlan, to: SocketAddr, slot: &Rc<InboundSlot>) -> CapturedListener {
    match plan.ports.contains_key(&to.port()) {
        true => CapturedListener::Declared(Rc::clone(slot)),
        false => CapturedListener::Undeclared(Rc::downgrade(slot)),
    }
}

/// Original destination of a connection; `None` for a connection that was not redirected, and for one that would
/// loop back to this proxy.
pub(crate) fn original(worker: &Worker, stream: &StdStream) -> Option<SocketAddr> {
    let to = transport::original_destination(stream).ok().flatten()?;
    let ours = worker.capture.ports.contains(&to.port());
    (!ours || !transport::is_local(to.ip())).then_some(to)
}
