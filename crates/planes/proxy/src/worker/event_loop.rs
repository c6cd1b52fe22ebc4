//! A worker's thread: its runtime, and the loop that obeys the control thread's messages. The control thread starts it; nothing
//! else in the worker calls it.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::runtime::LocalOptions;
use tokio::sync::mpsc;
use voile_http2::source_number;
use voile_memory::SourceConnections;

use crate::http::clock;
use crate::plan::ListenerId;
use crate::worker::in_flight::{Overload, WorkerAccount};
use crate::worker::listeners::captured_listeners;
use crate::worker::listeners::listener_set::WorkerListeners;
use crate::worker::messages::{FromWorker, InUse, ToWorker, WorkerFigures};
use crate::worker::state::{ConnectionPermit, Redirected, Tls, Worker, count};

/// Parts from which a worker is made.
pub(crate) struct WorkerInputs {
    pub(crate) tls: Tls,
    pub(crate) inbox: mpsc::UnboundedReceiver<ToWorker>,
    pub(crate) control: mpsc::UnboundedSender<FromWorker>,
    pub(crate) capture: Redirected,
    /// Connections handed over and not yet ended; the accepting thread counts up, we count down.
    pub(crate) load: Arc<AtomicUsize>,
    pub(crate) seat: WorkerAccount,
}

/// Runs a worker on this thread until it has drained.
pub(crate) fn run(birth: WorkerInputs) -> std::io::Result<()> {
    // Tasks on the runtime itself: a `LocalSet` would be a second scheduler inside the first.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(LocalOptions::default())?;
    let worker = Worker::new(
        birth.tls,
        birth.control,
        birth.load,
        birth.capture,
        birth.seat,
    );
    runtime.block_on(async {
        let _clock = clock::start()?;
        serve(worker, birth.inbox).await;
        Ok(())
    })
}

/// Ends when the sender is gone (the control thread ends us) or when everything drained.
async fn serve(worker: Rc<Worker>, mut inbox: mpsc::UnboundedReceiver<ToWorker>) {
    let mut slots = WorkerListeners::default();
    while let Some(message) = inbox.recv().await {
        match message {
            ToWorker::Accepted {
                listener,
                stream,
                peer,
            } => accepted(&worker, &slots, listener, stream, peer),
            ToWorker::Http3 { listener, incoming } => {
                let place = placed(&worker, incoming.0.remote_address().ip());
                slots.serve_http3(&worker, listener, incoming, place);
            }
            ToWorker::Plan {
                plan,
                inbound,
                outbound,
                gateway,
                recording,
                heard,
            } => {
                worker.changed_at.set(heard);
                worker.record(&recording);
                slots.apply(&worker, &plan, [&inbound, &outbound, &gateway]);
                worker.tell_of_checks(plan);
            }
            ToWorker::Recording(recording) => worker.record(&recording),
            ToWorker::Peer { address, peer } => {
                worker
                    .provisional
                    .settle(&worker.shard, address, peer.as_deref());
                worker.peers.learn(address, peer.map(|peer| *peer));
            }
            ToWorker::Destination { to, plan } => slots.learn(&worker, to, plan),
            ToWorker::ServerFirst {
                place,
                server_first,
            } => worker.servers_first.learn(place, server_first),
            ToWorker::Used(answer) => {
                let _ = answer.send(InUse {
                    destinations: slots.captured.used(),
                    strangers: worker.peers.used(),
                });
            }
            ToWorker::Strangers(gone) => worker.peers.forget(&gone),
            ToWorker::Identity(principal) => worker.become_principal(principal),
            ToWorker::Scrape(answer) => {
                // A scraper that went away needs no answer.
                let _ = answer.send(figures(&worker, &slots));
            }
            ToWorker::Relieve => {
                slots.relieve();
                worker.relieve();
            }
            ToWorker::Shed(shed) => worker.shed(shed),
            ToWorker::Drain { gently } => {
                worker.draining.set(true);
                slots.drain(gently);
            }
        }
    }
    worker.stop.give();
    worker.shown.stop();
    // Cut relays end in resets, not in what looks like a finished stream; their tasks need a turn for that.
    for _ in 0..LAST_TURNS {
        tokio::task::yield_now().await;
    }
}

/// Turns of the runtime for the tasks that must stop, before everything is dropped.
const LAST_TURNS: usize = 16;

fn figures(worker: &Worker, slots: &WorkerListeners) -> WorkerFigures {
    worker.shard.borrow_mut().expire(Instant::now());
    WorkerFigures {
        snapshot: worker.shard.borrow().snapshot(),
        connections: worker.load.load(Ordering::Relaxed) as u64,
        accepted: worker.counters.accepted.get(),
        handshake_failures_downstream: worker.counters.handshake_failures_downstream.get(),
        handshake_failures_upstream: worker.counters.handshake_failures_upstream.get(),
        refused: worker.counters.refused.get(),
        idle_upstreams: slots.idle_upstreams(),
        retries: worker.counters.retries.get(),
        retries_over_budget: worker.counters.retries_over_budget.get(),
        mirrored: worker.counters.mirrored.get(),
        mirrors_dropped: worker.counters.mirrors_dropped.get(),
        outliers_ejected: worker.counters.outliers_ejected.get(),
        authorization: worker.counters.authorization.figures(),
        tokens: worker.counters.tokens.figures(),
    }
}

/// A connection that was handed over.
fn placed(worker: &Rc<Worker>, peer: IpAddr) -> ConnectionPermit {
    let held = worker.load.load(Ordering::Relaxed);
    worker.peak.set(worker.peak.get().max(held));
    count(&worker.counters.accepted);
    let number = match worker.seat.ledger.ceiling.is_set() {
        true => worker.connections.begin(source_number(peer, "")),
        false => SourceConnections::UNLISTED,
    };
    ConnectionPermit(Rc::clone(worker), number)
}

fn accepted(
    worker: &Rc<Worker>,
    slots: &WorkerListeners,
    listener: ListenerId,
    stream: TcpStream,
    peer: SocketAddr,
) {
    let place = placed(worker, peer.ip());
    worker.seat.ledger.ceiling.accepted();
    if worker.seat.ledger.ceiling.is_closed() {
        worker.seat.ledger.count_refused(Overload::Memory);
        return;
    }
    let captured = [ListenerId::CAPTURED_OUTBOUND, ListenerId::CAPTURED_INBOUND];
    let redirected = match listener {
        ListenerId::TUNNELS => Some(None),
        _ => captured
            .contains(&listener)
            .then(|| captured_listeners::original(worker, &stream)),
    };
    // Latency before packets: requests and answers are small.
    let stream = stream
        .set_nodelay(true)
        .and_then(|()| tokio::net::TcpStream::from_std(stream));
    let Ok(stream) = stream else {
        return; // The client left while it was handed over.
    };
    match redirected {
        None => slots.serve(worker, listener, stream, peer, place),
        Some(to) => slots.serve_captured(worker, listener, to, stream, peer, place),
    }
}
