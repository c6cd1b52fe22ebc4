//! Selection of a service's endpoint for a request. A worker prepares the list of endpoints when it follows a plan. The
//! selection writes no state that other workers use.
//!
//! ```text
//! endpoints ─▶ parts (a priority, or a locality of one) ─▶ each its Balancer      made when a plan is obeyed
//! health    ─▶ Tiers: the parts' shares                                           made anew off the request's way
//! request   ─▶ part ─▶ endpoint                                                   a constant number of steps
//! ```

mod choice;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use voile_traffic::balance::{
    Balancer, EndpointCost, EndpointGroup, EndpointLocality, EndpointTiers, Warmup,
};

use crate::clock;
use crate::health::Watch;
use crate::plan::{BalancePlan, EndpointRank};
use crate::worker::upstream::endpoint::Endpoint;

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
    warmup: Option<&'a Warmup>,
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
        match self.warmup {
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
