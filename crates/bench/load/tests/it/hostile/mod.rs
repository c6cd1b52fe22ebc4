//! HTTP/2 peers that break the rules, stall, or go away: the generator names what happened to every request and ends in
//! time; the echo server closes what is hostile and serves the next client.

mod misbehaving;
mod talkative;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use voile_load::echo::EchoOptions;
use voile_load::{LoadOptions, LoadResult, LoadTarget, Stop};

use crate::server::{PATIENCE, Play, Served, loopback, stranger};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const DATA: u8 = 0;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = pairs
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(SETTINGS, 0, 0, &payload)
}

fn goaway(last: u32) -> Vec<u8> {
    frame(7, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
}

/// `:status: 200` and fields that are not indexed, each a name and a value.
fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![0x88];
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// The bytes that answer the request on a stream.
type Answer = fn(u32) -> Vec<u8>;

/// Script of a server: its first bytes, its answer to each stream number, and then if it closes.
struct Script {
    opening: Vec<u8>,
    answer: Answer,
    /// Goes on writing that until it cannot.
    flood: Vec<u8>,
    close: bool,
}

fn serve(script: Script) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let script: &'static Script = Box::leak(Box::new(script));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || play(stream, script));
        }
    });
    address
}

/// Reads frames and answers each HEADERS.
fn play(mut stream: TcpStream, script: &Script) -> Option<()> {
    stream.write_all(&script.opening).ok()?;
    stream.read_exact(&mut [0; PREFACE.len()]).ok()?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).ok()?;
        if head[3] == HEADERS {
            let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            stream.write_all(&(script.answer)(id)).ok()?;
            while !script.flood.is_empty() {
                stream.write_all(&script.flood).ok()?;
            }
            if script.close {
                return None;
            }
        }
    }
}

fn run(options: &LoadOptions) -> LoadResult {
    let began = Instant::now();
    let result = voile_load::run(options, &Stop::new().unwrap(), false).unwrap();
    assert!(began.elapsed() < PATIENCE, "ends in time");
    assert_eq!(result.ok + result.errors_total, result.scheduled);
    assert_eq!(result.latency_us.count, result.scheduled);
    result
}

fn load(address: SocketAddr, scheme: &str) -> LoadOptions {
    let url = format!("{scheme}://{address}");
    let mut options = LoadOptions::new(LoadTarget::parse(&url).unwrap());
    options.rate = 100.0;
    options.connections = 2;
    options.streams = 4;
    options.duration = Duration::from_millis(100);
    options.timeout = Duration::from_millis(200);
    options
}

/// All of ten requests end as that kind.
fn check(what: &str, scheme: &str, kind: &str, script: Script) {
    let result = run(&load(serve(script), scheme));
    let kinds: Vec<_> = result
        .errors
        .iter()
        .map(|(kind, count)| (*kind, *count))
        .collect();
    assert_eq!(kinds, [(kind, 10)], "{what}");
}

/// A server that begins well and answers so.
fn well(answer: Answer) -> Script {
    Script {
        opening: settings(&[]),
        answer,
        flood: Vec::new(),
        close: false,
    }
}

#[test]
fn servers_that_are_no_http2_are_named_so() {
    let opening = |opening: &[u8]| Script {
        opening: opening.to_vec(),
        ..well(|_| Vec::new())
    };
    let http1 = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    check("HTTP/1.1", "h2c", "protocol", opening(http1));
    check("zeros", "h2c", "protocol", opening(&[0; 4096]));
    check(
        "no settings",
        "h2c",
        "protocol",
        opening(&frame(6, 0, 0, &[0; 8])),
    );
    check(
        "window",
        "h2c",
        "protocol",
        opening(&settings(&[(4, u32::MAX)])),
    );
    check("silence", "h2c", "timeout", opening(b""));
    check(
        "half a frame",
        "h2c",
        "timeout",
        opening(&settings(&[])[..5]),
    );
}

