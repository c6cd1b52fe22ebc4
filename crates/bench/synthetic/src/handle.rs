//! One request: which of our pages it is for, or what the script makes of it.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use voile_graph::Probability;
use voile_graph::dice::{Decision, ProcessRandom};

use crate::body::{Payload, PayloadBody};
use crate::call::{BodyReadError, drain};
use crate::grpc;
use crate::metrics::Metrics;
use crate::script::Script;
use crate::trace;

/// Most requests of one thread at a time; more are answered 503 at once.
const MAX_IN_FLIGHT: usize = 10_000;
/// Largest body of a request, in bytes; it is read and forgotten.
const MAX_REQUEST_BYTES: u64 = voile_graph::size::MAX_SIZE + (1 << 16);
/// Time limit for a client to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// State of one thread for its service.
pub(crate) struct Handler {
    pub(crate) script: Script,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) dice: ProcessRandom,
    pub(crate) error_rate: Probability,
    pub(crate) plain: Payload,
    pub(crate) message: Payload,
    pub(crate) in_flight: Cell<usize>,
}

/// Counts a request for as long as it lives.
struct RequestGuard<'a>(&'a Cell<usize>);

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Outcome of the script for a request.
enum ScriptOutcome {
    Good,
    Failed(StatusCode, u32, String),
}

impl Handler {
    pub(crate) async fn handle(
        self: Rc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<PayloadBody>, Infallible> {
        let grpc = grpc::is_grpc(request.headers());
        let path = request.uri().path();
        Ok(match (grpc, path) {
            (false, "/metrics") => page(
                "text/plain; version=0.0.4; charset=utf-8",
                self.metrics.page(),
            ),
            (false, "/healthz") => page("text/plain", "ok\n".to_owned()),
            (true, grpc::HEALTH) => grpc::healthy(),
            (true, path) if path != grpc::METHOD => {
                grpc::failure(grpc::UNIMPLEMENTED, &format!("no method {path}"))
            }
            _ => self.script(request, grpc).await,
        })
    }

    async fn script(&self, request: Request<Incoming>, grpc: bool) -> Response<PayloadBody> {
        let start = Instant::now();
        let number = self.metrics.came();
        self.in_flight.set(self.in_flight.get() + 1);
        let _flight = RequestGuard(&self.in_flight);
        let outcome = self.outcome(request, number).await;
        let (status, response, bytes) = match outcome {
            ScriptOutcome::Good if grpc => (
                StatusCode::OK,
                grpc::answer(&self.message),
                self.message.len(),
            ),
            ScriptOutcome::Good => {
                let mut response = Response::new(PayloadBody::new(&self.plain));
                let kind = HeaderValue::from_static("application/octet-stream");
                response.headers_mut().insert(header::CONTENT_TYPE, kind);
                (StatusCode::OK, response, self.plain.len())
            }
            ScriptOutcome::Failed(status, code, reason) if grpc => {
                (status, grpc::failure(code, &reason), 0)
            }
            ScriptOutcome::Failed(status, _, reason) => {
                let bytes = reason.len() as u64 + 1;
                let mut response = page("text/plain; charset=utf-8", reason + "\n");
                *response.status_mut() = status;
                (status, response, bytes)
            }
        };
        self.metrics
            .answered(status.as_u16(), start.elapsed(), bytes);
        response
    }

    async fn outcome(&self, request: Request<Incoming>, number: u64) -> ScriptOutcome {
        if self.in_flight.get() > MAX_IN_FLIGHT {
            let reason = format!("more than {MAX_IN_FLIGHT} requests at a time");
            return ScriptOutcome::Failed(
                StatusCode::SERVICE_UNAVAILABLE,
                grpc::UNAVAILABLE,
                reason,
            );
        }
        let inherited = trace::inherited(request.headers());
        let mut body = request.into_body();
        if !body.is_end_stream() {
            let drained =
                tokio::time::timeout(BODY_TIMEOUT, drain(&mut body, MAX_REQUEST_BYTES)).await;
            match drained.unwrap_or(Err(BodyReadError::Broken)) {
                Ok(()) => {}
                Err(BodyReadError::TooLarge) => {
                    let reason = format!("the request has more than {MAX_REQUEST_BYTES} bytes");
                    return ScriptOutcome::Failed(
                        StatusCode::PAYLOAD_TOO_LARGE,
                        grpc::EXHAUSTED,
                        reason,
                    );
                }
                Err(BodyReadError::Broken) => {
                    return failed("the request's body is incomplete".to_owned());
                }
            }
        }
        if self.dice.hit(number, Decision::Fail, self.error_rate) {
            return failed("simulated failure".to_owned());
        }
        match self.script.execute(number, &inherited).await {
            Ok(_held) => ScriptOutcome::Good,
            Err(reason) => failed(reason),
        }
    }
}

fn failed(reason: String) -> ScriptOutcome {
    ScriptOutcome::Failed(StatusCode::INTERNAL_SERVER_ERROR, grpc::INTERNAL, reason)
}

fn page(kind: &'static str, text: String) -> Response<PayloadBody> {
    let mut response = Response::new(PayloadBody::text(text));
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
