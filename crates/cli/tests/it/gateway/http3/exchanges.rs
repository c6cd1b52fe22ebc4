//! HTTP/3's requests as exchanges: bodies that lie, answers that come early, limits of time, permissions that are taken back, and what a
//! request costs the gateway beside one over TCP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use quinn::{RecvStream, SendStream};
use voile_http2::Fields;
use voile_http3::{Code, FrameEvent, Frames, data_head, encode, head_frame};

use super::quic::{self, Dialed, head, read};
use super::streams::ended;
use crate::gateway::http3::{as_anybody, get_at, start};
use crate::gateway::tls::https;
use crate::gateway::{Edge, TO_SERVER, http_server, say};
use crate::mesh::certificates::Keys;
use crate::mesh::{HTTP_PORT, application, wait_until};
use crate::traffic::http2::{play, serve};

/// Everything to the mesh's server of gRPC, one path of it in time.
const TO_CALLS: &str = "\
    {match: [{uri: {exact: /late}}], timeout: 1s, route: [{destination: {host: server, port: {number: 7070}}}]}, \
    {route: [{destination: {host: server, port: {number: 7070}}}]}";

/// Bytes that fill the windows of HTTP/2 between the gateway and its server, and some of the gateway's own.
const MORE_THAN_THE_SERVER_TAKES: usize = 450_000;

/// Requests that are none, until their connection ends.
const MANY: usize = 400;

fn calls() -> Edge {
    let keys = Keys::new();
    keys.own("server", "a.example");
    let server = https("a.example", "mode: SIMPLE, credentialName: server");
    start(&keys, &server, "a.example", TO_CALLS)
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

/// Begins a POST; its head has arrived.
async fn begin(to: &Dialed, path: &str, more: &[(&str, &str)]) -> (SendStream, RecvStream) {
    let (mut send, recv) = to.connection.open_bi().await.expect("a stream");
    let post = head("POST", "a.example", path, more);
    send.write_all(&post).await.expect("sent");
    get_at(to, "a.example", "/unknown")
        .await
        .expect("an answer");
    (send, recv)
}

fn data(bytes: &[u8]) -> Vec<u8> {
    [&data_head(bytes.len())[..], bytes].concat()
}

/// Lines of the access log, once there are some.
async fn logged(edge: &Edge, to: &Dialed) -> impl Fn() -> String {
    let log = edge.mesh.config().with_file_name("access.log");
    let config = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: istio\n  namespace: istio-system\ndata:\n  mesh: |\n    accessLogFile: {}\n",
        log.display()
    );
    say(&edge.mesh, "istio.yaml", &config);
    let lines = move || std::fs::read_to_string(&log).unwrap_or_default();
    while lines().is_empty() {
        get_at(to, "a.example", "/unknown")
            .await
            .expect("an answer");
    }
    lines
}

#[test]
fn bodies_that_are_not_as_long_as_said_end_their_streams_and_clients_that_leave_are_told_apart() {
    let edge = calls();
    play(|| async {
        let (given_up, mut was_given_up) = tokio::sync::mpsc::unbounded_channel();
        serve(edge.mesh.grpc_app(), given_up).await;
        let to = dialed(&edge).await;
        let lines = logged(&edge, &to).await;
        for (path, said, end) in [("/late?more", 5, false), ("/late?less", 3, true)] {
            let (mut send, mut recv) = begin(&to, path, &[("content-length", "4")]).await;
            send.write_all(&data(&b"12345"[..said]))
                .await
                .expect("sent");
            if end {
                send.finish().expect("finished");
            }
            let malformed = format!("error {}", Code::MESSAGE_ERROR.0);
            let answer = read(&mut recv).await;
            assert!(
                answer.as_ref().is_err_and(|why| why.ends_with(&malformed)),
                "{path}: {answer:?}"
            );
            was_given_up.recv().await.expect("a reset");
        }
        let cancelled = quic::code(Code::REQUEST_CANCELLED.0);
        let (mut send, _recv) = begin(&to, "/late?reset", &[]).await;
        send.reset(cancelled).expect("reset");
        was_given_up.recv().await.expect("a reset");
        let (_send, mut recv) = begin(&to, "/late?stopped", &[]).await;
        recv.stop(cancelled).expect("stopped");
        was_given_up.recv().await.expect("a reset");
        let (_send, _recv) = begin(&to, "/late?gone", &[]).await;
        to.connection.close(quic::code(Code::NO_ERROR.0), b"");
        was_given_up.recv().await.expect("a reset");
        for line in [
            "\"POST /late?more HTTP/3\" 0 DPE http2.violation",
            "\"POST /late?less HTTP/3\" 0 DPE http2.violation",
            "\"POST /late?reset HTTP/3\" 0 DR http2.remote_reset",
            "\"POST /late?stopped HTTP/3\" 0 DR http2.remote_reset",
            "\"POST /late?gone HTTP/3\" 0 DC downstream_remote_disconnect",
        ] {
            wait_until(line, || lines().contains(line));
        }
    });
}

