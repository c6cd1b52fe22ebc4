//! A client's socket, with or without TLS. Never blocks; bytes that could not be written are kept and go first.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

/// A client's socket.
#[derive(Debug)]
pub(crate) struct Pipe {
    socket: TcpStream,
    tls: Option<Box<ServerConnection>>,
}

impl Pipe {
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Self { socket, tls: None }
    }

    /// The client speaks TLS first.
    pub(crate) fn sealed(socket: TcpStream, config: &Arc<ServerConfig>) -> io::Result<Self> {
        let tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        Ok(Self {
            socket,
            tls: Some(Box::new(tls)),
        })
    }

    /// The socket itself. With TLS, its bytes are encrypted.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Reports if a read of `count` bytes into a buffer of `room` bytes proves that the socket is empty.
    pub(crate) fn drained(&self, count: usize, room: usize) -> bool {
        self.tls.is_none() && count < room
    }

    /// Reads what has come; 0 is the proper end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.socket.read(buffer);
        };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if tls.read_tls(&mut self.socket)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let understood = tls.process_new_packets();
            // Bytes of the handshake, or an alert with the reason.
            push(tls, &mut self.socket)?;
            understood.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }

    /// Writes some of `bytes`.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.socket.write(bytes);
        };
        if !push(tls, &mut self.socket)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = tls.writer().write(bytes)?;
        push(tls, &mut self.socket)?;
        Ok(count)
    }

    /// Writes what TLS still has; true when it has nothing.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match &mut self.tls {
            None => Ok(true),
            Some(tls) => push(tls, &mut self.socket),
        }
    }

    /// Says that nothing more will come, as far as that can be said at once.
    pub(crate) fn end(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = push(tls, &mut self.socket);
        }
    }
}

fn push(tls: &mut ServerConnection, socket: &mut TcpStream) -> io::Result<bool> {
    while tls.wants_write() {
        match tls.write_tls(socket) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
