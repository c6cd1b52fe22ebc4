//! A worker's thread: its runtime, the jobs that it gets, and the task of each connection.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use voile_http2::source_number;
use voile_memory::SourceConnections;
use voile_telemetry::tap::Tap;

use crate::dispatch::Load;
use crate::memory::{CONNECTION_BYTES, NodeMemory};
use crate::registry::RegistryView;
use crate::worker::{ControlPlaneClient, Job, NodeWorker, PodListener};

impl NodeWorker {
    /// Counts a connection until the value is dropped.
    fn list(self: &Rc<Self>, source: IpAddr, load: Load) -> ServedConnection {
        let ceiling = &self.memory.ceiling;
        ceiling.accepted();
        ServedConnection {
            worker: Rc::clone(self),
            number: match ceiling.is_set() {
                true => self.connections.begin(source_number(source, "")),
                false => SourceConnections::UNLISTED,
            },
            _load: load,
        }
    }

    fn begin(self: &Rc<Self>, job: Job) {
        match job {
            Job::Homes(homes) => *self.homes.borrow_mut() = homes,
            Job::Relieve => self.pool.close_idle(),
            Job::Shed(order) => self.shed(order),
            Job::Scrape(answer) => {
                // The asking side may be gone.
                let _ = answer.send(self.figures());
            }
            Job::Accepted {
                pod,
                door,
                stream,
                peer,
                load,
            } => {
                let stream = match tokio::net::TcpStream::from_std(stream) {
                    Ok(stream) => stream,
                    Err(error) => {
                        tracing::debug!(%error, "cannot serve a connection");
                        return;
                    }
                };
                let canonical = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                let served = self.list(canonical.ip(), load);
                let (worker, number) = (Rc::clone(self), served.number);
                // Each a task of its own kind: one for all would be as large as the largest.
                let task = match door {
                    PodListener::Outbound => tokio::task::spawn_local(async move {
                        crate::outbound::serve(&served.worker, &pod, stream, canonical).await;
                    }),
                    PodListener::Tunnel => tokio::task::spawn_local(async move {
                        crate::inbound::tunnels(&served.worker, &pod, stream, canonical).await;
                    }),
                    PodListener::Plaintext => tokio::task::spawn_local(async move {
                        crate::inbound::plaintext(&served.worker, &pod, stream, canonical).await;
                    }),
                };
                worker.connections.started(number, task.abort_handle());
            }
        }
    }
}

/// A connection's place in the worker's load and list; dropping it gives the place back.
struct ServedConnection {
    worker: Rc<NodeWorker>,
    number: usize,
    _load: Load,
}

impl Drop for ServedConnection {
    fn drop(&mut self) {
        self.worker.connections.end(self.number);
        self.worker.pool.blocks().freed(CONNECTION_BYTES);
    }
}

/// Runs a worker on the calling thread until its inbox is closed.
pub(crate) fn run(
    mut inbox: mpsc::UnboundedReceiver<Job>,
    mut changes: watch::Receiver<Arc<RegistryView>>,
    asker: ControlPlaneClient,
    shared: (Arc<NodeMemory>, Arc<Tap>),
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async move {
        let first = Arc::clone(&changes.borrow_and_update());
        let worker = Rc::new(NodeWorker::new(first, changes.clone(), asker, shared));
        loop {
            tokio::select! {
                biased;
                changed = changes.changed() => match changed {
                    Ok(()) => {
                        let view = Arc::clone(&changes.borrow_and_update());
                        worker.obey(view);
                    }
                    Err(_) => return,
                },
                job = inbox.recv() => match job {
                    Some(job) => worker.begin(job),
                    None => return,
                },
            }
        }
    });
    Ok(())
}
