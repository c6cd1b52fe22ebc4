//! One request from its complete head to its record: route, upstream, flight, landing.

use std::future::{Future, poll_fn};
use std::io::Write;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use voile_http1::{RequestEdit, RequestSummary, Version};
use voile_http2::Failure;
use voile_traffic::Attempt;
use voile_transport::SocketEvents;

use super::buffers::Buffer;
use super::connection::{AfterExchange, ConnectionWork, Http1Connection};
use super::download::{Download, DownloadError, Terms};
use super::external_check::ExternalReply;
use super::flight::{ExchangeClient, ExchangeFlight, FlightEnd};
use super::head::{HttpHead, is_grpc};
use super::io::Io;
use super::limits::KEEP_ALIVE_MARGIN;
use super::reply::Reply;
use super::role::{
    BODY_TOO_LARGE, ConnectFailure, Exchange, ExchangeRecord, Grpc, HttpRole, RequestRoute,
    ResponseFlag, Revocation, UpstreamHttp,
};
use super::timer::Timer;
use super::tunnel::TunnelDirection;
use super::upload::Upload;
use super::upstream::Upstream;
use super::worker::HttpWorker;
use crate::http2::limits::MAX_ATTEMPTS;
use crate::http2::upgrade::Upgraded;
use crate::http2::websocket;

/// The authority of an HTTP/1.0 request without one, where the role has none. A strict receiver would refuse an empty `Host`.
const NO_AUTHORITY: &str = "localhost";

/// Facts about a request that outlive the borrow of its head.
#[derive(Clone, Copy)]
pub(super) struct ExchangeFacts {
    version: Version,
    pub(super) asked: RequestSummary,
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
    landing: FlightEnd,
    reused: bool,
    upload: &Upload,
    upstream: &Upstream<U>,
    mark: u64,
) -> Option<Attempt> {
    match landing {
        FlightEnd::Upstream(DownloadError::Held(why)) => Some(why),
        FlightEnd::Timeout => Some(Attempt::Answered(504)),
        FlightEnd::Upstream(DownloadError::Stream {
            failure,
            silent: true,
        }) => Some(upstream.lease()?.attempt(failure)),
        FlightEnd::Upstream(DownloadError::Reset { silent: true }) if !upload.started => {
            Some(Attempt::NotSent)
        }
        FlightEnd::Upstream(DownloadError::Reset { silent: true }) => {
            match upstream.closed_before(mark) {
                true => Some(Attempt::NotReceived),
                false => Some(Attempt::Unanswered { reused }),
            }
        }
        _ => None,
    }
}

/// A reply of our own, decided but not written.
pub(super) struct Local<'a> {
    pub(super) status: u16,
    pub(super) flag: ResponseFlag,
    pub(super) details: &'static str,
    pub(super) reason: &'a str,
    pub(super) told: Option<&'a ExternalReply>,
    /// The request went no further than us.
    pub(super) unprocessed: bool,
}

impl<'a> Local<'a> {
    pub(super) fn new(status: u16, flag: ResponseFlag, details: &'static str) -> Local<'static> {
        Local {
            status,
            flag,
            details,
            reason: details,
            told: None,
            unprocessed: false,
        }
    }
}

enum OpenedExchange<U> {
    Stream(U),
    Failed(ConnectFailure),
    /// The exchange ended before.
    Ended(FlightEnd),
}

/// Our answer to the end of a flight without an own answer.
fn own_words(landing: FlightEnd, begun: bool, revocation: &Revocation) -> Local<'static> {
    use ResponseFlag as Flag;
    match landing {
        FlightEnd::RequestBody(error) => {
            Local::new(400, Flag::DownstreamProtocolError, error.reason())
        }
        FlightEnd::TooLarge => Local::new(413, Flag::DownstreamProtocolError, BODY_TOO_LARGE),
        FlightEnd::Timeout | FlightEnd::Expired => {
            Local::new(504, Flag::UpstreamRequestTimeout, "response_timeout")
        }
        FlightEnd::Idle => Local::new(408, Flag::StreamIdleTimeout, "stream_idle_timeout"),
        FlightEnd::Revoked => Local {
            reason: revocation.told,
            ..Local::new(revocation.status, revocation.flag, revocation.details)
        },
        FlightEnd::Upstream(DownloadError::Stream {
            failure: Failure::Violation(_),
            ..
        }) => Local::new(502, Flag::UpstreamProtocolError, "http2.violation"),
        FlightEnd::Upstream(DownloadError::Stream {
            failure: Failure::Reset(_) | Failure::Unprocessed,
            ..
        }) => Local::new(503, Flag::UpstreamRemoteReset, "upstream_remote_reset"),
        FlightEnd::Upstream(DownloadError::Head(reject)) => {
            Local::new(502, Flag::UpstreamProtocolError, reject.reason())
        }
        FlightEnd::Upstream(DownloadError::Body(error)) => {
            Local::new(502, Flag::UpstreamProtocolError, error.reason())
        }
        FlightEnd::Upstream(DownloadError::Interim) => Local::new(
            502,
            Flag::UpstreamProtocolError,
            "too_many_interim_responses",
        ),
        FlightEnd::Done | FlightEnd::ClientGone | FlightEnd::Upstream(_) => {
            let details = match begun {
                false => "upstream_reset_before_response",
                true => "upstream_reset_after_response_started",
            };
            Local::new(503, Flag::UpstreamConnectionTermination, details)
        }
    }
}

