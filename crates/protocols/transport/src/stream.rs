//! One type for every way bytes travel: plain TCP, TLS that we accepted, TLS that we opened. Bytes read during
//! detection come out first. A stream can be waited on without holding a buffer, so that idle connections cost little.

use std::cell::OnceCell;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::ahead::ReadAheadStream;
use crate::close::reset;
use crate::detect::Readable;

/// A TCP connection, and the bytes that detection already took from it.
#[derive(Debug)]
pub struct TcpIo {
    tcp: TcpStream,
    prefix: Vec<u8>,
    /// Bytes of the prefix that were taken; detection reads a few kilobytes at most.
    taken: u32,
    /// None where it is read by need.
    ahead: Option<Box<ReadAheadStream>>,
    /// Bytes the kernel took from us.
    written: u64,
    end: PeerEnd,
    /// The local address, asked of the kernel once, by the first user. Boxed: most connections are never asked.
    local: OnceCell<Box<SocketAddr>>,
}

/// The peer's unread data in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketEvents {
    /// Nothing: the connection is idle and open.
    None,
    /// Bytes.
    Bytes,
    /// The end of the stream, or its failure.
    End,
}

/// The peer's end of the connection, as far as the kernel reported it. The first report counts: after a reset was
/// reported once, the kernel reports an end of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerEnd {
    Open,
    Finished,
    Failed,
}

impl TcpIo {
    /// A connection from which `prefix` was already read.
    #[must_use]
    pub fn new(tcp: TcpStream, prefix: Vec<u8>) -> Self {
        Self {
            tcp,
            prefix,
            taken: 0,
            ahead: None,
            written: 0,
            end: PeerEnd::Open,
            local: OnceCell::new(),
        }
    }

    /// Returns the local address; none when the connection was gone before the first call.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        if self.local.get().is_none() {
            let address = Box::new(self.tcp.local_addr().ok()?);
            // Cannot fail: it was empty, and no other task ran.
            let _ = self.local.set(address);
        }
        self.local.get().map(|address| **address)
    }

    /// The socket itself.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Returns true if bytes wait here that the kernel gave already.
    fn holds(&self) -> bool {
        match &self.ahead {
            None => !self.prefix.is_empty(),
            Some(ahead) => ahead.holds() || !self.prefix.is_empty(),
        }
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() && (self.ahead.is_none() || !self.holds()) {
            return self.tcp.poll_read_ready(cx);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_tcp(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.tcp).poll_read(cx, buf));
        match &read {
            Ok(()) if buf.filled().len() == before && buf.remaining() > 0 => {
                self.note_end(PeerEnd::Finished);
            }
            Ok(()) => {}
            Err(_) => self.note_end(PeerEnd::Failed),
        }
        Poll::Ready(read)
    }

    fn give_prefix(&mut self, buf: &mut ReadBuf<'_>) {
        let rest = &self.prefix[self.taken as usize..];
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        self.taken += count as u32;
        if self.taken as usize == self.prefix.len() {
            self.prefix = Vec::new();
            self.taken = 0;
        }
    }

    fn note_end(&mut self, end: PeerEnd) {
        if self.end == PeerEnd::Open {
            self.end = end;
        }
    }

    /// Counts written bytes. A broken pipe says only that reading will tell more; other failures are the end.
    fn note_write(&mut self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(count)) => self.written += *count as u64,
            Poll::Ready(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                self.note_end(PeerEnd::Failed);
            }
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
    }
}

impl From<TcpStream> for TcpIo {
    fn from(tcp: TcpStream) -> Self {
        Self::new(tcp, Vec::new())
    }
}

impl AsyncRead for TcpIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.prefix.is_empty() {
            this.give_prefix(buf);
            return Poll::Ready(Ok(()));
        }
        // Asked first and taken then: most streams have none, and this is on the way of every byte.
        if this.ahead.is_none() {
            return this.poll_tcp(cx, buf);
        }
        let mut ahead = this.ahead.take().expect("invariant: it is some");
        let read = ahead.poll_read(buf, |buf| this.poll_tcp(cx, buf));
        this.ahead = Some(ahead);
        read
    }
}

