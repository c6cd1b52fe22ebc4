//! Questions over TLS: any certificate will do, as for a kubelet; an answer without TLS is reported as that.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, ServerConnection, Stream, SupportedProtocolVersion};
use voile_http2::{Config, Connection, Fields, Link, Pool, SendResponse};
use voile_probe::{ProbeOrigin, ProbeRequest, ask};

use super::{LONG, server};

/// Self-signed, for another name, and expired long ago: the worst certificate of a neglected application.
fn worst_certificate() -> (
    rustls::pki_types::CertificateDer<'static>,
    PrivateKeyDer<'static>,
) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["elsewhere.test".to_owned()]).expect("params");
    params.not_before = date_time_ymd(1999, 1, 1);
    params.not_after = date_time_ymd(2000, 1, 1);
    let certificate = params.self_signed(&key).expect("signed");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    (certificate.der().clone(), key)
}

fn config(version: &'static SupportedProtocolVersion, alpn: &[&str]) -> Arc<ServerConfig> {
    let (certificate, key) = worst_certificate();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate");
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A server of that version only; returns the request, and if the client closed properly.
fn https(
    version: &'static SupportedProtocolVersion,
    answers: Vec<String>,
) -> (SocketAddr, thread::JoinHandle<Vec<(String, bool)>>) {
    let config = config(version, &[]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound");
    let thread = thread::spawn(move || {
        let serve = |answer: String| {
            let (mut socket, _) = listener.accept().expect("a connection");
            let mut connection = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            let mut stream = Stream::new(&mut connection, &mut socket);
            let mut buffer = [0; 4096];
            let read = stream.read(&mut buffer).expect("a request");
            stream.write_all(answer.as_bytes()).expect("sent");
            let farewell = stream.read_to_end(&mut Vec::new()).is_ok();
            (
                String::from_utf8_lossy(&buffer[..read]).into_owned(),
                farewell,
            )
        };
        answers.into_iter().map(serve).collect()
    });
    (address, thread)
}

fn question(tls: bool, path: &str) -> ProbeRequest {
    ProbeRequest::Http {
        tls,
        path: path.to_owned(),
        headers: Vec::new(),
    }
}

#[test]
fn whoever_answers_is_believed() {
    for version in [&TLS12, &TLS13] {
        let good = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let bad = "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n";
        let (address, thread) = https(version, vec![good.to_owned(), bad.to_owned()]);
        assert_eq!(
            ask(
                address,
                ProbeOrigin::default(),
                &question(true, "/healthz"),
                LONG
            ),
            Ok(200)
        );
        let failure =
            ask(address, ProbeOrigin::default(), &question(true, "/"), LONG).expect_err("503");
        assert_eq!(failure.status, Some(503));
        let why = format!("https://{address}/ answers 503");
        assert_eq!(failure.why, why);
        let asked = thread.join().expect("no panic");
        assert!(
            asked[0].0.starts_with("GET /healthz HTTP/1.1\r\n"),
            "{asked:?}"
        );
        assert!(asked.iter().all(|(_, farewell)| *farewell), "{asked:?}");
    }
}

#[test]
fn a_redirect_from_http_to_https_is_followed() {
    let good = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let (secure, answering) = https(&TLS13, vec![good.to_owned()]);
    let location = format!("HTTP/1.1 301 x\r\nLocation: https://{secure}/\r\n\r\n");
    let (open, redirecting) = server(vec![location.into_bytes()]);
    assert_eq!(
        ask(open, ProbeOrigin::default(), &question(false, "/"), LONG),
        Ok(200)
    );
    redirecting.join().expect("no panic");
    answering.join().expect("no panic");
}

#[test]
fn what_is_no_tls_is_said_to_be_none() {
    let (address, thread) = server(vec![b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]);
    let failure =
        ask(address, ProbeOrigin::default(), &question(true, "/"), LONG).expect_err("no TLS");
    assert_eq!((failure.status, failure.refused), (None, false));
    assert!(failure.why.contains("TLS: "), "{failure}");
    thread.join().expect("no panic");
    let (address, thread) = server(vec![Vec::new()]);
    let failure =
        ask(address, ProbeOrigin::default(), &question(true, "/"), LONG).expect_err("nothing");
    assert!(failure.why.contains("https://"), "{failure}");
    thread.join().expect("no panic");
}

static GENEROUS: Config = Config {
    stream_window: 65_535,
    connection_window: 65_535,
    max_header_list: 16_384,
    max_continuations: 8,
    max_peer_streams: 1,
    initial_streams: 0,
    max_remembered_resets: 8,
    max_unseen_resets: 8,
    max_provoked_resets: 8,
    forgiving_streams: 8,
    max_unsent: 1 << 20,
    max_empty_frames: 8,
    max_interim: 8,
    max_heads: 1 << 20,
    max_window_changes: 8,
};

/// Serves the one request of an HTTP/2 connection; gives its head, and whether the asker said GOAWAY.
fn by_http2(
    stream: &mut (impl Read + Write),
    answer: impl FnOnce(&mut SendResponse),
) -> (Fields, bool) {
    let link = Link::new(Connection::server(&GENEROUS, Pool::new()));
    let mut answer = Some(answer);
    let mut asked = None;
    let mut bytes = [0; 4096];
    let mut said = Vec::new();
    loop {
        if let Some((head, _body, mut respond)) = link.accept() {
            answer.take().expect("one request")(&mut respond);
            asked = Some(head);
        }
        let mut connection = link.borrow();
        let out = connection.output().to_vec();
        connection.wrote(out.len());
        // A client that has read enough closes the connection.
        let gone = stream
            .write_all(&out)
            .and_then(|()| stream.flush())
            .is_err();
        match stream.read(&mut bytes) {
            Ok(read @ 1..) if !gone => {
                said.extend_from_slice(&bytes[..read]);
                connection.receive(&bytes[..read]);
            }
            _ => break,
        }
    }
    let goaway = said.windows(5).any(|five| five == [8, 7, 0, 0, 0]);
    (asked.expect("a request"), goaway)
}

/// Answers one question by the agreed protocol; returns the request, or nothing without agreement.
fn answer_either(config: Arc<ServerConfig>, listener: &TcpListener) -> Option<String> {
    let (mut socket, _) = listener.accept().expect("a connection");
    let mut connection = ServerConnection::new(config).expect("a connection");
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).ok()?;
    }
    let http2 = connection.alpn_protocol() == Some(b"h2");
    let mut stream = Stream::new(&mut connection, &mut socket);
    if !http2 {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).expect("a request");
        let answer = b"HTTP/1.1 203 x\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).expect("sent");
        let asked = String::from_utf8_lossy(&buffer[..read]).into_owned();
        return asked.lines().next().map(str::to_owned);
    }
    let (head, goaway) = by_http2(&mut stream, |respond| {
        let mut hints = Fields::response(103);
        hints.push("link", b"</x>");
        respond.send_informational(hints).expect("sent");
        let body = respond.send_response(Fields::response(203), false);
        let sent = body
            .expect("sent")
            .send_data(vec![b'x'; 30_000].into(), true);
        sent.expect("sent");
    });
    assert!(goaway, "a farewell");
    let fields: Vec<_> = head.iter().map(|(name, _)| name).collect();
    assert_eq!(fields, ["user-agent", "accept", "x-probe"]);
    let path = head.path().expect("a path");
    let authority = head.authority().expect("an authority");
    let scheme = head.scheme().expect("a scheme");
    Some(format!("{} {scheme}://{authority}{path}", head.method()))
}

