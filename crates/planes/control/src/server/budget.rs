//! Upper bounds of memory: for unproven callers, and for proven callers whose connections carry no stream. They are the limits of
//! a connection, of each lane, and their products.

use std::time::Duration;

use voile_http2::Config;

use voile_memory::shares::LaneLimits;

/// Connections that have not said a ClientHello, or HTTP/2's preface; a new one takes the place of the oldest.
pub(super) const MAX_WAITING: usize = 1024;
/// Connections without a proof that are in a handshake or may make a call. Each handshake costs a fraction of a millisecond of a
/// core, so more at once would only make each of them slower.
pub(super) const MAX_NEWCOMERS: usize = 128;
/// Connections that showed a certificate of the mesh and of which no call has succeeded yet.
pub(super) const MAX_MEMBERS: usize = 64;

/// See [`MAX_WAITING`].
pub(super) const WAITING: LaneLimits = LaneLimits {
    places: MAX_WAITING,
    per_source: MAX_WAITING / 2,
    // A connection that has sent nothing loses nothing when it is closed.
    min_stay: Duration::ZERO,
    deadline: Duration::from_secs(10),
};
/// See [`MAX_NEWCOMERS`].
pub(super) const NEWCOMERS: LaneLimits = LaneLimits {
    places: MAX_NEWCOMERS,
    per_source: MAX_NEWCOMERS / 4,
    // A proxy needs milliseconds; when many come at once on a loaded machine, not more than this.
    min_stay: Duration::from_millis(250),
    deadline: Duration::from_secs(15),
};
/// See [`MAX_MEMBERS`].
pub(super) const MEMBERS: LaneLimits = LaneLimits {
    places: MAX_MEMBERS,
    per_source: MAX_MEMBERS / 2,
    min_stay: Duration::from_millis(250),
    deadline: Duration::from_secs(15),
};

/// Connections of proven callers that follow no discovery stream. Those that do are counted by their identity
/// (`voile_xds::server::STREAMS_PER_IDENTITY`). An honest caller has one or two of these, and comes again when one is closed.
pub(super) const MAX_RESTING: usize = 256;
/// Of those, the connections of one identity (without a certificate: of one address) from one address.
pub(super) const MAX_RESTING_PER_CALLER: usize = 32;
/// See [`MAX_RESTING`].
pub(super) const RESTING: LaneLimits = LaneLimits {
    places: MAX_RESTING,
    per_source: MAX_RESTING_PER_CALLER,
    // A connection without a call loses nothing when it is closed.
    min_stay: Duration::ZERO,
    // An agent that renews certificates leaves its connection open for the next time, which is hours away.
    deadline: Duration::from_mins(10),
};

/// Largest question, in bytes: a certificate's is a few kilobytes, and its service takes less than this.
pub(super) const MAX_QUESTION: usize = 64 * 1024;
/// Longest time for the body of a question, for every caller.
pub(super) const QUESTION_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes that a newcomer may say in all, after its handshake: a head and a question.
pub(super) const MAX_NEWCOMER_SAYS: usize = MAX_QUESTION + 32 * 1024;
/// Calls of a newcomer that may be refused before its connection is closed: another costs it another handshake.
pub(super) const MAX_REFUSALS: usize = 8;

/// Largest head of a newcomer, in bytes: tokens are a few kilobytes.
const MAX_HEAD: u32 = 16 * 1024;
/// HTTP/2 as it is spoken with a newcomer.
pub(super) const NEWCOMER_HTTP2: Config = Config {
    stream_window: 16 * 1024,
    // HTTP/2 knows no smaller one.
    connection_window: 65_535,
    max_header_list: MAX_HEAD,
    max_continuations: 2,
    max_peer_streams: 1,
    initial_streams: 0,
    max_remembered_resets: 16,
    max_unseen_resets: 8,
    max_provoked_resets: 8,
    forgiving_streams: 16,
    max_unsent: 32 * 1024,
    max_empty_frames: 16,
    max_interim: 1,
    max_heads: 2 * MAX_HEAD as usize,
    max_window_changes: 16,
};

