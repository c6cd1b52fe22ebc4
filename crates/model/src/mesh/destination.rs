//! Istio's DestinationRule, as far as it is obeyed: how HTTP travels to a service. Istio's precedence holds: a level that
//! names a connection pool replaces the wider one's as a whole, and a port's level replaces it even where it names none.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Mesh, Service};
use crate::names::{Hostname, Labels, Namespace, Port, ResourceName};
use crate::source::Source;

/// One resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationRule {
    /// Its name.
    pub name: ResourceName,
    /// Where it was written.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// Services it is for; a short name is made whole by its own namespace.
    pub host: Hostname,
    /// For the whole service.
    pub policy: TrafficPolicy,
    /// Named parts of the service, with policies of their own.
    pub subsets: BTreeMap<Arc<str>, Subset>,
}

/// A part of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subset {
    /// Its workloads have these.
    pub labels: Labels,
    /// What differs for it.
    pub policy: TrafficPolicy,
}

/// How a destination is called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrafficPolicy {
    /// `connectionPool`, where it is written.
    pub pool: Option<ConnectionPool>,
    /// By service port; what is not said there is the default, not what holds for the destination.
    pub ports: BTreeMap<Port, Option<ConnectionPool>>,
}

/// `connectionPool.http`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionPool {
    /// `h2UpgradePolicy`; `None` (DEFAULT) is the mesh's.
    pub http2_upgrade: Option<bool>,
    /// `useClientProtocol`: what a client speaks is spoken on, and nothing is upgraded.
    pub use_client_protocol: bool,
}

impl TrafficPolicy {
    /// What holds on `port` where `wider` holds for what this is a part of.
    fn over(&self, wider: Option<ConnectionPool>, port: Port) -> Option<ConnectionPool> {
        match self.ports.get(&port) {
            Some(of_port) => *of_port,
            None => self.pool.or(wider),
        }
    }
}

impl DestinationRule {
    /// The connection pool for a port, or for one of a subset. A subset that is not there has nothing of its own.
    pub fn pool(&self, port: Port, subset: Option<&str>) -> ConnectionPool {
        let whole = self.policy.over(None, port);
        let part = subset.and_then(|name| self.subsets.get(name));
        let pool = part.map_or(whole, |part| part.policy.over(whole, port));
        pool.unwrap_or_default()
    }
}

impl Mesh {
    /// The rule for a service: of its own namespace, else of the root namespace; the one for its very name, else the
    /// longest pattern; the oldest of several.
    pub fn destination_rule(&self, service: &Service) -> Option<&Arc<DestinationRule>> {
        let in_namespace = |namespace: &Namespace| {
            let covering = self.destination_rules.iter().filter(|rule| {
                rule.name.namespace == *namespace && rule.host.covers(&service.key.hostname)
            });
            covering.reduce(|best, rule| match rule.is_narrower(best) {
                true => rule,
                false => best,
            })
        };
        in_namespace(&service.key.namespace).or_else(|| in_namespace(&self.config.root_namespace))
    }
}

impl DestinationRule {
    fn is_narrower(&self, than: &Self) -> bool {
        let rank = |host: &Hostname| (!host.is_wildcard(), host.as_str().len());
        rank(&self.host) > rank(&than.host)
    }
}
