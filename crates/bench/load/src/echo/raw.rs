//! TCP without HTTP: echo (what comes goes back, half-close included; over TLS, too), a sink that says how much it has taken, and a
//! source that never ends.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustix::net::{RecvFlags, recv};
use rustls::ServerConfig;

use crate::accept::Inbox;
use crate::echo::pipe::Pipe;
use crate::poll::{Poll, Readiness};
use crate::shovel::{BUFFER_BYTES, CopyDirection};
use crate::stop::Stop;

const INBOX: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// Most bytes of one read of a sink. The read copies nothing, so only the length matters.
const SINK_READ_BYTES: usize = 1024 * 1024;
/// A sink acknowledges after so many bytes, and once all have come.
pub(crate) const ACK_EVERY_BYTES: u64 = 256 * 1024;
/// An acknowledgement: all bytes taken so far, as eight bytes, the highest first.
pub(crate) const ACK_BYTES: usize = 8;
/// Acknowledgements that a client does not read, beyond which the sink takes nothing more from it.
const MAX_UNREAD_ACK_BYTES: usize = 64 * 1024;
/// Bytes of one write of a source.
static PATTERN: [u8; 128 * 1024] = [b'v'; 128 * 1024];
/// System calls for one connection in a row, before others have their turn.
const CALLS_PER_TURN: usize = 16;

/// Service at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RawServiceKind {
    Echo,
    Sink,
    Source,
    /// Echo over TLS.
    Sealed,
}

#[derive(Debug)]
enum RawPeer {
    Echo(CopyDirection),
    Sink(Sink),
    Source,
    Sealed(TlsEcho),
}

/// Echo over TLS.
#[derive(Debug, Default)]
struct TlsEcho {
    /// Opened, and not yet taken to be sent back.
    pending: Vec<u8>,
    readable: bool,
    ended: bool,
}

#[derive(Debug, Default)]
struct Sink {
    taken: u64,
    acknowledged: u64,
    /// An acknowledgement that the client's window had no room for.
    unsent: Vec<u8>,
    readable: bool,
    ended: bool,
}

/// Result of a turn.
enum ReadOutcome {
    /// Nothing can be done until the socket is ready.
    Wait,
    /// There is more to do, after the other connections.
    More,
    Over,
}

struct RawConnection {
    pipe: Pipe,
    peer: RawPeer,
    queued: bool,
}

/// Serves what the inbox is given until stopped; `kinds` by listener.
pub(crate) fn serve(
    inbox: &Arc<Inbox>,
    kinds: &[RawServiceKind],
    tls: Option<&Arc<ServerConfig>>,
    stop: &Stop,
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    poll.add_level(inbox.waker.fd(), INBOX)?;
    poll.add_level(stop.fd(), STOP)?;
    let mut connections: Vec<Option<RawConnection>> = Vec::new();
    let (mut free, mut emptied, mut unfinished) = (Vec::new(), Vec::new(), Vec::new());
    let mut buffer = vec![0; SINK_READ_BYTES];
    loop {
        // If connections have more to do, the poll only checks for ready sockets and does not sleep.
        for index in 0..poll.wait_unless(!unfinished.is_empty())? {
            let ready = poll.event(index);
            match ready.token {
                STOP => return Ok(()),
                INBOX => {
                    for (stream, listener) in inbox.take() {
                        let peer = RawConnection::new(stream, kinds[listener], tls);
                        if !peer.is_ok_and(|peer| keep(peer, &poll, &mut connections, &mut free)) {
                            inbox.closed();
                        }
                    }
                }
                token => {
                    let slot = token as usize;
                    if let Some(connection) = &mut connections[slot] {
                        connection.note(ready);
                        if !std::mem::replace(&mut connection.queued, true) {
                            unfinished.push(slot);
                        }
                    }
                }
            }
        }
        for slot in std::mem::take(&mut unfinished) {
            let Some(connection) = &mut connections[slot] else {
                continue;
            };
            match connection.turn(&mut buffer) {
                ReadOutcome::Wait => connection.queued = false,
                ReadOutcome::More => unfinished.push(slot),
                ReadOutcome::Over => {
                    connections[slot] = None;
                    // Reused only after this batch, which may still name it.
                    emptied.push(slot);
                    inbox.closed();
                }
            }
        }
        free.append(&mut emptied);
    }
}

/// Watches a connection from now on; false when it cannot be.
fn keep(
    connection: RawConnection,
    poll: &Poll,
    connections: &mut Vec<Option<RawConnection>>,
    free: &mut Vec<usize>,
) -> bool {
    let slot: usize = free.pop().unwrap_or(connections.len());
    if slot == connections.len() {
        connections.push(None);
    }
    if poll
        .add_stream(connection.pipe.socket(), slot as u64)
        .is_err()
    {
        free.push(slot);
        return false;
    }
    connections[slot] = Some(connection);
    true
}

