//! Other people's HTTP/2 clients against our echo server, where they are installed.

use std::io::{Read as _, Write as _};
use std::process::Command;

use voile_load::echo::EchoOptions;
use voile_testkit::prerequisites::{self, Prerequisite};

use crate::server::Served;

/// Runs a tool, which has its prerequisite's name, and returns what it printed. Skips the test if the tool is not installed.
fn tool(prerequisite: Prerequisite, arguments: &[&str]) -> Option<String> {
    let program = prerequisite.name();
    let tool = prerequisites::program(prerequisite, program)?;
    let output = Command::new(tool).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {error}{text}");
    Some(text)
}

#[test]
fn curl_is_answered_over_http2() {
    let server = Served::echo(EchoOptions::default());
    let url = format!("http://{}/debug?status=201&header=X-A:b", server.address);
    let arguments = [
        "--silent",
        "--include",
        "--http2-prior-knowledge",
        "--data",
        "hello",
        &url,
    ];
    let Some(answer) = tool(Prerequisite::Curl, &arguments) else {
        return;
    };
    assert!(answer.starts_with("HTTP/2 201 "), "{answer}");
    assert!(answer.contains("\r\nx-a: b\r\n"), "{answer}");
    assert!(
        answer.contains("POST /debug?status=201&header=X-A:b HTTP/2\n"),
        "{answer}"
    );
    assert!(answer.ends_with("body: 5 bytes\n"), "{answer}");
    // Beyond every window, both ways.
    let big = "x".repeat(9_000_000);
    let folder = std::env::temp_dir().join(format!("voile-strangers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("body");
    std::fs::write(&file, &big).unwrap();
    let (data, url) = (
        format!("@{}", file.display()),
        format!("http://{}/", server.address),
    );
    let arguments = [
        "--silent",
        "--http2-prior-knowledge",
        "--data-binary",
        &data,
        &url,
    ];
    let echoed = tool(Prerequisite::Curl, &arguments);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(
        echoed.is_none_or(|echoed| echoed == big),
        "the body comes back as it went"
    );
}

/// A message of one field that is bytes, in another.
fn inside(field: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("a short message");
    [&[field << 3 | 2, length][..], bytes].concat()
}

#[test]
fn an_external_authorizer_that_curl_asks_denies_what_its_query_says_and_nothing_else() {
    let server = Served::echo(EchoOptions::default());
    let folder = std::env::temp_dir().join(format!("voile-authorize-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (query, path, denied) in [
        ("", "/shut", false),
        ("?deny=/shut", "/shut", true),
        ("?deny=/shut", "/shut/more", true),
        ("?deny=/shut", "/open", false),
        ("?deny=/a&deny=/b", "/b", true),
        ("?deny=/a&deny=/b", "/c/a", false),
    ] {
        // attributes.request.http.path
        let asked = [4, 2, 4, 1]
            .into_iter()
            .fold(path.as_bytes().to_vec(), |bytes, field| {
                inside(field, &bytes)
            });
        let mut message = vec![0, 0, 0, 0, u8::try_from(asked.len()).unwrap()];
        message.extend_from_slice(&asked);
        let (from, to) = (folder.join("question"), folder.join("answer"));
        std::fs::write(&from, message).unwrap();
        let url = format!(
            "http://{}/envoy.service.auth.v3.Authorization/Check{query}",
            server.address
        );
        let (data, to_text) = (format!("@{}", from.display()), to.display().to_string());
        let arguments = [
            "--silent",
            "--http2-prior-knowledge",
            "-H",
            "content-type: application/grpc",
            "-H",
            "te: trailers",
            "--data-binary",
            &data,
            "-o",
            &to_text,
            &url,
        ];
        if tool(Prerequisite::Curl, &arguments).is_none() {
            break;
        }
        // A status of 7 is PERMISSION_DENIED, and no message at all a yes.
        let word: &[u8] = if denied {
            &[0, 0, 0, 0, 4, 10, 2, 8, 7]
        } else {
            &[0; 5]
        };
        assert_eq!(std::fs::read(&to).unwrap(), word, "{query} {path}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn h2load_is_answered_on_many_streams() {
    let server = Served::echo(EchoOptions {
        threads: 2,
        ..EchoOptions::default()
    });
    for (query, streams) in [
        ("size=1024", "100"),
        ("size=100000&delay=1ms:10", "20"),
        ("", "1"),
    ] {
        let url = format!("http://{}/?{query}", server.address);
        let arguments = ["-n", "2000", "-c", "4", "-m", streams, &url];
        if let Some(answer) = tool(Prerequisite::H2load, &arguments) {
            assert!(
                answer.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"),
                "{answer}"
            );
        }
    }
}

#[test]
fn nghttp_is_answered_with_small_windows_and_without_a_table() {
    let server = Served::echo(EchoOptions::default());
    let url = format!("http://{}/?size=300000", server.address);
    for options in [
        &[][..],
        &["-w", "10", "-W", "12"],
        &["-c", "0"],
        &["-b", "20"],
        &["-m", "5"],
    ] {
        let arguments = [&["--no-dep", "-nv"], options, &[&url]].concat();
        if let Some(answer) = tool(Prerequisite::Nghttp, &arguments) {
            assert!(answer.contains(":status: 200"), "{options:?}: {answer}");
            assert!(!answer.contains("RST_STREAM"), "{options:?}: {answer}");
        }
    }
}

/// A process that ends with the test.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The parts of an answer that Fortio's server and ours must share: status, length of the body, and the chosen fields.
fn meaning(address: &str, query: &str) -> Option<(String, usize, Vec<String>)> {
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    stream
        .set_read_timeout(Some(crate::server::PATIENCE))
        .ok()?;
    let request = format!(
        "POST /?{query} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nContent-Type: application/x-own\r\n\
         Content-Length: 5\r\nConnection: close\r\n\r\nhello"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = memchr::memmem::find(&answer, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1)?.to_owned();
    let chosen = |line: &&str| {
        let line = line.to_ascii_lowercase();
        line.starts_with("x-") || line.starts_with("content-encoding") || line.contains("x-own")
    };
    let mut fields: Vec<String> = head
        .lines()
        .filter(chosen)
        .map(str::to_ascii_lowercase)
        .collect();
    fields.sort();
    // The query does not set the level of compression, so lengths of compressed bodies are not compared.
    let compressed = fields.iter().any(|field| field.contains("gzip"));
    Some((
        status,
        if compressed { 0 } else { answer.len() - end },
        fields,
    ))
}

#[test]
fn queries_mean_what_they_mean_to_fortios_server() {
    let Some(fortio) = prerequisites::program(Prerequisite::Fortio, "fortio") else {
        return;
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let theirs = port.to_string();
    let off = ["-grpc-port", "-tcp-port", "-udp-port", "-redirect-port"];
    let off = off.iter().flat_map(|flag| [*flag, "disabled"]);
    let started = Command::new(fortio)
        .args([
            "server",
            "-quiet",
            "-loglevel",
            "Error",
            "-http-port",
            &theirs,
        ])
        .args(off)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    let _fortio = Running(started.unwrap());
    let began = std::time::Instant::now();
    // The server listens before it can answer.
    while meaning(&theirs, "").is_none_or(|(status, ..)| status != "200") {
        assert!(began.elapsed() < crate::server::PATIENCE, "fortio serves");
        std::thread::yield_now();
    }
    let server = Served::echo(EchoOptions::default());
    let ours = server.address.to_string();
    for query in [
        "",
        "size=0",
        "size=100",
        "size=100:0",
        "size=100:100",
        "status=503",
        "status=404&size=10",
        "status=503:0,404:100",
        "status=503:0",
        "header=X-A:b&header=X-B:c",
        "header=Content-Type:application/x-own%2B1",
        "size=10&size=20",
        "status=404&status=503",
        "size=",
        "gzip=&status=",
        "delay=1ms",
        "delay=1ms:100",
        "close=true",
        "close=0",
        "gzip=true&size=1000",
        "gzip=100",
        "gzip=0&size=7",
        "gzip=false",
    ] {
        let told = meaning(&theirs, query).unwrap();
        assert_eq!(meaning(&ours, query).unwrap(), told, "{query}");
    }
}
