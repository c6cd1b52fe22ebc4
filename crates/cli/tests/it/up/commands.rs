//! Commands that find the mesh of `voile up` by itself: what they show, who they show it to, and `voile stop`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::chown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};

use voile_testkit::prerequisites::{Prerequisite, skip};

use crate::mesh::{get, wait_until};
use crate::up::netns::{NOBODY, is_root, start};
use crate::up::{PAIR, Up, bookstore, example, pair};

/// The answer of a command in JSON.
fn json(up: &Up, words: &[&str]) -> Value {
    let (code, said) = up.command(&[words, &["-o", "json"]].concat());
    assert_eq!(code, Some(0), "{words:?}: {said}");
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{words:?}: {error}: {said}"))
}

/// The answer of `voile status` when every proxy has what it should.
fn in_sync(up: &Up, words: &[&str]) -> String {
    let mut answer = String::new();
    wait_until("every proxy is in sync", || {
        let (code, said) = up.command(words);
        answer = said;
        code == Some(0)
    });
    answer
}

/// Waits until this pair has an edge, and returns it.
fn edge(up: &Up, source: &str, destination: &str) -> Value {
    let mut found = Value::Null;
    wait_until(&format!("{source} calls {destination}"), || {
        let page = json(up, &["edges", "--total"]);
        let rows = page["rows"].as_array().expect("rows").clone();
        let mut rows = rows.into_iter();
        let meant = |row: &Value| row["source"] == source && row["destination"] == destination;
        found = rows.find(meant).unwrap_or_default();
        !found.is_null()
    });
    found
}

