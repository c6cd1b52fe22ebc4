//! Load over HTTP/2, gRPC and plain TCP against our own echo server.

use std::time::Duration;

use voile_load::echo::EchoOptions;
use voile_load::{LoadOptions, LoadResult, LoadTarget, Stop, grpc};

use crate::server::{PATIENCE, Served, loopback};

fn run(options: &LoadOptions) -> LoadResult {
    voile_load::run(options, &Stop::new().unwrap(), false).unwrap()
}

fn load(url: &str) -> LoadOptions {
    let mut options = LoadOptions::new(LoadTarget::parse(url).unwrap());
    options.rate = 500.0;
    options.duration = Duration::from_millis(200);
    options.timeout = PATIENCE;
    options
}

/// All of 100 requests are answered well, with so many bytes each.
fn good(options: &LoadOptions, body: u64) -> LoadResult {
    let result = run(options);
    assert_eq!(
        (result.scheduled, result.ok),
        (100, 100),
        "{:?}",
        result.errors
    );
    assert_eq!(result.bytes.body, 100 * body);
    result
}

#[test]
fn http2_carries_every_request_and_reuses_its_connections() {
    let server = Served::echo(EchoOptions::default());
    let url = format!("h2c://{}", server.address);
    let result = good(&load(&format!("{url}/?size=1024")), 1024);
    assert_eq!((result.connects, result.status["200"]), (0, 100));
    let mut options = load(&format!("{url}/"));
    options.streams = 8;
    options.connections = 2;
    "POST".clone_into(&mut options.method);
    for size in [1, 16_384, 16_385, 300_000] {
        options.body = vec![b'x'; size];
        good(&options, size as u64);
    }
    "HEAD".clone_into(&mut options.method);
    options.body.clear();
    options.target = LoadTarget::parse(&format!("{url}/?size=70000")).unwrap();
    good(&options, 0);
    "GET".clone_into(&mut options.method);
    good(&options, 70_000);
}

#[test]
fn statuses_and_sizes_are_judged_over_http2_too() {
    let server = Served::echo(EchoOptions::default());
    let mut options = load(&format!("h2c://{}/?status=503&size=5", server.address));
    let result = run(&options);
    assert_eq!(result.errors["status"], 100);
    assert_eq!(result.status["503"], 100);
    options.expect_status = Some(503);
    good(&options, 5);
    options.expect_size = Some(6);
    assert_eq!(run(&options).errors["size"], 100);
}

#[test]
fn grpc_calls_are_judged_by_their_trailers() {
    let server = Served::echo(EchoOptions::default());
    let url = format!("grpc://{}", server.address);
    let result = good(&load(&url), 2);
    assert_eq!(result.status["0"], 100);
    let mut options = load(&format!("{url}{}", grpc::ECHO_UNARY));
    good(&options, 0);
    options.body = vec![b'x'; 1024];
    options.streams = 4;
    good(&options, 1024 + 3);
    options.target = LoadTarget::parse(&format!("{url}{}", grpc::FORTIO_PING)).unwrap();
    let result = run(&options);
    assert_eq!(result.ok, 100);
    options.target = LoadTarget::parse(&format!("{url}{}?size=3000", grpc::ECHO_UNARY)).unwrap();
    good(&options, 3003);
    for (query, status) in [
        ("/none.such/Method", "12"),
        ("/voile.echo.v1.Echo/Unary?grpc-status=14", "14"),
    ] {
        options.target = LoadTarget::parse(&format!("{url}{query}")).unwrap();
        let result = run(&options);
        assert_eq!((result.errors["status"], result.status[status]), (100, 100));
    }
    options.target = LoadTarget::parse(&url).unwrap();
    let refused = options.check().unwrap_err();
    assert!(refused.contains("has no payload"), "{refused}");
}

#[test]
fn a_delay_over_many_streams_is_waited_for_by_each_alone() {
    let server = Served::echo(EchoOptions::default());
    let mut options = load(&format!("h2c://{}/?delay=20ms", server.address));
    options.connections = 1;
    options.streams = 64;
    let result = good(&options, 0);
    assert!(result.service_us.p50 >= 20_000, "{}", result.service_us.p50);
    assert_eq!(result.connects, 0);
}

#[test]
fn tcp_request_and_response_are_so_many_bytes() {
    let server = Served::at(EchoOptions {
        tcp: vec![loopback()],
        ..EchoOptions::default()
    });
    let mut options = load(&format!("tcp://{}", server.address));
    for size in [1, 64, 200_000] {
        options.body = vec![b'x'; size];
        let result = good(&options, size as u64);
        assert_eq!(result.bytes.sent, 100 * size as u64);
        assert!(result.status.is_empty());
    }
    options.body = vec![b'x'; 64];
    options.expect_size = Some(63);
    assert!(run(&options).errors["protocol"] > 0);
}

#[test]
fn streaming_calls_bring_as_many_messages_as_they_must() {
    let server = Served::echo(EchoOptions::default());
    let url = format!("grpc://{}", server.address);
    for (method, out, back) in [
        (grpc::ECHO_STREAM, 50, 50),
        (grpc::ECHO_STREAM, 1, 1),
        (grpc::ECHO_COLLECT, 50, 1),
        ("/voile.echo.v1.Echo/Repeat?messages=20", 1, 20),
    ] {
        let mut options = load(&format!("{url}{method}"));
        options.body = vec![b'x'; 997];
        options.messages = (out, back);
        options.streams = 4;
        // Each message is a field of 997 bytes with a key and a length of two.
        good(&options, u64::from(back) * 1000);
        options.messages = (out, back + 1);
        let result = run(&options);
        assert_eq!(result.errors["protocol"], 100, "{method}: one is missing");
    }
    let mut options = load(&format!("{url}{}", grpc::ECHO_UNARY));
    options.messages = (2, 1);
    assert_eq!(run(&options).status["13"], 100, "a unary method takes one");
    let mut options = load(&format!("h2c://{}/", server.address));
    options.messages = (2, 2);
    assert!(options.check().is_err());
}
