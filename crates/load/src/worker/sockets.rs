//! The byte side of a generator thread: connecting, writing requests, reading responses, and telling how each ended.

use std::io::{self, Read, Write};

use super::{State, Wire, Worker};
use crate::clock::{MILLISECOND, now};
use crate::connect::start_connect;
use crate::http2::{Answer, Event};
use crate::poll::Ready;
use crate::tally::Outcome;

/// How long a connection rests after it could not be made, so that a dead server is not hammered.
const RECONNECT_PAUSE_NS: u64 = 5 * MILLISECOND;
/// Full reads of one connection in a row, before others and the clock have their turn: 1 MiB.
const READS_PER_TURN: usize = 16;

impl Worker {
    pub(super) fn connect(&mut self, index: usize) -> io::Result<()> {
        let stream = start_connect(self.options.target.address, self.options.bind)?;
        let connection = &mut self.connections[index];
        connection.generation = connection.generation.wrapping_add(1) & (u32::MAX >> 1);
        let token = index as u64 | u64::from(connection.generation) << 32;
        self.poll.add_stream(&stream, token)?;
        connection.stream = Some(stream);
        connection.state = State::Connecting;
        connection.hangup = false;
        connection.wire.reset();
        self.tally.connects += 1;
        Ok(())
    }

    pub(super) fn on_ready(&mut self, ready: Ready) {
        let (index, generation) = (
            (ready.token & u64::from(u32::MAX)) as usize,
            (ready.token >> 32) as u32,
        );
        let connection = &mut self.connections[index];
        if connection.generation != generation || connection.stream.is_none() {
            return;
        }
        connection.hangup |= ready.hangup();
        if connection.state == State::Connecting {
            if !ready.writable() && !ready.readable() {
                return;
            }
            let failed = connection
                .stream
                .as_ref()
                .is_none_or(|stream| !matches!(stream.take_error(), Ok(None)));
            if failed {
                self.fail(index, Outcome::Connect);
                return;
            }
            // HTTP/2 is open once the server's settings have come.
            if !matches!(connection.wire, Wire::Http2 { .. }) {
                self.opened(index);
            }
        }
        if ready.writable() {
            self.write(index);
        }
        if ready.readable() {
            self.read(index);
        }
    }

    /// A connection has been made: the requests that wait for it go out.
    fn opened(&mut self, index: usize) {
        self.connections[index].state = State::Open;
        for lane in self.lanes_of(index) {
            if self.lanes[lane].request.is_some() {
                self.send(lane);
            }
        }
    }

    /// Sends a lane's request on its open connection.
    pub(super) fn send(&mut self, lane: usize) {
        let index = lane / self.streams;
        let connection = &mut self.connections[index];
        match &mut connection.wire {
            Wire::Http1 { written, .. } => {
                *written = 0;
                self.write(index);
            }
            Wire::Tcp { written, missing } => {
                *written = 0;
                *missing = self.answer_bytes;
                self.write(index);
            }
            Wire::Http2 { client, .. } => {
                client.open(lane % self.streams);
                if !connection.dirty {
                    connection.dirty = true;
                    self.dirty.push(index);
                }
            }
        }
    }

    /// Writes what this turn has left to be written.
    pub(super) fn flush(&mut self) {
        while let Some(index) = self.dirty.pop() {
            self.connections[index].dirty = false;
            self.write(index);
        }
    }

