//! HTTP/3's streams: calls that talk both ways, ends and resets, slow readers, a gateway that leaves; and clients that mean no good.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quinn::{ConnectionError, ReadError, RecvStream, SendStream};
use voile_http3::{Code, FrameEvent, Frames, data_head};

use super::quic::{self, Dialed, head, read};
use crate::gateway::http3::{as_anybody, client, get_at, simple, start};
use crate::gateway::tls::{PORT, https};
use crate::gateway::{Edge, TO_SERVER};
use crate::mesh::application;
use crate::mesh::certificates::Keys;
use crate::traffic::http2::{message, play, serve};

/// Everything to the mesh's server of gRPC.
const TO_CALLS: &str = "{route: [{destination: {host: server, port: {number: 7070}}}]}";

/// A gateway for calls of a.example.
fn calls() -> Edge {
    let keys = Keys::new();
    keys.own("server", "a.example");
    let server = https("a.example", "mode: SIMPLE, credentialName: server");
    start(&keys, &server, "a.example", TO_CALLS)
}

/// Data on a stream, piece by piece.
struct Listening {
    stream: RecvStream,
    frames: Frames,
    chunk: Bytes,
}

impl Listening {
    fn to(stream: RecvStream) -> Self {
        Self {
            stream,
            frames: Frames::of_request(100_000),
            chunk: Bytes::new(),
        }
    }

    async fn next(&mut self) -> Option<FrameEvent> {
        loop {
            if let Some(event) = self.frames.next(&mut self.chunk).expect("frames") {
                return Some(event);
            }
            let chunk = self.stream.read_chunk(100_000, true).await;
            self.chunk = chunk.expect("a stream")?.bytes;
        }
    }
}

async fn begin(to: &Dialed, path: &str) -> (SendStream, RecvStream) {
    let (mut send, recv) = to.connection.open_bi().await.expect("a stream");
    send.write_all(&call(path)).await.expect("sent");
    (send, recv)
}

/// The head of a call.
fn call(path: &str) -> Vec<u8> {
    let more = [("content-type", "application/grpc"), ("te", "trailers")];
    head("POST", "a.example", path, &more)
}

async fn say(send: &mut SendStream, text: &str) {
    let said = message(text);
    let said = [&data_head(said.len())[..], &said].concat();
    send.write_all(&said).await.expect("sent");
}

