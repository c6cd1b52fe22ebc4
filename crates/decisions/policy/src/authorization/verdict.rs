//! The result of an evaluation. Only this module makes a `Permit`, from a verdict that allows; forwarding code requires
//! one. The rule that decided is a small number; the engine turns it into names when a person asks.

/// A rule by its index: the policy in the given list, and the rule in the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleRef {
    /// Index of the policy.
    pub policy: u32,
    /// Index of the rule within the policy.
    pub rule: u32,
}

/// The complete result of the evaluation of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizationOutcome {
    /// The decision about the request.
    pub verdict: Verdict,
    /// The AUDIT rule that marks it.
    pub audit: Option<RuleRef>,
    /// The decisions that dry-run policies would have made.
    pub dry_run: DryRun,
}

/// The decision whether a request may pass.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It may.
    Allowed(Permit),
    /// It may not.
    Denied(Denial),
    /// An external provider must be asked first.
    Ask(CustomCheck),
}

/// Leave to forward one request or connection, as far as authorization goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    rule: Option<RuleRef>,
}

impl Permit {
    pub(super) fn by(rule: Option<RuleRef>) -> Self {
        Self { rule }
    }

    /// The ALLOW rule that let it pass; none where no ALLOW policy holds.
    pub fn rule(&self) -> Option<RuleRef> {
        self.rule
    }
}

/// Why a request may not pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DenialReason {
    /// A DENY rule matches.
    DenyRule,
    /// There are ALLOW policies, and none of their rules matches.
    NotAllowed,
    /// The provider of a CUSTOM policy said no, or could not be asked.
    Provider,
    /// A CUSTOM rule matches, and the workload's CUSTOM policies name several providers (Istio refuses this too).
    SeveralProviders,
}

impl DenialReason {
    /// A short name for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DenyRule => "denied_by_rule",
            Self::NotAllowed => "not_allowed",
            Self::Provider => "denied_by_provider",
            Self::SeveralProviders => "several_providers",
        }
    }
}

/// A refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial {
    /// Why.
    pub reason: DenialReason,
    /// The rule that decided; none when it is that no rule allows.
    pub rule: Option<RuleRef>,
}

/// A CUSTOM rule matches: its policy's provider must be asked before the request may go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CustomCheck {
    rule: RuleRef,
    then: Result<Permit, Denial>,
}

impl CustomCheck {
    pub(super) fn new(rule: RuleRef, then: Result<Permit, Denial>) -> Self {
        Self { rule, then }
    }

    /// The CUSTOM rule; its policy names the provider.
    pub fn rule(&self) -> RuleRef {
        self.rule
    }

    /// The decision after the provider's approval: that of DENY and ALLOW policies.
    pub fn granted(self) -> Result<Permit, Denial> {
        self.then
    }

    /// The provider said no, or could not be asked and fails closed.
    pub fn refused(self) -> Denial {
        Denial {
            reason: DenialReason::Provider,
            rule: Some(self.rule),
        }
    }
}

/// The decisions that dry-run policies would have made, by action; `None` for an action without dry-run policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DryRun {
    /// By those with ALLOW.
    pub allow: Option<DryRunVerdict>,
    /// By those with DENY.
    pub deny: Option<DryRunVerdict>,
    /// By those with CUSTOM: a denial stands for asking the provider.
    pub custom: Option<DryRunVerdict>,
}

/// The decision of the dry-run policies of one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DryRunVerdict {
    /// True if they would let the request pass.
    pub allowed: bool,
    /// The rule that matched.
    pub rule: Option<RuleRef>,
}
