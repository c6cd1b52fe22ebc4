//! Other people's HTTP/2 clients against our echo server, where they are installed.

use std::process::Command;

use voile_load::echo::EchoOptions;

use crate::server::Served;

/// Runs a tool and returns what it printed; none, with a printed reason, where it is not installed.
fn tool(program: &str, arguments: &[&str]) -> Option<String> {
    let output = match Command::new(program).args(arguments).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: {program}: {error}");
            return None;
        }
    };
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
    let Some(answer) = tool("curl", &arguments) else {
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
    let echoed = tool("curl", &arguments);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(
        echoed.is_none_or(|echoed| echoed == big),
        "the body comes back as it went"
    );
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
        if let Some(answer) = tool("h2load", &arguments) {
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
        if let Some(answer) = tool("nghttp", &arguments) {
            assert!(answer.contains(":status: 200"), "{options:?}: {answer}");
            assert!(!answer.contains("RST_STREAM"), "{options:?}: {answer}");
        }
    }
}
