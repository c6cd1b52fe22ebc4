//! The opaque relay: bytes both ways with half-close, one buffer per direction and only while bytes pass.
//!
//! Each direction is a small machine of its own; the future polls both, and an idle timer that is re-armed lazily,
//! so that traffic does not touch the timer wheel.
//!
//! ```text
//! Waiting (no buffer) → Writing(buffer) → Waiting …  → Closing → Done
//! ```

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::buffers::{Buffer, Class};
use crate::close::LingeringConnection;
use crate::limits::LINGER_QUIET;
use crate::stream::TransportStream;

/// Why a relay ended.
#[derive(Debug)]
pub enum RelayEnd {
    /// Both sides said that they were done.
    Finished,
    /// Nothing moved for the idle timeout.
    Idle,
    /// The accepted side failed.
    DownstreamFailed(io::Error),
    /// The connected side failed.
    UpstreamFailed(io::Error),
    /// The proxy is shutting down.
    Stopped,
}

/// Bytes that a relay moved, and how it ended.
#[derive(Debug)]
pub struct RelayOutcome {
    /// Bytes from the downstream to the upstream.
    pub received: u64,
    /// Bytes from the upstream to the downstream.
    pub sent: u64,
    /// Why it ended.
    pub end: RelayEnd,
}

/// First speaker on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstSpeaker {
    /// The accepted side.
    Client,
    /// The connected side.
    Server,
    /// The connected side, and it speaks HTTP: an answer to nothing, such as a 408.
    HttpServer,
}

/// Moves bytes between two streams until both directions end, one fails, nothing moves for `idle`, or `stop` is
/// ready. A failed side makes the other end in a reset: a cut stream must not look finished. An upstream that takes
/// no more may have answered. The relay passes its last bytes on, and drops the downstream's bytes as a lingering
/// server does.
pub fn relay(
    downstream: TransportStream,
    upstream: TransportStream,
    idle: Duration,
    stop: impl Future<Output = ()>,
) -> impl Future<Output = RelayOutcome> {
    relay_watched(downstream, upstream, idle, stop, 0, |_| {})
}

/// As [`relay`], and reports the first speaker, as soon as there is one. The client's first `begun` bytes, which are
/// known already, do not count: the first speaker after them is reported.
///
/// No `async fn`: the future of one holds each argument twice, and there may be many relays.
pub fn relay_watched(
    mut downstream: TransportStream,
    mut upstream: TransportStream,
    idle: Duration,
    stop: impl Future<Output = ()>,
    begun: u64,
    opened: impl FnOnce(FirstSpeaker),
) -> impl Future<Output = RelayOutcome> {
    let mut opened = Some(opened);
    let mut relay = ByteRelay {
        up: RelayDirection::default(),
        down: RelayDirection::default(),
        last: Instant::now(),
        moved: 0,
        refused: None,
    };
    async move {
        let mut timer = std::pin::pin!(tokio::time::sleep(idle));
        let mut stop = std::pin::pin!(stop);
        let end = std::future::poll_fn(|cx| {
            let end = relay.poll(cx, &mut downstream, &mut upstream);
            if opened.is_some()
                && let Some(opening) = relay.opening(begun)
                && let Some(opened) = opened.take()
            {
                opened(opening);
            }
            if end.is_ready() {
                return end;
            }
            if stop.as_mut().poll(cx).is_ready() {
                return Poll::Ready(RelayEnd::Stopped);
            }
            relay.poll_idle(cx, timer.as_mut(), idle)
        })
        .await;
        if !matches!(end, RelayEnd::Finished) {
            downstream.reset();
            upstream.reset();
        }
        RelayOutcome {
            received: relay.up.bytes,
            sent: relay.down.bytes,
            end,
        }
    }
}

struct ByteRelay {
    /// From downstream to upstream.
    up: RelayDirection,
    /// From upstream to downstream.
    down: RelayDirection,
    last: Instant,
    moved: u64,
    /// The upstream takes no more.
    refused: Option<Box<RefusedUpstream>>,
}

/// State of the downstream's bytes after the upstream stopped taking them.
struct RefusedUpstream {
    error: io::Error,
    lingering: LingeringConnection,
    /// The downstream has said all, or as much as is listened to.
    over: bool,
}

