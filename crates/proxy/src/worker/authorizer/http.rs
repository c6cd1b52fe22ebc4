//! One question over HTTP: a request like the one that it is about, and an answer whose head and body are bounded.

use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use voile_http1::{Asked, Body, Framing, Progress, ResponseIndex};
use voile_transport::Stream;

use super::question::OverHttp;
use super::{Answer, Authorizer, Dialer, MAX_ANSWER_BYTES, Unanswered, answer};
use crate::http::upstream::Upstream;
use crate::http::{HttpRole as _, Route, UpstreamHttp};
use crate::http2::limits::MAX_INTERIM_RESPONSES;
use crate::http2::upgrade::Upgraded;

/// Bytes read at once; most answers are one read.
const READ_BYTES: usize = 4 * 1024;

/// Largest head of an answer, in bytes; the codec's own bound is of this order.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Asks once.
pub(super) async fn ask<'w>(
    authorizer: &Authorizer,
    dialer: &Dialer<'w>,
    route: &Route<Dialer<'w>>,
    question: &OverHttp,
) -> Result<Answer, Unanswered> {
    let mut upstream = open(authorizer, dialer, route).await?;
    let broken = |error: std::io::Error| Unanswered::again(error.to_string());
    upstream.write_all(&question.bytes).await.map_err(broken)?;
    upstream.flush().await.map_err(broken)?;
    let asked = Asked {
        head: question.is_head,
        upgrade: false,
        connect: false,
    };
    let mut received = Received {
        bytes: Vec::new(),
        index: ResponseIndex::default(),
    };
    received.head(&mut upstream, asked).await?;
    let head = received.index.head(&received.bytes);
    if head.opens_tunnel() {
        return Err(Unanswered::new("an answer that is a tunnel"));
    }
    let (framing, patience) = (head.framing(), head.keep_alive_timeout());
    let keeps = head.keep_alive() && framing != Framing::UntilClose;
    let (body, quiet) = received.body(&mut upstream, framing).await?;
    let head = received.index.head(&received.bytes);
    let http = authorizer.plan.settings.http.as_ref();
    let answer = match http {
        Some(http) => answer::of_http(http, head.status(), head.headers(), body),
        None => Answer::failed("asked over HTTP without being so"),
    };
    if let Upstream::Http1(stream) = upstream
        && keeps
        && quiet
    {
        let patience = patience.map(|seconds| std::time::Duration::from_secs(seconds.into()));
        authorizer
            .callee
            .http1
            .checkin(&route.key, stream, Instant::now(), patience);
    }
    Ok(answer)
}

async fn open<'w>(
    authorizer: &Authorizer,
    dialer: &Dialer<'w>,
    route: &Route<Dialer<'w>>,
) -> Result<Upstream<Stream>, Unanswered> {
    if route.upstream == UpstreamHttp::Http2 {
        let lease = authorizer.callee.http2.acquire(dialer, route, false).await;
        let lease = lease.map_err(|failure| Unanswered::again(&*failure.reason))?;
        return Ok(Upstream::Http2(Box::new(Upgraded::new(lease))));
    }
    if let Some(stream) = authorizer.callee.http1.checkout(&route.key) {
        return Ok(Upstream::Http1(stream));
    }
    let connecting = tokio::time::timeout(route.connect_timeout, dialer.connect(route));
    match connecting.await {
        Ok(Ok(stream)) => Ok(Upstream::Http1(stream)),
        Ok(Err(failure)) => Err(Unanswered::again(&*failure.reason)),
        Err(_) => Err(Unanswered::again("upstream_connect_timeout")),
    }
}

/// An answer as far as it came.
struct Received {
    bytes: Vec<u8>,
    index: ResponseIndex,
}

async fn read(upstream: &mut Upstream<Stream>, bytes: &mut Vec<u8>) -> std::io::Result<usize> {
    bytes.reserve(READ_BYTES);
    upstream.read_buf(bytes).await
}

impl Received {
    /// Reads up to the final head.
    async fn head(
        &mut self,
        upstream: &mut Upstream<Stream>,
        asked: Asked,
    ) -> Result<(), Unanswered> {
        let mut interim = 0;
        loop {
            let parsed = self.index.parse(&self.bytes, asked);
            let parsed = parsed.map_err(|reject| Unanswered::new(reject.reason()))?;
            if parsed == Progress::Complete {
                if !self.index.head(&self.bytes).is_interim() {
                    return Ok(());
                }
                interim += 1;
                if interim > MAX_INTERIM_RESPONSES {
                    return Err(Unanswered::new("too many interim answers"));
                }
                self.bytes.drain(..self.index.head_len());
                self.index.reset();
                continue;
            }
            if self.bytes.len() > MAX_HEAD_BYTES {
                return Err(Unanswered::new("an answer whose head is too large"));
            }
            let silent = self.bytes.is_empty() && interim == 0;
            match read(upstream, &mut self.bytes).await {
                Ok(1..) => {}
                Ok(0) | Err(_) if silent => {
                    return Err(Unanswered::again("the connection ended before an answer"));
                }
                Ok(_) | Err(_) => return Err(Unanswered::new("half a head of an answer")),
            }
        }
    }

    /// Reads the body; says whether nothing came behind it.
    async fn body(
        &mut self,
        upstream: &mut Upstream<Stream>,
        framing: Framing,
    ) -> Result<(Vec<u8>, bool), Unanswered> {
        let mut fresh = self.bytes.split_off(self.index.head_len());
        let (mut body, mut out) = (Body::new(framing), Vec::new());
        loop {
            let unwrapped = body.unwrap_in_place(&mut fresh);
            let (used, data) = unwrapped.map_err(|error| Unanswered::new(error.reason()))?;
            out.extend_from_slice(&fresh[..data]);
            if body.is_done() {
                return Ok((out, used == fresh.len()));
            }
            if out.len() > MAX_ANSWER_BYTES {
                return Err(Unanswered::new("an answer that is too large"));
            }
            fresh.clear();
            match read(upstream, &mut fresh).await {
                Ok(1..) => {}
                Ok(0) if matches!(body, Body::UntilClose) => return Ok((out, false)),
                Ok(_) | Err(_) => return Err(Unanswered::new("half a body of an answer")),
            }
        }
    }
}
