//! The echo server over TLS and WebSocket, and compressed over HTTP/2: by our own generator, and by frames that no honest client
//! sends.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use voile_load::echo::{Echo, EchoOptions, ServerTlsOptions};
use voile_load::{LoadOptions, LoadResult, LoadTarget, Stop, TlsOptions};
use voile_testkit::prerequisites::{Prerequisite, program};

use crate::server::{PATIENCE, Served, loopback};

/// A server with TLS, and the file of the certificate that it has made.
fn sealed(folder: &tempfile::TempDir) -> (Served, PathBuf) {
    let cert = folder.path().join("cert.pem");
    let tls = ServerTlsOptions {
        names: vec!["shop.example".to_owned(), "127.0.0.1".to_owned()],
        write: Some(cert.clone()),
        ..ServerTlsOptions::default()
    };
    let server = Served::at(EchoOptions {
        listen_tls: vec![loopback()],
        tls: Some(tls.load().unwrap()),
        ..EchoOptions::default()
    });
    (server, cert)
}

fn options(url: &str) -> LoadOptions {
    let mut options = LoadOptions::new(LoadTarget::parse(url).unwrap());
    (options.rate, options.connections) = (200.0, 2);
    options.duration = Duration::from_millis(250);
    options.timeout = PATIENCE;
    options
}

fn run(options: &LoadOptions) -> LoadResult {
    voile_load::run(options, &Stop::new().unwrap(), false).unwrap()
}

#[test]
fn every_protocol_is_served_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (server, cert) = sealed(&folder);
    let at = server.address;
    for (url, body, reads) in [
        (format!("https://{at}/?size=300000"), 0, Some(300_000)),
        (format!("https://{at}/"), 200_000, Some(200_000)),
        (format!("https://{at}/?close=true&size=5"), 0, Some(5)),
        (format!("h2://{at}/?size=300000"), 0, Some(300_000)),
        (
            format!("grpcs://{at}/voile.echo.v1.Echo/Unary"),
            100,
            Some(102),
        ),
        (format!("wss://{at}/chat"), 70_000, None),
    ] {
        let mut options = options(&url);
        options.body = vec![b'x'; body];
        if body > 0 && url.starts_with("https") {
            options.method = "POST".to_owned();
        }
        options.expect_size = reads;
        let tls = TlsOptions {
            cacert: Some(cert.clone()),
            ..TlsOptions::default()
        };
        options.tls = Some(tls.load(options.protocol, &options.target).unwrap());
        let result = run(&options);
        assert_eq!(
            (result.ok, result.errors_total),
            (50, 0),
            "{url}: {:?}",
            result.errors
        );
        assert!(
            result
                .tls
                .as_deref()
                .unwrap_or_default()
                .starts_with("TLSv1_3"),
            "{:?}",
            result.tls
        );
    }
}

#[test]
fn clients_without_the_certificate_that_is_asked_for_are_turned_away() {
    let folder = tempfile::tempdir().unwrap();
    let (_, cert) = sealed(&folder);
    let tls = ServerTlsOptions {
        clients: Some(cert),
        names: vec!["127.0.0.1".to_owned()],
        ..ServerTlsOptions::default()
    };
    let server = Served::at(EchoOptions {
        listen_tls: vec![loopback()],
        tls: Some(tls.load().unwrap()),
        ..EchoOptions::default()
    });
    let mut options = options(&format!("https://{}/", server.address));
    let tls = TlsOptions {
        insecure: true,
        ..TlsOptions::default()
    };
    options.tls = Some(tls.load(options.protocol, &options.target).unwrap());
    let result = run(&options);
    assert_eq!(result.ok, 0, "{:?}", result.errors);
}

#[test]
fn a_server_without_a_certificate_serves_no_tls() {
    let echo = Echo::bind(EchoOptions {
        listen_tls: vec![loopback()],
        ..EchoOptions::default()
    });
    assert!(echo.unwrap_err().to_string().contains("certificate"));
    let missing = ServerTlsOptions {
        files: Some(("/no/cert".into(), "/no/key".into())),
        ..ServerTlsOptions::default()
    };
    assert!(missing.load().unwrap_err().contains("/no/"));
}

