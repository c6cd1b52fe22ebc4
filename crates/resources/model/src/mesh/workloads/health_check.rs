//! Our own HealthCheck: how proxies that balance to a host ask its endpoints whether they are well. Istio has no resource for it;
//! the words are Envoy's.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::mesh::{Mesh, Workload};
use crate::names::{Hostname, Labels, Namespace, Port, ResourceName};
use crate::source::Source;

/// Most HealthChecks that hold for one proxy: each destination looks for its own among them when a plan is made.
pub const MAX_HEALTH_CHECKS: usize = 256;

/// Most ranges of statuses that one check expects.
pub const MAX_EXPECTED: usize = 16;

/// One resource.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthCheck {
    /// Its name.
    pub name: ResourceName,
    /// File and line of its definition.
    pub source: Source,
    /// The host whose endpoints are checked.
    pub host: Hostname,
    /// Of its ports this one; `None` is each.
    pub port: Option<Port>,
    /// Proxies that ask; `None` is every gateway that balances to it.
    pub selector: Option<Labels>,
    /// The check and its interval.
    pub terms: CheckTerms,
}

/// The check of an endpoint, its interval and thresholds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckTerms {
    /// The check itself.
    pub question: CheckQuestion,
    /// From one question to the next.
    pub interval: Duration,
    /// Up to this part of the interval is added, in hundredths, each time by lot.
    pub jitter_percent: u32,
    /// Time limit of a response; never longer than the interval.
    pub timeout: Duration,
    /// So many good answers in a row and it is well again.
    pub healthy_threshold: u32,
    /// So many bad answers in a row and it is not.
    pub unhealthy_threshold: u32,
    /// While fewer than these in 100 are well, all are asked for traffic; 0: never.
    pub panic_percent: u32,
}

/// The check of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckQuestion {
    /// A TCP connection succeeds, with the TLS of the traffic.
    Tcp,
    /// `GET` of a path returns an expected status.
    Http {
        /// Path and query.
        path: Arc<str>,
        /// Host of the request; `None` is the destination's own host.
        host: Option<Arc<str>>,
        /// Statuses that are good, each from its first to before its end.
        expected: Vec<Range<u16>>,
    },
    /// `grpc.health.v1.Health/Check` returns SERVING.
    Grpc {
        /// Of which service; empty is the server as a whole.
        service: Arc<str>,
    },
}

impl HealthCheck {
    /// Its precedence among the HealthChecks of a proxy. HealthChecks of the proxy's own namespace come first, then the
    /// callee's, then the root namespace's. A HealthCheck for a port precedes one for all ports. `None`: the proxy does
    /// not run it.
    fn rank(&self, workload: &Workload, root: &Namespace) -> Option<(u8, bool)> {
        let namespace = &workload.key.namespace;
        let edge = workload.gateway && !workload.waypoint;
        let asks = self.is_asked_by((namespace, &workload.labels), edge, root);
        let near = match &self.name.namespace {
            own if own == namespace => 0,
            of if of == root => 2,
            _ => 1,
        };
        asks.then_some((near, self.port.is_none()))
    }

    /// Returns true if the proxy of this workload runs the check: a selected one, or every gateway but waypoints.
    #[must_use]
    pub fn is_asked_by(
        &self,
        (namespace, labels): (&Namespace, &Labels),
        edge: bool,
        root: &Namespace,
    ) -> bool {
        let own = &self.name.namespace;
        match &self.selector {
            Some(wanted) => (own == namespace || own == root) && wanted.selects(labels),
            None => edge,
        }
    }

    /// Services of which namespace it is for, where a proxy of this namespace asks; `None` is any.
    #[must_use]
    pub fn callees(&self, asking: &Namespace, root: &Namespace) -> Option<&Namespace> {
        let namespace = &self.name.namespace;
        (namespace != asking && namespace != root).then_some(namespace)
    }
}

impl Mesh {
    /// The HealthChecks by which a workload's proxy asks; of those that are for one destination the first holds.
    #[must_use]
    pub fn health_checks_for(&self, workload: &Workload) -> Vec<&Arc<HealthCheck>> {
        let root = &self.config.root_namespace;
        let all = self.health_checks.values();
        let ranked = all.filter_map(|one| Some((one.rank(workload, root)?, one)));
        let mut ranked: Vec<_> = ranked.collect();
        // Names decide where nothing else does, and that is the order in which they are kept.
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, one)| one).collect()
    }
}
