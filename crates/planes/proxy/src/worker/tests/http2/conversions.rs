//! HTTP/2 clients of HTTP/1.1 servers and the other way round: the declared protocol of the port decides what its server
//! is spoken to in, the client never notices.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use voile_http1::MAX_HEAD_BYTES;
use voile_telemetry::PeerLabels;
use voile_xds::wire::{MutualTls, WireProtocol};

use crate::plan::{EndpointPlan, Settings};
use crate::worker::tests::http2::{application, client, read};
use crate::worker::tests::{Stage, hear, listen, play, say};

pub(crate) async fn two_sidecars(
    stage: &Stage,
    protocol: WireProtocol,
    application: SocketAddr,
) -> SocketAddr {
    let inbound = stage
        .inbound(protocol, MutualTls::Strict, application)
        .await;
    let to = EndpointPlan {
        name: None,
        address: inbound,
        expected: Some(vec![stage.authority.identity("shop", "server")]),
        weight: 1,
        available: true,
        origination: None,
        rank: Default::default(),
        peer: PeerLabels::default(),
    };
    stage.outbound(protocol, to).await
}

/// An HTTP/1.1 application that hears `request` on each connection and says `answer`.
async fn old_application(request: &'static str, answer: &'static str) -> SocketAddr {
    let listener = listen().await;
    let address = listener.local_addr().expect("an address");
    tokio::task::spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                loop {
                    hear(&mut stream, request.as_bytes()).await;
                    say(&mut stream, answer.as_bytes()).await;
                }
            });
        }
    });
    address
}

#[test]
fn an_http2_client_of_an_http_port_is_served_by_an_http1_server() {
    play(|| async {
        let application = old_application(
            "POST /a?b=c HTTP/1.1\r\nhost: server\r\nx-one: 1\r\nTE: trailers\r\ncookie: a=1; b=2\r\n\
             transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n\
             HTTP/1.1 201 Created\r\nX-Two: 2\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nfoo\r\n4\r\nbarb\r\n0\r\nX-Sum: 8\r\nx-sum:9\r\n\r\n",
        )
        .await;
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http, application).await;
        let mut client = client(address).await;
        for _ in 0..3 {
            let request = Request::post("http://server/a?b=c")
                .header("x-one", "1")
                .header("te", "trailers")
                .header("cookie", "a=1")
                .header("cookie", "b=2")
                .header("x-forwarded-client-cert", "forged")
                .body(())
                .expect("a request");
            let (response, mut send) = client.send_request(request, false).expect("sent");
            send.send_data(Bytes::from_static(b"hello"), false)
                .expect("sent");
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", "7".parse().expect("a value"));
            trailers.insert("authorization", "forged".parse().expect("a value"));
            send.send_trailers(trailers).expect("sent");
            let response = response.await.expect("an answer");
            assert_eq!(response.status(), 201);
            assert_eq!(response.headers()["x-two"], "2");
            assert!(!response.headers().contains_key("keep-alive"));
            let mut body = response.into_body();
            assert_eq!(read(&mut body).await.expect("a body"), b"foobarb");
            let trailers = body.trailers().await.expect("an end").expect("trailers");
            let sums: Vec<_> = trailers.get_all("x-sum").iter().collect();
            assert_eq!(sums, ["8", "9"]);
        }
    });
}

#[test]
fn heads_without_bodies_cross_both_ways() {
    for (request, heard, answer, status) in [
        (
            Request::head("http://server/h"),
            "HEAD /h HTTP/1.1\r\nhost: server\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            200,
        ),
        (
            Request::delete("http://server/d"),
            "DELETE /d HTTP/1.1\r\nhost: server\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
            204,
        ),
        (
            Request::post("http://server/p"),
            "POST /p HTTP/1.1\r\nhost: server\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\n\r\n",
            304,
        ),
    ] {
        play(|| async move {
            let application = old_application(heard, answer).await;
            let stage = Stage::new(Settings::default());
            let address = two_sidecars(&stage, WireProtocol::Http, application).await;
            let mut client = client(address).await;
            let request = request.body(()).expect("a request");
            let (response, _) = client.send_request(request, true).expect("sent");
            let response = response.await.expect("an answer");
            assert_eq!(response.status(), status);
            let body = read(&mut response.into_body()).await.expect("an end");
            assert!(body.is_empty());
        });
    }
}