/// Says something, and hears it.
async fn echoed(send: &mut SendStream, heard: &mut Listening, text: &str) {
    say(send, text).await;
    let expected = message(text);
    let mut got = Vec::new();
    while got.len() < expected.len() {
        match heard.next().await {
            Some(FrameEvent::Data(data)) => got.extend_from_slice(&data),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(got, expected);
}

/// Returns when an answer proves that everything sent before it has arrived.
async fn heard_of(to: &Dialed) {
    let answer = get_at(to, "a.example", "/unknown").await;
    assert_eq!(answer.expect("an answer").status, 200);
}

/// Connects once the gateway leads there.
async fn dialed(edge: &Edge) -> Dialed {
    loop {
        if let Ok(to) = as_anybody(edge, "a.example").await
            && let Ok(answer) = get_at(&to, "a.example", "/unknown").await
            && answer.status == 200
        {
            return to;
        }
    }
}

#[test]
fn calls_talk_both_ways_over_http3_and_whoever_gives_one_up_is_heard() {
    let edge = calls();
    play(|| async {
        let (given_up, mut was_given_up) = tokio::sync::mpsc::unbounded_channel();
        serve(edge.mesh.grpc_app(), given_up).await;
        let to = dialed(&edge).await;
        let (mut send, recv) = begin(&to, "/echo").await;
        let mut heard = Listening::to(recv);
        say(&mut send, "one").await;
        assert!(matches!(heard.next().await, Some(FrameEvent::Block { .. })));
        assert_eq!(heard.next().await, Some(FrameEvent::Data(message("one"))));
        for text in ["two", "three"] {
            echoed(&mut send, &mut heard, text).await;
        }
        send.finish().expect("finished");
        let Some(FrameEvent::Block { bytes, .. }) = heard.next().await else {
            panic!("no trailers");
        };
        let trailers = voile_http3::decode(&bytes, true, 10_000).expect("trailers");
        assert_eq!(trailers.fields.get("grpc-status"), Some(&b"0"[..]));
        assert_eq!(heard.next().await, None);
        // By a reset of the request, and by STOP_SENDING for the answer.
        let cancelled = quic::code(Code::REQUEST_CANCELLED.0);
        let (mut send, _recv) = begin(&to, "/late").await;
        heard_of(&to).await;
        send.reset(cancelled).expect("reset");
        assert_eq!(was_given_up.recv().await, Some(h2::Reason::CANCEL));
        let (_send, mut recv) = begin(&to, "/late").await;
        heard_of(&to).await;
        recv.stop(cancelled).expect("stopped");
        assert_eq!(was_given_up.recv().await, Some(h2::Reason::CANCEL));
        // With the connection all of its calls are given up.
        let _late = begin(&to, "/late").await;
        let (mut send, recv) = begin(&to, "/echo").await;
        let mut heard = Listening::to(recv);
        say(&mut send, "here").await;
        assert!(heard.next().await.is_some());
        to.connection.close(quic::code(Code::NO_ERROR.0), b"");
        assert!(was_given_up.recv().await.is_some());
    });
}

#[test]
fn a_gateway_that_leaves_says_so_finishes_what_it_has_and_takes_no_more() {
    let mut edge = calls();
    play(|| async {
        let (given_up, _) = tokio::sync::mpsc::unbounded_channel();
        serve(edge.mesh.grpc_app(), given_up).await;
        let to = dialed(&edge).await;
        let (mut send, recv) = begin(&to, "/echo").await;
        let mut heard = Listening::to(recv);
        say(&mut send, "one").await;
        assert!(heard.next().await.is_some() && heard.next().await.is_some());
        edge.gateway.terminate();
        let _control = told_to_leave(&to).await;
        assert!(as_anybody(&edge, "a.example").await.is_err());
        let refused = get_at(&to, "a.example", "/unknown").await;
        assert!(refused.is_err(), "{refused:?}");
        echoed(&mut send, &mut heard, "two").await;
        send.finish().expect("finished");
        assert!(matches!(heard.next().await, Some(FrameEvent::Block { .. })));
        assert_eq!(heard.next().await, None);
        assert_eq!(ended(&to).await, Some(Code::NO_ERROR));
    });
    assert!(edge.gateway.wait().success());
}

/// Hears that the gateway goes. The stream is the caller's to keep: a client that drops it stops a critical stream, which
/// ends the connection (RFC 9114 section 6.2.1).
async fn told_to_leave(to: &Dialed) -> Listening {
    let mut control = to.connection.accept_uni().await.expect("its settings");
    let mut kind = [0];
    control.read_exact(&mut kind).await.expect("a kind");
    assert_eq!(kind, [0]);
    let mut said = Listening {
        stream: control,
        frames: Frames::of_control(),
        chunk: Bytes::new(),
    };
    assert_eq!(said.next().await, Some(FrameEvent::Settings));
    assert_eq!(said.next().await, Some(FrameEvent::Goaway));
    said
}

#[test]
fn who_has_nothing_under_way_is_told_before_the_connection_closes_and_asks_elsewhere() {
    let mut edge = simple();
    quic::run(async {
        let to = as_anybody(&edge, "a.example").await.expect("a connection");
        let answer = get_at(&to, "a.example", "/").await.expect("an answer");
        assert_eq!(answer.status, 200);
        edge.gateway.terminate();
        let _control = told_to_leave(&to).await;
        let refused = get_at(&to, "a.example", "/").await;
        let rejected = format!("error {}", Code::REQUEST_REJECTED.0);
        assert!(
            refused.as_ref().is_err_and(|why| why.ends_with(&rejected)),
            "{refused:?}"
        );
        assert_eq!(ended(&to).await, Some(Code::NO_ERROR));
    });
    assert!(edge.gateway.wait().success());
}

/// The code by which the gateway ended a connection.
pub(crate) async fn ended(to: &Dialed) -> Option<Code> {
    match to.connection.closed().await {
        ConnectionError::ApplicationClosed(close) => Some(Code(
            u64::from(close.error_code).try_into().expect("one of ours"),
        )),
        _ => None,
    }
}

/// The code by which the gateway broke an answer off, if it did.
async fn broken_off(recv: &mut RecvStream) -> Option<Code> {
    loop {
        match recv.read_chunk(100_000, true).await {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(ReadError::Reset(code)) => {
                return Some(Code(u64::from(code).try_into().expect("one of ours")));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn an_answer_that_breaks_off_says_why_and_calls_given_up_too_often_end_their_connection() {
    let edge = calls();
    play(|| async {
        let (given_up, _was_given_up) = tokio::sync::mpsc::unbounded_channel();
        serve(edge.mesh.grpc_app(), given_up).await;
        let to = dialed(&edge).await;
        let (_send, mut recv) = begin(&to, "/cut").await;
        let code = broken_off(&mut recv).await;
        assert_eq!(code, Some(Code::REQUEST_CANCELLED));
        // They are all requests, so that those count them who serve them.
        while to.connection.close_reason().is_none() {
            let mut begun = Vec::new();
            for _ in 0..100 {
                if let Ok((mut send, recv)) = to.connection.open_bi().await
                    && send.write_all(&call("/late")).await.is_ok()
                {
                    begun.push((send, recv));
                }
            }
            let _arrived = get_at(&to, "a.example", "/unknown").await;
            for (mut send, _recv) in begun {
                let _ = send.reset(quic::code(Code::REQUEST_CANCELLED.0));
            }
        }
        assert_eq!(ended(&to).await, Some(Code::EXCESSIVE_LOAD));
    });
}

#[test]
fn what_nobody_reads_is_not_taken_from_the_server() {
    const BYTES: u64 = 64 * 1024 * 1024;
    let edge = {
        let keys = Keys::new();
        keys.own("server", "a.example");
        let server = https("a.example", "mode: SIMPLE, credentialName: server");
        start(&keys, &server, "a.example", TO_SERVER)
    };
    let sent = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&sent);
    application::serve(edge.mesh.http_app(), move |stream| {
        use std::io::Write;
        let mut reader = std::io::BufReader::new(stream);
        while let Some((head, _)) = application::read_request(&mut reader) {
            let stream = reader.get_mut();
            if head.starts_with("GET /unknown ") {
                let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(ok).expect("sent");
                continue;
            }
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BYTES}\r\n\r\n");
            stream.write_all(head.as_bytes()).expect("sent");
            for _ in 0..BYTES / 65_536 {
                if stream.write_all(&[b'x'; 65_536]).is_err() {
                    return;
                }
                counting.fetch_add(65_536, Ordering::Relaxed);
            }
        }
    });
    quic::run(async {
        let to = dialed(&edge).await;
        let (mut send, mut recv) = to.connection.open_bi().await.expect("a stream");
        let get = head("GET", "a.example", "/much", &[]);
        send.write_all(&get).await.expect("sent");
        send.finish().expect("finished");
        // The client's own windows are large; nothing more goes once they are full, nor comes.
        let (mut last, mut same) = (0, 0);
        while same < 20 {
            let now = sent.load(Ordering::Relaxed);
            same = if now == last && now > 0 { same + 1 } else { 0 };
            last = now;
            let _ = tokio::time::timeout(Duration::from_millis(20), to.connection.closed()).await;
        }
        assert!(
            last < BYTES / 2,
            "{last} bytes were taken that nobody reads"
        );
        let answer = read(&mut recv).await.expect("an answer");
        assert_eq!((answer.status, answer.body.len() as u64), (200, BYTES));
    });
}

#[test]
fn as_many_fields_pass_over_http3_as_over_tcp() {
    let edge = simple();
    quic::run(async {
        let to = as_anybody(&edge, "a.example").await.expect("a connection");
        for (count, status) in [(100, 200), (101, 431)] {
            let names: Vec<_> = (0..count).map(|number| format!("x-{number}")).collect();
            let own: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
            let asked = to.ask(&head("GET", "a.example", "/", &own), None).await;
            assert_eq!(asked.expect("an answer").status, status, "{count}");
        }
    });
}

/// Breaks the protocol in this way, as bytes on streams. Returns the code with which the connection
/// ends.
async fn misbehaves(to: &mut Dialed, how: &str) {
    let stopped = to.control.stopped();
    let (connection, control) = (&to.connection, &mut to.control);
    let uni = async |bytes: &[u8]| {
        let mut stream = connection.open_uni().await.expect("a stream");
        stream.write_all(bytes).await.expect("sent");
        stream
    };
    let bi = async |bytes: &[u8]| {
        let (mut send, recv) = connection.open_bi().await.expect("a stream");
        send.write_all(bytes).await.expect("sent");
        (send, recv)
    };
    let mut kept = Vec::new();
    match how {
        "a second control stream" => kept.push(uni(&[0, 4, 0]).await),
        "a push" => kept.push(uni(&[1, 0]).await),
        "an entry of a table that has no room" => kept.push(uni(&[2, 0x3f, 0xe1, 0x1f]).await),
        "an encoder that leaves" => uni(&[2]).await.finish().expect("finished"),
        "data before a head" => drop(bi(&[0, 1, 9]).await),
        "settings where a request is" => drop(bi(&[4, 0]).await),
        "a head that needs the table" => drop(bi(&[1, 2, 1, 0]).await),
        "a frame that ends early" => {
            let (mut send, _recv) = bi(&[1, 9, 0]).await;
            send.finish().expect("finished");
        }
        "requests given up" | "streams given up" => {
            let get = head("GET", "a.example", "/", &[]);
            let get = &get[..get.len() - usize::from(how == "streams given up")];
            for _ in 0..5000 {
                let Ok((mut send, _recv)) = connection.open_bi().await else {
                    break;
                };
                if send.write_all(get).await.is_err() {
                    break;
                }
                // Lets the written bytes go out before the reset.
                tokio::task::yield_now().await;
                let _ = send.reset(quic::code(Code::REQUEST_CANCELLED.0));
            }
        }
        "a push cancelled" => control.write_all(&[3, 1, 0]).await.expect("sent"),
        "settings that are not wanted" => {
            let mut settings = connection.accept_uni().await.expect("a stream");
            settings.stop(quic::code(0)).expect("open");
        }
        "answers not wanted" => {
            let get = head("GET", "a.example", "/", &[]);
            for _ in 0..3000 {
                let Ok((mut send, mut recv)) = connection.open_bi().await else {
                    break;
                };
                if send.write_all(&get).await.is_err() {
                    break;
                }
                let _ = (
                    send.finish(),
                    recv.stop(quic::code(Code::REQUEST_CANCELLED.0)),
                );
                tokio::task::yield_now().await;
            }
        }
        other => panic!("{other}"),
    }
    connection.closed().await;
    // A client that hears first that its settings are not wanted takes that for another error.
    let stopped = stopped.await;
    assert!(!matches!(stopped, Ok(Some(_))), "{how}: {stopped:?}");
}

#[test]
fn whoever_breaks_the_rules_loses_his_connection_and_nobody_else_does() {
    let edge = simple();
    quic::run(async {
        let honest = as_anybody(&edge, "a.example").await.expect("a connection");
        for (how, code) in [
            ("a second control stream", Code::STREAM_CREATION_ERROR),
            ("a push", Code::STREAM_CREATION_ERROR),
            (
                "an entry of a table that has no room",
                Code::ENCODER_STREAM_ERROR,
            ),
            ("an encoder that leaves", Code::CLOSED_CRITICAL_STREAM),
            ("data before a head", Code::FRAME_UNEXPECTED),
            ("settings where a request is", Code::FRAME_UNEXPECTED),
            ("a head that needs the table", Code::DECOMPRESSION_FAILED),
            ("a frame that ends early", Code::FRAME_ERROR),
            ("requests given up", Code::EXCESSIVE_LOAD),
            ("streams given up", Code::EXCESSIVE_LOAD),
            ("answers not wanted", Code::EXCESSIVE_LOAD),
            ("a push cancelled", Code::ID_ERROR),
            ("settings that are not wanted", Code::CLOSED_CRITICAL_STREAM),
        ] {
            let mut to = as_anybody(&edge, "a.example").await.expect("a connection");
            misbehaves(&mut to, how).await;
            let why = to.connection.close_reason();
            assert_eq!(ended(&to).await, Some(code), "{how}: {why:?}");
        }
        // A head of a gibibyte is refused by its beginning.
        let (mut send, mut recv) = honest.connection.open_bi().await.expect("a stream");
        let mut said = head("GET", "a.example", "/", &[("x-large", &"v".repeat(70_000))]);
        said.splice(1..5, [0xc0, 0, 0, 0, 0x40, 0, 0, 0]);
        send.write_all(&said).await.expect("sent");
        assert_eq!(read(&mut recv).await.expect("an answer").status, 431);
        // A stream of an unknown type is ignored.
        let mut stream = honest.connection.open_uni().await.expect("a stream");
        stream.write_all(&[0x21, 1, 2, 3]).await.expect("sent");
        let answer = get_at(&honest, "a.example", "/").await.expect("an answer");
        assert_eq!(answer.status, 200);
    });
}

/// First packets of so many clients, which none of them follows up.
pub(crate) async fn first_packets(count: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for _ in 0..count {
        // Each has its own, since a ClientHello may take two packets.
        let sink = tokio::net::UdpSocket::bind("127.0.0.1:0").await;
        let sink = sink.expect("a socket");
        let to = sink.local_addr().expect("an address");
        let tls = client(b"h3", None);
        let mut dialing = std::pin::pin!(quic::dial(to, "a.example", &tls));
        let mut packet = vec![0; 2000];
        let length = tokio::select! {
            received = sink.recv(&mut packet) => received.expect("a packet"),
            _ = &mut dialing => panic!("nobody answers there"),
        };
        packet.truncate(length);
        all.push(packet);
    }
    all
}

/// Answer to a packet, if one comes within a moment.
fn answers(socket: &UdpSocket, to: SocketAddr, packet: &[u8]) -> Option<Vec<u8>> {
    socket.send_to(packet, to).expect("sent");
    let mut answer = vec![0; 2000];
    let length = socket.recv(&mut answer).ok()?;
    answer.truncate(length);
    Some(answer)
}

/// The head of a packet of another version; as long as a first one it is answered.
const OTHER_VERSION: [u8; 15] = [0xc0, 0xba, 0xba, 0xba, 0xba, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0];

/// Sends first packets, and waits until they were looked at, so that no buffer of the kernel's runs over.
pub(crate) fn begin_handshakes(to: SocketAddr, packets: &[Vec<u8>]) {
    let [sender, asker] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
    let patience = Some(Duration::from_secs(20));
    asker.set_read_timeout(patience).expect("patience");
    let mut other = OTHER_VERSION.to_vec();
    other.resize(1200, 0);
    for packets in packets.chunks(8) {
        for packet in packets {
            sender.send_to(packet, to).expect("sent");
        }
        answers(&asker, to, &other).expect("an answer");
    }
}

#[test]
fn packets_that_lead_nowhere_cost_little_and_who_comes_meanwhile_shows_where_he_is() {
    let edge = simple();
    let to = edge.at(PORT);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(300)))
        .expect("patience");
    // Noise gets no answer, of which it could make use; another version the one that is spoken.
    for noise in [&b""[..], b"x", &[0x40; 1200], &[0xff; 1199], &[0; 1472]] {
        assert_eq!(
            answers(&socket, to, noise).map(|answer| answer.len()),
            None,
            "{noise:x?}"
        );
    }
    let mut other = OTHER_VERSION.to_vec();
    assert_eq!(
        answers(&socket, to, &other),
        None,
        "too short to be answered"
    );
    other.resize(1200, 0);
    let patience = Some(Duration::from_secs(20));
    socket.set_read_timeout(patience).expect("patience");
    let answer = answers(&socket, to, &other).expect("an answer");
    assert_eq!(answer[1..5], [0; 4], "version negotiation");
    assert!(
        answer.windows(4).any(|version| version == [0, 0, 0, 1]),
        "{answer:x?}"
    );
    quic::run(async {
        let packets = first_packets(80).await;
        let (last, others) = packets.split_last().expect("80");
        begin_handshakes(to, others);
        // A Retry has its own kind of head.
        let answer = answers(&socket, to, last).expect("an answer");
        assert_eq!(
            (answer[0] & 0xf0, answer.len() < 200),
            (0xf0, true),
            "{answer:x?}"
        );
        let honest = as_anybody(&edge, "a.example").await.expect("a connection");
        let answer = get_at(&honest, "a.example", "/").await.expect("an answer");
        assert_eq!(answer.status, 200);
    });
}
