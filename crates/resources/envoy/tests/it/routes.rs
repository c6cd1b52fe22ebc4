//! VirtualServices as Envoy's routes: names, order and matchers, and clusters of the parts of services.

use serde_json::{Value, json};
use voile_envoy::{Configuration, InterceptMode, WrittenKeys, translate};
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
kind: Service
metadata: {name: raw, namespace: shop}
spec: {selector: {app: admin}, ports: [{name: raw, port: 83}]}
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

/// Configuration of the client's Envoy if `web` has these routes, with these further resources.
fn with(http: &str, more: &str) -> Configuration {
    let routed = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{hosts: [web], http: {http}}}\n{more}"
    );
    let files = [("mesh.yaml", MESH), ("routes.yaml", &routed)];
    let files = files.map(|(name, text)| SourceFile::new(name, text.to_owned()));
    let (mesh, diagnostics) = voile_model::check(&files, None);
    let error = diagnostics.iter().find(|one| one.is_error());
    assert!(error.is_none(), "{error:?}");
    let key = WorkloadKey::new(Namespace::new("shop").expect("a name"), "client");
    translate(
        &mesh,
        &mesh.workloads[&key],
        InterceptMode::None,
        &WrittenKeys,
    )
}

fn checked(http: &str) -> Configuration {
    with(http, "")
}

fn made(http: &str) -> Configuration {
    let made = checked(http);
    assert!(made.limits.is_empty(), "{:?}", made.limits);
    made
}

/// The routes of `web` for HTTP/1.1.
fn routes(http: &str) -> Vec<Value> {
    routes_of(&made(http))
}

