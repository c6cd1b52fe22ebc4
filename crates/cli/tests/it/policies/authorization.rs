//! AuthorizationPolicy from YAML to verdicts, with real processes: who may call what, over HTTP and TCP, and that a change
//! reaches what is under way.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::mesh::{
    Answer, GRPC_PORT, HTTP_PORT, Mesh, TCP_PORT, application, exchange, get, read_to_end, series,
    wait_until,
};

/// Identity of the client's sidecar.
const CLIENT: &str = "cluster.local/ns/shop/sa/client";

/// A policy for the server, with `spec`'s further fields in flow style.
pub(crate) fn policy(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: server}}}}, {spec}}}\n"
    )
}

pub(crate) fn set(mesh: &Mesh, policies: &str) {
    let file = mesh.config().join("authorization.yaml");
    let new = mesh.config().join(".authorization.new");
    std::fs::write(&new, policies).expect("policies");
    std::fs::rename(new, file).expect("in place");
}

/// Waits until every worker obeys: each gets the change by a message of its own.
pub(crate) fn in_force(what: &str, mut seen: impl FnMut() -> bool) {
    const IN_A_ROW: usize = 12; // connections go to the worker with the fewest, so that both get some of these
    wait_until(what, || (0..IN_A_ROW).all(|_| seen()));
}

pub(crate) fn status(mesh: &Mesh, request: &str) -> u16 {
    let head = format!("{request} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
    exchange(mesh.http(), head.as_bytes()).map_or(0, |answer| answer.status)
}

fn stranger(mesh: &Mesh, path: &str) -> u16 {
    get(mesh.inbound(HTTP_PORT), path).map_or(0, |answer| answer.status)
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[test]
fn principals_methods_and_paths_decide_about_requests() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    assert_eq!(status(&mesh, "GET /a"), 200);
    set(
        &mesh,
        &policy(
            "allow",
            &format!(
                "rules: [{{from: [{{source: {{principals: [\"{CLIENT}\"]}}}}], to: [{{operation: {{methods: [GET], paths: [\"/a\", \"/b/*\"]}}}}]}}]"
            ),
        ),
    );
    in_force("the policy is in force", || status(&mesh, "GET /c") == 403);
    let table = [
        ("GET /a", 200),
        ("GET /a?x=1", 200),
        ("GET /b/c", 200),
        ("GET /ab", 403),
        ("POST /a", 403),
        ("GET /A", 403),
        ("GET /b/../c", 403),
        ("GET /x/../a", 200),
        ("GET /%61", 200),
        ("GET /./a", 200),
        ("GET /b/%2e%2e/c", 403),
        ("GET /a/..%2fa", 403),
    ];
    for (request, expected) in table {
        assert_eq!(status(&mesh, request), expected, "{request}");
    }
    assert_eq!(stranger(&mesh, "/a"), 403, "a stranger has no identity");
    let denied = get(mesh.inbound(HTTP_PORT), "/a").expect("an answer");
    assert_eq!(text(&denied).trim(), "RBAC: access denied");

    set(
        &mesh,
        &policy(
            "deny",
            "action: DENY, rules: [{to: [{operation: {paths: [\"/admin*\"]}}]}]",
        ),
    );
    in_force("the other policy is in force", || {
        status(&mesh, "GET /c") == 200
    });
    assert_eq!(status(&mesh, "GET /admin/users"), 403);
    assert_eq!(status(&mesh, "GET /x/../admin"), 403);
    assert_eq!(stranger(&mesh, "/a"), 200);
    let metrics = mesh.server_metrics();
    let denied = [
        "reporter=\"destination\"",
        "response_code=\"403\"",
        "response_flags=\"UAEX\"",
    ];
    assert!(
        series(&metrics, "istio_requests_total", &denied).is_some(),
        "{metrics}"
    );
    std::fs::remove_file(mesh.config().join("authorization.yaml")).expect("removed");
    in_force("without policies all is as before", || {
        status(&mesh, "GET /admin") == 200
    });
}

#[test]
fn the_application_gets_the_path_that_was_judged() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    set(
        &mesh,
        &policy("allow", "rules: [{to: [{operation: {paths: [\"/a*\"]}}]}]"),
    );
    in_force("the policy is in force", || status(&mesh, "GET /c") == 403);
    let answer = get(mesh.http(), "/x/../a/./b?c=/../d").expect("an answer");
    assert_eq!(answer.status, 200);
    assert!(
        text(&answer).starts_with("GET /a/b?c=/../d HTTP/1.1"),
        "{}",
        text(&answer)
    );
}

