//! The sockets of a DNS server: datagrams and connections in, answers out. Bounded everywhere, since whoever can reach
//! the port may send anything; nothing runs while nobody asks.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::AbortHandle;

use crate::exchange::Over;
use crate::message;

/// Datagrams being answered at once; beyond it SERVFAIL is the answer, so that a slow resolver costs bounded memory.
const MAX_OUTSTANDING: usize = 2048;
/// What the kernel may keep of questions that come faster than they are read, in bytes as it counts them (some 800 for a
/// short question): an application may look up a thousand names at once, and one that is dropped waits 5 s.
const QUEUE_BYTES: usize = 1024 * 1024;
/// Connections at once; a pod's resolvers need a handful.
const MAX_CONNECTIONS: usize = 64;
/// How long a connection may say nothing (RFC 7766 asks for seconds).
const CONNECTION_IDLE: Duration = Duration::from_secs(10);
/// Largest question taken in a datagram, in bytes: the longest name with every option in use is far below.
const MAX_QUESTION: usize = 4096;
/// Pause after an accept that failed (descriptors are short).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who knows the answers.
pub trait Answers: 'static {
    /// The answer to a packet; `None` is silence.
    fn answer(&self, packet: &[u8], over: Over) -> impl Future<Output = Option<Vec<u8>>>;
}

/// Answers on both sockets until dropped, in local tasks.
///
/// # Errors
/// When the sockets cannot be used by the runtime.
pub fn serve<A: Answers>(
    udp: std::net::UdpSocket,
    tcp: std::net::TcpListener,
    answers: Rc<A>,
) -> io::Result<Service> {
    let bound = udp.local_addr()?;
    widen(&udp);
    udp.set_nonblocking(true)?;
    tcp.set_nonblocking(true)?;
    let udp = Rc::new(UdpSocket::from_std(udp)?);
    let tcp = TcpListener::from_std(tcp)?;
    let outstanding = Rc::new(Cell::new(0));
    let datagrams = datagrams(udp, bound, Rc::clone(&answers), Rc::clone(&outstanding));
    let tasks = [
        tokio::task::spawn_local(datagrams).abort_handle(),
        tokio::task::spawn_local(connections(tcp, bound, answers, Rc::clone(&outstanding)))
            .abort_handle(),
    ];
    Ok(Service { tasks, outstanding })
}

/// A pair of sockets being served.
#[derive(Debug)]
pub struct Service {
    tasks: [AbortHandle; 2],
    outstanding: Rc<Cell<usize>>,
}

impl Service {
    /// Takes no more questions; those that came are still answered. Whoever else holds the sockets goes on.
    pub fn stop(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }

    /// Whether every question that came has been answered.
    pub fn is_idle(&self) -> bool {
        self.outstanding.get() == 0
    }
}

/// As far as the privilege of a sidecar in its own namespace, or the machine's limit, allows.
fn widen(udp: &std::net::UdpSocket) {
    use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
    if set_socket_recv_buffer_size_force(udp, QUEUE_BYTES).is_err() {
        let _ = set_socket_recv_buffer_size(udp, QUEUE_BYTES);
    }
}

/// On loopback the kernel lets in nobody else. On another address only this machine is answered: a sidecar is no resolver
/// for the network.
fn is_ours(peer: IpAddr, bound: SocketAddr) -> bool {
    bound.ip().is_loopback() || peer.is_loopback() || peer == bound.ip()
}

/// One of a bounded number of places, given back when dropped.
struct Place(Rc<Cell<usize>>);

impl Place {
    fn take(taken: &Rc<Cell<usize>>, limit: usize) -> Option<Self> {
        let count = taken.get();
        (count < limit).then(|| {
            taken.set(count + 1);
            Self(Rc::clone(taken))
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

async fn datagrams<A: Answers>(
    socket: Rc<UdpSocket>,
    bound: SocketAddr,
    answers: Rc<A>,
    outstanding: Rc<Cell<usize>>,
) {
    let mut buffer = vec![0; MAX_QUESTION + 1];
    loop {
        let (length, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // Another's closed port comes back as an error of ours; there is nothing to do about it.
                tracing::debug!(%error, "a datagram could not be received");
                tokio::task::yield_now().await;
                continue;
            }
        };
        if length > MAX_QUESTION || !is_ours(peer.ip(), bound) {
            continue;
        }
        let packet = buffer[..length].to_vec();
        let socket = Rc::clone(&socket);
        let Some(place) = Place::take(&outstanding, MAX_OUTSTANDING) else {
            if let Some(answer) = message::server_failure(&packet) {
                let _ = socket.try_send_to(&answer, peer);
            }
            continue;
        };
        let answers = Rc::clone(&answers);
        tokio::task::spawn_local(async move {
            if let Some(answer) = answers.answer(&packet, Over::Udp).await
                && let Err(error) = socket.send_to(&answer, peer).await
            {
                tracing::debug!(%peer, %error, "an answer could not be sent");
            }
            drop(place);
        });
    }
}

async fn connections<A: Answers>(
    listener: TcpListener,
    bound: SocketAddr,
    answers: Rc<A>,
    outstanding: Rc<Cell<usize>>,
) {
    let open = Rc::new(Cell::new(0));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let place = Place::take(&open, MAX_CONNECTIONS).filter(|_| is_ours(peer.ip(), bound));
        let Some(place) = place else {
            continue; // Closed: the client tries again.
        };
        let answers = Rc::clone(&answers);
        let outstanding = Rc::clone(&outstanding);
        tokio::task::spawn_local(async move {
            // Whatever ends a connection, the client knows as much as we do.
            let _ = connection(stream, &*answers, &outstanding).await;
            drop(place);
        });
    }
}

async fn connection<A: Answers>(
    mut stream: TcpStream,
    answers: &A,
    outstanding: &Rc<Cell<usize>>,
) -> io::Result<()> {
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    loop {
        let reading = async {
            let length = stream.read_u16().await?;
            let mut packet = vec![0; length.into()];
            stream.read_exact(&mut packet).await?;
            Ok::<_, io::Error>(packet)
        };
        let packet = tokio::time::timeout(CONNECTION_IDLE, reading)
            .await
            .map_err(|_| late())??;
        // A connection has one question at a time, so their number is bounded already.
        let _answering = Place::take(outstanding, usize::MAX);
        let Some(answer) = answers.answer(&packet, Over::Tcp).await else {
            return Ok(());
        };
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        let mut framed = Vec::with_capacity(answer.len() + 2);
        framed.extend_from_slice(&length.to_be_bytes());
        framed.extend_from_slice(&answer);
        tokio::time::timeout(CONNECTION_IDLE, stream.write_all(&framed))
            .await
            .map_err(|_| late())??;
    }
}