fn routes_of(made: &Configuration) -> Vec<Value> {
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
        // Conditions known beforehand are not in the match.
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
fn what_is_behind_another_networks_gateway_is_nobodys_endpoint() {
    let entry = "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: far, namespace: shop}\nspec: {address: \
                 127.9.0.13, network: east, labels: {app: web}}\n";
    let named = "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: far, namespace: shop}\nspec:\n  hosts: \
                 [far.test]\n  ports: [{number: 80, name: http}]\n  resolution: DNS\n  endpoints: [{address: a.test}, {address: \
                 b.test, network: east}]\n";
    let gateway = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata:\n  name: east\n  namespace: edge\n  labels: \
                   {topology.istio.io/network: east}\n  annotations: {gateway.istio.io/service-account: gate}\nspec:\n  \
                   gatewayClassName: istio-remote\n  addresses: [{value: 192.0.2.9}]\n  listeners: [{name: mesh, port: 15008, \
                   protocol: HBONE}]\n";
    for (more, there) in [("", true), (gateway, false)] {
        let made = with(
            "[{route: [{destination: {host: web}}]}]",
            &[entry, named, more].concat(),
        );
        let web = made.endpoints["outbound|80||web.shop.svc.cluster.local"].to_string();
        assert!(web.contains("127.9.0.11"), "{web}");
        assert_eq!(web.contains("127.9.0.13"), there, "{web}");
        let named = made.clusters.get("outbound|80||far.test~http");
        let named = named.map(ToString::to_string).unwrap_or_default();
        assert!(
            named.contains("a.test"),
            "{named}, {:?}",
            made.clusters.keys()
        );
        assert_eq!(named.contains("b.test"), there, "{named}");
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

/// Envoy's route of a route with these settings, without its name and match.
fn route(said: &str) -> Value {
    let mut routes = routes(&format!("[{{match: [{{uri: {{prefix: /a}}}}], {said}}}]"));
    assert_eq!(routes.len(), 1, "{said}: {routes:?}");
    let mut route = routes.remove(0);
    let fields = route.as_object_mut().expect("an object");
    fields.remove("name");
    fields.remove("match");
    route
}

/// The same, that goes on, without what every one says.
fn action(said: &str) -> Value {
    let mut action = route(&format!("{TO_WEB}, {said}"))["route"].take();
    let fields = action.as_object_mut().expect("an object");
    fields.remove("retry_policy");
    fields.remove("timeout");
    fields.remove("cluster");
    action
}

#[test]
fn answers_are_envoys_own() {
    let rows = [
        (
            "directResponse: {status: 418, body: {string: tea}}",
            json!({ "direct_response": { "status": 418, "body": { "inline_string": "tea" } } }),
        ),
        (
            "directResponse: {status: 200, body: {bytes: /wA=}}",
            json!({ "direct_response": { "status": 200, "body": { "inline_bytes": "/wA=" } } }),
        ),
        (
            "directResponse: {status: 204}",
            json!({ "direct_response": { "status": 204 } }),
        ),
        (
            "redirect: {uri: /b, redirectCode: 308}",
            json!({ "redirect": { "path_redirect": "/b", "response_code": "PERMANENT_REDIRECT" } }),
        ),
        (
            "redirect: {prefixRewrite: /b, authority: \"other:99\", scheme: https}",
            json!({ "redirect": {
                "prefix_rewrite": "/b", "host_redirect": "other:99", "scheme_redirect": "https", "response_code": "MOVED_PERMANENTLY",
            } }),
        ),
        // One port is named, and none that goes without saying.
        (
            "redirect: {authority: \"other:99\", port: 8443, redirectCode: 302}",
            json!({ "redirect": { "host_redirect": "other", "port_redirect": 8443, "response_code": "FOUND" } }),
        ),
        (
            "redirect: {authority: other, scheme: https, port: 443, redirectCode: 303}",
            json!({ "redirect": { "host_redirect": "other", "scheme_redirect": "https", "response_code": "SEE_OTHER" } }),
        ),
        (
            "redirect: {uri: /b, derivePort: FROM_REQUEST_PORT, redirectCode: 307}",
            json!({ "redirect": { "path_redirect": "/b", "port_redirect": 80, "response_code": "TEMPORARY_REDIRECT" } }),
        ),
    ];
    for (said, wanted) in rows {
        assert_eq!(route(said), wanted, "{said}");
    }
}

#[test]
fn what_goes_on_is_what_is_said() {
    let regex = |pattern: &str, becomes: &str| json!({ "regex_rewrite": { "pattern": { "regex": pattern }, "substitution": becomes } });
    let share = |millionths: u32| json!({ "default_value": { "numerator": millionths, "denominator": "MILLION" } });
    let (half, all) = (share(500_000), share(1_000_000));
    let cluster = "outbound|80|v1|web.shop.svc.cluster.local";
    let rows = [
        (
            "rewrite: {uri: /b, authority: other}",
            json!({ "prefix_rewrite": "/b", "host_rewrite_literal": "other" }),
        ),
        (
            r"rewrite: {uriRegexRewrite: {match: '/a/(.)', rewrite: '/\1'}}",
            regex("/a/(.)", r"/\1"),
        ),
        (
            "headers: {request: {set: {Host: by-headers}}}",
            json!({ "host_rewrite_literal": "by-headers" }),
        ),
        (
            "rewrite: {authority: by-rewrite}, headers: {request: {set: {Host: by-headers}}}",
            json!({ "host_rewrite_literal": "by-rewrite" }),
        ),
        (
            "mirror: {host: web, subset: v1}, mirrorPercentage: {value: 50}",
            json!({ "request_mirror_policies": [{ "cluster": cluster, "runtime_fraction": half }] }),
        ),
        (
            "mirrors: [{destination: {host: web, subset: v1}, percentage: {value: 50}}, {destination: {host: absent}}]",
            json!({ "request_mirror_policies": [
                { "cluster": cluster, "runtime_fraction": half },
                { "cluster": "outbound|80||absent.shop.svc.cluster.local", "runtime_fraction": all },
            ] }),
        ),
    ];
    for (said, wanted) in rows {
        assert_eq!(action(said), wanted, "{said}");
    }
    let made = made(&format!(
        "[{{{TO_WEB}, mirror: {{host: web, subset: v1}}}}]"
    ));
    assert!(
        made.clusters.contains_key(cluster),
        "who only gets copies is known, too"
    );
}

#[test]
fn edits_of_headers_stay_with_their_way_and_signs_stay_signs() {
    let option = |name: &str, value: &str, action: &str| json!({ "header": { "key": name, "value": value }, "append_action": action, "keep_empty_value": true });
    let (set, add) = ("OVERWRITE_IF_EXISTS_OR_ADD", "APPEND_IF_EXISTS_OR_ADD");
    let made = route(
        "route: [{destination: {host: web, subset: v1}, weight: 1, headers: {request: {set: {a: \"1\", Host: first}}}}, \
         {destination: {host: web, subset: v2}, weight: 2, headers: {response: {add: {b: \"50%%\"}, remove: [c]}}}], \
         headers: {request: {remove: [d], add: {e: \"\"}}, response: {set: {f: g}}}",
    );
    assert_eq!(
        made["request_headers_to_add"],
        json!([option("e", "", add)])
    );
    assert_eq!(made["request_headers_to_remove"], json!(["d"]));
    assert_eq!(
        made["response_headers_to_add"],
        json!([option("f", "g", set)])
    );
    let clusters = made["route"]["weighted_clusters"]["clusters"].clone();
    let name = |part: &str| format!("outbound|80|{part}|web.shop.svc.cluster.local");
    let wanted = json!([
        { "name": name("v1"), "weight": 1, "request_headers_to_add": [option("a", "1", set)], "host_rewrite_literal": "first" },
        { "name": name("v2"), "weight": 2, "response_headers_to_add": [option("b", "50%%", add)], "response_headers_to_remove": ["c"] },
    ]);
    assert_eq!(clusters, wanted);
    // One alone keeps its own edits, too.
    let one = route("route: [{destination: {host: web}, headers: {request: {remove: [x]}}}]");
    let clusters = &one["route"]["weighted_clusters"]["clusters"];
    assert_eq!(
        clusters[0]["request_headers_to_remove"],
        json!(["x"]),
        "{one}"
    );
}

#[test]
fn faults_and_cors_are_settings_of_the_filters_that_stand_before_the_router() {
    let made = route(&format!(
        "{TO_WEB}, fault: {{delay: {{fixedDelay: 2s, percentage: {{value: 0.1}}}}, abort: {{grpcStatus: UNAVAILABLE, percentage: {{value: 100}}}}}}, \
         corsPolicy: {{allowOrigins: [{{exact: \"https://a\"}}, {{prefix: \"https://b\"}}, {{regex: \"https://[cd]\"}}], allowMethods: [GET, PUT], \
         allowHeaders: [x], exposeHeaders: [z], maxAge: 1m, allowCredentials: true, unmatchedPreflights: IGNORE}}"
    ));
    let settings = &made["typed_per_filter_config"];
    assert_eq!(
        settings["envoy.filters.http.fault"],
        json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
            "delay": { "fixed_delay": "2s", "percentage": { "numerator": 1_000, "denominator": "MILLION" } },
            "abort": { "grpc_status": 14, "percentage": { "numerator": 1_000_000, "denominator": "MILLION" } },
        })
    );
    assert_eq!(
        settings["envoy.filters.http.cors"],
        json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy",
            "allow_origin_string_match": [
                { "exact": "https://a" }, { "prefix": "https://b" }, { "safe_regex": { "regex": "https://[cd]" } },
            ],
            "allow_methods": "GET,PUT", "allow_headers": "x", "expose_headers": "z", "max_age": "60",
            "allow_credentials": true, "forward_not_matching_preflights": false,
        })
    );
    // Envoy takes no delay of nothing.
    let none = route(&format!(
        "{TO_WEB}, fault: {{delay: {{fixedDelay: 0s, percentage: {{value: 100}}}}}}"
    ));
    assert_eq!(none["typed_per_filter_config"], Value::Null, "{none}");
    let listener =
        self::made("[{route: [{destination: {host: web}}]}]").listeners["outbound_127.9.0.100_80"]
            .to_string();
    let place = |what: &str| {
        listener
            .find(&format!("\"name\":\"envoy.filters.http.{what}\""))
            .unwrap_or_else(|| panic!("no {what} filter: {listener}"))
    };
    assert!(place("fault") < place("cors") && place("cors") < place("router"));
}

