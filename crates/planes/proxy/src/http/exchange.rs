//! One request from its complete head to its record: route, upstream, flight, landing.

use std::future::poll_fn;
use std::io::Write;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use voile_http1::{BodyError, RequestEdit, RequestSummary, Version};
use voile_traffic::Attempt;

use super::attempt::{self, MissingUpstream};
use super::buffers::Buffer;
use super::connection::{AfterExchange, ConnectionWork, Http1Connection};
use super::download::{Download, Terms};
use super::downstream_request::Http1Request;
use super::ending::{CLIENT_GONE, ExchangeEnd};
use super::exchange_clock::{ExchangeClock, ExchangeLimits};
use super::external_check_wait::{self, CheckedRequest};
use super::flight::{ExchangeClient, ExchangeFlight};
use super::head::{HttpHead, is_grpc};
use super::io::Io;
use super::limits::MAX_ATTEMPTS;
use super::reply::{LocalReply, ReplyTraits};
use super::role::{
    ConnectFailure, Exchange, ExchangeRecord, HttpRole, RequestRoute, ResponseFlag, RoleRefusal,
    UpstreamHttp,
};
use super::transfer::held_body::HeldBody;
use super::tunnel::TunnelDirection;
use super::upload::Upload;
use super::upstream::{self, Upstream};
use super::worker::HttpWorker;
use crate::http2::upgrade::Upgraded;
use crate::http2::websocket;

/// The authority of an HTTP/1.0 request without one, where the role has none. A strict receiver would refuse an empty `Host`.
const NO_AUTHORITY: &str = "localhost";

/// Facts about a request that outlive the borrow of its head.
#[derive(Clone, Copy)]
struct ExchangeFacts {
    version: Version,
    asked: RequestSummary,
    keep_alive: bool,
    idempotent: bool,
    /// A handshake that HTTP/2 can carry, too.
    websocket: bool,
}

fn count(upload: &Upload, download: &Download, record: &mut ExchangeRecord) {
    record.request_body_bytes = upload.body_bytes;
    record.status = download.status;
    record.response_head_bytes = download.head_bytes;
    record.response_body_bytes = download.body_bytes;
}

/// Describes an attempt that failed and gave the client nothing.
fn failure<U: Io>(
    landing: ExchangeEnd,
    reused: bool,
    (upload, download): (&Upload, &Download),
    upstream: &Upstream<U>,
    mark: u64,
) -> Option<Attempt> {
    let closed = || upstream.closed_before(mark);
    match landing {
        ExchangeEnd::Held(why) => Some(why),
        ExchangeEnd::Timeout => Some(Attempt::Answered(504)),
        ExchangeEnd::Upstream(cause) if download.is_silent() => Some(match upstream.lease() {
            Some(lease) => lease.attempt(cause),
            None if !upload.started => Attempt::NotSent,
            None if closed() => Attempt::NotReceived,
            None => Attempt::Unanswered { reused },
        }),
        _ => None,
    }
}

/// Timeout of the answer. A tunnel has no end that could be waited for.
fn timeout<R: HttpRole>(route: &RequestRoute<R>, facts: ExchangeFacts) -> Option<Duration> {
    route.timeout().filter(|_| !facts.asked.connect)
}

/// Edits of a request's head.
fn edit<R: HttpRole>(route: &RequestRoute<R>) -> RequestEdit<'_> {
    let (observer, edit) = (route.observer.as_deref(), route.edit());
    RequestEdit {
        authority: edit.authority,
        path: edit.path,
        default_authority: edit.default_authority.or(Some(NO_AUTHORITY)),
        add: observer.map_or(&[], |observer| observer.adds()),
        leave_out: observer.map_or(&[], |observer| observer.leaves_out()),
    }
}

async fn connect<R: HttpRole>(
    worker: &HttpWorker<R>,
    role: &R,
    route: &RequestRoute<R>,
    websocket: bool,
) -> Result<Upstream<R::Upstream>, ConnectFailure> {
    match route.upstream {
        UpstreamHttp::Http1 => upstream::connect(role, route).await.map(Upstream::Http1),
        UpstreamHttp::Http2 => {
            let lease = worker.http2.acquire(role, route, websocket).await?;
            Ok(Upstream::Http2(Box::new(Upgraded::new(lease))))
        }
    }
}

