//! One stream from its head to its record: route, upstream, both bodies at once, landing.

use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::request::Parts;
use http::{Method, Request, Response};

use super::grpc::{self, Messages};
use super::limits::{MAX_ATTEMPTS, MAX_INTERIM_RESPONSES, PREMATURE};
use super::pump::{Broken, Cause, Pump, Replay};
use super::server::Live;
use super::upstream::Lease;
use super::{downgrade, headers, reply};
use crate::http::timer::Timer;
use crate::http::{
    ConnectFailure, Exchange, Grpc, Head, HttpRole, HttpWorker, ResponseFlag, Route, UpstreamHttp,
};

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
    grpc: Grpc,
}

/// The client's side of a stream.
struct Call {
    respond: SendResponse<Bytes>,
    is_grpc: bool,
    is_head: bool,
}

/// How a stream ended that did not end well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Landing {
    Done,
    /// The client gave up, or its request was malformed.
    Client(Cause),
    /// The upstream failed; whether the client has the head of an answer.
    Upstream(Cause),
    /// More interim responses than [`MAX_INTERIM_RESPONSES`].
    Interim,
    /// Nothing moved for too long.
    Idle,
}

/// Serves one stream to its end.
pub(crate) async fn serve<R: HttpRole + 'static>(
    worker: Rc<HttpWorker<R>>,
    role: Rc<R>,
    live: Live,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    let started = Instant::now();
    let (parts, body) = request.into_parts();
    let head = Head::Http2(&parts);
    let mut call = Call {
        respond,
        is_grpc: head.is_grpc(),
        is_head: parts.method == Method::HEAD,
    };
    let mut tally = Tally::default();
    let ticket = if let Err(details) = headers::check_request(&parts) {
        let flag = ResponseFlag::DownstreamProtocolError;
        call.answer(400, flag, details, details, &mut tally);
        None
    } else {
        match role.route(&head) {
            Err(refusal) => {
                let (status, flag) = (refusal.status, refusal.flag);
                call.answer(status, flag, "refused_by_role", &refusal.reason, &mut tally);
                refusal.ticket
            }
            Ok(route) if route.upstream == UpstreamHttp::Http1 => {
                let serving =
                    downgrade::serve(&worker, role, route, parts, body, call.respond, live);
                return Box::pin(serving).await;
            }
            Ok(route) => {
                let forwarding =
                    forward(&worker, &*role, &route, &parts, body, &mut call, &mut tally);
                forwarding.await;
                Some(route.ticket)
            }
        }
    };
    let duration = started.elapsed();
    if tally.flag == ResponseFlag::DownstreamRemoteReset
        && tally.status == 0
        && duration < PREMATURE
    {
        live.0.given_up();
    }
    // The stream is handed back before it is counted: the record is off its latency.
    drop((call.respond, live));
    role.record(Exchange {
        head: Some(head),
        ticket: ticket.as_ref(),
        status: tally.status,
        flag: tally.flag,
        details: tally.details,
        request_head_bytes: request_head_bytes(&parts),
        request_body_bytes: tally.request_body,
        response_head_bytes: tally.response_head,
        response_body_bytes: tally.response_body,
        started,
        duration,
        upstream_reused: tally.reused,
        attempts: u32::from(ticket.is_some()),
        grpc: call.is_grpc.then_some(tally.grpc),
    });
}

fn request_head_bytes(parts: &Parts) -> u64 {
    let path = parts
        .uri
        .path_and_query()
        .map_or(1, |path| path.as_str().len());
    let authority = parts.uri.authority().map_or(0, |host| host.as_str().len());
    (parts.method.as_str().len() + path + authority) as u64 + headers::size(&parts.headers)
}

impl Call {
    /// Replies ourselves.
    fn answer(
        &mut self,
        status: u16,
        flag: ResponseFlag,
        details: &'static str,
        reason: &str,
        tally: &mut Tally,
    ) {
        let sent = reply::send(
            &mut self.respond,
            status,
            reason,
            self.is_grpc,
            self.is_head,
        );
        tally.status = sent.status;
        tally.flag = flag;
        tally.details = details;
        tally.response_head = sent.head;
        tally.response_body = sent.body;
        tally.grpc.status = sent.grpc_status;
    }

