//! Route actions of a VirtualService other than the destination, from YAML to the answer. The tests run over HTTP/1.1, over
//! HTTP/2 to a service of HTTP/1.1, and as gRPC from end to end.

use std::io::{BufReader, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};

use super::{routes, say};
use crate::mesh::{HTTP_PORT, Mesh, application, exchange, series, wait_until};
use crate::traffic::http2::{connect, play};

/// Says in its answer what it was asked. `/never` is not answered; `/flaky` is by 503 the first time.
fn reflect(mesh: &Mesh) {
    let flaky = AtomicU32::new(0);
    application::serve(mesh.http_app(), move |stream| {
        let mut reader = BufReader::new(stream);
        while let Some((head, body)) = application::read_request(&mut reader) {
            if head.starts_with("GET /never") {
                // Until the client has had enough.
                let _ = application::read_request(&mut reader);
                return;
            }
            let first = head.contains(" /flaky") && flaky.fetch_add(1, Ordering::Relaxed) == 0;
            let status = if first { "503 No" } else { "200 OK" };
            let answer = format!(
                "HTTP/1.1 {status}\r\nX-Server: secret\r\nContent-Length: {}\r\n\r\n{head}{body}",
                head.len() + body.len()
            );
            if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
}

/// The same over HTTP/2, as a gRPC server.
async fn reflect_grpc(address: SocketAddr) {
    let listener = tokio::net::TcpListener::bind(address).await;
    let listener = listener.expect("the application's address");
    let flaky = Arc::new(AtomicU32::new(0));
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let flaky = Arc::clone(&flaky);
            tokio::task::spawn_local(async move {
                let mut connection = h2::server::handshake(stream).await.expect("a preface");
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::task::spawn_local(answer(request, respond, Arc::clone(&flaky)));
                }
            });
        }
    });
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    flaky: Arc<AtomicU32>,
) {
    let path = request.uri().path().to_owned();
    if path == "/never" {
        // Until the client has had enough.
        let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
        return;
    }
    let first = path == "/flaky" && flaky.fetch_add(1, Ordering::Relaxed) == 0;
    let status = if first { "14" } else { "0" };
    let head = Response::builder()
        .header("content-type", "application/grpc")
        .header("x-server", "secret")
        .header(
            "x-asked",
            format!("{} {:?}", request.uri(), request.headers()),
        )
        .header("grpc-status", status)
        .body(());
    respond
        .send_response(head.expect("a head"), true)
        .expect("sent");
}

/// Routes with actions. Names of headers say which route they are for.
const HTTP: &str = r#"
  - match: [{uri: {exact: /away}}]
    redirect: {uri: /there, authority: other.example, redirectCode: 302}
    headers: {response: {set: {x-why: moved}}}
  - match: [{uri: {prefix: /tls}}]
    redirect: {scheme: https, port: 8443}
  - match: [{uri: {exact: /tea}}]
    directResponse: {status: 418, body: {string: short and stout}}
  - match: [{uri: {regex: "/v[0-9]+/.*"}}]
    rewrite: {uriRegexRewrite: {match: "^/v([0-9]+)/", rewrite: "/api/\\1/"}}
    route: [{destination: {host: server}}]
  - match: [{uri: {prefix: /old}}]
    rewrite: {uri: /new, authority: renamed.example}
    route: [{destination: {host: server}}]
  - match: [{uri: {prefix: /edit}}]
    headers:
      request: {set: {x-set: "2"}, add: {x-add: b}, remove: [x-gone]}
      response: {set: {x-set: "100%%"}, remove: [x-server]}
    route: [{destination: {host: server}, headers: {request: {set: {x-set: "1", x-own: "1"}}}}]
  - match: [{uri: {exact: /never}}]
    timeout: 200ms
    route: [{destination: {host: server}}]
  - match: [{uri: {exact: /flaky}}]
    retries: {attempts: 2, retryOn: "503,unavailable"}
    timeout: 20s
    route: [{destination: {host: server}}]
  - match: [{uri: {exact: /broken}}]
    fault: {abort: {httpStatus: 555, percentage: {value: 100}}}
    route: [{destination: {host: server}}]
  - match: [{uri: {exact: /brokenrpc}}]
    fault: {abort: {grpcStatus: RESOURCE_EXHAUSTED, percentage: {value: 100}}}
    route: [{destination: {host: server}}]
  - match: [{uri: {exact: /slow}}]
    fault: {delay: {fixedDelay: 150ms, percentage: {value: 100}}}
    route: [{destination: {host: server}}]
  - match: [{uri: {exact: /page}}]
    corsPolicy:
      allowOrigins: [{exact: "https://shop.example"}, {regex: "https://.*[.]shop[.]example"}]
      allowMethods: [GET, PUT]
      exposeHeaders: [x-server]
      maxAge: 1m
      allowCredentials: true
      unmatchedPreflights: IGNORE
    route: [{destination: {host: server}}]
  - route: [{destination: {host: server}}]
