//! Selection of a service's endpoint for a request. A worker prepares the list of endpoints when it follows a plan. The
//! selection writes no state that other workers use.
//!
//! ```text
//! endpoints ─▶ parts (a priority, or a locality of one) ─▶ each its Balancer      made when a plan is obeyed
//! health    ─▶ Tiers: the parts' shares                                           made anew off the request's way
//! request   ─▶ part ─▶ endpoint                                                   a constant number of steps
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use voile_traffic::balance::{
    Algorithm, Balancer, EndpointCost, EndpointGroup, EndpointLocality, EndpointTiers,
    RingEndpoint, SlowStart,
};

use crate::clock;
use crate::health::Watch;
use crate::plan::{BalancePlan, EndpointRank, Measure};
use crate::worker::Worker;
use crate::worker::endpoint::{Endpoint, InFlight};

/// See the module.
pub(crate) struct Balance {
    plan: BalancePlan,
    parts: RefCell<BalancedParts>,
    /// Time of the last computation of the shares, the outliers' number of changes then, and true if an
    /// endpoint was ejected.
    reckoned: Cell<(Duration, u64, bool)>,
}

/// Groups of endpoints over which requests are spread.
struct BalancedParts {
    parts: Vec<PriorityGroup>,
    tiers: EndpointTiers,
    /// By the groups of `tiers`: the index of the part, and true if its ejected endpoints receive traffic,
    /// too.
    groups: Vec<(usize, bool)>,
}

/// Endpoints of one priority, or of one locality of it.
struct PriorityGroup {
    rank: EndpointRank,
    members: Box<[u32]>,
    balancer: Balancer,
}

/// Requirements of one request on its endpoint.
#[derive(Clone, Copy, Default)]
pub(crate) struct EndpointPreference<'a> {
    /// Requests of one key keep together, where keys decide.
    pub(crate) key: Option<u64>,
    /// Pool keys of the endpoints that failed the request before.
    pub(crate) tried: &'a [u32],
    /// True for an opaque connection.
    pub(crate) opaque: bool,
    /// The host that the client named, where that decides.
    pub(crate) host: Option<&'a str>,
}

/// Endpoints of a service, and the ejected ones among them.
#[derive(Clone, Copy)]
pub(crate) struct ServiceEndpoints<'a> {
    pub(crate) endpoints: &'a [Rc<Endpoint>],
    pub(crate) watch: Option<&'a Watch>,
}

/// One part as a choice sees it.
struct PartView<'a> {
    of: ServiceEndpoints<'a>,
    members: &'a [u32],
    wish: EndpointPreference<'a>,
    now: Duration,
    by_load: bool,
    /// So few are well that all are asked.
    panics: bool,
    slow_start: Option<&'a SlowStart>,
}

impl PartView<'_> {
    fn endpoint(&self, place: usize) -> &Endpoint {
        &self.of.endpoints[self.members[place] as usize]
    }
}

impl EndpointCost for PartView<'_> {
    fn cost(&self, place: usize) -> f64 {
        let endpoint = self.endpoint(place);
        let (vitals, weight) = (endpoint.vitals().borrow(), endpoint.plan.weight);
        match self.by_load {
            true => vitals.load(weight, self.now),
            false => vitals.cost(weight, self.now),
        }
    }

    fn is_available(&self, place: usize) -> bool {
        let out = |watch: &Watch| watch.is_out(self.members[place], self.now);
        let untried = !self.wish.tried.contains(&self.endpoint(place).key);
        untried && (self.panics || !self.of.watch.is_some_and(out))
    }

    fn warmth(&self, place: usize) -> f64 {
        match self.slow_start {
            None => 1.0,
            some => self
                .endpoint(place)
                .vitals()
                .borrow()
                .warmth(some, self.now),
        }
    }
}

/// Interval for which the shares hold while an endpoint is ejected; it may return within that time.
const RECKON_EVERY: Duration = Duration::from_millis(500);

/// The same while no endpoint is available.
const RECKON_IN_NEED: Duration = Duration::from_millis(10);

impl Balance {
    /// Creates the balancers for a plan's endpoints.
    pub(crate) fn new(worker: &Worker, plan: &BalancePlan, of: ServiceEndpoints<'_>) -> Self {
        let mut members = BTreeMap::<EndpointRank, Vec<u32>>::new();
        for (place, endpoint) in of.endpoints.iter().enumerate() {
            // An endpoint that may never receive requests has no share. An ejected endpoint returns later and
            // keeps its share.
            if endpoint.plan.available {
                let part = members.entry(endpoint.plan.rank).or_default();
                part.push(place as u32);
            }
        }
        let part = |(rank, members): (&EndpointRank, &Vec<u32>)| PriorityGroup {
            rank: *rank,
            members: members.as_slice().into(),
            balancer: balancer(worker, plan.algorithm, members, of.endpoints),
        };
        let parts: Vec<PriorityGroup> = members.iter().map(part).collect();
        let now = clock::now();
        let (tiers, groups, sick) = tiers(plan, &parts, of, now);
        let changes = of.watch.map_or(0, Watch::changes);
        Self {
            plan: plan.clone(),
            parts: RefCell::new(BalancedParts {
                parts,
                tiers,
                groups,
            }),
            reckoned: Cell::new((now, changes, sick)),
        }
    }