impl AsyncWrite for TcpIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.tcp).poll_write(cx, buf);
        this.note_write(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // The kernel takes one piece with less work than a list of one, and most TLS records are one piece.
        if let [one] = bufs {
            return self.poll_write(cx, one);
        }
        let written = Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs);
        self.note_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

/// Bytes that travel as one stream of another connection.
pub trait TunnelledStream: Readable + AsyncWrite + std::fmt::Debug {
    /// As [`Stream::is_readable`].
    fn is_readable(&self) -> bool;
    /// As [`Stream::news`].
    fn news(&self) -> SocketEvents;
    /// Ready when it failed, even if no task reads.
    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<()>;
    /// Ends it so that it never looks finished.
    fn reset(&self);
    /// Returns the peer of the connection around it.
    fn peer(&self) -> SocketAddr;
    /// Our end of that, where it is known.
    fn local(&self) -> Option<SocketAddr>;
}

/// TLS whose handshake we answered, and decrypted bytes that detection put back.
#[derive(Debug)]
pub struct ServerTls {
    pub(crate) tls: tokio_rustls::server::TlsStream<TcpIo>,
    /// Boxed: few connections have any, and none for long.
    unread: Option<Box<io::Cursor<Vec<u8>>>>,
}

impl ServerTls {
    /// A connection right after its handshake.
    pub(crate) fn new(tls: tokio_rustls::server::TlsStream<TcpIo>) -> Self {
        Self { tls, unread: None }
    }

    /// Gives bytes that were put back; says whether there were any.
    fn give_unread(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let Some(unread) = &mut self.unread else {
            return false;
        };
        let rest = &unread.get_ref()[unread.position() as usize..];
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        match count == rest.len() {
            true => self.unread = None,
            false => unread.set_position(unread.position() + count as u64),
        }
        true
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.give_unread(buf) {
            true => Poll::Ready(Ok(())),
            false => Pin::new(&mut self.tls).poll_read(cx, buf),
        }
    }

    /// Returns true if plaintext, or its end, waits here: a session that does not want to read holds one of them.
    fn holds(&self) -> bool {
        self.unread.is_some() || !self.tls.get_ref().1.wants_read()
    }
}

/// A connection, however its bytes travel.
#[derive(Debug)]
pub enum TransportStream {
    /// Plain TCP.
    Tcp(TcpIo),
    /// TLS whose handshake we answered.
    ServerTls(Box<ServerTls>),
    /// TLS whose handshake we began.
    ClientTls(Box<tokio_rustls::client::TlsStream<TcpIo>>),
    /// Inside a connection that others share.
    Tunnel(Box<dyn TunnelledStream>),
}

/// The same call on whichever kind it is.
macro_rules! each {
    ($self:expr, $io:ident => $call:expr) => {
        match $self {
            TransportStream::Tcp($io) => $call,
            TransportStream::ServerTls(io) => {
                let $io = &mut io.tls;
                $call
            }
            TransportStream::ClientTls($io) => $call,
            TransportStream::Tunnel($io) => $call,
        }
    };
}

impl TransportStream {
    /// The socket at the bottom; none where others share it.
    fn io(&self) -> Result<&TcpIo, &dyn TunnelledStream> {
        match self {
            Self::Tcp(io) => Ok(io),
            Self::ServerTls(io) => Ok(io.tls.get_ref().0),
            Self::ClientTls(io) => Ok(io.get_ref().0),
            Self::Tunnel(io) => Err(&**io),
        }
    }

    fn io_mut(&mut self) -> Option<&mut TcpIo> {
        match self {
            Self::Tcp(io) => Some(io),
            Self::ServerTls(io) => Some(io.tls.get_mut().0),
            Self::ClientTls(io) => Some(io.get_mut().0),
            Self::Tunnel(_) => None,
        }
    }

    /// Enables reading ahead, if much data comes. Only for a reader that reads until nothing is left.
    pub fn read_ahead(&mut self) {
        if let Some(io) = self.io_mut() {
            io.ahead.get_or_insert_default();
        }
    }

    /// Puts bytes back that were read of a connection whose TLS we answered: they come out again first.
    pub fn unread(&mut self, bytes: Vec<u8>) {
        if let Self::ServerTls(io) = self
            && !bytes.is_empty()
        {
            debug_assert!(io.unread.is_none(), "bytes are put back once");
            io.unread = Some(Box::new(io::Cursor::new(bytes)));
        }
    }

