//! One QUIC connection on its worker: each of its requests has a task of its own. The worker's signals about all requests (no
//! more, judge again) and the limits of a connection are those of HTTP/2.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use quinn::{Connection, Incoming, RecvStream, SendStream};
use rustls::pki_types::CertificateDer;
use tokio::task::JoinSet;
use voile_http3::{Code, goaway, purpose, put_integer, settings};

use super::crypto::HandshakeInfo;
use super::quic;
use super::request::{self, RequestOutcome};
use super::session::Http3Session;
use super::streams::{self, Seen};
use crate::http::drain_signal::DrainListener;
use crate::http::timer::Timer;
use crate::http::{HttpRole, HttpWorker};
use crate::http2::limits::{
    FORGIVING_STREAMS, MAX_HEADER_LIST, MAX_PREMATURE_RESETS, MAX_PROVOKED_RESETS,
};

/// A connection whose handshake is done.
pub(crate) struct CarriedConnection {
    pub(crate) connection: Connection,
    pub(crate) shown: HandshakeInfo,
    /// Certificates that the client showed.
    pub(crate) certificates: Vec<CertificateDer<'static>>,
}

/// Shortest time that a closing connection stays open; it also waits three round trips to the client. Requests in flight
/// meanwhile are answered, and a client that only just connected learns the reason.
const FAREWELL: Duration = Duration::from_millis(100);

/// Why there is none.
pub(crate) type Failed = String;

impl CarriedConnection {
    /// Shakes hands.
    pub(crate) async fn accept(incoming: Incoming, patience: Duration) -> Result<Self, Failed> {
        let connecting = incoming.accept().map_err(|error| error.to_string())?;
        let connection = tokio::time::timeout(patience, connecting).await;
        let connection = connection
            .map_err(|_| "the handshake timed out".to_owned())?
            .map_err(|error| error.to_string())?;
        let shown = connection.handshake_data();
        let shown = shown.and_then(|shown| shown.downcast::<HandshakeInfo>().ok());
        let shown = *shown.ok_or("the handshake has no data")?;
        let certificates = connection.peer_identity();
        let certificates = certificates.and_then(|shown| shown.downcast::<Vec<_>>().ok());
        Ok(Self {
            certificates: certificates.map(|shown| *shown).unwrap_or_default(),
            connection,
            shown,
        })
    }

    /// Ends it without a word about requests.
    pub(crate) fn refuse(&self) {
        let code = quic(Code::REQUEST_REJECTED);
        self.connection.close(code, b"connect again");
    }
}

/// Serves a connection until it ends. A stream that `takes_stream` refuses is rejected unread.
pub(crate) async fn serve<R: HttpRole + 'static>(
    worker: Rc<HttpWorker<R>>,
    role: Rc<R>,
    connection: Connection,
    takes_stream: impl Fn() -> bool,
) {
    let session = Http3Session::new(worker.buffers.http2.clone(), role.source());
    let mut carrier = QuicCarrier {
        departure: Departure {
            judged: worker.drain.judgements(),
            worker: Rc::clone(&worker),
            role: Rc::clone(&role),
            session: Rc::clone(&session),
            listening: None,
            timer: Timer::default(),
            began: Instant::now(),
        },
        worker,
        role,
        session,
        connection,
        requests: JoinSet::new(),
        streams: JoinSet::new(),
        seen: Seen::default(),
        control: None,
        next: 0,
        unseen: 0,
        provoked: 0,
        well: 0,
    };
    let carried = carrier.carry(takes_stream).await;
    // The connection is closed before its critical streams are: a client that hears of them first takes that for another
    // error (RFC 9114 section 6.2.1).
    carrier.close(carried.err().unwrap_or(Code::NO_ERROR));
}

struct QuicCarrier<R: HttpRole> {
    departure: Departure<R>,
    worker: Rc<HttpWorker<R>>,
    role: Rc<R>,
    session: Rc<Http3Session>,
    connection: Connection,
    requests: JoinSet<Result<RequestOutcome, Code>>,
    streams: JoinSet<Result<(), Code>>,
    seen: Seen,
    /// Stream of our settings.
    control: Option<SendStream>,
    /// ID of the first stream that was not accepted yet.
    next: u64,
    /// Requests that were given up before they were any, or right afterwards.
    unseen: u64,
    /// Requests that were none; see [`MAX_PROVOKED_RESETS`].
    provoked: usize,
    /// Requests that ended well since the last of these was forgotten.
    well: u32,
}

/// A task may be dropped, to free memory. Requests of a closed connection end by themselves, and are recorded.
impl<R: HttpRole> Drop for QuicCarrier<R> {
    fn drop(&mut self) {
        self.close(Code::EXCESSIVE_LOAD);
        self.requests.detach_all();
    }
}

