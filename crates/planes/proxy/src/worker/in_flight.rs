//! Work in flight over all workers of a proxy, in total and by destination: the measure of limits and retry budgets.
//!
//! Each worker counts requests in a cache line of its own, with plain stores, so that counting has no shared cost; a sum reads
//! all lines. Retries are few and have one count, so that no budget is exceeded. The table of destinations is locked only when
//! a worker follows a plan.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use voile_http2::HeadBudget;
use voile_memory::{Ceiling, MemoryPressure};
use voile_traffic::RetryBudget;
use voile_xds::wire::WireLimits as Configured;

use crate::http::ResponseFlag;

/// Limits of a proxy; 0 is no limit of its own, and the configuration's holds.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProxyLimits {
    /// Downstream connections.
    pub connections: u32,
    /// Requests in flight, of all clients to all destinations.
    pub requests: u32,
    /// Requests in flight to one port of one service.
    pub requests_per_destination: u32,
    /// Resident memory in bytes; `u64::MAX` is the configuration's or else the cgroup's, whichever is less.
    pub memory: u64,
    /// Time that a completely received request may wait for the head of its answer; none: for ever, as in
    /// Istio.
    pub request_timeout: Option<Duration>,
    /// Bytes a second that a request body must bring once it has taken [`crate::http::limits::BODY_GRACE`].
    pub min_body_rate: u32,
}

/// Requests of one worker to one destination, alone in their cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane(AtomicU32);

/// One destination's counts.
#[derive(Debug)]
struct DestinationTally {
    active: Box<[Lane]>,
    /// Count of all workers: written only when a retry begins or ends.
    retrying: AtomicU32,
}

impl DestinationTally {
    fn new(lanes: usize) -> Arc<Self> {
        Arc::new(Self {
            active: (0..lanes).map(|_| Lane::default()).collect(),
            retrying: AtomicU32::new(0),
        })
    }
}

/// The limits that may change while the proxy runs; 0 is none.
#[derive(Debug, Default)]
struct InForce {
    connections: AtomicU32,
    requests: AtomicU32,
    requests_per_destination: AtomicU32,
}

/// State that the workers of a proxy share.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Limits of the command line.
    pub(crate) limits: ProxyLimits,
    /// The cgroup's memory limit; 0 is none.
    cgroup: u64,
    in_force: InForce,
    pub(crate) ceiling: Ceiling,
    /// Large heads of all connections.
    pub(crate) heads: Arc<HeadBudget>,
    lanes: usize,
    all: Arc<DestinationTally>,
    destinations: Mutex<HashMap<(String, u16), Weak<DestinationTally>>>,
    /// Requests refused, by [`Overload`].
    refused: [AtomicU64; 5],
}

/// Why work is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overload {
    Memory,
    Requests,
    Destination,
    /// Connections and requests that wait for their destination, by address or by name.
    Waiting,
    /// Streams with large heads, of which there are too many.
    Heads,
}

impl Overload {
    pub(crate) const ALL: [Self; 5] = [
        Self::Memory,
        Self::Requests,
        Self::Destination,
        Self::Waiting,
        Self::Heads,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Requests => "requests",
            Self::Destination => "requests_per_destination",
            Self::Waiting => "waiting",
            Self::Heads => "heads",
        }
    }

    pub(crate) fn flag(self) -> ResponseFlag {
        match self {
            Self::Memory | Self::Heads => ResponseFlag::OverloadManager,
            Self::Requests | Self::Destination | Self::Waiting => ResponseFlag::UpstreamOverflow,
        }
    }

    /// For the client, in one line.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Memory => "overload: the proxy is near its memory limit",
            Self::Requests => "overload: too many requests in flight through this proxy",
            Self::Destination => "overload: too many requests in flight to this destination",
            Self::Heads => "overload: large request heads have reached their memory limit",
            Self::Waiting => {
                "overload: too many requests wait for their destination, or the control plane did not answer in time"
            }
        }
    }
}

