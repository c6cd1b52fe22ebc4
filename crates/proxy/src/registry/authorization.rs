//! The AuthorizationPolicies that the control plane sent, and what they are compiled to: once for all workers, and only
//! when one of them, or what they are read by, has changed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use voile_model::TrustDomain;
use voile_model::mesh::PathNormalization;
use voile_policy::authorization as policy;
use voile_xds::wire::{PolicyReference, ProxyConfiguration, decode_authorization};

use super::Held;
use crate::authorization::{Authorization, read, shut};

/// By name.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    held: BTreeMap<Arc<str>, Held<Arc<policy::Policy>>>,
    /// What was compiled last, and from what.
    compiled: RefCell<Option<(Inputs, Authorization)>>,
}

/// All that a compiled answer depends on.
#[derive(Debug, Clone, PartialEq)]
struct Inputs {
    references: Vec<PolicyReference>,
    trust_domain: TrustDomain,
    aliases: Vec<TrustDomain>,
    normalization: PathNormalization,
    trusted_proxies: u32,
}

impl Policies {
    /// Takes a policy in. One that cannot be read leaves what was good before, and where nothing was it denies everything:
    /// a proxy that waited for a good one would serve nothing at all, and one that did without would let in what somebody
    /// wanted shut.
    pub(super) fn add(
        &mut self,
        name: &Arc<str>,
        version: Arc<str>,
        body: &[u8],
    ) -> Result<(), String> {
        let decoded = decode_authorization(name, body).map_err(|error| error.to_string());
        let read = decoded.and_then(|said| read(&said));
        let (value, result) = match read {
            Ok(policy) => (Arc::new(policy), Ok(())),
            Err(reason) => {
                let good = self.held.get(name).map(|held| Arc::clone(&held.value));
                let value = good.unwrap_or_else(|| Arc::new(shut(name)));
                (value, Err(reason))
            }
        };
        self.held.insert(name.clone(), Held { version, value });
        result
    }

    pub(super) fn remove(&mut self, name: &Arc<str>) {
        self.held.remove(name);
    }

    /// Whether the policy is here in the version that belongs to the configuration.
    pub(super) fn holds(&self, wanted: &PolicyReference) -> bool {
        let held = self.held.get(&wanted.name);
        held.is_some_and(|held| held.version == wanted.version)
    }

    /// Names and versions, for people.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.held.iter().map(|(name, held)| (name, &held.version))
    }

    /// What the configuration's policies come to; `None` without any. To be asked only when all of them are held.
    pub(super) fn compiled(&self, configuration: &ProxyConfiguration) -> Option<Authorization> {
        if configuration.authorization_policies.is_empty() {
            self.compiled.replace(None);
            return None;
        }
        let inputs = Inputs {
            references: configuration.authorization_policies.clone(),
            trust_domain: configuration.trust_domain.clone(),
            aliases: configuration.trust_domain_aliases.clone(),
            normalization: configuration.path_normalization,
            trusted_proxies: configuration.trusted_proxies,
        };
        let mut last = self.compiled.borrow_mut();
        if let Some((from, compiled)) = &*last
            && *from == inputs
        {
            return Some(compiled.clone());
        }
        let names = inputs.references.iter();
        let policies: Vec<Arc<policy::Policy>> = names
            .filter_map(|wanted| Some(Arc::clone(&self.held.get(&wanted.name)?.value)))
            .collect();
        let compiled = Authorization::new(&policies, configuration);
        *last = Some((inputs, compiled.clone()));
        Some(compiled)
    }
}
