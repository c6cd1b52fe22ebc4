//! Published ways to smuggle a request through HTTP/2 into HTTP/1.1 (H2.CL, H2.TE, injected line ends, names and targets
//! that mean something else in text): each is refused before its server hears a byte, or reaches it as the one message
//! that it is. Frames by hand, so that no library repairs them first.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use voile_xds::wire::WireProtocol;

use crate::plan::Settings;
use crate::worker::tests::http2::conversions::two_sidecars;
use crate::worker::tests::http2::frames::{
    DATA, END_HEADERS, END_STREAM, GO_AWAY, HEADERS, PREFACE, RESET, SETTINGS, block, frame,
    headers, until,
};
use crate::worker::tests::{Stage, listen, play, say};

type Field = (&'static str, &'static str);

const POST: [Field; 4] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "server"),
];

/// An HTTP/1.1 application that keeps what it hears and answers 200 to every line that looks like a request's.
async fn listener(heard: &Rc<RefCell<Vec<u8>>>) -> SocketAddr {
    let listener = listen().await;
    let address = listener.local_addr().expect("an address");
    let heard = Rc::clone(heard);
    tokio::task::spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let heard = Rc::clone(&heard);
            tokio::task::spawn_local(async move {
                let mut bytes = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                    heard.borrow_mut().extend_from_slice(&bytes[..read]);
                    if heard.borrow().ends_with(b"\r\n\r\n") {
                        say(&mut stream, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
                    }
                }
            });
        }
    });
    address
}

/// Sends `bytes` as one stream's frames to an `http` port. Returns the bytes that its server received, and true if the
/// stream was served.
async fn attempt(bytes: &[u8]) -> (Vec<u8>, bool) {
    let heard = Rc::default();
    let application = listener(&heard).await;
    let stage = Stage::new(Settings::default());
    let address = two_sidecars(&stage, WireProtocol::Http, application).await;
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let all = [PREFACE, &frame(SETTINGS, 0, 0, &[]), bytes].concat();
    say(&mut stream, &all).await;
    let end = until(&mut stream, |frame| {
        frame.kind == GO_AWAY || (frame.stream == 1 && matches!(frame.kind, HEADERS | RESET))
    });
    let served = matches!(end.await, Some(frame) if frame.kind == HEADERS && frame.status() == 200);
    let heard = heard.borrow().clone();
    (heard, served)
}

#[test]
fn an_honest_request_is_served() {
    play(|| async {
        let (heard, served) = attempt(&headers(1, END_STREAM, &POST)).await;
        assert!(served && heard.starts_with(b"POST / HTTP/1.1\r\n"));
    });
}

fn never_reaches(name: &str, fields: &[Field]) {
    play(|| async move {
        for end in [END_STREAM, 0] {
            let mut bytes = headers(1, end, fields);
            if end == 0 {
                bytes.extend(frame(DATA, END_STREAM, 1, b"hello"));
            }
            let (heard, served) = attempt(&bytes).await;
            let heard = String::from_utf8_lossy(&heard);
            assert!(!served && heard.is_empty(), "{name}: {heard}");
        }
    });
}

#[test]
fn fields_that_frame_or_inject_are_refused() {
    for field in [
        // H2.TE, and fields of a connection.
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("connection", "content-length"),
        ("proxy-connection", "keep-alive"),
        ("keep-alive", "timeout=5"),
        ("upgrade", "h2c"),
        // Names that another receiver reads as framing.
        ("transfer_encoding", "chunked"),
        ("content_length", "5"),
        ("Transfer-Encoding", "chunked"),
        ("transfer-encoding ", "chunked"),
        ("transfer-encoding\t", "chunked"),
        (" transfer-encoding", "chunked"),
        ("transfer-encoding\0", "chunked"),
        ("", "chunked"),
        // Line ends and other controls.
        ("x", "a\r\ntransfer-encoding: chunked"),
        ("x", "a\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x"),
        ("x", "a\ntransfer-encoding: chunked"),
        ("x", "a\rb"),
        ("x", "a\0b"),
        ("x: y\r\ntransfer-encoding", "chunked"),
        ("x\nhost", "evil"),
        ("x:y", "z"),
        ("x y", "z"),
        // Target of the request.
        ("host", "elsewhere"),
        ("expect", "200-ok"),
        // Pseudo-fields behind ordinary ones, unknown ones, ones of an answer.
        (":authority", "elsewhere"),
        (":path", "/other"),
        (":status", "200"),
        (":unknown", "x"),
    ] {
        let fields = [&POST[..], &[("x-first", "1"), field]].concat();
        never_reaches(&format!("{field:?}"), &fields);
    }
}

