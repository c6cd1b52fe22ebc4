//! Messages between inside and outside, over a socket that the fork left to both. Each packet holds one message, and
//! sometimes a listening socket of the host's network.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The longest word: a command and its variables.
const WORD_BYTES: usize = 128 * 1024;
/// Between the parts of a word.
const PART: char = '\0';

/// A kind of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// TCP.
    Stream,
    /// UDP.
    Datagrams,
}

/// One word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SocketMessage {
    /// Inside is set up.
    Ready,
    /// It is not, because.
    Failed(String),
    /// Listen there for us.
    Listen(SocketAddr),
    /// Here it is (the socket comes along), or why not.
    Listening(Result<(), i32>),
    /// Make a socket of this kind for us, of IPv6 or not; answered as `Listen` is.
    Open(SocketKind, bool),
    /// Run this by the shell, with these variables.
    Run(String, Vec<(String, String)>),
    /// It ended.
    Ended(u8),
    /// End it.
    Stop,
}

impl SocketMessage {
    fn encode(&self) -> String {
        let part = PART;
        match self {
            Self::Ready => "ready".to_owned(),
            Self::Failed(reason) => format!("failed{part}{reason}"),
            Self::Listen(address) => format!("listen{part}{address}"),
            Self::Listening(Ok(())) => format!("listening{part}0"),
            Self::Listening(Err(code)) => format!("listening{part}{code}"),
            Self::Open(SocketKind::Stream, v6) => format!("open{part}{v6}{part}stream"),
            Self::Open(SocketKind::Datagrams, v6) => format!("open{part}{v6}{part}datagrams"),
            Self::Run(command, variables) => {
                let mut text = format!("run{part}{command}");
                for (name, value) in variables {
                    text.push_str(&format!("{part}{name}={value}"));
                }
                text
            }
            Self::Ended(code) => format!("ended{part}{code}"),
            Self::Stop => "stop".to_owned(),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(PART).unwrap_or((text, ""));
        Some(match kind {
            "ready" => Self::Ready,
            "failed" => Self::Failed(rest.to_owned()),
            "listen" => Self::Listen(rest.parse().ok()?),
            "listening" => Self::Listening(match rest.parse().ok()? {
                0 => Ok(()),
                code => Err(code),
            }),
            "open" => match rest.split_once(PART)? {
                (v6, "stream") => Self::Open(SocketKind::Stream, v6.parse().ok()?),
                (v6, "datagrams") => Self::Open(SocketKind::Datagrams, v6.parse().ok()?),
                _ => return None,
            },
            "run" => {
                let mut parts = rest.split(PART);
                let command = parts.next()?.to_owned();
                let variables = parts.filter_map(|part| {
                    let (name, value) = part.split_once('=')?;
                    Some((name.to_owned(), value.to_owned()))
                });
                Self::Run(command, variables.collect())
            }
            "ended" => Self::Ended(rest.parse().ok()?),
            "stop" => Self::Stop,
            _ => return None,
        })
    }
}

pub(super) fn send(socket: &OwnedFd, word: &SocketMessage) -> io::Result<()> {
    send_with(socket, word, None)
}

pub(super) fn send_with(
    socket: &OwnedFd,
    word: &SocketMessage,
    passed: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let text = word.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = passed.map(|passed| [passed]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let data = [IoSlice::new(text.as_bytes())];
    sendmsg(socket, &data, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next word; an error when the other side is gone.
pub(super) fn receive(socket: &OwnedFd) -> io::Result<(SocketMessage, Option<OwnedFd>)> {
    let mut bytes = vec![0; WORD_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.into_iter().next();
        }
    }
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let text = std::str::from_utf8(&bytes[..received.bytes]);
    let word = text.ok().and_then(SocketMessage::decode);
    let strange = || io::Error::new(io::ErrorKind::InvalidData, "an unknown message");
    Ok((word.ok_or_else(strange)?, descriptor))
}

/// The inside's way to the outside.
#[derive(Debug, Clone)]
pub struct InsideSocket(Arc<Mutex<OutsideSocket>>);

#[derive(Debug)]
struct OutsideSocket {
    socket: OwnedFd,
    ended: Option<u8>,
}

impl InsideSocket {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(Arc::new(Mutex::new(OutsideSocket {
            socket,
            ended: None,
        })))
    }

    pub(super) fn ready(&self) {
        self.with(|ours| {
            // An outside that is gone takes us with it.
            let _ = send(&ours.socket, &SocketMessage::Ready);
        });
    }

    /// Listens in the host's network; accepted connections can be used here.
    ///
    /// # Errors
    /// As binding there fails.
    pub fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        self.ask(&SocketMessage::Listen(address))
            .map(TcpListener::from)
    }

    /// A socket of the host's network that is not connected, and never waits; where it is used makes no difference.
    ///
    /// # Errors
    /// As making it there fails.
    pub fn outward(&self, kind: SocketKind, v6: bool) -> io::Result<OwnedFd> {
        self.ask(&SocketMessage::Open(kind, v6))
    }

    fn ask(&self, question: &SocketMessage) -> io::Result<OwnedFd> {
        self.with(|ours| {
            send(&ours.socket, question)?;
            loop {
                match receive(&ours.socket)? {
                    (SocketMessage::Listening(Ok(())), Some(socket)) => return Ok(socket),
                    (SocketMessage::Listening(Err(code)), _) => {
                        return Err(io::Error::from_raw_os_error(code));
                    }
                    (SocketMessage::Ended(code), _) => ours.ended = Some(code),
                    (word, _) => {
                        let text = format!("unexpected answer to a socket request: {word:?}");
                        return Err(io::Error::other(text));
                    }
                }
            }
        })
    }

    /// Runs a command by the host's shell, in the host's namespaces.
    ///
    /// # Errors
    /// When the outside is gone.
    pub fn run(&self, command: &str, variables: Vec<(String, String)>) -> io::Result<()> {
        self.with(|ours| {
            ours.ended = None;
            send(
                &ours.socket,
                &SocketMessage::Run(command.to_owned(), variables),
            )
        })
    }

    /// Its exit code, once it has ended; never waits.
    ///
    /// # Errors
    /// When the outside is gone.
    pub fn ended(&self) -> io::Result<Option<u8>> {
        self.with(|ours| {
            if ours.ended.is_none()
                && is_readable(&ours.socket, Duration::ZERO)?
                && let (SocketMessage::Ended(code), _) = receive(&ours.socket)?
            {
                ours.ended = Some(code);
            }
            Ok(ours.ended)
        })
    }

    /// Ends the command.
    pub fn stop(&self) {
        self.with(|ours| {
            let _ = send(&ours.socket, &SocketMessage::Stop);
        });
    }

    fn with<T>(&self, task: impl FnOnce(&mut OutsideSocket) -> T) -> T {
        // Each use sends and receives whole words: half-done work cannot be seen.
        task(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_readable(socket: &OwnedFd, bound: Duration) -> io::Result<bool> {
    let bound = Timespec {
        tv_sec: bound.as_secs().cast_signed(),
        tv_nsec: bound.subsec_nanos().into(),
    };
    Ok(poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&bound))? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_arrive_as_they_were_sent() {
        let variables = vec![
            ("URL".to_owned(), "http://127.0.0.1:80/?a=b".to_owned()),
            ("EMPTY".to_owned(), String::new()),
        ];
        for word in [
            SocketMessage::Ready,
            SocketMessage::Failed("because\nof this".to_owned()),
            SocketMessage::Listen(([127, 0, 0, 1], 80).into()),
            SocketMessage::Listening(Ok(())),
            SocketMessage::Listening(Err(98)),
            SocketMessage::Open(SocketKind::Stream, true),
            SocketMessage::Open(SocketKind::Datagrams, false),
            SocketMessage::Run("echo \"$URL\"".to_owned(), variables),
            SocketMessage::Run("true".to_owned(), vec![]),
            SocketMessage::Ended(7),
            SocketMessage::Stop,
        ] {
            assert_eq!(SocketMessage::decode(&word.encode()), Some(word));
        }
        for strange in [
            "",
            "listen\0x",
            "listening\0",
            "open\0true\0raw",
            "open\0",
            "ended\x00300",
            "other",
        ] {
            assert_eq!(SocketMessage::decode(strange), None, "{strange:?}");
        }
    }
}
