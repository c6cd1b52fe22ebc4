//! gRPC calls through two sidecars as telemetry sees them: trace context in every form over HTTP/2, sampling. Also the
//! metrics, access logs and spans of calls that went well, failed, were cancelled or found no endpoint.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use serde_json::Value;
use voile_proto::trace::Span;
use voile_proto::trace::span::SpanKind;

use super::receiver::{Manner, Receiver};
use super::{CALLER, TRACE, apply, collectors, hex, mesh_config, tag, telemetry};
use crate::mesh::{Mesh, series, wait_until};
use crate::traffic::http2::{call, connect, message, play};

/// Headers of the request that the application echoes.
const TOLD: [&str; 9] = [
    "traceparent",
    "tracestate",
    "b3",
    "x-b3-traceid",
    "x-b3-spanid",
    "x-b3-parentspanid",
    "x-b3-sampled",
    "x-b3-flags",
    "x-request-id",
];

/// A gRPC application: the status that `x-want` asks for, `/late` never answers, and trace context comes back as it came
/// in headers named `saw-…`.
async fn serve(address: SocketAddr) {
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .expect("the application's address");
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                let mut connection = h2::server::handshake(stream).await.expect("a preface");
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::task::spawn_local(answer(request, respond));
                }
            });
        }
    });
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    if request.uri().path() == "/late" {
        // Until the caller gives up.
        let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
        return;
    }
    let fields = request.headers();
    let mut head = Response::builder().header("content-type", "application/grpc");
    for name in TOLD {
        for value in fields.get_all(name) {
            head = head.header(format!("saw-{name}"), value);
        }
    }
    let status = fields.get("x-want").cloned();
    let status = status.unwrap_or_else(|| "0".parse().expect("a value"));
    let mut send = respond
        .send_response(head.body(()).expect("a head"), false)
        .expect("sent");
    let mut body = request.into_body();
    while let Some(Ok(chunk)) = body.data().await {
        let _ = body.flow_control().release_capacity(chunk.len());
        // A caller that went away wants nothing more.
        let _ = send.send_data(chunk, false);
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status);
    let _ = send.send_trailers(trailers);
}

