//! Limits that Envoy's rate limit service counts for several proxies together: descriptors of a request, checks of the answer,
//! and the treatment of requests while there is none.
//!
//! ```text
//! limits of our own let it pass ─► descriptors ─► callee ─► OK ─► goes on, with fields │ OVER_LIMIT ─► 429
//!                                                    └ no word ─► passes │ 500, as the RateLimit says
//! ```

use std::borrow::Cow;
use std::rc::Rc;
use std::time::Duration;

use voile_model::mesh::rate_limit::DescriptorValue;
use voile_proto::rate_limit as wire;
use voile_traffic::Quota;
use voile_traffic::route::RouteInput;
use wire::rate_limit_response::rate_limit::Unit;
use wire::rate_limit_response::{Code, DescriptorStatus};

use super::WorkerRateLimits;
use super::limit::{EXHAUSTED, RateLimitHeaders, TooMany};
use crate::http::{ExternalReply, FieldPlacement, HeadAmendment, UpstreamHttp};
use crate::rate_limits::{RateLimitRule, Resource, Sender};
use crate::worker::Worker;
use crate::worker::policy::authorization::GrantedRequest;
use crate::worker::policy::authorizer::{lawful_name, lawful_value};
use crate::worker::policy::denial::Denied;

/// Envoy's method.
const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Most bytes of fields that one answer may add to a request and to its answer: the rest of the head that servers usually
/// accept.
const MAX_ADDED_BYTES: usize = 32 * 1024;

/// Most bytes of a descriptor's value: a header may be as long as a head.
const MAX_VALUE_BYTES: usize = 1024;

/// Response code details, in Envoy's terms.
const LIMITED: &str = "request_rate_limited";
const UNANSWERED: &str = "rate_limiter_error";

/// A request that waits for the rate limit service.
pub(crate) struct GlobalLimitCheck {
    limiting: Rc<WorkerRateLimits>,
    /// Numbers of the resource and its rule, and their question; in order.
    questions: Vec<(usize, usize, wire::RateLimitRequest)>,
    said: RateLimitHeaders,
    /// Fields added to the request and its response.
    added: AddedFields,
    refused: Option<Box<TooMany>>,
}

/// Name and value of a field that may be written.
type Field = (Box<str>, Box<[u8]>);

/// Fields that answers add.
#[derive(Default)]
struct AddedFields {
    request: Vec<Field>,
    answer: Vec<Field>,
}

/// Question of a rule about a request that passed the rule's local limits; `None` if the rule describes
/// nothing.
pub(super) fn question(
    (resource, rule): (&Resource, &RateLimitRule),
    request: &impl RouteInput,
    sender: Sender<'_>,
) -> Option<wire::RateLimitRequest> {
    let global = resource.global.as_ref()?;
    if rule.descriptors.is_empty() {
        return None;
    }
    let value = |value: &DescriptorValue| match value {
        DescriptorValue::Text(text) => text.to_string(),
        DescriptorValue::Header(name) => text(&request.header(name).unwrap_or_default()),
        DescriptorValue::Identity => sender.identity.unwrap_or_default().to_owned(),
        DescriptorValue::Address => sender.address.to_canonical().to_string(),
        DescriptorValue::Method => text(request.method()),
        DescriptorValue::Path => text(request.path()),
    };
    let descriptors = rule.descriptors.iter().map(|one| {
        let entries = one.entries.iter();
        let entries = entries.map(|entry| wire::rate_limit_descriptor::Entry {
            key: entry.key.to_string(),
            value: value(&entry.value),
        });
        wire::RateLimitDescriptor {
            entries: entries.collect(),
        }
    });
    Some(wire::RateLimitRequest {
        domain: global.domain.to_string(),
        descriptors: descriptors.collect(),
        hits_addend: rule.hits,
    })
}

/// Value of a descriptor: text of limited length.
fn text(value: &[u8]) -> String {
    let value = &value[..value.len().min(MAX_VALUE_BYTES)];
    match String::from_utf8_lossy(value) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    }
}

impl GlobalLimitCheck {
    pub(super) fn new(
        limiting: &Rc<WorkerRateLimits>,
        questions: Vec<(usize, usize, wire::RateLimitRequest)>,
        said: RateLimitHeaders,
    ) -> Self {
        Self {
            limiting: Rc::clone(limiting),
            questions,
            said,
            added: AddedFields::default(),
            refused: None,
        }
    }

    /// Puts the questions, up to the first denial.
    pub(crate) async fn ask(&mut self, worker: &Worker) {
        let limiting = Rc::clone(&self.limiting);
        for (number, rule, question) in std::mem::take(&mut self.questions) {
            let resource = &limiting.shared.resources[number];
            let rule = &resource.rules[rule];
            let answered = limiting.ask(worker, resource, &question).await;
            if let Err(denied) = self.hear((resource, rule), answered) {
                self.refused = Some(Box::new(TooMany(denied)));
                return;
            }
        }
    }

