//! Short messages between two processes of one user on one machine, each with at most one descriptor. A proxy hands
//! its listening sockets to its successor this way. A packet is whole or absent (SOCK_SEQPACKET), and the kernel
//! names the user at the other end.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Longest message, in bytes: a role, an address, a reason.
const MAX_PACKET: usize = 1024;

/// Conversations that wait to be accepted: one successor at a time is plenty.
const BACKLOG: i32 = 4;

/// One message.
#[derive(Debug)]
pub struct Packet {
    /// The text.
    pub text: String,
    /// Descriptor that came with it.
    pub descriptor: Option<OwnedFd>,
}

/// Both ends of a conversation block until they are made [`AsyncPackets`].
#[derive(Debug)]
pub struct Packets(OwnedFd);

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags | SocketFlags::CLOEXEC,
        None,
    )?)
}

#[expect(
    unsafe_code,
    reason = "AsyncFd asks for a promise that the descriptor stays open while registered"
)]
fn registered(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the OwnedFd owns its descriptor, moves into the AsyncFd and is never replaced there.
    unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE | Interest::WRITABLE) }
        .map_err(|e| e.into_parts().1)
}

/// Refuses a peer of another user.
fn check_peer(socket: &OwnedFd) -> io::Result<()> {
    let peer = peer_user(socket)?;
    let own = rustix::process::geteuid().as_raw();
    if peer == own {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("a process of user {peer} is at the other end, this one runs as user {own}"),
    ))
}

/// The user of the process at the other end. rustix refuses a process of another container, which has no number here.
#[expect(unsafe_code, reason = "getsockopt; a plain struct is written")]
fn peer_user(socket: &OwnedFd) -> io::Result<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, the pointer and the length describe one live ucred.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok(peer.uid),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Packets {
    /// Connects; `None` without a listener. Every message must come within `patience`.
    ///
    /// # Errors
    /// When a process of another user listens there, or the path is unusable.
    pub fn connect(path: &Path, patience: Duration) -> io::Result<Option<Self>> {
        let socket = socket(SocketFlags::empty())?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        check_peer(&socket)?;
        Ok(Some(Self(socket)))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the other end is gone or takes nothing.
    pub fn send(&self, text: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        send(self.0.as_fd(), text, descriptor)
    }

    /// Takes the next message; `None` is the end.
    ///
    /// # Errors
    /// When it does not come in time, or is none of ours.
    pub fn receive(&self) -> io::Result<Option<Packet>> {
        receive(self.0.as_fd())
    }

    /// The same conversation on this thread's runtime.
    ///
    /// # Errors
    /// When it cannot be registered.
    pub fn into_async(self) -> io::Result<AsyncPackets> {
        rustix::io::ioctl_fionbio(&self.0, true)?;
        Ok(AsyncPackets(registered(self.0)?))
    }
}

/// A conversation that waits without blocking the thread.
#[derive(Debug)]
pub struct AsyncPackets(AsyncFd<OwnedFd>);

impl AsyncPackets {
    /// Sends a message.
    ///
    /// # Errors
    /// When the other end is gone.
    pub async fn send(&self, text: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        loop {
            let mut ready = self.0.writable().await?;
            let sent = ready.try_io(|socket| send(socket.as_fd(), text, descriptor));
            if let Ok(sent) = sent {
                return sent;
            }
        }
    }

    /// Takes the next message; `None` is the end.
    ///
    /// # Errors
    /// When it is none of ours.
    pub async fn receive(&self) -> io::Result<Option<Packet>> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(received) = ready.try_io(|socket| receive(socket.as_fd())) {
                return received;
            }
        }
    }
}

/// Listener for conversations. The path belongs to the last process that bound it.
#[derive(Debug)]
pub struct PacketListener {
    socket: AsyncFd<OwnedFd>,
    path: PathBuf,
    /// Device and inode, by which we know that the path is still ours.
    identity: (u64, u64),
}

impl PacketListener {
    /// Listens at `path`, replacing an earlier listener without a gap.
    ///
    /// # Errors
    /// When the folder is not there or belongs to another user.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        remove(&fresh)?;
        let socket = socket(SocketFlags::NONBLOCK)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(fresh.as_path())?)?;
        let listen = || {
            std::fs::set_permissions(&fresh, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
            rustix::net::listen(&socket, BACKLOG)?;
            let metadata = std::fs::metadata(&fresh)?;
            std::fs::rename(&fresh, path)?;
            io::Result::Ok((metadata.dev(), metadata.ino()))
        };
        let identity = listen().inspect_err(|_| {
            // Removes the new socket; the first error is the one that matters.
            let _ = remove(&fresh);
        })?;
        Ok(Self {
            socket: registered(socket)?,
            path: path.to_owned(),
            identity,
        })
    }

    /// The next conversation with a process of our user; others are turned away.
    ///
    /// # Errors
    /// When the socket broke.
    pub async fn accept(&self) -> io::Result<AsyncPackets> {
        loop {
            let mut ready = self.socket.readable().await?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(self.socket.get_ref(), flags) {
                Ok(socket) => match check_peer(&socket) {
                    Ok(()) => return Ok(AsyncPackets(registered(socket)?)),
                    Err(error) => tracing::warn!(%error, "a handover connection was refused"),
                },
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for PacketListener {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if ours {
            // Left behind, it would only be replaced by the next.
            let _ = remove(&self.path);
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn send(socket: BorrowedFd<'_>, text: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut room);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let text = [IoSlice::new(text.as_bytes())];
    rustix::net::sendmsg(socket, &text, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Packet>> {
    let mut bytes = [0; MAX_PACKET];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut room);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            descriptor = descriptors.next();
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&bytes[..received.bytes]).into_owned();
    Ok(Some(Packet { text, descriptor }))
}
