//! Measurements of an endpoint for load balancing: requests in flight, latency, and the time from which the endpoint
//! may be used. One worker owns them, so nothing here is shared.
//!
//! Latency is a peak-sensitive moving average (as in Finagle and linkerd2-proxy). A slower answer counts at once, a
//! faster one by and by. Without answers the estimate fades, so that a slow endpoint is tried again.

use std::time::Duration;

/// Decay time of an estimate: after this time without answers about a third of it is left. Linkerd's default.
pub const EWMA_DECAY: Duration = Duration::from_secs(10);

/// Assumed latency of an endpoint without requests. Linkerd's default.
pub const EWMA_INITIAL: Duration = Duration::from_millis(30);

/// Time for which the worker avoids an endpoint that answers 429 or 503 without `Retry-After`. Linkerd's default.
pub const PENALTY: Duration = Duration::from_secs(5);

/// No endpoint is left alone longer than this for saying so: by `Retry-After` it would take itself out for ever.
pub const MAX_PENALTY: Duration = Duration::from_secs(300);

/// `warmup`: a new endpoint gets its share of requests step by step. Envoy's slow start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warmup {
    /// Its duration.
    pub duration: Duration,
    /// The least share of its weight that an endpoint begins with, in percent; 10 is Istio's and Envoy's.
    pub minimum_percent: u32,
    /// 1000 is a straight line; above it the share rises early, below it late.
    pub aggression_thousandths: u32,
}

impl Warmup {
    /// The share of its weight that an endpoint of this age has, up to 1.
    #[must_use]
    pub fn share(&self, age: Duration) -> f64 {
        if age >= self.duration {
            return 1.0;
        }
        let passed = age.as_secs_f64() / self.duration.as_secs_f64();
        let risen = match self.aggression_thousandths {
            1_000 => passed,
            other => passed.powf(1_000.0 / f64::from(other.max(10))),
        };
        risen.max(f64::from(self.minimum_percent.clamp(1, 100)) / 100.0)
    }
}

/// See the module. Times are those since any fixed moment.
#[derive(Debug, Clone)]
pub struct EndpointVitals {
    in_flight: u32,
    /// Nanoseconds, as of `at`.
    estimate: f64,
    at: Duration,
    /// Until when it asked to be left alone.
    shy_until: Duration,
    /// Since when it is there.
    since: Duration,
}

impl EndpointVitals {
    /// Of an endpoint that is there since now.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Self {
            in_flight: 0,
            estimate: nanos(EWMA_INITIAL),
            at: now,
            shy_until: Duration::ZERO,
            since: now,
        }
    }

    /// A request goes there.
    pub fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// A request ended there, however.
    pub fn end(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Requests that went there and have not ended.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// An answer came after so long.
    pub fn observe(&mut self, took: Duration, now: Duration) {
        let took = nanos(took);
        let kept = self.faded(now);
        self.estimate = if took >= kept {
            took
        } else {
            let weight = decay(now.saturating_sub(self.at));
            // The estimate moves towards the answer by the weight that it has lost by fading.
            self.estimate * weight + took * (1.0 - weight)
        };
        self.at = now;
    }

    /// It answered 429 or 503: it is left alone for as long as it says in `Retry-After`, or for a while.
    pub fn shy(&mut self, retry_after: Option<Duration>, now: Duration) {
        let until = now + retry_after.unwrap_or(PENALTY).min(MAX_PENALTY);
        self.shy_until = self.shy_until.max(until);
    }

    /// Returns the expected latency, in nanoseconds.
    #[must_use]
    pub fn latency(&self, now: Duration) -> f64 {
        self.faded(now)
    }

    fn faded(&self, now: Duration) -> f64 {
        self.estimate * decay(now.saturating_sub(self.at))
    }

    /// Returns the cost of one more request: latency plus the rest of the time for which the endpoint asked to be
    /// avoided. It is multiplied by the requests in flight and this one; a heavier endpoint carries more at once.
    #[must_use]
    pub fn cost(&self, weight: u32, now: Duration) -> f64 {
        let wait = nanos(self.shy_until.saturating_sub(now));
        // A nanosecond, so that load still decides where latency has faded.
        let expected = 1.0 + self.faded(now) + wait;
        expected * (1.0 + self.queued(weight))
    }

    /// Returns the cost without latency: for opaque connections, or where least-request is configured.
    #[must_use]
    pub fn load(&self, weight: u32, now: Duration) -> f64 {
        let wait = nanos(self.shy_until.saturating_sub(now));
        (1.0 + wait) * (1.0 + self.queued(weight))
    }

    /// Returns the requests in flight for its weight, which least-request compares.
    #[must_use]
    pub fn queued(&self, weight: u32) -> f64 {
        f64::from(self.in_flight) / f64::from(weight.max(1))
    }

    /// The share of its weight that it has by its age.
    #[must_use]
    pub fn warmth(&self, warmup: Option<&Warmup>, now: Duration) -> f64 {
        warmup.map_or(1.0, |rule| rule.share(now.saturating_sub(self.since)))
    }
}

