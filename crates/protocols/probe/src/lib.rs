//! One probe of an application, as Kubernetes' kubelet sends it: by TCP, HTTP/1.1 or gRPC's health protocol. Over TLS
//! no certificate is verified, and HTTP/2 is used if the server prefers it. A probe runs on the calling thread,
//! within a deadline. It does not trust the answer, and reads a bounded part of it. The caller decides on intervals
//! and consequences.

mod grpc;
mod http;
mod program;
mod tls;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use program::run;
use rustls::{ClientConnection, StreamOwned};
use socket2::{Domain, Socket, Type};
use voile_model::Port;
use voile_model::mesh::ProbeAction;

/// Question of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeRequest {
    /// A connection is accepted.
    Tcp,
    /// `GET` is answered by a status from 200 to 399. Redirects to the same host are followed, at whatever port; so
    /// an answer from 300 leads elsewhere.
    Http {
        /// Over TLS; the certificate is not verified.
        tls: bool,
        /// Path and query, fit for a request line.
        path: String,
        /// Fields in place of, or beside, the usual ones; fit for a head.
        headers: Vec<(String, String)>,
    },
    /// `grpc.health.v1.Health/Check` is answered by SERVING.
    Grpc {
        /// The service asked about, at most [`MAX_SERVICE_BYTES`]; empty is the server as a whole.
        service: String,
    },
}

/// The longest service that can be asked about, in bytes: the question is one frame.
pub const MAX_SERVICE_BYTES: usize = 1024;

/// Fields that are not the caller's: a question has no body, and its connection is used once.
const FRAMING: [&str; 7] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// The status that stands for a good answer where there is none of HTTP.
const OK: u16 = 200;

/// Why an answer is not good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The status, if HTTP was asked and answered.
    pub status: Option<u16>,
    /// The port has no listener.
    pub refused: bool,
    /// For people.
    pub why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl ProbeRequest {
    /// Converts the check of a resource's probe into a port and a question to it.
    ///
    /// # Errors
    /// The check is no question but this program.
    pub fn from_action(action: &ProbeAction) -> Result<(Port, Self), &[Arc<str>]> {
        Ok(match action {
            ProbeAction::Tcp { port } => (*port, Self::Tcp),
            ProbeAction::Grpc { port, service } => {
                let service = service.to_string();
                (*port, Self::Grpc { service })
            }
            ProbeAction::Http {
                port,
                tls,
                path,
                headers,
            } => {
                let headers = headers.iter();
                let headers = headers.map(|(name, value)| (name.to_string(), value.to_string()));
                let question = Self::Http {
                    tls: *tls,
                    path: path.to_string(),
                    headers: headers.collect(),
                };
                (*port, question)
            }
            ProbeAction::Exec { command } => return Err(command),
        })
    }

    /// Returns the reason why it cannot be asked: its text would mean something else on the wire.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let value = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        match self {
            Self::Http { path, .. }
                if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) =>
            {
                Some("the path is not valid in a request line")
            }
            Self::Http { headers, .. }
                if headers.iter().any(|(name, text)| {
                    let framing = FRAMING.iter().any(|known| known.eq_ignore_ascii_case(name));
                    let good = !name.is_empty() && name.bytes().all(token);
                    framing || !good || !text.bytes().all(value)
                }) =>
            {
                Some("a header field is invalid, or is a framing header")
            }
            Self::Grpc { service } if service.len() > MAX_SERVICE_BYTES => {
                Some("the service's name is too long")
            }
            Self::Tcp | Self::Http { .. } | Self::Grpc { .. } => None,
        }
    }
}

/// Mark and source address of a probe's connection, by which redirect rules let it go past a sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProbeOrigin {
    /// Mark of its packets; needs `CAP_NET_ADMIN`.
    pub mark: Option<u32>,
    /// Address it comes from, of the family that is called; any, when `None`.
    pub source: Option<IpAddr>,
}

