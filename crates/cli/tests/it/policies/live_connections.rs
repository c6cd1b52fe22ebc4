//! Connections and requests under way when their permit is lost: a TCP connection, an HTTP/1.1 answer, a stream of HTTP/2,
//! a WebSocket, and a connection that waits for its next request. The proxy itself reports the time from the change to the
//! cut.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::mesh::{Mesh, Process, application, get, read_answer, series, wait_until};
use crate::policies::authorization::{echo_application, in_force, policy, set, status};

/// Longest time between a change that the proxy gets and the cut of connections that lose their
/// permit.
const CUT_WITHIN: Duration = Duration::from_secs(1);

/// Longest wait of a test for an end that must come.
const PATIENCE: Duration = Duration::from_secs(20);

const WEBSOCKET: &str = "GET /socket HTTP/1.1\r\nHost: server\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Frames of HTTP/2 that end a stream, or all of them.
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;

/// Says hello and then no more, until it is cut; `/quick` is answered whole, as often as it is asked, and `/waits` not at all.
/// Gives how many wait.
pub(crate) fn greet(mesh: &Mesh) -> Arc<AtomicUsize> {
    let waiting = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&waiting);
    application::serve(mesh.http_app(), move |stream| {
        let mut reader = BufReader::new(stream);
        while let Some((head, _)) = application::read_request(&mut reader) {
            let lower = head.to_ascii_lowercase();
            let (begin, whole) = if lower.contains(" /waits ") {
                counted.fetch_add(1, Ordering::SeqCst);
                ("", false)
            } else if lower.contains("upgrade: websocket") {
                let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello\n";
                (switch, false)
            } else if lower.contains(" /quick ") {
                ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true)
            } else {
                let chunk = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello\n\r\n";
                (chunk, false)
            };
            let written = reader.get_mut().write_all(begin.as_bytes());
            if written.is_err() || !whole {
                let _ = reader.read_line(&mut String::new());
                return;
            }
        }
    });
    waiting
}

pub(crate) fn connect(to: SocketAddr, first: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).expect("the listener");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("an open socket");
    stream.write_all(first).expect("written");
    stream
}

/// Reads until `wanted` has come.
fn until(mut stream: TcpStream, wanted: &[u8]) -> TcpStream {
    let mut told = Vec::new();
    let mut some = [0; 4096];
    while !told.windows(wanted.len()).any(|bytes| bytes == wanted) {
        let read = stream.read(&mut some).expect("an answer");
        assert!(read > 0, "it ends early: {told:?}");
        told.extend_from_slice(&some[..read]);
    }
    stream
}

/// HTTP/2 by prior knowledge, one GET, in the fewest bytes: literal fields, no indexing, no Huffman code.
fn http2_request(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86];
    for (name, value) in [(":path", path), (":authority", "server")] {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("short"));
            block.extend_from_slice(text.as_bytes());
        }
    }
    let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    request.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let length = u8::try_from(block.len()).expect("short");
    request.extend_from_slice(&[0, 0, length, 1, 5, 0, 0, 0, 1]);
    request.extend_from_slice(&block);
    request
}

/// Reads frames until one ends the stream, or the connection ends.
fn http2_ended(mut stream: TcpStream) {
    let mut head = [0; 9];
    while stream.read_exact(&mut head).is_ok() {
        if matches!(head[3], RST_STREAM | GOAWAY) {
            return;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut rest = vec![0; usize::try_from(length).expect("a length")];
        if stream.read_exact(&mut rest).is_err() {
            return;
        }
        assert!(
            head[3] != 0 || head[4] & 1 == 0,
            "a cut stream looks complete"
        );
    }
}

/// Returns true if the read timed out.
fn is_late(read: &std::io::Result<usize>) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    let error = read.as_ref().err().map(std::io::Error::kind);
    matches!(error, Some(WouldBlock | TimedOut))
}

/// Connections and requests under way, through both sidecars.
pub(crate) struct UnderWay {
    tcp: TcpStream,
    answer: TcpStream,
    socket: TcpStream,
    stream: TcpStream,
    /// Of these the server's sidecar cuts.
    pub(crate) count: f64,
}

impl UnderWay {
    pub(crate) fn begin(mesh: &Mesh) -> Self {
        let http = mesh.http();
        Self {
            tcp: until(connect(mesh.tcp(), b"ping"), b"ping"),
            answer: until(
                connect(http, b"GET /slow HTTP/1.1\r\nHost: server\r\n\r\n"),
                b"hello",
            ),
            socket: until(connect(http, WEBSOCKET.as_bytes()), b"hello"),
            stream: until(connect(http, &http2_request("/slow")), b"hello"),
            count: 4.0,
        }
    }

    /// Waits until all has ended; none of it looks complete.
    pub(crate) fn end(mut self) {
        let ended = self.tcp.read(&mut [0; 4]);
        assert!(
            !is_late(&ended) && !matches!(ended, Ok(1..)),
            "the connection goes on"
        );
        for (what, stream) in [
            ("answer", &mut self.answer),
            ("WebSocket", &mut self.socket),
        ] {
            let mut rest = Vec::new();
            let ended = stream.read_to_end(&mut rest);
            assert!(!is_late(&ended), "the {what} goes on");
            let whole = rest.windows(5).any(|bytes| bytes == b"0\r\n\r\n");
            assert!(!whole, "a cut {what} looks complete: {ended:?} {rest:?}");
        }
        http2_ended(self.stream);
    }
}

/// Asserts that the server's sidecar has cut so many, each in time by its own clock, from its arrival of the change.
/// Other load of the machine, before or after, does not matter.
pub(crate) fn cut_in_time(mesh: &Mesh, count: f64) {
    longest_cut(&mesh.server_metrics(), count);
}