#[test]
fn a_large_body_crosses_from_http2_to_http1_and_back() {
    const SIZE: usize = 2_000_000;
    play(|| async {
        let listener = listen().await;
        let application = listener.local_addr().expect("an address");
        tokio::task::spawn_local(async move {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            let head =
                format!("POST /big HTTP/1.1\r\nhost: server\r\ncontent-length: {SIZE}\r\n\r\n");
            hear(&mut stream, head.as_bytes()).await;
            say(
                &mut stream,
                format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n").as_bytes(),
            )
            .await;
            let (mut from, mut to) = stream.split();
            let copied = tokio::io::copy(&mut (&mut from).take(SIZE as u64), &mut to).await;
            assert_eq!(copied.expect("copied"), SIZE as u64);
            // Stays open as a kept connection does.
            let _ = from.read(&mut [0]).await;
        });
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http, application).await;
        let mut client = client(address).await;
        let request = Request::post("http://server/big")
            .header("content-length", SIZE)
            .body(())
            .expect("a request");
        let (response, mut send) = client.send_request(request, false).expect("sent");
        let body: Vec<u8> = (0..SIZE).map(|at| (at % 253) as u8).collect();
        let mut rest = Bytes::from(body.clone());
        tokio::task::spawn_local(async move {
            while !rest.is_empty() {
                send.reserve_capacity(rest.len());
                let room = std::future::poll_fn(|cx| send.poll_capacity(cx)).await;
                let room = room.expect("a stream").expect("room").min(rest.len());
                let part = rest.split_to(room);
                send.send_data(part, rest.is_empty()).expect("sent");
            }
        });
        let response = response.await.expect("an answer");
        let got = read(&mut response.into_body()).await.expect("a body");
        assert!(got == body, "{} bytes came back", got.len());
    });
}

#[test]
fn an_http1_client_of_an_http2_port_is_served_by_an_http2_server() {
    play(|| async {
        let application = application(|request, mut respond| async move {
            assert_eq!(request.method(), Method::POST);
            assert_eq!(request.uri(), "http://server/a?b=c");
            assert!(!request.headers().contains_key("host"));
            assert!(!request.headers().contains_key("connection"));
            assert_eq!(request.headers()["x-one"], "1");
            let mut said = request.into_body();
            let body = read(&mut said).await.expect("a body");
            let sum = said.trailers().await.expect("an end").unwrap_or_default();
            let sum = sum.get("x-sum").cloned();
            let early = http::Response::builder().status(103).header("link", "</x>");
            let early = early.body(()).expect("a head");
            respond.send_informational(early).expect("sent");
            let response = http::Response::builder().status(201).header("x-two", "2");
            let response = response.body(()).expect("a head");
            let mut send = respond.send_response(response, false).expect("sent");
            send.send_data(body.into(), false).expect("sent");
            let mut trailers = HeaderMap::new();
            trailers.insert("x-end", sum.unwrap_or("none".parse().expect("a value")));
            send.send_trailers(trailers).expect("sent");
        })
        .await;
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http2, application).await;
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let answer = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n\
                      HTTP/1.1 201 Created\r\nx-two: 2\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n";
        for (request, end) in [
            (
                "POST /a?b=c HTTP/1.1\r\nHost: server\r\nX-One: 1\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\n\
                 Content-Length: 5\r\n\r\nhello",
                "\r\n",
            ),
            (
                "POST /a?b=c HTTP/1.1\r\nHost: server\r\nX-One: 1\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n\
                 2\r\nhe\r\n3\r\nllo\r\n0\r\nX-Sum: 5\r\n\r\n",
                "x-end: 5\r\n\r\n",
            ),
        ] {
            say(&mut stream, request.as_bytes()).await;
            hear(&mut stream, format!("{answer}{end}").as_bytes()).await;
        }
    });
}

