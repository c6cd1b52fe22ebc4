//! CONNECT: a tunnel where the server agrees, an ordinary answer and the end of the connection where it does not; and that
//! nothing a client says early, or a server says late, is read as a message.

use std::rc::Rc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use voile_proxy::http::{ConnectionEnd, HttpTimeouts, ResponseFlag};
use voile_traffic::RetryPolicy;

use super::stage::{Manner, Stage, Step, eventually, play, read_all, read_until, say};

const CONNECT: &str =
    "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\nProxy-Authorization: Basic eA==\r\n\r\n";
/// Bytes that a client may have sent before it knows the answer, made to look like a request.
const EARLY: &str = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn a_2xx_opens_a_tunnel_with_half_close_and_loses_what_it_says_of_the_connection() {
    for answer in [
        "HTTP/1.1 200 Connection established\r\n\r\n",
        "HTTP/1.0 200 OK\r\n\r\n",
        "HTTP/1.1 299 Odd\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ] {
        play(|| async move {
            let script = vec![
                Step::Head,
                say(format!("{answer}first")),
                Step::Until(b"ping"),
                say("pong"),
                Step::HalfClose,
                Step::Until(b"last"),
            ];
            let stage = Stage::set(vec![script]).await;
            let mut client = stage.client().await;
            // `pi` comes before the server agreed, and is the tunnel's.
            let early = [CONNECT, "pi"].concat();
            client.write_all(early.as_bytes()).await.unwrap();
            let got = read_until(&mut client, "first").await;
            let (_, of_tunnel) = got.rsplit_once("HTTP/1.1 2").expect("a final answer");
            let lower = of_tunnel.to_ascii_lowercase();
            for framing in ["content-length", "transfer-encoding", "connection:"] {
                assert!(!lower.contains(framing), "{got}");
            }
            client.write_all(b"ng").await.unwrap();
            assert_eq!(read_all(&mut client).await, "pong");
            client.write_all(b"last").await.unwrap();
            client.shutdown().await.unwrap();
            eventually("the tunnel ends", || !stage.ends.borrow().is_empty()).await;
            assert_eq!(*stage.ends.borrow(), [ConnectionEnd::Tunnel]);
            assert_eq!(stage.heard(0), format!("{CONNECT}pinglast"));
            let last = stage.last();
            assert_eq!(
                (last.path.as_deref(), last.details, last.request_body),
                (Some(""), "tunnel", 8)
            );
            assert_eq!((last.response_body, last.attempts), (9, 1));
            assert_eq!(stage.worker.idle_upstreams(), 0);
        });
    }
}

#[test]
fn a_refused_connect_is_the_last_and_nothing_behind_it_is_a_request() {
    for (answer, body) in [
        (
            "HTTP/1.1 407 No\r\nProxy-Authenticate: Basic\r\nContent-Length: 2\r\n\r\nno",
            "no",
        ),
        (
            "HTTP/1.1 502 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
            "2\r\nno\r\n0\r\n\r\n",
        ),
        ("HTTP/1.1 304 No\r\nContent-Length: 2\r\n\r\n", ""),
    ] {
        play(|| async move {
            let stage = Stage::set(vec![vec![Step::Head, say(answer), Step::Eof]]).await;
            // Early, and again when the answer is there.
            let mut client = stage.client().await;
            let both = [CONNECT, EARLY].concat();
            client.write_all(both.as_bytes()).await.unwrap();
            let end = format!("\r\nConnection: close\r\n\r\n{body}");
            let got = read_until(&mut client, &end).await;
            // The connection may refuse these bytes.
            let _ = client.write_all(EARLY.as_bytes()).await;
            let _ = client.shutdown().await;
            assert_eq!(read_all(&mut client).await.trim_end_matches("<reset>"), "");
            assert_eq!(got.matches("HTTP/1.1 ").count(), 1, "{got}");
            eventually("it is over", || !stage.ends.borrow().is_empty()).await;
            assert_eq!(stage.role.records.borrow().len(), 1);
            assert_eq!(stage.heard(0), CONNECT);
            // Its connection carries nothing else.
            eventually("the server is told", || stage.closed() == 1).await;
            assert_eq!(stage.worker.idle_upstreams(), 0);
        });
    }
}

