//! HTTP/2 servers that break the rules, by hand: every caller gets an answer or a reset in time, and the next one is served
//! by a server that behaves.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use h2::client::SendRequest;
use http::Request;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use voile_xds::wire::{MutualTls, WireProtocol};

use crate::plan::Settings;
use crate::worker::tests::http2::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GO_AWAY, HEADERS, PING, PREFACE,
    PUSH_PROMISE, RESET, SETTINGS, WINDOW_UPDATE, block, frame, headers, until,
};
use crate::worker::tests::http2::{client, read};
use crate::worker::tests::{PATIENCE, Stage, hear, listen, play};

/// Answer of a server to a request, frame by frame; `None` ends the list and closes.
type Script = Rc<dyn Fn(usize) -> Option<Vec<u8>>>;

fn once(bytes: Vec<u8>) -> Script {
    Rc::new(move |at| (at == 0).then(|| bytes.clone()))
}

fn forever(first: Vec<u8>, then: Vec<u8>) -> Script {
    Rc::new(move |at| Some(if at == 0 { first.clone() } else { then.clone() }))
}

const OK: [(&str, &str); 1] = [(":status", "200")];

/// Serves `bad` first connections by the script, later ones well.
async fn server(script: Script, bad: usize) -> std::net::SocketAddr {
    let listener = listen().await;
    let address = listener.local_addr().expect("an address");
    let accepted = Cell::new(0);
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            accepted.set(accepted.get() + 1);
            let script = (accepted.get() <= bad).then(|| Rc::clone(&script));
            tokio::task::spawn_local(serve(stream, script));
        }
    });
    address
}

async fn serve(mut stream: TcpStream, script: Option<Script>) -> Option<()> {
    hear(&mut stream, PREFACE).await;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.ok()?;
    loop {
        let request = until(&mut stream, |frame| frame.kind == HEADERS).await?;
        let Some(script) = &script else {
            let answer = headers(request.stream, END_STREAM, &OK);
            stream.write_all(&answer).await.ok()?;
            continue;
        };
        let mut at = 0;
        while let Some(bytes) = script(at) {
            stream.write_all(&bytes).await.ok()?;
            tokio::task::yield_now().await;
            at += 1;
        }
        // The client must read the answer before it sees the end.
        stream.shutdown().await.ok()?;
        until(&mut stream, |_| false).await;
        return None;
    }
}

/// Result for a caller: a status and the end of its body, or a reset.
async fn ask(client: &mut SendRequest<bytes::Bytes>) -> String {
    let request = Request::get("http://server/").body(()).expect("a request");
    let (response, _) = client.send_request(request, true).expect("sent");
    match response.await {
        Err(error) => format!("reset {:?}", error.reason()),
        Ok(response) => {
            let status = response.status().as_u16();
            match read(&mut response.into_body()).await {
                Ok(_) => status.to_string(),
                Err(error) => format!("{status}, then reset {:?}", error.reason()),
            }
        }
    }
}

