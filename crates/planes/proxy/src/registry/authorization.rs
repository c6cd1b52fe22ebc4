//! AuthorizationPolicies of the control plane, compiled once for all workers and again only when a policy or its inputs
//! change. Policies are kept in their wire form, which takes a fraction of the memory. Compiling many takes a moment,
//! which is spent on another thread ([`CompilationWork`]).

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use voile_model::TrustDomain;
use voile_model::mesh::PathNormalization;
use voile_policy::authorization as policy;
use voile_xds::wire::{PolicyReference, ProxyConfiguration, decode_authorization};

use super::Versioned;
use crate::authorization::{Authorization, read, shut};

/// Policies by name.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    held: BTreeMap<Arc<str>, Versioned<CompiledPolicy>>,
    /// Last compiled policies, and their inputs.
    compiled: RefCell<Option<(Inputs, Authorization)>>,
    /// The same for single destinations of a waypoint, most recently used first.
    apart: RefCell<VecDeque<(Inputs, Authorization)>>,
}

/// Sets of policies of single destinations that are kept compiled; those of one mesh's namespace are few.
const MAX_APART: usize = 4096;

/// A policy as it is held.
#[derive(Debug, Clone)]
enum CompiledPolicy {
    /// Wire form, which was parsed once as a check.
    Good(Arc<[u8]>),
    /// It cannot be read, and nothing was good before: it denies everything.
    Shut,
}

impl CompiledPolicy {
    fn read(&self, name: &Arc<str>) -> policy::Policy {
        let policy = match self {
            Self::Good(body) => parse(name, body).ok(),
            Self::Shut => None,
        };
        policy.unwrap_or_else(|| shut(name))
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Good(body) => body.len(),
            Self::Shut => 0,
        }
    }
}

fn parse(name: &Arc<str>, body: &[u8]) -> Result<policy::Policy, String> {
    let said = decode_authorization(name, body).map_err(|error| error.to_string())?;
    read(&said)
}

/// All that a compiled answer depends on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Inputs {
    references: Vec<PolicyReference>,
    pub(crate) trust_domain: TrustDomain,
    pub(crate) aliases: Vec<TrustDomain>,
    pub(crate) normalization: PathNormalization,
    pub(crate) trusted_proxies: u32,
}

impl Inputs {
    fn new(references: &[PolicyReference], configuration: &ProxyConfiguration) -> Self {
        Self {
            references: references.to_vec(),
            trust_domain: configuration.trust_domain.clone(),
            aliases: configuration.trust_domain_aliases.clone(),
            normalization: configuration.path_normalization,
            trusted_proxies: configuration.trusted_proxies,
        }
    }
}

/// Policies of more bytes than this (a few hundred rules, a millisecond or two) are compiled beside the control thread, which
/// accepts connections.
const BESIDE: usize = 16 << 10;

/// Policies to be compiled: everything that it takes, on any thread.
#[derive(Debug)]
pub(crate) struct CompilationWork {
    inputs: Inputs,
    policies: Vec<(Arc<str>, CompiledPolicy)>,
}

impl CompilationWork {
    /// Returns true if compiling takes so long that connections would wait.
    fn is_long(&self) -> bool {
        self.policies
            .iter()
            .map(|(_, said)| said.bytes())
            .sum::<usize>()
            > BESIDE
    }

    /// Does it.
    pub(crate) fn done(self) -> CompiledPolicies {
        let policies = self.policies.iter();
        let policies: Vec<policy::Policy> = policies.map(|(name, said)| said.read(name)).collect();
        let authorization = Authorization::new(policies, &self.inputs);
        CompiledPolicies(self.inputs, authorization)
    }
}

/// Compiled policies.
#[derive(Debug)]
pub(crate) struct CompiledPolicies(Inputs, Authorization);

impl Policies {
    /// Stores a policy. An unreadable one leaves the last good one; without any, it denies everything. A proxy that waited
    /// for a good one would serve nothing at all, and one without it would let in requests that the user wants denied.
    pub(super) fn add(
        &mut self,
        name: &Arc<str>,
        version: Arc<str>,
        body: &[u8],
    ) -> Result<(), String> {
        let (value, result) = match parse(name, body) {
            Ok(_) => (CompiledPolicy::Good(body.into()), Ok(())),
            Err(reason) => {
                let good = self.held.get(name).map(|held| held.value.clone());
                (good.unwrap_or(CompiledPolicy::Shut), Err(reason))
            }
        };
        self.held.insert(name.clone(), Versioned { version, value });
        result
    }

    pub(super) fn remove(&mut self, name: &Arc<str>) {
        self.held.remove(name);
    }

    /// Returns true if the policy is held in the version that the configuration names.
    pub(super) fn holds(&self, wanted: &PolicyReference) -> bool {
        let held = self.held.get(&wanted.name);
        held.is_some_and(|held| held.version == wanted.version)
    }

    /// Names and versions, for people.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.held.iter().map(|(name, held)| (name, &held.version))
    }

    /// Policies to compile for the configuration; `None` if there are none. Call only when all named policies are held.
    fn to_do(&self, configuration: &ProxyConfiguration) -> Option<CompilationWork> {
        if configuration.authorization_policies.is_empty() {
            return None;
        }
        let inputs = Inputs::new(&configuration.authorization_policies, configuration);
        if let Some((from, _)) = &*self.compiled.borrow()
            && *from == inputs
        {
            return None;
        }
        Some(self.work_of(inputs))
    }

    fn work_of(&self, inputs: Inputs) -> CompilationWork {
        let named = |wanted: &PolicyReference| {
            let held = self.held.get(&wanted.name)?;
            Some((wanted.name.clone(), held.value.clone()))
        };
        CompilationWork {
            policies: inputs.references.iter().filter_map(named).collect(),
            inputs,
        }
    }

    /// Compiles these policies; returns the same as before if nothing changed. Call only when all of them are held.
    pub(super) fn compiled_of(
        &self,
        references: &[PolicyReference],
        configuration: &ProxyConfiguration,
    ) -> Option<Authorization> {
        if references.is_empty() {
            return None;
        }
        let inputs = Inputs::new(references, configuration);
        let mut apart = self.apart.borrow_mut();
        let known = apart.iter().position(|(from, _)| *from == inputs);
        let held = match known.and_then(|at| apart.remove(at)) {
            Some(known) => known,
            None => {
                let CompiledPolicies(inputs, made) = self.work_of(inputs).done();
                (inputs, made)
            }
        };
        let made = held.1.clone();
        apart.push_front(held);
        apart.truncate(MAX_APART);
        Some(made)
    }

    /// Pending work that takes long.
    pub(super) fn work(&self, configuration: &ProxyConfiguration) -> Option<CompilationWork> {
        self.to_do(configuration).filter(CompilationWork::is_long)
    }

    /// Keeps what was done.
    pub(crate) fn keep(&self, CompiledPolicies(inputs, authorization): CompiledPolicies) {
        self.compiled.replace(Some((inputs, authorization)));
    }

    /// Compiled policies of the configuration; `None` without any. Compiles at once if no other thread did.
    pub(super) fn compiled(&self, configuration: &ProxyConfiguration) -> Option<Authorization> {
        if configuration.authorization_policies.is_empty() {
            self.compiled.replace(None);
            return None;
        }
        if let Some(work) = self.to_do(configuration) {
            self.keep(work.done());
        }
        let compiled = self.compiled.borrow();
        compiled.as_ref().map(|(_, compiled)| compiled.clone())
    }
}
