//! Telemetry through two sidecars: one trace from caller to application with a span of each, told to a real OTLP
//! collector; access logs by provider and filter; refused connections.

mod calls;
mod collectors;
mod cost;
mod prometheus;
pub(crate) mod receiver;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};

use prost::Message as _;
use serde_json::Value;
use voile_proto::trace::{ExportTraceServiceRequest, KeyValue, Span, any_value, span::SpanKind};

use crate::mesh::{
    HTTP_PORT, Mesh, TCP_PORT, application, exchange, get, put, read_to_end, series, wait_until,
};

pub(crate) const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
pub(crate) const CALLER: &str = "b7ad6b7169203331";

/// Spans that arrived, each with its service's name.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<(String, Span)>>>);

impl Collector {
    /// An OTLP collector over HTTP/1.1 on a thread of its own.
    fn start() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let collector = Self::default();
        let spans = Arc::clone(&collector.0);
        application::serve(listener, move |stream| {
            let mut reader = BufReader::new(stream);
            while let Some(body) = read_body(&mut reader) {
                let request = ExportTraceServiceRequest::decode(&*body).expect("OTLP");
                for resource in request.resource_spans {
                    let shared = resource.resource.expect("a resource");
                    let service = tag(&shared.attributes, "service.name");
                    let all = resource
                        .scope_spans
                        .into_iter()
                        .flat_map(|scope| scope.spans);
                    let mut spans = spans.lock().unwrap_or_else(PoisonError::into_inner);
                    spans.extend(all.map(|span| (service.clone(), span)));
                }
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                if reader.get_mut().write_all(answer).is_err() {
                    return;
                }
            }
        });
        (collector, address)
    }

    /// The spans of a trace, once there are so many.
    fn spans(&self, trace: &[u8], count: usize) -> Vec<(String, Span)> {
        let mut found = Vec::new();
        wait_until("the spans arrive", || {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            found = all
                .iter()
                .filter(|(_, span)| span.trace_id == trace)
                .cloned()
                .collect();
            found.len() >= count
        });
        found
    }
}

fn read_body(reader: &mut BufReader<std::net::TcpStream>) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}

pub(crate) fn tag(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        _ => String::new(),
    }
}

pub(crate) fn hex(text: &str) -> Vec<u8> {
    let pair = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(pair).collect()
}

/// Writes resources and waits until both sidecars obey what has `word` in it.
fn apply(mesh: &Mesh, word: &str, resources: &str) {
    put(&mesh.config().join("telemetry.yaml"), resources);
    for admin in [mesh.client_admin(), mesh.server_admin()] {
        wait_until("the telemetry is configured", || {
            let dump = get(admin, "/config_dump").expect("the configuration");
            String::from_utf8_lossy(&dump.body).contains(word)
        });
    }
}

pub(crate) fn mesh_config(mesh: &str) -> String {
    let indented: String = mesh.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: istio\n  namespace: istio-system\ndata:\n  mesh: |\n{indented}"
    )
}

/// A Telemetry resource for the namespace of both pods.
fn telemetry(spec: &str) -> String {
    format!(
        "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata:\n  name: telemetry\n  namespace: shop\nspec:\n{spec}"
    )
}

/// Access logs and spans over gRPC to the TCP service, which has a sidecar; what obeys them has `word` in it.
fn collectors(sampling: f64, word: &str) -> String {
    let config = mesh_config(&format!(
        "extensionProviders:\n- name: als\n  envoyHttpAls:\n    service: shop/server.shop.svc.cluster.local\n    port: {TCP_PORT}\n    logName: {word}\n    additionalRequestHeadersToLog: [x-big]\n- name: otel\n  opentelemetry:\n    service: shop/server.shop.svc.cluster.local\n    port: {TCP_PORT}\n"
    ));
    let resources = telemetry(&format!(
        "  accessLogging:\n  - providers:\n    - name: als\n  tracing:\n  - providers:\n    - name: otel\n    randomSamplingPercentage: {sampling}\n"
    ));
    format!("{config}{resources}")
}

