//! Streams of HTTP/2 and gRPC calls that wait for an external decision: many at once on one connection, with their
//! bodies held and passed on whole, and cancelled by a reset.

use bytes::Bytes;
use http::Request;

use super::authorizer::{Authorizer, http};
use super::{ask, custom, free, in_force, over_http, policy, provider, set, status};
use crate::mesh::{GRPC_PORT, HTTP_PORT, Mesh, application};
use crate::traffic::http2::{call, connect, message, play, serve};

const KIND: &str = "envoyExtAuthzGrpc";

/// A mesh whose server asks about all it gets. Its HTTP port is called without a sidecar in between, which would make HTTP/1.1 of it.
fn asking(fields: &str) -> (Mesh, Authorizer) {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let authorizer = Authorizer::start(listener);
    let rules =
        format!("rules: [{{to: [{{operation: {{ports: [\"{HTTP_PORT}\", \"{GRPC_PORT}\"]}}}}]}}]");
    set(&mesh, &(provider(KIND, at, fields) + &custom(&rules)));
    in_force("the policy is in force", || status(&mesh, "/deny") == 403);
    (mesh, authorizer)
}

#[test]
fn a_grpc_caller_is_told_in_grpcs_words_and_its_messages_are_shown_and_pass() {
    let (mesh, authorizer) = asking(
        ", includeRequestBodyInCheck: {maxRequestBytes: 20, allowPartialMessage: true, packAsBytes: true}",
    );
    let (app, address) = (mesh.grpc_app(), mesh.grpc());
    play(|| async move {
        let (given_up, _kept) = tokio::sync::mpsc::unbounded_channel();
        serve(app, given_up).await;
        let mut client = connect(address).await;
        let mut denied = call("/echo");
        denied
            .headers_mut()
            .insert("x-ask", "page".parse().expect("a value"));
        let (response, mut send) = client.send_request(denied, false).expect("sent");
        send.send_data(message("one"), true).expect("sent");
        let response = response.await.expect("an answer");
        assert_eq!(response.status(), 200);
        let field = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
        assert_eq!(field("grpc-status"), "2", "302 has no word of its own");
        assert_eq!(field("grpc-message"), "<p>log in</p>");
        assert_eq!(field("content-type"), "application/grpc");
        assert_eq!(field("location"), "https://login.test/");

        // Longer than is shown, in pieces: nothing is lost, and nothing comes twice.
        let (response, mut send) = client.send_request(call("/echo"), false).expect("sent");
        let long = message(&"long ".repeat(10_000));
        for part in long.chunks(7_000) {
            send.reserve_capacity(part.len());
            send.send_data(Bytes::copy_from_slice(part), false)
                .expect("sent");
        }
        send.send_data(Bytes::new(), true).expect("sent");
        let mut body = response.await.expect("an answer").into_body();
        let mut got = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.expect("a message");
            body.flow_control()
                .release_capacity(chunk.len())
                .expect("released");
            got.extend_from_slice(&chunk);
        }
        assert!(got == long, "{} of {} bytes", got.len(), long.len());
        let trailers = body.trailers().await.expect("an end").expect("trailers");
        assert_eq!(trailers["grpc-status"], "0");
        let shown = http(&authorizer.about("/echo"));
        assert_eq!(shown.raw_body, long[..20]);
        assert_eq!(shown.headers["x-envoy-auth-partial-body"], "true");
        assert_eq!(shown.protocol, "HTTP/2");
    });
}

#[test]
fn streams_of_one_connection_wait_each_for_their_own_word() {
    let (mesh, authorizer) = asking("");
    let address = mesh.inbound(HTTP_PORT);
    play(|| async move {
        let mut client = connect(address).await;
        let ask = |path: &str| {
            let uri = format!("http://server.shop.svc.cluster.local:8080{path}");
            Request::get(uri).body(()).expect("a request")
        };
        let (late, mut held) = client.send_request(ask("/never"), false).expect("sent");
        let mut answers = Vec::new();
        for number in 0..100 {
            let path = if number % 2 == 0 {
                format!("/ok{number}")
            } else {
                "/deny".to_owned()
            };
            client = client.ready().await.expect("room");
            let (response, _) = client.send_request(ask(&path), true).expect("sent");
            answers.push((number, response));
        }
        for (number, response) in answers {
            let wanted = if number % 2 == 0 { 200 } else { 403 };
            assert_eq!(
                response.await.expect("an answer").status(),
                wanted,
                "{number}"
            );
        }
        while !authorizer
            .asked()
            .iter()
            .any(|asked| http(asked).path == "/never")
        {
            tokio::task::yield_now().await;
        }
        held.send_reset(h2::Reason::CANCEL);
        drop(late);
        tokio::task::spawn_blocking(move || authorizer.wait_given_up())
            .await
            .expect("given up");
    });
}