#[test]
fn a_dry_run_policy_is_counted_and_decides_nothing() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let rehearsed = policy("deny", "action: DENY, rules: [{}]").replace(
        "name: deny,",
        "name: deny, annotations: {istio.io/dry-run: \"true\"},",
    );
    set(&mesh, &rehearsed);
    let would_deny = || {
        let metrics = mesh.server_metrics();
        let name = "voile_authorization_dry_run_total";
        series(&metrics, name, &["verdict=\"denied\""]).unwrap_or_default()
    };
    wait_until("the rehearsal is counted", || {
        assert_eq!(status(&mesh, "GET /a"), 200);
        would_deny() > 0.0
    });
}

/// Returns true if the opaque port echoes a word.
fn echoes(to: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(to) else {
        return false;
    };
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).expect("an open socket");
    let mut back = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut back).is_ok()
}

pub(crate) fn echo_application(mesh: &Mesh) {
    application::serve(mesh.tcp_app(), |mut stream| {
        let mut back = stream.try_clone().expect("a socket");
        let _ = std::io::copy(&mut stream, &mut back);
    });
}

#[test]
fn opaque_connections_are_judged_and_live_ones_cut() {
    let mesh = Mesh::start("PERMISSIVE");
    echo_application(&mesh);
    let mut live = TcpStream::connect(mesh.tcp()).expect("the listener");
    live.set_read_timeout(Some(Duration::from_secs(20)))
        .expect("an open socket");
    let mut back = [0; 4];
    live.write_all(b"ping").expect("written");
    live.read_exact(&mut back).expect("echoed");
    assert!(echoes(mesh.inbound(TCP_PORT)));

    // The client keeps its leave, a stranger loses it.
    let ours = format!("rules: [{{from: [{{source: {{principals: [\"{CLIENT}\"]}}}}]}}]");
    set(&mesh, &policy("allow", &ours));
    wait_until("strangers are refused", || !echoes(mesh.inbound(TCP_PORT)));
    live.write_all(b"pong").expect("written");
    live.read_exact(&mut back)
        .expect("a permit that holds cuts nothing");
    assert!(echoes(mesh.tcp()));

    let port =
        format!("action: DENY, rules: [{{to: [{{operation: {{ports: [\"{TCP_PORT}\"]}}}}]}}]");
    set(&mesh, &(policy("allow", &ours) + &policy("deny", &port)));
    let ended = live.read(&mut back);
    assert!(
        matches!(ended, Ok(0) | Err(_)),
        "the live connection is cut: {ended:?}"
    );
    assert!(!echoes(mesh.tcp()));
    let metrics = mesh.server_metrics();
    assert!(
        series(
            &metrics,
            "voile_authorization_total",
            &["verdict=\"revoked\""]
        ) >= Some(1.0),
        "{metrics}"
    );
}

#[test]
fn a_client_reads_which_rule_denied_only_at_level_debug() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let deny = "action: DENY, rules: [{to: [{operation: {paths: [\"/a\"]}}]}, {to: [{operation: {paths: [\"/b\"]}}]}]";
    set(&mesh, &policy("deny", deny));
    in_force("the policy is in force", || stranger(&mesh, "/b") == 403);
    let told = |path: &str| {
        let answer = get(mesh.inbound(HTTP_PORT), path).expect("an answer");
        let mut lines = answer.head.lines().map(str::to_ascii_lowercase);
        lines.find(|line| line.starts_with("x-voile-"))
    };
    assert_eq!(told("/b"), None);
    let level = |level: &str| {
        let ask = format!(
            "PUT /logging?level={level} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        );
        let answer = exchange(mesh.server_admin(), ask.as_bytes()).expect("an answer");
        assert_eq!(answer.status, 200);
    };
    level("debug");
    let by = "x-voile-denied-by: rbac_access_denied_matched_policy[ns[shop]-policy[deny]-rule[1]]";
    assert_eq!(told("/b").as_deref(), Some(by));
    assert_eq!(told("/c"), None, "it is let in");
    level("info");
    assert_eq!(told("/b"), None);
}

