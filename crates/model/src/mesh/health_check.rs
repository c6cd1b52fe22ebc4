//! Our own HealthCheck: how proxies that balance to a host ask its endpoints whether they are well. Istio has no resource for it;
//! the words are Envoy's.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::{Mesh, Workload};
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
    /// Where it was written.
    pub source: Source,
    /// The host whose endpoints are asked.
    pub host: Hostname,
    /// Of its ports this one; `None` is each.
    pub port: Option<Port>,
    /// Proxies that ask; `None` is every gateway that balances to it.
    pub selector: Option<Labels>,
    /// What is asked, and how often.
    pub terms: CheckTerms,
}

/// What is asked of an endpoint, how often, and what follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckTerms {
    /// What is asked.
    pub question: CheckQuestion,
    /// From one question to the next.
    pub interval: Duration,
    /// Up to this part of the interval is added, in hundredths, each time by lot.
    pub jitter_percent: u32,
    /// How long an answer may take; never longer than the interval.
    pub timeout: Duration,
    /// So many good answers in a row and it is well again.
    pub healthy_threshold: u32,
    /// So many bad answers in a row and it is not.
    pub unhealthy_threshold: u32,
    /// While fewer than these in 100 are well, all are asked for traffic; 0: never.
    pub panic_percent: u32,
}

/// What an endpoint is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckQuestion {
    /// Whether a connection comes about, with the TLS that traffic has.
    Tcp,
    /// Whether `GET` of a path is answered by an expected status.
    Http {
        /// Path and query.
        path: Arc<str>,
        /// What the request names; `None` is the destination's own host.
        host: Option<Arc<str>>,
        /// Statuses that are good, each from its first to before its end.
        expected: Vec<Range<u16>>,
    },
    /// Whether `grpc.health.v1.Health/Check` is answered by SERVING.
    Grpc {
        /// Of which service; empty is the server as a whole.
        service: Arc<str>,
    },
}

impl HealthCheck {
    /// Where it stands among those that hold for a proxy: those of the proxy's own namespace before those of the callee's, and those of
    /// the root namespace last; one for a port before one for all. `None`: the proxy does not ask.
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

    /// Whether the proxy of such a workload asks: one that is selected, or every gateway but waypoints.
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
