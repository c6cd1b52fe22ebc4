//! Connections of a generator thread: connects them, handles their bytes, and reports the result of each request.

use std::io;

use super::channel::ReadStop;
use super::{LaneState, LoadWorker};
use crate::body::Malformed;
use crate::clock::{MILLISECOND, now};
use crate::connect::{connect_failure, start_connect, start_datagrams};
use crate::options::LoadProtocol;
use crate::poll::Readiness;
use crate::tally::{FailureCause, RequestOutcome};
use crate::wire::{HttpResponse, WireEvent};

/// Pause of a connection after a failed connect, so that a dead server is not hammered.
const RECONNECT_PAUSE_NS: u64 = 5 * MILLISECOND;
/// Full reads of one connection in a row, before others and the clock have their turn: 1 MiB.
const READS_PER_TURN: usize = 16;

impl LoadWorker {
    pub(super) fn connect(&mut self, index: usize) -> io::Result<()> {
        let since = now();
        let connection = &mut self.connections[index];
        let (to, bind) = (connection.to, self.options.bind);
        let stream = if connection.datagrams {
            start_datagrams(to, bind)?
        } else {
            start_connect(to, bind)?.into()
        };
        connection.left = match self.options.reuse {
            Some((least, most)) => self.random.u64(least..=most),
            None => u64::MAX,
        };
        connection.generation = connection.generation.wrapping_add(1) & (u32::MAX >> 1);
        let token = index as u64 | u64::from(connection.generation) << 32;
        self.poll.add_stream(&stream, token)?;
        connection.stream = Some(stream);
        connection.state = LaneState::Connecting;
        connection.hangup = false;
        connection.since = since;
        connection.tls = None;
        connection.wire.reset();
        self.tally.connects += 1;
        Ok(())
    }

    pub(super) fn on_ready(&mut self, ready: Readiness) {
        let (index, generation) = (
            (ready.token & u64::from(u32::MAX)) as usize,
            (ready.token >> 32) as u32,
        );
        let connection = &mut self.connections[index];
        if connection.generation != generation || connection.stream.is_none() {
            return;
        }
        connection.hangup |= ready.hangup();
        if connection.state == LaneState::Connecting {
            if !ready.writable() && !ready.readable() {
                return;
            }
            let checked = connection.stream.as_ref().map(socket2::Socket::take_error);
            if let Some(Ok(Some(error)) | Err(error)) = checked {
                self.unconnected(index, &error);
                return;
            }
            self.connected(index);
        }
        if ready.writable() {
            self.write(index);
        }
        if ready.readable() {
            self.read(index);
        }
    }

    /// A connection can take requests: those that wait for it go out.
    pub(super) fn opened(&mut self, index: usize) {
        self.connections[index].state = LaneState::Open;
        for lane in self.lanes_of(index) {
            if self.lanes[lane].request.is_some() {
                self.send(lane);
            }
        }
    }

