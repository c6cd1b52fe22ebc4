//! Hostile traffic against real processes: it is refused, with a reason if there is a client to get it, and other
//! clients do not notice.

mod alpn;
mod impostors;
mod leaks;
mod memory;
mod memory_limit;
mod overload;
mod requests;
mod sources;
mod tokens;

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::mesh::{HTTP_PORT, Mesh, TCP_PORT, application, exchange, get, read_to_end, series};

/// A connection with this many others idle beside it must work like any other.
const IDLE_CONNECTIONS: usize = 10_000;

#[test]
fn requests_that_two_parsers_could_read_differently_are_refused_and_the_connection_closed() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let cases: &[(&str, &str)] = &[
        (
            "CL and TE",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "TE and CL",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        ),
        (
            "two lengths",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        ),
        (
            "a list of lengths",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 5\r\n\r\nabcd",
        ),
        (
            "a signed length",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nabcd",
        ),
        (
            "a folded header",
            "GET / HTTP/1.1\r\nHost: a\r\nX-A: b\r\n c\r\n\r\n",
        ),
        (
            "a space before the colon",
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 0\r\n\r\n",
        ),
        (
            "a bad chunk size",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "a chunk longer than said",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
        ),
        ("a line feed alone", "GET / HTTP/1.1\nHost: a\n\n"),
        ("two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        ("no host", "GET / HTTP/1.1\r\n\r\n"),
        (
            "a NUL in a value",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        ),
    ];
    for listener in [mesh.http(), mesh.inbound(HTTP_PORT)] {
        for (what, request) in cases {
            let answer = read_to_end(listener, request.as_bytes()).expect("answered and closed");
            let text = String::from_utf8_lossy(&answer);
            assert!(
                text.starts_with("HTTP/1.1 400 "),
                "{what} at {listener}: {text:?}"
            );
            assert_eq!(
                text.matches("HTTP/1.1 ").count(),
                1,
                "{what} at {listener}: one answer only: {text:?}"
            );
        }
        assert_eq!(get(listener, "/").expect("others go on").status, 200);
    }
}

#[test]
fn a_head_beyond_its_limit_is_answered_431() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let long = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\r\n",
        "x".repeat(100_000)
    );
    assert!(
        read_to_end(mesh.http(), long.as_bytes())
            .expect("answered")
            .starts_with(b"HTTP/1.1 431 ")
    );
    let many: String = (0..2_000).map(|n| format!("x-{n}: y\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n");
    assert!(
        read_to_end(mesh.http(), many.as_bytes())
            .expect("answered")
            .starts_with(b"HTTP/1.1 431 ")
    );
    assert_eq!(get(mesh.http(), "/").expect("others go on").status, 200);
}

#[test]
fn garbage_on_every_port_harms_nobody() {
    let mut mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    application::serve(mesh.tcp_app(), drop);
    let mut ports = mesh.management();
    ports.extend([
        mesh.http(),
        mesh.tcp(),
        mesh.inbound(HTTP_PORT),
        mesh.inbound(TCP_PORT),
    ]);
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    for address in ports {
        for length in [0, 1, 16, 300, 5_000] {
            let garbage: Vec<u8> = (0..length)
                .map(|_| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random as u8
                })
                .collect();
            for prefix in [
                &b""[..],
                b"\x16\x03\x01\x02\x00\x01",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"GET / HTTP/1.1\r\n",
            ] {
                let mut stream = TcpStream::connect(address).expect("a connection");
                // The other side may close while we write: that is its right.
                let _ = stream
                    .write_all(prefix)
                    .and_then(|()| stream.write_all(&garbage));
            }
        }
    }
    assert_eq!(get(mesh.http(), "/").expect("the mesh goes on").status, 200);
    assert!(mesh.control.is_running() && mesh.client.is_running() && mesh.server.is_running());
    for process in [&mesh.control, &mesh.client, &mesh.server] {
        assert!(!process.log().contains("panicked"), "{}", process.log());
    }
}

#[test]
fn idle_connections_by_the_thousand_leave_room_for_a_request() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let (limit, _) = (
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
        (),
    );
    let count = limit.map_or(IDLE_CONNECTIONS, |limit| {
        (limit as usize / 2).min(IDLE_CONNECTIONS)
    });
    let idle: Vec<TcpStream> = (0..count)
        .map(|_| TcpStream::connect(mesh.http()).expect("a connection"))
        .collect();
    assert_eq!(get(mesh.http(), "/").expect("an answer").status, 200);
    drop(idle);
    assert_eq!(get(mesh.http(), "/").expect("an answer").status, 200);
}

#[test]
fn forged_peer_metadata_does_not_name_the_caller() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let forged = b"GET / HTTP/1.1\r\nHost: a\r\nx-envoy-peer-metadata-id: sidecar~evil\r\nx-envoy-peer-metadata: ZXZpbA==\r\nConnection: close\r\n\r\n";
    let answer = exchange(mesh.inbound(HTTP_PORT), forged).expect("an answer");
    assert!(
        !String::from_utf8_lossy(&answer.body).contains("evil"),
        "{answer:?}"
    );
    assert_eq!(
        series(
            &mesh.server_metrics(),
            "istio_requests_total",
            &["source_principal=\"unknown\""]
        ),
        Some(1.0)
    );
}

#[test]
fn a_plaintext_probe_of_the_control_planes_tls_port_learns_nothing() {
    let mesh = Mesh::start("STRICT");
    let mut stream = TcpStream::connect(mesh.management()[0]).expect("a connection");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("sent");
    let mut answer = Vec::new();
    // A reset is as good as a close.
    let _ = stream.read_to_end(&mut answer);
    assert!(
        !answer.starts_with(b"HTTP/"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}
