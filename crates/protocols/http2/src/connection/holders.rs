//! Memory that streams and peers of a connection hold, for the owner of the process's memory: it ends the largest where there
//! is too little.

use super::Connection;
use super::stream::{Queued, Stream};
use crate::frame::ErrorCode;

/// Times that a head is held while its stream is served, at most.
const HEAD_COPIES: usize = 4;

/// A holder of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryHolder {
    /// A stream, by its place.
    Stream(usize),
    /// The peer, which does not take what is to be written.
    Peer,
}

impl Stream {
    /// Bytes held for it: heads, data that its user has not passed on, data that nobody may send.
    fn holds(&self) -> usize {
        let queue = self.queue.iter();
        let queued = queue.map(|queued| match queued {
            Queued::Head(fields, _) | Queued::Trailers(fields) => fields.size(),
            Queued::Data(data, _) => data.len(),
        });
        let received = self.data.capacity().max(self.held as usize);
        self.heads * HEAD_COPIES + received + queued.sum::<usize>()
    }
}

impl Connection {
    /// Everybody who holds memory of this connection, with its bytes.
    pub(crate) fn holders(&self) -> impl Iterator<Item = (usize, MemoryHolder)> {
        let streams = self.streams.iter().filter(|(_, stream)| !stream.closed);
        let streams = streams.map(|(key, stream)| (stream.holds(), MemoryHolder::Stream(key)));
        streams.chain([(self.out.capacity(), MemoryHolder::Peer)])
    }

    /// Ends what a holder holds.
    pub(crate) fn end_holder(&mut self, holder: MemoryHolder) {
        match holder {
            MemoryHolder::Stream(key) if self.streams.contains(key) => {
                self.reset(key, ErrorCode::ENHANCE_YOUR_CALM);
                if let Some(stream) = self.streams.get_mut(key) {
                    self.released += std::mem::take(&mut stream.held);
                    stream.data = Vec::new();
                    self.update_connection_window();
                }
            }
            MemoryHolder::Stream(_) => {}
            MemoryHolder::Peer => {
                // What it does not take is not written either.
                self.closed();
                self.out = Vec::new();
                self.written = 0;
            }
        }
        self.nudge();
    }
}
