//! Instructions of a request, counted by valgrind, so that cost cannot creep up. This binary runs itself once more under it
//! as a worker with both roles of a sidecar. The clients and the application stay here and are not counted; the start is not
//! counted either.
//!
//! The counts are those of the profile under test (dev in CI: several times the release profile's) and repeat within 1 %.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use tokio::task::LocalSet;
use voile_telemetry::PeerLabels;
use voile_testkit::prerequisites::{Prerequisite, program};
use voile_xds::wire::{MutualTls, WireProtocol};

use crate::plan::{EndpointPlan, Settings};
use crate::worker::tests::Stage;
use crate::worker::tests::http2::frames::{self, ACK, DATA, END_STREAM, PREFACE, SETTINGS};

/// Orders for the process under valgrind: the traffic to carry, the application's address, and the address
/// that receives its own.
const ORDERS: &str = "VOILE_TEST_INSTRUCTIONS";
const SUBJECT: &str = "worker::tests::cost::instructions::subject";

/// Requests before counting begins, and requests counted.
const BEFORE: u64 = 20;
const COUNTED: u64 = 200;

/// Far more than a process under valgrind takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Margin over the bound: processors differ in the vector instructions their libraries choose.
const MARGIN_PERCENT: u64 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    Http,
    Tcp,
    Grpc,
    /// A client of HTTP/2, an application of HTTP/1.1: the client's sidecar crosses.
    Http2ToHttp1,
    /// The other way round.
    Http1ToHttp2,
}

/// The language of one end of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Http1,
    Http2,
    Lines,
}

pub(crate) const HEAD: &[u8] =
    b"GET /p HTTP/1.1\r\nHost: server\r\nUser-Agent: t\r\nAccept: */*\r\n\r\n";
pub(crate) const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\ndone";
const MESSAGE: &[u8] = b"\0\0\0\0\x0412345678";

/// Reads to the end of a message; none when the peer has gone.
fn until(stream: &mut TcpStream, end: &[u8]) -> Option<()> {
    let mut room = [0; 4096];
    let mut filled = 0;
    while !room[..filled].ends_with(end) {
        filled += stream.read(&mut room[filled..]).ok().filter(|n| *n > 0)?;
    }
    Some(())
}

/// Reads frames until the peer has ended a stream; its number.
fn until_stream_ends(stream: &mut TcpStream) -> Option<u32> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).ok()?;
        let [_, a, b, kind, flags, number @ ..] = head;
        let length = usize::from(u16::from_be_bytes([a, b]));
        stream.read_exact(&mut vec![0; length]).ok()?;
        match kind {
            SETTINGS if flags & ACK == 0 => {
                stream
                    .write_all(&frames::frame(SETTINGS, ACK, 0, &[]))
                    .ok()?;
            }
            DATA | frames::HEADERS if flags & END_STREAM != 0 => {
                return Some(u32::from_be_bytes(number));
            }
            _ => {}
        }
    }
}

fn call(number: u32) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/s/m"),
        (":authority", "server"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let data = frames::frame(DATA, END_STREAM, number, MESSAGE);
    [frames::headers(number, 0, &fields), data].concat()
}

/// [`HEAD`] as a stream.
fn head(number: u32) -> Vec<u8> {
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/p"),
        (":authority", "server"),
        ("user-agent", "t"),
        ("accept", "*/*"),
    ];
    frames::headers(number, END_STREAM, &fields)
}

/// [`ANSWER`] on a stream.
fn answer(number: u32) -> Vec<u8> {
    let fields = [
        (":status", "200"),
        ("content-type", "text/plain"),
        ("content-length", "4"),
    ];
    [
        frames::headers(number, 0, &fields),
        frames::frame(DATA, END_STREAM, number, b"done"),
    ]
    .concat()
}

fn reply(number: u32) -> Vec<u8> {
    let fields = [(":status", "200"), ("content-type", "application/grpc")];
    let trailers = [("grpc-status", "0")];
    [
        frames::headers(number, 0, &fields),
        frames::frame(DATA, 0, number, MESSAGE),
        frames::headers(number, END_STREAM, &trailers),
    ]
    .concat()
}

impl Traffic {
    const ALL: [Self; 5] = [
        Self::Http,
        Self::Tcp,
        Self::Grpc,
        Self::Http2ToHttp1,
        Self::Http1ToHttp2,
    ];

    /// The declared protocol of the port.
    pub(crate) fn protocol(self) -> WireProtocol {
        match self {
            Self::Http | Self::Http2ToHttp1 => WireProtocol::Http,
            Self::Http1ToHttp2 => WireProtocol::Http2,
            Self::Tcp => WireProtocol::Tcp,
            Self::Grpc => WireProtocol::Grpc,
        }
    }

    fn of_client(self) -> Language {
        match self {
            Self::Http | Self::Http1ToHttp2 => Language::Http1,
            Self::Grpc | Self::Http2ToHttp1 => Language::Http2,
            Self::Tcp => Language::Lines,
        }
    }

