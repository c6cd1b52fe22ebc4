//! One stream from its head to its record: route, upstream, both bodies at once, landing.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use voile_http2::Fields;
use voile_traffic::Attempt;

use super::conversions::{downgrade, headers};
use super::flight::StreamFlight;
use super::is_plain_connect;
use super::stream_copy::Replay;
use crate::http::attempt::{self, MissingUpstream};
use crate::http::codec::{AnswerSink as _, StreamCodec};
use crate::http::downstream_request::{DownstreamRequest as _, HeldRequest as _};
use crate::http::ending::ExchangeEnd;
use crate::http::exchange_clock::ExchangeLimits;
use crate::http::external_check_wait::{CheckedRequest, check};
use crate::http::http1_upstream::Http1Upstream;
use crate::http::limits::MAX_ATTEMPTS;
use crate::http::reply::LocalReply;
use crate::http::stream_upstream::{SentRequest, StreamUpstream, UpstreamHead, UpstreamSink};
use crate::http::upstream::{checkout, connect, keep};
use crate::http::{
    Exchange, ExchangeRecord, Grpc, HeadObserver, HttpHead, HttpRole, HttpWorker, Io, RequestRoute,
    ResponseFlag, UpstreamHttp,
};
use crate::http2::session::Live;
use crate::http2::stream_call::{ClientCall, StreamRequest};

/// A stream that was begun, and its worker and role.
pub(crate) struct StreamWork<R: HttpRole, D: StreamCodec> {
    pub(crate) worker: Rc<HttpWorker<R>>,
    pub(crate) role: Rc<R>,
    pub(crate) live: Live,
    pub(crate) head: Fields,
    pub(crate) body: D::Body,
    pub(crate) respond: D::Answer,
}

/// Serves one stream to its end.
pub(crate) async fn serve<R: HttpRole + 'static, D: StreamCodec>(work: StreamWork<R, D>) {
    let StreamWork {
        worker,
        role,
        live,
        head,
        body,
        respond,
    } = work;
    let started = Instant::now();
    let mut request = StreamRequest::<D, R::Upstream> {
        call: ClientCall::new(respond, started, &head),
        body: Some(body),
        pump: None,
        head,
    };
    let head = &request.head;
    let mut tally = ExchangeRecord::begin(started, request_head_bytes(head));
    tally.grpc = request.call.is_grpc.then(Grpc::default);
    let ticket = if let Err((status, details)) = headers::check_request(head, role.serves_proxy()) {
        let flag = ResponseFlag::DownstreamProtocolError;
        let reply = LocalReply::new(status, flag, details);
        request.call.answer(&*role, reply, &mut tally);
        None
    } else {
        if let Some(name) = role.unknown(&request.head()) {
            Box::pin(role.learn(name)).await;
        }
        match decide(&worker, &*role, &mut request, &mut tally).await {
            CheckedRequest::Refused(refusal) => {
                let reply = LocalReply::refused(&refusal);
                request.call.answer(&*role, reply, &mut tally);
                refusal.ticket
            }
            CheckedRequest::Ended(end, ticket) => {
                request.call.give_up(&*role, end, &mut tally);
                ticket
            }
            CheckedRequest::Routed(mut route) => {
                forward(&worker, &*role, &mut route, &mut request, &mut tally).await;
                Some(route.ticket)
            }
        }
    };
    tally.finish();
    live.judge(&tally);
    let StreamRequest {
        head,
        call,
        body,
        pump,
    } = request;
    // The stream is handed back before it is counted: the record is off its latency.
    drop((call.respond, body, pump, live));
    role.record(Exchange {
        head: (!head.is_cut()).then_some(HttpHead::Http2(&head)),
        ticket: ticket.as_ref(),
        record: &tally,
    });
    worker.buffers.http2.give_block(head);
}

/// Decision of the role, at once or after it asked.
async fn decide<R: HttpRole, D: StreamCodec>(
    worker: &HttpWorker<R>,
    role: &R,
    request: &mut StreamRequest<D, R::Upstream>,
    tally: &mut ExchangeRecord,
) -> CheckedRequest<R> {
    match role.route(&request.head()) {
        Ok(route) => CheckedRequest::Routed(route),
        Err(refusal) if refusal.pending.is_none() => CheckedRequest::Refused(refusal),
        Err(refusal) => {
            // Boxed: it is rare, and every stream would pay for its size.
            let checking = Box::pin(check(&worker.timeouts, role, refusal, request));
            let decided = checking.await;
            tally.request_body_bytes = request.received();
            request.call.held.take_if(|held| held.chunks.is_empty());
            decided
        }
    }
}

