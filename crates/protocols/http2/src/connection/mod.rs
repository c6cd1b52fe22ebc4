//! One connection: agreed settings, streams, and output. `receive.rs` takes bytes, `heads.rs` heads, `data.rs`
//! bodies; `send.rs` writes the output of tasks.

mod data;
mod heads;
mod holders;
mod ids;
mod lifecycle;
mod read;
mod receive;
mod send;
mod settings;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::task::{Context, Waker};

use slab::Slab;

use crate::fields::Fields;
use crate::frame::{self, DEFAULT_MAX_FRAME, DEFAULT_WINDOW, ErrorCode, PREFACE, kind, setting};
use crate::hpack::{Decoder, Encoder};
use crate::pool::Pool;
pub use holders::MemoryHolder;
use ids::{ClosedStream, Ids};
use receive::Input;
use stream::{HalfState, Stream};

/// The limits of a connection; each user names and explains its own.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Bytes a peer may send on one stream before some are released.
    pub stream_window: u32,
    /// The same for all streams together.
    pub connection_window: u32,
    /// Largest head, in bytes as RFC 9113 section 6.5.2 counts them.
    pub max_header_list: u32,
    /// CONTINUATION frames of one head.
    pub max_continuations: u32,
    /// Streams the peer may have open.
    pub max_peer_streams: u32,
    /// Streams of ours that may be open before the peer says how many.
    pub initial_streams: u32,
    /// Streams reset by us that are remembered, so that frames on their way are not an error.
    pub max_remembered_resets: usize,
    /// Streams reset by the peer before they were accepted.
    pub max_unseen_resets: usize,
    /// Streams that we had to reset for the peer's errors.
    pub max_provoked_resets: usize,
    /// Streams that must end well before one of these is forgotten: a peer that keeps a connection for weeks errs now
    /// and then.
    pub forgiving_streams: u32,
    /// Bytes waiting to be written beyond which no head is added: a peer that reads nothing loses its answers.
    pub max_unsent: usize,
    /// DATA frames without data, one after another.
    pub max_empty_frames: u32,
    /// Interim heads of one answer that wait to be read.
    pub max_interim: usize,
    /// Bytes of heads that the peer's words make us hold for streams that are not over.
    pub max_heads: usize,
    /// Times the peer may change the window that streams begin with: each change looks at every stream.
    pub max_window_changes: u32,
}

/// Why a stream failed, as its task sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// By RST_STREAM, with this code.
    Reset(ErrorCode),
    /// The peer did nothing with it: REFUSED_STREAM, or behind the last stream that a GOAWAY names.
    Unprocessed,
    /// By this end, after a violation: RFC 9113 calls it an error.
    Violation(ErrorCode),
    /// With its connection.
    Connection,
}

/// End of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Http2End {
    /// As both ends wished.
    Clean,
    /// The peer broke a rule, or made too much work.
    Error(ErrorCode),
    /// The socket ended.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionSide {
    Server,
    Client,
}

/// The peer's settings.
#[derive(Debug)]
struct PeerSettings {
    window: u32,
    max_frame: u32,
    max_streams: u32,
    extended_connect: bool,
}

/// Progress of a graceful shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownState {
    No,
    /// GOAWAY without a last stream was said; the answer to a ping says that the peer knows.
    Announced,
    /// Streams after this one are ignored.
    After(u32),
}

/// Payload of the ping in a graceful shutdown.
const GOODBYE: [u8; 8] = *b"goodbye.";

/// Payload of the ping that checks if the peer is alive.
const ALIVE: [u8; 8] = *b"you ok?.";

/// Streams woken at once when there is room for data again.
const WAKE_AT_ONCE: usize = 4;

/// See the module.
pub struct Connection {
    side: ConnectionSide,
    config: &'static Config,
    pool: Pool,
    input: Input,
    decoder: Decoder,
    encoder: Encoder,
    out: Vec<u8>,
    written: usize,
    peer: PeerSettings,
    send_window: i64,
    recv_window: i64,
    /// Bytes that tasks released and the peer was not told of.
    released: u32,
    streams: Slab<Stream>,
    ids: Ids,
    last_peer: u32,
    next_local: u32,
    open_peer: u32,
    open_local: u32,
    /// Streams of ours that we allow ourselves.
    most_local: u32,
    /// Ours that wait until the peer allows more.
    opening: VecDeque<usize>,
    /// Those that wait for room.
    waiting: VecDeque<usize>,
    /// The peer's streams that are not accepted yet.
    accepting: VecDeque<usize>,
    leaving: ShutdownState,
    /// The peer said GOAWAY.
    peer_leaves: bool,
    over: Option<Http2End>,
    provoked: usize,
    /// Streams that ended well since the last error was forgotten.
    well: u32,
    unseen: usize,
    empty: u32,
    window_changes: u32,
    /// Bytes of heads held.
    heads: usize,
    /// Number of the peer's source in the budget of large heads.
    source: u64,
    /// Place in the pool's list, or one that is in no list.
    place: u32,
    driver: Option<Waker>,
}