    /// How the client ended the stream, once it did.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Cause> {
        match self.respond.poll_reset(cx) {
            Poll::Ready(Ok(reason)) => Poll::Ready(Cause::Reset(reason)),
            Poll::Ready(Err(_)) => Poll::Ready(Cause::Connection),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Sends the request on, elsewhere if the first server says that it did nothing with it.
async fn forward<R: HttpRole + 'static>(
    worker: &Rc<HttpWorker<R>>,
    role: &R,
    route: &Route<R>,
    parts: &Parts,
    body: RecvStream,
    call: &mut Call,
    tally: &mut Tally,
) {
    let (mut body, mut upload, mut replay) = (Some(body), None, Replay::default());
    for attempt in 1..=MAX_ATTEMPTS {
        let add = route.add_request_headers.as_deref().unwrap_or_default();
        let request = headers::forwarded_request(parts, add, route.default_authority.as_deref());
        let Ok(request) = request else {
            let flag = ResponseFlag::DownstreamProtocolError;
            return call.answer(400, flag, "http2.authority", "http2.authority", tally);
        };
        let mut lease = match acquire(worker, role, route, call).await {
            Ok(lease) => lease,
            Err(Missing::Client(cause)) => return client_gone(cause, tally),
            Err(Missing::Upstream(failure)) => {
                let flag = ResponseFlag::UpstreamConnectionFailure;
                let details = "upstream_connection_failure";
                return call.answer(503, flag, details, &failure.reason, tally);
            }
        };
        tally.reused = lease.reused;
        let empty = body.as_ref().is_some_and(RecvStream::is_end_stream);
        let Ok((response, sink)) = lease.send.send_request(request, empty) else {
            // The connection is closing: nothing of this request went anywhere.
            lease.spoiled();
            continue;
        };
        let up = match (body.take(), &mut upload) {
            (Some(body), _) => {
                let mut pump = Pump::new(body, sink, call.is_grpc);
                if empty {
                    pump.finish();
                }
                upload.insert(pump)
            }
            (None, Some(pump)) => {
                pump.restart(sink, &mut replay);
                pump
            }
            (None, None) => return,
        };
        let mut flight = Flight {
            up,
            replay: &mut replay,
            down: Down::Waiting {
                response,
                interim: 0,
            },
            idle_since: None,
            timer: Timer::default(),
            limit: worker.timeouts.stream_idle,
        };
        let landing = poll_fn(|cx| flight.poll(cx, call, tally)).await;
        let again = attempt < MAX_ATTEMPTS && flight.may_repeat(landing);
        if landing == Landing::Upstream(Cause::Unprocessed) {
            lease.spoiled();
        }
        if again {
            continue;
        }
        return flight.land(landing, call, tally);
    }
    let flag = ResponseFlag::UpstreamConnectionFailure;
    let details = "upstream_connection_closing";
    call.answer(503, flag, details, details, tally);
}

/// Why there is no upstream.
enum Missing {
    Client(Cause),
    Upstream(ConnectFailure),
}

async fn acquire<R: HttpRole + 'static>(
    worker: &Rc<HttpWorker<R>>,
    role: &R,
    route: &Route<R>,
    call: &mut Call,
) -> Result<Lease, Missing> {
    let mut acquiring = pin!(worker.http2.acquire(role, route));
    poll_fn(|cx| {
        if let Poll::Ready(acquired) = acquiring.as_mut().poll(cx) {
            return Poll::Ready(acquired.map_err(Missing::Upstream));
        }
        call.poll_gone(cx).map(|cause| Err(Missing::Client(cause)))
    })
    .await
}

fn client_gone(cause: Cause, tally: &mut Tally) {
    (tally.flag, tally.details) = match cause {
        Cause::Reset(_) | Cause::Unprocessed => {
            (ResponseFlag::DownstreamRemoteReset, "http2.remote_reset")
        }
        Cause::Connection => (
            ResponseFlag::DownstreamConnectionTermination,
            "downstream_remote_disconnect",
        ),
    };
}