"#;

/// A request, the status of its answer, and words that the answer has, or (after `!`) has not, its head in lower case.
type Case = (&'static str, u16, &'static [&'static str]);

const CASES: [Case; 19] = [
    (
        "GET /away?x=1",
        302,
        &[
            "location: http://other.example/there?x=1\r\n",
            "x-why: moved",
        ],
    ),
    (
        "GET /tls/a?x=1",
        301,
        &["location: https://server:8443/tls/a?x=1\r\n"],
    ),
    (
        "GET /tea",
        418,
        &["content-type: text/plain", "short and stout"],
    ),
    (
        "GET /v12/a?x=1",
        200,
        &["GET /api/12/a?x=1 HTTP/1.1", "host: server"],
    ),
    ("GET /v/a", 200, &["GET /v/a HTTP/1.1"]),
    (
        "GET /old/a?x=1",
        200,
        &[
            "GET /new/a?x=1 HTTP/1.1",
            "host: renamed.example",
            "!host: server",
        ],
    ),
    (
        "GET /edit|x-set: 0|x-gone: 0|x-add: a",
        200,
        &[
            "x-set: 2",
            "x-own: 1",
            "x-add: a",
            "x-add: b",
            "x-set: 100%",
            "!x-set: 0",
            "!x-set: 1\r",
            "!x-gone",
            "!secret",
        ],
    ),
    ("GET /plain|x-gone: 0", 200, &["x-gone: 0", "secret"]),
    ("GET /never", 504, &["response_timeout"]),
    (
        "GET /flaky",
        200,
        &["GET /flaky", "x-envoy-attempt-count: 2"],
    ),
    ("GET /broken", 555, &["fault filter abort"]),
    ("GET /brokenrpc", 200, &["fault filter abort", "!GET"]),
    ("GET /slow", 200, &["GET /slow"]),
    ("GET /page", 200, &["GET /page", "!access-control"]),
    (
        "GET /page|origin: https://a.shop.example",
        200,
        &[
            "access-control-allow-origin: https://a.shop.example",
            "vary: origin",
            "access-control-allow-credentials: true",
            "access-control-expose-headers: x-server",
            "GET /page",
        ],
    ),
    (
        "GET /page|origin: https://evil.example",
        200,
        &["!access-control-allow", "GET /page"],
    ),
    (
        "OPTIONS /page|origin: https://shop.example|access-control-request-method: PUT",
        200,
        &[
            "access-control-allow-origin: https://shop.example",
            "access-control-allow-methods: get,put",
            "access-control-max-age: 60",
            "!OPTIONS",
        ],
    ),
    (
        "OPTIONS /page|origin: https://evil.example|access-control-request-method: PUT",
        200,
        &["!access-control-allow", "!OPTIONS"],
    ),
    (
        "OPTIONS /page|access-control-request-method: PUT",
        200,
        &["OPTIONS /page"],
    ),
];

/// Checks an answer; `head` has its fields as `name: value\r\n`.
fn check(case: &Case, status: u16, head: &str, body: &str) {
    let (asked, wanted, words) = case;
    // The reflected head may be in either case; what is of the answer is in lower case.
    let all = format!("{}{body}{}", head.to_lowercase(), body.to_lowercase());
    assert_eq!(status, *wanted, "{asked}: {all}");
    for word in *words {
        match word.strip_prefix('!') {
            None => assert!(all.contains(word), "{asked}: no {word:?} in {all:?}"),
            Some(word) => assert!(!all.contains(word), "{asked}: {word:?} in {all:?}"),
        }
    }
}

fn over_http1(to: SocketAddr, case: &Case) {
    let mut parts = case.0.split('|');
    let line = parts.next().unwrap_or_default();
    let fields: String = parts.map(|field| format!("{field}\r\n")).collect();
    let request = format!("{line} HTTP/1.1\r\nHost: server\r\n{fields}Connection: close\r\n\r\n");
    let answer = exchange(to, request.as_bytes()).expect("an answer");
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    check(case, answer.status, &answer.head, &body);
}

fn request(authority: &str, line: &str, grpc: bool) -> Request<()> {
    let mut parts = line.split('|');
    let (method, path) = parts
        .next()
        .and_then(|line| line.split_once(' '))
        .expect("a line");
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://{authority}{path}"));
    for (name, value) in parts.filter_map(|field| field.split_once(": ")) {
        request = request.header(name, value);
    }
    if grpc {
        request = request
            .header("content-type", "application/grpc")
            .header("te", "trailers");
    }
    request.body(()).expect("a request")
}

/// Status, head and body of an answer.
async fn over_http2(to: SocketAddr, request: Request<()>) -> (u16, String, String) {
    let mut client = connect(to).await;
    let (response, _) = client.send_request(request, true).expect("sent");
    let (head, mut body) = response.await.expect("an answer").into_parts();
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.expect("a body");
        let _ = body.flow_control().release_capacity(chunk.len());
        bytes.extend_from_slice(&chunk);
    }
    let fields = head
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes())));
    let body = String::from_utf8_lossy(&bytes).into_owned();
    (head.status.as_u16(), fields.collect(), body)
}

