//! Rules as the engine keeps them: a few numbers each. Equal texts, lists of values and whole sources are shared
//! between rules. Testing one rule costs as many steps as the rule has terms, independent of the other rules.

use super::prepared::Prepared;
use super::store::Store;
use super::texts::TextId;
use crate::authorization::pattern::is_present;
use crate::authorization::template::stands_for;
use crate::authorization::verdict::RuleRef;
use crate::authorization::{cidr::Cidr, glob};

/// An attribute by its number: fixed ones, and one for each header and each claim that some rule asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Dimension(pub(super) u16);

impl Dimension {
    pub(super) const PRINCIPAL: Self = Self(0);
    pub(super) const NAMESPACE: Self = Self(1);
    pub(super) const ACCOUNT: Self = Self(2);
    pub(super) const TRUST_DOMAIN: Self = Self(3);
    pub(super) const SOURCE_IP: Self = Self(4);
    pub(super) const REMOTE_IP: Self = Self(5);
    pub(super) const DESTINATION_IP: Self = Self(6);
    pub(super) const PORT: Self = Self(7);
    pub(super) const SNI: Self = Self(8);
    pub(super) const HOST: Self = Self(9);
    pub(super) const METHOD: Self = Self(10);
    pub(super) const PATH: Self = Self(11);
    pub(super) const TOKEN: Self = Self(12);
    /// Only looked up by, never asked for.
    pub(super) const ISSUER: Self = Self(13);
    /// Likewise.
    pub(super) const SUBJECT: Self = Self(14);
    /// Likewise: issuer, a zero byte, subject.
    pub(super) const ISSUER_SUBJECT: Self = Self(15);
    const HEADERS: u16 = 0x4000;
    const CLAIMS: u16 = 0x8000;

    /// The header of that number.
    pub(super) fn header(number: u16) -> Self {
        Self(Self::HEADERS | number)
    }

    pub(super) fn claim(number: u16) -> Self {
        Self(Self::CLAIMS | number)
    }

    /// Returns true if the attribute is neither a header nor a claim.
    pub(super) fn is_fixed(self) -> bool {
        self.0 < Self::HEADERS
    }

    pub(super) fn kind(self) -> DimKind {
        match self.0 {
            number if number >= Self::CLAIMS => DimKind::Claim(number & !Self::CLAIMS),
            number if number >= Self::HEADERS => DimKind::Header(number & !Self::HEADERS),
            _ => DimKind::Fixed,
        }
    }
}

/// Most headers, and most claims, that one engine distinguishes: numbers of 14 bits. A rule on a further name counts as
/// a rule on an attribute that Voile cannot evaluate, and fails closed.
pub(super) const MAX_NAMES: usize = 1 << 14;

pub(super) enum DimKind {
    Fixed,
    Header(u16),
    Claim(u16),
}

/// One value of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Matcher {
    Whole(TextId),
    Beginning(TextId),
    End(TextId),
    /// There is a value, even an empty one.
    Exists,
    /// There is a value that is not empty and has one line.
    Line,
    Glob(TextId),
    Template(TextId),
    Block(u32),
    Token(u32),
}

/// A list of values; long ones are tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueSet {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) table: u32,
}

/// One attribute against one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Term {
    pub(super) dim: Dimension,
    pub(super) negated: bool,
    pub(super) set: u32,
}

/// A stretch of a longer list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) len: u32,
}

impl Span {
    pub(super) fn of<T>(self, all: &[T]) -> &[T] {
        &all[self.start as usize..][..self.len as usize]
    }
}

/// Parts of which one must hold; none: always. Many are an index of their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alternatives {
    pub(super) parts: Span,
    pub(super) node: u32,
}

/// The number for "none" everywhere in an engine.
pub(super) const NONE: u32 = u32::MAX;

/// One rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexedRule {
    /// Alternatives by number, `NONE` for always.
    pub(super) from: u32,
    pub(super) to: u32,
    /// A part by number, `NONE` for always.
    pub(super) when: u32,
    pub(super) place: RuleRef,
}

impl Store {
    pub(super) fn rule_matches(&self, rule: u32, facts: &Prepared<'_>) -> bool {
        let rule = &self.rules[rule as usize];
        (rule.to == NONE || self.any_part(rule.to, facts))
            && (rule.from == NONE || self.any_part(rule.from, facts))
            && (rule.when == NONE || self.part_holds(rule.when, facts))
    }

