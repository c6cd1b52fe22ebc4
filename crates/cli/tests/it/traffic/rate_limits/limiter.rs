//! A rate limit service for tests: tonic's server and Envoy's service, which counts by domain and descriptors, and does what a
//! descriptor's `do` says. It shares no code with the proxy but the messages.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tonic::{Request, Response, Status};
use voile_proto::rate_limit as wire;
use voile_testkit::generated::rate_limit_service::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use wire::rate_limit_response::rate_limit::Unit;
use wire::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use wire::{HeaderValue, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

use crate::policies::custom::authorizer::serve;

/// Requests that pass by one descriptor.
pub(crate) const LIMIT: u32 = 5;

/// See the module. It lives as long as the test process.
#[derive(Clone, Default)]
pub(crate) struct Limiter {
    asked: Arc<Mutex<Vec<RateLimitRequest>>>,
    counted: Arc<Mutex<HashMap<String, u32>>>,
}

impl Limiter {
    pub(crate) fn start(listener: TcpListener) -> Self {
        let limiter = Self::default();
        let service = RateLimitServiceServer::new(limiter.clone());
        serve(listener, move |server, incoming| async move {
            let served = server.serve_with_incoming(service, incoming);
            served.await.expect("served");
        });
        limiter
    }

    /// The questions since this was called last, one line each: `domain hits key=value,…|…`.
    pub(crate) fn take(&self) -> Vec<String> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *asked).iter().map(line).collect()
    }

    /// Counts by one descriptor.
    fn count(&self, domain: &str, descriptor: &RateLimitDescriptor, hits: u32) -> DescriptorStatus {
        let key = format!("{domain} {}", pairs(descriptor));
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counted.entry(key).or_default();
        *count += hits;
        let code = match *count > LIMIT {
            true => Code::OverLimit,
            false => Code::Ok,
        };
        DescriptorStatus {
            code: code.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: LIMIT,
                unit: Unit::Hour.into(),
                name: String::new(),
            }),
            limit_remaining: LIMIT.saturating_sub(*count),
            // The proxy rounds fractions of a second up.
            duration_until_reset: Duration::new(90, 1).try_into().ok(),
        }
    }
}

fn line(asked: &RateLimitRequest) -> String {
    let all: Vec<String> = asked.descriptors.iter().map(pairs).collect();
    format!("{} {} {}", asked.domain, asked.hits_addend, all.join("|"))
}

fn pairs(descriptor: &RateLimitDescriptor) -> String {
    let entries = descriptor.entries.iter();
    let all: Vec<String> = entries
        .map(|entry| format!("{}={}", entry.key, entry.value))
        .collect();
    all.join(",")
}

fn field(key: &str, value: &str) -> HeaderValue {
    HeaderValue {
        key: key.to_owned(),
        value: value.to_owned(),
        raw_value: Vec::new(),
    }
}

#[tonic::async_trait]
impl RateLimitService for Limiter {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let asked = request.into_inner();
        let mut all = asked.descriptors.iter().flat_map(|one| &one.entries);
        let wish = all.find(|entry| entry.key == "do");
        let wish = wish.map_or_else(String::new, |entry| entry.value.clone());
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(asked.clone());
        let statuses = asked.descriptors.iter();
        let statuses = statuses.map(|one| self.count(&asked.domain, one, asked.hits_addend));
        let statuses: Vec<_> = statuses.collect();
        let over = statuses
            .iter()
            .any(|status| status.code == i32::from(Code::OverLimit));
        let mut answer = RateLimitResponse {
            overall_code: match over {
                true => Code::OverLimit.into(),
                false => Code::Ok.into(),
            },
            statuses,
            ..RateLimitResponse::default()
        };
        match &*wish {
            "never" => tokio::time::sleep(Duration::from_secs(600)).await,
            "fail" => return Err(Status::unavailable("not today")),
            "undecided" => answer.overall_code = 0,
            "host" => answer.request_headers_to_add = vec![field("Host", "elsewhere")],
            "split" => answer.response_headers_to_add = vec![field("x-a", "a\r\nx-forged: 1")],
            "words" => {
                answer.request_headers_to_add = vec![field("X-Counted", "yes")];
                answer.response_headers_to_add = vec![field("x-seen", "limiter")];
                answer.raw_body = b"slow down".to_vec();
            }
            _ => {}
        }
        Ok(Response::new(answer))
    }
}
