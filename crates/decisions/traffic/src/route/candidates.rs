//! Routes that share a condition on the path, in order of precedence: their other conditions, and indexes that keep
//! the check short where they are many.
//!
//! - An entry after one without further conditions can never be reached, and is not kept.
//! - Expressions without further conditions are matched together, as a set.
//! - Of the others, entries that want an exact value of one header, parameter, method or authority are found by that
//!   value.

use std::collections::BTreeMap;

use super::matching::{ClaimMatch, FieldMatch, RouteInput, TextMatch, ValueMatch, query_parameter};
use super::regex::{MAX_SET, Regex, RegexSet};
use super::texts::Texts;

/// Condition of a match, besides the key of its index.
#[derive(Debug, Clone)]
pub(super) enum MatchCondition {
    Method(TextMatch),
    Scheme(TextMatch),
    Authority(TextMatch),
    Header(FieldMatch),
    WithoutHeader(FieldMatch),
    Query(FieldMatch),
    /// Boxed: few routes have a condition on a token's claims.
    Claim(Box<ClaimMatch>),
    Path(Regex),
}

impl MatchCondition {
    fn holds<R: RouteInput + ?Sized>(&self, request: &R) -> bool {
        match self {
            Self::Method(text) => text.matches(request.method()),
            Self::Scheme(text) => text.matches(request.scheme()),
            Self::Authority(text) => text.matches(request.authority()),
            Self::Header(field) => field.holds_of_header(request),
            Self::WithoutHeader(field) => !field.excludes(request),
            Self::Query(field) => field.holds_of_parameter(request),
            Self::Claim(claim) => claim.holds(request),
            Self::Path(regex) => regex.is_match(request.path()),
        }
    }

    /// Returns the exact value that it wants, and its key.
    fn exact(&self) -> Option<(MatchKey, &str)> {
        match self {
            Self::Method(TextMatch::Exact(exact)) => Some((MatchKey::Method, exact)),
            Self::Scheme(TextMatch::Exact(exact)) => Some((MatchKey::Scheme, exact)),
            Self::Authority(TextMatch::Exact(exact)) => Some((MatchKey::Authority, exact)),
            Self::Header(field) => {
                exact_value(field).map(|exact| (MatchKey::Header(field.name.clone()), exact))
            }
            Self::Query(field) => {
                exact_value(field).map(|exact| (MatchKey::Query(field.name.clone()), exact))
            }
            _ => None,
        }
    }
}

fn exact_value(field: &FieldMatch) -> Option<&str> {
    match &field.value {
        ValueMatch::Is(TextMatch::Exact(exact)) => Some(exact),
        _ => None,
    }
}

/// One alternative of a route.
#[derive(Debug, Clone)]
pub(super) struct RouteCandidate {
    pub(super) route: u32,
    /// Which of the route's.
    pub(super) alternative: u32,
    /// Bytes of the path that a prefix stands for; none: the whole path.
    pub(super) matched: Option<u32>,
    pub(super) conditions: Vec<MatchCondition>,
}

impl RouteCandidate {
    fn matches<R: RouteInput + ?Sized>(&self, request: &R) -> bool {
        self.conditions
            .iter()
            .all(|condition| condition.holds(request))
    }
}

/// Part of a request that has the value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum MatchKey {
    Method,
    Scheme,
    Authority,
    Header(String),
    Query(String),
}

/// Entries found by a value.
#[derive(Debug, Clone)]
struct ValueSplit {
    key: MatchKey,
    values: Texts<false>,
    under: Box<[Candidates]>,
}

impl ValueSplit {
    fn find<R: RouteInput + ?Sized>(&self, request: &R) -> Option<&Candidates> {
        let number = match &self.key {
            MatchKey::Method => self.values.get(request.method()),
            MatchKey::Scheme => self.values.get(request.scheme()),
            MatchKey::Authority => self.values.get(request.authority()),
            MatchKey::Header(name) => self.values.get(&request.header(name)?),
            MatchKey::Query(name) => self
                .values
                .get(query_parameter(request.query(), name.as_bytes())?),
        };
        number.map(|number| &self.under[number as usize])
    }
}

/// Expressions that are asked at once, with their entries.
#[derive(Debug, Clone)]
struct ExpressionSet {
    regexes: RegexSet,
    entries: Box<[u32]>,
}

