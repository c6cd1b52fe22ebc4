//! Handover of a gateway's UDP socket to another process. Connections stay with the process where they began. A connection's ID
//! begins with its process's stamp, so the reader of the socket knows a packet's process and passes on packets of older ones.
//! Older processes answer by the same socket.
//!
//! ```text
//! socket ─► the newest process ─┬─ its own stamp, or none: its endpoint
//!                               └─ an older one's ═ line ═► that process's endpoint ─► socket
//! ```
//! If the line's other end is gone, an older process reads the socket again.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram as Line;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use aws_lc_rs::rand;
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags,
    SocketType,
};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// Bytes of a stamp: by chance one in four thousand million first packets of clients bears an older process's, and its client asks again.
const STAMP_BYTES: usize = 4;

/// Bytes of a connection's number: the stamp, and as many again as chance gives.
const NUMBER_BYTES: usize = 8;

/// Which process a connection is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessStamp([u8; STAMP_BYTES]);

impl ProcessStamp {
    pub(crate) fn fresh() -> Self {
        let mut bytes = [0; STAMP_BYTES];
        rand::fill(&mut bytes).expect("invariant: the system has randomness");
        Self(bytes)
    }

    /// Stamp of a datagram, if its first packet's head is long enough. Clients choose the connection ID of their first packet,
    /// which bears no stamp.
    fn of(datagram: &[u8]) -> Option<Self> {
        /// Flag of a long header, which also holds version and length of the connection ID.
        const LONG: u8 = 0x80;
        const LENGTH_AT: usize = 5;
        let number = match datagram.first()? & LONG {
            0 => &datagram[1..],
            _ if usize::from(*datagram.get(LENGTH_AT)?) == NUMBER_BYTES => {
                &datagram[LENGTH_AT + 1..]
            }
            _ => return None,
        };
        let number = number.get(..NUMBER_BYTES)?;
        Some(Self(*number.first_chunk()?))
    }
}

impl std::fmt::Display for ProcessStamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl FromStr for ProcessStamp {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(u32::from_str_radix(text, 16)?.to_be_bytes()))
    }
}

/// Generator of connection IDs.
#[derive(Debug)]
pub(super) struct Numbers(pub(super) ProcessStamp);

