//! When requests should leave: pure functions from a rate to instants. The arrival pattern decides how much
//! requests queue on each other, so it is a part of every record.

use crate::clock::SECOND;

/// How requests are spread over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// One global even schedule: request k leaves at k / rate.
    Uniform,
    /// Exponential gaps from a seeded generator: independent users.
    Poisson,
    /// All connections in phase, each with one request in flight, each sending every connections / rate seconds:
    /// what fortio does unless told `-uniform`.
    Fortio,
}

impl Arrival {
    /// The word used in options and records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Poisson => "poisson",
            Self::Fortio => "fortio",
        }
    }
}

/// A sequence of instants, in nanoseconds of the monotonic clock, from `start` and before `end`.
#[derive(Debug, Clone)]
pub struct Schedule {
    start: u64,
    end: u64,
    gaps: Gaps,
    next: u64,
}

#[derive(Debug, Clone)]
enum Gaps {
    /// Instant k is start + (offset + k × stride) × period: computed, not summed, so that nothing drifts.
    Even {
        period: f64,
        index: u64,
        stride: u64,
    },
    Random {
        mean: f64,
        at: f64,
        random: fastrand::Rng,
    },
}

impl Schedule {
    /// Every `stride`-th instant of an even schedule of `rate` per second, beginning with number `offset`: the
    /// share of one of `stride` threads.
    #[must_use]
    pub fn even(start: u64, end: u64, rate: f64, offset: u64, stride: u64) -> Self {
        let gaps = Gaps::Even {
            period: SECOND as f64 / rate,
            index: offset,
            stride: stride.max(1),
        };
        let mut schedule = Self {
            start,
            end,
            gaps,
            next: start,
        };
        schedule.next = schedule.instant();
        schedule
    }

    /// Exponential gaps of mean 1 / `rate`. Several of them with different seeds add up to a Poisson process too.
    #[must_use]
    pub fn poisson(start: u64, end: u64, rate: f64, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        let gaps = Gaps::Random {
            mean: SECOND as f64 / rate,
            at: 0.0,
            random,
        };
        let mut schedule = Self {
            start,
            end,
            gaps,
            next: start,
        };
        schedule.advance();
        schedule
    }

    /// The next instant that has not been used; none at or after the end.
    #[must_use]
    pub fn peek(&self) -> Option<u64> {
        (self.next < self.end).then_some(self.next)
    }

    /// Uses the next instant.
    pub fn advance(&mut self) {
        match &mut self.gaps {
            Gaps::Even { index, stride, .. } => *index += *stride,
            Gaps::Random { mean, at, random } => {
                // 1 - f64() is in (0, 1], so the logarithm is finite.
                *at -= *mean * (1.0 - random.f64()).ln();
            }
        }
        self.next = self.instant();
    }

    /// Lets nothing be due at or after `end`.
    pub fn cut(&mut self, end: u64) {
        self.end = self.end.min(end);
    }

    fn instant(&self) -> u64 {
        let after = match &self.gaps {
            Gaps::Even { period, index, .. } => *index as f64 * period,
            Gaps::Random { at, .. } => *at,
        };
        self.start.saturating_add(after as u64)
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let at = self.peek()?;
        self.advance();
        Some(at)
    }
}
