//! Bodies and their ends in every framing, versions, interim responses and upgrades.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use voile_proxy::http::ConnectionEnd;

use super::stage::{Stage, Step, eventually, play, read_all, read_until, say};

#[test]
fn responses_reach_the_client_as_their_framing_says() {
    let get = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let old = "GET / HTTP/1.0\r\n\r\n";
    let old_kept = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Sum: 5\r\n\r\n";
    let close = "Connection: close\r\n\r\n";
    let table = [
        // (request, the server's answer before it closes, the client's input until we close)
        (
            get,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{close}ok"),
        ),
        (
            get,
            chunked,
            chunked.replacen("\r\n\r\n", &format!("\r\n{close}"), 1),
        ),
        (
            get,
            "HTTP/1.1 200 OK\r\n\r\nuntil the end",
            format!("HTTP/1.1 200 OK\r\n{close}until the end"),
        ),
        (
            get,
            "HTTP/1.0 200 OK\r\n\r\nold",
            format!("HTTP/1.1 200 OK\r\n{close}old"),
        ),
        (
            get,
            "HTTP/1.1 204 No Content\r\n\r\n",
            format!("HTTP/1.1 204 No Content\r\n{close}"),
        ),
        (
            get,
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
            format!("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n{close}"),
        ),
        (
            old,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{close}ok"),
        ),
        (old, chunked, format!("HTTP/1.1 200 OK\r\n{close}abcde")),
        (
            old_kept,
            chunked,
            format!("HTTP/1.1 200 OK\r\n{close}abcde"),
        ),
        (
            old,
            "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{close}"),
        ),
        (
            get,
            "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            format!(
                "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n{close}"
            ),
        ),
        (
            "HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
            format!("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n{close}"),
        ),
    ];
    for (request, answer, expected) in table {
        check(request, answer, &expected);
    }
}

/// The server gives `answer`, whole and byte by byte, and closes.
fn check(request: &str, answer: &str, expected: &str) {
    play(|| async {
        let slowly = answer.bytes().map(|byte| Step::Say(vec![byte]));
        let slowly = std::iter::once(Step::Head).chain(slowly).collect();
        let stage = Stage::set(vec![vec![Step::Head, say(answer)], slowly]).await;
        for way in ["whole", "slowly"] {
            let got = stage.exchange(request).await;
            assert_eq!(got, expected, "{way}: {request:?} {answer:?}");
        }
    });
}

#[test]
fn an_old_client_that_asks_may_keep_its_connection() {
    play(|| async {
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let stage = Stage::set(vec![vec![Step::Head, say(ok), Step::Head, say(ok)]]).await;
        let mut client = stage.client().await;
        for _ in 0..2 {
            client
                .write_all(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                .await
                .unwrap();
            let got = read_until(&mut client, "ok").await;
            assert!(got.contains("Connection: keep-alive"), "{got}");
        }
        assert_eq!(
            stage.heard(0),
            "GET / HTTP/1.1\r\nHost: fallback\r\n\r\n".repeat(2)
        );
    });
}

#[test]
fn chunked_requests_are_relayed_verbatim_with_their_trailers() {
    let body = "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Sum: 5\r\n\r\n";
    let head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    play(|| async {
        let script = vec![
            Step::Until(b"X-Sum: 5\r\n\r\n"),
            say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        ];
        let stage = Stage::set(vec![script]).await;
        let whole = format!("{head}{body}");
        for at in [
            whole.len(),
            head.len(),
            head.len() + 1,
            head.len() + 7,
            whole.len() - 1,
        ] {
            let mut client = stage.client().await;
            client.write_all(&whole.as_bytes()[..at]).await.unwrap();
            tokio::task::yield_now().await;
            client.write_all(&whole.as_bytes()[at..]).await.unwrap();
            read_until(&mut client, "ok").await;
            assert_eq!(stage.heard(stage.heard.borrow().len() - 1), whole);
            assert_eq!(stage.last().request_body, body.len() as u64);
        }
    });
}

#[test]
fn a_client_that_expects_100_gets_it_from_the_server_before_it_sends() {
    play(|| async {
        let script = vec![
            Step::Head,
            say("HTTP/1.1 100 Continue\r\n\r\n"),
            Step::Read(5),
            say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        ];
        let stage = Stage::set(vec![script]).await;
        let mut client = stage.client().await;
        client
            .write_all(
                b"PUT / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
            )
            .await
            .unwrap();
        assert_eq!(
            read_until(&mut client, "\r\n\r\n").await,
            "HTTP/1.1 100 Continue\r\n\r\n"
        );
        client.write_all(b"hello").await.unwrap();
        assert_eq!(
            read_until(&mut client, "ok").await,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        );
        assert!(stage.heard(0).ends_with("\r\n\r\nhello"));
    });
}

#[test]
fn an_expectation_refused_by_the_server_ends_the_connection() {
    play(|| async {
        let stage = Stage::set(vec![vec![
            Step::Head,
            say("HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n"),
            Step::Eof,
        ]])
        .await;
        let got = stage
            .exchange(
                "PUT / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
            )
            .await;
        assert_eq!(
            got,
            "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(stage.worker.idle_upstreams(), 0);
    });
}

#[test]
fn an_upgrade_becomes_a_tunnel_with_half_close() {
    play(|| async {
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst";
        let script = vec![
            Step::Head,
            say(switch),
            Step::Until(b"ping"),
            say("pong"),
            Step::HalfClose,
            Step::Until(b"last"),
        ];
        let stage = Stage::set(vec![script]).await;
        let mut client = stage.client().await;
        // `pi` comes before the server agreed, and must not reach it as a second request.
        client.write_all(b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\npi").await.unwrap();
        let got = read_until(&mut client, "first").await;
        assert!(got.starts_with("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"), "{got}");
        client.write_all(b"ng").await.unwrap();
        assert_eq!(read_all(&mut client).await, "pong");
        client.write_all(b"last").await.unwrap();
        client.shutdown().await.unwrap();
        eventually("the tunnel ends", || !stage.ends.borrow().is_empty()).await;
        assert_eq!(*stage.ends.borrow(), [ConnectionEnd::Tunnel]);
        // The server may read later than the tunnel ends.
        eventually("the server hears all", || {
            stage.heard(0).ends_with("\r\n\r\npinglast")
        })
        .await;
        let last = stage.last();
        assert_eq!(
            (
                last.status,
                last.path.as_deref(),
                last.request_body,
                last.response_body
            ),
            (101, Some("/ws"), 8, 9)
        );
    });
}

#[test]
fn a_declined_upgrade_is_an_ordinary_response() {
    play(|| async {
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let stage = Stage::set(vec![vec![Step::Head, say(ok), Step::Head, say(ok)]]).await;
        let got = stage
            .exchange(
                "GET /1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\
                 GET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            )
            .await;
        assert_eq!(got.matches("\r\n\r\nok").count(), 2, "{got}");
        assert!(stage.heard(0).contains("Upgrade: websocket"));
    });
}

#[test]
fn bytes_after_a_response_never_answer_the_next_request() {
    play(|| async {
        let script = vec![
            Step::Head,
            say(
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
            ),
            Step::Eof,
        ];
        let good = vec![
            Step::Head,
            say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"),
        ];
        let stage = Stage::set(vec![script, good]).await;
        let mut client = stage.client().await;
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        assert!(read_until(&mut client, "ok").await.ends_with("\r\n\r\nok"));
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut rest = String::new();
        client.read_to_string(&mut rest).await.unwrap();
        assert!(rest.ends_with("\r\n\r\ngood"), "{rest}");
    });
}
