//! One request from its complete head to its record: route, upstream, flight, landing.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use voile_http1::{Asked, RequestEdit, Version};

use super::connection::{After, Connection, Work};
use super::download::{Download, DownloadError, Terms};
use super::flight::{Client, Flight, Landing};
use super::head::Head;
use super::io::Io;
use super::reply::Reply;
use super::role::{ConnectFailure, Exchange, HttpRole, ResponseFlag, Route};
use super::tunnel::Direction;
use super::upload::Upload;

/// The authority of an HTTP/1.0 request that names none, where the role knows none either: an empty `Host` would be
/// refused by the next strict receiver.
const NO_AUTHORITY: &str = "localhost";

/// What is remembered of a request once its head is no longer borrowed.
#[derive(Clone, Copy)]
struct Facts {
    version: Version,
    asked: Asked,
    keep_alive: bool,
    idempotent: bool,
}

/// What the record will say.
#[derive(Default)]
struct Tally {
    status: u16,
    flag: ResponseFlag,
    details: &'static str,
    request_body: u64,
    response_head: u64,
    response_body: u64,
    reused: bool,
    /// When the upstream connection went back to the pool, so that the clock is read once for both.
    ended: Option<Instant>,
}

/// A reply of our own, decided but not written.
struct Local<'a> {
    status: u16,
    flag: ResponseFlag,
    details: &'static str,
    reason: &'a str,
}

impl<'a> Local<'a> {
    fn new(status: u16, flag: ResponseFlag, details: &'static str) -> Local<'static> {
        Local {
            status,
            flag,
            details,
            reason: details,
        }
    }
}

enum Opened<U> {
    Stream(U),
    Failed(ConnectFailure),
    ClientGone,
}

impl<S: Io, R: HttpRole> Connection<'_, S, R> {
    /// Serves the request whose head is complete in `self.work`.
    pub(crate) async fn exchange(&mut self) -> After {
        let started = Instant::now();
        let Some(Work { input, desk }) = &mut self.work else {
            return After::Close { linger: false };
        };
        let desk = &mut **desk;
        let head = desk.request.head(input.filled());
        let facts = Facts {
            version: head.version(),
            asked: Asked {
                head: head.method() == "HEAD",
                upgrade: head.wants_upgrade(),
            },
            keep_alive: head.keep_alive(),
            idempotent: head.is_idempotent(),
        };
        let body_at = input.start + desk.request.head_len();
        let mut tally = Tally::default();
        let upload = Upload::new(head.framing(), body_at, input);
        let (after, ticket) = match (upload, self.role.route(&Head::Http1(head))) {
            (_, Err(refusal)) => {
                let local = Local {
                    status: refusal.status,
                    flag: refusal.flag,
                    details: "refused_by_role",
                    reason: &refusal.reason,
                };
                let end = Upload::new(head.framing(), body_at, input)
                    .ok()
                    .filter(Upload::received)
                    .map(|upload| upload.end());
                (
                    self.answer(facts, local, end, &mut tally).await,
                    refusal.ticket,
                )
            }
            (Err(error), Ok(route)) => {
                let local = Local::new(400, ResponseFlag::DownstreamProtocolError, error.reason());
                (
                    self.answer(facts, local, None, &mut tally).await,
                    Some(route.ticket),
                )
            }
            (Ok(mut upload), Ok(route)) => {
                desk.to_upstream.clear();
                let edit = RequestEdit {
                    default_authority: route.default_authority.as_deref().or(Some(NO_AUTHORITY)),
                    add: route.add_request_headers.as_deref().unwrap_or_default(),
                };
                head.write_forwarded(&edit, &mut desk.to_upstream);
                let after = self
                    .forward(started, facts, &route, &mut upload, &mut tally)
                    .await;
                (after, Some(route.ticket))
            }
        };
        if let Some(work) = &self.work {
            let bytes = work.input.filled();
            self.rested = self.record(started, work, bytes, ticket.as_ref(), &tally);
        }
        if let After::Keep { end } = after {
            self.advance(end);
        }
        after
    }

    fn record(
        &self,
        started: Instant,
        work: &Work,
        bytes: &[u8],
        ticket: Option<&R::Ticket>,
        tally: &Tally,
    ) -> Instant {
        let ended = tally.ended.unwrap_or_else(Instant::now);
        self.role.record(Exchange {
            head: Some(Head::Http1(work.desk.request.head(bytes))),
            ticket,
            status: tally.status,
            flag: tally.flag,
            details: tally.details,
            request_head_bytes: work.desk.request.head_len() as u64,
            request_body_bytes: tally.request_body,
            response_head_bytes: tally.response_head,
            response_body_bytes: tally.response_body,
            started,
            duration: ended - started,
            upstream_reused: tally.reused,
            grpc: None,
        });
        ended
    }

