//! CUSTOM policies whose provider is asked over gRPC, as a tonic server answers.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;

use super::authorizer::{Authorizer, http};
use super::{all_requests, ask, free, in_force, path, policy, provider, set, status, text};
use crate::mesh::{
    GRPC_PORT, HTTP_PORT, Mesh, application, exchange, read_answer, series, wait_until,
};
use crate::traffic::early_answers;

const KIND: &str = "envoyExtAuthzGrpc";

/// Far longer than any answer takes, even on a busy machine.
const PATIENT: &str = ", timeout: 20s";

/// A mesh whose server asks an authorizer about every request, with these further fields of its provider.
fn asking(fields: &str, more: &str) -> (Mesh, Authorizer) {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let authorizer = Authorizer::start(listener);
    let resources = provider(KIND, at, fields) + &all_requests() + more;
    set(&mesh, &resources);
    in_force("the policy is in force", || status(&mesh, "/deny") == 403);
    (mesh, authorizer)
}

#[test]
fn a_request_waits_for_the_word_of_who_is_asked() {
    let (mesh, authorizer) = asking("", "");
    let answer = path(&mesh, "/allow");
    assert_eq!(answer.status, 200);
    assert!(
        text(&answer).starts_with("GET /allow HTTP/1.1"),
        "{}",
        text(&answer)
    );
    let answer = ask(
        &mesh,
        "POST /b/../a?x=1 HTTP/1.1\r\nX-Ask: allow\r\nx-two: 1\r\nX-Two: 2\r\nx-forwarded-client-cert: URI=me\r\n\
         x-request-id: 7\r\nContent-Length: 0",
    );
    assert_eq!(answer.status, 200);
    let asked = authorizer.about("/a?x=1");
    let request = http(&asked);
    assert_eq!(
        (
            request.method.as_str(),
            request.host.as_str(),
            request.id.as_str()
        ),
        ("POST", "server", "7")
    );
    assert_eq!(
        (
            request.scheme.as_str(),
            request.protocol.as_str(),
            request.size
        ),
        ("http", "HTTP/1.1", 0)
    );
    let headers = &request.headers;
    assert_eq!(headers["x-two"], "1,2");
    assert_eq!(headers[":path"], "/a?x=1");
    assert_eq!(
        (&*headers[":method"], &*headers[":authority"]),
        ("POST", "server")
    );
    assert!(
        !headers.contains_key("x-forwarded-client-cert"),
        "a stranger's word"
    );
    let time = asked.request.expect("a request").time.expect("a time");
    assert!(time.seconds > 1_600_000_000, "{time:?}");
    let source = asked.source.expect("a source");
    assert_eq!(source.principal, "spiffe://cluster.local/ns/shop/sa/client");
    let to = asked.destination.expect("a destination");
    assert_eq!(to.principal, "spiffe://cluster.local/ns/shop/sa/server");
    let port = |peer: voile_proto::external_authorization::Peer| {
        peer.address
            .and_then(|address| address.socket_address)
            .map(|at| at.port_value)
    };
    assert_eq!(port(to), Some(HTTP_PORT.into()));
    assert!(port(source).is_some_and(|port| port > 0));
    told_nothing_of_a_stranger(&mesh, &authorizer);
    let metrics = mesh.server_metrics();
    let told = |verdict: &str| {
        let label = format!("verdict=\"{verdict}\"");
        series(&metrics, "voile_authorization_asked_total", &[&label]).unwrap_or(0.0)
    };
    assert!(
        // A worker may have refused a request before it had the provider's endpoint.
        told("allowed") >= 3.0 && told("denied") >= 8.0,
        "{metrics}"
    );
    assert_eq!((told("error"), told("error_allowed")), (0.0, 0.0));
}

/// Identity claims in a stranger's headers do not reach the authorizer.
fn told_nothing_of_a_stranger(mesh: &Mesh, authorizer: &Authorizer) {
    let stranger = "GET /stranger HTTP/1.1\r\nHost: server\r\nConnection: close\r\nX_Forwarded-Client-Cert: URI=me\r\n\
         x-forwarded-client-cert: URI=me\r\nx-envoy-peer-metadata: me\r\n\r\n";
    let stranger = exchange(mesh.inbound(HTTP_PORT), stranger.as_bytes()).expect("an answer");
    assert_eq!(stranger.status, 200);
    let asked = authorizer.about("/stranger");
    let told = http(&asked).headers;
    let claimed = told.iter().find(|(_, value)| value.contains("me"));
    assert_eq!(claimed, None, "a stranger's word");
    assert_eq!(asked.source.expect("a source").principal, "");
}

