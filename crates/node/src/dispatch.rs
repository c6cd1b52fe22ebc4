//! Which worker a connection goes to: the least loaded.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, oneshot};
use voile_transport::MAX_CONNECTIONS;

use crate::pod::Pod;
use crate::worker::{Door, Figures, Homes, Job, Load};

/// The way to a worker.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) sender: mpsc::UnboundedSender<Job>,
    pub(crate) load: Arc<AtomicUsize>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    workers: RefCell<Vec<Handle>>,
}

impl Dispatcher {
    pub(crate) fn new(workers: Vec<Handle>) -> Self {
        Self {
            workers: RefCell::new(workers),
        }
    }

    /// Connections of all workers.
    pub(crate) fn load(&self) -> usize {
        let workers = self.workers.borrow();
        let loads = workers
            .iter()
            .map(|worker| worker.load.load(Ordering::Relaxed));
        loads.sum()
    }

    pub(crate) fn hand_over(
        &self,
        pod: &Arc<Pod>,
        door: Door,
        stream: TcpStream,
        peer: SocketAddr,
    ) {
        let workers = self.workers.borrow();
        let load = |worker: &&Handle| worker.load.load(Ordering::Relaxed);
        let Some(worker) = workers.iter().min_by_key(load) else {
            return;
        };
        if load(&worker) >= MAX_CONNECTIONS {
            tracing::warn!("every worker holds {MAX_CONNECTIONS} connections: one is closed");
            return;
        }
        // A worker that panicked hears nothing, and its connections close.
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
        for worker in self.workers.borrow().iter() {
            // As above.
            let _ = worker.sender.send(Job::Homes(Arc::clone(homes)));
        }
    }

    /// Asks every worker for its counters.
    pub(crate) fn scrape(&self) -> Vec<oneshot::Receiver<Figures>> {
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
