//! One request on a stream of QUIC: its head is read and checked as HTTP/2's are, then the exchange reads and writes the stream by
//! its handles. The client has all of the answer before the stream is let go.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn::{RecvStream, SendStream, WriteError};
use voile_http2::{Fields, HeadKind, check_head};
use voile_http3::{Code, encode, head_frame};

use super::quic;
use super::request_frames::{RequestEnd, RequestFrames};
use super::session::Http3Session;
use super::stream::{self, Handle, Http3Codec, QuicStream};
use crate::http::{HttpRole, HttpWorker};
use crate::http2::limits::PREMATURE;
use crate::http2::session::Live;
use crate::http2::{StreamWork, serve_stream};

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    /// It was given up before it was one, or within [`PREMATURE`].
    GivenUp,
    /// It was none.
    Malformed,
    Served,
}

/// Serves one request to its end.
///
/// # Errors
/// What ends the connection.
pub(super) async fn serve<R: HttpRole + 'static>(
    worker: Rc<HttpWorker<R>>,
    role: Rc<R>,
    session: Rc<Http3Session>,
    (mut send, recv): (SendStream, RecvStream),
) -> Result<RequestOutcome, Code> {
    let patience = worker.timeouts.header;
    let room = || session.pool.head_room(session.source);
    let mut frames = RequestFrames::new(recv, room(), room());
    let (head, length) = match open(&session, patience, &mut send, &mut frames).await {
        Ok(opened) => opened,
        Err(end) => return refuse(end, &mut send, &mut frames),
    };
    let began = Instant::now();
    let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let stream = QuicStream::open(&session, frames, send, length, waker);
    poll_fn(|cx| {
        stream.borrow_mut().begin(cx, head.size());
        Poll::Ready(())
    })
    .await;
    if stream.borrow().end().is_none() {
        let handle = || Handle(Rc::clone(&stream));
        let work = StreamWork {
            worker,
            role,
            live: Live::begin(&session.requests),
            head,
            body: handle(),
            respond: handle(),
        };
        // Boxed: a stream that waits for its head shall be small.
        stream::carry(&stream, Box::pin(serve_stream::<R, Http3Codec>(work))).await;
        session.served.notify_one();
        stream::write_rest(&stream).await;
        // A client that stops reading has received all it wants.
        let _ = tokio::time::timeout(patience, stream::arrived(&stream)).await;
    }
    let end = stream.borrow().end();
    let code = end.map_or(Some(Code::NO_ERROR), RequestEnd::code);
    if let Some(code) = code {
        stream.borrow_mut().stop(code);
    }
    match end {
        Some(RequestEnd::Connection(code)) => Err(code),
        Some(RequestEnd::Malformed) => Ok(RequestOutcome::Malformed),
        Some(RequestEnd::GivenUp) if began.elapsed() < PREMATURE => Ok(RequestOutcome::GivenUp),
        _ => Ok(RequestOutcome::Served),
    }
}

/// The head of a request, and the length of its body where it says one.
async fn open(
    session: &Http3Session,
    patience: Duration,
    send: &mut SendStream,
    frames: &mut RequestFrames,
) -> Result<(Fields, Option<u64>), RequestEnd> {
    let reading = poll_fn(|cx| frames.poll_head(cx));
    let head = tokio::time::timeout(patience, reading).await;
    let head = head.map_err(|_| RequestEnd::Stream(Code::REQUEST_INCOMPLETE))??;
    if head.method() == "CONNECT" {
        return Err(refuse_tunnel(send).await);
    }
    if session.leaving.get() {
        return Err(RequestEnd::Stream(Code::REQUEST_REJECTED));
    }
    if head.is_cut() {
        return Ok((head, None));
    }
    let checked = check_head(HeadKind::Request, &head);
    let checked = checked.map_err(|_| RequestEnd::Malformed)?;
    Ok((head, checked.length))
}

/// A proxy in front of others is no way to anywhere else.
async fn refuse_tunnel(send: &mut SendStream) -> RequestEnd {
    let head = Bytes::from(head_frame(&encode(&Fields::response(501))));
    match send.write_chunk(head).await {
        Ok(()) => {
            let _ = send.finish();
            RequestEnd::Answered
        }
        Err(WriteError::Stopped(_)) => RequestEnd::GivenUp,
        Err(_) => RequestEnd::Gone,
    }
}

/// Ends a stream without an exchange.
fn refuse(
    end: RequestEnd,
    send: &mut SendStream,
    frames: &mut RequestFrames,
) -> Result<RequestOutcome, Code> {
    if let Some(code) = end.code() {
        if end != RequestEnd::Answered {
            // One that is closed already needs no more.
            let _ = send.reset(quic(code));
        }
        frames.stop(code);
    }
    match end {
        RequestEnd::Connection(code) => Err(code),
        RequestEnd::Malformed => Ok(RequestOutcome::Malformed),
        RequestEnd::Stream(_) | RequestEnd::GivenUp if frames.waits() => {
            Ok(RequestOutcome::GivenUp)
        }
        _ => Ok(RequestOutcome::Served),
    }
}