async fn in_time(asking: impl Future<Output = String>) -> String {
    let got = tokio::time::timeout(PATIENCE / 4, asking).await;
    got.unwrap_or_else(|_| "nothing".to_owned())
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn whatever_a_server_says_its_caller_gets_an_end_and_the_next_caller_an_answer() {
    let go_away = |last: u32, code: u32| {
        frame(
            GO_AWAY,
            0,
            0,
            &[last.to_be_bytes(), code.to_be_bytes()].concat(),
        )
    };
    let reset = |code: u32| frame(RESET, 0, 1, &code.to_be_bytes());
    let long = "x".repeat(16_000);
    let cases: Vec<(&str, Script, &str)> = vec![
        ("a good answer", once(headers(1, END_STREAM, &OK)), "200"),
        ("nothing", Rc::new(|_| None), "503"),
        (
            "HTTP/1.1",
            once(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
            "502",
        ),
        ("a reset", once(reset(2)), "reset Some(INTERNAL_ERROR)"),
        ("a refusal, then a good one", once(reset(7)), "200"),
        ("GOAWAY before the request", once(go_away(0, 0)), "200"),
        ("GOAWAY with an error", once(go_away(0, 11)), "200"),
        ("GOAWAY, and no answer", once(go_away(1, 0)), "503"),
        ("DATA before HEADERS", once(frame(DATA, 0, 1, b"x")), "502"),
        (
            "an upper-case name",
            once(headers(1, END_STREAM, &[(":status", "200"), ("X-Up", "1")])),
            "502",
        ),
        (
            "a connection's field",
            once(headers(
                1,
                END_STREAM,
                &[(":status", "200"), ("connection", "close")],
            )),
            "502",
        ),
        (
            "no status",
            once(headers(1, END_STREAM, &[("x-a", "1")])),
            "502",
        ),
        (
            "a status that is none",
            once(headers(1, END_STREAM, &[(":status", "abc")])),
            "502",
        ),
        (
            "a request's pseudo-header",
            once(headers(
                1,
                END_STREAM,
                &[(":status", "200"), (":path", "/")],
            )),
            "502",
        ),
        (
            "a line end in a value",
            once(headers(
                1,
                END_STREAM,
                &[(":status", "200"), ("x-a", "1\r\nx-b: 2")],
            )),
            "502",
        ),
        (
            "a push",
            once(frame(
                PUSH_PROMISE,
                END_HEADERS,
                1,
                &[&2_u32.to_be_bytes()[..], &block(&OK)].concat(),
            )),
            "502",
        ),
        (
            "a stream nobody opened",
            once(headers(2, END_STREAM, &OK)),
            "502",
        ),
        (
            "bad HPACK",
            once(frame(
                HEADERS,
                END_STREAM | END_HEADERS,
                1,
                &[0xff, 0xff, 0xff, 0xff, 0xff],
            )),
            "502",
        ),
        (
            "an odd WINDOW_UPDATE",
            once(frame(WINDOW_UPDATE, 0, 0, &[0])),
            "502",
        ),
        (
            "a window beyond 2^31",
            once(frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes())),
            "502",
        ),
        (
            "a frame beyond the limit",
            once(frame(DATA, 0, 1, &vec![0; 20_000])),
            "502",
        ),
        (
            "interim answers without end",
            forever(Vec::new(), headers(1, 0, &[(":status", "103")])),
            "502",
        ),
        (
            "a head without end",
            forever(
                frame(HEADERS, 0, 1, &block(&OK)),
                frame(CONTINUATION, 0, 1, &block(&[("x-a", "b")])),
            ),
            "502",
        ),
        (
            "a head beyond the limit",
            Rc::new(move |at| match at {
                0 => Some(frame(
                    HEADERS,
                    END_STREAM,
                    1,
                    &block(&[OK[0], ("x-long", &long)]),
                )),
                1..5 => Some(frame(
                    CONTINUATION,
                    if at == 4 { END_HEADERS } else { 0 },
                    1,
                    &block(&[("x-long", &long)]),
                )),
                _ => None,
            }),
            "502",
        ),
        (
            "too short a body",
            once(
                [
                    headers(1, 0, &[(":status", "200"), ("content-length", "5")]),
                    frame(DATA, END_STREAM, 1, b"four"),
                ]
                .concat(),
            ),
            "reset Some(PROTOCOL_ERROR)",
        ),
        (
            "too long a body",
            once(
                [
                    headers(1, 0, &[(":status", "200"), ("content-length", "3")]),
                    frame(DATA, END_STREAM, 1, b"four"),
                ]
                .concat(),
            ),
            "reset Some(PROTOCOL_ERROR)",
        ),
        (
            "a body where none can be",
            once(
                [
                    headers(1, 0, &[(":status", "204")]),
                    frame(DATA, END_STREAM, 1, b"four"),
                ]
                .concat(),
            ),
            "204, then reset Some(PROTOCOL_ERROR)",
        ),
        (
            "the end within a body",
            once([headers(1, 0, &OK), frame(DATA, 0, 1, b"half")].concat()),
            "200, then reset Some(INTERNAL_ERROR)",
        ),
        (
            "a pseudo-header in trailers",
            once([headers(1, 0, &OK), headers(1, END_STREAM, &OK)].concat()),
            "200, then reset Some(PROTOCOL_ERROR)",
        ),
        (
            "pings without end",
            forever(Vec::new(), frame(PING, 0, 0, &[0; 8]).repeat(100)),
            "408",
        ),
    ];
    let mut wrong = Vec::new();
    for (what, script, expected) in cases {
        let endless = expected == "408";
        let got = Rc::new(Cell::new(String::new()));
        let out = Rc::clone(&got);
        play(|| async move {
            let stage = Stage::new(Settings::default());
            let server = server(script, 1).await;
            let address = stage
                .inbound(WireProtocol::Http2, MutualTls::Disable, server)
                .await;
            let mut client = client(address).await;
            if endless {
                // The caller waits as long as it likes; what counts is that others are served meanwhile.
                let request = Request::get("http://server/").body(()).expect("a request");
                let (response, _) = client.send_request(request, true).expect("sent");
                for _ in 0..1000 {
                    tokio::task::yield_now().await;
                }
                drop(response);
                return out.set("408".to_owned());
            }
            let got = in_time(ask(&mut client)).await;
            let next = in_time(ask(&mut client)).await;
            out.set(match next.as_str() {
                "200" => got,
                next => format!("{got}; the next caller: {next}"),
            });
        });
        let got = got.take();
        // A reset may overtake the head that was to go before it.
        let overtaken = got.strip_prefix("200, then ").unwrap_or(&got);
        if got != expected && overtaken != expected && !expected.ends_with(&*format!("then {got}"))
        {
            wrong.push(format!("{what}: {got}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn settings_that_change_under_way_are_acknowledged_and_obeyed() {
    play(|| async {
        let listener = listen().await;
        let application = listener.local_addr().expect("an address");
        tokio::task::spawn_local(async move {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            hear(&mut stream, PREFACE).await;
            let first = until(&mut stream, |frame| frame.kind == HEADERS).await;
            assert_eq!(first.expect("a request").stream, 1);
            // INITIAL_WINDOW_SIZE 0: not a byte of a body may come.
            let closed = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
            let answer = [closed, headers(1, END_STREAM, &OK)].concat();
            stream.write_all(&answer).await.expect("sent");
            let acknowledged = |frame: &crate::worker::tests::http2::frames::Frame| {
                frame.kind == SETTINGS && frame.flags & ACK != 0
            };
            until(&mut stream, acknowledged)
                .await
                .expect("acknowledged");
            let second = until(&mut stream, |frame| frame.kind == HEADERS).await;
            assert_eq!(second.expect("a request").stream, 3);
            let open = frame(WINDOW_UPDATE, 0, 3, &3_u32.to_be_bytes());
            stream.write_all(&open).await.expect("sent");
            let data = until(&mut stream, |frame| {
                frame.kind == DATA && !frame.payload.is_empty()
            })
            .await;
            assert_eq!(data.expect("a body").payload, b"abc");
            let open = frame(WINDOW_UPDATE, 0, 3, &30_u32.to_be_bytes());
            stream.write_all(&open).await.expect("sent");
            let data = until(&mut stream, |frame| frame.kind == DATA).await;
            assert_eq!(data.expect("the rest").payload, b"def");
            stream
                .write_all(&headers(3, END_STREAM, &OK))
                .await
                .expect("sent");
            until(&mut stream, |_| false).await;
        });
        let stage = Stage::new(Settings::default());
        let address = stage
            .inbound(WireProtocol::Http2, MutualTls::Disable, application)
            .await;
        let mut client = client(address).await;
        assert_eq!(ask(&mut client).await, "200");
        let request = Request::post("http://server/").body(()).expect("a request");
        let (response, mut send) = client.send_request(request, false).expect("sent");
        send.send_data("abcdef".into(), true).expect("sent");
        assert_eq!(response.await.expect("an answer").status(), 200);
    });
}