#[test]
fn what_is_no_plain_connect_reaches_nobody() {
    for (request, status) in [
        (
            "CONNECT a.test:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 34\r\n\r\n",
            "400",
        ),
        (
            "CONNECT a.test:443 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            "400",
        ),
        (
            "CONNECT a.test:443 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
            "417",
        ),
        ("CONNECT a.test HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
        (
            "CONNECT http://a.test:443/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "400",
        ),
        ("CONNECT /refused HTTP/1.1\r\nHost: a\r\n\r\n", "400"),
    ] {
        play(|| async move {
            let stage = Stage::set(vec![vec![Step::Head]]).await;
            let mut client = stage.client().await;
            let both = [request, EARLY].concat();
            client.write_all(both.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let got = read_all(&mut client).await;
            assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{got}");
            assert_eq!(got.matches("HTTP/1.1 ").count(), 1, "{got}");
            assert_eq!(stage.role.connects.get(), 0);
        });
    }
}

/// A 2xx would tell its client of a tunnel that nobody serves (RFC 9110 section 9.3.6).
#[test]
fn a_local_reply_opens_no_tunnel() {
    let grpc = CONNECT.replace(
        "Proxy-Authorization: Basic eA==",
        "Content-Type: application/grpc",
    );
    let get = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    for (request, decided, status) in [
        (get, 200, 200),
        (CONNECT, 200, 502),
        (CONNECT, 204, 502),
        (CONNECT, 403, 403),
        (grpc.as_str(), 200, 502),
        (grpc.as_str(), 403, 403),
    ] {
        play(|| async move {
            let manner = Manner {
                reply: Some(decided),
                ..Manner::default()
            };
            let stage = Stage::behaving(vec![vec![]], HttpTimeouts::default(), manner).await;
            let got = stage.exchange(request).await;
            assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{got}");
            assert!(got.ends_with("\r\n\r\nours\n"), "{got}");
            assert_eq!(stage.last().status, status);
        });
    }
}

/// A role that wants another attempt after 503 and a sidecar's refusal, and a neighbour that is trusted.
fn eager() -> Manner {
    Manner {
        retry: Some(Rc::new(RetryPolicy::default())),
        to_sidecar: true,
        ..Manner::default()
    }
}

#[test]
fn it_is_sent_once_on_a_connection_of_its_own() {
    play(|| async {
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let refusal = "HTTP/1.1 503 No\r\nX-Voile-Unprocessed: 1\r\nContent-Length: 0\r\n\r\n";
        let scripts = vec![
            vec![Step::Head, say(ok), Step::Head],
            vec![Step::Head, say(refusal), Step::Eof],
        ];
        let stage = Stage::behaving(scripts, HttpTimeouts::default(), eager()).await;
        // The pool has a connection, and the policy wishes retries.
        let mut client = stage.client().await;
        client
            .write_all(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        read_until(&mut client, "ok").await;
        eventually("it is pooled", || stage.worker.idle_upstreams() == 1).await;
        client.write_all(CONNECT.as_bytes()).await.unwrap();
        let got = read_until(&mut client, "\r\n\r\n").await;
        assert!(got.starts_with("HTTP/1.1 503 No\r\n"), "{got}");
        let last = stage.last();
        assert_eq!((last.status, last.attempts, last.reused), (503, 1, false));
        assert_eq!(stage.role.connects.get(), 2);
        assert!(!stage.heard(0).contains("CONNECT"), "{}", stage.heard(0));
    });
}

#[test]
fn a_server_that_breaks_off_is_a_503_and_no_second_attempt() {
    play(|| async {
        let scripts = vec![vec![Step::Head, Step::Reset]];
        let stage = Stage::behaving(scripts, HttpTimeouts::default(), eager()).await;
        let mut client = stage.client().await;
        client.write_all(CONNECT.as_bytes()).await.unwrap();
        let got = read_until(&mut client, "upstream_reset_before_response\n").await;
        assert!(got.starts_with("HTTP/1.1 503 "), "{got}");
        let last = stage.last();
        assert_eq!(last.flag, ResponseFlag::UpstreamConnectionTermination);
        assert_eq!((last.attempts, stage.role.connects.get()), (1, 1));
    });
}

#[test]
fn nothing_moving_for_too_long_ends_a_tunnel() {
    play(|| async {
        let timeouts = HttpTimeouts {
            tunnel_idle: Duration::from_millis(50),
            ..HttpTimeouts::default()
        };
        let script = vec![Step::Head, say("HTTP/1.1 200 OK\r\n\r\n"), Step::Eof];
        let stage = Stage::with(vec![script], timeouts).await;
        let got = stage.exchange(CONNECT).await;
        assert_eq!(got, "HTTP/1.1 200 OK\r\n\r\n<reset>");
        assert_eq!(stage.last().details, "stream_idle_timeout");
    });
}