impl ConnectionIdGenerator for Numbers {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut number = [0; NUMBER_BYTES];
        let (stamp, rest) = number.split_at_mut(STAMP_BYTES);
        stamp.copy_from_slice(&self.0.0);
        rand::fill(rest).expect("invariant: the system has randomness");
        ConnectionId::new(&number)
    }

    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        match cid.starts_with(&self.0.0) {
            true => Ok(()),
            false => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        NUMBER_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

/// Line for datagrams from the successor (first) to us: each arrives whole, and the end of the line is
/// noticed.
pub(crate) fn line() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Returns true if a process holds the line's other end, which never sends anything.
fn is_heard(line: &OwnedFd) -> bool {
    let mut byte = [0];
    let peeked = rustix::net::recv(line, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    matches!(peeked, Err(Errno::AGAIN))
}

/// Bytes that say of a datagram on a line where it came from, and how: congestion, client's address, port and scope, our own address.
const HEAD_BYTES: usize = 1 + 16 + 2 + 4 + 16;

fn head(meta: &RecvMeta) -> [u8; HEAD_BYTES] {
    let sixteen = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let scope = match meta.addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    };
    let own = meta.dst_ip.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
    let mut head = [0; HEAD_BYTES];
    head[0] = meta.ecn.map_or(0, |ecn| ecn as u8);
    head[1..17].copy_from_slice(&sixteen(meta.addr.ip()));
    head[17..19].copy_from_slice(&meta.addr.port().to_be_bytes());
    head[19..23].copy_from_slice(&scope.to_be_bytes());
    head[23..].copy_from_slice(&sixteen(own));
    head
}

fn meta(head: &[u8; HEAD_BYTES], length: usize) -> RecvMeta {
    let chunk = |at: usize| head[at..].first_chunk().copied().unwrap_or_default();
    let address = |at: usize| Ipv6Addr::from(head[at..].first_chunk().copied().unwrap_or([0; 16]));
    let port = u16::from_be_bytes([head[17], head[18]]);
    let addr = match address(1).to_ipv4_mapped() {
        Some(ip) => (ip, port).into(),
        None => SocketAddrV6::new(address(1), port, 0, u32::from_be_bytes(chunk(19))).into(),
    };
    let own = address(23);
    RecvMeta {
        addr,
        len: length,
        stride: length,
        ecn: EcnCodepoint::from_bits(head[0]),
        dst_ip: (!own.is_unspecified()).then(|| own.to_canonical()),
    }
}

/// The line to an older process.
#[derive(Debug)]
pub(crate) struct PredecessorLink {
    pub(crate) stamp: ProcessStamp,
    pub(crate) line: OwnedFd,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Socket {
    own: Arc<dyn AsyncUdpSocket>,
    /// Copy of the socket, for the successor.
    copy: UdpSocket,
    /// Only the endpoint's thread reads, so that the lock is never contended.
    state: Mutex<SuccessionState>,
}

#[derive(Debug, Default)]
struct SuccessionState {
    before: Vec<PredecessorLink>,
    /// Source of datagrams, if another process reads the socket.
    line: Option<UnixDatagram>,
    /// The endpoint's.
    waker: Option<Waker>,
}

impl Socket {
    /// A socket that is ours to read; older processes have those connections.
    pub(crate) fn new(socket: UdpSocket, before: Vec<PredecessorLink>) -> io::Result<Self> {
        Ok(Self {
            copy: socket.try_clone()?,
            own: TokioRuntime.wrap_udp_socket(socket)?,
            state: Mutex::new(SuccessionState {
                before,
                ..SuccessionState::default()
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, SuccessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another process reads the socket from now on, and passes our packets on.
    pub(crate) fn read_by(&self, line: OwnedFd) -> io::Result<()> {
        let line = UnixDatagram::from_std(Line::from(line))?;
        self.turn(Some(line));
        Ok(())
    }

    /// No other process reads: this one reads again.
    pub(crate) fn read_again(&self) {
        self.turn(None);
    }

    fn turn(&self, line: Option<UnixDatagram>) {
        let mut state = self.state();
        state.line = line;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Socket, and lines to older processes that still exist, for the successor.
    pub(crate) fn lend(&self) -> io::Result<(OwnedFd, Vec<PredecessorLink>)> {
        let mut state = self.state();
        state.before.retain(|before| is_heard(&before.line));
        let copies = state.before.iter().map(|before| {
            Ok(PredecessorLink {
                stamp: before.stamp,
                line: before.line.try_clone()?,
            })
        });
        let copies = copies.collect::<io::Result<_>>()?;
        Ok((self.copy.try_clone()?.into(), copies))
    }
}

impl SuccessionState {
    /// Removes the packets of older processes and passes them on.
    fn pass_on(&mut self, buffer: &mut [u8], meta: &mut RecvMeta) {
        let (mut at, mut kept) = (0, 0);
        while at < meta.len {
            let end = meta.len.min(at + meta.stride.max(1));
            if !self.passes(&buffer[at..end], meta) {
                buffer.copy_within(at..end, kept);
                kept += end - at;
            }
            at = end;
        }
        meta.len = kept;
    }

    /// Passes on a packet of an older process; returns true if it was one. A process that does not keep up
    /// loses packets, as on any network.
    fn passes(&mut self, datagram: &[u8], meta: &RecvMeta) -> bool {
        let of = |stamp| self.before.iter().position(|one| one.stamp == stamp);
        let Some(index) = ProcessStamp::of(datagram).and_then(of) else {
            return false;
        };
        let head = head(meta);
        let parts = [IoSlice::new(&head), IoSlice::new(datagram)];
        let mut nothing = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let line = self.before[index].line.as_fd();
        let is_there = !matches!(
            rustix::net::sendmsg(line, &parts, &mut nothing, flags),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
        );
        if !is_there {
            tracing::info!("the older process has no HTTP/3 connections left");
            self.before.swap_remove(index);
        }
        is_there
    }
}

/// The next datagram of a line; none at its end.
fn received(
    line: &UnixDatagram,
    cx: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<io::Result<Option<RecvMeta>>> {
    loop {
        ready!(line.poll_recv_ready(cx))?;
        let mut said = [0; HEAD_BYTES];
        let read = line.try_io(Interest::READABLE, || {
            let mut parts = [IoSliceMut::new(&mut said), IoSliceMut::new(&mut *buffer)];
            let mut nothing = RecvAncillaryBuffer::default();
            let flags = RecvFlags::DONTWAIT;
            Ok(rustix::net::recvmsg(line, &mut parts, &mut nothing, flags)?.bytes)
        });
        match read {
            Ok(0) => return Poll::Ready(Ok(None)),
            Ok(bytes) => {
                let length = bytes.saturating_sub(HEAD_BYTES);
                return Poll::Ready(Ok(Some(meta(&said, length))));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.own).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.own.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        while let Some(line) = &state.line {
            match ready!(received(line, cx, &mut bufs[0])) {
                Ok(Some(told)) => {
                    meta[0] = told;
                    return Poll::Ready(Ok(1));
                }
                Ok(None) | Err(_) => {
                    tracing::info!("the newer process no longer forwards HTTP/3 packets");
                    state.line = None;
                }
            }
        }
        let count = ready!(self.own.poll_recv(cx, bufs, meta))?;
        if !state.before.is_empty() {
            let all = bufs.iter_mut().zip(meta).take(count);
            all.for_each(|(buffer, meta)| state.pass_on(buffer, meta));
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.own.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.own.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.own.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.own.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_a_datagram_is_is_told_by_its_number_and_by_nothing_else() {
        let stamp = ProcessStamp([1, 2, 3, 4]);
        let own = Numbers(stamp).generate_cid();
        let packet = |first: u8, length: u8, number: &[u8]| {
            let mut packet = vec![first];
            if first & 0x80 != 0 {
                packet.extend_from_slice(&[0, 0, 0, 1, length]);
            }
            packet.extend_from_slice(number);
            packet.extend_from_slice(&[9; 20]);
            packet
        };
        let foreign = [7; 8];
        for (datagram, is_ours) in [
            (packet(0x40, 0, &own), true),
            (packet(0xe0, 8, &own), true),
            (packet(0xc0, 8, &own), true),
            (packet(0x40, 0, &foreign), false),
            (packet(0xc0, 8, &foreign), false),
            (packet(0xc0, 20, &own), false),
            (vec![], false),
            (vec![0x40], false),
            (vec![0xc0, 0, 0, 0, 1], false),
            ([&[0x40][..], &own[..7]].concat(), false),
            ([&[0xc0, 0, 0, 0, 1, 8][..], &own[..7]].concat(), false),
        ] {
            assert_eq!(
                ProcessStamp::of(&datagram) == Some(stamp),
                is_ours,
                "{datagram:x?}"
            );
        }
        assert_eq!(stamp.to_string().parse(), Ok(stamp));
        let (mut numbers, other) = (Numbers(stamp), Numbers(ProcessStamp([4, 3, 2, 1])));
        assert!(numbers.validate(&own).is_ok() && other.validate(&own).is_err());
        assert_ne!(numbers.generate_cid(), own);
    }

    #[test]
    fn where_a_datagram_came_from_survives_the_line() {
        for (addr, dst_ip, ecn) in [
            ("192.0.2.1:443", Some("127.0.0.1"), Some(EcnCodepoint::Ce)),
            ("[2001:db8::1]:1", Some("::1"), Some(EcnCodepoint::Ect0)),
            ("[fe80::1%7]:65535", None, None),
        ] {
            let before = RecvMeta {
                addr: addr.parse().expect("an address"),
                len: 5,
                stride: 5,
                ecn,
                dst_ip: dst_ip.map(|ip| ip.parse().expect("an address")),
            };
            let after = meta(&head(&before), 5);
            assert_eq!(
                (after.addr, after.len, after.stride, after.ecn, after.dst_ip),
                (before.addr, 5, 5, before.ecn, before.dst_ip)
            );
        }
    }

    #[test]
    fn of_datagrams_that_came_together_each_goes_where_it_belongs() {
        let (older, own) = (ProcessStamp([1; 4]), ProcessStamp([2; 4]));
        let datagram = |stamp: ProcessStamp, mark: u8, length: usize| {
            let mut all = vec![0x40];
            all.extend_from_slice(&stamp.0);
            all.resize(length, mark);
            all
        };
        let together = [
            datagram(older, 1, 100),
            datagram(own, 2, 100),
            datagram(older, 3, 100),
            datagram(own, 4, 60),
        ];
        let (to, from) = line().expect("a line");
        let mut state = SuccessionState::default();
        state.before.push(PredecessorLink {
            stamp: older,
            line: to,
        });
        let came = RecvMeta {
            addr: "192.0.2.1:443".parse().expect("an address"),
            len: 360,
            stride: 100,
            ..RecvMeta::default()
        };
        let (mut buffer, mut meta) = (together.concat(), came);
        state.pass_on(&mut buffer, &mut meta);
        assert_eq!(meta.len, 160);
        assert_eq!(buffer[..160], [&together[1][..], &together[3]].concat());
        let passed = || {
            let mut bytes = [0; 500];
            let length = rustix::net::recv(&from, &mut bytes, RecvFlags::DONTWAIT)
                .ok()?
                .0;
            Some(bytes[HEAD_BYTES..length].to_vec())
        };
        assert_eq!(passed().as_ref(), Some(&together[0]));
        assert_eq!(passed().as_ref(), Some(&together[2]));
        assert_eq!(passed(), None);
        // A process that is gone receives nothing.
        assert!(is_heard(&state.before[0].line));
        drop(from);
        assert!(!is_heard(&state.before[0].line));
        let (mut buffer, mut meta) = (together.concat(), came);
        state.pass_on(&mut buffer, &mut meta);
        assert_eq!((meta.len, state.before.len()), (360, 0));
    }
}
