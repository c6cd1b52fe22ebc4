//! What an evaluation yields. A `Permit` can only be made here, from a verdict that allows, and code that forwards asks for
//! one; which rule decided is a small number that the engine turns into names when a person asks.

/// A rule by its place: the policy in the list that was given, the rule in the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleRef {
    /// Which policy.
    pub policy: u32,
    /// Which of its rules.
    pub rule: u32,
}

/// Everything that was found out about one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it may pass.
    pub verdict: Verdict,
    /// The AUDIT rule that marks it.
    pub audit: Option<RuleRef>,
    /// What dry-run policies would have done.
    pub dry_run: DryRun,
}

/// Whether a request may pass.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It may.
    Allowed(Permit),
    /// It may not.
    Denied(Denial),
    /// Somebody must be asked first.
    Ask(Ask),
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
pub enum Reason {
    /// A DENY rule matches.
    DenyRule,
    /// There are ALLOW policies, and none of their rules matches.
    NotAllowed,
    /// The provider of a CUSTOM policy said no, or could not be asked.
    Provider,
    /// A CUSTOM rule matches, and the workload's CUSTOM policies name several providers (Istio refuses this too).
    SeveralProviders,
}

impl Reason {
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
    pub reason: Reason,
    /// The rule that decided; none when it is that no rule allows.
    pub rule: Option<RuleRef>,
}

/// A CUSTOM rule matches: its policy's provider must be asked before the request may go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    rule: RuleRef,
    then: Result<Permit, Denial>,
}

impl Ask {
    pub(super) fn new(rule: RuleRef, then: Result<Permit, Denial>) -> Self {
        Self { rule, then }
    }

    /// The CUSTOM rule; its policy names the provider.
    pub fn rule(&self) -> RuleRef {
        self.rule
    }

    /// The provider said yes: what DENY and ALLOW policies say.
    pub fn granted(self) -> Result<Permit, Denial> {
        self.then
    }

    /// The provider said no, or could not be asked and fails closed.
    pub fn refused(self) -> Denial {
        Denial {
            reason: Reason::Provider,
            rule: Some(self.rule),
        }
    }
}

/// What dry-run policies would have done, by action; none where there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DryRun {
    /// By those with ALLOW.
    pub allow: Option<DryRunVerdict>,
    /// By those with DENY.
    pub deny: Option<DryRunVerdict>,
    /// By those with CUSTOM: a denial stands for asking the provider.
    pub custom: Option<DryRunVerdict>,
}

/// What the dry-run policies of one action say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DryRunVerdict {
    /// Whether they would let it pass.
    pub allowed: bool,
    /// The rule that matched.
    pub rule: Option<RuleRef>,
}
