//! Errors of a graph as a whole: circles that never end, floods, services that nothing reaches.

use std::collections::VecDeque;

use voile_model::{Diagnostic, Severity};

use crate::codes;
use crate::model::{FieldLocation, Graph, GraphService};
use crate::weigh::{calls, circles, growth, weigh};

/// Most requests that one request may cause in all: beyond it a graph is a mistake, not a load.
pub const MAX_REQUESTS: f64 = 100_000.0;
/// A circle whose requests lose less than a thousandth a round is as good as endless.
const ENDLESS_GROWTH: f64 = 0.999;

/// Every problem of the whole graph.
#[must_use]
pub fn check(graph: &Graph) -> Vec<Diagnostic> {
    let calls = calls(graph);
    let mut problems = Vec::new();
    let mut endless = false;
    for group in circles(&calls) {
        if let Some(growth) = growth(&calls, &group) {
            endless |= growth >= ENDLESS_GROWTH;
            problems.push(circle(graph, &calls, &group, growth));
        }
    }
    let entries = graph.entries();
    if !graph.services.iter().any(|service| service.entry)
        && let Some(first) = graph.services.first()
    {
        let names: Vec<&str> = entries
            .iter()
            .map(|&place| &*graph.services[place].name)
            .take(5)
            .collect();
        problems.push(
            at(
                Severity::Warning,
                codes::NO_ENTRY,
                &first.at,
                "no service is an entry point".to_owned(),
            )
            .help(format!(
                "write `isEntrypoint: true`; until then requests enter at {}",
                names.join(", ")
            )),
        );
    }
    unreached(graph, &calls, &entries, &mut problems);
    if !endless {
        for &entry in &entries {
            let total = weigh(graph, entry).total();
            if total > MAX_REQUESTS {
                let place = &graph.services[entry].at;
                let message = format!(
                    "one request to `{}` would cause {total:.0} requests, more than the {MAX_REQUESTS} allowed",
                    graph.services[entry].name
                );
                problems.push(
                    at(Severity::Error, codes::TOO_MANY_CALLS, place, message)
                        .help("make fewer or less probable calls on the deepest path"),
                );
            }
        }
    }
    problems.extend(without_effect(graph));
    Diagnostic::sort(&mut problems);
    problems
}

fn at(
    severity: Severity,
    code: &'static str,
    place: &FieldLocation,
    message: String,
) -> Diagnostic {
    let problem = match severity {
        Severity::Error => Diagnostic::error(code, place.source.clone(), message),
        Severity::Warning => Diagnostic::warning(code, place.source.clone(), message),
        Severity::Note => Diagnostic::note(code, place.source.clone(), message),
    };
    problem.field(&*place.field)
}

fn circle(graph: &Graph, calls: &[Vec<(usize, f64)>], group: &[usize], growth: f64) -> Diagnostic {
    let way = shortest(calls, group);
    let mut names: Vec<&str> = way
        .iter()
        .map(|&place| &*graph.services[place].name)
        .collect();
    names.extend(names.first().copied());
    let from = &graph.services[way[0]];
    let to = way.get(1).copied().unwrap_or(way[0]);
    let place = from.calls().find(|call| call.service == to);
    let place = place.map_or(&from.at, |call| &call.at);
    let names = names.join(" → ");
    if growth >= ENDLESS_GROWTH {
        let message = format!("calls form an endless cycle: {names}");
        return at(Severity::Error, codes::ENDLESS, place, message).help(format!(
            "each round turns one request into {growth:.3}; give a call of the cycle a lower `probability`"
        ));
    }
    let message = format!("calls form a cycle: {names}");
    at(Severity::Warning, codes::CIRCLE, place, message).help(format!(
        "it ends, because each round turns one request into only {growth:.3}"
    ))
}

/// The shortest circle through the first service of a group that is in one.
fn shortest(calls: &[Vec<(usize, f64)>], group: &[usize]) -> Vec<usize> {
    let start = group[0];
    let mut from = vec![None; calls.len()];
    let mut queue = VecDeque::from([start]);
    while let Some(service) = queue.pop_front() {
        for &(callee, _) in &calls[service] {
            if callee == start {
                let mut way = vec![service];
                while let Some(before) = from[way[way.len() - 1]] {
                    way.push(before);
                }
                way.reverse();
                return way;
            }
            if from[callee].is_none() && group.contains(&callee) {
                from[callee] = Some(service);
                queue.push_back(callee);
            }
        }
    }
    vec![start]
}

fn unreached(
    graph: &Graph,
    calls: &[Vec<(usize, f64)>],
    entries: &[usize],
    problems: &mut Vec<Diagnostic>,
) {
    let mut reached = vec![false; calls.len()];
    let mut next = entries.to_vec();
    while let Some(service) = next.pop() {
        if !std::mem::replace(&mut reached[service], true) {
            next.extend(calls[service].iter().map(|(callee, _)| *callee));
        }
    }
    for (service, _) in graph
        .services
        .iter()
        .zip(reached)
        .filter(|(_, reached)| !reached)
    {
        let message = format!("no service calls `{}`", service.name);
        problems.push(
            at(Severity::Warning, codes::UNREACHED, &service.at, message)
                .help("call it, or make it an entry point"),
        );
    }
}

/// Warns of settings without effect. One machine runs one mesh: only the latency of calls tells clusters apart. The warning
/// comes once, since a setting without effect at one service has none at any.
fn without_effect(graph: &Graph) -> Vec<Diagnostic> {
    let all = 0..graph.services.len();
    let mut calls = all.flat_map(|from| {
        let calls = graph.services[from].calls();
        calls.map(move |call| (from, call.service))
    });
    if calls.any(|(from, to)| !graph.between_clusters(from, to).is_zero()) {
        return Vec::new();
    }
    let say = |what: &str, service: &GraphService, help: &str| {
        let message = format!("{what} of `{}` has no effect", service.name);
        at(
            Severity::Warning,
            codes::WITHOUT_EFFECT,
            &service.at,
            message,
        )
        .help(help)
    };
    let mut services = graph.services.iter();
    let named = services.find(|one| one.cluster.is_some()).map(|one| {
        let help = "all services run in one mesh: `clusterLatency: 5ms`, of a service or under `defaults`, adds that time to its calls to services of another cluster";
        say("`cluster`", one, help)
    });
    let mut services = graph.services.iter();
    let timed = services.find(|one| !one.cluster_latency.is_zero());
    let timed = timed.map(|one| {
        let help = "it applies to calls to another cluster, and there is none: set `cluster` at both ends of a call";
        say("`clusterLatency`", one, help)
    });
    named.into_iter().chain(timed).collect()
}
