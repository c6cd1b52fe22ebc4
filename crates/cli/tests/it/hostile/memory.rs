//! Clients that want a proxy to hold much memory: heads that HPACK makes large, on many connections. What a proxy holds stays within
//! its limits, others are served meanwhile, and what it held is given back.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use voile_proxy::http2::limits::{HEAD_COPIES, MAX_HEADS_HELD, MAX_HEADS_OF_ALL};

use crate::mesh::{
    Client, Mesh, application, get, memory, memory_before_attack, series, wait_until,
};
use crate::traffic::early_answers::{connect, descriptors};

/// Connections of an attack, and requests on each.
const CONNECTIONS: usize = 48;
const REQUESTS: u32 = 200;

/// Memory of connections, streams, tasks and upstream connections beside heads, for each stream that is served.
const STREAM: u64 = 64 * 1024;

/// Time in which a burst is given back.
pub(crate) const GIVEN_BACK: Duration = Duration::from_secs(10);

pub(crate) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame");
    let mut out = length.to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// A field that no table keeps, as plain literals of less than 127 bytes.
fn literal(out: &mut Vec<u8>, name: &str, value: &str) {
    out.push(0);
    for text in [name, value] {
        out.push(u8::try_from(text.len()).expect("short"));
        out.extend_from_slice(text.as_bytes());
    }
}

pub(crate) fn request(path: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "server.shop.svc.cluster.local"),
    ] {
        literal(&mut out, name, value);
    }
    out
}

/// A client by hand.
pub(crate) struct Attacker {
    pub(crate) stream: TcpStream,
    next: u32,
    sent: usize,
}

impl Attacker {
    pub(crate) fn new(to: SocketAddr, settings: &[u8]) -> Self {
        let mut stream = connect(to);
        let hello = [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            &frame(SETTINGS, 0, 0, settings),
        ];
        stream.write_all(&hello.concat()).expect("sent");
        Self {
            stream,
            next: 1,
            sent: 0,
        }
    }

    /// One more request; a connection that was ended takes no more.
    fn ask(&mut self, block: &[u8]) {
        let bytes = frame(HEADERS, END_HEADERS | END_STREAM, self.next, block);
        self.next += 2;
        self.sent += bytes.len();
        let _ = self.stream.write_all(&bytes);
    }

