//! The response reader as a table; every answer is fed whole, split at every byte, and byte by byte.

use voile_load::response::{Reader, Response};

/// The response, and how many bytes followed it; or the reason for refusal.
type Read = Result<Option<(Response, usize)>, String>;

fn read(pieces: &[&[u8]], head_request: bool, closed: bool) -> Read {
    let mut reader = Reader::new(head_request);
    let total: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut seen = 0;
    for piece in pieces {
        let (used, response) = reader.feed(piece).map_err(|error| error.to_string())?;
        seen += used;
        if let Some(response) = response {
            return Ok(Some((response, total - seen)));
        }
        assert_eq!(used, piece.len(), "an unfinished response uses all bytes");
    }
    let ended = if closed { reader.end_of_stream() } else { None };
    Ok(ended.map(|response| (response, 0)))
}

fn check_with(bytes: &[u8], head_request: bool, closed: bool, expected: &Read) {
    let told = String::from_utf8_lossy(bytes);
    assert_eq!(
        &read(&[bytes], head_request, closed),
        expected,
        "whole: {told}"
    );
    for at in 1..bytes.len() {
        let split = read(&[&bytes[..at], &bytes[at..]], head_request, closed);
        assert_eq!(&split, expected, "split at {at}: {told}");
    }
    let each: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(
        &read(&each, head_request, closed),
        expected,
        "byte by byte: {told}"
    );
}

fn is(bytes: &str, status: u16, body: u64, close: bool, surplus: usize) {
    let expected = Ok(Some((
        Response {
            status,
            body,
            close,
        },
        surplus,
    )));
    check_with(bytes.as_bytes(), false, false, &expected);
}

fn refused(bytes: &str, reason: &str) {
    check_with(bytes.as_bytes(), false, false, &Err(reason.to_owned()));
}

#[test]
fn framing_decides_where_a_response_ends() {
    is(
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        200,
        5,
        false,
        0,
    );
    is(
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        200,
        0,
        false,
        0,
    );
    is(
        "HTTP/1.1 200 \r\nContent-Length: 2\r\nConnection: Close\r\n\r\nhi",
        200,
        2,
        true,
        0,
    );
    is(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: foo , close\r\n\r\nhi",
        200,
        2,
        true,
        0,
    );
    is("HTTP/1.1 204 No Content\r\n\r\n", 204, 0, false, 0);
    is(
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n",
        304,
        0,
        false,
        0,
    );
    is(
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc",
        200,
        1,
        false,
        2,
    );
    is(
        "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
        200,
        1,
        true,
        0,
    );
    is(
        "HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\na",
        200,
        1,
        false,
        0,
    );
    is(
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        200,
        1,
        false,
        0,
    );
}

#[test]
fn chunks_are_counted_without_their_framing() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    is(&format!("{head}5\r\nhello\r\n0\r\n\r\n"), 200, 5, false, 0);
    is(
        &format!("{head}5;x=y\r\nhello\r\nA \r\n0123456789\r\n0\r\nT: 1\r\n\r\n"),
        200,
        15,
        false,
        0,
    );
    is(&format!("{head}0\r\n\r\nHTTP"), 200, 0, false, 4);
}

#[test]
fn interim_responses_are_passed_over() {
    is(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
        200,
        1,
        false,
        0,
    );
    is(
        "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 102 P\r\n\r\nHTTP/1.1 204 N\r\n\r\n",
        204,
        0,
        false,
        0,
    );
    is("HTTP/1.1 101 Switching Protocols\r\n\r\n", 101, 0, true, 0);
}

#[test]
fn a_response_without_framing_ends_with_the_connection() {
    let bytes = b"HTTP/1.1 200 OK\r\n\r\nall of this";
    let whole = Response {
        status: 200,
        body: 11,
        close: true,
    };
    check_with(bytes, false, true, &Ok(Some((whole, 0))));
    check_with(bytes, false, false, &Ok(None));
}

#[test]
fn a_cut_response_is_no_response() {
    for cut in [
        "HTTP/1.1 200 OK\r\nContent-Le",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    ] {
        check_with(cut.as_bytes(), false, true, &Ok(None));
    }
}

#[test]
fn a_head_request_has_no_body_whatever_the_fields_say() {
    let none = |status| {
        Ok(Some((
            Response {
                status,
                body: 0,
                close: false,
            },
            0,
        )))
    };
    check_with(
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        true,
        false,
        &none(200),
    );
    check_with(
        b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n",
        true,
        false,
        &none(404),
    );
}

#[test]
fn ambiguous_or_broken_responses_are_refused() {
    let head = "HTTP/1.1 200 OK\r\n";
    refused("SSH-2.0-OpenSSH_9.2\r\n", "not an HTTP/1.1 response head");
    refused("HTTP/1.1 042 Low\r\n\r\n", "status code below 100");
    refused(
        &format!("{head}Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        "two different Content-Length fields",
    );
    for value in ["+1", "-1", "1x", "0x1", "1, 1", "", "9999999999999999999"] {
        refused(
            &format!("{head}Content-Length: {value}\r\n\r\n"),
            "Content-Length is not a number",
        );
    }
    let both = "both Content-Length and Transfer-Encoding";
    refused(
        &format!("{head}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        both,
    );
    for value in ["gzip", "gzip, chunked", "chunked, chunked", "xchunked"] {
        let reason = "Transfer-Encoding other than one chunked";
        refused(&format!("{head}Transfer-Encoding: {value}\r\n\r\n"), reason);
    }
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
    for size in ["", "x", "-1", "0x5", "fffffffffffffffff"] {
        refused(
            &format!("{chunked}{size}\r\n"),
            "chunk size is not a hexadecimal number",
        );
    }
    refused(
        &format!("{chunked}1\r\nab\r\n"),
        "chunk longer than its size",
    );
    refused(
        &format!("{chunked}1\na\r\n"),
        "line between chunks ends without CR",
    );
    refused(
        &format!("{chunked}0\r\nno colon\r\n"),
        "trailer field without a colon",
    );
}

#[test]
fn limits_hold_against_endless_heads_and_lines() {
    let mut reader = Reader::new(false);
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "a".repeat(70_000));
    assert!(reader.feed(endless.as_bytes()).is_err());
    let mut reader = Reader::new(false);
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(200));
    assert!(reader.feed(many.as_bytes()).is_err());
    let mut reader = Reader::new(false);
    let head = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;{}",
        "x".repeat(9_000)
    );
    assert!(reader.feed(head.as_bytes()).is_err());
}
