//! The end that calls: one CONNECT on a leased connection, and its answer.

use std::future::poll_fn;
use std::time::Duration;

use voile_http2::{Failure, Fields, RecvStream, SendStream};

use crate::pool::Lease;

/// Time that the other proxy gets to open a tunnel: it may itself wait 10 s for its application.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why there is no tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TunnelOpenError {
    /// The connection ended before.
    #[error("the connection to the other proxy ended")]
    Over,
    /// No answer in time.
    #[error("the other proxy does not answer")]
    Silent,
    /// It ended the tunnel.
    #[error("the other proxy closed the tunnel: {0:?}")]
    Ended(Failure),
    /// Its policy refuses it.
    #[error("the other proxy denied the tunnel by policy (401)")]
    Denied,
    /// It said no for another reason.
    #[error("the other proxy answered {0}")]
    Status(u16),
}

impl TunnelOpenError {
    /// Returns true if the other proxy certainly did nothing with it: another connection may be tried.
    #[must_use]
    pub fn is_unprocessed(&self) -> bool {
        matches!(self, Self::Over | Self::Ended(Failure::Unprocessed))
    }
}

/// Opens a tunnel by this head.
///
/// # Errors
/// When the other proxy does not want it, or is not there.
pub async fn open(
    lease: &Lease,
    head: Fields,
) -> Result<(RecvStream, SendStream), TunnelOpenError> {
    let sent = lease.link().send_request(head, false);
    let (mut answer, send) = sent.ok_or(TunnelOpenError::Over)?;
    let answered = poll_fn(|cx| answer.poll_head(cx));
    let answered = tokio::time::timeout(PATIENCE, answered).await;
    let answered = answered.map_err(|_| TunnelOpenError::Silent)?;
    match answered.map_err(TunnelOpenError::Ended)?.status() {
        200 => Ok((answer.into_body(), send)),
        401 => Err(TunnelOpenError::Denied),
        status => Err(TunnelOpenError::Status(status)),
    }
}
