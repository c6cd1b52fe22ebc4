//! Failures at every byte where they can happen: no side hangs, and nothing cut short looks whole.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use voile_proxy::http::limits::BUFFER_BYTES;
use voile_proxy::http::{ConnectionEnd, HttpTimeouts, ResponseFlag};

use super::stage::{Stage, Step, eventually, play, read_all, read_until, say};

const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn a_server_that_dies_within_its_response_never_gives_a_whole_one() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    for answer in [OK, chunked] {
        let head = answer.find("\r\n\r\n").unwrap() + 4;
        for reset in [false, true] {
            play(|| async {
                for at in 0..answer.len() {
                    let mut script = vec![Step::Head, say(&answer[..at])];
                    if reset {
                        script.push(Step::Reset);
                    }
                    let stage = Stage::set(vec![script]).await;
                    let got = stage
                        .exchange(GET.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"))
                        .await;
                    if at < head {
                        assert!(got.starts_with("HTTP/1.1 503 "), "at {at}: {got}");
                        assert!(
                            got.ends_with("upstream_reset_before_response\n"),
                            "at {at}: {got}"
                        );
                    } else {
                        // A reset may overtake what was in flight, so even the head may be missing.
                        assert!(!got.ends_with(&answer[head..]), "at {at}: {got}");
                        assert_eq!(
                            stage.last().details,
                            if got.starts_with("HTTP/1.1 503") {
                                "upstream_reset_before_response"
                            } else {
                                "upstream_reset_after_response_started"
                            }
                        );
                    }
                    assert_eq!(
                        stage.last().flag,
                        ResponseFlag::UpstreamConnectionTermination,
                        "at {at}"
                    );
                    assert_eq!(stage.worker.idle_upstreams(), 0);
                }
            });
        }
    }
}

#[test]
fn a_response_that_ends_with_its_connection_is_reset_when_the_server_resets() {
    play(|| async {
        let stage = Stage::set(vec![vec![
            Step::Head,
            say("HTTP/1.1 200 OK\r\n\r\npart"),
            Step::Wait,
            Step::Reset,
        ]])
        .await;
        let mut client = stage.client().await;
        client.write_all(GET.as_bytes()).await.unwrap();
        read_until(&mut client, "part").await;
        stage.go.notify_one();
        assert_eq!(read_all(&mut client).await, "<reset>");
        assert_eq!(*stage.ends.borrow(), [ConnectionEnd::Aborted]);
    });
}

#[test]
fn an_idempotent_request_on_a_stale_connection_is_sent_again_once() {
    for at in 0..GET.len() {
        play(|| async {
            // The server closes after reading so much of the second request.
            let first = vec![Step::Head, say(OK), Step::Read(at), Step::Reset];
            let stage = Stage::set(vec![first, vec![Step::Head, say(OK), Step::Eof]]).await;
            let mut client = stage.client().await;
            for _ in 0..2 {
                client.write_all(GET.as_bytes()).await.unwrap();
                assert_eq!(read_until(&mut client, "ok").await, OK, "closed after {at}");
            }
            assert_eq!(stage.role.connects.get(), 2);
            let number = "x-envoy-attempt-count: 2\r\n";
            assert_eq!(stage.heard(1).replace(number, ""), GET);
        });
    }
}

#[test]
fn a_request_is_not_sent_twice_when_it_may_have_been_served() {
    let post = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi";
    play(|| async {
        let first = vec![Step::Head, say(OK), Step::Until(b"hi"), Step::Reset];
        let stage = Stage::set(vec![first, vec![Step::Head, say(OK), Step::Eof]]).await;
        let mut client = stage.client().await;
        client.write_all(GET.as_bytes()).await.unwrap();
        read_until(&mut client, "ok").await;
        client.write_all(post.as_bytes()).await.unwrap();
        let got = read_until(&mut client, "upstream_reset_before_response\n").await;
        assert!(got.starts_with("HTTP/1.1 503 "), "{got}");
        assert_eq!(stage.role.connects.get(), 1);
        assert!(stage.last().reused);
        // The client's own connection is none the worse for it.
        client.write_all(GET.as_bytes()).await.unwrap();
        read_until(&mut client, "ok").await;
    });
}