    /// Requests of which the first puts 4,000 bytes into HPACK's table, and each other is 56 KB in 14 bytes.
    pub(crate) fn bombs(&mut self, count: u32) {
        let mut first = request("/hold");
        first.extend_from_slice(&[0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
        first.extend([b'x'].repeat(4000));
        self.ask(&first);
        let mut bomb = request("/hold");
        bomb.extend([0xbe].repeat(14));
        for _ in 1..count {
            self.ask(&bomb);
        }
    }

    /// Reads until everything that was sent has been looked at. Gives the streams that were refused; none where the connection
    /// was ended.
    pub(crate) fn looked_at(&mut self) -> Option<usize> {
        self.stream.write_all(&frame(PING, 0, 0, &[7; 8])).ok()?;
        let mut refused = 0;
        loop {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).ok()?;
            let [a, b, c, kind, flags, ..] = head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let mut payload = vec![0; length];
            self.stream.read_exact(&mut payload).ok()?;
            match kind {
                PING if flags & ACK != 0 => return Some(refused),
                RST_STREAM if payload == [0, 0, 0, 7] => refused += 1,
                _ => {}
            }
        }
    }
}

/// An application that answers everything but `/hold`.
fn holds(mesh: &Mesh) {
    application::serve(mesh.http_app(), |stream| {
        let mut reader = BufReader::new(stream);
        while let Some((head, _)) = application::read_request(&mut reader) {
            if head.starts_with("GET /hold") {
                let _ = reader.read(&mut [0]);
                return;
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
            if reader.get_mut().write_all(answer).is_err() {
                return;
            }
        }
    });
}

pub(crate) fn with(arguments: &[&str]) -> Client {
    Client {
        everywhere: arguments.iter().map(ToString::to_string).collect(),
        ..Client::default()
    }
}

/// The most memory that both sidecars held so far.
pub(crate) fn peak(mesh: &Mesh) -> u64 {
    let sidecars = [mesh.client.pid(), mesh.server.pid()];
    sidecars
        .map(|pid| memory(pid, "VmHWM:"))
        .into_iter()
        .max()
        .unwrap_or(0)
}

pub(crate) fn held(mesh: &Mesh) -> u64 {
    let sidecars = [mesh.client.pid(), mesh.server.pid()];
    sidecars
        .map(|pid| memory(pid, "VmRSS:"))
        .into_iter()
        .max()
        .unwrap_or(0)
}

/// The same, before an attack: the peak counts from here.
pub(crate) fn held_before_attack(mesh: &Mesh) -> u64 {
    let sidecars = [mesh.client.pid(), mesh.server.pid()];
    sidecars
        .map(memory_before_attack)
        .into_iter()
        .max()
        .unwrap_or(0)
}

/// Waits until a burst was given back. Gives the time that it took from when its connections were closed: a busy machine delays
/// that.
pub(crate) fn given_back(mesh: &Mesh, before: u64) -> Duration {
    let (mut last, mut same) = (0, 0);
    wait_until("the connections of the burst are closed", || {
        let open = [mesh.client.pid(), mesh.server.pid()].map(descriptors);
        let open = open.iter().sum();
        same = if open == last { same + 1 } else { 0 };
        last = open;
        same == 10
    });
    let began = Instant::now();
    wait_until("the memory of the burst was given back", || {
        held(mesh) < before + before / 2
    });
    began.elapsed()
}

pub(crate) fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// Plays the attack against a sidecar's port; gives the attackers and how many of their requests were taken.
fn attack(to: SocketAddr, mut meanwhile: impl FnMut()) -> (Vec<Attacker>, usize) {
    let (mut attackers, mut taken, mut sent) = (Vec::new(), 0, 0);
    for _ in 0..CONNECTIONS {
        let mut attacker = Attacker::new(to, &[]);
        attacker.bombs(REQUESTS);
        if let Some(refused) = attacker.looked_at() {
            taken += REQUESTS as usize - refused;
        }
        sent += attacker.sent;
        attackers.push(attacker);
        meanwhile();
    }
    println!(
        "{sent} bytes on {CONNECTIONS} connections: {taken} of {} taken",
        CONNECTIONS * REQUESTS as usize
    );
    (attackers, taken)
}

#[test]
fn heads_that_hpack_makes_large_are_bounded_over_all_connections_and_given_back() {
    let mesh = Mesh::start("STRICT");
    holds(&mesh);
    assert_eq!(get(mesh.http(), "/").expect("served").status, 200);
    let before = held_before_attack(&mesh);
    let (attackers, taken) = attack(mesh.http(), || {
        let answer = get(mesh.http(), "/").expect("others are served");
        assert_eq!(answer.status, 200);
    });
    let most = peak(&mesh);
    println!("{} MiB before, {} MiB at most", mib(before), mib(most));
    let bound = before + MAX_HEADS_HELD as u64 + taken as u64 * STREAM;
    assert!(most <= bound, "{most} of {bound} bytes");
    assert!(
        taken <= MAX_HEADS_OF_ALL / 2 / 56_000 + 2 * CONNECTIONS,
        "{taken}"
    );
    let refused = series(
        &mesh.client_metrics(),
        "voile_requests_overload_total",
        &["heads"],
    );
    assert!(refused > Some(1000.0), "{refused:?}");
    drop(attackers);
    let took = given_back(&mesh, before);
    println!("given back after {took:?}");
    assert!(took <= GIVEN_BACK, "{took:?}");
}

#[test]
fn the_memory_limit_holds_under_heads_that_hpack_makes_large_and_others_are_served() {
    const LIMIT: u64 = 64 << 20;
    let mesh = Mesh::start_as("STRICT", &with(&["--memory-limit", "64M"]));
    holds(&mesh);
    assert_eq!(get(mesh.http(), "/").expect("served").status, 200);
    let before = held_before_attack(&mesh);
    let (attackers, taken) = attack(mesh.http(), || {
        let answer = get(mesh.http(), "/").expect("others are served");
        assert_eq!(answer.status, 200);
    });
    let most = peak(&mesh);
    println!("{} MiB before, {} MiB at most", mib(before), mib(most));
    assert!(most < LIMIT, "{most} bytes");
    assert!(taken > 0, "{HEAD_COPIES} copies of some heads fit");
    drop(attackers);
    let took = given_back(&mesh, before);
    println!("given back after {took:?}");
    assert!(took <= GIVEN_BACK, "{took:?}");
}

/// Waits until both sidecars hold what they hold.
pub(crate) fn settled(mesh: &Mesh) {
    let (mut last, mut same) = (0, 0);
    wait_until("the sidecars take nothing more", || {
        let now = held(mesh) >> 18;
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same == 30
    });
}

/// An application that answers `/flood` with more than anybody takes, and everything else with a word.
pub(crate) fn floods(mesh: &Mesh) {
    application::serve(mesh.http_app(), |stream| {
        let mut reader = BufReader::new(stream);
        while let Some((head, _)) = application::read_request(&mut reader) {
            let out = reader.get_mut();
            if head.starts_with("GET /flood") {
                let chunk = vec![b'x'; 64 * 1024];
                let _ = out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
                while out.write_all(&chunk).is_ok() {}
                return;
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
            if out.write_all(answer).is_err() {
                return;
            }
        }
    });
}

/// A thousand streams on each connection, whose clients read nothing of their answers.
pub(crate) fn slow_readers(to: SocketAddr, connections: usize) -> Vec<Attacker> {
    let ask = request("/flood");
    let all = (0..connections).map(|_| {
        let mut attacker = Attacker::new(to, &[]);
        (0..1000).for_each(|_| attacker.ask(&ask));
        attacker.looked_at();
        attacker
    });
    all.collect()
}

#[test]
fn the_memory_of_a_burst_is_given_back_without_a_limit_too() {
    let mesh = Mesh::start("STRICT");
    floods(&mesh);
    assert_eq!(get(mesh.http(), "/").expect("served").status, 200);
    let before = held_before_attack(&mesh);
    let attackers = slow_readers(mesh.http(), 4);
    settled(&mesh);
    let most = held(&mesh);
    println!("{} MiB before, {} MiB in the burst", mib(before), mib(most));
    assert!(most > 2 * before, "{most} bytes are no burst");
    drop(attackers);
    let took = given_back(&mesh, before);
    println!("given back after {took:?}");
    assert!(took <= GIVEN_BACK, "{took:?}");
}
