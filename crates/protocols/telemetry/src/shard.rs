//! One worker's counters. No atomics, no locks: only the worker touches them, and it answers a scrape message with a
//! copy. The number of series is bounded; further series are counted in one named `other`. A scrape also drops series
//! that were idle for long, to make room; no timer does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::histogram::Histogram;
use crate::labels::Labels;

/// Label sets one worker keeps. A sidecar has tens; thousands mean that strangers choose them.
pub const MAX_SERIES: usize = 2_000;

/// Time for which an idle series is still shown: longer than any usual scrape interval, and than a pause for lunch.
/// When the series comes back later, Prometheus takes it for a counter that began anew.
pub const IDLE_SERIES: Duration = Duration::from_secs(30 * 60);

/// Series by values of requests that one series is divided into. More are counted in the series itself: a caller who invents
/// values spends what is its own.
pub const MAX_VALUED: usize = 100;

/// The same of all of a worker's series, so that callers leave room for series of others.
pub const MAX_ALL_VALUED: usize = MAX_SERIES / 2;

/// Different (code, flags) of one label set; an upstream that invents codes stays bounded.
pub const MAX_OUTCOMES: usize = 48;

/// The number by which a connection or route remembers its series. Valid for the shard that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeriesId {
    place: u32,
    /// Which of the series that were at this place.
    age: u32,
}

/// Requests of one series with the same outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeriesOutcome {
    pub(crate) code: u16,
    pub(crate) flags: &'static str,
    /// Of gRPC calls that ended with one.
    pub(crate) grpc_status: Option<u16>,
    pub(crate) count: u64,
    /// Messages of gRPC calls, request and response.
    pub(crate) messages: (u64, u64),
    pub(crate) duration: Histogram,
    pub(crate) request_bytes: Histogram,
    pub(crate) response_bytes: Histogram,
}

impl SeriesOutcome {
    /// Adds the counts of another.
    pub(crate) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.messages.0 += other.messages.0;
        self.messages.1 += other.messages.1;
        self.duration.merge(&other.duration);
        self.request_bytes.merge(&other.request_bytes);
        self.response_bytes.merge(&other.response_bytes);
    }

    /// Returns true if both are counted under the same labels.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.code == other.code
            && self.flags == other.flags
            && self.grpc_status == other.grpc_status
    }
}

/// Opaque connections of one series with the same outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TcpOutcome {
    pub(crate) flags: &'static str,
    pub(crate) opened: u64,
    pub(crate) closed: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) labels: Arc<Labels>,
    pub(crate) http: Vec<SeriesOutcome>,
    pub(crate) tcp: Vec<TcpOutcome>,
    age: u32,
    /// Something was counted since the last scrape.
    touched: bool,
    /// The last scrape at which something had been; none before the first.
    seen: Option<Instant>,
    /// The place is free.
    vacant: bool,
}

impl Series {
    fn new(labels: Arc<Labels>, age: u32) -> Self {
        Self {
            labels,
            http: Vec::new(),
            tcp: Vec::new(),
            age,
            touched: true,
            seen: None,
            vacant: false,
        }
    }

    /// Opaque connections that have not ended.
    fn open(&self) -> u64 {
        let sum = |of: fn(&TcpOutcome) -> u64| self.tcp.iter().map(of).sum::<u64>();
        sum(|outcome| outcome.opened).saturating_sub(sum(|outcome| outcome.closed))
    }
}

/// One worker's series.
#[derive(Debug)]
pub struct Shard {
    series: Vec<Series>,
    index: HashMap<Arc<Labels>, SeriesId>,
    /// Series by values of requests, by the series that they divide, and their values one after another.
    valued: HashMap<SeriesId, HashMap<Box<str>, SeriesId>>,
    overflowed: u64,
    expired: u64,
    vacant: Vec<u32>,
    limit: usize,
}

/// A copy of a shard, on its way to be merged.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(crate) series: Vec<Series>,
    pub(crate) overflowed: u64,
    pub(crate) expired: u64,
}

/// Place of the series `other`.
const OTHER: SeriesId = SeriesId { place: 0, age: 0 };

impl Default for Shard {
    fn default() -> Self {
        Self::with_limit(MAX_SERIES)
    }
}

