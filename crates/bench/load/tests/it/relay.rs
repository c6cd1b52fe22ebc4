//! The relay carries every byte both ways, half-close and failure included.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::thread;

use voile_load::Stop;
use voile_load::echo::EchoOptions;

use crate::server::{ClosedTcpPort, Served, loopback};

fn raw_echo() -> Served {
    Served::at(EchoOptions {
        tcp: vec![loopback()],
        ..EchoOptions::default()
    })
}

#[test]
fn bulk_bytes_come_back_whole_and_in_order_after_half_close() {
    let server = raw_echo();
    let relay = Served::relay(server.address);
    let sent: Vec<u8> = (0..5_000_000u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (mut stream, sent) = (relay.connect(), sent.clone());
            thread::spawn(move || {
                let mut writer = stream.try_clone().unwrap();
                let written = thread::spawn(move || {
                    writer.write_all(&sent).unwrap();
                    // Only the half-close shows the other end that it has all.
                    writer.shutdown(Shutdown::Write).unwrap();
                    sent
                });
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                assert!(received == written.join().unwrap(), "bytes differ");
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    relay.finish().unwrap();
    server.finish().unwrap();
}

#[test]
fn a_server_that_speaks_first_and_ends_first_is_heard() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let relay = Served::relay(listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        rest
    });
    let mut client = relay.connect();
    let mut greeting = String::new();
    client.read_to_string(&mut greeting).unwrap();
    assert_eq!(greeting, "hello");
    client.write_all(b"still here").unwrap();
    drop(client);
    assert_eq!(server.join().unwrap(), "still here");
}

#[test]
fn a_refusing_server_ends_the_client_and_not_the_relay() {
    let closed = ClosedTcpPort::reserve();
    let relay = Served::relay(closed.address);
    for _ in 0..20 {
        let mut client = relay.connect();
        // A reset or an end; never a hang.
        assert!(!matches!(client.read(&mut [0; 16]), Ok(count) if count > 0));
    }
    relay.finish().unwrap();
}

#[test]
fn load_through_the_relay_is_all_answered() {
    let server = Served::echo(EchoOptions::default());
    let relay = Served::relay(server.address);
    let result = voile_load::run(&relay.load("/?size=1024"), &Stop::new().unwrap(), false).unwrap();
    assert_eq!((result.ok, result.errors_total), (100, 0));
}
