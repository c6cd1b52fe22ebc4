//! WebSockets whose client and server speak different versions of HTTP, through both roles of a sidecar: RFC 6455's
//! handshake on one side, RFC 8441's extended CONNECT on the other. The proxy does not read the tunnel's content, so bytes
//! stand for frames here.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use voile_xds::wire::{MutualTls, WireProtocol};

use super::{Stage, hear, listen, play, say};
use crate::plan::Settings;
use crate::worker::tests::http2::conversions::{client_with_settings, two_sidecars};
use crate::worker::tests::http2::frames::{self, ACK, SETTINGS, frame};

/// RFC 6455's example.
const HANDSHAKE: &str = "GET /chat?room=1 HTTP/1.1\r\nHost: server\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Protocol: chat\r\n\r\n";

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nsec-websocket-protocol: chat\r\nupgrade: websocket\r\n\
                        sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nConnection: Upgrade\r\n\r\n";

/// An HTTP/2 application that takes extended CONNECTs, with a handler for each.
async fn application<F: Future<Output = ()> + 'static>(
    handler: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + 'static,
) -> SocketAddr {
    let listener = listen().await;
    let address = listener.local_addr().expect("an address");
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let handler = handler.clone();
            tokio::task::spawn_local(async move {
                let mut builder = h2::server::Builder::new();
                let handshake = builder.enable_connect_protocol().handshake(stream);
                let mut connection = handshake.await.expect("a preface");
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::task::spawn_local(handler(request, respond));
                }
            });
        }
    });
    address
}

/// Accepts the handshake as a server should.
fn accept(request: &Request<RecvStream>, respond: &mut SendResponse<Bytes>) -> SendStream<Bytes> {
    assert_eq!(request.method(), Method::CONNECT);
    let protocol = request.extensions().get::<h2::ext::Protocol>();
    assert_eq!(protocol.expect("a protocol").as_str(), "websocket");
    assert_eq!(request.uri(), "http://server/chat?room=1");
    assert_eq!(request.headers()["sec-websocket-version"], "13");
    for absent in ["sec-websocket-key", "upgrade", "connection", "host"] {
        assert!(!request.headers().contains_key(absent), "{absent}");
    }
    let response = Response::builder().header("sec-websocket-protocol", "chat");
    let response = response.body(()).expect("a head");
    respond.send_response(response, false).expect("sent")
}

async fn give(send: &mut SendStream<Bytes>, mut bytes: Bytes) {
    while !bytes.is_empty() {
        send.reserve_capacity(bytes.len());
        let room = std::future::poll_fn(|cx| send.poll_capacity(cx)).await;
        let room = room.expect("a stream").expect("room").min(bytes.len());
        send.send_data(bytes.split_to(room), false).expect("sent");
    }
}

async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let mut send = accept(&request, &mut respond);
    let mut body = request.into_body();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.expect("a stream");
        let length = chunk.len();
        give(&mut send, chunk).await;
        body.flow_control()
            .release_capacity(length)
            .expect("released");
    }
    give(&mut send, Bytes::from_static(b"goodbye")).await;
    send.send_data(Bytes::new(), true).expect("sent");
}

/// A caller of HTTP/1.1 whose handshake was answered.
async fn connected(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    say(&mut stream, HANDSHAKE.as_bytes()).await;
    hear(&mut stream, SWITCHED.as_bytes()).await;
    stream
}

#[test]
fn an_http1_client_talks_to_an_http2_server_on_fresh_and_on_old_connections() {
    play(|| async {
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http2, application(echo).await).await;
        for _ in 0..3 {
            let mut stream = connected(address).await;
            for word in ["one", "two"] {
                say(&mut stream, word.as_bytes()).await;
                hear(&mut stream, word.as_bytes()).await;
            }
            // The client has said all; the server has the last word.
            stream.shutdown().await.expect("half closed");
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.expect("an end");
            assert_eq!(rest, b"goodbye");
        }
    });
}

#[test]
fn much_flows_both_ways_at_once() {
    const SIZE: usize = 3_000_000;
    play(|| async {
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http2, application(echo).await).await;
        let (mut from, mut to) = connected(address).await.into_split();
        let sent: Vec<u8> = (0..SIZE).map(|at| (at % 241) as u8).collect();
        let expected = [&sent[..], b"goodbye"].concat();
        tokio::task::spawn_local(async move {
            say(&mut to, &sent).await;
            to.shutdown().await.expect("half closed");
        });
        let mut got = Vec::new();
        from.read_to_end(&mut got).await.expect("an end");
        assert!(got == expected, "{} bytes came back", got.len());
    });
}

