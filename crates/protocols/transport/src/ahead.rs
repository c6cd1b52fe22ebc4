//! Reading ahead: reads more than was asked for, if much data comes. A TLS session asks for one record at a time, and
//! a system call costs more than copying its data. Only for streams that are read until nothing is left, since the
//! extra bytes stay here until then.

use std::io;
use std::task::{Poll, ready};

use tokio::io::ReadBuf;

use crate::buffers::{Buffer, Class};

/// Reads in a row that brought all that was asked for, before more is asked for.
const STREAK: u8 = 4;

/// Smallest and largest read, in bytes, that a busy TLS session asks for and that reading ahead helps. A smaller one
/// is the rest of a record; a larger one needs no help.
const LEAST_BYTES: usize = 8 * 1024;
const MOST_BYTES: usize = 32 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ReadAheadStream {
    streak: u8,
    kept: Option<ReadAhead>,
}

#[derive(Debug)]
struct ReadAhead {
    buffer: Buffer,
    taken: usize,
    filled: usize,
}

impl ReadAheadStream {
    /// Returns true if bytes wait here.
    pub(crate) fn holds(&self) -> bool {
        self.kept.is_some()
    }

    /// Gives the bytes that wait here; false when there are none.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let Some(kept) = &mut self.kept else {
            return false;
        };
        let rest = &kept.buffer.bytes()[kept.taken..kept.filled];
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        kept.taken += count;
        if kept.taken == kept.filled {
            self.kept = None;
        }
        true
    }

    /// Reads into `buf`, by `read` of the socket where nothing lies here.
    pub(crate) fn poll_read(
        &mut self,
        buf: &mut ReadBuf<'_>,
        mut read: impl FnMut(&mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        if self.give(buf) {
            return Poll::Ready(Ok(()));
        }
        let (asked, before) = (buf.remaining(), buf.filled().len());
        if self.streak < STREAK || asked > MOST_BYTES {
            ready!(read(buf))?;
            self.note(asked, buf.filled().len() - before);
            return Poll::Ready(Ok(()));
        }
        let mut buffer = Buffer::take(Class::LARGEST);
        let mut more = ReadBuf::new(buffer.bytes_mut());
        ready!(read(&mut more))?;
        let filled = more.filled().len();
        self.note(asked, filled);
        self.kept = Some(ReadAhead {
            buffer,
            taken: 0,
            filled,
        });
        self.give(buf);
        Poll::Ready(Ok(()))
    }

    /// So much came where so much was asked for.
    fn note(&mut self, asked: usize, came: usize) {
        if came < asked {
            self.streak = 0;
        } else if asked >= LEAST_BYTES {
            self.streak = self.streak.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that has so many bytes, counting up, and says how many reads it served and the largest of them.
    struct Socket {
        next: u8,
        left: usize,
        reads: usize,
        largest: usize,
    }

    impl Socket {
        fn read(&mut self, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.reads += 1;
            let count = buf.remaining().min(self.left);
            self.largest = self.largest.max(count);
            for _ in 0..count {
                buf.put_slice(&[self.next]);
                self.next = self.next.wrapping_add(1);
            }
            self.left -= count;
            Poll::Ready(Ok(()))
        }
    }

    /// Reads all in pieces of `piece` bytes, and how many it took.
    fn read_all(bytes: usize, piece: usize) -> (Vec<u8>, Socket, bool) {
        let mut socket = Socket {
            next: 0,
            left: bytes,
            reads: 0,
            largest: 0,
        };
        let (mut ahead, mut all, mut room) =
            (ReadAheadStream::default(), Vec::new(), vec![0; piece]);
        loop {
            let mut buf = ReadBuf::new(&mut room);
            let read = ahead.poll_read(&mut buf, |buf| socket.read(buf));
            assert!(matches!(read, Poll::Ready(Ok(()))));
            if buf.filled().is_empty() {
                return (all, socket, ahead.holds());
            }
            all.extend_from_slice(buf.filled());
        }
    }

    #[test]
    fn what_is_read_ahead_comes_out_whole_and_in_order_in_a_quarter_of_the_reads() {
        const BYTES: usize = 1_000_003;
        let expected: Vec<u8> = (0..BYTES).map(|index| index as u8).collect();
        for (piece, most_reads, largest) in [
            // A record of TLS: 61 of them.
            (16_406, 26, 65_536),
            // A read this small gets no help.
            (4_096, 246, 4_096),
            // And a read this large needs none.
            (65_536, 17, 65_536),
        ] {
            let (all, socket, holds) = read_all(BYTES, piece);
            assert!(all == expected, "in pieces of {piece}");
            assert!(
                socket.reads <= most_reads,
                "{piece}: {} reads",
                socket.reads
            );
            assert_eq!(socket.largest, largest, "in pieces of {piece}");
            assert!(!holds, "an idle stream holds no buffer");
        }
    }

    #[test]
    fn a_read_that_brings_less_ends_it() {
        let mut ahead = ReadAheadStream::default();
        let mut room = vec![0; 16_406];
        let mut ask = |brings: usize| {
            let mut seen = 0;
            let read = ahead.poll_read(&mut ReadBuf::new(&mut room), |buf| {
                seen = buf.remaining();
                buf.put_slice(&vec![0; brings.min(seen)]);
                Poll::Ready(Ok(()))
            });
            assert!(matches!(read, Poll::Ready(Ok(()))));
            seen
        };
        for _ in 0..STREAK {
            assert_eq!(ask(usize::MAX), 16_406);
        }
        assert_eq!(ask(100), 65_536, "four records at a time");
        assert_eq!(ask(100), 16_406, "it brought little");
    }

    #[test]
    fn who_waits_holds_nothing() {
        let mut ahead = ReadAheadStream {
            streak: STREAK,
            kept: None,
        };
        let mut room = vec![0; 16_406];
        let read = ahead.poll_read(&mut ReadBuf::new(&mut room), |_| Poll::Pending);
        assert!(read.is_pending() && !ahead.holds());
    }
}