#[test]
fn rules_broken_in_an_answer_are_protocol_errors() {
    let answers: [(&str, Answer); 14] = [
        ("long frame", |id| frame(DATA, 0, id, &[0; 20_000])),
        ("hpack index", |id| {
            frame(HEADERS, END_HEADERS, id, &[0xff, 0xff, 0xff])
        }),
        ("no status", |id| {
            frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                id,
                &head(&[("a", "b")])[1..],
            )
        }),
        ("body first", |id| frame(DATA, END_STREAM, id, b"x")),
        ("stream never opened", |id| {
            frame(HEADERS, END_HEADERS, id + 100, &[0x88])
        }),
        ("even stream", |_| frame(HEADERS, END_HEADERS, 2, &[0x88])),
        ("push", |id| frame(5, END_HEADERS, id, &[0, 0, 0, 2, 0x82])),
        ("headers cut by a ping", |id| {
            [frame(HEADERS, 0, id, &[0x88]), frame(6, 0, 0, &[0; 8])].concat()
        }),
        ("too long a head", |id| {
            let block = head(&[("a", &"b".repeat(120))]).repeat(130);
            let more = frame(9, 0, id, &block[..16_000]).repeat(5);
            [frame(HEADERS, 0, id, &[0x88]), more].concat()
        }),
        ("endless pieces", |id| {
            [
                frame(HEADERS, 0, id, &[0x88]),
                frame(9, 0, id, b"").repeat(100),
            ]
            .concat()
        }),
        ("window of nothing", |id| frame(8, 0, id, &[0; 4])),
        ("windows overflow", |id| {
            frame(8, 0, id, &[0x7f, 0xff, 0xff, 0xff]).repeat(2)
        }),
        ("padding", |id| frame(DATA, 8, id, &[200, 0])),
        ("wrong length", |id| {
            let head = frame(HEADERS, END_HEADERS, id, &head(&[("content-length", "9")]));
            [head, frame(DATA, END_STREAM, id, b"short")].concat()
        }),
    ];
    for (what, answer) in answers {
        // One lane, so that no innocent request is lost with the connection.
        let mut options = load(serve(well(answer)), "h2c");
        options.streams = 1;
        let result = run(&options);
        assert_eq!(
            result.errors.get("protocol"),
            Some(&10),
            "{what}: {:?}",
            result.errors
        );
    }
}

#[test]
fn servers_that_go_away_are_told_from_those_that_reset() {
    let reset: Answer = |id| frame(3, 0, id, &[0, 0, 0, 7]);
    check("every stream reset", "h2c", "stream", well(reset));
    check("turned away", "h2c", "goaway", well(|_| goaway(0)));
    let at_once = Script {
        opening: [settings(&[]), goaway(0)].concat(),
        ..well(|_| Vec::new())
    };
    check("turned away at once", "h2c", "goaway", at_once);
    let cut: Answer = |id| frame(HEADERS, END_HEADERS, id, &[0x88]);
    let closing = Script {
        close: true,
        ..well(cut)
    };
    let mut options = load(serve(closing), "h2c");
    options.streams = 1;
    assert_eq!(run(&options).errors["reset"], 10);
}

#[test]
fn a_server_that_says_goodbye_after_each_answer_loses_nothing() {
    let answer: Answer = |id| {
        let good = frame(HEADERS, END_HEADERS | END_STREAM, id, &[0x88]);
        [good, goaway(id)].concat()
    };
    let mut options = load(serve(well(answer)), "h2c");
    options.streams = 1;
    options.timeout = PATIENCE;
    let result = run(&options);
    assert_eq!((result.ok, result.connects), (10, 8), "{:?}", result.errors);
}

#[test]
fn servers_that_stall_cost_a_timeout_and_no_more() {
    check("no answer", "h2c", "timeout", well(|_| Vec::new()));
    let no_streams = Script {
        opening: settings(&[(3, 0)]),
        ..well(|_| Vec::new())
    };
    check("no streams allowed", "h2c", "timeout", no_streams);
    for opening in [settings(&[(4, 0)]), settings(&[(4, 10), (5, 16_384)])] {
        let script = Script {
            opening,
            ..well(|_| Vec::new())
        };
        let mut options = load(serve(script), "h2c");
        options.body = vec![b'x'; 100_000];
        assert_eq!(run(&options).errors["timeout"], 10);
    }
}

