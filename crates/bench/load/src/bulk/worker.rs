//! One bulk thread: it writes to its connections or reads from them as fast as they allow, and counts the bytes that arrive in
//! each second.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{RecvFlags, recv};

use crate::clock::{MILLISECOND, SECOND, Timer, now, sharpen_timers, thread_cpu};
use crate::connect::{connect_failure, start_connect};
use crate::echo::ACK_BYTES;
use crate::options::{Bulk, LoadOptions};
use crate::poll::{Poll, Readiness};
use crate::stop::Stop;
use crate::tally::{Failures, RequestOutcome};
use crate::threads::Generator;
use crate::worker::Timeline;

/// Bytes of one write: large enough for few system calls, small enough for the second-level cache.
const WRITE_BYTES: usize = 128 * 1024;
/// Most bytes of one read. The read copies nothing.
const READ_BYTES: usize = 1024 * 1024;
/// System calls for one connection in a row, before others and the clock have their turn.
const CALLS_PER_TURN: usize = 8;
/// Interval at which a worker updates its books while bytes flow.
const TICK_NS: u64 = 10 * MILLISECOND;
/// After the end, how long the sink's last acknowledgement is waited for.
const DRAIN_NS: u64 = SECOND;

const TIMER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// Counts of one thread, or the sum of all threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct BulkCount {
    /// In the measured part: bytes that arrived, by the sink's word, the kernel's, or our own reading.
    pub(super) arrived: u64,
    pub(super) written: u64,
    pub(super) seconds: Vec<u64>,
    pub(super) connections: u64,
    /// Of these, bytes that a sink of ours acknowledged.
    pub(super) by_sink: u64,
    /// Bytes of each connection in the measured part.
    pub(super) each: Vec<u64>,
    pub(super) errors: Failures,
    pub(super) cpu_ns: u64,
    pub(super) end: u64,
    /// The user asked to end before that.
    pub(super) interrupted: bool,
}

impl BulkCount {
    pub(super) fn merge(&mut self, other: &Self) {
        self.arrived += other.arrived;
        self.written += other.written;
        self.connections += other.connections;
        self.by_sink += other.by_sink;
        self.cpu_ns += other.cpu_ns;
        self.end = self.end.max(other.end);
        self.interrupted |= other.interrupted;
        self.each.extend_from_slice(&other.each);
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), 0);
        }
        for (mine, theirs) in self.seconds.iter_mut().zip(&other.seconds) {
            *mine += theirs;
        }
        self.errors.merge(&other.errors);
    }

    fn unconnected(&mut self, to: SocketAddr, error: &io::Error) {
        let cause = connect_failure(to, error).into();
        self.errors.explain(RequestOutcome::Connect, cause, 1);
        self.errors.add(RequestOutcome::Connect, 1);
    }
}

#[derive(Debug)]
struct BulkConnection {
    stream: Option<TcpStream>,
    open: bool,
    /// Waits for its next turn.
    queued: bool,
    writable: bool,
    readable: bool,
    written: u64,
    /// All bytes that have arrived, as far as is known: read by us, or gone from the kernel's queue.
    arrived: u64,
    /// The same by the sink's word, if it speaks; it is the better witness.
    taken: Option<u64>,
    /// Of these, bytes already counted.
    counted: u64,
    measured: u64,
    /// An acknowledgement that has come in part.
    ack: Vec<u8>,
}

pub(super) struct BulkWorker {
    direction: Bulk,
    to: SocketAddr,
    connections: Vec<BulkConnection>,
    poll: Poll,
    timer: Timer,
    turns: Vec<usize>,
    buffer: Vec<u8>,
    total: Arc<AtomicU64>,
    timeline: Timeline,
    cpu_from: Option<u64>,
    next_books: u64,
    timeout: u64,
    count: BulkCount,
    ending: bool,
}

impl BulkWorker {
    pub(super) fn new(
        options: &LoadOptions,
        index: usize,
        total: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let share = (index..options.connections)
            .step_by(options.threads)
            .count();
        let poll = Poll::new()?;
        let mut count = BulkCount {
            connections: share as u64,
            ..BulkCount::default()
        };
        let mut connections = Vec::with_capacity(share);
        for slot in 0..share {
            let stream = start_connect(options.target.address, options.bind)
                .and_then(|stream| poll.add_stream(&stream, slot as u64).map(|()| stream));
            if let Err(error) = &stream {
                count.unconnected(options.target.address, error);
            }
            connections.push(BulkConnection {
                stream: stream.ok(),
                open: false,
                queued: false,
                writable: false,
                readable: false,
                written: 0,
                arrived: 0,
                taken: None,
                counted: 0,
                measured: 0,
                ack: Vec::new(),
            });
        }
        let size = match options.bulk {
            Bulk::Push => WRITE_BYTES,
            Bulk::Pull => READ_BYTES,
        };
        let timeout = u64::try_from(options.timeout.as_nanos()).unwrap_or(u64::MAX / 4);
        Ok(Self {
            direction: options.bulk,
            to: options.target.address,
            connections,
            poll,
            timer: Timer::new()?,
            turns: Vec::new(),
            buffer: vec![b'v'; size],
            total,
            timeline: Timeline {
                start: 0,
                measure: 0,
                end: 0,
            },
            cpu_from: None,
            next_books: 0,
            timeout,
            count,
            ending: false,
        })
    }
}

