//! Contestants and generators that lie: each is measured by the real `voile bench run`, beside an honest one that is believed,
//! and the record says by name what the liar did.

use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bench::truth::{DEFINITION, assert_believed, measured, reasons};
use crate::mesh::Process;
use crate::mesh::application::{read_request, serve};

/// The size of the answers that are asked for.
const SIZE: usize = 64;

/// Stands before the real server. Passes every request on, so that it is seen to arrive, and gives an answer of its own.
/// Reads the real server's address from that file when the first request comes.
fn false_server(real: PathBuf, answer: fn() -> String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let real = Arc::new(real);
    serve(listener, move |stream| {
        let Ok(text) = std::fs::read_to_string(real.as_path()) else {
            return;
        };
        let Ok(server) = TcpStream::connect(text.trim()) else {
            return;
        };
        let mut server = BufReader::new(server);
        let mut client = BufReader::new(stream);
        while let Some((head, body)) = read_request(&mut client) {
            let passed = server
                .get_mut()
                .write_all(format!("{head}{body}").as_bytes())
                .is_ok()
                && read_request(&mut server).is_some();
            if !passed || client.get_mut().write_all(answer().as_bytes()).is_err() {
                return;
            }
        }
    });
    address
}

/// A build with a false endpoint in its control plane: that of a false server, which learns the true one.
fn leads_to(answer: fn() -> String, folder: &Path) -> String {
    let real = folder.join("real");
    let address = false_server(real.clone(), answer);
    format!(
        r#"if [ "$1" = control ]; then
  sed -n '/http-plain/,$ s/.*defaultEndpoint: //p' "$3/mesh.yaml" | head -n 1 >'{}'
  sed -i "s/defaultEndpoint: .*/defaultEndpoint: {address}/" "$3/mesh.yaml"
fi
exec "$VOILE" "$@""#,
        real.display()
    )
}

#[test]
fn who_answers_with_another_size_is_caught() {
    let folder = tempfile::tempdir().expect("a folder");
    let short = || {
        let body = "x".repeat(SIZE - 1);
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            SIZE - 1
        )
    };
    let (ran, record) = measured(&leads_to(short, folder.path()), DEFINITION);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_believed(&record, &said);
    let why = reasons(&record, "cheat");
    for words in [
        "requests failed (",
        " size)",
        "every answer is good and carries 64 bytes: 0 of",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
    // It passed everything on, so nothing but the answers gives it away.
    assert!(!why.contains("captured before the server"), "{why}");
}

#[test]
fn who_refuses_what_is_to_be_allowed_is_caught() {
    let folder = tempfile::tempdir().expect("a folder");
    let denied = || {
        let body = "x".repeat(SIZE);
        format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {SIZE}\r\n\r\n{body}")
    };
    let (ran, record) = measured(&leads_to(denied, folder.path()), DEFINITION);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_believed(&record, &said);
    let why = reasons(&record, "cheat");
    for words in [
        "requests failed (",
        " status)",
        "counter of good answers grew by the requests sent: sent 300; client-sidecar 0, server-sidecar 0",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
    assert!(!why.contains("captured before the server"), "{why}");
}

#[test]
fn who_bypasses_its_own_sidecar_is_caught() {
    // A bare relay takes the place of the server's sidecar on the measured port, in that sidecar's own group of processes, so
    // that every request arrives, well answered, at a socket that seems to be the sidecar's.
    let script = r#"if [ "$1" = control ]; then
  at="$3/.."
  sed -n 's/.*defaultEndpoint: //p' "$3/mesh.yaml" | head -n 1 >"$at/real"
  sed -n '/name: http-plain/{n;s/.*port: //p}' "$3/mesh.yaml" | head -n 1 >"$at/port"
  sed -z -i 's/number: [0-9]*\(\n *protocol: HTTP\n *name: http-plain\n *captureMode: NONE\n *defaultEndpoint\)/number: 19999\1/' "$3/mesh.yaml"
fi
case "$*" in *"--workload lab/server"*)
  at=$(printf '%s\n' "$@" | sed -n 's|/server.token$||p')
  "$VOILE" relay --listen "127.10.0.2:$(cat "$at/port")" --to "$(cat "$at/real")" --workers 1 & ;;
esac
exec "$VOILE" "$@""#;
    let (ran, record) = measured(script, DEFINITION);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_believed(&record, &said);
    let why = reasons(&record, "cheat");
    assert!(
        why.contains("the server-sidecar counted 0 good answers, the generator"),
        "{why} {said}"
    );
    assert!(
        why.contains("counter of good answers grew by the requests sent: sent 300; client-sidecar 300, server-sidecar 0"),
        "{why}"
    );
    // Nothing else gives it away: each answer is good, and each hop's socket is one of its own.
    assert!(
        !why.contains("failed (") && !why.contains("holds it"),
        "{why}"
    );
}

