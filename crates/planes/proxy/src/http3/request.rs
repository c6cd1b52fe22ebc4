//! One request: a stream of QUIC on one side, a stream of the HTTP/2 connection in memory on the other. Bodies go both ways at
//! once, piece by piece. The next piece is read after the last one went on, so that a slow reader slows only its own writer.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn::{ReadError, RecvStream, SendStream as QuicSend, StoppedError, VarInt, WriteError};
use voile_http2::{
    ErrorCode, Failure, Fields, HeadRoom, Link, RecvStream as Body, ResponseFuture,
    SendStream as Sink,
};
use voile_http3::{Code, DecodedBlock, FrameEvent, Frames, data_head, decode, encode, head_frame};

use super::limits::{MAX_BLOCK, MAX_CHUNK, WAITING_STREAM};
use super::quic;
use crate::http2::limits::PREMATURE;

/// Why a request goes no further.
enum RequestEnd {
    /// The stream ends with this.
    Stream(Code),
    /// The connection does.
    Connection(Code),
    /// The client wants no answer any more.
    GivenUp,
    /// The client is gone.
    Gone,
}

/// Frames from the client.
struct RequestStream {
    stream: RecvStream,
    frames: Frames,
    /// Room of an incomplete head. A complete one is counted by the engine.
    room: HeadRoom,
    chunk: Bytes,
    seen: RequestProgress,
}

/// Field that makes a truncated head too large, so that the engine refuses it. The engine reads no more of
/// such a head than it needs for the reply and the log.
const FILLER: &str = "x-voile-too-large";

/// Extent of a received request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestProgress {
    /// It was given up before it was one, so that the engine never heard of it, or within [`PREMATURE`].
    GivenUp,
    /// A head.
    Head,
}

/// Serves one request to its end.
///
/// # Errors
/// What ends the connection.
pub(super) async fn serve(
    link: Link,
    room: HeadRoom,
    (mut send, recv): (QuicSend, RecvStream),
    patience: Duration,
) -> Result<RequestProgress, Code> {
    let mut asked = RequestStream {
        stream: recv,
        frames: Frames::of_request(MAX_BLOCK),
        room,
        chunk: Bytes::new(),
        seen: RequestProgress::GivenUp,
    };
    let began = Instant::now();
    let code = match answer(&link, &mut send, &mut asked, patience).await {
        Ok(()) => Code::NO_ERROR,
        Err(RequestEnd::Stream(code)) => {
            // One that is closed already needs no more.
            let _ = send.reset(quic(code));
            code
        }
        Err(RequestEnd::GivenUp) => {
            let code = Code::REQUEST_CANCELLED;
            let _ = send.reset(quic(code));
            if began.elapsed() < PREMATURE {
                asked.seen = RequestProgress::GivenUp;
            }
            code
        }
        Err(RequestEnd::Connection(code)) => return Err(code),
        Err(RequestEnd::Gone) => return Ok(RequestProgress::Head),
    };
    let _ = asked.stream.stop(quic(code));
    Ok(asked.seen)
}

async fn answer(
    link: &Link,
    send: &mut QuicSend,
    asked: &mut RequestStream,
    patience: Duration,
) -> Result<(), RequestEnd> {
    let head = tokio::time::timeout(patience, asked.head()).await;
    let head = head.map_err(|_| RequestEnd::Stream(Code::REQUEST_INCOMPLETE))??;
    let mut stopped = pin!(send.stopped());
    if head.method() == "CONNECT" {
        return refuse_tunnel(send).await;
    }
    let end = asked.is_over().await?;
    let Some((response, sink)) = link.send_request(head, end) else {
        return Err(RequestEnd::Stream(Code::REQUEST_REJECTED));
    };
    let mut up = pin!(async {
        match end {
            true => Ok(()),
            false => upload(asked, sink).await,
        }
    });
    let mut down = pin!(download(response, send, patience, stopped.as_mut()));
    let mut sent = false;
    poll_fn(|cx| {
        if !sent && let Poll::Ready(done) = up.as_mut().poll(cx) {
            done?;
            sent = true;
        }
        down.as_mut().poll(cx)
    })
    .await
}

/// A proxy in front of others is no way to anywhere else.
async fn refuse_tunnel(send: &mut QuicSend) -> Result<(), RequestEnd> {
    write(
        send,
        &mut [head_frame(&encode(&Fields::response(501))).into()],
    )
    .await?;
    let _ = send.finish();
    Ok(())
}

