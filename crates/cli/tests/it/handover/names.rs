//! DNS while its proxy is replaced: no question is lost, by UDP or TCP, and one that the old process has passed on is
//! answered by it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::handover::lending;
use crate::mesh::resolver::{Resolver, ask, question, read};
use crate::mesh::{Client, Mesh, free_port, local, wait_until};

/// A client waits 5 s before it asks again; a question that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(5);

fn answering(dns: SocketAddr, resolver: SocketAddr) -> Client {
    let mut how = lending();
    how.arguments = [
        "--dns",
        &dns.to_string(),
        "--resolver",
        &resolver.to_string(),
    ]
    .map(str::to_owned)
    .to_vec();
    how
}

/// One question by one datagram.
fn by_udp(dns: SocketAddr, name: &str) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("open");
    socket.send_to(&question(name, "A"), dns).expect("sent");
    let mut buffer = [0; 512];
    match socket.recv(&mut buffer) {
        Ok(length) => read(&buffer[..length]),
        Err(error) => format!("lost: {error}"),
    }
}

/// One question on one connection.
fn by_tcp(dns: SocketAddr, name: &str) -> String {
    let asked = || {
        let mut stream = TcpStream::connect(dns)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let question = question(name, "A");
        stream.write_all(&[0, question.len() as u8])?;
        stream.write_all(&question)?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut answer)?;
        std::io::Result::Ok(read(&answer))
    };
    asked().unwrap_or_else(|error| format!("lost: {error}"))
}

#[test]
fn no_question_is_lost_while_the_proxy_that_answers_is_replaced() {
    let outside = Ipv4Addr::new(192, 0, 2, 7);
    let zone = BTreeMap::from([("www.elsewhere.test", vec![outside])]);
    let resolver = Resolver::start(zone);
    let dns = local(free_port());
    let how = answering(dns, resolver.address);
    let mut mesh = Mesh::start_as("STRICT", &how);
    let server = format!("NOERROR {}", mesh.inbound(0).ip());
    wait_until("the service is known", || {
        ask(dns, "server.shop", "A") == server
    });
    let (done, count) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let outside = format!("NOERROR {outside}");
    let askers: Vec<_> = [
        (
            "server.shop",
            by_udp as fn(SocketAddr, &str) -> String,
            &server,
        ),
        ("www.elsewhere.test", by_udp, &outside),
        ("server.shop", by_tcp, &server),
        ("www.elsewhere.test", by_tcp, &outside),
    ]
    .into_iter()
    .map(|(name, by, expected)| {
        let (done, count, expected) = (Arc::clone(&done), Arc::clone(&count), expected.clone());
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let answer = by(dns, name);
                let before = count.fetch_add(1, Ordering::Relaxed);
                assert_eq!(answer, expected, "{name}, after {before} questions");
            }
        })
    })
    .collect();
    for _ in 0..3 {
        let asked = count.load(Ordering::Relaxed);
        let mut old = mesh.replace("client", &how);
        let status = old.wait();
        assert!(status.success(), "{status}\n{}", old.log());
        wait_until("questions go on", || {
            count.load(Ordering::Relaxed) > asked + 50
        });
    }
    done.store(true, Ordering::Relaxed);
    for asker in askers {
        asker.join().expect("every question was answered");
    }
}

#[test]
fn a_question_that_the_old_process_has_passed_on_is_answered_by_it() {
    // It answers when the test says so.
    let slow = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let dns = local(free_port());
    let how = answering(dns, slow.local_addr().expect("bound"));
    for by in [by_udp as fn(SocketAddr, &str) -> String, by_tcp] {
        let mut mesh = Mesh::start_as("STRICT", &how);
        let asker = std::thread::spawn(move || by(dns, "www.elsewhere.test"));
        slow.set_read_timeout(None).expect("open");
        let mut buffer = [0; 512];
        let (length, peer) = slow.recv_from(&mut buffer).expect("passed on");
        let mut old = mesh.replace("client", &how);
        wait_until("the new process serves", || {
            mesh.client.log().contains("listening sockets taken over")
                && old.log().contains("draining")
        });
        buffer[2] |= 0x80;
        slow.send_to(&buffer[..length], peer).expect("sent");
        assert_eq!(asker.join().expect("no panic"), "NOERROR");
        assert!(old.wait().success(), "{}", old.log());
    }
}