impl Ledger {
    /// Makes the ledger of a proxy whose cgroup has the given memory limit, if any.
    pub(crate) fn new(limits: ProxyLimits, cgroup: Option<u64>, workers: usize) -> Arc<Self> {
        let heads = Arc::new(HeadBudget::of_process());
        let budget = Arc::clone(&heads);
        // At the ceiling no large head is taken.
        let ceiling = Ceiling::new(0, move |level| {
            budget.close(level == MemoryPressure::Closed);
        });
        let ledger = Self {
            limits,
            cgroup: cgroup.unwrap_or(0),
            in_force: InForce::default(),
            ceiling,
            heads,
            lanes: workers,
            all: DestinationTally::new(workers),
            destinations: Mutex::default(),
            refused: Default::default(),
        };
        ledger.obey(&Configured::default());
        Arc::new(ledger)
    }

    /// Takes the configuration's limits if the command line has none.
    pub(crate) fn obey(&self, configured: &Configured) {
        let or = |own: u32, other: u32| if own == 0 { other } else { own };
        let (own, force) = (&self.limits, &self.in_force);
        let set = |limit: &AtomicU32, value| limit.store(value, Ordering::Relaxed);
        set(
            &force.connections,
            or(own.connections, configured.connections),
        );
        set(&force.requests, or(own.requests, configured.requests));
        let destination = or(
            own.requests_per_destination,
            configured.requests_per_destination,
        );
        set(&force.requests_per_destination, destination);
        let memory = match (own.memory, configured.memory, self.cgroup) {
            (u64::MAX, 0, cgroup) => cgroup,
            (u64::MAX, configured, 0) => configured,
            (u64::MAX, configured, cgroup) => configured.min(cgroup),
            (own, ..) => own,
        };
        if self.ceiling.set(memory) {
            tracing::info!(bytes = memory, "memory limit");
            self.heads.fit_into(memory);
        }
    }

    /// Most downstream connections; 0 is any number.
    pub(crate) fn max_connections(&self) -> u32 {
        self.in_force.connections.load(Ordering::Relaxed)
    }

    fn destination(&self, host: &str, port: u16) -> Arc<DestinationTally> {
        let mut all = self
            .destinations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let key = (host.to_owned(), port);
        if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        if all.len() == all.capacity() {
            all.retain(|_, tally| tally.strong_count() > 0);
        }
        let fresh = DestinationTally::new(self.lanes);
        all.insert(key, Arc::downgrade(&fresh));
        fresh
    }

    /// Forgets destinations without users.
    pub(crate) fn forget_unused(&self) {
        let mut all = self
            .destinations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, tally| tally.strong_count() > 0);
        all.shrink_to_fit();
    }

    pub(crate) fn refused(&self, why: Overload) -> u64 {
        match why {
            Overload::Heads => self.heads.refused(),
            why => self.refused[why as usize].load(Ordering::Relaxed),
        }
    }

    pub(crate) fn count_refused(&self, why: Overload) {
        self.refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// A worker's place at the ledger.
#[derive(Debug, Clone)]
pub(crate) struct WorkerAccount {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) lane: usize,
}

impl Default for WorkerAccount {
    /// The only worker of a proxy without limits.
    fn default() -> Self {
        Self {
            ledger: Ledger::new(ProxyLimits::default(), None, 1),
            lane: 0,
        }
    }
}

impl WorkerAccount {
    /// The account of everything this proxy does.
    pub(crate) fn all(&self) -> Rc<Account> {
        Rc::new(Account {
            tally: Arc::clone(&self.ledger.all),
            lane: self.lane,
        })
    }

    /// The account of one destination.
    pub(crate) fn destination(&self, host: &str, port: u16) -> Rc<Account> {
        Rc::new(Account {
            tally: self.ledger.destination(host, port),
            lane: self.lane,
        })
    }

    /// Admits one more request, if the limits allow it.
    pub(crate) fn admit(
        &self,
        all: &Rc<Account>,
        destination: Option<&Rc<Account>>,
    ) -> Result<(), Overload> {
        let limits = &self.ledger.in_force;
        let over = |account: &Account, limit: &AtomicU32| {
            let limit = limit.load(Ordering::Relaxed);
            limit > 0 && account.active() >= limit
        };
        let why = if self.ledger.ceiling.is_closed() {
            Overload::Memory
        } else if over(all, &limits.requests) {
            Overload::Requests
        } else if destination.is_some_and(|to| over(to, &limits.requests_per_destination)) {
            Overload::Destination
        } else {
            return Ok(());
        };
        self.ledger.count_refused(why);
        Err(why)
    }
}

/// One worker's hand on a destination's counts.
#[derive(Debug)]
pub(crate) struct Account {
    tally: Arc<DestinationTally>,
    lane: usize,
}