#[test]
fn a_no_has_words_of_its_own_and_a_yes_may_change_the_request() {
    let (mesh, _) = asking("", "");
    let denied = path(&mesh, "/page");
    assert_eq!(denied.status, 302);
    assert_eq!(text(&denied), "<p>log in</p>");
    let head = denied.head.to_ascii_lowercase();
    assert!(head.contains("location: https://login.test/\r\n"), "{head}");
    assert!(head.contains("set-cookie: a=b\r\n"), "{head}");
    assert!(head.contains("content-length: 13\r\n"), "{head}");
    assert!(!head.contains("999") && !head.contains("forged"), "{head}");

    let changed = ask(
        &mesh,
        "GET /c?token=t&a=1 HTTP/1.1\r\nx-ask: change\r\nx-user: forged\r\nX-User: twice\r\nx-group: one\r\nAuthorization: secret",
    );
    assert_eq!(changed.status, 200);
    let seen = text(&changed).to_ascii_lowercase();
    assert!(
        seen.starts_with("get /c?a=1&who=alice http/1.1\r\n"),
        "{seen}"
    );
    assert_eq!(seen.matches("x-user:").count(), 1, "{seen}");
    assert!(seen.contains("x-user: alice\r\n"), "{seen}");
    assert!(
        seen.contains("x-group: one\r\n") && seen.contains("x-group: two\r\n"),
        "{seen}"
    );
    assert!(
        !seen.contains("x-nobody") && !seen.contains("secret"),
        "{seen}"
    );
    assert!(seen.contains("host: server\r\n"), "{seen}");
    let head = changed.head.to_ascii_lowercase();
    assert!(head.contains("x-seen: yes\r\n"), "{head}");
    assert_eq!(head.matches("content-type:").count(), 1, "{head}");
}

#[test]
fn who_cannot_be_asked_or_lies_lets_nothing_pass() {
    let (mesh, authorizer) = asking(&format!(", statusOnError: \"503\"{PATIENT}"), "");
    for unanswered in ["fail", "undecided", "flood"] {
        assert_eq!(
            status(&mesh, &format!("/{unanswered}")),
            503,
            "{unanswered}"
        );
    }
    let lies = [
        "split", "pseudo", "host", "hop", "length", "identity", "blank", "swell",
    ];
    for lie in lies {
        assert_eq!(status(&mesh, &format!("/{lie}")), 503, "{lie}");
    }
    assert_eq!(status(&mesh, "/allow"), 200);
    let hurried = ", statusOnError: \"504\", timeout: 1s";
    set(
        &mesh,
        &(provider(KIND, authorizer.address(), hurried) + &all_requests()),
    );
    in_force("who is slow is not waited for", || {
        status(&mesh, "/fail") == 504
    });
    assert_eq!(status(&mesh, "/never"), 504);
    let nobody = free().local_addr().expect("an address");
    set(&mesh, &(provider(KIND, nobody, "") + &all_requests()));
    in_force("nobody is there to be asked", || {
        status(&mesh, "/allow") == 403
    });
    set(
        &mesh,
        &(provider(KIND, nobody, ", failOpen: true") + &all_requests()),
    );
    in_force("requests pass unasked", || status(&mesh, "/allow") == 200);
}

#[test]
fn open_failure_is_for_those_who_do_not_answer_and_not_for_liars() {
    let (mesh, authorizer) = asking(&format!(", failOpen: true{PATIENT}"), "");
    for unanswered in ["fail", "undecided", "flood"] {
        assert_eq!(
            status(&mesh, &format!("/{unanswered}")),
            200,
            "{unanswered}"
        );
    }
    assert_eq!(status(&mesh, "/deny"), 403);
    assert_eq!(status(&mesh, "/split"), 403, "a lie is no failure");
    let hurried = ", failOpen: true, statusOnError: \"504\", timeout: 1s";
    set(
        &mesh,
        &(provider(KIND, authorizer.address(), hurried) + &all_requests()),
    );
    in_force("who is slow is not waited for", || {
        status(&mesh, "/split") == 504
    });
    assert_eq!(status(&mesh, "/never"), 200);
}

