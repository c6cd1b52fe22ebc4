//! Access logs as MeshConfig turns them on: the fields of HTTP requests, opaque connections and refusals, in both
//! encodings; and the level of the program's own log.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;

use serde_json::Value;

use crate::mesh::{HTTP_PORT, Mesh, TCP_PORT, application, exchange, get, read_to_end, wait_until};

/// Turns the access log on and waits until both sidecars obey.
pub(crate) fn log_to(mesh: &Mesh, encoding: &str, target: &str) {
    let config = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: istio\n  namespace: istio-system\ndata:\n  mesh: |\n    accessLogFile: {target}\n    accessLogEncoding: {encoding}\n"
    );
    std::fs::write(mesh.config().join("istio.yaml"), config).expect("the configuration");
    for admin in [mesh.client_admin(), mesh.server_admin()] {
        wait_until("the access log is configured", || {
            let dump = get(admin, "/config_dump").expect("the configuration");
            String::from_utf8_lossy(&dump.body).contains(target)
        });
    }
}

pub(crate) fn file(mesh: &Mesh) -> PathBuf {
    mesh.config().with_file_name("access.log")
}

/// The lines of the log, once `count` of them satisfy `which`.
pub(crate) fn lines(mesh: &Mesh, count: usize, which: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    wait_until("the lines are written", || {
        let text = std::fs::read_to_string(file(mesh)).unwrap_or_default();
        found = text
            .lines()
            .filter(|line| which(line))
            .map(str::to_owned)
            .collect();
        found.len() >= count
    });
    found
}

fn host(value: &Value) -> String {
    let address: SocketAddr = value
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{value} is an address"));
    address.ip().to_string()
}

#[test]
fn json_tells_who_asked_what_of_whom_and_how_it_ended() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let target = file(&mesh);
    log_to(&mesh, "JSON", target.to_str().expect("a path of ours"));
    let request = b"POST /books?id=7 HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: a \"quoted\" one\r\nX-Request-Id: r-1\r\nContent-Length: 5\r\n\r\nhello";
    let answer = exchange(mesh.http(), request).expect("an answer");
    assert_eq!(answer.status, 200);
    let inbound = lines(&mesh, 1, |line| line.contains("inbound|"));
    let line: Value = serde_json::from_str(&inbound[0]).expect("one object per line");
    for (field, expected) in [
        ("method", Value::from("POST")),
        ("path", "/books?id=7".into()),
        ("protocol", "HTTP/1.1".into()),
        ("response_code", 200.into()),
        ("response_flags", "-".into()),
        ("authority", "shop.example".into()),
        ("user_agent", "a \"quoted\" one".into()),
        ("request_id", "r-1".into()),
        ("bytes_received", 5.into()),
        ("bytes_sent", answer.body.len().into()),
        (
            "downstream_local_address",
            mesh.inbound(HTTP_PORT).to_string().into(),
        ),
    ] {
        assert_eq!(line[field], expected, "{field} in {line}");
    }
    assert!(
        line["start_time"]
            .as_str()
            .is_some_and(|time| time.ends_with('Z')),
        "{line}"
    );
    // The application is reached at the pod's address; the caller came from its pod's, as every upstream socket does.
    assert_eq!(
        host(&line["upstream_host"]),
        mesh.inbound(0).ip().to_string()
    );
    assert_eq!(
        host(&line["downstream_remote_address"]),
        mesh.client_pod().to_string()
    );
    let outbound = lines(&mesh, 1, |line| line.contains("outbound|"));
    let line: Value = serde_json::from_str(&outbound[0]).expect("one object per line");
    assert_eq!(
        line["upstream_host"],
        mesh.inbound(HTTP_PORT).to_string(),
        "{line}"
    );
}

