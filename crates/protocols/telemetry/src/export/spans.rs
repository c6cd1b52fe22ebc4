//! Spans to an OTLP collector, over gRPC or as protobuf over HTTP/1.1. A batch that a collector refuses for good is
//! dropped; one that it could not take now is tried again a few times.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use prost::Message;
use tonic::Code;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::Channel;
use voile_proto::trace as wire;

use super::{CALL_TIMEOUT, CollectorDialer, GATHER, MAX_BATCH, channel, pause};
use crate::generated::trace_service::trace_service_client::TraceServiceClient;
use crate::outbox::Inbox;

/// Times one batch is sent.
const MAX_ATTEMPTS: u32 = 3;

/// Largest answer of a collector that is read, in bytes.
const MAX_ANSWER: usize = 64 * 1024;

/// Transport of spans.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Path of OTLP over HTTP; `None` is gRPC.
    pub http_path: Option<Arc<str>>,
    /// Timeout of one call.
    pub timeout: Option<Duration>,
    /// Sent along: name in lower case, value.
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// Resource that all spans share.
    pub resource: wire::Resource,
}

/// Why a batch was not taken.
enum BatchError {
    /// It may be taken later.
    Now(String),
    /// It will never be taken.
    ForGood(String),
}

/// Sends spans until no sender is left.
pub async fn run(mut inbox: Inbox<wire::Span>, dial: Arc<dyn CollectorDialer>, settings: Settings) {
    let mut client = CollectorClient {
        dial,
        channel: None,
        http: None,
    };
    let mut failures = 0;
    while let Some(spans) = inbox.batch(GATHER, MAX_BATCH).await {
        let count = spans.len() as u64;
        let request = wire::ExportTraceServiceRequest {
            resource_spans: vec![wire::ResourceSpans {
                resource: Some(settings.resource.clone()),
                scope_spans: vec![wire::ScopeSpans {
                    scope: Some(wire::InstrumentationScope {
                        name: "voile".to_owned(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                    }),
                    spans,
                }],
            }],
        };
        let mut attempt = 1;
        loop {
            match client.export(&request, &settings).await {
                Ok(rejected) => {
                    inbox.lost(rejected);
                    inbox.delivered(count.saturating_sub(rejected));
                    failures = 0;
                    break;
                }
                Err(BatchError::Now(error)) if attempt < MAX_ATTEMPTS => {
                    tracing::debug!(
                        collector = client.dial.authority(),
                        error,
                        "the collector did not accept the spans; retrying"
                    );
                    client.forget();
                    tokio::time::sleep(pause(failures)).await;
                    failures += 1;
                    attempt += 1;
                }
                Err(BatchError::Now(error) | BatchError::ForGood(error)) => {
                    tracing::debug!(collector = client.dial.authority(), error, "spans dropped");
                    client.forget();
                    inbox.lost(count);
                    failures += 1;
                    break;
                }
            }
        }
    }
}

struct CollectorClient {
    dial: Arc<dyn CollectorDialer>,
    channel: Option<TraceServiceClient<Channel>>,
    http: Option<SendRequest<Full<Bytes>>>,
}

impl CollectorClient {
    fn forget(&mut self) {
        self.channel = None;
        self.http = None;
    }

    /// Sends spans; returns the number of rejected ones.
    async fn export(
        &mut self,
        request: &wire::ExportTraceServiceRequest,
        settings: &Settings,
    ) -> Result<u64, BatchError> {
        let limit = settings.timeout.unwrap_or(CALL_TIMEOUT);
        let call = async {
            match &settings.http_path {
                None => self.grpc(request, settings).await,
                Some(path) => self.post(path, request, settings).await,
            }
        };
        tokio::time::timeout(limit, call)
            .await
            .unwrap_or_else(|_| Err(BatchError::Now(format!("no answer in {limit:?}"))))
    }

    async fn grpc(
        &mut self,
        request: &wire::ExportTraceServiceRequest,
        settings: &Settings,
    ) -> Result<u64, BatchError> {
        let client = match &mut self.channel {
            Some(client) => client,
            None => {
                let channel = channel::open(&self.dial).await.map_err(BatchError::Now)?;
                self.channel.insert(TraceServiceClient::new(channel))
            }
        };
        let mut call = tonic::Request::new(request.clone());
        for (name, value) in &settings.headers {
            // The control plane has refused names that cannot be metadata. A variable's value may hold anything.
            if let (Ok(name), Ok(value)) = (
                AsciiMetadataKey::from_bytes(name.as_bytes()),
                AsciiMetadataValue::try_from(&**value),
            ) {
                call.metadata_mut().insert(name, value);
            }
        }
        let answer = client.export(call).await.map_err(|status| {
            let reason = status.to_string();
            // The codes that OTLP names as worth another try.
            match status.code() {
                Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::OutOfRange
                | Code::Unavailable
                | Code::DataLoss
                | Code::Unknown => BatchError::Now(reason),
                _ => BatchError::ForGood(reason),
            }
        })?;
        let partial = answer.into_inner().partial_success.unwrap_or_default();
        Ok(u64::try_from(partial.rejected_spans).unwrap_or_default())
    }

    async fn post(
        &mut self,
        path: &str,
        request: &wire::ExportTraceServiceRequest,
        settings: &Settings,
    ) -> Result<u64, BatchError> {
        let failed = |error: &dyn std::fmt::Display| BatchError::Now(error.to_string());
        if self.http.as_ref().is_none_or(SendRequest::is_closed) {
            let stream = self.dial.dial().await.map_err(|error| failed(&error))?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream))
                .await
                .map_err(|error| failed(&error))?;
            tokio::spawn(connection);
            self.http = Some(sender);
        }
        let mut call = Request::post(path)
            .header("host", self.dial.authority())
            .header("content-type", "application/x-protobuf");
        for (name, value) in &settings.headers {
            if http::HeaderValue::from_str(value).is_ok() {
                call = call.header(&**name, &**value);
            }
        }
        let call = call
            .body(Full::new(Bytes::from(request.encode_to_vec())))
            .map_err(|error| BatchError::ForGood(error.to_string()))?;
        let Some(sender) = &mut self.http else {
            return Err(BatchError::Now("no connection".to_owned()));
        };
        sender.ready().await.map_err(|error| failed(&error))?;
        let answer = sender
            .send_request(call)
            .await
            .map_err(|error| failed(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        match status {
            status if status.is_success() => {
                let answer = wire::ExportTraceServiceResponse::decode(body).unwrap_or_default();
                let partial = answer.partial_success.unwrap_or_default();
                Ok(u64::try_from(partial.rejected_spans).unwrap_or_default())
            }
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(BatchError::Now(status.to_string())),
            status => Err(BatchError::ForGood(status.to_string())),
        }
    }
}
