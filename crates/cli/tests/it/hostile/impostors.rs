//! Peers with a wrong, foreign or expired certificate in the place of a sidecar. No byte of an application reaches them,
//! and none of theirs reaches an application.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use voile_testkit::{
    ShownCertificate, TestAuthority, hostile_client_config, hostile_server_config,
};

use crate::mesh::{Answer, Client, HTTP_PORT, Mesh, application, get, series, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);
const REQUEST: &[u8] = b"GET /secret HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";

/// A mesh whose root the test holds.
fn mesh_of(authority: &TestAuthority) -> Mesh {
    let how = Client {
        state: Some(authority.state()),
        ..Client::default()
    };
    Mesh::start_as("STRICT", &how)
}

/// Certificates that no proxy may accept. The impostor shows them in place of the workload
/// `account`.
fn wrong(
    authority: &TestAuthority,
    account: &str,
    other: &str,
) -> Vec<(&'static str, ShownCertificate)> {
    let foreign = TestAuthority::new();
    let elsewhere = format!("spiffe://elsewhere.example/ns/shop/sa/{account}");
    vec![
        ("expired", (&authority.expired("shop", account)).into()),
        (
            "not yet valid",
            (&authority.not_yet_valid("shop", account)).into(),
        ),
        (
            "of another root",
            (&foreign.certificate("shop", account)).into(),
        ),
        (
            "of another trust domain",
            authority.with_names(&[&elsewhere], &[]),
        ),
        ("without identity", authority.with_names(&[], &["server"])),
        (
            other_name(other),
            (&authority.certificate("shop", other)).into(),
        ),
    ]
}

fn other_name(other: &str) -> &'static str {
    match other {
        "stranger" => "of a workload that is not the server",
        _ => "of another workload",
    }
}

/// Result of a call: the sidecar's answer, and all application bytes that the false server received meanwhile. A sidecar
/// may try more than once.
fn call_the_false_server(
    mesh: &Mesh,
    listener: &TcpListener,
    shown: &ShownCertificate,
) -> (std::io::Result<Answer>, Vec<u8>) {
    let answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let overhearing = scope.spawn(|| {
            let mut heard = Vec::new();
            loop {
                let (tcp, _) = listener.accept().expect("the sidecar tries");
                if answered.load(Ordering::Relaxed) {
                    return heard;
                }
                heard.extend(overheard(tcp, shown));
            }
        });
        let answer = get(mesh.http(), "/secret");
        answered.store(true, Ordering::Relaxed);
        let address = listener.local_addr().expect("an address");
        drop(TcpStream::connect(address).expect("the last to connect"));
        (answer, overhearing.join().expect("heard"))
    })
}

/// The first application bytes that come over a connection.
fn overheard(tcp: TcpStream, shown: &ShownCertificate) -> Vec<u8> {
    tcp.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let connection = ServerConnection::new(hostile_server_config(shown)).expect("a server");
    let mut stream = StreamOwned::new(connection, tcp);
    let mut heard = vec![0; 4096];
    match stream.read(&mut heard) {
        Ok(count) => heard.truncate(count),
        Err(_) => heard.clear(),
    }
    heard
}

#[test]
fn a_false_server_gets_no_byte_of_the_request() {
    let authority = TestAuthority::new();
    let mut mesh = mesh_of(&authority);
    mesh.server.kill();
    let listener = TcpListener::bind(mesh.inbound(HTTP_PORT)).expect("the server's place");
    for (what, shown) in wrong(&authority, "server", "stranger") {
        let (answer, heard) = call_the_false_server(&mesh, &listener, &shown);
        assert_eq!(heard, b"", "a server {what}");
        let answer = answer.expect("an answer of the sidecar's");
        assert_eq!(answer.status, 503, "a server {what}");
    }
    // The same server with the right certificate is spoken to, so the refusals above were no accident.
    let right: ShownCertificate = (&authority.certificate("shop", "server")).into();
    let (_, heard) = call_the_false_server(&mesh, &listener, &right);
    assert!(heard.starts_with(b"GET /secret"), "{heard:?}");
}

/// Calls the server's sidecar as a peer that shows `shown`: everything it answers.
fn call(mesh: &Mesh, shown: Option<&ShownCertificate>) -> Vec<u8> {
    let tcp = TcpStream::connect(mesh.inbound(HTTP_PORT)).expect("connected");
    tcp.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let name = ServerName::try_from("server.shop").expect("a name");
    let connection = ClientConnection::new(hostile_client_config(shown), name).expect("a client");
    let mut stream = StreamOwned::new(connection, tcp);
    let mut answer = Vec::new();
    // A refusal may come before or after the request is written: both are refusals, silence is not.
    let end = stream
        .write_all(REQUEST)
        .and_then(|()| stream.read_to_end(&mut answer).map(drop));
    if let Err(error) = end {
        let hung = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!hung, "left hanging");
    }
    answer
}

