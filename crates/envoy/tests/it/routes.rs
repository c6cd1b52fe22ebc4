//! VirtualServices as Envoy's routes: names, order and matchers, and clusters of the parts of services.

use serde_json::{Value, json};
use voile_envoy::{Capture, Configuration, WrittenKeys, translate};
use voile_model::{Namespace, SourceFile, WorkloadKey};

/// Two services of which one has parts, and a client with a listener for port 80 of both.
const MESH: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client, sidecar.istio.io/inject: "true"}}
spec: {containers: [{name: app}]}
status: {phase: Running, podIP: 127.9.0.1}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: client, namespace: shop}
spec: {egress: [{port: {number: 80, protocol: HTTP, name: http}, bind: 127.9.0.100, captureMode: NONE, hosts: ["*/*"]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: admin, namespace: shop}
spec: {selector: {app: admin}, ports: [{name: http, port: 81, targetPort: 8080}, {name: tcp, port: 82}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web, version: v1}}
spec: {containers: [{name: app}]}
status: {phase: Running, podIP: 127.9.0.11}
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, namespace: shop, labels: {app: web, version: v2, sidecar.istio.io/inject: "true"}}
spec: {serviceAccountName: two, containers: [{name: app}]}
status: {phase: Running, podIP: 127.9.0.12}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}, {name: v9, labels: {version: v9}}]}
"#;

fn made(http: &str) -> Configuration {
    let routed = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{hosts: [web], http: {http}}}\n"
    );
    let files = [("mesh.yaml", MESH), ("routes.yaml", &routed)];
    let files = files.map(|(name, text)| SourceFile::new(name, text.to_owned()));
    let (mesh, diagnostics) = voile_model::check(&files, None);
    let error = diagnostics.iter().find(|one| one.is_error());
    assert!(error.is_none(), "{error:?}");
    let key = WorkloadKey::new(Namespace::new("shop").expect("a name"), "client");
    let made = translate(&mesh, &mesh.workloads[&key], Capture::None, &WrittenKeys);
    assert!(made.limits.is_empty(), "{:?}", made.limits);
    made
}

/// The routes of `web` for HTTP/1.1.
fn routes(http: &str) -> Vec<Value> {
    let made = made(http);
    let configuration = &made.routes["outbound_127.9.0.100_80"];
    let mut hosts = configuration["virtual_hosts"]
        .as_array()
        .expect("hosts")
        .iter();
    let host = hosts.find(|host| host["name"] == "web.shop.svc.cluster.local:80");
    host.expect("the host")["routes"]
        .as_array()
        .expect("routes")
        .clone()
}

const TO_WEB: &str = "route: [{destination: {host: web}}]";

#[test]
fn what_is_asked_of_a_request_is_asked_of_it_at_envoy() {
    let header = |name: &str, how: &str, value: Value| json!({ "name": name, how: value });
    let exact = |text: &str| json!({ "exact": text });
    let rows = [
        ("uri: {exact: /a}", json!({ "path": "/a" })),
        ("uri: {prefix: /a}", json!({ "prefix": "/a" })),
        (
            "uri: {prefix: /A}, ignoreUriCase: true",
            json!({ "prefix": "/A", "case_sensitive": false }),
        ),
        (
            "method: {exact: GET}",
            json!({ "prefix": "/", "headers": [header(":method", "string_match", exact("GET"))] }),
        ),
        (
            "authority: {prefix: web}",
            json!({ "prefix": "/", "headers": [header(":authority", "string_match", json!({ "prefix": "web" }))] }),
        ),
        (
            "scheme: {exact: http}",
            json!({ "prefix": "/", "headers": [header(":scheme", "string_match", exact("http"))] }),
        ),
        (
            "headers: {X-One: {}}",
            json!({ "prefix": "/", "headers": [header("x-one", "present_match", json!(true))] }),
        ),
        (
            "withoutHeaders: {x: {exact: \"1\"}}",
            json!({ "prefix": "/", "headers": [
                { "name": "x", "string_match": { "exact": "1" }, "invert_match": true, "treat_missing_header_as_empty": true },
            ] }),
        ),
        (
            "withoutHeaders: {x: {}}",
            json!({ "prefix": "/", "headers": [{ "name": "x", "present_match": true, "invert_match": true }] }),
        ),
        (
            "queryParams: {q: {exact: \"1\"}, r: {}}",
            json!({ "prefix": "/", "query_parameters": [
                { "name": "q", "string_match": { "exact": "1" } }, { "name": "r", "present_match": true },
            ] }),
        ),
        // What is known beforehand is not asked again.
        (
            "port: 80, sourceNamespace: shop, sourceLabels: {app: client}, gateways: [mesh], uri: {exact: /a}",
            json!({ "path": "/a" }),
        ),
    ];
    for (asked, wanted) in rows {
        let routes = routes(&format!("[{{match: [{{{asked}}}], {TO_WEB}}}]"));
        assert_eq!(routes.len(), 1, "{asked}: {routes:?}");
        assert_eq!(routes[0]["match"], wanted, "{asked}");
    }
}

#[test]
fn what_no_request_of_these_clients_can_be_is_left_out() {
    for asked in [
        "port: 81",
        "sourceNamespace: other",
        "sourceLabels: {app: other}",
    ] {
        let routes = routes(&format!(
            "[{{name: never, match: [{{{asked}}}], {TO_WEB}}}, {{name: always, match: [{{uri: {{exact: /}}}}], {TO_WEB}}}]"
        ));
        let names: Vec<&Value> = routes.iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["always"], "{asked}");
    }
}

