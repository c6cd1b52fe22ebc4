//! Gateway API's order of precedence among rules of several HTTPRoutes that share a host: which is asked first. Istio's
//! routes stay in the order in which they are written and need none of this.

use std::cmp::{Ordering, Reverse};

use super::matching::{Match, PathMatch, without_slash};

/// A match of a rule, with the tie-breakers between equals.
#[derive(Debug, Clone)]
pub struct RankedMatch<T> {
    /// Match of the rule.
    pub wanted: Match,
    /// Creation time of the route, in any unit; routes without one come last.
    pub created: Option<u64>,
    /// `namespace/name` of the route.
    pub name: String,
    /// Value that the caller keeps for it.
    pub of: T,
}

/// Sorts matches: an exact path, then the longest prefix, then an expression (Istio's place for it); a method; most
/// headers; most query parameters; the oldest route; the first by name; and in one route the order in which they stand.
pub fn by_precedence<T>(matches: &mut [RankedMatch<T>]) {
    matches.sort_by(|left, right| {
        specific(&right.wanted)
            .cmp(&specific(&left.wanted))
            .then_with(|| age(left.created, right.created))
            .then_with(|| left.name.cmp(&right.name))
    });
}

fn age(left: Option<u64>, right: Option<u64>) -> Ordering {
    let known_first = |created: Option<u64>| (created.is_none(), created);
    known_first(left).cmp(&known_first(right))
}

/// Sort key of a match: a more specific one comes first.
fn specific(wanted: &Match) -> (Reverse<u8>, usize, bool, usize, usize) {
    let (kind, length) = match &wanted.path {
        // A GRPCRoute's service and method; of HTTPRoutes two exact paths are the same or never meet.
        PathMatch::Exact(path) => (0, path.len()),
        PathMatch::Prefix(prefix) => (1, prefix.len()),
        PathMatch::Segments(prefix) => (1, without_slash(prefix).len()),
        PathMatch::Any => (1, 0),
        PathMatch::Regex(_) => (2, 0),
    };
    let kind = Reverse(kind);
    let headers = wanted.headers.len() + wanted.without_headers.len();
    (
        kind,
        length,
        wanted.method.is_some(),
        headers,
        wanted.query.len(),
    )
}
