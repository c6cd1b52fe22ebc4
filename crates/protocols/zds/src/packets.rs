//! Socket of the protocol: SEQPACKET, so that a packet is a message, and a descriptor may travel with it. A packet
//! that is too long, or brings more than one descriptor, is refused whole. The kernel closes descriptors that were
//! not taken.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use prost::Message;
use rustix::fs::{FileType, Mode, chmod, lstat, stat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    bind, connect, listen, recv, recvmsg, sendmsg, socket_with,
};
use rustix::process::geteuid;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use voile_proto::zds as wire;
use voile_proto::zds::workload_response::Payload;

use crate::messages::AgentMessage;

/// Longest message, in bytes: three names and a uid, of 253 at most each; ztunnel reads 1,024.
const MAX_MESSAGE_BYTES: usize = 4096;

/// Proxies that wait to be accepted: an old one and a new one at a time.
const BACKLOG: i32 = 16;

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(made)
}

fn strange(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

/// Checks that the other end runs as this process's own user or as root. An agent gives away network namespaces, and
/// a proxy takes its word for a pod's identity.
fn is_trusted(stream: &UnixStream) -> io::Result<()> {
    // Not by rustix, which refuses a peer in another container: its process has no number here.
    let uid = stream.peer_cred()?.uid();
    match uid == 0 || uid == geteuid().as_raw() {
        true => Ok(()),
        false => {
            let reason = format!("the peer runs as user {uid}, not as this one");
            Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
        }
    }
}

/// Refuses a folder in which other users may replace this user's files.
fn folder_is_ours(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let folder = stat(parent.unwrap_or(Path::new(".")))?;
    let mode = Mode::from_raw_mode(folder.st_mode);
    let by_others = mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX);
    let owned = folder.st_uid == 0 || folder.st_uid == geteuid().as_raw();
    match owned && !by_others {
        true => Ok(()),
        false => {
            let reason = "its folder belongs to another user, or is writable by others";
            Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
        }
    }
}

/// Removes a socket without a listener; anything else stays.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let there = lstat(path)?;
    let taken = |reason| io::Error::new(io::ErrorKind::AddrInUse, reason);
    if FileType::from_raw_mode(there.st_mode) != FileType::Socket {
        return Err(taken("the path exists and is not a socket"));
    }
    match connect(new_socket()?, address) {
        Err(Errno::CONNREFUSED) => Ok(std::fs::remove_file(path)?),
        _ => Err(taken("another agent listens there")),
    }
}

/// Listener of an agent, for proxies.
#[derive(Debug)]
pub struct Agents(UnixListener);

impl Agents {
    /// Listens there, for its own user and root alone. A socket that an agent before it left behind is replaced.
    ///
    /// # Errors
    /// Another agent listens there, the path is something else than a socket, too long, or not permitted, or others may write in its
    /// folder and could put a socket of theirs in its place.
    pub fn listen(path: &Path) -> io::Result<Self> {
        folder_is_ours(path)?;
        let address = SocketAddrUnix::new(path)?;
        let socket = new_socket()?;
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_stale(path, &address)?;
                bind(&socket, &address)?;
            }
            bound => bound?,
        }
        // No client can connect before it listens, so there is no moment at which all users may.
        chmod(path, Mode::RUSR | Mode::WUSR)?;
        listen(&socket, BACKLOG)?;
        Ok(Self(UnixListener::from_std(socket.into())?))
    }

    /// The next proxy, which has said hello.
    ///
    /// # Errors
    /// The socket is broken, or a caller said something else; another may be accepted after that.
    pub async fn accept(&self) -> io::Result<Channel> {
        let (stream, _) = self.0.accept().await?;
        is_trusted(&stream)?;
        let channel = Channel(stream);
        let (bytes, _) = channel.receive().await?.ok_or_else(gone)?;
        let hello = wire::ZdsHello::decode(&*bytes).map_err(|error| strange(error.to_string()))?;
        match hello.version == wire::Version::V1 as i32 {
            true => Ok(channel),
            false => Err(strange(format!(
                "a proxy of version {}, expected 1",
                hello.version
            ))),
        }
    }
}

