//! One connection between the two ends: TLS 1.3, frames of JSON with a length before them, and proof of the token before anything
//! else. Every wait ends: by a deadline, by the user, or because the other end is gone.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned, version,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use voile_load::UnverifiedServer;

use super::frames;
use super::messages::{GREETING_BYTES, TokenProof};
use super::token::{BINDING_BYTES, SessionEnd, Token};

/// Deadline of the whole greeting.
pub(crate) const GREETING: Duration = Duration::from_secs(10);
/// Interval at which a wait checks if it must end.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A network that carries nothing any more is noticed after about this long.
const SILENCE: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
/// Label for the TLS exporter (RFC 9266).
const EXPORTER: &[u8] = b"EXPORTER-Channel-Binding";
/// Server name in TLS. No end checks it: the token is the proof.
const NAME: &str = "voile-bench-agent";

/// A socket whose every wait ends at a deadline, or when `stopped` returns true.
pub(crate) struct TimedSocket {
    stream: TcpStream,
    until: Option<Instant>,
    stopped: fn() -> bool,
}

impl TimedSocket {
    pub(crate) fn new(stream: TcpStream, stopped: fn() -> bool) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, SILENCE)?;
        sockopt::set_tcp_keepintvl(&stream, SILENCE)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        let all = SILENCE * (PROBES + 1);
        let milliseconds = u32::try_from(all.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&stream, milliseconds)?;
        Ok(Self {
            stream,
            until: Some(Instant::now() + GREETING),
            stopped,
        })
    }

    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        loop {
            if (self.stopped)() {
                return Err(io::Error::other("stopped"));
            }
            let left = match self.until {
                Some(until) => until.saturating_duration_since(Instant::now()),
                None => LOOK_EVERY,
            };
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
            }
            let bound = left.min(LOOK_EVERY);
            let bound = Timespec {
                tv_sec: bound.as_secs().cast_signed(),
                tv_nsec: bound.subsec_nanos().into(),
            };
            let mut polled = [PollFd::new(&self.stream, flags)];
            match poll(&mut polled, Some(&bound)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Read for TimedSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                other => return other,
            }
        }
    }
}

impl Write for TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.stream.write(bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Tls {
    Near(Box<StreamOwned<ClientConnection, TimedSocket>>),
    Agent(Box<StreamOwned<ServerConnection, TimedSocket>>),
}

/// A connection.
pub(crate) struct Link {
    tls: Tls,
    limit: usize,
}

impl Link {
    /// Calls an agent. The connection is encrypted, but neither end has proven the token yet.
    pub(crate) fn call(socket: TimedSocket) -> io::Result<Self> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            // The following proof is bound to this connection, so the certificate need not be checked.
            .with_custom_certificate_verifier(UnverifiedServer::by(provider))
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self {
            tls: Tls::Near(Box::new(stream)),
            limit: GREETING_BYTES,
        })
    }

    /// Takes a call, as above.
    pub(crate) fn take(socket: TimedSocket, config: &Arc<ServerConfig>) -> io::Result<Self> {
        let connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self {
            tls: Tls::Agent(Box::new(stream)),
            limit: GREETING_BYTES,
        })
    }

    /// Proves to the agent that we know the token, and sees whether it does.
    pub(crate) fn prove(&mut self, token: &Token) -> Result<(), String> {
        let failed = |e: io::Error| e.to_string();
        let binding = self.binding().map_err(failed)?;
        self.send(&TokenProof {
            proof: token.prove(SessionEnd::Near, &binding),
            ..TokenProof::default()
        })
        .map_err(failed)?;
        let answer: TokenProof = self
            .receive()
            .map_err(failed)?
            .ok_or("it closed the connection")?;
        if !answer.refused.is_empty() {
            return Err(answer.refused);
        }
        if !token.proves(SessionEnd::Agent, &binding, &answer.proof) {
            return Err("it does not know the token: it is not the expected agent".to_owned());
        }
        Ok(())
    }

    /// The agent's part of the proof. An error is for the log; the other end gets the refusal.
    pub(crate) fn demand(&mut self, token: &Token) -> Result<(), String> {
        let failed = |e: io::Error| e.to_string();
        let binding = self.binding().map_err(failed)?;
        let proof: TokenProof = self
            .receive()
            .map_err(failed)?
            .ok_or("it sent no proof of the token")?;
        if !token.proves(SessionEnd::Near, &binding, &proof.proof) {
            let refused = "wrong token".to_owned();
            let _ = self.send(&TokenProof {
                refused: refused.clone(),
                ..TokenProof::default()
            });
            return Err(refused);
        }
        self.send(&TokenProof {
            proof: token.prove(SessionEnd::Agent, &binding),
            ..TokenProof::default()
        })
        .map_err(failed)
    }

    fn binding(&self) -> io::Result<[u8; BINDING_BYTES]> {
        let binding = [0; BINDING_BYTES];
        match &self.tls {
            Tls::Near(stream) => stream
                .conn
                .export_keying_material(binding, EXPORTER, Some(&[])),
            Tls::Agent(stream) => stream
                .conn
                .export_keying_material(binding, EXPORTER, Some(&[])),
        }
        .map_err(io::Error::other)
    }

    /// From now on frames may be that long.
    pub(crate) fn allow(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    /// Sets the deadline of the next waits.
    pub(crate) fn within(&mut self, bound: Option<Duration>) {
        self.socket().until = bound.map(|bound| Instant::now() + bound);
    }

    /// Another handle of the socket, to see whether the other end is gone.
    pub(crate) fn watcher(&mut self) -> io::Result<TcpStream> {
        self.socket().stream.try_clone()
    }

    fn socket(&mut self) -> &mut TimedSocket {
        match &mut self.tls {
            Tls::Near(stream) => &mut stream.sock,
            Tls::Agent(stream) => &mut stream.sock,
        }
    }

    fn stream(&mut self) -> &mut dyn Duplex {
        match &mut self.tls {
            Tls::Near(stream) => stream.as_mut(),
            Tls::Agent(stream) => stream.as_mut(),
        }
    }

    /// Sends one frame.
    pub(crate) fn send(&mut self, words: &impl Serialize) -> io::Result<()> {
        let limit = self.limit;
        frames::write(self.stream(), words, limit)
    }

    /// Receives one frame; none when the other end hung up between frames.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let limit = self.limit;
        frames::read(self.stream(), limit)
    }
}

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

/// Reports if the other end of this socket has hung up, or is gone.
pub(crate) fn hung_up(socket: &TcpStream) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::RDHUP)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut polled, Some(&at_once)), Ok(1..))
}

/// Any certificate of an hour or a day will do: the token is the proof.
pub(crate) fn server_config() -> Result<Arc<ServerConfig>, String> {
    let failed = |e: String| format!("making the agent's certificate: {e}");
    let key = rcgen::KeyPair::generate().map_err(|e| failed(e.to_string()))?;
    let params =
        rcgen::CertificateParams::new(vec![NAME.to_owned()]).map_err(|e| failed(e.to_string()))?;
    let certificate = params
        .self_signed(&key)
        .map_err(|e| failed(e.to_string()))?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(|e| failed(e.to_string()))?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key.into())
        .map_err(|e| failed(e.to_string()))?;
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
