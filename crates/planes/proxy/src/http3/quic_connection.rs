//! One QUIC connection on its worker. Its requests are streams of an HTTP/2 connection in memory. Signals of that connection's
//! engine about all requests (no more, too much) are translated to HTTP/3 for the client.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use quinn::{Connection, Incoming, RecvStream, SendStream};
use rustls::pki_types::CertificateDer;
use tokio::task::JoinSet;
use voile_http2::{Connection as Wires, Link, Pool};
use voile_http3::{Code, goaway, purpose, put_integer, settings};

use super::crypto::HandshakeInfo;
use super::pipe::{Pipe, pipe};
use super::quic;
use super::request;
use super::streams::{self, Seen};
use crate::http::{ConnectionEnd, HttpRole, HttpTimeouts, HttpWorker};
use crate::http2;
use crate::http2::limits::{CONFIG, MAX_HEADER_LIST, MAX_PREMATURE_RESETS};
use crate::http2::socket::Wire;

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
    let (ours, theirs) = pipe();
    let mut wires = Wires::client(&CONFIG, worker.buffers.http2.clone());
    wires.set_source(role.source());
    let link = Link::new(wires);
    let mut carrier = QuicCarrier {
        wire: Wire::new(ours, link.clone(), worker.buffers.clone()),
        source: role.source(),
        pool: worker.buffers.http2.clone(),
        link,
        connection: connection.clone(),
        timeouts: worker.timeouts,
        requests: JoinSet::new(),
        streams: JoinSet::new(),
        seen: Seen::default(),
        control: None,
        next: 0,
        unseen: 0,
        leaving: false,
    };
    let serving = http2::serve_connection(&worker, role, theirs);
    let carrying = async move {
        let carried = carrier.carry(takes_stream).await;
        if let Err(code) = carried {
            carrier.connection.close(quic(code), b"");
        }
        // The connection is closed before its critical streams are: a client that hears of them first takes that for
        // another error (RFC 9114 section 6.2.1).
        (carried, (carrier.control, carrier.streams))
    };
    let (end, (carried, _critical)) = tokio::join!(serving, carrying);
    let code = match (carried, end) {
        (Err(code), _) => code,
        (Ok(()), ConnectionEnd::Aborted) => Code::EXCESSIVE_LOAD,
        (Ok(()), _) => Code::NO_ERROR,
    };
    connection.close(quic(code), b"");
}

struct QuicCarrier {
    wire: Wire<Pipe>,
    link: Link,
    /// Number of the client among those whose heads are counted, and where they are.
    source: u64,
    pool: Pool,
    connection: Connection,
    timeouts: HttpTimeouts,
    requests: JoinSet<Result<request::RequestProgress, Code>>,
    streams: JoinSet<Result<(), Code>>,
    seen: Seen,
    /// Stream of our settings.
    control: Option<SendStream>,
    /// ID of the first stream that was not accepted yet.
    next: u64,
    /// Requests that were given up before they were any, or right afterwards.
    unseen: u64,
    /// The client was told that no more is taken.
    leaving: bool,
}

/// Signal of the connection in memory.
enum CarrierEvent {
    /// It takes no more requests.
    Leaves,
    /// It is over.
    Over,
}

impl QuicCarrier {
    async fn carry(&mut self, takes_stream: impl Fn() -> bool) -> Result<(), Code> {
        let patience = self.timeouts.header;
        let opening = tokio::time::timeout(patience, self.introduce());
        opening.await.map_err(|_| Code::STREAM_CREATION_ERROR)??;
        loop {
            tokio::select! {
                said = said(&mut self.wire, &self.link, self.leaving) => match said {
                    CarrierEvent::Leaves => self.leave().await,
                    CarrierEvent::Over => break,
                },
                stream = self.connection.accept_bi() => {
                    // A connection that is gone takes its requests along.
                    let Ok(stream) = stream else { return Ok(()) };
                    self.next = stream.0.id().index() + 1;
                    if !takes_stream() {
                        reject(stream);
                        continue;
                    }
                    let (link, room) = (self.link.clone(), self.pool.head_room(self.source));
                    let request = request::serve(link, room, stream, patience);
                    self.requests.spawn_local(request);
                }
                stream = self.connection.accept_uni() => {
                    let Ok(stream) = stream else { return Ok(()) };
                    let seen = Rc::clone(&self.seen);
                    let connection = self.connection.clone();
                    self.streams.spawn_local(streams::serve(connection, stream, seen));
                }
                Some(done) = self.requests.join_next() => {
                    self.unseen += u64::from(judged(done)? == request::RequestProgress::GivenUp);
                    if self.is_abused() {
                        return Err(Code::EXCESSIVE_LOAD);
                    }
                }
                Some(done) = self.streams.join_next() => judged(done)?,
                () = stopped(self.control.as_ref()) => return Err(Code::CLOSED_CRITICAL_STREAM),
            }
        }
        if !self.leaving {
            // With nothing under way both come at once.
            self.leave().await;
        }
        // Answers must arrive before the close.
        let arriving = async { while self.requests.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(self.timeouts.linger, arriving).await;
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
        let _ = tokio::time::timeout(patience.min(self.timeouts.linger), refusing).await;
    }

    /// Returns true if the client makes requests and gives them up. The limit is HTTP/2's, which the engine applies as well. Here
    /// requests count that were answered in part already.
    fn is_abused(&self) -> bool {
        self.unseen >= MAX_PREMATURE_RESETS.into() && self.unseen > self.next / 2
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
        self.leaving = true;
        /// A client's requests are every fourth stream.
        const EVERY: u64 = 4;
        if let Some(control) = &mut self.control {
            let said = goaway(self.next * EVERY);
            // A client that takes nothing hears of it when the connection closes.
            let writing = control.write_all(&said);
            let _ = tokio::time::timeout(self.timeouts.linger, writing).await;
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

/// Moves the frames of the connection in memory until it says something.
fn said<'a>(
    wire: &'a mut Wire<Pipe>,
    link: &'a Link,
    leaving: bool,
) -> impl Future<Output = CarrierEvent> + 'a {
    poll_fn(move |cx| {
        loop {
            let moved = wire.poll(cx);
            let mut state = link.borrow();
            if matches!(moved, Poll::Ready(Err(_))) {
                state.closed();
            }
            if state.end().is_some() {
                return Poll::Ready(CarrierEvent::Over);
            }
            if moved.is_ready() && !state.output().is_empty() {
                continue;
            }
            if !leaving && !state.takes_streams() {
                return Poll::Ready(CarrierEvent::Leaves);
            }
            return Poll::Pending;
        }
    })
}