fn gone() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

/// A conversation, seen from either end.
#[derive(Debug)]
pub struct Channel(UnixStream);

impl Channel {
    /// Connects to an agent and says hello.
    ///
    /// # Errors
    /// There is no listener, or not now.
    pub async fn connect(path: &Path) -> io::Result<Self> {
        let socket = new_socket()?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        let channel = Self(UnixStream::from_std(socket.into())?);
        is_trusted(&channel.0)?;
        let version = wire::Version::V1.into();
        let hello = wire::ZdsHello { version }.encode_to_vec();
        channel.send(&hello, None).await?;
        Ok(channel)
    }

    /// The proxy's end: the agent's next word; none when it ended the conversation. A word that cannot be understood is
    /// answered, with the reason, and is an error.
    ///
    /// # Errors
    /// The socket broke, or the word is none.
    pub async fn hear(&self) -> io::Result<Option<AgentMessage>> {
        let word = match self.receive().await {
            Ok(None) => return Ok(None),
            Ok(Some((bytes, inside))) => AgentMessage::decode(&bytes, inside).map_err(strange),
            Err(error) => Err(error),
        };
        match word {
            Ok(told) => Ok(Some(told)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.answer(Err(&error.to_string())).await?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// The proxy's end: yes, or why not.
    ///
    /// # Errors
    /// The socket broke.
    pub async fn answer(&self, answer: Result<(), &str>) -> io::Result<()> {
        let error = answer.err().unwrap_or_default().to_owned();
        let payload = Some(Payload::Ack(wire::Ack { error }));
        let answer = wire::WorkloadResponse { payload }.encode_to_vec();
        self.send(&answer, None).await
    }

    /// The agent's end: tells, and waits for the answer, which may be a no.
    ///
    /// # Errors
    /// The socket broke, or the proxy is gone.
    pub async fn tell(&self, told: &AgentMessage) -> io::Result<Result<(), String>> {
        let (bytes, inside) = told.encode();
        self.send(&bytes, inside).await?;
        let (bytes, _) = self.receive().await?.ok_or_else(gone)?;
        let answer = wire::WorkloadResponse::decode(&*bytes);
        match answer.map_err(|error| strange(error.to_string()))?.payload {
            Some(Payload::Ack(ack)) if ack.error.is_empty() => Ok(Ok(())),
            Some(Payload::Ack(ack)) => Ok(Err(ack.error)),
            None => Err(strange("the response has no payload")),
        }
    }

    /// Ready when the other end is gone, or has said something unasked.
    pub async fn ended(&self) {
        // Asks the kernel: the runtime's readiness may come from a message that was taken long ago. Any result means
        // that the conversation is over.
        let look = || Ok(recv(&self.0, &mut [0; 1], RecvFlags::PEEK)?);
        let _ = self.0.async_io(Interest::READABLE, look).await;
    }

    async fn send(&self, bytes: &[u8], inside: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let send = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut with = SendAncillaryBuffer::new(&mut space);
            let descriptors = inside.map(|inside| [inside]);
            if let Some(descriptors) = &descriptors {
                with.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            let data = [IoSlice::new(bytes)];
            sendmsg(&self.0, &data, &mut with, SendFlags::NOSIGNAL)?;
            Ok(())
        };
        self.0.async_io(Interest::WRITABLE, send).await
    }

    async fn receive(&self) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
        let receive = || receive(&self.0);
        self.0.async_io(Interest::READABLE, receive).await
    }
}

fn receive(socket: &UnixStream) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        let reason = format!("a message of more than {MAX_MESSAGE_BYTES} bytes");
        return Err(strange(reason));
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > 1 {
        return Err(strange("more than one descriptor"));
    }
    bytes.truncate(received.bytes);
    Ok(Some((bytes, descriptors.pop())))
}
