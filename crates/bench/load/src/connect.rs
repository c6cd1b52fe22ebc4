//! Starting a TCP connection without waiting for it, and making a socket for datagrams that go to one address.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};

/// Starts connecting. The socket becomes writable after success or failure; `take_error` distinguishes them.
pub(crate) fn start_connect(to: SocketAddr, bind: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if let Some(source) = bind {
        // The port is chosen at connect, per destination, so that a source address is not limited to 28,000
        // connections in all.
        choose_port_at_connect(&socket)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    match socket.connect(&to.into()) {
        Ok(()) => Ok(socket.into()),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error),
    }
}

/// A UDP socket that sends to `to` and receives from no other address.
pub(crate) fn start_datagrams(to: SocketAddr, bind: Option<IpAddr>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if let Some(source) = bind {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect(&to.into())?;
    Ok(socket)
}

/// Why no connection could be made, with the cure where there is one.
pub(crate) fn connect_failure(to: SocketAddr, error: &io::Error) -> String {
    let text = error.to_string();
    let reason = text.split(" (os error").next().unwrap_or_default();
    let cure = match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => " (nothing listens there)",
        Some(libc::EMFILE) => " (raise `ulimit -n`)",
        Some(libc::EADDRNOTAVAIL) => {
            " (no source port is free: keep connections open, or --bind another address)"
        }
        _ => "",
    };
    format!("{to}: {reason}{cure}")
}

#[expect(unsafe_code, reason = "no safe wrapper of IP_BIND_ADDRESS_NO_PORT")]
fn choose_port_at_connect(socket: &Socket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the value is a c_int whose size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
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
