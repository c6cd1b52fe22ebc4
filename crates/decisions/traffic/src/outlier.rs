//! Outlier detection: endpoints with bad answers get no requests for a while, by the observations of one proxy. Its
//! workers share the state through atomics, without a lock and without a clock that ticks: an ejected endpoint is
//! back when its time is over. Envoy's rules (its page "Outlier detection") with Istio's defaults.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// `outlierDetection`: when an endpoint is put out, and for how long. A number of 0 turns a rule off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutlierDetection {
    /// Answers of 5xx in a row, or failures without an answer, unless those are counted apart.
    pub consecutive_5xx: u32,
    /// Answers of 502, 503, 504 in a row, or failures without an answer.
    pub consecutive_gateway: u32,
    /// Failures without an answer in a row: counted apart, and then not by the other two.
    pub consecutive_local: Option<u32>,
    /// Endpoints that succeed far less often than the others.
    pub success_rate: Option<SuccessRate>,
    /// Interval of comparing success rates. It is also the time that an endpoint must stay in before its next
    /// ejection gets a step shorter.
    pub interval: Duration,
    /// Length of the first ejection; each further one is that much longer.
    pub base_ejection: Duration,
    /// Longest ejection, which no resource sets.
    pub max_ejection: Duration,
    /// Percentage of endpoints that may be ejected at once. Of two or more, one always may, unless this is 0.
    pub max_ejection_percent: u32,
    /// Percentage of endpoints that must stay in.
    pub min_health_percent: u32,
}

impl Default for OutlierDetection {
    /// Istio's.
    fn default() -> Self {
        Self {
            consecutive_5xx: 5,
            consecutive_gateway: 0,
            consecutive_local: None,
            success_rate: None,
            interval: Duration::from_secs(10),
            base_ejection: Duration::from_secs(30),
            max_ejection: Duration::from_secs(300),
            max_ejection_percent: 10,
            min_health_percent: 0,
        }
    }
}

/// Ejects endpoints whose success rate is below the mean by more than a number of deviations: annotations
/// `voile.dev/success_rate_…` of a DestinationRule, with Envoy's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuccessRate {
    /// `success_rate_minimum_hosts`: endpoints with enough requests that there must be to compare.
    pub minimum_hosts: u32,
    /// `success_rate_request_volume`: requests in an interval that are enough.
    pub request_volume: u32,
    /// `success_rate_stdev_factor`: deviations, in thousandths.
    pub stdev_factor: u32,
    /// `enforcing_success_rate`: percentage of these endpoints that are ejected.
    pub enforcing_percent: u32,
}

impl Default for SuccessRate {
    /// Envoy's.
    fn default() -> Self {
        Self {
            minimum_hosts: 5,
            request_volume: 100,
            stdev_factor: 1_900,
            enforcing_percent: 100,
        }
    }
}

/// Ejection of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ejection {
    /// Place of the endpoint.
    pub place: usize,
    /// Reason of the ejection.
    pub reason: EjectionReason,
}

/// Reason of an ejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EjectionReason {
    /// So many bad answers in a row, the last of which was reported now.
    InARow,
    /// It succeeded far less often than the others.
    SuccessRate,
}

/// Deviations below this are rounding errors.
const ROUNDING: f64 = 1e-9;
/// A request in a tally, of which the lower half counts successes.
const ONE_REQUEST: u64 = 1 << 32;

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamOutcome {
    /// With this status; a gRPC failure counts as the status that it stands for.
    Answered(u16),
    /// Without one: no connection, no answer in time, closed.
    Failed,
}

/// State of one endpoint. Moments are nanoseconds since a fixed one.
#[derive(Debug, Default)]
struct Record {
    five: AtomicU32,
    gateway: AtomicU32,
    local: AtomicU32,
    /// Requests and successes since the last comparison, in one number, so that both are always read together.
    tally: AtomicU64,
    /// Until when it is out; 0: it is in.
    until: AtomicU64,
    /// When it was to be back, the last time.
    back: AtomicU64,
    /// Times that it was put out, less one for each interval in which it was not.
    times: AtomicU32,
}

/// The endpoints of a destination, as all workers of a proxy see them.
#[derive(Debug)]
pub struct Outliers {
    policy: OutlierDetection,
    records: Box<[Record]>,
    /// Never less than the number of those that are out.
    out: AtomicU32,
    /// When success rates are compared next.
    compare_at: AtomicU64,
}