/// Calls at once of whoever has proven itself. A proxy has one stream, and now and then asks for a certificate.
pub(super) const MAX_CALLS: u32 = 16;
/// HTTP/2 as it is spoken with whoever has proven itself.
pub(super) const PROVEN_HTTP2: Config = Config {
    // A reconnect names all that is held; what comes is taken at once.
    stream_window: 256 * 1024,
    connection_window: 1024 * 1024,
    // Tokens are a few kilobytes.
    max_header_list: 64 * 1024,
    // The largest head, cut four times as small as it need be.
    max_continuations: 16,
    max_peer_streams: MAX_CALLS,
    // We ask nothing.
    initial_streams: 0,
    max_remembered_resets: MAX_CALLS as usize,
    // Rapid reset (CVE-2023-44487) and what came after it: an honest caller does neither.
    max_unseen_resets: 32,
    max_provoked_resets: 64,
    forgiving_streams: 16,
    // Heads and trailers are some hundred bytes: whoever has so many of them to read reads nothing.
    max_unsent: 256 * 1024,
    max_empty_frames: 100,
    // Nobody answers us.
    max_interim: 1,
    // Tokens again: sixteen of the largest are one caller too many.
    max_heads: 256 * 1024,
    // gRPC changes it a dozen times as it learns of the path.
    max_window_changes: 1000,
};

/// Bytes waiting to be written beyond which nothing is read: who does not read is not listened to.
pub(super) const MAX_UNWRITTEN: usize = 64 * 1024;
/// Room to read into, in bytes: one TLS record.
pub(super) const ROOM: usize = 16 * 1024;

/// A connection's tasks, socket and names, in bytes.
const WAITING_BYTES: usize = 4 * 1024;
/// TLS, in bytes: what it remembers, the largest handshake message that rustls collects, and a record.
const TLS_BYTES: usize = (24 + 64 + 18) * 1024;
/// All that HTTP/2 keeps of what the peer said, in bytes: it cannot be more than was said, but for HPACK, which makes a head of at
/// most [`MAX_HEAD`], of which there is one, copied once, and a table of 4,096 bytes with as much overhead.
const HEARD_BYTES: usize = MAX_NEWCOMER_SAYS + 2 * MAX_HEAD as usize + 2 * 4096;
/// A question is copied once, to be decoded.
const QUESTION_BYTES: usize = MAX_QUESTION;
/// Answers that wait, in bytes: each turn adds at most as much as it reads.
const SAID_BYTES: usize = MAX_UNWRITTEN + ROOM;
/// Upper bound of a newcomer's memory, in bytes.
pub(super) const NEWCOMER_BYTES: usize =
    WAITING_BYTES + TLS_BYTES + HEARD_BYTES + QUESTION_BYTES + SAID_BYTES;

/// Upper bound of all unproven connections' memory on both ports, in bytes: the product of the limits above.
pub const UNPROVEN_BYTES: usize =
    MAX_WAITING * WAITING_BYTES + (MAX_NEWCOMERS + MAX_MEMBERS) * NEWCOMER_BYTES;

/// Upper bound of the memory of a proven caller's connection without a stream, in bytes: TLS, heads, unread bodies, read
/// questions, and answers that the caller does not read.
const RESTING_CONNECTION_BYTES: usize = WAITING_BYTES
    + TLS_BYTES
    + PROVEN_HTTP2.max_heads
    + PROVEN_HTTP2.connection_window as usize
    + MAX_CALLS as usize * MAX_QUESTION
    + PROVEN_HTTP2.max_unsent;
/// Upper bound of the memory of one credential's connections without a stream from one address, in bytes.
pub const RESTING_BYTES_PER_CALLER: usize = MAX_RESTING_PER_CALLER * RESTING_CONNECTION_BYTES;
/// And those of all credentials together.
pub const RESTING_BYTES_OF_ALL: usize = MAX_RESTING * RESTING_CONNECTION_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_newcomers_together_cost_less_than_a_small_machine_has_to_spare() {
        const MIB: usize = 1024 * 1024;
        let (one, all) = (NEWCOMER_BYTES / 1024, UNPROVEN_BYTES / MIB);
        assert!(one <= 400, "{one} KiB for each");
        assert!(all <= 80, "{all} MiB for all");
    }

    #[test]
    fn connections_of_a_credential_that_follow_no_stream_cost_little() {
        const MIB: usize = 1024 * 1024;
        let (one, all) = (RESTING_BYTES_PER_CALLER / MIB, RESTING_BYTES_OF_ALL / MIB);
        assert!(one <= 90, "{one} MiB for one credential");
        assert!(all <= 700, "{all} MiB for all");
    }
}
