//! The client's side of a request, whichever version it speaks: what both engines ask of it before anything of it went on.

use std::task::{Context, Poll};

use super::exchange_clock::ExchangeClock;
use super::held_body::HeldBody;
use super::timer::Timer;
use super::upload::Upload;
use crate::http::buffers::ExchangeBuffers;
use crate::http::ending::ExchangeEnd;
use crate::http::external_check::BodyPrefix;
use crate::http::flight::ExchangeClient;
use crate::http::{HttpHead, Io};

/// The client's side of an exchange.
pub(crate) trait DownstreamClient {
    /// The clock of the exchange, and the timer that it sets.
    fn clock(&mut self) -> (&mut ExchangeClock, &mut Timer);

    /// Ready once the client gave up, or broke its request.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd>;
}

/// See the module.
pub(crate) trait DownstreamRequest {
    /// Who waits for the answer.
    fn client(&mut self) -> &mut impl DownstreamClient;

    /// The head as it came.
    fn head(&self) -> HttpHead<'_>;

    /// Returns true if all of the request was received.
    fn is_received(&self) -> bool;
}

/// A request whose body can be held, for an external service that is shown the beginning.
pub(crate) trait HeldRequest: DownstreamRequest {
    /// Returns true if there is a body. A tunnel has none.
    fn has_body(&self) -> bool;

    /// Ready when more than `max` bytes of the body are held, or all.
    fn poll_hold(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<Result<(), ExchangeEnd>>;

    /// Bytes of the body that were received.
    fn received(&self) -> u64;

    /// The first `max` bytes of what is held.
    fn held(&self, max: usize) -> BodyPrefix;
}

/// A request of HTTP/1.1.
pub(crate) struct Http1Request<'a, S> {
    pub(crate) client: ExchangeClient<'a, S>,
    pub(crate) desk: &'a mut ExchangeBuffers,
    pub(crate) upload: &'a mut Upload,
    /// Its body, if there is one that may be held.
    pub(crate) body: Option<HeldBody>,
}

impl<S: Io> DownstreamClient for Http1Request<'_, S> {
    fn clock(&mut self) -> (&mut ExchangeClock, &mut Timer) {
        (&mut self.desk.clock, self.client.timer)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<ExchangeEnd> {
        self.client.poll_gone(cx, self.upload)
    }
}

impl<S: Io> DownstreamRequest for Http1Request<'_, S> {
    fn client(&mut self) -> &mut impl DownstreamClient {
        self
    }

    fn head(&self) -> HttpHead<'_> {
        HttpHead::Http1(self.desk.request.head(self.client.input.filled()))
    }

    fn is_received(&self) -> bool {
        self.upload.received()
    }
}

impl<S: Io> HeldRequest for Http1Request<'_, S> {
    fn has_body(&self) -> bool {
        self.body.is_some()
    }

    fn poll_hold(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<Result<(), ExchangeEnd>> {
        match &mut self.body {
            Some(body) => body.poll(cx, max, &mut self.client, self.upload),
            None => Poll::Ready(Ok(())),
        }
    }

    fn received(&self) -> u64 {
        self.upload.body_bytes
    }

    fn held(&self, max: usize) -> BodyPrefix {
        let bytes = self.body.as_ref().map_or(&[][..], HeldBody::bytes);
        BodyPrefix {
            bytes: bytes[..bytes.len().min(max)].to_vec(),
            whole: self.upload.received() && bytes.len() <= max,
        }
    }
}