impl RequestStream {
    /// Bytes; none at the end.
    async fn more(&mut self) -> Result<Option<()>, RequestEnd> {
        let mut reading = pin!(self.stream.read_chunk(MAX_CHUNK, true));
        let at_once = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await;
        let chunk = match at_once {
            Poll::Ready(chunk) => chunk,
            Poll::Pending => {
                let is_head = self.seen == RequestProgress::GivenUp;
                if is_head && !self.room.resize(self.frames.kept() + WAITING_STREAM) {
                    return Err(RequestEnd::Stream(Code::REQUEST_REJECTED));
                }
                reading.await
            }
        };
        let Some(chunk) = chunk.map_err(|error| unread(&error))? else {
            return match self.frames.is_between() {
                true => Ok(None),
                false => Err(RequestEnd::Connection(Code::FRAME_ERROR)),
            };
        };
        self.chunk = chunk.bytes;
        Ok(Some(()))
    }

    /// Next event; none at the end.
    async fn event(&mut self) -> Result<Option<FrameEvent>, RequestEnd> {
        loop {
            if let Some(event) = self
                .frames
                .next(&mut self.chunk)
                .map_err(RequestEnd::Connection)?
            {
                self.room.resize(0);
                return Ok(Some(event));
            }
            if !self.room.resize(self.frames.kept()) {
                return Err(RequestEnd::Stream(Code::REQUEST_REJECTED));
            }
            if self.more().await?.is_none() {
                return Ok(None);
            }
        }
    }

    async fn head(&mut self) -> Result<Fields, RequestEnd> {
        match self.event().await? {
            Some(FrameEvent::Block { bytes, whole }) => {
                self.seen = RequestProgress::Head;
                let decoded = decode(&bytes, whole, MAX_BLOCK);
                let decoded =
                    decoded.map_err(|_| RequestEnd::Connection(Code::DECOMPRESSION_FAILED))?;
                let DecodedBlock { mut fields, whole } = decoded;
                if !whole {
                    fields.push(FILLER, &[b'x'; MAX_BLOCK]);
                }
                Ok(fields)
            }
            Some(_) => Err(RequestEnd::Connection(Code::FRAME_UNEXPECTED)),
            None => Err(RequestEnd::Stream(Code::REQUEST_INCOMPLETE)),
        }
    }

    /// Returns true if nothing follows the head, as far as known now.
    async fn is_over(&mut self) -> Result<bool, RequestEnd> {
        if !self.chunk.is_empty() || !self.frames.is_between() {
            return Ok(false);
        }
        let mut more = pin!(self.more());
        poll_fn(|cx| {
            Poll::Ready(match more.as_mut().poll(cx) {
                Poll::Ready(Ok(None)) => Ok(true),
                Poll::Ready(Ok(Some(()))) | Poll::Pending => Ok(false),
                Poll::Ready(Err(over)) => Err(over),
            })
        })
        .await
    }
}

/// Why nothing more can be read.
fn unread(error: &ReadError) -> RequestEnd {
    match error {
        ReadError::Reset(_) => RequestEnd::GivenUp,
        _ => RequestEnd::Gone,
    }
}

/// Passes on the body and its trailers. If the engine takes no more, the request is answered without the
/// rest.
async fn upload(asked: &mut RequestStream, mut sink: Sink) -> Result<(), RequestEnd> {
    let mut ended = false;
    while let Some(event) = asked.event().await? {
        let taken = match event {
            FrameEvent::Data(_) | FrameEvent::Block { .. } if ended => {
                return Err(RequestEnd::Connection(Code::FRAME_UNEXPECTED));
            }
            FrameEvent::Data(data) => pass(&mut sink, data).await,
            FrameEvent::Block { bytes, whole } => {
                let decoded = decode(&bytes, whole, MAX_BLOCK);
                let decoded =
                    decoded.map_err(|_| RequestEnd::Connection(Code::DECOMPRESSION_FAILED))?;
                if !decoded.whole {
                    return Err(RequestEnd::Stream(Code::EXCESSIVE_LOAD));
                }
                ended = true;
                sink.send_trailers(decoded.fields)
            }
            FrameEvent::Settings | FrameEvent::Goaway => Ok(()),
        };
        if taken.is_err() {
            return Ok(());
        }
    }
    if !ended {
        // A failed stream tells the waiting reader so.
        let _ = sink.send_data(Bytes::new(), true);
    }
    Ok(())
}

