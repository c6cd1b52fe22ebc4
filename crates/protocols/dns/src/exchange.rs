//! One question to one server and its answer, over UDP or TCP. Each has a socket of its own, so a random port beside a
//! random id; only an answer from the asked server with our id and our question counts.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use std::{fmt, io};

use domain::base::Message;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, UdpSocket};

/// Answers to other questions before a socket is given up: some sender is guessing.
const MAX_STRAY_ANSWERS: u32 = 32;
/// Smallest buffer for an answer, in bytes (RFC 1035); the client's offer may be larger.
const MIN_UDP_BUFFER: usize = 512;

/// Transport of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsTransport {
    /// In one datagram.
    Udp,
    /// On a connection.
    Tcp,
}

/// Why a server gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// In time.
    #[error("{server}: no answer within {limit:?}")]
    Timeout {
        /// Server that was asked.
        server: SocketAddr,
        /// Time limit that passed.
        limit: Duration,
    },
    /// The kernel says no.
    #[error("{server}: {error}")]
    Io {
        /// Server that was asked.
        server: SocketAddr,
        /// The kernel's word.
        error: io::Error,
    },
    /// It answers something else.
    #[error("{server}: the response does not match the query")]
    Mismatch {
        /// Server that was asked.
        server: SocketAddr,
    },
    /// The packet to send is no question.
    #[error("not a query")]
    NoQuestion,
}

/// Runs a function in the network where sockets are to be made; the later use of a socket has no network.
pub type Within = Rc<dyn Fn(&mut dyn FnMut()) -> io::Result<()>>;

/// Settings of the sockets by which servers are asked.
#[derive(Clone, Default)]
pub(crate) struct SocketFactory {
    /// Set where capture must know them.
    pub(crate) mark: Option<u32>,
    /// In another network than ours.
    pub(crate) within: Option<Within>,
}

impl fmt::Debug for SocketFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outset")
            .field("mark", &self.mark)
            .field("elsewhere", &self.within.is_some())
            .finish()
    }
}

impl SocketFactory {
    fn socket(&self, server: SocketAddr, kind: Type) -> io::Result<Socket> {
        self.there(|| socket(server, kind, self.mark))?
    }

    /// Runs `make` in the network where the sockets belong, and returns its result.
    pub(crate) fn there<T>(&self, make: impl Fn() -> T) -> io::Result<T> {
        let Some(within) = &self.within else {
            return Ok(make());
        };
        let mut made = None;
        within(&mut || made = Some(make()))?;
        made.ok_or_else(|| io::Error::other("no socket was created in the other network namespace"))
    }
}

/// Asks `server`; the answer has the id that `query` had.
pub(crate) async fn exchange(
    server: SocketAddr,
    query: &[u8],
    over: DnsTransport,
    outset: &SocketFactory,
    limit: Duration,
) -> Result<Vec<u8>, ExchangeError> {
    let mut asked = query.to_vec();
    let Some(id) = query.first_chunk::<2>().copied() else {
        return Err(ExchangeError::NoQuestion);
    };
    let own = random_id();
    asked[..2].copy_from_slice(&own);
    let asking = async {
        match over {
            DnsTransport::Udp => udp(server, &asked, outset).await,
            DnsTransport::Tcp => tcp(server, &asked, outset).await,
        }
    };
    let mut answer = match tokio::time::timeout(limit, asking).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(Failure::Io(error))) => return Err(ExchangeError::Io { server, error }),
        Ok(Err(Failure::Mismatch)) => return Err(ExchangeError::Mismatch { server }),
        Err(_) => return Err(ExchangeError::Timeout { server, limit }),
    };
    answer[..2].copy_from_slice(&id);
    Ok(answer)
}

enum Failure {
    Io(io::Error),
    Mismatch,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Returns an id that a host off the path cannot guess. Without the kernel's randomness the port alone must do.
pub(crate) fn random_id() -> [u8; 2] {
    let mut id = [0; 2];
    let _ = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    id
}

fn socket(server: SocketAddr, kind: Type, mark: Option<u32>) -> io::Result<Socket> {
    let protocol = if kind == Type::DGRAM {
        Protocol::UDP
    } else {
        Protocol::TCP
    };
    let socket = Socket::new(
        Domain::for_address(server),
        kind.nonblocking().cloexec(),
        Some(protocol),
    )?;
    if let Some(mark) = mark {
        socket.set_mark(mark)?;
    }
    Ok(socket)
}

async fn udp(server: SocketAddr, query: &[u8], outset: &SocketFactory) -> Result<Vec<u8>, Failure> {
    let socket = outset.socket(server, Type::DGRAM)?;
    // The kernel draws the port, and lets in datagrams of this server only.
    socket.connect(&server.into())?;
    let socket = UdpSocket::from_std(socket.into())?;
    socket.send(query).await?;
    let offered = Message::from_octets(query)
        .ok()
        .and_then(|message| message.opt().map(|opt| usize::from(opt.udp_payload_size())));
    let mut buffer = vec![0; offered.unwrap_or(0).max(MIN_UDP_BUFFER)];
    for _ in 0..MAX_STRAY_ANSWERS {
        let length = socket.recv(&mut buffer).await?;
        if is_answer(&buffer[..length], query) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
    Err(Failure::Mismatch)
}

async fn tcp(server: SocketAddr, query: &[u8], outset: &SocketFactory) -> Result<Vec<u8>, Failure> {
    let Ok(length) = u16::try_from(query.len()) else {
        return Err(Failure::Mismatch);
    };
    let socket = TcpSocket::from_std_stream(outset.socket(server, Type::STREAM)?.into());
    let mut stream = socket.connect(server).await?;
    let mut framed = Vec::with_capacity(query.len() + 2);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(query);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    match is_answer(&answer, query) {
        true => Ok(answer),
        false => Err(Failure::Mismatch),
    }
}

/// Errors of servers that could not read the question come without it.
fn is_answer(packet: &[u8], query: &[u8]) -> bool {
    let (Ok(answer), Ok(query)) = (Message::from_slice(packet), Message::from_slice(query)) else {
        return false;
    };
    let header = answer.header();
    let bare_error = answer.header_counts().qdcount() == 0
        && header.qr()
        && header.id() == query.header().id()
        && header.rcode() != domain::base::iana::Rcode::NOERROR;
    bare_error || answer.is_answer(query)
}