#[test]
fn the_server_chooses_between_http2_and_http1_as_a_kubelet_lets_it() {
    let (one, two) = ("GET /up?x=1 HTTP/1.1", "GET https://shop.test/up?x=1");
    // (the server's protocols) -> the request; nothing where none is in common
    let table: [(&[&str], Option<&str>); 6] = [
        (&[], Some(one)),
        (&["http/1.1"], Some(one)),
        (&["h2"], Some(two)),
        (&["h2", "http/1.1"], Some(two)),
        (&["http/1.1", "h2"], Some(one)),
        (&["foo"], None),
    ];
    for (alpn, expected) in table {
        let config = config(&TLS13, alpn);
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("bound");
        let thread = thread::spawn(move || answer_either(config, &listener));
        let question = ProbeRequest::Http {
            tls: true,
            path: "/up?x=1".to_owned(),
            headers: vec![
                ("HOST".to_owned(), "shop.test".to_owned()),
                ("X-Probe".to_owned(), "yes".to_owned()),
            ],
        };
        let found = ask(address, ProbeOrigin::default(), &question, LONG);
        assert_eq!(thread.join().expect("no panic").as_deref(), expected);
        match expected {
            Some(_) => assert_eq!(found, Ok(203), "{alpn:?}"),
            None => {
                let failure = found.expect_err("nothing in common");
                assert!(failure.why.contains("TLS: "), "{failure}");
            }
        }
    }
}

#[test]
fn an_answer_by_http2_that_is_none_is_no_good_health() {
    type Answer = fn(&mut SendResponse);
    let table: [(Answer, &str); 3] = [
        (
            |respond| {
                let answered = respond.send_response(Fields::response(503), true);
                answered.map(drop).expect("sent");
            },
            "answers 503",
        ),
        (
            |respond| respond.send_reset(voile_http2::ErrorCode::INTERNAL_ERROR),
            "the server reset the request",
        ),
        (
            |respond| {
                let mut head = Fields::response(200);
                head.push("content-length", b"9");
                let mut body = respond.send_response(head, false).expect("sent");
                body.send_data(b"ok".to_vec().into(), true).expect("sent");
            },
            "violates HTTP/2",
        ),
    ];
    for (answer, expected) in table {
        let config = config(&TLS13, &["h2"]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("bound");
        let thread = thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a connection");
            let mut connection = ServerConnection::new(config).expect("a connection");
            by_http2(&mut Stream::new(&mut connection, &mut socket), answer);
        });
        let failure =
            ask(address, ProbeOrigin::default(), &question(true, "/"), LONG).expect_err(expected);
        assert!(failure.why.contains(expected), "{failure}");
        thread.join().expect("no panic");
    }
}