impl Account {
    /// Requests in flight, of all workers.
    pub(crate) fn active(&self) -> u32 {
        let lanes = self.tally.active.iter();
        lanes.map(|lane| lane.0.load(Ordering::Relaxed)).sum()
    }

    /// Retries in flight, of all workers.
    #[cfg(test)]
    pub(crate) fn retrying(&self) -> u32 {
        self.tally.retrying.load(Ordering::Relaxed)
    }

    /// Counts a request until what it gives is dropped.
    pub(crate) fn begin(self: &Rc<Self>) -> RequestInFlight {
        add(&self.tally.active[self.lane].0, 1);
        RequestInFlight(Rc::clone(self))
    }

    /// Counts a retry, for which the budget must have room unless something else bounds it, until what it gives is dropped.
    pub(crate) fn retry(self: &Rc<Self>, budget: Option<&RetryBudget>) -> Option<RetryInFlight> {
        let one_more = |retrying: u32| {
            // Read again if another worker was faster: each decision uses the work in flight at that moment.
            let room = budget.is_none_or(|budget| budget.allows(self.active(), retrying));
            room.then_some(retrying + 1)
        };
        let retrying = &self.tally.retrying;
        let taken = retrying.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.ok().map(|_| RetryInFlight(Rc::clone(self)))
    }
}

/// Only one thread writes a lane, so nothing needs to be exchanged.
fn add(counter: &AtomicU32, by: u32) {
    let value = counter.load(Ordering::Relaxed).wrapping_add(by);
    counter.store(value, Ordering::Relaxed);
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct RequestInFlight(Rc<Account>);

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        add(&self.0.tally.active[self.0.lane].0, u32::MAX);
    }
}

/// A retry in flight.
#[derive(Debug)]
pub(crate) struct RetryInFlight(Rc<Account>);

impl Drop for RetryInFlight {
    fn drop(&mut self) {
        self.0.tally.retrying.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_limits_where_the_command_line_does_not() {
        let auto = u64::MAX;
        // (own requests, memory), cgroup, (configured requests, memory) → in force
        let table = [
            ((0, auto), None, (0, 0), (0, 0)),
            ((0, auto), Some(50), (0, 0), (0, 50)),
            ((0, auto), Some(50), (3, 70), (3, 50)),
            ((0, auto), Some(50), (3, 40), (3, 40)),
            ((0, auto), None, (3, 70), (3, 70)),
            ((2, 60), Some(50), (3, 70), (2, 60)),
            ((2, 0), Some(50), (3, 70), (2, 0)),
        ];
        for (own, cgroup, configured, expected) in table {
            let limits = ProxyLimits {
                requests: own.0,
                memory: own.1,
                ..ProxyLimits::default()
            };
            let ledger = Ledger::new(limits, cgroup, 1);
            ledger.obey(&Configured {
                requests: configured.0,
                memory: configured.1,
                ..Configured::default()
            });
            let requests = ledger.in_force.requests.load(Ordering::Relaxed);
            assert_eq!(
                (requests, ledger.ceiling.limit()),
                expected,
                "{own:?} {cgroup:?} {configured:?}"
            );
            ledger.obey(&Configured::default());
            assert_eq!(ledger.in_force.requests.load(Ordering::Relaxed), own.0);
        }
    }

    #[test]
    fn workers_share_what_they_count_of_a_destination() {
        let ledger = Ledger::new(
            ProxyLimits {
                requests: 3,
                requests_per_destination: 2,
                ..ProxyLimits::default()
            },
            None,
            2,
        );
        let seat = |lane| WorkerAccount {
            ledger: Arc::clone(&ledger),
            lane,
        };
        let (one, two) = (seat(0), seat(1));
        let (mine, theirs) = (one.destination("a", 80), two.destination("a", 80));
        let other = two.destination("a", 81);
        let (all_mine, all_theirs) = (one.all(), two.all());
        let first = (mine.begin(), all_mine.begin());
        assert_eq!(two.admit(&all_theirs, Some(&theirs)), Ok(()));
        let _second = (theirs.begin(), all_theirs.begin());
        assert_eq!((mine.active(), theirs.active(), other.active()), (2, 2, 0));
        let refused = one.admit(&all_mine, Some(&mine));
        assert_eq!(refused, Err(Overload::Destination));
        assert_eq!(two.admit(&all_theirs, Some(&other)), Ok(()));
        let _third = (other.begin(), all_theirs.begin());
        assert_eq!(one.admit(&all_mine, None), Err(Overload::Requests));
        drop(first);
        assert_eq!(one.admit(&all_mine, Some(&mine)), Ok(()));
        assert_eq!(ledger.refused(Overload::Destination), 1);
        let retry = mine.retry(None).expect("nothing bounds it");
        assert_eq!((theirs.retrying(), theirs.active()), (1, 1));
        drop(retry);
        assert_eq!(theirs.retrying(), 0);
    }

    /// Seats of the workers of one proxy without limits.
    fn seats(workers: usize) -> Vec<WorkerAccount> {
        let ledger = Ledger::new(ProxyLimits::default(), None, workers);
        let seat = |lane| WorkerAccount {
            ledger: Arc::clone(&ledger),
            lane,
        };
        (0..workers).map(seat).collect()
    }

    #[test]
    fn a_retry_begins_exactly_where_its_budget_has_room() {
        let (mut granted, mut refused) = (0, 0);
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let budget = RetryBudget {
                percent_thousandths: random.u32(..=100_000),
                min: random.u32(..4),
            };
            let seats = seats(3);
            let accounts: Vec<_> = seats.iter().map(|seat| seat.destination("a", 80)).collect();
            let (mut requests, mut retries) = (Vec::new(), Vec::new());
            for step in 0..300 {
                let account = &accounts[random.usize(..3)];
                match random.u8(..7) {
                    0..3 => requests.push(account.begin()),
                    3 if !requests.is_empty() => {
                        requests.swap_remove(random.usize(..requests.len()));
                    }
                    4 if !retries.is_empty() => {
                        retries.swap_remove(random.usize(..retries.len()));
                    }
                    _ => {
                        let share = requests.len() * budget.percent_thousandths as usize / 100_000;
                        let room = retries.len() < share.max(budget.min as usize);
                        let retry = account.retry(Some(&budget));
                        assert_eq!(retry.is_some(), room, "{seed}, {step}: {budget:?}");
                        granted += u32::from(room);
                        refused += u32::from(!room);
                        retries.extend(retry);
                    }
                }
                let counted = (account.active() as usize, account.retrying() as usize);
                assert_eq!(counted, (requests.len(), retries.len()), "{seed}, {step}");
            }
        }
        assert!(granted > 1_000 && refused > 1_000, "{granted}, {refused}");
    }

