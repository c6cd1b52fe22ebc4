//! Load against servers that answer badly, late, never, or die: every request is counted, under its kind.

use std::time::Duration;

use voile_load::{LoadOptions, LoadResult, Stop};

use crate::server::{ClosedTcpPort, Then, load, scripted};

fn run(options: &LoadOptions) -> LoadResult {
    voile_load::run(options, &Stop::new().unwrap(), false).unwrap()
}

fn kinds(result: &LoadResult) -> Vec<(&'static str, u64)> {
    let counted = result.ok + result.errors_total;
    assert_eq!(
        counted, result.scheduled,
        "every due request is counted once"
    );
    assert_eq!(
        result.latency_us.count, result.scheduled,
        "every due request is a sample"
    );
    result
        .errors
        .iter()
        .map(|(kind, count)| (*kind, *count))
        .collect()
}

/// All of 100 requests end as the one kind, or well when it is empty.
fn check(answer: &'static [u8], then: Then, kind: &'static str) {
    check_with(&load(scripted(answer, then), "/"), kind);
}

fn check_with(options: &LoadOptions, kind: &'static str) {
    let result = run(options);
    let expected = if kind.is_empty() {
        vec![]
    } else {
        vec![(kind, 100)]
    };
    assert_eq!(kinds(&result), expected);
    assert_eq!(result.ok, if kind.is_empty() { 100 } else { 0 });
    if !kind.is_empty() {
        assert!(!result.valid);
    }
}

#[test]
fn proper_answers_of_every_framing_are_good() {
    check(
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        Then::KeepAlive,
        "",
    );
    check(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n0\r\n\r\n",
        Then::KeepAlive,
        "",
    );
    check(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", Then::Close, "");
    check(
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        Then::KeepAlive,
        "",
    );
    check(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\na",
        Then::Close,
        "",
    );
}

#[test]
fn a_server_that_dies_mid_response_is_a_reset() {
    check(
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
        Then::Close,
        "reset",
    );
    check(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
        Then::Close,
        "reset",
    );
    check(b"HTTP/1.1 200", Then::Close, "reset");
    check(b"", Then::Close, "reset");
}

#[test]
fn garbage_and_surplus_are_protocol_errors() {
    check(b"220 mail.example ESMTP\r\n", Then::Hold, "protocol");
    check(b"\0\x01\x02\xff\xfe\r\n\r\n", Then::Hold, "protocol");
    check(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        Then::KeepAlive,
        "protocol",
    );
    check(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
        Then::Hold,
        "protocol",
    );
}

#[test]
fn status_and_size_are_checked() {
    let not_found = scripted(
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n",
        Then::KeepAlive,
    );
    check_with(&load(not_found, "/"), "status");
    let mut options = load(not_found, "/");
    options.expect_status = Some(404);
    check_with(&options, "");
    options.expect_size = Some(3);
    check_with(&options, "");
    options.expect_size = Some(4);
    check_with(&options, "size");
    options.expect_status = Some(200);
    check_with(&options, "status");
}

#[test]
fn a_silent_server_times_out_and_the_wait_is_a_sample() {
    let mut options = load(scripted(b"HTTP/1.1 200 OK\r\nContent-", Then::Hold), "/");
    options.connections = 200;
    options.timeout = Duration::from_millis(100);
    let result = run(&options);
    assert_eq!(kinds(&result), [("timeout", 100)]);
    assert!(
        result.latency_us.p50 >= 100_000,
        "{}",
        result.latency_us.p50
    );
}

#[test]
fn a_closed_port_is_a_connect_error() {
    let closed = ClosedTcpPort::reserve();
    let result = run(&load(closed.address, "/"));
    assert_eq!(kinds(&result), [("connect", 100)]);
    let reasons = result.invalid_reasons.join("; ");
    assert!(reasons.contains("no request was answered"), "{reasons}");
    let causes: Vec<_> = result.causes.keys().map(String::as_str).collect();
    assert_eq!(causes, ["Connection refused"]);
    // Latencies of failures are no latencies.
    let table = result.to_table();
    assert!(
        table.contains(" connections: Connection refused\n"),
        "{table}"
    );
    assert!(!table.contains("\nlatency "), "{table}");
}

#[test]
fn what_has_no_answer_at_the_end_is_an_error_of_its_age() {
    let mut options = load(scripted(b"", Then::Hold), "/");
    options.connections = 1;
    let result = run(&options);
    // One went out; the others never found the connection free.
    assert_eq!(kinds(&result), [("unanswered", 1), ("unsent", 99)]);
    assert_eq!(result.sent, 1);
    // The first was due 200 ms before the end, and answers were awaited for a second.
    assert!(
        result.latency_us.max >= 1_190_000,
        "{}",
        result.latency_us.max
    );
    assert!(
        result.latency_us.p50 >= 1_000_000,
        "{}",
        result.latency_us.p50
    );
    assert!(!result.valid);
}
