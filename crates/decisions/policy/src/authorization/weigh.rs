//! From "which rule of each group matches" to a verdict: CUSTOM before DENY before ALLOW, AUDIT beside them, dry-run
//! policies apart. Both evaluators end here, so that they can only differ in what matches.

use super::policy::{Action, Policy};
use super::verdict::{
    AuthorizationOutcome, CustomCheck, Denial, DenialReason, DryRun, DryRunVerdict, Permit,
    RuleRef, Verdict,
};

/// Policies that are asked together: one action, enforced or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PolicyGroup {
    Custom,
    Deny,
    Allow,
    Audit,
    DryCustom,
    DryDeny,
    DryAllow,
    DryAudit,
}

impl PolicyGroup {
    /// In the order of their numbers.
    pub(super) const ALL: [Self; 8] = [
        Self::Custom,
        Self::Deny,
        Self::Allow,
        Self::Audit,
        Self::DryCustom,
        Self::DryDeny,
        Self::DryAllow,
        Self::DryAudit,
    ];

    /// Returns true if a matching rule of this group asks an external provider.
    pub(super) fn asks(self) -> bool {
        matches!(self, Self::Custom | Self::DryCustom)
    }

    pub(super) fn of(policy: &Policy) -> Self {
        match (&policy.action, policy.dry_run) {
            (Action::Custom(_), false) => Self::Custom,
            (Action::Deny, false) => Self::Deny,
            (Action::Allow, false) => Self::Allow,
            (Action::Audit, false) => Self::Audit,
            (Action::Custom(_), true) => Self::DryCustom,
            (Action::Deny, true) => Self::DryDeny,
            (Action::Allow, true) => Self::DryAllow,
            (Action::Audit, true) => Self::DryAudit,
        }
    }
}

/// Which groups have policies, with or without rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Groups {
    present: u8,
    several_providers: bool,
}

impl Groups {
    pub(super) fn of<'a>(policies: impl Iterator<Item = &'a Policy>) -> Self {
        let mut groups = Self::default();
        let mut provider = None;
        for policy in policies {
            groups.present |= 1 << PolicyGroup::of(policy) as u8;
            // Dry-run policies do not affect enforced ones.
            if let (Action::Custom(name), false) = (&policy.action, policy.dry_run) {
                groups.several_providers |= *provider.get_or_insert(name) != name;
            }
        }
        groups
    }

    pub(super) fn has(self, group: PolicyGroup) -> bool {
        self.present & 1 << group as u8 != 0
    }
}

/// The outcome, given the first matching rule of a group on demand.
pub(super) fn weigh(
    groups: &Groups,
    mut first: impl FnMut(PolicyGroup) -> Option<RuleRef>,
) -> AuthorizationOutcome {
    let mut find = |group| match groups.has(group) {
        true => first(group),
        false => None,
    };
    let deny = |rule| Denial {
        reason: DenialReason::DenyRule,
        rule: Some(rule),
    };
    let then = match find(PolicyGroup::Deny) {
        Some(rule) => Err(deny(rule)),
        None if !groups.has(PolicyGroup::Allow) => Ok(Permit::by(None)),
        None => match find(PolicyGroup::Allow) {
            Some(rule) => Ok(Permit::by(Some(rule))),
            None => Err(Denial {
                reason: DenialReason::NotAllowed,
                rule: None,
            }),
        },
    };
    let verdict = match (find(PolicyGroup::Custom), then) {
        (Some(rule), _) if groups.several_providers => Verdict::Denied(Denial {
            reason: DenialReason::SeveralProviders,
            rule: Some(rule),
        }),
        (Some(rule), then) => Verdict::Ask(CustomCheck::new(rule, then)),
        (None, Ok(permit)) => Verdict::Allowed(permit),
        (None, Err(denial)) => Verdict::Denied(denial),
    };
    let audit = find(PolicyGroup::Audit);
    let mut dry = |group, matched_allows: bool| {
        groups.has(group).then(|| {
            let rule = find(group);
            DryRunVerdict {
                allowed: rule.is_some() == matched_allows,
                rule,
            }
        })
    };
    let dry_run = DryRun {
        allow: dry(PolicyGroup::DryAllow, true),
        deny: dry(PolicyGroup::DryDeny, false),
        custom: dry(PolicyGroup::DryCustom, false),
    };
    AuthorizationOutcome {
        verdict,
        audit,
        dry_run,
    }
}
