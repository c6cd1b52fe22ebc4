//! Observes the traffic of a hop from outside: a packet capture on the loopback interface (needs CAP_NET_RAW), reduced to counts
//! while it runs. Markers are found across segment borders; the packets themselves are not kept.

mod packets;
mod streams;

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use voile_host::device::device_of;

use crate::machine::instance::{Hop, WatchPoint};
use packets::{Segment, parse};
use streams::Streams;

/// Socket buffer: holds a proof's whole traffic, so that a slow moment loses nothing.
const BUFFER_BYTES: i32 = 32 << 20;
/// The largest packet on loopback.
const PACKET_BYTES: usize = 65_536 + 64;
/// Time that the capture thread sleeps before it checks if it must end.
const LOOK_EVERY_MS: i64 = 50;
/// Bytes kept of a stream until its hello is found.
const HELLO_BYTES: usize = 4096;
/// Deadline for reading the packets that were queued when a capture was told to end.
const QUEUED: Duration = Duration::from_secs(5);

/// Counts of one hop.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HopCapture {
    /// Bytes of payload, both ways.
    pub(crate) bytes: u64,
    /// Times the marker was sent towards the listener: requests in plaintext.
    pub(crate) markers_in: u64,
    /// Times the marker travelled either way.
    pub(crate) markers: u64,
    /// Segments that began with a TLS application-data record.
    pub(crate) tls_records: u64,
    /// Parameters that the server's hello negotiated, if the capture saw one.
    pub(crate) hello: Option<Hello>,
    /// Figures of a timed capture; an agent makes none.
    #[serde(skip)]
    pub(crate) timed: TimedCapture,
}

/// Counts of a timed capture within its window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TimedCapture {
    /// Both ways, acknowledgements included. Loopback and offloading devices carry segments that a wire would see in pieces.
    pub(crate) packets: u64,
    /// Bytes of all packets, from the IP header on.
    pub(crate) wire_bytes: u64,
    /// From the last segment of a request to the first of its answer, by the kernel's clock.
    pub(crate) answers_ns: Vec<u64>,
}

/// From when to when a capture is timed, in nanoseconds of Unix time.
pub(crate) type Window = (u64, u64);

/// Largest number of answers whose times are kept on one hop.
pub(crate) const MAX_ANSWERS: usize = 1 << 20;

/// Parameters of a TLS server's hello.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// `0x0304` is TLS 1.3.
    pub(crate) version: u16,
    pub(crate) suite: u16,
    pub(crate) group: Option<u16>,
}

impl Hello {
    /// The registered names, or numbers where we do not know one.
    pub(crate) fn in_words(&self) -> String {
        let version = match self.version {
            0x0304 => "TLSv1.3".to_owned(),
            0x0303 => "TLSv1.2".to_owned(),
            other => format!("version {other:#06x}"),
        };
        let suite = match self.suite {
            0x1301 => "TLS_AES_128_GCM_SHA256".to_owned(),
            0x1302 => "TLS_AES_256_GCM_SHA384".to_owned(),
            0x1303 => "TLS_CHACHA20_POLY1305_SHA256".to_owned(),
            other => format!("suite {other:#06x}"),
        };
        let group = match self.group {
            Some(0x001d) => "X25519".to_owned(),
            Some(0x0017) => "P-256".to_owned(),
            Some(0x0018) => "P-384".to_owned(),
            Some(0x11ec) => "X25519MLKEM768".to_owned(),
            Some(other) => format!("group {other:#06x}"),
            None => "no key share".to_owned(),
        };
        format!("{version} {suite} {group}")
    }
}

/// A capture under way.
pub(crate) struct PacketCapture {
    /// Time of the stop, in nanoseconds of Unix time; zero before.
    stop: Arc<AtomicU64>,
    /// Each with the hops that it watches.
    threads: Vec<(Vec<usize>, Watcher)>,
}

