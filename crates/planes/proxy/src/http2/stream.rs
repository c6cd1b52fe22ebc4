//! One stream from its head to its record: route, upstream, both bodies at once, landing.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use voile_http2::{Fields, RecvStream, SendResponse};
use voile_traffic::Attempt;

use super::conversions::{downgrade, headers};
use super::external_check_wait::consult;
use super::flight::StreamFlight;
use super::limits::MAX_ATTEMPTS;
use super::stream_copy::{Pump, Replay};
use super::upstream::Lease;
use super::{is_extended_connect, is_plain_connect};
use crate::http::ending::ExchangeEnd;
use crate::http::exchange_clock::ExchangeLimits;
use crate::http::reply::LocalReply;
use crate::http::timer::Timer;
use crate::http::{
    ConnectFailure, Exchange, ExchangeRecord, Grpc, HeadObserver, HttpHead, HttpRole, HttpWorker,
    RequestRoute, ResponseFlag, UpstreamHttp,
};
use crate::http2::session::Live;
use crate::http2::stream_call::ClientCall;

/// A stream that was begun, and its worker and role.
pub(crate) struct StreamWork<R: HttpRole> {
    pub(crate) worker: Rc<HttpWorker<R>>,
    pub(crate) role: Rc<R>,
    pub(crate) live: Live,
    pub(crate) head: Fields,
    pub(crate) body: RecvStream,
    pub(crate) respond: SendResponse,
}

/// Serves one stream to its end.
pub(crate) async fn serve<R: HttpRole + 'static>(work: StreamWork<R>) {
    let StreamWork {
        worker,
        role,
        live,
        head: parts,
        mut body,
        respond,
    } = work;
    let started = Instant::now();
    let head = HttpHead::Http2(&parts);
    let mut call = ClientCall::new(respond, started, &parts);
    let mut tally = ExchangeRecord::begin(started, request_head_bytes(&parts));
    tally.grpc = call.is_grpc.then(Grpc::default);
    let ticket = if let Err((status, details)) = headers::check_request(&parts, role.serves_proxy())
    {
        let flag = ResponseFlag::DownstreamProtocolError;
        call.answer(&*role, LocalReply::new(status, flag, details), &mut tally);
        None
    } else {
        if let Some(name) = role.unknown(&head) {
            Box::pin(role.learn(name)).await;
        }
        let decided = match role.route(&head) {
            Err(refusal) if refusal.pending.is_some() => {
                let (request, call) = ((&parts, &mut body), (&mut call, &mut tally));
                // Boxed: it is rare, and every stream would pay for its size.
                Box::pin(consult(worker.timeouts, &*role, refusal, request, call)).await
            }
            decided => decided,
        };
        match decided {
            Err(refusal) => {
                // Otherwise the client was answered while the role asked.
                if tally.details.is_empty() {
                    call.answer(&*role, LocalReply::refused(&refusal), &mut tally);
                }
                refusal.ticket
            }
            Ok(route) if route.upstream == UpstreamHttp::Http1 && is_http2s_own(&parts) => {
                call.answer(&*role, incapable(), &mut tally);
                Some(route.ticket)
            }
            Ok(route) if route.upstream == UpstreamHttp::Http1 => {
                let client = (body, call, live);
                let serving = downgrade::serve(&worker, role, route, parts, client, tally);
                return Box::pin(serving).await;
            }
            Ok(mut route) => {
                let forwarding = forward(
                    &worker, &*role, &mut route, &parts, body, &mut call, &mut tally,
                );
                forwarding.await;
                Some(route.ticket)
            }
        }
    };
    tally.finish();
    live.judge(&tally);
    // The stream is handed back before it is counted: the record is off its latency.
    drop((call.respond, live));
    role.record(Exchange {
        head: (!parts.is_cut()).then_some(HttpHead::Http2(&parts)),
        ticket: ticket.as_ref(),
        record: &tally,
    });
    worker.buffers.http2.give_block(parts);
}

/// Reply if HTTP/1.1 cannot carry the request.
fn incapable() -> LocalReply<'static> {
    LocalReply {
        reason: "this :protocol cannot be translated to HTTP/1.1",
        ..LocalReply::new(501, ResponseFlag::UpstreamProtocolError, "connect_protocol")
    }
}

/// An extended CONNECT for which HTTP/1.1 has no upgrade that we know.
fn is_http2s_own(head: &Fields) -> bool {
    head.protocol().is_some() && !is_extended_connect(head)
}

