//! Decision of the rate limits on a request that has leave.

use std::borrow::Cow;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;

use voile_traffic::route::{RouteInput, is_authority};
use voile_traffic::{LimitVerdict, Quota};

use super::{GlobalLimitCheck, WorkerRateLimits, global};
use crate::authorization::forwarded_for;
use crate::clock;
use crate::http::{ExternalReply, FieldPlacement, HeadAmendment, HttpHead, ResponseFlag};
use crate::plan::LimiterPlan;
use crate::rate_limits::{RateLimits, Sender};
use crate::worker::Worker;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::policy::authorization::GrantedRequest;
use crate::worker::policy::denial::Denied;
use crate::worker::policy::external_call::Callee;
use crate::worker::policy::request_changes::PlanChanges;
use crate::worker::routing::routes::{RequestAttributes, joined};

/// Response field that states the limits (policy).
const POLICY: &str = "ratelimit-policy";
/// Response field that states the remaining quota.
const LEFT: &str = "ratelimit";

/// The status of gRPC's that says so: RESOURCE_EXHAUSTED.
pub(super) const EXHAUSTED: u16 = 8;

/// Details of a request whose path a later reader may understand differently.
const UNREADABLE_PATH: &str = "path_normalization_failed";

impl WorkerRateLimits {
    /// The same as before, if it is.
    pub(crate) fn follow(
        worker: &Worker,
        before: Option<&Rc<Self>>,
        shared: Option<&Arc<RateLimits>>,
        limiters: &[LimiterPlan],
    ) -> Option<Rc<Self>> {
        let shared = shared?;
        let same = before.filter(|before| Arc::ptr_eq(&before.shared, shared));
        let plans = limiters.iter().map(|limiter| &limiter.service);
        if let Some(same) = same
            && same.callees.iter().map(|(_, one)| one.plan()).eq(plans)
        {
            return Some(Rc::clone(same));
        }
        let callee = |limiter: &LimiterPlan| {
            let known = before.into_iter().flat_map(|before| &before.callees);
            let mut known = known.filter(|(key, _)| *key == limiter.key);
            let callee = match known.next() {
                Some((_, callee)) if *callee.plan() == limiter.service => Rc::clone(callee),
                same => {
                    let same = same.map(|(_, callee)| &**callee);
                    Rc::new(Callee::follow(worker, same, &limiter.service))
                }
            };
            (limiter.key.clone(), callee)
        };
        let tables = || shared.resources.iter().map(|one| one.table.clone());
        Some(Rc::new(Self {
            shared: Arc::clone(shared),
            tables: same.map_or_else(|| tables().collect(), |same| Rc::clone(&same.tables)),
            callees: limiters.iter().map(callee).collect(),
        }))
    }

    /// Applies the limits to a request: it goes on, with fields for its client; it is denied; or a rate limit
    /// service must be asked.
    fn judge(
        self: &Rc<Self>,
        head: &HttpHead<'_>,
        granted: &mut GrantedRequest,
        (caller, host): (&InboundCaller, Option<&str>),
    ) -> Result<Option<Box<GlobalLimitCheck>>, Denied> {
        let path = granted.path.as_deref();
        let path = path.unwrap_or_else(|| head.path_and_query());
        let normalized = self.shared.normalization.normalize(path.as_bytes());
        let unreadable = |_| Denied::new(400, UNREADABLE_PATH, UNREADABLE_PATH);
        let normalized = normalized.map_err(unreadable)?;
        let path = std::str::from_utf8(&normalized).unwrap_or(path);
        let asked = GoingOn {
            asked: RequestAttributes::of_path(head, path),
            head,
            changes: &granted.changes,
        };
        let peer = caller.client().ip();
        let sender = Sender {
            identity: (!caller.principal.is_empty()).then_some(&*caller.principal),
            address: match self.shared.trusted_proxies {
                0 => peer,
                trusted => forwarded_for(head, trusted).unwrap_or(peer),
            },
        };
        let now = clock::now();
        let mut said = RateLimitHeaders::default();
        let mut questions = Vec::new();
        let resources = self.shared.resources.iter().zip(&*self.tables);
        for (place, (resource, table)) in resources.enumerate() {
            if !resource.counts(host) {
                continue;
            }
            let Some(number) = table.choose(&asked) else {
                continue;
            };
            let rule = &resource.rules[number];
            let question = global::question((resource, rule), &asked, sender);
            questions.extend(question.map(|question| (place, number, question)));
            if rule.limits.is_empty() {
                continue;
            }
            said.policy(&rule.policy);
            let taken = self
                .shared
                .take(rule, &asked, sender, now, |name, verdict| {
                    said.left(name, verdict);
                });
            if !taken {
                return Err(said.refusal(&resource.name, &rule.name));
            }
        }
        if !questions.is_empty() {
            return Ok(Some(Box::new(GlobalLimitCheck::new(self, questions, said))));
        }
        said.tell(granted);
        Ok(None)
    }
}