#[test]
fn what_envoy_would_do_otherwise_is_refused_by_name_and_by_route() {
    for (said, why) in [
        ("rewrite: {uri: \"\"}", "does not begin with `/`"),
        ("rewrite: {uri: \"/b?c=d\"}", "that contains a query"),
        (
            "corsPolicy: {allowOrigins: [{prefix: \"*\"}]}",
            "treats as any origin",
        ),
        (
            "corsPolicy: {allowOrigins: [{regex: \".{1,3}\"}]}",
            "treats as any origin",
        ),
    ] {
        let made = checked(&format!(
            "[{{name: bad, match: [{{uri: {{prefix: /a}}}}], {TO_WEB}, {said}}}, {{name: rest, {TO_WEB}}}]"
        ));
        let limits: Vec<String> = made.limits.iter().map(ToString::to_string).collect();
        assert!(
            limits.len() == 1 && limits[0].contains(why),
            "{said}: {limits:?}"
        );
        assert!(limits[0].starts_with("virtual-service: VirtualService shop/web, routes.yaml:"));
        let routes = routes_of(&made);
        assert_eq!(routes[0]["direct_response"], json!({ "status": 503 }));
        assert!(
            routes[1]["route"].is_object(),
            "the others stay: {routes:?}"
        );
    }
}