    /// Replies ourselves. `end` is where the next request begins, if this one was received whole.
    async fn answer(
        &mut self,
        facts: Facts,
        local: Local<'_>,
        end: Option<usize>,
        tally: &mut Tally,
    ) -> After {
        let end = end.filter(|_| facts.keep_alive && !self.worker.drain.is_draining());
        let reply = Reply {
            status: local.status,
            reason: local.reason,
            persist: end.is_some(),
            client: facts.version,
            head_only: facts.asked.head,
        };
        tally.status = local.status;
        tally.flag = local.flag;
        tally.details = local.details;
        (tally.response_head, tally.response_body) = self.reply(&reply).await;
        match end {
            Some(end) => After::Keep { end },
            None => After::Close { linger: true },
        }
    }

    /// Sends the request on, once more on a fresh connection if a pooled one turns out to have been closed under it.
    async fn forward(
        &mut self,
        started: Instant,
        facts: Facts,
        route: &Route<R>,
        upload: &mut Upload,
        tally: &mut Tally,
    ) -> After {
        let mut pooled = self.worker.pool.checkout(&route.key);
        loop {
            tally.reused = pooled.is_some();
            let mut upstream = match pooled.take() {
                Some(stream) => stream,
                None => match self.open(route, upload.received()).await {
                    Opened::Stream(stream) => stream,
                    Opened::ClientGone => return self.client_gone(upload, tally),
                    Opened::Failed(failure) => {
                        let flag = ResponseFlag::UpstreamConnectionFailure;
                        let local = Local {
                            status: 503,
                            flag,
                            details: "upstream_connection_failure",
                            reason: &failure.reason,
                        };
                        tally.request_body = upload.body_bytes;
                        return self
                            .answer(facts, local, upload.received().then(|| upload.end()), tally)
                            .await;
                    }
                },
            };
            let Some(work) = &mut self.work else {
                return After::Close { linger: false };
            };
            let desk = &mut work.desk;
            let mut download = Download::new(&mut desk.response, &mut desk.to_client);
            let landing = self.fly(facts, upload, &mut download, &mut upstream).await;
            let silent = landing == Landing::Upstream(DownloadError::Reset { silent: true });
            if silent && tally.reused && upload.replayable && (facts.idempotent || !upload.started)
            {
                download.give_buffer(&self.worker.buffers);
                upload.rewind();
                continue;
            }
            tally.request_body = upload.body_bytes;
            tally.status = download.status;
            tally.response_head = download.head_bytes;
            tally.response_body = download.body_bytes;
            if landing == Landing::Done && download.is_tunnel() {
                // Boxed: it is rare, and every idle connection would pay for its size.
                let ends = (&*upload, &mut download);
                return Box::pin(self.tunnel(started, route, ends, upstream, tally)).await;
            }
            let after = self
                .land(landing, facts, upload, &mut download, tally)
                .await;
            let leftover = download.take_buffer();
            let quiet = leftover
                .as_ref()
                .is_none_or(super::buffers::Buffer::is_empty);
            if let Some(buffer) = leftover {
                self.worker.buffers.give(buffer);
            }
            if landing == Landing::Done && download.upstream_keeps && upload.finished && quiet {
                let now = *tally.ended.insert(Instant::now());
                self.worker.pool.checkin(&route.key, upstream, now);
            }
            return after;
        }
    }

