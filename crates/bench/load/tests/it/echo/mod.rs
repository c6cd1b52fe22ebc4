//! The echo server's answers as tables, and its behaviour with hostile or unlucky clients.

mod sealed;
mod strangers;

use std::io::{Read, Write};
use std::time::Duration;

use voile_load::LoadTarget;
use voile_load::echo::{EchoOptions, Stall, WeightedValue};

use crate::server::{Served, Then, exchange, scripted};

/// One answer: its first line, and its body.
fn check(server: &Served, request: &str, first_line: &str, body: &str) {
    let answer = exchange(server.connect(), request.as_bytes());
    let (head, rest) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    assert_eq!(head.lines().next().unwrap_or(""), first_line, "{request:?}");
    assert_eq!(rest, body, "{request:?}");
}

#[test]
fn the_query_and_the_body_choose_the_answer() {
    let server = Served::echo(EchoOptions {
        name: Some("unit".to_owned()),
        ..EchoOptions::default()
    });
    let ok = "HTTP/1.1 200 OK";
    check(&server, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", ok, "");
    check(
        &server,
        "GET /?size=3 HTTP/1.1\r\nHost: a\r\n\r\n",
        ok,
        "vvv",
    );
    check(
        &server,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        ok,
        "hello",
    );
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: x\r\n\r\n";
    check(&server, chunked, ok, "abcde");
    check(
        &server,
        "POST /?size=2 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        ok,
        "vv",
    );
    check(&server, "HEAD /?size=3 HTTP/1.1\r\nHost: a\r\n\r\n", ok, "");
    check(
        &server,
        "GET /?status=503 HTTP/1.1\r\nHost: a\r\n\r\n",
        "HTTP/1.1 503 Service Unavailable",
        "",
    );
    check(
        &server,
        "GET /?status=204&size=9 HTTP/1.1\r\nHost: a\r\n\r\n",
        "HTTP/1.1 204 No Content",
        "",
    );
    check(&server, "GET /?size=1 HTTP/1.0\r\n\r\n", ok, "v");
    check(
        &server,
        "GET /?size=1&unknown=2 HTTP/1.1\r\nHost: a\r\n\r\n",
        ok,
        "v",
    );
    let named = exchange(
        server.connect(),
        b"GET /?header=X-A:b%20c&close=true HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    assert!(
        named.contains("\r\nx-voile-echo: unit\r\nX-A: b c\r\nConnection: close\r\n"),
        "{named}"
    );
    let debug = exchange(
        server.connect(),
        b"PUT /x/debug?q HTTP/1.1\r\nHost: a\r\nX-Y: z\r\nContent-Length: 2\r\n\r\nhi",
    );
    assert!(
        debug.ends_with(
            "PUT /x/debug?q HTTP/1.1\nHost: a\nX-Y: z\nContent-Length: 2\n\nbody: 2 bytes\n"
        ),
        "{debug}"
    );
}

#[test]
fn bad_requests_are_refused_and_the_connection_closed() {
    let server = Served::echo(EchoOptions::default());
    let bad = "HTTP/1.1 400 Bad Request";
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let framing = "ambiguous body length\n";
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: +5\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    ] {
        check(
            &server,
            &format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n0\r\n\r\n{smuggled}"),
            bad,
            framing,
        );
    }
    let host = "expected exactly one Host field\n";
    check(&server, "GET / HTTP/1.1\r\n\r\n", bad, host);
    check(
        &server,
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        bad,
        host,
    );
    check(
        &server,
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n",
        bad,
        "not an HTTP/1.1 request\n",
    );
    check(
        &server,
        "\x16\x03\x01\x02\x00\x01\r\n",
        bad,
        "not an HTTP/1.1 request\n",
    );
    let body = "malformed chunked body\n";
    check(
        &server,
        &format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n{smuggled}"),
        bad,
        body,
    );
    let why = "query argument delay: `61s` is longer than 60 s\n";
    check(
        &server,
        "GET /?delay=61s HTTP/1.1\r\nHost: a\r\n\r\n",
        bad,
        why,
    );
    let inject = "GET /?header=A:b%0d%0aC:d HTTP/1.1\r\nHost: a\r\n\r\n";
    check(
        &server,
        inject,
        bad,
        "query argument header: not a valid HTTP field\n",
    );
}

#[test]
fn heads_beyond_limits_are_431() {
    let server = Served::echo(EchoOptions::default());
    let line = "HTTP/1.1 431 Request Header Fields Too Large";
    let many = "A: b\r\n".repeat(200);
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n");
    check(&server, &request, line, "more than 128 header fields\n");
}