async fn pass(sink: &mut Sink, mut data: Bytes) -> Result<(), Failure> {
    while !data.is_empty() {
        let room = poll_fn(|cx| sink.poll_capacity(cx)).await?;
        sink.send_data(data.split_to(room.min(data.len())), false)?;
    }
    Ok(())
}

/// Passes the answer on, until the client has all of it.
async fn download(
    mut response: ResponseFuture,
    send: &mut QuicSend,
    patience: Duration,
    mut stopped: Pin<&mut impl Future<Output = Result<Option<VarInt>, StoppedError>>>,
) -> Result<(), RequestEnd> {
    // The task notices a client that stops its response while it waits.
    macro_rules! wait {
        ($poll:expr) => {
            poll_fn(|cx| match stopped.as_mut().poll(cx) {
                Poll::Ready(_) => Poll::Ready(Err(RequestEnd::GivenUp)),
                Poll::Pending => $poll(cx).map(Ok),
            })
            .await?
        };
    }
    while let Some(early) = wait!(|cx: &mut _| response.poll_informational(cx)) {
        head(send, &early).await?;
    }
    let answer = wait!(|cx: &mut _| response.poll_head(cx)).map_err(failed)?;
    head(send, &answer).await?;
    let mut body = response.into_body();
    while let Some(chunk) = wait!(|cx: &mut _| body.poll_data(cx)) {
        let chunk = chunk.map_err(failed)?;
        let length = chunk.len();
        if length > 0 {
            write(send, &mut [data_head(length).into(), chunk]).await?;
        }
        body.release_capacity(length);
    }
    if let Some(trailers) = trailers(&mut body).await? {
        head(send, &trailers).await?;
    }
    // A connection that closes says so below.
    let _ = send.finish();
    // A client that stops reading has received all it wants.
    let _ = tokio::time::timeout(patience, stopped).await;
    Ok(())
}

async fn trailers(body: &mut Body) -> Result<Option<Fields>, RequestEnd> {
    poll_fn(|cx| body.poll_trailers(cx)).await.map_err(failed)
}

async fn head(send: &mut QuicSend, fields: &Fields) -> Result<(), RequestEnd> {
    write(send, &mut [head_frame(&encode(fields)).into()]).await
}

async fn write(send: &mut QuicSend, parts: &mut [Bytes]) -> Result<(), RequestEnd> {
    let written = send.write_all_chunks(parts).await;
    written.map_err(|error| match error {
        WriteError::Stopped(_) => RequestEnd::GivenUp,
        _ => RequestEnd::Gone,
    })
}

/// Translates the engine's reason for the end of a stream.
fn failed(failure: Failure) -> RequestEnd {
    RequestEnd::Stream(match failure {
        Failure::Unprocessed | Failure::Reset(ErrorCode::REFUSED_STREAM) => Code::REQUEST_REJECTED,
        Failure::Reset(ErrorCode::PROTOCOL_ERROR) => Code::MESSAGE_ERROR,
        Failure::Reset(ErrorCode::ENHANCE_YOUR_CALM) => Code::EXCESSIVE_LOAD,
        Failure::Reset(ErrorCode::CANCEL) => Code::REQUEST_CANCELLED,
        Failure::Reset(_) | Failure::Violation(_) | Failure::Connection => Code::INTERNAL_ERROR,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_a_stream_is_said_in_the_words_of_http3() {
        for (failure, code) in [
            (Failure::Unprocessed, Code::REQUEST_REJECTED),
            (
                Failure::Reset(ErrorCode::REFUSED_STREAM),
                Code::REQUEST_REJECTED,
            ),
            (
                Failure::Reset(ErrorCode::PROTOCOL_ERROR),
                Code::MESSAGE_ERROR,
            ),
            (
                Failure::Reset(ErrorCode::ENHANCE_YOUR_CALM),
                Code::EXCESSIVE_LOAD,
            ),
            (Failure::Reset(ErrorCode::CANCEL), Code::REQUEST_CANCELLED),
            (
                Failure::Reset(ErrorCode::INTERNAL_ERROR),
                Code::INTERNAL_ERROR,
            ),
            (Failure::Connection, Code::INTERNAL_ERROR),
        ] {
            let RequestEnd::Stream(said) = failed(failure) else {
                panic!("it ends more than its stream");
            };
            assert_eq!(said, code, "{failure:?}");
        }
    }
}