/// Measures with a program of ours in every place, the generator's too.
fn measured_by(script: &str, definition: &str) -> (Option<i32>, String, serde_json::Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let text = format!(
        "#!/bin/sh\nVOILE='{}'\n{script}\n",
        env!("CARGO_BIN_EXE_voile")
    );
    std::fs::write(at("liar"), text).expect("written");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(at("liar"), mode).expect("ours");
    std::fs::write(at("liars.toml"), definition).expect("written");
    let ran = Process::output(|voile| {
        voile
            .args(["bench", "run", "--rounds", "1", "--voile"])
            .arg(at("liar"))
            .arg(at("liars.toml"))
            .arg("--out")
            .arg(at("out"));
    });
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    let record =
        crate::bench::record_text(&at("out")).unwrap_or_else(|why| panic!("{why}: {said}"));
    let record = serde_json::from_str(&record).expect("JSON");
    (ran.status.code(), said, record)
}

#[test]
fn a_generator_that_takes_refusals_for_successes_is_caught() {
    // The server refuses its requests, and its report of them is flawless.
    let script = r#"if [ "$1" = load ]; then
  for word; do
    shift
    case "$word" in http://*) word="$word&status=403" ;; esac
    set -- "$@" "$word"
  done
  exec "$VOILE" "$@" --expect-status 403
fi
exec "$VOILE" "$@""#;
    let (code, said, record) = measured_by(script, DEFINITION);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no slice is valid"), "{said}");
    let runs = record["runs"].as_array().expect("runs");
    assert!(
        runs.iter()
            .all(|run| run["errors"] == 0 && run["requests"].as_u64() > Some(0)),
        "by its own word all went well: {runs:?}"
    );
    let why = reasons(&record, "voile");
    assert!(
        why.contains("counted 0 good answers, the generator")
            && why.contains("some took another path or were refused"),
        "{why}"
    );
    assert!(
        why.contains("each proxy's own counter of good answers grew by the requests sent: sent")
            && why.contains("client-sidecar 0, server-sidecar 0"),
        "{why}"
    );
}

#[test]
fn a_generator_that_is_asked_for_more_than_it_can_is_caught() {
    let definition = DEFINITION
        .replace("rate = 400", "rate = 1000000")
        .replace("connections = 2", "connections = 16")
        .replace(
            "contestants = [\"voile\"]\nmodes = [\"both\"]",
            "contestants = [\"baseline\"]\nmodes = [\"baseline\"]",
        );
    let (code, said, record) = measured_by("exec \"$VOILE\" \"$@\"", &definition);
    assert_eq!(code, Some(1), "{said}");
    let runs = record["runs"].as_array().expect("runs");
    assert!(runs.iter().all(|run| run["valid"] == false), "{runs:?}");
    let why = reasons(&record, "baseline");
    assert!(why.contains("rate missed by"), "{why}");
    assert!(why.contains("lab saturated: "), "{why}");
}

/// Requests that a policy refuses, and requests that its last value lets in.
fn judged() -> String {
    DEFINITION.replace(
        "modes = [\"both\"]",
        "modes = [\"both\"]\npaths = [5]\nverdicts = [\"deny-last\", \"allow-last\"]",
    )
}

