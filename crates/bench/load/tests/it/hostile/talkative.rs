//! Clients of live gRPC streams that break the rules: they never read answers, end in the middle of a message, or send reflection
//! nonsense. The next client is served all the same.

use std::io::{Read, Write};
use std::net::TcpStream;

use voile_load::echo::EchoOptions;

use crate::server::Served;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// RST_STREAM's code for a client that asks too much.
const ENHANCE_YOUR_CALM: u32 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The preface, no room for answers' bodies, and a call of a method on stream 1.
fn call(path: &str, window: u32) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(b"\x01\x01a\x00\x0ccontent-type\x10application/grpc");
    let window = [&4u16.to_be_bytes()[..], &window.to_be_bytes()].concat();
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &window),
        frame(HEADERS, END_HEADERS, 1, &block),
    ]
    .concat()
}

fn message(payload: &[u8]) -> Vec<u8> {
    [&[0], &(payload.len() as u32).to_be_bytes()[..], payload].concat()
}

/// Reads frames to the end of stream 1. Returns the kinds of frames on it, and the payload of the last frame.
fn until_over(stream: &mut TcpStream) -> (Vec<u8>, Vec<u8>) {
    let mut kinds = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).unwrap();
        if head[8] != 1 {
            continue;
        }
        kinds.push(head[3]);
        if head[3] == RESET || (head[3] != SETTINGS && head[4] & END_STREAM != 0) {
            return (kinds, payload);
        }
    }
}

fn serves_others(server: &Served) {
    let result = voile_load::run(
        &server.load("/?size=1"),
        &voile_load::Stop::new().unwrap(),
        false,
    );
    assert_eq!(result.unwrap().ok, 100);
}

#[test]
fn a_client_that_takes_no_answers_is_not_kept_without_end() {
    let server = Served::echo(EchoOptions::default());
    let mut stream = server.connect();
    stream
        .write_all(&call("/voile.echo.v1.Echo/Stream", 0))
        .unwrap();
    let piece = frame(DATA, 0, 1, &message(&[b'x'; 16_000])).repeat(64);
    // 70 MiB of messages, each of which is to come back.
    let mut reader = stream.try_clone().unwrap();
    let heard = std::thread::spawn(move || until_over(&mut reader));
    for _ in 0..72 {
        stream.write_all(&piece).unwrap();
    }
    let (kinds, code) = heard.join().unwrap();
    assert_eq!(kinds.last(), Some(&RESET), "{kinds:?}");
    assert_eq!(code, ENHANCE_YOUR_CALM.to_be_bytes());
    serves_others(&server);
}

#[test]
fn calls_that_end_in_the_middle_or_ask_nonsense_end_with_a_status() {
    let server = Served::echo(EchoOptions::default());
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let torn = [message(b"whole"), vec![0, 0, 0]].concat();
    for (path, sent, flags, answers, why) in [
        (
            "/voile.echo.v1.Echo/Stream",
            torn,
            END_STREAM,
            1,
            "half a message",
        ),
        (
            "/voile.echo.v1.Echo/Stream",
            Vec::new(),
            END_STREAM,
            0,
            "nothing",
        ),
        (reflection, message(b"\xff\xff"), 0, 0, "no question"),
        (reflection, message(b""), 0, 0, "an empty question"),
        (
            "/voile.echo.v1.Echo/Stream",
            vec![1, 0, 0, 0, 1, b'z'],
            0,
            0,
            "compressed",
        ),
    ] {
        let mut stream = server.connect();
        stream.write_all(&call(path, 65_535)).unwrap();
        stream.write_all(&frame(DATA, flags, 1, &sent)).unwrap();
        let (kinds, _) = until_over(&mut stream);
        let told = kinds.iter().filter(|kind| **kind == DATA).count();
        assert_eq!(
            (kinds.last(), told),
            (Some(&HEADERS), answers),
            "{why}: {kinds:?}"
        );
    }
    serves_others(&server);
}