#[test]
fn routes_are_called_as_istio_calls_them_and_end_where_everything_is_taken() {
    let routes = routes(&format!(
        "[{{name: r, match: [{{name: m, uri: {{exact: /a}}}}, {{uri: {{exact: /b}}}}], {TO_WEB}}}, \
          {{match: [{{uri: {{prefix: /c}}}}], {TO_WEB}}}, {{name: rest, {TO_WEB}}}, {{name: hidden, match: [{{uri: {{exact: /d}}}}], {TO_WEB}}}]"
    ));
    let names: Vec<&Value> = routes.iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["r.m", "r", "", "rest"]);
    assert_eq!(routes[3]["match"], json!({ "prefix": "/" }));
}

#[test]
fn destinations_are_clusters_by_port_and_part_and_what_is_missing_is_a_cluster_that_is_not_there() {
    let base = "web.shop.svc.cluster.local";
    let rows = [
        ("host: web", format!("outbound|80||{base}")),
        ("host: web, subset: v1", format!("outbound|80|v1|{base}")),
        (
            "host: admin, port: {number: 81}",
            "outbound|81||admin.shop.svc.cluster.local".to_owned(),
        ),
    ];
    for (to, wanted) in rows {
        let made = made(&format!("[{{route: [{{destination: {{{to}}}}}]}}]"));
        let text = made.routes["outbound_127.9.0.100_80"].to_string();
        assert!(
            text.contains(&format!("\"cluster\":\"{wanted}\"")),
            "{to}: {text}"
        );
        assert!(
            made.clusters.contains_key(&wanted),
            "{to}: {:?}",
            made.clusters.keys()
        );
        assert!(
            made.endpoints.contains_key(&wanted),
            "{to}: {:?}",
            made.endpoints.keys()
        );
    }
    for (to, wanted) in [
        ("host: web, subset: v3", format!("outbound|80|v3|{base}")),
        (
            "host: nobody",
            "outbound|80||nobody.shop.svc.cluster.local".to_owned(),
        ),
        (
            "host: admin",
            "outbound|80||admin.shop.svc.cluster.local".to_owned(),
        ),
    ] {
        let made = made(&format!("[{{route: [{{destination: {{{to}}}}}]}}]"));
        let text = made.routes["outbound_127.9.0.100_80"].to_string();
        assert!(
            text.contains(&format!("\"cluster\":\"{wanted}\"")),
            "{to}: {text}"
        );
        assert!(!made.clusters.contains_key(&wanted), "{to}");
    }
}

#[test]
fn a_part_has_the_endpoints_with_its_labels_and_expects_their_identities_only() {
    let made = made(
        "[{route: [{destination: {host: web, subset: v1}, weight: 3}, {destination: {host: web, subset: v2}, weight: 1}, {destination: {host: web, subset: v9}, weight: 1}, {destination: {host: web}}]}]",
    );
    let name = |part: &str| format!("outbound|80|{part}|web.shop.svc.cluster.local");
    for (part, there, missing) in [
        ("v1", "127.9.0.11", "127.9.0.12"),
        ("v2", "127.9.0.12", "127.9.0.11"),
    ] {
        let endpoints = made.endpoints[&name(part)].to_string();
        assert!(
            endpoints.contains(there) && !endpoints.contains(missing),
            "{endpoints}"
        );
        assert_eq!(
            made.clusters[&name(part)]["eds_cluster_config"]["service_name"],
            json!(name(part))
        );
    }
    assert_eq!(made.endpoints[&name("v9")]["endpoints"], json!([]));
    let mutual = |part: &str| made.clusters[&name(part)].to_string();
    assert!(!mutual("v1").contains("spiffe://"), "{}", mutual("v1"));
    assert!(mutual("v2").contains("ns/shop/sa/two"), "{}", mutual("v2"));
    assert!(
        mutual("v2").contains("outbound_.80_.v2_.web.shop.svc.cluster.local"),
        "{}",
        mutual("v2")
    );
    let route = &made.routes["outbound_127.9.0.100_80"].to_string();
    // Of several, one without a weight takes nothing.
    let shares = json!({ "clusters": [
        { "name": name("v1"), "weight": 3 }, { "name": name("v2"), "weight": 1 }, { "name": name("v9"), "weight": 1 },
    ] });
    assert!(route.contains(&shares.to_string()), "{route}");
}

#[test]
fn retries_are_those_of_the_route_or_else_the_meshs() {
    let of = |retries: &str| {
        let routes = routes(&format!("[{{{retries}{TO_WEB}}}]"));
        routes[0]["route"]["retry_policy"].clone()
    };
    assert_eq!(of("")["num_retries"], 2);
    assert_eq!(of("retries: {attempts: 0}, "), Value::Null);
    let said = of("retries: {attempts: 3, retryOn: \"5xx,503\", backoff: 50ms}, ");
    assert_eq!(
        (&said["num_retries"], &said["retry_on"]),
        (&json!(3), &json!("5xx,retriable-status-codes"))
    );
    assert_eq!(
        (
            &said["retriable_status_codes"],
            &said["retry_back_off"]["base_interval"]
        ),
        (&json!([503]), &json!("0.050s"))
    );
}