/// Thread of a capture. It returns the counts of its hops, and the number of packets that the kernel could not deliver.
type Watcher = JoinHandle<(Vec<HopCapture>, u64)>;

impl PacketCapture {
    /// Begins to watch these hops for this marker.
    ///
    /// # Errors
    /// When packet sockets are not permitted here.
    pub(crate) fn start(hops: &[Hop], marker: &str) -> io::Result<Self> {
        Self::begin(hops, marker, None)
    }

    /// Begins to capture these hops, and to time requests within the window. If `shared`, requests share connections, and frames
    /// of HTTP/2 distinguish them.
    ///
    /// # Errors
    /// As [`Capture::start`].
    pub(crate) fn timed(hops: &[Hop], window: Window, shared: bool) -> io::Result<Self> {
        Self::begin(hops, "", Some((window, shared)))
    }

    fn begin(hops: &[Hop], marker: &str, timed: Option<(Window, bool)>) -> io::Result<Self> {
        let stop = Arc::new(AtomicU64::new(0));
        let here: Vec<usize> = (0..hops.len())
            .filter(|at| hops[*at].spot.is_none())
            .collect();
        let elsewhere = (0..hops.len()).filter(|at| hops[*at].spot.is_some());
        let mut groups: Vec<Vec<usize>> = elsewhere.map(|at| vec![at]).collect();
        if !here.is_empty() {
            groups.push(here);
        }
        let mut threads = Vec::new();
        for group in groups {
            let listeners: Vec<SocketAddr> = group.iter().map(|at| hops[*at].address).collect();
            let (socket, copies) = match &hops[group[0]].spot {
                None => (packet_socket(WatchPoint::LOOPBACK, &listeners)?, true),
                Some(spot) => (
                    spot.namespace
                        .run(|| packet_socket(spot.device, &listeners))??,
                    spot.device == WatchPoint::LOOPBACK,
                ),
            };
            // Asked for once, packets are stamped when they come and not when they are read.
            let _ = received_at(&socket);
            let mut watched = Watch::new(listeners, marker.as_bytes().to_vec());
            watched.window = timed.map(|(window, _)| window);
            watched.streams = timed.and_then(|(_, shared)| shared.then(Streams::default));
            let told = Arc::clone(&stop);
            let thread = thread::spawn(move || receive(&socket, watched, copies, &told));
            threads.push((group, thread));
        }
        Ok(Self { stop, threads })
    }

    /// Begins to watch listeners of this machine: those that are called from outside on the device that has their address,
    /// the others on loopback.
    ///
    /// # Errors
    /// When packet sockets are not permitted here, or no device has such an address.
    pub(crate) fn on_devices(listeners: &[(SocketAddr, bool)], marker: &str) -> io::Result<Self> {
        let stop = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        for (at, (listener, outside)) in listeners.iter().enumerate() {
            let device = if *outside {
                device_of(listener.ip())?
            } else {
                CString::from(WatchPoint::LOOPBACK)
            };
            let socket = packet_socket(&device, &[*listener])?;
            let _ = received_at(&socket);
            let copies = device.as_c_str() == WatchPoint::LOOPBACK;
            let watched = Watch::new(vec![*listener], marker.as_bytes().to_vec());
            let told = Arc::clone(&stop);
            let thread = thread::spawn(move || receive(&socket, watched, copies, &told));
            threads.push((vec![at], thread));
        }
        Ok(Self { stop, threads })
    }

    /// Ends the capture. Returns the counts of each hop, in their order, and the number of packets that the kernel could not
    /// deliver.
    pub(crate) fn finish(self) -> Result<(Vec<HopCapture>, u64), String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        self.stop.store(now.max(1), Ordering::Release);
        let (mut all, mut lost) = (Vec::new(), 0);
        for (group, thread) in self.threads {
            let (seen, its_lost) = thread.join().map_err(|_| "the capture failed".to_owned())?;
            all.extend(group.into_iter().zip(seen));
            lost += its_lost;
        }
        all.sort_by_key(|(at, _)| *at);
        Ok((all.into_iter().map(|(_, seen)| seen).collect(), lost))
    }
}

