//! All data of an engine, in a few flat lists that refer to each other by number, and the search through it.
//!
//! A node is an index over some rules. Each rule is registered there under the values of one of its lists. Every
//! request that the rule matches must match that list; the node picks the rarest list. The search then tests each rule
//! it finds in full. Many rules under one value become another node, indexed by their other attributes. Rules that only
//! exclude values are the rest of a node. The request's values remove rules from that rest by sets, and the search
//! tests the first rule that remains.

use super::addresses::AddressTable;
use super::claims::ClaimNames;
use super::named::Tables;
use super::prepared::{Prepared, UsedValues};
use super::rules::{Alternatives, Dimension, IndexedRule, Matcher, NONE, Span, Term, ValueSet};
use super::table::{HashSlots, NOTHING, TextTable};
use super::templates::TemplateTable;
use super::texts::Texts;
use crate::authorization::cidr::Cidr;
use crate::authorization::pattern::is_present;

/// All an engine knows.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) texts: Texts,
    pub(super) matchers: Vec<Matcher>,
    pub(super) blocks: Vec<Cidr>,
    pub(super) tokens: Vec<(Matcher, Matcher)>,
    pub(super) sets: Vec<ValueSet>,
    pub(super) terms: Vec<Term>,
    pub(super) parts: Vec<Span>,
    pub(super) part_lists: Vec<u32>,
    pub(super) alternatives: Vec<Alternatives>,
    pub(super) rules: Vec<IndexedRule>,
    pub(super) tables: Vec<Table>,
    pub(super) postings: Vec<RulePosting>,
    pub(super) candidates: Vec<u32>,
    pub(super) nodes: Vec<IndexNode>,
    pub(super) headers: HeaderNames,
    pub(super) claims: ClaimNames,
    pub(super) uses: UsedValues,
}

/// A posting that is one rule: the rest of it is the rule's number.
pub(super) const SINGLE: u32 = 1 << 31;
/// A candidate that needs no second look: the value that led to it is all it asks.
pub(super) const DECIDED: u32 = 1 << 30;
/// Mask for the rule's number.
pub(super) const NUMBER: u32 = DECIDED - 1;

/// The rules under one value.
#[derive(Debug, Clone, Copy)]
pub(super) struct RulePosting {
    /// The first of them.
    pub(super) first: u32,
    /// In ascending order, in `candidates`…
    pub(super) list: Span,
    /// …or a node.
    pub(super) node: u32,
}

/// An index over some rules.
#[derive(Debug, Default)]
pub(super) struct IndexNode {
    pub(super) tables: Tables,
    /// Rules that no value leads to, ascending.
    pub(super) rest: Box<[u32]>,
    pub(super) exclusions: Tables,
    pub(super) excluded: Box<[Box<[BlockRun]>]>,
}

/// The same 64 rules' places, excluded or not, for a number of blocks in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockRun {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) excluded: u64,
}

/// Index from the values of one attribute to registered numbers.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) texts: TextTable,
    pub(super) exists: u32,
    pub(super) line: u32,
    pub(super) addresses: Option<Box<AddressTable>>,
    pub(super) templates: Option<Box<TemplateTable>>,
}

impl Table {
    /// Reports everything registered under the request's values of the attribute.
    pub(super) fn each(
        &self,
        store: &Store,
        dim: Dimension,
        facts: &Prepared<'_>,
        found: &mut impl FnMut(u32),
    ) {
        if let Some(addresses) = &self.addresses {
            return addresses.each(facts.address(dim), found);
        }
        if dim == Dimension::NAMESPACE {
            return self.namespaces(store, facts, found);
        }
        if !dim.is_fixed() {
            return facts.each_text(dim, &mut |text| self.text(store, text, found));
        }
        if let Some(text) = facts.text(dim) {
            self.text(store, text, found);
        }
    }

    fn text(&self, store: &Store, text: &[u8], found: &mut impl FnMut(u32)) {
        self.texts.each(&store.texts, text, found);
        if self.exists != NOTHING {
            found(self.exists);
        }
        if self.line != NOTHING && is_present(text) {
            found(self.line);
        }
        if let Some(templates) = &self.templates {
            templates.each(&store.texts, text, found);
        }
    }

    /// Values are texts without slashes: whole ones and beginnings are found in readings without one, ends in all.
    fn namespaces(&self, store: &Store, facts: &Prepared<'_>, found: &mut impl FnMut(u32)) {
        let mut some = false;
        for reading in facts.namespaces() {
            some = true;
            self.texts.ends(&store.texts, reading, found);
            if !reading.contains(&b'/') {
                if let Some(registered) = self.texts.whole(&store.texts, reading) {
                    found(registered);
                }
                self.texts.beginnings(&store.texts, reading, found);
            }
        }
        if some && self.exists != NOTHING {
            found(self.exists);
        }
    }

    pub(super) fn memory(&self) -> usize {
        let addresses = self.addresses.as_ref().map_or(0, |table| table.memory());
        let templates = self.templates.as_ref().map_or(0, |table| table.memory());
        self.texts.memory() + addresses + templates
    }
}

