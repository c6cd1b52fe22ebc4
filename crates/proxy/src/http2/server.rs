//! One downstream HTTP/2 connection: its task moves the frames, each stream has a task of its own.
//!
//! ```text
//! preface → ┌ poll h2 ─► new streams ─► stream tasks ┐
//!           └──────── one flush ◄────────────────────┘ … until GOAWAY (drain, idle, abuse), error or the client's end
//! ```

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use h2::Reason;
use h2::server::{self, Connection};

use super::limits::{
    CONNECTION_WINDOW, MAX_DOWNSTREAM_STREAMS, MAX_FRAME, MAX_HEADER_LIST, MAX_PREMATURE_RESETS,
    MAX_PROVOKED_RESETS, MAX_REMEMBERED_RESETS, MAX_SEND_BUFFER, MAX_UNSEEN_RESETS,
    REMEMBER_RESETS, STREAM_WINDOW,
};
use super::outlet::{Coalesced, Outlet};
use super::stream;
use crate::http::drain::Listening;
use crate::http::io::Io;
use crate::http::timer::Timer;
use crate::http::{ConnectionEnd, HttpRole, HttpWorker};

/// What the streams of a connection tell its task.
#[derive(Default)]
pub(crate) struct Session {
    /// Streams being served.
    live: Cell<usize>,
    /// Streams begun.
    begun: Cell<u32>,
    /// Of these, given up by the client before they were worth anything.
    premature: Cell<u32>,
    /// When the last stream ended.
    rested: Cell<Option<Instant>>,
}

impl Session {
    pub(crate) fn given_up(&self) {
        self.premature.set(self.premature.get().saturating_add(1));
    }

    /// Whether the client makes work without wanting its results.
    fn is_abused(&self) -> bool {
        let premature = self.premature.get();
        premature >= MAX_PREMATURE_RESETS && premature > self.begun.get() / 2
    }
}

/// One stream's place in its session.
pub(crate) struct Live(pub(crate) Rc<Session>);

impl Live {
    fn begin(session: &Rc<Session>) -> Self {
        session.live.set(session.live.get() + 1);
        session.begun.set(session.begun.get().saturating_add(1));
        Self(Rc::clone(session))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.set(self.0.live.get() - 1);
        if self.0.live.get() == 0 {
            self.0.rested.set(Some(Instant::now()));
        }
    }
}

fn builder() -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_concurrent_streams(MAX_DOWNSTREAM_STREAMS)
        .max_send_buffer_size(MAX_SEND_BUFFER)
        .max_concurrent_reset_streams(MAX_REMEMBERED_RESETS)
        .reset_stream_duration(REMEMBER_RESETS)
        .max_pending_accept_reset_streams(MAX_UNSEEN_RESETS)
        .max_local_error_reset_streams(Some(MAX_PROVOKED_RESETS))
        .enable_connect_protocol();
    builder
}

/// Serves one downstream connection whose client speaks HTTP/2 from the first byte, until it ends.
pub async fn serve_connection<S: Io + 'static, R: HttpRole + 'static>(
    worker: &Rc<HttpWorker<R>>,
    role: Rc<R>,
    stream: S,
) -> ConnectionEnd {
    let (outlet, io) = Outlet::new(stream, worker.buffers.clone());
    let mut handshake = pin!(builder().handshake(io));
    let greeting = poll_fn(|cx| {
        if let Poll::Ready(connection) = handshake.as_mut().poll(cx) {
            return Poll::Ready(connection.ok());
        }
        match outlet.poll_flush(cx) {
            Poll::Ready(Err(_)) => Poll::Ready(None),
            _ => Poll::Pending,
        }
    });
    let greeted = tokio::time::timeout(worker.timeouts.header, greeting).await;
    let Ok(Some(connection)) = greeted else {
        // What we had to say (a GOAWAY) may be all that can be said.
        let _ = poll_fn(|cx| outlet.poll_flush(cx)).await;
        return ConnectionEnd::Refused;
    };
    let serving = Serving {
        worker,
        role,
        connection,
        outlet,
        session: Rc::default(),
        listening: None,
        timer: Timer::default(),
        began: Instant::now(),
        stuck: None,
        leaving: false,
    };
    serving.serve().await
}

struct Serving<'a, S: Io, R: HttpRole> {
    worker: &'a Rc<HttpWorker<R>>,
    role: Rc<R>,
    connection: Connection<Coalesced<S>, Bytes>,
    outlet: Outlet<S>,
    session: Rc<Session>,
    listening: Option<Listening>,
    timer: Timer,
    began: Instant,
    /// Since when the client has taken nothing of what we have for it.
    stuck: Option<Instant>,
    /// GOAWAY was said.
    leaving: bool,
}

impl<S: Io + 'static, R: HttpRole + 'static> Serving<'_, S, R> {
    async fn serve(mut self) -> ConnectionEnd {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        match &self.listening {
            Some(listening) => listening.refresh(cx),
            None => self.listening = Some(self.worker.drain.listen(cx)),
        }
        loop {
            if self.worker.drain.is_draining() {
                self.leave();
            }
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    let live = Live::begin(&self.session);
                    let (worker, role) = (Rc::clone(self.worker), Rc::clone(&self.role));
                    tokio::task::spawn_local(stream::serve(worker, role, live, request, respond));
                    continue;
                }
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "HTTP/2 connection ended");
                    return Poll::Ready(ConnectionEnd::Aborted);
                }
                Poll::Ready(None) => return Poll::Ready(ConnectionEnd::Clean),
                Poll::Pending => {}
            }
            if self.session.is_abused() && !self.leaving {
                self.leaving = true;
                self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                continue;
            }
            match self.outlet.poll_flush(cx) {
                Poll::Ready(Ok(true)) => continue,
                Poll::Ready(Ok(false)) => self.stuck = None,
                Poll::Ready(Err(_)) => return Poll::Ready(ConnectionEnd::Aborted),
                Poll::Pending => {
                    let since = *self.stuck.get_or_insert_with(Instant::now);
                    if self
                        .timer
                        .passed(cx, since + self.worker.timeouts.stream_idle)
                    {
                        self.outlet.abort();
                        return Poll::Ready(ConnectionEnd::Aborted);
                    }
                }
            }
            if self.session.live.get() > 0 || self.leaving {
                return Poll::Pending;
            }
            let rested = self.session.rested.get().unwrap_or(self.began);
            if !self
                .timer
                .passed(cx, rested + self.worker.timeouts.downstream_idle)
            {
                return Poll::Pending;
            }
            self.leave();
        }
    }

    /// Says GOAWAY; streams in flight finish.
    fn leave(&mut self) {
        if !self.leaving {
            self.leaving = true;
            self.connection.graceful_shutdown();
        }
    }
}
