//! Attempts of an exchange, whichever version its client speaks: an upstream for each, and whether another one follows.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use voile_traffic::Attempt;

use super::downstream_request::{DownstreamClient, DownstreamRequest};
use crate::http::ending::ExchangeEnd;
use crate::http::{ConnectFailure, ExchangeRecord, HttpRole, RequestRoute, ResponseFlag};

/// Why there is no upstream. The client has received nothing.
pub(crate) enum MissingUpstream {
    Failed(ConnectFailure),
    /// The exchange ended before.
    Ended(ExchangeEnd),
}

/// The next attempt is counted, and begins.
pub(crate) fn begin<R: HttpRole>(route: &RequestRoute<R>, tally: &mut ExchangeRecord) {
    tally.attempts += 1;
    (route.observer.iter()).for_each(|one| one.seeks_connection());
}

/// An upstream for the next attempt.
pub(crate) async fn reach<D: DownstreamRequest, R: HttpRole, U>(
    role: &R,
    route: &mut RequestRoute<R>,
    request: &mut D,
    tally: &mut ExchangeRecord,
    connect: impl AsyncFn(&RequestRoute<R>) -> Result<U, ConnectFailure>,
) -> Result<U, MissingUpstream> {
    loop {
        begin(route, tally);
        // A tunnel has no end that could be waited for.
        let limit = route.timeout();
        let limit = limit.filter(|_| request.head().method_meant() != "CONNECT");
        let opened = {
            let connecting = pin!(connect(route));
            wait(request, limit, connecting).await
        };
        let failure = match opened {
            Err(MissingUpstream::Failed(failure)) => failure,
            opened => return opened,
        };
        if failure.look_again {
            tally.attempts -= 1;
            continue;
        }
        // A request over a limit finds no room at another endpoint: it is refused at once.
        let full = failure.flag == ResponseFlag::UpstreamOverflow;
        let made = tally.attempts;
        if full || !again(role, route, Attempt::NotConnected, request.client(), made).await {
            return Err(MissingUpstream::Failed(failure));
        }
    }
}

/// Waits for a connection as long as the client and the time for the answer allow.
async fn wait<D: DownstreamRequest, U>(
    request: &mut D,
    limit: Option<Duration>,
    mut connecting: Pin<&mut impl Future<Output = Result<U, ConnectFailure>>>,
) -> Result<U, MissingUpstream> {
    poll_fn(|cx| {
        if let Poll::Ready(opened) = connecting.as_mut().poll(cx) {
            return Poll::Ready(opened.map_err(MissingUpstream::Failed));
        }
        if let Poll::Ready(end) = request.client().poll_gone(cx) {
            return Poll::Ready(Err(MissingUpstream::Ended(end)));
        }
        let received = request.is_received();
        let (clock, timer) = request.client().clock();
        match received && clock.is_over(cx, timer, limit) {
            true => Poll::Ready(Err(MissingUpstream::Ended(ExchangeEnd::Expired))),
            false => Poll::Pending,
        }
    })
    .await
}

/// Asks the role for another attempt after `made`, and waits for its pause. Also false if the client left meanwhile.
pub(crate) async fn again<C: DownstreamClient, R: HttpRole>(
    role: &R,
    route: &mut RequestRoute<R>,
    last: Attempt,
    client: &mut C,
    made: u32,
) -> bool {
    let Some(pause) = role.again(route, last, made) else {
        return false;
    };
    if pause.is_zero() {
        return true;
    }
    // A failed answer is better than none after the timeout.
    if client.clock().0.ends_within(pause, route.timeout()) {
        return false;
    }
    let mut sleep = Box::pin(tokio::time::sleep(pause));
    poll_fn(|cx| match sleep.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending => client.poll_gone(cx).map(|_| false),
    })
    .await
}