impl RefusedUpstream {
    /// Passes on the last bytes of the upstream, and drops the downstream's bytes.
    fn turn(
        &mut self,
        cx: &mut Context<'_>,
        down: &mut RelayDirection,
        downstream: &mut TransportStream,
        upstream: &mut TransportStream,
    ) -> Poll<RelayEnd> {
        let up = self.poll(cx, downstream).map_err(RelayError::Reading);
        let down = down.poll(cx, upstream, downstream);
        if !matches!(down, Poll::Ready(Ok(()))) {
            return ended(up, down);
        }
        if upstream.is_cut() {
            let error = std::mem::replace(&mut self.error, io::ErrorKind::Other.into());
            return Poll::Ready(RelayEnd::UpstreamFailed(error));
        }
        match self.over || self.lingering.is_displaced(cx) {
            true => Poll::Ready(RelayEnd::Finished),
            false => ended(up, down),
        }
    }

    /// Drops incoming bytes. Ready when nothing more is to be dropped.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        downstream: &mut TransportStream,
    ) -> Poll<io::Result<()>> {
        while !self.over {
            ready!(downstream.poll_readable(cx))?;
            let mut buffer = Buffer::take(Class::default());
            let mut read = ReadBuf::new(buffer.bytes_mut());
            ready!(Pin::new(&mut *downstream).poll_read(cx, &mut read))?;
            let count = read.filled().len();
            self.over = count == 0 || self.lingering.dropped(count, std::time::Instant::now());
        }
        Poll::Ready(Ok(()))
    }
}

impl ByteRelay {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        downstream: &mut TransportStream,
        upstream: &mut TransportStream,
    ) -> Poll<RelayEnd> {
        // The usual turn, whose cost is bounded by a test of instructions, asks for a refusal once.
        if let Some(refused) = &mut self.refused {
            return refused.turn(cx, &mut self.down, downstream, upstream);
        }
        let up = self.up.poll(cx, downstream, upstream);
        if let Poll::Ready(Err(RelayError::Writing(error))) = up {
            self.up.state = RelayState::Done;
            let refused = self.refused.insert(Box::new(RefusedUpstream {
                error,
                lingering: LingeringConnection::begin(std::time::Instant::now(), LINGER_QUIET),
                over: false,
            }));
            return refused.turn(cx, &mut self.down, downstream, upstream);
        }
        let down = self.down.poll(cx, upstream, downstream);
        match (&up, &down) {
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => ended(up, down),
        }
    }

    /// Returns the first speaker, while that can still be told.
    fn opening(&self, begun: u64) -> Option<FirstSpeaker> {
        match (self.up.bytes > begun, self.down.bytes) {
            (false, 0) => None,
            (false, _) if self.down.is_http => Some(FirstSpeaker::HttpServer),
            (false, _) => Some(FirstSpeaker::Server),
            (true, _) => Some(FirstSpeaker::Client),
        }
    }

    /// Looks at the clock only when the timer fires, and arms it again for the rest.
    fn poll_idle(
        &mut self,
        cx: &mut Context<'_>,
        mut timer: Pin<&mut Sleep>,
        idle: Duration,
    ) -> Poll<RelayEnd> {
        let moved = self.up.bytes + self.down.bytes;
        if moved != self.moved {
            self.moved = moved;
            self.last = Instant::now();
        }
        if let Some(refused) = &self.refused
            && matches!(self.down.state, RelayState::Done)
        {
            let deadline = Instant::from_std(refused.lingering.deadline());
            return poll_lingering(cx, timer, deadline);
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            let deadline = self.last + idle;
            if Instant::now() >= deadline {
                return Poll::Ready(RelayEnd::Idle);
            }
            timer.as_mut().reset(deadline);
        }
    }
}

