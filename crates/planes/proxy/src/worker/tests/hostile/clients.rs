//! HTTP/2 clients that break the rules, by hand: the treatment of each, and proof that the next stream or
//! connection is served.

use std::net::SocketAddr;

use http::Response;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use voile_xds::wire::{MutualTls, WireProtocol};

use crate::plan::Settings;
use crate::worker::tests::http2::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, GO_AWAY, HEADERS, PREFACE,
    PROTOCOL_ERROR, RESET, SETTINGS, WINDOW_UPDATE, block, frame, headers, until,
};
use crate::worker::tests::http2::{application, read};
use crate::worker::tests::{Stage, play, say};

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "server"),
];

/// A sidecar in front of an application that reads everything and answers 200.
async fn proxy(stage: &Stage) -> SocketAddr {
    let application = application(|request, mut respond| async move {
        if request.uri().path() == "/never" {
            return std::future::pending().await;
        }
        if read(&mut request.into_body()).await.is_ok() {
            let _ = respond.send_response(Response::new(()), true);
        }
    })
    .await;
    stage
        .inbound(WireProtocol::Http2, MutualTls::Disable, application)
        .await
}

async fn connect(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    say(&mut stream, PREFACE).await;
    say(&mut stream, &frame(SETTINGS, 0, 0, &[])).await;
    stream
}

/// End of a stream.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Status(u16),
    Reset(u32),
    GoAway(u32),
    Closed,
}

