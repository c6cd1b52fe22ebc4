//! One question over HTTP: a request as its bytes, and an answer whose head and body are bounded.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use voile_http1::{Body, Framing, Progress, RequestSummary, ResponseHead, ResponseIndex};
use voile_transport::TransportStream;

use super::{CallFailure, Dialer, Lines, MAX_ANSWER_BYTES};
use crate::http::upstream::Upstream;
use crate::http::{HttpRole as _, RequestRoute, UpstreamHttp};
use crate::http2::limits::MAX_INTERIM_RESPONSES;
use crate::http2::upgrade::Upgraded;

/// Bytes read at once; most answers are one read.
const READ_BYTES: usize = 4 * 1024;

/// Largest head of an answer, in bytes; the codec's own bound is of this order.
const MAX_HEAD_BYTES: usize = 64 * 1024;

impl Lines {
    /// Sends one request; keeps the connection if possible.
    pub(in crate::worker) async fn exchange<'w>(
        &self,
        (dialer, route): (&Dialer<'w>, &RequestRoute<Dialer<'w>>),
        question: &[u8],
        is_head: bool,
    ) -> Result<ReceivedResponse, CallFailure> {
        let mut upstream = self.open(dialer, route).await?;
        let broken = |error: std::io::Error| CallFailure::again(error.to_string());
        upstream.write_all(question).await.map_err(broken)?;
        upstream.flush().await.map_err(broken)?;
        let asked = RequestSummary {
            head: is_head,
            upgrade: false,
            connect: false,
        };
        let mut received = ReceivedResponse {
            bytes: Vec::new(),
            index: ResponseIndex::default(),
        };
        received.read_head(&mut upstream, asked).await?;
        let head = received.head();
        if head.opens_tunnel() {
            return Err(CallFailure::new("the response opens a tunnel"));
        }
        let (framing, patience) = (head.framing(), head.keep_alive_timeout());
        let keeps = head.keep_alive() && framing != Framing::UntilClose;
        let quiet = received.read_body(&mut upstream, framing).await?;
        if let Upstream::Http1(stream) = upstream
            && keeps
            && quiet
        {
            let patience = patience.map(|seconds| Duration::from_secs(seconds.into()));
            let now = Instant::now();
            self.http1.checkin(&route.key, stream, now, patience);
        }
        Ok(received)
    }

    async fn open<'w>(
        &self,
        dialer: &Dialer<'w>,
        route: &RequestRoute<Dialer<'w>>,
    ) -> Result<Upstream<TransportStream>, CallFailure> {
        if route.upstream == UpstreamHttp::Http2 {
            let lease = self.http2.acquire(dialer, route, false).await;
            let lease = lease.map_err(|failure| CallFailure::again(&*failure.reason))?;
            return Ok(Upstream::Http2(Box::new(Upgraded::new(lease))));
        }
        if let Some(stream) = self.http1.checkout(&route.key) {
            return Ok(Upstream::Http1(stream));
        }
        let connecting = tokio::time::timeout(route.connect_timeout, dialer.connect(route));
        match connecting.await {
            Ok(Ok(stream)) => Ok(Upstream::Http1(stream)),
            Ok(Err(failure)) => Err(CallFailure::again(&*failure.reason)),
            Err(_) => Err(CallFailure::again("upstream_connect_timeout")),
        }
    }
}

/// An answer as far as it came.
pub(in crate::worker) struct ReceivedResponse {
    /// Head and received part of the body.
    bytes: Vec<u8>,
    index: ResponseIndex,
}

async fn read(
    upstream: &mut Upstream<TransportStream>,
    bytes: &mut Vec<u8>,
) -> std::io::Result<usize> {
    bytes.reserve(READ_BYTES);
    upstream.read_buf(bytes).await
}

impl ReceivedResponse {
    /// Its head.
    pub(in crate::worker) fn head(&self) -> ResponseHead<'_> {
        self.index.head(&self.bytes)
    }

    /// Its head and its body.
    pub(in crate::worker) fn parts(&mut self) -> (ResponseHead<'_>, Vec<u8>) {
        let body = self.bytes.split_off(self.index.head_len());
        (self.index.head(&self.bytes), body)
    }

    /// Reads up to the final head.
    async fn read_head(
        &mut self,
        upstream: &mut Upstream<TransportStream>,
        asked: RequestSummary,
    ) -> Result<(), CallFailure> {
        let mut interim = 0;
        loop {
            let parsed = self.index.parse(&self.bytes, asked);
            let parsed = parsed.map_err(|reject| CallFailure::new(reject.reason()))?;
            if parsed == Progress::Complete {
                if !self.index.head(&self.bytes).is_interim() {
                    return Ok(());
                }
                interim += 1;
                if interim > MAX_INTERIM_RESPONSES {
                    return Err(CallFailure::new("too many interim responses"));
                }
                self.bytes.drain(..self.index.head_len());
                self.index.reset();
                continue;
            }
            if self.bytes.len() > MAX_HEAD_BYTES {
                return Err(CallFailure::new("the response head is too large"));
            }
            let silent = self.bytes.is_empty() && interim == 0;
            match read(upstream, &mut self.bytes).await {
                Ok(1..) => {}
                Ok(0) | Err(_) if silent => {
                    return Err(CallFailure::again("the connection ended before a response"));
                }
                Ok(_) | Err(_) => {
                    return Err(CallFailure::new(
                        "the connection ended within the response head",
                    ));
                }
            }
        }
    }

    /// Reads the body behind the head; says whether nothing came behind it.
    async fn read_body(
        &mut self,
        upstream: &mut Upstream<TransportStream>,
        framing: Framing,
    ) -> Result<bool, CallFailure> {
        let head = self.index.head_len();
        let mut fresh = self.bytes.split_off(head);
        let (mut body, out) = (Body::new(framing), &mut self.bytes);
        loop {
            let unwrapped = body.unwrap_in_place(&mut fresh);
            let (used, data) = unwrapped.map_err(|error| CallFailure::new(error.reason()))?;
            out.extend_from_slice(&fresh[..data]);
            if body.is_done() {
                return Ok(used == fresh.len());
            }
            if out.len() - head > MAX_ANSWER_BYTES {
                return Err(CallFailure::new("the response is too large"));
            }
            fresh.clear();
            match read(upstream, &mut fresh).await {
                Ok(1..) => {}
                Ok(0) if matches!(body, Body::UntilClose) => return Ok(false),
                Ok(_) | Err(_) => {
                    return Err(CallFailure::new(
                        "the connection ended within the response body",
                    ));
                }
            }
        }
    }
}
