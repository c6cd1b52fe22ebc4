//! May this connection come in, by policies that ask about connections only? A node proxy asks, and Istio's ztunnel reads such
//! policies in the same way. DENY comes before ALLOW; if a workload has an ALLOW policy, one must match. A policy that is named
//! but unknown denies, and one that cannot be read closes what it holds for: doubt never widens access.

mod lower;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use smallvec::SmallVec;
use voile_model::Identity;
use voile_model::mesh::authorization::{Matches, ServiceAccountName};

use crate::authorization::{Cidr, Text};
pub use lower::{UnseenTerm, lower};

/// One policy about connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionPolicy {
    /// Its place.
    pub scope: PolicyScope,
    /// Its action.
    pub action: ConnectionAction,
    /// True if the policy decides nothing.
    pub dry_run: bool,
    /// A connection is matched when one of these matches. None of them: it never is.
    pub rules: Vec<CallerRule>,
}

/// Workloads for which a policy holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyScope {
    /// All of the mesh.
    Mesh,
    /// All of a namespace.
    Namespace(Arc<str>),
    /// Those that name the policy.
    Named,
}

/// The effect of a policy on the connections that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionAction {
    /// They may come in; if any such policy exists, no other connection may.
    Allow,
    /// They may not.
    Deny,
}

/// One rule. It matches when all of its clauses hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallerRule {
    /// The clauses.
    pub clauses: Vec<CallerClause>,
}

/// One clause. It holds when one of its matches does, and when there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallerClause {
    /// The matches.
    pub matches: Vec<CallerMatch>,
}

/// Conditions that must all hold. A match without any never holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallerMatch {
    /// Namespace of the caller; empty without an identity.
    pub namespaces: Matches<Text>,
    /// The caller's identity without `spiffe://`.
    pub principals: Matches<Text>,
    /// Its service account.
    pub service_accounts: Matches<ServiceAccountName>,
    /// The caller's address.
    pub source_ips: Matches<Cidr>,
    /// Address of the workload.
    pub destination_ips: Matches<Cidr>,
    /// Port of the application, as Istio's message has it: no connection has one above 65535.
    pub destination_ports: Matches<u32>,
}

/// A connection, as policies see it.
#[derive(Debug, Clone, Copy)]
pub struct CallerFacts<'a> {
    /// Identity of the caller, if it was proven.
    pub identity: Option<&'a Identity>,
    /// Address of the caller.
    pub source: IpAddr,
    /// The workload's own address and the port of its application.
    pub destination: SocketAddr,
}

/// Workload that is called.
#[derive(Debug, Clone, Copy)]
pub struct PolicySubject<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// The policies that it names.
    pub named: &'a [Arc<str>],
}

/// Leave for one connection. Only [`ConnectionPolicies::authorize`] makes it.
#[derive(Debug)]
pub struct ConnectionPermit(());

/// Why a connection is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionDenial {
    /// This policy denies it.
    By(Arc<str>),
    /// There are policies that allow, and none of them allows this.
    NotAllowed,
    /// A policy that the workload names is not known.
    Unknown(Arc<str>),
}

impl fmt::Display for ConnectionDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::By(name) => write!(f, "denied by policy {name}"),
            Self::NotAllowed => f.write_str("allowed by no policy"),
            Self::Unknown(name) => write!(f, "policy {name} has not been received yet"),
        }
    }
}

impl ConnectionPolicy {
    /// A policy that denies everything, in place of one that cannot be read.
    pub fn closing(scope: PolicyScope) -> Self {
        Self {
            scope,
            action: ConnectionAction::Deny,
            dry_run: false,
            rules: vec![CallerRule::default()],
        }
    }

    fn matches(&self, caller: &CallerFacts<'_>, principal: &str) -> bool {
        let holds = |clause: &CallerClause| {
            let mut matches = clause.matches.iter();
            clause.matches.is_empty() || matches.any(|one| one.holds(caller, principal))
        };
        self.rules.iter().any(|rule| rule.clauses.iter().all(holds))
    }
}

impl CallerMatch {
    fn holds(&self, caller: &CallerFacts<'_>, principal: &str) -> bool {
        fn both<T>(asked: &Matches<T>, is: impl Fn(&T) -> bool) -> bool {
            (asked.any_of.is_empty() || asked.any_of.iter().any(&is))
                && !asked.none_of.iter().any(is)
        }
        let (identity, destination) = (caller.identity, caller.destination);
        let namespace = identity.map_or("", |identity| identity.namespace.as_str());
        let is_account = |account: &ServiceAccountName| {
            identity.is_some_and(|identity| {
                *identity.namespace.as_str() == *account.namespace
                    && identity.service_account == account.name
            })
        };
        *self != Self::default()
            && both(&self.namespaces, |text| text.matches(namespace.as_bytes()))
            && both(&self.principals, |text| {
                identity.is_some() && text.matches(principal.as_bytes())
            })
            && both(&self.service_accounts, is_account)
            && both(&self.source_ips, |range| range.contains(caller.source))
            && both(&self.destination_ips, |range| {
                range.contains(destination.ip())
            })
            && both(&self.destination_ports, |port| {
                *port == u32::from(destination.port())
            })
    }
}

