//! Opening a connection to an upstream: from the pod's own address, without burning a port before it is needed,
//! within a deadline, with errors that say which of these failed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};

use crate::redirected::{Origin, be_transparent};

/// Why an upstream could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The upstream did not answer in time.
    #[error("{address}: no answer to connect within {limit:?}")]
    Timeout {
        /// Address that was called.
        address: SocketAddr,
        /// Time limit that passed.
        limit: Duration,
    },
    /// The pod's address cannot be bound here.
    #[error("cannot bind source address {source_address} to reach {address}: {error}")]
    Source {
        /// Address to call.
        address: SocketAddr,
        /// From where.
        source_address: IpAddr,
        /// The kernel's word.
        error: io::Error,
    },
    /// Refused, unreachable, or out of descriptors.
    #[error("{address}: {error}")]
    Failed {
        /// Address that was called.
        address: SocketAddr,
        /// The kernel's word.
        error: io::Error,
    },
}

/// Connects to `address` as `origin` says, with Nagle's algorithm off.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(
    address: SocketAddr,
    origin: Origin,
    limit: Duration,
) -> Result<TcpStream, ConnectError> {
    open(prepare(address, origin)?, address, limit).await
}

/// A socket that is to be connected to `address`, as `origin` says: of the network that the calling thread is in.
///
/// # Errors
/// See [`ConnectError`].
pub fn prepare(address: SocketAddr, origin: Origin) -> Result<TcpSocket, ConnectError> {
    let failed = |error| ConnectError::Failed { address, error };
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )
    .map_err(failed)?;
    socket.set_tcp_nodelay(true).map_err(failed)?;
    if let Some(mark) = origin.mark {
        socket.set_mark(mark).map_err(failed)?;
    }
    // A source of the other family cannot be meant for this address; the kernel chooses then. A foreign source is
    // never replaced by the proxy's own address: the application would take the proxy for a trusted neighbour.
    let same_family = |ip: &IpAddr| ip.is_ipv4() == address.is_ipv4();
    let source = origin.source.filter(|ip| origin.foreign || same_family(ip));
    if let Some(source_address) = source {
        let transparent = if origin.foreign {
            be_transparent(&socket, address.is_ipv4())
        } else {
            Ok(())
        };
        transparent
            .and_then(|()| bind_without_port(&socket))
            .and_then(|()| socket.bind(&SocketAddr::new(source_address, 0).into()))
            .map_err(|error| ConnectError::Source {
                address,
                source_address,
                error,
            })?;
    }
    Ok(TcpSocket::from_std_stream(socket.into()))
}

/// Connects a prepared socket.
///
/// # Errors
/// See [`ConnectError`].
pub async fn open(
    socket: TcpSocket,
    address: SocketAddr,
    limit: Duration,
) -> Result<TcpStream, ConnectError> {
    let failed = |error| ConnectError::Failed { address, error };
    match tokio::time::timeout(limit, socket.connect(address)).await {
        Ok(result) => result.map_err(failed),
        Err(_) => Err(ConnectError::Timeout { address, limit }),
    }
}

/// Keep-alive probes of the kernel to a quiet peer; unset values are the kernel's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeepAlive {
    /// Unanswered questions after which the connection is dead.
    pub probes: Option<u32>,
    /// Quiet time before the first probe.
    pub time: Option<Duration>,
    /// From one to the next.
    pub interval: Option<Duration>,
}

impl KeepAlive {
    /// Has the kernel ask so on this connection.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn set(&self, stream: &TcpStream) -> io::Result<()> {
        let mut wish = TcpKeepalive::new();
        if let Some(probes) = self.probes {
            wish = wish.with_retries(probes);
        }
        if let Some(time) = self.time {
            wish = wish.with_time(time);
        }
        if let Some(interval) = self.interval {
            wish = wish.with_interval(interval);
        }
        SockRef::from(stream).set_tcp_keepalive(&wish)
    }
}

/// Lets the kernel choose the port at connect, when it knows the whole four-tuple: 28,000 connections per
/// destination instead of 28,000 in all.
fn bind_without_port(socket: &Socket) -> io::Result<()> {
    switch_on(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT)
}

/// Sets an option that is a switch and for which there is no safe wrapper.
#[expect(unsafe_code, reason = "setsockopt; an int option read by value")]
pub(crate) fn switch_on(socket: &Socket, level: i32, option: i32) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, the pointer and the length describe one live c_int.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
