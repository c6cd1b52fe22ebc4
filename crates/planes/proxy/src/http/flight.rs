//! One request and its response on one upstream connection, both ways at once, in one hand-written poll.
//!
//! A wake-up polls: upload → download → is the client still there → has it been idle too long.

use std::task::{Context, Poll};

use super::buffers::{Buffer, Buffers, ExchangeBuffers};
use super::download::{Download, Terms};
use super::ending::{CLIENT_GONE, ExchangeEnd};
use super::exchange_clock::{ExchangeClock, ExchangeLimits, ExchangeProgress};
use super::io::Io;
use super::limits::BUFFER_BYTES;
use super::timer::Timer;
use super::upload::{Upload, UploadError};

impl From<UploadError> for ExchangeEnd {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Body(error) => Self::RequestBody(error),
            UploadError::Client | UploadError::Upstream => CLIENT_GONE,
        }
    }
}

/// The client's side of an exchange, which outlives a retry on another upstream connection.
pub(crate) struct ExchangeClient<'a, S> {
    pub(crate) stream: &'a mut S,
    pub(crate) input: &'a mut Buffer,
    pub(crate) timer: &'a mut Timer,
}

impl<S: Io> ExchangeClient<'_, S> {
    /// Notices that the client gave up, or broke its body, before anything of the request was sent. The connection reads its
    /// body ahead by one buffer, so that its end is seen behind a small body; a longer one waits in the kernel.
    pub(crate) fn poll_gone(
        &mut self,
        cx: &mut Context<'_>,
        upload: &mut Upload,
    ) -> Poll<ExchangeEnd> {
        if let Poll::Ready(Err(error)) = upload.poll_hold(cx, self.input, self.stream, BUFFER_BYTES)
        {
            return Poll::Ready(error.into());
        }
        match self.is_gone(cx, upload.received()) {
            true => Poll::Ready(CLIENT_GONE),
            false => Poll::Pending,
        }
    }

    /// Returns true if the client went away, as far as its stream tells, or reading behind a request that was received; keeps
    /// pipelined bytes while there is room for them. A client that closed its sending side counts as gone (as for Envoy):
    /// most that do so have closed altogether. A client that fills the buffer with pipelined bytes is not looked at any more.
    fn is_gone(&mut self, cx: &mut Context<'_>, received: bool) -> bool {
        if !received {
            return false;
        }
        while self.input.room() > 0 {
            match self.stream.poll_readable(cx) {
                Poll::Pending => return false,
                Poll::Ready(Err(_)) => return true,
                Poll::Ready(Ok(())) => {}
            }
            match self.input.poll_read(cx, self.stream) {
                Poll::Pending => return false,
                Poll::Ready(Ok(0) | Err(_)) => return true,
                Poll::Ready(Ok(_)) => {}
            }
        }
        false
    }
}

/// The moving parts of a flight.
pub(crate) struct ExchangeFlight<'a, U> {
    pub(crate) upload: &'a mut Upload,
    pub(crate) download: &'a mut Download,
    pub(crate) upstream: &'a mut U,
    pub(crate) terms: Terms<'a>,
    pub(crate) limits: ExchangeLimits<'a>,
}

impl<U: Io> ExchangeFlight<'_, U> {
    pub(crate) fn poll<S: Io>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ExchangeClient<'_, S>,
        desk: &mut ExchangeBuffers,
        buffers: &Buffers,
    ) -> Poll<ExchangeEnd> {
        if let Some(landing) = self.poll_upload(cx, client, &desk.to_upstream) {
            return Poll::Ready(landing);
        }
        // An answer before the request is complete ends the connection after it, unless little more will come.
        let terms = Terms {
            persist: self.terms.persist && self.upload.ends_soon(),
            ..self.terms
        };
        let download = self.download.poll(
            cx,
            (&mut desk.response, &mut desk.to_client),
            terms,
            buffers,
            (client.stream, self.upstream),
        );
        match download {
            Poll::Ready(Ok(())) => return Poll::Ready(ExchangeEnd::Done),
            Poll::Ready(Err(end)) => return Poll::Ready(end),
            Poll::Pending => {}
        }
        if client.is_gone(cx, self.upload.received()) {
            return Poll::Ready(CLIENT_GONE);
        }
        match self.overdue(cx, client, &mut desk.clock) {
            Some(landing) => Poll::Ready(landing),
            None => Poll::Pending,
        }
    }

    fn poll_upload<S: Io>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ExchangeClient<'_, S>,
        head: &[u8],
    ) -> Option<ExchangeEnd> {
        if self.upload.finished || self.upload.broken {
            return None;
        }
        match self
            .upload
            .poll(cx, head, client.input, client.stream, self.upstream)
        {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => {
                self.upload.finished = true;
                if let Some(observer) = self.terms.observer {
                    observer.received();
                    if observer.wants_copy() {
                        let (_, body) = self.upload.held(client.input);
                        let whole = self.upload.replayable;
                        observer.copy(whole.then(|| [head, body].concat()));
                    }
                }
            }
            // The upstream may have answered before it closed: its answer decides.
            Poll::Ready(Err(UploadError::Upstream)) => self.upload.broken = true,
            Poll::Ready(Err(error)) => return Some(error.into()),
        }
        None
    }

    /// Reports a timeout.
    fn overdue<S: Io>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ExchangeClient<'_, S>,
        clock: &mut ExchangeClock,
    ) -> Option<ExchangeEnd> {
        let (upload, download, stream) = (&*self.upload, &*self.download, &*client.stream);
        let received = upload.received() || upload.broken;
        let progress = ExchangeProgress {
            received,
            sending: !received && download.status == 0,
            stuck: upload.stalled && !upload.broken,
            stalled: download.stalled,
            answered: download.status != 0,
            tunnel: false,
            bytes: (upload.body_bytes, download.body_bytes),
        };
        let has_left = || stream.has_left();
        clock.overdue(cx, client.timer, self.limits, progress, has_left)
    }
}
