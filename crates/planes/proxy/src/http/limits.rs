//! Every limit of the engine, by name, with its unit and its reason.

use std::time::Duration;

use crate::http2::limits as http2;

/// Size of one pooled buffer, in bytes: a TLS record's plaintext, so that one record is one read.
pub const BUFFER_BYTES: usize = 16 * 1024;

/// Most free buffers a worker keeps: 2 MiB. More in use at once is possible, they are freed when they come back.
pub const MAX_FREE_BUFFERS: usize = 128;

/// An unfinished head of at most so many bytes waits in a copy of its own size: a thousand dawdling clients must not
/// hold a thousand buffers.
pub const MAX_PARKED_BYTES: usize = 1024;

/// The least room a body is read into; below it another buffer is taken.
pub const MIN_READ_BYTES: usize = 4 * 1024;

/// The least room behind a head, for pipelined bytes and to notice that the client left.
pub const LEAST_PIPELINED: usize = 256;

/// Longest time from the first byte of a request head to its last. Slower is answered 408.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// Longest time a downstream connection may wait for its next request. Envoy's default.
pub const DOWNSTREAM_IDLE: Duration = Duration::from_secs(3600);

/// Time in which a draining proxy waits for one more request on a connection that may be an application's. The answer then
/// says that it is the last: closing the connection would cross that request. A client that calls all the time has called
/// within it.
pub const LAST_WORD: Duration = Duration::from_secs(1);

/// Longest time in which nothing moves while we wait for the client (its body, or room for the response). Envoy's default.
/// Waiting for the answer has no limit, as in Istio.
pub const STREAM_IDLE: Duration = Duration::from_secs(300);

/// Longest time in which a server takes nothing of a body that waits for it, and nothing of its answer moves. Istio switches
/// Envoy's limit of streams off, so that such an exchange would last for ever; this is its limit of silent TCP. A request that
/// was taken whole may wait for its answer longer.
pub const UPLOAD_IDLE: Duration = Duration::from_secs(3600);

/// Time that a request body may take at any speed. From then on its average rate must be at least [`MIN_BODY_RATE`]:
/// otherwise a client that sends a byte now and then would hold a connection on both sides for ever.
pub const BODY_GRACE: Duration = Duration::from_secs(300);

/// Bytes a second, on average, of a request body that takes longer than [`BODY_GRACE`], until its answer begins: a tenth of
/// the rate of the slowest modem, and a hundred times less than Apache's minimum.
pub const MIN_BODY_RATE: u32 = 16;

/// Longest time a tunnel may be silent in both directions. Envoy's default for TCP.
pub const TUNNEL_IDLE: Duration = Duration::from_secs(3600);

/// Longest time a pooled upstream connection stays unused; shorter than the 75 s of nginx and the usual load balancers.
pub const UPSTREAM_IDLE: Duration = Duration::from_secs(60);

/// An upstream connection whose server says how long it keeps it is given up so much earlier: our clock starts when the
/// response is over, the server's perhaps a round trip before.
pub const KEEP_ALIVE_MARGIN: Duration = Duration::from_secs(1);

/// Most idle upstream connections per pool key and worker.
pub const MAX_IDLE_PER_KEY: usize = 128;

/// Most idle upstream connections per pool, so that many keys do not eat all descriptors.
pub const MAX_IDLE_PER_POOL: usize = 1024;

/// Longest time that our last bytes may take to leave. Also the longest time that an early answered client may be
/// silent before its connection closes (RFC 9112 section 9.6). The transport bounds the bytes, the total time and the
/// number of lingering connections.
pub const LINGER: Duration = voile_transport::LINGER_QUIET;

/// Bytes that a request's body may lack when its answer is written, for its connection to be kept: they are read and dropped,
/// within [`LINGER`] in all, and the next request is looked for behind them. Clients that write head and body apart, as most do,
/// are answered before the body is there. No memory: one buffer, which the exchange has.
pub const MAX_REMAINDER: u64 = 64 * 1024;

/// Times one request is sent, counting the first: a connection that is being closed under us is the usual reason for a
/// second, and rarely for a third.
pub const MAX_ATTEMPTS: u32 = 3;

/// Bytes of an HTTP/2 client that are read after the connection's last word.
pub const MAX_LINGER_BYTES: usize = 256 * 1024;

/// The durations of one worker. The defaults are the constants above; tests shorten them.
#[derive(Debug, Clone, Copy)]
pub struct HttpTimeouts {
    /// See [`HEADER_TIMEOUT`].
    pub header: Duration,
    /// See [`DOWNSTREAM_IDLE`].
    pub downstream_idle: Duration,
    /// See [`STREAM_IDLE`].
    pub stream_idle: Duration,
    /// See [`UPLOAD_IDLE`].
    pub upload_idle: Duration,
    /// See [`UPSTREAM_IDLE`].
    pub upstream_idle: Duration,
    /// Time that a completely received request may wait for the head of its answer.
    pub request: Option<Duration>,
    /// See [`BODY_GRACE`].
    pub body_grace: Duration,
    /// See [`MIN_BODY_RATE`]; 0 is any.
    pub min_body_rate: u32,
    /// See [`TUNNEL_IDLE`].
    pub tunnel_idle: Duration,
    /// See [`LINGER`].
    pub linger: Duration,
    /// See [`KEEP_ALIVE`](crate::http2::limits::KEEP_ALIVE).
    pub keep_alive: Duration,
    /// See [`KEEP_ALIVE_OF_APPLICATIONS`](crate::http2::limits::KEEP_ALIVE_OF_APPLICATIONS).
    pub keep_alive_of_applications: Duration,
    /// See [`KEEP_ALIVE_PATIENCE`](crate::http2::limits::KEEP_ALIVE_PATIENCE).
    pub keep_alive_patience: Duration,
}

impl Default for HttpTimeouts {
    fn default() -> Self {
        Self {
            header: HEADER_TIMEOUT,
            downstream_idle: DOWNSTREAM_IDLE,
            stream_idle: STREAM_IDLE,
            upload_idle: UPLOAD_IDLE,
            upstream_idle: UPSTREAM_IDLE,
            request: None,
            body_grace: BODY_GRACE,
            min_body_rate: MIN_BODY_RATE,
            tunnel_idle: TUNNEL_IDLE,
            linger: LINGER,
            keep_alive: http2::KEEP_ALIVE,
            keep_alive_of_applications: http2::KEEP_ALIVE_OF_APPLICATIONS,
            keep_alive_patience: http2::KEEP_ALIVE_PATIENCE,
        }
    }
}
