//! Retry decisions. The state of the failed attempt comes first: could it have had an effect? Then come the policy's
//! conditions and the budget. RFC 9110 section 9.2.2, RFC 9112 section 9.3.1, RFC 9113 section 8.7; reasons are in
//! docs/decisions/0008-resilience.md.

use std::sync::Arc;
use std::time::Duration;

/// Retries of a request when nothing else is said: Istio's default.
pub const DEFAULT_RETRIES: u32 = 2;

/// The first backoff, in milliseconds before jitter: Envoy's default. Each further one doubles it.
pub const BACKOFF_BASE: Duration = Duration::from_millis(25);

/// No backoff is longer than this many times the first: Envoy's default.
pub const BACKOFF_CAP: u32 = 10;

/// Share of the requests in flight to a destination that may be retries, in percent: Envoy's and Istio's default.
const BUDGET_PERCENT: u32 = 20;

/// Retries in flight that a destination with little traffic may always have: Envoy's and Istio's default.
const BUDGET_MIN: u32 = 3;

/// State of an attempt that gave the client nothing yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// No connection could be opened.
    NotConnected,
    /// The connection was found closed before a byte was written to it, or took none.
    NotSent,
    /// Bytes were written, yet the peer had closed its sending side before it received any of them.
    NotReceived,
    /// The peer says that it did nothing with the request: `REFUSED_STREAM`, a stream above GOAWAY's last one, a mesh
    /// sidecar's own refusal.
    Refused,
    /// The request went out, at least in part, and the connection ended without a word.
    Unanswered {
        /// True if the connection had carried other requests before, so that an idle close is the likely reason.
        reused: bool,
    },
    /// An answer that the policy may wish to have again; nothing of it went to the client.
    Answered(u16),
    /// The same of a gRPC call, which ended with this status before it brought anything.
    AnsweredGrpc(u16),
}

impl Attempt {
    /// Returns true if the application provably saw nothing of the request.
    #[must_use]
    pub fn untouched(self) -> bool {
        match self {
            Self::NotConnected | Self::NotSent | Self::NotReceived | Self::Refused => true,
            Self::Unanswered { .. } | Self::Answered(_) | Self::AnsweredGrpc(_) => false,
        }
    }

    /// Returns true if a retry cannot repeat an effect, whatever the configuration says. The attempt was untouched,
    /// or it is idempotent and most likely met an idle close.
    #[must_use]
    pub fn is_harmless(self, idempotent: bool) -> bool {
        self.untouched() || (idempotent && self == Self::Unanswered { reused: true })
    }
}

/// Envoy's names of conditions. Those of gRPC are statuses that a call ended with.
const NAMED: [(&str, Conditions); 12] = [
    ("5xx", Conditions::FIVE_XX),
    ("cancelled", Conditions::grpc(1)),
    ("connect-failure", Conditions::CONNECT_FAILURE),
    ("deadline-exceeded", Conditions::grpc(4)),
    ("gateway-error", Conditions::GATEWAY_ERROR),
    ("internal", Conditions::grpc(13)),
    ("refused-stream", Conditions::REFUSED),
    ("reset", Conditions::RESET),
    ("reset-before-request", Conditions::RESET_BEFORE_REQUEST),
    ("resource-exhausted", Conditions::grpc(8)),
    ("retriable-4xx", Conditions::RETRIABLE_4XX),
    ("unavailable", Conditions::grpc(14)),
];

/// Names that Envoy knows and no policy here obeys.
pub const UNHEEDED_CONDITIONS: [&str; 3] = [
    "envoy-ratelimited",
    "retriable-headers",
    "retriable-status-codes",
];

/// All names of conditions that a policy may list besides status codes, in alphabetical order.
#[must_use]
pub fn retry_conditions() -> Vec<&'static str> {
    let named = NAMED.iter().map(|(name, _)| *name);
    let mut all: Vec<&str> = named.chain(UNHEEDED_CONDITIONS).collect();
    all.sort_unstable();
    all
}

/// Failures after which a policy wishes a retry; a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conditions(u32);