#[test]
fn who_does_not_ask_its_policies_is_caught_whether_they_refuse_or_let_in() {
    // Its control plane never reads the policies, so that every request passes: with one verdict wrongly, with the other
    // rightly. Only its sidecar's own counter shows that no policy was evaluated.
    let script = r#"[ "$1" = control ] && rm "$3/generated.yaml"; exec "$VOILE" "$@""#;
    let (ran, record) = measured(script, &judged());
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_believed(&record, &said);
    let why = |verdict: &str| -> String {
        let runs = record["runs"].as_array().expect("runs").iter();
        let its =
            runs.filter(|run| run["contestant"] == "cheat" && run["shape"]["verdict"] == verdict);
        its.map(|run| run["invalid_reasons"].to_string()).collect()
    };
    let refused = why("deny-last");
    for words in [
        "requests failed (",
        "every request is refused by policy, none answered otherwise: 0 of",
        "counter of refusals grew by the requests sent: sent 300; client-sidecar 0, server-sidecar 0",
        "switched on: requests that policies refused",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    let let_in = why("allow-last");
    assert!(
        let_in.contains("switched on: requests that policies let in")
            && let_in.contains("0 more after 300 sent"),
        "{let_in}"
    );
    assert!(!let_in.contains("failed ("), "{let_in}");
}

/// The same of tokens: forged ones are refused, good ones let in.
#[test]
fn who_does_not_look_at_tokens_is_caught_whether_they_are_good_or_forged() {
    let script = r#"[ "$1" = control ] && rm "$3/generated.yaml"; exec "$VOILE" "$@""#;
    let definition = DEFINITION.replace(
        "modes = [\"both\"]",
        "modes = [\"both\"]\nissuers = [3]\ntokens = [\"same\", \"fresh\", \"forged\"]",
    );
    let (ran, record) = measured(script, &definition);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_believed(&record, &said);
    let why = |token: &str| -> String {
        let runs = record["runs"].as_array().expect("runs").iter();
        let its = runs.filter(|run| run["contestant"] == "cheat" && run["shape"]["token"] == token);
        its.map(|run| run["invalid_reasons"].to_string()).collect()
    };
    let refused = why("forged");
    for words in [
        "requests failed (",
        "every request is refused for its token, none answered otherwise: 0 of",
        "switched on: tokens refused",
    ] {
        assert!(refused.contains(words), "{words}: {refused}");
    }
    for token in ["same", "fresh"] {
        let let_in = why(token);
        assert!(
            let_in.contains("switched on: tokens verified")
                && let_in.contains(": 0 more after")
                && !let_in.contains("failed ("),
            "{token}: {let_in}"
        );
    }
}

/// Routes that are not in force: requests come to the server all the same, and nothing but strays tells.
#[test]
fn who_does_not_obey_its_routes_is_caught_whichever_of_them_is_to_take_the_requests() {
    let script = r#"[ "$1" = control ] && rm "$3/routes.yaml"; exec "$VOILE" "$@""#;
    let group = |words: &str| format!("modes = [\"both\"]\n{words}\n");
    let cells = [
        "routes = [7]\nhits = [\"first\", \"last\", \"miss\"]",
        "prefix_routes = [7]",
        "header_routes = [7]",
    ]
    .map(group);
    let apart = "[[cells]]\ncontestants = [\"voile\"]\n";
    let definition = DEFINITION.replace("modes = [\"both\"]\n", &cells.join(apart));
    // A slice that a busy machine makes invalid does not matter here: the proofs come before.
    let (ran, record) = measured(script, &definition);
    let said = String::from_utf8_lossy(&ran.stderr);
    let honest = reasons(&record, "voile");
    assert!(!honest.contains("proof of path"), "{honest}: {said}");
    let proofs = record["proofs"].as_array().expect("proofs").iter();
    let proven = proofs.filter(|proof| proof["contestant"] == "voile");
    let proven: String = proven.map(|proof| proof["checks"].to_string()).collect();
    // By hit: first, last (of which the kinds are listed as one), miss.
    let shown = |words: &str| proven.matches(words).count();
    assert_eq!(
        shown("is answered 503: it leads to a service that nobody serves"),
        15
    );
    assert_eq!(shown("a request that no route takes is answered 404"), 2);
    let runs = record["runs"].as_array().expect("runs").iter();
    let cheats: Vec<_> = runs.filter(|run| run["contestant"] == "cheat").collect();
    assert_eq!(cheats.len(), 5, "{said}");
    for run in cheats {
        let why = run["invalid_reasons"].to_string();
        let no_route = "a request that no route takes is answered 404: 0 of";
        assert!(why.contains("is answered 503: it leads to"), "{run}");
        assert_eq!(
            why.contains(no_route),
            run["shape"]["hit"] != "miss",
            "{run}"
        );
        assert!(!why.contains("failed ("), "{run}");
    }
}