#[test]
fn the_time_for_an_answer_begins_when_a_request_has_come_whether_its_server_takes_it_or_not() {
    let edge = calls();
    play(|| async {
        let (given_up, mut was_given_up) = tokio::sync::mpsc::unbounded_channel();
        serve(edge.mesh.grpc_app(), given_up).await;
        let to = dialed(&edge).await;
        let (mut send, mut recv) = begin(&to, "/late", &[]).await;
        let body = vec![b'x'; MORE_THAN_THE_SERVER_TAKES];
        send.write_all(&data(&body)).await.expect("sent");
        send.finish().expect("finished");
        assert_eq!(read(&mut recv).await.expect("an answer").status, 504);
        was_given_up.recv().await.expect("a reset");
    });
}

#[test]
fn whoever_may_no_longer_ask_loses_the_request_that_is_under_way() {
    let edge = calls();
    play(|| async {
        let (given_up, mut was_given_up) = tokio::sync::mpsc::unbounded_channel();
        serve(edge.mesh.grpc_app(), given_up).await;
        let to = dialed(&edge).await;
        // The path has no limit of time.
        let (_send, mut recv) = begin(&to, "/late?for-ever", &[]).await;
        let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: denied, namespace: shop}\nspec:\n  selector: {matchLabels: {istio: ingress}}\n  action: DENY\n  rules: [{to: [{operation: {paths: [/late]}}]}]\n";
        say(&edge.mesh, "denied.yaml", policy);
        assert_eq!(read(&mut recv).await.expect("an answer").status, 403);
        was_given_up.recv().await.expect("a reset");
    });
}

#[test]
fn an_answer_that_comes_early_is_whole_and_the_rest_of_the_request_is_not_wanted() {
    let edge = calls();
    play(|| async {
        let (given_up, _was_given_up) = tokio::sync::mpsc::unbounded_channel();
        serve(edge.mesh.grpc_app(), given_up).await;
        let to = dialed(&edge).await;
        let (mut send, mut recv) = begin(&to, "/unknown", &[]).await;
        send.write_all(&data(b"some")).await.expect("sent");
        assert_eq!(read(&mut recv).await.expect("an answer").status, 200);
        let stopped = send.stopped().await.expect("a connection");
        assert_eq!(stopped, Some(quic::code(Code::NO_ERROR.0)));
    });
}

#[test]
fn bodies_larger_than_all_windows_pass_both_ways_at_once() {
    const BYTES: usize = 8 << 20;
    let edge = calls();
    play(|| async {
        let (given_up, _was_given_up) = tokio::sync::mpsc::unbounded_channel();
        serve(edge.mesh.grpc_app(), given_up).await;
        let to = dialed(&edge).await;
        let body: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        let post = head("POST", "a.example", "/echo", &[("te", "trailers")]);
        let answer = to.ask(&post, Some(&body)).await.expect("an answer");
        assert_eq!(answer.status, 200);
        assert!(answer.body == body, "{} bytes", answer.body.len());
        let trailers = answer.trailers.expect("trailers");
        assert_eq!(trailers.get("grpc-status"), Some(&b"0"[..]));
    });
}

#[test]
fn requests_that_are_none_are_forgiven_so_often_and_data_behind_trailers_never() {
    let edge = calls();
    play(|| async {
        let (given_up, _was_given_up) = tokio::sync::mpsc::unbounded_channel();
        serve(edge.mesh.grpc_app(), given_up).await;
        let to = dialed(&edge).await;
        let malformed = head("GET", "a.example", "/", &[("connection", "close")]);
        let mut refused = 0;
        while refused < MANY && to.ask(&malformed, None).await.is_err() {
            if to.connection.close_reason().is_some() {
                break;
            }
            refused += 1;
        }
        assert!((200..MANY).contains(&refused), "{refused}");
        assert_eq!(ended(&to).await, Some(Code::EXCESSIVE_LOAD));
        let to = dialed(&edge).await;
        let mut trailers = Fields::new();
        trailers.push("x-sum", b"7");
        let (mut send, _recv) = begin(&to, "/late?trailers", &[]).await;
        let said = [data(b"one"), head_frame(&encode(&trailers)), data(b"two")].concat();
        send.write_all(&said).await.expect("sent");
        assert_eq!(ended(&to).await, Some(Code::FRAME_UNEXPECTED));
    });
}

