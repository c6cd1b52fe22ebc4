//! From rules to nodes: which list of a rule it is registered by, what lies under one value, what the rest of a node
//! excludes. Everything here may be slow; nothing here is done while requests wait.

use std::collections::{BTreeMap, HashMap};

use super::addresses::AddressTable;
use super::compile::Compiler;
use super::hash;
use super::named::{NamedValueIndex, Tables};
use super::rules::{Dimension, IndexedRule, Matcher, NONE, Span, Term};
use super::store::{
    BlockRun, DECIDED, HeaderNames, IndexNode, NUMBER, RulePosting, SINGLE, Store, Table,
};
use super::table::{HashSlots, NOTHING, TextMatch, TextTable};
use super::templates::TemplateTable;
use super::texts::TextId;
use crate::authorization::lines::are_joined;

/// Lists longer than this, of values or of parts, are tables of their own; up to it, each is compared.
pub(super) const LONG_LIST: usize = 8;
/// More rules than this under one value become a node of their own.
const HEAVY: usize = 12;
/// Deepest nesting of nodes; each level uses up another attribute.
const MAX_DEPTH: usize = 6;
/// Limit of the rules in all nodes together, per rule. Beyond it the rules under one value are tested one by one.
const MAX_SPREAD: usize = 24;

impl Matcher {
    /// An order, so that lists can be compared.
    pub(super) fn order(&self) -> (u8, u32) {
        match *self {
            Self::Whole(text) => (0, text),
            Self::Beginning(text) => (1, text),
            Self::End(text) => (2, text),
            Self::Exists => (3, 0),
            Self::Line => (4, 0),
            Self::Glob(text) => (5, text),
            Self::Template(text) => (6, text),
            Self::Block(block) => (7, block),
            Self::Token(token) => (8, token),
        }
    }

    /// Estimate of how many requests the value matches. A rule is best registered under the value with the lowest
    /// estimate.
    fn reach(self) -> u64 {
        match self {
            Self::Whole(_) => 1,
            Self::Block(_)
            | Self::Beginning(_)
            | Self::End(_)
            | Self::Template(_)
            | Self::Token(_) => 2,
            Self::Glob(_) => 4,
            Self::Exists | Self::Line => 32,
        }
    }
}

impl Dimension {
    /// Returns true if `*` also matches an empty text.
    pub(super) fn counts_empty(self) -> bool {
        let header = matches!(self.kind(), super::rules::DimKind::Header(_));
        header || matches!(self, Self::HOST | Self::METHOD | Self::NAMESPACE)
    }
}

/// Lookup key of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IndexKey {
    dim: Dimension,
    matcher: Matcher,
    /// True if a found key proves that the value matches; otherwise it may match.
    exact: bool,
}

/// A list that a rule is registered by: attribute and set.
type Anchor = (Dimension, u32);

impl Compiler {
    /// A node over rules in ascending order; its number.
    pub(super) fn node(&mut self, rules: &[u32]) -> u32 {
        let mut budget = rules.len() * MAX_SPREAD + 4096;
        let mut known = HashMap::new();
        IndexBuilder {
            compiler: self,
            budget: &mut budget,
            known: &mut known,
        }
        .node(rules, &[])
    }

    /// Everything in its final form.
    pub(super) fn finish(mut self) -> Store {
        let mut names: Vec<(TextId, u16)> = Vec::new();
        let mut headers = HeaderNames::default();
        let all: Vec<_> = self
            .header_numbers()
            .map(|(name, number)| (name.clone(), number))
            .collect();
        for (name, number) in all {
            headers.lengths |= 1 << name.len().min(63);
            headers.longest = headers.longest.max(name.len());
            names.push((self.interner.id(name.as_bytes()), number));
        }
        let joined = self.header_numbers();
        let joined = joined.filter(|(name, _)| are_joined(name));
        headers.joined = joined.map(|(_, number)| number).collect();
        let texts = self.interner.texts();
        let slots = names.iter().map(|(text, number)| {
            (
                hash::whole_any_case(texts.get(*text)),
                *text,
                u32::from(*number),
            )
        });
        headers.table = HashSlots::new(slots);
        let mut store = self.store;
        store.headers = headers;
        store.texts = self.interner.finish();
        store.matchers.shrink_to_fit();
        store.blocks.shrink_to_fit();
        store.sets.shrink_to_fit();
        store.terms.shrink_to_fit();
        store.parts.shrink_to_fit();
        store.part_lists.shrink_to_fit();
        store.alternatives.shrink_to_fit();
        store.rules.shrink_to_fit();
        store.postings.shrink_to_fit();
        store.candidates.shrink_to_fit();
        store
    }

