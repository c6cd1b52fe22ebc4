//! RequestAuthentications and key sets of the control plane, compiled once for all workers and again only when one of them
//! changes.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use voile_model::mesh::TokenRule;
use voile_proto::type_url;
use voile_xds::wire::{
    PolicyReference, ProxyConfiguration, ReceivedTokens, decode_key_set, decode_tokens,
};

use super::Versioned;
use crate::tokens::Tokens;

/// Rules by name.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    held: BTreeMap<Arc<str>, Versioned<ReceivedTokenRules>>,
    key_sets: BTreeMap<Arc<str>, Arc<str>>,
    /// Last compiled rules, and their inputs.
    compiled: RefCell<Option<(Inputs, Tokens)>>,
    /// The same for single destinations of a waypoint, most recently used first.
    apart: RefCell<VecDeque<(Inputs, Tokens)>>,
}

/// Sets of rules of single destinations that are kept compiled, as of policies.
const MAX_APART: usize = 4096;

#[derive(Debug, Clone)]
enum ReceivedTokenRules {
    Good(Arc<ReceivedTokens>),
    /// It cannot be read and never was good.
    Unreadable,
}

/// All inputs of a compiled result: the content behind a key set's name never changes.
#[derive(Debug, Clone, PartialEq)]
struct Inputs {
    references: Vec<PolicyReference>,
    key_sets: Vec<Arc<str>>,
}

impl Rules {
    /// Stores a RequestAuthentication. An unreadable one leaves the last good one; without any, it refuses every
    /// request, for the reasons of an AuthorizationPolicy.
    pub(super) fn add(
        &mut self,
        name: &Arc<str>,
        version: Arc<str>,
        body: &[u8],
    ) -> Result<(), String> {
        let (value, result) = match decode_tokens(name, body) {
            Ok(received) => (ReceivedTokenRules::Good(received.into()), Ok(())),
            Err(error) => {
                let good = self.held.get(name).map(|held| held.value.clone());
                (
                    good.unwrap_or(ReceivedTokenRules::Unreadable),
                    Err(error.to_string()),
                )
            }
        };
        self.held.insert(name.clone(), Versioned { version, value });
        result
    }

    /// Stores a key set.
    pub(super) fn add_keys(&mut self, name: &Arc<str>, body: &[u8]) -> Result<(), String> {
        let keys = decode_key_set(body).map_err(|error| error.to_string())?;
        self.key_sets.insert(name.clone(), keys);
        Ok(())
    }

    pub(super) fn remove(&mut self, kind: &'static str, name: &Arc<str>) {
        match kind {
            type_url::KEY_SET => drop(self.key_sets.remove(name)),
            _ => drop(self.held.remove(name)),
        }
    }

    /// Names in a configuration that are not held in the version that it names.
    pub(super) fn missing(&self, configuration: &ProxyConfiguration) -> Vec<Arc<str>> {
        let held = |wanted: &&PolicyReference| {
            let held = self.held.get(&wanted.name);
            held.is_some_and(|held| held.version == wanted.version)
        };
        let destinations = configuration.waypoint.iter();
        let destinations = destinations.flat_map(|waypoint| &waypoint.destinations);
        let references = configuration.request_authentications.iter();
        let references =
            references.chain(destinations.flat_map(|one| &one.request_authentications));
        let rules = references.filter(|wanted| !held(wanted));
        let key_sets = configuration.key_sets.iter();
        let keys = key_sets.filter(|name| !self.key_sets.contains_key(*name));
        rules
            .map(|wanted| wanted.name.clone())
            .chain(keys.cloned())
            .collect()
    }

    /// Names and versions, for people.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.held.iter().map(|(name, held)| (name, &held.version))
    }

    /// Names of the key sets, for people.
    pub(crate) fn key_sets(&self) -> impl Iterator<Item = &Arc<str>> {
        self.key_sets.keys()
    }

    /// Compiled rules of the configuration; `None` without any. Call only when all of them are held.
    pub(super) fn compiled(&self, configuration: &ProxyConfiguration) -> Option<Tokens> {
        if configuration.request_authentications.is_empty() {
            self.compiled.replace(None);
            return None;
        }
        let inputs = Inputs {
            references: configuration.request_authentications.clone(),
            key_sets: configuration.key_sets.clone(),
        };
        let mut last = self.compiled.borrow_mut();
        if let Some((from, compiled)) = &*last
            && *from == inputs
        {
            return Some(compiled.clone());
        }
        let before = last.as_ref().map(|(_, compiled)| compiled);
        let compiled = self.compile(&inputs.references, before);
        *last = Some((inputs, compiled.clone()));
        Some(compiled)
    }

    /// Compiles these rules; returns the same as before if nothing changed. Call only when all of them are held.
    pub(super) fn compiled_of(&self, references: &[PolicyReference]) -> Option<Tokens> {
        if references.is_empty() {
            return None;
        }
        let inputs = Inputs {
            references: references.to_vec(),
            // Rules name their key sets, so their versions change with those; other destinations' keys are not waited for.
            key_sets: Vec::new(),
        };
        let mut apart = self.apart.borrow_mut();
        let known = apart.iter().position(|(from, _)| *from == inputs);
        let held = match known.and_then(|at| apart.remove(at)) {
            Some(known) => known,
            None => {
                let made = self.compile(references, apart.front().map(|(_, before)| before));
                (inputs, made)
            }
        };
        let made = held.1.clone();
        apart.push_front(held);
        apart.truncate(MAX_APART);
        Some(made)
    }

    fn compile(&self, references: &[PolicyReference], before: Option<&Tokens>) -> Tokens {
        let mut rules: Vec<(&TokenRule, Option<&str>)> = Vec::new();
        for wanted in references {
            match self.held.get(&wanted.name).map(|held| &held.value) {
                Some(ReceivedTokenRules::Good(received)) => {
                    let keys = received.key_sets.iter().map(|name| {
                        let name = name.as_ref()?;
                        self.key_sets.get(name).map(|keys| &**keys)
                    });
                    rules.extend(received.policy.rules.iter().zip(keys));
                }
                Some(ReceivedTokenRules::Unreadable) | None => return Tokens::shut(),
            }
        }
        // Tokens are tried in the order of their issuers, and among rules of one in the order given, as in Istio.
        rules.sort_by(|(one, _), (two, _)| one.issuer.cmp(&two.issuer));
        Tokens::new(&rules, before)
    }
}
