//! RateLimits end to end: a control plane and two sidecars with mutual TLS, each of two workers. The tests count the answers
//! of clients. Times are long, so that no bucket fills up while a test runs.

mod global;
mod limiter;
mod reference;

use std::io::{BufReader, Write};
use std::net::TcpStream;

use crate::mesh::{Answer, Mesh, application, exchange, read_answer, series, wait_until};
use crate::traffic::http2::{call, connect, play, serve};

/// A RateLimit of the server's with these rules, in flow style.
pub(crate) fn limits(rules: &str) -> String {
    format!(
        "apiVersion: voile.dev/v1\nkind: RateLimit\nmetadata: {{name: calls, namespace: shop}}\n\
         spec:\n  selector: {{matchLabels: {{app: server}}}}\n  rules: [{rules}]\n"
    )
}

pub(crate) fn write(mesh: &Mesh, text: &str) {
    let new = mesh.config().join("limits.new");
    std::fs::write(&new, text).expect("written");
    std::fs::rename(&new, mesh.config().join("limits.yaml")).expect("renamed");
}

/// A request on a connection of its own; `fields` are complete lines.
fn ask(mesh: &Mesh, path: &str, fields: &str) -> Answer {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: server\r\n{fields}Connection: close\r\n\r\n");
    exchange(mesh.http(), request.as_bytes()).expect("an answer")
}

/// Number of requests that pass, of so many; the others are answered 429.
fn passing(mesh: &Mesh, path: &str, fields: &str, times: usize) -> usize {
    let all = (0..times).map(|_| ask(mesh, path, fields).status);
    let passed = all.filter(|status| match status {
        200 => true,
        429 => false,
        other => panic!("{other} for {path}"),
    });
    passed.count()
}

/// Waits until a path that nothing else asks is answered 429 at its second request: the rules that say so are in force.
fn in_force(mesh: &Mesh, path: &str) {
    wait_until("the limits to be in force", || {
        ask(mesh, path, "").status == 429
    });
}

/// A field of an answer.
fn field<'a>(answer: &'a Answer, name: &str) -> &'a str {
    let mut lines = answer.head.lines().filter_map(|line| line.split_once(": "));
    let found = lines.find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map_or("", |(_, value)| value)
}

/// A rule whose path shows that the resources beside it are in force.
pub(crate) fn probe(name: &str) -> String {
    format!(
        "{{name: {name}, match: [{{uri: {{exact: /{name}}}}}], limits: [{{requests: 1, per: 1h}}]}}"
    )
}

#[test]
fn limits_hold_by_route_by_caller_and_by_header_for_the_whole_proxy() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let rules = [
        "{name: health, match: [{uri: {exact: /healthz}}], limits: []}",
        "{name: user, match: [{uri: {prefix: /by-user}}], limits: [{requests: 2, per: 1h, by: {headers: [X-User]}}]}",
        "{name: caller, match: [{uri: {prefix: /by-caller}}], limits: [{requests: 3, per: 1h, by: {identity: true}}]}",
        &probe("first"),
        "{name: rest, limits: [{requests: 20, per: 1h}]}",
    ];
    write(&mesh, &limits(&rules.join(", ")));
    in_force(&mesh, "/first");
    assert_eq!(passing(&mesh, "/healthz", "", 30), 30, "exempt");
    for user in ["a", "b"] {
        let fields = format!("X-User: {user}\r\n");
        assert_eq!(passing(&mesh, "/by-user", &fields, 5), 2, "{user}");
    }
    // The path that counts is the one that policies compare.
    assert_eq!(passing(&mesh, "/x/../by-user", "X-User: a\r\n", 2), 0);
    assert_eq!(
        passing(&mesh, "/by-caller", "", 5),
        3,
        "the client's sidecar"
    );
    let stranger = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
        let answer = exchange(mesh.inbound(8080), request.as_bytes());
        answer.expect("an answer").status
    };
    let strangers: Vec<u16> = (0..5).map(|_| stranger("/by-caller")).collect();
    assert_eq!(
        strangers,
        [200, 200, 200, 429, 429],
        "nobody is somebody of his own"
    );
    // Many connections, which both workers of the server's sidecar have some of.
    let mut connections: Vec<TcpStream> = (0..8)
        .map(|_| TcpStream::connect(mesh.inbound(8080)).expect("connected"))
        .collect();
    let mut passed = 0;
    for stream in &mut connections {
        for _ in 0..5 {
            let request = b"GET /rest HTTP/1.1\r\nHost: server\r\n\r\n";
            stream.write_all(request).expect("sent");
            let answer = read_answer(&mut BufReader::new(&*stream)).expect("an answer");
            passed += usize::from(answer.status == 200);
        }
    }
    assert_eq!(passed, 20, "not so many for each worker");
    let metrics = mesh.server_metrics();
    let refused = |rule: &str| {
        let rule = format!("rule=\"{rule}\"");
        let labels = ["rate_limit=\"shop/calls\"", &rule];
        series(&metrics, "voile_rate_limited_requests_total", &labels)
    };
    assert_eq!(refused("user"), Some(3.0 + 3.0 + 2.0));
    assert_eq!(refused("caller"), Some(2.0 + 2.0));
    assert_eq!(refused("rest"), Some(20.0));
    assert_eq!(refused("health"), Some(0.0));
    let labels = ["response_code=\"429\"", "response_flags=\"RL\""];
    assert!(series(&metrics, "istio_requests_total", &labels).is_some());
}