#[test]
fn a_no_is_final_and_a_yes_goes_on_to_the_other_policies() {
    let more = policy(
        "deny",
        "action: DENY, rules: [{to: [{operation: {paths: [\"/closed\"]}}]}]",
    ) + &policy(
        "allow",
        "rules: [{to: [{operation: {methods: [GET], ports: [\"8080\"]}}]}]",
    );
    let (mesh, authorizer) = asking("", &more);
    wait_until("the others are in force", || {
        status(&mesh, "/closed") == 403
    });
    assert_eq!(status(&mesh, "/open"), 200);
    assert_eq!(
        ask(&mesh, "POST /open HTTP/1.1\r\nContent-Length: 0").status,
        403
    );
    assert_eq!(
        ask(&mesh, "GET /closed HTTP/1.1\r\nx-ask: page").status,
        302
    );
    let asked = authorizer.asked();
    assert!(asked.iter().any(|asked| http(asked).path == "/closed"));
}

#[test]
fn bodies_are_shown_as_far_as_the_provider_says() {
    let body = ", includeRequestBodyInCheck: {maxRequestBytes: 10, allowPartialMessage: true}";
    let (mesh, authorizer) = asking(body, "");
    let table = [
        ("Content-Length: 4\r\n", "abcd", "abcd", "false"),
        (
            "Content-Length: 12\r\n",
            "abcdefghijkl",
            "abcdefghij",
            "true",
        ),
        (
            "Transfer-Encoding: chunked\r\n",
            "2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n",
            "abc",
            "false",
        ),
    ];
    for (number, (framing, sent, shown, partial)) in table.into_iter().enumerate() {
        let request = format!(
            "POST /b{number} HTTP/1.1\r\nHost: server\r\nx-ask: allow\r\nConnection: close\r\n{framing}\r\n{sent}"
        );
        let answer = exchange(mesh.http(), request.as_bytes()).expect("an answer");
        assert_eq!(answer.status, 200, "{framing}");
        let asked = http(&authorizer.about(&format!("/b{number}")));
        assert_eq!(asked.body, shown);
        assert_eq!(asked.headers["x-envoy-auth-partial-body"], partial);
    }
    // The client waits for `100 Continue`, and the external service waits for the body.
    let mut stream = BufReader::new(TcpStream::connect(mesh.http()).expect("a connection"));
    let head = "POST /expects HTTP/1.1\r\nHost: server\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    stream.get_mut().write_all(head.as_bytes()).expect("sent");
    let mut word = [0; 12];
    stream.read_exact(&mut word).expect("an interim answer");
    assert_eq!(&word, b"HTTP/1.1 100");
    stream.get_mut().write_all(b"abc").expect("sent");
    let mut rest = String::new();
    while !rest.ends_with("\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the rest");
        rest.push(char::from(byte[0]));
    }
    let answer = read_answer(&mut stream).expect("an answer");
    assert_eq!(answer.status, 200);
    assert!(text(&answer).ends_with("abc"), "{}", text(&answer));
}