#[expect(unsafe_code, reason = "packet sockets have no safe wrapper")]
fn packet_socket(device: &CStr, listeners: &[SocketAddr]) -> io::Result<OwnedFd> {
    // The kernel shows outgoing packets only to sockets for all protocols. Loopback shows each packet again as it comes in.
    let wanted = match device == WatchPoint::LOOPBACK {
        true if listeners.iter().all(SocketAddr::is_ipv4) => libc::ETH_P_IP,
        true if listeners.iter().all(SocketAddr::is_ipv6) => libc::ETH_P_IPV6,
        _ => libc::ETH_P_ALL,
    };
    let protocol = (wanted as u16).to_be();
    // SAFETY: plain system calls; each result is checked, and the descriptor is owned from the moment it exists.
    unsafe {
        let fd = libc::socket(
            libc::AF_PACKET,
            libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
            protocol.into(),
        );
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(fd);
        let size = BUFFER_BYTES;
        let buffer = (&raw const size).cast();
        let length = size_of::<i32>() as libc::socklen_t;
        if libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffer, length) != 0 {
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, buffer, length);
        }
        let bound = libc::timeval {
            tv_sec: 0,
            tv_usec: LOOK_EVERY_MS * 1000,
        };
        let length = size_of::<libc::timeval>() as libc::socklen_t;
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const bound).cast(),
            length,
        );
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = libc::if_nametoindex(device.as_ptr()).cast_signed();
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        if libc::bind(fd, (&raw const address).cast(), length) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(socket)
    }
}

/// Receives one packet into the buffer. Returns its length, and true if it is the outgoing copy (loopback shows each packet
/// twice).
#[expect(unsafe_code, reason = "packet sockets have no safe wrapper")]
fn receive_one(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
    // SAFETY: buffer and address live through the call, and their lengths are theirs.
    unsafe {
        let mut from: libc::sockaddr_ll = std::mem::zeroed();
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let got = libc::recvfrom(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            0,
            (&raw mut from).cast(),
            &raw mut length,
        );
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((
            got.cast_unsigned(),
            from.sll_pkttype == libc::PACKET_OUTGOING,
        ))
    }
}

#[expect(unsafe_code, reason = "packet sockets have no safe wrapper")]
fn lost(socket: &OwnedFd) -> u64 {
    let mut statistics = [0u32; 2]; // struct tpacket_stats: packets, drops
    let mut length = size_of::<[u32; 2]>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `statistics`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            statistics.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 { statistics[1].into() } else { 0 }
}

