//! Redirected connections in the kernel: their original destinations, and how the rules tell the proxy's own
//! connections from the application's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::connect::switch_on;

/// Mark of sockets that carry an application's traffic outward. Redirect rules leave them alone, or a connection
/// would come back to the proxy for ever. The writer of the rules must use the same mark.
pub const OUTWARD_MARK: u32 = 0x539;

/// Mark of sockets to the proxy's own application.
pub const APPLICATION_MARK: u32 = 0x53a;

/// Source address of IPv4 connections to the proxy's own application under [`CaptureExemption::User`], as in Istio.
pub const APPLICATION_SOURCE_V4: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);

/// The same of IPv6. The device `lo` must have this address; `voile redirect` assigns it.
pub const APPLICATION_SOURCE_V6: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6);

/// Longest wait for an answer from this machine. Only a full queue takes longer.
const OWN_ANSWER_LIMIT: Duration = Duration::from_millis(100);

/// How redirect rules recognise the proxy's own connections, which they leave alone. The rules and the proxy must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureExemption {
    /// By the marks of its sockets: [`OUTWARD_MARK`] and [`APPLICATION_MARK`].
    Marks,
    /// By its user. A connection to the proxy's own application comes from [`APPLICATION_SOURCE_V4`] or
    /// [`APPLICATION_SOURCE_V6`].
    User,
}

impl CaptureExemption {
    /// Mark of outward connections.
    #[must_use]
    pub fn outward_mark(self) -> Option<u32> {
        (self == Self::Marks).then_some(OUTWARD_MARK)
    }

    /// Origin of connections to the proxy's own application, which is called at this address.
    #[must_use]
    pub fn to_application(self, called: IpAddr) -> Origin {
        let source: IpAddr = match called {
            IpAddr::V4(_) => APPLICATION_SOURCE_V4.into(),
            IpAddr::V6(_) => APPLICATION_SOURCE_V6.into(),
        };
        match self {
            Self::Marks => Origin::marked(Some(APPLICATION_MARK)),
            Self::User => Origin {
                source: Some(source),
                ..Origin::default()
            },
        }
    }
}

/// Source address and mark of a connection that is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// Address it comes from; any, when `None`.
    pub source: Option<IpAddr>,
    /// Mark of its packets; needs `CAP_NET_ADMIN` in the network namespace.
    pub mark: Option<u32>,
    /// The source is a foreign address (`IP_TRANSPARENT`). The connection has that address or fails; answers only
    /// return if the namespace has rules for it.
    pub foreign: bool,
}

impl Origin {
    /// From any address, with this mark.
    #[must_use]
    pub fn marked(mark: Option<u32>) -> Self {
        Self {
            mark,
            ..Self::default()
        }
    }
}

/// Returns the destination of an accepted connection before a rule redirected it; `None` without a rule.
///
/// # Errors
/// When the socket is gone.
pub fn original_destination(stream: &impl AsFd) -> io::Result<Option<SocketAddr>> {
    let socket = SockRef::from(stream);
    let local = plain(socket.local_addr()?.as_socket());
    let Some(local) = local else {
        return Ok(None);
    };
    let original = match local.ip() {
        IpAddr::V4(_) => socket.original_dst_v4(),
        IpAddr::V6(_) => socket.original_dst_v6(),
    };
    match original {
        // Connection tracking answers for connections without redirection, too.
        Ok(address) => Ok(plain(address.as_socket()).filter(|address| *address != local)),
        Err(error) if is_untracked(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The kernel's ways to say that it never heard of the connection, or tracks none at all.
fn is_untracked(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOPROTOOPT | libc::EOPNOTSUPP)
    )
}

/// IPv4 that arrived on an IPv6 socket, as IPv4.
fn plain(address: Option<SocketAddr>) -> Option<SocketAddr> {
    address.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Checks that this process may mark its sockets.
///
/// # Errors
/// The kernel's refusal.
pub fn may_mark() -> io::Result<()> {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?.set_mark(OUTWARD_MARK)
}

/// Checks that this process may connect from another host's address.
///
/// # Errors
/// The kernel's refusal.
pub fn may_be_transparent() -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    be_transparent(&socket, true)
}

/// Lets a socket be bound to an address that is not ours.
pub(crate) fn be_transparent(socket: &Socket, v4: bool) -> io::Result<()> {
    match v4 {
        true => socket.set_ip_transparent_v4(true),
        false => switch_on(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
    }
}

/// Returns true if an address belongs to this machine or namespace: the kernel lets no process bind another.
#[must_use]
pub fn is_local(address: IpAddr) -> bool {
    let bound = Socket::new(
        Domain::for_address(SocketAddr::new(address, 0)),
        Type::DGRAM,
        Some(Protocol::UDP),
    )
    .and_then(|socket| socket.bind(&SocketAddr::new(address, 0).into()));
    bound.is_ok() && !address.is_unspecified() && !address.is_multicast()
}

/// Returns true if the kernel redirects this process's connections to `own`, an address of this network namespace, as the rules
/// for [`CaptureExemption::User`] do. It calls a port at which nobody listens, so that only a redirected call is answered. The
/// listener that takes it sees a reset.
///
/// # Errors
/// The address is not of this namespace, or the kernel does not answer.
pub fn is_redirected(own: IpAddr) -> io::Result<bool> {
    let at = SocketAddr::new(own, 0);
    let silent = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    silent.bind(&at.into())?;
    let Some(silent_address) = silent.local_addr()?.as_socket() else {
        return Ok(false);
    };
    match TcpStream::connect_timeout(&silent_address, OWN_ANSWER_LIMIT) {
        Ok(stream) => {
            SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use voile_testkit::prerequisites::{Prerequisite, require};

    use super::*;

    #[test]
    fn a_connection_that_nobody_redirected_has_no_original_destination() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = std::net::TcpListener::bind(address);
            let Some(listener) = require(Prerequisite::Ipv6, listener) else {
                continue;
            };
            let to = listener.local_addr().expect("an address");
            let _client = TcpStream::connect(to).expect("connected");
            let (accepted, _) = listener.accept().expect("accepted");
            assert_eq!(original_destination(&accepted).expect("asked"), None);
        }
    }

    #[test]
    fn without_rules_a_call_to_an_own_address_is_not_redirected() {
        let own = Ipv4Addr::LOCALHOST.into();
        assert!(matches!(is_redirected(own), Ok(false)));
        let foreign: IpAddr = "192.0.2.77".parse().expect("an address");
        assert!(is_redirected(foreign).is_err(), "it cannot be bound");
    }

    #[test]
    fn only_own_addresses_are_local() {
        let cases = [
            ("127.0.0.1", true),
            ("127.1.2.3", true),
            ("192.0.2.77", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
        ];
        for (address, expected) in cases {
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(is_local(address), expected, "{address}");
        }
    }
}