/// See the module. Entries are numbered in order of precedence.
#[derive(Debug, Clone)]
pub(super) struct Candidates {
    /// The least of all.
    first: u32,
    /// Looked at one by one.
    alone: Box<[u32]>,
    sets: Box<[ExpressionSet]>,
    splits: Box<[ValueSplit]>,
}

impl Default for Candidates {
    fn default() -> Self {
        Self {
            first: u32::MAX,
            alone: Box::default(),
            sets: Box::default(),
            splits: Box::default(),
        }
    }
}

/// From so many entries on they are found by a value, if so many want one of the same thing.
const MANY: usize = 8;

impl Candidates {
    /// Arranges entries, numbered ascending. Removes the conditions that the index already checks.
    pub(super) fn new(mut of: Vec<u32>, entries: &mut [RouteCandidate]) -> Self {
        let first = of.first().copied().unwrap_or(u32::MAX);
        let plain = |id: &u32| entries[*id as usize].conditions.is_empty();
        if let Some(at) = of.iter().position(plain) {
            of.truncate(at + 1);
        }
        let sets = take_sets(&mut of, entries);
        let mut splits = Vec::new();
        while of.len() >= MANY
            && let Some(key) = commonest(&of, entries)
        {
            splits.push(take_split(key, &mut of, entries));
        }
        Self {
            first,
            alone: of.into(),
            sets: sets.into(),
            splits: splits.into(),
        }
    }

    /// Looks for an entry that matches and precedes `best`, which it then is.
    pub(super) fn look<R: RouteInput + ?Sized>(
        &self,
        entries: &[RouteCandidate],
        request: &R,
        best: &mut u32,
    ) {
        if self.first >= *best {
            return;
        }
        for id in &self.alone {
            if id >= best {
                break;
            }
            if entries[*id as usize].matches(request) {
                *best = *id;
                break;
            }
        }
        for set in &self.sets {
            if set.entries[0] < *best
                && let Some(number) = set.regexes.first(request.path())
            {
                *best = set.entries[number].min(*best);
            }
        }
        for split in &self.splits {
            if let Some(under) = split.find(request) {
                under.look(entries, request, best);
            }
        }
    }
}

/// Takes the expressions that ask nothing else and makes sets of them, unless there are only a few.
fn take_sets(of: &mut Vec<u32>, entries: &[RouteCandidate]) -> Vec<ExpressionSet> {
    const FEW: usize = 2;
    let regex = |id: &u32| match &*entries[*id as usize].conditions {
        [MatchCondition::Path(regex)] => Some(regex.clone()),
        _ => None,
    };
    let of_regexes: Vec<u32> = of
        .iter()
        .copied()
        .filter(|id| regex(id).is_some())
        .collect();
    let mut sets = Vec::new();
    for some in of_regexes.chunks(MAX_SET).filter(|some| some.len() > FEW) {
        let regexes: Vec<Regex> = some.iter().filter_map(regex).collect();
        if let Some(regexes) = RegexSet::new(&regexes) {
            let entries = some.into();
            sets.push(ExpressionSet { regexes, entries });
            of.retain(|id| some.binary_search(id).is_err());
        }
    }
    sets
}

/// Returns the key for which most entries want an exact value, if many do.
fn commonest(of: &[u32], entries: &[RouteCandidate]) -> Option<MatchKey> {
    let mut wanted: BTreeMap<MatchKey, usize> = BTreeMap::new();
    for id in of {
        let conditions = entries[*id as usize].conditions.iter();
        for (key, _) in conditions.filter_map(MatchCondition::exact) {
            *wanted.entry(key).or_default() += 1;
        }
    }
    let (key, count) = wanted.into_iter().max_by_key(|(_, count)| *count)?;
    (count >= MANY).then_some(key)
}

/// Takes the entries that want an exact value of this.
fn take_split(key: MatchKey, of: &mut Vec<u32>, entries: &mut [RouteCandidate]) -> ValueSplit {
    let mut by_value: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    of.retain(|id| {
        let conditions = &mut entries[*id as usize].conditions;
        let wants = |condition: &MatchCondition| condition.exact().is_some_and(|(of, _)| of == key);
        let Some(at) = conditions.iter().position(wants) else {
            return true;
        };
        let value = conditions.remove(at);
        let (_, value) = value.exact().expect("invariant: found by its exact value");
        by_value.entry(value.to_owned()).or_default().push(*id);
        false
    });
    ValueSplit {
        key,
        values: Texts::new(by_value.keys().map(String::as_bytes)),
        under: by_value
            .into_values()
            .map(|of| Candidates::new(of, entries))
            .collect(),
    }
}
