//! Why the control plane ends a stream.

use super::stream::ACK_DEADLINE;

/// Why we end a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamEndReason {
    /// It asks for more than we give anybody.
    #[error("{0}")]
    TooMuch(String),
    /// It breaks the protocol.
    #[error("{0}")]
    Violation(String),
    /// It does not answer.
    #[error("no ACK or NACK of a response within {ACK_DEADLINE:?}")]
    Silent,
}