#[test]
fn floods_do_not_keep_a_run_from_ending() {
    let pieces = [
        ("pings", frame(6, 0, 0, &[1; 8])),
        ("settings", settings(&[(4, 70_000)])),
        ("resets of nothing", frame(3, 0, 1, &[0; 4])),
        ("frames of no kind", frame(0xee, 0, 0, &[0; 100])),
    ];
    for (what, piece) in pieces {
        let script = Script {
            flood: piece.repeat(100),
            ..well(|_| Vec::new())
        };
        let result = run(&load(serve(script), "h2c"));
        assert_eq!(result.ok, 0, "{what}");
    }
}

#[test]
fn floods_without_frames_end_too() {
    fn flood(mut stream: TcpStream, head: &[u8], piece: &[u8]) {
        // Waits for the request: an answer without a request is another test.
        let _ = stream.read(&mut [0; 4096]);
        let piece = piece.repeat(1000);
        let _ = stream.write_all(head);
        while stream.write_all(&piece).is_ok() {}
    }
    let cases: [(&str, Play, &str); 3] = [
        (
            "http",
            |stream| {
                let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                flood(stream, head, b"1\r\na\r\n");
            },
            "timeout",
        ),
        (
            "http",
            |stream| flood(stream, b"HTTP/1.1 ", b"2"),
            "protocol",
        ),
        ("tcp", |stream| flood(stream, b"", b"x"), "protocol"),
    ];
    for (scheme, play, kind) in cases {
        let mut options = load(stranger(play), scheme);
        options.streams = 1;
        options.connections = 10;
        options.body = vec![b'x'; 10];
        let result = run(&options);
        assert_eq!(
            result.errors.get(kind),
            Some(&10),
            "{scheme}: {:?}",
            result.errors
        );
    }
}

#[test]
fn grpc_answers_must_be_one_message_and_a_status() {
    let ok = [
        0x88, 0, 11, b'g', b'r', b'p', b'c', b'-', b's', b't', b'a', b't', b'u', b's', 1, b'0',
    ];
    assert_eq!(head(&[("grpc-status", "0")]), ok);
    let answers: [(&str, Answer, &str); 5] = [
        (
            "no status",
            |id| frame(HEADERS, END_HEADERS | END_STREAM, id, &[0x88]),
            "protocol",
        ),
        (
            "no message",
            |id| {
                frame(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    id,
                    &head(&[("grpc-status", "0")]),
                )
            },
            "protocol",
        ),
        (
            "two messages",
            |id| {
                let trailers = frame(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    id,
                    &head(&[("grpc-status", "0")])[1..],
                );
                [
                    frame(HEADERS, END_HEADERS, id, &[0x88]),
                    frame(DATA, 0, id, &[0; 10]),
                    trailers,
                ]
                .concat()
            },
            "protocol",
        ),
        (
            "unavailable",
            |id| {
                frame(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    id,
                    &head(&[("grpc-status", "14")]),
                )
            },
            "status",
        ),
        // :status 404
        (
            "not gRPC",
            |id| frame(HEADERS, END_HEADERS | END_STREAM, id, &[0x8d]),
            "status",
        ),
    ];
    for (what, answer, kind) in answers {
        check(what, "grpc", kind, well(answer));
    }
}

