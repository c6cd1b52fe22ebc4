//! Telemetry of a waypoint, by resources that aim at it or at a service behind it. The waypoint reports on the server's side, as
//! Istio's waypoints do.

use std::path::Path;

use serde_json::json;
use voile_host::netns::Namespace;
use voile_proto::trace::span::SpanKind;

use crate::mesh::issuer::Issuer;
use crate::mesh::series;
use crate::node::waypoint::hostile::{WEB, started_with};
use crate::node::waypoint::policies::{
    AT_GATE, AT_WEB, OTHER, SECOND_SERVICE, believes, seen, status,
};
use crate::node::*;
use crate::policies::tokens::{ISSUER, rule};
use crate::telemetry::receiver::{Manner, Receiver};
use crate::telemetry::{CALLER, TRACE, header, hex, mesh_config, tag};

const CALLER_IDENTITY: &str = "spiffe://cluster.local/ns/shop/sa/client";

fn telemetry(name: &str, target: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  targetRefs: [{target}]\n{spec}"
    )
}

/// The waypoint's metrics.
fn page(gate: &Pod) -> String {
    let page = gate.inside.run(|| get(local(15020), "/metrics"));
    let page = page.expect("entered").expect("metrics");
    String::from_utf8(page.body).expect("text")
}

/// Both services answer, and the waypoint knows who calls.
fn is_up(inside: &Namespace, gate: &Pod) {
    wait_until("both services are called through the waypoint", || {
        [WEB, OTHER].map(|to| status(inside, to, "/open", "")) == [200, 200]
            && page(gate).contains("source_workload=\"client\"")
    });
}

/// A log for each side: `%REQ(:PATH)% CODE PEER CALLED CLUSTER`.
fn logs(server: &Path, client: &Path) -> String {
    let provider = |name: &str, path: &Path| {
        format!(
            "- name: {name}\n  envoyFileAccessLog:\n    path: {}\n    logFormat:\n      text: \
             \"%REQ(:PATH)% %RESPONSE_CODE% %DOWNSTREAM_PEER_URI_SAN% %DOWNSTREAM_LOCAL_ADDRESS% %UPSTREAM_CLUSTER_RAW%\"\n",
            path.display()
        )
    };
    let both = provider("server", server) + &provider("client", client);
    mesh_config(&format!("extensionProviders:\n{both}"))
}

const LOGGED: &str = "  accessLogging:\n  - providers: [{name: server}]\n    match: {mode: SERVER}\n  \
     - providers: [{name: client}]\n    match: {mode: CLIENT}\n";