/// An idle connection for the route, unless the last one was `stale`.
fn checkout<R: HttpRole>(
    worker: &HttpWorker<R>,
    route: &RequestRoute<R>,
    facts: ExchangeFacts,
    stale: bool,
) -> Option<Upstream<R::Upstream>> {
    if stale || route.upstream == UpstreamHttp::Http2 {
        return None;
    }
    upstream::checkout(worker, route, facts.idempotent).map(Upstream::Http1)
}

impl<S: Io, R: HttpRole> Http1Connection<'_, S, R> {
    /// Lets the role learn what the request in `self.work` names, if it must.
    pub(crate) async fn prepare(&mut self) {
        let name = self.work.as_ref().and_then(|work| {
            let head = work.desk.request.head(work.input.filled());
            self.role.unknown(&HttpHead::Http1(head))
        });
        if let Some(name) = name {
            Box::pin(self.role.learn(name)).await;
        }
    }

    /// Serves the request whose head is complete in `self.work`.
    pub(crate) async fn exchange(&mut self) -> AfterExchange {
        let started = Instant::now();
        let Some(ConnectionWork { input, desk }) = &mut self.work else {
            return AfterExchange::Close { linger: false };
        };
        let desk = &mut **desk;
        desk.clock = ExchangeClock::new(started);
        let head = desk.request.head(input.filled());
        let facts = ExchangeFacts {
            version: head.version(),
            asked: RequestSummary {
                head: head.is_head(),
                upgrade: head.wants_upgrade(),
                connect: head.is_connect(),
            },
            // A refused CONNECT is the last: early bytes of its client are no request (RFC 9110 section 9.3.6).
            keep_alive: head.keep_alive() && !head.is_connect(),
            idempotent: head.is_idempotent(),
            websocket: websocket::is_handshake(&head),
        };
        let framing = head.framing();
        let body_at = input.start + desk.request.head_len();
        let mut tally = ExchangeRecord::begin(started, desk.request.head_len() as u64);
        let upload = Upload::new(framing, body_at, input, head.expects_continue());
        let (after, ticket) = match (upload, self.role.route(&HttpHead::Http1(head))) {
            (Ok(mut upload), Ok(mut route)) => {
                self.write_head(&route);
                let after = self
                    .forward(facts, &mut route, &mut upload, &mut tally)
                    .await;
                (after, Some(route.ticket))
            }
            (Err(error), Ok(route)) => {
                let local =
                    LocalReply::new(400, ResponseFlag::DownstreamProtocolError, error.reason());
                let after = Box::pin(self.answer(facts, local, None, &mut tally)).await;
                (after, Some(route.ticket))
            }
            // Boxed: it is rare, and every idle connection would pay for its size.
            (upload, Err(refusal)) => {
                Box::pin(self.refused(facts, upload, refusal, &mut tally)).await
            }
        };
        if let Some(work) = &self.work {
            let bytes = work.input.filled();
            self.rested = tally.finish();
            self.record(work, bytes, ticket.as_ref(), &tally);
        }
        if let AfterExchange::Keep { end } = after {
            self.advance(end);
        }
        after
    }

    fn record(
        &self,
        work: &ConnectionWork,
        bytes: &[u8],
        ticket: Option<&R::Ticket>,
        record: &ExchangeRecord,
    ) {
        self.role.record(Exchange {
            head: Some(HttpHead::Http1(work.desk.request.head(bytes))),
            ticket,
            record,
        });
    }

    /// Returns true if the present request is a gRPC call. Only local replies call this; forwarded requests do not pay for it.
    fn is_grpc(&self) -> bool {
        let Some(work) = &self.work else {
            return false;
        };
        let head = work.desk.request.head(work.input.filled());
        head.header("content-type").is_some_and(is_grpc)
    }

    /// Replies ourselves. The connection is kept if the request was received whole, or nearly so.
    async fn answer(
        &mut self,
        facts: ExchangeFacts,
        local: LocalReply<'_>,
        upload: Option<&mut Upload>,
        tally: &mut ExchangeRecord,
    ) -> AfterExchange {
        let kept = facts.keep_alive && !self.is_last();
        let upload = upload.filter(|upload| kept && upload.ends_soon());
        let traits = ReplyTraits {
            grpc: self.is_grpc(),
            head_only: facts.asked.head,
            tunnel: facts.asked.connect,
        };
        let framing = (facts.version, upload.is_some());
        self.reply(local, traits, framing, tally).await;
        match upload {
            Some(upload) => self.keep_client(upload, tally).await,
            None => AfterExchange::Close { linger: true },
        }
    }

    /// Handles a request that the role does not let pass at once: asks about it, or answers it.
    async fn refused(
        &mut self,
        facts: ExchangeFacts,
        mut upload: Result<Upload, BodyError>,
        mut refusal: RoleRefusal<R>,
        tally: &mut ExchangeRecord,
    ) -> (AfterExchange, Option<R::Ticket>) {
        if refusal.pending.is_some() {
            let upload = match &mut upload {
                Ok(upload) => upload,
                Err(error) => {
                    let why = ExchangeEnd::RequestBody(*error);
                    let after = self.give_up(why, facts, None, tally).await;
                    return (after, refusal.ticket);
                }
            };
            match self.check(upload, refusal).await {
                CheckedRequest::Routed(mut route) => {
                    self.write_head(&route);
                    let after = self.forward(facts, &mut route, upload, tally).await;
                    return (after, Some(route.ticket));
                }
                CheckedRequest::Refused(decided) => refusal = decided,
                CheckedRequest::Ended(end, ticket) => {
                    let after = self.give_up(end, facts, Some(upload), tally).await;
                    return (after, ticket);
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
    async fn check(&mut self, upload: &mut Upload, refusal: RoleRefusal<R>) -> CheckedRequest<R> {
        let timeouts = self.worker.timeouts;
        let role = self.role;
        let Some(mut request) = self.request(upload) else {
            return CheckedRequest::Ended(CLIENT_GONE, refusal.ticket);
        };
        let head = request.desk.request.head(request.client.input.filled());
        request.body = HeldBody::new(&head, request.upload);
        external_check_wait::check(&timeouts, role, refusal, &mut request).await
    }

    /// The request in `self.work`.
    fn request<'s>(&'s mut self, upload: &'s mut Upload) -> Option<Http1Request<'s, S>> {
        let work = self.work.as_mut()?;
        Some(Http1Request {
            client: ExchangeClient {
                stream: &mut self.stream,
                input: &mut work.input,
                timer: &mut self.timer,
            },
            desk: &mut work.desk,
            upload,
            body: None,
        })
    }

    /// Writes the head that goes on.
    fn write_head(&mut self, route: &RequestRoute<R>) {
        if let Some(ConnectionWork { input, desk }) = &mut self.work {
            let desk = &mut **desk;
            desk.head_end = 0;
            desk.to_upstream.clear();
            let head = desk.request.head(input.filled());
            head.write_forwarded(&edit(route), &mut desk.to_upstream);
        }
    }

    /// Sends the request on; again where that is harmless, or wished for.
    async fn forward(
        &mut self,
        facts: ExchangeFacts,
        route: &mut RequestRoute<R>,
        upload: &mut Upload,
        tally: &mut ExchangeRecord,
    ) -> AfterExchange {
        if let Some(local) = self.forbid_trailers(route, upload) {
            return Box::pin(self.answer(facts, local, None, tally)).await;
        }
        // A tunnel needs a fresh upstream connection.
        let mut stale = facts.asked.connect;
        loop {
            let mut upstream = match self.reach(facts, route, upload, tally, stale).await {
                Ok(upstream) => upstream,
                Err(after) => return after,
            };
            let mark = upstream.written();
            (route.observer.iter()).for_each(|one| one.sends(upstream.local_address()));
            let Some(work) = &mut self.work else {
                return AfterExchange::Close { linger: false };
            };
            let desk = &mut work.desk;
            let mut download = Download::new(&mut desk.response, &mut desk.to_client);
            let mut landing = self
                .fly(facts, route, upload, &mut download, &mut upstream)
                .await;
            let ends = (&*upload, &download);
            let failed = failure(landing, tally.upstream_reused, ends, &upstream, mark);
            if let Some(failed) = failed.filter(|_| !facts.asked.connect) {
                let harmless = failed.is_harmless(facts.idempotent) && upload.replayable;
                // A stale pooled connection is replaced, once; that is no retry.
                let replace = harmless && tally.upstream_reused && upstream.lease().is_none();
                let repeat =
                    harmless && upstream.lease().is_some() && tally.attempts < MAX_ATTEMPTS;
                // The role is asked before a stream is repeated: it may know a better place.
                if replace || self.again(route, failed, upload, tally.attempts).await || repeat {
                    download.give_buffer(&self.worker.buffers);
                    upload.rewind();
                    stale = replace;
                    continue;
                }
                if let ExchangeEnd::Held(_) = landing {
                    download.accept();
                    landing = self
                        .fly(facts, route, upload, &mut download, &mut upstream)
                        .await;
                }
            }
            count(upload, &download, tally);
            if landing == ExchangeEnd::Done && download.is_tunnel() {
                let ends = (&*upload, &mut download);
                return Box::pin(self.tunnel(route, ends, upstream, tally)).await;
            }
            let after = self
                .land(landing, facts, upload, &mut download, tally)
                .await;
            self.keep(route, landing, (upload, download), upstream, tally);
            return after;
        }
    }

    /// A connection or stream for the next attempt, a fresh one after a `stale` one; otherwise the exchange is over.
    async fn reach(
        &mut self,
        facts: ExchangeFacts,
        route: &mut RequestRoute<R>,
        upload: &mut Upload,
        tally: &mut ExchangeRecord,
        stale: bool,
    ) -> Result<Upstream<R::Upstream>, AfterExchange> {
        let reached = match checkout(self.worker, route, facts, stale) {
            Some(stream) => {
                attempt::begin(route, tally);
                Ok((stream, true))
            }
            // Boxed: it is rare, and every idle connection would pay for its size.
            None => Box::pin(self.open(facts, route, upload, tally, stale)).await,
        };
        tally.upstream_reused = false;
        match reached {
            Ok((upstream, pooled)) => {
                tally.upstream_reused = upstream.lease().map_or(pooled, |lease| lease.reused);
                self.number_attempt(tally.attempts);
                Ok(upstream)
            }
            Err(MissingUpstream::Ended(end)) => {
                Err(Box::pin(self.give_up(end, facts, Some(upload), tally)).await)
            }
            Err(MissingUpstream::Failed(failure)) => {
                let local = LocalReply::unreached(&failure);
                tally.request_body_bytes = upload.body_bytes;
                Err(Box::pin(self.answer(facts, local, Some(upload), tally)).await)
            }
        }
    }

    /// The same, and whether it is an idle connection: one may have become free meanwhile.
    async fn open(
        &mut self,
        facts: ExchangeFacts,
        route: &mut RequestRoute<R>,
        upload: &mut Upload,
        tally: &mut ExchangeRecord,
        stale: bool,
    ) -> Result<(Upstream<R::Upstream>, bool), MissingUpstream> {
        let (worker, role) = (self.worker, self.role);
        let Some(mut request) = self.request(upload) else {
            return Err(MissingUpstream::Ended(CLIENT_GONE));
        };
        let connect = async |route: &RequestRoute<R>| match checkout(worker, route, facts, stale) {
            Some(stream) => Ok((stream, true)),
            None => {
                let stream = connect(worker, role, route, facts.websocket).await?;
                Ok((stream, false))
            }
        };
        attempt::reach(role, route, &mut request, tally, connect).await
    }

    /// Refuses trailers that the client may not write; returns the reply if they came already.
    fn forbid_trailers(
        &self,
        route: &RequestRoute<R>,
        upload: &mut Upload,
    ) -> Option<LocalReply<'static>> {
        let (observer, work) = (route.observer.as_ref()?, self.work.as_ref()?);
        let forbidden = upload.forbid_trailers(observer.keeps(), &work.input);
        let flag = ResponseFlag::DownstreamProtocolError;
        Some(LocalReply::new(400, flag, forbidden.err()?.reason()))
    }

    /// Returns the upstream connection to the pool, if it can carry another request.
    fn keep(
        &self,
        route: &RequestRoute<R>,
        landing: ExchangeEnd,
        (upload, mut download): (&Upload, Download),
        upstream: Upstream<R::Upstream>,
        tally: &mut ExchangeRecord,
    ) {
        let leftover = download.take_buffer();
        let quiet = leftover.as_ref().is_none_or(Buffer::is_empty);
        if let Some(buffer) = leftover {
            self.worker.buffers.give(buffer);
        }
        if landing == ExchangeEnd::Done
            && download.upstream_keeps
            && upload.finished
            && quiet
            && let Upstream::Http1(upstream) = upstream
        {
            let kept = (upstream, download.upstream_patience);
            upstream::keep(self.worker, route, kept, tally.finish());
        }
    }

    /// From the second attempt on the request carries its number, as by Istio's proxies.
    fn number_attempt(&mut self, attempt: u32) {
        if let Some(work) = &mut self.work
            && attempt > 1
        {
            let desk = &mut *work.desk;
            let head = &mut desk.to_upstream;
            if desk.head_end == 0 {
                desk.head_end = head.len() - 2;
            }
            head.truncate(desk.head_end);
            // Writing into a Vec cannot fail.
            let _ = write!(head, "x-envoy-attempt-count: {attempt}\r\n\r\n");
        }
    }

    /// Returns true if another attempt follows.
    async fn again(
        &mut self,
        route: &mut RequestRoute<R>,
        last: Attempt,
        upload: &mut Upload,
        made: u32,
    ) -> bool {
        let (role, replayable) = (self.role, upload.replayable);
        match self.request(upload).filter(|_| replayable) {
            // Boxed: it is rare, and every idle connection would pay for its size.
            Some(mut request) => {
                Box::pin(attempt::again(role, route, last, &mut request, made)).await
            }
            None => false,
        }
    }

    /// Returns true if the response is the connection's last.
    fn is_last(&self) -> bool {
        self.retiring || self.worker.drain.is_draining()
    }

    async fn fly(
        &mut self,
        facts: ExchangeFacts,
        route: &RequestRoute<R>,
        upload: &mut Upload,
        download: &mut Download,
        upstream: &mut Upstream<R::Upstream>,
    ) -> ExchangeEnd {
        let Some(ConnectionWork { input, desk }) = &mut self.work else {
            return CLIENT_GONE;
        };
        let worker = Rc::clone(self.worker);
        let mut client = ExchangeClient {
            stream: &mut self.stream,
            input,
            timer: &mut self.timer,
        };
        let terms = Terms {
            asked: facts.asked,
            client: facts.version,
            persist: facts.keep_alive,
            // A request that is never sent again holds nothing back.
            from_sidecar: route.to_sidecar && !facts.asked.connect,
            retry: route.retry.as_deref().filter(|_| !facts.asked.connect),
            observer: route.observer.as_deref(),
        };
        let each = terms.retry.and_then(|policy| policy.per_try_timeout);
        let limits = ExchangeLimits::new(&worker.timeouts, each, timeout(route, facts));
        let (role, retiring) = (self.role, self.retiring);
        let mut flight = ExchangeFlight {
            upload,
            download,
            upstream,
            terms,
            limits,
        };
        desk.clock.restart();
        poll_fn(|cx| {
            let head = || HttpHead::Http1(desk.request.head(client.input.filled()));
            if role.is_revoked(&route.ticket, head) {
                return Poll::Ready(ExchangeEnd::Revoked);
            }
            let last = retiring || worker.drain.is_draining();
            flight.terms.persist = facts.keep_alive && !last;
            let polled = flight.poll(cx, &mut client, desk, &worker.buffers);
            if let Some(answer) = flight.download.take_news() {
                role.answers(&route.ticket, answer);
            }
            polled
        })
        .await
    }

    /// Ends an exchange of which the client has received nothing.
    async fn give_up(
        &mut self,
        landing: ExchangeEnd,
        facts: ExchangeFacts,
        upload: Option<&mut Upload>,
        tally: &mut ExchangeRecord,
    ) -> AfterExchange {
        tally.request_body_bytes = upload.as_ref().map_or(0, |upload| upload.body_bytes);
        let local = landing.reply(false, R::REVOCATION);
        if let ExchangeEnd::Client(_) = landing {
            (tally.flag, tally.details) = (local.flag, local.details);
            return AfterExchange::Cut;
        }
        let rest = upload.filter(|_| landing != ExchangeEnd::Idle);
        self.answer(facts, local, rest, tally).await
    }

    /// Turns the end of a flight into the client's response and the record.
    async fn land(
        &mut self,
        landing: ExchangeEnd,
        facts: ExchangeFacts,
        upload: &mut Upload,
        download: &mut Download,
        tally: &mut ExchangeRecord,
    ) -> AfterExchange {
        let begun = download.stalled || (download.status != 0 && download.head_started);
        if begun {
            let local = landing.reply(download.status != 0, R::REVOCATION);
            (tally.flag, tally.details) = (local.flag, local.details);
        }
        if landing == ExchangeEnd::Done {
            return match download.persist && upload.ends_soon() {
                true => self.keep_client(upload, tally).await,
                false => AfterExchange::Close {
                    linger: !upload.received() || facts.asked.connect,
                },
            };
        }
        if begun {
            // With a known length, missing bytes show the cut; with a body that ends at the close, only a reset shows it.
            let gone = matches!(landing, ExchangeEnd::Client(_));
            return match !gone && (download.until_close || download.unwrap) {
                true => AfterExchange::Abort,
                false => AfterExchange::Cut,
            };
        }
        // Boxed: it is rare, and every idle connection would pay for its size.
        Box::pin(self.give_up(landing, facts, Some(upload), tally)).await
    }

    /// After 101, or 2xx to CONNECT: bytes both ways until both sides ended. Recorded here, since the buffers move into the directions.
    async fn tunnel(
        &mut self,
        route: &RequestRoute<R>,
        (upload, download): (&Upload, &mut Download),
        mut upstream: Upstream<R::Upstream>,
        tally: &mut ExchangeRecord,
    ) -> AfterExchange {
        let Some(ConnectionWork { mut input, desk }) = self.work.take() else {
            return AfterExchange::Tunnelled;
        };
        let buffers = self.worker.buffers.clone();
        let head = input.bytes()[input.start..upload.end()].to_vec();
        input.start = upload.end();
        let mut up = TunnelDirection::new(Some(input));
        let mut down = TunnelDirection::new(download.take_buffer());
        let (client, timer, role) = (&mut self.stream, &mut self.timer, self.role);
        let limit = self.worker.timeouts.tunnel_idle;
        let mut quiet = (Instant::now(), 0);
        let result = poll_fn(|cx| {
            if role.is_revoked(&route.ticket, || HttpHead::Http1(desk.request.head(&head))) {
                return Poll::Ready(Err(Some(ExchangeEnd::Revoked)));
            }
            let sent = up.poll(cx, &buffers, client, &mut upstream);
            let sent = sent.map_err(|_| None)?;
            let received = down.poll(cx, &buffers, &mut upstream, client);
            let received = received.map_err(|_| None)?;
            if sent.is_ready() && received.is_ready() {
                return Poll::Ready(Ok(()));
            }
            let moved = up.bytes + down.bytes;
            if moved != quiet.1 {
                quiet = (Instant::now(), moved);
            }
            if timer.passed(cx, quiet.0 + limit) {
                return Poll::Ready(Err(Some(ExchangeEnd::Idle)));
            }
            Poll::Pending
        })
        .await;
        tally.details = "tunnel";
        if let Err(end) = result {
            tally.flag = ResponseFlag::UpstreamConnectionTermination;
            if let Some(end) = end {
                let end = end.reply(true, R::REVOCATION);
                (tally.flag, tally.details) = (end.flag, end.details);
            }
            self.stream.abort();
            upstream.abort();
        }
        up.give_back(&buffers);
        down.give_back(&buffers);
        (tally.request_body_bytes, tally.response_body_bytes) = (up.bytes, down.bytes);
        let work = ConnectionWork {
            input: buffers.take(),
            desk,
        };
        tally.finish();
        self.record(&work, &head, Some(&route.ticket), tally);
        work.give_back(&buffers);
        AfterExchange::Tunnelled
    }
}