/// When the packet that was read last came, in nanoseconds of Unix time.
#[expect(unsafe_code, reason = "packet sockets have no safe wrapper")]
fn received_at(socket: &OwnedFd) -> Option<u64> {
    /// `SIOCGSTAMPNS` of linux/sockios.h.
    const STAMP: libc::Ioctl = 0x8907;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec into `time`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), STAMP, &raw mut time) };
    let time = (result == 0).then_some(time)?;
    Some(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

/// `copies`: the device shows each packet twice, going out and coming in.
fn receive(
    socket: &OwnedFd,
    mut watch: Watch,
    copies: bool,
    stop: &AtomicU64,
) -> (Vec<HopCapture>, u64) {
    let mut buffer = vec![0u8; PACKET_BYTES];
    let mut told_at = None;
    loop {
        let got = receive_one(socket, &mut buffer);
        // Packets that were queued at the stop are still counted. Other programs may use the device without a pause, so a silent
        // moment may never come. A later packet may not come either, if the clock was set back.
        let told = stop.load(Ordering::Acquire);
        if told > 0 {
            let told_at: &mut Instant = told_at.get_or_insert_with(Instant::now);
            let later = got.is_err() || received_at(socket).is_none_or(|at| at > told);
            if later || told_at.elapsed() > QUEUED {
                return (watch.seen, lost(socket));
            }
        }
        match got {
            Ok((_, true)) if copies => {}
            Ok((length, _)) => {
                if let Some(segment) = parse(&buffer[..length]) {
                    if watch.window.is_some() {
                        let at = received_at(socket);
                        watch.time(&segment, length, at.unwrap_or(0));
                    } else {
                        watch.segment(&segment);
                    }
                }
            }
            Err(_) => {}
        }
    }
}

/// Position up to which one direction of a connection was seen.
#[derive(Default)]
struct Tail {
    /// Its last bytes, where a marker may have begun.
    bytes: Vec<u8>,
    /// The place after them.
    next: Option<u32>,
}

impl Tail {
    /// Returns the part of a segment that was not seen before: a busy machine sends some segments twice.
    fn fresh<'a>(&mut self, segment: &Segment<'a>) -> &'a [u8] {
        let payload = segment.payload;
        let next = self.next.unwrap_or(segment.sequence);
        // Sequences wrap: bytes that seem ahead came before if the distance is negative.
        let again = next.wrapping_sub(segment.sequence).cast_signed();
        let again = usize::try_from(again).unwrap_or(0).min(payload.len());
        if again < payload.len() {
            self.next = Some(segment.sequence.wrapping_add(payload.len() as u32));
        }
        &payload[again..]
    }
}

/// Counts what travels on the watched hops.
struct Watch {
    listeners: Vec<SocketAddr>,
    marker: Vec<u8>,
    seen: Vec<HopCapture>,
    tails: HashMap<(SocketAddr, SocketAddr), Tail>,
    /// The first bytes of each server's answer, until its hello is understood.
    hellos: HashMap<(SocketAddr, SocketAddr), Vec<u8>>,
    window: Option<Window>,
    /// When the last segment of a request came that is not answered yet, by client and listener.
    asked: HashMap<(SocketAddr, SocketAddr), u64>,
    /// Instead of it, where requests share connections.
    streams: Option<Streams>,
}

impl Watch {
    fn new(listeners: Vec<SocketAddr>, marker: Vec<u8>) -> Self {
        let seen = vec![HopCapture::default(); listeners.len()];
        Self {
            listeners,
            marker,
            seen,
            tails: HashMap::new(),
            hellos: HashMap::new(),
            window: None,
            asked: HashMap::new(),
            streams: None,
        }
    }

    /// Counts a packet and, where it ends the wait for an answer, how long that was.
    fn time(&mut self, segment: &Segment<'_>, length: usize, at: u64) {
        let Some((from, until)) = self
            .window
            .filter(|(from, until)| (*from..*until).contains(&at))
        else {
            return;
        };
        let hop = |address| {
            let mut listeners = self.listeners.iter();
            listeners.position(|listener| *listener == address)
        };
        let (hop, inwards) = match (hop(segment.to), hop(segment.from)) {
            (Some(hop), _) => (hop, true),
            (None, Some(hop)) => (hop, false),
            (None, None) => return,
        };
        let timed = &mut self.seen[hop].timed;
        timed.packets += 1;
        timed.wire_bytes += length as u64;
        if segment.payload.is_empty() {
            return;
        }
        if let Some(streams) = &mut self.streams {
            for asked in streams.follow(segment, inwards, at) {
                if timed.answers_ns.len() < MAX_ANSWERS {
                    timed.answers_ns.push(at.saturating_sub(asked));
                }
            }
        } else if inwards {
            self.asked.insert((segment.from, segment.to), at);
        } else if let Some(asked) = self.asked.remove(&(segment.to, segment.from))
            && timed.answers_ns.len() < MAX_ANSWERS
            && (from..until).contains(&asked)
        {
            timed.answers_ns.push(at.saturating_sub(asked));
        }
    }

