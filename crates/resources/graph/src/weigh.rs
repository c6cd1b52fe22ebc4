//! Number of requests that each service gets for one at an entry point, and a check that circles of calls end.
//!
//! Calls are a matrix of expected numbers, `calls[a][b]`; requests are the least solution of `x = entry + x · calls`. Inside a
//! circle, a solution exists only if the largest eigenvalue of the circle's part is below 1.

use crate::model::Graph;

/// Load that one request at an entry point causes.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// Requests at each service, the entry's own counted. Errors are not considered: a failed step ends a script early.
    pub requests: Vec<f64>,
    /// Longest way of calls, in services; circles count once.
    pub depth: usize,
}

impl Weights {
    /// Requests at all services together.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.requests.iter().sum()
    }

    /// Number of services that are reached.
    #[must_use]
    pub fn reached(&self) -> usize {
        self.requests
            .iter()
            .filter(|&&requests| requests > 0.0)
            .count()
    }
}

/// A number of requests for people: whole where it is, else with two digits.
#[must_use]
pub fn shown(requests: f64) -> String {
    match (requests - requests.round()).abs() < 1e-6 {
        true => format!("{requests:.0}"),
        false => format!("{requests:.2}"),
    }
}

/// Expected calls from each service to others, summed by callee.
#[must_use]
pub fn calls(graph: &Graph) -> Vec<Vec<(usize, f64)>> {
    let of = |service: &crate::GraphService| {
        let mut calls: Vec<(usize, f64)> = Vec::new();
        for call in service.calls() {
            match calls.iter_mut().find(|(callee, _)| *callee == call.service) {
                Some((_, expected)) => *expected += call.probability.get(),
                None => calls.push((call.service, call.probability.get())),
            }
        }
        calls
    };
    graph.services.iter().map(of).collect()
}

/// Computes the load of one request at `entry`. Only for graphs that `check` found to end.
#[must_use]
pub fn weigh(graph: &Graph, entry: usize) -> Weights {
    /// Rounds of the series: with circles that lose a thousandth a round, enough for nine digits.
    const ROUNDS: usize = 20_000;
    /// Weight below which requests are not followed any further.
    const ENOUGH: f64 = 1e-9;
    let calls = calls(graph);
    let mut requests = vec![0.0; calls.len()];
    let mut wave = vec![(entry, 1.0)];
    for _ in 0..ROUNDS {
        let mut next = vec![0.0; calls.len()];
        for &(service, weight) in &wave {
            requests[service] += weight;
            for &(callee, expected) in &calls[service] {
                next[callee] += weight * expected;
            }
        }
        wave = next
            .into_iter()
            .enumerate()
            .filter(|&(_, weight)| weight > ENOUGH)
            .collect();
        if wave.is_empty() || requests.iter().sum::<f64>() > f64::from(u32::MAX) {
            break;
        }
    }
    Weights {
        depth: depth(&calls, entry),
        requests,
    }
}

/// The longest path from `entry`. A circle counts as one step more than its predecessors.
fn depth(calls: &[Vec<(usize, f64)>], entry: usize) -> usize {
    let groups = circles(calls);
    let mut group_of = vec![0; calls.len()];
    for (number, group) in groups.iter().enumerate() {
        for &service in group {
            group_of[service] = number;
        }
    }
    // Tarjan gives callees before callers, so one pass from the back finds longest ways.
    let mut longest = vec![0; groups.len()];
    longest[group_of[entry]] = 1;
    for number in (0..groups.len()).rev() {
        if longest[number] == 0 {
            continue;
        }
        for &service in &groups[number] {
            for &(callee, _) in &calls[service] {
                let to = group_of[callee];
                if to != number {
                    longest[to] = longest[to].max(longest[number] + 1);
                }
            }
        }
    }
    longest.into_iter().max().unwrap_or(0)
}

