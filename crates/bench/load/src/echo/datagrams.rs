//! UDP echo: each datagram goes back to where it came from, from the address it was sent to.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use crate::poll::Poll;
use crate::stop::Stop;

const STOP: u64 = u64::MAX;
/// The largest datagram that UDP has room for; a buffer of this size cuts none short.
const BUFFER_BYTES: usize = 64 * 1024;
/// Datagrams of one socket in a row, before others and the stop have their turn.
const PER_TURN: usize = 256;

/// Binds, and does not wait when reading.
pub(crate) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let make = || {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    make().map_err(|error: io::Error| {
        io::Error::new(error.kind(), format!("listen on {address} (UDP): {error}"))
    })
}

/// Answers until stopped.
pub(crate) fn serve(sockets: &[UdpSocket], stop: &Stop) -> io::Result<()> {
    let mut poll = Poll::new()?;
    // Readable until read, so that a turn may end early.
    for (index, socket) in sockets.iter().enumerate() {
        poll.add_level(socket, index as u64)?;
    }
    poll.add_level(stop.fd(), STOP)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        for event in 0..poll.wait()? {
            match poll.event(event).token {
                STOP => return Ok(()),
                token => turn(&sockets[token as usize], &mut buffer),
            }
        }
    }
}

fn turn(socket: &UdpSocket, buffer: &mut [u8]) {
    let own = socket.local_addr().ok();
    for _ in 0..PER_TURN {
        match socket.recv_from(buffer) {
            // A datagram that claims to come from this socket would loop for ever.
            Ok((_, from)) if Some(from) == own => {}
            // A client that has left, or whose queue is full, loses its answer, as UDP does.
            Ok((count, from)) => drop(socket.send_to(&buffer[..count], from)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // The socket reports an error that an earlier answer met on its way.
            Err(_) => {}
        }
    }
}
