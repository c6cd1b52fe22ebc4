//! Datagrams, and raw bytes over TLS: our server with our generator, a server that answers badly, and Fortio where it is here.

use std::net::UdpSocket;
use std::time::Duration;

use voile_load::echo::{EchoOptions, ServerTlsOptions};
use voile_load::{LoadOptions, LoadResult, LoadTarget, Stop, TlsOptions};
use voile_testkit::prerequisites::{Prerequisite, program};

use crate::server::{PATIENCE, Served, loopback};

fn options(url: &str) -> LoadOptions {
    let mut options = LoadOptions::new(LoadTarget::parse(url).unwrap());
    (options.rate, options.connections) = (500.0, 4);
    options.duration = Duration::from_millis(200);
    options.timeout = PATIENCE;
    options.body = vec![b'x'; 1000];
    options
}

fn run(options: &LoadOptions) -> LoadResult {
    voile_load::run(options, &Stop::new().unwrap(), false).unwrap()
}

fn udp() -> Served {
    Served::at(EchoOptions {
        udp: vec![loopback()],
        ..EchoOptions::default()
    })
}

#[test]
fn datagrams_come_back() {
    let server = udp();
    let mut options = options(&format!("udp://{}", server.address));
    for size in [1, 1000, 60_000] {
        options.body = vec![b'x'; size];
        // Several as large as that are more than a socket's buffer holds.
        options.connections = if size > 10_000 { 1 } else { 4 };
        let result = run(&options);
        assert_eq!((result.ok, result.errors_total), (100, 0), "{size}");
        assert_eq!(result.bytes.body, 100 * size as u64);
        assert_eq!(result.options.protocol, "udp");
        let json = result.to_fortio(&voile_load::fortio::FortioForm::default());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["RunType"], "UDP");
        assert_eq!(json["RetCodes"], serde_json::json!({"OK": 100}));
    }
    // One after the other, as many as go; and a socket for each.
    (options.rate, options.requests) = (0.0, Some(1001));
    (options.threads, options.body) = (3, vec![b'x'; 10]);
    options.duration = voile_load::options::UNTIL_STOPPED;
    options.keepalive = false;
    options.connections = 4;
    let result = run(&options);
    assert_eq!(
        (result.ok, result.errors_total, result.sent),
        (1001, 0, 1001)
    );
    assert_eq!(result.connects, 1001);
    assert!(result.valid, "{:?}", result.invalid_reasons);
}

#[test]
fn where_nobody_listens_every_datagram_is_a_connection_that_could_not_be_made() {
    // A socket that is connected elsewhere holds the port against the tests that run beside this one, and takes nothing from us.
    let elsewhere = UdpSocket::bind(loopback()).unwrap();
    let holder = UdpSocket::bind(loopback()).unwrap();
    holder.connect(elsewhere.local_addr().unwrap()).unwrap();
    let address = holder.local_addr().unwrap();
    let result = run(&options(&format!("udp://{address}")));
    assert_eq!(result.ok, 0);
    assert_eq!(result.errors_total, result.scheduled);
    assert!(result.errors["connect"] > 0, "{:?}", result.errors);
}

/// Answers each datagram by a word of its own: every third twice, of every seventh only half.
fn misbehaving() -> std::net::SocketAddr {
    let socket = UdpSocket::bind(loopback()).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        for number in 0u64.. {
            let Ok((count, from)) = socket.recv_from(&mut buffer) else {
                return;
            };
            let half = if number % 7 == 6 { count / 2 } else { count };
            let times = if number % 3 == 2 { 2 } else { 1 };
            for _ in 0..times {
                let _ = socket.send_to(&buffer[..half], from);
            }
        }
    });
    address
}

#[test]
fn what_comes_twice_answers_nobody_and_half_an_answer_is_an_error() {
    let mut options = options(&format!("udp://{}", misbehaving()));
    options.connections = 1;
    let result = run(&options);
    assert_eq!(result.scheduled, 100);
    assert_eq!(
        result.ok + result.errors["size"],
        100,
        "{:?}",
        result.errors
    );
    // Every seventh by the server's own count, 14 of them. A copy that overtakes the next request is its answer, and no more than that
    // one is: answers are not pushed along.
    assert!(result.errors["size"] >= 10, "{:?}", result.errors);
    assert!(result.unsolicited > 0);
}

#[test]
fn bytes_come_back_over_tls() {
    let made = ServerTlsOptions {
        names: vec!["127.0.0.1".to_owned()],
        ..ServerTlsOptions::default()
    };
    let server = Served::at(EchoOptions {
        tcp_tls: vec![loopback()],
        tls: Some(made.load().unwrap()),
        threads: 2,
        ..EchoOptions::default()
    });
    let trusting = TlsOptions {
        insecure: true,
        ..TlsOptions::default()
    };
    let mut options = options(&format!("tls://{}", server.address));
    options.tls = Some(trusting.load(options.protocol, &options.target).unwrap());
    for size in [1, 1000, 1_000_000] {
        options.body = vec![b'x'; size];
        options.keepalive = size != 1000;
        let result = run(&options);
        assert_eq!((result.ok, result.errors_total), (100, 0), "{size}");
        assert_eq!(result.bytes.body, 100 * size as u64);
        assert!(result.tls.as_deref().is_some_and(|tls| tls.contains("TLS")));
    }
    // In plaintext it is no echo, and the server lives on.
    let mut plain = options.clone();
    plain.target = LoadTarget::parse(&format!("tcp://{}", server.address)).unwrap();
    plain.tls = None;
    plain.body = vec![b'x'; 100];
    assert_eq!(run(&plain).ok, 0);
    options.body = vec![b'x'; 10];
    assert_eq!(run(&options).ok, 100);
}

#[test]
fn fortio_and_our_udp_server_understand_each_other() {
    let Some(fortio) = program(Prerequisite::Fortio, "fortio") else {
        return;
    };
    let server = udp();
    let arguments = [
        "load",
        "-quiet",
        "-qps",
        "500",
        "-n",
        "100",
        "-c",
        "2",
        "-json",
        "-",
        &format!("udp://{}", server.address),
    ];
    let output = std::process::Command::new(fortio)
        .args(arguments)
        .output()
        .unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["RetCodes"]["OK"], 100, "{json}");
}