#[test]
fn delegates_come_merged_and_those_that_are_not_there_lead_nowhere() {
    let handed = "[{name: root, match: [{uri: {prefix: /a}}], delegate: {name: part}}, {name: lost, match: [{uri: {prefix: /l}}], delegate: {name: nobody}}]";
    let part = format!(
        "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: part, namespace: shop}}\n\
         spec: {{http: [{{name: own, match: [{{uri: {{exact: /a/b}}}}], {TO_WEB}}}]}}\n"
    );
    let made = with(handed, &part);
    let routes = routes_of(&made);
    assert_eq!(routes[0]["name"], "root-own");
    assert_eq!(routes[0]["match"], json!({ "path": "/a/b" }));
    assert_eq!(
        routes[1]["direct_response"],
        json!({ "status": 503 }),
        "{routes:?}"
    );
    assert!(
        made.limits.is_empty(),
        "as at our own proxies: {:?}",
        made.limits
    );
}

#[test]
fn cors_of_what_a_route_answers_is_a_limit() {
    let cors = "corsPolicy: {allowOrigins: [{exact: \"https://a\"}]}";
    let made = checked(&format!("[{{directResponse: {{status: 200}}, {cors}}}]"));
    let limits: Vec<String> = made.limits.iter().map(ToString::to_string).collect();
    assert!(
        limits.len() == 1 && limits[0].starts_with("cors-of-answer: VirtualService shop/web"),
        "{limits:?}"
    );
    self::made(&format!("[{{{TO_WEB}, {cors}}}]"));
}

#[test]
fn routes_to_a_port_of_no_declared_protocol_keep_the_version_in_which_requests_came() {
    let listener = "outbound_127.9.0.100_80";
    let usual = made(&format!("[{{{TO_WEB}}}]"));
    let chains = |made: &Configuration| made.listeners[listener]["filter_chains"].clone();
    assert_eq!(chains(&usual).as_array().map(Vec::len), Some(1));
    assert_eq!(usual.listeners[listener]["listener_filters"], Value::Null);
    for http in [
        "[{route: [{destination: {host: raw}}]}]",
        "[{route: [{destination: {host: web}}], mirrors: [{destination: {host: raw}}]}]",
    ] {
        let made = made(http);
        let chains = chains(&made);
        let seen = |number: usize| chains[number]["filter_chain_match"].clone();
        // Nothing but HTTP comes here: who is slow to say which is no reason to close.
        assert_eq!(
            [seen(0), seen(1)],
            [Value::Null, json!({ "application_protocols": ["h2c"] })]
        );
        assert_eq!(
            made.listeners[listener]["listener_filters_timeout"],
            Value::Null
        );
        for version in ["~http", "~h2"] {
            let cluster = format!("outbound|83||raw.shop.svc.cluster.local{version}");
            let routes = made.routes[&format!("{listener}{version}")].to_string();
            assert!(
                routes.contains(&format!("\"{cluster}\"")),
                "{http}: {routes}"
            );
            assert!(made.clusters.contains_key(&cluster), "{http}");
        }
    }
}
