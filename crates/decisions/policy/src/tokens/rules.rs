//! Rules of all RequestAuthentications of a workload, compiled: places by name, rules by issuer. Finding which rule a token is for is one
//! look, however many issuers there are.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use voile_model::mesh::{ClaimOutput, KeySource, TokenRule};

use super::claims::bare_audience;
use super::keys::{Fingerprint, KeySet, fingerprint};
use super::outcome::TokenErrorReason;
use super::places::{TokenLocation, TokenLocations};

/// Claims that are always lists delimited by blanks.
const ALWAYS_SPLIT: [&str; 2] = ["permission", "scope"];

/// A rule, and the issuer's keys as they are now.
#[derive(Debug, Clone, Copy)]
pub struct RuleKeys<'a> {
    /// The rule.
    pub rule: &'a TokenRule,
    /// The key set that was fetched for it; for a rule with keys of its own they need not be said again.
    pub keys: Option<&'a str>,
}

/// All rules of a workload, compiled.
pub struct Rules {
    pub(super) rules: Vec<CompiledTokenRule>,
    pub(super) places: TokenLocations,
    /// Rules by issuer, in order.
    issuers: HashMap<Arc<str>, Vec<u32>>,
    /// Rules for any issuer, in order.
    anybody: Vec<u32>,
    /// Headers, in lower case, that only tokens may set.
    owned: Vec<Arc<str>>,
    /// True if a rule demands a token.
    pub(super) required: bool,
    key_sets: BTreeMap<Fingerprint, Arc<KeySet>>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("rules", &self.rules.len())
            .finish_non_exhaustive()
    }
}

/// One rule, compiled.
pub(super) struct CompiledTokenRule {
    pub(super) issuer: Arc<str>,
    /// As they are compared, in order; any when there are none.
    audiences: Box<[Box<str>]>,
    pub(super) keys: Result<Arc<KeySet>, TokenErrorReason>,
    /// The numbers of its places, in order.
    pub(super) places: Box<[u16]>,
    pub(super) forward: bool,
    /// True if a request without a good token for it is refused.
    pub(super) required: bool,
    pub(super) payload_header: Option<Arc<str>>,
    pub(super) outputs: Box<[ClaimOutput]>,
    pub(super) split: Box<[Arc<str>]>,
    /// Fingerprint of everything that a cached token depends on: keys, outputs, claims that are split.
    pub(super) profile: Fingerprint,
}

impl Rules {
    /// Compiles rules, which must be in the order in which tokens are tried (`voile_model::mesh::token_rules`). Key sets that were
    /// read before are taken from `before`.
    pub fn new<'a>(given: impl IntoIterator<Item = RuleKeys<'a>>, before: Option<&Self>) -> Self {
        let given: Vec<RuleKeys<'a>> = given.into_iter().collect();
        let owned = owned(&given);
        let mut all: Vec<TokenLocation> = given
            .iter()
            .flat_map(|one| TokenLocation::of(one.rule))
            .collect();
        // Headers that only tokens may set are removed before the search. No token is ever in one of them.
        all.retain(
            |place| !matches!(place, TokenLocation::Header(name, _) if owned.contains(name)),
        );
        all.sort();
        all.dedup();
        all.truncate(usize::from(u16::MAX));
        let mut compiled = Self {
            rules: Vec::with_capacity(given.len()),
            places: TokenLocations::new(all),
            issuers: HashMap::new(),
            anybody: Vec::new(),
            owned,
            required: given.iter().any(|one| one.rule.required),
            key_sets: BTreeMap::new(),
        };
        for one in given {
            compiled.add(one, before);
        }
        compiled
    }

    fn add(&mut self, given: RuleKeys<'_>, before: Option<&Self>) {
        let number = u32::try_from(self.rules.len()).unwrap_or(u32::MAX);
        let rule = given.rule;
        let keys = self.key_set(given, before);
        match &*rule.issuer {
            "" => self.anybody.push(number),
            _ => {
                let rules = self.issuers.entry(rule.issuer.clone()).or_default();
                rules.push(number);
            }
        }
        let mut places: Vec<u16> = TokenLocation::of(rule)
            .filter_map(|place| self.places.number(&place))
            .collect();
        places.sort_unstable();
        places.dedup();
        for place in &places {
            self.places.seen_by(*place, number);
        }
        self.rules
            .push(CompiledTokenRule::new(rule, keys, places.into()));
    }

    /// The keys of a rule: each set is read once, and kept once.
    fn key_set(
        &mut self,
        given: RuleKeys<'_>,
        before: Option<&Self>,
    ) -> Result<Arc<KeySet>, TokenErrorReason> {
        let text = match (&given.rule.keys, given.keys) {
            (_, Some(text)) => text,
            (KeySource::Inline(text), None) => text,
            (KeySource::Uri(_) | KeySource::Discovery, None) => {
                return Err(TokenErrorReason::NoKeySet);
            }
        };
        let id = fingerprint(&[text.as_bytes()]);
        let known = self
            .key_sets
            .get(&id)
            .or_else(|| before?.key_sets.get(&id))
            .cloned();
        let set = match known {
            Some(set) => set,
            None => Arc::new(KeySet::read(text).map_err(|_| TokenErrorReason::NoUsableKey)?),
        };
        self.key_sets.insert(id, set.clone());
        Ok(set)
    }

    /// Returns true if there are no rules, so that no request need be examined.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Headers, in lower case, that only verified tokens may set. They are removed from every request, even without a
    /// token.
    pub fn owned_headers(&self) -> &[Arc<str>] {
        &self.owned
    }

    /// Returns true if a rule looks for tokens in the query parameter of this (decoded) name.
    pub fn reads_param(&self, name: &[u8]) -> bool {
        self.places.reads_param(name)
    }

    /// Rules that have no key at all now, by their number: their tokens are refused.
    pub fn without_keys(&self) -> impl Iterator<Item = usize> {
        let rules = self.rules.iter().enumerate();
        rules.filter_map(|(number, rule)| rule.keys.is_err().then_some(number))
    }

    /// The rules that trust an issuer, and those that trust any issuer, each in order.
    pub(super) fn believing(&self, issuer: &str) -> [&[u32]; 2] {
        let own = self.issuers.get(issuer).map_or(&[][..], Vec::as_slice);
        [own, &self.anybody]
    }
}

