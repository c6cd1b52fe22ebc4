//! From policies to the engine's rules: every text, list, source and operation is kept once, however many rules say it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::build::LONG_LIST;
use super::rules::{
    Alternatives, Dimension, IndexedRule, MAX_NAMES, Matcher, NONE, Span, Term, ValueSet,
};
use super::store::Store;
use super::texts::{Interner, TextId};
use crate::authorization::attribute::Attribute;
use crate::authorization::cidr::Cidr;
use crate::authorization::pattern::{Pattern, Text};
use crate::authorization::policy::{self, Action};
use crate::authorization::template::PathTemplate;
use crate::authorization::verdict::RuleRef;

/// An engine in the making.
#[derive(Debug, Default)]
pub(super) struct Compiler {
    pub(super) store: Store,
    pub(super) interner: Interner,
    /// Templates by their texts.
    pub(super) templates: HashMap<TextId, PathTemplate>,
    /// The lists by their contents.
    sets: HashMap<(Dimension, Vec<Matcher>), u32>,
    parts: HashMap<Vec<Term>, u32>,
    alternatives: HashMap<Vec<u32>, u32>,
    blocks: HashMap<Cidr, u32>,
    tokens: HashMap<(Matcher, Matcher), u32>,
    headers: HashMap<Arc<str>, u16>,
    claims: HashMap<Arc<[Arc<str>]>, u16>,
}

/// A number for something that is met for the first time.
fn next(length: usize) -> u32 {
    u32::try_from(length).expect("invariant: policies have less than 4 billion of anything")
}

/// A rule's constraints: from, to, when.
pub(super) type Shape = (u32, u32, u32);

impl Compiler {
    /// The constraints of a rule; `None` if no request can match it.
    pub(super) fn shape(
        &mut self,
        rule: &policy::PolicyRule,
        action: &Action,
        http: bool,
    ) -> Option<Shape> {
        let rule = rule.answerable(action, http)?;
        let when = self.terms(&rule.when, action)?;
        let from = self.alternatives(&rule.from, action)?;
        let to = self.alternatives(&rule.to, action)?;
        Some((from, to, self.part(when)))
    }

    /// Keeps a rule; its number.
    pub(super) fn rule(&mut self, shape: Shape, place: RuleRef) -> u32 {
        let (from, to, when) = shape;
        self.store.rules.push(IndexedRule {
            from,
            to,
            when,
            place,
        });
        next(self.store.rules.len() - 1)
    }

    /// Parts of which one must hold, by number; `NONE` when one of them always does.
    fn alternatives(&mut self, parts: &[policy::Terms], action: &Action) -> Option<u32> {
        let mut all = Vec::new();
        for part in parts {
            let terms = self.terms(part, action)?;
            if terms.is_empty() {
                all.clear();
                break;
            }
            all.push(terms);
        }
        if all.is_empty() {
            return Some(NONE);
        }
        let merged = self.merged(&all);
        let numbers = match merged {
            Some(term) => vec![self.part(vec![term])],
            None => {
                let mut numbers: Vec<u32> = all.into_iter().map(|terms| self.part(terms)).collect();
                numbers.sort_unstable();
                numbers.dedup();
                numbers
            }
        };
        if let Some(known) = self.alternatives.get(&numbers) {
            return Some(*known);
        }
        let node = match numbers.len() > LONG_LIST {
            true => self.node_of_parts(&numbers),
            false => NONE,
        };
        let parts = Span {
            start: next(self.store.part_lists.len()),
            len: next(numbers.len()),
        };
        self.store.part_lists.extend_from_slice(&numbers);
        let number = next(self.store.alternatives.len());
        self.store.alternatives.push(Alternatives { parts, node });
        self.alternatives.insert(numbers, number);
        Some(number)
    }

