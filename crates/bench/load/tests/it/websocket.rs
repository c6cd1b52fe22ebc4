//! Load over WebSocket: a small echo server that sends pings between the frames of its answers, and servers that do it wrong.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use voile_load::{LoadOptions, LoadResult, LoadTarget, Stop};

use crate::server::{PATIENCE, Play, stranger};

fn run(play: Play, size: usize) -> LoadResult {
    let url = format!("ws://{}/chat", stranger(play));
    let mut options = LoadOptions::new(LoadTarget::parse(&url).unwrap());
    options.body = vec![b'x'; size];
    (options.rate, options.connections) = (200.0, 2);
    options.duration = Duration::from_millis(250);
    options.timeout = PATIENCE;
    voile_load::run(&options, &Stop::new().unwrap(), false).unwrap()
}

/// Reads the upgrade and agrees to it.
fn agree(stream: &mut TcpStream) -> Option<()> {
    let (mut head, mut byte) = (String::new(), [0]);
    while !head.ends_with("\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(char::from(byte[0]));
    }
    assert!(
        head.starts_with("GET /chat HTTP/1.1\r\nHost: 127.0.0.1:"),
        "{head}"
    );
    let key = head
        .lines()
        .find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "))?;
    let key = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes());
    let accept = base64::engine::general_purpose::STANDARD.encode(hash.as_ref());
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).ok()
}

/// One frame of a client: its kind and payload.
fn frame(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).ok()?;
    assert!(
        head[0] & 0x80 != 0 && head[1] & 0x80 != 0,
        "whole and masked"
    );
    let length = match head[1] & 0x7f {
        126 => {
            let mut two = [0; 2];
            stream.read_exact(&mut two).ok()?;
            usize::from(u16::from_be_bytes(two))
        }
        127 => {
            let mut eight = [0; 8];
            stream.read_exact(&mut eight).ok()?;
            u64::from_be_bytes(eight) as usize
        }
        short => usize::from(short),
    };
    let (mut mask, mut payload) = ([0; 4], vec![0; length]);
    stream.read_exact(&mut mask).ok()?;
    stream.read_exact(&mut payload).ok()?;
    let plain = payload
        .iter()
        .zip(mask.iter().cycle())
        .map(|(byte, mask)| byte ^ mask);
    Some((head[0] & 0x0f, plain.collect()))
}

fn send(stream: &mut TcpStream, first: u8, payload: &[u8]) -> Option<()> {
    let mut bytes = vec![first];
    match payload.len() {
        length @ 0..126 => bytes.push(length as u8),
        length @ 126..65_536 => {
            bytes.push(126);
            bytes.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            bytes.push(127);
            bytes.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(payload);
    stream.write_all(&bytes).ok()
}

/// Sends each message back in two frames with a ping between them, whose answer must come.
fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    if agree(&mut stream).is_none() {
        return;
    }
    let mut pings = 0;
    while let Some((kind, payload)) = frame(&mut stream) {
        if kind == 10 {
            assert_eq!(payload, b"are you there");
            pings -= 1;
            continue;
        }
        assert!(kind == 2 && payload.iter().all(|byte| *byte == b'x') && pings <= 1);
        let (one, two) = payload.split_at(payload.len() / 2);
        pings += 1;
        let sent = send(&mut stream, 2, one)
            .and_then(|()| send(&mut stream, 0x89, b"are you there"))
            .and_then(|()| send(&mut stream, 0x80, two));
        if sent.is_none() {
            return;
        }
    }
}

#[test]
fn messages_of_every_length_come_back() {
    for size in [0, 1, 125, 126, 65_535, 65_536, 300_000] {
        let result = run(echo, size);
        assert_eq!(result.ok, 50, "{size}: {:?}", result.errors);
        assert_eq!(result.bytes.body, 50 * size as u64);
        assert_eq!((result.connects, result.first_byte_us.count), (0, 50));
    }
}

#[test]
fn servers_that_do_it_wrong_are_told_apart() {
    let refuses: Play = |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.read(&mut [0; 4096]);
    };
    let wrong_key: Play = |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(
            b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: AAAA\r\n\r\n",
        );
        let _ = stream.read(&mut [0; 4096]);
    };
    let shorter: Play = |mut stream| {
        let _ = agree(&mut stream);
        while frame(&mut stream).is_some() {
            let _ = send(&mut stream, 0x82, b"no");
        }
    };
    let masked: Play = |mut stream| {
        let _ = agree(&mut stream);
        while frame(&mut stream).is_some() {
            let _ = stream.write_all(&[0x82, 0x81, 0, 0, 0, 0, b'x']);
        }
    };
    let closes: Play = |mut stream| {
        let _ = agree(&mut stream);
        let _ = frame(&mut stream);
        let _ = send(&mut stream, 0x88, &[3, 232]);
        while frame(&mut stream).is_some() {}
    };
    for (play, kind) in [
        (refuses, "protocol"),
        (wrong_key, "protocol"),
        (shorter, "size"),
        (masked, "protocol"),
        (closes, "reset"),
    ] {
        let result = run(play, 10);
        assert_eq!(result.ok, 0, "{kind}");
        assert!(
            result.errors.contains_key(kind),
            "{kind}: {:?}",
            result.errors
        );
    }
}
