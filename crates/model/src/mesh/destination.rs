//! Istio's DestinationRule, as far as it is obeyed: how a service is called. Istio's precedence holds: a level that
//! writes a block (`loadBalancer`, `outlierDetection`, `connectionPool`) replaces the wider one's as a whole, and a port's
//! level replaces all of them, those that it does not write included. Who of several callers obeys which rule: `client`.

mod client;
mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::traffic::{
    ClientTls, ConnectionPool, LoadBalancer, OutlierDetection, PortTraffic, ProxyProtocol,
    RetryBudget,
};
use super::{Mesh, Service, TrafficDistribution, Visibility};
use crate::names::{Hostname, Labels, Port, ResourceName};
use crate::source::Source;
pub use client::Client;
pub use rules::DestinationRules;

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
    /// Whose clients it is for, by namespace (`exportTo`). Of one that selects clients: its own namespace's alone.
    pub visibility: Visibility,
    /// The clients of its namespace that it is for (`workloadSelector`); `None` is all.
    pub selector: Option<Labels>,
    /// For the whole service.
    pub policy: TrafficPolicy,
    /// Named parts of the service, with policies of their own.
    pub subsets: BTreeMap<Arc<str>, Subset>,
    /// Younger rules of its namespace for the same host, whose words it holds as well.
    pub merged: Vec<(ResourceName, Source)>,
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
    /// For all ports.
    pub whole: PolicyLevel,
    /// By service port; what is not said there is the default, not what holds for the destination.
    pub ports: BTreeMap<Port, PolicyLevel>,
}

/// What is written at one level of a policy, block by block.
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
    /// What holds on `port` where `wider` holds for what this is a part of.
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
    /// What a rule says of calls to a port of its service, or to one of a subset. Where it says nothing of localities the service
    /// does, and then the mesh.
    pub fn traffic_by(
        &self,
        service: &Service,
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
