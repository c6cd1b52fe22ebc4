//! The shapes that are more than trees: everybody calls everybody; and the two that are left to chance.

use super::{GraphShape, together};
use crate::model::{Graph, GraphService, Probability, ScriptStep, ServiceCall, Step};

/// Names of the tiers, by their task.
const TIERS: [&str; 5] = ["web", "api", "logic", "data", "store"];

/// Most services of a full mesh: its calls are their square.
const MAX_FULL: usize = 200;
/// Requests to other services that a request causes at any service but the first.
const ON_THE_WAY: f64 = 0.5;

/// Every pair calls each other. Half a request more for each one ends the circles: one at the first service makes two at each
/// other.
pub(super) fn full(plan: &GraphShape) -> Result<Graph, String> {
    let count = plan.services;
    if count > MAX_FULL {
        return Err(format!(
            "a mesh has at most {MAX_FULL} services, since each calls all others; not {count}"
        ));
    }
    let mut services: Vec<GraphService> = (0..count)
        .map(|place| GraphService::named(format!("svc-{place}")))
        .collect();
    // The first service has no callers.
    let seldom = ON_THE_WAY / (count as f64 - 2.0).max(1.0);
    // Rounds to hundredths of a percent of a percent: more digits are hard to read.
    let seldom = Probability::new((seldom * 1e6).round() / 1e6).unwrap_or(Probability::ALL);
    for (place, service) in services.iter_mut().enumerate() {
        let calls = (1..count).filter(|callee| *callee != place).map(|callee| {
            let mut call = ServiceCall::to(callee, plan.request_size);
            if place > 0 {
                call.probability = seldom;
            }
            ScriptStep::Call(call)
        });
        service.script.extend(together(calls.collect()));
    }
    Ok(Graph { services })
}

/// Widths grow towards the middle; each service calls one to three of the next tier, and each is called.
pub(super) fn multitier(plan: &GraphShape) -> Graph {
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let mut services = vec![GraphService::named("web-0")];
    let mut tiers = vec![vec![0]];
    // The first tier is the one entry; the others share the rest as 1 : 2 : 2 : 1.
    let rest = plan.services - 1;
    let parts = [1, 2, 2, 1];
    let mut given = 0;
    for (tier, name) in TIERS.iter().enumerate().skip(1) {
        let upto = rest * parts[..tier].iter().sum::<usize>() / parts.iter().sum::<usize>();
        let members: Vec<usize> = (given..upto).map(|place| place + 1).collect();
        given = upto;
        for number in 0..members.len() {
            services.push(GraphService::named(format!("{name}-{number}")));
        }
        if !members.is_empty() {
            tiers.push(members);
        }
    }
    for pair in tiers.windows(2) {
        let [callers, callees] = pair else { continue };
        let mut calls: Vec<Vec<usize>> = vec![Vec::new(); callers.len()];
        for (number, &callee) in callees.iter().enumerate() {
            // Deals the callees in turn, so that each gets a caller.
            calls[number % callers.len()].push(callee);
        }
        for own in &mut calls {
            for _ in 0..random.usize(0..=2) {
                let callee = callees[random.usize(0..callees.len())];
                if !own.contains(&callee) && own.len() < 3 {
                    own.push(callee);
                }
            }
            if own.is_empty() {
                own.push(callees[random.usize(0..callees.len())]);
            }
        }
        for (&caller, own) in callers.iter().zip(calls) {
            let own = own
                .into_iter()
                .map(|to| ScriptStep::Call(ServiceCall::to(to, plan.request_size)));
            services[caller].script.extend(together(own.collect()));
        }
    }
    Graph { services }
}

/// A tree by preferential attachment (a service with many callers gets more), at most six deep. Then calls to shared leaves
/// such as caches and stores, made in some requests only.
pub(super) fn realistic(plan: &GraphShape) -> Graph {
    /// Levels of calls: traces of large systems seldom go deeper.
    const DEPTH: usize = 6;
    /// One service in so many is a shared leaf.
    const SHARED: usize = 8;
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let shared = match plan.services {
        0..4 => 0,
        more => (more / SHARED).max(1),
    };
    let backbone = plan.services - shared;
    let mut services: Vec<GraphService> = (0..backbone)
        .map(|place| GraphService::named(format!("svc-{place}")))
        .collect();
    let mut depth = vec![1; backbone];
    let mut callees: Vec<Vec<usize>> = vec![Vec::new(); backbone];
    // Each service stands here once, and once more for each of its callees.
    let mut lots = vec![0];
    for place in 1..backbone {
        let parent = (0..8)
            .map(|_| lots[random.usize(0..lots.len())])
            .find(|&lot| depth[lot] < DEPTH)
            .unwrap_or(0);
        depth[place] = depth[parent] + 1;
        callees[parent].push(place);
        lots.extend([parent, place]);
    }
    services.extend((0..shared).map(|number| GraphService::named(format!("shared-{number}"))));
    let mut found = vec![false; shared];
    for (place, own) in callees.into_iter().enumerate() {
        let script = &mut services[place].script;
        // Half of the callees at once, the others in turn, after them.
        let (at_once, in_turn) = own.split_at(own.len().div_ceil(2));
        let call = |to: &usize| ScriptStep::Call(ServiceCall::to(*to, plan.request_size));
        script.extend(together(at_once.iter().map(call).collect()));
        script.extend(in_turn.iter().map(call).map(Step::One));
        // Leaves use shared services more often than those above them.
        let wanted = if own.is_empty() { 0.7 } else { 0.3 };
        if shared > 0 && random.f64() < wanted {
            // The square prefers the first: few are used by many.
            let which = (random.f64().powi(2) * shared as f64) as usize;
            found[which] = true;
            script.push(seldom(backbone + which, &mut random, plan.request_size));
        }
    }
    for (which, _) in found.iter().enumerate().filter(|(_, found)| !**found) {
        let caller = random.usize(0..backbone);
        let step = seldom(backbone + which, &mut random, plan.request_size);
        services[caller].script.push(step);
    }
    Graph { services }
}

fn seldom(to: usize, random: &mut fastrand::Rng, size: u64) -> Step {
    const PERCENT: [f64; 4] = [0.1, 0.25, 0.5, 1.0];
    let share = PERCENT[random.usize(0..PERCENT.len())];
    Step::One(ScriptStep::Call(ServiceCall {
        probability: Probability::new(share).unwrap_or(Probability::ALL),
        ..ServiceCall::to(to, size)
    }))
}
