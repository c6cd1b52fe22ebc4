//! Istio's DestinationRule, as far as proxies apply it: the way clients call a service. Istio's precedence holds. A
//! level that writes a block (`loadBalancer`, `outlierDetection`, `connectionPool`) replaces the wider block as a
//! whole. A port's level replaces all wider blocks, including blocks that it does not write. Module `client` selects
//! the rule of a client.

mod client;
mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mesh::traffic::{
    ClientTls, ConnectionPool, LoadBalancer, OutlierDetection, PortTraffic, ProxyProtocol,
    RetryBudget,
};
use crate::mesh::{Mesh, MeshService, TrafficDistribution, Visibility};
use crate::names::{Hostname, Labels, Port, ResourceName};
use crate::source::Source;
pub use client::RuleClient;
pub use rules::DestinationRules;

/// One resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationRule {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// `metadata.creationTimestamp` in seconds since 1970, if written.
    pub created: Option<i64>,
    /// Services it is for; a short name is made whole by its own namespace.
    pub host: Hostname,
    /// Namespaces of the clients it applies to (`exportTo`). A rule that selects clients applies to its own namespace
    /// only.
    pub visibility: Visibility,
    /// The clients of its namespace that it is for (`workloadSelector`); `None` is all.
    pub selector: Option<Labels>,
    /// For the whole service.
    pub policy: TrafficPolicy,
    /// Named parts of the service, with policies of their own.
    pub subsets: BTreeMap<Arc<str>, Subset>,
    /// Younger rules of its namespace for the same host, whose settings are merged into it.
    pub merged: Vec<(ResourceName, Source)>,
}

/// A part of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subset {
    /// Its workloads have these.
    pub labels: Labels,
    /// Policy that overrides the rule's for this subset.
    pub policy: TrafficPolicy,
}

/// The way a destination is called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrafficPolicy {
    /// For all ports.
    pub whole: PolicyLevel,
    /// By service port. A block that a port leaves out has its default, not the destination's value.
    pub ports: BTreeMap<Port, PolicyLevel>,
}

/// The blocks written at one level of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyLevel {
    /// `loadBalancer`.
    pub balancer: Option<LoadBalancer>,
    /// `outlierDetection`.
    pub outliers: Option<OutlierDetection>,
    /// `connectionPool`.
    pub pool: Option<ConnectionPool>,
    /// `retryBudget`, which ports do not have.
    pub retry_budget: Option<RetryBudget>,
    /// `tls`.
    pub tls: Option<ClientTls>,
    /// `proxyProtocol`, which ports do not have.
    pub proxy_protocol: Option<ProxyProtocol>,
}

impl TrafficPolicy {
    /// The policy on `port`, given the `wider` policy that this one refines.
    fn over(&self, wider: PolicyLevel, port: Port) -> PolicyLevel {
        let own = self.whole.clone();
        let retry_budget = own.retry_budget.or(wider.retry_budget);
        let proxy_protocol = own.proxy_protocol.or(wider.proxy_protocol);
        if let Some(of_port) = self.ports.get(&port) {
            return PolicyLevel {
                retry_budget,
                proxy_protocol,
                ..of_port.clone()
            };
        }
        PolicyLevel {
            retry_budget,
            proxy_protocol,
            tls: own.tls.or(wider.tls),
            balancer: own.balancer.or(wider.balancer),
            outliers: own.outliers.or(wider.outliers),
            pool: own.pool.or(wider.pool),
        }
    }
}

impl DestinationRule {
    /// The connection pool for a port, or for one of a subset.
    pub fn pool(&self, port: Port, subset: Option<&str>) -> ConnectionPool {
        self.traffic(port, subset).pool
    }

    /// All that holds for a port, or for one of a subset. A subset that is not there has nothing of its own.
    pub fn traffic(&self, port: Port, subset: Option<&str>) -> PortTraffic {
        let whole = self.policy.over(PolicyLevel::default(), port);
        let level = match subset.and_then(|name| self.subsets.get(name)) {
            Some(part) => part.policy.over(whole, port),
            None => whole,
        };
        PortTraffic {
            balancer: level.balancer.unwrap_or_default(),
            outliers: level.outliers,
            pool: level.pool.unwrap_or_default(),
            retry_budget: level.retry_budget,
            tls: level.tls,
            proxy_protocol: level.proxy_protocol,
        }
    }
}

impl DestinationRule {
    /// A port is spoken to so, in the whole service and in each of its parts, and all else stays.
    pub(crate) fn speak(&mut self, port: Port, tls: &ClientTls) {
        let speaking = |level: PolicyLevel| PolicyLevel {
            tls: Some(tls.clone()),
            retry_budget: None,
            proxy_protocol: None,
            ..level
        };
        let whole = self.policy.over(PolicyLevel::default(), port);
        for part in self.subsets.values_mut() {
            let level = part.policy.over(whole.clone(), port);
            part.policy.ports.insert(port, speaking(level));
        }
        self.policy.ports.insert(port, speaking(whole));
    }
}

impl Mesh {
    /// The policy of a rule for calls to a port of its service or of a subset. If the rule sets no localities, the
    /// service's apply, then the mesh's.
    pub fn traffic_by(
        &self,
        service: &MeshService,
        rule: Option<&DestinationRule>,
        port: Port,
        subset: Option<&str>,
    ) -> PortTraffic {
        let mut said = rule.map_or_else(PortTraffic::default, |rule| rule.traffic(port, subset));
        let locality = &mut said.balancer.locality;
        if locality.is_none() {
            let by_service = service.distribution.map(TrafficDistribution::setting);
            *locality = by_service.or_else(|| self.config.locality.clone());
        }
        said
    }
}