fn tracing(collector: SocketAddr, sampling: f64) -> String {
    let config = mesh_config(&format!(
        "defaultProviders:\n  tracing: [otel]\nextensionProviders:\n- name: otel\n  opentelemetry:\n    service: shop/otel.example\n    port: {}\n    http: {{}}\n",
        collector.port()
    ));
    format!(
        "{config}---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: otel\n  namespace: shop\nspec:\n  hosts: [otel.example]\n  location: MESH_EXTERNAL\n  resolution: STATIC\n  ports:\n  - number: {port}\n    name: http-otlp\n    protocol: HTTP\n  endpoints:\n  - address: {address}\n\
         ---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata:\n  name: spans\n  namespace: shop\nspec:\n  tracing:\n  - randomSamplingPercentage: {sampling}\n    customTags:\n      tenant:\n        header:\n          name: X-Tenant\n",
        port = collector.port(),
        address = collector.ip(),
    )
}

pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

#[test]
fn a_trace_goes_from_the_caller_to_the_application_with_a_span_of_each_sidecar() {
    let (collector, address) = Collector::start();
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    apply(&mesh, "otel.example", &tracing(address, 0.0));
    // A caller's labels are asked for with its first request, and come a moment later.
    wait_until("the server's sidecar knows its caller", || {
        get(mesh.http(), "/first").is_ok_and(|answer| answer.status == 200)
            && mesh.server_metrics().contains("source_workload=\"client\"")
    });
    let request = format!(
        "GET /books?id=7 HTTP/1.1\r\nHost: shop.example\r\nTraceparent: 00-{TRACE}-{CALLER}-01\r\nTracestate: vendor=1\r\nX-Tenant: blue\r\nConnection: close\r\n\r\n"
    );
    let answer = exchange(mesh.http(), request.as_bytes()).expect("an answer");
    assert_eq!(answer.status, 200);
    let seen = String::from_utf8_lossy(&answer.body).into_owned();
    let spans = collector.spans(&hex(TRACE), 2);
    let of = |kind: SpanKind| {
        let found = spans.iter().find(|(_, span)| span.kind == i32::from(kind));
        found.unwrap_or_else(|| panic!("{kind:?} in {spans:?}"))
    };
    let ((client, outbound), (server, inbound)) = (of(SpanKind::Client), of(SpanKind::Server));
    assert_eq!(
        (client.as_str(), server.as_str()),
        ("client.shop", "server.shop")
    );
    assert_eq!(outbound.parent_span_id, hex(CALLER));
    assert_eq!(inbound.parent_span_id, outbound.span_id);
    // The application's head has one context, and continues the server's span.
    assert_eq!(
        seen.to_ascii_lowercase().matches("traceparent:").count(),
        1,
        "{seen}"
    );
    let parent = header(&seen, "traceparent").expect("a context");
    let span: String = inbound
        .span_id
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(parent, format!("00-{TRACE}-{span}-01"));
    assert_eq!(header(&seen, "tracestate"), Some("vendor=1"));
    let id = header(&seen, "x-request-id").expect("a request id");
    assert_eq!((id.len(), id.as_bytes()[14]), (36, b'9'), "{id}");
    for (span, key, value) in [
        (inbound, "http.method", "GET"),
        (inbound, "http.status_code", "200"),
        (inbound, "http.url", "https://shop.example/books?id=7"),
        (inbound, "guid:x-request-id", id),
        (inbound, "istio.canonical_service", "server"),
        (inbound, "istio.source_workload", "client"),
        (inbound, "tenant", "blue"),
        (outbound, "http.url", "http://shop.example/books?id=7"),
        (outbound, "response_flags", "-"),
        (outbound, "istio.destination_workload", "server"),
    ] {
        assert_eq!(tag(&span.attributes, key), value, "{key}");
    }
    assert!(
        tag(&outbound.attributes, "upstream_cluster").starts_with("outbound|8080||server.shop")
    );
}

