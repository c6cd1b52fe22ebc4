//! The way out of a mesh in namespaces, if the user asked for it (`--egress host`). Connections of pods to addresses
//! outside are redirected to this process, in the mesh's own namespace. They go on by sockets of the host's network.
//!
//! ```text
//! pod ── default route ──▶ bridge ── redirected ──▶ here ── a socket that the outside made ──▶ the world
//! ```
//! The host gets no rule, no device and no address; it sees connections of the user who runs `voile up`. TCP, and DNS
//! queries to name servers.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdUdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use voile_host::enclosure::{InsideSocket, SocketKind};
use voile_host::netns::original_destination;

use crate::addresses::is_service;
use crate::connection_limit::ConnectionLimit;

/// Timeout of connecting to the outside; a sidecar's own timeout is 10 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections held at once; more wait in the kernel's queue, and it is said.
const MAX_CONNECTIONS: u64 = 4096;
/// Divisor of the descriptor limit: a quarter of the descriptors may serve these connections, which take two each. The
/// rest starts pods and serves relays.
const DESCRIPTOR_SHARE: u64 = 4;
/// Queries to the host's name server at once; more are dropped, and the client repeats them.
const MAX_QUESTIONS: usize = 256;
/// Timeout of a name server: longer than its clients wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest message over UDP, in bytes.
const MAX_MESSAGE: usize = 65_535;
/// After accept failed (descriptors ran out), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Silence after which the ends of a connection are asked whether they are there: a pod that is killed says no farewell.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// The first name server that the host itself asks.
pub(crate) fn host_resolver() -> Option<SocketAddr> {
    first_name_server(&std::fs::read_to_string("/etc/resolv.conf").ok()?)
}

fn first_name_server(resolv_conf: &str) -> Option<SocketAddr> {
    let servers = resolv_conf.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next())?
    });
    let mut addresses = servers.filter_map(|server| server.parse::<IpAddr>().ok());
    addresses.next().map(|address| (address, 53).into())
}

/// The way out of one mesh; it ends with the runtime.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    runtime: tokio::runtime::Handle,
    inside: InsideSocket,
    room: ConnectionLimit,
}

impl Gate {
    /// Carries on `runtime`, by sockets of the outside.
    pub(crate) fn new(runtime: &tokio::runtime::Handle, inside: &InsideSocket) -> Self {
        let descriptors = voile_host::machine::own_descriptor_limit().unwrap_or(u64::MAX);
        let room = (descriptors / DESCRIPTOR_SHARE / 2).clamp(1, MAX_CONNECTIONS);
        Self {
            runtime: runtime.clone(),
            inside: inside.clone(),
            room: ConnectionLimit::new(
                "the way out of the mesh",
                usize::try_from(room).unwrap_or(1),
            ),
        }
    }

    /// Carries connections of `listener` to their original destinations, or all of them to `resolver`.
    pub(crate) fn carry(
        &self,
        listener: std::net::TcpListener,
        resolver: Option<SocketAddr>,
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let _entered = self.runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        self.runtime.spawn(self.clone().serve(listener, resolver));
        Ok(())
    }