    /// A table that says whether a value is in a list; none where a table could only say that it may be.
    pub(super) fn membership(&mut self, matchers: &[Matcher]) -> Option<u32> {
        if matchers
            .iter()
            .any(|matcher| matches!(matcher, Matcher::Glob(_) | Matcher::Token(_)))
        {
            return None;
        }
        let entries: Vec<_> = matchers.iter().map(|matcher| (*matcher, 0)).collect();
        let table = self.table(&entries);
        self.store.tables.push(table);
        Some((self.store.tables.len() - 1) as u32)
    }

    /// A node's tables.
    fn tables(&mut self, by_dim: BTreeMap<Dimension, Vec<(Matcher, u32)>>) -> Tables {
        let (mut fixed, mut named) = (Vec::new(), Vec::new());
        for (dim, entries) in by_dim {
            match (dim.is_fixed(), entries.as_slice()) {
                (true, _) => fixed.push((dim, self.table(&entries))),
                (false, [(matcher, registered)]) => {
                    named.push((dim, NamedValueIndex::One(*matcher, *registered)));
                }
                (false, _) => {
                    named.push((dim, NamedValueIndex::More(Box::new(self.table(&entries)))));
                }
            }
        }
        Tables::new(fixed, named)
    }

    /// A table of matchers, each once, and what is registered under each.
    fn table(&mut self, entries: &[(Matcher, u32)]) -> Table {
        let mut texts = Vec::new();
        let mut blocks = Vec::new();
        let mut templates = Vec::new();
        let (mut exists, mut line) = (NOTHING, NOTHING);
        for (matcher, registered) in entries {
            match *matcher {
                Matcher::Whole(text) => texts.push((TextMatch::Whole, text, *registered)),
                Matcher::Beginning(text) => texts.push((TextMatch::Beginning, text, *registered)),
                Matcher::End(text) => texts.push((TextMatch::End, text, *registered)),
                Matcher::Exists => exists = *registered,
                Matcher::Line => line = *registered,
                Matcher::Block(block) => {
                    blocks.push((self.store.blocks[block as usize], *registered));
                }
                Matcher::Template(text) => {
                    templates.push((self.templates[&text].clone(), *registered));
                }
                // These are looked up by other keys.
                Matcher::Glob(_) | Matcher::Token(_) => {}
            }
        }
        let addresses = (!blocks.is_empty()).then(|| Box::new(AddressTable::new(&blocks)));
        let templates = (!templates.is_empty())
            .then(|| Box::new(TemplateTable::new(&mut self.interner, &templates)));
        Table {
            texts: TextTable::new(self.interner.texts(), &texts),
            exists,
            line,
            addresses,
            templates,
        }
    }

    /// The key a matcher is found by.
    fn key(&mut self, dim: Dimension, matcher: Matcher) -> IndexKey {
        let inexact = |dim, matcher| IndexKey {
            dim,
            matcher,
            exact: false,
        };
        match matcher {
            Matcher::Glob(text) => {
                let glob = self.interner.texts().get(text).to_vec();
                let mut pieces = glob.split(|byte| *byte == b'*');
                let first = pieces.next().unwrap_or_default().to_vec();
                let last = pieces.next_back().unwrap_or_default().to_vec();
                let matcher = match (first.is_empty(), last.is_empty()) {
                    (false, _) => Matcher::Beginning(self.interner.id(&first)),
                    (true, false) => Matcher::End(self.interner.id(&last)),
                    (true, true) => Matcher::Exists,
                };
                inexact(dim, matcher)
            }
            Matcher::Token(token) => match self.store.tokens[token as usize] {
                (Matcher::Whole(issuer), Matcher::Whole(subject)) => {
                    let texts = self.interner.texts();
                    let pair = [texts.get(issuer), texts.get(subject)].join(&0);
                    inexact(
                        Dimension::ISSUER_SUBJECT,
                        Matcher::Whole(self.interner.id(&pair)),
                    )
                }
                (issuer, subject) if issuer.reach() > subject.reach() => {
                    inexact(Dimension::SUBJECT, subject)
                }
                (issuer, _) => inexact(Dimension::ISSUER, issuer),
            },
            _ => IndexKey {
                dim,
                matcher,
                exact: true,
            },
        }
    }
}