    async fn open(&mut self, route: &Route<R>, received: bool) -> Opened<R::Upstream> {
        // Boxed: it is rare, and every idle connection would pay for its size.
        let connecting = tokio::time::timeout(route.connect_timeout, self.role.connect(route));
        let mut connecting = Box::pin(connecting);
        let Some(work) = &mut self.work else {
            return Opened::ClientGone;
        };
        let mut client = Client {
            stream: &mut self.stream,
            input: &mut work.input,
            timer: &mut self.timer,
        };
        poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(Ok(Ok(stream))) => Poll::Ready(Opened::Stream(stream)),
            Poll::Ready(Ok(Err(failure))) => Poll::Ready(Opened::Failed(failure)),
            Poll::Ready(Err(_)) => Poll::Ready(Opened::Failed(ConnectFailure::new(
                "upstream_connect_timeout",
            ))),
            Poll::Pending if received && client.is_gone(cx) => Poll::Ready(Opened::ClientGone),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    async fn fly(
        &mut self,
        facts: Facts,
        upload: &mut Upload,
        download: &mut Download,
        upstream: &mut R::Upstream,
    ) -> Landing {
        let Some(Work { input, desk }) = &mut self.work else {
            return Landing::ClientGone;
        };
        let worker = Rc::clone(self.worker);
        let mut client = Client {
            stream: &mut self.stream,
            input,
            timer: &mut self.timer,
        };
        let terms = Terms {
            asked: facts.asked,
            client: facts.version,
            persist: facts.keep_alive,
        };
        let mut flight = Flight {
            upload,
            download,
            upstream,
            terms,
            idle_since: None,
        };
        poll_fn(|cx| {
            flight.terms.persist = facts.keep_alive && !worker.drain.is_draining();
            flight.poll(cx, &mut client, desk, &worker.buffers, &worker.timeouts)
        })
        .await
    }

    fn client_gone(&self, upload: &Upload, tally: &mut Tally) -> After {
        tally.request_body = upload.body_bytes;
        tally.flag = ResponseFlag::DownstreamConnectionTermination;
        tally.details = "downstream_remote_disconnect";
        After::Cut
    }

    /// Turns how the flight ended into what the client gets and what is recorded.
    async fn land(
        &mut self,
        landing: Landing,
        facts: Facts,
        upload: &mut Upload,
        download: &mut Download,
        tally: &mut Tally,
    ) -> After {
        let local = match landing {
            Landing::Done => {
                tally.details = "via_upstream";
                return match download.persist && upload.received() {
                    true => After::Keep { end: upload.end() },
                    false => After::Close {
                        linger: !upload.received(),
                    },
                };
            }
            Landing::ClientGone => return self.client_gone(upload, tally),
            Landing::RequestBody(error) => {
                Local::new(400, ResponseFlag::DownstreamProtocolError, error.reason())
            }
            Landing::Idle => {
                Local::new(408, ResponseFlag::StreamIdleTimeout, "stream_idle_timeout")
            }
            Landing::Upstream(DownloadError::Head(reject)) => {
                Local::new(502, ResponseFlag::UpstreamProtocolError, reject.reason())
            }
            Landing::Upstream(DownloadError::Body(error)) => {
                Local::new(502, ResponseFlag::UpstreamProtocolError, error.reason())
            }
            Landing::Upstream(DownloadError::Interim) => Local::new(
                502,
                ResponseFlag::UpstreamProtocolError,
                "too_many_interim_responses",
            ),
            Landing::Upstream(_) if download.status == 0 => Local::new(
                503,
                ResponseFlag::UpstreamConnectionTermination,
                "upstream_reset_before_response",
            ),
            Landing::Upstream(_) => Local::new(
                502,
                ResponseFlag::UpstreamConnectionTermination,
                "upstream_reset_after_response_started",
            ),
        };
        let begun = download.stalled || (download.status != 0 && download.head_started);
        if begun {
            tally.flag = local.flag;
            tally.details = local.details;
            // Where the length is known, missing bytes speak for themselves; where the end is the close, only a reset does.
            return if download.until_close || download.unwrap {
                After::Abort
            } else {
                After::Cut
            };
        }
        self.answer(facts, local, upload.received().then(|| upload.end()), tally)
            .await
    }

    /// After 101: bytes both ways until both sides ended. Recorded here, since the buffers move into the directions.
    async fn tunnel(
        &mut self,
        started: Instant,
        route: &Route<R>,
        (upload, download): (&Upload, &mut Download),
        mut upstream: R::Upstream,
        tally: &mut Tally,
    ) -> After {
        let Some(Work { mut input, desk }) = self.work.take() else {
            return After::Tunnelled;
        };
        let buffers = self.worker.buffers.clone();
        let head = input.bytes()[input.start..upload.end()].to_vec();
        input.start = upload.end();
        let mut up = Direction::new(Some(input));
        let mut down = Direction::new(download.take_buffer());
        let (client, timer) = (&mut self.stream, &mut self.timer);
        let limit = self.worker.timeouts.tunnel_idle;
        let mut quiet = (Instant::now(), 0);
        let result = poll_fn(|cx| {
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
        (tally.request_body, tally.response_body) = (up.bytes, down.bytes);
        let work = Work {
            input: buffers.take(),
            desk,
        };
        self.record(started, &work, &head, Some(&route.ticket), tally);
        work.give_back(&buffers);
        After::Tunnelled
    }
}