#[test]
fn text_has_a_line_for_each_request_and_connection_refused_ones_too() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    application::serve(mesh.tcp_app(), |mut stream| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = stream.write_all(b"0123456789");
    });
    let target = file(&mesh);
    log_to(&mesh, "TEXT", target.to_str().expect("a path of ours"));
    assert_eq!(get(mesh.http(), "/text").expect("an answer").status, 200);
    let line = &lines(&mesh, 1, |line| {
        line.contains("/text") && line.contains("inbound|")
    })[0];
    assert!(
        line.starts_with('[') && line.contains("] \"GET /text HTTP/1.1\" 200 - "),
        "{line}"
    );

    let mut stream = TcpStream::connect(mesh.tcp()).expect("a connection");
    stream.write_all(b"abc").expect("sent");
    stream.shutdown(Shutdown::Write).expect("half-closed");
    stream.read_to_end(&mut Vec::new()).expect("answered");
    let inbound = mesh.inbound(TCP_PORT).to_string();
    let line = &lines(&mesh, 1, |line| {
        line.contains(&inbound) && line.contains("inbound|")
    })[0];
    assert!(line.contains("\"- - -\" 0 - - - \"-\" 3 10 "), "{line}");
    let refused = b"GET /smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = read_to_end(mesh.http(), refused).expect("refused");
    assert!(answer.starts_with(b"HTTP/1.1 400 "));
    let line = &lines(&mesh, 1, |line| line.contains(" 400 "))[0];
    assert!(line.contains("\" 400 DPE "), "{line}");
}

#[test]
fn a_request_that_found_no_application_is_logged_with_the_reason_at_both_ends() {
    let mesh = Mesh::start("STRICT");
    let target = file(&mesh);
    log_to(&mesh, "JSON", target.to_str().expect("a path of ours"));
    assert_eq!(get(mesh.http(), "/lost").expect("an answer").status, 503);
    let field = |side: &str, name: &str| {
        let line = &lines(&mesh, 1, |line| {
            line.contains(side) && line.contains("/lost")
        })[0];
        serde_json::from_str::<Value>(line).expect("one object per line")[name].clone()
    };
    assert_eq!(field("inbound|", "response_code"), 503);
    assert_eq!(field("inbound|", "response_flags"), "UF");
    assert_eq!(field("outbound|", "response_code"), 503);
    assert_eq!(field("outbound|", "response_flags"), "-");
}

#[test]
fn what_was_logged_before_the_end_is_written_before_the_end() {
    let mut mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    log_to(&mesh, "TEXT", "/dev/stdout");
    for _ in 0..200 {
        assert_eq!(get(mesh.http(), "/last").expect("an answer").status, 200);
    }
    mesh.server.terminate();
    assert!(mesh.server.wait().success());
    let log = mesh.server.log();
    let written = log
        .lines()
        .filter(|line| line.contains("\"GET /last HTTP/1.1\" 200"))
        .count();
    assert_eq!(written, 200, "{log}");
}

#[test]
fn the_level_of_the_log_changes_while_it_runs_and_nonsense_changes_nothing() {
    let mesh = Mesh::start("STRICT");
    let admin = mesh.server_admin();
    let put = |level: &str| {
        let request = format!(
            "PUT /logging?level={level} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        );
        exchange(admin, request.as_bytes())
            .expect("an answer")
            .status
    };
    let refusals = |mesh: &Mesh| mesh.server.log().matches("plaintext refused").count();
    let knock = |mesh: &Mesh| {
        read_to_end(mesh.inbound(HTTP_PORT), b"GET / HTTP/1.1\r\n\r\n").expect("closed")
    };
    knock(&mesh);
    assert_eq!(refusals(&mesh), 0, "{}", mesh.server.log());
    assert_eq!(put("debug"), 200);
    knock(&mesh);
    wait_until("the refusal is logged", || refusals(&mesh) == 1);
    for nonsense in ["verbose", "debug=loud", "Info%0a", ""] {
        assert_eq!(put(nonsense), 400, "{nonsense:?}");
    }
    let current = get(admin, "/logging").expect("the level");
    assert!(String::from_utf8_lossy(&current.body).contains("debug"));
    assert_eq!(put("info"), 200);
    knock(&mesh);
    knock(&mesh);
    assert_eq!(
        get(admin, "/logging?level=debug").expect("refused").status,
        405
    );
    assert_eq!(refusals(&mesh), 1, "{}", mesh.server.log());
}
