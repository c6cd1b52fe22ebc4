//! Local replies of a sidecar to gRPC callers: a gRPC status and our reason, in a head without a body, whatever protocol
//! the port declares. Other callers get an HTTP status.

use std::net::SocketAddr;

use http::Request;
use tokio::io::AsyncWriteExt;
use voile_xds::wire::WireProtocol;

use super::conversions::two_sidecars;
use crate::plan::Settings;
use crate::worker::tests::http2::{client, read};
use crate::worker::tests::{Stage, hear, listen, play, say};

/// An application that waits for the end of a head, says `answer` and closes.
async fn rude(answer: &'static str) -> SocketAddr {
    let listener = listen().await;
    let address = listener.local_addr().expect("an address");
    tokio::task::spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            hear(&mut stream, b"POST /pkg.Service/Call HTTP/1.1\r\n").await;
            say(&mut stream, answer.as_bytes()).await;
            // A client that has gone needs no shutdown.
            let _ = stream.shutdown().await;
        }
    });
    address
}

#[test]
fn a_grpc_caller_of_an_http_port_is_told_in_grpc() {
    for (application, status, code, message) in [
        (
            None,
            503,
            "14",
            "the application does not accept connections",
        ),
        (Some(""), 503, "14", "upstream_reset_before_response"),
        (
            Some("HTTP/9.9 what\r\n\r\n"),
            502,
            "14",
            "malformed_status_line",
        ),
        (
            Some("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
            502,
            "14",
            "invalid_content_length",
        ),
    ] {
        play(|| async move {
            let application = match application {
                Some(answer) => rude(answer).await,
                None => listen().await.local_addr().expect("an address"),
            };
            let stage = Stage::new(Settings::default());
            let address = two_sidecars(&stage, WireProtocol::Http, application).await;
            let mut client = client(address).await;
            for content_type in ["application/grpc", "application/grpc+proto"] {
                let call = Request::post("http://server/pkg.Service/Call")
                    .header("content-type", content_type)
                    .header("te", "trailers");
                let call = call.body(()).expect("a request");
                let (response, _) = client.send_request(call, true).expect("sent");
                let response = response.await.expect("an answer");
                assert_eq!(response.status(), 200);
                assert!(response.body().is_end_stream(), "trailers only");
                let fields = response.headers();
                assert_eq!(fields["content-type"], "application/grpc");
                assert_eq!(fields["grpc-status"], code);
                assert_eq!(fields["grpc-message"], message);
                assert!(!fields.contains_key("content-length"));
            }
            for content_type in ["application/grpc-web", "application/json"] {
                let plain = Request::post("http://server/pkg.Service/Call");
                let plain = plain.header("content-type", content_type);
                let plain = plain.body(()).expect("a request");
                let (response, _) = client.send_request(plain, true).expect("sent");
                let response = response.await.expect("an answer");
                assert_eq!(response.status(), status);
                let body = read(&mut response.into_body()).await.expect("a body");
                assert_eq!(String::from_utf8_lossy(&body).trim_end(), message);
            }
        });
    }
}

/// A client that sends too much gets the refusal in its own protocol, wherever its head states the protocol.
#[test]
fn a_head_beyond_the_limit_is_refused_in_its_own_protocol() {
    for (content_type, status, code) in [
        ("application/grpc", 200, Some("8")),
        ("application/json", 431, None),
    ] {
        play(|| async move {
            let stage = Stage::new(Settings::default());
            let application = listen().await.local_addr().expect("an address");
            let address = two_sidecars(&stage, WireProtocol::Grpc, application).await;
            let mut client = client(address).await;
            let call = Request::post("http://server/pkg.Service/Call")
                .header("x-long", "x".repeat(70_000))
                .header("content-type", content_type);
            let call = call.body(()).expect("a request");
            let (response, _body) = client.send_request(call, false).expect("sent");
            let response = response.await.expect("an answer");
            assert_eq!(response.status(), status);
            let told = response.headers().get("grpc-status");
            assert_eq!(told.and_then(|code| code.to_str().ok()), code);
            let next = Request::post("http://server/pkg.Service/Call");
            let next = next.header("content-type", "application/grpc");
            let next = next.body(()).expect("a request");
            let (response, _) = client.send_request(next, true).expect("sent");
            let response = response.await.expect("an answer");
            assert_eq!(response.headers()["grpc-status"], "14", "it goes on");
        });
    }
}

/// A caller's deadline is the server's to keep: it passes as it was set, to servers of both versions.
#[test]
fn a_deadline_passes_untouched() {
    for protocol in [WireProtocol::Http2, WireProtocol::Grpc] {
        play(|| async move {
            let application =
                crate::worker::tests::http2::application(|request, mut respond| async move {
                    assert_eq!(request.headers()["grpc-timeout"], "1500m");
                    let answer = http::Response::builder().header("grpc-status", "0");
                    let answer = answer.body(()).expect("a head");
                    respond.send_response(answer, true).expect("sent");
                })
                .await;
            let stage = Stage::new(Settings::default());
            let address = two_sidecars(&stage, protocol, application).await;
            let mut client = client(address).await;
            let call = Request::post("http://server/pkg.Service/Call")
                .header("content-type", "application/grpc")
                .header("grpc-timeout", "1500m")
                .header("te", "trailers");
            let call = call.body(()).expect("a request");
            let (response, _) = client.send_request(call, true).expect("sent");
            let response = response.await.expect("an answer");
            assert_eq!(response.headers()["grpc-status"], "0");
        });
    }
}