#[test]
fn websocket_messages_come_back_or_as_long_as_the_upgrade_says() {
    let server = Served::echo(EchoOptions::default());
    let at = server.address;
    for (path, body) in [
        ("", 1),
        ("", 125),
        ("", 126),
        ("", 65_535),
        ("", 70_000),
        ("?delay=1ms", 10),
    ] {
        let mut options = options(&format!("ws://{at}/{path}"));
        options.body = vec![b'x'; body];
        let result = run(&options);
        assert_eq!(
            (result.ok, result.errors_total),
            (50, 0),
            "{path} {body}: {:?}",
            result.errors
        );
    }
    let mut options = options(&format!("ws://{at}/?size=7"));
    options.body = vec![b'x'; 3];
    options.expect_size = Some(7);
    assert_eq!(run(&options).ok, 50);
}

/// Sends the upgrade and then bytes; returns the bytes after the 101.
fn frames(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let upgrade = "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream
        .write_all(&[upgrade.as_bytes(), bytes].concat())
        .unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .unwrap()
        + 4;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    // The answer that RFC 6455 gives for this key.
    assert!(
        head.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        "{head}"
    );
    answer.split_off(end)
}

#[test]
fn frames_are_answered_by_the_rules_of_rfc_6455() {
    let server = Served::echo(EchoOptions::default());
    let mask = [0, 0, 0, 0];
    let frame = |first: u8, second: u8, payload: &[u8]| {
        [&[first, second | 0x80], &mask[..], payload].concat()
    };
    let closed = |code: u16| [&[0x88, 2], &code.to_be_bytes()[..]].concat();
    for (sent, wanted, why) in [
        (frame(0x82, 2, b"hi"), b"\x82\x02hi".to_vec(), "a message"),
        (frame(0x81, 2, b"hi"), b"\x81\x02hi".to_vec(), "text"),
        (
            [
                frame(0x01, 1, b"h"),
                frame(0x89, 1, b"p"),
                frame(0x80, 1, b"i"),
            ]
            .concat(),
            b"\x8a\x01p\x81\x02hi".to_vec(),
            "a ping within a message in pieces",
        ),
        (
            frame(0x88, 2, &1000u16.to_be_bytes()),
            closed(1000),
            "a close",
        ),
        (frame(0x82, 0, b""), b"\x82\x00".to_vec(), "nothing"),
        (b"\x82\x02hi".to_vec(), closed(1002), "not masked"),
        (frame(0x80, 1, b"x"), closed(1002), "continues nothing"),
        (frame(0x83, 1, b"x"), closed(1002), "an unknown kind"),
        (frame(0xc2, 1, b"x"), closed(1002), "an extension"),
        (frame(0x09, 1, b"x"), closed(1002), "a ping in pieces"),
        (frame(0x81, 1, b"\xff"), closed(1007), "text that is none"),
        (
            [&[0x82, 0xff][..], &(1u64 << 40).to_be_bytes(), &mask].concat(),
            closed(1009),
            "a terabyte",
        ),
        (vec![0x82], Vec::new(), "half a head"),
    ] {
        assert_eq!(frames(server.address, &sent), wanted, "{why}");
    }
}

#[test]
fn curl_takes_compressed_answers_over_http2_and_gets_its_type_back() {
    let Some(curl) = program(Prerequisite::Curl, "curl") else {
        return;
    };
    let server = Served::echo(EchoOptions::default());
    let url = format!("http://{}/?gzip=true&size=50000", server.address);
    let curl = |arguments: &[&str]| {
        let output = std::process::Command::new(&curl)
            .args(["--silent", "--include"])
            .args(arguments)
            .output();
        String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
    };
    let answer = curl(&["--http2-prior-knowledge", "--compressed", &url]);
    assert!(answer.contains("content-encoding: gzip\r\n"), "{answer}");
    assert!(answer.ends_with(&"v".repeat(50_000)));
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let url = format!("http://{}/", server.address);
        let answer = curl(&[
            version,
            "-H",
            "Content-Type: application/x-own",
            "-d",
            "hi",
            &url,
        ]);
        let lower = answer.to_ascii_lowercase();
        assert!(
            lower.contains("content-type: application/x-own\r\n") && answer.ends_with("hi"),
            "{answer}"
        );
    }
}
