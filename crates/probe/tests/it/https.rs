//! Questions over TLS: any certificate will do, as for a kubelet; what is no TLS is said to be none.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, ServerConnection, Stream, SupportedProtocolVersion};
use voile_probe::{Question, ask};

use super::{LONG, server};

/// Self-signed, for another name, and expired long ago: what an application may have that nobody looked at for years.
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

/// A server of that version only; gives back what it was asked, and whether the asker said farewell.
fn https(
    version: &'static SupportedProtocolVersion,
    answers: Vec<String>,
) -> (SocketAddr, thread::JoinHandle<Vec<(String, bool)>>) {
    let (certificate, key) = worst_certificate();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a certificate");
    let config = Arc::new(config);
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

fn question(tls: bool, path: &str) -> Question {
    Question::Http {
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
            ask(address, None, &question(true, "/healthz"), LONG),
            Ok(200)
        );
        let failure = ask(address, None, &question(true, "/"), LONG).expect_err("503");
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
    assert_eq!(ask(open, None, &question(false, "/"), LONG), Ok(200));
    redirecting.join().expect("no panic");
    answering.join().expect("no panic");
}

#[test]
fn what_is_no_tls_is_said_to_be_none() {
    let (address, thread) = server(vec![b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()]);
    let failure = ask(address, None, &question(true, "/"), LONG).expect_err("no TLS");
    assert_eq!((failure.status, failure.refused), (None, false));
    assert!(failure.why.contains("TLS: "), "{failure}");
    thread.join().expect("no panic");
    let (address, thread) = server(vec![Vec::new()]);
    let failure = ask(address, None, &question(true, "/"), LONG).expect_err("nothing");
    assert!(failure.why.contains("https://"), "{failure}");
    thread.join().expect("no panic");
}