/// Headers that these rules write.
fn owned(given: &[RuleKeys<'_>]) -> Vec<Arc<str>> {
    let mut owned: Vec<Arc<str>> = Vec::new();
    for RuleKeys { rule, .. } in given {
        owned.extend(rule.output_payload_to_header.clone());
        owned.extend(rule.output_claims.iter().map(|one| one.header.clone()));
    }
    owned.sort();
    owned.dedup();
    owned
}

impl CompiledTokenRule {
    fn new(
        rule: &TokenRule,
        keys: Result<Arc<KeySet>, TokenErrorReason>,
        places: Box<[u16]>,
    ) -> Self {
        let bare = |text: &Arc<str>| Box::from(bare_audience(text));
        let mut audiences: Vec<Box<str>> = rule.audiences.iter().map(bare).collect();
        audiences.sort();
        audiences.dedup();
        let always = ALWAYS_SPLIT.map(Arc::from);
        let mut split: Vec<Arc<str>> = always.into();
        split.extend(rule.space_delimited_claims.iter().cloned());
        split.sort();
        split.dedup();
        let mut parts: Vec<&[u8]> = Vec::new();
        if let Ok(keys) = &keys {
            parts.push(&keys.fingerprint);
        }
        // The count separates the two lists in the fingerprint.
        let count = split.len().to_le_bytes();
        parts.push(&count);
        parts.extend(split.iter().map(|name| name.as_bytes()));
        parts.extend(rule.output_claims.iter().map(|one| one.claim.as_bytes()));
        Self {
            issuer: rule.issuer.clone(),
            audiences: audiences.into(),
            profile: fingerprint(&parts),
            keys,
            places,
            forward: rule.forward_original,
            required: rule.required,
            payload_header: rule.output_payload_to_header.clone(),
            outputs: rule.output_claims.clone().into(),
            split: split.into(),
        }
    }

    /// Returns an error unless one of these audiences is one of the rule's.
    pub(super) fn takes_audience<'a>(
        &self,
        mut audiences: impl Iterator<Item = &'a str>,
    ) -> Result<(), TokenErrorReason> {
        let known = |text: &str| {
            let found = self.audiences.binary_search_by(|own| (**own).cmp(text));
            found.is_ok()
        };
        match self.audiences.is_empty() || audiences.any(known) {
            true => Ok(()),
            false => Err(TokenErrorReason::Audience),
        }
    }

    /// Returns true if the rule trusts this issuer.
    pub(super) fn believes(&self, issuer: &str) -> bool {
        self.issuer.is_empty() || *self.issuer == *issuer
    }
}
