//! Every limit of the HTTP/2 engine, by name, with its unit and its reason. They hold for both sides of the proxy.

use std::time::Duration;

use voile_http2::Config;
pub use voile_http2::MAX_HEADS_OF_ALL;

/// The limits of every connection, downstream and upstream.
pub(crate) const CONFIG: Config = Config {
    stream_window: STREAM_WINDOW,
    connection_window: CONNECTION_WINDOW,
    max_header_list: MAX_HEADER_LIST,
    max_continuations: MAX_CONTINUATIONS,
    max_peer_streams: MAX_DOWNSTREAM_STREAMS,
    initial_streams: MAX_UPSTREAM_STREAMS as u32,
    max_remembered_resets: MAX_REMEMBERED_RESETS,
    max_unseen_resets: MAX_UNSEEN_RESETS,
    max_provoked_resets: MAX_PROVOKED_RESETS,
    forgiving_streams: FORGIVING_STREAMS,
    max_unsent: MAX_UNSENT,
    max_empty_frames: MAX_EMPTY_FRAMES,
    max_interim: MAX_INTERIM_RESPONSES as usize + 1,
    max_heads: MAX_HEADS,
    max_window_changes: MAX_WINDOW_CHANGES,
};

/// Bytes of body a peer may send on one stream before we passed some on. Two streams fill a fast local link; a slow reader
/// behind us holds no more than this of its stream.
pub const STREAM_WINDOW: u32 = 256 * 1024;

/// The same for all streams of a connection: the most that one connection can make us hold, however many streams
/// it opens.
pub const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Largest head, in bytes as RFC 9113 counts them (32 more for each field). Envoy's default; a larger one is answered 431.
pub const MAX_HEADER_LIST: u32 = 60 * 1024;

/// Bytes of heads that one connection can make us hold for streams that are not over: four kilobytes for each of
/// [`MAX_DOWNSTREAM_STREAMS`]. HPACK makes a head of 60 KiB from twenty bytes, so the number of streams alone is no bound.
/// A client's stream beyond it is refused unprocessed, a server's answer ends its stream.
pub const MAX_HEADS: usize = 4 * 1024 * 1024;

/// Times that the bytes of a head are held at most while a stream is served: as it came, in the words of the next version, in
/// the buffers of both directions, each of which may be twice as large as its contents.
pub const HEAD_COPIES: usize = 6;

/// Bytes that heads of all connections make a proxy hold: the product of both limits.
pub const MAX_HEADS_HELD: usize = MAX_HEADS_OF_ALL * HEAD_COPIES;

/// Changes of the initial window; each looks at every stream. gRPC doubles it as it learns of the path, a dozen times in all.
pub const MAX_WINDOW_CHANGES: u32 = 1000;

/// Streams a client may have open at once. Applications keep hundreds of gRPC watches on one connection, which they
/// could do without us; a stream that waits costs a few kilobytes.
pub const MAX_DOWNSTREAM_STREAMS: u32 = 1024;

/// Requests on one upstream connection before another is opened, unless the server allows fewer. One connection has one
/// window and one worker at the other end; Envoy's and Go's usual advertised limits are of this order.
pub const MAX_UPSTREAM_STREAMS: usize = 128;

/// Upstream connections of one key; when all are full, streams wait for their turn inside one of them.
pub const MAX_UPSTREAM_CONNECTIONS: usize = 64;

/// CONTINUATION frames of one head: twice what the largest head needs, and a few for those who cut small (CVE-2024-27316).
pub const MAX_CONTINUATIONS: u32 = 8;

/// Bytes waiting to be written beyond which nothing more is read: a peer must take the answers that it causes (pings,
/// settings, resets).
pub const MAX_UNWRITTEN: usize = 64 * 1024;

/// Streams that we reset and still remember, so that frames already on their way are not an error: as many as a client may
/// have open, for all of them may be given up at once when a server is gone.
pub const MAX_REMEMBERED_RESETS: usize = MAX_DOWNSTREAM_STREAMS as usize;

/// DATA frames without data and without an end, one after another; one more ends the connection (CVE-2019-9518).
pub const MAX_EMPTY_FRAMES: u32 = 100;

/// Streams reset by the client before we looked at them (CVE-2023-44487); one more ends the connection.
pub const MAX_UNSEEN_RESETS: usize = 32;

/// Streams that we had to reset for the peer's errors (CVE-2025-8671, "MadeYouReset"); one more ends the connection.
pub const MAX_PROVOKED_RESETS: usize = 256;

/// Streams that end well for each of [`MAX_PROVOKED_RESETS`] that is forgotten. A client that errs once in so many may keep its
/// connection for ever, and pays for each error with as much honest work.
pub const FORGIVING_STREAMS: u32 = 16;

/// Bytes waiting to be written beyond which answers' heads and trailers are not added, and their streams are reset
/// (ENHANCE_YOUR_CALM). Bodies obey windows, heads do not, and a thousand unread streams could have 60 KiB each. The limit
/// equals that of heads in the other direction. A client that is only slow is behind by one socket buffer (2.5 MB with
/// Linux' defaults) before anything waits here.
pub const MAX_UNSENT: usize = MAX_HEADS;

/// Streams that a client gave up within [`PREMATURE`] and before an answer. When there were so many on one connection and
/// they are most of its streams, the connection ends: it makes work without wanting the results. Envoy's figures.
pub const MAX_PREMATURE_RESETS: u32 = 500;

/// See [`MAX_PREMATURE_RESETS`].
pub const PREMATURE: Duration = Duration::from_secs(1);

/// Time that a sidecar with streams of ours may be silent before a PING checks the connection.
pub const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// The same for other servers. gRPC servers end connections that ping more often than every five minutes (their
/// default).
pub const KEEP_ALIVE_OF_APPLICATIONS: Duration = Duration::from_secs(310);

/// Time that the PING's answer, or any other byte, may take. Envoy's and gRPC's usual value.
pub const KEEP_ALIVE_PATIENCE: Duration = Duration::from_secs(20);

/// Interim responses before a final one; a server that sends more is playing with us.
pub const MAX_INTERIM_RESPONSES: u32 = 32;

/// Bytes of a request kept until its answer begins: the request can go elsewhere if the server did not process it
/// (REFUSED_STREAM, GOAWAY).
pub const MAX_REPLAY_BYTES: usize = 64 * 1024;