    /// Sends a lane's request on its open connection, at the latest at the end of this turn.
    pub(super) fn send(&mut self, lane: usize) {
        let index = lane / self.streams;
        let connection = &mut self.connections[index];
        connection
            .wire
            .send(lane % self.streams, self.lanes[lane].which);
        if self.streams == 1 {
            self.write(index);
        } else if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(index);
        }
    }

    /// Writes what this turn has left to be written.
    pub(super) fn flush(&mut self) {
        while let Some(index) = self.dirty.pop() {
            self.connections[index].dirty = false;
            self.write(index);
        }
    }

    /// Goes on with connections that had more to be read.
    pub(super) fn read_on(&mut self) {
        for index in std::mem::take(&mut self.unread) {
            self.read(index);
        }
    }

    pub(super) fn read(&mut self, index: usize) {
        let generation = self.connections[index].generation;
        for _ in 0..READS_PER_TURN {
            match self.read_socket(index) {
                ReadStop::Blocked => return,
                // Over UDP: the network reports afterwards that no socket listens there.
                ReadStop::Broken if self.connections[index].datagrams => {
                    return self.fail(index, RequestOutcome::Connect);
                }
                ReadStop::Broken => return self.fail(index, RequestOutcome::Reset),
                ReadStop::End => {
                    // Over TLS, an attacker can cause an end without the closing alert, so it ends no answer.
                    return match self.connections[index].tls.as_ref() {
                        None => self.ended(index, now()),
                        Some(tls) if tls.is_handshaking() => {
                            let cause = "the server closed the connection in the TLS handshake";
                            self.fail_for(index, RequestOutcome::Tls, cause);
                        }
                        Some(_) => self.fail(index, RequestOutcome::Reset),
                    };
                }
                ReadStop::Some(count) => {
                    let at = now();
                    self.tally.bytes_received += count as u64;
                    if self.connections[index].tls.is_some() {
                        self.unseal(index, count, at);
                    } else {
                        let buffer = std::mem::take(&mut self.buffer);
                        self.digest(index, &buffer[..count], at);
                        self.buffer = buffer;
                    }
                    let connection = &self.connections[index];
                    // A short read of a stream has emptied it; of datagrams another may wait, and its edge is spent.
                    let drained = count < self.buffer.len() && !connection.datagrams;
                    if connection.generation != generation || (drained && !connection.hangup) {
                        return;
                    }
                }
            }
        }
        // The edge is spent: epoll will not report again that there is more.
        if !self.unread.contains(&index) {
            self.unread.push(index);
        }
    }

    /// The server has ended the connection, which may be how an answer ends.
    pub(super) fn ended(&mut self, index: usize, at: u64) {
        let mut events = std::mem::take(&mut self.events);
        self.connections[index].wire.end(&mut events);
        if events.is_empty() {
            self.fail(index, RequestOutcome::Reset);
        } else {
            self.close(index);
        }
        self.happened(index, &mut events, at);
        self.events = events;
    }

    /// Feeds received bytes to the protocol and handles its events.
    pub(super) fn digest(&mut self, index: usize, bytes: &[u8], at: u64) {
        let mut events = std::mem::take(&mut self.events);
        let fed = self.connections[index].wire.feed(bytes, &mut events);
        self.happened(index, &mut events, at);
        self.events = events;
        if let Err(Malformed(why)) = fed {
            let protocol = self.places[self.connections[index].place].protocol;
            let cause = misunderstanding(protocol, bytes).unwrap_or(why);
            return self.fail_for(index, RequestOutcome::Protocol, cause);
        }
        if self.connections[index].wire.greets() {
            // The wire may have answers of its own: acknowledgements, windows.
            self.write(index);
            self.replace_spent(index);
        }
    }

    fn happened(&mut self, index: usize, events: &mut Vec<WireEvent>, at: u64) {
        let first = index * self.streams;
        for event in events.drain(..) {
            match event {
                WireEvent::Ready => self.opened(index),
                WireEvent::Started(lane) => {
                    if let Some(request) = &mut self.lanes[first + lane].request {
                        request.sent = now();
                    }
                }
                WireEvent::First(lane) => {
                    if let Some(request) = &mut self.lanes[first + lane].request {
                        request.first = Some(at);
                    }
                }
                WireEvent::Answered(lane, answer) => {
                    let connection = &mut self.connections[index];
                    connection.left = connection.left.saturating_sub(1);
                    let reusable = self.options.keepalive && !connection.hangup;
                    if connection.left == 0 {
                        self.begin_retiring(index);
                    } else if !reusable && !connection.wire.greets() {
                        self.close(index);
                    }
                    self.finish(first + lane, self.judge(index, answer), Some(answer), at);
                }
                WireEvent::Failed(lane, outcome) => self.finish(first + lane, outcome, None, at),
                WireEvent::Unsolicited => {
                    self.tally.unsolicited += 1;
                    self.close(index);
                }
                WireEvent::Close => self.close(index),
            }
        }
    }

    /// A connection has answered as often as it may.
    fn begin_retiring(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.state != LaneState::Open {
            return;
        }
        connection.retiring = true;
        let lanes = self.lanes_of(index);
        let place = self.connections[index].place;
        self.groups[place].free.retain(|lane| !lanes.contains(lane));
    }

    /// Compares an answer with the expected one.
    fn judge(&self, index: usize, answer: HttpResponse) -> RequestOutcome {
        let protocol = self.places[self.connections[index].place].protocol;
        let good = match (self.options.expect_status, answer.status) {
            (_, None) => true,
            (Some(wanted), Some(status)) => status == wanted,
            (None, Some(status)) if protocol == LoadProtocol::Grpc => status == 0,
            (None, Some(status)) => (200..300).contains(&status),
        };
        let size = self.options.expect_size;
        if answer.surplus {
            RequestOutcome::Protocol
        } else if !good {
            RequestOutcome::Status
        } else if size.is_some_and(|size| size != answer.body) {
            RequestOutcome::Size
        } else {
            RequestOutcome::Ok
        }
    }

    /// A connection that takes no more streams makes room for another, once its last stream has ended.
    fn replace_spent(&mut self, index: usize) {
        let connection = &self.connections[index];
        if !connection.wire.spent() || connection.state != LaneState::Open {
            return;
        }
        let waiting = self
            .lanes_of(index)
            .any(|lane| self.lanes[lane].request.is_some());
        if !waiting {
            self.close(index);
        } else if !connection.wire.used() || self.connect(index).is_err() {
            // A server that refuses all requests of a new connection at once does not get them again.
            self.fail(index, RequestOutcome::GoAway);
        }
    }

    /// A request has waited too long for its answer.
    pub(super) fn time_out(&mut self, lane: usize) {
        let (index, stream) = (lane / self.streams, lane % self.streams);
        let connection = &mut self.connections[index];
        if connection.state == LaneState::Open && connection.wire.cancel(stream) {
            self.finish(lane, RequestOutcome::Timeout, None, now());
            self.write(index);
            self.replace_spent(index);
        } else {
            let cause = match connection.state {
                LaneState::Connecting => {
                    "no connection within --timeout: the address is filtered or wrong"
                }
                LaneState::Handshaking => "no TLS handshake within --timeout",
                LaneState::Greeting => {
                    "connected, but no HTTP/2 or WebSocket greeting within --timeout"
                }
                _ => RequestOutcome::Timeout.words(),
            };
            self.fail_for(index, RequestOutcome::Timeout, cause);
        }
    }

    /// No connection could be made.
    pub(super) fn unconnected(&mut self, index: usize, error: &io::Error) {
        let cause = connect_failure(self.connections[index].to, error);
        self.fail_for(index, RequestOutcome::Connect, cause);
    }

    /// The connection is lost, and with it its requests, if it had any.
    pub(super) fn fail(&mut self, index: usize, outcome: RequestOutcome) {
        self.fail_for(index, outcome, outcome.words());
    }

    /// The same, where the cause is known.
    pub(super) fn fail_for(
        &mut self,
        index: usize,
        outcome: RequestOutcome,
        cause: impl Into<FailureCause>,
    ) {
        self.close(index);
        let lanes = self.lanes_of(index);
        if !lanes.clone().any(|lane| self.lanes[lane].request.is_some()) {
            return;
        }
        let at = now();
        if matches!(outcome, RequestOutcome::Connect | RequestOutcome::Tls) {
            self.pause(index, at + RECONNECT_PAUSE_NS);
        }
        let cause = cause.into();
        if !self.answered {
            self.first.failed(cause.clone());
        }
        let requests = self.lanes[lanes.clone()]
            .iter()
            .filter_map(|lane| lane.request);
        let counted = requests.filter(|request| request.intended >= self.tally.start);
        let counted = counted.count() as u64;
        self.tally.errors.explain(outcome, cause, counted);
        for lane in lanes {
            self.finish(lane, outcome, None, at);
        }
    }

    pub(super) fn close(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.stream = None;
        connection.tls = None;
        connection.state = LaneState::Down;
        self.unread.retain(|unread| *unread != index);
    }
}