#[test]
fn a_server_that_ends_first_still_hears_its_client() {
    play(|| async {
        let (told, mut was_told) = tokio::sync::mpsc::unbounded_channel();
        let application = application(move |request, mut respond| {
            let told = told.clone();
            async move {
                let mut send = accept(&request, &mut respond);
                send.send_data(Bytes::from_static(b"last"), true)
                    .expect("sent");
                let mut body = request.into_body();
                let all = super::http2::read(&mut body).await.expect("a body");
                told.send(all).expect("the test listens");
            }
        })
        .await;
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http2, application).await;
        let mut stream = connected(address).await;
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.expect("an end");
        assert_eq!(all, b"last");
        say(&mut stream, b"and one more thing").await;
        stream.shutdown().await.expect("half closed");
        assert_eq!(was_told.recv().await, Some(b"and one more thing".to_vec()));
    });
}

#[test]
fn a_refused_handshake_is_an_ordinary_answer() {
    play(|| async {
        let application = application(|_, mut respond| async move {
            let refusal = Response::builder().status(403).header("x-why", "no");
            let mut send = respond
                .send_response(refusal.body(()).expect("a head"), false)
                .expect("sent");
            send.send_data(Bytes::from_static(b"no"), true)
                .expect("sent");
        })
        .await;
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http2, application).await;
        let mut stream = TcpStream::connect(address).await.expect("connected");
        // The connection lives on.
        for _ in 0..2 {
            say(&mut stream, HANDSHAKE.as_bytes()).await;
            let answer = "HTTP/1.1 403 Forbidden\r\nx-why: no\r\ntransfer-encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n";
            hear(&mut stream, answer.as_bytes()).await;
        }
    });
}

/// A reset by either side resets the other side, which sees no other error.
#[test]
fn a_reset_passes_in_both_directions() {
    play(|| async {
        let (told, mut was_told) = tokio::sync::mpsc::unbounded_channel();
        let application = application(move |request, mut respond| {
            let told = told.clone();
            async move {
                let mut send = accept(&request, &mut respond);
                let mut body = request.into_body();
                match body.data().await {
                    Some(Ok(word)) if word == "reset me" => send.send_reset(Reason::CANCEL),
                    Some(Ok(word)) => {
                        give(&mut send, word).await;
                        let error = body.data().await.expect("no clean end");
                        let reason = error.expect_err("a reset").reason();
                        told.send(reason).expect("the test listens");
                    }
                    other => panic!("{other:?}"),
                }
            }
        })
        .await;
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http2, application).await;
        let mut stream = connected(address).await;
        say(&mut stream, b"reset me").await;
        let error = stream.read(&mut [0]).await.expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

        let mut stream = connected(address).await;
        say(&mut stream, b"hear me").await;
        hear(&mut stream, b"hear me").await;
        stream.set_zero_linger().expect("an open socket");
        drop(stream);
        assert_eq!(was_told.recv().await, Some(Some(Reason::CANCEL)));
    });
}

#[test]
fn a_server_without_extended_connect_is_never_asked_for_it() {
    play(|| async {
        let application = super::http2::application(|request, _| async move {
            panic!("{request:?}");
        })
        .await;
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http2, application).await;
        let mut stream = TcpStream::connect(address).await.expect("connected");
        for _ in 0..2 {
            say(&mut stream, HANDSHAKE.as_bytes()).await;
            hear(&mut stream, b"HTTP/1.1 501 Not Implemented\r\n").await;
            let mut rest = Vec::new();
            while !rest.ends_with(b"(RFC 8441)\n") {
                rest.push(stream.read_u8().await.expect("a reason"));
            }
        }
    });
}

/// Answers the handshake of the first stream, and waits until the connection ends.
async fn accept_handshake(mut stream: TcpStream) {
    let head = frames::until(&mut stream, |frame| frame.kind == frames::HEADERS).await;
    assert_eq!(head.expect("a request").stream, 1);
    let answer = frame(frames::HEADERS, frames::END_HEADERS, 1, &[0x88]);
    say(&mut stream, &answer).await;
    let _ = frames::until(&mut stream, |_| false).await;
}

/// The handshake goes out only when the settings came, however long they take and in however small pieces.
#[test]
fn settings_that_dawdle_are_waited_for() {
    play(|| async {
        let listener = listen().await;
        let application = listener.local_addr().expect("an address");
        tokio::task::spawn_local(async move {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            hear(&mut stream, frames::PREFACE).await;
            let settings = frame(SETTINGS, 0, 0, &[0, 8, 0, 0, 0, 1]);
            let ours = frames::read(&mut stream).await.expect("its settings");
            assert_eq!(ours.kind, SETTINGS);
            for byte in settings {
                say(&mut stream, &[byte]).await;
                tokio::task::yield_now().await;
            }
            say(&mut stream, &frame(SETTINGS, ACK, 0, &[])).await;
            accept_handshake(stream).await;
        });
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http2, application).await;
        let mut stream = TcpStream::connect(address).await.expect("connected");
        say(&mut stream, HANDSHAKE.as_bytes()).await;
        hear(&mut stream, b"HTTP/1.1 101 Switching Protocols\r\n").await;
    });
}