    fn any_part(&self, alternatives: u32, facts: &Prepared<'_>) -> bool {
        let alternatives = &self.alternatives[alternatives as usize];
        if alternatives.node != NONE {
            let mut best = NONE;
            self.search(alternatives.node, facts, &mut best);
            return best != NONE;
        }
        let parts = alternatives.parts.of(&self.part_lists);
        parts.iter().any(|part| self.part_holds(*part, facts))
    }

    fn part_holds(&self, part: u32, facts: &Prepared<'_>) -> bool {
        let terms = self.parts[part as usize].of(&self.terms);
        terms
            .iter()
            .all(|term| self.set_matches(term.dim, term.set, facts) != term.negated)
    }

    fn set_matches(&self, dim: Dimension, set: u32, facts: &Prepared<'_>) -> bool {
        let set = &self.sets[set as usize];
        if set.table != NONE {
            let mut found = false;
            self.tables[set.table as usize].each(self, dim, facts, &mut |_| found = true);
            return found;
        }
        let span = Span {
            start: set.start,
            len: set.len,
        };
        let matchers = span.of(&self.matchers);
        matchers
            .iter()
            .any(|matcher| self.matches(dim, *matcher, facts))
    }

    /// Returns true if one of the request's values matches.
    fn matches(&self, dim: Dimension, matcher: Matcher, facts: &Prepared<'_>) -> bool {
        if let Matcher::Block(block) = matcher {
            let block: &Cidr = &self.blocks[block as usize];
            return block.contains(facts.address(dim));
        }
        if let Matcher::Token(token) = matcher {
            let (issuer, subject) = self.tokens[token as usize];
            return facts
                .issuer
                .is_some_and(|text| self.text_matches(issuer, text))
                && facts
                    .subject
                    .is_some_and(|text| self.text_matches(subject, text));
        }
        let mut any = false;
        facts.each_text(dim, &mut |text| {
            any = any || self.text_matches(matcher, text);
        });
        any
    }

    pub(super) fn text_matches(&self, matcher: Matcher, value: &[u8]) -> bool {
        match matcher {
            Matcher::Whole(text) => self.texts.get(text) == value,
            Matcher::Beginning(text) => value.starts_with(self.texts.get(text)),
            Matcher::End(text) => value.ends_with(self.texts.get(text)),
            Matcher::Exists => true,
            Matcher::Line => is_present(value),
            Matcher::Glob(text) => glob::matches(self.texts.get(text), value),
            Matcher::Template(text) => template_matches(self.texts.get(text), value),
            Matcher::Block(_) | Matcher::Token(_) => false,
        }
    }
}

/// One template against one path, both as written.
fn template_matches(template: &[u8], path: &[u8]) -> bool {
    let mut templates = template.split(|byte| *byte == b'/');
    let mut start = 0;
    let next = |start: usize| {
        let rest = path.get(start..)?;
        let end = rest
            .iter()
            .position(|byte| *byte == b'/')
            .unwrap_or(rest.len());
        Some(&rest[..end])
    };
    while let Some(wanted) = templates.next() {
        if wanted == b"{**}" {
            let after = &template[template.len() - rest_len(templates)..];
            return path.get(start..).is_some_and(|rest| any_then(rest, after));
        }
        let Some(segment) = next(start) else {
            return false;
        };
        let good = match wanted {
            b"{*}" => !segment.is_empty() && segment.iter().copied().all(stands_for),
            literal => literal == segment,
        };
        if !good {
            return false;
        }
        start += segment.len() + 1;
    }
    start == path.len() + 1
}

/// Bytes of the rest of a template, with the slash before it.
fn rest_len<'a>(rest: impl Iterator<Item = &'a [u8]>) -> usize {
    rest.map(|segment| segment.len() + 1).sum()
}

/// `{**}` and then this: literal segments with their slashes, or nothing.
fn any_then(rest: &[u8], after: &[u8]) -> bool {
    let taken = rest.strip_suffix(after);
    taken.is_some_and(|taken| taken.iter().all(|byte| stands_for(*byte) || *byte == b'/'))
}