impl Connection {
    /// The end that answers. Its settings are waiting to be written.
    pub fn server(config: &'static Config, pool: Pool) -> Self {
        let mut server = Self::new(ConnectionSide::Server, config, pool);
        server.greet(&[
            (setting::MAX_CONCURRENT_STREAMS, config.max_peer_streams),
            (setting::INITIAL_WINDOW_SIZE, config.stream_window),
            (setting::MAX_HEADER_LIST_SIZE, config.max_header_list),
            (setting::ENABLE_CONNECT_PROTOCOL, 1),
        ]);
        server
    }

    /// The end that asks. Preface and settings are waiting to be written.
    pub fn client(config: &'static Config, pool: Pool) -> Self {
        let mut client = Self::new(ConnectionSide::Client, config, pool);
        client.room().extend_from_slice(PREFACE);
        client.greet(&[
            (setting::ENABLE_PUSH, 0),
            (setting::INITIAL_WINDOW_SIZE, config.stream_window),
            (setting::MAX_HEADER_LIST_SIZE, config.max_header_list),
        ]);
        client
    }

    fn new(side: ConnectionSide, config: &'static Config, pool: Pool) -> Self {
        Self {
            side,
            config,
            pool,
            input: Input::new(side == ConnectionSide::Server),
            decoder: Decoder::new(),
            encoder: Encoder::new(),
            out: Vec::new(),
            written: 0,
            peer: PeerSettings {
                window: DEFAULT_WINDOW,
                max_frame: DEFAULT_MAX_FRAME,
                max_streams: config.initial_streams,
                extended_connect: false,
            },
            send_window: DEFAULT_WINDOW.into(),
            recv_window: config.connection_window.into(),
            released: 0,
            // Many connections never have two at once; left alone, the first would make room for four.
            streams: Slab::with_capacity(1),
            ids: Ids::default(),
            last_peer: 0,
            next_local: 1,
            open_peer: 0,
            open_local: 0,
            most_local: u32::MAX,
            opening: VecDeque::new(),
            waiting: VecDeque::new(),
            accepting: VecDeque::new(),
            leaving: ShutdownState::No,
            peer_leaves: false,
            over: None,
            provoked: 0,
            well: 0,
            unseen: 0,
            empty: 0,
            window_changes: 0,
            heads: 0,
            source: 0,
            place: u32::MAX,
            driver: None,
        }
    }

    /// Counts large heads of this connection to a source of the pool's budget. To be called before anything was received.
    pub fn set_source(&mut self, source: u64) {
        self.source = source;
    }

