//! All that proxies may ask for at one moment, by every name they may ask by. Who may hear what is decided here.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest, Sha256};
use voile_model::mesh::Visibility;
use voile_model::{Identity, Namespace, Ranges};
use voile_proto::type_url;
use voile_xds::server::{Resolution, Resource, Snapshot};

use crate::departed::Departed;
use crate::obeyed::Obeyed;
use crate::translate::names::{Names, SEARCH};

/// Hex digits of a version: 64 bits of the content's hash tell versions of one resource apart.
const VERSION_BYTES: usize = 8;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Somebody who proved who it is.
    Known(voile_identity::Caller),
    /// Nobody in particular, on the plaintext port: gets what is public.
    Anonymous,
}

impl Caller {
    fn namespace(&self) -> Option<&Namespace> {
        match self {
            Self::Known(caller) => Some(&caller.identity.namespace),
            Self::Anonymous => None,
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(caller) => write!(f, "{}", caller.identity),
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}

/// A sidecar's configuration and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Private {
    pub(crate) owner: Identity,
    pub(crate) pod: Arc<str>,
    pub(crate) resource: Arc<Resource>,
}

/// All there is at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeshSnapshot {
    pub(crate) version: String,
    /// Workloads that take no traffic yet.
    pub(crate) unready: usize,
    /// By every name and alias: the resource, and what it brings along.
    pub(crate) addresses: HashMap<Arc<str>, Vec<Arc<Resource>>>,
    /// Each Address once, by name.
    pub(crate) all_addresses: HashMap<Arc<str>, Arc<Resource>>,
    /// Services that have ranges of addresses, by name.
    pub(crate) ranges: Ranges<Arc<str>>,
    pub(crate) policies: HashMap<Arc<str>, Arc<Resource>>,
    pub(crate) authorization: HashMap<Arc<str>, Arc<Resource>>,
    pub(crate) tokens: HashMap<Arc<str>, Arc<Resource>>,
    /// Public keys of token issuers, by a hash of what they say.
    pub(crate) key_sets: HashMap<Arc<str>, Arc<Resource>>,
    pub(crate) configurations: HashMap<Arc<str>, Private>,
    /// Whom which policies are for.
    pub(crate) obeyed: Obeyed,
    /// Certificates that are taken back, where there are lists of them.
    pub(crate) revocations: Option<Arc<Resource>>,
    pub(crate) names: Names,
    /// Services that not everybody sees.
    pub(crate) kept_close: HashMap<Arc<str>, Visibility>,
    pub(crate) departed: Departed,
}

impl MeshSnapshot {
    /// How many resources there are, by type.
    pub fn counts(&self) -> [(&'static str, usize); 7] {
        [
            (type_url::ADDRESS, self.all_addresses.len()),
            (type_url::SERVICE_POLICY, self.policies.len()),
            (type_url::AUTHORIZATION_POLICY, self.authorization.len()),
            (type_url::REQUEST_AUTHENTICATION, self.tokens.len()),
            (type_url::KEY_SET, self.key_sets.len()),
            (type_url::PROXY_CONFIGURATION, self.configurations.len()),
            (
                type_url::REVOCATION_LISTS,
                usize::from(self.revocations.is_some()),
            ),
        ]
    }

    /// The version of the whole: changes when, and only when, a resource does.
    pub(crate) fn seal(&mut self) {
        let mut lines: Vec<String> = self
            .all_addresses
            .values()
            .chain(self.policies.values())
            .chain(self.authorization.values())
            .chain(self.tokens.values())
            .chain(self.key_sets.values())
            .chain(
                self.configurations
                    .values()
                    .map(|private| &private.resource),
            )
            .map(|resource| format!("{} {}\n", resource.name, resource.version))
            .chain(
                self.configurations
                    .values()
                    .map(|p| format!("{} {}\n", p.owner, p.pod)),
            )
            .collect();
        let seen_by = |(name, who): (&Arc<str>, &Visibility)| format!("{name} {who:?}\n");
        lines.extend(self.kept_close.iter().map(seen_by));
        lines.sort_unstable();
        let mut hash = Sha256::new();
        for line in lines {
            hash.update(line);
        }
        self.version = hex(&hash.finalize());
    }

    /// Adds the certificates that are taken back, after the whole was sealed.
    pub(crate) fn revoke(&mut self, lists: Option<&Arc<Resource>>) {
        if let Some(lists) = lists {
            let mut hash = Sha256::new();
            hash.update(&self.version);
            hash.update(&*lists.version);
            self.version = hex(&hash.finalize());
        }
        self.revocations = lists.cloned();
    }

    /// What the caller may see of what has an address: who has it alone first, then who has a range around it, the
    /// narrowest first. Services that are not exported to the caller are nobody there.
    fn at_address(&self, caller: &Caller, name: &str) -> Resolution {
        let is_seen = |resource: &&Arc<Resource>| match self.kept_close.get(&resource.name) {
            Some(visibility) => caller
                .namespace()
                .is_none_or(|namespace| visibility.includes(namespace)),
            None => true,
        };
        let found = self.addresses.get(name).into_iter().flatten();
        let mut seen: Vec<Arc<Resource>> = found.filter(is_seen).cloned().collect();
        let mut ranged = Vec::new();
        if let Some(Ok(address)) = name.strip_prefix('/').map(str::parse) {
            for (_, service) in self.ranges.around(address) {
                let Some(found) = self.addresses.get(service) else {
                    continue;
                };
                if found.first().as_ref().is_some_and(is_seen) {
                    ranged.extend(found.iter().filter(is_seen).cloned());
                }
            }
        }
        let answers = |resource: &Arc<Resource>| resource.aliases.iter().any(|a| **a == *name);
        if ranged.is_empty() && !seen.iter().any(answers) {
            return Resolution::Unknown;
        }
        // The caller is told of the first that this is its answer; whoever has the address alone it knows by that.
        if seen.iter().any(answers) {
            ranged.append(&mut seen);
        }
        Resolution::Found(ranged)
    }

    /// One of the policies that the caller's workloads obey. Of others it is told nothing: what a policy says is for whoever
    /// enforces it, and whether there is one is nobody else's business either.
    fn private(
        &self,
        caller: &Caller,
        kind: &str,
        name: &str,
        all: &HashMap<Arc<str>, Arc<Resource>>,
    ) -> Resolution {
        let Caller::Known(caller) = caller else {
            return Resolution::Refused("a caller without credentials asks for it".to_owned());
        };
        match all.get(name) {
            Some(found) if self.obeyed.includes(&caller.identity, kind, name) => {
                Resolution::Found(vec![found.clone()])
            }
            Some(_) => Resolution::Refused(format!("no workload of {} obeys it", caller.identity)),
            None => Resolution::Unknown,
        }
    }

    fn configuration(&self, caller: &Caller, name: &str) -> Resolution {
        let Caller::Known(caller) = caller else {
            return Resolution::Refused("a caller without credentials asks for it".to_owned());
        };
        let Some(private) = self.configurations.get(name) else {
            return Resolution::Unknown;
        };
        if caller.identity != private.owner {
            return Resolution::Refused(format!(
                "it belongs to {}, not to {}",
                private.owner, caller.identity
            ));
        }
        match &caller.pod {
            Some(pod) if **pod != *private.pod => Resolution::Refused(format!(
                "the caller's token is bound to pod {pod}, not to {}",
                private.pod
            )),
            _ => Resolution::Found(vec![private.resource.clone()]),
        }
    }
}

impl Snapshot<Caller> for MeshSnapshot {
    fn version(&self) -> &str {
        &self.version
    }