#[test]
fn hostile_clients_are_closed_and_the_next_one_is_served() {
    let server = Served::echo(EchoOptions::default());
    // GET, http, /, and an authority.
    let get = [0x82, 0x86, 0x84, 0x41, 1, b'a'];
    let request = |id, block: &[u8]| frame(HEADERS, END_HEADERS | END_STREAM, id, block);
    let cases: [(&str, Vec<u8>); 9] = [
        ("no settings", request(1, &get)),
        (
            "long frame",
            [settings(&[]), frame(DATA, 0, 1, &[0; 20_000])].concat(),
        ),
        ("even stream", [settings(&[]), request(2, &get)].concat()),
        ("hpack", [settings(&[]), request(1, &[0xff; 20])].concat()),
        (
            "endless pieces",
            [
                settings(&[]),
                frame(HEADERS, 0, 1, &get),
                frame(9, 0, 1, b"").repeat(1000),
            ]
            .concat(),
        ),
        (
            "head too long",
            [
                settings(&[]),
                frame(HEADERS, 0, 1, &get),
                frame(9, 0, 1, &[0; 16_000]).repeat(6),
            ]
            .concat(),
        ),
        ("rapid resets", {
            let pair = |id: u32| [request(id, &get), frame(3, 0, id, &[0; 4])].concat();
            let resets = (0..20_000).flat_map(|turn| pair(turn * 2 + 1)).collect();
            [settings(&[]), resets, vec![0xff; 9]].concat()
        }),
        ("too many streams", {
            let waits = |id: u32| frame(HEADERS, END_HEADERS, id, &get);
            let streams = (0..3_000).flat_map(|turn| waits(turn * 2 + 1)).collect();
            [settings(&[]), streams, vec![0xff; 9]].concat()
        }),
        (
            "pings unread",
            [settings(&[]), frame(6, 0, 0, &[0; 8]).repeat(500_000)].concat(),
        ),
    ];
    for (what, bytes) in cases {
        let mut stream = server.connect();
        stream.write_all(PREFACE).unwrap();
        // The server may close while we write.
        let _ = stream.write_all(&bytes);
        if what != "pings unread" {
            let ended = stream.read_to_end(&mut Vec::new());
            assert!(
                !matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
                "{what}: closed"
            );
        }
        let mut options = load(server.address, "h2c");
        options.timeout = PATIENCE;
        assert_eq!(run(&options).ok, 10, "after {what}");
    }
}

#[test]
fn requests_that_break_the_rules_of_heads_are_reset_alone() {
    let server = Served::echo(EchoOptions::default());
    let good: &[u8] = &[0x82, 0x86, 0x84, 0x41, 1, b'a'];
    for bad in [
        &[0x82, 0x86][..],
        &[0x82, 0x82, 0x86, 0x84],
        &[0x82, 0x86, 0x0f, 0x0b, 1, b'3', 0x84],
        &[0x82, 0x86, 0x84, 0, 1, b'A', 1, b'b'],
        &[
            0x82, 0x86, 0x84, 0, 2, b't', b'e', 4, b'g', b'z', b'i', b'p',
        ],
    ] {
        let mut stream = server.connect();
        let request = |id, block: &[u8]| frame(HEADERS, END_HEADERS | END_STREAM, id, block);
        let bytes = [
            PREFACE.to_vec(),
            settings(&[]),
            request(1, bad),
            request(3, good),
        ]
        .concat();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let seen = frames(&answer);
        assert!(
            seen.contains(&(3, 1)) && seen.contains(&(HEADERS, 3)),
            "{bad:02x?}: {seen:?}"
        );
    }
}

#[test]
fn stopping_answers_the_streams_that_were_begun() {
    let server = Served::echo(EchoOptions::default());
    let late = b"/?delay=200ms";
    let path = [&[0x82, 0x86, 0x04, late.len() as u8], &late[..]].concat();
    let request = |id, block: &[u8]| frame(HEADERS, END_HEADERS | END_STREAM, id, block);
    let soon = request(3, &[0x82, 0x86, 0x84]);
    let mut stream = server.connect();
    let bytes = [PREFACE.to_vec(), settings(&[]), request(1, &path), soon].concat();
    stream.write_all(&bytes).unwrap();
    let mut answer = vec![0; 4096];
    let mut length = 0;
    // The second request's answer proves that the first has been read.
    while !frames(&answer[..length]).contains(&(HEADERS, 3)) {
        length += stream.read(&mut answer[length..]).unwrap();
    }
    server.finish().unwrap();
    answer.truncate(length);
    stream.read_to_end(&mut answer).unwrap();
    let seen = frames(&answer);
    assert!(
        seen.contains(&(7, 0)) && seen.ends_with(&[(HEADERS, 1)]),
        "{seen:?}"
    );
}

/// Kind and stream of each frame.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u32)> {
    let mut seen = Vec::new();
    while bytes.len() >= 9 {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        seen.push((
            bytes[3],
            u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]),
        ));
        bytes = bytes.get(9 + length..).unwrap_or_default();
    }
    seen
}