    /// Applies the answer to one question.
    fn hear(
        &mut self,
        (resource, rule): (&Resource, &RateLimitRule),
        answered: Result<wire::RateLimitResponse, Box<str>>,
    ) -> Result<(), Denied> {
        let read = answered.and_then(|answer| LimitResponse::of(&answer));
        let heard = match read {
            Ok(heard) => heard,
            Err(why) => {
                rule.count_unanswered();
                tracing::debug!(rate_limit = %resource.name, rule = %rule.name, %why, "not counted");
                let open = resource.global.as_ref().is_some_and(|it| it.fail_open);
                return match open {
                    true => Ok(()),
                    false => Err(Denied::new(
                        500,
                        UNANSWERED,
                        "the rate limit service did not answer",
                    )),
                };
            }
        };
        for (number, quota) in heard.quotas.iter().enumerate() {
            let number = rule.limits.len() + number;
            let name = match number {
                0 => rule.name.to_string(),
                number => format!("{}-{}", rule.name, number + 1),
            };
            self.said.policy(&quota.policy(&name));
            self.said.counted(&name, quota);
        }
        self.added.answer.extend(heard.answer);
        if !heard.over {
            self.added.request.extend(heard.request);
            return Ok(());
        }
        rule.count_refused();
        let mut told = ExternalReply {
            lines: self.said.lines(heard.retry_after),
            body: (!heard.body.is_empty()).then_some(heard.body),
            grpc_status: Some(EXHAUSTED),
            ..ExternalReply::default()
        };
        for (name, value) in std::mem::take(&mut self.added.answer) {
            // The proxy writes its own fields about limits once only.
            if !told.says(&name) {
                for part in [name.as_bytes(), b": ", &value, b"\r\n"] {
                    told.lines.extend_from_slice(part);
                }
            }
        }
        Err(Denied {
            told: Some(Box::new(told)),
            ..Denied::new(429, LIMITED, "rate limited")
        })
    }

    /// Result of the questions.
    pub(crate) fn settled(self, granted: &mut GrantedRequest) -> Result<(), Box<TooMany>> {
        if let Some(mut refused) = self.refused {
            refused.keep_amends(granted);
            return Err(refused);
        }
        for (name, value) in self.added.request {
            granted.changes.add(&name, &value);
            granted.changes.leave_out(String::from(name));
        }
        for (name, value) in self.added.answer {
            granted.changes.amend(HeadAmendment {
                name,
                value,
                manner: FieldPlacement::Append,
            });
        }
        self.said.tell(granted);
        Ok(())
    }
}

impl WorkerRateLimits {
    async fn ask(
        &self,
        worker: &Worker,
        resource: &Resource,
        question: &wire::RateLimitRequest,
    ) -> Result<wire::RateLimitResponse, Box<str>> {
        let known = self.callees.iter();
        let mut known = known.filter(|(key, _)| Some(key) == resource.service());
        let (Some((_, callee)), Some(global)) = (known.next(), &resource.global) else {
            return Err("the rate limit service does not exist".into());
        };
        let asked = callee.ask(
            worker,
            (global.timeout, UpstreamHttp::Http2),
            async |dialer, route| callee.call((dialer, route), METHOD, question).await,
        );
        asked.await
    }
}

/// An answer, as far as it is believed.
struct LimitResponse {
    over: bool,
    /// Quotas that the answer reports, for clients.
    quotas: Vec<Quota>,
    retry_after: u64,
    request: Vec<Field>,
    answer: Vec<Field>,
    body: Vec<u8>,
}

impl LimitResponse {
    /// Reads an answer. An answer without a decision, or with forbidden fields, counts as none.
    fn of(said: &wire::RateLimitResponse) -> Result<Self, Box<str>> {
        let over = match said.overall_code() {
            Code::Ok => false,
            Code::OverLimit => true,
            Code::Unknown => {
                return Err("the response has no decision (overall_code UNKNOWN)".into());
            }
        };
        let fields = |fields: &[wire::HeaderValue]| -> Result<Vec<_>, Box<str>> {
            fields.iter().map(field).collect()
        };
        let (request, answer) = (
            fields(&said.request_headers_to_add)?,
            fields(&said.response_headers_to_add)?,
        );
        let both = request.iter().chain(&answer);
        let bytes: usize = both.map(|(name, value)| name.len() + value.len()).sum();
        if bytes > MAX_ADDED_BYTES {
            return Err("the response sets too many bytes of headers".into());
        }
        let exceeded = said.statuses.iter();
        let exceeded = exceeded.filter(|status| status.code() == Code::OverLimit);
        let retry_after = exceeded.filter_map(quota).map(|quota| quota.retry_after());
        Ok(Self {
            over,
            retry_after: retry_after.max().unwrap_or(1),
            quotas: said.statuses.iter().filter_map(quota).collect(),
            request,
            answer,
            body: said.raw_body.clone(),
        })
    }
}

fn field(said: &wire::HeaderValue) -> Result<Field, Box<str>> {
    let value = match said.raw_value.is_empty() {
        true => said.value.as_bytes(),
        false => &said.raw_value,
    };
    let lawful = lawful_name(&said.key).zip(lawful_value(value));
    lawful.ok_or_else(|| {
        let name: String = said.key.chars().take(64).collect();
        format!(
            "the response sets `{}`, which is not allowed",
            name.escape_default()
        )
        .into()
    })
}

/// Quota of a descriptor's status; some statuses have none.
fn quota(status: &DescriptorStatus) -> Option<Quota> {
    const HOUR: u64 = 3_600;
    let limit = status.current_limit.as_ref()?;
    let window = match limit.unit() {
        Unit::Unknown => return None,
        Unit::Second => 1,
        Unit::Minute => 60,
        Unit::Hour => HOUR,
        Unit::Day => 24 * HOUR,
        Unit::Week => 7 * 24 * HOUR,
        Unit::Month => 30 * 24 * HOUR,
        Unit::Year => 365 * 24 * HOUR,
    };
    let window = Duration::from_secs(window);
    let reset = status.duration_until_reset;
    Some(Quota {
        requests: limit.requests_per_unit,
        window,
        remaining: status.limit_remaining,
        reset_in: reset.map_or(window, |reset| reset.try_into().unwrap_or_default()),
    })
}