/// The head goes on with a `Host`, which makes it too long to be read again.
#[test]
fn a_head_that_grows_beyond_the_limit_is_answered() {
    play(|| async {
        let application = application(|request, _| async move {
            panic!("{request:?}");
        })
        .await;
        let stage = Stage::new(Settings::default());
        let address = stage
            .inbound(WireProtocol::Http2, MutualTls::Disable, application)
            .await;
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let mut head = b"GET / HTTP/1.0\r\nPad: ".to_vec();
        head.resize(MAX_HEAD_BYTES - 4, b'p');
        head.extend_from_slice(b"\r\n\r\n");
        say(&mut stream, &head).await;
        hear(&mut stream, b"HTTP/1.1 503 Service Unavailable\r\n").await;
    });
}

#[test]
fn http1_travels_as_http2_where_the_policy_says_so_and_comes_out_as_it_went_in() {
    play(|| async {
        let application = old_application(
            "GET /a HTTP/1.1\r\nhost: server\r\nx-one: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Two: 2\r\n\r\nhello",
        )
        .await;
        let stage = Stage::new(Settings::default());
        stage.http2_upgrade.set(true);
        let address = two_sidecars(&stage, WireProtocol::Http, application).await;
        let mut stream = TcpStream::connect(address).await.expect("connected");
        for _ in 0..3 {
            let request = "GET /a HTTP/1.1\r\nHost: server\r\nX-One: 1\r\n\r\n";
            say(&mut stream, request.as_bytes()).await;
            // Names in lower case: they crossed HTTP/2.
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-two: 2\r\n\r\nhello";
            hear(&mut stream, answer.as_bytes()).await;
        }
    });
}

fn key(head: &str) -> &str {
    let key = head.split_once("\r\nsec-websocket-key: ");
    let (_, rest) = key.expect("a key");
    rest.split("\r\n").next().expect("a line")
}

#[test]
fn a_server_that_did_not_read_the_handshake_switches_nothing() {
    for accept in ["", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"] {
        play(|| async move {
            let listener = listen().await;
            let application = listener.local_addr().expect("an address");
            tokio::task::spawn_local(async move {
                let (mut stream, _) = listener.accept().await.expect("a caller");
                hear(&mut stream, b"GET /chat HTTP/1.1\r\n").await;
                let answer = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{accept}\r\n"
                );
                say(&mut stream, answer.as_bytes()).await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
            let stage = Stage::new(Settings::default());
            let address = two_sidecars(&stage, WireProtocol::Http, application).await;
            let mut client = client_with_settings(address).await;
            let request = Request::builder()
                .method(Method::CONNECT)
                .uri("http://server/chat")
                .extension(h2::ext::Protocol::from_static("websocket"));
            let request = request.body(()).expect("a request");
            let (response, _send) = client.send_request(request, false).expect("sent");
            assert_eq!(response.await.expect("an answer").status(), 502);
        });
    }
}

#[test]
fn a_websocket_crosses_from_http1_over_http2_streams() {
    play(|| async {
        let listener = listen().await;
        let application = listener.local_addr().expect("an address");
        tokio::task::spawn_local(async move {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a head"));
            }
            let head = String::from_utf8(head).expect("text");
            assert!(head.starts_with("GET /chat HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("upgrade: websocket\r\n"), "{head}");
            let accept = crate::http2::websocket::accept(key(&head).as_bytes());
            let answer = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n\r\n"
            );
            say(&mut stream, answer.as_bytes()).await;
            let (mut from, mut to) = stream.split();
            tokio::io::copy(&mut from, &mut to).await.expect("copied");
            to.shutdown().await.expect("closed");
        });
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http, application).await;
        let mut client = client_with_settings(address).await;
        let mut request = Request::builder()
            .method(Method::CONNECT)
            .uri("http://server/chat")
            .header("sec-websocket-version", "13");
        request = request.extension(h2::ext::Protocol::from_static("websocket"));
        let request = request.body(()).expect("a request");
        let (response, mut send) = client.send_request(request, false).expect("sent");
        let response = response.await.expect("an answer");
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        for word in ["one", "two"] {
            send.send_data(Bytes::from_static(word.as_bytes()), false)
                .expect("sent");
            let got = body.data().await.expect("open").expect("bytes");
            assert_eq!(got, word);
        }
        send.send_data(Bytes::new(), true).expect("sent");
        assert_eq!(read(&mut body).await.expect("the end comes back"), b"");
    });
}

