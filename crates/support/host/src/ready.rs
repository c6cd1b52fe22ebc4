//! Waiting until a server answers: by a TCP connection or an HTTP status, with a deadline, and giving up at once when the
//! process behind it has ended.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use voile_pages::Answer;

use crate::child::SupervisedChild;
use crate::netns::rules::MARK_INWARD;

/// Interval of readiness probes.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// Timeout of one probe.
const ONE_QUESTION: Duration = Duration::from_secs(1);
/// Bytes of an HTTP answer that are read at most.
const ANSWER_LIMIT_BYTES: usize = 16 << 20;

/// Probe that a ready server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// It accepts connections here.
    Tcp(SocketAddr),
    /// It accepts connections here, asked past the redirection to a sidecar.
    Direct(SocketAddr),
    /// `GET` of this path answers 200.
    Http(SocketAddr, String),
}

/// A server did not become ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// Its process ended.
    #[error("{name} {exit} before it was ready")]
    Ended {
        /// Name of the process.
        name: String,
        /// Exit of the process.
        exit: crate::child::ChildExit,
    },
    /// The deadline passed.
    #[error("{name} is not ready after {waited:?}: {last}")]
    Late {
        /// Name of the process.
        name: String,
        /// Time waited.
        waited: Duration,
        /// Result of the last probe.
        last: String,
    },
    /// The caller was asked to stop.
    #[error("stopped while waiting for {name}")]
    Stopped {
        /// Name of the process.
        name: String,
    },
}

/// Waits until the probe succeeds, the process ends, the bound passes or `stopped` says so.
///
/// # Errors
/// Says which of the last three it was.
#[expect(
    clippy::disallowed_methods,
    reason = "paces the questions of a loop with a deadline"
)]
pub fn wait_ready(
    child: &mut SupervisedChild,
    probe: &Probe,
    bound: Duration,
    stopped: &dyn Fn() -> bool,
) -> Result<(), NotReady> {
    let start = Instant::now();
    loop {
        if let Some(exit) = child.try_exit() {
            return Err(NotReady::Ended {
                name: child.name().to_owned(),
                exit,
            });
        }
        let last = match ask(probe) {
            Ok(()) => return Ok(()),
            Err(e) => e.to_string(),
        };
        if stopped() {
            return Err(NotReady::Stopped {
                name: child.name().to_owned(),
            });
        }
        if start.elapsed() >= bound {
            return Err(NotReady::Late {
                name: child.name().to_owned(),
                waited: start.elapsed(),
                last,
            });
        }
        thread::sleep(POLL_EVERY);
    }
}

/// Asks once.
///
/// # Errors
/// When the port has no listener, or HTTP answers something other than 200.
pub fn ask(probe: &Probe) -> io::Result<()> {
    match probe {
        Probe::Tcp(address) => TcpStream::connect_timeout(address, ONE_QUESTION)
            .map(drop)
            .map_err(|e| io::Error::new(e.kind(), format!("{address}: {e}"))),
        Probe::Direct(address) => connect_direct(*address, ONE_QUESTION)
            .map(drop)
            .map_err(|e| io::Error::new(e.kind(), format!("{address}: {e}"))),
        Probe::Http(address, path) => match http_get(*address, path)? {
            (200, _) => Ok(()),
            (status, _) => Err(io::Error::other(format!(
                "http://{address}{path} answers {status}"
            ))),
        },
    }
}

/// Makes a connection that the rules of a pod take for its sidecar's, so that it reaches the application itself. Made
/// in the pod's namespace, by a process that may mark packets.
///
/// # Errors
/// When marking is not allowed, the port has no listener, or the bound passes.
pub fn connect_direct(address: SocketAddr, bound: Duration) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    mark(&socket, MARK_INWARD)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let bound = Timespec {
        tv_sec: bound.as_secs().cast_signed(),
        tv_nsec: bound.subsec_nanos().into(),
    };
    if poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&bound))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    socket_error(&socket)??;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[expect(unsafe_code, reason = "rustix cannot mark sockets")]
fn mark(socket: &OwnedFd, mark: u32) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<u32>()).map_err(io::Error::other)?;
    // SAFETY: the value is a u32 that lives during the call, and the size is its size.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MARK,
            (&raw const mark).cast(),
            size,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sends one `GET`; returns status and body. For readiness and statistics pages of this program's own processes.
///
/// # Errors
/// When the connection fails, or the answer is not HTTP/1.
pub fn http_get(address: SocketAddr, path: &str) -> io::Result<(u16, Vec<u8>)> {
    http("GET", address, path)
}

/// One `POST` without a body, one answer: for orders to processes that we started ourselves.
///
/// # Errors
/// As [`http_get`].
pub fn http_post(address: SocketAddr, path: &str) -> io::Result<(u16, Vec<u8>)> {
    http("POST", address, path)
}

fn http(method: &str, address: SocketAddr, path: &str) -> io::Result<(u16, Vec<u8>)> {
    let context = |e: io::Error| io::Error::new(e.kind(), format!("http://{address}{path}: {e}"));
    let mut stream = TcpStream::connect_timeout(&address, ONE_QUESTION).map_err(context)?;
    stream
        .set_read_timeout(Some(ONE_QUESTION))
        .map_err(context)?;
    stream
        .set_write_timeout(Some(ONE_QUESTION))
        .map_err(context)?;
    let body = match method {
        "POST" => "Content-Length: 0\r\n",
        _ => "",
    };
    // In one piece: a server that detects the protocol by the first bytes may not wait for the rest.
    let asked =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{body}Connection: close\r\n\r\n");
    stream.write_all(asked.as_bytes()).map_err(context)?;
    let answer = Answer::read(&mut stream, ANSWER_LIMIT_BYTES).map_err(context)?;
    match answer.body().len() > ANSWER_LIMIT_BYTES {
        true => Err(context(io::ErrorKind::FileTooLarge.into())),
        false => Ok((answer.status(), answer.into_body())),
    }
}