    /// Serves the peer by other limits from now on, none of which is smaller, and tells it: a server whose client has proven
    /// itself.
    pub fn widen(&mut self, config: &'static Config) {
        let before = std::mem::replace(&mut self.config, config);
        self.say_settings(&[
            (setting::MAX_CONCURRENT_STREAMS, config.max_peer_streams),
            (setting::INITIAL_WINDOW_SIZE, config.stream_window),
            (setting::MAX_HEADER_LIST_SIZE, config.max_header_list),
        ]);
        // The peer counts it for streams that it has open, too (RFC 9113 section 6.9.2).
        let more = config.stream_window.saturating_sub(before.stream_window);
        for (_, stream) in &mut self.streams {
            stream.recv_window += i64::from(more);
        }
        let more = config
            .connection_window
            .saturating_sub(before.connection_window);
        if more > 0 {
            self.recv_window += i64::from(more);
            self.write(kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        }
        self.nudge();
    }

    fn say_settings(&mut self, settings: &[(u16, u32)]) {
        let mut payload = Vec::with_capacity(settings.len() * 6);
        for (name, value) in settings {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        self.write(kind::SETTINGS, 0, 0, &payload);
    }

    fn greet(&mut self, settings: &[(u16, u32)]) {
        self.say_settings(settings);
        let more = self.config.connection_window.saturating_sub(DEFAULT_WINDOW);
        if more > 0 {
            self.write(kind::WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        }
    }

    // --- output

    fn room(&mut self) -> &mut Vec<u8> {
        if self.out.capacity() == 0 {
            self.out = self.pool.room();
        }
        &mut self.out
    }

    fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        frame::write(self.room(), kind, flags, stream, payload);
    }

    /// Returns the bytes to write now.
    #[inline]
    pub fn output(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// So much of it was.
    #[inline]
    pub fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written >= self.out.len() {
            self.written = 0;
            self.pool.give_room(std::mem::take(&mut self.out));
        } else if self.written >= self.config.max_unsent / 2 {
            // Without this, a connection that always has more to write would never free its written bytes.
            self.out.drain(..std::mem::take(&mut self.written));
        }
    }

    // --- its driver

    /// Registers the driver's waker, which wakes when a task has sent something.
    pub fn watch(&mut self, cx: &Context<'_>) {
        match &mut self.driver {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.driver = Some(cx.waker().clone()),
        }
    }

    /// Has the driver look at everything again.
    pub fn wake_driver(&mut self) {
        self.nudge();
    }

    /// Wakes the driver, once until it watches again.
    pub(crate) fn nudge(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Has every stream's task look at everything again.
    pub fn wake_streams(&self) {
        self.streams.iter().for_each(|(_, stream)| stream.wake());
    }

    /// Lets streams go on for which there is room again. True when more of them wait than were woken.
    pub fn replenish(&mut self) -> bool {
        let mut woken = 0;
        while self.free() > 0 {
            let Some(key) = self.waiting.pop_front() else {
                return false;
            };
            let Some(stream) = self.streams.get_mut(key) else {
                continue;
            };
            stream.waiting = false;
            if stream.queue.is_empty() {
                stream.wake();
                woken += 1;
                if woken == WAKE_AT_ONCE {
                    return !self.waiting.is_empty();
                }
            } else {
                self.resume(key);
            }
        }
        false
    }

    /// Returns the end of the connection, once it ended; the output that is left is its last word.
    pub fn end(&mut self) -> Option<Http2End> {
        if self.over.is_none() && self.open_local == 0 && self.open_peer == 0 {
            let done = match self.side {
                ConnectionSide::Server => {
                    matches!(self.leaving, ShutdownState::After(_)) && self.accepting.is_empty()
                }
                ConnectionSide::Client => {
                    self.leaving != ShutdownState::No && self.opening.is_empty()
                }
            };
            if done {
                if self.side == ConnectionSide::Client {
                    self.say_goodbye(0, ErrorCode::NO_ERROR);
                }
                self.over = Some(Http2End::Clean);
            }
        }
        self.over
    }

    /// Returns true if it ended.
    pub fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Returns true if the process is short of memory: no more is read at a time than must be.
    pub fn is_short_of_memory(&self) -> bool {
        self.pool.is_short()
    }

    /// Returns true if it takes no more streams.
    pub fn is_leaving(&self) -> bool {
        self.leaving != ShutdownState::No
    }

    /// The socket gives and takes no more.
    pub fn closed(&mut self) {
        if self.over.is_none() {
            self.over = Some(Http2End::Closed);
            self.fail_all(Failure::Connection);
        }
    }

    /// Takes no more streams; those in flight finish.
    pub fn leave(&mut self) {
        if self.leaving != ShutdownState::No || self.over.is_some() {
            return;
        }
        self.leaving = ShutdownState::Announced;
        if self.side == ConnectionSide::Server {
            self.say_goodbye(0x7fff_ffff, ErrorCode::NO_ERROR);
            self.write(kind::PING, 0, 0, &GOODBYE);
        }
        self.nudge();
    }

    /// Ends it at once, for this reason.
    pub fn abort(&mut self, reason: ErrorCode) {
        if self.over.is_none() {
            self.say_goodbye(self.last_peer, reason);
            self.over = Some(Http2End::Error(reason));
            self.fail_all(Failure::Violation(reason));
        }
    }

    /// Asks by a PING if the peer is alive; any next frame is an answer.
    pub fn ask(&mut self) {
        self.write(kind::PING, 0, 0, &ALIVE);
    }

    fn say_goodbye(&mut self, last: u32, reason: ErrorCode) {
        let mut payload = [0; 8];
        payload[..4].copy_from_slice(&last.to_be_bytes());
        payload[4..].copy_from_slice(&reason.0.to_be_bytes());
        self.write(kind::GOAWAY, 0, 0, &payload);
    }

    // --- streams

    /// Returns true if most of the connection's receive window is full of unread data, or the peer takes no output.
    /// Another stream would wait behind slow readers.
    pub fn is_congested(&self) -> bool {
        if self.out.len() > self.config.max_unsent {
            return true;
        }
        let given = self.recv_window + i64::from(self.released);
        given < i64::from(self.config.connection_window / 4)
    }

    /// Returns true if this end's streams may use extended CONNECT (RFC 8441).
    pub fn allows_extended_connect(&self) -> bool {
        self.peer.extended_connect
    }

    /// Streams of ours that the peer allows, and we ourselves.
    pub fn max_local_streams(&self) -> u32 {
        self.peer.max_streams.min(self.most_local)
    }

    /// Begins at most so many streams at once, however many the peer allows; others wait for their turn.
    pub fn limit_local_streams(&mut self, most: u32) {
        self.most_local = most;
    }

    /// Returns true if this end may begin another stream.
    pub fn takes_streams(&self) -> bool {
        self.over.is_none()
            && self.leaving == ShutdownState::No
            && !self.peer_leaves
            && self.next_local < 0x7fff_ffff
    }

    /// Returns the number of streams that the peer opened and reset before they were accepted, since the last call.
    pub fn take_unseen(&mut self) -> u32 {
        u32::try_from(std::mem::take(&mut self.unseen)).unwrap_or(u32::MAX)
    }

    pub(crate) fn accept(&mut self) -> Option<(usize, Fields)> {
        while let Some(key) = self.accepting.pop_front() {
            let Some(stream) = self.streams.get_mut(key) else {
                continue;
            };
            stream.accepted = true;
            match (stream.failed, stream.head.take()) {
                (None, Some(head)) => return Some((key, head)),
                _ => self.forget(key),
            }
        }
        None
    }

    pub(crate) fn listed(&mut self, place: usize) {
        self.place = u32::try_from(place).unwrap_or(u32::MAX);
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}