#[test]
fn what_a_route_does_besides_holds_over_every_version_of_http() {
    let mesh = Mesh::start("STRICT");
    reflect(&mesh);
    let to = mesh.http();
    say(&mesh, "routes.yaml", &routes(HTTP));
    wait_until("the routes", || {
        let tea = exchange(
            to,
            b"GET /tea HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n",
        );
        tea.is_ok_and(|answer| answer.status == 418)
    });
    for case in &CASES {
        over_http1(to, case);
    }
    // Paths that answer 503 the first time have done so already.
    play(|| async move {
        for case in CASES.iter().filter(|case| !case.0.contains("flaky")) {
            let (status, head, body) = over_http2(to, request("server", case.0, false)).await;
            check(case, status, &head, &body);
        }
    });
    let metrics = mesh.client_metrics();
    for (code, flag) in [("504", "UT"), ("555", "FI"), ("200", "DI"), ("302", "-")] {
        let labels = [
            format!("response_code=\"{code}\""),
            format!("response_flags=\"{flag}\""),
        ];
        let labels = labels.each_ref().map(String::as_str);
        let found = series(&metrics, "istio_requests_total", &labels);
        assert_eq!(
            found.map(|count| count >= 2.0),
            Some(true),
            "{labels:?}\n{metrics}"
        );
    }
}