#[test]
fn lengths_that_two_could_read_differently_are_refused() {
    for lengths in [
        &["5", "6"][..],
        &["5", "5"],
        &["5,5"],
        &["5, 6"],
        &["+5"],
        &["-5"],
        &["0x5"],
        &["05"],
        &["5 "],
        &[""],
        &["18446744073709551621"],
    ] {
        let mut fields = POST.to_vec();
        fields.extend(lengths.iter().map(|length| ("content-length", *length)));
        never_reaches(&format!("{lengths:?}"), &fields);
    }
}

#[test]
fn pseudo_fields_that_are_not_what_they_seem_are_refused() {
    for (name, value) in [
        (":method", "GET / HTTP/1.1\r\nx: y\r\n\r\nGET"),
        (":method", "GE T"),
        (":method", "post"),
        (":method", ""),
        (":path", "/ HTTP/1.1\r\nx: y"),
        (":path", "/a b"),
        (":path", "/a\tb"),
        (":path", "a"),
        (":path", ""),
        (":path", "*"),
        (":path", "http://elsewhere/"),
        (":authority", "a b"),
        (":authority", "a\r\nx: y"),
        (":authority", "user@server"),
        (":authority", "server/path"),
        (":authority", "a,b"),
        (":scheme", "http://elsewhere/?"),
        (":scheme", "http\r\nx: y"),
    ] {
        let replaced = POST.map(|(known, old)| (known, if known == name { value } else { old }));
        never_reaches(&format!("{name} {value:?}"), &replaced);
        let missing: Vec<_> = POST
            .into_iter()
            .filter(|(known, _)| *known != name)
            .collect();
        if name != ":authority" {
            never_reaches(&format!("no {name}"), &missing);
        }
        let twice = [&POST[..], &[(name, value)]].concat();
        never_reaches(&format!("{name} twice"), &twice);
    }
}

/// H2.CL: the server may hear the head and a part, and never a whole message or anything behind it.
#[test]
fn a_body_that_is_not_as_long_as_said_never_completes() {
    for (length, pieces) in [
        ("5", &["hello world"][..]),
        ("5", &["hello", " world"]),
        ("5", &["hel"]),
        ("0", &["GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"]),
        ("5", &[]),
        ("5", &["", "", ""]),
    ] {
        play(|| async move {
            let fields = [&POST[..], &[("content-length", length)]].concat();
            let mut bytes = headers(1, if pieces.is_empty() { END_STREAM } else { 0 }, &fields);
            for (at, piece) in pieces.iter().enumerate() {
                let end = if at + 1 == pieces.len() {
                    END_STREAM
                } else {
                    0
                };
                bytes.extend(frame(DATA, end, 1, piece.as_bytes()));
            }
            let (heard, served) = attempt(&bytes).await;
            let heard = String::from_utf8_lossy(&heard);
            assert!(!heard.contains("smuggled"), "{length} {pieces:?}: {heard}");
            if let Some((_, body)) = heard.split_once("\r\n\r\n") {
                assert!(body.len() <= 5, "{length} {pieces:?}: {heard}");
                // An empty body that is whole may have been answered before the rest came.
                assert!(!served || length == "0", "{length} {pieces:?}: {heard}");
            }
        });
    }
}

#[test]
fn trailers_frame_nothing() {
    for trailer in [
        ("content-length", "0"),
        ("transfer-encoding", "chunked"),
        ("host", "elsewhere"),
        ("x", "a\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x"),
        (":path", "/smuggled"),
        ("authorization", "smuggled"),
    ] {
        play(|| async move {
            let mut bytes = headers(1, 0, &POST);
            bytes.extend(frame(DATA, 0, 1, b"hello"));
            let end = END_STREAM | END_HEADERS;
            bytes.extend(frame(HEADERS, end, 1, &block(&[trailer])));
            let (heard, _) = attempt(&bytes).await;
            let heard = String::from_utf8_lossy(&heard);
            assert!(!heard.contains("smuggled"), "{trailer:?}: {heard}");
            assert!(!heard.contains("elsewhere"), "{trailer:?}: {heard}");
            if let Some((_, body)) = heard.split_once("\r\n\r\n") {
                let whole = "5\r\nhello\r\n0\r\n\r\n";
                assert!(whole.starts_with(body), "{trailer:?}: {heard}");
            }
        });
    }
}