    #[test]
    fn a_budget_is_never_passed_by_workers_that_decide_at_once() {
        const WORKERS: usize = 4;
        const REQUESTS: usize = 10;
        let budget = RetryBudget {
            percent_thousandths: 20_000,
            min: 3,
        };
        // A fifth of all requests.
        let most = 8;
        let begun = std::sync::Barrier::new(WORKERS);
        let [under_way, highest, taken] = [0; 3].map(AtomicU32::new);
        std::thread::scope(|scope| {
            for seat in seats(WORKERS) {
                let (begun, under_way) = (&begun, &under_way);
                let (highest, taken) = (&highest, &taken);
                scope.spawn(move || {
                    let account = seat.destination("a", 80);
                    let requests: Vec<_> = (0..REQUESTS).map(|_| account.begin()).collect();
                    begun.wait();
                    for _ in 0..20_000 {
                        // More than its part of the budget, so that workers meet at the last place.
                        let retries: Vec<_> = (0..4)
                            .filter_map(|_| {
                                let retry = account.retry(Some(&budget))?;
                                let others = under_way.fetch_add(1, Ordering::Relaxed);
                                highest.fetch_max(others + 1, Ordering::Relaxed);
                                Some(retry)
                            })
                            .collect();
                        taken.fetch_add(retries.len() as u32, Ordering::Relaxed);
                        for retry in retries {
                            under_way.fetch_sub(1, Ordering::Relaxed);
                            drop(retry);
                        }
                    }
                    begun.wait();
                    assert_eq!(account.active() as usize, WORKERS * REQUESTS);
                    assert_eq!(account.retrying(), 0);
                    begun.wait();
                    drop(requests);
                });
            }
        });
        let highest = highest.into_inner();
        assert!(highest <= most, "{highest} at once, {most} may be");
        assert!(taken.into_inner() > 20_000, "retries were hardly made");
    }
}