/// A call, its `grpc-status`, and words of its answer's head.
const CALLS: [Case; 9] = [
    ("POST /away", 2, &["location: http://other.example/there"]),
    ("POST /v3/Shop/Buy", 0, &["/api/3/shop/buy"]),
    ("POST /old", 0, &["http://renamed.example/new"]),
    (
        "POST /edit|x-set: 0|x-gone: 0",
        0,
        &[
            "\"x-set\": \"2\"",
            "\"x-own\": \"1\"",
            "!x-gone",
            "!secret",
            "x-set: 100%",
        ],
    ),
    ("POST /never", 14, &["response_timeout"]),
    ("POST /flaky", 0, &["x-envoy-attempt-count\": \"2"]),
    ("POST /broken", 2, &["fault filter abort"]),
    ("POST /brokenrpc", 8, &["fault filter abort"]),
    ("POST /slow", 0, &["/slow"]),
];

#[test]
fn grpc_calls_take_routes_and_are_told_in_their_own_words() {
    let mesh = Mesh::start("STRICT");
    let (app, to) = (mesh.grpc_app(), mesh.grpc());
    say(&mesh, "routes.yaml", &routes(HTTP));
    play(|| async move {
        reflect_grpc(app).await;
        let call = |line| over_http2(to, request("server:7070", line, true));
        loop {
            let (_, head, _) = call("POST /brokenrpc").await;
            if head.contains("grpc-status: 8") {
                break;
            }
        }
        for (line, status, words) in CALLS {
            let (code, head, body) = call(line).await;
            assert_eq!(code, 200, "{line}: {head}");
            let said = format!("grpc-status: {status}\r\n");
            assert!(head.contains(&said), "{line}: no {said:?} in {head:?}");
            check(&(line, code, words), code, &head, &body);
        }
        // The smaller of the caller's time and the route's counts.
        let mut late = request("server:7070", "POST /flaky|x: never", true);
        *late.uri_mut() = "http://server:7070/never".parse().expect("a uri");
        let timeout = "30m".parse().expect("a value");
        late.headers_mut().insert("grpc-timeout", timeout);
        let began = std::time::Instant::now();
        let (_, head, _) = over_http2(to, late).await;
        assert!(head.contains("grpc-status: 14"), "{head}");
        assert!(began.elapsed().as_millis() >= 30, "{:?}", began.elapsed());
    });
}

/// Words of the requests that an application got, as they came.
fn overheard(listener: std::net::TcpListener) -> std::sync::mpsc::Receiver<String> {
    let (told, heard) = std::sync::mpsc::channel();
    application::serve(listener, move |stream| {
        let mut reader = BufReader::new(stream);
        while let Some((head, body)) = application::read_request(&mut reader) {
            let _ = told.send(format!("{head}{body}"));
            let answer = b"HTTP/1.1 500 Copy\r\nContent-Length: 0\r\n\r\n";
            if reader.get_mut().write_all(answer).is_err() {
                return;
            }
        }
    });
    heard
}

