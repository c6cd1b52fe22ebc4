//! The limits of the transport, each with its unit and its reason. Configuration may change the timeouts; these are
//! the defaults.

use std::time::Duration;

/// Time limit of a TCP connection to an upstream: Istio's default.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of a whole TLS handshake. Slow peers are rare, stalled ones must not hold a descriptor for long.
pub const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time to wait for a silent client before its connection counts as opaque, so that server-first protocols work.
pub const DETECTION_TIMEOUT: Duration = Duration::from_millis(100);

/// Idle timeout of an opaque connection without bytes in either direction: Envoy's and Istio's default.
pub const IDLE_TIMEOUT: Duration = Duration::from_hours(1);

/// Quiet time after which the socket of a client that was answered early is closed.
pub const LINGER_QUIET: Duration = Duration::from_secs(2);

/// Total time for which the proxy reads from such a client, however it sends: nginx's `lingering_time`.
pub const LINGER_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of such a client that are read and dropped: the body of a usual upload. A client that has sent more has had
/// time to look for its answer.
pub const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// Connections of one process that linger at a time. One more ends the oldest, which has had the most time.
pub const MAX_LINGERING: usize = 1024;

/// Memory that one lingering connection may hold, in bytes: its task and a TLS session. Buffers for dropped data are
/// held only while it is read.
pub const MAX_LINGERING_CONNECTION: usize = 48 * 1024;

/// Memory that all lingering connections of a process may hold together, in bytes.
pub const MAX_LINGERING_BYTES: usize = MAX_LINGERING * MAX_LINGERING_CONNECTION;

/// Bytes read at most to tell a protocol: one TLS record of the largest size with its header.
pub const MAX_DETECTION_BYTES: usize = 16 * 1024 + 5;

/// First buffer for detection; a ClientHello with a post-quantum key share is about 1.5 KB.
pub const DETECTION_BUFFER: usize = 2 * 1024;

/// Connections one worker holds at most; a worker with more would rather be two.
pub const MAX_CONNECTIONS: usize = 100_000;

/// Connections that wait in the kernel to be accepted; the kernel may hold fewer (`net.core.somaxconn`).
pub const LISTEN_BACKLOG: i32 = 4096;

/// Pause of accepting when even shedding fails, so that a full machine is not also a busy one.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Time between two log lines about shed connections.
pub(crate) const SHED_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Connections accepted from one listener before others get their turn.
pub const ACCEPT_BURST: usize = 64;
