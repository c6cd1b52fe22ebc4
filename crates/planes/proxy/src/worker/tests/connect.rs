//! CONNECT through both roles of a sidecar, for all HTTP versions of client and server (RFC 9112 section 3.2.3, RFC
//! 9113 section 8.5). The proxy does not read the tunnel's content.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Method, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use voile_xds::wire::WireProtocol;

use super::http2::{client, read};
use super::{Stage, hear, listen, play, say};
use crate::plan::Settings;
use crate::worker::tests::http2::conversions::{client_with_settings, two_sidecars};

/// Target of the forward proxies in these tests.
const TARGET: &str = "a.test:443";

/// A forward proxy of HTTP/1.1: echoes where it is asked for `TARGET`, says goodbye when its client has, refuses others.
async fn old_proxy() -> SocketAddr {
    let listener = listen().await;
    let address = listener.local_addr().expect("an address");
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(old_tunnel(stream));
        }
    });
    address
}

async fn old_tunnel(mut stream: TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a head"));
    }
    let head = String::from_utf8(head).expect("text").to_ascii_lowercase();
    if !head.starts_with("connect a.test:443 http/1.1\r\nhost: a.test:443\r\n") {
        assert!(head.starts_with("connect b.test:1 http/1.1\r\n"), "{head}");
        let refusal =
            b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n";
        return say(&mut stream, refusal).await;
    }
    for absent in ["content-length", "transfer-encoding", "upgrade"] {
        assert!(!head.contains(absent), "{head}");
    }
    let opened = b"HTTP/1.1 200 Connection established\r\nX-One: 1\r\n\r\n";
    say(&mut stream, opened).await;
    let (mut from, mut to) = stream.split();
    tokio::io::copy(&mut from, &mut to).await.expect("copied");
    to.write_all(b"goodbye").await.expect("said");
    to.shutdown().await.expect("closed");
}

/// The same for HTTP/2.
async fn new_proxy() -> SocketAddr {
    let listener = listen().await;
    let address = listener.local_addr().expect("an address");
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                let mut connection = h2::server::handshake(stream).await.expect("a preface");
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::task::spawn_local(new_tunnel(request, respond));
                }
            });
        }
    });
    address
}

async fn new_tunnel(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    assert_eq!(request.method(), Method::CONNECT);
    assert!(request.extensions().get::<h2::ext::Protocol>().is_none());
    assert_eq!((request.uri().path(), request.uri().scheme()), ("", None));
    let authority = request.uri().authority().expect("whom").as_str();
    if authority != TARGET {
        let refusal = Response::builder().status(403).body(()).expect("a head");
        let mut send = respond.send_response(refusal, false).expect("sent");
        let no = Bytes::from_static(b"no");
        return send.send_data(no, true).expect("sent");
    }
    let opened = Response::builder().header("x-one", "1").body(());
    let opened = opened.expect("a head");
    let mut send = respond.send_response(opened, false).expect("sent");
    let mut body = request.into_body();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.expect("a stream");
        let flow = body.flow_control();
        flow.release_capacity(chunk.len()).expect("released");
        send.send_data(chunk, false).expect("sent");
    }
    let last = Bytes::from_static(b"goodbye");
    send.send_data(last, true).expect("sent");
}

/// Listeners for all pairs of versions: the declared protocol, its server, and HTTP/2 between sidecars by policy.
async fn ways(stage: &Stage) -> [SocketAddr; 3] {
    let plain = two_sidecars(stage, WireProtocol::Http, old_proxy().await).await;
    let new = two_sidecars(stage, WireProtocol::Http2, new_proxy().await).await;
    stage.http2_upgrade.set(true);
    [
        plain,
        new,
        two_sidecars(stage, WireProtocol::Http, old_proxy().await).await,
    ]
}

fn ask(authority: &str) -> Request<()> {
    let request = Request::builder().method(Method::CONNECT).uri(authority);
    request.body(()).expect("a request")
}