#[test]
fn a_caller_that_decided_against_sampling_is_obeyed_and_hostile_contexts_begin_anew() {
    let (collector, address) = Collector::start();
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    apply(&mesh, "otel.example", &tracing(address, 100.0));
    let ask = |fields: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n");
        let answer = exchange(mesh.http(), request.as_bytes()).expect("an answer");
        assert_eq!(answer.status, 200, "{fields}");
        String::from_utf8_lossy(&answer.body).into_owned()
    };
    let seen = ask(&format!(
        "traceparent: 00-{TRACE}-{CALLER}-00\r\nx-request-id: mine\r\n"
    ));
    let parent = header(&seen, "traceparent").expect("a context");
    assert!(
        parent.starts_with(&format!("00-{TRACE}-")) && parent.ends_with("-00"),
        "{seen}"
    );
    assert_eq!(header(&seen, "x-request-id"), Some("mine"));
    let seen = ask("b3: 0\r\n");
    assert!(
        header(&seen, "b3").is_some_and(|b3| b3.contains("-0-")),
        "{seen}"
    );
    let zeros = "0".repeat(32);
    let mut last = String::new();
    for hostile in [
        "traceparent: hello\r\ntracestate: a=1\r\n".to_owned(),
        format!("traceparent: 00-{zeros}-{CALLER}-01\r\n"),
        format!("traceparent: 00-{TRACE}-{CALLER}-00\r\ntraceparent: 00-{TRACE}-{CALLER}-00\r\n"),
        format!("x-b3-traceid: {}\r\nx-b3-spanid: -\r\n", "g".repeat(32)),
    ] {
        let seen = ask(&hostile);
        let parent = header(&seen, "traceparent").expect("a context");
        assert!(
            parent.ends_with("-01") && !parent.contains(TRACE) && !parent.contains(&zeros),
            "{seen}"
        );
        assert_eq!(header(&seen, "tracestate"), None, "{seen}");
        assert_eq!(header(&seen, "x-b3-spanid"), None, "{seen}");
        last = parent[3..35].to_owned();
    }
    collector.spans(&hex(&last), 2);
    let all = collector.0.lock().unwrap_or_else(PoisonError::into_inner);
    let unsampled = all
        .iter()
        .filter(|(_, span)| span.trace_id == hex(TRACE))
        .count();
    assert_eq!(unsampled, 0, "{all:?}");
}

#[test]
fn where_tracing_is_off_a_head_passes_as_it_came() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let request = "GET / HTTP/1.1\r\nHost: a\r\ntraceparent: nonsense\r\nConnection: close\r\n\r\n";
    let answer = exchange(mesh.http(), request.as_bytes()).expect("an answer");
    let seen = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!(header(&seen, "traceparent"), Some("nonsense"), "{seen}");
    assert_eq!(header(&seen, "x-request-id"), None, "{seen}");
}

#[test]
fn labels_say_values_of_requests_where_overrides_want_them() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let overrides = "  metrics:\n  - overrides:\n    - match: {metric: REQUEST_COUNT, mode: SERVER}\n      tagOverrides:\n        \
         shelf: {value: request.url_path}\n        tenant: {value: \"request.headers['X-Tenant']\"}\n";
    put(&mesh.config().join("telemetry.yaml"), &telemetry(overrides));
    wait_until("the overrides are in force", || {
        get(mesh.http(), "/first").is_ok_and(|answer| answer.status == 200)
            && mesh.server_metrics().contains("shelf=\"/first\"")
    });
    for (path, tenant) in [("/a?x=1", "blue"), ("/a", "blue"), ("/b", "re\"d")] {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: shop.example\r\nX-Tenant: {tenant}\r\nConnection: close\r\n\r\n"
        );
        let answer = exchange(mesh.http(), request.as_bytes()).expect("an answer");
        assert_eq!(answer.status, 200);
    }
    let request = "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n";
    exchange(mesh.http(), request.as_bytes()).expect("an answer");
    for (shelf, tenant, expected) in [
        ("/a", "blue", 2.0),
        ("/b", "re\\\"d", 1.0),
        ("/", "unknown", 1.0),
    ] {
        let labels = format!("shelf=\"{shelf}\",tenant=\"{tenant}\"");
        let count = |metrics: &str, name| series(metrics, name, &[&labels]);
        wait_until("it is counted", || {
            count(&mesh.server_metrics(), "istio_requests_total") == Some(expected)
        });
        assert_eq!(
            count(&mesh.server_metrics(), "istio_request_bytes_count"),
            None
        );
        assert_eq!(count(&mesh.client_metrics(), "istio_requests_total"), None);
    }
}

