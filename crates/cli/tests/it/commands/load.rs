//! `voile load` and `voile echo` from a user's view: wrong arguments, a run that is ended early, a result that cannot be
//! written, and the outputs on each stream.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use voile_testkit::prerequisites::{Prerequisite, require};

fn voile() -> Command {
    Command::new(env!("CARGO_BIN_EXE_voile"))
}

/// A server that ends with the test, and its address.
struct Server(Child, String);

impl Server {
    fn start() -> Self {
        let mut child = voile()
            .args(["echo", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let told = BufReader::new(child.stderr.take().expect("piped"));
        let line = told.lines().next().expect("a line").expect("readable");
        let address = line.rsplit(' ').next().expect("an address").to_owned();
        Self(child, address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn load(arguments: &[&str]) -> Output {
    let mut command = voile();
    command.arg("load").args(arguments);
    command.output().expect("it runs")
}

#[test]
fn what_is_wrong_with_the_words_of_a_load_is_said_before_anything_is_sent() {
    let url = "http://127.0.0.1:1/";
    for (arguments, wanted) in [
        (&["ftp://a/"][..], "scheme `ftp`"),
        (&["udp://127.0.0.1"], "a port is missing"),
        (&["tcp://127.0.0.1:1/x"], "a path is not allowed"),
        (&["udp://127.0.0.1:1", "--payload-size", "65508"], "65507"),
        (&[url, "--resolve", "there"], "ip4 or ip6"),
        (&["http://localhost.invalid/"], "cannot resolve"),
        (&[url, "--rate", "100.."], "`100..` is not a rate"),
        (&[url, "--rate", "-5"], "`-5` is not a rate"),
        (
            &[url, "--duration", "0", "--rate", "1..9"],
            "requires a duration",
        ),
        (&[url, "--requests", "0"], "at least 1"),
        (&[url, "--requests", "9", "--duration", "1s"], "--duration"),
        (&[url, "--requests", "9", "--arrival", "poisson"], "random"),
        (&[url, "--abort", "status=many"], "status=503"),
        (&[url, "--abort", "p99<1s"], "p99>5ms"),
        (&[url, "--threshold", "p99>1s"], "p99<5ms"),
        (&[url, "--replay", "/nowhere"], "/nowhere"),
        (&[url, "--replay-requests"], "--replay"),
        (&[url, "--out", "/nowhere/result"], "write /nowhere/result"),
        (&[url, "--protocol", "http1.0", "--streams", "2"], "streams"),
        (
            &[url, "--find-capacity", "p99<1s", "--duration", "0"],
            "the duration of a probe must be more than 0",
        ),
        (
            &[url, "--find-capacity", "p99<1s", "--format", "fortio"],
            "cannot express a search",
        ),
        (
            &[
                "tcp://127.0.0.1:1",
                "--protocol",
                "tcp-bulk",
                "--format",
                "fortio",
            ],
            "cannot express the figures of tcp-bulk",
        ),
    ] {
        let told = load(arguments);
        let why = String::from_utf8_lossy(&told.stderr);
        assert_eq!(told.status.code(), Some(2), "{arguments:?}: {why}");
        assert!(why.contains(wanted), "{arguments:?}: {why}");
        assert!(told.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_load_that_is_ended_early_tells_what_it_has() {
    let server = Server::start();
    for (duration, planned) in [("1h", true), ("0", false)] {
        let url = format!("http://{}/?size=10", server.1);
        let mut run = voile()
            .args(["load", &url, "--rate", "50", "--duration", duration])
            .args(["--json", "--progress"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(run.stderr.take().expect("piped")).lines();
        // The line of its first second: it is under way.
        lines.next().expect("a line").expect("readable");
        let pid = rustix::process::Pid::from_child(&run);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("sent");
        lines.for_each(drop);
        let told = run.wait_with_output().expect("it ends");
        let json: Value = serde_json::from_slice(&told.stdout).expect("whole JSON");
        assert_eq!(json["interrupted"], planned, "{duration}");
        assert!(json["ok"].as_u64() > Some(0), "{duration}");
        assert_eq!(json["latency_us"]["count"], json["scheduled"], "{duration}");
        assert_eq!(told.status.success(), json["valid"] == true, "{duration}");
    }
}

#[test]
fn a_load_on_nothing_ends_by_itself_and_says_why() {
    // A connection of its own holds the port, so that no test beside this one listens there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let holder = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("open");
    let closed = holder.local_addr().expect("bound");
    for words in [
        &["--give-up", "1s"][..],
        &["--give-up", "1s", "--find-capacity", "p99<1s"],
    ] {
        let url = format!("http://{closed}/");
        let told = load(&[&[&url, "--duration", "1h"], words].concat());
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(told.status.code(), Some(1), "{words:?}: {said}");
        let cause = format!("{closed}: Connection refused (nothing listens there)");
        assert!(said.contains(&cause), "{words:?}: {said}");
    }
}

#[test]
fn a_crossed_threshold_is_marked_and_sets_the_exit_code() {
    let server = Server::start();
    let url = format!("http://{}/?delay=5ms", server.1);
    for (bounds, mark, code) in [
        ("max<60s,errors<1%", "✓ max<60s ", 0),
        ("p50<1ms", "✗ p50<1ms ", 1),
    ] {
        let told = load(&[&url, "--rate=50", "--duration=1s", "--threshold", bounds]);
        let (table, said) = (
            String::from_utf8_lossy(&told.stdout),
            String::from_utf8_lossy(&told.stderr),
        );
        assert!(table.contains(mark), "{table}");
        let crossed = said.contains("threshold p50<1ms crossed: p50 ");
        assert_eq!(crossed, code == 1, "{said}");
        // Of a busy machine the run may be invalid besides.
        if !table.contains("INVALID") {
            assert_eq!(told.status.code(), Some(code), "{table}{said}");
        }
    }
}

#[test]
fn so_many_requests_are_sent_and_the_result_is_where_it_was_asked_for() {
    let server = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("result.json");
    let url = format!("http://{}/?size=10", server.1);
    let path = file.display().to_string();
    for (words, format) in [
        (&["load", "--rate=0", "--requests=37", "--json"][..], "ok"),
        (&["load", "--rate=370", "--requests=37", "--json"], "ok"),
        (&["fortio", "load", "-qps=0", "-n=37", "-json"], "RetCodes"),
    ] {
        let mut command = voile();
        command.args(words);
        if words[0] == "fortio" {
            command.args([&path, &url]);
        } else {
            command.args([&url, "--out", &path]);
        }
        let told = command.output().expect("it runs");
        assert!(told.stdout.is_empty(), "{words:?}");
        let json = std::fs::read(&file).expect("written");
        let json: Value = serde_json::from_slice(&json).expect("JSON");
        let count = if format == "ok" {
            &json["ok"]
        } else {
            &json["RetCodes"]["200"]
        };
        assert_eq!(*count, 37, "{words:?}: {json}");
        std::fs::remove_file(&file).expect("it was there");
    }
}

/// The view of a person: on a terminal (util-linux' `script` gives one) each second is drawn over the last, and the final output
/// replaces the picture. A pipe gets none of it.
#[test]
fn on_a_terminal_a_run_is_drawn_over_itself_and_its_result_stands_there_at_the_end() {
    let server = Server::start();
    let words = format!(
        "{} load http://{}/ --rate 50 --connections 2 --duration 3s",
        env!("CARGO_BIN_EXE_voile"),
        server.1
    );
    let shown = Command::new("script")
        .args(["--quiet", "--return", "--command", &words, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output();
    let Some(shown) = require(Prerequisite::UtilLinux, shown) else {
        return;
    };
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    const BEGINS: &str = "\x1b[?2026h";
    let pictures: Vec<&str> = shown.split(BEGINS).skip(1).collect();
    assert!(pictures.len() > 1, "a picture a second: {shown:?}");
    for part in ["this second", "since the start"] {
        assert!(pictures[0].contains(part), "{part}: {shown:?}");
    }
    assert!(
        !pictures[0].starts_with("\x1b["),
        "the first covers nothing"
    );
    let over = |picture: &&str| picture.starts_with("\x1b[") && picture[2..].contains("A");
    assert!(pictures[1..].iter().all(over), "{shown:?}");
    let last = pictures.last().expect("some");
    // Behind the end of the last picture: up to its first line, and everything below is cleared.
    let (_, after) = last.split_once("\x1b[?2026l").expect("its end");
    let (up, result) = after.split_once("\x1b[J").expect("it is taken away");
    assert!(up.starts_with("\x1b[") && up.ends_with('A'), "{shown:?}");
    assert!(
        result.contains("p99") && !result.contains("this second"),
        "{shown:?}"
    );
    let piped = load(&[
        &format!("http://{}/", server.1),
        "--rate",
        "50",
        "--duration",
        "2s",
    ]);
    let said = [piped.stdout, piped.stderr].concat();
    assert!(!said.contains(&0x1b), "{}", String::from_utf8_lossy(&said));
}
