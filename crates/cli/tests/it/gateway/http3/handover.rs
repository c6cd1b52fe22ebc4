//! HTTP/3 while a gateway is replaced: connections go on in the process where they began, new ones are the new process's, and none is lost.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use quinn::{RecvStream, SendStream};
use voile_http3::{Code, data_head};

use super::quic::{self, Dialed, dial, head, read};
use crate::gateway::http3::streams::{begin_handshakes, ended, first_packets};
use crate::gateway::http3::{ASKED, as_anybody, client, get_at, offered, simple_as};
use crate::gateway::tls::PORT;
use crate::gateway::{Asking, Edge, http_server, say, servers};
use crate::handover::lending;
use crate::handover::protocols::take_sockets;
use crate::mesh::{HTTP_PORT, wait_until};

/// A request whose body is sent bit by bit.
struct Upload {
    to: Dialed,
    send: SendStream,
    recv: RecvStream,
    left: usize,
    total: usize,
}

/// A part of a body: more than may be on its way unheard, so that packets go both ways.
const PART: usize = 600_000;

impl Upload {
    async fn begin(edge: &Edge, parts: usize) -> Self {
        let to = as_anybody(edge, "a.example").await.expect("a connection");
        let (mut send, recv) = to.connection.open_bi().await.expect("a stream");
        let total = parts * PART;
        let length = total.to_string();
        let post = head("POST", "a.example", "/up", &[("content-length", &*length)]);
        send.write_all(&post).await.expect("sent");
        let mut upload = Self {
            to,
            send,
            recv,
            left: total,
            total,
        };
        upload.part().await;
        upload
    }

    async fn part(&mut self) {
        self.left -= PART;
        let part = [&data_head(PART)[..], &vec![b'x'; PART]].concat();
        self.send.write_all(&part).await.expect("sent");
    }

    /// Reads the answer after all parts were sent; asserts that the connection then ends.
    async fn finish(mut self) {
        assert_eq!(self.left, 0);
        self.send.finish().expect("finished");
        let answer = read(&mut self.recv).await.expect("an answer");
        assert_eq!(answer.status, 200);
        assert!(answer.body.len() > self.total, "{}", answer.body.len());
        assert_eq!(ended(&self.to).await, Some(Code::NO_ERROR));
    }
}

/// Connects and asks. A process that has just begun to leave says that it does, and its client comes again.
async fn served(to: SocketAddr) -> Result<(), String> {
    let mut last = Ok(());
    for _ in 0..2 {
        let to = dial(to, "a.example", &client(b"h3", None)).await?;
        let answer = get_at(&to, "a.example", "/").await;
        to.leave().await;
        match answer {
            Ok(answer) if answer.status == 200 => return Ok(()),
            Ok(answer) => return Err(answer.status.to_string()),
            Err(error) => last = Err(error),
        }
    }
    last
}

#[test]
fn connections_outlive_two_handovers_and_no_new_one_is_lost() {
    let (mut edge, _) = simple_as(lending());
    let to = edge.at(PORT);
    let asking = Asking::over(move || {
        let served = quic::run(served(to));
        served.inspect_err(|error| eprintln!("{error}")).is_ok()
    });
    let lent = |edge: &Edge| take_sockets(&edge.mesh, "gateway").1.len();
    let at_first = lent(&edge);
    quic::run(async {
        let mut upload = Upload::begin(&edge, 4).await;
        let mut first = edge.replace(lending());
        wait_until("the second process serves", || {
            first.log().contains("draining")
        });
        upload.part().await;
        let mut second = edge.replace(lending());
        // The third process takes over the second's knowledge of the first.
        assert!(second.wait().success(), "{}", second.log());
        upload.part().await;
        upload.part().await;
        assert!(first.is_running());
        upload.finish().await;
        assert!(first.wait().success(), "{}", first.log());
    });
    asking.lost_nothing();
    // Processes that have gone leave no socket.
    assert_eq!(lent(&edge), at_first);
}

#[test]
fn a_successor_that_does_not_serve_takes_nothing_along() {
    let (mut edge, resources) = simple_as(lending());
    let to = edge.at(PORT);
    let failures = |edge: &Edge| edge.gateway.log().matches("handover failed").count();
    quic::run(async {
        let mut upload = Upload::begin(&edge, 4).await;
        for (number, word) in [None, Some("ready")].into_iter().enumerate() {
            let (packets, sockets) = take_sockets(&edge.mesh, "gateway");
            if let Some(word) = word {
                packets.send(word, None).expect("sent");
                let answer = packets.receive().expect("a word").expect("no end");
                assert_eq!(answer.text, "yours");
            }
            // A successor that hangs still holds the sockets that it was given.
            drop(packets);
            wait_until("it says so", || failures(&edge) > number);
            upload.part().await;
            served(to).await.expect("served");
            drop(sockets);
        }
        // One that is not ready yet reads nothing.
        let _taken = TcpListener::bind(edge.at(HTTP_PORT)).expect("a free port");
        let more = resources + &servers(&http_server("b.example")).replace("edge", "more");
        say(&edge.mesh, "edge.yaml", &more);
        wait_until("the port to be missed", || edge.ready().is_err());
        let mut first = edge.replace(lending());
        wait_until("the second process knows the mesh", || {
            edge.gateway.log().contains("configuration in force")
        });
        upload.part().await;
        for _ in 0..5 {
            served(to).await.expect("served");
        }
        assert!(!edge.gateway.log().contains("listening for HTTP/3"));
        edge.gateway.kill();
        upload.send.finish().expect("finished");
        assert_eq!(read(&mut upload.recv).await.expect("an answer").status, 200);
        assert!(first.is_running());
    });
}