/// One node in the making, and those below it.
struct IndexBuilder<'a> {
    compiler: &'a mut Compiler,
    /// Rules that nodes may still hold.
    budget: &'a mut usize,
    /// Nodes by their rules and the attributes that are used up.
    known: &'a mut HashMap<(Vec<u32>, Vec<Dimension>), u32>,
}

/// Exclusions of a node's rest: tables, and the sets that their values stand for.
type Exclusions = (Tables, Box<[Box<[BlockRun]>]>);

/// Matchers of an attribute, in an order.
type ByMatcher<V> = BTreeMap<(Dimension, (u8, u32)), V>;

/// A value that rules are found by: whether finding it decides, the attribute of the lists it is in, and those.
struct ValueLeads {
    matcher: Matcher,
    exact: bool,
    dim: Dimension,
    sets: Vec<u32>,
}

/// Rules by the lists they are registered by.
type Registered = BTreeMap<Anchor, Vec<u32>>;

impl IndexBuilder<'_> {
    fn store(&mut self) -> &mut Store {
        &mut self.compiler.store
    }

    fn node(&mut self, rules: &[u32], used: &[Dimension]) -> u32 {
        let key = (rules.to_vec(), used.to_vec());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        *self.budget = self.budget.saturating_sub(rules.len());
        let (registered, rest) = self.register(rules, used);
        let tables = self.tables(&registered, used);
        let (exclusions, excluded) = self.exclusions(&rest);
        let number = self.compiler.store.nodes.len() as u32;
        self.store().nodes.push(IndexNode {
            tables,
            rest: rest.into(),
            exclusions,
            excluded,
        });
        self.known.insert(key, number);
        number
    }

    /// Chooses the lists under which each rule is registered. Rules without a suitable list are the rest.
    fn register(&mut self, rules: &[u32], used: &[Dimension]) -> (Registered, Vec<u32>) {
        let costs = self.costs(rules, used);
        let mut registered = Registered::new();
        let mut rest = Vec::new();
        for number in rules {
            let rule = self.compiler.store.rules[*number as usize];
            match best(&self.compiler.store, rule, &costs) {
                Some(anchors) => {
                    for anchor in anchors {
                        let rules = registered.entry(anchor).or_default();
                        if rules.last() != Some(number) {
                            rules.push(*number);
                        }
                    }
                }
                None => rest.push(*number),
            }
        }
        (registered, rest)
    }

    /// Cost of registering rules by each possible list. It counts the rules that share the list's most shared value,
    /// weighted by that value's reach; then the length of the list.
    fn costs(&mut self, rules: &[u32], used: &[Dimension]) -> HashMap<Anchor, u64> {
        let store = &self.compiler.store;
        let mut sets: HashMap<Anchor, u64> = HashMap::new();
        for number in rules {
            for part in parts_of(store, store.rules[*number as usize]) {
                for term in positive(store, part) {
                    if !used.contains(&term.dim) {
                        *sets.entry((term.dim, term.set)).or_default() += 1;
                    }
                }
            }
        }
        let mut shared: HashMap<(Dimension, Matcher), u64> = HashMap::new();
        for ((dim, set), count) in &sets {
            for matcher in self.compiler.matchers_of(*set) {
                *shared.entry((*dim, *matcher)).or_default() += count;
            }
        }
        let cost = |(dim, set): &Anchor| {
            let matchers = self.compiler.matchers_of(*set);
            let each = matchers
                .iter()
                .map(|matcher| shared[&(*dim, *matcher)] * matcher.reach());
            (each.max().unwrap_or(0) << 16) + (matchers.len() as u64).min(0xffff)
        };
        sets.keys().map(|anchor| (*anchor, cost(anchor))).collect()
    }

    /// Tables for what rules are registered by.
    fn tables(&mut self, registered: &Registered, used: &[Dimension]) -> Tables {
        // A value leads to the rules of all lists that contain it; values in the same lists share their postings.
        let mut lists: ByMatcher<ValueLeads> = BTreeMap::new();
        for (dim, set) in registered.keys() {
            let matchers = self.compiler.matchers_of(*set).to_vec();
            for matcher in matchers {
                let key = self.compiler.key(*dim, matcher);
                let entry = lists.entry((key.dim, key.matcher.order()));
                let leads = entry.or_insert_with(|| ValueLeads {
                    matcher: key.matcher,
                    exact: key.exact,
                    dim: *dim,
                    sets: Vec::new(),
                });
                leads.exact &= key.exact;
                if leads.sets.last() != Some(set) {
                    leads.sets.push(*set);
                }
            }
        }
        let mut postings: HashMap<(Vec<u32>, bool, Dimension), u32> = HashMap::new();
        let mut by_dim: BTreeMap<Dimension, Vec<(Matcher, u32)>> = BTreeMap::new();
        for ((key_dim, _), leads) in lists {
            let ValueLeads { exact, dim, .. } = leads;
            let known = postings.get(&(leads.sets.clone(), exact, dim)).copied();
            let posting = match known {
                Some(known) => known,
                None => {
                    let rules = union(&leads.sets, dim, registered);
                    let posting = self.posting(&rules, exact, dim, used);
                    postings.insert((leads.sets, exact, dim), posting);
                    posting
                }
            };
            by_dim
                .entry(key_dim)
                .or_default()
                .push((leads.matcher, posting));
        }
        self.compiler.tables(by_dim)
    }

    /// The posting of one value.
    fn posting(&mut self, rules: &[u32], exact: bool, dim: Dimension, used: &[Dimension]) -> u32 {
        let candidate = |store: &Store, number: u32| {
            let decided = exact && asks_one_list(store, store.rules[number as usize]);
            number | if decided { DECIDED } else { 0 }
        };
        if let [only] = rules {
            return SINGLE | candidate(&self.compiler.store, *only);
        }
        let deeper = rules.len() > HEAVY && used.len() < MAX_DEPTH && *self.budget >= rules.len();
        let node = match deeper {
            true => {
                let used = [used, &[dim]].concat();
                self.node(rules, &used)
            }
            false => NONE,
        };
        let store = self.store();
        let start = store.candidates.len() as u32;
        if !deeper {
            let candidates = rules.iter().map(|number| candidate(store, *number));
            let candidates: Vec<u32> = candidates.collect();
            store.candidates.extend(candidates);
        }
        let len = store.candidates.len() as u32 - start;
        store.postings.push(RulePosting {
            first: rules[0],
            list: Span { start, len },
            node,
        });
        (store.postings.len() - 1) as u32
    }

    /// For rules that no value leads to: which of them each value excludes.
    fn exclusions(&mut self, rest: &[u32]) -> Exclusions {
        if rest.len() <= LONG_LIST {
            return Default::default();
        }
        let mut places: ByMatcher<(Matcher, Vec<u32>)> = BTreeMap::new();
        for (number, place) in rest.iter().zip(0u32..) {
            let store = &self.compiler.store;
            let terms = unconditional(store, store.rules[*number as usize]);
            let terms: Vec<Term> = terms.filter(|term| term.negated).collect();
            for term in terms {
                for matcher in self.compiler.matchers_of(term.set) {
                    // A value that only may match does not exclude a rule.
                    if !matches!(matcher, Matcher::Glob(_) | Matcher::Token(_)) {
                        let entry = places.entry((term.dim, matcher.order()));
                        let (_, excluded) = entry.or_insert_with(|| (*matcher, Vec::new()));
                        if excluded.last() != Some(&place) {
                            excluded.push(place);
                        }
                    }
                }
            }
        }
        let mut by_dim: BTreeMap<Dimension, Vec<(Matcher, u32)>> = BTreeMap::new();
        let mut excluded: Vec<Box<[BlockRun]>> = Vec::new();
        let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
        for ((dim, _), (matcher, places)) in places {
            let number = *known.entry(places).or_insert_with_key(|places| {
                excluded.push(runs(places, rest.len()));
                (excluded.len() - 1) as u32
            });
            by_dim.entry(dim).or_default().push((matcher, number));
        }
        (self.compiler.tables(by_dim), excluded.into())
    }
}

