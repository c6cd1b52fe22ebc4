//! Requests that go well: framing, persistence, pipelining, versions, interim responses, upgrades.

use tokio::io::AsyncWriteExt;
use voile_proxy::http::ResponseFlag;

use super::stage::{Stage, Step, play, read_all, read_until, say};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn requests_on_one_connection_share_one_pooled_upstream_connection() {
    play(|| async {
        let stage = Stage::set(vec![vec![
            Step::Head,
            say(OK),
            Step::Head,
            say(OK),
            Step::Head,
            say(OK),
        ]])
        .await;
        let mut client = stage.client().await;
        for _ in 0..3 {
            client.write_all(GET.as_bytes()).await.unwrap();
            assert_eq!(read_until(&mut client, "ok").await, OK);
        }
        assert_eq!(stage.role.connects.get(), 1);
        assert_eq!(stage.heard(0), GET.repeat(3));
        assert!(stage.last().reused);
        assert_eq!(stage.last().details, "via_upstream");
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    play(|| async {
        let answer = |body| {
            say(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{body}"
            ))
        };
        let script = vec![
            Step::Head,
            answer("1"),
            Step::Head,
            Step::Read(3),
            answer("2"),
            Step::Head,
            answer("3"),
        ];
        let stage = Stage::set(vec![script]).await;
        let got = stage
            .exchange(
                "GET /1 HTTP/1.1\r\nHost: x\r\n\r\nPOST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc\
                 GET /3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            )
            .await;
        let bodies: Vec<&str> = got
            .split("\r\n\r\n")
            .skip(1)
            .map(|rest| &rest[..1])
            .collect();
        assert_eq!(bodies, ["1", "2", "3"], "{got}");
        assert!(got.contains("Connection: close"));
        let heard = stage.heard(0);
        assert!(
            heard.contains("\r\n\r\nabcGET /3 HTTP/1.1\r\nHost: x\r\n\r\n"),
            "{heard}"
        );
    });
}

#[test]
fn nobody_listening_is_503_and_the_connection_is_kept() {
    play(|| async {
        let stage = Stage::set(vec![vec![]]).await;
        stage.unplug().await;
        let mut client = stage.client().await;
        for _ in 0..2 {
            client.write_all(GET.as_bytes()).await.unwrap();
            let got = read_until(&mut client, "connection_refused\n").await;
            assert!(
                got.starts_with("HTTP/1.1 503 Service Unavailable\r\n"),
                "{got}"
            );
            assert!(!got.contains("close"), "{got}");
        }
        assert_eq!(stage.last().flag, ResponseFlag::UpstreamConnectionFailure);
    });
}

#[test]
fn garbage_is_400_and_closed() {
    play(|| async {
        let stage = Stage::set(vec![vec![]]).await;
        let got = stage.exchange("\x16\x03\x01\x02\x00").await;
        assert!(
            got.starts_with("HTTP/1.1 400 Bad Request\r\n") && got.contains("connection: close"),
            "{got}"
        );
        let mut client = stage.client().await;
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n").await.unwrap();
        let got = read_all(&mut client).await;
        assert!(
            got.contains("content_length_with_transfer_encoding"),
            "{got}"
        );
        assert_eq!(stage.role.connects.get(), 0);
    });
}
