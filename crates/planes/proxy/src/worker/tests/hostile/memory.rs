//! Memory that one hostile HTTP/2 peer can make a worker hold. An allocator counts bytes on the worker's thread; peers
//! and applications have threads of their own. Each bound is the sum of named limits.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use tokio::sync::oneshot;
use voile_xds::wire::{MutualTls, WireProtocol};

use crate::http2::limits::{
    CONNECTION_WINDOW, MAX_DOWNSTREAM_STREAMS, MAX_HEADS, MAX_UNSENT, MAX_UNWRITTEN,
    MAX_UPSTREAM_STREAMS,
};
use crate::plan::Settings;
use crate::worker::tests::cost::footprint::{held, take_most};
use crate::worker::tests::http2::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, SETTINGS, WINDOW_UPDATE,
    block, frame, headers,
};
use crate::worker::tests::{Stage, play};

/// Memory of a stream through one role, beside its heads and its body: its task, its places, its blocks.
const STREAM: i64 = 4 * 1024;

/// Further memory of a connection: buffers, tables, a head that is being collected.
const CONNECTION: i64 = 1024 * 1024;

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "server"),
];

fn size(bytes: impl TryInto<i64>) -> i64 {
    bytes.try_into().unwrap_or(i64::MAX)
}

/// Answers of an application to its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Nothing,
    /// As much as its client lets it say.
    Flood,
    /// Heads of 15 KB, too large for any table.
    Heads,
}

/// An HTTP/2 server by hand that reads everything: no window of ours is in its way but those it is given.
fn application(answer: Answer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(stream, answer));
        }
    });
    address
}

fn serve(mut stream: TcpStream, answer: Answer) -> Option<()> {
    stream.read_exact(&mut [0; PREFACE.len()]).ok()?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).ok()?;
    let (mut given, chunk) = (65_535_usize, vec![0; 16_000]);
    let mut streams = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).ok()?;
        let [_, a, b, kind, _, number @ ..] = head;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([a, b]))];
        stream.read_exact(&mut payload).ok()?;
        let id = u32::from_be_bytes(number);
        if kind == WINDOW_UPDATE && id == 0 {
            let more = payload.try_into().map(u32::from_be_bytes).ok()?;
            given += more as usize;
        }
        if kind != HEADERS || answer == Answer::Nothing {
            continue;
        }
        if answer == Answer::Heads {
            let long = "x".repeat(15_000);
            let head = [(":status", "200"), ("x-a", long.as_str())];
            stream.write_all(&headers(id, END_STREAM, &head)).ok()?;
            continue;
        }
        stream
            .write_all(&headers(id, 0, &[(":status", "200")]))
            .ok()?;
        streams.push((id, 256 * 1024_usize));
        for (id, window) in &mut streams {
            while *window >= chunk.len() && given >= chunk.len() {
                stream.write_all(&frame(DATA, 0, *id, &chunk)).ok()?;
                (*window, given) = (*window - chunk.len(), given - chunk.len());
            }
        }
    }
}

