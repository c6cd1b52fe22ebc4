//! Index of one host's routes: finds the first route, in order of precedence, that matches a request. Whole paths
//! need one hash, prefixes of paths a few (`prefixes`). The other conditions are checked for the few routes found so
//! (`candidates`). An expression is found by the common prefix of its texts.

use std::collections::BTreeMap;

use super::candidates::{Candidates, MatchCondition, RouteCandidate};
use super::matching::{Match, PathMatch, RouteInput, without_slash};
use super::prefixes::{PrefixEntries, Prefixes};
use super::texts::Texts;

/// Returns the first route in order with a matching alternative, by trying each: the definition of
/// [`RouteTable::choose`].
#[must_use]
pub fn naive<R: RouteInput + ?Sized>(routes: &[Vec<Match>], request: &R) -> Option<usize> {
    routes
        .iter()
        .position(|alternatives| alternatives.iter().any(|wanted| wanted.matches(request)))
}

/// The chosen route, and its matching part of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectedRoute {
    /// Its place.
    pub route: usize,
    /// The place of the alternative that matched, among the route's.
    pub alternative: usize,
    /// Bytes of the path that a prefix matched. A route without a condition on the path counts as one with the prefix
    /// `/`, as in Istio. None: the whole path.
    pub matched: Option<usize>,
}

/// Routes in order of precedence, indexed. A worker owns a clone: see [`super::Regex`].
#[derive(Debug, Clone)]
pub struct RouteTable {
    /// Every alternative of every route, in order.
    entries: Box<[RouteCandidate]>,
    exact_case: Paths<false>,
    any_case: Paths<true>,
}

/// Routes by path, where the case of letters counts or not.
#[derive(Debug, Clone)]
struct Paths<const FOLD: bool> {
    whole: Texts<FOLD>,
    under_whole: Box<[Candidates]>,
    /// None when no route asks for a beginning.
    beginnings: Option<Prefixes<FOLD>>,
}

/// Numbers of entries, by the text that finds their path.
#[derive(Default)]
struct SortedEntries {
    whole: BTreeMap<Vec<u8>, Vec<u32>>,
    beginnings: BTreeMap<Vec<u8>, PrefixEntries<Vec<u32>>>,
}

impl RouteTable {
    /// Indexes routes in order of precedence, each with its alternatives. A route without alternatives is never chosen.
    #[must_use]
    pub fn new(routes: impl IntoIterator<Item = Vec<Match>>) -> Self {
        let mut entries = Vec::new();
        let (mut exact_case, mut any_case) = (SortedEntries::default(), SortedEntries::default());
        for (route, alternatives) in routes.into_iter().enumerate() {
            for (alternative, wanted) in alternatives.into_iter().enumerate() {
                let sorted = match wanted.ignore_case {
                    true if !matches!(wanted.path, PathMatch::Regex(_)) => &mut any_case,
                    _ => &mut exact_case,
                };
                let id = entries.len() as u32;
                sorted.add(id, &wanted);
                entries.push(RouteCandidate {
                    route: route as u32,
                    alternative: alternative as u32,
                    matched: matched(&wanted.path),
                    conditions: conditions(wanted),
                });
            }
        }
        let exact_case = Paths::new(exact_case, &mut entries);
        let any_case = Paths::new(any_case, &mut entries);
        Self {
            entries: entries.into(),
            exact_case,
            any_case,
        }
    }

    /// The first route of which some alternative matches.
    #[must_use]
    pub fn choose<R: RouteInput + ?Sized>(&self, request: &R) -> Option<usize> {
        Some(self.choose_match(request)?.route)
    }

    /// The same, with the alternative that matched, which rewriting a prefix asks for.
    #[must_use]
    pub fn choose_match<R: RouteInput + ?Sized>(&self, request: &R) -> Option<SelectedRoute> {
        let path = request.path();
        let mut best = u32::MAX;
        self.exact_case
            .look(&self.entries, request, path, &mut best);
        self.any_case.look(&self.entries, request, path, &mut best);
        let entry = self.entries.get(best as usize)?;
        Some(SelectedRoute {
            route: entry.route as usize,
            alternative: entry.alternative as usize,
            matched: entry.matched.map(|matched| matched as usize),
        })
    }
}

impl SortedEntries {
    fn add(&mut self, id: u32, wanted: &Match) {
        let key = |text: &str| match wanted.ignore_case {
            true => text.to_ascii_lowercase().into_bytes(),
            false => text.as_bytes().to_vec(),
        };
        match &wanted.path {
            PathMatch::Any => self.under(Vec::new()).anywhere.push(id),
            PathMatch::Exact(path) => self.whole.entry(key(path)).or_default().push(id),
            PathMatch::Prefix(prefix) => self.under(key(prefix)).anywhere.push(id),
            PathMatch::Segments(prefix) => {
                self.under(key(without_slash(prefix))).segment.push(id);
            }
            PathMatch::Regex(regex) => self.under(regex.beginning()).anywhere.push(id),
        }
    }

    fn under(&mut self, key: Vec<u8>) -> &mut PrefixEntries<Vec<u32>> {
        self.beginnings.entry(key).or_default()
    }
}

fn matched(path: &PathMatch) -> Option<u32> {
    match path {
        PathMatch::Any => Some(1),
        PathMatch::Prefix(prefix) => Some(prefix.len() as u32),
        PathMatch::Segments(prefix) => Some(without_slash(prefix).len() as u32),
        PathMatch::Exact(_) | PathMatch::Regex(_) => None,
    }
}

/// Returns the conditions of a match besides a path that the index finds; the cheapest come first.
fn conditions(wanted: Match) -> Vec<MatchCondition> {
    let mut conditions = Vec::new();
    conditions.extend(wanted.method.map(MatchCondition::Method));
    conditions.extend(wanted.scheme.map(MatchCondition::Scheme));
    conditions.extend(wanted.authority.map(MatchCondition::Authority));
    conditions.extend(wanted.headers.into_iter().map(MatchCondition::Header));
    conditions.extend(
        wanted
            .without_headers
            .into_iter()
            .map(MatchCondition::WithoutHeader),
    );
    conditions.extend(wanted.query.into_iter().map(MatchCondition::Query));
    let claims = wanted.claims.into_iter().map(Box::new);
    conditions.extend(claims.map(MatchCondition::Claim));
    if let PathMatch::Regex(regex) = wanted.path {
        conditions.push(MatchCondition::Path(regex));
    }
    conditions.shrink_to_fit();
    conditions
}

impl<const FOLD: bool> Paths<FOLD> {
    fn new(sorted: SortedEntries, entries: &mut [RouteCandidate]) -> Self {
        let whole = Texts::new(sorted.whole.keys().map(Vec::as_slice));
        let under_whole = sorted.whole.into_values();
        let under_whole = under_whole.map(|of| Candidates::new(of, entries)).collect();
        let beginnings = (!sorted.beginnings.is_empty())
            .then(|| Prefixes::new(sorted.beginnings, |of| Candidates::new(of, entries)));
        Self {
            whole,
            under_whole,
            beginnings,
        }
    }

    fn look<R: RouteInput + ?Sized>(
        &self,
        entries: &[RouteCandidate],
        request: &R,
        path: &[u8],
        best: &mut u32,
    ) {
        if !self.whole.is_empty()
            && let Some(text) = self.whole.get(path)
        {
            self.under_whole[text as usize].look(entries, request, best);
        }
        if let Some(beginnings) = &self.beginnings {
            beginnings.look(entries, request, path, best);
        }
    }
}
