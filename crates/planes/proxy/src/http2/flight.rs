//! One request and its answer on one upstream stream, both ways at once.
//!
//! A wake-up polls: request body → head of the answer, or its body → is the client still there → idle for too long.

use std::task::{Context, Poll};

use voile_http2::Fields;
use voile_traffic::{Attempt, RetryPolicy};

use super::conversions::headers;
use super::grpc::{self, Messages};
use super::limits::MAX_INTERIM_RESPONSES;
use super::stream_copy::{BrokenSide, Cause, Pump, Replay};
use crate::http::codec::{AnswerSink as _, BodySink, BodySource, StreamCodec};
use crate::http::downstream_request::DownstreamClient as _;
use crate::http::ending::ExchangeEnd;
use crate::http::exchange_clock::{ExchangeLimits, ExchangeProgress};
use crate::http::external_check::amend_fields;
use crate::http::stream_upstream::{UpstreamBody, UpstreamHead, UpstreamSink};
use crate::http::{ExchangeRecord, HeadObserver, HttpRole, Io, UpstreamResponse};
use crate::http2::stream_call::ClientCall;

/// The answer's way.
pub(crate) enum ResponsePath<D: StreamCodec, U: Io> {
    Waiting {
        response: Option<UpstreamHead<U>>,
        interim: u32,
        /// The head that was held back.
        held: Option<Fields>,
    },
    Body(Box<Pump<UpstreamBody<U>, D::AnswerBody>>),
    /// A head without a body went on.
    Over,
}

impl<D: StreamCodec, U: Io> ResponsePath<D, U> {
    /// Passes the body on. A tunnel's two directions end each by itself: `taken` says that nothing more goes the other way.
    fn poll(&mut self, cx: &mut Context<'_>, taken: bool) -> Poll<ExchangeEnd> {
        let pump = match self {
            Self::Waiting { .. } => return Poll::Pending,
            Self::Body(pump) => pump,
            Self::Over => return Poll::Ready(ExchangeEnd::Done),
        };
        match pump.poll(cx, None, &[]) {
            Poll::Ready(Ok(())) if taken => Poll::Ready(ExchangeEnd::Done),
            Poll::Ready(Ok(())) => Poll::Pending,
            Poll::Ready(Err(BrokenSide::Source(cause))) => Poll::Ready(pump.source().end(cause)),
            Poll::Ready(Err(BrokenSide::Sink(cause))) => Poll::Ready(ExchangeEnd::Client(cause)),
            Poll::Pending => pump.sink().poll_failed(cx).map(ExchangeEnd::Client),
        }
    }
}

/// One request and its answer, both ways at once.
pub(crate) struct StreamFlight<'a, D: StreamCodec, U: Io> {
    up: &'a mut Pump<D::Body, UpstreamSink<U>>,
    replay: &'a mut Replay,
    down: ResponsePath<D, U>,
    limits: ExchangeLimits<'a>,
    /// Answers that it wishes to have again are held back, while that can be.
    pub(crate) retry: Option<&'a RetryPolicy>,
    /// The final head came, and the role was not told yet.
    news: Option<UpstreamResponse>,
    /// Is told what the record needs.
    pub(crate) observer: Option<&'a dyn HeadObserver>,
    /// Called with the sent request, when all of it was received.
    pub(crate) copy: Option<&'a dyn Fn(&Replay)>,
}

impl<'a, D: StreamCodec, U: Io> StreamFlight<'a, D, U> {
    /// A request that is on its way.
    pub(crate) fn new(
        up: &'a mut Pump<D::Body, UpstreamSink<U>>,
        replay: &'a mut Replay,
        response: UpstreamHead<U>,
        limits: ExchangeLimits<'a>,
    ) -> Self {
        Self {
            up,
            replay,
            down: ResponsePath::Waiting {
                response: Some(response),
                interim: 0,
                held: None,
            },
            limits,
            retry: None,
            news: None,
            observer: None,
            copy: None,
        }
    }