impl Generator for BulkWorker {
    type Count = BulkCount;

    /// Waits until each connection is open or has failed.
    fn prepare(&mut self, stop: &Stop) -> io::Result<()> {
        sharpen_timers();
        self.poll.add_timer(&self.timer, TIMER)?;
        self.poll.add_level(stop.fd(), STOP)?;
        let deadline = now() + self.timeout.min(u64::MAX / 4);
        let pending = |connection: &BulkConnection| connection.stream.is_some() && !connection.open;
        while self.connections.iter().any(pending) && now() < deadline && !stop.raised() {
            self.timer.set(Some(deadline))?;
            self.take_events(stop)?;
        }
        for slot in 0..self.connections.len() {
            if pending(&self.connections[slot]) {
                self.lose(slot, RequestOutcome::Timeout);
            }
        }
        Ok(())
    }

    /// Moves bytes until the end.
    fn run(mut self, timeline: Timeline, stop: &Stop) -> io::Result<BulkCount> {
        self.timeline = timeline;
        self.timer.set(Some(timeline.start))?;
        while now() < timeline.start && !stop.raised() {
            self.take_events(stop)?;
        }
        for slot in 0..self.connections.len() {
            self.queue(slot);
        }
        loop {
            let at = now();
            let over = at >= self.timeline.end || stop.raised();
            if over || at >= self.next_books {
                self.keep_books(at);
            }
            if over {
                break;
            }
            for slot in std::mem::take(&mut self.turns) {
                self.connections[slot].queued = false;
                self.turn(slot);
            }
            if self
                .connections
                .iter()
                .all(|connection| connection.stream.is_none())
            {
                break;
            }
            self.timer
                .set(Some(self.next_books.min(self.timeline.end)))?;
            self.take_events(stop)?;
        }
        self.count.interrupted = stop.raised() && now() < self.timeline.end;
        self.timeline.end = self.timeline.end.min(now()).max(self.timeline.measure);
        let cpu = thread_cpu();
        self.count.cpu_ns = cpu - self.cpu_from.unwrap_or(cpu);
        self.finish(stop)?;
        Ok(self.count)
    }
}

impl BulkWorker {
    fn take_events(&mut self, stop: &Stop) -> io::Result<()> {
        for event in 0..self.poll.wait_unless(!self.turns.is_empty())? {
            let ready = self.poll.event(event);
            match ready.token {
                TIMER => self.timer.fired(),
                STOP => stop.seen(),
                _ => self.on_ready(ready),
            }
        }
        Ok(())
    }

    fn on_ready(&mut self, ready: Readiness) {
        let slot = ready.token as usize;
        let connection = &mut self.connections[slot];
        let Some(stream) = &connection.stream else {
            return;
        };
        if !connection.open {
            if !ready.writable() {
                return;
            }
            if let Ok(Some(error)) | Err(error) = stream.take_error() {
                self.count.unconnected(self.to, &error);
                connection.stream = None;
                return;
            }
            connection.open = true;
        }
        connection.writable |= ready.writable();
        connection.readable |= ready.readable();
        // Before the start nothing may flow.
        if self.timeline.end > 0 {
            self.queue(slot);
        }
    }

    fn queue(&mut self, slot: usize) {
        if self.connections[slot].stream.is_some()
            && !std::mem::replace(&mut self.connections[slot].queued, true)
        {
            self.turns.push(slot);
        }
    }

