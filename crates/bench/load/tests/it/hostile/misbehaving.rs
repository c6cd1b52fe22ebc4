//! Load against servers that answer badly, late, never, or die: every request is counted, under its kind.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use voile_load::echo::EchoOptions;
use voile_load::{LoadCondition, LoadOptions, LoadResult, LoadTarget, Stop};

use crate::server::{ClosedTcpPort, PATIENCE, Served, Then, load, scripted, stranger};

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
    let cause = format!(
        "{}: Connection refused (nothing listens there)",
        closed.address
    );
    assert_eq!(result.causes, BTreeMap::from([(cause.clone(), 100)]));
    assert_eq!(
        result.invalid_reasons,
        [format!("no request was answered: {cause}")],
        "what follows from the cause is no reason of its own"
    );
    // Latencies of failures are no latencies.
    assert_eq!(result.ok_latency_us.count, 0);
    let table = result.to_table();
    assert!(table.contains(&format!(" connect: {cause}\n")), "{table}");
    assert!(!table.contains("p99"), "{table}");
}

/// A run of a minute against a server that never answers ends after a second.
fn gives_up(to: SocketAddr, cause: &str) {
    let mut options = load(to, "/");
    options.duration = Duration::from_secs(60);
    options.timeout = Duration::from_millis(100);
    options.give_up = Duration::from_secs(1);
    let began = Instant::now();
    let result = run(&options);
    assert!(began.elapsed() < PATIENCE, "{cause}");
    let why = result.aborted.clone().expect("it says why");
    assert!(why.starts_with("no request was answered in the first "));
    assert!(why.ends_with(cause), "{why}");
    assert_eq!((result.valid, result.invalid_reasons), (false, vec![why]));
}

#[test]
fn a_run_without_any_answer_ends_early_and_names_the_cause() {
    let closed = ClosedTcpPort::reserve();
    gives_up(closed.address, "(nothing listens there)");
    let silent = scripted(b"", Then::Hold);
    gives_up(silent, "no whole response within --timeout");
}

#[test]
fn a_server_that_answers_badly_or_late_is_measured_to_the_end() {
    let refuses = scripted(
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        Then::KeepAlive,
    );
    let mut options = load(refuses, "/");
    (options.rate, options.duration) = (50.0, Duration::from_millis(1_500));
    options.give_up = Duration::from_secs(1);
    let result = run(&options);
    assert_eq!((result.scheduled, result.aborted), (75, None));
    let slow = Served::echo(EchoOptions::default());
    let mut options = slow.load("/?delay=1200ms");
    (options.rate, options.duration) = (2.0, Duration::from_millis(1_500));
    options.give_up = Duration::from_secs(1);
    let result = run(&options);
    assert_eq!((result.ok, result.aborted), (3, None));
}

#[test]
fn percentiles_are_of_successes_and_failures_are_told_apart() {
    let server = Served::echo(EchoOptions::default());
    let mut options = server.load("/?status=503:50&delay=30ms:50");
    (options.rate, options.connections) = (100.0, 32);
    options.duration = Duration::from_secs(1);
    options.thresholds = LoadCondition::parse("p50<20s,errors<1%", '<').unwrap();
    let result = run(&options);
    assert_eq!(result.ok_latency_us.count, result.ok);
    assert_eq!(result.error_latency_us.count, result.errors_total);
    assert_eq!(result.latency_us.count, result.scheduled);
    let marks: Vec<_> = result.thresholds.iter().map(|one| one.holds).collect();
    assert_eq!(marks, [true, false]);
    let table = result.to_table();
    for part in [
        "✓ p50<20s ",
        "✗ errors<1% ",
        " status: a status other than 2xx or --expect-status\n",
        "\nfailures took ",
        "\nlatency ",
        " ms – ",
        "█",
    ] {
        assert!(table.contains(part), "{part:?}:\n{table}");
    }
}

#[test]
fn a_protocol_that_the_server_does_not_speak_is_named() {
    let alert = stranger(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(&[21, 3, 1, 0, 2, 2, 70]);
    });
    let plain = stranger(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.read(&mut [0; 4096]);
    });
    let http2 = stranger(|mut stream| {
        let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
        let _ = stream.read(&mut [0; 4096]);
    });
    for (url, cause) in [
        (format!("http://{alert}/"), "the server speaks TLS here"),
        (format!("h2c://{plain}/"), "the server speaks HTTP/1.1 here"),
        (format!("http://{http2}/"), "the server speaks HTTP/2 here"),
    ] {
        let mut options = LoadOptions::new(LoadTarget::parse(&url).unwrap());
        options.duration = Duration::from_millis(200);
        options.timeout = Duration::from_millis(500);
        let result = run(&options);
        let named = result.causes.keys().any(|one| one.starts_with(cause));
        assert!(named, "{url}: {:?} {:?}", result.causes, result.errors);
    }
}

#[test]
fn a_search_for_the_capacity_of_nothing_ends_early() {
    let closed = ClosedTcpPort::reserve();
    let mut options = load(closed.address, "/");
    options.duration = Duration::from_secs(60);
    options.give_up = Duration::from_secs(1);
    let bounds = LoadCondition::parse("p99<5ms", '<').unwrap();
    let stop = Stop::new().unwrap();
    let found = voile_load::capacity::find(&options, &bounds, 0.05, &stop, &mut |_| ());
    let why = found.expect_err("nothing answers").to_string();
    assert!(why.contains("Connection refused"), "{why}");
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
