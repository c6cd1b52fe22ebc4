//! The body of an HTTP/1.1 request that is held in the connection's buffer, and shown without its framing.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use voile_http1::{Body, BodyError, Framing, RequestHead};

use super::upload::Upload;
use crate::http::Io;
use crate::http::ending::ExchangeEnd;
use crate::http::flight::ExchangeClient;

/// Framing that a body may cost beyond its own bytes while it is held, in bytes: chunks of one byte each are a way to make
/// a proxy hold six times what they carry.
const MAX_HELD_FRAMING: usize = 64 * 1024;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// See the module.
pub(crate) struct HeldBody {
    /// Removes the body's framing.
    body: Body,
    shown: Vec<u8>,
    /// Bytes of the buffer before this were looked at.
    seen: usize,
    /// Rest of the 100 (Continue) for a client that waits for it.
    invitation: Option<&'static [u8]>,
}

impl HeldBody {
    /// The body behind a head; none where there is none, or where the bytes behind the head are a tunnel's.
    pub(crate) fn new(head: &RequestHead<'_>, upload: &Upload) -> Option<Self> {
        let framing = head.framing();
        let is_tunnel = head.wants_upgrade() || head.is_connect();
        let has_body = !matches!(framing, Framing::None | Framing::Length(0)) && !is_tunnel;
        let waits = head.expects_continue() && upload.body_bytes == 0;
        has_body.then(|| Self {
            body: Body::new(framing),
            shown: Vec::new(),
            seen: upload.begin(),
            invitation: waits.then_some(CONTINUE),
        })
    }

    /// As far as it is known.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.shown
    }

    /// Ready when there are more than `max` bytes, or all, or too much framing.
    pub(crate) fn poll<S: Io>(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
        client: &mut ExchangeClient<'_, S>,
        upload: &mut Upload,
    ) -> Poll<Result<(), ExchangeEnd>> {
        ready!(self.poll_invite(cx, client.stream));
        loop {
            self.look(upload.held(client.input))
                .map_err(ExchangeEnd::RequestBody)?;
            let held = self.seen - upload.begin();
            let is_enough = self.shown.len() > max || held >= max + MAX_HELD_FRAMING;
            if upload.received() || is_enough {
                return Poll::Ready(Ok(()));
            }
            // One read at a time, so that no more is held than is wanted.
            let read = upload.poll_hold(cx, client.input, client.stream, held + 1);
            ready!(read)?;
        }
    }

    fn poll_invite<S: Io>(&mut self, cx: &mut Context<'_>, stream: &mut S) -> Poll<()> {
        let Some(rest) = &mut self.invitation else {
            return Poll::Ready(());
        };
        while !rest.is_empty() {
            match ready!(Pin::new(&mut *stream).poll_write(cx, rest)) {
                Ok(written @ 1..) => *rest = &rest[written..],
                // Reading will notice it.
                Ok(0) | Err(_) => *rest = &[],
            }
        }
        let _ = ready!(Pin::new(stream).poll_flush(cx));
        self.invitation = None;
        Poll::Ready(())
    }

    /// Removes the framing of the received bytes.
    fn look(&mut self, held: (usize, &[u8])) -> Result<(), BodyError> {
        let (begin, bytes) = held;
        let fresh = &bytes[self.seen - begin..];
        self.seen += fresh.len();
        let from = self.shown.len();
        self.shown.extend_from_slice(fresh);
        let (_, data) = self.body.unwrap_in_place(&mut self.shown[from..])?;
        self.shown.truncate(from + data);
        Ok(())
    }
}