    /// Hands questions that come to `socket` on to `resolver`.
    pub(crate) fn ask(&self, socket: StdUdpSocket, resolver: SocketAddr) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let _entered = self.runtime.enter();
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        self.runtime.spawn(self.clone().questions(socket, resolver));
        Ok(())
    }

    async fn serve(self, listener: TcpListener, resolver: Option<SocketAddr>) {
        // Dropped with this task, and each connection's task with it.
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let Some(permit) = self.room.place().await else {
                return;
            };
            while connections.try_join_next().is_some() {}
            let client = match listener.accept().await {
                Ok((client, _)) => client,
                Err(error) => {
                    tracing::warn!(%error, "the egress relay cannot accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let gate = self.clone();
            connections.spawn(async move {
                let leads = || original_destination(&client).ok().flatten();
                // A connection that was not redirected has no destination.
                let to = resolver.or_else(|| leads().filter(leads_out));
                if let Err(error) = gate.go_out(client, to).await {
                    tracing::debug!(?to, %error, "not forwarded out of the mesh");
                }
                drop(permit);
            });
        }
    }

    async fn go_out(&self, mut client: TcpStream, to: Option<SocketAddr>) -> io::Result<()> {
        let connecting = async {
            let nowhere = || io::Error::from(io::ErrorKind::AddrNotAvailable);
            let to = to.ok_or_else(nowhere)?;
            let socket = self.outward(SocketKind::Stream, to).await?;
            keep_alive(&socket)?;
            let socket = TcpSocket::from_std_stream(socket.into());
            timeout(CONNECT_TIMEOUT, socket.connect(to)).await?
        };
        match connecting.await {
            Ok(mut world) => {
                keep_alive(&client)?;
                // Requests are small and must not wait for each other's acknowledgement.
                let _ = (client.set_nodelay(true), world.set_nodelay(true));
                // Only the two ends care how a connection ended.
                let _ = copy_bidirectional(&mut client, &mut world).await;
                Ok(())
            }
            Err(error) => {
                // A reset, not an empty answer.
                let _ = client.set_zero_linger();
                Err(error)
            }
        }
    }

    /// A socket of the host's network.
    async fn outward(&self, kind: SocketKind, to: SocketAddr) -> io::Result<OwnedFd> {
        let inside = self.inside.clone();
        let asked = tokio::task::spawn_blocking(move || inside.outward(kind, to.is_ipv6()));
        asked.await.map_err(io::Error::other)?
    }

    async fn questions(self, socket: Arc<UdpSocket>, resolver: SocketAddr) {
        let room = Arc::new(Semaphore::new(MAX_QUESTIONS));
        let mut asked = tokio::task::JoinSet::new();
        let mut buffer = vec![0; MAX_MESSAGE];
        loop {
            while asked.try_join_next().is_some() {}
            // An error reports an earlier answer that did not arrive.
            let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
                continue;
            };
            let Ok(permit) = room.clone().try_acquire_owned() else {
                continue;
            };
            let question = buffer[..length].to_vec();
            let (gate, socket) = (self.clone(), Arc::clone(&socket));
            asked.spawn(async move {
                let answer = timeout(ANSWER_TIMEOUT, gate.answer(&question, resolver));
                if let Ok(Ok(answer)) = answer.await {
                    // The client may be gone.
                    let _ = socket.send_to(&answer, from).await;
                }
                drop(permit);
            });
        }
    }

    async fn answer(&self, question: &[u8], resolver: SocketAddr) -> io::Result<Vec<u8>> {
        let socket = StdUdpSocket::from(self.outward(SocketKind::Datagrams, resolver).await?);
        let socket = UdpSocket::from_std(socket)?;
        socket.connect(resolver).await?;
        socket.send(question).await?;
        let mut buffer = vec![0; MAX_MESSAGE];
        let length = socket.recv(&mut buffer).await?;
        buffer.truncate(length);
        Ok(buffer)
    }
}

/// Returns true for an address outside the mesh. A server bound to loopback relies on being called by its host alone,
/// in whatever form the address is written. A virtual address that is unused in the mesh does not lead outside.
fn leads_out(to: &SocketAddr) -> bool {
    let ip = to.ip().to_canonical();
    let virtual_address = matches!(ip, IpAddr::V4(ip) if is_service(ip));
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || virtual_address)
}

fn keep_alive(socket: &impl std::os::fd::AsFd) -> io::Result<()> {
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_not_outside_however_it_is_written() {
        for (to, expected) in [
            ("192.0.2.1:80", true),
            ("169.254.0.1:80", true),
            ("[2001:db8::1]:443", true),
            ("10.96.3.4:80", false),
            ("127.0.0.1:80", false),
            ("127.9.9.9:80", false),
            ("0.0.0.0:80", false),
            ("224.0.0.1:80", false),
            ("[::1]:80", false),
            ("[::]:80", false),
            ("[::ffff:127.0.0.1]:80", false),
            ("[ff02::1]:80", false),
        ] {
            let to: SocketAddr = to.parse().expect("an address");
            assert_eq!(leads_out(&to), expected, "{to}");
        }
    }

    #[test]
    fn the_host_asks_the_first_name_server_that_is_written_as_an_address() {
        for (text, expected) in [
            ("", None),
            ("# nameserver 192.0.2.1\nsearch test\n", None),
            (
                "nameserver\nnameserver x\n nameserver 192.0.2.2 \nnameserver 192.0.2.3\n",
                Some("192.0.2.2:53"),
            ),
            ("nameserver ::1\n", Some("[::1]:53")),
        ] {
            let found = first_name_server(text).map(|server| server.to_string());
            assert_eq!(found.as_deref(), expected, "{text:?}");
        }
    }
}