impl Conditions {
    /// `connect-failure`.
    pub const CONNECT_FAILURE: Self = Self(1);
    /// `refused-stream`.
    pub const REFUSED: Self = Self(1 << 1);
    /// `reset-before-request`: closed before a byte was received.
    pub const RESET_BEFORE_REQUEST: Self = Self(1 << 2);
    /// `reset`: ended without an answer, whatever happened to the request.
    pub const RESET: Self = Self(1 << 3);
    /// `5xx`: any of them, and no answer.
    pub const FIVE_XX: Self = Self(1 << 4);
    /// `gateway-error`: 502, 503, 504.
    pub const GATEWAY_ERROR: Self = Self(1 << 5);
    /// `retriable-4xx`: 409.
    pub const RETRIABLE_4XX: Self = Self(1 << 6);
    /// Conditions without configuration: only attempts that cannot have had an effect.
    pub const DEFAULT: Self =
        Self(Self::CONNECT_FAILURE.0 | Self::REFUSED.0 | Self::RESET_BEFORE_REQUEST.0);

    /// By Envoy's name. Names unknown here are none of these.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let known = NAMED.iter().find(|(known, _)| *known == name);
        known.map_or_else(Self::default, |(_, condition)| *condition)
    }

    /// That a gRPC call ended with this status; none for those that no condition names.
    const fn grpc(status: u32) -> Self {
        // The highest status is 16; HTTP's conditions are the bits below.
        if status <= 16 {
            Self(1 << (8 + status))
        } else {
            Self(0)
        }
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if it has any of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Retries of requests as the mesh, a route or the wire says them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetrySettings {
    /// Attempts after the first; 0 turns retries off.
    pub retries: u32,
    /// Envoy's names of conditions, and status codes. None of them: the default's conditions.
    pub on: Vec<Arc<str>>,
    /// Longest wait of one attempt for the response's head.
    pub per_try_timeout: Option<Duration>,
    /// The first backoff.
    pub backoff: Option<Duration>,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            retries: DEFAULT_RETRIES,
            on: Vec::new(),
            per_try_timeout: None,
            backoff: None,
        }
    }
}

/// Retry policy for the requests of one destination: compiled settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts after the first; 0 turns retries off (a stale pooled connection is replaced all the same).
    pub retries: u32,
    /// Conditions of a retry.
    pub on: Conditions,
    /// `retriable-status-codes`.
    pub statuses: Vec<u16>,
    /// Time that one attempt gets for the head of its response. None: as long as the request.
    pub per_try_timeout: Option<Duration>,
    /// The first backoff, before jitter.
    pub backoff: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::from(&RetrySettings::default())
    }
}

impl From<&RetrySettings> for RetryPolicy {
    fn from(settings: &RetrySettings) -> Self {
        let mut policy = Self {
            retries: settings.retries,
            on: Conditions::default(),
            statuses: Vec::new(),
            per_try_timeout: settings.per_try_timeout,
            backoff: settings.backoff.unwrap_or(BACKOFF_BASE),
        };
        if settings.on.is_empty() {
            policy.on = Conditions::DEFAULT;
        }
        for word in &settings.on {
            match word.parse() {
                Ok(status) => policy.statuses.push(status),
                Err(_) => policy.on = policy.on.and(Conditions::named(word)),
            }
        }
        policy
    }
}

impl RetryPolicy {
    /// Returns true if the policy wants another attempt after `made` of them, the last of which ended like this. It
    /// repeats an attempt that may have had an effect only if a condition names it.
    #[must_use]
    pub fn wishes(&self, last: Attempt, made: u32) -> bool {
        if made > self.retries {
            return false;
        }
        let any = Conditions::FIVE_XX;
        match last {
            Attempt::NotConnected => self.on.has(Conditions::CONNECT_FAILURE.and(any)),
            Attempt::Refused => self.on.has(Conditions::REFUSED.and(any)),
            Attempt::NotSent | Attempt::NotReceived => self.on.has(
                Conditions::RESET_BEFORE_REQUEST
                    .and(Conditions::RESET)
                    .and(any),
            ),
            Attempt::Unanswered { .. } => self.on.has(Conditions::RESET.and(any)),
            Attempt::Answered(status) => self.wishes_status(status),
            Attempt::AnsweredGrpc(status) => self.wishes_grpc(status.into()),
        }
    }