/// The headers that rules ask for, by name.
#[derive(Debug, Default)]
pub(super) struct HeaderNames {
    pub(super) table: HashSlots,
    /// Which lengths occur; the last bit stands for all longer ones.
    pub(super) lengths: u64,
    pub(super) longest: usize,
    /// Numbers of headers whose lines form one value.
    pub(super) joined: Box<[u16]>,
}

impl Store {
    /// The number of a header that some rule asks for.
    pub(super) fn header_number(&self, name: &[u8]) -> Option<u16> {
        let HeaderNames {
            table,
            lengths,
            longest,
            joined: _,
        } = &self.headers;
        if name.len() > *longest || lengths >> name.len().min(63) & 1 == 0 {
            return None;
        }
        let is = |text, _| self.texts.get(text).eq_ignore_ascii_case(name);
        let number = table.find(super::hash::whole_any_case(name), is)?;
        u16::try_from(number).ok()
    }

    /// The first rule of a node that matches, if it is before `best`.
    pub(super) fn search(&self, node: u32, facts: &Prepared<'_>, best: &mut u32) {
        let node = &self.nodes[node as usize];
        node.tables.each(self, facts, &mut |posting| {
            self.follow(posting, facts, best);
        });
        self.rest(node, facts, best);
    }

    fn follow(&self, posting: u32, facts: &Prepared<'_>, best: &mut u32) {
        if posting & SINGLE != 0 {
            self.consider(posting & !SINGLE, facts, best);
            return;
        }
        let posting = &self.postings[posting as usize];
        if posting.first >= *best {
            return;
        }
        if posting.node != NONE {
            return self.search(posting.node, facts, best);
        }
        for candidate in posting.list.of(&self.candidates) {
            if candidate & NUMBER >= *best || self.consider(*candidate, facts, best) {
                return;
            }
        }
    }

    /// Looks at one rule; whether it is the best now.
    fn consider(&self, candidate: u32, facts: &Prepared<'_>, best: &mut u32) -> bool {
        let number = candidate & NUMBER;
        if number >= *best {
            return false;
        }
        let matches = candidate & DECIDED != 0 || self.rule_matches(number, facts);
        if matches {
            *best = number;
        }
        matches
    }

    /// The rules no value leads to.
    fn rest(&self, node: &IndexNode, facts: &Prepared<'_>, best: &mut u32) {
        if node.rest.first().is_none_or(|first| *first >= *best) {
            return;
        }
        let mut excluded: smallvec::SmallVec<[&[BlockRun]; 8]> = smallvec::SmallVec::new();
        node.exclusions.each(self, facts, &mut |set| {
            excluded.push(&node.excluded[set as usize]);
        });
        if excluded.is_empty() {
            for rule in &node.rest {
                if *rule >= *best || self.consider(*rule, facts, best) {
                    return;
                }
            }
            return;
        }
        self.rest_but(node, &mut excluded, facts, best);
    }

    /// The same, without those that are excluded: block by block of 64, stretches that are wholly excluded in one step.
    fn rest_but(
        &self,
        node: &IndexNode,
        excluded: &mut [&[BlockRun]],
        facts: &Prepared<'_>,
        best: &mut u32,
    ) {
        let blocks = node.rest.len().div_ceil(64) as u32;
        let mut block = 0;
        while block < blocks {
            let mut left = u64::MAX;
            // First block to which this word no longer applies.
            let mut until = blocks;
            for runs in excluded.iter_mut() {
                while runs.first().is_some_and(|run| run.end <= block) {
                    *runs = &runs[1..];
                }
                match runs.first() {
                    Some(run) if run.start <= block => {
                        left &= !run.excluded;
                        until = until.min(run.end);
                    }
                    Some(run) => until = until.min(run.start),
                    None => {}
                }
            }
            if left == 0 {
                block = until;
                continue;
            }
            while left != 0 {
                let place = block as usize * 64 + left.trailing_zeros() as usize;
                let Some(rule) = node.rest.get(place) else {
                    return;
                };
                if *rule >= *best || self.consider(*rule, facts, best) {
                    return;
                }
                left &= left - 1;
            }
            block += 1;
        }
    }

    /// Bytes held on the heap.
    pub(super) fn memory(&self) -> usize {
        let flat = self.texts.memory()
            + size_of_val(&*self.matchers)
            + size_of_val(&*self.blocks)
            + size_of_val(&*self.tokens)
            + size_of_val(&*self.sets)
            + size_of_val(&*self.terms)
            + size_of_val(&*self.parts)
            + size_of_val(&*self.part_lists)
            + size_of_val(&*self.alternatives)
            + size_of_val(&*self.rules)
            + size_of_val(&*self.postings)
            + size_of_val(&*self.candidates);
        let table = |table: &Table| size_of::<Table>() + table.memory();
        let node = |node: &IndexNode| {
            let tables = node.tables.memory() + node.exclusions.memory();
            let runs = node
                .excluded
                .iter()
                .map(|runs| size_of_val(&**runs) + size_of::<usize>() * 2);
            size_of::<IndexNode>() + size_of_val(&*node.rest) + tables + runs.sum::<usize>()
        };
        let tables: usize = self.tables.iter().map(table).sum();
        let claims = self.claims.memory();
        let headers = self.headers.table.memory();
        flat + tables + self.nodes.iter().map(node).sum::<usize>() + headers + claims
    }
}