#[test]
fn grpc_callers_read_a_status() {
    let mesh = Mesh::start("PERMISSIVE");
    set(
        &mesh,
        &policy(
            "deny",
            "action: DENY, rules: [{to: [{operation: {paths: [\"/a.B/*\"]}}]}]",
        ),
    );
    // HTTP/2 by prior knowledge, one call, in the fewest bytes: literal fields, no indexing, no Huffman code.
    let mut block = vec![0x83, 0x86];
    for (name, value) in [
        (":path", "/a.B/C"),
        (":authority", "server"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
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
    wait_until("the call is denied by its status", || {
        let mut stream = TcpStream::connect(mesh.inbound(GRPC_PORT)).expect("the listener");
        stream
            .set_read_timeout(Some(Duration::from_secs(2)))
            .expect("an open socket");
        stream.write_all(&request).expect("written");
        let mut told = Vec::new();
        let mut some = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut some) {
            told.extend_from_slice(&some[..count]);
            let seen = |wanted: &[u8]| told.windows(wanted.len()).any(|bytes| bytes == wanted);
            if seen(b"RBAC: access denied") {
                return true;
            }
        }
        false
    });
}

#[test]
fn a_changing_policy_never_gives_a_wrong_verdict() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    // `/open` is allowed and `/shut` is denied under each of the two, by different means.
    let one = policy("a", "rules: [{to: [{operation: {paths: [\"/open\"]}}]}]");
    let other = policy(
        "a",
        "action: DENY, rules: [{to: [{operation: {paths: [\"/shut\"]}}]}]",
    ) + &policy(
        "b",
        "rules: [{to: [{operation: {notPaths: [\"/shut\", \"/mark\"]}}]}]",
    );
    let marked = one.clone() + &policy("c", "rules: [{to: [{operation: {paths: [\"/mark\"]}}]}]");
    set(&mesh, &one);
    in_force("the first policy is in force", || {
        status(&mesh, "GET /shut") == 403
    });
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|number| {
                let (mesh, done) = (&mesh, Arc::clone(&done));
                scope.spawn(move || {
                    let mut calls = 0;
                    while !done.load(Ordering::Relaxed) {
                        let (request, expected) = match (number + calls) % 2 {
                            0 => ("GET /open", 200),
                            _ => ("GET /shut", 403),
                        };
                        assert_eq!(status(mesh, request), expected, "{request} after {calls}");
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        for _ in 0..3 {
            set(&mesh, &other);
            in_force("one set is in force", || status(&mesh, "GET /else") == 200);
            set(&mesh, &marked);
            in_force("the other set is in force", || {
                status(&mesh, "GET /mark") == 200
            });
        }
        done.store(true, Ordering::Relaxed);
        let calls: usize = callers
            .into_iter()
            .map(|caller| caller.join().expect("no wrong verdict"))
            .sum();
        assert!(calls > 20, "only {calls} calls were made");
    });
}

#[test]
fn a_broken_policy_is_refused_by_name_and_shuts_what_it_was_for() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    assert_eq!(status(&mesh, "GET /a"), 200);
    set(
        &mesh,
        &policy("broken", "rules: [{to: [{operation: {path: [\"/a\"]}}]}]"),
    );
    in_force("it is held shut", || status(&mesh, "GET /a") == 403);
    // The control plane reports problems once the folder is at rest.
    wait_until("the mistake is told", || {
        mesh.control.log().contains("V0101")
    });
    set(
        &mesh,
        &policy("broken", "rules: [{to: [{operation: {paths: [\"/a\"]}}]}]"),
    );
    in_force("what was meant is in force", || {
        status(&mesh, "GET /a") == 200
    });
    assert_eq!(status(&mesh, "GET /b"), 403);
    set(
        &mesh,
        &policy("broken", "rules: [{to: [{operation: {path: [\"/b\"]}}]}]"),
    );
    wait_until("the second mistake is told", || {
        mesh.control.log().matches("V0110").count() > 0
    });
    assert_eq!(
        status(&mesh, "GET /a"),
        200,
        "the last good version stays in force"
    );
    assert_eq!(
        status(&mesh, "GET /b"),
        403,
        "the last good version stays in force"
    );
}

#[test]
fn only_a_verified_certificate_says_who_calls() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    set(
        &mesh,
        &policy(
            "allow",
            "rules: [{from: [{source: {namespaces: [shop]}}]}, {from: [{source: {remoteIpBlocks: [\"192.0.2.0/24\"]}}]}]",
        ),
    );
    in_force("the policy is in force", || stranger(&mesh, "/") == 403);
    assert_eq!(status(&mesh, "GET /"), 200);
    for header in [
        "X-Forwarded-Client-Cert: By=spiffe://cluster.local/ns/shop/sa/server;URI=spiffe://cluster.local/ns/shop/sa/client",
        "X-Envoy-Peer-Metadata: ChQKDkFQUF9DT05UQUlORVJTEgIaAA==",
        "X-Envoy-Peer-Metadata-Id: sidecar~192.0.2.1~client.shop~shop.svc.cluster.local",
        "X-Forwarded-For: 192.0.2.1",
        "Forwarded: for=192.0.2.1",
        "X-Real-Ip: 192.0.2.1",
        "Authorization: Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
    ] {
        let request =
            format!("GET / HTTP/1.1\r\nHost: server\r\n{header}\r\nConnection: close\r\n\r\n");
        let answer = read_to_end(mesh.inbound(HTTP_PORT), request.as_bytes()).expect("an answer");
        assert!(answer.starts_with(b"HTTP/1.1 403"), "{header}");
    }
}
