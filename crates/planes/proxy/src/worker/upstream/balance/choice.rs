//! Selection of the endpoint by the worker's chance and the shares of the moment.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use voile_traffic::balance::{Algorithm, Balancer, RingEndpoint};

use super::{
    Balance, BalancedParts, EndpointPreference, PartView, PriorityGroup, RECKON_IN_NEED,
    ServiceEndpoints, tiers,
};
use crate::clock;
use crate::health::Watch;
use crate::plan::{BalancePlan, EndpointRank};
use crate::worker::Worker;
use crate::worker::upstream::endpoint::{Endpoint, InFlight};

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
                by_load: wish.opaque || self.plan.algorithm != Algorithm::LeastCost,
                warmup: self.plan.warmup.as_ref(),
            };
            let place = balancer.choose(&view, wish.key, || worker.random())?;
            Some(view.members[place])
        })
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
