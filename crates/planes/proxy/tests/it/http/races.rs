//! The keep-alive race: a server that closes at every position, before and after it read the request. A request that
//! provably was not processed is never answered 503. A request that may have been processed is never repeated unless
//! it is idempotent, and a cut answer never looks whole.

use std::rc::Rc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use voile_proxy::http::{HttpTimeouts, ResponseFlag};
use voile_traffic::RetryPolicy;

use super::stage::{Manner, Stage, Step, eventually, play, read_all, read_until, say};

const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";

/// A request, the end of it on the wire, whether it is idempotent.
const REQUESTS: [(&str, &[u8], bool); 5] = [
    (GET, b"\r\n\r\n", true),
    (
        "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
        b"hi",
        true,
    ),
    ("POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n\r\n", false),
    (
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
        b"hi",
        false,
    ),
    (
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"0\r\n\r\n",
        false,
    ),
];

fn parting(reset: bool) -> Vec<Step> {
    match reset {
        true => vec![Step::Reset],
        false => vec![],
    }
}

async fn stage(scripts: Vec<Vec<Step>>, manner: Manner) -> Stage {
    Stage::behaving(scripts, HttpTimeouts::default(), manner).await
}

#[test]
fn a_request_that_meets_a_connection_closed_before_it_is_always_served_once() {
    for (request, end, _) in REQUESTS {
        for (reset, blind) in [(false, false), (true, false), (false, true), (true, true)] {
            play(|| async {
                let mut first = vec![Step::Head, say(OK), Step::Wait];
                first.extend(parting(reset));
                let second = vec![Step::Until(end), say(OK), Step::Eof];
                let manner = Manner {
                    blind,
                    ..Manner::default()
                };
                let stage = stage(vec![first, second], manner).await;
                let mut client = stage.client().await;
                client.write_all(GET.as_bytes()).await.unwrap();
                read_until(&mut client, "ok").await;
                stage.go.notify_one();
                eventually("it is closed", || stage.closed() == 1).await;
                client.write_all(request.as_bytes()).await.unwrap();
                let case = format!("{request:?} reset {reset} blind {blind}");
                assert_eq!(read_until(&mut client, "ok").await, OK, "{case}");
                assert!(stage.heard(1).ends_with(std::str::from_utf8(end).unwrap()));
                assert_eq!(stage.role.connects.get(), 2, "{case}");
                let attempts = if blind { 2 } else { 1 };
                assert_eq!(stage.last().attempts, attempts, "{case}");
                assert_eq!(stage.heard(0), GET, "nothing more reached the first");
            });
        }
    }
}

#[test]
fn a_request_of_which_the_server_took_something_is_repeated_only_if_idempotent() {
    for (request, _, idempotent) in REQUESTS {
        for reset in [false, true] {
            for taken in 1..=request.len() {
                play(|| async {
                    let mut first = vec![Step::Head, say(OK), Step::Read(taken)];
                    first.extend(parting(reset));
                    let scripts = vec![first, vec![Step::Head, say(OK), Step::Eof]];
                    let stage = stage(scripts, Manner::default()).await;
                    let mut client = stage.client().await;
                    client.write_all(GET.as_bytes()).await.unwrap();
                    read_until(&mut client, "ok").await;
                    client.write_all(request.as_bytes()).await.unwrap();
                    let case = format!("{request:?} taken {taken} reset {reset}");
                    if idempotent {
                        assert_eq!(read_until(&mut client, "ok").await, OK, "{case}");
                    } else {
                        let got = read_until(&mut client, "\n").await;
                        assert!(got.starts_with("HTTP/1.1 503 "), "{case}: {got}");
                        assert_eq!(stage.role.connects.get(), 1, "{case}");
                        assert_eq!(
                            stage.last().flag,
                            ResponseFlag::UpstreamConnectionTermination
                        );
                    }
                });
            }
        }
    }
}