    /// Returns true if a response with this status is worth another attempt.
    #[must_use]
    pub fn wishes_status(&self, status: u16) -> bool {
        self.statuses.contains(&status)
            || match status {
                409 => self.on.has(Conditions::RETRIABLE_4XX),
                502..=504 => self
                    .on
                    .has(Conditions::GATEWAY_ERROR.and(Conditions::FIVE_XX)),
                500..=599 => self.on.has(Conditions::FIVE_XX),
                _ => false,
            }
    }

    /// Returns true if a gRPC call that ended with this status, before a message came, is worth another attempt.
    #[must_use]
    pub fn wishes_grpc(&self, status: u32) -> bool {
        self.on.has(Conditions::grpc(status))
    }

    /// Why an answer is worth another attempt, if it is. `code` is the status of a gRPC call that ended before it brought
    /// anything, which says so in its head.
    #[must_use]
    pub fn wished(&self, status: u16, code: impl FnOnce() -> Option<u16>) -> Option<Attempt> {
        if self.wishes_status(status) {
            return Some(Attempt::Answered(status));
        }
        let code = code().filter(|code| self.wishes_grpc((*code).into()))?;
        Some(Attempt::AnsweredGrpc(code))
    }

    /// Returns the pause before attempt `made + 1`: a random time up to the doubled base (full jitter), capped.
    #[must_use]
    pub fn backoff(&self, made: u32, random: u64) -> Duration {
        let doubled = 1u32 << made.saturating_sub(1).min(16);
        let longest = self.backoff * doubled.min(BACKOFF_CAP);
        let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        let drawn = (u128::from(random) * u128::from(nanos)) >> 64;
        Duration::from_nanos(drawn as u64)
    }
}

/// Share of a destination's traffic that may be retries, as `retryBudget` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryBudget {
    /// Share of the requests in flight, in thousandths of a percent.
    pub percent_thousandths: u32,
    /// Retries in flight that are always allowed.
    pub min: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            percent_thousandths: BUDGET_PERCENT * 1_000,
            min: BUDGET_MIN,
        }
    }
}

impl RetryBudget {
    /// Returns true if one more retry may begin beside `retrying` others, with `active` requests in flight (retries
    /// included).
    #[must_use]
    pub fn allows(&self, active: u32, retrying: u32) -> bool {
        let share = u64::from(active) * u64::from(self.percent_thousandths) / 100_000;
        u64::from(retrying) < share.max(u64::from(self.min))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Attempt; 7] = [
        Attempt::NotConnected,
        Attempt::NotSent,
        Attempt::NotReceived,
        Attempt::Refused,
        Attempt::Unanswered { reused: true },
        Attempt::Unanswered { reused: false },
        Attempt::Answered(503),
    ];

    #[test]
    fn only_what_cannot_have_had_an_effect_is_harmless() {
        let safe = ALL.map(|attempt| (attempt.is_harmless(false), attempt.is_harmless(true)));
        assert_eq!(
            safe,
            [
                (true, true),
                (true, true),
                (true, true),
                (true, true),
                (false, true),
                (false, false),
                (false, false)
            ]
        );
    }

    #[test]
    fn the_default_policy_wishes_nothing_that_may_have_had_an_effect() {
        let policy = RetryPolicy::default();
        for attempt in ALL {
            assert_eq!(
                policy.wishes(attempt, 1),
                attempt.untouched(),
                "{attempt:?}"
            );
            assert!(!policy.wishes(attempt, 3), "{attempt:?}: three were made");
        }
    }