#[test]
fn when_the_new_process_dies_the_old_one_still_finishes() {
    let (mut edge, _) = simple_as(lending());
    quic::run(async {
        let mut upload = Upload::begin(&edge, 3).await;
        let mut first = edge.replace(lending());
        wait_until("the second process serves", || {
            first.log().contains("draining")
        });
        upload.part().await;
        edge.gateway.kill();
        upload.part().await;
        upload.finish().await;
        assert!(first.wait().success(), "{}", first.log());
    });
}

#[test]
fn where_the_new_process_wants_no_http3_the_old_one_reads_on() {
    let (mut edge, _) = simple_as(lending());
    quic::run(async {
        let mut upload = Upload::begin(&edge, 3).await;
        let asking = edge.mesh.config().join("edge.yaml");
        let text = std::fs::read_to_string(asking).expect("resources");
        say(&edge.mesh, "edge.yaml", &text.replace(ASKED, ""));
        wait_until("the offer to end", || offered(&edge, "a.example").is_none());
        let mut first = edge.replace(lending());
        wait_until("the second process serves", || {
            first.log().contains("draining")
        });
        upload.part().await;
        upload.part().await;
        upload.finish().await;
        assert!(first.wait().success(), "{}", first.log());
    });
}

/// Carries what a client and a server say to each other. Once the client is asked to show where it is (Retry), what it says waits for a
/// word.
struct Ferry {
    at: SocketAddr,
    asked: Arc<AtomicBool>,
    waits: Sender<()>,
}

impl Ferry {
    fn begin(to: SocketAddr) -> Self {
        let [near, far] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        far.connect(to).expect("an address");
        let at = near.local_addr().expect("an address");
        let (waits, word) = channel();
        let (asked, client) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let [near_too, far_too] = [&near, &far].map(|one| one.try_clone().expect("the same"));
        let (asks, whose) = (Arc::clone(&asked), Arc::clone(&client));
        std::thread::spawn(move || {
            let mut packet = [0; 2000];
            while let Ok((length, from)) = near.recv_from(&mut packet) {
                *whose.lock().expect("nobody panicked") = Some(from);
                // A message, or the end of the channel.
                if asks.load(Ordering::SeqCst) && word.recv().is_err() {
                    return;
                }
                // A packet that the gateway does not take is lost, as on any network.
                let _ = far.send(&packet[..length]);
            }
        });
        let asking = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut packet = [0; 2000];
            while let Ok(length) = far_too.recv(&mut packet) {
                // A Retry has its own kind of head.
                if packet[0] & 0xf0 == 0xf0 {
                    asking.store(true, Ordering::SeqCst);
                }
                if let Some(client) = *client.lock().expect("nobody panicked") {
                    let _ = near_too.send_to(&packet[..length], client);
                }
            }
        });
        Self { at, asked, waits }
    }

    fn release(&self) {
        // As many words as a client may say before it is answered.
        for _ in 0..1000 {
            self.waits.send(()).expect("it listens");
        }
    }
}

#[test]
fn who_is_asked_where_he_is_when_the_process_changes_is_refused_and_comes_again() {
    let (mut edge, _) = simple_as(lending());
    let to = edge.at(PORT);
    begin_handshakes(to, &quic::run(first_packets(79)));
    let ferry = Ferry::begin(to);
    let at = ferry.at;
    let dialing = std::thread::spawn(move || {
        let tls = client(b"h3", None);
        quic::run(async { dial(at, "a.example", &tls).await.map(drop) })
    });
    wait_until("he is asked", || ferry.asked.load(Ordering::SeqCst));
    let mut first = edge.replace(lending());
    wait_until("the second process serves", || {
        first.log().contains("draining")
    });
    // A client without a pending Retry is served meanwhile.
    quic::run(served(to)).expect("served");
    ferry.release();
    let refused = dialing.join().expect("nobody panicked");
    let why = refused.expect_err("the old process takes nobody any more");
    assert!(why.contains("refused"), "{why}");
    quic::run(served(to)).expect("served");
    // Handshakes that never went on do not delay the old process's end.
    assert!(first.wait().success(), "{}", first.log());
}
