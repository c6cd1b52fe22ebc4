//! Callers of a pod's tunnel port that show no certificate: they say nothing, half a greeting, something else, or do a handshake
//! without a certificate. Others call meanwhile, with a handshake each.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Instant;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::captured::connect;
use crate::gateway::http3::client as anonymous;
use crate::mesh::memory_before_attack;
use crate::node::hostile::{certified, try_to_speak};
use crate::node::*;

/// Connections of each kind of the attack.
const CROWD: usize = 600;
/// Handshakes of honest callers during the attack, and the longest time for one.
const HONEST: usize = 30;
const PATIENCE: Duration = Duration::from_secs(2);
/// Unproven callers of one source at both workers.
const OPEN_AT_MOST: usize = 2 * 64;
/// Memory that the crowd may add: what the unproven callers of two workers may hold.
const GROWTH: u64 = 2 * voile_node::UNPROVEN_BYTES as u64;

/// Beginnings of a connection, none of which ends: nothing, the head of a record, half a ClientHello, HTTP/2 without TLS.
fn beginnings(hello: &[u8]) -> [Vec<u8>; 4] {
    [
        Vec::new(),
        hello[..5].to_vec(),
        hello[..hello.len() / 2].to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
    ]
}

/// A client of TLS without a certificate.
fn stranger() -> ClientConnection {
    let name = ServerName::from(IpAddr::from(FIRST));
    ClientConnection::new(anonymous(b"h2", None), name).expect("a client")
}

fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    loop {
        match (&*stream).read(&mut [0; 64]) {
            Ok(0) => return false,
            // An alert comes before the end.
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn callers_without_a_certificate_are_bounded_in_number_time_and_memory_and_delay_nobody() {
    let mut mesh = match mesh_of(&on_two_nodes(&[("first", FIRST)]), &[]) {
        Some(mesh) => mesh,
        None => return,
    };
    let (client, first) = (pod(&mesh, "client", CLIENT), pod(&mesh, "first", FIRST));
    serve(&first, FIRST);
    let _one = Node::start(&mut mesh, "ztunnel-one", 0, &[(&client, "client")], &[]);
    let two = Node::start(&mut mesh, "ztunnel-two", 100, &[(&first, "server")], &[]);
    let service = SocketAddr::from((VIP, 80));
    let is_served = || name(&client.inside, service).as_deref() == Some("first");
    wait_until("the service is called", is_served);
    let proxy = mesh.processes.iter().find(|one| one.name() == two.process);
    let proxy = proxy.expect("it was started").pid();
    let before = memory_before_attack(proxy);

    let (crowd, slowest) = certified(&mesh, "client", async |store| {
        let mut hello = Vec::new();
        let written = stranger().write_tls(&mut hello);
        written.expect("written");
        let mut crowd = Vec::new();
        let mut slowest = Duration::ZERO;
        for number in 0..HONEST {
            for beginning in beginnings(&hello) {
                for _ in 0..CROWD / HONEST {
                    let mut stream = connect(&mesh.world, (FIRST, 15008));
                    // It may be refused already.
                    let _ = stream.write_all(&beginning);
                    crowd.push(stream);
                }
            }
            let began = Instant::now();
            let caller = tokio::time::timeout(PATIENCE, try_to_speak(&store, FIRST)).await;
            assert!(matches!(caller, Ok(Some(_))), "honest caller {number}");
            slowest = slowest.max(began.elapsed());
            assert!(is_served(), "through the other node, {number}");
        }
        (crowd, slowest)
    });
    let open = crowd.iter().filter(|one| is_open(one)).count();
    let most = memory(proxy, "VmHWM:");
    let grown = most - before;
    println!(
        "{} callers, {open} open, {} KiB more, slowest honest handshake {slowest:?}",
        crowd.len(),
        grown >> 10
    );
    assert!(open <= OPEN_AT_MOST, "{open} of {}", crowd.len());
    assert!(grown < GROWTH, "{grown}");
    wait_until("the proxy waits for none of them any more", || {
        !crowd.iter().any(is_open)
    });
    let log = mesh.processes.iter().find(|one| one.name() == two.process);
    let lines = log.expect("it was started").log();
    let lines = lines.matches("connection refused").count();
    assert!(lines < 100, "{lines} lines for {} callers", crowd.len());
}

#[test]
fn a_handshake_without_a_certificate_opens_nothing() {
    let mut mesh = match mesh_of(&on_two_nodes(&[("first", FIRST)]), &[]) {
        Some(mesh) => mesh,
        None => return,
    };
    let first = pod(&mesh, "first", FIRST);
    serve(&first, FIRST);
    let _two = Node::start(&mut mesh, "ztunnel-two", 100, &[(&first, "server")], &[]);
    for _ in 0..100 {
        let tcp = connect(&mesh.world, (FIRST, 15008));
        let mut stream = StreamOwned::new(stranger(), tcp);
        let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut heard = Vec::new();
        let ended = stream.read_to_end(&mut heard);
        assert!(ended.is_err() && heard.is_empty(), "{ended:?} {heard:?}");
    }
}