/// The settings that allow the handshake come with the connection's end, so its stream cannot begin.
#[test]
fn a_server_that_leaves_with_its_settings_is_dialled_again() {
    play(|| async {
        let listener = listen().await;
        let application = listener.local_addr().expect("an address");
        tokio::task::spawn_local(async move {
            let settings = frame(SETTINGS, 0, 0, &[0, 8, 0, 0, 0, 1]);
            let (mut leaving, _) = listener.accept().await.expect("a caller");
            hear(&mut leaving, frames::PREFACE).await;
            let end = frame(frames::GO_AWAY, 0, 0, &[0; 8]);
            say(&mut leaving, &[&settings[..], &end].concat()).await;
            let (mut stream, _) = listener.accept().await.expect("another");
            hear(&mut stream, frames::PREFACE).await;
            say(&mut stream, &settings).await;
            accept_handshake(stream).await;
        });
        let stage = Stage::new(Settings::default());
        let address = stage
            .inbound(WireProtocol::Http2, MutualTls::Disable, application)
            .await;
        let mut stream = TcpStream::connect(address).await.expect("connected");
        say(&mut stream, HANDSHAKE.as_bytes()).await;
        hear(&mut stream, b"HTTP/1.1 101 Switching Protocols\r\n").await;
    });
}

#[test]
fn settings_that_never_come_are_not_waited_for_forever() {
    play(|| async {
        let listener = listen().await;
        let application = listener.local_addr().expect("an address");
        tokio::task::spawn_local(async move {
            let mut all = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                all.push(tokio::task::spawn_local(async move {
                    let mut heard = Vec::new();
                    let _ = stream.read_to_end(&mut heard).await;
                }));
            }
        });
        let settings = Settings {
            connect_timeout: Duration::from_millis(200),
            ..Settings::default()
        };
        let stage = Stage::new(settings);
        let address = two_sidecars(&stage, WireProtocol::Http2, application).await;
        let mut stream = TcpStream::connect(address).await.expect("connected");
        say(&mut stream, HANDSHAKE.as_bytes()).await;
        hear(&mut stream, b"HTTP/1.1 503 Service Unavailable\r\n").await;
    });
}

/// An incomplete handshake goes on as an ordinary request, and its server answers.
#[test]
fn a_handshake_without_its_key_is_an_ordinary_request() {
    for (method, key) in [
        ("GET", ""),
        ("GET", "Sec-WebSocket-Key: c2hvcnQ=\r\n"),
        ("GET", "Sec-WebSocket-Key: ****\r\n"),
        ("DELETE", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"),
    ] {
        play(|| async move {
            let application = application(move |request, mut respond| async move {
                assert_eq!(request.method(), method);
                let answer = Response::builder().status(426).body(()).expect("a head");
                respond.send_response(answer, true).expect("sent");
            })
            .await;
            let stage = Stage::new(Settings::default());
            let address = two_sidecars(&stage, WireProtocol::Http2, application).await;
            let mut stream = TcpStream::connect(address).await.expect("connected");
            let request = format!(
                "{method} /chat HTTP/1.1\r\nHost: server\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{key}\r\n"
            );
            say(&mut stream, request.as_bytes()).await;
            hear(&mut stream, b"HTTP/1.1 426 Upgrade Required\r\n").await;
        });
    }
}

fn extended_connect() -> Request<()> {
    let request = Request::builder()
        .method(Method::CONNECT)
        .uri("http://server/chat?room=1")
        .header("sec-websocket-version", "13")
        .extension(h2::ext::Protocol::from_static("websocket"));
    request.body(()).expect("a request")
}

#[test]
fn an_http2_client_reaches_an_http2_server_with_path_and_protocol() {
    play(|| async {
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http2, application(echo).await).await;
        let mut client = client_with_settings(address).await;
        for _ in 0..2 {
            let (response, mut send) = client
                .send_request(extended_connect(), false)
                .expect("sent");
            let response = response.await.expect("an answer");
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
            let mut body = response.into_body();
            send.send_data(Bytes::from_static(b"one"), false)
                .expect("sent");
            assert_eq!(body.data().await.expect("open").expect("bytes"), "one");
            send.send_data(Bytes::new(), true).expect("sent");
            let rest = super::http2::read(&mut body).await.expect("an end");
            assert_eq!(rest, b"goodbye");
        }
    });
}

#[test]
fn an_http2_client_of_a_server_without_extended_connect_is_told_so() {
    play(|| async {
        let application = super::http2::application(|request, _| async move {
            panic!("{request:?}");
        })
        .await;
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http2, application).await;
        let mut client = client_with_settings(address).await;
        let (response, _send) = client
            .send_request(extended_connect(), false)
            .expect("sent");
        assert_eq!(response.await.expect("an answer").status(), 501);
    });
}