#[test]
fn a_server_that_answers_a_handshake_without_switching_opens_no_tunnel() {
    play(|| async {
        let listener = listen().await;
        let application = listener.local_addr().expect("an address");
        tokio::task::spawn_local(async move {
            for answer in [
                "200 OK\r\ncontent-length: 2\r\n\r\nhi",
                "204 No Content\r\n\r\n",
                "404 Not Found\r\ncontent-length: 0\r\n\r\n",
            ] {
                let (mut stream, _) = listener.accept().await.expect("a caller");
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.expect("a head"));
                }
                say(&mut stream, format!("HTTP/1.1 {answer}").as_bytes()).await;
                stream.shutdown().await.expect("closed");
            }
        });
        let stage = Stage::new(Settings::default());
        let address = two_sidecars(&stage, WireProtocol::Http, application).await;
        let mut client = client_with_settings(address).await;
        for expected in [502, 502, 404] {
            let request = Request::builder()
                .method(Method::CONNECT)
                .uri("http://server/chat")
                .header("sec-websocket-version", "13")
                .extension(h2::ext::Protocol::from_static("websocket"));
            let request = request.body(()).expect("a request");
            let (response, _send) = client.send_request(request, false).expect("sent");
            assert_eq!(response.await.expect("an answer").status(), expected);
        }
    });
}

/// A client that knows the server's settings already.
pub(crate) async fn client_with_settings(address: SocketAddr) -> h2::client::SendRequest<Bytes> {
    let client = client(address).await;
    while !client.is_extended_connect_protocol_enabled() {
        tokio::task::yield_now().await;
    }
    client
}

#[test]
fn what_a_client_speaks_is_spoken_on_where_the_policy_says_so() {
    play(|| async {
        let request = "GET /a HTTP/1.1\r\nHost: server\r\nX-One: 1\r\n\r\n";
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Two: 2\r\n\r\nhello";
        let old = old_application(request, answer).await;
        let stage = Stage::new(Settings::default());
        stage.client_protocol.set(true);
        // Declared as HTTP/2 to the client's side only.
        let to = EndpointPlan {
            name: None,
            address: old,
            expected: None,
            weight: 1,
            available: true,
            origination: None,
            rank: Default::default(),
            peer: PeerLabels::default(),
        };
        let address = stage.outbound(WireProtocol::Http2, to).await;
        let mut stream = TcpStream::connect(address).await.expect("connected");
        say(&mut stream, request.as_bytes()).await;
        hear(&mut stream, answer.as_bytes()).await;
        // Declared as HTTP/1.1, called in HTTP/2 by one that knows better.
        let modern = application(|_, mut respond| async move {
            let _ = respond.send_response(http::Response::new(()), true);
        })
        .await;
        let to = EndpointPlan {
            name: None,
            address: modern,
            expected: None,
            weight: 1,
            available: true,
            origination: None,
            rank: Default::default(),
            peer: PeerLabels::default(),
        };
        let address = stage.outbound(WireProtocol::Http, to).await;
        let mut client = client(address).await;
        let request = Request::get("http://server/").body(()).expect("a request");
        let (response, _) = client.send_request(request, true).expect("sent");
        assert_eq!(response.await.expect("an answer").status(), 200);
    });
}