#[test]
fn a_fresh_connection_that_fails_is_not_retried() {
    play(|| async {
        let stage = Stage::set(vec![vec![Step::Head]]).await;
        let got = stage
            .exchange("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await;
        assert!(got.starts_with("HTTP/1.1 503 "), "{got}");
        assert_eq!(stage.role.connects.get(), 1);
    });
}

#[test]
fn pooled_connections_that_close_or_speak_out_of_turn_are_evicted() {
    for parting in [
        vec![],
        vec![say("HTTP/1.1 408 Request Timeout\r\n\r\n"), Step::Eof],
    ] {
        play(|| async {
            let mut script = vec![Step::Head, say(OK), Step::Wait];
            script.extend(parting);
            let stage = Stage::set(vec![script]).await;
            let mut client = stage.client().await;
            client.write_all(GET.as_bytes()).await.unwrap();
            read_until(&mut client, "ok").await;
            eventually("it is pooled", || stage.worker.idle_upstreams() == 1).await;
            stage.go.notify_one();
            eventually("it is evicted", || stage.worker.idle_upstreams() == 0).await;
        });
    }
}

#[test]
fn pooled_connections_grow_old() {
    play(|| async {
        let timeouts = HttpTimeouts {
            upstream_idle: Duration::from_millis(20),
            ..HttpTimeouts::default()
        };
        let stage = Stage::with(vec![vec![Step::Head, say(OK), Step::Eof]], timeouts).await;
        let mut client = stage.client().await;
        client.write_all(GET.as_bytes()).await.unwrap();
        read_until(&mut client, "ok").await;
        eventually("it is evicted", || {
            stage.worker.idle_upstreams() == 0 && stage.role.connects.get() == 1
        })
        .await;
    });
}

#[test]
fn invalid_responses_are_502_and_their_connection_is_not_kept() {
    let many = "X: y\r\n".repeat(voile_http1::MAX_FORWARDED_HEADERS + 1);
    let table = [
        "220 smtp.example ESMTP\r\n".to_owned(),
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n".into(),
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            .into(),
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab".into(),
        "HTTP/1.1 101 Switching Protocols\r\n\r\n".into(),
        format!("HTTP/1.1 200 OK\r\n{many}\r\n"),
        format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(70_000)),
        "HTTP/1.1 102 Processing\r\n\r\n".repeat(40),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".into(),
    ];
    for answer in table {
        play(|| async {
            let stage = Stage::set(vec![vec![Step::Head, say(&answer), Step::Eof]]).await;
            let got = stage
                .exchange("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                .await;
            let last = got.rfind("HTTP/1.1 ").map_or("", |at| &got[at..]);
            assert!(last.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{got}");
            assert_eq!(stage.last().flag, ResponseFlag::UpstreamProtocolError);
            assert_eq!(stage.worker.idle_upstreams(), 0);
        });
    }
}

#[test]
fn a_bad_chunk_later_in_a_response_cuts_it() {
    play(|| async {
        let start = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
        let stage = Stage::set(vec![vec![
            Step::Head,
            say(start),
            Step::Wait,
            say("zz\r\n"),
            Step::Eof,
        ]])
        .await;
        let mut client = stage.client().await;
        client.write_all(GET.as_bytes()).await.unwrap();
        assert_eq!(read_until(&mut client, "abc\r\n").await, start);
        stage.go.notify_one();
        assert!(!read_all(&mut client).await.contains('0'));
        assert_eq!(stage.last().flag, ResponseFlag::UpstreamProtocolError);
    });
}

#[test]
fn a_bad_request_body_is_400_and_the_upstream_connection_is_dropped() {
    let head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    play(|| async {
        let stage = Stage::set(vec![vec![Step::Head, Step::Eof]]).await;
        // At once: nothing is even connected. Later: the half-sent request is abandoned.
        let got = stage
            .exchange(format!("{head}0x3\r\nabc\r\n0\r\n\r\n"))
            .await;
        assert!(
            got.starts_with("HTTP/1.1 400 ") && got.contains("invalid_chunk_size"),
            "{got}"
        );
        assert_eq!(stage.role.connects.get(), 0);
        let mut client = stage.client().await;
        client
            .write_all(format!("{head}3\r\nabc\r\n").as_bytes())
            .await
            .unwrap();
        eventually("the head arrives", || stage.heard(0).ends_with("\r\n\r\n")).await;
        client
            .write_all(b"0\r\nContent-Length: 7\r\n\r\n")
            .await
            .unwrap();
        let got = read_all(&mut client).await;
        assert!(
            got.starts_with("HTTP/1.1 400 ") && got.ends_with("forbidden_trailer\n"),
            "{got}"
        );
        assert_eq!(stage.worker.idle_upstreams(), 0);
        assert_eq!(stage.last().flag, ResponseFlag::DownstreamProtocolError);
    });
}

#[test]
fn an_early_answer_ends_a_request_that_is_still_coming() {
    play(|| async {
        let answer = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\n\r\nstop";
        let stage = Stage::set(vec![vec![Step::Head, say(answer), Step::Eof]]).await;
        let mut client = stage.client().await;
        client
            .write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nsome")
            .await
            .unwrap();
        let got = read_until(&mut client, "stop").await;
        assert!(
            got.starts_with("HTTP/1.1 413 ") && got.contains("Connection: close\r\n"),
            "{got}"
        );
        // Bytes that are still sent do not destroy the answer, and the end comes.
        client.write_all(b"more").await.unwrap();
        assert_eq!(read_all(&mut client).await, "");
        drop(client);
        eventually("the connection ends", || stage.ends.borrow().len() == 1).await;
        assert_eq!(
            (stage.last().status, stage.worker.idle_upstreams()),
            (413, 0)
        );
    });
}

#[test]
fn a_client_that_leaves_takes_the_upstream_connection_with_it() {
    // Heads may fill the buffer to its last byte.
    let full = [1, 2].map(|buffers| {
        let rest = "GET / HTTP/1.1\r\nHost: x\r\nX-A: \r\n\r\n".len();
        let field = "a".repeat(buffers * BUFFER_BYTES - rest);
        format!("GET / HTTP/1.1\r\nHost: x\r\nX-A: {field}\r\n\r\n")
    });
    for request in [
        GET,
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf",
        &full[0],
        &full[1],
    ] {
        play(|| async {
            let stage = Stage::set(vec![vec![Step::Head, Step::Eof]]).await;
            let mut client = stage.client().await;
            client.write_all(request.as_bytes()).await.unwrap();
            eventually("the head arrives", || stage.heard(0).ends_with("\r\n\r\n")).await;
            drop(client);
            eventually("it is noticed", || stage.ends.borrow().len() == 1).await;
            let last = stage.last();
            assert_eq!(
                (last.status, last.flag),
                (0, ResponseFlag::DownstreamConnectionTermination)
            );
            assert_eq!(stage.worker.idle_upstreams(), 0);
        });
    }
}

#[test]
fn a_client_that_dawdles_over_its_head_gets_408() {
    play(|| async {
        let timeouts = HttpTimeouts {
            header: Duration::from_millis(50),
            ..HttpTimeouts::default()
        };
        let stage = Stage::with(vec![vec![]], timeouts).await;
        let mut client = stage.client().await;
        client.write_all(b"GET / HT").await.unwrap();
        let got = read_all(&mut client).await;
        assert!(
            got.starts_with("HTTP/1.1 408 ") && got.contains("connection: close"),
            "{got}"
        );
        assert_eq!(stage.role.connects.get(), 0);
    });
}

#[test]
fn an_idle_client_is_closed_when_its_time_is_over() {
    play(|| async {
        let timeouts = HttpTimeouts {
            downstream_idle: Duration::from_millis(30),
            ..HttpTimeouts::default()
        };
        let stage = Stage::with(vec![vec![Step::Head, say(OK), Step::Eof]], timeouts).await;
        let mut client = stage.client().await;
        client.write_all(GET.as_bytes()).await.unwrap();
        assert_eq!(read_all(&mut client).await, OK);
        assert_eq!(*stage.ends.borrow(), [ConnectionEnd::Clean]);
    });
}

#[test]
fn refused_requests_tell_why_and_keep_the_connection_only_if_little_follows() {
    play(|| async {
        let stage = Stage::set(vec![vec![]]).await;
        let mut client = stage.client().await;
        for _ in 0..2 {
            client
                .write_all(b"GET /refused HTTP/1.1\r\nHost: x\r\n\r\n")
                .await
                .unwrap();
            let got = read_until(&mut client, "RBAC: access denied\n").await;
            assert!(got.starts_with("HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\ncontent-length: 20\r\n\r\n"), "{got}");
        }
        client
            .write_all(b"HEAD /refused HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        assert!(
            read_until(&mut client, "\r\n\r\n")
                .await
                .contains("content-length: 20")
        );
        client
            .write_all(b"POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n")
            .await
            .unwrap();
        assert!(read_all(&mut client).await.contains("connection: close"));
        assert_eq!(stage.role.connects.get(), 0);
    });
}

#[test]
fn heads_beyond_the_limits_get_their_status() {
    let table = [
        (
            format!(
                "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
                "a: b\r\n".repeat(200)
            ),
            "431",
        ),
        (
            format!(
                "GET / HTTP/1.1\r\nHost: x\r\na: {}\r\n\r\n",
                "b".repeat(100_000)
            ),
            "431",
        ),
        (
            format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "b".repeat(40_000)),
            "414",
        ),
        (
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n".into(),
            "501",
        ),
        ("GET / HTTP/3.0\r\n\r\n".into(), "505"),
    ];
    for (request, status) in table {
        play(|| async {
            let stage = Stage::set(vec![vec![]]).await;
            let got = stage.exchange(&request).await;
            assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{got}");
            assert!(
                got.contains("connection: close\r\n") && !got.contains("<reset>"),
                "{got}"
            );
            assert_eq!(stage.role.connects.get(), 0);
        });
    }
}

#[test]
fn a_body_that_trickles_is_bounded_in_all_and_a_faster_one_is_not() {
    play(|| async {
        let timeouts = HttpTimeouts {
            // Longer than a busy machine keeps the fast one waiting.
            body_grace: Duration::from_secs(1),
            min_body_rate: 1,
            ..HttpTimeouts::default()
        };
        let script = vec![Step::Head, Step::Eof];
        let stage = Stage::with(vec![script], timeouts).await;
        let mut slow = stage.client().await;
        // Eleven bytes at one a second earn eleven seconds; none earn nothing.
        slow.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
            .await
            .unwrap();
        let mut fast = stage.client().await;
        fast.write_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhello world")
            .await
            .unwrap();
        assert!(
            read_all(&mut slow).await.starts_with("HTTP/1.1 408 "),
            "too slow"
        );
        assert_eq!(stage.last().flag, ResponseFlag::StreamIdleTimeout);
        assert_eq!(stage.role.records.borrow().len(), 1, "the other goes on");
    });
}

#[test]
fn a_server_that_does_not_begin_to_answer_in_time_is_504_where_a_limit_is_set() {
    play(|| async {
        let timeouts = HttpTimeouts {
            // Longer than a busy machine keeps who begins at once from beginning.
            request: Some(Duration::from_secs(1)),
            ..HttpTimeouts::default()
        };
        let begun = vec![
            Step::Head,
            say(&OK[..OK.len() - 1]),
            Step::Wait,
            say("k"),
            Step::Eof,
        ];
        let silent = vec![Step::Head, Step::Eof];
        let stage = Stage::with(vec![begun, silent], timeouts).await;
        // One that has begun may take its time.
        let mut first = stage.client().await;
        first.write_all(GET.as_bytes()).await.unwrap();
        read_until(&mut first, "\r\n\r\no").await;
        let got = stage
            .exchange(GET.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"))
            .await;
        assert!(got.starts_with("HTTP/1.1 504 "), "{got}");
        let last = stage.last();
        let expected = (ResponseFlag::UpstreamRequestTimeout, "response_timeout");
        assert_eq!((last.flag, last.details), expected);
        assert_eq!(stage.worker.idle_upstreams(), 0);
        stage.go.notify_one();
        read_until(&mut first, "k").await;
    });
}