    #[test]
    fn conditions_name_what_they_say() {
        let policy = |on| RetryPolicy {
            on,
            ..RetryPolicy::default()
        };
        let table = [
            (
                Conditions::CONNECT_FAILURE,
                [true, false, false, false, false, false, false],
            ),
            (
                Conditions::REFUSED,
                [false, false, false, true, false, false, false],
            ),
            (
                Conditions::RESET_BEFORE_REQUEST,
                [false, true, true, false, false, false, false],
            ),
            (
                Conditions::RESET,
                [false, true, true, false, true, true, false],
            ),
            (
                Conditions::FIVE_XX,
                [true, true, true, true, true, true, true],
            ),
            (
                Conditions::GATEWAY_ERROR,
                [false, false, false, false, false, false, true],
            ),
            (Conditions::RETRIABLE_4XX, [false; 7]),
        ];
        for (on, expected) in table {
            assert_eq!(
                ALL.map(|attempt| policy(on).wishes(attempt, 1)),
                expected,
                "{on:?}"
            );
        }
        assert!(policy(Conditions::RETRIABLE_4XX).wishes_status(409));
        let named = RetryPolicy {
            statuses: vec![429],
            ..RetryPolicy::default()
        };
        assert!(named.wishes_status(429) && !named.wishes_status(503));
    }

    #[test]
    fn policies_are_said_in_envoys_words() {
        let of_words = |words: &str| {
            RetryPolicy::from(&RetrySettings {
                on: words.split_terminator(' ').map(Arc::from).collect(),
                ..RetrySettings::default()
            })
        };
        let policy = of_words("reset 503 unknown-condition gateway-error");
        assert_eq!(policy.statuses, [503]);
        assert_eq!(policy.on, Conditions::RESET.and(Conditions::GATEWAY_ERROR));
        assert_eq!(of_words("").on, Conditions::DEFAULT);
        assert_eq!(of_words("unknown-condition").on, Conditions::default());
        let grpc = of_words("unavailable cancelled");
        let wished = (0..40).filter(|status| grpc.wishes_grpc(*status));
        assert_eq!(wished.collect::<Vec<u32>>(), [1, 14]);
        assert!(!ALL.iter().any(|attempt| grpc.wishes(*attempt, 1)));
        let all = of_words("cancelled deadline-exceeded resource-exhausted internal unavailable");
        let wished = (0..40).filter(|status| all.wishes_grpc(*status));
        assert_eq!(wished.collect::<Vec<u32>>(), [1, 4, 8, 13, 14]);
    }

    #[test]
    fn every_name_of_a_condition_is_obeyed_or_not_and_none_is_named_twice() {
        let mut names = retry_conditions();
        for name in &names {
            let obeyed = Conditions::named(name) != Conditions::default();
            assert_ne!(obeyed, UNHEEDED_CONDITIONS.contains(name), "{name}");
        }
        names.dedup();
        assert_eq!(names.len(), 15);
    }

    #[test]
    fn a_budget_is_a_share_with_a_floor() {
        let budget = RetryBudget::default();
        let table = [
            ((0, 0), true),
            ((1, 2), true),
            ((1, 3), false),
            ((15, 3), false),
            ((20, 3), true),
            ((20, 4), false),
            ((1000, 199), true),
            ((1000, 200), false),
            ((u32::MAX, u32::MAX), false),
        ];
        for ((active, retrying), expected) in table {
            assert_eq!(
                budget.allows(active, retrying),
                expected,
                "{active} {retrying}"
            );
        }
        let fractions = [
            (12_500, (8, 0), true),
            (12_500, (8, 1), false),
            (12_500, (15, 1), false),
            (12_500, (16, 1), true),
            (500, (199, 0), false),
            (500, (200, 0), true),
            (1, (u32::MAX, 42_949), false),
        ];
        for (percent_thousandths, (active, retrying), expected) in fractions {
            let budget = RetryBudget {
                percent_thousandths,
                min: 0,
            };
            let allowed = budget.allows(active, retrying);
            assert_eq!(allowed, expected, "{budget:?} {active} {retrying}");
        }
    }

    #[test]
    fn backoff_doubles_up_to_its_cap_and_is_full_of_jitter() {
        let policy = RetryPolicy::default();
        let longest = |made| policy.backoff(made, u64::MAX).as_millis();
        assert_eq!(
            [1, 2, 3, 4, 5, 60].map(longest),
            [24, 49, 99, 199, 249, 249]
        );
        assert_eq!(policy.backoff(5, 0), Duration::ZERO);
    }
}
