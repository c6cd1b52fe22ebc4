//! A stream and an HTTP/1.1 server, byte by byte: what the server hears, when its connection carries another request, and that
//! no answer which breaks off looks whole.

use std::num::NonZeroU32;
use std::rc::Rc;

use voile_proxy::http::{HttpTimeouts, UpstreamTerms};

use super::client::{Body, Request};
use super::server::{self, Server};
use super::{Case, Limit, PLAIN, POST, ask};
use crate::http::stage::{Manner, Stage, Step, eventually, play, say};

const GET: Request = Request {
    method: "GET",
    body: Body::None,
    ..POST
};

const WELL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

async fn stage(scripts: Vec<Vec<Step>>, manner: &Manner) -> Rc<Stage> {
    Rc::new(Stage::behaving(scripts, HttpTimeouts::default(), manner.clone()).await)
}

/// Asks twice, one after the other; gives the connections that the server saw.
async fn connections_of_two(
    first: Vec<Step>,
    request: Request,
    manner: &Manner,
) -> (usize, Rc<Stage>) {
    let well = vec![Step::Head, say(WELL), Step::Eof];
    let stage = stage(vec![first, well], manner).await;
    for request in [request, GET] {
        let answer = ask(&stage, manner, request).await.answer.await;
        assert_eq!(answer.unwrap(), "200", "{request:?}");
    }
    (stage.role.connects.get(), stage)
}

#[test]
fn a_request_that_is_sent_again_is_framed_as_it_was() {
    let failing = |case: Case| case.server(Server::FailsOnce).retry("503");
    for (case, framing) in [
        (failing(PLAIN.request(GET)), ""),
        (failing(PLAIN), "content-length: 5\r\n"),
    ] {
        play(|| async {
            let manner = case.manner("2→1");
            let scripts = server::scripts(case.server, false, &case.request);
            let stage = stage(scripts, &manner).await;
            let answer = ask(&stage, &manner, case.request).await.answer.await;
            assert_eq!(answer.unwrap(), "200");
            let (first, again) = (stage.heard(0), stage.heard(1));
            let (head, body) = first.split_once("\r\n\r\n").unwrap();
            let method = case.request.method;
            let expected = format!("{method} / HTTP/1.1\r\nhost: a.test:443\r\n{framing}\r\n");
            assert_eq!(format!("{head}\r\n\r\n"), expected);
            let number = "\r\nx-envoy-attempt-count: 2\r\n\r\n";
            assert_eq!(again, format!("{head}{number}{body}"));
        });
    }
}

#[test]
fn a_connection_carries_another_request_only_if_it_is_clean() {
    let kept = |answer: &str| vec![Step::Head, say(answer), Step::Head, say(WELL), Step::Eof];
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let bad = |end: &str| format!("HTTP/1.1 200 OK\r\n{end}");
    for (answer, connections) in [
        (WELL.to_owned(), 1),
        (chunked.to_owned(), 1),
        // Bytes behind an answer.
        (format!("{WELL}{WELL}"), 2),
        (format!("{chunked}\r\n"), 2),
        (bad("Connection: close\r\nContent-Length: 2\r\n\r\nok"), 2),
        (
            "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned(),
            2,
        ),
    ] {
        play(|| async {
            let manner = PLAIN.manner("2→1");
            let (seen, _stage) = connections_of_two(kept(&answer), GET, &manner).await;
            assert_eq!(seen, connections, "{answer:?}");
        });
    }
}

#[test]
fn a_connection_is_kept_for_so_many_requests() {
    play(|| async {
        let one = vec![Step::Head, say(WELL), Step::Head, say(WELL), Step::Eof];
        let terms = UpstreamTerms {
            requests: NonZeroU32::new(1),
            ..UpstreamTerms::default()
        };
        let manner = Manner {
            terms,
            ..PLAIN.manner("2→1")
        };
        assert_eq!(connections_of_two(one, GET, &manner).await.0, 2);
    });
}

/// The server has half of a request; the next one is not for it.
#[test]
fn an_answer_before_the_request_is_over_is_the_connections_last() {
    play(|| async {
        let early = vec![Step::Until(b"hello"), say(WELL), Step::Eof];
        let manner = PLAIN.manner("2→1");
        let request = Request {
            body: Body::Unfinished,
            ..POST
        };
        let (seen, stage) = connections_of_two(early, request, &manner).await;
        assert_eq!(seen, 2);
        assert!(!stage.heard(0).contains("GET"), "{}", stage.heard(0));
        eventually("the first is closed", || stage.closed() >= 1).await;
    });
}

/// Fields of the connection, and those that it names, are for the proxy.
#[test]
fn fields_of_the_connection_stay_there() {
    play(|| async {
        let answer = "HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=9\r\nUpgrade: h2c\r\n\
                      X-Stays: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        let manner = PLAIN.manner("2→1");
        let stage = stage(vec![vec![Step::Head, say(answer), Step::Eof]], &manner).await;
        let (mut send, connection) = h2::client::handshake(stage.client().await).await.unwrap();
        tokio::task::spawn_local(connection);
        let request = http::Request::get("http://a.test:443/").body(()).unwrap();
        let (response, _) = send.send_request(request, true).unwrap();
        let response = response.await.unwrap();
        let names: Vec<_> = response
            .headers()
            .keys()
            .map(http::HeaderName::as_str)
            .collect();
        assert_eq!(names, ["x-stays"]);
    });
}

