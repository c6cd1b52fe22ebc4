//! Answers before the end of the request's body reach, soon, clients that write all of it before they read. The answers come
//! from the application and from the proxies, through sidecars and gateways, over TCP and TLS. The proxies' lingering for such
//! clients is bounded.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use voile_transport::{
    LINGER_BYTES, LINGER_QUIET, LINGER_TIMEOUT, MAX_LINGERING, MAX_LINGERING_BYTES,
};

use crate::gateway::http3::client;
use crate::gateway::tls::{PORT, https};
use crate::gateway::{Edge, TO_SERVER, http_server, routes, servers};
use crate::mesh::certificates::Keys;
use crate::mesh::issuer::Issuer;
use crate::mesh::{HTTP_PORT, Mesh, application, exchange, memory, read_answer, wait_until};
use crate::policies::authorization::{policy, set};
use crate::policies::tokens::{ISSUER, believes, rule};
use crate::traffic::rate_limits::{limits, probe};

/// Bytes of an upload.
const BODY: usize = 8 * 1024 * 1024;

/// Uploads of one case and round.
const UPLOADS: usize = 20;

/// Rounds of every case: one, or as many as this variable says.
const ROUNDS: &str = "VOILE_EARLY_ROUNDS";

const PATIENCE: Duration = Duration::from_secs(20);

/// An upload is answered within it, its whole body written before. It takes some 20 ms; the rest is for machines under load.
const PROMPT: Duration = Duration::from_secs(5);

fn rounds() -> usize {
    let said = std::env::var(ROUNDS).ok();
    said.and_then(|said| said.parse().ok()).unwrap_or(1)
}

/// Connects, never to wait for ever.
pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("a listener");
    patient(stream)
}

pub(crate) fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("open");
    stream.set_write_timeout(Some(PATIENCE)).expect("open");
    stream
}

/// Writes a request and its whole body, and only then reads; gives the status, or why there is none. Like many clients it gives
/// up when a write fails, and never sees an answer that came before.
fn upload(mut stream: impl Read + Write, path: &str, fields: &str) -> Result<u16, String> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: a.example\r\n{fields}content-length: {BODY}\r\n\r\n"
    );
    let part = vec![b'x'; 64 * 1024];
    let mut sent = stream.write_all(head.as_bytes());
    for _ in 0..BODY / part.len() {
        sent = sent.and_then(|()| stream.write_all(&part));
    }
    sent.and_then(|()| stream.flush())
        .map_err(|error| format!("wrote: {error}"))?;
    match read_answer(&mut BufReader::new(stream)) {
        Ok(answer) => Ok(answer.status),
        Err(error) => Err(format!("read: {error}")),
    }
}

/// Every upload of every round is answered so.
pub(crate) fn all_are_answered<S: Read + Write>(
    what: &str,
    (path, fields, status): (&str, &str, u16),
    connect: impl Fn() -> S,
) {
    let count = UPLOADS * rounds();
    let (mut lost, mut times) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let began = Instant::now();
        let answer = upload(connect(), path, fields);
        times.push(began.elapsed());
        lost.extend(Some(answer).filter(|answer| *answer != Ok(status)));
    }
    times.sort();
    let (median, slowest) = (times[count / 2], times[count - 1]);
    println!(
        "{what}: {} of {count}, median {median:?}, slowest {slowest:?}",
        count - lost.len(),
    );
    assert!(
        lost.is_empty(),
        "{what}: {} of {count} lost: {lost:?}",
        lost.len()
    );
    assert!(slowest < PROMPT, "{what}: {slowest:?}");
}

/// An application that refuses what it sees by the head, says that it has said all, and reads what still comes.
pub(crate) fn refuse(listener: TcpListener) {
    application::serve(listener, |mut stream| {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            if !matches!(stream.read(&mut byte), Ok(1)) {
                return;
            }
            head.push(byte[0]);
        }
        let answer = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbig\n";
        let _ = stream.write_all(answer);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut rest = vec![0; 64 * 1024];
        while matches!(stream.read(&mut rest), Ok(1..)) {}
    });
}

/// Fields of a head that has too many.
fn too_many() -> String {
    "x-many: 1\r\n".repeat(120)
}

#[test]
fn through_sidecars_an_uploader_reads_the_early_answer() {
    let mesh = Mesh::start("STRICT");
    refuse(mesh.http_app());
    let deny = "action: DENY, rules: [{to: [{operation: {paths: [/denied]}}]}]";
    let tokens = believes(&rule(&Issuer::new(ISSUER, "one"), ""));
    let limits = limits(&probe("limited"));
    set(
        &mesh,
        &format!("{}{tokens}---\n{limits}", policy("deny", deny)),
    );
    let connect = || connect(mesh.http());
    let token = "authorization: Bearer no.token.x\r\n";
    let own = [
        ("a policy", ("/denied", "", 403)),
        ("a token", ("/", token, 401)),
        ("a rate limit", ("/limited", "", 429)),
        ("the client's sidecar", ("/", &*too_many(), 431)),
    ];
    for (what, (path, fields, status)) in own {
        let head = format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n{fields}\r\n");
        let answered = || exchange(mesh.http(), head.as_bytes());
        wait_until(what, || {
            answered().is_ok_and(|answer| answer.status == status)
        });
    }
    all_are_answered("the application", ("/", "", 413), connect);
    for (what, case) in own {
        all_are_answered(what, case, connect);
    }
}