#[test]
fn a_client_that_waits_for_leave_to_send_its_body_gets_it_from_a_server_of_http1() {
    let keys = Keys::new();
    keys.own("server", "a.example");
    let server = https("a.example", "mode: SIMPLE, credentialName: server");
    let edge = start(&keys, &server, "a.example", TO_SERVER);
    application::serve(edge.mesh.http_app(), |stream| {
        let mut reader = BufReader::new(stream);
        while let Some(head) = read_head(&mut reader) {
            if head.starts_with("POST ") {
                let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
                reader.get_mut().write_all(go_on).expect("sent");
                let mut body = [0; 4];
                reader.read_exact(&mut body).expect("a body");
                assert_eq!(&body, b"body");
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            reader.get_mut().write_all(answer).expect("sent");
        }
    });
    quic::run(async {
        let to = dialed(&edge).await;
        let more = [("content-length", "4"), ("expect", "100-continue")];
        let (mut send, mut recv) = begin(&to, "/", &more).await;
        let mut frames = Frames::of_request(100_000);
        let first = recv.read_chunk(100_000, true).await.expect("a stream");
        let mut first: Bytes = first.expect("a head").bytes;
        let Ok(Some(FrameEvent::Block { bytes, .. })) = frames.next(&mut first) else {
            panic!("no head");
        };
        let leave = voile_http3::decode(&bytes, true, 10_000).expect("a head");
        assert_eq!(leave.fields.status(), 100);
        send.write_all(&data(b"body")).await.expect("sent");
        send.finish().expect("finished");
        assert_eq!(read(&mut recv).await.expect("an answer").status, 200);
    });
}

fn read_head(reader: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).ok().filter(|read| *read > 0)?;
    }
    Some(head)
}

/// Requests of one kind in a row, and how often; by turns, so that the machine's other work meets both.
const IN_A_ROW: usize = 150;
const ROUNDS: usize = 10;

/// Processor time of the gateway for a request over HTTP/3, as a multiple of one over HTTP/1.1 without TLS. Of this, QUIC and its
/// cryptography have the most, without optimization.
const MOST_TIMES: u64 = 7;

fn processor_ticks(edge: &Edge) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", edge.gateway_pid()));
    let stat = stat.expect("it runs");
    let (_, behind) = stat.rsplit_once(") ").expect("a name");
    // User and system.
    let times = behind.split(' ').skip(11).take(2);
    times
        .map(|ticks| ticks.parse::<u64>().expect("a number"))
        .sum()
}

#[test]
fn a_request_over_http3_takes_little_more_of_the_processor_than_quic_does() {
    let keys = Keys::new();
    keys.own("server", "a.example");
    let list = [
        https("a.example", "mode: SIMPLE, credentialName: server"),
        http_server("a.example"),
    ];
    let edge = start(&keys, &list.join(", "), "a.example", TO_SERVER);
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || edge.status("a.example", "/") == 200);
    let mut plain = BufReader::new(TcpStream::connect(edge.at(HTTP_PORT)).expect("connected"));
    let [mut over_http3, mut over_http1] = [0; 2];
    quic::run(async {
        let to = dialed(&edge).await;
        for _ in 0..ROUNDS {
            let before = processor_ticks(&edge);
            for _ in 0..IN_A_ROW {
                let answer = get_at(&to, "a.example", "/").await.expect("an answer");
                assert_eq!(answer.status, 200);
            }
            let between = processor_ticks(&edge);
            for _ in 0..IN_A_ROW {
                let get = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
                plain.get_mut().write_all(get).expect("sent");
                let (head, _) = application::read_request(&mut plain).expect("an answer");
                assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            }
            over_http3 += between - before;
            over_http1 += processor_ticks(&edge) - between;
        }
    });
    println!(
        "{} requests took {over_http3} ticks over HTTP/3 and {over_http1} over HTTP/1.1",
        IN_A_ROW * ROUNDS
    );
    assert!(over_http3 <= over_http1 * MOST_TIMES);
}