#[test]
fn logs_follow_provider_side_and_filter_and_refused_connections_have_their_line() {
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let folder = mesh.config();
    let folder = folder.parent().expect("a parent");
    let (all, bad) = (folder.join("all.log"), folder.join("bad.log"));
    let config = mesh_config(&format!(
        "extensionProviders:\n- name: all\n  envoyFileAccessLog:\n    path: {}\n    logFormat:\n      labels:\n        path: \"%REQ(:PATH)%\"\n        peer: \"%DOWNSTREAM_PEER_URI_SAN%\"\n        tls: \"%DOWNSTREAM_TLS_VERSION%\"\n        agent: \"%REQ(USER-AGENT)%\"\n        id: \"%REQ(X-REQUEST-ID)%\"\n        type: \"%RESP(CONTENT-LENGTH)%\"\n        local: \"%UPSTREAM_LOCAL_ADDRESS%\"\n        flags: \"%RESPONSE_FLAGS%\"\n        why: \"%CONNECTION_TERMINATION_DETAILS%\"\n        tlsfailure: \"%DOWNSTREAM_TRANSPORT_FAILURE_REASON%\"\n- name: bad\n  envoyFileAccessLog:\n    path: {}\n    logFormat:\n      text: \"%REQ(:PATH)% %RESPONSE_CODE%\"\n",
        all.display(),
        bad.display()
    ));
    let telemetry = "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata:\n  name: logs\n  namespace: shop\nspec:\n  accessLogging:\n  - providers:\n    - name: all\n    match:\n      mode: SERVER\n  - providers:\n    - name: bad\n    filter:\n      expression: response.code >= 400\n";
    apply(&mesh, "bad.log", &format!("{config}{telemetry}"));
    let hostile = "GET /ok HTTP/1.1\r\nHost: a\r\nUser-Agent: x\"} {\"forged\": 1\\\r\nConnection: close\r\n\r\n";
    assert_eq!(
        exchange(mesh.http(), hostile.as_bytes())
            .expect("an answer")
            .status,
        200
    );
    let refused = b"GET /no HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n";
    let answer = read_to_end(mesh.http(), refused).expect("refused");
    assert!(answer.starts_with(b"HTTP/1.1 400 "));
    read_to_end(mesh.inbound(HTTP_PORT), b"GET / HTTP/1.1\r\n\r\n").expect("closed");
    read_to_end(mesh.inbound(HTTP_PORT), &[0x16, 3, 1, 0, 4, 1, 0, 0, 0]).expect("closed");
    let mut lines: Vec<Value> = Vec::new();
    wait_until("three lines", || {
        let text = std::fs::read_to_string(&all).unwrap_or_default();
        lines = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        lines.len() >= 3
    });
    let line = |key: &str, value: &str| {
        let found = lines.iter().find(|line| line[key] == value);
        found.unwrap_or_else(|| panic!("{key}={value} in {lines:#?}"))
    };
    let ok = line("path", "/ok");
    assert_eq!(ok["peer"], "spiffe://cluster.local/ns/shop/sa/client");
    assert_eq!(ok["tls"], "TLSv1.3");
    assert_eq!(ok["agent"], "x\"} {\"forged\": 1\\");
    assert_eq!(
        ok["id"].as_str().map(str::len),
        Some(36),
        "made, since a log tells it: {ok}"
    );
    assert!(ok["type"].is_string() && ok["local"].is_string(), "{ok}");
    assert_eq!(
        line("why", "plaintext refused: PeerAuthentication is STRICT")["flags"],
        "NR"
    );
    assert!(line("why", "tls_handshake_failed")["tlsfailure"].is_string());
    let mut text = String::new();
    wait_until("the refused request is logged", || {
        text = std::fs::read_to_string(&bad).unwrap_or_default();
        text.contains(" 400\n")
    });
    assert!(!text.contains(" 200"), "{text}");
}
