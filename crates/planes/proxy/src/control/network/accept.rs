//! Accepting on one thread, serving on the least loaded: with one queue per port no worker idles while another's
//! connections wait, and sixteen connections become eight and eight.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quinn::Incoming;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use voile_memory::{Ceiling, MemoryHolders, MemoryPressure, ShedOrder, TextSettling};
use voile_transport::{
    ACCEPT_PAUSE, AcceptFailure, Listener, MAX_CONNECTIONS, ShedCounter, SpareDescriptor,
};

use crate::plan::ListenerId;
use crate::worker::{HandshakePermit, Ledger, ToWorker};

/// The way to a worker.
#[derive(Debug)]
pub(in crate::control) struct WorkerHandle {
    pub(in crate::control) sender: mpsc::UnboundedSender<ToWorker>,
    /// Connections handed over and not ended.
    pub(in crate::control) load: Arc<AtomicUsize>,
}

/// See the module.
pub(in crate::control) struct Dispatcher {
    workers: RefCell<Vec<WorkerHandle>>,
    ledger: Arc<Ledger>,
    first: Cell<usize>,
    spare: RefCell<SpareDescriptor>,
    /// Connections closed at once for want of descriptors or room.
    pub(in crate::control) shed: ShedCounter,
    short: Notify,
    settling: TextSettling,
}

impl Dispatcher {
    pub(in crate::control) fn new(
        workers: Vec<WorkerHandle>,
        ledger: Arc<Ledger>,
    ) -> io::Result<Self> {
        Ok(Self {
            ledger,
            workers: RefCell::new(workers),
            first: Cell::new(0),
            spare: RefCell::new(SpareDescriptor::reserve()?),
            shed: ShedCounter::default(),
            short: Notify::new(),
            settling: TextSettling::default(),
        })
    }

    /// Tells every worker.
    pub(in crate::control) fn broadcast(&self, message: impl Fn() -> ToWorker) {
        for worker in self.workers.borrow().iter() {
            // A worker that panicked hears nothing; its thread's end is reported at join.
            let _ = worker.sender.send(message());
        }
    }

    /// Sends a question to every worker; a worker that is gone never answers.
    pub(in crate::control) fn ask<T>(
        &self,
        question: impl Fn(oneshot::Sender<T>) -> ToWorker,
    ) -> Vec<oneshot::Receiver<T>> {
        let workers = self.workers.borrow();
        let ask = |worker: &WorkerHandle| {
            let (answer, answered) = oneshot::channel();
            let _ = worker.sender.send(question(answer));
            answered
        };
        workers.iter().map(ask).collect()
    }

    /// Counts of the work in flight over all workers.
    pub(in crate::control) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Ready when a connection was refused for want of memory.
    pub(in crate::control) async fn memory_short(&self) {
        self.short.notified().await;
    }

    /// Why a connection has no place here, if it has none.
    fn full(&self) -> Option<&'static str> {
        let most = self.ledger.max_connections();
        let ceiling = &self.ledger.ceiling;
        if ceiling.arrived() == Some(MemoryPressure::Closed) || ceiling.is_closed() {
            // No worker sees this connection, so only this signal makes room.
            self.short.notify_one();
            return Some("the memory limit is near");
        }
        (most > 0 && self.load() >= most as usize)
            .then_some("the proxy has --max-connections connections")
    }

    /// Connections of all workers.
    pub(in crate::control) fn load(&self) -> usize {
        self.workers
            .borrow()
            .iter()
            .map(|worker| worker.load.load(Ordering::Relaxed))
            .sum()
    }

    /// Lets the workers go: they end when their queue is empty.
    pub(in crate::control) fn dismiss(&self) {
        self.workers.borrow_mut().clear();
    }

    fn hand_over(&self, listener: ListenerId, stream: TcpStream, peer: SocketAddr) {
        let accepted = ToWorker::Accepted {
            listener,
            stream,
            peer,
        };
        self.give(accepted);
    }

    /// Gives an HTTP/3 connection to a worker; refuses it if there is no room.
    pub(in crate::control) fn hand_over_http3(
        &self,
        listener: ListenerId,
        incoming: Incoming,
        handshaking: HandshakePermit,
    ) {
        self.give(ToWorker::Http3 {
            listener,
            incoming: Box::new((incoming, handshaking)),
        });
    }

    /// Gives a connection to the least loaded worker; refuses it if there is no room.
    fn give(&self, accepted: ToWorker) {
        if let Some(reason) = self.full() {
            drop(accepted);
            self.shed.count(reason);
            return;
        }
        self.settling.arrived();
        let workers = self.workers.borrow();
        // Equals take turns.
        let first = self.first.get();
        self.first.set((first + 1) % workers.len().max(1));
        let Some(worker) = least_loaded(&workers, first) else {
            return;
        };
        if worker.load.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
            drop(accepted);
            self.shed
                .count("every worker has MAX_CONNECTIONS connections");
            return;
        }
        worker.load.fetch_add(1, Ordering::Relaxed);
        let _ = worker.sender.send(accepted);
    }

    /// The proxy has started: the memory of the start is given back once waiting processes have been told.
    pub(in crate::control) fn begun(&self) {
        self.settling.begun();
    }

    /// The mesh changed: reading of it took much that serving does not, and more of the heap than it holds where much was read.
    pub(in crate::control) fn told(&self, has_read_much: bool) {
        match has_read_much {
            true => self.settling.freed(),
            false => self.settling.told(),
        }
    }
}