#[test]
fn an_http1_client_has_its_tunnel_and_its_refusal_from_either_server() {
    play(|| async {
        let stage = Stage::new(Settings::default());
        for address in ways(&stage).await {
            // Twice: a shared connection of HTTP/2 carries several.
            for _ in 0..2 {
                let mut stream = TcpStream::connect(address).await.expect("connected");
                say(
                    &mut stream,
                    b"CONNECT a.test:443 HTTP/1.1\r\nHost: else\r\nContent-Length: 0\r\n\r\nearly",
                )
                .await;
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.expect("a head"));
                }
                let head = String::from_utf8(head).expect("text").to_ascii_lowercase();
                assert!(head.starts_with("http/1.1 200 "), "{head}");
                assert!(head.contains("x-one: 1\r\n"), "{head}");
                assert!(!head.contains("-length") && !head.contains("-encoding"));
                hear(&mut stream, b"early").await;
                say(&mut stream, b"late").await;
                hear(&mut stream, b"late").await;
                stream.shutdown().await.expect("half closed");
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).await.expect("an end");
                assert_eq!(rest, b"goodbye");
            }
            let mut stream = TcpStream::connect(address).await.expect("connected");
            let refused =
                b"CONNECT b.test:1 HTTP/1.1\r\nHost: b\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n";
            say(&mut stream, refused).await;
            let mut got = Vec::new();
            // A reset after the answer would be as good an end.
            let _ = stream.read_to_end(&mut got).await;
            let got = String::from_utf8(got).expect("text").to_ascii_lowercase();
            assert!(got.starts_with("http/1.1 403 forbidden\r\n"), "{got}");
            assert!(got.contains("connection: close\r\n"), "{got}");
            assert!(got.ends_with("2\r\nno\r\n0\r\n\r\n"), "{got}");
        }
    });
}

#[test]
fn an_http2_client_has_its_tunnel_and_its_refusal_from_either_server() {
    play(|| async {
        let stage = Stage::new(Settings::default());
        for address in ways(&stage).await {
            let mut client = client(address).await;
            for _ in 0..2 {
                let (response, mut send) = client.send_request(ask(TARGET), false).expect("sent");
                send.send_data(Bytes::from_static(b"early"), false)
                    .expect("sent");
                let response = response.await.expect("an answer");
                assert_eq!(response.status(), 200);
                assert_eq!(response.headers()["x-one"], "1");
                assert!(!response.headers().contains_key("content-length"));
                let mut body = response.into_body();
                let first = body.data().await.expect("open").expect("bytes");
                assert_eq!(first, "early");
                send.send_data(Bytes::from_static(b"late"), true)
                    .expect("sent");
                assert_eq!(read(&mut body).await.expect("an end"), b"lategoodbye");
            }
            // The client's side of the stream stays open, and the answer ends all the same.
            let (response, _send) = client.send_request(ask("b.test:1"), false).expect("sent");
            let response = response.await.expect("an answer");
            assert_eq!(response.status(), 403);
            let mut body = response.into_body();
            assert_eq!(read(&mut body).await.expect("an end"), b"no");
        }
    });
}

#[test]
fn what_an_http2_client_may_not_ask_goes_nowhere() {
    play(|| async {
        let stage = Stage::new(Settings::default());
        let [address, ..] = ways(&stage).await;
        let mut client = client_with_settings(address).await;
        let length = Request::builder().method(Method::CONNECT).uri(TARGET);
        let length = length.header("content-length", "0").body(());
        // HTTP/1.1 would need an upgrade to this protocol, which it does not have here.
        let other = Request::builder()
            .method(Method::CONNECT)
            .uri("http://server/x")
            .extension(h2::ext::Protocol::from_static("connect-udp"));
        for (request, status) in [
            (ask("a.test:0"), 400),
            (ask("a.test"), 400),
            (length.expect("a request"), 400),
            (other.body(()).expect("a request"), 501),
        ] {
            let what = format!("{request:?}");
            let (response, _send) = client.send_request(request, false).expect("sent");
            assert_eq!(response.await.expect(&what).status(), status, "{what}");
        }
    });
}
