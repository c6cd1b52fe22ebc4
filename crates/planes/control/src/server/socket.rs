//! A TCP connection that one thread accepts and another serves: whoever polls it first after it was detached takes it over.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

#[derive(Debug)]
enum Tcp {
    /// Polled by the runtime of this thread.
    Attached(TcpStream),
    /// Polled by nobody.
    Detached(std::net::TcpStream),
    /// It could not be moved.
    Lost,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Socket {
    tcp: Tcp,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self {
            local: stream.local_addr().ok(),
            remote: stream.peer_addr().ok(),
            tcp: Tcp::Attached(stream),
        }
    }
}

impl Socket {
    /// Leaves the runtime of this thread.
    pub(super) fn detach(&mut self) -> io::Result<()> {
        if let Tcp::Attached(stream) = std::mem::replace(&mut self.tcp, Tcp::Lost) {
            self.tcp = Tcp::Detached(stream.into_std()?);
        }
        Ok(())
    }

    fn attached(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if let Tcp::Detached(_) = self.tcp
            && let Tcp::Detached(stream) = std::mem::replace(&mut self.tcp, Tcp::Lost)
        {
            self.tcp = Tcp::Attached(TcpStream::from_std(stream)?);
        }
        match &mut self.tcp {
            Tcp::Attached(stream) => Ok(Pin::new(stream)),
            Tcp::Detached(_) | Tcp::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.attached()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.attached()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.attached()?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.attached()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.attached()?.poll_shutdown(context)
    }
}

impl Connected for Socket {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo {
            local_addr: self.local,
            remote_addr: self.remote,
        }
    }
}