const COPIED: &str = "
  - match: [{uri: {exact: /never-copied}}]
    mirrors: [{destination: {host: server, subset: v2}, percentage: {value: 0}}]
    route: [{destination: {host: server, subset: v1}}]
  - mirrors: [{destination: {host: server, subset: v2}}, {destination: {host: nobody}}]
    headers: {request: {set: {x-copied: \"1\"}}}
    route: [{destination: {host: server, subset: v1}}]
";

#[test]
fn copies_go_to_mirrors_and_nobody_waits_for_them() {
    let mesh = Mesh::start("PERMISSIVE");
    reflect(&mesh);
    say(&mesh, "v2.yaml", &super::second_pod(&mesh));
    let heard = overheard(std::net::TcpListener::bind(mesh.address(3, HTTP_PORT)).expect("bound"));
    say(
        &mesh,
        "rule.yaml",
        &super::rule(&[("v1", "v1"), ("v2", "v2")]),
    );
    say(&mesh, "routes.yaml", &routes(COPIED));
    let to = mesh.http();
    let ask = |request: String| exchange(to, request.as_bytes()).expect("an answer");
    let post = |path: &str, body: &str| {
        let length = body.len();
        ask(format!(
            "POST {path} HTTP/1.1\r\nHost: server:80\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    };
    wait_until("the routes", || {
        let body = post("/wait", "").body;
        String::from_utf8_lossy(&body).contains("x-copied")
    });
    let failed = ["response_code=\"500\""];
    let failures = || series(&mesh.client_metrics(), "istio_requests_total", &failed);
    let before = failures();
    let answer = post("/a?b", "hello");
    assert_eq!(answer.status, 200);
    assert!(answer.body.ends_with(b"hello"));
    let patience = std::time::Duration::from_secs(20);
    let next = |path: &str| loop {
        let copy = heard.recv_timeout(patience).expect("a copy");
        if copy.starts_with(path) {
            return copy.to_lowercase();
        }
    };
    let copy = next("POST /a");
    for word in [
        "post /a?b http/1.1",
        "host: server-shadow:80\r\n",
        "x-copied: 1",
        "\r\n\r\nhello",
    ] {
        assert!(copy.contains(word), "no {word:?} in {copy:?}");
    }
    // Over HTTP/2, too.
    play(|| async move {
        let mut client = connect(to).await;
        let request = Request::post("http://server/over-http2").header("content-length", "5");
        let request = request.body(()).expect("a request");
        let (response, mut send) = client.send_request(request, false).expect("sent");
        send.send_data(Bytes::from_static(b"twice"), true)
            .expect("sent");
        assert_eq!(response.await.expect("an answer").status(), 200);
    });
    let copy = next("POST /over-http2");
    for word in ["host: server-shadow\r\n", "twice"] {
        assert!(copy.contains(word), "no {word:?} in {copy:?}");
    }
    // A body too long to be kept is not copied, and is counted.
    assert_eq!(post("/long", &"x".repeat(200_000)).status, 200);
    assert_eq!(post("/never-copied", "").status, 200);
    assert_eq!(post("/last", "").status, 200);
    let copy = next("POST");
    assert!(copy.starts_with("post /last"), "{copy}");
    let metrics = mesh.client_metrics();
    let dropped = series(&metrics, "voile_mirrored_requests_dropped_total", &[]);
    assert_eq!(dropped, Some(1.0), "{metrics}");
    let sent = series(&metrics, "voile_mirrored_requests_total", &[]);
    assert!(sent >= Some(4.0), "{metrics}");
    // A copy does not count as a client's request. (Before there were routes, the second version was asked
    // for its own sake.)
    assert_eq!(failures(), before, "{metrics}");
}

#[test]
fn routes_that_are_handed_over_hold_where_both_match() {
    let mesh = Mesh::start("STRICT");
    reflect(&mesh);
    let delegate = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: items, namespace: shop}\nspec:\n  http:\n\
         \x20 - match: [{uri: {prefix: /items/new}, method: {exact: GET}}]\n    directResponse: {status: 201, body: {string: new}}\n\
         \x20 - match: [{uri: {prefix: /other}}]\n    directResponse: {status: 202}\n\
         \x20 - directResponse: {status: 203, body: {string: rest}}\n";
    say(&mesh, "delegate.yaml", delegate);
    let root = "
  - match: [{uri: {prefix: /items}}]
    headers: {response: {set: {x-root: \"1\"}}}
    delegate: {name: items}
  - match: [{uri: {prefix: /lost}}]
    delegate: {name: nobody}
  - route: [{destination: {host: server}}]
";
    say(&mesh, "routes.yaml", &routes(root));
    let to = mesh.http();
    let ask = |line: &str| {
        let request = format!("{line} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n");
        exchange(to, request.as_bytes()).expect("an answer")
    };
    wait_until("the routes", || ask("GET /items").status == 203);
    for (line, status) in [
        ("GET /items/new/1", 201),
        ("POST /items/new/1", 203),
        ("GET /items/old", 203),
        ("GET /other", 200),
        ("GET /lost", 503),
    ] {
        let answer = ask(line);
        assert_eq!(answer.status, status, "{line}");
        let of_root = answer.head.to_lowercase().contains("x-root: 1");
        assert_eq!(of_root, matches!(status, 201 | 203), "{line}");
    }
}