    /// Ends it in a reset for the peer: a cut stream never looks finished.
    pub fn reset(&self) {
        match self {
            Self::Tunnel(io) => io.reset(),
            Self::Tcp(io) => reset(io.tcp()),
            Self::ServerTls(io) => reset(io.tls.get_ref().0.tcp()),
            Self::ClientTls(io) => reset(io.get_ref().0.tcp()),
        }
    }

    /// Returns true if the peer broke a plain TCP connection off, as far as the kernel reported it. The kernel
    /// reports that once, and an end of the stream from then on. Other kinds of stream tell the two apart themselves.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Tcp(io) if io.end == PeerEnd::Failed)
    }

    /// Ready when the peer broke it off; one that only said all may still read.
    pub async fn failed(&self) {
        match self.io() {
            Ok(io) => {
                // A socket that cannot be asked is as good as broken.
                let _ = io.tcp().ready(Interest::ERROR).await;
            }
            Err(carried) => std::future::poll_fn(|cx| carried.poll_failed(cx)).await,
        }
    }

    /// Returns true if the bytes travel encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        !matches!(self, Self::Tcp(_))
    }

    /// Returns the peer's address.
    ///
    /// # Errors
    /// When the connection is already gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self.io() {
            Ok(io) => io.tcp().peer_addr(),
            Err(carried) => Ok(carried.peer()),
        }
    }

    /// Our end of the socket, asked of the kernel once; none when the connection was gone before.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        match self.io() {
            Ok(io) => io.local(),
            Err(carried) => carried.local(),
        }
    }

    /// The protocol that ALPN settled on.
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Tcp(_) | Self::Tunnel(_) => None,
            Self::ServerTls(io) => io.tls.get_ref().1.alpn_protocol(),
            Self::ClientTls(io) => io.get_ref().1.alpn_protocol(),
        }
    }

    /// The name that the client of a handshake asked for.
    #[must_use]
    pub fn server_name(&self) -> Option<&str> {
        match self {
            Self::ServerTls(io) => io.tls.get_ref().1.server_name(),
            Self::Tcp(_) | Self::ClientTls(_) | Self::Tunnel(_) => None,
        }
    }

    /// The cipher suite in use; none without TLS.
    #[must_use]
    pub fn cipher_suite(&self) -> Option<rustls::CipherSuite> {
        let suite = match self {
            Self::Tcp(_) | Self::Tunnel(_) => None,
            Self::ServerTls(io) => io.tls.get_ref().1.negotiated_cipher_suite(),
            Self::ClientTls(io) => io.get_ref().1.negotiated_cipher_suite(),
        };
        suite.map(|suite| suite.suite())
    }

    /// The verified certificates of the peer, its own first; empty without TLS.
    #[must_use]
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        let chain = match self {
            Self::Tcp(_) | Self::Tunnel(_) => None,
            Self::ServerTls(io) => io.tls.get_ref().1.peer_certificates(),
            Self::ClientTls(io) => io.get_ref().1.peer_certificates(),
        };
        chain.unwrap_or_default()
    }

    /// Ready when a read would probably yield bytes, the end or an error. A TLS record that carries no data makes it
    /// ready too, so a read after it may still have to wait.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(io) => io.poll_readable(cx),
            Self::ServerTls(io) if io.holds() => Poll::Ready(Ok(())),
            Self::ServerTls(io) => io.tls.get_ref().0.poll_readable(cx),
            // A session that does not want to read holds plaintext, or has seen the end.
            Self::ClientTls(io) => match io.get_ref() {
                (_, session) if !session.wants_read() => Poll::Ready(Ok(())),
                (io, _) => io.poll_readable(cx),
            },
            Self::Tunnel(io) => io.poll_readable(cx),
        }
    }

    /// Returns true if [`Stream::poll_readable`] would be ready, without waiting for it.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let told = match self {
            Self::Tcp(io) => io.holds(),
            Self::ServerTls(io) => io.holds(),
            Self::ClientTls(io) => !io.get_ref().1.wants_read(),
            Self::Tunnel(io) => io.is_readable(),
        };
        // Nothing is read: this only checks the runtime's readiness, and leaves it as it is.
        let known = |io: &TcpIo| io.tcp().try_io(Interest::READABLE, || Ok(())).is_ok();
        told || self.io().is_ok_and(known)
    }

    /// Waits as [`Stream::poll_readable`] does; holds nothing but the stream while waiting.
    ///
    /// # Errors
    /// When the socket's registration fails.
    pub async fn readable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_readable(cx)).await
    }

    /// Reports if the peer has sent something or gone away already. Asks the kernel, in one system call. A pool's
    /// readiness is as old as the last look at all sockets, and a request must not be written behind the peer's end.
    #[must_use]
    pub fn news(&mut self) -> SocketEvents {
        let io = match self.io() {
            Ok(io) => io,
            Err(carried) => return carried.news(),
        };
        if io.ahead.as_ref().is_some_and(|ahead| ahead.holds()) {
            return SocketEvents::Bytes;
        }
        let mut byte = [0u8; 1];
        let peeked = rustix::net::recv(
            io.tcp(),
            &mut byte,
            rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT,
        );
        match peeked {
            Err(rustix::io::Errno::AGAIN) => SocketEvents::None,
            Err(_) => {
                // The kernel tells of a failure once.
                if let Some(io) = self.io_mut() {
                    io.note_end(PeerEnd::Failed);
                }
                SocketEvents::End
            }
            Ok((0, _)) => SocketEvents::End,
            Ok(_) => SocketEvents::Bytes,
        }
    }

    /// Returns true if the peer has closed its sending side, however much of its data is unread. Asks the kernel, in one system
    /// call; of a stream inside another connection, that one.
    #[must_use]
    pub fn has_left(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let io = match self.io() {
            Ok(io) => io,
            Err(carried) => return carried.news() == SocketEvents::End,
        };
        let mut polled = [PollFd::new(io.tcp(), PollFlags::RDHUP)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Bytes the kernel took from us so far, as they travel: a mark for [`Stream::closed_before`].
    #[must_use]
    pub fn written(&self) -> u64 {
        self.io().map_or(0, |io| io.written)
    }

    /// Returns true if the peer closed its sending side before its kernel had received any byte written after `mark`.
    ///
    /// A TCP segment acknowledges all that its sender had received. So if the peer's FIN is here and every byte
    /// written after the mark is still unacknowledged, the peer had received none of them when it closed. A reset
    /// proves nothing: its acknowledgement is not looked at. Nothing is known of a stream inside another connection.
    #[must_use]
    pub fn closed_before(&self, mark: u64) -> bool {
        let Ok(io) = self.io() else {
            return false;
        };
        let told_goodbye = match self {
            Self::Tcp(_) | Self::Tunnel(_) => false,
            Self::ServerTls(io) => !io.tls.get_ref().1.wants_read(),
            Self::ClientTls(io) => !io.get_ref().1.wants_read(),
        };
        let finished = io.end == PeerEnd::Finished || (io.end == PeerEnd::Open && told_goodbye);
        let after = io.written - mark.min(io.written);
        finished && (after == 0 || unacknowledged(io.tcp()).is_some_and(|count| count >= after))
    }
}

/// Bytes that the kernel took and the peer has not acknowledged.
#[expect(
    unsafe_code,
    reason = "no safe wrapper offers TIOCOUTQ; it writes one int"
)]
fn unacknowledged(tcp: &TcpStream) -> Option<u64> {
    use std::os::fd::AsRawFd;
    let mut count: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the pointer is that of one live c_int.
    let result = unsafe { libc::ioctl(tcp.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    (result == 0).then(|| u64::try_from(count).ok()).flatten()
}

impl Readable for TransportStream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_readable(self, cx)
    }
}

impl AsyncRead for TransportStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_read(cx, buf),
            Self::ServerTls(io) => io.poll_read(cx, buf),
            Self::ClientTls(io) => Pin::new(io).poll_read(cx, buf),
            Self::Tunnel(io) => Pin::new(io).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for TransportStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), io => Pin::new(io).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), io => Pin::new(io).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), io => Pin::new(io).poll_flush(cx))
    }

    /// Says that no more will come: close_notify and then FIN with TLS, FIN without. Reading goes on.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(each!(self.get_mut(), io => Pin::new(io).poll_shutdown(cx)));
        Poll::Ready(match result {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            other => other,
        })
    }
}