    /// Writes what can be written now.
    fn write(&mut self, index: usize) {
        loop {
            let connection = &mut self.connections[index];
            let Some(stream) = connection.stream.as_mut() else {
                return;
            };
            let busy = self.lanes[index * self.streams].request.is_some();
            let bytes = match &connection.wire {
                Wire::Http2 { client, .. } => client.unsent(),
                Wire::Http1 { written, .. } | Wire::Tcp { written, .. } if busy => {
                    &self.request[*written..]
                }
                Wire::Http1 { .. } | Wire::Tcp { .. } => return,
            };
            if bytes.is_empty() {
                return;
            }
            match stream.write(bytes) {
                Ok(count) => {
                    self.tally.bytes_sent += count as u64;
                    match &mut connection.wire {
                        Wire::Http2 { client, .. } => client.wrote(count),
                        Wire::Http1 { written, .. } | Wire::Tcp { written, .. } => {
                            *written += count;
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // The server may have answered (say, 413) before it closed: reading tells.
                    connection.hangup = true;
                    self.read(index);
                    return;
                }
            }
        }
    }

    /// Goes on with connections that had more to be read.
    pub(super) fn read_on(&mut self) {
        for index in std::mem::take(&mut self.unread) {
            self.read(index);
        }
    }

    fn read(&mut self, index: usize) {
        for _ in 0..READS_PER_TURN {
            let connection = &mut self.connections[index];
            let Some(stream) = connection.stream.as_mut() else {
                return;
            };
            match stream.read(&mut self.buffer) {
                Ok(0) => {
                    let answer = match &mut connection.wire {
                        Wire::Http1 { reader, .. } => reader.end_of_stream(),
                        Wire::Http2 { .. } | Wire::Tcp { .. } => None,
                    };
                    match answer {
                        Some(response) => {
                            let (status, body) = (Some(response.status), response.body);
                            self.answered(index, Answer { status, body }, true, false);
                        }
                        None => self.fail(index, Outcome::Reset),
                    }
                    return;
                }
                Ok(count) => {
                    self.tally.bytes_received += count as u64;
                    self.digest(index, count);
                    let connection = &self.connections[index];
                    if count < self.buffer.len() && !connection.hangup {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.fail(index, Outcome::Reset),
            }
        }
        // The edge is spent: nobody will tell again that there is more.
        if !self.unread.contains(&index) {
            self.unread.push(index);
        }
    }

    fn digest(&mut self, index: usize, count: usize) {
        if matches!(self.connections[index].wire, Wire::Http2 { .. }) {
            return self.digest_http2(index, count);
        }
        let connection = &mut self.connections[index];
        if self.lanes[index].request.is_none() {
            // Bytes nobody asked for: the next response could not be told from them.
            self.tally.unsolicited += 1;
            self.close(index);
            return;
        }
        match &mut connection.wire {
            Wire::Http1 { reader, .. } => match reader.feed(&self.buffer[..count]) {
                Ok((_, None)) => {}
                Ok((used, Some(response))) => {
                    let (status, body) = (Some(response.status), response.body);
                    let answer = Answer { status, body };
                    self.answered(index, answer, response.close, used < count);
                }
                Err(_) => self.fail(index, Outcome::Protocol),
            },
            Wire::Tcp { missing, .. } => {
                let surplus = count as u64 > *missing;
                *missing = missing.saturating_sub(count as u64);
                if *missing == 0 {
                    let (status, body) = (None, self.answer_bytes);
                    self.answered(index, Answer { status, body }, false, surplus);
                }
            }
            Wire::Http2 { .. } => {}
        }
    }

    /// A response of a protocol with one request per connection.
    fn answered(&mut self, index: usize, answer: Answer, close: bool, surplus: bool) {
        let outcome = if surplus {
            Outcome::Protocol
        } else {
            self.judge(answer)
        };
        // A response before the request was wholly sent leaves a connection that cannot be used again.
        let connection = &self.connections[index];
        let unsent = match &connection.wire {
            Wire::Http1 { written, .. } | Wire::Tcp { written, .. } => {
                *written < self.request.len()
            }
            Wire::Http2 { .. } => false,
        };
        if close || surplus || unsent || !self.options.keepalive || connection.hangup {
            self.close(index);
        }
        self.finish(index, outcome, Some(answer));
    }

    /// Whether an answer is what was asked for.
    fn judge(&self, answer: Answer) -> Outcome {
        let good = match (self.options.expect_status, answer.status) {
            (_, None) => true,
            (Some(wanted), Some(status)) => status == wanted,
            (None, Some(status)) if self.shape.grpc => status == 0,
            (None, Some(status)) => (200..300).contains(&status),
        };
        let size = self.options.expect_size;
        if !good {
            Outcome::Status
        } else if size.is_some_and(|size| size != answer.body) {
            Outcome::Size
        } else {
            Outcome::Ok
        }
    }

    fn digest_http2(&mut self, index: usize, count: usize) {
        let Wire::Http2 { client, .. } = &mut self.connections[index].wire else {
            return;
        };
        let mut events = std::mem::take(&mut self.events);
        let mut bytes = &self.buffer[..count];
        let broken = loop {
            match client.next(&mut bytes) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        let first = index * self.streams;
        for event in events.drain(..) {
            match event {
                Event::Ready => self.opened(index),
                Event::Started(lane) => {
                    if let Some(request) = &mut self.lanes[first + lane].request {
                        request.sent = now();
                    }
                }
                Event::Answered(lane, answer) => {
                    self.finish(first + lane, self.judge(answer), Some(answer));
                }
                Event::Failed(lane, outcome) => self.finish(first + lane, outcome, None),
            }
        }
        self.events = events;
        if broken {
            return self.fail(index, Outcome::Protocol);
        }
        self.write(index);
        self.replace_spent(index);
    }

    /// A connection that takes no more streams makes room for another, once its last stream has ended.
    fn replace_spent(&mut self, index: usize) {
        let Wire::Http2 { client, .. } = &self.connections[index].wire else {
            return;
        };
        if !client.spent() || self.connections[index].state != State::Open {
            return;
        }
        let waiting = self
            .lanes_of(index)
            .any(|lane| self.lanes[lane].request.is_some());
        if !waiting {
            self.close(index);
        } else if !client.used() || self.connect(index).is_err() {
            // A server that turns everybody away at once is not asked again for the same requests.
            self.fail(index, Outcome::GoAway);
        }
    }

    /// A request has waited too long for its answer.
    pub(super) fn time_out(&mut self, lane: usize) {
        let index = lane / self.streams;
        let connection = &mut self.connections[index];
        match &mut connection.wire {
            Wire::Http2 { client, .. } if connection.state == State::Open => {
                client.cancel(lane % self.streams);
                self.finish(lane, Outcome::Timeout, None);
                self.write(index);
                self.replace_spent(index);
            }
            _ => self.fail(index, Outcome::Timeout),
        }
    }

    /// The connection is lost, and with it its requests, if it had any.
    pub(super) fn fail(&mut self, index: usize, outcome: Outcome) {
        self.close(index);
        let lanes = self.lanes_of(index);
        if !lanes.clone().any(|lane| self.lanes[lane].request.is_some()) {
            return;
        }
        if outcome == Outcome::Connect {
            self.pause(index, now() + RECONNECT_PAUSE_NS);
        }
        for lane in lanes {
            self.finish(lane, outcome, None);
        }
    }

    pub(super) fn close(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.stream = None;
        connection.state = State::Down;
        self.unread.retain(|unread| *unread != index);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::sync::Arc;

    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

    use super::*;
    use crate::options::{LoadOptions, Target};
    use crate::worker::InFlight;

    /// Packets sent, of which each is one read: whatever the machine does meanwhile, all of them wait to be read.
    const PACKETS: usize = 3 * READS_PER_TURN;

    #[test]
    fn a_connection_that_always_has_more_waits_for_the_others_turn() {
        let target = Target::parse("http://127.0.0.1:1/").expect("a literal address resolves");
        let options = Arc::new(LoadOptions::new(target));
        let mut worker = Worker::new(options, 0, None).expect("a worker");
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
        worker.connections[0].stream = Some(TcpStream::from(ours));
        worker.connections[0].state = State::Open;
        // The peer is gone: its bytes are read until there are none, however few come at once.
        worker.connections[0].hangup = true;
        worker.lanes[0].request = Some(InFlight {
            intended: 0,
            sent: 0,
        });
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
