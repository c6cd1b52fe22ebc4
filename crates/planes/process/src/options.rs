//! Settings of a process as the command line has them, and why one cannot run.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use voile_dns::Upstreams;
use voile_telemetry::logging::LogLevelHandle;
use voile_transport::handover::HandoverError;

/// The system's file of resolvers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Largest number of workers.
const MAX_WORKERS: usize = 256;

/// Settings that every proxy has.
#[derive(Debug)]
pub struct ProcessOptions {
    /// `https://host:port` of each control plane: any will do.
    pub control: Vec<String>,
    /// PEM file of the mesh's root.
    pub root_cert: PathBuf,
    /// Resolver of names outside the mesh.
    pub resolver: ExternalResolver,
    /// Admin pages (15000).
    pub admin: SocketAddr,
    /// Metrics (15020).
    pub metrics: SocketAddr,
    /// Readiness (15021).
    pub readiness: SocketAddr,
    /// Threads that carry traffic.
    pub workers: usize,
    /// Time that work in flight may take at shutdown.
    pub drain_timeout: Duration,
    /// Socket over which a new process takes the old one's listening sockets; `None` for no handover.
    pub handover: Option<PathBuf>,
    /// Time that work in flight may take after a handover to another process.
    pub handover_drain_timeout: Duration,
    /// Changes the log's level.
    pub log: Option<LogLevelHandle>,
}

impl ProcessOptions {
    /// Checks what can be checked before anything starts.
    ///
    /// # Errors
    /// An option makes no sense.
    pub fn check(&self) -> Result<(), RunError> {
        match self.workers {
            1..=MAX_WORKERS => Ok(()),
            workers => Err(RunError::Option(format!(
                "{workers} workers: expected 1 to {MAX_WORKERS}"
            ))),
        }
    }
}

/// Resolver of names outside the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalResolver {
    /// The servers of `/etc/resolv.conf`.
    System,
    /// This one.
    Server(SocketAddr),
    /// No resolver: names outside the mesh do not exist.
    Nowhere,
}

impl ExternalResolver {
    /// The servers to ask.
    #[must_use]
    pub fn upstreams(self) -> Upstreams {
        match self {
            Self::System => Upstreams::of_file(Path::new(RESOLV_CONF)),
            Self::Server(server) => Upstreams::fixed(server),
            Self::Nowhere => Upstreams::nobody(),
        }
    }
}

/// Why a proxy cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An address cannot be bound.
    #[error("cannot listen on {address} ({purpose}): {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Purpose of the listener.
        purpose: &'static str,
        /// The kernel's word.
        error: io::Error,
    },
    /// The option makes no sense, or the process lacks a privilege.
    #[error("{0}")]
    Option(String),
    /// A part of the data plane cannot be set up.
    #[error("{0}")]
    Setup(String),
    /// The running proxy did not hand over, or this one was not fit to take over.
    #[error("handover: {0}")]
    Handover(String),
    /// Threads, runtimes, descriptors.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] voile_identity::KeyError),
}

impl From<HandoverError> for RunError {
    fn from(error: HandoverError) -> Self {
        Self::Handover(error.to_string())
    }
}
