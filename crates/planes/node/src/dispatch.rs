//! Dispatches each connection to the least loaded worker. Releases memory that start-up took and that ended
//! connections held.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, mpsc, oneshot};
use voile_memory::{Ceiling, MemoryHolders, ShedOrder, TextSettling};
use voile_telemetry::tap::Tap;
use voile_transport::{MAX_CONNECTIONS, ShedCounter};

use crate::memory::NodeMemory;
use crate::pod::Pod;
use crate::worker::{Homes, Job, NodeCounters, PodListener};

/// Connections of one worker whose end is worth freeing memory.
const MANY_CONNECTIONS: usize = 64;

/// Number of connections of a worker.
#[derive(Debug)]
pub(crate) struct WorkerLoad {
    count: AtomicUsize,
    /// The most since it was said last that most are gone.
    peak: AtomicUsize,
    emptied: Arc<Notify>,
}

impl WorkerLoad {
    pub(crate) fn new(emptied: &Arc<Notify>) -> Self {
        Self {
            count: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            emptied: Arc::clone(emptied),
        }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// One connection's share of a worker's load.
#[derive(Debug)]
pub(crate) struct Load(Arc<WorkerLoad>);

impl Load {
    fn new(of: &Arc<WorkerLoad>) -> Self {
        let count = of.count.fetch_add(1, Ordering::Relaxed) + 1;
        of.peak.fetch_max(count, Ordering::Relaxed);
        Self(Arc::clone(of))
    }
}

impl Drop for Load {
    /// Says when three of four connections are gone.
    fn drop(&mut self) {
        let left = self.0.count.fetch_sub(1, Ordering::Relaxed) - 1;
        let peak = self.0.peak.load(Ordering::Relaxed);
        if peak >= MANY_CONNECTIONS && left < peak / 4 {
            self.0.peak.store(left, Ordering::Relaxed);
            self.0.emptied.notify_one();
        }
    }
}

/// The way to a worker.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) sender: mpsc::UnboundedSender<Job>,
    pub(crate) load: Arc<WorkerLoad>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    workers: RefCell<Vec<Handle>>,
    memory: Arc<NodeMemory>,
    /// For people who watch connections.
    pub(crate) tap: Arc<Tap>,
    /// Connections closed at once for want of descriptors or room.
    pub(crate) shed: ShedCounter,
    settling: TextSettling,
}

impl Dispatcher {
    pub(crate) fn new(workers: Vec<Handle>, memory: Arc<NodeMemory>, tap: Arc<Tap>) -> Self {
        Self {
            workers: RefCell::new(workers),
            memory,
            tap,
            shed: ShedCounter::default(),
            settling: TextSettling::default(),
        }
    }

    /// Releases, a while from now, the program pages that recent work touched: there was news of the mesh.
    pub(crate) fn told(&self) {
        self.settling.arrived();
    }

    /// The same, and the free heap: pods came or went, or most connections ended.
    pub(crate) fn settle(&self) {
        self.settling.freed();
    }

    /// Connections of all workers.
    pub(crate) fn load(&self) -> usize {
        let workers = self.workers.borrow();
        let loads = workers.iter().map(|worker| worker.load.count());
        loads.sum()
    }

    pub(crate) fn hand_over(
        &self,
        pod: &Arc<Pod>,
        door: PodListener,
        stream: TcpStream,
        peer: SocketAddr,
    ) {
        if !self.memory.takes_work() {
            return;
        }
        let workers = self.workers.borrow();
        let Some(worker) = least_loaded(&workers) else {
            return;
        };
        self.settling.arrived();
        if worker.load.count() >= MAX_CONNECTIONS {
            self.shed
                .count("every worker has MAX_CONNECTIONS connections");
            return;
        }
        // A worker that panics now hears nothing, and its connections close.
        let _ = worker.sender.send(Job::Accepted {
            pod: Arc::clone(pod),
            door,
            stream,
            peer,
            load: Load::new(&worker.load),
        });
    }

    /// Tells every worker which pods there are.
    pub(crate) fn tell_homes(&self, homes: &Arc<Homes>) {
        self.settle();
        self.broadcast(|| Job::Homes(Arc::clone(homes)));
    }

    fn broadcast(&self, job: impl Fn() -> Job) {
        for worker in self.workers.borrow().iter() {
            // As above.
            let _ = worker.sender.send(job());
        }
    }

    /// Connections and tunnels that were refused for want of memory.
    pub(crate) fn refused_for_memory(&self) -> u64 {
        self.memory.refused()
    }

    /// Asks every worker for its counters.
    pub(crate) fn scrape(&self) -> Vec<oneshot::Receiver<NodeCounters>> {
        let ask = |worker: &Handle| {
            let (answer, answered) = oneshot::channel();
            // As above.
            let _ = worker.sender.send(Job::Scrape(answer));
            answered
        };
        self.workers.borrow().iter().map(ask).collect()
    }

    /// Lets the workers go.
    pub(crate) fn dismiss(&self) {
        self.workers.borrow_mut().clear();
    }
}

/// The worker with the fewest connections of those that live. One whose thread has panicked has none, and must get none.
fn least_loaded(workers: &[Handle]) -> Option<&Handle> {
    let alive = workers.iter().filter(|worker| !worker.sender.is_closed());
    alive.min_by_key(|worker| worker.load.count())
}

impl MemoryHolders for Dispatcher {
    fn ceiling(&self) -> &Ceiling {
        &self.memory.ceiling
    }

    fn close_idle(&self) {
        self.broadcast(|| Job::Relieve);
    }

    fn shed(&self, order: ShedOrder) {
        self.broadcast(|| Job::Shed(order));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if the burden has notified that most connections ended.
    fn is_emptied(emptied: &Notify) -> bool {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let asked = std::pin::pin!(emptied.notified());
        asked.poll(&mut cx).is_ready()
    }

    #[test]
    fn a_worker_that_has_ended_gets_no_connection() {
        let emptied = Arc::new(Notify::new());
        let worker = || {
            let (sender, jobs) = mpsc::unbounded_channel();
            let load = Arc::new(WorkerLoad::new(&emptied));
            (Handle { sender, load }, jobs)
        };
        let (ended, jobs) = worker();
        let (alive, alive_jobs) = worker();
        let load = Load::new(&alive.load);
        let workers = [ended, alive];
        let chosen = || least_loaded(&workers).map(|worker| worker.load.count());
        assert_eq!(chosen(), Some(0), "the idle one");
        drop(jobs);
        assert_eq!(chosen(), Some(1), "the one that lives");
        drop(alive_jobs);
        assert_eq!(chosen(), None);
        drop(load);
    }

    #[test]
    fn the_end_of_most_of_many_connections_is_said_once() {
        let emptied = Arc::new(Notify::new());
        let burden = Arc::new(WorkerLoad::new(&emptied));
        let hold = |count| -> Vec<Load> { (0..count).map(|_| Load::new(&burden)).collect() };
        let mut few = hold(MANY_CONNECTIONS - 1);
        few.clear();
        assert!(!is_emptied(&emptied), "they were not many");
        let mut many = hold(MANY_CONNECTIONS);
        many.truncate(MANY_CONNECTIONS / 4);
        assert!(!is_emptied(&emptied), "a quarter is there yet");
        many.pop();
        assert!(is_emptied(&emptied));
        many.clear();
        assert!(!is_emptied(&emptied), "it was said");
        let mut again = hold(MANY_CONNECTIONS);
        again.clear();
        assert!(is_emptied(&emptied));
        assert_eq!(burden.count(), 0);
    }
}