    fn segment(&mut self, segment: &Segment<'_>) {
        let at = |address| {
            self.listeners
                .iter()
                .position(|listener| *listener == address)
        };
        let (hop, inwards) = match (at(segment.to), at(segment.from)) {
            (Some(hop), _) => (hop, true),
            (None, Some(hop)) => (hop, false),
            (None, None) => return,
        };
        let flow = (segment.from, segment.to);
        let tail = self.tails.entry(flow).or_default();
        if segment.opens {
            *tail = Tail::default();
        }
        let payload = tail.fresh(segment);
        if payload.is_empty() {
            return;
        }
        tail.bytes.extend_from_slice(payload);
        let found = count(&tail.bytes, &self.marker);
        let kept = self.marker.len().saturating_sub(1);
        tail.bytes.drain(..tail.bytes.len().saturating_sub(kept));
        let seen = &mut self.seen[hop];
        seen.bytes += payload.len() as u64;
        seen.markers += found;
        if inwards {
            seen.markers_in += found;
        }
        if payload.starts_with(&[0x17, 0x03, 0x03]) {
            seen.tls_records += 1;
        }
        if !inwards && seen.hello.is_none() {
            let start = self.hellos.entry(flow).or_default();
            if start.len() < HELLO_BYTES {
                start.extend_from_slice(payload);
                seen.hello = server_hello(start);
            }
        }
    }
}

fn count(text: &[u8], word: &[u8]) -> u64 {
    if word.is_empty() {
        0
    } else {
        text.windows(word.len())
            .filter(|window| *window == word)
            .count() as u64
    }
}

/// The negotiated parameters, when the stream begins with a TLS server's hello (RFC 8446, 4.1.3).
fn server_hello(stream: &[u8]) -> Option<Hello> {
    let take = |at: usize| Some(u16::from_be_bytes(*stream.get(at..)?.first_chunk::<2>()?));
    if !stream.starts_with(&[0x16, 0x03]) || *stream.get(5)? != 0x02 {
        return None;
    }
    let legacy_version = take(9)?;
    let session = usize::from(*stream.get(43)?);
    let suite = take(44 + session)?;
    let extensions = 47 + session;
    let end = extensions + 2 + usize::from(take(extensions)?);
    let (mut at, mut version, mut group) = (extensions + 2, legacy_version, None);
    while at + 4 <= end {
        let (kind, length) = (take(at)?, usize::from(take(at + 2)?));
        match kind {
            0x002b => version = take(at + 4)?,
            0x0033 => group = Some(take(at + 4)?),
            _ => {}
        }
        at += 4 + length;
    }
    Some(Hello {
        version,
        suite,
        group,
    })
}

#[cfg(test)]
mod tests {
    use voile_testkit::prerequisites::{Prerequisite, require};

    use super::*;