/// A request of HTTP/2 for the HTTP port, with these lines.
fn request(path: &str, lines: &[(&str, &str)]) -> Request<()> {
    let uri = format!("http://server.shop.svc.cluster.local:8080{path}");
    let mut request = Request::post(uri);
    for (name, value) in lines {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request")
}

/// An answer's head, and its body as lower-case text.
async fn whole(response: h2::client::ResponseFuture) -> (http::response::Parts, String) {
    let (parts, mut body) = response.await.expect("an answer").into_parts();
    let mut text = Vec::new();
    while let Some(chunk) = body.data().await {
        text.extend_from_slice(&chunk.expect("its body"));
    }
    (parts, String::from_utf8_lossy(&text).to_ascii_lowercase())
}

#[test]
fn a_stream_is_changed_and_its_body_bounded_as_a_request_of_http1_is() {
    let (mesh, authorizer) = asking(", includeRequestBodyInCheck: {maxRequestBytes: 10}");
    let address = mesh.inbound(HTTP_PORT);
    play(|| async move {
        let mut client = connect(address).await;
        let change = request(
            "/c?token=t&a=1",
            &[
                ("x-ask", "change"),
                ("x-user", "forged"),
                ("x-group", "one"),
                ("authorization", "secret"),
                ("content-length", "10"),
            ],
        );
        let (response, mut send) = client.send_request(change, false).expect("sent");
        send.send_data(Bytes::from_static(b"0123456789"), true)
            .expect("sent");
        let (head, seen) = whole(response).await;
        assert_eq!(head.status, 200);
        assert_eq!(head.headers["x-seen"], "yes");
        assert_eq!(head.headers["content-type"], "text/authorized");
        assert!(
            seen.starts_with("post /c?a=1&who=alice http/1.1\r\n"),
            "{seen}"
        );
        for line in ["x-user: alice\r\n", "x-group: one\r\n", "x-group: two\r\n"] {
            assert!(seen.contains(line), "{line}: {seen}");
        }
        assert!(
            !seen.contains("forged") && !seen.contains("secret"),
            "{seen}"
        );
        assert!(seen.ends_with("0123456789"), "{seen}");
        let shown = http(&authorizer.about("/c?token=t&a=1"));
        assert_eq!(shown.protocol, "HTTP/2");
        assert_eq!(
            (&*shown.body, &*shown.headers["x-envoy-auth-partial-body"]),
            ("0123456789", "false")
        );
        // A byte more than may be shown.
        let asked = authorizer.asked().len();
        let (response, mut send) = client
            .send_request(request("/long", &[]), false)
            .expect("sent");
        send.send_data(Bytes::from_static(b"0123456789a"), true)
            .expect("sent");
        let (head, _) = whole(response).await;
        assert_eq!(head.status, 413);
        assert_eq!(authorizer.asked().len(), asked, "nobody is asked about it");
    });
}

#[test]
fn a_refused_stream_carries_what_a_yes_adds_and_a_grpc_answer_stays_one() {
    let (mesh, _) = asking("");
    let deny = format!(
        "action: DENY, rules: [{{to: [{{operation: {{paths: [\"/closed\"], ports: [\"{HTTP_PORT}\"]}}}}]}}]"
    );
    let path = mesh.config().join("deny.yaml");
    std::fs::write(path, policy("deny", &deny)).expect("the policy");
    let refused = || ask(&mesh, "GET /closed HTTP/1.1\r\nx-ask: allow").status == 403;
    in_force("the path is closed", refused);
    let address = mesh.inbound(HTTP_PORT);
    play(|| async move {
        let mut client = connect(address).await;
        for (kind, status, message, said) in [
            ("text/plain", 403, None, "text/authorized"),
            (
                "application/grpc",
                200,
                Some("RBAC: access denied"),
                "application/grpc",
            ),
        ] {
            let lines = [("x-ask", "change"), ("content-type", kind)];
            let (response, _) = client
                .send_request(request("/closed", &lines), true)
                .expect("sent");
            let (head, _) = whole(response).await;
            assert_eq!(head.status, status, "{kind}");
            assert_eq!(head.headers["x-seen"], "yes", "{kind}");
            let types = head.headers.get_all("content-type").iter();
            assert_eq!(types.collect::<Vec<_>>(), [said], "{kind}");
            let told = head.headers.get("grpc-message");
            assert_eq!(told.and_then(|it| it.to_str().ok()), message, "{kind}");
        }
    });
}

#[test]
fn a_stream_is_asked_about_over_http_by_the_same_lists() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let heard = over_http::authorizer(listener);
    let rules = format!("rules: [{{to: [{{operation: {{ports: [\"{HTTP_PORT}\"]}}}}]}}]");
    let resources = provider(over_http::KIND, at, over_http::LISTS) + &custom(&rules);
    set(&mesh, &resources);
    in_force("the policy is in force", || status(&mesh, "/deny") == 401);
    let address = mesh.inbound(HTTP_PORT);
    play(|| async move {
        let mut client = connect(address).await;
        let lines = [
            ("x-told", "1"),
            ("x-untold", "2"),
            ("x-user", "forged"),
            ("x-from", "me"),
            ("x-pre-over", "me"),
        ];
        let (response, _) = client
            .send_request(request("/a?b=c", &lines), true)
            .expect("sent");
        let (head, seen) = whole(response).await;
        assert_eq!(
            (head.status.as_u16(), head.headers["x-note"].as_bytes()),
            (200, &b"n"[..])
        );
        assert!(
            seen.contains("x-user: alice\r\n") && !seen.contains("forged"),
            "{seen}"
        );
        let (told, _) = over_http::about(&heard, "/check/a?b=c");
        assert!(told.starts_with("post /check/a?b=c http/1.1\r\n"), "{told}");
        assert!(
            told.contains("x-told: 1\r\n") && told.contains("x-from: mesh\r\n"),
            "{told}"
        );
        assert!(
            !told.contains("untold") && !told.contains(": me\r\n"),
            "{told}"
        );
        let (response, _) = client
            .send_request(request("/deny", &[]), true)
            .expect("sent");
        let (head, seen) = whole(response).await;
        assert_eq!((head.status.as_u16(), &*seen), (401, "rain"));
        assert_eq!(head.headers["x-why"], "rain");
        assert!(!head.headers.contains_key("x-other"), "{head:?}");
    });
}
