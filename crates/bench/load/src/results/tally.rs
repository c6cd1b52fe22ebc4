//! Counts of one generator thread. Tallies of several threads add up.

use std::collections::BTreeMap;

use crate::clock::SECOND;
pub(crate) use crate::failures::{FailureCause, Failures, FirstAnswer, RequestOutcome};
use crate::samples::Samples;

/// One finished request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FinishedRequest {
    pub(crate) intended: u64,
    /// When the generator began to send it; none if it never did.
    pub(crate) sent: Option<u64>,
    /// When its answer began.
    pub(crate) first: Option<u64>,
    pub(crate) done: u64,
    pub(crate) outcome: RequestOutcome,
    /// A whole response came.
    pub(crate) answered: bool,
    /// Its status, where the protocol has one.
    pub(crate) status: Option<u16>,
    pub(crate) body: u64,
    /// Index of the target.
    pub(crate) target: usize,
}

/// Result of one target's requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct OfTarget {
    pub(crate) ok: u64,
    pub(crate) errors: u64,
    pub(crate) latency: Samples,
    /// Of these, the samples of failures.
    pub(crate) error_latency: Samples,
}

/// Counts of the requests that were due in one second.
#[derive(Debug, Clone, Default)]
pub(crate) struct SecondTally {
    pub(crate) sent: u64,
    pub(crate) ok: u64,
    pub(crate) errors: u64,
    pub(crate) latency: Samples,
}

/// Everything counted in the measured part of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunTally {
    pub(crate) start: u64,
    pub(crate) scheduled: u64,
    pub(crate) sent: u64,
    pub(crate) ok: u64,
    pub(crate) answered: u64,
    pub(crate) errors: Failures,
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) body_bytes: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) connects: u64,
    pub(crate) latency: Samples,
    /// A closed loop: every request is sent when it is due, so service is latency and need not be recorded.
    closed: bool,
    /// The middle of the measured part, and the latencies of requests due before and after it, so that drift shows.
    middle: u64,
    pub(crate) halves: [Samples; 2],
    pub(crate) service: Samples,
    /// Results by target, if there are several.
    pub(crate) targets: Vec<OfTarget>,
    /// From the send to the first byte of the answer.
    pub(crate) first_byte: Samples,
    /// Times of all connections of the run: connect, and TLS handshake.
    pub(crate) connecting: Samples,
    pub(crate) handshake: Samples,
    /// Parameters that TLS agreed on.
    pub(crate) agreed: Option<String>,
    /// Samples of failures, which `latency`, `service` and `first_byte` have, too.
    pub(crate) error_latency: Samples,
    pub(crate) error_service: Samples,
    pub(crate) error_first_byte: Samples,
    pub(crate) lateness: Samples,
    pub(crate) seconds: Vec<SecondTally>,
    /// Length of shorter intervals that are counted as well, in nanoseconds; 0: none.
    pub(crate) interval: u64,
    pub(crate) intervals: Vec<SecondTally>,
    /// Failures in each of these intervals, by the time of the failure and not the due time.
    pub(crate) failures: Vec<u64>,
    pub(crate) last_done: u64,
    /// Responses, or other bytes, that no request asked for.
    pub(crate) unsolicited: u64,
    pub(crate) cpu_ns: u64,
    /// A request that ended the run: with that status, or without any answer.
    pub(crate) aborted: Option<Option<u16>>,
    /// When the schedule really ended.
    pub(crate) end: u64,
}

/// The counts of a stretch of time, made when first needed.
fn place(all: &mut Vec<SecondTally>, at: u64) -> &mut SecondTally {
    let at = at as usize;
    while all.len() <= at {
        all.push(SecondTally::default());
    }
    &mut all[at]
}

fn merge(mine: &mut Vec<SecondTally>, theirs: &[SecondTally]) {
    mine.resize_with(mine.len().max(theirs.len()), SecondTally::default);
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        mine.sent += theirs.sent;
        mine.ok += theirs.ok;
        mine.errors += theirs.errors;
        mine.latency.merge(&theirs.latency);
    }
}

impl RunTally {
    /// For a measured part that is planned to last from `start` to `end`.
    pub(crate) fn new(start: u64, end: u64, closed: bool) -> Self {
        Self {
            start,
            closed,
            middle: start.midpoint(end),
            last_done: start,
            ..Self::default()
        }
    }