/// One unary call; the head that the application saw, and the gRPC status.
async fn unary(
    client: &mut SendRequest<Bytes>,
    path: &str,
    fields: &[(&'static str, &str)],
) -> (BTreeMap<String, Vec<String>>, String) {
    let mut request = call(path);
    for (name, value) in fields {
        request
            .headers_mut()
            .append(*name, value.parse().expect("a value"));
    }
    let (response, mut send) = client.send_request(request, false).expect("sent");
    send.send_data(message("hello"), true).expect("sent");
    let response = response.await.expect("an answer");
    let mut saw: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in response.headers() {
        if let Some(name) = name.as_str().strip_prefix("saw-") {
            let value = value.to_str().expect("text").to_owned();
            saw.entry(name.to_owned()).or_default().push(value);
        }
    }
    let at_once = response.headers().get("grpc-status").cloned();
    let mut body = response.into_body();
    while let Some(chunk) = body.data().await {
        let length = chunk.expect("a body").len();
        body.flow_control()
            .release_capacity(length)
            .expect("released");
    }
    let trailers = body.trailers().await.expect("an end").unwrap_or_default();
    let status = trailers.get("grpc-status").cloned().or(at_once);
    let status = status.expect("a status");
    (saw, status.to_str().expect("text").to_owned())
}

fn of_kind(spans: &[(String, Span)], kind: SpanKind) -> Span {
    let found = spans.iter().find(|(_, span)| span.kind == i32::from(kind));
    let found = found.unwrap_or_else(|| panic!("{kind:?} in {spans:?}"));
    found.1.clone()
}

fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Traces of 64 bits are padded to 128.
const SHORT: &str = "a3ce929d0e0e4736";

/// Trace context that a caller sends, and the forms in which the server must see it continue.
struct Context {
    trace: String,
    fields: Vec<(&'static str, String)>,
    forms: &'static [&'static str],
}

/// The forms in which a trace comes.
fn contexts() -> [Context; 5] {
    let w3c = format!("00-{TRACE}-{CALLER}-01");
    let single = format!("{TRACE}-{CALLER}-1");
    let whole = || TRACE.to_owned();
    [
        Context {
            trace: whole(),
            fields: vec![
                ("traceparent", w3c.clone()),
                ("tracestate", "vendor=1".to_owned()),
            ],
            forms: &["traceparent", "tracestate"],
        },
        Context {
            trace: whole(),
            fields: vec![("b3", single.clone())],
            forms: &["b3"],
        },
        Context {
            trace: whole(),
            fields: vec![
                ("x-b3-traceid", whole()),
                ("x-b3-spanid", CALLER.to_owned()),
                ("x-b3-sampled", "1".to_owned()),
            ],
            forms: &[
                "x-b3-traceid",
                "x-b3-spanid",
                "x-b3-parentspanid",
                "x-b3-sampled",
            ],
        },
        Context {
            trace: format!("{}{SHORT}", "0".repeat(16)),
            fields: vec![("b3", format!("{SHORT}-{CALLER}-d"))],
            forms: &["b3"],
        },
        Context {
            trace: whole(),
            fields: vec![("traceparent", w3c), ("b3", single)],
            forms: &["b3", "traceparent"],
        },
    ]
}

#[test]
fn a_calls_trace_goes_on_in_the_form_in_which_it_came_with_a_span_of_each_sidecar() {
    let mesh = Mesh::start("STRICT");
    let receiver = Receiver::start(mesh.tcp_app(), Manner::Takes);
    apply(&mesh, "4317-no-port", &collectors(0.0, "4317-no-port"));
    let (app, address) = (mesh.grpc_app(), mesh.grpc());
    let cases = contexts();
    let mut seen = Vec::new();
    play(|| async {
        serve(app).await;
        let mut client = connect(address).await;
        for case in &cases {
            let fields: Vec<(&'static str, &str)> = case
                .fields
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            let (saw, status) = unary(&mut client, "/echo", &fields).await;
            assert_eq!(status, "0");
            seen.push(saw);
        }
    });
    for (case, saw) in cases.iter().zip(seen) {
        let names = saw.keys().map(String::as_str);
        let context: Vec<&str> = names.filter(|name| *name != "x-request-id").collect();
        let mut wanted = case.forms.to_vec();
        wanted.sort_unstable();
        assert_eq!(context, wanted, "{:?} gave {saw:?}", case.fields);
        assert!(saw.values().all(|values| values.len() == 1), "{saw:?}");
        spans_of(&receiver, case, &saw);
    }
}

/// One span of each sidecar, the server's child of the client's and the client's child of the caller.
fn spans_of(receiver: &Receiver, case: &Context, saw: &BTreeMap<String, Vec<String>>) {
    let id = &saw["x-request-id"][0];
    // The application continues the server's span; find it by that.
    let parts = |name: &str| {
        let one = saw.get(name)?;
        Some(one[0].split('-').map(str::to_owned).collect::<Vec<_>>())
    };
    let parent = match (parts("traceparent"), parts("b3")) {
        (Some(parts), _) => parts[2].clone(),
        (None, Some(parts)) => parts[1].clone(),
        (None, None) => saw["x-b3-spanid"][0].clone(),
    };
    let mut pair = None;
    wait_until("both spans of the call", || {
        let all = receiver.spans(&hex(&case.trace), 2);
        let server = all.iter().find(|(_, span)| text(&span.span_id) == parent);
        let client = server.and_then(|(_, server)| {
            all.iter()
                .find(|(_, span)| span.span_id == server.parent_span_id)
        });
        pair = server.cloned().zip(client.cloned());
        pair.is_some()
    });
    let ((inside, server), (outside, client)) = pair.expect("both");
    assert_eq!(
        (outside.as_str(), inside.as_str()),
        ("client.shop", "server.shop")
    );
    assert_eq!(client.kind, i32::from(SpanKind::Client));
    assert_eq!(server.kind, i32::from(SpanKind::Server));
    assert_eq!(text(&client.parent_span_id), CALLER, "{:?}", case.fields);
    for (key, value) in [
        ("http.protocol", "HTTP/2"),
        ("http.method", "POST"),
        ("grpc.status_code", "0"),
        ("guid:x-request-id", id.as_str()),
    ] {
        assert_eq!(tag(&server.attributes, key), value, "{key} of {server:?}");
        assert_eq!(tag(&client.attributes, key), value, "{key} of {client:?}");
    }
}

#[test]
fn sampling_is_decided_once_and_obeyed_by_the_second_sidecar() {
    const CALLS: usize = 200;
    let mesh = Mesh::start("STRICT");
    let receiver = Receiver::start(mesh.tcp_app(), Manner::Takes);
    let (app, address) = (mesh.grpc_app(), mesh.grpc());
    for (number, (percent, allowed)) in [(0.0, 0..=0), (100.0, CALLS..=CALLS), (50.0, 60..=140)]
        .into_iter()
        .enumerate()
    {
        let word = format!("sampling-{number}");
        apply(&mesh, &word, &collectors(percent, &word));
        let before = receiver.all_spans().len();
        let mut parents = Vec::new();
        play(|| async {
            serve(app).await;
            let mut client = connect(address).await;
            for _ in 0..CALLS {
                let (saw, status) = unary(&mut client, "/echo", &[]).await;
                assert_eq!(status, "0", "{saw:?}");
                parents.push(saw["traceparent"][0].clone());
            }
        });
        let sampled: Vec<&String> = parents.iter().filter(|one| one.ends_with("-01")).collect();
        assert!(
            parents
                .iter()
                .all(|one| one.ends_with("-01") || one.ends_with("-00")),
            "{parents:?}"
        );
        assert!(
            allowed.contains(&sampled.len()),
            "{} of {CALLS} at {percent} %",
            sampled.len()
        );
        for parent in &sampled {
            let spans = receiver.spans(&hex(&parent[3..35]), 2);
            let (client, server) = (
                of_kind(&spans, SpanKind::Client),
                of_kind(&spans, SpanKind::Server),
            );
            assert!(
                client.parent_span_id.is_empty(),
                "it began the trace: {client:?}"
            );
            assert_eq!(server.parent_span_id, client.span_id);
            assert_eq!(text(&server.span_id), parent[36..52]);
        }
        assert_eq!(
            receiver.all_spans().len() - before,
            2 * sampled.len(),
            "at {percent} %"
        );
    }
}

#[test]
fn metrics_and_logs_tell_how_calls_ended_on_both_sides() {
    let mesh = Mesh::start("STRICT");
    let folder = mesh.config();
    let folder = folder.parent().expect("a parent");
    let log = folder.join("calls.log");
    let config = mesh_config(&format!(
        "extensionProviders:\n- name: all\n  envoyFileAccessLog:\n    path: {}\n    logFormat:\n      labels:\n        path: \"%REQ(:PATH)%\"\n        cluster: \"%UPSTREAM_CLUSTER_RAW%\"\n        code: \"%RESPONSE_CODE%\"\n        grpc: \"%GRPC_STATUS%\"\n        number: \"%GRPC_STATUS_NUMBER%\"\n        trailer: \"%TRAILER(GRPC-STATUS)%\"\n        protocol: \"%PROTOCOL%\"\n        flags: \"%RESPONSE_FLAGS%\"\n        bytes: \"%BYTES_RECEIVED%\"\n",
        log.display()
    ));
    let resources = telemetry("  accessLogging:\n  - providers:\n    - name: all\n");
    apply(&mesh, "calls.log", &format!("{config}{resources}"));
    calls_of_every_end(&mesh);
    let mut lines: Vec<Value> = Vec::new();
    wait_until("fourteen lines", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let all = text.lines().map(serde_json::from_str);
        lines = all.collect::<Result<_, _>>().unwrap_or_default();
        lines.len() >= 14
    });
    logged(&lines);
    for (metrics, reporter, nobody) in [
        (mesh.client_metrics(), "source", "-"),
        (mesh.server_metrics(), "destination", "UF"),
    ] {
        counted(&metrics, reporter, nobody);
    }
}

/// Calls without an endpoint, with each status, and one that its caller cancels.
fn calls_of_every_end(mesh: &Mesh) {
    let (app, address) = (mesh.grpc_app(), mesh.grpc());
    play(|| async {
        // The application does not listen yet.
        let mut client = connect(address).await;
        let (_, status) = unary(&mut client, "/nobody", &[]).await;
        assert_eq!(status, "14");
    });
    play(|| async {
        serve(app).await;
        let mut client = connect(address).await;
        for (path, status) in [("/good", "0"), ("/missing", "5"), ("/strange", "77")] {
            let (_, got) = unary(&mut client, path, &[("x-want", status)]).await;
            assert_eq!(got, status);
        }
        let (response, mut send) = client.send_request(call("/late"), false).expect("sent");
        send.send_data(message("hello"), false).expect("sent");
        // The call is under way when a later call is answered; cancelled earlier, it would never reach the
        // server.
        let (_, got) = unary(&mut client, "/good", &[]).await;
        assert_eq!(got, "0");
        drop(response);
        send.send_reset(Reason::CANCEL);
        // Another after it, so that the cancelled one has come through.
        let (_, got) = unary(&mut client, "/good", &[]).await;
        assert_eq!(got, "0");
    });
}

fn logged(lines: &[Value]) {
    for (path, side, wanted) in [
        ("/good", "outbound|", (200, "OK", Some(0), "0", "-")),
        ("/good", "inbound|", (200, "OK", Some(0), "0", "-")),
        (
            "/missing",
            "outbound|",
            (200, "NotFound", Some(5), "5", "-"),
        ),
        ("/missing", "inbound|", (200, "NotFound", Some(5), "5", "-")),
        ("/strange", "inbound|", (200, "77", Some(77), "77", "-")),
        (
            "/nobody",
            "inbound|",
            (200, "Unavailable", Some(14), "-", "UF"),
        ),
        (
            "/nobody",
            "outbound|",
            (200, "Unavailable", Some(14), "-", "-"),
        ),
        ("/late", "outbound|", (0, "-", None, "-", "DR")),
        ("/late", "inbound|", (0, "-", None, "-", "DR")),
    ] {
        let found = lines.iter().find(|line| {
            let cluster = line["cluster"].as_str().unwrap_or_default();
            line["path"] == path && cluster.starts_with(side)
        });
        let line = found.unwrap_or_else(|| panic!("{path} {side} in {lines:#?}"));
        let or_dash = |key: &str| match &line[key] {
            Value::String(text) => text.clone(),
            Value::Null => "-".to_owned(),
            other => other.to_string(),
        };
        let (code, grpc, number, trailer, flags) = wanted;
        assert_eq!(line["code"], code, "{line}");
        assert_eq!(or_dash("grpc"), grpc, "{line}");
        assert_eq!(line["number"].as_u64(), number, "{line}");
        assert_eq!(or_dash("trailer"), trailer, "{line}");
        assert_eq!(or_dash("flags"), flags, "{line}");
        assert_eq!(line["protocol"], "HTTP/2", "{line}");
    }
}

fn counted(metrics: &str, reporter: &str, nobody: &str) {
    for (status, code, flags, count) in [
        ("0", "200", "-", 3.0),
        ("5", "200", "-", 1.0),
        ("77", "200", "-", 1.0),
        ("14", "200", nobody, 1.0),
        ("", "0", "DR", 1.0),
    ] {
        let got = series(
            metrics,
            "istio_requests_total",
            &[
                "request_protocol=\"grpc\"",
                &format!("reporter=\"{reporter}\""),
                &format!("grpc_response_status=\"{status}\""),
                &format!("response_code=\"{code}\""),
                &format!("response_flags=\"{flags}\""),
            ],
        );
        assert_eq!(got, Some(count), "{reporter} {status} {flags}: {metrics}");
    }
}