impl MemoryHolders for Dispatcher {
    fn ceiling(&self) -> &Ceiling {
        &self.ledger.ceiling
    }

    fn close_idle(&self) {
        self.broadcast(|| ToWorker::Relieve);
    }

    fn shed(&self, order: ShedOrder) {
        self.broadcast(|| ToWorker::Shed(order));
    }

    fn forget_unused(&self) {
        self.ledger.forget_unused();
    }
}

/// The worker with the fewest connections of those that live, from this one on. One whose thread has panicked must get none.
fn least_loaded(workers: &[WorkerHandle], first: usize) -> Option<&WorkerHandle> {
    let (before, from) = workers.split_at(first.min(workers.len()));
    let alive = from
        .iter()
        .chain(before)
        .filter(|worker| !worker.sender.is_closed());
    alive.min_by_key(|worker| worker.load.load(Ordering::Relaxed))
}

/// Accepts until told to stop; then accepts the connections that already wait, so that closing the socket
/// resets none.
pub(in crate::control) async fn accept(
    listener: Listener,
    id: ListenerId,
    dispatcher: Rc<Dispatcher>,
    mut stop: watch::Receiver<()>,
) {
    loop {
        tokio::select! {
            accepted = listener.accept(&dispatcher.spare) => {
                if !take(accepted, id, &dispatcher, &listener).await {
                    return;
                }
            }
            _ = stop.changed() => break,
        }
    }
    loop {
        tokio::select! {
            biased;
            accepted = listener.accept(&dispatcher.spare) => match accepted {
                Ok((stream, peer)) => dispatcher.hand_over(id, stream, peer),
                Err(_) => return,
            },
            () = std::future::ready(()) => return,
        }
    }
}

async fn take(
    accepted: Result<(TcpStream, SocketAddr), AcceptFailure>,
    id: ListenerId,
    dispatcher: &Dispatcher,
    listener: &Listener,
) -> bool {
    match accepted {
        Ok((stream, peer)) => dispatcher.hand_over(id, stream, peer),
        Err(AcceptFailure::Shed) => {
            dispatcher.shed.count("out of descriptors");
            // Let connections end before the next is shed.
            tokio::task::yield_now().await;
        }
        Err(AcceptFailure::Exhausted(error)) => {
            tracing::debug!(%error, "cannot accept; pausing");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        Err(AcceptFailure::Broken(error)) => {
            tracing::error!(address = %listener.address(), %error, "a listener failed");
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idlest_of_the_living_workers_is_next_and_equals_take_turns() {
        let worker = |load| {
            let (sender, jobs) = mpsc::unbounded_channel();
            let load = Arc::new(AtomicUsize::new(load));
            (WorkerHandle { sender, load }, jobs)
        };
        let (workers, mut jobs): (Vec<_>, Vec<_>) = [0, 2, 1, 1].map(worker).into_iter().unzip();
        let next = |first| {
            let chosen = least_loaded(&workers, first);
            workers
                .iter()
                .position(|one| chosen.is_some_and(|it| std::ptr::eq(it, one)))
        };
        assert_eq!([next(0), next(1), next(3)], [Some(0); 3]);
        // The idle one has ended.
        jobs.remove(0);
        assert_eq!(
            [next(0), next(1), next(2), next(3)],
            [Some(2), Some(2), Some(2), Some(3)]
        );
        jobs.clear();
        assert_eq!(next(0), None);
    }
}
