//! Why a control plane cannot start. Once it runs, nothing short of a signal ends it.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a control plane cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A folder cannot be read or watched.
    #[error("{}: {reason}", .folder.display())]
    Folder {
        /// Which.
        folder: PathBuf,
        /// Error text of the operating system.
        reason: String,
    },
    /// The state directory cannot be used.
    #[error("{0}")]
    State(String),
    /// A document may be a security resource and cannot be read, and no earlier configuration is known.
    #[error("{0}\nnothing is served until it can be read")]
    NeverRead(String),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for {purpose}: {source}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// For what.
        purpose: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Plaintext discovery would be offered to other machines.
    #[error(
        "plaintext discovery on {0} would expose the configuration of the mesh to the network: use a loopback address, or pass --plaintext-beyond-loopback"
    )]
    PlaintextBeyondLoopback(SocketAddr),
    /// TLS or a thread cannot be set up.
    #[error("{0}")]
    Setup(String),
}