/// Returns the end of the relay, once its two directions decide it.
fn ended(up: Poll<Result<(), RelayError>>, down: Poll<Result<(), RelayError>>) -> Poll<RelayEnd> {
    match (up, down) {
        (Poll::Ready(Err(RelayError::Reading(e))), _)
        | (_, Poll::Ready(Err(RelayError::Writing(e)))) => {
            Poll::Ready(RelayEnd::DownstreamFailed(e))
        }
        (Poll::Ready(Err(RelayError::Writing(e))), _)
        | (_, Poll::Ready(Err(RelayError::Reading(e)))) => Poll::Ready(RelayEnd::UpstreamFailed(e)),
        (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(RelayEnd::Finished),
        _ => Poll::Pending,
    }
}

/// Ends the relay when nothing was dropped until `deadline`.
fn poll_lingering(
    cx: &mut Context<'_>,
    mut timer: Pin<&mut Sleep>,
    deadline: Instant,
) -> Poll<RelayEnd> {
    if deadline < timer.deadline() {
        timer.as_mut().reset(deadline);
    }
    loop {
        ready!(timer.as_mut().poll(cx));
        if Instant::now() >= deadline {
            return Poll::Ready(RelayEnd::Finished);
        }
        timer.as_mut().reset(deadline);
    }
}

/// Wakes the task after the runtime has asked the kernel for news. A plain wake comes before, for dozens of turns in a row:
/// a peer that always has more would keep the other peer's bytes from being seen.
pub fn yield_turn(cx: &mut Context<'_>) {
    let yielding = std::pin::pin!(tokio::task::yield_now());
    // It is never ready at first.
    let _ = yielding.poll(cx);
}

enum RelayError {
    Reading(io::Error),
    Writing(io::Error),
}

#[derive(Default)]
enum RelayState {
    #[default]
    Waiting,
    Writing {
        buffer: Buffer,
        filled: usize,
        written: usize,
    },
    Flushing,
    Closing,
    Done,
}

#[derive(Default)]
struct RelayDirection {
    state: RelayState,
    class: Class,
    bytes: u64,
    /// True if its first bytes are those of an HTTP/1 response.
    is_http: bool,
}

/// Buffers one direction may move in one turn, so that one busy connection does not starve its worker.
const BURST: usize = 16;

impl RelayDirection {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TransportStream,
        to: &mut TransportStream,
    ) -> Poll<Result<(), RelayError>> {
        let mut burst = 0;
        loop {
            match &mut self.state {
                RelayState::Waiting => {
                    burst += 1;
                    if burst > BURST {
                        yield_turn(cx);
                        return Poll::Pending;
                    }
                    ready!(self.poll_fill(cx, from)).map_err(RelayError::Reading)?;
                }
                RelayState::Writing {
                    buffer,
                    filled,
                    written,
                } => {
                    let count = ready!(
                        Pin::new(&mut *to).poll_write(cx, &buffer.bytes()[*written..*filled])
                    );
                    let count = count.map_err(RelayError::Writing)?;
                    if count == 0 {
                        return Poll::Ready(Err(RelayError::Writing(
                            io::ErrorKind::WriteZero.into(),
                        )));
                    }
                    *written += count;
                    if *written == *filled {
                        self.state = if to.is_tls() {
                            RelayState::Flushing
                        } else {
                            RelayState::Waiting
                        };
                    }
                }
                RelayState::Flushing => {
                    ready!(Pin::new(&mut *to).poll_flush(cx)).map_err(RelayError::Writing)?;
                    self.state = RelayState::Waiting;
                }
                RelayState::Closing => {
                    ready!(Pin::new(&mut *to).poll_shutdown(cx)).map_err(RelayError::Writing)?;
                    self.state = RelayState::Done;
                }
                RelayState::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TransportStream,
    ) -> Poll<io::Result<()>> {
        ready!(from.poll_readable(cx))?;
        let mut buffer = Buffer::take(self.class);
        let mut read = ReadBuf::new(buffer.bytes_mut());
        ready!(Pin::new(from).poll_read(cx, &mut read))?;
        let filled = read.filled().len();
        if filled == 0 {
            self.state = RelayState::Closing;
        } else {
            if self.bytes == 0 {
                self.is_http = read.filled().starts_with(b"HTTP/1.");
            }
            self.bytes += filled as u64;
            self.class = self.class.after(filled);
            self.state = RelayState::Writing {
                buffer,
                filled,
                written: 0,
            };
        }
        Poll::Ready(Ok(()))
    }
}
