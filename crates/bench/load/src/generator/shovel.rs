//! Moving bytes from one stream to another with half-close: the heart of the relay and of raw echo.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

/// One read: large enough for a bulk stream to cost few system calls, small enough to stay in the L2 cache.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;

/// One direction between two streams.
#[derive(Debug, Default)]
pub(crate) struct CopyDirection {
    /// Read but not yet accepted by the receiver.
    pending: Vec<u8>,
    pub(crate) readable: bool,
    pub(crate) hangup: bool,
    finished_reading: bool,
    pub(crate) finished: bool,
}

impl CopyDirection {
    /// Moves what can be moved now. One read and one write per message in steady state.
    pub(crate) fn shovel(
        &mut self,
        mut source: &TcpStream,
        sink: &TcpStream,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        while !self.finished {
            if !self.pending.is_empty() {
                let written = write_some(sink, &self.pending)?;
                self.pending.drain(..written);
                if !self.pending.is_empty() {
                    return Ok(());
                }
            }
            if self.finished_reading {
                self.finished = true;
                return sink.shutdown(Shutdown::Write);
            }
            if !self.readable {
                return Ok(());
            }
            match source.read(buffer) {
                Ok(0) => self.finished_reading = true,
                Ok(count) => {
                    let written = write_some(sink, &buffer[..count])?;
                    self.pending.extend_from_slice(&buffer[written..count]);
                    // A short read emptied the socket; the next bytes raise a new edge. Not so for an end already
                    // announced, whose edge is spent.
                    self.readable = count == buffer.len() || self.hangup;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Writes once; nothing, when the receiver has no room.
fn write_some(mut sink: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match sink.write(bytes) {
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
