//! The byte side of a generator thread: connecting, writing requests, reading responses, and telling how each ended.

use std::io::{self, Read, Write};

use super::{State, Worker};
use crate::clock::{MILLISECOND, now};
use crate::connect::start_connect;
use crate::poll::Ready;
use crate::response::Response;
use crate::tally::Outcome;

/// How long a connection rests after it could not be made, so that a dead server is not hammered.
const RECONNECT_PAUSE_NS: u64 = 5 * MILLISECOND;
impl Worker {
    pub(super) fn connect(&mut self, index: usize) -> io::Result<()> {
        let stream = start_connect(self.options.target.address, self.options.bind)?;
        let connection = &mut self.connections[index];
        connection.generation = connection.generation.wrapping_add(1) & (u32::MAX >> 1);
        let token = index as u64 | u64::from(connection.generation) << 32;
        self.poll.add_stream(&stream, token)?;
        connection.stream = Some(stream);
        connection.state = State::Connecting;
        connection.opened = now();
        connection.hangup = false;
        connection.reader.reset();
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
            if !ready.writable() {
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
            connection.state = State::Open;
        }
        if ready.writable() {
            self.write(index);
        }
        if ready.readable() {
            self.read(index);
        }
    }

    /// Writes what is left of the request.
    pub(super) fn write(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        while connection.request.is_some() && connection.written < self.request.len() {
            let Some(stream) = connection.stream.as_mut() else {
                return;
            };
            match stream.write(&self.request[connection.written..]) {
                Ok(count) => {
                    connection.written += count;
                    self.tally.bytes_sent += count as u64;
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

    fn read(&mut self, index: usize) {
        loop {
            let connection = &mut self.connections[index];
            let Some(stream) = connection.stream.as_mut() else {
                return;
            };
            match stream.read(&mut self.buffer) {
                Ok(0) => {
                    match connection.reader.end_of_stream() {
                        Some(response) => self.answered(index, response, false),
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
    }

    fn digest(&mut self, index: usize, count: usize) {
        let connection = &mut self.connections[index];
        if connection.request.is_none() {
            // Bytes nobody asked for: the next response could not be told from them.
            self.tally.unsolicited += 1;
            self.close(index);
            return;
        }
        match connection.reader.feed(&self.buffer[..count]) {
            Ok((_, None)) => {}
            Ok((used, Some(response))) => self.answered(index, response, used < count),
            Err(_) => self.fail(index, Outcome::Protocol),
        }
    }

    fn answered(&mut self, index: usize, response: Response, surplus: bool) {
        let good = match self.options.expect_status {
            Some(status) => response.status == status,
            None => (200..300).contains(&response.status),
        };
        let outcome = if surplus {
            Outcome::Protocol
        } else if !good {
            Outcome::Status
        } else if self
            .options
            .expect_size
            .is_some_and(|size| size != response.body)
        {
            Outcome::Size
        } else {
            Outcome::Ok
        };
        // A response before the request was wholly sent leaves a connection that cannot be used again.
        let unsent = self.connections[index].written < self.request.len();
        if response.close
            || surplus
            || unsent
            || !self.options.keepalive
            || self.connections[index].hangup
        {
            self.close(index);
        }
        self.finish(index, outcome, Some(response));
    }

    /// The connection is lost, and with it its request, if it had one.
    pub(super) fn fail(&mut self, index: usize, outcome: Outcome) {
        self.close(index);
        if self.connections[index].request.is_none() {
            return;
        }
        if outcome == Outcome::Connect {
            let until = now() + RECONNECT_PAUSE_NS;
            self.connections[index].state = State::Paused(until);
            self.paused += 1;
            self.next_scan = self.next_scan.min(until);
        }
        self.finish(index, outcome, None);
    }

    pub(super) fn close(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.stream = None;
        connection.state = State::Down;
    }
}
