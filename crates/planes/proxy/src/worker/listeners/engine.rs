//! HTTP engine of a listener, with its own pool, so that removing a listener empties it.

use std::cell::RefCell;
use std::rc::Rc;

use crate::http::limits::UPSTREAM_IDLE;
use crate::http::{Drain, HttpRole, HttpTimeouts, HttpWorker};
use crate::plan::Settings;
use crate::worker::Worker;

/// A listener's HTTP engine: its own pool, so that removing a listener empties it.
pub(crate) struct ListenerEngine<R: HttpRole> {
    engine: RefCell<Rc<HttpWorker<R>>>,
    drain: Drain,
}

impl<R: HttpRole + 'static> ListenerEngine<R> {
    pub(in crate::worker) fn new(worker: &Worker, settings: &Settings) -> Self {
        let drain = Drain::new();
        Self {
            engine: RefCell::new(engine(worker, &drain, settings)),
            drain,
        }
    }

    pub(crate) fn engine(&self) -> Rc<HttpWorker<R>> {
        Rc::clone(&self.engine.borrow())
    }

    /// The listener is gone: its connections finish.
    pub(crate) fn leave(&self) {
        self.drain(false);
    }

    /// Closes idle connections of clients and to upstreams.
    pub(crate) fn relieve(&self) {
        self.engine.borrow().close_idle_upstreams();
        self.drain.retire_idle();
    }

    /// Its exchanges in flight are judged again.
    pub(crate) fn judge_again(&self) {
        self.drain.judge_again();
    }

    /// Judges its exchanges again, and closes idle upstream connections.
    pub(crate) fn doubt(&self) {
        self.engine.borrow().close_idle_upstreams();
        self.drain.judge_again();
    }

    /// Its connections finish; gently, idle ones may speak once more.
    pub(crate) fn drain(&self, gently: bool) {
        match gently {
            true => self.drain.begin(),
            false => self.drain.start(),
        }
    }

    /// Ready when its connections are to finish.
    pub(crate) async fn leaving(&self) {
        self.drain.given().await;
    }

    /// Ready when connections that carry nothing are to close.
    pub(crate) async fn idle_unwelcome(&self) {
        self.drain.idle_unwelcome().await;
    }

    pub(crate) fn idle_upstreams(&self) -> usize {
        self.engine.borrow().idle_upstreams()
    }

    pub(in crate::worker) fn renew(&self, worker: &Worker, settings: &Settings) {
        *self.engine.borrow_mut() = engine(worker, &self.drain, settings);
    }
}

fn engine<R: HttpRole + 'static>(
    worker: &Worker,
    drain: &Drain,
    settings: &Settings,
) -> Rc<HttpWorker<R>> {
    let timeouts = HttpTimeouts {
        header: settings.header_timeout,
        downstream_idle: settings.idle_timeout,
        request: worker.seat.ledger.limits.request_timeout,
        min_body_rate: worker.seat.ledger.limits.min_body_rate,
        // A mesh's sidecars have one idle timeout: ours as a client is well within that of the other as a server.
        upstream_idle: UPSTREAM_IDLE.min(settings.idle_timeout / 2),
        ..HttpTimeouts::default()
    };
    let engine = HttpWorker::new(worker.buffers.clone(), drain.clone(), timeouts);
    tokio::task::spawn_local(engine.keeper());
    engine
}
