//! Sends workers' records to a collector, from the control thread. A collector that is slow or gone costs a bounded
//! queue and nothing else. A record that cannot be delivered is dropped and counted, and nothing is sent twice.
//!
//! ```text
//! Inbox ─batch─▶ als::run   ─▶ StreamAccessLogs (one stream, opened again when it breaks)
//!             └▶ spans::run ─▶ Export over gRPC, or POST over HTTP/1.1
//! ```

pub mod als;
mod channel;
pub mod spans;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

/// Time for which records are gathered before they are sent: Envoy's default for its access log service.
pub const GATHER: Duration = Duration::from_secs(1);

/// Records of one message, at most: with 4 KB each below gRPC's usual limit of 4 MB.
pub const MAX_BATCH: usize = 512;

/// Default timeout of one call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The first pause after a failure; doubled with each, up to [`MAX_PAUSE`].
pub const MIN_PAUSE: Duration = Duration::from_millis(250);

/// See [`MIN_PAUSE`].
pub const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A connection to a collector.
pub trait CollectorStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> CollectorStream for T {}

/// A connection that is being made.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<Box<dyn CollectorStream>>> + Send>>;

/// Makes connections to one collector; asked anew for each, so that it may answer differently.
pub trait CollectorDialer: Send + Sync + 'static {
    /// Begins one.
    fn dial(&self) -> Dialing;
    /// `host:port`, for `:authority` or `Host`.
    fn authority(&self) -> &str;
}

/// The pause after so many failures in a row.
fn pause(failures: u32) -> Duration {
    MIN_PAUSE
        .saturating_mul(1 << failures.min(10))
        .min(MAX_PAUSE)
}
