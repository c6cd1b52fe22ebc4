//! The labels of Istio's standard metrics. One [`Labels`] is one (source, destination, service, protocol) a worker
//! has seen; connections look it up once and then carry its small number.

use std::sync::Arc;

/// Value of a label that is not known.
pub const UNKNOWN: &str = "unknown";

/// Value of a label that stands for several.
pub(crate) const OTHER: &str = "other";

/// [`Labels::protocol`] of HTTP requests.
pub const HTTP: &str = "http";

/// [`Labels::protocol`] of gRPC calls.
pub const GRPC: &str = "grpc";

/// [`Labels::protocol`] of opaque connections.
pub const TCP: &str = "tcp";

/// Which side measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reporter {
    /// The client's proxy.
    Source,
    /// The server's proxy.
    Destination,
    /// A waypoint between them.
    Waypoint,
}

impl Reporter {
    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Waypoint => "waypoint",
        }
    }
}

/// Security of the connection on the server's side; the client's side does not report it (as in Istio).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Security {
    /// Mutual TLS.
    MutualTls,
    /// Plaintext.
    None,
    /// The reporter is the client.
    Unknown,
}

impl Security {
    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MutualTls => "mutual_tls",
            Self::None => "none",
            Self::Unknown => UNKNOWN,
        }
    }
}

/// One end of the traffic. Empty strings are exposed as `unknown`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PeerLabels {
    /// Name of the workload (the Deployment's).
    pub workload: String,
    /// Its namespace.
    pub namespace: String,
    /// Its SPIFFE identity, with scheme.
    pub principal: String,
    /// Label `app`.
    pub app: String,
    /// Label `version`.
    pub version: String,
    /// `service.istio.io/canonical-name`.
    pub canonical_service: String,
    /// `service.istio.io/canonical-revision`; empty is exposed as `latest`.
    pub canonical_revision: String,
    /// The cluster it lives in.
    pub cluster: String,
    /// Locality; without it there are no labels of it, as at Istio's sidecars.
    pub locality: Option<Locality>,
}

/// Locality of one end of the traffic, as in ztunnel's metrics. Empty strings are exposed as `unknown`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Locality {
    /// `topology.kubernetes.io/region` of its node.
    pub region: String,
    /// `topology.kubernetes.io/zone` of its node.
    pub zone: String,
}

/// The service that was meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ServiceLabels {
    /// Its host name.
    pub host: String,
    /// Its short name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
}

/// All labels of a series, except those known only at the end (code and flags).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels {
    /// Which side measured.
    pub reporter: Reporter,
    /// The calling workload.
    pub source: PeerLabels,
    /// The called workload.
    pub destination: PeerLabels,
    /// By which service.
    pub service: ServiceLabels,
    /// `http`, `grpc` or `tcp`.
    pub protocol: &'static str,
    /// Security of the connection.
    pub security: Security,
    /// Values of the requests themselves, by what was asked for: of series that [`Shard::valued`](crate::Shard::valued) made.
    pub values: Vec<(Arc<str>, Box<str>)>,
}

impl Labels {
    /// The series for requests without room for their own: every label says so.
    #[must_use]
    pub fn other() -> Self {
        let other = || PeerLabels {
            workload: "other".to_owned(),
            ..PeerLabels::default()
        };
        Self {
            reporter: Reporter::Source,
            source: other(),
            destination: other(),
            service: ServiceLabels {
                host: "other".to_owned(),
                name: "other".to_owned(),
                namespace: String::new(),
            },
            protocol: UNKNOWN,
            security: Security::Unknown,
            values: Vec::new(),
        }
    }

    /// Value of the requests; `other` of those that were too many to be counted apart.
    pub(crate) fn value(&self, name: &str) -> &str {
        let found = self.values.iter().find(|(known, _)| **known == *name);
        match found {
            Some((_, value)) => value,
            None if self.values.is_empty() && self.protocol != TCP => OTHER,
            None => UNKNOWN,
        }
    }

    /// Names and values in Istio's order.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, &str)> {
        let known = |value| match value {
            "" => UNKNOWN,
            value => value,
        };
        let revision = |peer: &'_ PeerLabels| {
            peer.canonical_revision.is_empty() && !peer.canonical_service.is_empty()
        };
        let (from, to) = (&self.source, &self.destination);
        let mut pairs = vec![
            ("reporter", self.reporter.as_str()),
            ("source_workload", known(&from.workload)),
            ("source_canonical_service", known(&from.canonical_service)),
            (
                "source_canonical_revision",
                if revision(from) {
                    "latest"
                } else {
                    known(&from.canonical_revision)
                },
            ),
            ("source_workload_namespace", known(&from.namespace)),
            ("source_principal", known(&from.principal)),
            ("source_app", known(&from.app)),
            ("source_version", known(&from.version)),
            ("source_cluster", known(&from.cluster)),
            ("destination_workload", known(&to.workload)),
            ("destination_workload_namespace", known(&to.namespace)),
            ("destination_principal", known(&to.principal)),
            ("destination_app", known(&to.app)),
            ("destination_version", known(&to.version)),
            ("destination_service", known(&self.service.host)),
            (
                "destination_canonical_service",
                known(&to.canonical_service),
            ),
            (
                "destination_canonical_revision",
                if revision(to) {
                    "latest"
                } else {
                    known(&to.canonical_revision)
                },
            ),
            ("destination_service_name", known(&self.service.name)),
            (
                "destination_service_namespace",
                known(&self.service.namespace),
            ),
            ("destination_cluster", known(&to.cluster)),
            ("request_protocol", self.protocol),
            ("connection_security_policy", self.security.as_str()),
        ];
        if let Some(from) = &from.locality {
            pairs.push(("source_region", known(&from.region)));
            pairs.push(("source_zone", known(&from.zone)));
        }
        if let Some(to) = &to.locality {
            pairs.push(("destination_region", known(&to.region)));
            pairs.push(("destination_zone", known(&to.zone)));
        }
        pairs
    }
}