impl Shard {
    /// A shard that keeps at most `limit` label sets.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self {
            series: vec![Series::new(Arc::new(Labels::other()), 0)],
            index: HashMap::new(),
            valued: HashMap::new(),
            overflowed: 0,
            expired: 0,
            vacant: Vec::new(),
            limit,
        }
    }

    /// The series of these labels: once per connection or route, not per request.
    pub fn series(&mut self, labels: &Labels) -> SeriesId {
        if let Some(id) = self.index.get(labels) {
            return *id;
        }
        if self.is_full() {
            self.overflowed += 1;
            return OTHER;
        }
        let labels = Arc::new(labels.clone());
        let id = self.push(Arc::clone(&labels));
        self.index.insert(labels, id);
        id
    }

    /// A series of its own whose labels are not final. Several may have the same labels; a scrape adds them up.
    pub fn provisional(&mut self, labels: &Labels) -> SeriesId {
        if self.is_full() {
            self.overflowed += 1;
            return OTHER;
        }
        self.push(Arc::new(labels.clone()))
    }

    /// The part of a series whose requests have these values, as `name` and value after value, each ended by a zero byte.
    /// It is the series itself where there are too many.
    pub fn valued<'a>(
        &mut self,
        id: SeriesId,
        key: &str,
        names: impl Iterator<Item = &'a Arc<str>>,
    ) -> SeriesId {
        let parts = self.valued.get(&id);
        if let Some(part) = parts.and_then(|parts| parts.get(key)) {
            return *part;
        }
        let all: usize = self.valued.values().map(HashMap::len).sum();
        let own = parts.map_or(0, HashMap::len);
        if own >= MAX_VALUED || all >= MAX_ALL_VALUED || self.is_full() || !self.is_current(id) {
            self.overflowed += 1;
            return id;
        }
        let mut labels = Labels::clone(self.labels(id));
        let values = key.split_terminator('\0').map(Box::from);
        labels.values = names.cloned().zip(values).collect();
        let part = self.push(Arc::new(labels));
        self.valued.entry(id).or_default().insert(key.into(), part);
        part
    }

    /// Gives a provisional series its final labels; later series with these labels are the same one.
    pub fn settle(&mut self, id: SeriesId, change: impl Fn(&mut Labels)) {
        if id == OTHER || !self.is_current(id) {
            return;
        }
        let parts = self.valued.get(&id).into_iter();
        for id in parts.flat_map(HashMap::values).chain([&id]) {
            let series = &mut self.series[id.place as usize];
            let mut labels = Labels::clone(&series.labels);
            change(&mut labels);
            series.labels = Arc::new(labels);
        }
        let labels = Arc::clone(&self.series[id.place as usize].labels);
        self.index.entry(labels).or_insert(id);
    }

    /// Returns the labels of a series, for a user that counts by it.
    #[must_use]
    pub fn shared_labels(&self, id: SeriesId) -> Arc<Labels> {
        Arc::clone(&self.series[id.place as usize].labels)
    }

    /// The labels of a series.
    #[must_use]
    pub fn labels(&self, id: SeriesId) -> &Labels {
        &self.series[id.place as usize].labels
    }

    /// Returns true if a series is still there. The owner of an expired id looks the series up again.
    #[must_use]
    pub fn is_current(&self, id: SeriesId) -> bool {
        self.series[id.place as usize].age == id.age
    }

    fn is_full(&self) -> bool {
        self.vacant.is_empty() && self.series.len() > self.limit
    }

    /// Returns the series to count in. An expired id counts in `other`.
    fn counted(&mut self, id: SeriesId) -> &mut Series {
        let place = if self.is_current(id) { id.place } else { 0 };
        let series = &mut self.series[place as usize];
        series.touched = true;
        series
    }

    fn push(&mut self, labels: Arc<Labels>) -> SeriesId {
        if let Some(place) = self.vacant.pop() {
            let series = &mut self.series[place as usize];
            let age = series.age;
            *series = Series::new(labels, age);
            return SeriesId { place, age };
        }
        let place = u32::try_from(self.series.len()).expect("invariant: bounded by MAX_SERIES");
        self.series.push(Series::new(labels, 0));
        SeriesId { place, age: 0 }
    }

    /// Drops the series in which nothing was counted for [`IDLE_SERIES`], as of a scrape at this moment.
    pub fn expire(&mut self, now: Instant) {
        for (place, series) in self.series.iter_mut().enumerate().skip(1) {
            if std::mem::take(&mut series.touched) || series.open() > 0 {
                series.seen = Some(now);
            }
            let seen = *series.seen.get_or_insert(now);
            if series.vacant || now.saturating_duration_since(seen) < IDLE_SERIES {
                continue;
            }
            let place = u32::try_from(place).expect("invariant: bounded by MAX_SERIES");
            let here = |id: &SeriesId| id.place == place;
            if self.index.get(&series.labels).is_some_and(here) {
                self.index.remove(&series.labels);
            }
            series.http = Vec::new();
            series.tcp = Vec::new();
            series.vacant = true;
            series.age = series.age.wrapping_add(1);
            self.vacant.push(place);
            self.expired += 1;
        }
        let series = &self.series;
        let is_current = |id: &SeriesId| series[id.place as usize].age == id.age;
        self.valued.retain(|id, parts| {
            parts.retain(|_, part| is_current(part));
            is_current(id) && !parts.is_empty()
        });
    }

    /// Counts one finished request.
    pub fn request(
        &mut self,
        id: SeriesId,
        (code, flags): (u16, &'static str),
        duration: Duration,
        sizes: (u64, u64),
    ) {
        self.count((id, code, flags, None), duration, sizes);
    }

    /// Counts one finished gRPC call: its status if it ended with one, and its messages, request and response.
    pub fn grpc(
        &mut self,
        id: SeriesId,
        (code, flags, status): (u16, &'static str, Option<u16>),
        duration: Duration,
        sizes: (u64, u64),
        (requests, responses): (u64, u64),
    ) {
        let messages = &mut self
            .count((id, code, flags, status), duration, sizes)
            .messages;
        messages.0 += requests;
        messages.1 += responses;
    }

    fn count(
        &mut self,
        (id, code, flags, grpc_status): (SeriesId, u16, &'static str, Option<u16>),
        duration: Duration,
        (request_bytes, response_bytes): (u64, u64),
    ) -> &mut SeriesOutcome {
        let outcomes = &mut self.counted(id).http;
        let found = outcomes.iter().position(|outcome| {
            outcome.code == code && outcome.flags == flags && outcome.grpc_status == grpc_status
        });
        let index = found.unwrap_or_else(|| add_outcome(outcomes, code, flags, grpc_status));
        let outcome = &mut outcomes[index];
        outcome.count += 1;
        outcome
            .duration
            .record_milli(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
        outcome.request_bytes.record(request_bytes);
        outcome.response_bytes.record(response_bytes);
        outcome
    }

    /// Counts an opaque connection that began.
    pub fn tcp_opened(&mut self, id: SeriesId) {
        self.tcp(id, "-").opened += 1;
    }

    /// Counts the end of an opaque connection and its bytes: `received` from the client, `sent` to it.
    pub fn tcp_closed(&mut self, id: SeriesId, flags: &'static str, received: u64, sent: u64) {
        let outcome = self.tcp(id, flags);
        outcome.closed += 1;
        outcome.received += received;
        outcome.sent += sent;
    }

    fn tcp(&mut self, id: SeriesId, flags: &'static str) -> &mut TcpOutcome {
        let outcomes = &mut self.counted(id).tcp;
        let found = outcomes.iter().position(|outcome| outcome.flags == flags);
        let index = found.unwrap_or_else(|| {
            outcomes.push(TcpOutcome {
                flags,
                ..TcpOutcome::default()
            });
            outcomes.len() - 1
        });
        &mut outcomes[index]
    }

    /// A copy for the scrape.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            series: self.series.clone(),
            overflowed: self.overflowed,
            expired: self.expired,
        }
    }
}

/// A new outcome, or the series' last one when an upstream has invented too many codes.
fn add_outcome(
    outcomes: &mut Vec<SeriesOutcome>,
    code: u16,
    flags: &'static str,
    grpc_status: Option<u16>,
) -> usize {
    if outcomes.len() < MAX_OUTCOMES {
        let none = Histogram::default;
        let code = if outcomes.len() == MAX_OUTCOMES - 1 {
            0
        } else {
            code
        };
        outcomes.push(SeriesOutcome {
            code,
            flags,
            grpc_status,
            count: 0,
            messages: (0, 0),
            duration: none(),
            request_bytes: none(),
            response_bytes: none(),
        });
    }
    outcomes.len() - 1
}