fn longest_cut(metrics: &str, count: f64) {
    let cut = series(
        metrics,
        "voile_authorization_total",
        &["verdict=\"revoked\""],
    );
    assert!(cut >= Some(count), "{metrics}");
    let longest = series(metrics, "voile_authorization_longest_cut_seconds", &[]);
    assert!(
        longest.is_some_and(|longest| longest > 0.0 && longest <= CUT_WITHIN.as_secs_f64()),
        "{longest:?}"
    );
}

#[test]
fn a_policy_cuts_all_kinds_of_live_connections_within_a_second() {
    let mesh = Mesh::start("PERMISSIVE");
    greet(&mesh);
    echo_application(&mesh);
    let quick = b"GET /quick HTTP/1.1\r\nHost: server\r\n\r\n";
    let mut waiting = BufReader::new(connect(mesh.http(), quick));
    assert_eq!(read_answer(&mut waiting).expect("an answer").status, 200);
    let under_way = UnderWay::begin(&mesh);
    let count = under_way.count;
    set(
        &mesh,
        &policy(
            "deny",
            "action: DENY, rules: [{to: [{operation: {paths: [\"/s*\", \"/quick\"]}}]}]",
        ),
    );
    in_force("the policy is in force", || status(&mesh, "GET /s") == 403);
    waiting.get_mut().write_all(quick).expect("written");
    let next = read_answer(&mut waiting).expect("an answer");
    assert_eq!(next.status, 403, "the next request of a live connection");
    under_way.end();
    cut_in_time(&mesh, count);
}

/// The serial number of the certificate that a sidecar shows.
pub(crate) fn serial(admin: SocketAddr) -> String {
    let page = get(admin, "/certs").expect("its certificates");
    let text = String::from_utf8_lossy(&page.body).into_owned();
    let (_, rest) = text.split_once("\"serial\"").expect("a serial number");
    let mut quoted = rest.split('"');
    quoted.nth(1).expect("its value").to_owned()
}

fn revoke(mesh: &Mesh, arguments: &[&str]) -> String {
    let printed = Process::output(|voile| {
        voile.arg("revoke").arg("--state").arg(mesh.state());
        voile.args(arguments);
    });
    let said = String::from_utf8_lossy(&printed.stderr);
    assert!(printed.status.success(), "{said}");
    String::from_utf8(printed.stdout).expect("text")
}

#[test]
fn a_revoked_client_is_cut_and_comes_back_with_another_certificate() {
    let mesh = Mesh::start("STRICT");
    greet(&mesh);
    echo_application(&mesh);
    let under_way = UnderWay::begin(&mesh);
    let count = under_way.count;
    let before = serial(mesh.client_admin());
    let printed = revoke(&mesh, &["--serial", &before]);
    assert!(
        printed.starts_with(&before.replace(':', "").to_lowercase()),
        "{printed}"
    );
    under_way.end();
    cut_in_time(&mesh, count);
    wait_until("the sidecar has another certificate", || {
        serial(mesh.client_admin()) != before
    });
    wait_until("it is taken", || status(&mesh, "GET /quick") == 200);
    assert_eq!(revoke(&mesh, &["--list"]), printed);
}

#[test]
fn a_revoked_server_is_called_no_more_until_it_has_another_certificate() {
    let mesh = Mesh::start("STRICT");
    let waiting = greet(&mesh);
    echo_application(&mesh);
    let under_way = UnderWay::begin(&mesh);
    let count = under_way.count;
    // Nothing of an answer came yet, over either version: no fault of the client's, and nothing that it may not do.
    let waits = b"GET /waits HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
    let old = connect(mesh.http(), waits);
    let new = connect(mesh.http(), &http2_request("/waits"));
    wait_until("both wait", || waiting.load(Ordering::SeqCst) == 2);
    let before = serial(mesh.server_admin());
    revoke(&mesh, &["--serial", &before]);
    let answer = read_answer(&mut BufReader::new(old)).expect("an answer");
    assert_eq!(answer.status, 503, "{}", answer.head);
    assert!(answer.body.starts_with(b"upstream_certificate_revoked"));
    until(new, b"upstream_certificate_revoked");
    under_way.end();
    longest_cut(&mesh.client_metrics(), count + 2.0);
    wait_until("the server has another certificate", || {
        serial(mesh.server_admin()) != before
    });
    wait_until("it is called again", || status(&mesh, "GET /quick") == 200);
}

#[test]
fn what_cannot_be_revoked_is_said() {
    let mesh = Mesh::start("STRICT");
    let state = mesh.state();
    let elsewhere = tempfile::tempdir().expect("a folder");
    let root = std::fs::read_to_string(state.join("root-cert.pem")).expect("the root");
    for (folder, arguments, code, wanted) in [
        (
            state.as_path(),
            vec!["--serial", "xyz"],
            2,
            "not a serial number",
        ),
        (state.as_path(), vec![], 2, "--list"),
        (state.as_path(), vec!["/nowhere.pem"], 1, "/nowhere.pem"),
        (elsewhere.path(), vec!["--list"], 1, "root-cert.pem"),
    ] {
        let printed = Process::output(|voile| {
            voile
                .arg("revoke")
                .arg("--state")
                .arg(folder)
                .args(&arguments);
        });
        let said = String::from_utf8_lossy(&printed.stderr).into_owned();
        assert_eq!(printed.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(wanted), "{arguments:?}: {said}");
    }
    // Garbage in place of the list: it is reported, and the last good list stays.
    let list = state.join("ca-crl.pem");
    std::fs::write(&list, root).expect("no list");
    wait_until("the mistake is said", || {
        mesh.control
            .log()
            .contains("certificates revoked before stay revoked")
    });
}