async fn outcome(stream: &mut TcpStream, id: u32) -> Outcome {
    let wanted = |frame: &crate::worker::tests::http2::frames::Frame| {
        frame.kind == GO_AWAY || (frame.stream == id && matches!(frame.kind, HEADERS | RESET))
    };
    match until(stream, wanted).await {
        None => Outcome::Closed,
        Some(frame) if frame.kind == GO_AWAY => Outcome::GoAway(frame.code()),
        Some(frame) if frame.kind == RESET => Outcome::Reset(frame.code()),
        Some(frame) => Outcome::Status(frame.status()),
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn requests_that_rfc_9113_calls_malformed_are_refused_and_the_connection_goes_on() {
    let with = |more: &[(&'static str, &'static str)]| [&GET[..], more].concat();
    let instead = |name: &str, value: Option<&'static str>| -> Vec<(&'static str, &'static str)> {
        let changed = GET.iter().filter_map(|(have, old)| match value {
            _ if *have != name => Some((*have, *old)),
            Some(new) => Some((*have, new)),
            None => None,
        });
        changed.collect()
    };
    const REFUSED: Outcome = Outcome::Reset(PROTOCOL_ERROR);
    let cases = [
        ("a good one", GET.to_vec(), Outcome::Status(200)),
        ("an upper-case name", with(&[("X-Up", "1")]), REFUSED),
        ("connection", with(&[("connection", "close")]), REFUSED),
        ("keep-alive", with(&[("keep-alive", "timeout=5")]), REFUSED),
        (
            "proxy-connection",
            with(&[("proxy-connection", "keep-alive")]),
            REFUSED,
        ),
        (
            "transfer-encoding",
            with(&[("transfer-encoding", "chunked")]),
            REFUSED,
        ),
        ("upgrade", with(&[("upgrade", "h2c")]), REFUSED),
        ("te: gzip", with(&[("te", "gzip")]), REFUSED),
        (
            "te: trailers",
            with(&[("te", "trailers")]),
            Outcome::Status(200),
        ),
        ("an unknown pseudo-header", with(&[(":x", "1")]), REFUSED),
        (
            "a response's pseudo-header",
            with(&[(":status", "200")]),
            REFUSED,
        ),
        ("a pseudo-header twice", with(&[(":path", "/b")]), REFUSED),
        (
            "a late pseudo-header",
            [&[("x-a", "1")], &GET[..]].concat(),
            REFUSED,
        ),
        ("no method", instead(":method", None), REFUSED),
        ("no scheme", instead(":scheme", None), REFUSED),
        ("no path", instead(":path", None), REFUSED),
        ("an empty path", instead(":path", Some("")), REFUSED),
        ("a relative path", instead(":path", Some("a")), REFUSED),
        (
            "an absolute path in :path",
            instead(":path", Some("http://a/")),
            REFUSED,
        ),
        (
            "the whole server, but GET",
            instead(":path", Some("*")),
            Outcome::Status(400),
        ),
        (
            "a blank in the path",
            instead(":path", Some("/a b")),
            REFUSED,
        ),
        (
            "a lower-case method",
            instead(":method", Some("get")),
            Outcome::Status(400),
        ),
        (
            "a user in the authority",
            instead(":authority", Some("a@server")),
            Outcome::Status(400),
        ),
        (
            "the same host",
            with(&[("host", "server")]),
            Outcome::Status(200),
        ),
        (
            "another host",
            with(&[("host", "other")]),
            Outcome::Status(400),
        ),
        (
            "two hosts",
            with(&[("host", "server"), ("host", "server")]),
            Outcome::Status(400),
        ),
        (
            "a line end in a value",
            with(&[("x-a", "1\r\nx-b: 2")]),
            REFUSED,
        ),
        ("a nul in a value", with(&[("x-a", "1\0")]), REFUSED),
        (
            "a length without a body",
            with(&[("content-length", "5")]),
            REFUSED,
        ),
        (
            "a length that is none",
            with(&[("content-length", "+5")]),
            REFUSED,
        ),
        (
            "two lengths",
            with(&[("content-length", "0"), ("content-length", "5")]),
            REFUSED,
        ),
    ];
    play(|| async move {
        let stage = Stage::new(Settings::default());
        let address = proxy(&stage).await;
        let mut wrong = Vec::new();
        for (what, fields, expected) in cases {
            let mut stream = connect(address).await;
            say(&mut stream, &headers(1, END_STREAM, &fields)).await;
            let got = outcome(&mut stream, 1).await;
            if got != expected {
                wrong.push(format!("{what}: {got:?} instead of {expected:?}"));
                continue;
            }
            say(&mut stream, &headers(3, END_STREAM, &GET)).await;
            let next = outcome(&mut stream, 3).await;
            if next != Outcome::Status(200) {
                wrong.push(format!("{what}: then {next:?}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn a_body_that_is_not_as_long_as_it_said_is_refused() {
    for (length, body) in [("5", "four"), ("3", "four")] {
        play(|| async move {
            let stage = Stage::new(Settings::default());
            let mut stream = connect(proxy(&stage).await).await;
            let fields = [&GET[..], &[("content-length", length)]].concat();
            say(&mut stream, &headers(1, 0, &fields)).await;
            say(&mut stream, &frame(DATA, END_STREAM, 1, body.as_bytes())).await;
            let got = outcome(&mut stream, 1).await;
            assert_eq!(got, Outcome::Reset(PROTOCOL_ERROR), "{length} for {body:?}");
            say(&mut stream, &headers(3, END_STREAM, &GET)).await;
            assert_eq!(outcome(&mut stream, 3).await, Outcome::Status(200));
        });
    }
}

/// Sends `pieces` until the proxy has had enough; returns the end of the connection.
async fn flood(address: SocketAddr, mut pieces: impl FnMut(u32) -> Vec<u8>) -> Outcome {
    let mut stream = connect(address).await;
    for count in 0..20_000 {
        if stream.write_all(&pieces(count)).await.is_err() {
            break;
        }
        // Lets the proxy do its work, as the network would.
        tokio::task::yield_now().await;
    }
    match until(&mut stream, |frame| frame.kind == GO_AWAY).await {
        Some(frame) => Outcome::GoAway(frame.code()),
        None => Outcome::Closed,
    }
}

#[test]
fn floods_end_their_connection_and_the_next_one_is_served() {
    let never = [&GET[..2], &[(":path", "/never")], &GET[3..]].concat();
    let open = move |count: u32| headers(count * 2 + 1, END_STREAM, &never);
    let cancel = |count: u32| frame(RESET, 0, count * 2 + 1, &8_u32.to_be_bytes());
    type Flood = Box<dyn FnMut(u32) -> Vec<u8>>;
    let opened = open.clone();
    let floods: [(&str, Flood); 4] = [
        (
            "rapid reset (CVE-2023-44487)",
            Box::new(move |count| [opened(count), cancel(count)].concat()),
        ),
        (
            "a head without end (CVE-2024-27316)",
            Box::new(|count| match count {
                0 => frame(HEADERS, END_STREAM, 1, &block(&GET)),
                _ => frame(CONTINUATION, 0, 1, &block(&[("x-a", "b")])),
            }),
        ),
        (
            "resets provoked by bad windows (CVE-2025-8671)",
            Box::new(move |count| {
                let nothing = frame(WINDOW_UPDATE, 0, count * 2 + 1, &0_u32.to_be_bytes());
                [open(count), nothing].concat()
            }),
        ),
        (
            "empty DATA frames",
            Box::new(|count| match count {
                0 => headers(1, 0, &GET),
                _ => frame(DATA, 0, 1, &[]).repeat(100),
            }),
        ),
    ];
    for (what, pieces) in floods {
        play(|| async move {
            let stage = Stage::new(Settings::default());
            let address = proxy(&stage).await;
            let got = flood(address, pieces).await;
            let calm = [Outcome::GoAway(ENHANCE_YOUR_CALM), Outcome::Closed];
            assert!(calm.contains(&got), "{what}: {got:?}");
            let mut stream = connect(address).await;
            say(&mut stream, &headers(1, END_STREAM, &GET)).await;
            assert_eq!(
                outcome(&mut stream, 1).await,
                Outcome::Status(200),
                "{what}"
            );
        });
    }
}

#[test]
fn a_head_beyond_the_limit_is_answered_431() {
    play(|| async {
        let stage = Stage::new(Settings::default());
        let mut stream = connect(proxy(&stage).await).await;
        let long = "x".repeat(20_000);
        let fields: Vec<_> = ["x-a", "x-b", "x-c", "x-d"]
            .map(|name| (name, long.as_str()))
            .into();
        let block = block(&[&GET[..], &fields].concat());
        let mut pieces = block.chunks(16_000);
        let first = pieces.next().expect("a first piece");
        say(&mut stream, &frame(HEADERS, END_STREAM, 1, first)).await;
        let rest: Vec<_> = pieces.collect();
        for (at, piece) in rest.iter().enumerate() {
            let end = if at + 1 == rest.len() { END_HEADERS } else { 0 };
            say(&mut stream, &frame(CONTINUATION, end, 1, piece)).await;
        }
        let head = until(&mut stream, |frame| frame.stream == 1).await;
        let head = head.expect("an answer");
        assert_eq!((head.kind, head.status()), (HEADERS, 0), "{head:?}");
        let told = head.payload.windows(3).any(|bytes| bytes == b"431");
        assert!(told, "{head:?}");
    });
}
