//! The sockets of a DNS server: datagrams and connections in, answers out. Bounded everywhere, since any client that
//! reaches the port may send anything. Nothing runs without questions.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::AbortHandle;

use crate::exchange::DnsTransport;
use crate::message;

/// Limits of a pair of sockets.
#[derive(Debug, Clone, Copy)]
pub struct QueryLimits {
    /// Datagrams being answered; beyond it SERVFAIL is the answer, so that a slow resolver costs bounded memory.
    pub outstanding: usize,
    /// Connections; a pod's resolvers need a handful.
    pub connections: usize,
    /// Kernel buffer for questions that come faster than they are read, in bytes as the kernel counts them (some 800
    /// for a short question). An application may look up a thousand names at once, and a dropped question waits 5 s.
    pub queue_bytes: usize,
}

impl Default for QueryLimits {
    /// For one pod's own proxy.
    fn default() -> Self {
        Self {
            outstanding: 2048,
            connections: 64,
            queue_bytes: 1024 * 1024,
        }
    }
}

/// Idle timeout of a connection (RFC 7766 asks for seconds).
const CONNECTION_IDLE: Duration = Duration::from_secs(10);
/// Largest question taken in a datagram, in bytes: the longest name with every option in use is far below.
const MAX_QUESTION: usize = 4096;
/// Pause after an accept that failed (descriptors are short).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Source of answers.
pub trait AnswerSource: 'static {
    /// The answer to a packet; `None` is silence.
    fn answer(&self, packet: &[u8], over: DnsTransport) -> impl Future<Output = Option<Vec<u8>>>;
}

/// Answers on both sockets until dropped, in local tasks.
///
/// # Errors
/// When the sockets cannot be used by the runtime.
pub fn serve<A: AnswerSource>(
    udp: std::net::UdpSocket,
    tcp: std::net::TcpListener,
    answers: Rc<A>,
    bounds: &QueryLimits,
) -> io::Result<SocketPair> {
    let bound = udp.local_addr()?;
    widen(&udp, bounds.queue_bytes);
    udp.set_nonblocking(true)?;
    tcp.set_nonblocking(true)?;
    let udp = Rc::new(SharedSocket::new(UdpSocket::from_std(udp)?));
    let tcp = Rc::new(SharedSocket::new(TcpListener::from_std(tcp)?));
    let outstanding = Rc::new(Cell::new(0));
    let (one, other) = (Rc::clone(&answers), Rc::clone(&outstanding));
    let datagrams = datagrams(Rc::clone(&udp), bound, one, (other, bounds.outstanding));
    let (one, other) = (Rc::clone(&tcp), Rc::clone(&outstanding));
    let connections = connections(one, bound, answers, (other, bounds.connections));
    let tasks = [
        tokio::task::spawn_local(datagrams).abort_handle(),
        tokio::task::spawn_local(connections).abort_handle(),
    ];
    Ok(SocketPair {
        tasks,
        outstanding,
        sockets: (udp, tcp),
    })
}

/// A pair of sockets being served.
#[derive(Debug)]
pub struct SocketPair {
    tasks: [AbortHandle; 2],
    outstanding: Rc<Cell<usize>>,
    sockets: (Rc<SharedSocket<UdpSocket>>, Rc<SharedSocket<TcpListener>>),
}

impl SocketPair {
    /// Takes no more questions; earlier ones are still answered. Other holders of the sockets go on.
    pub fn stop(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }

    /// Closes the sockets at once; UDP questions in flight are not answered any more.
    pub fn close(&self) {
        self.stop();
        self.sockets.0.close();
        self.sockets.1.close();
    }

    /// Returns true if every question has been answered.
    pub fn is_idle(&self) -> bool {
        self.outstanding.get() == 0
    }
}

/// A socket that several tasks use and that can be closed between their turns.
#[derive(Debug)]
struct SharedSocket<T>(RefCell<Option<T>>);

impl<T> SharedSocket<T> {
    fn new(socket: T) -> Self {
        Self(RefCell::new(Some(socket)))
    }

    fn close(&self) {
        self.0.take();
    }

