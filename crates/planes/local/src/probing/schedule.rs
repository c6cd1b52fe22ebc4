//! Schedule of a probe and verdict of its answers, by Kubernetes' rules. Pure: time is an argument.

use std::time::{Duration, Instant};

use voile_model::mesh::Probe;

/// Probe interval of a container that has not been ready yet, even when its period is longer. Kubernetes reserves
/// that to itself: the user who starts a mesh waits for it.
const NOT_YET_READY_PERIOD: Duration = Duration::from_millis(500);

/// Kind of a probe, which decides what holds before the first answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeKind {
    /// Nothing is known before.
    Startup,
    /// Not ready before.
    Readiness,
    /// Alive before.
    Liveness,
}

/// Verdict of the answers so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing yet.
    Open,
    /// Enough good answers in a row.
    Good,
    /// Enough bad ones.
    Bad,
}

/// One probe over the life of a container.
#[derive(Debug)]
pub(super) struct ProbeHistory {
    kind: ProbeKind,
    initial_delay: Duration,
    period: Duration,
    success_threshold: u32,
    failure_threshold: u32,
    verdict: Verdict,
    /// It was good in this life.
    was_good: bool,
    last: bool,
    in_a_row: u32,
    next: Instant,
}

impl ProbeHistory {
    pub(super) fn new(probe: &Probe, kind: ProbeKind, since: Instant) -> Self {
        let mut course = Self {
            kind,
            initial_delay: probe.initial_delay,
            period: probe.period,
            success_threshold: probe.success_threshold,
            failure_threshold: probe.failure_threshold,
            verdict: Verdict::Open,
            was_good: false,
            last: false,
            in_a_row: 0,
            next: since,
        };
        course.begin(since);
        course
    }

    /// The container has begun anew.
    pub(super) fn begin(&mut self, since: Instant) {
        self.verdict = match self.kind {
            ProbeKind::Startup => Verdict::Open,
            ProbeKind::Readiness => Verdict::Bad,
            ProbeKind::Liveness => Verdict::Good,
        };
        self.was_good = false;
        self.in_a_row = 0;
        self.next = since + self.initial_delay;
    }

    /// For people.
    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            ProbeKind::Startup => "startup probe",
            ProbeKind::Readiness => "readiness probe",
            ProbeKind::Liveness => "liveness probe",
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Returns true if the next probe is due. A container that is to be restarted is not probed any more.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let ends = self.kind != ProbeKind::Readiness && self.verdict == Verdict::Bad;
        !ends && now >= self.next
    }

    pub(super) fn asked(&mut self, now: Instant) {
        self.next = now + self.period;
    }

    /// Counts an answer; the verdict, if it has changed.
    pub(super) fn answered(&mut self, now: Instant, good: bool) -> Option<Verdict> {
        if self.in_a_row == 0 || self.last != good {
            self.last = good;
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if !good && self.kind == ProbeKind::Readiness && !self.was_good {
            self.next = self.next.min(now + NOT_YET_READY_PERIOD);
        }
        let (threshold, verdict) = match good {
            true => (self.success_threshold, Verdict::Good),
            false => (self.failure_threshold, Verdict::Bad),
        };
        if self.in_a_row < threshold || self.verdict == verdict {
            return None;
        }
        self.verdict = verdict;
        self.was_good |= good;
        Some(verdict)
    }
}

#[cfg(test)]
mod tests {
    use voile_model::Port;
    use voile_model::mesh::ProbeAction;

    use super::*;

    fn probe(success_threshold: u32, failure_threshold: u32) -> Probe {
        Probe {
            question: ProbeAction::Tcp {
                port: Port::new(80).expect("a port"),
            },
            initial_delay: Duration::from_secs(5),
            period: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            success_threshold,
            failure_threshold,
            termination_grace: None,
        }
    }

    #[test]
    fn answers_in_a_row_make_the_verdict() {
        // `+` and `-` are answers; after each, the verdict that has changed: G, B, or `.` for none.
        for (kind, successes, failures, answers, verdicts) in [
            (ProbeKind::Startup, 1, 3, "--+", "..G"),
            (ProbeKind::Startup, 1, 3, "---", "..B"),
            (ProbeKind::Readiness, 1, 3, "-----+", ".....G"),
            (ProbeKind::Readiness, 1, 3, "+--+---+", "G.....BG"),
            (ProbeKind::Readiness, 2, 1, "+-++-+", "...GB."),
            (ProbeKind::Liveness, 1, 3, "+--+--", "......"),
            (ProbeKind::Liveness, 1, 1, "-", "B"),
        ] {
            let now = Instant::now();
            let mut course = ProbeHistory::new(&probe(successes, failures), kind, now);
            let heard = |answer| match course.answered(now, answer == '+') {
                None => '.',
                Some(Verdict::Good) => 'G',
                Some(Verdict::Bad) => 'B',
                Some(Verdict::Open) => '?',
            };
            let found: String = answers.chars().map(heard).collect();
            assert_eq!(found, verdicts, "{kind:?} {successes} {failures} {answers}");
        }
    }

    #[test]
    fn questions_come_in_their_time() {
        let start = Instant::now();
        let at = |milliseconds: u64| start + Duration::from_millis(milliseconds);
        let mut course = ProbeHistory::new(&probe(1, 1), ProbeKind::Readiness, start);
        assert!(!course.is_due(at(4_999)) && course.is_due(at(5_000)));
        course.asked(at(5_000));
        course.answered(at(5_100), false);
        assert!(!course.is_due(at(5_599)), "not at once again");
        assert!(course.is_due(at(5_600)), "sooner, until it is ready");
        course.asked(at(5_600));
        course.answered(at(5_700), true);
        course.asked(at(15_600));
        course.answered(at(15_700), false);
        assert!(!course.is_due(at(25_599)), "it was ready: the period holds");
        assert!(course.is_due(at(25_600)));
        let mut course = ProbeHistory::new(&probe(1, 1), ProbeKind::Liveness, start);
        course.asked(at(5_000));
        assert_eq!(course.answered(at(5_100), false), Some(Verdict::Bad));
        assert!(!course.is_due(at(60_000)), "it is being ended");
        course.begin(at(70_000));
        assert_eq!(course.verdict(), Verdict::Good);
        assert!(!course.is_due(at(74_999)) && course.is_due(at(75_000)));
    }
}