    /// Parts that each ask one list of the same attribute are one list.
    fn merged(&mut self, parts: &[Vec<Term>]) -> Option<Term> {
        let [first] = *parts.first()?.as_slice() else {
            return None;
        };
        let alike =
            |part: &Vec<Term>| matches!(part[..], [term] if term.dim == first.dim && !term.negated);
        if !parts.iter().all(alike) {
            return None;
        }
        let sets = parts.iter().map(|part| part[0].set);
        let all = sets
            .flat_map(|set| self.matchers_of(set).to_vec())
            .collect();
        Some(Term {
            set: self.set(first.dim, all),
            ..first
        })
    }

    pub(super) fn matchers_of(&self, set: u32) -> &[Matcher] {
        let ValueSet { start, len, .. } = self.store.sets[set as usize];
        Span { start, len }.of(&self.store.matchers)
    }

    /// An index over parts, each as a rule of its own.
    fn node_of_parts(&mut self, parts: &[u32]) -> u32 {
        let place = RuleRef { policy: 0, rule: 0 };
        let rules = parts
            .iter()
            .map(|part| self.rule((NONE, NONE, *part), place));
        let rules: Vec<u32> = rules.collect();
        self.node(&rules)
    }

    fn part(&mut self, mut terms: Vec<Term>) -> u32 {
        if terms.is_empty() {
            return NONE;
        }
        terms.sort_unstable();
        terms.dedup();
        let store = &mut self.store;
        match self.parts.entry(terms) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let start = next(store.terms.len());
                store.terms.extend_from_slice(new.key());
                let len = next(new.key().len());
                store.parts.push(Span { start, len });
                *new.insert(next(store.parts.len() - 1))
            }
        }
    }

    fn terms(&mut self, terms: &policy::Terms, action: &Action) -> Option<Vec<Term>> {
        let mut all = Vec::new();
        for term in terms {
            let Some(dim) = self.dim(&term.attribute) else {
                // Voile cannot evaluate this attribute: an ALLOW rule matches nothing, any other rule drops the term.
                match action {
                    Action::Allow => return None,
                    Action::Deny | Action::Audit | Action::Custom(_) => continue,
                }
            };
            for (list, negated) in [(&term.any, false), (&term.none, true)] {
                if !list.is_empty() {
                    let matchers = list.iter().filter_map(|pattern| self.matcher(dim, pattern));
                    let matchers = matchers.collect();
                    let set = self.set(dim, matchers);
                    all.push(Term { dim, negated, set });
                }
            }
        }
        Some(all)
    }

    fn set(&mut self, dim: Dimension, mut matchers: Vec<Matcher>) -> u32 {
        matchers.sort_unstable_by_key(Matcher::order);
        matchers.dedup();
        if let Some(known) = self.sets.get(&(dim, matchers.clone())) {
            return *known;
        }
        let table = match matchers.len() > LONG_LIST {
            true => self.membership(&matchers).unwrap_or(NONE),
            false => NONE,
        };
        let set = ValueSet {
            start: next(self.store.matchers.len()),
            len: next(matchers.len()),
            table,
        };
        self.store.matchers.extend_from_slice(&matchers);
        self.store.sets.push(set);
        let number = next(self.store.sets.len() - 1);
        self.sets.insert((dim, matchers), number);
        number
    }

    fn dim(&mut self, attribute: &Attribute) -> Option<Dimension> {
        let uses = &mut self.store.uses;
        Some(match attribute {
            Attribute::SourcePrincipal
            | Attribute::SourceNamespace
            | Attribute::SourceServiceAccount
            | Attribute::SourceTrustDomain => {
                uses.peer = true;
                match attribute {
                    Attribute::SourcePrincipal => Dimension::PRINCIPAL,
                    Attribute::SourceNamespace => Dimension::NAMESPACE,
                    Attribute::SourceServiceAccount => Dimension::ACCOUNT,
                    _ => Dimension::TRUST_DOMAIN,
                }
            }
            Attribute::SourceIp => Dimension::SOURCE_IP,
            Attribute::RemoteIp => Dimension::REMOTE_IP,
            Attribute::DestinationIp => Dimension::DESTINATION_IP,
            Attribute::DestinationPort => Dimension::PORT,
            Attribute::Sni => {
                uses.sni = true;
                Dimension::SNI
            }
            Attribute::Host => {
                uses.host = true;
                Dimension::HOST
            }
            Attribute::Method => Dimension::METHOD,
            Attribute::Path => Dimension::PATH,
            Attribute::RequestPrincipal => {
                uses.token = true;
                Dimension::TOKEN
            }
            Attribute::RequestAudiences => Dimension::claim(self.claim(&["aud".into()])?),
            Attribute::RequestPresenter => Dimension::claim(self.claim(&["azp".into()])?),
            Attribute::RequestClaim(path) => Dimension::claim(self.claim(path)?),
            Attribute::RequestHeader(name) => {
                uses.headers = true;
                Dimension::header(self.header(name)?)
            }
            Attribute::PeerNamespace | Attribute::Unanswerable(_) => return None,
        })
    }

    fn claim(&mut self, path: &[Arc<str>]) -> Option<u16> {
        if let Some(known) = self.claims.get(path) {
            return Some(*known);
        }
        let number = u16::try_from(self.claims.len()).ok()?;
        if self.claims.len() >= MAX_NAMES {
            return None;
        }
        self.store.claims.add(path, number);
        self.claims.insert(path.into(), number);
        Some(number)
    }

    fn header(&mut self, name: &Arc<str>) -> Option<u16> {
        let count = self.headers.len();
        match self.headers.entry(name.clone()) {
            Entry::Occupied(known) => Some(*known.get()),
            Entry::Vacant(_) if count >= MAX_NAMES => None,
            Entry::Vacant(new) => Some(*new.insert(u16::try_from(count).ok()?)),
        }
    }

    /// The headers that were asked for, with their numbers.
    pub(super) fn header_numbers(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, u16)> {
        self.headers.iter().map(|(name, number)| (name, *number))
    }

    fn matcher(&mut self, dim: Dimension, pattern: &Pattern) -> Option<Matcher> {
        Some(match pattern {
            Pattern::Text(text) => self.text(dim, text),
            Pattern::ServiceAccount { namespace, name } => Matcher::Whole(
                self.interner
                    .id(format!("{namespace}/sa/{name}").as_bytes()),
            ),
            Pattern::Port(port) => Matcher::Whole(self.interner.id(&port.to_be_bytes())),
            Pattern::Cidr(cidr) => {
                let blocks = &mut self.store.blocks;
                Matcher::Block(*self.blocks.entry(*cidr).or_insert_with(|| {
                    blocks.push(*cidr);
                    next(blocks.len() - 1)
                }))
            }
            Pattern::Template(template) => {
                let text = self.interner.id(template.to_string().as_bytes());
                self.templates
                    .entry(text)
                    .or_insert_with(|| template.clone());
                Matcher::Template(text)
            }
            Pattern::RequestPrincipal(principal) => {
                let issuer = self.text(Dimension::ISSUER, &principal.issuer);
                let subject = self.text(Dimension::SUBJECT, &principal.subject);
                let tokens = &mut self.store.tokens;
                Matcher::Token(*self.tokens.entry((issuer, subject)).or_insert_with(|| {
                    tokens.push((issuer, subject));
                    next(tokens.len() - 1)
                }))
            }
            Pattern::Unanswerable(_) => return None,
        })
    }

    fn text(&mut self, dim: Dimension, text: &Text) -> Matcher {
        let exists = dim.counts_empty();
        let mut id = |text: &str| match dim {
            Dimension::HOST => self.interner.id(text.to_ascii_lowercase().as_bytes()),
            _ => self.interner.id(text.as_bytes()),
        };
        match text {
            Text::Exact(text) => Matcher::Whole(id(text)),
            Text::Prefix(text) => Matcher::Beginning(id(text)),
            Text::Suffix(text) => Matcher::End(id(text)),
            Text::Glob(text) => Matcher::Glob(id(text)),
            Text::Present if exists => Matcher::Exists,
            Text::Present => Matcher::Line,
        }
    }
}
