//! One question over gRPC: a unary call on a shared HTTP/2 connection, its answer bounded before it is read.

use std::future::poll_fn;

use bytes::{BufMut, Bytes, BytesMut};
use voile_http2::{Failure, Fields, RecvStream, ResponseFuture};

use super::{CallFailure, Callee, Dialer, Lines, MAX_ANSWER_BYTES};
use crate::http::RequestRoute;
use crate::http2::grpc::status;

/// One byte of flags, four of length.
const PREFIX: usize = 5;

impl Callee {
    /// Calls a method once, `/PACKAGE.SERVICE/METHOD`, with one message for one.
    pub(in crate::worker) async fn call<'w, A: prost::Message + Default>(
        &self,
        through: (&Dialer<'w>, &RequestRoute<Dialer<'w>>),
        method: &'static str,
        question: &impl prost::Message,
    ) -> Result<A, CallFailure> {
        let authority = &self.service.authority;
        let called = self.lines.call(through, authority, method, question);
        called.await
    }
}

impl Lines {
    /// The same, at the endpoint of the route.
    pub(in crate::worker) async fn call<'w, A: prost::Message + Default>(
        &self,
        (dialer, route): (&Dialer<'w>, &RequestRoute<Dialer<'w>>),
        authority: &str,
        method: &'static str,
        question: &impl prost::Message,
    ) -> Result<A, CallFailure> {
        let lease = self.http2.acquire(dialer, route, false).await;
        let lease = lease.map_err(|failure| CallFailure::again(&*failure.reason))?;
        let mut head = Fields::new();
        head.push(":method", b"POST");
        head.push(":scheme", b"http");
        head.push(":path", method.as_bytes());
        head.push(":authority", authority.as_bytes());
        head.push("content-type", b"application/grpc");
        head.push("te", b"trailers");
        let Some((response, mut send)) = lease.link.send_request(head, false) else {
            lease.spoiled();
            return Err(CallFailure::again("the connection is closing"));
        };
        // Bytes that do not fit the flow-control window wait in the stream.
        let sent = send.send_data(message(question), true);
        let answered = match sent {
            Ok(()) => receive(response).await,
            Err(failure) => Err(failed(failure, "before the request was sent")),
        };
        if let Err(CallFailure { again: true, .. }) = &answered {
            lease.spoiled();
        }
        let message = answered?;
        A::decode(message)
            .map_err(|error| CallFailure::new(format!("not a response of {method}: {error}")))
    }
}

fn message(question: &impl prost::Message) -> Bytes {
    let length = question.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX + length);
    out.put_u8(0);
    // No question is as long as 4 GiB: heads and bodies are bounded.
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    let encoded = question.encode(&mut out);
    debug_assert!(encoded.is_ok(), "invariant: BytesMut grows");
    out.freeze()
}

/// Describes a failed call. If the connection broke, the endpoint has decided nothing, and the question may be put again. If the
/// endpoint reset the stream, it has seen the question.
fn failed(failure: Failure, when: &str) -> CallFailure {
    match failure {
        Failure::Connection | Failure::Unprocessed => {
            CallFailure::again(format!("the connection ended {when}"))
        }
        Failure::Reset(reason) | Failure::Violation(reason) => {
            CallFailure::new(format!("the stream ended {when}: {reason}"))
        }
    }
}

/// The one message of the answer.
async fn receive(mut response: ResponseFuture) -> Result<Bytes, CallFailure> {
    let head = poll_fn(|cx| {
        while let std::task::Poll::Ready(Some(_)) = response.poll_informational(cx) {}
        response.poll_head(cx)
    });
    let head = head
        .await
        .map_err(|failure| failed(failure, "before a response"))?;
    if head.status() != 200 {
        let reason = format!("answered {}", head.status());
        return Err(CallFailure::new(reason));
    }
    let mut body = response.into_body();
    if let Some(code) = status(&head).filter(|code| *code != 0) {
        return Err(CallFailure::new(refusal(code, &head)));
    }
    let bytes = collect(&mut body).await?;
    let trailers = poll_fn(|cx| body.poll_trailers(cx)).await;
    let trailers = trailers.map_err(|failure| failed(failure, "within a response"))?;
    match trailers.as_ref().and_then(status).or_else(|| status(&head)) {
        Some(0) => {}
        Some(code) => {
            return Err(CallFailure::new(refusal(
                code,
                trailers.as_ref().unwrap_or(&head),
            )));
        }
        None => return Err(CallFailure::new("the response has no gRPC status")),
    }
    let framed = bytes.split_first_chunk::<PREFIX>();
    let Some(([flags, length @ ..], message)) = framed else {
        return Err(CallFailure::new("the response has no message"));
    };
    if *flags != 0 || u32::from_be_bytes(*length) as usize != message.len() {
        return Err(CallFailure::new(
            "the response is not one uncompressed message",
        ));
    }
    Ok(bytes.slice(PREFIX..))
}

fn refusal(code: u16, fields: &Fields) -> String {
    let message = fields.get("grpc-message").unwrap_or_default();
    let message: String = String::from_utf8_lossy(message).chars().take(200).collect();
    format!("gRPC status {code} {message}")
}

async fn collect(body: &mut RecvStream) -> Result<Bytes, CallFailure> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(chunk) = poll_fn(|cx| body.poll_data(cx)).await {
        let chunk = chunk.map_err(|failure| failed(failure, "within a response"))?;
        body.release_capacity(chunk.len());
        if first.len() + rest.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(CallFailure::new("the response is too large"));
        }
        match first.is_empty() && rest.is_empty() {
            true => first = chunk,
            false => {
                if rest.is_empty() {
                    rest.extend_from_slice(&std::mem::take(&mut first));
                }
                rest.extend_from_slice(&chunk);
            }
        }
    }
    Ok(if rest.is_empty() {
        first
    } else {
        rest.freeze()
    })
}