#[test]
fn a_false_client_reaches_no_application() {
    let authority = TestAuthority::new();
    let mesh = mesh_of(&authority);
    let application = mesh.http_app();
    application.set_nonblocking(true).expect("nonblocking");
    let mut callers = wrong(&authority, "client", "server");
    // The last is a workload of the mesh, which a server lets in when no policy says otherwise.
    callers.pop();
    for (what, shown) in &callers {
        let answer = call(&mesh, Some(shown));
        assert_eq!(answer, b"", "a client {what}");
    }
    assert_eq!(call(&mesh, None), b"", "a client without certificate");
    let reached = application.accept().map(|(_, from)| from);
    assert_eq!(
        reached.expect_err("nobody came").kind(),
        ErrorKind::WouldBlock
    );
    application.set_nonblocking(false).expect("blocking");
    application::reflect(application);
    let right: ShownCertificate = (&authority.certificate("shop", "client")).into();
    let answer = call(&mesh, Some(&right));
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{answer:?}");
    let refused = series_sum(&mesh);
    assert!(
        refused > callers.len(),
        "{refused} handshakes counted as failed"
    );
}

fn series_sum(mesh: &Mesh) -> usize {
    let metrics = mesh.server_metrics();
    let count = series(
        &metrics,
        "voile_tls_handshake_failures_total",
        &["side=\"downstream\""],
    );
    count.unwrap_or_else(|| panic!("{metrics}")) as usize
}

/// Sends requests on kept connections and on new ones, until told to stop. Returns their number, and the
/// failures.
fn load(mesh: &Mesh, stop: &AtomicBool) -> (usize, Vec<String>) {
    let (mut asked, mut failed) = (0, Vec::new());
    let request = b"POST / HTTP/1.1\r\nHost: server\r\nContent-Length: 2\r\n\r\nhi";
    while !stop.load(Ordering::Relaxed) {
        let mut kept = std::io::BufReader::new(TcpStream::connect(mesh.http()).expect("connected"));
        for _ in 0..20 {
            let sent = kept.get_mut().write_all(request);
            let answer = sent.and_then(|()| crate::mesh::read_answer(&mut kept));
            match answer {
                Ok(answer) if answer.status == 200 => {}
                other => failed.push(format!("{other:?}")),
            }
            asked += 1;
        }
    }
    (asked, failed)
}

#[test]
fn certificates_of_a_short_life_are_renewed_under_load_without_a_failed_request() {
    let how = Client {
        certificate_ttl: Some("10s"),
        ..Client::default()
    };
    let mesh = Mesh::start_as("STRICT", &how);
    renewed_without_harm(&mesh, || {});
}

#[test]
fn certificates_are_renewed_when_they_are_asked_to_without_a_failed_request() {
    let mesh = Mesh::start_as("STRICT", &Client::default());
    renewed_without_harm(&mesh, || {
        for admin in [mesh.client_admin(), mesh.server_admin()] {
            let mut page = TcpStream::connect(admin).expect("its admin page");
            let order = "POST /certs/renew HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            page.write_all(order.as_bytes()).expect("sent");
            let mut answer = String::new();
            page.read_to_string(&mut answer).expect("answered");
            assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
        }
    });
}

/// Both sidecars get new certificates under load, after that order, without a failed request.
fn renewed_without_harm(mesh: &Mesh, order: impl FnOnce()) {
    application::reflect(mesh.http_app());
    let mut kept = std::io::BufReader::new(TcpStream::connect(mesh.http()).expect("connected"));
    let mut ask = || {
        let request = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n";
        kept.get_mut().write_all(request).expect("sent");
        crate::mesh::read_answer(&mut kept)
            .expect("answered")
            .status
    };
    let serial = |admin| {
        let shown = get(admin, "/certs").expect("certificates");
        let shown: serde_json::Value = serde_json::from_slice(&shown.body).expect("JSON");
        shown["certificate"]["serial"].clone()
    };
    let sides = [mesh.client_admin(), mesh.server_admin()];
    assert_eq!(ask(), 200);
    let first = sides.map(serial);
    assert!(first.iter().all(serde_json::Value::is_string), "{first:?}");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(|| load(mesh, &stop))).collect();
        order();
        wait_until("both have new certificates", || {
            (0..2).all(|side| serial(sides[side]) != first[side])
        });
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            let (asked, failed) = client.join().expect("it ends");
            assert!(asked > 0 && failed.is_empty(), "{asked}: {failed:?}");
        }
    });
    assert_eq!(ask(), 200, "on the connection that was there before");
    let answer = get(mesh.http(), "/").expect("a new connection");
    assert_eq!(answer.status, 200);
}