    /// Selects the endpoint for a request; `None` if no endpoint may take it.
    pub(crate) fn choose(
        &self,
        worker: &Worker,
        of: ServiceEndpoints<'_>,
        wish: EndpointPreference<'_>,
    ) -> Option<InFlight> {
        if let ([only], None) = (of.endpoints, of.watch) {
            let takes = only.plan.available && !wish.tried.contains(&only.key);
            return takes.then(|| InFlight::begin(only, 0, None));
        }
        let now = clock::now();
        let place = self.place(worker, of, wish, now).or_else(|| {
            // An endpoint may be back since the last computation. While none is, not every request computes the shares
            // again.
            let reckoned = self.reckon(of, now, RECKON_IN_NEED);
            reckoned.then(|| self.place(worker, of, wish, now))?
        })?;
        let chosen = &of.endpoints[place as usize];
        Some(InFlight::begin(chosen, place, Some(now)))
    }

    fn place(
        &self,
        worker: &Worker,
        of: ServiceEndpoints<'_>,
        wish: EndpointPreference<'_>,
        now: Duration,
    ) -> Option<u32> {
        let mut parts = self.parts.borrow_mut();
        let BalancedParts {
            parts,
            tiers,
            groups,
        } = &mut *parts;
        let first = match groups.len() {
            0 => return None,
            1 => 0,
            _ => tiers.choose(worker.random())?,
        };
        // If no endpoint of a group may take the request, the other groups follow in the order of their
        // priorities.
        let others = (0..groups.len()).filter(|group| *group != first);
        std::iter::once(first).chain(others).find_map(|group| {
            let (part, panics) = groups[group];
            let PriorityGroup {
                members, balancer, ..
            } = &mut parts[part];
            let view = PartView {
                of,
                members,
                wish,
                now,
                panics,
                by_load: wish.opaque || self.plan.measure == Measure::Load,
                slow_start: self.plan.slow_start.as_ref(),
            };
            let place = balancer.choose(&view, wish.key, || worker.random())?;
            Some(view.members[place])
        })
    }

    /// Computes the shares again if an endpoint was ejected, or may be back. Not on a request's path.
    pub(crate) fn refresh(&self, of: ServiceEndpoints<'_>) {
        self.reckon(of, clock::now(), RECKON_EVERY);
    }

    /// Computes the shares if they are due; returns true if it did.
    fn reckon(&self, of: ServiceEndpoints<'_>, now: Duration, every: Duration) -> bool {
        let Some(watch) = of.watch else {
            return false;
        };
        let (then, seen, sick) = self.reckoned.get();
        let changes = watch.changes();
        let matters = self.plan.spread.panic_percent > 0 || self.parts.borrow().parts.len() > 1;
        // A single part always takes the request, and its balancer skips ejected endpoints.
        let due = changes != seen || (sick && now.saturating_sub(then) >= every);
        if !due || !matters {
            return false;
        }
        let mut parts = self.parts.borrow_mut();
        let (tiers, groups, sick) = tiers(&self.plan, &parts.parts, of, now);
        (parts.tiers, parts.groups) = (tiers, groups);
        self.reckoned.set((now, changes, sick));
        true
    }
}

fn balancer(
    worker: &Worker,
    algorithm: Algorithm,
    members: &[u32],
    endpoints: &[Rc<Endpoint>],
) -> Balancer {
    let members = members.iter().map(|place| &endpoints[*place as usize]);
    let hashes = matches!(algorithm, Algorithm::RingHash(_) | Algorithm::Maglev(_));
    let named = members.map(|endpoint| {
        let name = match (hashes, &endpoint.plan.name) {
            (false, _) => String::new(),
            (true, Some(name)) if name.logical => {
                format!("{}:{}", name.host, endpoint.plan.address.port())
            }
            (true, _) => endpoint.plan.address.to_string(),
        };
        (name, endpoint.plan.weight)
    });
    let named: Vec<(String, u32)> = named.collect();
    let placed = named.iter().map(|(name, weight)| RingEndpoint {
        name,
        weight: *weight,
    });
    let placed: Vec<RingEndpoint<'_>> = placed.collect();
    Balancer::new(algorithm, &placed, || worker.random())
}

/// Shares of the parts, by their numbers of healthy endpoints; the part of each group; and true if an endpoint is
/// ejected.
fn tiers(
    plan: &BalancePlan,
    parts: &[PriorityGroup],
    among: ServiceEndpoints<'_>,
    now: Duration,
) -> (EndpointTiers, Vec<(usize, bool)>, bool) {
    // With a single part there is no need to count its healthy endpoints.
    let counts = parts.len() > 1 || plan.spread.panic_percent > 0;
    let out = |watch: &Watch, place: u32| watch.is_out(place, now);
    let out = |place: u32| counts && among.watch.is_some_and(|watch| out(watch, place));
    let of = |part: usize| parts[part].members.iter().map(move |place| (part, *place));
    let all: Vec<(usize, u32)> = (0..parts.len()).flat_map(of).collect();
    let places = all.iter().map(|(part, place)| {
        let rank = parts[*part].rank;
        EndpointLocality {
            priority: rank.priority,
            locality: rank.locality,
            locality_weight: rank.locality_weight,
            weight: among.endpoints[*place as usize].plan.weight,
            healthy: !out(*place),
        }
    });
    let places: Vec<EndpointLocality> = places.collect();
    let sick = places.iter().any(|place| !place.healthy);
    let tiers = EndpointTiers::new(&places, &plan.spread, plan.zones.as_deref());
    let group = |group: &EndpointGroup| {
        let first = group.members.first()?;
        Some((all[*first as usize].0, group.panics))
    };
    let groups = tiers.groups().iter().filter_map(group).collect();
    (tiers, groups, sick)
}