/// Asks once. The answer is the status of HTTP, else 200.
///
/// # Errors
/// Says why the answer is not good.
pub fn ask(
    address: SocketAddr,
    origin: ProbeOrigin,
    question: &ProbeRequest,
    timeout: Duration,
) -> Result<u16, Failure> {
    if let Some(fault) = question.fault() {
        return Err(Failure {
            status: None,
            refused: false,
            why: fault.to_owned(),
        });
    }
    let server = ProbeServer {
        address,
        origin,
        until: Instant::now() + timeout,
    };
    let (answer, asked) = match question {
        ProbeRequest::Tcp => (
            server.connect(address.port()).map(|_| OK),
            address.to_string(),
        ),
        ProbeRequest::Http { tls, path, headers } => {
            let scheme = if *tls { "https" } else { "http" };
            (
                http::get(&server, *tls, path, headers),
                format!("{scheme}://{address}{path}"),
            )
        }
        ProbeRequest::Grpc { service } => {
            let checked = server
                .connect(address.port())
                .and_then(|mut stream| grpc::check(&mut stream, address, service));
            (checked.map(|()| OK), format!("grpc://{address}"))
        }
    };
    match answer {
        Ok(status @ 200..400) => Ok(status),
        Ok(status) => Err(Failure {
            status: Some(status),
            refused: false,
            why: format!("{asked} answers {status}"),
        }),
        Err(error) => Err(Failure {
            status: None,
            refused: error.kind() == io::ErrorKind::ConnectionRefused,
            why: match error.kind() {
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                    format!("{asked}: no answer within {timeout:?}")
                }
                io::ErrorKind::ConnectionRefused => format!("{asked}: connection refused"),
                _ if is_tls(&error) => format!("{asked}: TLS: {error}"),
                _ => format!("{asked}: {error}"),
            },
        }),
    }
}

/// Asks for a page of metrics in Prometheus' text format, by HTTP/1.1 in plaintext. Returns its body of at most `limit` bytes.
///
/// # Errors
/// Says why there is none: another status than 200, another format, or no end within the time or the limit.
pub fn read_metrics(
    address: SocketAddr,
    origin: ProbeOrigin,
    path: &str,
    (timeout, limit): (Duration, usize),
) -> Result<String, Failure> {
    let server = ProbeServer {
        address,
        origin,
        until: Instant::now() + timeout,
    };
    http::page::read(&server, path, limit).map_err(|error| Failure {
        status: None,
        refused: error.kind() == io::ErrorKind::ConnectionRefused,
        why: format!("http://{address}{path}: {error}"),
    })
}

fn is_tls(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner.is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
}

/// Server of one question, and the deadline.
struct ProbeServer {
    address: SocketAddr,
    origin: ProbeOrigin,
    until: Instant,
}

impl ProbeServer {
    /// Any port of it: a redirect may lead to another.
    fn connect(&self, port: u16) -> io::Result<DeadlineStream> {
        let mut address = self.address;
        address.set_port(port);
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if let Some(mark) = self.origin.mark {
            socket.set_mark(mark)?;
        }
        if let Some(source) = self.origin.source {
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        socket.connect_timeout(&address.into(), left(self.until)?)?;
        Ok(DeadlineStream {
            stream: socket.into(),
            until: self.until,
        })
    }

    fn stream(&self, port: u16, tls: bool) -> io::Result<ProbeStream> {
        let stream = self.connect(port)?;
        Ok(match tls {
            false => ProbeStream::Plain(stream),
            true => ProbeStream::Tls(Box::new(tls::client(self, stream)?)),
        })
    }
}

/// A connection that is over at its deadline, however slowly the other side trickles.
struct DeadlineStream {
    stream: TcpStream,
    until: Instant,
}

/// A connection, encrypted or not.
enum ProbeStream {
    Plain(DeadlineStream),
    Tls(Box<StreamOwned<ClientConnection, DeadlineStream>>),
}

impl ProbeStream {
    /// Returns true if the server chose HTTP/2.
    fn is_http2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.conn.alpn_protocol() == Some(tls::HTTP2),
        }
    }
}

impl Read for ProbeStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for ProbeStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl Drop for ProbeStream {
    /// A farewell, so that the server does not take the end for an attack; whether it arrives does not matter.
    fn drop(&mut self) {
        if let Self::Tls(stream) = self {
            stream.conn.send_close_notify();
            let _ = stream.conn.write_tls(&mut stream.sock);
        }
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left)
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.until)?))?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.until)?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