/// What holds in both isolations.
fn everything_is_found(up: &mut Up, url: std::net::SocketAddr) {
    assert_eq!(get(url, "/").expect("an answer").status, 200);
    let said = in_sync(up, &["status"]);
    for part in [
        "): ready\n",
        "bookstore/storefront",
        " 0 errors in the configuration",
        "bookstore/reviews-",
    ] {
        assert!(said.contains(part), "{part:?}: {said}");
    }
    let found = edge(up, "bookstore/reviews", "bookstore/ratings");
    assert_eq!(found["mutual_tls"], 1.0, "{found}");
    assert!(found["success"].as_f64() > Some(0.5), "{found}");
    let ratings = found["destination_identities"].to_string();
    assert!(ratings.contains("/ns/bookstore/sa/"), "{found}");
    let top = json(up, &["top", "--total", "-n", "bookstore"]);
    let rows = top["rows"].as_array().expect("rows");
    assert!(
        rows.iter()
            .any(|row| row["destination"] == "bookstore/ratings"),
        "{top}"
    );
    let page = json(up, &["config", "bookstore/reviews-0"]);
    assert!(
        page[0]["resources"]
            .as_array()
            .is_some_and(|all| !all.is_empty()),
        "{page}"
    );
    let (code, said) = up.command(&["events", "--past", "--for", "1s"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("connect"), "{said}");

    requests_are_shown_as_they_end(up);

    let (code, said) = up.command(&["logs", "bookstore/reviews"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("bookstore.reviews-1.sidecar: "), "{said}");
    let asked = [
        "explain",
        "--to",
        "bookstore/ratings",
        "--from",
        "bookstore/reviews",
    ];
    let (code, said) = up.command(&asked);
    assert_eq!(code, Some(0), "{said}");

    let (code, said) = up.command(&["stop"]);
    assert_eq!(
        (code, said.contains("has ended")),
        (Some(0), true),
        "{said}"
    );
    assert!(up.wait().success());
    assert_eq!(up.left_behind(), Vec::<PathBuf>::new());
    let (code, said) = up.command(&["edges"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no mesh runs on this machine"), "{said}");
    let (code, said) = up.command(&["status"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("cure: voile up FOLDER"), "{said}");
}

/// The answer of the control socket.
fn ask(up: &Up, request: &str) -> String {
    let socket = up.left_behind()[0].join("control.sock");
    let mut stream = UnixStream::connect(socket).expect("it listens");
    write!(stream, "{request} HTTP/1.0\r\n\r\n").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// A pod of the bookstore calls all the time.
fn requests_are_shown_as_they_end(up: &Up) {
    let words = [
        "tap",
        "bookstore/ratings",
        "--path",
        "/ratings",
        "--status",
        "2xx",
        "--count",
        "3",
        "-o",
        "json",
    ];
    let (code, said) = up.command(&words);
    assert_eq!(code, Some(0), "{said}");
    for record in said.lines() {
        let record: Value = serde_json::from_str(record).expect("JSON");
        let from = "spiffe://cluster.local/ns/bookstore/sa/reviews";
        for (field, expected) in [
            ("proxy", "bookstore/ratings-0"),
            ("side", "inbound"),
            ("from", from),
            ("method", "GET"),
        ] {
            assert_eq!(record[field], expected, "{record}");
        }
        assert_eq!(
            (&record["status"], &record["attempts"]),
            (&200.into(), &1.into()),
            "{record}"
        );
        let took = |field: &str| record[field].as_f64().expect(field);
        let parts = took("proxy_ms") + took("queue_ms") + took("upstream_ms");
        assert!(
            parts > 0.0 && took("response_ms") >= took("upstream_ms"),
            "{record}"
        );
        // Each is rounded to microseconds.
        assert!(took("duration_ms") + 0.01 >= parts, "{record}");
    }
    assert_eq!(said.lines().count(), 3, "{said}");
    // Nothing is recorded when nobody watches any more.
    wait_until("nobody watches", || {
        let page = ask(up, "GET /proxy/bookstore/ratings-0/stats/prometheus");
        page.contains("\nvoile_tap_sessions 0\n")
    });
    // The socket forwards no other order, and recording is one.
    for (request, status) in [
        ("POST /proxy/bookstore/ratings-0/quitquitquit", "404"),
        ("POST /proxy/bookstore/ratings-0/tap/../quitquitquit", "404"),
        ("GET /proxy/bookstore/ratings-0/tap", "405"),
    ] {
        let answer = ask(up, request);
        assert_eq!(
            answer.split(' ').nth(1),
            Some(status),
            "{request}: {answer}"
        );
    }
}

#[test]
fn commands_find_a_mesh_on_loopback_and_stop_it() {
    let mut up = Up::start(bookstore, &[]);
    let published = up.ready();
    everything_is_found(&mut up, published["bookstore/storefront"]);
}

#[test]
fn commands_find_a_mesh_in_namespaces_and_stop_it() {
    let Some((mut up, published)) = start(bookstore, None) else {
        return;
    };
    everything_is_found(&mut up, published["bookstore/storefront"]);
}

#[test]
fn root_finds_the_mesh_of_another_user() {
    if !is_root() {
        return skip(Prerequisite::Root, "another user's mesh");
    }
    let Some((up, _)) = start(bookstore, Some(NOBODY)) else {
        return;
    };
    let said = in_sync(&up, &["status"]);
    assert!(said.contains("): ready\n"), "{said}");
}

/// A listener in a folder of another user's that looks like that of a run.
fn impostor(up: &Up, pid: u32) -> UnixListener {
    let folder = up.temporary().join(format!("voile-up-{NOBODY}-{pid}-0"));
    fs::create_dir(&folder).expect("made");
    let listener = UnixListener::bind(folder.join("control.sock")).expect("it listens");
    chown(&folder, Some(NOBODY), None).expect("root may");
    listener
}

/// Fills the queue of a listener, so that no connection gets through.
fn fill(listener: &UnixListener) -> Vec<rustix::fd::OwnedFd> {
    rustix::net::listen(listener, 0).expect("it listens");
    let path = listener.local_addr().expect("an address");
    let address = SocketAddrUnix::new(path.as_pathname().expect("a path")).expect("short");
    let connect = || {
        let flags = SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &address).map(|()| socket)
    };
    std::iter::from_fn(|| connect().ok()).collect()
}

#[test]
fn another_users_mesh_neither_delays_nor_stands_in_for_roots_own() {
    if !is_root() {
        return skip(Prerequisite::Root, "another user's mesh");
    }
    let mut up = Up::start(pair, &[]);
    up.ready();
    let full = impostor(&up, 1);
    let _queue = fill(&full);
    // It has the number of the process that is meant, and says that it is of the folder that is meant.
    let liar = impostor(&up, up.pid());
    let folder = up.file("").display().to_string();
    let state = json!({"folder": folder, "isolation": "a lie", "ready": true}).to_string();
    std::thread::spawn(move || {
        for mut client in liar.incoming().flatten() {
            let _ = BufReader::new(&client)
                .lines()
                .find(|line| line.as_ref().is_ok_and(String::is_empty));
            let _ = write!(client, "HTTP/1.0 200 OK\r\n\r\n{state}");
        }
    });
    let pid = up.pid().to_string();
    for named in [&[][..], &["--mesh", &pid], &["--mesh", &folder]] {
        let mut said = String::new();
        wait_until("its own mesh is shown, soon", || {
            let mut command = Command::new("timeout");
            command
                .args(["10", env!("CARGO_BIN_EXE_voile"), "status"])
                .args(named);
            let output = command.env("TMPDIR", up.temporary()).output();
            let output = output.expect("it starts");
            said = String::from_utf8_lossy(&output.stdout).into_owned();
            output.status.success()
        });
        assert!(said.contains("isolation loopback"), "{named:?}: {said}");
    }
}

/// Nobody may call `web`.
pub(crate) fn denied(folder: &Path) {
    let policy = r#"---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody, namespace: pair}
spec: {selector: {matchLabels: {app: web}}, action: DENY, rules: [{to: [{operation: {paths: ["/*"]}}]}]}
"#;
    fs::write(folder.join("pair.yaml"), format!("{PAIR}{policy}")).expect("written");
}

#[test]
fn what_a_policy_denies_is_on_its_edge() {
    let mut up = Up::start(denied, &[]);
    let published = up.ready();
    let status = |answer: Option<u16>| answer.is_some_and(|status| status >= 400);
    let answer = get(published["pair/plain"], "/")
        .ok()
        .map(|answer| answer.status);
    assert!(status(answer), "{answer:?}");
    let found = edge(&up, "pair/plain-0", "pair/web-0");
    assert!(found["denied"].as_f64() > Some(0.0), "{found}");
    assert_eq!(
        (&found["success"], &found["mutual_tls"]),
        (&0.0.into(), &0.0.into()),
        "{found}"
    );
    let (code, said) = up.command(&["edges", "--total", "--failing"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("pair/web") && said.contains("DENIED"),
        "{said}"
    );
    let said = std::thread::scope(|scope| {
        let watching = scope.spawn(|| up.command(&["tap", "--denied", "--count", "1"]));
        while !watching.is_finished() {
            let _ = get(published["pair/plain"], "/");
        }
        watching.join().expect("it ended").1
    });
    let place = format!("policy={}:", up.file("pair.yaml").display());
    for part in [
        " pair/web-0 in ",
        "policy[ns[pair]-policy[nobody]-rule[0]]",
        &place,
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn the_routes_that_requests_take_are_named_with_their_place_and_destination() {
    let mut up = Up::start(|folder| example("canary", folder), &[]);
    let published = up.ready();
    let doors = [published["canary/storefront"], published["canary/tester"]];
    let page = std::thread::scope(|scope| {
        let watching = scope.spawn(|| json(&up, &["routes", "--interval", "3s"]));
        while !watching.is_finished() {
            for door in doors {
                assert_eq!(get(door, "/").expect("an answer").status, 200);
            }
        }
        watching.join().expect("it ended")
    });
    let file = up.file("routes.yaml");
    let text = fs::read_to_string(&file).expect("read");
    let line = |name: &str| {
        let mut lines = text.lines().zip(1..);
        let found = lines.find(|(line, _)| line.contains(&format!("- name: {name}")));
        found.expect("the route").1
    };
    let rows = page["rows"].as_array().expect("rows");
    for (route, subset) in [("testers", "v2"), ("everybody", "v1"), ("everybody", "v2")] {
        let destination = format!("reviews.canary:9080 subset={subset}");
        let mut rows = rows.iter();
        let row = rows.find(|row| row["route"] == route && row["destination"] == destination);
        let row = row.unwrap_or_else(|| panic!("{route} {subset}: {page}"));
        let document = json!({
            "kind": "VirtualService", "name": "canary/reviews", "place": format!("{}:{}", file.display(), line(route)),
        });
        assert_eq!(row["document"], document);
        assert_eq!(
            (&row["called"], &row["success"]),
            (&"canary/reviews".into(), &1.0.into())
        );
        assert!(
            row["requests"].as_f64() > Some(0.0) && row["p99_ms"].as_f64() > Some(0.0),
            "{row}"
        );
    }
    // The doors' own sidecars choose no route for what comes from outside.
    assert_eq!(rows.len(), 3, "{page}");
}

#[test]
fn of_several_meshes_one_is_chosen_by_folder_or_process() {
    let mut first = Up::start(pair, &[]);
    first.ready();
    let mut second = Up::start_beside(&first, pair, &[]);
    second.ready();
    let (code, said) = first.command(&["status"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("2 meshes run on this machine; choose one:"),
        "{said}"
    );
    let folder = first.file("").display().to_string();
    for named in [first.pid().to_string(), folder] {
        let said = in_sync(&first, &["status", "--mesh", &named]);
        assert!(
            said.contains(&format!("(process {}, ", first.pid())),
            "{said}"
        );
    }
    let (code, said) = first.command(&["status", "--mesh", "/nowhere"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no mesh of `/nowhere` runs"), "{said}");
    let pid = second.pid().to_string();
    let (code, said) = first.command(&["stop", "--mesh", &pid]);
    assert_eq!(code, Some(0), "{said}");
    assert!(second.wait().success());
    in_sync(&first, &["status"]);
}