fn client_gone(tally: &mut ExchangeRecord) -> AfterExchange {
    tally.flag = ResponseFlag::DownstreamConnectionTermination;
    tally.details = "downstream_remote_disconnect";
    AfterExchange::Cut
}

/// Returns true if the response timed out. A tunnel has no end that could be waited for.
fn is_over<R: HttpRole>(
    route: &RequestRoute<R>,
    facts: ExchangeFacts,
    upload: &Upload,
    timer: &mut Timer,
    cx: &mut Context<'_>,
) -> bool {
    let limited = upload.received() && !facts.asked.connect;
    let deadline = limited.then(|| route.deadline()).flatten();
    deadline.is_some_and(|deadline| timer.passed(cx, deadline))
}

/// Edits of a request's head.
pub(super) fn edit<R: HttpRole>(route: &RequestRoute<R>) -> RequestEdit<'_> {
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
        UpstreamHttp::Http1 => {
            let connected = tokio::time::timeout(route.connect_timeout, role.connect(route)).await;
            let timeout = |_| ConnectFailure::new("upstream_connect_timeout");
            connected.map_err(timeout)?.map(Upstream::Http1)
        }
        UpstreamHttp::Http2 => {
            let lease = worker.http2.acquire(role, route, websocket).await?;
            Ok(Upstream::Http2(Box::new(Upgraded::new(lease))))
        }
    }
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
        self.started = started;
        let Some(ConnectionWork { input, desk }) = &mut self.work else {
            return AfterExchange::Close { linger: false };
        };
        let desk = &mut **desk;
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
        let may_be_left_out = head.expects_continue() || !self.stream.lingers();
        let upload = Upload::new(framing, body_at, input, may_be_left_out);
        let (after, ticket) = match (upload, self.role.route(&HttpHead::Http1(head))) {
            (Ok(mut upload), Ok(mut route)) => {
                desk.head_end = 0;
                desk.to_upstream.clear();
                head.write_forwarded(&edit(&route), &mut desk.to_upstream);
                let after = self
                    .forward(facts, &mut route, &mut upload, &mut tally)
                    .await;
                (after, Some(route.ticket))
            }
            (Err(error), Ok(route)) => {
                let local = Local::new(400, ResponseFlag::DownstreamProtocolError, error.reason());
                let after = Box::pin(self.answer(facts, local, None, &mut tally)).await;
                (after, Some(route.ticket))
            }
            // Boxed: it is rare, and every idle connection would pay for its size.
            (upload, Err(refusal)) => {
                Box::pin(self.refused(facts, framing, upload, refusal, &mut tally)).await
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
    pub(super) async fn answer(
        &mut self,
        facts: ExchangeFacts,
        local: Local<'_>,
        upload: Option<&mut Upload>,
        tally: &mut ExchangeRecord,
    ) -> AfterExchange {
        let kept = facts.keep_alive && !self.is_last();
        let upload = upload.filter(|upload| kept && upload.ends_soon());
        let reply = Reply {
            status: local.status,
            reason: local.reason,
            told: local.told,
            persist: upload.is_some(),
            client: facts.version,
            head_only: facts.asked.head,
            unprocessed: local.unprocessed && self.role.serves_sidecar(),
            grpc: !facts.asked.connect && self.is_grpc(),
        };
        let (status, grpc_status) = reply.statuses();
        tally.status = status;
        tally.grpc = reply.grpc.then(|| Grpc {
            status: grpc_status,
            ..Grpc::default()
        });
        tally.flag = local.flag;
        tally.details = local.details;
        (tally.response_head_bytes, tally.response_body_bytes) = self.reply(&reply).await;
        match upload {
            Some(upload) => self.keep_client(upload, tally).await,
            None => AfterExchange::Close { linger: true },
        }
    }

    /// Sends the request on; again where that is harmless, or wished for.
    pub(super) async fn forward(
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
            if let Some(lease) = upstream.lease() {
                tally.upstream_reused = lease.reused;
            }
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
            let failed = failure(landing, tally.upstream_reused, upload, &upstream, mark);
            if let Some(failed) = failed.filter(|_| !facts.asked.connect) {
                let harmless = failed.is_harmless(facts.idempotent) && upload.replayable;
                // A stale pooled connection is replaced, once; that is no retry.
                let replace = harmless && tally.upstream_reused && upstream.lease().is_none();
                let repeat =
                    harmless && upstream.lease().is_some() && tally.attempts < MAX_ATTEMPTS;
                // The role is asked before a stream is repeated: it may know a better place.
                if replace || self.again(route, failed, upload, tally).await || repeat {
                    download.give_buffer(&self.worker.buffers);
                    upload.rewind();
                    stale = replace;
                    continue;
                }
                if let FlightEnd::Upstream(DownloadError::Held(_)) = landing {
                    download.accept();
                    landing = self
                        .fly(facts, route, upload, &mut download, &mut upstream)
                        .await;
                }
            }
            count(upload, &download, tally);
            if landing == FlightEnd::Done && download.is_tunnel() {
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
        loop {
            self.number_attempt(tally);
            (route.observer.iter()).for_each(|one| one.seeks_connection());
            let pooled = (!stale).then(|| self.checkout(route, facts)).flatten();
            tally.upstream_reused = pooled.is_some();
            if let Some(stream) = pooled {
                return Ok(stream);
            }
            match self.open(route, facts, upload).await {
                OpenedExchange::Stream(stream) => return Ok(stream),
                OpenedExchange::Ended(end) => {
                    return Err(Box::pin(self.give_up(end, facts, Some(upload), tally)).await);
                }
                OpenedExchange::Failed(failure) => {
                    if !self.dials_again(route, &failure, upload, tally).await {
                        return Err(self.unreachable(facts, &failure, upload, tally).await);
                    }
                }
            }
        }
    }

    /// Refuses trailers that the client may not write; returns the reply if they came already.
    fn forbid_trailers(
        &self,
        route: &RequestRoute<R>,
        upload: &mut Upload,
    ) -> Option<Local<'static>> {
        let (observer, work) = (route.observer.as_ref()?, self.work.as_ref()?);
        let forbidden = upload.forbid_trailers(observer.keeps(), &work.input);
        let flag = ResponseFlag::DownstreamProtocolError;
        Some(Local::new(400, flag, forbidden.err()?.reason()))
    }

    /// An idle connection for the route. Before a request that could not be repeated the kernel is asked whether it still
    /// stands; for the others finding out is cheaper than asking every time.
    fn checkout(
        &self,
        route: &RequestRoute<R>,
        facts: ExchangeFacts,
    ) -> Option<Upstream<R::Upstream>> {
        if route.upstream == UpstreamHttp::Http2 {
            return None;
        }
        loop {
            let mut stream = self.worker.pool.checkout(&route.key)?;
            if facts.idempotent || stream.news() == SocketEvents::None {
                return Some(Upstream::Http1(stream));
            }
        }
    }

    /// Returns the upstream connection to the pool, if it can carry another request.
    fn keep(
        &self,
        route: &RequestRoute<R>,
        landing: FlightEnd,
        (upload, mut download): (&Upload, Download),
        upstream: Upstream<R::Upstream>,
        tally: &mut ExchangeRecord,
    ) {
        let leftover = download.take_buffer();
        let quiet = leftover.as_ref().is_none_or(Buffer::is_empty);
        if let Some(buffer) = leftover {
            self.worker.buffers.give(buffer);
        }
        if landing == FlightEnd::Done
            && download.upstream_keeps
            && upload.finished
            && quiet
            && let Upstream::Http1(mut upstream) = upstream
        {
            let now = tally.finish();
            let most = route.terms.requests;
            if most.is_some_and(|most| upstream.carried() >= most.get()) {
                return;
            }
            // The server is given a head start by a margin, which what we wish ourselves does not need.
            let idle = route.terms.idle().map(|idle| idle + KEEP_ALIVE_MARGIN);
            let patience = [download.upstream_patience, idle]
                .into_iter()
                .flatten()
                .min();
            self.worker
                .pool
                .checkin(&route.key, upstream, now, patience);
        }
    }

    /// Counts the attempt; from the second on the request carries its number, as by Istio's proxies.
    fn number_attempt(&mut self, tally: &mut ExchangeRecord) {
        tally.attempts += 1;
        if let Some(work) = &mut self.work
            && tally.attempts > 1
        {
            let desk = &mut *work.desk;
            let head = &mut desk.to_upstream;
            if desk.head_end == 0 {
                desk.head_end = head.len() - 2;
            }
            head.truncate(desk.head_end);
            // Writing into a Vec cannot fail.
            let _ = write!(head, "x-envoy-attempt-count: {}\r\n\r\n", tally.attempts);
        }
    }

    /// Returns true if another attempt follows a failed connect.
    async fn dials_again(
        &mut self,
        route: &mut RequestRoute<R>,
        failure: &ConnectFailure,
        upload: &mut Upload,
        tally: &mut ExchangeRecord,
    ) -> bool {
        if failure.look_again {
            tally.attempts -= 1;
            return true;
        }
        // A request over a limit finds no room at another endpoint: it is refused at once.
        failure.flag != ResponseFlag::UpstreamOverflow
            && self
                .again(route, Attempt::NotConnected, upload, tally)
                .await
    }

    /// Asks the role for another attempt and waits for its pause. Also false if the client left meanwhile.
    async fn again(
        &mut self,
        route: &mut RequestRoute<R>,
        last: Attempt,
        upload: &mut Upload,
        tally: &ExchangeRecord,
    ) -> bool {
        if !upload.replayable {
            return false;
        }
        let Some(pause) = self.role.again(route, last, tally.attempts) else {
            return false;
        };
        if pause.is_zero() {
            return true;
        }
        // A failed answer is better than none after the timeout.
        if route.ends_within(pause) {
            return false;
        }
        let mut sleep = Box::pin(tokio::time::sleep(pause));
        let Some(work) = &mut self.work else {
            return false;
        };
        let mut client = ExchangeClient {
            stream: &mut self.stream,
            input: &mut work.input,
            timer: &mut self.timer,
        };
        poll_fn(|cx| match sleep.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => client.poll_gone(cx, upload).map(|_| false),
        })
        .await
    }

    /// No attempt reached an endpoint.
    async fn unreachable(
        &mut self,
        facts: ExchangeFacts,
        failure: &ConnectFailure,
        upload: &mut Upload,
        tally: &mut ExchangeRecord,
    ) -> AfterExchange {
        let local = Local {
            reason: &failure.reason,
            unprocessed: true,
            ..Local::new(failure.status, failure.flag, failure.details)
        };
        tally.request_body_bytes = upload.body_bytes;
        Box::pin(self.answer(facts, local, Some(upload), tally)).await
    }

    async fn open(
        &mut self,
        route: &RequestRoute<R>,
        facts: ExchangeFacts,
        upload: &mut Upload,
    ) -> OpenedExchange<Upstream<R::Upstream>> {
        let mut connecting = Box::pin(connect(self.worker, self.role, route, facts.websocket));
        let Some(work) = &mut self.work else {
            return OpenedExchange::Ended(FlightEnd::ClientGone);
        };
        let mut client = ExchangeClient {
            stream: &mut self.stream,
            input: &mut work.input,
            timer: &mut self.timer,
        };
        poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(Ok(stream)) => Poll::Ready(OpenedExchange::Stream(stream)),
            Poll::Ready(Err(failure)) => Poll::Ready(OpenedExchange::Failed(failure)),
            Poll::Pending => match client.poll_gone(cx, upload) {
                Poll::Ready(end) => Poll::Ready(OpenedExchange::Ended(end)),
                Poll::Pending if is_over(route, facts, upload, client.timer, cx) => {
                    Poll::Ready(OpenedExchange::Ended(FlightEnd::Expired))
                }
                Poll::Pending => Poll::Pending,
            },
        })
        .await
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
    ) -> FlightEnd {
        let Some(ConnectionWork { input, desk }) = &mut self.work else {
            return FlightEnd::ClientGone;
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
        let (role, retiring) = (self.role, self.retiring);
        let mut flight = ExchangeFlight {
            upload,
            download,
            upstream,
            terms,
            idle_since: None,
            started: self.started,
            waiting_since: None,
        };
        poll_fn(|cx| {
            let head = || HttpHead::Http1(desk.request.head(client.input.filled()));
            if role.is_revoked(&route.ticket, head) {
                return Poll::Ready(FlightEnd::Revoked);
            }
            let last = retiring || worker.drain.is_draining();
            flight.terms.persist = facts.keep_alive && !last;
            let polled = flight.poll(cx, &mut client, desk, &worker.buffers, &worker.timeouts);
            if let Some(answer) = flight.download.take_news() {
                role.answers(&route.ticket, answer);
            }
            match polled {
                Poll::Pending if is_over(route, facts, flight.upload, client.timer, cx) => {
                    Poll::Ready(FlightEnd::Expired)
                }
                polled => polled,
            }
        })
        .await
    }

    /// Ends an exchange of which the client has received nothing.
    pub(super) async fn give_up(
        &mut self,
        landing: FlightEnd,
        facts: ExchangeFacts,
        upload: Option<&mut Upload>,
        tally: &mut ExchangeRecord,
    ) -> AfterExchange {
        tally.request_body_bytes = upload.as_ref().map_or(0, |upload| upload.body_bytes);
        if landing == FlightEnd::ClientGone {
            return client_gone(tally);
        }
        let rest = upload.filter(|_| landing != FlightEnd::Idle);
        let local = own_words(landing, false, &R::REVOCATION);
        self.answer(facts, local, rest, tally).await
    }

    /// Turns the end of a flight into the client's response and the record.
    async fn land(
        &mut self,
        landing: FlightEnd,
        facts: ExchangeFacts,
        upload: &mut Upload,
        download: &mut Download,
        tally: &mut ExchangeRecord,
    ) -> AfterExchange {
        match landing {
            FlightEnd::Done => {
                tally.details = "via_upstream";
                return match download.persist && upload.ends_soon() {
                    true => self.keep_client(upload, tally).await,
                    false => AfterExchange::Close {
                        linger: !upload.received() || facts.asked.connect,
                    },
                };
            }
            FlightEnd::ClientGone => return client_gone(tally),
            _ => {}
        }
        let begun = download.stalled || (download.status != 0 && download.head_started);
        if begun {
            let local = own_words(landing, download.status != 0, &R::REVOCATION);
            tally.flag = local.flag;
            tally.details = local.details;
            // With a known length, missing bytes show the cut; with a body that ends at the close, only a reset shows it.
            return if download.until_close || download.unwrap {
                AfterExchange::Abort
            } else {
                AfterExchange::Cut
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
        let mut revoked = false;
        let result = poll_fn(|cx| {
            if role.is_revoked(&route.ticket, || HttpHead::Http1(desk.request.head(&head))) {
                revoked = true;
                return Poll::Ready(Err(std::io::ErrorKind::PermissionDenied.into()));
            }
            let sent = up.poll(cx, &buffers, client, &mut upstream)?;
            let received = down.poll(cx, &buffers, &mut upstream, client)?;
            if sent.is_ready() && received.is_ready() {
                return Poll::Ready(Ok(()));
            }
            let moved = up.bytes + down.bytes;
            if moved != quiet.1 {
                quiet = (Instant::now(), moved);
            }
            if timer.passed(cx, quiet.0 + limit) {
                return Poll::Ready(Err(std::io::Error::from(std::io::ErrorKind::TimedOut)));
            }
            Poll::Pending
        })
        .await;
        if result.is_err() {
            self.stream.abort();
            upstream.abort();
            tally.flag = ResponseFlag::UpstreamConnectionTermination;
        }
        up.give_back(&buffers);
        down.give_back(&buffers);
        tally.details = "tunnel";
        if revoked {
            (tally.flag, tally.details) = (R::REVOCATION.flag, R::REVOCATION.details);
        }
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