/// Writes without an end, and fast, while the answer is waited for; gives how long that took, and when it could write no more
/// how much it wrote and after how long.
fn upload_for_ever(stream: TcpStream, path: &str, status: u16) -> (Duration, u64, Duration) {
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: a.example\r\ncontent-length: 1000000000000\r\n\r\n");
    let mut writer = stream.try_clone().expect("open");
    let began = Instant::now();
    writer.write_all(head.as_bytes()).expect("room");
    let writing = std::thread::spawn(move || {
        let (part, mut written) = (vec![b'x'; 64 * 1024], 0);
        while let Ok(count @ 1..) = writer.write(&part) {
            written += count as u64;
        }
        written
    });
    let answer = read_answer(&mut BufReader::new(stream)).expect("an answer");
    let answered = began.elapsed();
    assert_eq!(answer.status, status, "{path}");
    let written = writing.join().expect("it ends");
    (answered, written, began.elapsed())
}

#[test]
fn fast_uploaders_that_never_end_are_answered_and_cut_off_while_others_are_served() {
    /// At the same time.
    const FAST: usize = 8;
    /// Most bytes in sockets on the way, plus bytes sent before the answer came.
    const ON_THE_WAY: u64 = 64 * 1024 * 1024;
    let mesh = Mesh::start("STRICT");
    refuse(mesh.http_app());
    let deny = "action: DENY, rules: [{to: [{operation: {paths: [/denied]}}]}]";
    set(&mesh, &policy("deny", deny));
    wait_until("the policy is in force", || {
        upload(connect(mesh.http()), "/denied", "") == Ok(403)
    });
    let pids = [mesh.client.pid(), mesh.server.pid()];
    let before = pids.map(|pid| (descriptors(pid), memory(pid, "VmRSS:")));
    for (path, status) in [("/", 413), ("/denied", 403)] {
        let uploads: Vec<_> = (0..FAST)
            .map(|_| {
                let stream = connect(mesh.http());
                std::thread::spawn(move || upload_for_ever(stream, path, status))
            })
            .collect();
        assert_eq!(upload(connect(mesh.http()), "/denied", ""), Ok(403));
        for one in uploads {
            let (answered, written, ended) = one.join().expect("an answer");
            println!("{path}: answered after {answered:?}, {written} bytes, over after {ended:?}");
            assert!(answered < PROMPT, "{path}: {answered:?}");
            assert!(
                written < LINGER_BYTES as u64 + ON_THE_WAY,
                "{path}: {written}"
            );
            assert!(ended < LINGER_TIMEOUT + PROMPT, "{path}: {ended:?}");
        }
    }
    for (pid, (open, resident)) in pids.into_iter().zip(before) {
        wait_until("nothing lingers", || descriptors(pid) <= open + 4);
        let grown = memory(pid, "VmRSS:").saturating_sub(resident);
        println!("{grown} bytes more");
        assert!(grown < MAX_LINGERING_BYTES as u64, "{grown} bytes");
    }
}

/// A Service that selects no pod.
const NOBODY: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: nobody, namespace: shop}\n\
    spec: {clusterIP: 10.96.7.7, selector: {app: nobody}, ports: [{name: http, port: 8080}]}\n---\n";

#[test]
fn through_a_gateway_an_uploader_reads_the_early_answer() {
    let keys = Keys::new();
    keys.own("server", "a.example");
    let tls = https("a.example", "mode: SIMPLE, credentialName: server");
    let list = [tls, http_server("a.example")].join(", ");
    let nobody = "{match: [{uri: {prefix: /nobody}}], route: [{destination: {host: nobody, port: {number: 8080}}}]}";
    let route = format!(
        "{{match: [{{uri: {{prefix: /here}}}}], {}, {nobody}",
        &TO_SERVER[1..]
    );
    let resources = keys.pair("server") + &servers(&list) + &routes("a.example", &route) + NOBODY;
    let edge = Edge::start("", &resources);
    refuse(edge.mesh.http_app());
    let plain = || connect(edge.at(HTTP_PORT));
    wait_until("a route", || upload(plain(), "/here", "") == Ok(413));
    all_are_answered("the application", ("/here", "", 413), plain);
    all_are_answered("the gateway", ("/nowhere", "", 404), plain);
    all_are_answered("no endpoints", ("/nobody", "", 503), plain);
    let config = client(b"http/1.1", None);
    let encrypted = || {
        let name = "a.example".try_into().expect("a name");
        let tls = rustls::ClientConnection::new(config.clone(), name).expect("a client");
        rustls::StreamOwned::new(tls, connect(edge.at(PORT)))
    };
    all_are_answered("the application, over TLS", ("/here", "", 413), encrypted);
    all_are_answered("the gateway, over TLS", ("/nowhere", "", 404), encrypted);
}

