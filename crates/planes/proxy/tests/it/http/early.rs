//! Answers before the end of a request's body. The tests check which connections are kept. Bytes behind an early answer
//! are never taken for a request if the client may have meant a body, nor the other way round.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use voile_proxy::http::HttpTimeouts;
use voile_proxy::http::limits::MAX_REMAINDER;

use super::stage::{Stage, Step, play, read_all, read_until, say};

/// Request whose beginning no server may ever see.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";

/// Next request on a kept connection.
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: x\r\n\r\n";

const EARLY: &str =
    "HTTP/1.1 413 Content Too Large\r\nContent-Length: 22\r\n\r\nRBAC: access denied or";

/// A request in two pieces, the second of which is sent when the first was answered, and whether the connection is kept.
struct Case {
    what: &'static str,
    /// Fields, and how the body begins.
    first: String,
    second: String,
    kept: bool,
}

fn cases() -> Vec<Case> {
    let case = |what, first: &str, second: String, kept| Case {
        what,
        first: first.to_owned(),
        second,
        kept,
    };
    let most = usize::try_from(MAX_REMAINDER).expect("it fits");
    let length = |length: usize| format!("Content-Length: {length}\r\n\r\n");
    let body = |length: usize| "x".repeat(length) + NEXT;
    vec![
        case("a body behind its head", &length(5), body(5), true),
        case(
            "a body that reads like a request",
            &length(SMUGGLED.len()),
            SMUGGLED.to_owned() + NEXT,
            true,
        ),
        case("as much as is read", &length(most), body(most), true),
        case(
            "a byte more",
            &length(most + 1),
            "x".repeat(most + 1) + SMUGGLED,
            false,
        ),
        case(
            "chunks, of which nobody knows how many come",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "0\r\n\r\n".to_owned() + SMUGGLED,
            false,
        ),
        case(
            "a body that waits for a word",
            &format!("Expect: 100-continue\r\n{}", length(5)),
            SMUGGLED.to_owned(),
            false,
        ),
        case(
            "a client that wants no more",
            &format!("Connection: close\r\n{}", length(5)),
            "x".repeat(5) + SMUGGLED,
            false,
        ),
    ]
}

#[test]
fn what_follows_an_early_answer_is_the_rest_of_the_body_and_then_a_request_or_nothing() {
    play(|| async {
        for path in ["/refused", "/answered"] {
            for Case {
                what,
                first,
                second,
                kept,
            } in cases()
            {
                let early = vec![Step::Head, say(EARLY), Step::Eof];
                let next = vec![
                    Step::Head,
                    say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
                    Step::Eof,
                ];
                let scripts = match path {
                    "/refused" => vec![next],
                    _ => vec![early, next],
                };
                let stage = Stage::set(scripts).await;
                let mut client = stage.client().await;
                let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\n{first}");
                client.write_all(head.as_bytes()).await.expect("sent");
                let end = match path {
                    "/refused" => "RBAC: access denied\n",
                    _ => "RBAC: access denied or",
                };
                let got = read_until(&mut client, end).await;
                let closes = got.to_ascii_lowercase().contains("connection: close");
                assert_eq!(!closes, kept, "{path}, {what}: {got}");
                // A closing connection reads and drops these bytes.
                client.write_all(second.as_bytes()).await.expect("sent");
                if kept {
                    let got = read_until(&mut client, "ok").await;
                    assert!(got.starts_with("HTTP/1.1 200 "), "{path}, {what}: {got}");
                } else {
                    assert_eq!(read_all(&mut client).await, "", "{path}, {what}");
                }
                for number in 0..stage.heard.borrow().len() {
                    let heard = stage.heard(number);
                    let asked = heard.starts_with("GET /smuggled");
                    assert!(!asked, "{path}, {what}: {heard}");
                }
                let paths: Vec<_> = stage
                    .role
                    .records
                    .borrow()
                    .iter()
                    .map(|one| one.path.clone())
                    .collect();
                let expected: &[&str] = if kept { &[path, "/next"] } else { &[path] };
                let paths: Vec<_> = paths.iter().flatten().collect();
                assert_eq!(paths, expected, "{path}, {what}");
            }
        }
    });
}

#[test]
fn a_remainder_that_does_not_come_is_waited_for_briefly_however_it_drips() {
    play(|| async {
        let timeouts = HttpTimeouts {
            linger: Duration::from_millis(100),
            ..HttpTimeouts::default()
        };
        let stage = Stage::with(vec![vec![]], timeouts).await;
        let mut client = stage.client().await;
        let head = b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n";
        client.write_all(head).await.expect("sent");
        let got = read_until(&mut client, "denied\n").await;
        assert!(!got.contains("close"), "{got}");
        // A byte now and then, until our side hears that the connection ends.
        let (mut dripped, mut byte) = (0, [0]);
        loop {
            let pause = Duration::from_millis(5);
            match tokio::time::timeout(pause, client.read(&mut byte)).await {
                Ok(read) => break assert_eq!(read.expect("no reset"), 0),
                Err(_) => client.write_all(b"x").await.expect("sent"),
            }
            dripped += 1;
            assert!(dripped < 5000, "it waits for ever");
        }
        client.write_all(SMUGGLED.as_bytes()).await.expect("sent");
        client.shutdown().await.expect("closed");
        assert_eq!(read_all(&mut client).await, "");
        assert_eq!(stage.role.records.borrow().len(), 1);
        assert_eq!(stage.role.connects.get(), 0);
    });
}
