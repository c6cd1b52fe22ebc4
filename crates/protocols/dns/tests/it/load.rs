//! Thousands of questions at once, passed on to a resolver that answers, and to one that does not. The number of
//! sockets is bounded, each question has a port and an id of its own, and every client gets an answer while it still
//! waits.

use std::cell::Cell;
use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::task::LocalSet;
use voile_dns::{AnswerSource, DnsTransport, DnsUpstream, QueryLimits, Upstreams, message, serve};

const AT_ONCE: usize = 64;
const WAITING: usize = 1024;
/// Clients: together they send more questions than have a turn or wait for one. Each sends as many as its socket and
/// the server's can hold.
const CLIENTS: u16 = 25;
const EACH: u16 = 40;
/// A client's (glibc's, musl's).
const PATIENCE: Duration = Duration::from_secs(5);

/// Passes everything on in turn.
struct Forwarder {
    line: DnsUpstream,
    upstreams: Upstreams,
    at_once: Cell<usize>,
    most: Cell<usize>,
}

impl AnswerSource for Forwarder {
    async fn answer(&self, packet: &[u8], over: DnsTransport) -> Option<Vec<u8>> {
        let Some(_turn) = self.line.turn().await else {
            return message::server_failure(packet);
        };
        self.at_once.set(self.at_once.get() + 1);
        self.most.set(self.most.get().max(self.at_once.get()));
        let answer = self.upstreams.forward(packet, over).await;
        self.at_once.set(self.at_once.get() - 1);
        answer.ok().or_else(|| message::server_failure(packet))
    }
}

pub(crate) fn question(number: u16) -> Vec<u8> {
    let mut packet = number.to_be_bytes().to_vec();
    packet.extend(b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05");
    packet.extend(format!("{number:05}").bytes());
    packet.extend(b"\x04test\x00\x00\x01\x00\x01");
    packet
}

/// Codes of the answers to these questions, which one client asked at once.
async fn ask_all(server: SocketAddr, first: u16) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    for number in first..first + EACH {
        socket
            .send_to(&question(number), server)
            .await
            .expect("sent");
        // So that a machine with small buffers of sockets drops none.
        tokio::task::yield_now().await;
    }
    let mut codes = Vec::new();
    let mut seen = HashSet::new();
    let mut buffer = [0; 512];
    while codes.len() < usize::from(EACH) {
        let heard = tokio::time::timeout(PATIENCE, socket.recv(&mut buffer)).await;
        let length = heard.expect("an answer in time").expect("an answer");
        let id = u16::from_be_bytes([buffer[0], buffer[1]]);
        assert!(length >= question(id).len() && buffer[12..28] == question(id)[12..]);
        assert!(
            (first..first + EACH).contains(&id) && seen.insert(id),
            "{id}"
        );
        codes.push(buffer[3] & 15);
    }
    codes
}

/// A resolver whose answers take a moment each; it notes the port and the id of each question.
async fn resolver(socket: UdpSocket, asked: Rc<Cell<Vec<(u16, u16)>>>) {
    let socket = Rc::new(socket);
    let mut buffer = [0; 512];
    while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
        let mut answer = buffer[..length].to_vec();
        let mut all = asked.take();
        all.push((peer.port(), u16::from_be_bytes([answer[0], answer[1]])));
        asked.set(all);
        answer[2] |= 0x80;
        answer[3] |= 3; // no such name: without records the answer is the question
        let socket = Rc::clone(&socket);
        tokio::task::spawn_local(async move {
            tokio::task::yield_now().await;
            let _ = socket.send_to(&answer, peer).await;
        });
    }
}

/// Every client asks at once; how often each code was the answer, the most sockets used at once, and the slowest of all.
async fn burst(upstream: SocketAddr) -> ([usize; 16], usize, Duration) {
    let forwarder = Rc::new(Forwarder {
        line: DnsUpstream::new(AT_ONCE, WAITING),
        upstreams: Upstreams::fixed(upstream),
        at_once: Cell::new(0),
        most: Cell::new(0),
    });
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let server = udp.local_addr().expect("bound");
    let service = serve(udp, tcp, Rc::clone(&forwarder), &QueryLimits::default()).expect("served");
    let start = Instant::now();
    let clients = (0..CLIENTS).map(|client| ask_all(server, client * EACH));
    let clients: Vec<_> = clients.map(tokio::task::spawn_local).collect();
    let mut codes = [0; 16];
    for client in clients {
        for code in client.await.expect("no panic") {
            codes[usize::from(code)] += 1;
        }
    }
    assert!(service.is_idle());
    service.stop();
    (codes, forwarder.most.get(), start.elapsed())
}

#[tokio::test(flavor = "current_thread")]
async fn a_thousand_questions_at_once_are_passed_on_in_turn_and_all_answered() {
    let asked = Rc::new(Cell::new(Vec::new()));
    let local = LocalSet::new();
    let task = local.run_until(async {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        let address = socket.local_addr().expect("bound");
        tokio::task::spawn_local(resolver(socket, Rc::clone(&asked)));
        burst(address).await
    });
    let (codes, most, slowest) = task.await;
    let all = usize::from(CLIENTS * EACH);
    println!("{codes:?} by code, {most} at once, {slowest:?} for all");
    assert_eq!(codes[3], all, "{codes:?}");
    assert!(most <= AT_ONCE, "{most}");
    let asked = asked.take();
    assert_eq!(asked.len(), all);
    // Drawn from 65,536 ids and some 28,000 ports: of a thousand some meet, a counter or a constant would stand out.
    let ids: HashSet<u16> = asked.iter().map(|(_, id)| *id).collect();
    let ports: HashSet<u16> = asked.iter().map(|(port, _)| *port).collect();
    let next = asked
        .windows(2)
        .filter(|two| two[1].1 == two[0].1.wrapping_add(1));
    assert!(
        ids.len() > 950 && ports.len() > 800,
        "{} {}",
        ids.len(),
        ports.len()
    );
    assert!(next.count() < 10);
}

#[tokio::test(flavor = "current_thread")]
async fn nobody_waits_longer_than_clients_do_for_a_resolver_that_says_nothing() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = silent.local_addr().expect("bound");
    let (codes, most, slowest) = LocalSet::new().run_until(burst(address)).await;
    println!("{codes:?} by code, {most} at once, {slowest:?} for all");
    assert_eq!(codes[2], usize::from(CLIENTS * EACH), "{codes:?}");
    assert!(most <= AT_ONCE, "{most}");
}