/// Descriptors that a process has open.
pub(crate) fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("it runs")
        .count()
}

/// A bound for everything that a test's own process has open at once.
const DRIPPING: usize = MAX_LINGERING + 300;

#[test]
fn uploaders_that_never_end_hold_no_more_than_is_allowed_and_nobody_else_up() {
    let edge = Edge::start(
        "",
        &(servers(&http_server("a.example")) + &routes("a.example", TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || edge.status("a.example", "/") == 200);
    let pid = edge.gateway_pid();
    let (before, resident) = (descriptors(pid), memory(pid, "VmRSS:"));
    // The gateway does not serve this host, so it refuses every request.
    let head = b"POST / HTTP/1.1\r\nhost: other.example\r\ncontent-length: 1000000000\r\n\r\n";
    let began = Instant::now();
    let mut uploaders = Vec::new();
    for number in 0..DRIPPING {
        // The first must not become quiet before the last has come.
        if number % 64 == 0 {
            drip(&mut uploaders);
        }
        let mut stream = connect(edge.at(HTTP_PORT));
        stream.write_all(head).expect("room");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer[9..], b"404");
        stream.set_nonblocking(true).expect("open");
        uploaders.push(stream);
    }
    wait_until("the oldest are gone", || {
        drip(&mut uploaders);
        descriptors(pid) <= before + MAX_LINGERING + 8
    });
    let held = descriptors(pid) - before;
    let grown = memory(pid, "VmRSS:").saturating_sub(resident);
    println!("{DRIPPING} uploaders: {held} descriptors, {grown} bytes more");
    assert!(held + 64 > MAX_LINGERING.min(DRIPPING), "{held} linger");
    assert!(grown < MAX_LINGERING_BYTES as u64, "{grown} bytes");
    assert_eq!(edge.status("a.example", "/"), 200);
    // They send a byte now and then, and are let go nevertheless.
    let limit = LINGER_TIMEOUT + LINGER_QUIET + Duration::from_secs(30);
    while descriptors(pid) > before + 8 {
        assert!(began.elapsed() < limit, "{} are left", descriptors(pid));
        drip(&mut uploaders);
        assert_eq!(edge.status("a.example", "/"), 200);
    }
    assert!(began.elapsed() > LINGER_QUIET, "they were waited for");
    println!("all gone after {:?}", began.elapsed());
}

/// A byte of each.
fn drip(uploaders: &mut Vec<TcpStream>) {
    uploaders.retain_mut(|stream| match stream.write(b"x") {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    });
}

/// Fields that a client's head may have, by the reference page.
const MAX_HEADERS: usize = 100;

/// So many fields of a client's own.
fn fields(count: usize) -> String {
    (0..count)
        .map(|number| format!("x-field-{number}: v\r\n"))
        .collect()
}

#[test]
fn as_many_fields_as_the_page_says_pass_whatever_proxies_add() {
    let edge = Edge::start(
        "",
        &(servers(&http_server("a.example")) + &routes("a.example", TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || edge.status("a.example", "/") == 200);
    for (who, to) in [
        ("a gateway", edge.at(HTTP_PORT)),
        ("sidecars", edge.mesh.http()),
    ] {
        for (count, status) in [(MAX_HEADERS, "200"), (MAX_HEADERS + 1, "431")] {
            // Two more lines are there anyway.
            let own = fields(count - 2);
            let request =
                format!("GET / HTTP/1.1\r\nhost: a.example\r\nconnection: close\r\n{own}\r\n");
            let mut stream = connect(to);
            stream.write_all(request.as_bytes()).expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            assert_eq!(answer.get(9..12), Some(status), "{count} through {who}");
        }
    }
    // The same by HTTP/2, which goes on as HTTP/1.1.
    for (count, expected) in [(MAX_HEADERS, "200 2"), (MAX_HEADERS + 1, "431 2")] {
        assert_eq!(by_http2(edge.at(HTTP_PORT), &fields(count)), expected);
    }
}

/// Status and version of a request with these fields and no others.
fn by_http2(to: SocketAddr, own: &str) -> String {
    let mut curl = std::process::Command::new("curl");
    curl.args([
        "-s",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code} %{http_version}",
    ]);
    curl.args([
        "--http2-prior-knowledge",
        "--max-time",
        "20",
        "-H",
        "accept:",
        "-H",
        "user-agent:",
    ]);
    for line in own.lines() {
        curl.args(["-H", line]);
    }
    curl.args(["-H", "host: a.example"]);
    let said = curl.arg(format!("http://{to}/")).output().expect("curl");
    String::from_utf8_lossy(&said.stdout).into_owned()
}
