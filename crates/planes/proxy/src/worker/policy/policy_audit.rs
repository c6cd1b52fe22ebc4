//! Audit and dry-run results of policies, which decide nothing. AUDIT marks a request; dry run tells the decision that a
//! policy would have made. The worker counts all of them and writes them to the access log. It also logs a dry-run
//! denial now and then.

use std::time::{Duration, Instant};

use voile_policy::authorization::{AuthorizationOutcome, DryRunVerdict, RuleRef};
use voile_telemetry::access_log::{DryRunEntry, PolicyMarks};

use crate::authorization::Authorization;
use crate::worker::handlers::inbound_caller::InboundCaller;
use crate::worker::policy::audit_lines::Lines;
use crate::worker::{Worker, count};

/// Time between two lines of one worker about what dry run would deny.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// Audit and dry-run results for the access log. Made only if one is written.
#[derive(Debug, Clone, Default)]
pub(crate) struct AccessRecord {
    audited: bool,
    allow: Option<DryRunResult>,
    deny: Option<DryRunResult>,
}

/// Decision that the dry-run policies of one action would have made.
#[derive(Debug, Clone)]
struct DryRunResult {
    allowed: bool,
    rule: String,
}

impl DryRunResult {
    fn of(policies: &Authorization, said: DryRunVerdict) -> Self {
        Self {
            allowed: said.allowed,
            rule: name(policies, said.rule),
        }
    }

    fn marks(&self) -> DryRunEntry<'_> {
        DryRunEntry {
            allowed: self.allowed,
            rule: &self.rule,
        }
    }
}

impl AccessRecord {
    /// As an access log takes it.
    pub(crate) fn marks(&self) -> PolicyMarks<'_> {
        PolicyMarks {
            audited: self.audited,
            allow: self.allow.as_ref().map(DryRunResult::marks),
            deny: self.deny.as_ref().map(DryRunResult::marks),
        }
    }

    /// Results to log; `None` if the policies only decided.
    pub(in crate::worker) fn of(
        policies: &Authorization,
        outcome: &AuthorizationOutcome,
    ) -> Option<Self> {
        let dry = outcome.dry_run;
        if outcome.audit.is_none() && dry.allow.is_none() && dry.deny.is_none() {
            return None;
        }
        let rehearsal = |said: DryRunVerdict| DryRunResult::of(policies, said);
        Some(Self {
            audited: outcome.audit.is_some(),
            allow: dry.allow.map(rehearsal),
            deny: dry.deny.map(rehearsal),
        })
    }
}

/// Name of a rule, for people; empty without a rule.
fn name(policies: &Authorization, rule: Option<RuleRef>) -> String {
    let named = rule.and_then(|rule| policies.named(rule));
    named.map_or_else(String::new, |rule| rule.to_string())
}

/// Counts audit and dry-run results, and logs a dry-run denial now and then.
pub(in crate::worker) fn count_marks(
    worker: &Worker,
    policies: &Authorization,
    caller: &InboundCaller,
    outcome: &AuthorizationOutcome,
) {
    let counters = &worker.counters.authorization;
    if outcome.audit.is_some() {
        count(&counters.audited);
    }
    let lines = &worker.rehearsals;
    if let Some(said) = outcome.dry_run.custom.filter(|dry| !dry.allowed) {
        count(&counters.would_ask);
        tell(lines, policies, caller, said, "asked about");
    }
    for dry in [outcome.dry_run.allow, outcome.dry_run.deny] {
        match dry {
            None => {}
            Some(DryRunVerdict { allowed: true, .. }) => count(&counters.would_allow),
            Some(said) => {
                count(&counters.would_deny);
                tell(lines, policies, caller, said, "denied");
            }
        }
    }
}

fn tell(
    lines: &Lines,
    policies: &Authorization,
    caller: &InboundCaller,
    said: DryRunVerdict,
    what: &str,
) {
    let now = Instant::now();
    let recent = |last| now.saturating_duration_since(last) < BETWEEN_LINES;
    if lines.last.get().is_some_and(recent) {
        lines.untold.set(lines.untold.get().saturating_add(1));
        return;
    }
    lines.last.set(Some(now));
    let (others, rule) = (lines.untold.take(), name(policies, said.rule));
    let matched = if rule.is_empty() { "none" } else { &rule };
    tracing::info!(remote = %caller.client(), principal = %caller.principal, matched, others, "dry run: would be {what}");
}