/// The answer's way.
enum Down {
    Waiting {
        response: ResponseFuture,
        interim: u32,
    },
    Body(Box<Pump>),
    /// A head without a body went on.
    Over,
}

/// One request and its answer, both ways at once.
struct Flight<'a> {
    up: &'a mut Pump,
    replay: &'a mut Replay,
    down: Down,
    idle_since: Option<(Instant, u64)>,
    timer: Timer,
    limit: Duration,
}

impl Flight<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, call: &mut Call, tally: &mut Tally) -> Poll<Landing> {
        match self.up.poll(cx, Some(self.replay)) {
            Poll::Ready(Err(Broken::Source(cause))) => return Poll::Ready(Landing::Client(cause)),
            // The upstream takes no more; what it answers decides.
            Poll::Ready(Err(Broken::Sink(_))) => self.up.finish(),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        if let Down::Waiting { response, interim } = &mut self.down {
            match poll_head(cx, response, interim, call) {
                Poll::Ready(Ok(answer)) => {
                    self.replay.forget();
                    if let Err(landing) = self.begin(answer, call, tally) {
                        return Poll::Ready(landing);
                    }
                }
                Poll::Ready(Err(landing)) => return Poll::Ready(landing),
                Poll::Pending => {
                    if let Poll::Ready(cause) = call.poll_gone(cx) {
                        return Poll::Ready(Landing::Client(cause));
                    }
                }
            }
        }
        if let Down::Body(pump) = &mut self.down {
            match pump.poll(cx, None) {
                Poll::Ready(Ok(())) => return Poll::Ready(Landing::Done),
                Poll::Ready(Err(Broken::Source(cause))) => {
                    return Poll::Ready(Landing::Upstream(cause));
                }
                Poll::Ready(Err(Broken::Sink(cause))) => {
                    return Poll::Ready(Landing::Client(cause));
                }
                Poll::Pending => match pump.sink().poll_reset(cx) {
                    Poll::Ready(Ok(reason)) => {
                        return Poll::Ready(Landing::Client(Cause::Reset(reason)));
                    }
                    Poll::Ready(Err(_)) => {
                        return Poll::Ready(Landing::Client(Cause::Connection));
                    }
                    Poll::Pending => {}
                },
            }
        }
        if matches!(self.down, Down::Over) {
            return Poll::Ready(Landing::Done);
        }
        if self.is_idle_too_long(cx, call.is_grpc) {
            return Poll::Ready(Landing::Idle);
        }
        Poll::Pending
    }

    /// Passes the head of the answer on.
    fn begin(
        &mut self,
        answer: Response<RecvStream>,
        call: &mut Call,
        tally: &mut Tally,
    ) -> Result<(), Landing> {
        let (mut parts, body) = answer.into_parts();
        headers::clean(&mut parts.headers);
        tally.status = parts.status.as_u16();
        tally.response_head = headers::size(&parts.headers);
        let end = body.is_end_stream();
        if call.is_grpc && end {
            tally.grpc.status = grpc::status(&parts.headers);
        }
        let sent = call
            .respond
            .send_response(Response::from_parts(parts, ()), end);
        let sink = sent.map_err(|error| Landing::Client(Cause::of(&error)))?;
        self.down = if end {
            Down::Over
        } else {
            Down::Body(Box::new(Pump::new(body, sink, call.is_grpc)))
        };
        Ok(())
    }

    /// Only waiting for the client is bounded, as in HTTP/1.1; a quiet gRPC caller is not late, it has nothing to say.
    fn is_idle_too_long(&mut self, cx: &mut Context<'_>, is_grpc: bool) -> bool {
        let (answering, down_stalled, down_bytes) = match &self.down {
            Down::Body(pump) => (true, pump.stalled, pump.bytes),
            _ => (false, false, 0),
        };
        let sending = !self.up.is_done() && !self.up.stalled && !answering && !is_grpc;
        if !sending && !down_stalled {
            self.idle_since = None;
            return false;
        }
        let moved = self.up.bytes + down_bytes;
        let since = match self.idle_since {
            Some((since, at)) if at == moved => since,
            _ => self.idle_since.insert((Instant::now(), moved)).0,
        };
        self.timer.passed(cx, since + self.limit)
    }