#[test]
fn on_a_new_connection_nothing_that_was_taken_is_repeated() {
    for (request, ..) in REQUESTS {
        for reset in [false, true] {
            for taken in 1..=request.len() {
                play(|| async {
                    let mut first = vec![Step::Read(taken)];
                    first.extend(parting(reset));
                    let manner = Manner {
                        retry: Some(Rc::new(RetryPolicy::default())),
                        ..Manner::default()
                    };
                    let scripts = vec![first, vec![Step::Head, say(OK), Step::Eof]];
                    let stage = stage(scripts, manner).await;
                    let mut client = stage.client().await;
                    client.write_all(request.as_bytes()).await.unwrap();
                    let got = read_until(&mut client, "\n").await;
                    let case = format!("{request:?} taken {taken} reset {reset}");
                    assert!(got.starts_with("HTTP/1.1 503 "), "{case}: {got}");
                    assert_eq!(stage.role.connects.get(), 1, "{case}");
                });
            }
        }
    }
}

#[test]
fn an_answer_cut_on_a_reused_connection_never_looks_whole() {
    for answer in [OK, CHUNKED] {
        let head = answer.find("\r\n\r\n").unwrap() + 4;
        for reset in [false, true] {
            for at in 1..answer.len() {
                play(|| async {
                    let mut first = vec![Step::Head, say(OK), Step::Head, say(&answer[..at])];
                    first.extend(parting(reset));
                    let scripts = vec![first, vec![Step::Head, say(OK), Step::Eof]];
                    let stage = stage(scripts, Manner::default()).await;
                    let mut client = stage.client().await;
                    client.write_all(GET.as_bytes()).await.unwrap();
                    read_until(&mut client, "ok").await;
                    let last = GET.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
                    client.write_all(last.as_bytes()).await.unwrap();
                    let got = read_all(&mut client).await;
                    let case = format!("{answer:?} cut at {at}, reset {reset}: {got:?}");
                    // A reset may overtake what was said, so the request may look unanswered and be made again.
                    let again = reset && stage.role.connects.get() == 2;
                    let whole = got.ends_with(&answer[head..]);
                    assert!(again || !whole, "{case}");
                    assert!(
                        again || at >= head || got.starts_with("HTTP/1.1 503 "),
                        "{case}"
                    );
                });
            }
        }
    }
}

#[test]
fn a_sidecar_that_did_nothing_is_believed_and_an_application_is_not() {
    let refusals = [
        "HTTP/1.1 408 Request Timeout\r\nx-voile-unprocessed: 1\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno",
        "HTTP/1.1 503 Service Unavailable\r\nx-voile-unprocessed: 1\r\ncontent-length: 2\r\n\r\nno",
    ];
    for refusal in refusals {
        for (to_sidecar, reused, retry) in [
            (true, true, false),
            (true, false, true),
            (true, false, false),
            (false, true, true),
        ] {
            play(|| async {
                let (request, end, _) = REQUESTS[3];
                let manner = Manner {
                    to_sidecar,
                    retry: retry.then(Rc::default),
                    ..Manner::default()
                };
                let mut first = match reused {
                    true => vec![Step::Head, say(OK)],
                    false => vec![],
                };
                first.extend([Step::Until(end), say(refusal), Step::Eof]);
                let second = vec![Step::Until(end), say(OK), Step::Eof];
                let stage = stage(vec![first, second], manner).await;
                let mut client = stage.client().await;
                if reused {
                    client.write_all(GET.as_bytes()).await.unwrap();
                    read_until(&mut client, "ok").await;
                }
                client.write_all(request.as_bytes()).await.unwrap();
                if to_sidecar && (reused || retry) {
                    assert_eq!(read_until(&mut client, "ok").await, OK);
                    assert!(
                        stage
                            .heard(1)
                            .contains("x-envoy-attempt-count: 2\r\n\r\nhi")
                    );
                    assert_eq!(stage.last().attempts, 2);
                } else {
                    let got = read_until(&mut client, "no").await;
                    assert!(got.starts_with(&refusal[..12]), "{got}");
                    assert!(!got.contains("x-voile-unprocessed"), "{got}");
                    assert_eq!(stage.role.connects.get(), 1);
                }
            });
        }
    }
}