    /// Polls, and says once that the final head came.
    pub(crate) fn poll_heard(
        &mut self,
        cx: &mut Context<'_>,
        call: &mut ClientCall<D>,
        tally: &mut ExchangeRecord,
        hears: impl FnOnce(UpstreamResponse),
    ) -> Poll<ExchangeEnd> {
        let landing = self.poll(cx, call, tally);
        if let Some(answer) = self.news.take() {
            hears(answer);
        }
        landing
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        call: &mut ClientCall<D>,
        tally: &mut ExchangeRecord,
    ) -> Poll<ExchangeEnd> {
        let kept = self.observer.map_or(&[][..], HeadObserver::keeps);
        match self.up.poll(cx, Some(self.replay), kept) {
            Poll::Ready(Err(BrokenSide::Source(cause))) => {
                return Poll::Ready(ExchangeEnd::Client(cause));
            }
            // The upstream takes no more of the body; its answer decides.
            Poll::Ready(Err(BrokenSide::Sink(_))) => self.up.finish(),
            Poll::Ready(Ok(())) => {
                if let Some(observer) = self.observer {
                    observer.received();
                }
                if let Some(copy) = self.copy.take() {
                    copy(self.replay);
                }
            }
            Poll::Pending => {}
        }
        if let ResponsePath::Waiting {
            response,
            interim,
            held,
        } = &mut self.down
        {
            let head = match held.take() {
                Some(head) => Poll::Ready(Ok(head)),
                None => poll_head(cx, response, interim, call),
            };
            match head {
                Poll::Ready(Ok(answer)) => {
                    let policy = self.retry.filter(|_| self.replay.is_whole());
                    let unprocessed = response.as_ref().is_some_and(UpstreamHead::is_unprocessed);
                    let refused = unprocessed && self.replay.is_whole();
                    let refused = refused.then_some(Attempt::Refused);
                    let wish = || wishes_another(policy, &answer, call.is_grpc);
                    if let Some(why) = refused.or_else(wish) {
                        *held = Some(answer);
                        return Poll::Ready(ExchangeEnd::Held(why));
                    }
                    self.replay.forget();
                    if let Err(landing) = self.begin(answer, call, tally) {
                        return Poll::Ready(landing);
                    }
                }
                Poll::Ready(Err(landing)) => return Poll::Ready(landing),
                Poll::Pending => {
                    if let Poll::Ready(end) = call.poll_gone(cx) {
                        return Poll::Ready(end);
                    }
                }
            }
        }
        let taken = !call.is_tunnel || self.up.is_done();
        if let Poll::Ready(end) = self.down.poll(cx, taken) {
            return Poll::Ready(end);
        }
        match self.late(cx, call) {
            Some(landing) => Poll::Ready(landing),
            None => Poll::Pending,
        }
    }

    /// Passes the head of the answer on.
    fn begin(
        &mut self,
        mut answer: Fields,
        call: &mut ClientCall<D>,
        tally: &mut ExchangeRecord,
    ) -> Result<(), ExchangeEnd> {
        let ResponsePath::Waiting { response, .. } = &mut self.down else {
            return Ok(());
        };
        let Some(body) = response.take().map(UpstreamHead::into_body) else {
            return Ok(());
        };
        headers::clean(&mut answer);
        // A client whose tunnel is refused has no bytes to send.
        call.is_tunnel &= (200..300).contains(&answer.status());
        if call.is_tunnel {
            answer.remove("content-length");
        }
        tally.status = answer.status();
        self.news = Some(UpstreamResponse::new(tally.status, |name| answer.get(name)));
        tally.response_head_bytes = headers::size(&answer);
        if let Some(observer) = self.observer {
            observer.response(&mut answer.iter());
            amend_fields(&mut answer, observer.amends());
        }
        let end = body.is_end_stream();
        if let Some(call) = tally.grpc.as_mut().filter(|_| end) {
            call.status = grpc::status(&answer);
        }
        let sent = call.respond.send_response(answer, end);
        let sink = sent.map_err(ExchangeEnd::Client)?;
        self.down = if end {
            ResponsePath::Over
        } else {
            ResponsePath::Body(Box::new(Pump::new(body, sink, call.is_grpc)))
        };
        Ok(())
    }