#[test]
fn an_answer_that_is_cut_at_any_byte_never_looks_whole() {
    let sized = WELL;
    let chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 1\r\n\r\n";
    for answer in [sized, chunked] {
        for cut in 0..=answer.len() {
            play(|| async {
                let manner = PLAIN.manner("2→1");
                let script = vec![Step::Head, say(&answer[..cut]), Step::HalfClose];
                let stage = stage(vec![script], &manner).await;
                let got = ask(&stage, &manner, GET).await.answer.await.unwrap();
                let (whole, head) = (cut == answer.len(), answer.find("\r\n\r\n").unwrap() + 4);
                let expected = match whole {
                    true => "200",
                    false if cut < head => "503",
                    false => "200, INTERNAL_ERROR",
                };
                assert_eq!(got, expected, "{:?}", &answer[..cut]);
            });
        }
    }
}

/// Begins the handshake of a WebSocket.
async fn handshake(stage: &Stage) -> (h2::client::ResponseFuture, h2::SendStream<bytes::Bytes>) {
    let (mut send, connection) = h2::client::handshake(stage.client().await).await.unwrap();
    tokio::task::spawn_local(connection);
    let allowed = || send.is_extended_connect_protocol_enabled();
    eventually("it has the settings", allowed).await;
    let request = http::Request::connect("http://a.test:443/chat")
        .extension(h2::ext::Protocol::from_static("websocket"));
    send.send_request(request.body(()).unwrap(), false).unwrap()
}

/// Its server would read the client's first bytes as a request.
#[test]
fn nothing_of_a_tunnel_is_sent_before_it_is_granted() {
    for (answer, details) in [
        (
            "200 OK\r\nContent-Length: 0\r\n\r\n",
            "connect_answered_as_a_request",
        ),
        (
            "101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            "unexpected_switching_protocols",
        ),
    ] {
        play(|| async {
            let manner = PLAIN.manner("2→1");
            let answer = say(format!("HTTP/1.1 {answer}"));
            let script = vec![Step::Head, Step::Wait, answer, Step::Eof];
            let stage = stage(vec![script], &manner).await;
            let (response, mut body) = handshake(&stage).await;
            body.send_data("GET /smuggled HTTP/1.1\r\n\r\n".into(), false)
                .unwrap();
            let arrived = || stage.heard(0).ends_with("\r\n\r\n");
            eventually("the handshake arrives", arrived).await;
            stage.go.notify_one();
            assert_eq!(response.await.unwrap().status(), 502);
            eventually("it is recorded", || !stage.role.records.borrow().is_empty()).await;
            let record = stage.last();
            assert_eq!((record.flag.code(), record.details), ("UPE", details));
            eventually("it is closed", || stage.closed() == 1).await;
            let heard = stage.heard(0);
            assert!(heard.starts_with("GET /chat HTTP/1.1\r\n"), "{heard}");
            assert!(!heard.contains("smuggled"), "{heard}");
        });
    }
}

/// A server that fails the first handshake and refuses the next one, or is silent.
fn handshakes(http2: bool, silent: bool) -> Vec<Vec<Step>> {
    let answers: [Vec<u8>; 2] = match http2 {
        true => [("503", 1), ("404", 3)].map(|(status, stream)| {
            server::headers(stream, server::END_STREAM, &[(":status", status)])
        }),
        false => ["503 No", "404 No"]
            .map(|status| format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into()),
    };
    let hear = match http2 {
        true => Step::Frame(server::HEADERS),
        false => Step::Head,
    };
    // RFC 8441 section 3.
    let settings = say(server::frame(server::SETTINGS, 0, 0, &[0, 8, 0, 0, 0, 1]));
    let begin = [Step::Until(server::PREFACE), settings];
    let begin = begin.into_iter().filter(|_| http2);
    let [first, second] = answers.map(|answer| [hear.clone(), say(answer)]);
    match silent {
        true => vec![begin.chain([hear, Step::Eof]).collect()],
        false if http2 => vec![begin.chain(first).chain(second).collect()],
        // A connection whose answer was not taken carries no other request.
        false => vec![first.into(), second.into()],
    }
}

#[test]
fn a_handshake_is_limited_and_repeated_as_any_request() {
    for pair in ["2→1", "2→2"] {
        for (case, status, attempts) in [
            (PLAIN.retry("503"), 404, 2),
            (PLAIN.limit(Limit::Head), 504, 1),
            (PLAIN.limit(Limit::Answer), 504, 1),
        ] {
            play(|| async {
                let silent = case.retry.is_none();
                let script = handshakes(pair.ends_with('2'), silent);
                let (timeouts, manner) = (case.timeouts(), case.manner(pair));
                let stage = Rc::new(Stage::behaving(script, timeouts, manner).await);
                let (response, _body) = handshake(&stage).await;
                let got = response.await.unwrap().status().as_u16();
                assert_eq!(got, status, "{pair} {case:?}");
                let records = &stage.role.records;
                eventually("it is recorded", || !records.borrow().is_empty()).await;
                assert_eq!(stage.last().attempts, attempts, "{pair} {case:?}");
            });
        }
    }
}