/// One field of 4000 bytes into HPACK's table; then a head of 56 KB in 14 bytes.
fn bomb(count: u32) -> Vec<u8> {
    let mut text = block(&GET);
    if count == 0 {
        text.extend_from_slice(&[0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
        text.extend([b'x'].repeat(4000));
    } else {
        text.extend([0xbe].repeat(14));
    }
    frame(HEADERS, END_STREAM | END_HEADERS, count * 2 + 1, &text)
}

/// A head of which the end never comes.
fn endless(count: u32) -> Vec<u8> {
    let piece = vec![0xff; 16_000];
    match count {
        0 => frame(HEADERS, END_STREAM, 1, &piece),
        1..8 => frame(CONTINUATION, 0, 1, &piece),
        _ => Vec::new(),
    }
}

/// A client that closed its windows and asks.
fn closed(count: u32) -> Vec<u8> {
    let window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let ask = headers(count * 2 + 1, END_STREAM, &GET);
    if count == 0 {
        [window, ask].concat()
    } else {
        ask
    }
}

/// Bodies that the server never reads, on every stream, as far as the windows allow.
fn upload(count: u32) -> Vec<u8> {
    let post = [&[(":method", "POST")], &GET[1..]].concat();
    let id = count * 2 + 1;
    let open = headers(id, 0, &post);
    if count < 60 {
        [open, frame(DATA, 0, id, &[0; 16_000])].concat()
    } else {
        open
    }
}

/// As many requests as there may be streams.
fn ask(count: u32) -> Vec<u8> {
    headers(count * 2 + 1, END_STREAM, &GET)
}

/// Pings: the worker must answer them, and the client never reads the answers.
fn pings(_: u32) -> Vec<u8> {
    frame(PING, 0, 0, &[0; 8]).repeat(200)
}

/// The most that a worker holds for `pieces` of one client who reads nothing.
fn most(answer: Answer, pieces: fn(u32) -> Vec<u8>) -> i64 {
    let (tell, told) = mpsc::channel();
    play(|| async {
        let stage = Stage::new(Settings::default());
        let application = application(answer);
        let address = stage
            .inbound(WireProtocol::Http2, MutualTls::Disable, application)
            .await;
        let before = held();
        take_most();
        let (sent, is_sent) = oneshot::channel();
        let client = thread::spawn(move || {
            let mut stream = TcpStream::connect(address).expect("connected");
            let patience = std::time::Duration::from_secs(2);
            let patience = stream.set_write_timeout(Some(patience));
            patience.expect("an open socket");
            let mut alive = stream.write_all(PREFACE).is_ok()
                && stream.write_all(&frame(SETTINGS, 0, 0, &[])).is_ok();
            for count in 0..2 * MAX_DOWNSTREAM_STREAMS {
                alive = alive && stream.write_all(&pieces(count)).is_ok();
            }
            let _ = sent.send(());
            stream
        });
        let _ = is_sent.await;
        // Until the worker's memory no longer changes.
        let mut quiet = 0;
        while quiet < 200 {
            let before = held();
            tokio::task::yield_now().await;
            quiet = if held() == before { quiet + 1 } else { 0 };
        }
        tell.send(take_most() - before).expect("the test waits");
        drop(client.join().expect("the client is well"));
    });
    told.recv().expect("a number")
}

#[test]
fn a_hostile_client_makes_a_worker_hold_no_more_than_the_limits_say() {
    let streams = size(MAX_DOWNSTREAM_STREAMS);
    // A stream's head is held as it came, and until it is written as it goes on; text grows by doubling.
    let heads = 3 * size(MAX_HEADS);
    let upstreams = streams / size(MAX_UPSTREAM_STREAMS);
    let window = size(CONNECTION_WINDOW);
    type Case = (&'static str, Answer, fn(u32) -> Vec<u8>, i64);
    let cases: [Case; 6] = [
        ("HPACK bombs", Answer::Nothing, bomb, heads),
        ("a head without end", Answer::Nothing, endless, 0),
        (
            "closed windows",
            Answer::Flood,
            closed,
            upstreams * 2 * window + streams * STREAM,
        ),
        (
            "bodies",
            Answer::Nothing,
            upload,
            2 * window + streams * STREAM,
        ),
        (
            "heads of answers",
            Answer::Heads,
            ask,
            3 * size(MAX_UNSENT) + streams * STREAM,
        ),
        ("pings", Answer::Nothing, pings, size(2 * MAX_UNWRITTEN)),
    ];
    let mut wrong = Vec::new();
    for (what, answer, pieces, bound) in cases {
        let bound = bound + CONNECTION;
        let got = most(answer, pieces);
        println!("{what}: {got} bytes of {bound}");
        if !(1..=bound).contains(&got) {
            wrong.push(format!("{what}: {got} bytes, more than {bound}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