/// Request in its forwarded form: values of an external service or a token replace the client's.
struct GoingOn<'a> {
    asked: RequestAttributes<'a>,
    head: &'a HttpHead<'a>,
    changes: &'a PlanChanges,
}

impl RouteInput for GoingOn<'_> {
    fn method(&self) -> &[u8] {
        self.asked.method()
    }

    fn scheme(&self) -> &[u8] {
        self.asked.scheme()
    }

    fn authority(&self) -> &[u8] {
        self.asked.authority()
    }

    fn path(&self) -> &[u8] {
        self.asked.path()
    }

    fn query(&self) -> &[u8] {
        self.asked.query()
    }

    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        if self.changes.is_empty() || is_authority(name) {
            return self.asked.header(name);
        }
        let seen = self.changes.seen(self.head);
        let seen =
            seen.filter_map(|(known, value)| known.eq_ignore_ascii_case(name).then_some(value));
        joined(name, seen)
    }
}

/// Fields for the client, each one line for all limits.
#[derive(Default)]
pub(super) struct RateLimitHeaders {
    policy: String,
    left: String,
    /// Retry-After of the last limit.
    retry_after: u64,
}

impl RateLimitHeaders {
    pub(super) fn policy(&mut self, policy: &str) {
        apart(&mut self.policy);
        self.policy.push_str(policy);
    }

    fn left(&mut self, name: &str, verdict: LimitVerdict) {
        apart(&mut self.left);
        self.left.push_str(&verdict.field(name));
        self.retry_after = verdict.retry_after();
    }

    /// Adds the quota of one limit that the rate limit service reported.
    pub(super) fn counted(&mut self, name: &str, quota: &Quota) {
        apart(&mut self.left);
        self.left.push_str(&quota.field(name));
    }

    pub(super) fn tell(self, granted: &mut GrantedRequest) {
        if self.left.is_empty() {
            return;
        }
        for (name, value) in [(POLICY, self.policy), (LEFT, self.left)] {
            granted.changes.amend(HeadAmendment {
                name: name.into(),
                value: value.into_bytes().into(),
                manner: FieldPlacement::Append,
            });
        }
    }

    /// Field lines of an answer to a client over the limit.
    pub(super) fn lines(&self, retry_after: u64) -> Vec<u8> {
        let mut lines = String::new();
        // Writing into a String cannot fail.
        if !self.left.is_empty() {
            let (policy, left) = (&self.policy, &self.left);
            let _ = write!(lines, "{POLICY}: {policy}\r\n{LEFT}: {left}\r\n");
        }
        let _ = write!(lines, "retry-after: {retry_after}\r\n");
        lines.into_bytes()
    }

    fn refusal(self, resource: &str, rule: &str) -> Denied {
        let details = format!("local_rate_limited[{resource}/{}]", rule.replace(' ', "_"));
        let told = ExternalReply {
            lines: self.lines(self.retry_after),
            grpc_status: Some(EXHAUSTED),
            ..ExternalReply::default()
        };
        Denied {
            told: Some(Box::new(told)),
            ..Denied::new(429, details, "rate limited")
        }
    }
}

fn apart(list: &mut String) {
    if !list.is_empty() {
        list.push_str(", ");
    }
}

/// Denial of a request over the limit, with earlier amendments.
pub(crate) struct TooMany(pub(in crate::worker) Denied);

impl TooMany {
    /// Keeps the external service's amendments of the response, for example the cookie of a session.
    pub(super) fn keep_amends(&mut self, granted: &GrantedRequest) {
        let told = self.0.told.get_or_insert_default();
        told.amends = granted.changes.amends().to_vec();
    }
}

/// Decision of the rate limits on a request that has leave.
pub(in crate::worker) enum LimitOutcome {
    /// It may go on.
    Free,
    /// A rate limit service must be asked first.
    Ask(Box<GlobalLimitCheck>),
    /// It comes too often.
    Refused(Box<TooMany>),
}

/// Response flag of a denial, in Envoy's terms.
pub(in crate::worker) fn flag(denied: &Denied) -> ResponseFlag {
    match denied.status {
        429 => ResponseFlag::RateLimited,
        500 => ResponseFlag::RateLimitService,
        _ => ResponseFlag::DownstreamProtocolError,
    }
}

/// Applies the rate limits to a request that has leave; does nothing without limits. At a waypoint, `host` is the called service.
pub(in crate::worker) fn limited(
    worker: &Worker,
    head: &HttpHead<'_>,
    granted: &mut GrantedRequest,
    (caller, host): (&InboundCaller, Option<&str>),
) -> LimitOutcome {
    let limiting = worker.limiting.borrow();
    let Some(limiting) = limiting.as_ref() else {
        return LimitOutcome::Free;
    };
    match limiting.judge(head, granted, (caller, host)) {
        Ok(None) => LimitOutcome::Free,
        Ok(Some(counting)) => LimitOutcome::Ask(counting),
        Err(denied) => {
            let mut refused = TooMany(denied);
            refused.keep_amends(granted);
            LimitOutcome::Refused(Box::new(refused))
        }
    }
}