    /// Whether the server did nothing with the request and all of it is still at hand.
    fn may_repeat(&self, landing: Landing) -> bool {
        landing == Landing::Upstream(Cause::Unprocessed)
            && matches!(self.down, Down::Waiting { .. })
            && self.replay.is_whole()
    }

    /// Turns how the flight ended into what each side is told and what is recorded.
    fn land(self, landing: Landing, call: &mut Call, tally: &mut Tally) {
        tally.request_body = self.up.bytes;
        tally.grpc.request_messages = count(self.up);
        let answered = !matches!(self.down, Down::Waiting { .. });
        let mut down = match self.down {
            Down::Body(pump) => Some(pump),
            Down::Waiting { .. } | Down::Over => None,
        };
        if let Some(pump) = &down {
            tally.response_body = pump.bytes;
            tally.grpc.response_messages = count(pump);
            if call.is_grpc {
                tally.grpc.status = pump.trailers.as_ref().and_then(grpc::status);
            }
        }
        let mut reset_client = |reason| match &mut down {
            Some(pump) => pump.sink().send_reset(reason),
            None => call.respond.send_reset(reason),
        };
        match landing {
            Landing::Done => tally.details = "via_upstream",
            Landing::Client(cause) => {
                let reason = match cause {
                    Cause::Connection => Reason::CANCEL,
                    cause => cause.reason(),
                };
                self.up.sink().send_reset(reason);
                client_gone(cause, tally);
            }
            Landing::Upstream(cause @ (Cause::Reset(_) | Cause::Unprocessed)) => {
                reset_client(cause.reason());
                tally.flag = ResponseFlag::UpstreamRemoteReset;
                tally.details = "upstream_remote_reset";
            }
            Landing::Upstream(Cause::Connection) => {
                let flag = ResponseFlag::UpstreamConnectionTermination;
                let details = "upstream_connection_termination";
                if answered {
                    reset_client(Reason::INTERNAL_ERROR);
                    (tally.flag, tally.details) = (flag, details);
                } else {
                    call.answer(503, flag, details, details, tally);
                }
            }
            Landing::Interim => {
                self.up.sink().send_reset(Reason::PROTOCOL_ERROR);
                let flag = ResponseFlag::UpstreamProtocolError;
                call.answer(502, flag, "interim_responses", "interim_responses", tally);
            }
            Landing::Idle => {
                self.up.sink().send_reset(Reason::CANCEL);
                (tally.flag, tally.details) =
                    (ResponseFlag::StreamIdleTimeout, "stream_idle_timeout");
                if answered {
                    reset_client(Reason::CANCEL);
                } else {
                    let (flag, details) = (tally.flag, tally.details);
                    call.answer(408, flag, details, details, tally);
                }
            }
        }
    }
}

fn count(pump: &Pump) -> u64 {
    pump.messages
        .as_ref()
        .map_or(0, |Messages { count, .. }| *count)
}

/// Waits for the final head; passes interim ones on.
fn poll_head(
    cx: &mut Context<'_>,
    response: &mut ResponseFuture,
    interim: &mut u32,
    call: &mut Call,
) -> Poll<Result<Response<RecvStream>, Landing>> {
    while let Poll::Ready(Some(Ok(early))) = response.poll_informational(cx) {
        *interim += 1;
        if *interim > MAX_INTERIM_RESPONSES {
            return Poll::Ready(Err(Landing::Interim));
        }
        let (mut parts, ()) = early.into_parts();
        headers::clean(&mut parts.headers);
        // A client that has gone is noticed elsewhere.
        let _ = call
            .respond
            .send_informational(Response::from_parts(parts, ()));
    }
    let answer = std::task::ready!(Pin::new(response).poll(cx));
    Poll::Ready(answer.map_err(|error| Landing::Upstream(Cause::of(&error))))
}
