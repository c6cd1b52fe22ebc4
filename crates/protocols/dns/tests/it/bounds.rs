//! Limits of a server: a question beyond them fails at once, and earlier questions are answered all the same.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::timeout;
use voile_dns::{AnswerSource, DnsTransport, QueryLimits, SocketPair, serve};

use super::load::question;

/// More than either test needs.
const PATIENCE: Duration = Duration::from_secs(20);

const BOUNDS: QueryLimits = QueryLimits {
    outstanding: 4,
    connections: 2,
    queue_bytes: 64 * 1024,
};

/// Answers datagrams once it may, and connections at once.
#[derive(Default)]
struct Slow {
    may: Cell<bool>,
    told: Notify,
    asked: Cell<usize>,
}

impl AnswerSource for Slow {
    async fn answer(&self, packet: &[u8], over: DnsTransport) -> Option<Vec<u8>> {
        self.asked.set(self.asked.get() + 1);
        while matches!(over, DnsTransport::Udp) && !self.may.get() {
            self.told.notified().await;
        }
        Some(answer(packet))
    }
}

/// The question itself, as an answer without a failure.
fn answer(packet: &[u8]) -> Vec<u8> {
    let mut answer = packet.to_vec();
    answer[2] |= 0x80;
    answer
}

fn started() -> (Rc<Slow>, SocketPair, SocketAddr) {
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = tcp.local_addr().expect("an address");
    let udp = std::net::UdpSocket::bind(at).expect("the same one");
    let answers = Rc::new(Slow::default());
    let service = serve(udp, tcp, Rc::clone(&answers), &BOUNDS).expect("served");
    (answers, service, at)
}

/// The number of the question and the code of its answer.
async fn heard(client: &UdpSocket) -> (u16, u8) {
    let mut packet = [0; 512];
    let length = client.recv(&mut packet).await.expect("an answer");
    assert!(length > 12);
    let number = u16::from_be_bytes([packet[0], packet[1]]);
    (number, packet[3] & 0xf)
}

#[tokio::test(flavor = "current_thread")]
async fn a_question_too_many_fails_at_once_and_those_before_it_are_answered() {
    let play = async {
        let (answers, service, at) = started();
        let client = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
        client.connect(at).await.expect("an address");
        let most = BOUNDS.outstanding as u16;
        for number in 0..most {
            client.send(&question(number)).await.expect("sent");
        }
        while answers.asked.get() < BOUNDS.outstanding {
            tokio::task::yield_now().await;
        }
        client.send(&question(most)).await.expect("sent");
        assert_eq!(heard(&client).await, (most, 2), "SERVFAIL, before anybody");
        assert_eq!(answers.asked.get(), BOUNDS.outstanding);
        assert!(!service.is_idle());
        answers.may.set(true);
        answers.told.notify_waiters();
        let mut all = Vec::new();
        for _ in 0..most {
            all.push(heard(&client).await);
        }
        all.sort_unstable();
        let wanted: Vec<_> = (0..most).map(|number| (number, 0)).collect();
        assert_eq!(all, wanted);
        client.send(&question(99)).await.expect("sent");
        assert_eq!(heard(&client).await, (99, 0), "there is room again");
    };
    let play = timeout(PATIENCE, play);
    let played = LocalSet::new().run_until(play).await;
    played.expect("nobody waits for ever");
}

/// Asks on a connection; none where that was closed instead.
async fn asked(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let packet = question(7);
    let length = u16::try_from(packet.len()).expect("short").to_be_bytes();
    stream
        .write_all(&[&length[..], &packet].concat())
        .await
        .ok()?;
    let length = stream.read_u16().await.ok()?;
    let mut heard = vec![0; length.into()];
    stream.read_exact(&mut heard).await.ok()?;
    Some(heard)
}

#[tokio::test(flavor = "current_thread")]
async fn a_connection_too_many_is_closed_and_one_that_ends_makes_room() {
    let play = async {
        let (_, _service, at) = started();
        let connect = async || TcpStream::connect(at).await.expect("a listener");
        let mut open = Vec::new();
        for _ in 0..BOUNDS.connections {
            let mut stream = connect().await;
            assert_eq!(asked(&mut stream).await, Some(answer(&question(7))));
            open.push(stream);
        }
        assert_eq!(asked(&mut connect().await).await, None, "one too many");
        // Those that are there may go on asking.
        for stream in &mut open {
            assert_eq!(asked(stream).await, Some(answer(&question(7))));
        }
        drop(open.pop());
        // Until the server has heard of it.
        while asked(&mut connect().await).await.is_none() {
            tokio::task::yield_now().await;
        }
    };
    let play = timeout(PATIENCE, play);
    let played = LocalSet::new().run_until(play).await;
    played.expect("nobody waits for ever");
}