    /// Waits until `poll` is ready; none once it is closed.
    async fn when<R>(
        &self,
        mut poll: impl FnMut(&T, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> Option<io::Result<R>> {
        std::future::poll_fn(|context| match &*self.0.borrow() {
            Some(socket) => poll(socket, context).map(Some),
            None => Poll::Ready(None),
        })
        .await
    }
}

/// As far as the privilege of a sidecar in its own namespace, or the machine's limit, allows.
fn widen(udp: &std::net::UdpSocket, bytes: usize) {
    use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
    if set_socket_recv_buffer_size_force(udp, bytes).is_err() {
        let _ = set_socket_recv_buffer_size(udp, bytes);
    }
}

/// On loopback the kernel lets in local clients alone. On another address only this machine is answered: a sidecar is
/// no resolver for the network.
fn is_ours(peer: IpAddr, bound: SocketAddr) -> bool {
    bound.ip().is_loopback() || peer.is_loopback() || peer == bound.ip()
}

/// One of a bounded number of places, given back when dropped.
struct QueryPermit(Rc<Cell<usize>>);

impl QueryPermit {
    fn take(taken: &Rc<Cell<usize>>, limit: usize) -> Option<Self> {
        let count = taken.get();
        (count < limit).then(|| {
            taken.set(count + 1);
            Self(Rc::clone(taken))
        })
    }
}

impl Drop for QueryPermit {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A question, and whose. The space that it may need is there while it is taken, and not while one is waited for.
fn take(socket: &UdpSocket, context: &mut Context<'_>) -> Poll<io::Result<(Vec<u8>, SocketAddr)>> {
    let mut space = [MaybeUninit::uninit(); MAX_QUESTION + 1];
    let mut buffer = ReadBuf::uninit(&mut space);
    let peer = ready!(socket.poll_recv_from(context, &mut buffer))?;
    Poll::Ready(Ok((buffer.filled().to_vec(), peer)))
}

async fn datagrams<A: AnswerSource>(
    socket: Rc<SharedSocket<UdpSocket>>,
    bound: SocketAddr,
    answers: Rc<A>,
    (outstanding, most): (Rc<Cell<usize>>, usize),
) {
    while let Some(taken) = socket.when(take).await {
        let (packet, peer) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                // Another's closed port comes back as an error of ours; there is nothing to do about it.
                tracing::debug!(%error, "cannot receive a datagram");
                tokio::task::yield_now().await;
                continue;
            }
        };
        if packet.len() > MAX_QUESTION || !is_ours(peer.ip(), bound) {
            continue;
        }
        let Some(place) = QueryPermit::take(&outstanding, most) else {
            if let (Some(answer), Some(socket)) =
                (message::server_failure(&packet), &*socket.0.borrow())
            {
                let _ = socket.try_send_to(&answer, peer);
            }
            continue;
        };
        let (socket, answers) = (Rc::clone(&socket), Rc::clone(&answers));
        tokio::task::spawn_local(async move {
            if let Some(answer) = answers.answer(&packet, DnsTransport::Udp).await {
                let send = |socket: &UdpSocket, context: &mut Context<'_>| {
                    socket.poll_send_to(context, &answer, peer)
                };
                if let Some(Err(error)) = socket.when(send).await {
                    tracing::debug!(%peer, %error, "cannot send a response");
                }
            }
            drop(place);
        });
    }
}

async fn connections<A: AnswerSource>(
    listener: Rc<SharedSocket<TcpListener>>,
    bound: SocketAddr,
    answers: Rc<A>,
    (outstanding, most): (Rc<Cell<usize>>, usize),
) {
    let open = Rc::new(Cell::new(0));
    while let Some(accepted) = listener.when(TcpListener::poll_accept).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let place = QueryPermit::take(&open, most).filter(|_| is_ours(peer.ip(), bound));
        let Some(place) = place else {
            continue; // Closed: the client tries again.
        };
        let answers = Rc::clone(&answers);
        let outstanding = Rc::clone(&outstanding);
        tokio::task::spawn_local(async move {
            // The client sees the end of the connection by itself.
            let _ = connection(stream, &*answers, &outstanding).await;
            drop(place);
        });
    }
}

async fn connection<A: AnswerSource>(
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
        let _answering = QueryPermit::take(outstanding, usize::MAX);
        let Some(answer) = answers.answer(&packet, DnsTransport::Tcp).await else {
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