#[test]
fn pipelined_requests_are_answered_in_order_however_they_are_cut() {
    let server = Served::echo(EchoOptions::default());
    let requests = "GET /?size=1 HTTP/1.1\r\nHost: a\r\n\r\n\
        POST /?delay=1ms HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody\
        POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n\
        GET /?status=404 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let whole = exchange(server.connect(), requests.as_bytes());
    let order = [
        "Content-Length: 1\r\n\r\nv",
        "\r\n\r\nbodyHTTP",
        "\r\n\r\nhiHTTP/1.1 404",
    ];
    let places: Vec<_> = order.iter().map(|part| whole.find(part)).collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{whole}"
    );
    for at in 1..requests.len() {
        let mut stream = server.connect();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&requests.as_bytes()[..at]).unwrap();
        stream.write_all(&requests.as_bytes()[at..]).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, whole, "cut at {at}");
    }
}

#[test]
fn a_client_that_expects_100_continue_is_invited() {
    let server = Served::echo(EchoOptions::default());
    let mut stream = server.connect();
    stream
        .write_all(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
        )
        .unwrap();
    let mut invitation = [0; 25];
    stream.read_exact(&mut invitation).unwrap();
    assert_eq!(&invitation, b"HTTP/1.1 100 Continue\r\n\r\n");
    let answer = exchange(stream, b"ok");
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"),
        "{answer}"
    );
}

#[test]
fn large_answers_reach_a_slow_reader_whole() {
    let server = Served::echo(EchoOptions::default());
    let answer = exchange(
        server.connect(),
        b"GET /?size=20000000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    );
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(body.len(), 20_000_000);
}

#[test]
fn a_calling_server_tells_what_its_callees_said() {
    let callee = Served::echo(EchoOptions::default());
    let url = |address, path: &str| LoadTarget::parse(&format!("http://{address}{path}")).unwrap();
    let calls = vec![
        url(callee.address, "/debug"),
        url(callee.address, "/?size=2"),
    ];
    let server = Served::echo(EchoOptions {
        calls,
        name: Some("shop".to_owned()),
        ..EchoOptions::default()
    });
    for _ in 0..3 {
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nTraceParent: 00-abc\r\nCookie: secret\r\n\r\n";
        let answer = exchange(server.connect(), request);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let json: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(json["service"], "shop");
        assert_eq!(json["calls"][0]["status"], 200);
        let seen = json["calls"][0]["body"].as_str().unwrap();
        assert!(
            seen.contains("TraceParent: 00-abc\n") && !seen.contains("secret"),
            "{seen}"
        );
        assert_eq!(json["calls"][1]["body"], "vv");
    }
}

#[test]
fn a_failing_callee_makes_the_answer_502_and_is_named() {
    let dying = scripted(
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
        Then::Close,
    );
    let garbage = scripted(b"not http at all\r\n\r\n", Then::Hold);
    let callee = Served::echo(EchoOptions::default());
    for (address, path, error) in [
        (dying, "/", "connection closed before the response ended"),
        (garbage, "/", "not an HTTP/1.1 response head"),
        (callee.address, "/?status=503", ""),
    ] {
        let calls = vec![LoadTarget::parse(&format!("http://{address}{path}")).unwrap()];
        let server = Served::echo(EchoOptions {
            calls,
            ..EchoOptions::default()
        });
        let answer = exchange(server.connect(), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"),
            "{answer}"
        );
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let json: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(json["calls"][0]["error"].as_str().unwrap_or(""), error);
    }
}

#[test]
fn stopping_answers_what_was_begun_and_closes_the_rest() {
    let server = Served::echo(EchoOptions::default());
    let idle = server.connect();
    let mut busy = server.connect();
    busy.write_all(
        b"GET /?size=1 HTTP/1.1\r\nHost: a\r\n\r\nGET /?delay=200ms HTTP/1.1\r\nHost: a\r\n\r\n",
    )
    .unwrap();
    // The first answer proves that the second request has been read.
    let mut first = [0; 64];
    assert!(busy.read(&mut first).unwrap() > 0);
    server.finish().unwrap();
    let mut rest = String::new();
    busy.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("200 OK\r\n") && rest.contains("Connection: close\r\n"),
        "{rest}"
    );
    assert_eq!(exchange(idle, b""), "");
}