fn request_head_bytes(head: &Fields) -> u64 {
    let path = head.path().map_or(1, str::len);
    let authority = head.authority().map_or(0, str::len);
    (head.method().len() + path + authority) as u64 + headers::size(head)
}

/// Sends the request on; again where the first server did nothing with it, or where the role wishes it.
async fn forward<R: HttpRole + 'static, D: StreamCodec>(
    worker: &Rc<HttpWorker<R>>,
    role: &R,
    route: &mut RequestRoute<R>,
    request: &mut StreamRequest<D, R::Upstream>,
    tally: &mut ExchangeRecord,
) {
    let mut replay = Replay::default();
    let connect = is_plain_connect(&request.head);
    // A request for a tunnel is sent once.
    let policy = route.retry.clone().filter(|_| !connect);
    // A tunnel needs a fresh connection.
    let mut stale = connect;
    let mut empty = None;
    loop {
        let Some(upstream) = reach(worker, role, route, request, tally, stale).await else {
            return;
        };
        let observing = route.observer.clone();
        let observer = observing.as_deref();
        tally.upstream_reused = upstream.is_reused();
        let empty = *empty.get_or_insert_with(|| request.is_empty());
        let sent = send(request, observer, route, &upstream, (tally.attempts, empty));
        let Some((response, sink)) = sent else {
            // The connection is closing: nothing of this request went anywhere.
            upstream.spoiled();
            if tally.attempts < MAX_ATTEMPTS {
                continue;
            }
            let flag = ResponseFlag::UpstreamConnectionFailure;
            let reply = LocalReply::new(503, flag, "upstream_connection_closing");
            return request.call.answer(role, reply, tally);
        };
        let Some((head, call, up)) = request.begin(empty, sink, &mut replay) else {
            return;
        };
        let each = policy.as_ref().and_then(|policy| policy.per_try_timeout);
        let limits = ExchangeLimits::new(&worker.timeouts, each, route.timeout());
        let copying = copied_head(head, observer, route);
        let copy = |replay: &Replay| {
            if let Some((observer, sent)) = &copying {
                observer.copy(downgrade::copied(sent, replay));
            }
        };
        let mut flight = StreamFlight::new(up, &mut replay, response, limits);
        flight.observer = observer;
        flight.copy = copying.is_some().then_some(&copy as &dyn Fn(&Replay));
        flight.retry = policy.as_deref();
        let mut landing = fly(role, &route.ticket, head, &mut flight, call, tally).await;
        let failed = failure(landing, &upstream).filter(|_| flight.is_held() && !connect);
        if let Some(failed) = failed {
            let made = tally.attempts;
            let harmless = failed.is_harmless(call.idempotent);
            stale = harmless && upstream.is_stale();
            // The role is asked first where it may know a better place.
            let again = stale || attempt::again(role, route, failed, call, made).await;
            if again || (harmless && upstream.may_repeat(made)) {
                continue;
            }
            if matches!(landing, ExchangeEnd::Held(_)) {
                flight.accept();
                landing = fly(role, &route.ticket, head, &mut flight, call, tally).await;
            }
        }
        flight.land(landing, role, call, tally);
        if let (ExchangeEnd::Done, Some(kept)) = (landing, upstream.release()) {
            keep(worker, route, kept, tally.finish());
        }
        return;
    }
}