#[test]
fn a_body_that_is_too_long_to_be_shown_is_refused() {
    let body = ", includeRequestBodyInCheck: {maxRequestBytes: 10}";
    let (mesh, _) = asking(body, "");
    let post = |length: usize| {
        let body = "x".repeat(length);
        let request = format!(
            "POST /post HTTP/1.1\r\nHost: server\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        exchange(mesh.http(), request.as_bytes())
            .expect("an answer")
            .status
    };
    assert_eq!(post(10), 200);
    assert_eq!(post(11), 413);
    assert_eq!(post(100_000), 413);
    let connect = || early_answers::connect(mesh.http());
    early_answers::all_are_answered("too long to be shown", ("/post", "", 413), connect);
}

#[test]
fn a_client_that_leaves_takes_its_question_with_it() {
    let (mesh, authorizer) = asking("", "");
    let mut stream = TcpStream::connect(mesh.http()).expect("a connection");
    stream
        .write_all(b"GET /never HTTP/1.1\r\nHost: server\r\n\r\n")
        .expect("sent");
    wait_until("it is asked", || {
        authorizer
            .asked()
            .iter()
            .any(|asked| http(asked).path == "/never")
    });
    drop(stream);
    authorizer.wait_given_up();
}

#[test]
fn an_authorizer_in_the_mesh_is_asked_over_mutual_tls() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let listener = std::net::TcpListener::bind(mesh.grpc_app()).expect("the application's address");
    let authorizer = Authorizer::start(listener);
    let config = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    \
         extensionProviders:\n    - name: ext\n      {KIND}: {{service: server.shop.svc.cluster.local, port: {GRPC_PORT}}}\n"
    );
    set(&mesh, &(config + &all_requests()));
    in_force("the policy is in force", || status(&mesh, "/deny") == 403);
    assert_eq!(status(&mesh, "/allow"), 200);
    assert!(!authorizer.asked().is_empty());
    let metrics = mesh.server_metrics();
    let asked = [
        "reporter=\"destination\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/server\"",
        "request_protocol=\"grpc\"",
        "connection_security_policy=\"mutual_tls\"",
    ];
    assert!(
        series(&metrics, "istio_requests_total", &asked).is_some(),
        "{metrics}"
    );
}

#[test]
fn a_question_that_nobody_takes_is_put_to_another_endpoint() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let _authorizer = Authorizer::start(listener);
    // The second endpoint has no listener.
    let two = provider(KIND, at, "").replace(
        "endpoints: [{address: 127.0.0.1}]",
        "endpoints: [{address: 127.0.0.1}, {address: 127.0.0.2}]",
    );
    assert!(two.contains("127.0.0.2"), "{two}");
    set(&mesh, &(two + &all_requests()));
    in_force("the policy is in force", || status(&mesh, "/deny") == 403);
    for number in 0..40 {
        let answer = path(&mesh, "/allow");
        assert_eq!(answer.status, 200, "{number}: {}", text(&answer));
    }
    let metrics = mesh.server_metrics();
    let failed = ["verdict=\"error\""];
    let failed = series(&metrics, "voile_authorization_asked_total", &failed);
    assert_eq!(failed.unwrap_or_default(), 0.0, "{metrics}");
}

#[test]
fn in_dry_run_nobody_is_asked_and_it_is_told_who_would_have_been() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let authorizer = Authorizer::start(listener);
    let dry = all_requests().replace(
        "{name: ask, namespace: shop}",
        "{name: ask, namespace: shop, annotations: {istio.io/dry-run: \"true\"}}",
    );
    assert!(dry.contains("dry-run"), "{dry}");
    set(&mesh, &(provider(KIND, at, "") + &dry));
    wait_until("it is counted", || {
        assert_eq!(status(&mesh, "/deny"), 200);
        let label = ["verdict=\"asked\""];
        let metrics = mesh.server_metrics();
        let counted = series(&metrics, "voile_authorization_dry_run_total", &label);
        counted.unwrap_or_default() >= 3.0
    });
    assert!(authorizer.asked().is_empty(), "{:?}", authorizer.asked());
}

#[test]
fn what_who_is_asked_writes_counts_and_what_clients_write_in_its_place_does_not() {
    let limits = "---\napiVersion: voile.dev/v1\nkind: RateLimit\nmetadata: {name: users, namespace: shop}\n\
                  spec: {rules: [{match: [{uri: {prefix: /c}}], limits: [{requests: 3, per: 1h, by: {headers: [x-user]}}]}]}\n";
    let (mesh, _) = asking("", limits);
    let answers: Vec<_> = (0..5)
        .map(|number| {
            let request = format!("GET /c HTTP/1.1\r\nx-ask: change\r\nx-user: {number}");
            ask(&mesh, &request)
        })
        .collect();
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429], "they are all alice");
    for answer in &answers {
        let head = answer.head.to_ascii_lowercase();
        assert!(head.contains("x-seen: yes\r\n"), "what a yes adds: {head}");
        assert!(head.contains("ratelimit: \"users\";r="), "{head}");
    }
}