    #[test]
    fn a_capture_ends_though_others_keep_the_device_busy() {
        let hop = Hop {
            to: "server",
            address: address("127.0.0.1:1"),
            tls: false,
            spot: None,
        };
        let capture = PacketCapture::start(&[hop], "marker");
        let Some(capture) = require(Prerequisite::RawSockets, capture) else {
            return;
        };
        let busy = Arc::new(AtomicU64::new(1));
        let goes_on = Arc::clone(&busy);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let sender = thread::spawn(move || {
            let to = socket.local_addr().expect("an address");
            while goes_on.load(Ordering::Relaxed) > 0 {
                let _ = socket.send_to(b"noise", to);
                thread::yield_now();
            }
        });
        assert!(capture.finish().is_ok());
        busy.store(0, Ordering::Relaxed);
        sender.join().expect("it ends");
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn hello() -> Vec<u8> {
        let mut body = vec![0x03, 0x03];
        body.extend([7; 32]);
        body.push(0); // no session
        body.extend([0x13, 0x01, 0x00]);
        let extensions = [
            0x00, 0x33, 0x00, 0x04, 0x00, 0x1d, 0x00, 0x00, 0x00, 0x2b, 0x00, 0x02, 0x03, 0x04,
        ];
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        let mut stream = vec![0x16, 0x03, 0x03, 0, 0, 0x02, 0, 0, 0];
        stream.extend(body);
        stream
    }

    #[test]
    fn a_servers_hello_is_understood_only_when_it_is_whole() {
        let whole = hello();
        let parsed = server_hello(&whole).expect("a hello");
        assert_eq!(parsed.in_words(), "TLSv1.3 TLS_AES_128_GCM_SHA256 X25519");
        for cut in 0..whole.len() {
            assert_eq!(server_hello(&whole[..cut]), None, "cut at {cut}");
        }
        assert_eq!(server_hello(b"HTTP/1.1 200 OK\r\n\r\n"), None);
    }

    #[test]
    fn markers_are_counted_across_segment_borders_and_by_direction() {
        let (client, server) = (address("127.0.0.1:9"), address("127.0.0.2:80"));
        let mut watch = Watch::new(vec![server], b"needle".to_vec());
        for (from, to, sequence, payload) in [
            (client, server, 7, "a needle and nee"),
            (client, server, 23, "dle"),
            (server, client, 7, "needle back"),
            (client, address("127.0.0.3:80"), 7, "needle elsewhere"),
        ] {
            watch.segment(&Segment {
                from,
                to,
                sequence,
                opens: false,
                payload: payload.as_bytes(),
            });
        }
        assert_eq!((watch.seen[0].markers_in, watch.seen[0].markers), (2, 3));
    }

    #[test]
    fn what_is_sent_again_is_counted_once_and_a_new_connection_counts_anew() {
        let (client, server) = (address("127.0.0.1:9"), address("127.0.0.2:80"));
        let mut watch = Watch::new(vec![server], b"needle".to_vec());
        let mut see = |sequence: u32, opens, payload: &str| {
            watch.segment(&Segment {
                from: client,
                to: server,
                sequence,
                opens,
                payload: payload.as_bytes(),
            });
            (watch.seen[0].markers_in, watch.seen[0].bytes)
        };
        let begin = u32::MAX - 5;
        assert_eq!(see(begin, false, "a needle "), (1, 9));
        assert_eq!(
            see(begin, false, "a needle "),
            (1, 9),
            "sent again, over the wrap"
        );
        assert_eq!(
            see(begin, false, "a needle needle"),
            (2, 15),
            "with more behind it"
        );
        assert_eq!(see(begin, true, ""), (2, 15), "SYN");
        assert_eq!(see(begin, false, "needle"), (3, 21));
    }

    #[test]
    fn answers_are_timed_from_the_end_of_their_request_within_the_window() {
        let (client, server) = (address("127.0.0.1:9"), address("127.0.0.2:80"));
        let mut watch = Watch::new(vec![server], Vec::new());
        watch.window = Some((100, 1000));
        for (inwards, payload, at) in [
            (true, "too early", 90),
            (false, "answer", 110),
            (true, "half a request", 200),
            (true, "the other half", 230),
            (false, "", 240),
            (false, "answer", 300),
            (false, "more of it", 310),
            (true, "request", 990),
            (false, "too late", 1000),
        ] {
            let (from, to) = if inwards {
                (client, server)
            } else {
                (server, client)
            };
            let segment = Segment {
                from,
                to,
                sequence: 0,
                opens: false,
                payload: payload.as_bytes(),
            };
            watch.time(&segment, 40 + payload.len(), at);
        }
        let timed = &watch.seen[0].timed;
        assert_eq!((timed.packets, timed.answers_ns.as_slice()), (7, &[70][..]));
        assert_eq!(timed.wire_bytes, 7 * 40 + 6 + 14 + 14 + 6 + 10 + 7);
    }
}