impl RawConnection {
    fn new(
        stream: TcpStream,
        kind: RawServiceKind,
        tls: Option<&Arc<ServerConfig>>,
    ) -> io::Result<Self> {
        let pipe = match (kind, tls) {
            (RawServiceKind::Sealed, Some(tls)) => Pipe::sealed(stream, tls)?,
            _ => Pipe::plain(stream),
        };
        let peer = match kind {
            RawServiceKind::Echo => RawPeer::Echo(CopyDirection::default()),
            RawServiceKind::Sink => RawPeer::Sink(Sink::default()),
            RawServiceKind::Source => RawPeer::Source,
            RawServiceKind::Sealed => RawPeer::Sealed(TlsEcho::default()),
        };
        Ok(Self {
            pipe,
            peer,
            queued: false,
        })
    }

    fn note(&mut self, ready: Readiness) {
        match &mut self.peer {
            RawPeer::Echo(direction) => {
                direction.readable |= ready.readable();
                direction.hangup |= ready.hangup();
            }
            RawPeer::Sink(sink) => sink.readable |= ready.readable(),
            RawPeer::Sealed(sealed) => sealed.readable |= ready.readable(),
            RawPeer::Source => {}
        }
    }

    fn turn(&mut self, buffer: &mut [u8]) -> ReadOutcome {
        let stream = self.pipe.socket();
        let turn = match &mut self.peer {
            RawPeer::Echo(direction) => {
                let moved = direction.shovel(stream, stream, &mut buffer[..BUFFER_BYTES]);
                moved.map(|()| {
                    if direction.finished {
                        ReadOutcome::Over
                    } else {
                        ReadOutcome::Wait
                    }
                })
            }
            RawPeer::Sink(sink) => sink.turn(stream, buffer),
            RawPeer::Source => pour(stream, buffer),
            RawPeer::Sealed(sealed) => sealed.turn(&mut self.pipe, &mut buffer[..BUFFER_BYTES]),
        };
        turn.unwrap_or(ReadOutcome::Over)
    }
}

impl TlsEcho {
    fn turn(&mut self, pipe: &mut Pipe, buffer: &mut [u8]) -> io::Result<ReadOutcome> {
        for _ in 0..CALLS_PER_TURN {
            while !self.pending.is_empty() {
                match pipe.write(&self.pending) {
                    Ok(count) => drop(self.pending.drain(..count)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(ReadOutcome::Wait);
                    }
                    Err(error) => return Err(error),
                }
            }
            // Sealed, and perhaps not all written: nothing more is taken before that.
            if !pipe.flush()? {
                return Ok(ReadOutcome::Wait);
            }
            if self.ended {
                pipe.end();
                return Ok(ReadOutcome::Over);
            }
            if !self.readable {
                return Ok(ReadOutcome::Wait);
            }
            match pipe.read(buffer) {
                Ok(0) => self.ended = true,
                Ok(count) => self.pending.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ReadOutcome::More)
    }
}

impl Sink {
    fn turn(&mut self, stream: &TcpStream, buffer: &mut [u8]) -> io::Result<ReadOutcome> {
        for _ in 0..CALLS_PER_TURN {
            if !self.acknowledge(stream)? && self.unsent.len() > MAX_UNREAD_ACK_BYTES {
                return Ok(ReadOutcome::Wait);
            }
            if self.ended {
                let turn = if self.unsent.is_empty() {
                    ReadOutcome::Over
                } else {
                    ReadOutcome::Wait
                };
                return Ok(turn);
            }
            if !self.readable {
                return Ok(ReadOutcome::Wait);
            }
            // TRUNC lets the kernel drop what a read would have copied.
            match recv(stream, &mut *buffer, RecvFlags::TRUNC) {
                Ok((_, 0)) => self.ended = true,
                Ok((_, count)) => self.taken += count as u64,
                Err(rustix::io::Errno::AGAIN) => self.readable = false,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(ReadOutcome::More)
    }

    /// Says how much was taken, if that is worth saying; false while the client does not listen.
    fn acknowledge(&mut self, mut stream: &TcpStream) -> io::Result<bool> {
        let more = self.taken - self.acknowledged;
        if more >= ACK_EVERY_BYTES || (self.ended && more > 0) {
            self.unsent.extend_from_slice(&self.taken.to_be_bytes());
            self.acknowledged = self.taken;
        }
        while !self.unsent.is_empty() {
            match stream.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Writes as much as the client takes. The client's bytes are ignored; its end ends the connection.
fn pour(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<ReadOutcome> {
    for _ in 0..CALLS_PER_TURN {
        match stream.write(&PATTERN) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return loop {
                    match stream.read(buffer) {
                        Ok(0) => break Ok(ReadOutcome::Over),
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            break Ok(ReadOutcome::Wait);
                        }
                        Err(error) => break Err(error),
                    }
                };
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ReadOutcome::More)
}