    fn of_application(self) -> Language {
        match self {
            Self::Http | Self::Http2ToHttp1 => Language::Http1,
            Self::Grpc | Self::Http1ToHttp2 => Language::Http2,
            Self::Tcp => Language::Lines,
        }
    }

    /// The first bytes of a client's connection, before its first request.
    pub(crate) fn hello(self) -> Vec<u8> {
        match self.of_client() {
            Language::Http2 => [PREFACE, &frames::frame(SETTINGS, 0, 0, &[])].concat(),
            Language::Http1 | Language::Lines => Vec::new(),
        }
    }

    /// A request on stream `number`, if there are streams.
    pub(crate) fn request(self, number: u32) -> Vec<u8> {
        match self.of_client() {
            Language::Http1 => HEAD.to_vec(),
            Language::Http2 if self == Self::Grpc => call(number),
            Language::Http2 => head(number),
            Language::Lines => b"ping\n".to_vec(),
        }
    }

    /// One connection of the application's, to its end.
    fn serve(self, stream: &mut TcpStream) -> Option<()> {
        if self.of_application() == Language::Http2 {
            let mut preface = [0; PREFACE.len()];
            stream.read_exact(&mut preface).ok()?;
            stream.write_all(&frames::frame(SETTINGS, 0, 0, &[])).ok()?;
        }
        loop {
            let answer = match self.of_application() {
                Language::Http1 => until(stream, b"\r\n\r\n").map(|()| ANSWER.to_vec())?,
                Language::Http2 if self == Self::Grpc => until_stream_ends(stream).map(reply)?,
                Language::Http2 => until_stream_ends(stream).map(answer)?,
                Language::Lines => until(stream, b"\n").map(|()| b"pong\n".to_vec())?,
            };
            stream.write_all(&answer).ok()?;
        }
    }
}

/// A client, on one connection.
pub(crate) struct Asking {
    traffic: Traffic,
    stream: TcpStream,
    /// ID of HTTP/2's next stream.
    number: u32,
}

impl Asking {
    pub(crate) fn new(traffic: Traffic, to: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(to).expect("connected");
        stream.set_nodelay(true).expect("an open socket");
        let patience = stream.set_read_timeout(Some(PATIENCE));
        patience.expect("an open socket");
        stream.write_all(&traffic.hello()).expect("sent");
        Self {
            traffic,
            stream,
            number: 1,
        }
    }

    pub(crate) fn ask(&mut self, times: u64) {
        for time in 0..times {
            let question = self.traffic.request(self.number);
            self.stream.write_all(&question).expect("sent");
            let heard = match self.traffic.of_client() {
                Language::Http1 => until(&mut self.stream, b"done").is_some(),
                Language::Http2 => until_stream_ends(&mut self.stream) == Some(self.number),
                Language::Lines => until(&mut self.stream, b"pong\n").is_some(),
            };
            assert!(heard, "{:?} {time} is answered", self.traffic);
            self.number += 2;
        }
    }
}

pub(crate) fn application(traffic: Traffic) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            stream.set_nodelay(true).expect("an open socket");
            thread::spawn(move || traffic.serve(&mut stream));
        }
    });
    address
}

