//! Retries of outbound requests: the decision, the budget, and the choice of another endpoint. The HTTP engines ask after each attempt.

use std::rc::Rc;
use std::time::Duration;

use voile_traffic::{Attempt, Resource, RetryPolicy};

use super::OutboundTicket;
use crate::plan::SharedPart;
use crate::worker::count;
use crate::worker::handlers::outbound_http::OutboundRole;
use crate::worker::upstream::balance::EndpointPreference;
use crate::worker::upstream::upstream_outcome;

/// Destination of a retry.
pub(in crate::worker) struct RetryTarget {
    pub(in crate::worker) key: u32,
    pub(in crate::worker) to_sidecar: bool,
    pub(in crate::worker) wait: Duration,
}

impl OutboundRole {
    /// Decides if a request goes to another endpoint after `made` attempts, and how; `last` is the last attempt's end.
    pub(in crate::worker) fn turn(
        &self,
        ticket: &mut OutboundTicket,
        retry: &RetryPolicy,
        (last, made): (Attempt, u32),
    ) -> Option<RetryTarget> {
        let service = Rc::clone(ticket.service.as_ref()?);
        if !retry.wishes(last, made) {
            return None;
        }
        // The retry before this one is over; it does not count against its successor.
        if let Some(kept) = &mut ticket.kept {
            (kept.retrying, kept.retry) = (None, None);
        }
        let account = &service.account;
        let (held, retrying) = match &service.plan.traffic.breaker {
            Some(SharedPart(gate)) if gate.limits.retries.is_some() => {
                match gate.take(Resource::Retries) {
                    None => return self.over_budget(),
                    held => (held, account.retry(None)),
                }
            }
            _ => (None, account.retry(Some(&service.plan.retry_budget))),
        };
        let Some(retrying) = retrying else {
            return self.over_budget();
        };
        let kept = ticket.kept.get_or_insert_default();
        kept.retry = held;
        let failed = ticket.endpoint.as_ref();
        kept.tried.extend(failed.map(|to| to.endpoint.key));
        let wish = EndpointPreference {
            key: kept.key,
            tried: &kept.tried,
            host: failed.and_then(|to| to.endpoint.plan.host_on_demand()),
            ..EndpointPreference::default()
        };
        let (to, untried) = service.choose_other(&self.worker, wish)?;
        let key = self.pool_key(&to.endpoint, &service.plan.traffic);
        let to_sidecar = to.endpoint.plan.is_sidecar();
        if let Some(failed) = ticket.endpoint.replace(to) {
            self.ended(&service, &failed, upstream_outcome::of_attempt(last), false);
            kept.reported = made;
        }
        kept.retrying = Some(retrying);
        count(&self.worker.counters.retries);
        // An endpoint that was not tried yet needs no backoff.
        let wait = match untried {
            true => Duration::ZERO,
            false => retry.backoff(made, self.worker.random()),
        };
        Some(RetryTarget {
            key,
            to_sidecar,
            wait,
        })
    }
}