#[test]
fn a_waypoint_logs_as_a_server_what_a_telemetry_aims_at_and_nothing_else() {
    let Some((mesh, _node, [client, _, gate])) = started_with(SECOND_SERVICE) else {
        return;
    };
    let inside = &client.inside;
    is_up(inside, &gate);
    let folder = mesh.folder.path();
    let (file, never) = (folder.join("server.log"), folder.join("client.log"));
    let config = logs(&file, &never);
    let log = || std::fs::read_to_string(&file).unwrap_or_default();
    // Asks until a line is there.
    let logged = |to: Ipv4Addr, path: &str, rest: &str| {
        let line = format!("{path} {rest}");
        wait_until(&line, || {
            status(inside, to, path, "");
            log().lines().any(|one| one == line)
        });
    };
    let deny = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: deny, namespace: shop}\n\
         spec: {targetRefs: [{group: \"\", kind: Service, name: web}], action: DENY, rules: [{to: [{operation: {ports: [\"80\"], paths: [\"/shut\"]}}]}]}\n";
    let web = telemetry("web", AT_WEB, LOGGED);
    mesh.write("logs.yaml", &(config.clone() + &web + deny));
    let cluster = |port: u16, name: &str| format!("outbound|{port}||{name}.shop.svc.cluster.local");
    let open = format!("200 {CALLER_IDENTITY} {WEB}:80 {}", cluster(80, "web"));
    logged(WEB, "/open", &open);
    logged(WEB, "/shut", &format!("403 {CALLER_IDENTITY} {WEB}:80 -"));
    // Connections, too.
    let bytes = format!("- 0 {CALLER_IDENTITY} {WEB}:90 {}", cluster(90, "web"));
    wait_until(&bytes, || {
        name(inside, (WEB, 90));
        log().lines().any(|line| line == bytes)
    });
    for _ in 0..4 {
        assert_eq!(status(inside, OTHER, "/other", ""), 200);
    }
    logged(WEB, "/after", &open);
    assert!(!log().contains("/other"), "nobody aims there: {}", log());
    // The log hides a parameter that carries a token only by the rules of the service.
    let issuer = Issuer::new(ISSUER, "one");
    let rule = rule(&issuer, ", fromParams: [pass]");
    mesh.write("tokens.yaml", &believes(AT_WEB, &rule));
    let path = format!("/paid?pass={}", issuer.token("me", json!({})));
    wait_until("a token is looked at", || {
        status(inside, WEB, &path, "");
        log().contains("/paid?pass=- 200 ")
    });
    mesh.remove("tokens.yaml");
    // Telemetry for the waypoint applies to all its services, unless a nearer one differs.
    let off = "  accessLogging:\n  - providers: [{name: server}]\n    disabled: true\n";
    let nearer = telemetry("all", AT_GATE, LOGGED) + &telemetry("web", AT_WEB, off);
    mesh.write("logs.yaml", &(config + &nearer));
    let open = format!("200 {CALLER_IDENTITY} {OTHER}:80 {}", cluster(80, "other"));
    logged(OTHER, "/other", &open);
    for _ in 0..4 {
        assert_eq!(status(inside, WEB, "/quiet", ""), 200);
    }
    logged(OTHER, "/last", &open);
    assert!(!log().contains("/quiet"), "{}", log());
    let never = std::fs::read_to_string(&never).unwrap_or_default();
    assert!(never.is_empty(), "a waypoint is nobody's client: {never}");
}

#[test]
fn overrides_of_metrics_hold_for_the_service_that_they_aim_at() {
    let Some((mesh, _node, [client, _, gate])) = started_with(SECOND_SERVICE) else {
        return;
    };
    let inside = &client.inside;
    is_up(inside, &gate);
    let changed = |shelf: &str| {
        format!(
            "  metrics:\n  - overrides:\n    - match: {{metric: REQUEST_COUNT, mode: SERVER}}\n      tagOverrides:\n        \
             source_workload: {{operation: REMOVE}}\n        shelf: {{value: \"'{shelf}'\"}}\n    \
             - match: {{metric: REQUEST_SIZE}}\n      disabled: true\n    \
             - match: {{metric: REQUEST_DURATION, mode: CLIENT}}\n      disabled: true\n"
        )
    };
    let requests = "istio_requests_total";
    let of = |service: &str| format!("destination_service_name=\"{service}\"");
    let count = |name: &str, service: &str, label: &str| {
        series(&page(&gate), name, &[&of(service), label]).is_some()
    };
    mesh.write("metrics.yaml", &telemetry("web", AT_WEB, &changed("one")));
    wait_until("it has the shape that is said", || {
        count(requests, "web", "shelf=\"one\"")
    });
    assert!(!count(requests, "web", "source_workload="));
    assert!(!count("istio_request_bytes_count", "web", ""));
    let duration = "istio_request_duration_milliseconds_count";
    assert!(count(duration, "web", "source_workload=\"client\""));
    assert!(count(requests, "other", "source_workload=\"client\""));
    assert!(count("istio_request_bytes_count", "other", ""));
    assert!(!count(requests, "other", "shelf="));
    // Aimed at the waypoint it holds for all that it counts.
    mesh.write("metrics.yaml", &telemetry("all", AT_GATE, &changed("all")));
    wait_until("both have it", || {
        ["web", "other"].map(|service| count(requests, service, "shelf=\"all\"")) == [true; 2]
    });
    // A service without metrics shows nothing new.
    let off = "  metrics:\n  - overrides: [{match: {metric: ALL_METRICS, mode: SERVER}, disabled: true}]\n";
    mesh.write("metrics.yaml", &telemetry("web", AT_WEB, off));
    wait_until("nothing is shown of the one", || {
        !count(requests, "web", "") && count(requests, "other", "source_workload=\"client\"")
    });
}

#[test]
fn a_span_of_a_waypoint_is_of_the_service_that_is_aimed_at_between_its_caller_and_who_answered() {
    let Some((mesh, _node, [client, _, gate])) = started_with(SECOND_SERVICE) else {
        return;
    };
    let inside = &client.inside;
    is_up(inside, &gate);
    const OTLP: u16 = 4317;
    let listener = listen(&mesh.world, (WORLD, OTLP));
    let receiver = Receiver::start(listener, Manner::Takes);
    let config = mesh_config(&format!(
        "extensionProviders:\n- name: otel\n  opentelemetry: {{service: shop/otel.example, port: {OTLP}}}\n"
    ));
    let entry = format!(
        "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: otel, namespace: shop}}\n\
         spec: {{hosts: [otel.example], location: MESH_EXTERNAL, resolution: STATIC, ports: [{{number: {OTLP}, name: grpc, protocol: GRPC}}], \
         endpoints: [{{address: {WORLD}}}]}}\n"
    );
    let tracing = "  tracing:\n  - providers: [{name: otel}]\n    match: {mode: SERVER}\n    randomSamplingPercentage: 100\n    \
         customTags: {shelf: {literal: {value: one}}}\n";
    let web = telemetry("web", AT_WEB, tracing);
    mesh.write("spans.yaml", &(config + &entry + &web));
    wait_until("a trace is begun", || {
        seen(inside, WEB, "").contains("traceparent: ")
    });
    let context = format!("traceparent: 00-{TRACE}-{CALLER}-01\r\n");
    let told = seen(inside, WEB, &context);
    let spans = receiver.spans(&hex(TRACE), 1);
    let [(service, span)] = &spans[..] else {
        panic!("{spans:?}");
    };
    assert_eq!(service, "gate.shop");
    assert_eq!(span.kind, i32::from(SpanKind::Server));
    assert_eq!(span.parent_span_id, hex(CALLER));
    let own: String = span.span_id.iter().map(|b| format!("{b:02x}")).collect();
    let parent = header(&told, "traceparent").expect("a context");
    assert_eq!(parent, format!("00-{TRACE}-{own}-01"));
    for (key, value) in [
        ("http.status_code", "200"),
        ("istio.source_workload", "client"),
        ("istio.destination_workload", "first"),
        ("istio.canonical_service", "gate"),
        ("shelf", "one"),
    ] {
        assert_eq!(tag(&span.attributes, key), value, "{key}");
    }
    assert_eq!(span.name, "web.shop.svc.cluster.local:80/*");
    // No telemetry aims at the other service, whose headers pass as they came.
    let told = seen(inside, OTHER, "traceparent: nonsense\r\n");
    assert_eq!(header(&told, "traceparent"), Some("nonsense"));
}

/// The document of a year.
fn created(year: u16, text: &str) -> String {
    let at = format!("namespace: shop, creationTimestamp: \"{year}-01-01T00:00:00Z\"}}");
    text.replace("namespace: shop}", &at)
}

/// Two that aim at the service and say something of one metric; the older one of logs and of another metric, too.
fn younger_and_older() -> String {
    let shelf = |shelf: &str| {
        format!(
            "    - match: {{metric: REQUEST_COUNT}}\n      tagOverrides: {{shelf: {{value: \"'{shelf}'\"}}}}\n"
        )
    };
    let metrics = |overrides: &str| format!("  metrics:\n  - overrides:\n{overrides}");
    let quiet = "    - match: {metric: REQUEST_SIZE}\n      disabled: true\n";
    let young = telemetry("young", AT_WEB, &metrics(&shelf("young")));
    let said = LOGGED.to_owned() + &metrics(&(shelf("old") + quiet));
    let old = telemetry("old", AT_WEB, &said);
    // Written the younger one first.
    created(2021, &young) + &created(2020, &old)
}

#[test]
fn several_that_aim_at_one_service_hold_together_and_the_youngest_has_the_last_word() {
    let Some((mesh, _node, [client, _, gate])) = started_with(SECOND_SERVICE) else {
        return;
    };
    let inside = &client.inside;
    is_up(inside, &gate);
    let folder = mesh.folder.path();
    let (server, client) = (folder.join("server.log"), folder.join("client.log"));
    let log = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    mesh.write(
        "both.yaml",
        &(logs(&server, &client) + &younger_and_older()),
    );
    let count = |name: &str, service: &str, label: &str| {
        let of = format!("destination_service_name=\"{service}\"");
        series(&page(&gate), name, &[&of, label]).is_some()
    };
    wait_until("what both say of one thing is said by the younger", || {
        status(inside, WEB, "/both", "");
        count("istio_requests_total", "web", "shelf=\"young\"")
    });
    assert!(!count("istio_requests_total", "web", "shelf=\"old\""));
    assert!(
        !count("istio_request_bytes_count", "web", ""),
        "what only the older says"
    );
    assert!(count("istio_request_bytes_count", "other", ""));
    // Earlier counts take the new shape as well, so the metrics may show the change before the log
    // does.
    wait_until("and its log", || {
        status(inside, WEB, "/both", "");
        log(&server).contains("/both 200 ")
    });
    // A younger one that names other providers of logs has the earlier ones out of scope, on its side.
    let names = |provider: &str, mode: &str| {
        let log = format!(
            "  accessLogging:\n  - providers: [{{name: {provider}}}]\n    match: {{mode: {mode}}}\n"
        );
        created(2022, &telemetry("youngest", AT_WEB, &log))
    };
    mesh.write("youngest.yaml", &names("client", "SERVER"));
    wait_until("the other file has it", || {
        status(inside, WEB, "/moved", "");
        log(&client).contains("/moved 200 ")
    });
    let mut asked = 0;
    wait_until("and the first one has it no more", || {
        asked += 1;
        let line = format!("/late-{asked} 200 ");
        status(inside, WEB, &format!("/late-{asked}"), "");
        wait_until("it is told", || {
            log(&client).contains(&line) || log(&server).contains(&line)
        });
        !log(&server).contains(&line)
    });
    mesh.write("youngest.yaml", &names("client", "CLIENT"));
    wait_until(
        "what is said of clients leaves a waypoint as it was",
        || {
            status(inside, WEB, "/back", "");
            log(&server).contains("/back 200 ")
        },
    );
}