fn nanos(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

impl Outliers {
    /// Creates the state for a number of new endpoints.
    #[must_use]
    pub fn new(policy: OutlierDetection, endpoints: usize) -> Self {
        let compare_at = AtomicU64::new(nanos(policy.interval));
        Self {
            policy,
            records: (0..endpoints).map(|_| Record::default()).collect(),
            out: AtomicU32::new(0),
            compare_at,
        }
    }

    /// Creates the state for other endpoints, some of which are `old` ones: `was` has the old place of each. An
    /// ejected endpoint stays ejected as long as the limit allows.
    #[must_use]
    pub fn follow(policy: OutlierDetection, was: &[Option<usize>], old: &Self) -> Self {
        let new = Self::new(policy, was.len());
        new.compare_at.store(old.compare_at.load(Relaxed), Relaxed);
        for (record, was) in new.records.iter().zip(was) {
            let Some(known) = was.and_then(|was| old.records.get(was)) else {
                continue;
            };
            let copy = |to: &AtomicU32, from: &AtomicU32| to.store(from.load(Relaxed), Relaxed);
            copy(&record.five, &known.five);
            copy(&record.gateway, &known.gateway);
            copy(&record.local, &known.local);
            copy(&record.times, &known.times);
            record.back.store(known.back.load(Relaxed), Relaxed);
            record.tally.store(known.tally.load(Relaxed), Relaxed);
            let until = known.until.load(Relaxed);
            if until > 0 && new.reserve() {
                record.until.store(until, Relaxed);
            }
        }
        new
    }

    /// Returns the number of endpoints that may be ejected at once.
    #[must_use]
    pub fn most_out(&self) -> u32 {
        let all = self.records.len() as u64;
        let percent = u64::from(self.policy.max_ejection_percent.min(100));
        let one = u64::from(percent > 0 && all > 1);
        let must_stay = (all * u64::from(self.policy.min_health_percent.min(100))).div_ceil(100);
        let most = (all * percent / 100).max(one).min(all - must_stay);
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Returns true if an endpoint is ejected.
    pub fn is_out(&self, place: usize, now: Duration) -> bool {
        let record = &self.records[place];
        let until = record.until.load(Relaxed);
        // The one that finds it back counts it in.
        if until > 0
            && until <= nanos(now)
            && record
                .until
                .compare_exchange(until, 0, Relaxed, Relaxed)
                .is_ok()
        {
            self.out.fetch_sub(1, Relaxed);
            return false;
        }
        until > nanos(now)
    }

    /// Returns the number of ejected endpoints.
    pub fn out(&self, now: Duration) -> usize {
        let places = 0..self.records.len();
        places.filter(|place| self.is_out(*place, now)).count()
    }

    /// Notes a request's outcome, and returns the ejected endpoints, after which choices must be made anew. It may
    /// eject the request's endpoint and, when success rates are due for comparison, any other.
    pub fn report(&self, place: usize, outcome: UpstreamOutcome, now: Duration) -> Vec<Ejection> {
        let mut out = Vec::new();
        if self.count(&self.records[place], outcome) && self.put_out(place, now) {
            let reason = EjectionReason::InARow;
            out.push(Ejection { place, reason });
        }
        self.compare(now, &mut out);
        out
    }

    /// Counts, and says whether that is enough.
    fn count(&self, record: &Record, outcome: UpstreamOutcome) -> bool {
        let clear = |counter: &AtomicU32| {
            // A healthy endpoint writes nothing that others read.
            if counter.load(Relaxed) > 0 {
                counter.store(0, Relaxed);
            }
        };
        let more =
            |counter: &AtomicU32, most: u32| most > 0 && counter.fetch_add(1, Relaxed) + 1 >= most;
        let policy = &self.policy;
        if policy.success_rate.is_some() {
            let good = !matches!(
                outcome,
                UpstreamOutcome::Failed | UpstreamOutcome::Answered(500..)
            );
            let one = ONE_REQUEST + u64::from(good);
            record.tally.fetch_add(one, Relaxed);
        }
        match (outcome, policy.consecutive_local) {
            (UpstreamOutcome::Failed, Some(most)) => more(&record.local, most),
            (UpstreamOutcome::Answered(502..=504), _) | (UpstreamOutcome::Failed, None) => {
                clear_if_answered(outcome, record, clear);
                let gateway = more(&record.gateway, policy.consecutive_gateway);
                more(&record.five, policy.consecutive_5xx) || gateway
            }
            (UpstreamOutcome::Answered(500..), _) => {
                clear(&record.local);
                clear(&record.gateway);
                more(&record.five, policy.consecutive_5xx)
            }
            (UpstreamOutcome::Answered(_), _) => {
                clear(&record.local);
                clear(&record.gateway);
                clear(&record.five);
                false
            }
        }
    }

    /// Takes one of the places for ejected endpoints.
    fn reserve(&self) -> bool {
        let most = self.most_out();
        let one_more = |out: u32| (out < most).then_some(out + 1);
        self.out.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    fn put_out(&self, place: usize, now: Duration) -> bool {
        // Some endpoints may be back, though their state was not read since.
        if self.is_out(place, now)
            || !(self.reserve() || (self.out(now) < self.most_out() as usize && self.reserve()))
        {
            return false;
        }
        let record = &self.records[place];
        let since = Duration::from_nanos(nanos(now).saturating_sub(record.back.load(Relaxed)));
        let steps = since.as_nanos() / self.policy.interval.as_nanos().max(1);
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        let times = record
            .times
            .load(Relaxed)
            .saturating_sub(steps)
            .saturating_add(1);
        let most = self.policy.max_ejection.max(self.policy.base_ejection);
        let long = self.policy.base_ejection.saturating_mul(times).min(most);
        let until = nanos(now.saturating_add(long)).max(1);
        if record
            .until
            .compare_exchange(0, until, Relaxed, Relaxed)
            .is_err()
        {
            self.out.fetch_sub(1, Relaxed);
            return false;
        }
        record.times.store(times, Relaxed);
        record.back.store(until, Relaxed);
        for counter in [&record.five, &record.gateway, &record.local] {
            counter.store(0, Relaxed);
        }
        true
    }

    /// Compares success rates when it is time to; one worker does.
    fn compare(&self, now: Duration, out: &mut Vec<Ejection>) {
        let Some(rule) = self.policy.success_rate else {
            return;
        };
        let (due, now_nanos) = (self.compare_at.load(Relaxed), nanos(now));
        let next = now_nanos.saturating_add(nanos(self.policy.interval));
        if now_nanos < due
            || self
                .compare_at
                .compare_exchange(due, next, Relaxed, Relaxed)
                .is_err()
        {
            return;
        }
        let take = |record: &Record| {
            let tally = record.tally.swap(0, Relaxed);
            ((tally % ONE_REQUEST) as u32, (tally / ONE_REQUEST) as u32)
        };
        let seen: Vec<(u32, u32)> = self.records.iter().map(take).collect();
        for place in unsuccessful(&seen, &rule) {
            if lot(now_nanos, place) < rule.enforcing_percent && self.put_out(place, now) {
                let reason = EjectionReason::SuccessRate;
                out.push(Ejection { place, reason });
            }
        }
    }
}

/// A number below 100 for a moment and a place, any as likely as the others (SplitMix64).
fn lot(moment: u64, place: usize) -> u32 {
    let mut mixed = moment.wrapping_add((place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) % 100) as u32
}

/// An answer, however bad, came over a connection that works.
fn clear_if_answered(outcome: UpstreamOutcome, record: &Record, clear: impl Fn(&AtomicU32)) {
    if outcome != UpstreamOutcome::Failed {
        clear(&record.local);
    }
}

/// Returns the endpoints whose success rate is far below the others', from successes and requests by place.
#[must_use]
pub fn unsuccessful(seen: &[(u32, u32)], rule: &SuccessRate) -> Vec<usize> {
    let volume = rule.request_volume.max(1);
    let enough = |(_, (_, requests)): &(usize, &(u32, u32))| *requests >= volume;
    let rate = |(place, (successes, requests)): (usize, &(u32, u32))| {
        (place, f64::from(*successes) / f64::from(*requests))
    };
    let rates: Vec<(usize, f64)> = seen.iter().enumerate().filter(enough).map(rate).collect();
    if rates.len() < rule.minimum_hosts.max(1) as usize {
        return Vec::new();
    }
    let mean = rates.iter().map(|(_, rate)| rate).sum::<f64>() / rates.len() as f64;
    let squares: f64 = rates.iter().map(|(_, rate)| (rate - mean).powi(2)).sum();
    let deviation = (squares / rates.len() as f64).sqrt();
    if deviation < ROUNDING {
        return Vec::new();
    }
    let least = mean - deviation * f64::from(rule.stdev_factor) / 1_000.0;
    let bad = rates.into_iter().filter(|(_, rate)| *rate < least);
    bad.map(|(place, _)| place).collect()
}