/// Not by way of 128 bits, whose conversion costs more than all the rest.
fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// Returns the part of an estimate that is left after a time.
fn decay(passed: Duration) -> f64 {
    (-passed.as_secs_f64() / EWMA_DECAY.as_secs_f64()).exp()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{EndpointVitals, MAX_PENALTY, PENALTY, Warmup};

    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);

    fn ms(vitals: &EndpointVitals, now: Duration) -> u64 {
        (vitals.latency(now) / 1e6).round() as u64
    }

    #[test]
    fn a_slow_answer_counts_at_once_a_fast_one_by_and_by() {
        let mut vitals = EndpointVitals::new(S);
        assert_eq!(ms(&vitals, S), 30, "what is believed at first");
        vitals.observe(500 * MS, S);
        assert_eq!(ms(&vitals, S), 500);
        vitals.observe(5 * MS, S);
        assert_eq!(ms(&vitals, S), 500, "no time has passed");
        vitals.observe(100 * MS, 11 * S);
        // A third of 500 and two thirds of 100, nearly.
        assert_eq!(ms(&vitals, 11 * S), 247);
        for second in 12..120 {
            vitals.observe(100 * MS, second * S);
        }
        assert_eq!(
            ms(&vitals, 119 * S),
            100,
            "in the end it is what answers take"
        );
        assert_eq!(ms(&vitals, 129 * S), 37, "and it fades while nobody asks");
        vitals.observe(60 * MS, 129 * S);
        assert_eq!(ms(&vitals, 129 * S), 60);
    }

    #[test]
    fn who_asks_to_be_left_alone_costs_what_is_left_of_that_time() {
        let mut vitals = EndpointVitals::new(S);
        let free = vitals.cost(1, S);
        vitals.shy(Some(10 * S), S);
        assert_eq!((vitals.cost(1, S) - free) as u64, 10_000_000_000);
        vitals.shy(None, S);
        assert!(
            vitals.cost(1, S) - free > 9.9e9,
            "a shorter time shortens nothing"
        );
        assert!(vitals.cost(1, 11 * S) < free);
        let mut vitals = EndpointVitals::new(S);
        vitals.shy(None, S);
        assert_eq!(
            ((vitals.cost(1, S) - free) / 1e9).round() as u64,
            PENALTY.as_secs()
        );
        vitals.shy(Some(Duration::MAX), S);
        assert!(
            vitals.cost(1, S + MAX_PENALTY) < free,
            "nobody takes himself out for ever"
        );
    }

    #[test]
    fn load_multiplies_the_cost_by_what_is_in_flight_for_the_weight() {
        let mut vitals = EndpointVitals::new(S);
        let free = vitals.cost(2, S);
        (0..6).for_each(|_| vitals.begin());
        assert_eq!((vitals.cost(2, S) / free).round() as u32, 4);
        assert_eq!(
            (vitals.cost(0, S) / free).round() as u32,
            7,
            "no weight counts as one"
        );
        (0..9).for_each(|_| vitals.end());
        assert_eq!(vitals.in_flight(), 0);
    }

    #[test]
    fn a_new_endpoint_warms_up() {
        let line = Warmup {
            duration: 100 * S,
            minimum_percent: 10,
            aggression_thousandths: 1_000,
        };
        let late = Warmup {
            aggression_thousandths: 500,
            ..line
        };
        for (rule, age, percent) in [
            (line, 0, 10),
            (line, 5, 10),
            (line, 50, 50),
            (line, 100, 100),
            (line, 1_000, 100),
            (late, 50, 25),
            (late, 90, 81),
        ] {
            assert_eq!(
                (rule.share(age * S) * 100.0).round() as u32,
                percent,
                "{age}"
            );
            assert_eq!(
                (EndpointVitals::new(S).warmth(Some(&rule), (age + 1) * S) * 100.0).round() as u32,
                percent
            );
        }
        assert_eq!(EndpointVitals::new(S).warmth(None, S), 1.0);
    }
}
