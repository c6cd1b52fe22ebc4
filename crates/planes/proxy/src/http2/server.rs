//! One downstream HTTP/2 connection: its task moves the frames, each stream has a task of its own.
//!
//! ```text
//! preface → ┌ read ─► new streams ─► stream tasks ┐
//!           └──────── one write ◄─────────────────┘ … until GOAWAY (drain, idle, abuse), error or the client's end
//! ```

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use voile_http2::{Connection, ErrorCode, Http2End, Link};

use super::limits::CONFIG;
use super::socket::Wire;
use super::stream::StreamWork;
use crate::http::drain_signal::DrainListener;
use crate::http::io::Io;
use crate::http::timer::Timer;
use crate::http::{ConnectionEnd, HttpRole, HttpWorker};
use crate::http2::session::{Http2Session, Live};

/// Serves one downstream connection whose client speaks HTTP/2 from the first byte, until it ends. No `async fn`: the future of
/// one holds what it is given twice.
pub fn serve_connection<S: Io + 'static, R: HttpRole + 'static>(
    worker: &Rc<HttpWorker<R>>,
    role: Rc<R>,
    stream: S,
) -> impl Future<Output = ConnectionEnd> + use<'_, S, R> {
    // Boxed: it is over soon.
    let greeting = Box::pin(greet(worker, role.source(), stream));
    async move {
        let Some((link, wire)) = greeting.await else {
            return ConnectionEnd::Refused;
        };
        let mut serving = ServingConnection {
            worker,
            role,
            link,
            wire,
            session: Rc::default(),
            listening: None,
            judged: worker.drain.judgements(),
            timer: Timer::default(),
            began: Instant::now(),
            stuck: None,
        };
        serving.serve().await
    }
}

/// Waits for the client's preface and settings.
async fn greet<S: Io + 'static, R: HttpRole + 'static>(
    worker: &Rc<HttpWorker<R>>,
    source: u64,
    stream: S,
) -> Option<(Link, Wire<S>)> {
    let mut connection = Connection::server(&CONFIG, worker.buffers.http2.clone());
    connection.set_source(source);
    let link = Link::new(connection);
    let mut wire = Wire::new(stream, link.clone(), worker.buffers.clone());
    let greeting = poll_fn(|cx| {
        let moved = wire.poll(cx);
        let connection = link.borrow();
        if connection.is_greeted() {
            return Poll::Ready(true);
        }
        if connection.is_over() || matches!(moved, Poll::Ready(Err(_))) {
            return Poll::Ready(false);
        }
        Poll::Pending
    });
    let greeted = tokio::time::timeout(worker.timeouts.header, greeting).await;
    if !matches!(greeted, Ok(true)) {
        // A GOAWAY may be all that can be said.
        let _ = tokio::time::timeout(worker.timeouts.linger, wire.close()).await;
        return None;
    }
    Some((link, wire))
}

struct ServingConnection<'a, S: Io, R: HttpRole> {
    worker: &'a Rc<HttpWorker<R>>,
    role: Rc<R>,
    link: Link,
    wire: Wire<S>,
    session: Rc<Http2Session>,
    listening: Option<DrainListener>,
    /// The drain's judgements when the streams last heard of one.
    judged: u32,
    timer: Timer,
    began: Instant,
    /// Time since when the client has read nothing of its waiting bytes.
    stuck: Option<Instant>,
}

impl<S: Io + 'static, R: HttpRole + 'static> ServingConnection<'_, S, R> {
    async fn serve(&mut self) -> ConnectionEnd {
        let end = poll_fn(|cx| self.poll(cx)).await;
        if matches!(end, Http2End::Clean | Http2End::Error(_)) {
            // Late is as good as never.
            let _ = tokio::time::timeout(self.worker.timeouts.linger, self.wire.close()).await;
        }
        match end {
            Http2End::Clean => ConnectionEnd::Clean,
            Http2End::Closed if self.session.live.get() == 0 => ConnectionEnd::Clean,
            Http2End::Closed => ConnectionEnd::Aborted,
            Http2End::Error(reason) => {
                tracing::debug!(%reason, "HTTP/2 connection ended");
                ConnectionEnd::Aborted
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Http2End> {
        match &self.listening {
            Some(listening) => listening.refresh(cx),
            None => self.listening = Some(self.worker.drain.listen(cx)),
        }
        if self.judged != self.worker.drain.judgements() {
            self.judged = self.worker.drain.judgements();
            self.link.borrow().wake_streams();
            if self.role.is_unwelcome() {
                self.link.borrow().leave();
            }
        }
        loop {
            if self.worker.drain.is_draining() {
                self.link.borrow().leave();
            }
            let moved = self.wire.poll(cx);
            self.accept();
            if matches!(moved, Poll::Ready(Err(_))) {
                self.link.borrow().closed();
            }
            let mut connection = self.link.borrow();
            if self.session.is_abused() && !connection.is_over() {
                connection.abort(ErrorCode::ENHANCE_YOUR_CALM);
            }
            if let Some(end) = connection.end() {
                return Poll::Ready(end);
            }
            let leaving = connection.is_leaving();
            if moved.is_ready() && !connection.output().is_empty() {
                continue;
            }
            drop(connection);
            let idle = self.worker.timeouts.downstream_idle;
            let stream_idle = self.worker.timeouts.stream_idle;
            if moved.is_ready() {
                self.stuck = None;
            } else {
                let since = *self.stuck.get_or_insert_with(Instant::now);
                if self.timer.passed(cx, since + stream_idle) {
                    self.wire.abort();
                    self.link.borrow().closed();
                    return Poll::Ready(Http2End::Closed);
                }
            }
            if self.session.live.get() > 0 || leaving {
                return Poll::Pending;
            }
            let rested = self.session.rested.get().unwrap_or(self.began);
            if !self.timer.passed(cx, rested + idle) {
                return Poll::Pending;
            }
            self.link.borrow().leave();
        }
    }

    /// Every new stream gets a task of its own.
    fn accept(&self) {
        while let Some((head, body, respond)) = self.link.accept() {
            let live = Live::begin(&self.session);
            self.worker.runners.serve(StreamWork {
                worker: Rc::clone(self.worker),
                role: Rc::clone(&self.role),
                live,
                head,
                body,
                respond,
            });
        }
        let unseen = self.link.borrow().take_unseen();
        if unseen > 0 {
            self.session.unseen(unseen);
        }
    }
}