/// The rules of several lists, ascending, each once.
fn union(sets: &[u32], dim: Dimension, registered: &Registered) -> Vec<u32> {
    let lists = sets.iter().filter_map(|set| registered.get(&(dim, *set)));
    let mut all: Vec<u32> = lists.flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Places in blocks of 64. Places after the last one count as excluded, so that the last block can be excluded as a
/// whole.
fn runs(places: &[u32], total: usize) -> Box<[BlockRun]> {
    let mut words: BTreeMap<u32, u64> = BTreeMap::new();
    for place in places {
        *words.entry(place / 64).or_default() |= 1 << (place % 64);
    }
    let last = (total / 64) as u32;
    if let Some(word) = words.get_mut(&last) {
        *word |= u64::MAX << (total % 64);
    }
    let mut runs: Vec<BlockRun> = Vec::new();
    for (block, excluded) in words {
        match runs.last_mut() {
            Some(run) if run.end == block && run.excluded == excluded => run.end += 1,
            _ => runs.push(BlockRun {
                start: block,
                end: block + 1,
                excluded,
            }),
        }
    }
    runs.into()
}

/// The parts of a rule's alternatives, by number.
fn parts(store: &Store, alternatives: u32) -> &[u32] {
    match store.alternatives.get(alternatives as usize) {
        Some(alternatives) => alternatives.parts.of(&store.part_lists),
        None => &[],
    }
}

fn terms(store: &Store, part: u32) -> &[Term] {
    store
        .parts
        .get(part as usize)
        .map_or(&[], |span| span.of(&store.terms))
}

fn positive(store: &Store, part: u32) -> impl Iterator<Item = Term> {
    terms(store, part)
        .iter()
        .copied()
        .filter(|term| !term.negated)
}

fn parts_of(store: &Store, rule: IndexedRule) -> impl Iterator<Item = u32> {
    let both = parts(store, rule.from).iter().chain(parts(store, rule.to));
    both.copied().chain([rule.when])
}

/// The terms that must hold whichever source and operation do.
fn unconditional(store: &Store, rule: IndexedRule) -> impl Iterator<Item = Term> {
    let only = |alternatives| match parts(store, alternatives) {
        [one] => terms(store, *one),
        _ => &[],
    };
    let all = only(rule.from)
        .iter()
        .chain(only(rule.to))
        .chain(terms(store, rule.when));
    all.copied()
}

/// Returns true if the rule tests one list of values of one attribute.
fn asks_one_list(store: &Store, rule: IndexedRule) -> bool {
    let many = |alternatives| parts(store, alternatives).len() > 1;
    !many(rule.from) && !many(rule.to) && unconditional(store, rule).count() == 1
}

/// The cheapest way to register a rule: by one list of its conditions, or by a list of each source, or of each operation.
fn best(store: &Store, rule: IndexedRule, costs: &HashMap<Anchor, u64>) -> Option<Vec<Anchor>> {
    let cheapest = |part: u32| {
        let anchors = positive(store, part).map(|term| (term.dim, term.set));
        anchors
            .filter_map(|anchor| Some((*costs.get(&anchor)?, anchor)))
            .min()
    };
    let each = |alternatives: u32| {
        let parts = parts(store, alternatives);
        let all: Option<Vec<_>> = parts.iter().map(|part| cheapest(*part)).collect();
        let all = all.filter(|all| !all.is_empty())?;
        let cost = all.iter().map(|(cost, _)| *cost).max()?;
        Some((
            cost,
            all.into_iter()
                .map(|(_, anchor)| anchor)
                .collect::<Vec<_>>(),
        ))
    };
    let by_condition = cheapest(rule.when).map(|(cost, anchor)| (cost, vec![anchor]));
    let ways = [by_condition, each(rule.from), each(rule.to)];
    ways.into_iter().flatten().min().map(|(_, anchors)| anchors)
}

// A number with a mark is not another number.
const _: () = assert!(NUMBER < DECIDED && DECIDED < SINGLE);

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn wholly_excluded_stretches_are_one_run() {
        let all: Vec<u32> = (0..10_000).collect();
        assert_eq!(runs(&all, 10_000).len(), 1);
        let even: Vec<u32> = (0..9_984).step_by(2).collect();
        assert_eq!(runs(&even, 10_000).len(), 1);
        assert_eq!(runs(&[5], 10_000).len(), 1);
    }
}
