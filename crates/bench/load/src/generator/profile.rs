//! Profile of the rate over time: constant, ramps, steps. It is written as text and kept as stretches. The schedule asks the
//! inverse: at what instant is request number n due? All kinds of arrivals use the same profile.

use std::time::Duration;

use crate::clock::SECOND;
use crate::duration::parse_duration;

/// The most parts of one profile: a day in minutes.
const MAX_PARTS: usize = 1440;

/// A part of the rate over time, as written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProfileSegment {
    /// Requests per second at its beginning.
    pub from: f64,
    /// And at its end.
    pub to: f64,
    /// Length of the part. Parts without one share the rest of the run's duration evenly.
    pub length: Option<Duration>,
}

impl ProfileSegment {
    /// Reads `1000`, `100..2000`, `100,500,1000` or `100@5s,100..1000@30s`: parts in order, each a rate or a ramp, with a
    /// length or without.
    ///
    /// # Errors
    /// Says which part is wrong and what was expected.
    pub fn parse(text: &str) -> Result<Vec<Self>, String> {
        let parts: Vec<Self> = text.split(',').map(Self::one).collect::<Result<_, _>>()?;
        if parts.len() > MAX_PARTS {
            return Err(format!("{} parts: at most {MAX_PARTS}", parts.len()));
        }
        let with_length = parts.iter().filter(|part| part.length.is_some()).count();
        if with_length != 0 && with_length != parts.len() {
            return Err(format!("`{text}`: either all parts have a length or none"));
        }
        Ok(parts)
    }

    fn one(text: &str) -> Result<Self, String> {
        let (rates, length) = match text.split_once('@') {
            Some((rates, length)) => (rates, Some(parse_duration(length)?)),
            None => (text, None),
        };
        let whole = text;
        let rate = |text: &str| {
            let rate = text.trim().parse::<f64>().ok();
            rate.filter(|rate| rate.is_finite() && *rate >= 0.0)
                .ok_or_else(|| {
                    format!(
                        "`{whole}` is not a rate: expected N, N..M, N@5s, or several with commas"
                    )
                })
        };
        let (from, to) = match rates.split_once("..") {
            Some((from, to)) => (rate(from)?, rate(to)?),
            None => (rate(rates)?, rate(rates)?),
        };
        if length.is_some_and(|length| length.is_zero()) {
            return Err(format!("`{text}`: a part must be longer than 0"));
        }
        Ok(Self { from, to, length })
    }

    /// The mean rate.
    #[must_use]
    pub fn mean(&self) -> f64 {
        f64::midpoint(self.from, self.to)
    }
}

#[derive(Debug, Clone, Copy)]
struct ProfileStretch {
    /// Nanoseconds from the start, and how long.
    at: f64,
    length: f64,
    /// Requests before it, and in it.
    begins: f64,
    count: f64,
    /// Requests per nanosecond at both ends.
    from: f64,
    to: f64,
}

/// The rate over time. The last part goes on for ever.
#[derive(Debug, Clone)]
pub struct Profile {
    stretches: Vec<ProfileStretch>,
}

impl Profile {
    /// Always the same rate.
    #[must_use]
    pub fn constant(rate: f64) -> Self {
        Self::new(&[(rate, rate, f64::INFINITY)])
    }

    /// These parts in order: rates per second at both ends, and a length in nanoseconds.
    #[must_use]
    pub fn new(parts: &[(f64, f64, f64)]) -> Self {
        let (mut at, mut begins) = (0.0, 0.0);
        let mut stretches = Vec::with_capacity(parts.len());
        for (from, to, length) in parts {
            let (from, to) = (from / SECOND as f64, to / SECOND as f64);
            let count = if from + to == 0.0 {
                0.0
            } else {
                f64::midpoint(from, to) * length
            };
            let (length, here) = (*length, (at, begins));
            (at, begins) = (at + length, begins + count);
            stretches.push(ProfileStretch {
                at: here.0,
                length,
                begins: here.1,
                count,
                from,
                to,
            });
        }
        Self { stretches }
    }

    /// When request number `n` (from 0, not only whole ones) is due, in nanoseconds from the start; none if the profile
    /// ends before. `hint` keeps the place between calls with growing `n`.
    #[must_use]
    pub fn instant(&self, n: f64, hint: &mut usize) -> Option<u64> {
        loop {
            let stretch = self.stretches.get(*hint)?;
            let within = n - stretch.begins;
            if within < stretch.count {
                return Some((stretch.at + stretch.after(within)) as u64);
            }
            *hint += 1;
        }
    }
}

impl ProfileStretch {
    /// Returns the time until `n` requests are due.
    fn after(&self, n: f64) -> f64 {
        let Self {
            from, to, length, ..
        } = *self;
        if from == to {
            // A product with the period in whole nanoseconds per request equals the result that people compute by hand.
            return n * (SECOND as f64 / (from * SECOND as f64));
        }
        // n = from·t + slope·t²/2, solved in the form that divides by no difference of near numbers.
        let slope = (to - from) / length;
        let root = (from * from + 2.0 * slope * n).max(0.0).sqrt();
        if from + root == 0.0 {
            return 0.0;
        }
        2.0 * n / (from + root)
    }
}
