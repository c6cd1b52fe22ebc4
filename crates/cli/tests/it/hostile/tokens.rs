//! Malformed tokens at the real socket: too large, twice, in several places, with forged outputs behind the body; and the
//! logs' treatment of a token in a query.

use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;
use tokio::sync::oneshot::{Sender, channel};

use crate::mesh::issuer::Issuer;
use crate::mesh::{Answer, Mesh, application, exchange, read_answer, wait_until};
use crate::policies::tokens::{ISSUER, believes, looked_at, rule, set, text};
use crate::traffic::http2::{call, connect, play};

/// A mesh whose server believes an issuer and writes `x-user` by its tokens.
fn believing(more: &str) -> (Mesh, Issuer) {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let issuer = Issuer::new(ISSUER, "one");
    let outputs = format!(", outputClaimToHeaders: [{{header: x-user, claim: sub}}]{more}");
    set(&mesh, &believes(&rule(&issuer, &outputs)));
    looked_at(&mesh);
    (mesh, issuer)
}

fn with(mesh: &Mesh, lines: &str) -> Answer {
    let head = format!("GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n{lines}\r\n");
    exchange(mesh.http(), head.as_bytes()).expect("an answer")
}

#[test]
fn a_token_that_is_too_large_or_comes_twice_is_refused() {
    let (mesh, issuer) = believing("");
    let good = issuer.token("anna", json!({}));
    let other = issuer.token("berta", json!({}));
    let sized = |bytes: usize| issuer.token("anna", json!({ "fill": "x".repeat(bytes) }));
    let deep = issuer.token(
        "anna",
        (0..200).fold(json!(1), |inner, _| json!({ "a": inner })),
    );
    let wide: Vec<u32> = (0..10_000).collect();
    let wide = issuer.token("anna", json!({ "list": wide }));
    for (what, lines, wanted) in [
        (
            "one",
            format!("Authorization: Bearer {good}\r\n"),
            &[200][..],
        ),
        (
            "a large one",
            format!("Authorization: Bearer {}\r\n", sized(20_000)),
            &[200],
        ),
        // Beyond what a token may have, or what a head may: never forwarded.
        (
            "too large",
            format!("Authorization: Bearer {}\r\n", sized(50_000)),
            &[401, 431],
        ),
        (
            "far too large",
            format!("Authorization: Bearer {}\r\n", sized(90_000)),
            &[401, 431],
        ),
        (
            "too deep",
            format!("Authorization: Bearer {deep}\r\n"),
            &[401],
        ),
        (
            "too many values",
            format!("Authorization: Bearer {wide}\r\n"),
            &[401, 431],
        ),
        (
            "the same twice",
            format!("Authorization: Bearer {good}\r\nAuthorization: Bearer {good}\r\n"),
            &[401],
        ),
        (
            "two",
            format!("Authorization: Bearer {good}\r\nauthorization: Bearer {other}\r\n"),
            &[401],
        ),
        (
            "one and noise",
            format!("Authorization: Bearer {good}\r\nAuthorization: Basic YTpi\r\n"),
            &[401],
        ),
        (
            "two in one line",
            format!("Authorization: Bearer {good}, Bearer {other}\r\n"),
            &[401],
        ),
    ] {
        let answer = with(&mesh, &lines);
        assert!(wanted.contains(&answer.status), "{what}: {}", answer.status);
    }
    assert_eq!(with(&mesh, "").status, 200, "nobody else is concerned");
}

/// Sends a chunked request with trailers. Returns the answer; None if the connection is cut.
fn trailed(mesh: &Mesh, head: &str, trailers: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(mesh.http()).expect("a connection");
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).expect("an open socket");
    // In one piece: the application answers without waiting for the body, and may answer before a later piece is
    // sent.
    let request = format!(
        "POST / HTTP/1.1\r\nHost: server\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n{head}\r\n\
         2\r\nhi\r\n0\r\n{trailers}\r\n"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    read_answer(&mut BufReader::new(stream)).ok()
}