    /// Counts a request, unless it was due before the measurement began.
    pub(crate) fn finish(&mut self, request: FinishedRequest) {
        let Some(into) = request.intended.checked_sub(self.start) else {
            return;
        };
        let latency = request.done.saturating_sub(request.intended);
        if let Some(at) = into.checked_div(self.interval) {
            let interval = place(&mut self.intervals, at);
            interval.latency.record(latency);
            if request.outcome == RequestOutcome::Ok {
                interval.ok += 1;
            } else {
                interval.errors += 1;
                let ended = (request.done.saturating_sub(self.start) / self.interval) as usize;
                self.failures.resize(self.failures.len().max(ended + 1), 0);
                self.failures[ended] += 1;
            }
        }
        let second = place(&mut self.seconds, into / SECOND);
        self.scheduled += 1;
        // All of them are the sum of the halves; see `settle`.
        self.halves[usize::from(request.intended >= self.middle)].record(latency);
        second.latency.record(latency);
        if let Some(target) = self.targets.get_mut(request.target) {
            target.latency.record(latency);
            if request.outcome == RequestOutcome::Ok {
                target.ok += 1;
            } else {
                target.errors += 1;
                target.error_latency.record(latency);
            }
        }
        if let Some(sent) = request.sent {
            self.sent += 1;
            second.sent += 1;
            if !self.closed {
                self.service.record(request.done.saturating_sub(sent));
            }
            if let Some(first) = request.first {
                self.first_byte.record(first.saturating_sub(sent));
            }
        }
        if request.answered {
            self.answered += 1;
            self.last_done = self.last_done.max(request.done);
        }
        if let Some(status) = request.status {
            *self.statuses.entry(status).or_default() += 1;
        }
        self.body_bytes += request.body;
        if request.outcome == RequestOutcome::Ok {
            self.ok += 1;
            second.ok += 1;
        } else {
            second.errors += 1;
            self.error_latency.record(latency);
            if let Some(sent) = request.sent {
                let service = request.done.saturating_sub(sent);
                self.error_service.record(service);
                if let Some(first) = request.first {
                    self.error_first_byte.record(first.saturating_sub(sent));
                }
            }
            self.errors.add(request.outcome, 1);
        }
    }

    /// Makes whole what was recorded in parts. To be called once, before anything is read.
    pub(crate) fn settle(&mut self) {
        for half in &self.halves {
            self.latency.merge(half);
        }
        if self.closed {
            self.service = self.latency.clone();
            self.error_service = self.error_latency.clone();
        }
    }

    /// Adds what another thread of the same run counted.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.scheduled += other.scheduled;
        self.sent += other.sent;
        self.ok += other.ok;
        self.answered += other.answered;
        self.body_bytes += other.body_bytes;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.connects += other.connects;
        self.cpu_ns += other.cpu_ns;
        self.aborted = self.aborted.or(other.aborted);
        self.unsolicited += other.unsolicited;
        self.end = self.end.max(other.end);
        self.last_done = self.last_done.max(other.last_done);
        self.errors.merge(&other.errors);
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (mine, theirs) in self.halves.iter_mut().zip(&other.halves) {
            mine.merge(theirs);
        }
        self.closed |= other.closed;
        self.service.merge(&other.service);
        self.first_byte.merge(&other.first_byte);
        self.targets.resize_with(
            self.targets.len().max(other.targets.len()),
            OfTarget::default,
        );
        for (mine, theirs) in self.targets.iter_mut().zip(&other.targets) {
            mine.ok += theirs.ok;
            mine.errors += theirs.errors;
            mine.latency.merge(&theirs.latency);
            mine.error_latency.merge(&theirs.error_latency);
        }
        self.connecting.merge(&other.connecting);
        self.handshake.merge(&other.handshake);
        self.agreed = self.agreed.take().or_else(|| other.agreed.clone());
        self.error_latency.merge(&other.error_latency);
        self.error_service.merge(&other.error_service);
        self.error_first_byte.merge(&other.error_first_byte);
        self.lateness.merge(&other.lateness);
        merge(&mut self.seconds, &other.seconds);
        merge(&mut self.intervals, &other.intervals);
        self.failures
            .resize(self.failures.len().max(other.failures.len()), 0);
        for (mine, theirs) in self.failures.iter_mut().zip(&other.failures) {
            *mine += theirs;
        }
    }
}
