//! Bulk load against our own sink and source, and against hostile servers that send nothing, stop reading, or break off.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use voile_load::bulk::{self, BulkResult};
use voile_load::echo::EchoOptions;
use voile_load::{Bulk, LoadOptions, LoadProtocol, LoadTarget, Stop};

use crate::server::{PATIENCE, Play, Served, loopback, stranger};

fn load(address: SocketAddr, direction: Bulk) -> LoadOptions {
    let mut options = LoadOptions::new(LoadTarget::parse(&format!("tcp://{address}")).unwrap());
    options.protocol = LoadProtocol::TcpBulk;
    options.bulk = direction;
    options.connections = 3;
    options.duration = Duration::from_millis(300);
    options.timeout = PATIENCE;
    options
}

fn run(options: &LoadOptions) -> BulkResult {
    let result = bulk::run(options, &Stop::new().unwrap(), false).unwrap();
    let seconds: u64 = result.per_second.iter().map(|second| second.bytes).sum();
    assert_eq!(seconds, result.bytes, "the seconds add up");
    result
}

#[test]
fn what_is_pushed_is_counted_by_the_sink() {
    let server = Served::at(EchoOptions {
        sink: vec![loopback()],
        ..EchoOptions::default()
    });
    for threads in [1, 2] {
        let mut options = load(server.address, Bulk::Push);
        options.threads = threads;
        options.warmup = Duration::from_millis(50);
        let result = run(&options);
        assert!(result.valid, "{:?}", result.invalid_reasons);
        assert_eq!(result.counted_by, "sink");
        assert!(result.bytes > 1_000_000, "{}", result.bytes);
        assert!(
            result.connection_bytes[0] > 0,
            "each connection has its turn"
        );
    }
}

#[test]
fn what_is_pulled_is_what_was_read() {
    let server = Served::at(EchoOptions {
        source: vec![loopback()],
        ..EchoOptions::default()
    });
    let result = run(&load(server.address, Bulk::Pull));
    assert!(result.valid, "{:?}", result.invalid_reasons);
    assert_eq!(result.counted_by, "reader");
    assert!(result.bytes > 1_000_000, "{}", result.bytes);
}

#[test]
fn the_sink_tells_any_client_what_it_took() {
    let server = Served::at(EchoOptions {
        sink: vec![loopback()],
        ..EchoOptions::default()
    });
    let mut stream = server.connect();
    stream.write_all(&vec![b'x'; 1_000_001]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut acks = Vec::new();
    stream.read_to_end(&mut acks).unwrap();
    assert!(acks.len() >= 8 && acks.len().is_multiple_of(8), "{acks:?}");
    assert!(acks.ends_with(&1_000_001u64.to_be_bytes()), "{acks:?}");
}

#[test]
fn a_silent_sink_is_counted_by_the_kernel() {
    let address = stranger(|mut stream| {
        let mut buffer = vec![0; 64 * 1024];
        while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
    });
    let result = run(&load(address, Bulk::Push));
    assert!(result.valid, "{:?}", result.invalid_reasons);
    assert_eq!(result.counted_by, "kernel");
    assert!(result.bytes > 1_000_000, "{}", result.bytes);
}

#[test]
fn a_peer_that_stops_or_breaks_off_ends_the_run_in_time() {
    let plays: [(Play, Option<&str>); 4] = [
        // Never reads: the run ends at its time, with what fits into the buffers.
        (
            |stream| drop(stream.peek(&mut [0; 1]).map(|_| thread::park())),
            None,
        ),
        (drop, Some("reset")),
        // Speaks, but not as a sink does.
        (
            |mut stream| {
                let _ = stream.write_all(b"220 mail.example ESMTP\r\n\r\n");
                let mut buffer = vec![0; 64 * 1024];
                while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
            },
            Some("protocol"),
        ),
        // Talks without end and never reads.
        (
            |mut stream| while stream.write_all(&[0xff; 4096]).is_ok() {},
            Some("protocol"),
        ),
    ];
    for (play, kind) in plays {
        let result = run(&load(stranger(play), Bulk::Push));
        match kind {
            None => assert_eq!(result.counted_by, "kernel"),
            Some(kind) => {
                assert_eq!(result.errors[kind], 3, "{:?}", result.errors);
                assert!(!result.valid && !result.interrupted);
            }
        }
    }
    let closed = TcpListener::bind(loopback()).unwrap().local_addr().unwrap();
    assert_eq!(run(&load(closed, Bulk::Pull)).errors["connect"], 3);
    let ending = stranger(|mut stream| drop(stream.write_all(b"short")));
    assert_eq!(run(&load(ending, Bulk::Pull)).errors["reset"], 3);
}
