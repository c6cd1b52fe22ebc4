//! A request that waits for an external service's answer. The proxy holds as much of its body as the question needs,
//! and drops the question of a client that leaves.
//!
//! ```text
//! head ─► role.route ─► pending ─► hold (body, 413 │ 408 │ gone) ─► role.ask ─► role.answered ─► as if decided at once
//! ```

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use voile_http1::{Body, BodyError, Framing};

use super::buffers::Buffer;
use super::connection::{AfterExchange, ConnectionWork, Http1Connection};
use super::ending::{CLIENT_GONE, ExchangeEnd};
use super::exchange::{ExchangeFacts, edit};
use super::exchange_clock::{ExchangeLimits, ExchangeProgress};
use super::external_check::{BodyPrefix, BodyWanted, Pending};
use super::flight::ExchangeClient;
use super::head::HttpHead;
use super::io::Io;
use super::reply::LocalReply;
use super::role::{ExchangeRecord, HttpRole, RequestRoute, RoleRefusal};
use super::upload::Upload;

/// Framing that a body may cost beyond its own bytes while it is held, in bytes: chunks of one byte each are a way to make
/// a proxy hold six times what they carry.
const MAX_HELD_FRAMING: usize = 64 * 1024;

impl<S: Io, R: HttpRole> Http1Connection<'_, S, R> {
    /// Handles a request that the role does not let pass at once: asks about it, or answers it.
    pub(super) async fn refused(
        &mut self,
        facts: ExchangeFacts,
        framing: Framing,
        mut upload: Result<Upload, BodyError>,
        mut refusal: RoleRefusal<R>,
        tally: &mut ExchangeRecord,
    ) -> (AfterExchange, Option<R::Ticket>) {
        // After one service approves, the role may have another question.
        while let Some(pending) = refusal.pending.take() {
            let upload = match &mut upload {
                Ok(upload) => upload,
                Err(error) => {
                    let why = ExchangeEnd::RequestBody(*error);
                    let after = self.give_up(why, facts, None, tally).await;
                    return (after, refusal.ticket);
                }
            };
            match self.consult(*pending, framing, upload).await {
                Ok(Ok(mut route)) => {
                    let Some(ConnectionWork { input, desk }) = &mut self.work else {
                        return (AfterExchange::Cut, Some(route.ticket));
                    };
                    let desk = &mut **desk;
                    let head = desk.request.head(input.filled());
                    desk.head_end = 0;
                    desk.to_upstream.clear();
                    head.write_forwarded(&edit(&route), &mut desk.to_upstream);
                    let after = self.forward(facts, &mut route, upload, tally).await;
                    return (after, Some(route.ticket));
                }
                Ok(Err(decided)) => refusal = decided,
                Err(why) => {
                    let after = self.give_up(why, facts, Some(upload), tally).await;
                    return (after, refusal.ticket);
                }
            }
        }
        let mut upload = upload.ok();
        tally.request_body_bytes = upload.as_ref().map_or(0, |upload| upload.body_bytes);
        let local = LocalReply::refused(&refusal);
        let after = self.answer(facts, local, upload.as_mut(), tally).await;
        (after, refusal.ticket)
    }

    /// Has the role ask, and decide.
    async fn consult(
        &mut self,
        pending: Pending<R::Question>,
        framing: Framing,
        upload: &mut Upload,
    ) -> Result<Result<RequestRoute<R>, RoleRefusal<R>>, ExchangeEnd> {
        let Pending { mut question, body } = pending;
        let shown = match body.filter(|_| !self.is_tunnelling()) {
            Some(wanted) => self.hold(wanted, framing, upload).await?,
            None => None,
        };
        {
            let Some(work) = &mut self.work else {
                return Err(CLIENT_GONE);
            };
            let mut asking = std::pin::pin!(self.role.ask(&mut question, shown));
            let mut client = ExchangeClient {
                stream: &mut self.stream,
                input: &mut work.input,
                timer: &mut self.timer,
            };
            poll_fn(|cx| match asking.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Ok(())),
                Poll::Pending => client.poll_gone(cx, upload).map(Err),
            })
            .await?;
        }
        let Some(work) = &self.work else {
            return Err(CLIENT_GONE);
        };
        let head = HttpHead::Http1(work.desk.request.head(work.input.filled()));
        Ok(self.role.answered(&head, question))
    }

    /// Returns true if the bytes behind the head are not a body.
    fn is_tunnelling(&self) -> bool {
        self.work.as_ref().is_some_and(|work| {
            let head = work.desk.request.head(work.input.filled());
            head.wants_upgrade() || head.is_connect()
        })
    }

    /// Holds the body as far as it is wanted; nothing where there is none.
    async fn hold(
        &mut self,
        wanted: BodyWanted,
        framing: Framing,
        upload: &mut Upload,
    ) -> Result<Option<BodyPrefix>, ExchangeEnd> {
        if matches!(framing, Framing::None | Framing::Length(0)) {
            return Ok(None);
        }
        self.invite(upload).await;
        let timeouts = self.worker.timeouts;
        let Some(ConnectionWork { input, desk }) = &mut self.work else {
            return Err(CLIENT_GONE);
        };
        let mut holding = HeldBody {
            body: Body::new(framing),
            shown: Vec::new(),
            seen: upload.begin(),
            wanted,
        };
        let (stream, timer, clock) = (&mut self.stream, &mut self.timer, &mut desk.clock);
        let limits = ExchangeLimits::new(&timeouts, None, None);
        poll_fn(|cx| {
            if let Poll::Ready(held) = holding.poll(cx, input, stream, upload) {
                return Poll::Ready(held);
            }
            let sending = ExchangeProgress::sending(upload.body_bytes);
            match clock.overdue(cx, timer, limits, sending) {
                Some(end) => Poll::Ready(Err(end)),
                None => Poll::Pending,
            }
        })
        .await?;
        let whole = upload.received() && holding.shown.len() <= wanted.max;
        if !(whole || wanted.partial) {
            return Err(ExchangeEnd::TooLarge);
        }
        holding.shown.truncate(wanted.max);
        Ok(Some(BodyPrefix {
            bytes: holding.shown,
            whole,
        }))
    }

    /// Sends 100 (Continue) to a client that waits for it.
    async fn invite(&mut self, upload: &Upload) {
        const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
        let waits = self.work.as_ref().is_some_and(|work| {
            let head = work.desk.request.head(work.input.filled());
            head.expects_continue() && upload.body_bytes == 0
        });
        if !waits {
            return;
        }
        let limit = Instant::now() + self.worker.timeouts.linger;
        let (stream, timer, mut sent) = (&mut self.stream, &mut self.timer, 0);
        poll_fn(|cx| {
            while sent < CONTINUE.len() {
                match Pin::new(&mut *stream).poll_write(cx, &CONTINUE[sent..]) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                    Poll::Ready(Ok(written)) => sent += written,
                    Poll::Pending if timer.passed(cx, limit) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            Pin::new(&mut *stream).poll_flush(cx).map(|_| ())
        })
        .await;
    }
}

/// A body that is being held.
struct HeldBody {
    /// Removes the body's framing.
    body: Body,
    shown: Vec<u8>,
    /// Bytes of the buffer before this were looked at.
    seen: usize,
    wanted: BodyWanted,
}

impl HeldBody {
    fn poll<S: Io>(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut Buffer,
        stream: &mut S,
        upload: &mut Upload,
    ) -> Poll<Result<(), ExchangeEnd>> {
        let most = self.wanted.max + MAX_HELD_FRAMING;
        loop {
            self.look(upload.held(input))
                .map_err(ExchangeEnd::RequestBody)?;
            let held = self.seen - upload.begin();
            if upload.received() || self.shown.len() > self.wanted.max || held >= most {
                return Poll::Ready(Ok(()));
            }
            // One read at a time, so that no more is held than is wanted.
            let read = upload.poll_hold(cx, input, stream, held + 1);
            ready!(read)?;
        }
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