impl<R: HttpRole + 'static> QuicCarrier<R> {
    async fn carry(&mut self, takes_stream: impl Fn() -> bool) -> Result<(), Code> {
        let opening = tokio::time::timeout(self.worker.timeouts.header, self.introduce());
        opening.await.map_err(|_| Code::STREAM_CREATION_ERROR)??;
        let session = Rc::clone(&self.session);
        loop {
            let leaving = session.leaving.get();
            if leaving && session.requests.live.get() == 0 {
                break;
            }
            tokio::select! {
                () = poll_fn(|cx| self.departure.poll(cx)) => self.leave().await,
                () = session.served.notified() => {}
                stream = self.connection.accept_bi() => {
                    // A connection that is gone takes its requests along.
                    let Ok(stream) = stream else { return Ok(()) };
                    self.next = stream.0.id().index() + 1;
                    if leaving || !takes_stream() {
                        reject(stream);
                        continue;
                    }
                    let (worker, role) = (Rc::clone(&self.worker), Rc::clone(&self.role));
                    let request = request::serve(worker, role, Rc::clone(&session), stream);
                    self.requests.spawn_local(request);
                }
                stream = self.connection.accept_uni() => {
                    let Ok(stream) = stream else { return Ok(()) };
                    let seen = Rc::clone(&self.seen);
                    let connection = self.connection.clone();
                    self.streams.spawn_local(streams::serve(connection, stream, seen));
                }
                Some(done) = self.requests.join_next() => self.judge(judged(done)?)?,
                Some(done) = self.streams.join_next() => judged(done)?,
                () = stopped(self.control.as_ref()) => return Err(Code::CLOSED_CRITICAL_STREAM),
            }
        }
        // Answers must arrive before the close.
        let arriving = async { while self.requests.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(self.worker.timeouts.linger, arriving).await;
        self.see_off().await;
        Ok(())
    }

    /// Waits until the client has read that it must leave, before the connection closes. Requests that come meanwhile are
    /// rejected unread: the client may send them elsewhere.
    async fn see_off(&self) {
        let refusing = async {
            while let Ok(stream) = self.connection.accept_bi().await {
                reject(stream);
            }
        };
        let patience = FAREWELL.max(self.connection.rtt() * 3);
        let _ = tokio::time::timeout(patience.min(self.worker.timeouts.linger), refusing).await;
    }

    /// Ends the connection of a client that makes requests and gives them up, or makes requests that are none. The limits are
    /// HTTP/2's; here requests count that were answered in part already.
    fn judge(&mut self, request: RequestOutcome) -> Result<(), Code> {
        match request {
            RequestOutcome::GivenUp => self.unseen += 1,
            RequestOutcome::Malformed => self.provoked += 1,
            RequestOutcome::Served => self.well += 1,
        }
        if self.well >= FORGIVING_STREAMS {
            self.well = 0;
            self.provoked = self.provoked.saturating_sub(1);
        }
        let abused = self.unseen >= MAX_PREMATURE_RESETS.into() && self.unseen > self.next / 2;
        match abused || self.provoked > MAX_PROVOKED_RESETS {
            true => Err(Code::EXCESSIVE_LOAD),
            false => Ok(()),
        }
    }

    /// Sends our settings.
    async fn introduce(&mut self) -> Result<(), Code> {
        let lost = |_| Code::NO_ERROR;
        let mut control = self.connection.open_uni().await.map_err(lost)?;
        let mut said = Vec::new();
        put_integer(&mut said, purpose::CONTROL);
        said.extend(settings(MAX_HEADER_LIST.into()));
        let written = control.write_all(&said).await;
        written.map_err(|_| Code::CLOSED_CRITICAL_STREAM)?;
        self.control = Some(control);
        Ok(())
    }

    /// Tells the client that streams which were not accepted yet never will be.
    async fn leave(&mut self) {
        self.session.leaving.set(true);
        /// A client's requests are every fourth stream.
        const EVERY: u64 = 4;
        if let Some(control) = &mut self.control {
            let said = goaway(self.next * EVERY);
            // A client that takes nothing hears of it when the connection closes.
            let writing = control.write_all(&said);
            let _ = tokio::time::timeout(self.worker.timeouts.linger, writing).await;
        }
    }
}

impl<R: HttpRole> QuicCarrier<R> {
    fn close(&self, code: Code) {
        self.connection.close(quic(code), b"");
    }
}

/// Why a connection takes no more requests: the worker drains, the role wants it no longer, or it rested for too long.
struct Departure<R: HttpRole> {
    worker: Rc<HttpWorker<R>>,
    role: Rc<R>,
    session: Rc<Http3Session>,
    listening: Option<DrainListener>,
    /// The drain's judgements when the requests last heard of one.
    judged: u32,
    timer: Timer,
    began: Instant,
}

impl<R: HttpRole> Departure<R> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.listening {
            Some(listening) => listening.refresh(cx),
            None => self.listening = Some(self.worker.drain.listen(cx)),
        }
        let judged = self.worker.drain.judgements();
        let news = std::mem::replace(&mut self.judged, judged) != judged;
        if news {
            self.session.wake_requests();
        }
        if self.session.leaving.get() {
            return Poll::Pending;
        }
        if self.worker.drain.is_draining() || (news && self.role.is_unwelcome()) {
            return Poll::Ready(());
        }
        let requests = &self.session.requests;
        if requests.live.get() > 0 {
            return Poll::Pending;
        }
        let rested = requests.rested.get().unwrap_or(self.began);
        let idle = self.worker.timeouts.downstream_idle;
        match self.timer.passed(cx, rested + idle) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

/// Rejects a request unread: the client may send it elsewhere.
fn reject((mut send, mut recv): (SendStream, RecvStream)) {
    let code = quic(Code::REQUEST_REJECTED);
    // One that is gone already needs no more.
    let _ = (send.reset(code), recv.stop(code));
}

/// Ready when the client wants our settings' stream no longer, which ends the connection (RFC 9114 section 6.2.1). It may
/// be asked again and again.
async fn stopped(control: Option<&SendStream>) {
    match control {
        Some(control) => {
            // A control stream that ended with its connection is no error.
            if !matches!(control.stopped().await, Ok(Some(_))) {
                std::future::pending::<()>().await;
            }
        }
        None => std::future::pending().await,
    }
}

/// Result of a task of the connection.
fn judged<T>(done: Result<Result<T, Code>, tokio::task::JoinError>) -> Result<T, Code> {
    done.unwrap_or(Err(Code::INTERNAL_ERROR))
}
