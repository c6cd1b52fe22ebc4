//! The questions by which Kubernetes' kubelet learns whether a container has started, is ready and lives.

use std::sync::Arc;
use std::time::Duration;

use crate::names::Port;

/// The probes of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probes {
    /// Until it succeeds, the other two wait; when it fails, the container is restarted.
    pub startup: Option<Probe>,
    /// Decides if the container receives traffic.
    pub readiness: Option<Probe>,
    /// When it fails, the container is restarted.
    pub liveness: Option<Probe>,
}

/// One question and how its answers count. Times and counts are at least 1, the delay may be 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The check.
    pub question: ProbeAction,
    /// From the container's start to the first question.
    pub initial_delay: Duration,
    /// Between two questions.
    pub period: Duration,
    /// Time limit of an answer.
    pub timeout: Duration,
    /// Good answers in a row until it counts as good.
    pub success_threshold: u32,
    /// Bad answers in a row until it counts as bad.
    pub failure_threshold: u32,
    /// Grace period of a container that failed; `None` is the Pod's.
    pub termination_grace: Option<Duration>,
}

/// The check of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeAction {
    /// `GET`; a status from 200 to 399 is good.
    Http {
        /// The port.
        port: Port,
        /// True for TLS; every certificate is accepted.
        tls: bool,
        /// Path and query, beginning with `/`, fit for a request line.
        path: Arc<str>,
        /// More fields of the request, fit for a head; a `Host` replaces the usual one.
        headers: Vec<(Arc<str>, Arc<str>)>,
    },
    /// A connection that is accepted is good.
    Tcp {
        /// The port.
        port: Port,
    },
    /// `grpc.health.v1.Health/Check`, in plaintext; SERVING is good.
    Grpc {
        /// The port.
        port: Port,
        /// The service asked about; empty is the server as a whole.
        service: Arc<str>,
    },
    /// A program; code 0 is good.
    Exec {
        /// It and its arguments, never empty.
        command: Vec<Arc<str>>,
    },
}
