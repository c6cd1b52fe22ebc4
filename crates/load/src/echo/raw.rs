//! Raw TCP echo: what comes goes back, half-close included.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use crate::accept::Inbox;
use crate::poll::Poll;
use crate::shovel::{BUFFER_BYTES, Direction};
use crate::stop::Stop;

const INBOX: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// Serves what the inbox is given until stopped.
pub(crate) fn serve(inbox: &Arc<Inbox>, stop: &Stop) -> io::Result<()> {
    let mut poll = Poll::new()?;
    poll.add_level(inbox.waker.fd(), INBOX)?;
    poll.add_level(stop.fd(), STOP)?;
    let mut streams: Vec<Option<(TcpStream, Direction)>> = Vec::new();
    let (mut free, mut emptied) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        for index in 0..poll.wait()? {
            let ready = poll.event(index);
            match ready.token {
                STOP => return Ok(()),
                INBOX => {
                    for (stream, _listener) in inbox.take() {
                        let slot: usize = free.pop().unwrap_or(streams.len());
                        if slot == streams.len() {
                            streams.push(None);
                        }
                        if poll.add_stream(&stream, slot as u64).is_ok() {
                            streams[slot] = Some((stream, Direction::default()));
                        } else {
                            free.push(slot);
                            inbox.closed();
                        }
                    }
                }
                token => {
                    let slot = token as usize;
                    let Some((stream, direction)) = &mut streams[slot] else {
                        continue;
                    };
                    direction.readable |= ready.readable();
                    direction.hangup |= ready.hangup();
                    if direction.shovel(stream, stream, &mut buffer).is_err() || direction.finished
                    {
                        streams[slot] = None;
                        // Reused only after this batch, which may still name it.
                        emptied.push(slot);
                        inbox.closed();
                    }
                }
            }
        }
        free.append(&mut emptied);
    }
}