/// Services that call each other in circles, as groups (Tarjan's strongly connected components), callees before callers;
/// a service in no circle is a group of its own. Without recursion: a chain of 5,000 services is a legal graph.
#[must_use]
pub fn circles(calls: &[Vec<(usize, f64)>]) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let count = calls.len();
    let (mut index, mut low, mut on_stack) =
        (vec![UNSEEN; count], vec![0; count], vec![false; count]);
    let (mut stack, mut groups, mut next) = (Vec::new(), Vec::new(), 0);
    for root in 0..count {
        if index[root] != UNSEEN {
            continue;
        }
        // (service, how many of its callees were looked at)
        let mut way = vec![(root, 0)];
        while let Some((service, looked)) = way.pop() {
            if looked == 0 {
                (index[service], low[service]) = (next, next);
                next += 1;
                stack.push(service);
                on_stack[service] = true;
            }
            if let Some(&(callee, _)) = calls[service].get(looked) {
                way.push((service, looked + 1));
                if index[callee] == UNSEEN {
                    way.push((callee, 0));
                } else if on_stack[callee] {
                    low[service] = low[service].min(index[callee]);
                }
                continue;
            }
            if low[service] == index[service] {
                let mut group = Vec::new();
                while let Some(member) = stack.pop() {
                    on_stack[member] = false;
                    group.push(member);
                    if member == service {
                        break;
                    }
                }
                group.reverse();
                groups.push(group);
            }
            if let Some(&(caller, _)) = way.last() {
                low[caller] = low[caller].min(low[service]);
            }
        }
    }
    groups
}

/// Factor by which a circle multiplies its requests in each round: an upper bound of the largest eigenvalue of its part of
/// the matrix (Collatz and Wielandt). None if no service of the group calls another of the group.
#[must_use]
pub fn growth(calls: &[Vec<(usize, f64)>], group: &[usize]) -> Option<f64> {
    /// Rounds of the power method, and how close both bounds must come.
    const ROUNDS: usize = 10_000;
    const CLOSE: f64 = 1e-6;
    let place = |service: usize| group.iter().position(|&member| member == service);
    let inner: Vec<Vec<(usize, f64)>> = group
        .iter()
        .map(|&service| {
            let within = calls[service].iter();
            within
                .filter_map(|&(callee, expected)| Some((place(callee)?, expected)))
                .collect()
        })
        .collect();
    if inner.iter().all(Vec::is_empty) {
        return None;
    }
    let mut vector = vec![1.0f64; group.len()];
    let mut most = f64::INFINITY;
    for _ in 0..ROUNDS {
        // The matrix plus 1 has the same vector, an eigenvalue higher by 1, and no period to swing in.
        let next: Vec<f64> = inner
            .iter()
            .zip(&vector)
            .map(|(row, own)| {
                own + row
                    .iter()
                    .map(|&(to, expected)| expected * vector[to])
                    .sum::<f64>()
            })
            .collect();
        let ratios = next.iter().zip(&vector).map(|(new, old)| new / old);
        let (least, highest) = ratios.fold((f64::INFINITY, 0.0f64), |(least, highest), ratio| {
            (least.min(ratio), highest.max(ratio))
        });
        most = most.min(highest - 1.0);
        let largest = next.iter().copied().fold(0.0, f64::max);
        vector = next.iter().map(|value| value / largest).collect();
        if highest - least < CLOSE {
            break;
        }
    }
    Some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_the_largest_eigenvalue() {
        for (calls, group, expected) in [
            (vec![vec![]], vec![0], None),
            (vec![vec![(0, 0.5)]], vec![0], Some(0.5)),
            (vec![vec![(1, 1.0)], vec![(0, 1.0)]], vec![0, 1], Some(1.0)),
            (vec![vec![(1, 1.2)], vec![(0, 0.3)]], vec![0, 1], Some(0.6)),
            (
                vec![vec![(1, 0.9)], vec![(2, 0.9)], vec![(0, 0.9)]],
                vec![0, 1, 2],
                Some(0.9),
            ),
        ] {
            let found = growth(&calls, &group);
            let near = match (found, expected) {
                (Some(found), Some(expected)) => (found - expected).abs() < 1e-3,
                (found, expected) => found == expected,
            };
            assert!(near, "{calls:?}: {found:?}, not {expected:?}");
        }
    }

    #[test]
    fn a_long_chain_neither_recurses_nor_takes_long() {
        let calls: Vec<_> = (0..5000usize)
            .map(|n| if n < 4999 { vec![(n + 1, 1.0)] } else { vec![] })
            .collect();
        assert_eq!(circles(&calls).len(), 5000);
        assert_eq!(depth(&calls, 0), 5000);
    }
}