/// Bytes that an identity as text seldom exceeds.
const MAX_USUAL_ID: usize = 128;

type PoliciesByName = BTreeMap<Arc<str>, Arc<ConnectionPolicy>>;

/// Policies that hold for one workload, each with its name; few have more.
type HeldPolicies<'a> = SmallVec<[(&'a Arc<str>, &'a Arc<ConnectionPolicy>); 8]>;

/// Every policy there is. A connection meets those of its place only, and finds them by hash: it costs the same however many others
/// there are. Clones share all that is equal.
#[derive(Debug, Clone, Default)]
pub struct ConnectionPolicies {
    all: Arc<HashMap<Arc<str>, Arc<ConnectionPolicy>>>,
    /// Those that hold for every workload.
    everywhere: Arc<PoliciesByName>,
    /// Those that hold for the workloads of a namespace.
    namespaces: Arc<HashMap<Arc<str>, Arc<PoliciesByName>>>,
}

impl ConnectionPolicies {
    /// Sets the policy of this name.
    pub fn set(&mut self, name: Arc<str>, policy: ConnectionPolicy) {
        self.remove(&name);
        let policy = Arc::new(policy);
        let place = match &policy.scope {
            PolicyScope::Mesh => Some(&mut self.everywhere),
            PolicyScope::Namespace(namespace) => {
                let namespaces = Arc::make_mut(&mut self.namespaces);
                Some(namespaces.entry(Arc::clone(namespace)).or_default())
            }
            PolicyScope::Named => None,
        };
        if let Some(place) = place {
            Arc::make_mut(place).insert(Arc::clone(&name), Arc::clone(&policy));
        }
        Arc::make_mut(&mut self.all).insert(name, policy);
    }

    /// Returns true if a policy of this name is known.
    pub fn contains(&self, name: &str) -> bool {
        self.all.contains_key(name)
    }

    /// Removes the policy of this name.
    pub fn remove(&mut self, name: &str) {
        if !self.contains(name) {
            return;
        }
        let policy = Arc::make_mut(&mut self.all).remove(name);
        match policy.as_ref().map(|policy| &policy.scope) {
            Some(PolicyScope::Mesh) => {
                Arc::make_mut(&mut self.everywhere).remove(name);
            }
            Some(PolicyScope::Namespace(namespace)) => {
                let namespaces = Arc::make_mut(&mut self.namespaces);
                let emptied = namespaces.get_mut(namespace).is_some_and(|of_namespace| {
                    let of_namespace = Arc::make_mut(of_namespace);
                    of_namespace.remove(name);
                    of_namespace.is_empty()
                });
                if emptied {
                    namespaces.remove(namespace);
                }
            }
            Some(PolicyScope::Named) | None => {}
        }
    }

    /// Returns the number of policies.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The policies that hold for a workload, those that it names first; one that it names and that holds anyhow comes twice.
    fn held<'a>(
        &'a self,
        subject: &PolicySubject<'_>,
    ) -> Result<HeldPolicies<'a>, ConnectionDenial> {
        let mut held = HeldPolicies::new();
        for name in subject.named {
            let known = self.all.get_key_value(name);
            held.push(known.ok_or_else(|| ConnectionDenial::Unknown(Arc::clone(name)))?);
        }
        held.extend(self.everywhere.iter());
        if let Some(of_namespace) = self.namespaces.get(subject.namespace) {
            held.extend(of_namespace.iter());
        }
        Ok(held)
    }

    /// Authorizes a connection, or returns the reason of its denial.
    pub fn authorize(
        &self,
        subject: &PolicySubject<'_>,
        caller: &CallerFacts<'_>,
    ) -> Result<ConnectionPermit, ConnectionDenial> {
        let mut held = self.held(subject)?;
        held.retain(|(_, policy)| !policy.dry_run);
        if held.is_empty() {
            return Ok(ConnectionPermit(()));
        }
        // At once as long as it gets: growing costs more than the rest.
        let mut id = String::with_capacity(MAX_USUAL_ID);
        if let Some(identity) = caller.identity {
            // Writing into a text cannot fail.
            let _ = write!(id, "{identity}");
        }
        let principal = id.strip_prefix("spiffe://").unwrap_or_default();
        let of = |action| {
            let held = held.iter();
            held.filter(move |(_, policy)| policy.action == action)
        };
        let mut denying = of(ConnectionAction::Deny);
        if let Some((name, _)) = denying.find(|(_, policy)| policy.matches(caller, principal)) {
            return Err(ConnectionDenial::By(Arc::clone(name)));
        }
        let mut allowing = of(ConnectionAction::Allow).peekable();
        match allowing.peek().is_none()
            || allowing.any(|(_, policy)| policy.matches(caller, principal))
        {
            true => Ok(ConnectionPermit(())),
            false => Err(ConnectionDenial::NotAllowed),
        }
    }
}

#[cfg(test)]
mod tests;