/// A place for the next attempt, a fresh one after a `stale` one; otherwise the client was answered, or is gone.
async fn reach<R: HttpRole + 'static, D: StreamCodec>(
    worker: &Rc<HttpWorker<R>>,
    role: &R,
    route: &mut RequestRoute<R>,
    request: &mut StreamRequest<D, R::Upstream>,
    tally: &mut ExchangeRecord,
    stale: bool,
) -> Option<StreamUpstream<R::Upstream>> {
    let (idempotent, extended) = (request.call.idempotent, request.call.is_upgrade);
    let acquire = async |route: &RequestRoute<R>| {
        if route.upstream == UpstreamHttp::Http2 {
            let lease = worker.http2.acquire(role, route, extended).await;
            return lease.map(StreamUpstream::Http2);
        }
        let pooled = match stale {
            true => None,
            false => checkout(worker, route, idempotent),
        };
        let reused = pooled.is_some();
        let stream = match pooled {
            Some(stream) => stream,
            // Boxed: it is rare, and every stream would pay for its size.
            None => Box::pin(connect(role, route)).await?,
        };
        let from_sidecar = route.to_sidecar;
        let call = Http1Upstream::new(stream, reused, from_sidecar, &worker.buffers);
        Ok(StreamUpstream::Http1(call))
    };
    if route.upstream == UpstreamHttp::Http1
        && let Err(reply) = downgrade::check(&request.head, route.edit())
    {
        request.call.answer(role, reply, tally);
        return None;
    }
    match attempt::reach(role, route, request, tally, acquire).await {
        Ok(upstream) => return Some(upstream),
        Err(MissingUpstream::Ended(end)) => request.call.give_up(role, end, tally),
        Err(MissingUpstream::Failed(failure)) => {
            let reply = LocalReply::unreached(&failure);
            request.call.answer(role, reply, tally);
        }
    }
    None
}

/// Sends the head that goes on, with the attempt's number from the second on. None if the connection takes no more.
fn send<R: HttpRole, D: StreamCodec>(
    request: &mut StreamRequest<D, R::Upstream>,
    observer: Option<&dyn HeadObserver>,
    route: &RequestRoute<R>,
    upstream: &StreamUpstream<R::Upstream>,
    (attempt, empty): (u32, bool),
) -> Option<SentRequest<R::Upstream>> {
    if let Some(observer) = observer {
        observer.sends(upstream.local_address());
    }
    let edit = route.edit();
    match upstream {
        StreamUpstream::Http1(call) => {
            let head = &request.head;
            call.begin(downgrade::request(head, empty, observer, edit, attempt));
            let head = UpstreamHead::Http1(call.clone());
            Some((head, UpstreamSink::Http1(call.clone())))
        }
        StreamUpstream::Http2(lease) => {
            let mut block = request.call.respond.block();
            headers::forward_request(&request.head, observer, edit, &mut block);
            if attempt > 1 {
                block.push("x-envoy-attempt-count", attempt.to_string().as_bytes());
            }
            let (response, sink) = lease.link.send_request(block, empty)?;
            Some((UpstreamHead::Http2(response), UpstreamSink::Http2(sink)))
        }
    }
}

/// Head of a copy, if the observer wants one.
fn copied_head<'a, R: HttpRole>(
    parts: &Fields,
    observer: Option<&'a dyn HeadObserver>,
    route: &RequestRoute<R>,
) -> Option<(&'a dyn HeadObserver, Fields)> {
    let observer = observer.filter(|observer| observer.wants_copy())?;
    let mut sent = Fields::new();
    headers::forward_request(parts, Some(observer), route.edit(), &mut sent);
    Some((observer, sent))
}

/// Describes an attempt that failed. Gives up a connection without a future.
fn failure<U: Io>(landing: ExchangeEnd, upstream: &StreamUpstream<U>) -> Option<Attempt> {
    match landing {
        ExchangeEnd::Upstream(cause) => upstream.attempt(cause),
        ExchangeEnd::Held(why) => Some(why),
        // As in HTTP/1.1: no answer in time is one of 504.
        ExchangeEnd::Timeout => Some(Attempt::Answered(504)),
        ExchangeEnd::Interim => {
            // The answer does not end; no other stream shall wait behind it.
            upstream.spoiled();
            None
        }
        _ => None,
    }
}

/// One attempt, as long as leave for it is not taken back.
async fn fly<R: HttpRole, D: StreamCodec>(
    role: &R,
    ticket: &R::Ticket,
    head: &Fields,
    flight: &mut StreamFlight<'_, D, R::Upstream>,
    call: &mut ClientCall<D>,
    tally: &mut ExchangeRecord,
) -> ExchangeEnd {
    call.clock.restart();
    let hears = |answer| role.answers(ticket, answer);
    poll_fn(
        |cx| match role.is_revoked(ticket, || HttpHead::Http2(head)) {
            true => Poll::Ready(ExchangeEnd::Revoked),
            false => flight.poll_heard(cx, call, tally, hears),
        },
    )
    .await
}