    fn resolve(&self, caller: &Caller, type_url: &str, name: &str) -> Resolution {
        match type_url {
            type_url::ADDRESS => {
                if name.starts_with('/') {
                    return self.at_address(caller, name);
                }
                let found = match name.strip_prefix(SEARCH) {
                    Some(host) => self
                        .names
                        .find(caller.namespace(), host)
                        .and_then(|name| self.addresses.get(name)),
                    None => self.addresses.get(name),
                };
                match found {
                    None => Resolution::Unknown,
                    Some(found) => Resolution::Found(found.clone()),
                }
            }
            type_url::SERVICE_POLICY | type_url::REQUEST_AUTHENTICATION | type_url::KEY_SET
                if *caller == Caller::Anonymous =>
            {
                Resolution::Refused("a caller without credentials asks for it".to_owned())
            }
            type_url::SERVICE_POLICY => found(&self.policies, name),
            type_url::AUTHORIZATION_POLICY => {
                self.private(caller, type_url, name, &self.authorization)
            }
            type_url::REQUEST_AUTHENTICATION => found(&self.tokens, name),
            type_url::KEY_SET => found(&self.key_sets, name),
            type_url::PROXY_CONFIGURATION => self.configuration(caller, name),
            // Lists are public: whom they name, everybody may know.
            type_url::REVOCATION_LISTS if name == type_url::REVOCATIONS => {
                match &self.revocations {
                    Some(lists) => Resolution::Found(vec![lists.clone()]),
                    None => Resolution::Unknown,
                }
            }
            _ => Resolution::Unknown,
        }
    }

    fn everything(&self, _caller: &Caller, type_url: &str) -> Resolution {
        match type_url {
            type_url::ADDRESS => Resolution::Found(self.all_addresses.values().cloned().collect()),
            type_url::SERVICE_POLICY
            | type_url::AUTHORIZATION_POLICY
            | type_url::REQUEST_AUTHENTICATION
            | type_url::KEY_SET
            | type_url::REVOCATION_LISTS
            | type_url::PROXY_CONFIGURATION => {
                Resolution::Refused("this type is asked for by name".to_owned())
            }
            // Others may ask for types we have nothing of (ztunnel: Authorization) and wait for an answer.
            _ => Resolution::Found(Vec::new()),
        }
    }

    fn farewell(&self, caller: &Caller) -> Option<Instant> {
        match caller {
            Caller::Known(caller) => self.departed.farewell(caller),
            Caller::Anonymous => None,
        }
    }
}

fn found(resources: &HashMap<Arc<str>, Arc<Resource>>, name: &str) -> Resolution {
    match resources.get(name) {
        Some(found) => Resolution::Found(vec![found.clone()]),
        None => Resolution::Unknown,
    }
}

/// Makes a resource, versioned by what it says.
pub(crate) fn resource(name: Arc<str>, aliases: Vec<Arc<str>>, body: Vec<u8>) -> Resource {
    let mut hash = Sha256::new();
    hash.update(&body);
    for alias in &aliases {
        hash.update([0]);
        hash.update(alias.as_bytes());
    }
    Resource {
        version: hex(&hash.finalize()).into(),
        name,
        aliases,
        body: body.into(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(VERSION_BYTES)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