    /// Reports a timeout. A quiet gRPC caller is not late, it has nothing to say.
    fn late(&mut self, cx: &mut Context<'_>, call: &mut ClientCall<D>) -> Option<ExchangeEnd> {
        let (answered, stalled, bytes) = match &self.down {
            ResponsePath::Body(pump) => (true, pump.stalled, pump.bytes),
            _ => (false, false, 0),
        };
        // A tunnel has no end that could be waited for, and a request for one has no body.
        let asks = call.is_tunnel && !answered;
        let limits = ExchangeLimits {
            answer: (self.limits.answer).filter(|_| !call.is_tunnel || (asks && call.is_upgrade)),
            ..self.limits
        };
        let taken = self.up.is_done() || asks;
        let progress = ExchangeProgress {
            received: self.up.is_received() || asks,
            sending: !taken && !self.up.stalled && !answered && !call.is_grpc,
            stuck: self.up.stalled && !taken,
            stalled,
            answered,
            tunnel: answered && call.is_tunnel,
            bytes: (self.up.bytes, bytes),
        };
        call.clock
            .overdue(cx, &mut call.timer, limits, progress, || false)
    }

    /// Accepts all further bytes, the held-back head included.
    pub(crate) fn accept(&mut self) {
        self.replay.forget();
    }

    /// Returns true if the client has nothing of an answer and all of the request is still at hand.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.down, ResponsePath::Waiting { .. }) && self.replay.is_whole()
    }

    /// Turns the end of the flight into each side's message and the record.
    pub(crate) fn land<R: HttpRole>(
        self,
        landing: ExchangeEnd,
        role: &R,
        call: &mut ClientCall<D>,
        tally: &mut ExchangeRecord,
    ) {
        tally.request_body_bytes = self.up.bytes;
        let answered = !matches!(self.down, ResponsePath::Waiting { .. });
        let mut down = match self.down {
            ResponsePath::Body(pump) => Some(pump),
            ResponsePath::Waiting { .. } | ResponsePath::Over => None,
        };
        if let Some(pump) = &down {
            tally.response_body_bytes = pump.bytes;
            show_trailers(self.observer, pump);
        }
        if let Some(call) = &mut tally.grpc {
            call.request_messages = count(self.up);
            if let Some(pump) = &down {
                call.response_messages = count(pump);
                call.status = pump.trailers.as_ref().and_then(grpc::status);
            }
        }
        let (reply, code) = (landing.reply(answered, R::REVOCATION), landing.code());
        let mut reset_client = || match &mut down {
            Some(pump) => pump.sink().send_reset(code),
            None => call.respond.send_reset(code),
        };
        match landing {
            ExchangeEnd::Done => {}
            // It goes on as it came.
            ExchangeEnd::Upstream(Cause::Reset(_) | Cause::Unprocessed) => reset_client(),
            landing => {
                self.up.sink().send_reset(code);
                match landing {
                    ExchangeEnd::Client(_) => {}
                    _ if answered => reset_client(),
                    _ => return call.answer(role, reply, tally),
                }
            }
        }
        (tally.flag, tally.details) = (reply.flag, reply.details);
    }
}

/// Why an answer is worth another attempt, if it is.
fn wishes_another(policy: Option<&RetryPolicy>, answer: &Fields, is_grpc: bool) -> Option<Attempt> {
    let code = || grpc::status(answer).filter(|_| is_grpc);
    policy?.wished(answer.status(), code)
}

fn count<F: BodySource, T: BodySink>(pump: &Pump<F, T>) -> u64 {
    pump.messages
        .as_ref()
        .map_or(0, |Messages { count, .. }| *count)
}

fn show_trailers<F: BodySource, T: BodySink>(
    observer: Option<&dyn HeadObserver>,
    pump: &Pump<F, T>,
) {
    if let (Some(observer), Some(trailers)) = (observer, &pump.trailers) {
        observer.trailers(&mut trailers.iter());
    }
}

/// Waits for the final head; passes interim ones on.
fn poll_head<D: StreamCodec, U: Io>(
    cx: &mut Context<'_>,
    response: &mut Option<UpstreamHead<U>>,
    interim: &mut u32,
    call: &mut ClientCall<D>,
) -> Poll<Result<Fields, ExchangeEnd>> {
    let Some(response) = response else {
        return Poll::Pending;
    };
    while let Poll::Ready(Some(mut early)) = response.poll_informational(cx) {
        *interim += 1;
        if *interim > MAX_INTERIM_RESPONSES {
            return Poll::Ready(Err(ExchangeEnd::Interim));
        }
        headers::clean(&mut early);
        // A client that has gone is noticed elsewhere.
        let _ = call.respond.send_informational(early);
    }
    response.poll(cx)
}