#[test]
fn a_sidecar_hears_that_its_idle_connection_ends_and_others_see_a_plain_close() {
    for serves_sidecar in [true, false] {
        play(|| async {
            let manner = Manner {
                serves_sidecar,
                ..Manner::default()
            };
            let timeouts = HttpTimeouts {
                downstream_idle: Duration::from_millis(30),
                ..HttpTimeouts::default()
            };
            let scripts = vec![vec![Step::Head, say(OK), Step::Eof]];
            let stage = Stage::behaving(scripts, timeouts, manner).await;
            let mut client = stage.client().await;
            client.write_all(GET.as_bytes()).await.unwrap();
            read_until(&mut client, "ok").await;
            let got = read_all(&mut client).await;
            assert_eq!(got.contains("x-voile-unprocessed: 1\r\n"), serves_sidecar);
            assert_eq!(got.starts_with("HTTP/1.1 408 "), serves_sidecar, "{got}");
        });
    }
}

#[test]
fn a_refusal_before_the_application_is_told_to_a_sidecar_only() {
    for serves_sidecar in [true, false] {
        play(|| async {
            let manner = Manner {
                serves_sidecar,
                ..Manner::default()
            };
            let stage = stage(vec![vec![]], manner).await;
            stage.unplug().await;
            let last = GET.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
            let got = stage.exchange(last).await;
            assert!(got.starts_with("HTTP/1.1 503 "), "{got}");
            assert_eq!(got.contains("x-voile-unprocessed: 1\r\n"), serves_sidecar);
        });
    }
}

#[test]
fn a_request_that_crosses_the_end_of_an_idle_connection_is_served() {
    play(|| async {
        let script = vec![vec![Step::Head, say(OK)]; 3].concat();
        let stage = stage(vec![script], Manner::default()).await;
        let mut client = stage.client().await;
        client.write_all(GET.as_bytes()).await.unwrap();
        read_until(&mut client, "ok").await;
        eventually("it is idle", || stage.worker.idle_upstreams() == 1).await;
        // Both before the proxy's task runs again.
        assert_eq!(client.try_write(GET.as_bytes()).unwrap(), GET.len());
        stage.drain.start();
        let got = read_all(&mut client).await;
        assert!(got.starts_with("HTTP/1.1 200 "), "{got}");
        assert!(got.contains("Connection: close\r\n"), "{got}");
    });
}

#[test]
fn a_drain_that_begins_gently_ends_connections_with_their_next_response() {
    play(|| async {
        let script = vec![vec![Step::Head, say(OK)]; 3].concat();
        let stage = stage(vec![script], Manner::default()).await;
        let (mut one, mut other) = (stage.client().await, stage.client().await);
        for client in [&mut one, &mut other] {
            client.write_all(GET.as_bytes()).await.unwrap();
            read_until(client, "ok").await;
        }
        stage.drain.begin();
        one.write_all(GET.as_bytes()).await.unwrap();
        let got = read_all(&mut one).await;
        assert!(got.contains("Connection: close\r\n"), "{got}");
        assert_eq!(stage.drain.connections(), 1, "the idle one stays");
        stage.drain.start();
        assert_eq!(read_all(&mut other).await, "");
    });
}

#[test]
fn a_server_that_says_how_long_it_keeps_connections_is_obeyed() {
    for (field, kept) in [
        ("", true),
        ("Keep-Alive: timeout=1\r\n", false),
        ("Keep-Alive: timeout=0\r\n", false),
        ("Keep-Alive: timeout=5, max=7\r\n", true),
    ] {
        play(|| async {
            let answer = OK.replace("Content-Length", &format!("{field}Content-Length"));
            let script = vec![Step::Head, say(answer), Step::Eof];
            let stage = stage(vec![script], Manner::default()).await;
            let mut client = stage.client().await;
            client.write_all(GET.as_bytes()).await.unwrap();
            assert_eq!(read_until(&mut client, "ok").await, OK);
            eventually("it is over", || stage.role.records.borrow().len() == 1).await;
            tokio::task::yield_now().await;
            assert_eq!(stage.worker.idle_upstreams(), usize::from(kept), "{field}");
        });
    }
}
