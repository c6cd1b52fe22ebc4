//! The memory limit under attacks other than large heads: uploads and relayed bytes that the receiver does not read, handshakes that
//! stall, and a gateway's clients.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::gateway::{Edge, TO_SERVER, http_server, routes};
use crate::hostile::memory::{
    Attacker, END_HEADERS, GIVEN_BACK, HEADERS, floods, frame, given_back, held_before_attack, mib,
    peak, request, settled, slow_readers, with,
};
use crate::mesh::{HTTP_PORT, Mesh, application, get, memory, memory_before_attack, wait_until};
use crate::traffic::early_answers::connect;

const LIMIT: u64 = 64 << 20;

/// Connections of an attack.
const CLIENTS: usize = 1500;
/// And of the one by heads.
const CLIENTS_WITH_HEADS: usize = 2000;
/// And of the one by relayed bytes.
const CLIENTS_WITH_BYTES: usize = 4000;
/// Connections of the one by answers, with a thousand streams each.
const CONNECTIONS_WITH_ANSWERS: usize = 8;

/// Time in which a client gives up writing: the proxy takes nothing more.
const UNREAD: Duration = Duration::from_millis(100);

/// Writes until the proxy takes nothing more, or has ended the connection.
fn fill(stream: &mut TcpStream, bytes: &[u8], most: usize) {
    let _ = stream.set_write_timeout(Some(UNREAD));
    let mut sent = 0;
    while sent < most {
        match stream.write(bytes) {
            Ok(written) => sent += written,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Applications that accept and never read a body or a byte of a connection.
fn read_nothing(mesh: &Mesh) {
    application::serve(mesh.http_app(), |mut stream| {
        let mut head = [0; 2048];
        let read = stream.read(&mut head).unwrap_or(0);
        if head[..read].starts_with(b"POST") {
            // Until the proxy ends the connection, which a peek tells.
            while stream.peek(&mut head).is_ok_and(|read| read > 0) {
                std::thread::park_timeout(UNREAD);
            }
            return;
        }
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone");
    });
    application::serve(mesh.tcp_app(), |stream| {
        let mut byte = [0];
        while stream.peek(&mut byte).is_ok_and(|read| read > 0) {
            std::thread::park_timeout(UNREAD);
        }
    });
}

/// An attack on a mesh whose sidecars have the limit: it holds, others are served afterwards, and the memory goes back.
fn attacked(serve: impl Fn(&Mesh), attack: impl Fn(&Mesh) -> Vec<TcpStream>) {
    let mesh = Mesh::start_as("STRICT", &with(&["--memory-limit", "64M"]));
    serve(&mesh);
    assert_eq!(get(mesh.http(), "/").expect("served").status, 200);
    let before = held_before_attack(&mesh);
    let clients = attack(&mesh);
    settled(&mesh);
    let most = peak(&mesh);
    println!("{} MiB before, {} MiB at most", mib(before), mib(most));
    assert!(most < LIMIT, "{most} bytes");
    drop(clients);
    let took = given_back(&mesh, before);
    println!("given back after {took:?}");
    assert!(took <= GIVEN_BACK, "{took:?}");
    wait_until("others are served again", || {
        get(mesh.http(), "/").is_ok_and(|answer| answer.status == 200)
    });
}

fn clients(count: usize, to: SocketAddr, each: impl Fn(&mut TcpStream)) -> Vec<TcpStream> {
    let mut clients: Vec<_> = (0..count).map(|_| connect(to)).collect();
    clients.iter_mut().for_each(each);
    clients
}

#[test]
fn the_memory_limit_holds_under_answers_that_the_client_does_not_read() {
    attacked(floods, |mesh| {
        let attackers = slow_readers(mesh.http(), CONNECTIONS_WITH_ANSWERS).into_iter();
        attackers.map(|attacker| attacker.stream).collect()
    });
}

#[test]
fn the_memory_limit_holds_under_heads_of_http1_that_never_end() {
    let mut head = b"GET / HTTP/1.1\r\nHost: a\r\n".to_vec();
    for number in 0..7 {
        head.extend(format!("x-{number}: ").into_bytes());
        head.extend([b'x'].repeat(8000));
        head.extend(b"\r\n");
    }
    // All connect first: then nobody is refused as a connection.
    attacked(floods, |mesh| {
        clients(CLIENTS_WITH_HEADS, mesh.http(), |client| {
            let _ = client.set_write_timeout(Some(2 * UNREAD));
            // The proxy may close the connection.
            let _ = client.write_all(&head);
        })
    });
}

#[test]
fn the_memory_limit_holds_under_uploads_that_the_server_does_not_read() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
    attacked(read_nothing, |mesh| {
        clients(CLIENTS, mesh.http(), |client| {
            let _ = client.write_all(head.as_bytes());
            fill(client, &[b'x'; 16 * 1024], 64 * 1024);
        })
    });
}

#[test]
fn the_memory_limit_holds_under_uploads_over_http2_that_the_server_does_not_read() {
    const DATA: u8 = 0;
    let mut post = request("/");
    let get = post
        .iter()
        .position(|byte| *byte == b'G')
        .expect("a method");
    post.splice(get - 1..get + 3, [4, b'P', b'O', b'S', b'T']);
    attacked(read_nothing, |mesh| {
        let attackers = (0..CLIENTS / 4).map(|_| {
            let mut attacker = Attacker::new(mesh.http(), &[]);
            let _ = attacker.stream.set_write_timeout(Some(UNREAD));
            let mut all = frame(HEADERS, END_HEADERS, 1, &post);
            // All that the first windows of RFC 9113 let through.
            for length in [16_384, 16_384, 16_384, 16_383] {
                all.extend(frame(DATA, 0, 1, &vec![b'x'; length]));
            }
            let _ = attacker.stream.write_all(&all);
            attacker.stream
        });
        attackers.collect()
    });
}

#[test]
fn the_memory_limit_holds_under_relayed_bytes_that_the_server_does_not_read() {
    attacked(read_nothing, |mesh| {
        clients(CLIENTS_WITH_BYTES, mesh.tcp(), |client| {
            fill(client, &[b'x'; 16 * 1024], 64 * 1024);
        })
    });
}

#[test]
fn the_memory_limit_holds_under_handshakes_that_stall() {
    // A record of 16 KiB that holds the beginning of a ClientHello.
    let mut hello = vec![22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3];
    hello.resize(15_000, 0);
    attacked(read_nothing, |mesh| {
        clients(CLIENTS, mesh.inbound(HTTP_PORT), |client| {
            let _ = client.set_write_timeout(Some(UNREAD));
            let _ = client.write_all(&hello);
        })
    });
}

#[test]
fn the_memory_limit_of_a_gateway_holds_under_heads_that_hpack_makes_large() {
    let resources = crate::gateway::servers(&http_server("server.shop.svc.cluster.local"))
        + &routes("server.shop.svc.cluster.local", TO_SERVER);
    let edge = Edge::start_as(with(&["--memory-limit", "64M"]), "", &resources);
    let host = "server.shop.svc.cluster.local";
    application::serve(edge.mesh.http_app(), |mut stream| {
        let mut head = vec![0; 64 * 1024];
        let read = stream.read(&mut head).unwrap_or(0);
        if head[..read].starts_with(b"GET /hold") {
            while stream.read(&mut head).is_ok_and(|read| read > 0) {}
            return;
        }
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone");
    });
    wait_until("a route", || edge.status(host, "/") == 200);
    let before = memory_before_attack(edge.gateway_pid());
    let mut attackers = Vec::new();
    for _ in 0..48 {
        let mut attacker = Attacker::new(edge.at(HTTP_PORT), &[]);
        attacker.bombs(200);
        attacker.looked_at();
        attackers.push(attacker);
        assert_eq!(edge.status(host, "/"), 200, "others are served");
    }
    let most = memory(edge.gateway_pid(), "VmHWM:");
    println!("{} MiB before, {} MiB at most", mib(before), mib(most));
    assert!(most < LIMIT, "{most} bytes");
    drop(attackers);
    let began = Instant::now();
    wait_until("the memory of the burst was given back", || {
        memory(edge.gateway_pid(), "VmRSS:") < before + before / 2
    });
    assert!(began.elapsed() <= GIVEN_BACK, "{:?}", began.elapsed());
}