#[test]
fn clients_are_told_what_is_left_and_when_to_come_again() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let two = "{name: api, limits: [{requests: 60, per: 1h, burst: 2}, {requests: 600, per: 1h}]}";
    write(&mesh, &limits(&format!("{}, {two}", probe("first"))));
    in_force(&mesh, "/first");
    let policy = "\"api\";q=2;w=120, \"api-2\";q=600;w=3600";
    for left in ["\"api\";r=1;", "\"api\";r=0;"] {
        let answer = ask(&mesh, "/", "");
        assert_eq!(answer.status, 200);
        assert_eq!(
            field(&answer, "ratelimit-policy"),
            policy,
            "{}",
            answer.head
        );
        assert!(
            field(&answer, "ratelimit").starts_with(left),
            "{}",
            answer.head
        );
        assert!(
            field(&answer, "ratelimit").contains(", \"api-2\";r=59"),
            "{}",
            answer.head
        );
        assert_eq!(field(&answer, "retry-after"), "");
    }
    let answer = ask(&mesh, "/", "");
    assert_eq!(answer.status, 429);
    assert_eq!(
        field(&answer, "ratelimit-policy"),
        policy,
        "{}",
        answer.head
    );
    assert!(
        field(&answer, "ratelimit").starts_with("\"api\";r=0;t="),
        "{}",
        answer.head
    );
    let wait: u64 = field(&answer, "retry-after").parse().expect("seconds");
    assert!((30..=60).contains(&wait), "{wait}");
    assert_eq!(answer.body, b"rate limited\n");
}

#[test]
fn a_grpc_call_too_many_is_resource_exhausted() {
    let mesh = Mesh::start("STRICT");
    let (app, address) = (mesh.grpc_app(), mesh.grpc());
    write(
        &mesh,
        &limits(&format!(
            "{}, {{limits: [{{requests: 2, per: 1h}}]}}",
            probe("what")
        )),
    );
    play(|| async move {
        let (given_up, _) = tokio::sync::mpsc::unbounded_channel();
        serve(app, given_up).await;
        let mut client = connect(address).await;
        // Unknown to the application, until it is not asked any more.
        loop {
            let (response, _) = client.send_request(call("/what"), true).expect("sent");
            let response = response.await.expect("an answer");
            assert_eq!(response.status(), 200);
            if response.headers()["grpc-status"] != "12" {
                break;
            }
            client = client.ready().await.expect("room for a stream");
        }
        for expected in ["12", "12", "8", "8"] {
            let (response, _) = client.send_request(call("/other"), true).expect("sent");
            let response = response.await.expect("an answer");
            assert_eq!(response.status(), 200);
            let head = response.headers();
            assert_eq!(head["grpc-status"], expected, "{head:?}");
            assert_eq!(head["content-type"], "application/grpc");
            assert!(
                head["ratelimit"]
                    .to_str()
                    .expect("text")
                    .starts_with("\"calls-2\";r=")
            );
            let refused = expected == "8";
            assert_eq!(head.contains_key("retry-after"), refused, "{head:?}");
            if refused {
                assert_eq!(head["grpc-message"], "rate limited");
                assert!(response.into_body().is_end_stream(), "trailers only");
            }
            client = client.ready().await.expect("room for a stream");
        }
    });
}

#[test]
fn what_is_used_up_stays_so_while_limits_are_edited_and_a_bad_edit_leaves_the_last_good() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let few = "{name: few, match: [{uri: {exact: /few}}], limits: [{requests: 2, per: 1h}]}";
    write(&mesh, &limits(&format!("{few}, {}", probe("first"))));
    in_force(&mesh, "/first");
    assert_eq!(passing(&mesh, "/few", "", 4), 2);
    // Another rule before it.
    write(&mesh, &limits(&format!("{}, {few}", probe("second"))));
    in_force(&mesh, "/second");
    assert_eq!(passing(&mesh, "/few", "", 4), 0, "used up before");
    assert_eq!(passing(&mesh, "/first", "", 3), 3, "that rule is gone");
    // An unreadable limit leaves the last good one in force; other limits of the file are in force.
    let bad = limits(&few.replace("requests: 2", "requests: 0"));
    let other = limits(&probe("third")).replace("name: calls", "name: more");
    write(&mesh, &format!("{bad}---\n{other}"));
    in_force(&mesh, "/third");
    assert_eq!(passing(&mesh, "/few", "", 4), 0, "the last good version");
    write(&mesh, &other);
    wait_until("the limit to be gone", || {
        passing(&mesh, "/few", "", 1) == 1
    });
    assert_eq!(passing(&mesh, "/few", "", 9), 9);
}
