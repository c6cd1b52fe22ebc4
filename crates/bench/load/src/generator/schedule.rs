//! When requests should leave: pure functions from a rate to instants. The arrival pattern decides how much
//! requests queue on each other, so it is a part of every record.

use std::sync::Arc;

use crate::profile::Profile;

/// Arrival pattern: the distribution of requests over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrivalPattern {
    /// One global even schedule: request k leaves at k / rate.
    Uniform,
    /// Exponential gaps from a seeded generator: independent users.
    Poisson,
    /// All connections in phase, each with one request in flight, each sending every connections / rate seconds: fortio's default
    /// without `-uniform`.
    Fortio,
}

impl ArrivalPattern {
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

/// Distribution of a profile's requests over threads and time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Spread {
    /// Every `stride`-th request of the profile, beginning with number `offset`: the share of one of `stride` threads.
    Even {
        /// The first.
        offset: u64,
        /// From one to the next.
        stride: u64,
    },
    /// At random times, independent of each other. Several of them with different seeds add up to a Poisson process too.
    Random {
        /// The part of the profile's rate, up to 1.
        share: f64,
        /// Seed of the random numbers.
        seed: u64,
    },
}

/// A sequence of instants, in nanoseconds of the monotonic clock, from `start` and before `end`.
#[derive(Debug, Clone)]
pub struct Schedule {
    start: u64,
    end: u64,
    gaps: RequestGaps,
    next: u64,
}

#[derive(Debug, Clone)]
enum RequestGaps {
    /// Instants are computed, not summed, so that nothing drifts.
    Shaped {
        profile: Profile,
        place: usize,
        spread: Spread,
        /// Requests due at once.
        burst: u64,
        /// Number of this one: of the whole profile where even, of its own where random.
        index: u64,
        /// For random arrivals: requests of the profile before this one, not a whole number.
        at: f64,
        random: fastrand::Rng,
    },
    Trace {
        instants: Arc<[u64]>,
        index: usize,
        stride: usize,
    },
}

impl Schedule {
    /// Every `stride`-th instant of an even schedule of `rate` per second, beginning with number `offset`.
    #[must_use]
    pub fn even(start: u64, end: u64, rate: f64, offset: u64, stride: u64) -> Self {
        let spread = Spread::Even { offset, stride };
        Self::shaped(start, end, Profile::constant(rate), spread, 1)
    }

    /// Exponential gaps of mean 1 / `rate`.
    #[must_use]
    pub fn poisson(start: u64, end: u64, rate: f64, seed: u64) -> Self {
        let spread = Spread::Random { share: 1.0, seed };
        Self::shaped(start, end, Profile::constant(rate), spread, 1)
    }

    /// The requests of a profile, `burst` at a time.
    #[must_use]
    pub fn shaped(start: u64, end: u64, profile: Profile, spread: Spread, burst: u64) -> Self {
        let (index, seed) = match spread {
            Spread::Even { offset, .. } => (offset, 0),
            Spread::Random { seed, .. } => (0, seed),
        };
        let gaps = RequestGaps::Shaped {
            profile,
            place: 0,
            spread,
            burst: burst.max(1),
            index,
            at: 0.0,
            random: fastrand::Rng::with_seed(seed),
        };
        let mut schedule = Self {
            start,
            end,
            gaps,
            next: start,
        };
        schedule.draw();
        schedule.next = schedule.instant();
        schedule
    }

    /// Every `stride`-th of recorded instants (nanoseconds from the start, ascending), beginning with number `offset`.
    #[must_use]
    pub fn trace(start: u64, end: u64, instants: Arc<[u64]>, offset: u64, stride: u64) -> Self {
        let gaps = RequestGaps::Trace {
            instants,
            index: offset as usize,
            stride: stride.max(1) as usize,
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

    /// The next instant that has not been used; none at or after the end.
    #[must_use]
    pub fn peek(&self) -> Option<u64> {
        (self.next < self.end).then_some(self.next)
    }

    /// The number of the next request: of the whole schedule, or of this random stream.
    #[must_use]
    pub fn number(&self) -> u64 {
        match &self.gaps {
            RequestGaps::Shaped { index, .. } => *index,
            RequestGaps::Trace { index, .. } => *index as u64,
        }
    }

    /// Uses the next instant.
    pub fn advance(&mut self) {
        match &mut self.gaps {
            RequestGaps::Shaped { spread, index, .. } => {
                *index += match spread {
                    Spread::Even { stride, .. } => (*stride).max(1),
                    Spread::Random { .. } => 1,
                };
                self.draw();
            }
            RequestGaps::Trace { index, stride, .. } => *index += *stride,
        }
        self.next = self.instant();
    }

    /// At the first request of a burst: the random gap before it.
    fn draw(&mut self) {
        if let RequestGaps::Shaped {
            spread: Spread::Random { share, .. },
            burst,
            index,
            at,
            random,
            ..
        } = &mut self.gaps
            && index.is_multiple_of(*burst)
        {
            // 1 - f64() is in (0, 1], so the logarithm is finite.
            *at -= (1.0 - random.f64()).ln() * *burst as f64 / *share;
        }
    }

    /// Lets nothing be due at or after `end`.
    pub fn cut(&mut self, end: u64) {
        self.end = self.end.min(end);
    }

    fn instant(&mut self) -> u64 {
        let after = match &mut self.gaps {
            RequestGaps::Shaped {
                profile,
                place,
                spread: Spread::Even { .. },
                burst,
                index,
                ..
            } => profile.instant((*index - *index % *burst) as f64, place),
            RequestGaps::Shaped {
                profile, place, at, ..
            } => profile.instant(*at, place),
            RequestGaps::Trace {
                instants, index, ..
            } => instants.get(*index).copied(),
        };
        after.map_or(u64::MAX, |after| self.start.saturating_add(after))
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