/// An HTTP/2 application that reports the headers before a request's body and the trailers behind
/// it.
async fn reads_trailers(to: SocketAddr, seen: Sender<(HeaderMap, HeaderMap)>) {
    let listener = tokio::net::TcpListener::bind(to).await;
    let listener = listener.expect("the application's address");
    tokio::task::spawn_local(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut connection = h2::server::handshake(stream).await.expect("a preface");
        let mut seen = Some(seen);
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let seen = seen.take();
            tokio::task::spawn_local(async move {
                let (head, mut body) = request.into_parts();
                while let Some(chunk) = body.data().await {
                    let chunk = chunk.expect("a body");
                    let _ = body.flow_control().release_capacity(chunk.len());
                }
                let trailers = body.trailers().await.expect("an end").unwrap_or_default();
                let told = seen.expect("one request").send((head.headers, trailers));
                told.expect("the test listens");
                let answer = http::Response::new(());
                respond.send_response(answer, true).expect("sent");
            });
        }
    });
}

#[test]
fn what_only_tokens_write_nobody_writes_behind_a_body() {
    let (mesh, issuer) = believing("");
    let bearer = format!(
        "Authorization: Bearer {}\r\n",
        issuer.token("anna", json!({}))
    );
    for head in ["", &bearer] {
        for trailers in [
            "x-user: root\r\n",
            "X-User: root\r\n",
            "x_user: root\r\n",
            "x-sum: 1\r\nx-user: root\r\n",
        ] {
            let answer = trailed(&mesh, head, trailers);
            let status = answer.map_or(400, |answer| answer.status);
            assert_eq!(status, 400, "{trailers}");
        }
    }
    // Over HTTP/2 they are lost on the way, and the rest arrives: a call by a stranger's client.
    let (to, app) = (mesh.grpc(), mesh.grpc_app());
    let token = issuer.token("anna", json!({}));
    play(|| async move {
        let (tell, seen) = channel();
        reads_trailers(app, tell).await;
        let mut client = connect(to).await;
        let mut request = call("/echo");
        let value = format!("Bearer {token}").parse().expect("a value");
        request.headers_mut().insert("authorization", value);
        let (response, mut send) = client.send_request(request, false).expect("sent");
        send.send_data(Bytes::from_static(b"hi"), false)
            .expect("sent");
        let mut trailers = HeaderMap::new();
        for (name, value) in [("x-user", "root"), ("x_user", "root"), ("x-sum", "1")] {
            trailers.insert(name, value.parse().expect("a value"));
        }
        send.send_trailers(trailers).expect("sent");
        assert_eq!(response.await.expect("an answer").status(), 200);
        let (head, trailers) = seen.await.expect("a request came");
        assert_eq!(head["x-user"], "anna");
        assert_eq!(trailers.len(), 1, "{trailers:?}");
        assert_eq!(trailers["x-sum"], "1");
    });
}

#[test]
fn logs_tell_no_token_of_a_query() {
    let (mesh, issuer) = believing(
        ", fromHeaders: [{name: authorization, prefix: \"Bearer \"}], fromParams: [token]",
    );
    let log = mesh.config().with_file_name("access.log");
    let config = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    \
         accessLogFile: {}\n",
        log.display()
    );
    std::fs::write(mesh.config().join("istio.yaml"), config).expect("the configuration");
    let token = issuer.token("anna", json!({}));
    let ask = |query: &str| {
        let head =
            format!("GET /logged?{query} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
        exchange(mesh.http(), head.as_bytes()).expect("an answer")
    };
    let written = |wanted: &str| {
        let mut all = String::new();
        wait_until("both sidecars tell of it", || {
            assert_eq!(ask(&format!("a=1&token={token}&b=2")).status, 200);
            all = std::fs::read_to_string(&log).unwrap_or_default();
            all.matches(wanted).count() > 0
        });
        all
    };
    let all = written("/logged?a=1&token=-&b=2");
    let inbound: Vec<&str> = all
        .lines()
        .filter(|line| line.contains("inbound|"))
        .collect();
    assert!(
        inbound.iter().all(|line| !line.contains(&token)),
        "{inbound:?}"
    );
    // A refused one neither; and by the name that RFC 6750 gives it, at the caller's sidecar too.
    let refused = ask("%74oken=x.y.secret&access_token=hidden");
    assert_eq!(refused.status, 401, "{}", text(&refused));
    wait_until("it is told", || {
        let all = std::fs::read_to_string(&log).unwrap_or_default();
        all.contains("/logged?%74oken=-&access_token=- ")
    });
    let all = std::fs::read_to_string(&log).expect("the log");
    let inbound = all.lines().filter(|line| line.contains("inbound|"));
    assert!(inbound.clone().all(|line| !line.contains("secret")));
    assert!(all.lines().all(|line| !line.contains("hidden")), "{all}");
}