    fn turn(&mut self, slot: usize) {
        let moved = match self.direction {
            Bulk::Push => self.push(slot),
            Bulk::Pull => self.pull(slot),
        };
        match moved {
            Ok(true) => self.queue(slot),
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.lose(slot, RequestOutcome::Protocol);
            }
            Err(_) => self.lose(slot, RequestOutcome::Reset),
        }
    }

    /// Writes a few times, and hears what the sink says; true if there is room for more.
    fn push(&mut self, slot: usize) -> io::Result<bool> {
        let connection = &mut self.connections[slot];
        connection.hear()?;
        let Some(stream) = &mut connection.stream else {
            return Ok(false);
        };
        for _ in 0..CALLS_PER_TURN {
            if !connection.writable || self.ending {
                return Ok(false);
            }
            match stream.write(&self.buffer) {
                Ok(count) => connection.written += count as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.writable = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Reads a few times; true if there may be more.
    fn pull(&mut self, slot: usize) -> io::Result<bool> {
        let connection = &mut self.connections[slot];
        let Some(stream) = &connection.stream else {
            return Ok(false);
        };
        for _ in 0..CALLS_PER_TURN {
            if !connection.readable {
                return Ok(false);
            }
            // TRUNC lets the kernel drop what a read would have copied.
            match recv(stream, &mut *self.buffer, RecvFlags::TRUNC) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, count)) => connection.arrived += count as u64,
                Err(rustix::io::Errno::AGAIN) => connection.readable = false,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Counts what has arrived since the last time, in the second in which that became known.
    fn keep_books(&mut self, at: u64) {
        // Bytes found at the beginning of the measured part arrived before it.
        let measuring = self.cpu_from.is_some();
        if !measuring && at >= self.timeline.measure {
            self.cpu_from = Some(thread_cpu());
        }
        self.next_books = at + TICK_NS;
        if at < self.timeline.measure {
            self.next_books = self.next_books.min(self.timeline.measure);
        }
        let second = (at
            .min(self.timeline.end - 1)
            .saturating_sub(self.timeline.measure)
            / SECOND) as usize;
        let mut sum = 0;
        for connection in &mut self.connections {
            connection.look(self.direction);
            let new = connection.arrived - connection.counted;
            connection.counted = connection.arrived;
            sum += new;
            if measuring {
                connection.measured += new;
            }
        }
        self.total.fetch_add(sum, Ordering::Relaxed);
        if measuring {
            if self.count.seconds.len() <= second {
                self.count.seconds.resize(second + 1, 0);
            }
            self.count.seconds[second] += sum;
            self.count.arrived += sum;
        }
    }

    /// Ends the sending side and waits, for a moment, for the sink's last word, so that a sink that lost bytes shows.
    fn finish(&mut self, stop: &Stop) -> io::Result<()> {
        self.ending = true;
        let until = now() + DRAIN_NS;
        for connection in &self.connections {
            if let Some(stream) = connection
                .stream
                .as_ref()
                .filter(|_| self.direction == Bulk::Push)
            {
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
        let waits = |connection: &BulkConnection| {
            let taken = connection.taken;
            connection.stream.is_some() && taken.is_some_and(|taken| taken < connection.written)
        };
        while now() < until && !stop.raised() && self.connections.iter().any(waits) {
            self.timer.set(Some(until))?;
            self.take_events(stop)?;
            for slot in std::mem::take(&mut self.turns) {
                let connection = &mut self.connections[slot];
                connection.queued = false;
                if connection.hear().is_err() {
                    connection.stream = None;
                }
            }
        }
        for connection in &self.connections {
            self.count.written += connection.written;
            self.count.by_sink += u64::from(connection.taken.is_some());
            self.count.each.push(connection.measured);
            if waits(connection) {
                self.count.errors.add(RequestOutcome::Unanswered, 1);
            }
        }
        self.count.end = self.timeline.end;
        Ok(())
    }

    fn lose(&mut self, slot: usize, outcome: RequestOutcome) {
        if self.connections[slot].stream.take().is_some() {
            self.count.errors.add(outcome, 1);
        }
    }
}

impl BulkConnection {
    /// Reads acknowledgements.
    fn hear(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        let mut buffer = [0; 512 * ACK_BYTES];
        while self.readable {
            match stream.read(&mut buffer) {
                Ok(0) if self.taken == Some(self.written) => self.readable = false,
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.ack.extend_from_slice(&buffer[..count]);
                    let whole = self.ack.len() / ACK_BYTES * ACK_BYTES;
                    if let Some(last) = self.ack[..whole].rchunks_exact(ACK_BYTES).next() {
                        let taken = last.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                        if taken > self.written || self.taken.is_some_and(|before| taken < before) {
                            return Err(io::ErrorKind::InvalidData.into());
                        }
                        self.taken = Some(taken);
                    }
                    self.ack.drain(..whole);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Finds out what has arrived: from the sink, or where none speaks from the kernel.
    fn look(&mut self, direction: Bulk) {
        if let Some(taken) = self.taken {
            self.arrived = self.arrived.max(taken);
        } else if direction == Bulk::Push
            && let Some(stream) = &self.stream
        {
            self.arrived = self
                .arrived
                .max(self.written.saturating_sub(unacknowledged(stream)));
        }
    }
}

#[expect(unsafe_code, reason = "no safe wrapper of SIOCOUTQ")]
fn unacknowledged(stream: &TcpStream) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open, and SIOCOUTQ (TIOCOUTQ by its other name) writes one c_int.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 {
        u64::try_from(bytes).unwrap_or(0)
    } else {
        0
    }
}