fn request_head_bytes(head: &Fields) -> u64 {
    let path = head.path().map_or(1, str::len);
    let authority = head.authority().map_or(0, str::len);
    (head.method().len() + path + authority) as u64 + headers::size(head)
}

/// Sends the request on; again where the first server did nothing with it, or where the role wishes it.
async fn forward<R: HttpRole + 'static>(
    worker: &Rc<HttpWorker<R>>,
    role: &R,
    route: &mut RequestRoute<R>,
    parts: &Fields,
    body: RecvStream,
    call: &mut ClientCall,
    tally: &mut ExchangeRecord,
) {
    let (mut body, mut upload, mut replay) = (Some(body), None, Replay::default());
    // A request for a tunnel is sent once.
    let policy = route.retry.clone().filter(|_| !call.is_tunnel);
    let extended = parts.protocol().is_some();
    loop {
        let received = || match (&body, &upload) {
            (Some(body), _) => body.is_received(),
            (None, upload) => upload.as_ref().is_some_and(Pump::is_received),
        };
        let client = (&mut *call, &mut *tally);
        let Some(lease) = reach(worker, role, route, client, &received, extended).await else {
            return;
        };
        let observing = route.observer.clone();
        let observer = observing.as_deref();
        let empty = call.held.is_none() && body.as_ref().is_some_and(RecvStream::is_end_stream);
        tally.upstream_reused = lease.reused;
        let request = request_block(parts, observer, route, (&lease, call), tally.attempts);
        let Some((response, sink)) = lease.link.send_request(request, empty) else {
            // The connection is closing: nothing of this request went anywhere.
            lease.spoiled();
            match tally.attempts < MAX_ATTEMPTS {
                true => continue,
                false => {
                    let flag = ResponseFlag::UpstreamConnectionFailure;
                    let reply = LocalReply::new(503, flag, "upstream_connection_closing");
                    return call.answer(role, reply, tally);
                }
            }
        };
        let up = match (body.take(), &mut upload) {
            (Some(body), _) => {
                let mut pump = Pump::new(body, sink, call.is_grpc);
                pump.begin(empty, call.held.take());
                upload.insert(pump)
            }
            (None, Some(pump)) => {
                pump.restart(sink, &mut replay);
                pump
            }
            (None, None) => return,
        };
        let each = policy.as_ref().and_then(|policy| policy.per_try_timeout);
        let limits = ExchangeLimits::new(&worker.timeouts, each, route.timeout());
        call.clock.restart();
        let mut flight = StreamFlight::new(up, &mut replay, response, limits);
        flight.observer = observer;
        let copying = copied_head(parts, observer, route);
        let copy = |replay: &Replay| {
            if let Some((observer, sent)) = &copying {
                observer.copy(downgrade::copied(sent, replay));
            }
        };
        flight.copy = copying.is_some().then_some(&copy as &dyn Fn(&Replay));
        flight.retry = policy.as_deref();
        let mut landing = fly(role, &route.ticket, parts, &mut flight, call, tally).await;
        let failed = failure(landing, &lease);
        let again_is_fine = flight.is_held() && !is_plain_connect(parts);
        if let Some(failed) = failed.filter(|_| again_is_fine) {
            let harmless = failed.is_harmless(call.idempotent) && tally.attempts < MAX_ATTEMPTS;
            // The role is asked first: it may know a better place.
            if again(role, route, failed, call, tally).await || harmless {
                continue;
            }
            if matches!(landing, ExchangeEnd::Held(_)) {
                flight.accept();
                landing = fly(role, &route.ticket, parts, &mut flight, call, tally).await;
            }
        }
        return flight.land(landing, role, call, tally);
    }
}

/// A place for the next attempt; otherwise the client was answered, or is gone.
async fn reach<R: HttpRole + 'static>(
    worker: &Rc<HttpWorker<R>>,
    role: &R,
    route: &mut RequestRoute<R>,
    (call, tally): (&mut ClientCall, &mut ExchangeRecord),
    received: &dyn Fn() -> bool,
    extended: bool,
) -> Option<Lease> {
    loop {
        tally.attempts += 1;
        (route.observer.iter()).for_each(|one| one.seeks_connection());
        match acquire(worker, role, route, (call, received), extended).await {
            Ok(lease) => return Some(lease),
            Err(MissingUpstream::Ended(end)) => {
                call.give_up(role, end, tally);
                return None;
            }
            Err(MissingUpstream::Failed(failure)) => {
                if !dials_again(role, route, &failure, call, tally).await {
                    call.answer(role, LocalReply::unreached(&failure), tally);
                    return None;
                }
            }
        }
    }
}