/// Instructions of [`COUNTED`] requests, which so many connections send in turn.
fn run(traffic: Traffic, mode: MutualTls, connections: u64) -> u64 {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("counts");
    let desk = TcpListener::bind("127.0.0.1:0").expect("a port");
    let desk_address = desk.local_addr().expect("an address");
    let tls = mode == MutualTls::Strict;
    let orders = format!("{traffic:?} {tls} {} {desk_address}", application(traffic));
    let subject = Command::new("valgrind")
        .args(["--tool=callgrind", "--zero-before=*::begin_counting*"])
        .arg("--dump-before=*::end_counting*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(env::current_exe().expect("a path"))
        .args(["--exact", SUBJECT, "--ignored", "--test-threads=1"])
        .env(ORDERS, orders)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("valgrind starts");
    let waiting = thread::spawn(move || {
        let ended = subject.wait_with_output();
        // The connection wakes a test that still waits for the subject.
        let _ = TcpStream::connect(desk_address);
        ended
    });
    let (told, _) = desk.accept().expect("the subject speaks, or has ended");
    let mut told = BufReader::new(told);
    let mut entry = String::new();
    told.read_line(&mut entry).expect("a line");
    if entry.is_empty() {
        panic!("{:?}", waiting.join());
    }
    let entry = entry.trim().parse().expect("an address");
    let mut asking: Vec<Asking> = (0..connections)
        .map(|_| Asking::new(traffic, entry))
        .collect();
    for times in [BEFORE.max(connections), COUNTED] {
        let in_turn = (0..connections).cycle().zip(0..times);
        in_turn.for_each(|(connection, _)| asking[connection as usize].ask(1));
        told.get_mut().write_all(b".").expect("the subject lives");
        told.read_exact(&mut [0]).expect("the subject lives");
    }
    drop(told);
    let ended = waiting.join().expect("joined").expect("waited for");
    assert!(ended.status.success(), "{ended:?}");
    total(&out.with_extension("1"))
}

fn total(out: &Path) -> u64 {
    let text = std::fs::read_to_string(out).expect("counts were written");
    let totals = text
        .lines()
        .find_map(|line| line.strip_prefix("totals: "))
        .expect("totals");
    totals.trim().parse().expect("a number")
}

/// Checks the cost of one request for both roles of a sidecar together. Skips without valgrind.
fn check(traffic: Traffic, mode: MutualTls, connections: u64, bound: u64) {
    if program(Prerequisite::Valgrind, "valgrind").is_none() {
        return;
    }
    // On a busy machine a wake-up more may come between, never one less: the least of three counts.
    let enough = bound + bound * MARGIN_PERCENT / 100;
    let mut each = u64::MAX;
    for _ in 0..3 {
        each = each.min(run(traffic, mode, connections) / COUNTED);
        if each <= enough {
            break;
        }
    }
    println!("{traffic:?} {mode:?} over {connections}: {each} instructions");
    assert!(
        each <= enough,
        "{each} instructions where {bound} were enough; `valgrind --tool=callgrind` on two sidecars shows where they go \
         (docs/decisions/0005)"
    );
}

#[test]
fn a_request_in_plaintext_costs_both_roles_so_many_instructions() {
    check(Traffic::Http, MutualTls::Disable, 1, 208_100);
}

#[test]
fn a_request_over_mutual_tls_costs_both_roles_so_many_instructions() {
    check(Traffic::Http, MutualTls::Strict, 1, 275_000);
}

#[test]
fn a_request_costs_no_more_where_it_is_one_of_many_connections() {
    check(Traffic::Http, MutualTls::Strict, 64, 275_000);
}

#[test]
fn an_opaque_round_trip_costs_both_roles_so_many_instructions() {
    check(Traffic::Tcp, MutualTls::Disable, 1, 110_500);
}

#[test]
fn a_grpc_call_over_mutual_tls_costs_both_roles_so_many_instructions() {
    check(Traffic::Grpc, MutualTls::Strict, 1, 501_200);
}

#[test]
fn a_request_from_http2_to_http1_costs_both_roles_so_many_instructions() {
    check(Traffic::Http2ToHttp1, MutualTls::Strict, 1, 433_400);
}

#[test]
fn a_request_from_http1_to_http2_costs_both_roles_so_many_instructions() {
    check(Traffic::Http1ToHttp2, MutualTls::Strict, 1, 495_400);
}

/// The process that is counted.
#[test]
#[ignore = "the other tests of this module run it under valgrind"]
fn subject() {
    let Ok(orders) = env::var(ORDERS) else { return };
    let mut words = orders.split(' ');
    let traffic = Traffic::ALL
        .into_iter()
        .find(|traffic| words.clone().next() == Some(&format!("{traffic:?}")))
        .expect("traffic");
    let mode = match words.nth(1) {
        Some("true") => MutualTls::Strict,
        _ => MutualTls::Disable,
    };
    let mut address = || words.next().and_then(|word| word.parse().ok());
    let (application, desk) = (address().expect("first"), address().expect("second"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let _clock = crate::http::clock::start().expect("a clock");
        carry(traffic.protocol(), mode, application, desk).await;
    });
}

/// Valgrind forgets what it counted when this is called.
#[inline(never)]
fn begin_counting() {
    std::hint::black_box(());
}

/// Valgrind writes down what it counted when this is called.
#[inline(never)]
fn end_counting() {
    std::hint::black_box(());
}

async fn carry(protocol: WireProtocol, mode: MutualTls, application: SocketAddr, desk: SocketAddr) {
    let stage = Stage::new(Settings::default());
    let inbound = stage.inbound(protocol, mode, application).await;
    let expected = vec![stage.authority.identity("shop", "server")];
    let to = EndpointPlan {
        name: None,
        address: inbound,
        expected: (mode == MutualTls::Strict).then_some(expected),
        weight: 1,
        available: true,
        origination: None,
        rank: Default::default(),
        peer: PeerLabels::default(),
    };
    let entry = stage.outbound(protocol, to).await;
    let mut desk = tokio::net::TcpStream::connect(desk)
        .await
        .expect("connected");
    crate::worker::tests::say(&mut desk, format!("{entry}\n").as_bytes()).await;
    // Signals the begin and the end of the counted requests.
    for mark in [begin_counting, end_counting] {
        crate::worker::tests::hear(&mut desk, b".").await;
        mark();
        crate::worker::tests::say(&mut desk, b".").await;
    }
}