/// Bytes of another protocol than the one spoken, recognised by their beginning.
fn misunderstanding(protocol: LoadProtocol, bytes: &[u8]) -> Option<&'static str> {
    const TLS_ALERT: [u8; 2] = [21, 3];
    const SETTINGS: u8 = 4;
    if bytes.starts_with(&TLS_ALERT) {
        return Some("the server speaks TLS here: use https, h2, grpcs, wss or tls in the URL");
    }
    match protocol {
        LoadProtocol::Http2 | LoadProtocol::Grpc if bytes.starts_with(b"HTTP/1.") => {
            Some("the server speaks HTTP/1.1 here: use http or https in the URL")
        }
        LoadProtocol::Http1 if bytes.first() == Some(&0) && bytes.get(3) == Some(&SETTINGS) => {
            Some("the server speaks HTTP/2 here: use h2c, h2 or grpc in the URL")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    use socket2::Socket;

    use super::*;
    use crate::clock::SECOND;
    use crate::http2::tests::allocations;
    use crate::options::{LoadOptions, LoadTarget};
    use crate::tally::RunTally;
    use crate::worker::InFlight;

    /// Packets sent, of which each is one read. All of them wait to be read, even if the machine is slow.
    const PACKETS: usize = 3 * READS_PER_TURN;

    #[test]
    fn a_request_and_its_answer_allocate_nothing() {
        let target = LoadTarget::parse("http://127.0.0.1:1/").expect("a literal address resolves");
        let mut options = LoadOptions::new(target);
        options.rate = 0.0;
        options.connections = 1;
        let mut worker = LoadWorker::new(Arc::new(options), 0, None).expect("a worker");
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (ours, theirs) = pair.expect("a pair of sockets");
        worker.connections[0].stream = Some(Socket::from(ours));
        worker.connections[0].state = LaneState::Open;
        // A second that does not end while the test runs.
        let at = now();
        worker.tally = RunTally::new(at, at + SECOND, true);
        worker.tally.start = at - SECOND / 2;
        let answer =
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\ndone";
        let mut round = || {
            // The latency always falls into the same bucket, even if the machine is slow.
            worker.start(0, Some(at));
            let mut head = [0u8; 4096];
            let asked = rustix::io::read(&theirs, &mut head).expect("the request is there");
            assert!(head[..asked].ends_with(b"\r\n\r\n"));
            send(&theirs, answer, SendFlags::empty()).expect("room in the buffer");
            worker.read(0);
            assert_eq!(worker.groups[0].free.pop_front(), Some(0), "it is answered");
        };
        (0..1_000).for_each(|_| round());
        let before = allocations();
        (0..100).for_each(|_| round());
        // A latency longer than any before may widen a histogram; a request as such costs none.
        let allocated = allocations() - before;
        assert!(allocated < 20, "{allocated} allocations in 100 requests");
    }

    #[test]
    fn a_connection_that_always_has_more_waits_for_the_others_turn() {
        let target = LoadTarget::parse("http://127.0.0.1:1/").expect("a literal address resolves");
        let options = Arc::new(LoadOptions::new(target));
        let mut worker = LoadWorker::new(options, 0, None).expect("a worker");
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )
        .expect("a pair of sockets");
        let head: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
        let piece = vec![b'x'; head.len()];
        for number in 0..PACKETS {
            let packet = if number == 0 { head } else { &piece };
            send(&theirs, packet, SendFlags::empty()).expect("room in the buffer");
        }
        worker.connections[0].stream = Some(Socket::from(ours));
        worker.connections[0].state = LaneState::Open;
        // The peer is gone: its bytes are read until there are none, however few come at once.
        worker.connections[0].hangup = true;
        worker.lanes[0].request = Some(InFlight {
            intended: 0,
            sent: 0,
            first: None,
        });
        worker.connections[0].wire.send(0, 0);
        let turn = (READS_PER_TURN * head.len()) as u64;
        worker.read(0);
        for turns in 1..=2 {
            assert_eq!(worker.tally.bytes_received, turns * turn);
            assert_eq!(worker.unread, [0], "it has its next turn without an event");
            worker.read_on();
        }
        assert_eq!(worker.tally.bytes_received, 3 * turn);
        worker.read_on();
        assert!(worker.unread.is_empty(), "nothing is left");
    }
}
