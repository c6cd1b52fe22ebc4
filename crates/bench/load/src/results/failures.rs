//! Failures of requests: their kinds, their causes in words, and the sign that a server answers at all.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RequestOutcome {
    /// Answered as expected.
    Ok,
    /// No connection could be made.
    Connect,
    /// The connection broke, or ended before the response did.
    Reset,
    /// No whole response within the timeout.
    Timeout,
    /// A status other than 2xx or the expected one.
    Status,
    /// A body of another length than expected.
    Size,
    /// Not a response of the protocol spoken, or more bytes than one.
    Protocol,
    /// TLS could not be agreed, or broke.
    Tls,
    /// The server reset the request's stream.
    StreamReset,
    /// The server went away without having looked at the request.
    GoAway,
    /// Sent, and not answered when the run ended.
    Unanswered,
    /// Due, and still waiting for a free connection when the run ended.
    Unsent,
}

impl RequestOutcome {
    /// The word used in records.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::Size => "size",
            Self::Protocol => "protocol",
            Self::Tls => "tls",
            Self::StreamReset => "stream",
            Self::GoAway => "goaway",
            Self::Unanswered => "unanswered",
            Self::Unsent => "unsent",
        }
    }

    /// What went wrong, where nothing more is known.
    #[must_use]
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Ok => "answered as expected",
            Self::Connect => "no connection",
            Self::Reset => "the connection broke before the response ended",
            Self::Timeout => "no whole response within --timeout",
            Self::Status => "a status other than 2xx or --expect-status",
            Self::Size => "a length other than --expect-size",
            Self::Protocol => "not a response of the protocol, or more than one",
            Self::Tls => "the TLS handshake failed",
            Self::StreamReset => "the server reset the stream",
            Self::GoAway => "the server went away (GOAWAY)",
            Self::Unanswered => "sent, and not answered when the run ended",
            Self::Unsent => "due, and no connection was free when the run ended",
        }
    }
}

/// Cause of a failure in words.
pub(crate) type FailureCause = Cow<'static, str>;

/// Causes that are told apart; a server cannot make more. Further ones count as their kind alone.
const MAX_CAUSES: usize = 8;

/// Failures by kind, and by cause where more is known than the kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failures {
    kinds: BTreeMap<RequestOutcome, u64>,
    causes: BTreeMap<(RequestOutcome, FailureCause), u64>,
}

impl Failures {
    pub(crate) fn add(&mut self, kind: RequestOutcome, count: u64) {
        *self.kinds.entry(kind).or_default() += count;
    }

    /// Says why so many of these failures happened.
    pub(crate) fn explain(&mut self, kind: RequestOutcome, cause: FailureCause, count: u64) {
        let key = (kind, cause);
        let known = self.causes.len() < MAX_CAUSES || self.causes.contains_key(&key);
        if known && count > 0 && key.1 != kind.words() {
            *self.causes.entry(key).or_default() += count;
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (kind, count) in &other.kinds {
            self.add(*kind, *count);
        }
        for ((kind, cause), count) in &other.causes {
            self.explain(*kind, cause.clone(), *count);
        }
    }

    pub(crate) fn of(&self, kind: RequestOutcome) -> u64 {
        self.kinds.get(&kind).copied().unwrap_or(0)
    }

    pub(crate) fn total(&self) -> u64 {
        self.kinds.values().sum()
    }

    /// By the words of records.
    pub(crate) fn by_kind(&self) -> BTreeMap<&'static str, u64> {
        let named = |(kind, count): (&RequestOutcome, &u64)| (kind.name(), *count);
        self.kinds.iter().map(named).collect()
    }

    /// By cause, those whose cause is known.
    pub(crate) fn by_cause(&self) -> BTreeMap<String, u64> {
        let causes = self.causes.iter();
        causes
            .map(|((_, cause), count)| (cause.clone().into_owned(), *count))
            .collect()
    }

    /// Each cause with its kind and number, the most frequent first. A kind stands for its failures of unknown cause.
    pub(crate) fn in_words(&self) -> Vec<(u64, &'static str, &str)> {
        let mut all: Vec<(u64, &'static str, &str)> = Vec::new();
        for (kind, total) in &self.kinds {
            let causes = self.causes.iter().filter(|((of, _), _)| of == kind);
            let known = all.len();
            all.extend(causes.map(|((_, cause), count)| (*count, kind.name(), &**cause)));
            let explained: u64 = all[known..].iter().map(|(count, ..)| count).sum();
            let rest = total.saturating_sub(explained);
            if rest > 0 {
                all.push((rest, kind.name(), kind.words()));
            }
        }
        all.sort_by_key(|(count, ..)| std::cmp::Reverse(*count));
        all
    }
}

/// The sign of life of a run's servers, shared by all threads: whether any request was answered, and else why the first failed.
#[derive(Debug, Default)]
pub(crate) struct FirstAnswer {
    answered: AtomicBool,
    failure: Mutex<Option<FailureCause>>,
}

impl FirstAnswer {
    pub(crate) fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self, cause: FailureCause) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(cause);
    }

    /// The cause, if requests have failed and none was answered.
    pub(crate) fn missing(&self) -> Option<FailureCause> {
        if self.answered.load(Ordering::Relaxed) {
            return None;
        }
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_by_cause_and_the_rest_by_kind() {
        let mut failures = Failures::default();
        failures.add(RequestOutcome::Connect, 5);
        failures.explain(RequestOutcome::Connect, "refused".into(), 3);
        failures.add(RequestOutcome::Timeout, 4);
        failures.explain(
            RequestOutcome::Timeout,
            RequestOutcome::Timeout.words().into(),
            4,
        );
        let words = failures.in_words();
        let told: Vec<_> = words
            .iter()
            .map(|(count, kind, cause)| (*count, *kind, *cause))
            .collect();
        assert_eq!(
            told,
            [
                (4, "timeout", "no whole response within --timeout"),
                (3, "connect", "refused"),
                (2, "connect", "no connection"),
            ]
        );
        for number in 0..2 * MAX_CAUSES {
            failures.explain(RequestOutcome::Tls, format!("cause {number}").into(), 1);
        }
        assert_eq!(failures.by_cause().len(), MAX_CAUSES);
        assert_eq!(failures.total(), 9);
    }
}