/// The head that goes on, with the attempt's number from the second on.
fn request_block<R: HttpRole>(
    parts: &Fields,
    observer: Option<&dyn HeadObserver>,
    route: &RequestRoute<R>,
    (lease, call): (&Lease, &ClientCall),
    attempt: u32,
) -> Fields {
    if let Some(observer) = observer {
        observer.sends(lease.local_address());
    }
    let mut request = call.respond.block();
    headers::forward_request(parts, observer, route.edit(), &mut request);
    if attempt > 1 {
        request.push("x-envoy-attempt-count", attempt.to_string().as_bytes());
    }
    request
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
fn failure(landing: ExchangeEnd, lease: &Lease) -> Option<Attempt> {
    match landing {
        ExchangeEnd::Upstream(cause) => Some(lease.attempt(cause)),
        ExchangeEnd::Held(why) => Some(why),
        // As in HTTP/1.1: no answer in time is one of 504.
        ExchangeEnd::Timeout => Some(Attempt::Answered(504)),
        ExchangeEnd::Interim => {
            // The answer does not end; no other stream shall wait behind it.
            lease.spoiled();
            None
        }
        _ => None,
    }
}

/// One attempt, as long as leave for it is not taken back.
async fn fly<R: HttpRole>(
    role: &R,
    ticket: &R::Ticket,
    parts: &Fields,
    flight: &mut StreamFlight<'_>,
    call: &mut ClientCall,
    tally: &mut ExchangeRecord,
) -> ExchangeEnd {
    let hears = |answer| role.answers(ticket, answer);
    poll_fn(
        |cx| match role.is_revoked(ticket, || HttpHead::Http2(parts)) {
            true => Poll::Ready(ExchangeEnd::Revoked),
            false => flight.poll_heard(cx, call, tally, hears),
        },
    )
    .await
}

/// Returns true if another attempt follows a failed connect. A request over a limit finds no room at another endpoint.
async fn dials_again<R: HttpRole>(
    role: &R,
    route: &mut RequestRoute<R>,
    failure: &ConnectFailure,
    call: &mut ClientCall,
    tally: &ExchangeRecord,
) -> bool {
    failure.flag != ResponseFlag::UpstreamOverflow
        && again(role, route, Attempt::NotConnected, call, tally).await
}

/// Asks the role for another attempt and waits for its pause. Also false if the client left meanwhile.
async fn again<R: HttpRole>(
    role: &R,
    route: &mut RequestRoute<R>,
    last: Attempt,
    call: &mut ClientCall,
    tally: &ExchangeRecord,
) -> bool {
    let Some(pause) = role.again(route, last, tally.attempts) else {
        return false;
    };
    if pause.is_zero() {
        return true;
    }
    // A failed answer is better than none after the timeout.
    if call.clock.ends_within(pause, route.timeout()) {
        return false;
    }
    let mut sleep = Box::pin(tokio::time::sleep(pause));
    poll_fn(|cx| match sleep.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending => call.poll_gone(cx).map(|_| false),
    })
    .await
}

/// Why there is no upstream.
enum MissingUpstream {
    Failed(ConnectFailure),
    /// The exchange ended before.
    Ended(ExchangeEnd),
}

async fn acquire<R: HttpRole + 'static>(
    worker: &Rc<HttpWorker<R>>,
    role: &R,
    route: &RequestRoute<R>,
    (call, received): (&mut ClientCall, &dyn Fn() -> bool),
    extended_connect: bool,
) -> Result<Lease, MissingUpstream> {
    let mut timer = Timer::default();
    let mut acquiring = pin!(worker.http2.acquire(role, route, extended_connect));
    poll_fn(|cx| {
        if let Poll::Ready(acquired) = acquiring.as_mut().poll(cx) {
            return Poll::Ready(acquired.map_err(MissingUpstream::Failed));
        }
        if call.is_over(cx, &mut timer, route.timeout(), received) {
            return Poll::Ready(Err(MissingUpstream::Ended(ExchangeEnd::Expired)));
        }
        call.poll_gone(cx)
            .map(|end| Err(MissingUpstream::Ended(end)))
    })
    .await
}