#[test]
fn probability_lists_are_shares_of_a_hundred() {
    let parse = |text| {
        WeightedValue::parse(text, 0, |part: &str| {
            part.parse::<u32>().map_err(|error| error.to_string())
        })
    };
    assert_eq!(parse("7").unwrap().pick(|| 0.99), 7);
    let list = parse("2:10,5:5").unwrap();
    for (random, value) in [
        (0.0, 2),
        (0.0999, 2),
        (0.1001, 5),
        (0.1499, 5),
        (0.1501, 0),
        (0.999, 0),
    ] {
        assert_eq!(list.pick(|| random), value, "{random}");
    }
    for text in ["1:60,2:50", "1:x", "1:-1", "1:101", "1,2", "x"] {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_stall_holds_back_what_falls_into_it() {
    let stall = Stall::parse("5s:200ms").unwrap();
    assert_eq!(
        stall,
        Stall {
            every: Duration::from_secs(5),
            length: Duration::from_millis(200)
        }
    );
    const MS: u64 = 1_000_000;
    for (at, released) in [
        (0, 0),
        (100, 100),
        (4_999, 4_999),
        (5_000, 5_200),
        (5_199, 5_200),
        (5_200, 5_200),
        (10_001, 10_200),
    ] {
        assert_eq!(stall.release(at * MS), released * MS, "{at} ms");
    }
    for text in ["5s", "5s:5s", "1s:2s", "0:0", "x:1s"] {
        assert!(Stall::parse(text).is_err(), "{text}");
    }
}

#[test]
fn answers_are_compressed_for_clients_that_take_it() {
    let server = Served::echo(EchoOptions::default());
    for (target, accepts, squeezed) in [
        ("/?size=100000&gzip=true", "gzip", true),
        ("/?size=100000&gzip=100", "br;q=1, gzip;q=0.5", true),
        ("/?size=100000&gzip=true", "gzip;q=0", false),
        ("/?size=100000&gzip=true", "br", false),
        ("/?size=100000&gzip=0", "gzip", false),
        ("/?size=100000", "gzip", false),
    ] {
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: {accepts}\r\n\r\n");
        let mut stream = server.connect();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap()
            + 4;
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        assert_eq!(
            head.contains("Content-Encoding: gzip"),
            squeezed,
            "{target} {accepts}: {head}"
        );
        let mut body = Vec::new();
        if squeezed {
            let mut decoder = flate2::read::GzDecoder::new(&answer[end..]);
            decoder.read_to_end(&mut body).unwrap();
        } else {
            body.extend_from_slice(&answer[end..]);
        }
        assert_eq!(body, vec![b'v'; 100_000], "{target} {accepts}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", answer.len() - end)));
    }
}

#[test]
fn a_delay_for_each_waiting_request_grows_with_them() {
    let server = Served::echo(EchoOptions::default());
    let mut options = server.load("/?delay-per-request=5ms");
    options.rate = 0.0;
    let mut least = |connections: usize| {
        options.connections = connections;
        let result = voile_load::run(&options, &voile_load::Stop::new().unwrap(), false).unwrap();
        assert_eq!(result.ok, result.scheduled);
        result.service_us.p50
    };
    assert!(least(1) >= 5_000);
    // Of sixteen that wait together, half have eight before them.
    assert!(least(16) >= 35_000);
}

#[test]
fn requests_without_a_query_are_answered_by_the_usual_one() {
    let server = Served::echo(EchoOptions {
        query: "status=503&size=7&header=X-A:b&gzip=true".to_owned(),
        ..EchoOptions::default()
    });
    let usual = exchange(server.connect(), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(usual.starts_with("HTTP/1.1 503 "), "{usual}");
    assert!(
        usual.contains("\r\nX-A: b\r\n") && usual.ends_with("\r\n\r\nvvvvvvv"),
        "{usual}"
    );
    let own = exchange(
        server.connect(),
        b"GET /?size=3 HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    assert!(
        own.starts_with("HTTP/1.1 200 ") && own.ends_with("\r\n\r\nvvv"),
        "{own}"
    );
    let packed = b"GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";
    let packed = exchange(server.connect(), packed);
    assert!(
        packed.to_lowercase().contains("content-encoding: gzip"),
        "{packed}"
    );
    let wrong = voile_load::echo::Echo::bind(EchoOptions {
        query: "status=much".to_owned(),
        ..EchoOptions::default()
    });
    assert!(
        wrong
            .unwrap_err()
            .to_string()
            .contains("query argument status")
    );
}
