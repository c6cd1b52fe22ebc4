//! The first bytes of a connection, looked at where the kernel keeps them: whoever says nothing, or half of what it must say,
//! costs no TLS session and no place among newcomers.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::task::ready;

use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;
use voile_http2::PREFACE;

/// Room for the largest record of TLS, in bytes.
pub(super) const GREETING_ROOM: usize = TLS_HEAD + MAX_RECORD;
/// Type, version and length of a record.
const TLS_HEAD: usize = 5;
/// RFC 8446 section 5.1.
const MAX_RECORD: usize = 16 * 1024;
/// TLS's record type of handshake messages.
const HANDSHAKE: u8 = 22;
/// SSL 3's major version, which every TLS says.
const MAJOR: u8 = 3;
/// Times that nothing new may have come although the kernel says so: at the end of a connection it says so for ever.
const MAX_NOTHING_NEW: usize = 8;

/// The bytes that a connection must begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionGreeting {
    /// A record that may be a ClientHello.
    Tls,
    /// HTTP/2's preface.
    Http2,
}

impl ConnectionGreeting {
    /// Bytes to wait for, of which these are the first; none where it can never become a greeting.
    fn needed(self, seen: &[u8]) -> Option<usize> {
        match self {
            Self::Http2 => {
                let so_far = &PREFACE[..seen.len().min(PREFACE.len())];
                seen.starts_with(so_far).then_some(PREFACE.len())
            }
            Self::Tls => match *seen {
                [kind, ..] if kind != HANDSHAKE => None,
                [_, major, ..] if major != MAJOR => None,
                [_, _, _, high, low, ..] => {
                    let length = usize::from(u16::from_be_bytes([high, low]));
                    (1..=MAX_RECORD)
                        .contains(&length)
                        .then_some(TLS_HEAD + length)
                }
                _ => Some(TLS_HEAD),
            },
        }
    }

    /// Waits until it is there. `room` is lent for the time of a look.
    ///
    /// # Errors
    /// The connection ended, or says something else.
    pub(super) async fn arrives(
        self,
        stream: &TcpStream,
        room: &RefCell<Vec<u8>>,
    ) -> io::Result<()> {
        let (mut before, mut nothing_new) = (0, 0);
        poll_fn(|context| {
            loop {
                let mut room = room.borrow_mut();
                let mut buffer = ReadBuf::new(&mut room);
                let count = ready!(stream.poll_peek(context, &mut buffer))?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into()).into();
                }
                let Some(needed) = self.needed(buffer.filled()) else {
                    let reason = format!("the first bytes are not {self:?}");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, reason)).into();
                };
                if count >= needed {
                    return Ok(()).into();
                }
                match count > before {
                    true => (before, nothing_new) = (count, 0),
                    false => nothing_new += 1,
                }
                if nothing_new > MAX_NOTHING_NEW {
                    return Err(io::ErrorKind::UnexpectedEof.into()).into();
                }
                // The bytes so far are not enough: clears readiness, so that the kernel reports the next bytes.
                let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
                let _ = stream.try_io(Interest::READABLE, nothing);
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_known_by_its_first_bytes() {
        let record = [HANDSHAKE, MAJOR, 1, 1, 0];
        let cases: [(ConnectionGreeting, &[u8], Option<usize>); 12] = [
            (ConnectionGreeting::Tls, b"", Some(5)),
            (ConnectionGreeting::Tls, &record[..1], Some(5)),
            (ConnectionGreeting::Tls, &record[..4], Some(5)),
            (ConnectionGreeting::Tls, &record, Some(261)),
            (ConnectionGreeting::Tls, &[HANDSHAKE, MAJOR, 1, 0, 0], None),
            (
                ConnectionGreeting::Tls,
                &[HANDSHAKE, MAJOR, 1, 0x40, 1],
                None,
            ),
            (ConnectionGreeting::Tls, b"GET / HTTP/1.1", None),
            (ConnectionGreeting::Tls, &[HANDSHAKE, 2], None),
            (ConnectionGreeting::Http2, b"", Some(24)),
            (ConnectionGreeting::Http2, b"PRI * HT", Some(24)),
            (
                ConnectionGreeting::Http2,
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0",
                Some(24),
            ),
            (ConnectionGreeting::Http2, b"PUT", None),
        ];
        for (greeting, seen, expected) in cases {
            assert_eq!(greeting.needed(seen), expected, "{greeting:?} {seen:?}");
        }
    }
}
