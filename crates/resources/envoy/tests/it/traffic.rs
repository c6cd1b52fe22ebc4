//! `trafficPolicy` of DestinationRules as Envoy's clusters, routes and filters of bytes: each field, or a limit by name.

use serde_json::{Value, json};
use voile_envoy::{Configuration, InterceptMode, WrittenKeys, translate};
use voile_model::{Namespace, SourceFile, WorkloadKey};

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
spec:
  egress:
  - {port: {number: 80, protocol: HTTP, name: http}, bind: 127.9.0.100, captureMode: NONE, hosts: ["*/*"]}
  - {port: {number: 90, protocol: TCP, name: tcp}, bind: 127.9.0.100, captureMode: NONE, hosts: ["*/*"]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 90, targetPort: 9090}]}
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
"#;

const WEB: &str = "outbound|80||web.shop.svc.cluster.local";
const BYTES: &str = "outbound|90||web.shop.svc.cluster.local";

/// With a DestinationRule that says this, and these resources.
fn with(spec: &str, more: &str) -> Configuration {
    annotated("", spec, more)
}

/// The same, and its annotations.
fn annotated(annotations: &str, spec: &str, more: &str) -> Configuration {
    let rule = format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
         metadata: {{name: web, namespace: shop, annotations: {{{annotations}}}}}\nspec: {{host: web, {spec}}}\n{more}"
    );
    translated(MESH, &rule)
}

/// Configuration of the client's sidecar.
fn translated(mesh: &str, rule: &str) -> Configuration {
    let files = [("mesh.yaml", mesh), ("rules.yaml", rule)];
    let files = files.map(|(name, text)| SourceFile::new(name, text.to_owned()));
    let (mesh, diagnostics) = voile_model::check(&files, None);
    let error = diagnostics.iter().find(|one| one.is_error());
    assert!(error.is_none(), "{rule}: {error:?}");
    let key = WorkloadKey::new(Namespace::new("shop").expect("a name"), "client");
    let made = translate(
        &mesh,
        &mesh.workloads[&key],
        InterceptMode::None,
        &WrittenKeys,
    );
    for (name, cluster) in &made.clusters {
        let mut cluster = cluster.clone();
        cluster["@type"] = json!("type.googleapis.com/envoy.config.cluster.v3.Cluster");
        if let Err(why) = voile_proto::envoy::encode(&cluster) {
            panic!("{name} cannot be sent: {why}");
        }
    }
    made
}

/// The same, of which Envoy can do everything.
fn whole(policy: &str) -> Configuration {
    let made = with(&format!("trafficPolicy: {policy}"), "");
    assert!(made.limits.is_empty(), "{policy}: {:?}", made.limits);
    made
}

/// Fields of a cluster.
fn of(cluster: &Value, fields: &[&str]) -> Value {
    let all = fields.iter().map(|field| cluster[*field].clone());
    Value::Array(all.collect())
}

#[test]
fn balancing_is_envoys_by_name() {
    let rows = [
        ("{}", json!(["LEAST_REQUEST", null])),
        (
            "{loadBalancer: {simple: LEAST_REQUEST}}",
            json!(["LEAST_REQUEST", null]),
        ),
        (
            "{loadBalancer: {simple: ROUND_ROBIN}}",
            json!(["ROUND_ROBIN", null]),
        ),
        ("{loadBalancer: {simple: RANDOM}}", json!(["RANDOM", null])),
    ];
    for (said, wanted) in rows {
        let cluster = &whole(said).clusters[WEB];
        assert_eq!(
            of(cluster, &["lb_policy", "round_robin_lb_config"]),
            wanted,
            "{said}"
        );
    }
    let warm = whole(
        "{loadBalancer: {simple: ROUND_ROBIN, warmup: {duration: 30s, minimumPercent: 20, aggression: 1.5}}}",
    );
    let slow = &warm.clusters[WEB]["round_robin_lb_config"]["slow_start_config"];
    assert_eq!(slow["slow_start_window"], "30s");
    assert_eq!(slow["min_weight_percent"]["value"], 20);
    assert_eq!(slow["aggression"]["default_value"], 1.5);
    let warm = whole("{loadBalancer: {warmupDurationSecs: 5s}}");
    let slow = &warm.clusters[WEB]["least_request_lb_config"]["slow_start_config"];
    assert_eq!(slow["slow_start_window"], "5s", "{warm:?}");
    let random = with(
        "trafficPolicy: {loadBalancer: {simple: RANDOM, warmup: {duration: 30s}}}",
        "",
    );
    let limits: Vec<String> = random.limits.iter().map(ToString::to_string).collect();
    assert!(
        limits[0].starts_with("warmup: Service shop/web"),
        "{limits:?}"
    );
}

#[test]
fn requests_that_belong_together_are_told_by_their_route() {
    let rows = [
        (
            "httpHeaderName: X-User",
            json!([{ "header": { "header_name": "x-user" } }]),
        ),
        (
            "httpQueryParameterName: q",
            json!([{ "query_parameter": { "name": "q" } }]),
        ),
        (
            "useSourceIp: true",
            json!([{ "connection_properties": { "source_ip": true } }]),
        ),
        (
            "httpCookie: {name: c, path: /p, ttl: 60s}",
            json!([{ "cookie": { "name": "c", "path": "/p", "ttl": "60s" } }]),
        ),
        (
            "httpCookie: {name: c}",
            json!([{ "cookie": { "name": "c" } }]),
        ),
    ];
    for (said, wanted) in rows {
        let made = whole(&format!(
            "{{loadBalancer: {{consistentHash: {{{said}, ringHash: {{minimumRingSize: 2048}}}}}}}}"
        ));
        let cluster = &made.clusters[WEB];
        assert_eq!(
            of(cluster, &["lb_policy", "ring_hash_lb_config"]),
            json!(["RING_HASH", { "minimum_ring_size": "2048" }])
        );
        let routes = &made.routes["outbound_127.9.0.100_80"].to_string();
        assert!(
            routes.contains(&format!("\"hash_policy\":{wanted}")),
            "{said}: {routes}"
        );
        let bytes = made.listeners["outbound_127.9.0.100_90"].to_string();
        assert_eq!(
            bytes.contains("\"hash_policy\":[{\"source_ip\":{}}]"),
            said.starts_with("useSourceIp"),
            "{said}: {bytes}"
        );
    }
    let maglev =
        whole("{loadBalancer: {consistentHash: {useSourceIp: true, maglev: {tableSize: 65537}}}}");
    assert_eq!(
        of(&maglev.clusters[WEB], &["lb_policy", "maglev_lb_config"]),
        json!(["MAGLEV", { "table_size": "65537" }])
    );
}

#[test]
fn a_route_to_parts_with_different_keys_is_a_limit() {
    let part = |name: &str, header: &str| {
        format!(
            "{{name: {name}, labels: {{version: {name}}}, trafficPolicy: {{loadBalancer: {{consistentHash: {{httpHeaderName: {header}}}}}}}}}"
        )
    };
    let routed = "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n\
         spec: {hosts: [web], http: [{route: [{destination: {host: web, subset: v1}, weight: 1}, {destination: {host: web, subset: v2}, weight: 1}]}]}\n";
    for (other, limits) in [("a", 0), ("b", 1)] {
        let spec = format!("subsets: [{}, {}]", part("v1", "a"), part("v2", other));
        let made = with(&spec, routed);
        let said: Vec<String> = made.limits.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), limits, "{said:?}");
        assert!(
            said.iter()
                .all(|one| one.starts_with("consistent-hash: VirtualService shop/web"))
        );
        let routes = made.routes["outbound_127.9.0.100_80"].to_string();
        assert!(
            routes.contains(r#""hash_policy":[{"header":{"header_name":"a"}}"#),
            "{routes}"
        );
    }
}

#[test]
fn who_answers_badly_is_put_out_and_somebody_is_always_asked() {
    let made = whole(
        "{outlierDetection: {consecutive5xxErrors: 3, consecutiveGatewayErrors: 2, interval: 5s, baseEjectionTime: 7s, maxEjectionPercent: 40, \
          splitExternalLocalOriginErrors: true, consecutiveLocalOriginFailures: 4}}",
    );
    let wanted = json!({
        "consecutive_5xx": 3, "enforcing_consecutive_5xx": 100,
        "consecutive_gateway_failure": 2, "enforcing_consecutive_gateway_failure": 100,
        "split_external_local_origin_errors": true,
        "consecutive_local_origin_failure": 4, "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0, "enforcing_success_rate": 0,
        "interval": "5s", "base_ejection_time": "7s", "max_ejection_percent": 40, "always_eject_one_host": true,
    });
    assert_eq!(made.clusters[WEB]["outlier_detection"], wanted);
    let off = whole("{outlierDetection: {consecutive5xxErrors: 0, minHealthPercent: 30}}");
    assert_eq!(
        off.clusters[WEB]["outlier_detection"]["enforcing_consecutive_5xx"],
        0
    );
    let panic = |policy: &str| {
        whole(policy).clusters[WEB]["common_lb_config"]["healthy_panic_threshold"]["value"].clone()
    };
    assert_eq!(panic("{}"), 0);
    assert_eq!(panic("{outlierDetection: {minHealthPercent: 30}}"), 30);
    assert_eq!(panic("{outlierDetection: {maxEjectionPercent: 50}}"), 1);
    assert_eq!(panic("{outlierDetection: {maxEjectionPercent: 100}}"), 0);
    let none = whole("{}");
    assert_eq!(none.clusters[WEB]["outlier_detection"], Value::Null);
}

#[test]
fn success_rates_are_compared_as_a_rules_annotations_say() {
    let annotations = "voile.dev/success_rate_minimum_hosts: \"3\", voile.dev/success_rate_request_volume: \"20\", \
                       voile.dev/success_rate_stdev_factor: \"1300\", voile.dev/enforcing_success_rate: \"70\"";
    let numbers = [
        "enforcing_success_rate",
        "success_rate_minimum_hosts",
        "success_rate_request_volume",
        "success_rate_stdev_factor",
        "enforcing_local_origin_success_rate",
    ];
    for (annotations, policy, wanted) in [
        (annotations, "{}", json!([70, 3, 20, 1300, null])),
        (
            annotations,
            "{splitExternalLocalOriginErrors: true}",
            json!([70, 3, 20, 1300, 70]),
        ),
        (
            "voile.dev/success_rate_stdev_factor: \"1900\"",
            "{}",
            json!([100, 5, 100, 1900, null]),
        ),
        (
            "",
            "{splitExternalLocalOriginErrors: true}",
            json!([0, null, null, null, 0]),
        ),
    ] {
        let spec = format!("trafficPolicy: {{outlierDetection: {policy}}}");
        let made = annotated(annotations, &spec, "");
        assert!(made.limits.is_empty(), "{:?}", made.limits);
        let detection = &made.clusters[WEB]["outlier_detection"];
        assert_eq!(of(detection, &numbers), wanted, "{annotations} {policy}");
    }
}

#[test]
fn that_a_service_prefers_who_is_near_is_named_where_no_rule_says_otherwise() {
    let web = "spec: {selector: {app: web}, ";
    let near = MESH.replacen(web, &format!("{web}trafficDistribution: PreferClose, "), 1);
    let never = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: web, namespace: shop}\n\
                 spec: {host: web, trafficPolicy: {loadBalancer: {localityLbSetting: {enabled: false}}}}\n";
    for (mesh, rule, named) in [(MESH, "", 0), (&near, "", 2), (&near, never, 0)] {
        let made = translated(mesh, rule);
        let limits: Vec<String> = made.limits.iter().map(ToString::to_string).collect();
        assert_eq!(limits.len(), named, "{limits:?}");
        assert!(
            limits
                .iter()
                .all(|one| one.starts_with("locality: ") && one.contains("trafficDistribution")),
            "{limits:?}"
        );
    }
}

#[test]
fn what_may_be_under_way_is_what_is_said_and_no_number_of_envoys_own() {
    let thresholds =
        |policy: &str| whole(policy).clusters[WEB]["circuit_breakers"]["thresholds"][0].clone();
    let most = u32::MAX;
    let budget = |percent: f64, least: u32| json!({ "budget_percent": { "value": percent }, "min_retry_concurrency": least });
    assert_eq!(
        thresholds("{}"),
        json!({ "max_connections": most, "max_pending_requests": most, "max_requests": most, "retry_budget": budget(20.0, 3) })
    );
    assert_eq!(
        thresholds(
            "{connectionPool: {tcp: {maxConnections: 3}, http: {http1MaxPendingRequests: 4, http2MaxRequests: 5, maxRetries: 6}}}"
        ),
        json!({ "max_connections": 3, "max_pending_requests": 4, "max_requests": 5, "max_retries": 6 })
    );
    assert_eq!(
        thresholds(
            "{connectionPool: {http: {maxRetries: 6}}, retryBudget: {percent: 12.5, minRetryConcurrency: 7}}"
        )["retry_budget"],
        budget(12.5, 7)
    );
}

#[test]
fn no_cluster_of_a_sidecar_is_left_to_envoys_own_numbers() {
    let files = [SourceFile::new("mesh.yaml", MESH.to_owned())];
    let (mesh, _) = voile_model::check(&files, None);
    for capture in [InterceptMode::None, InterceptMode::Redirect] {
        let key = WorkloadKey::new(Namespace::new("shop").expect("a name"), "web-2");
        let made = translate(&mesh, &mesh.workloads[&key], capture, &WrittenKeys);
        let inbound = made
            .clusters
            .keys()
            .filter(|name| name.starts_with("inbound|"));
        assert!(inbound.count() >= 2, "{:?}", made.clusters.keys());
        for (name, cluster) in &made.clusters {
            if name == "BlackHoleCluster" {
                continue; // nothing comes through
            }
            let thresholds = &cluster["circuit_breakers"]["thresholds"][0];
            for field in ["max_connections", "max_pending_requests", "max_requests"] {
                assert_eq!(thresholds[field], u32::MAX, "{name} {field}");
            }
        }
    }
}

#[test]
fn connections_live_as_long_as_is_said() {
    let made = whole(
        "{connectionPool: {tcp: {connectTimeout: 1500ms, idleTimeout: 9s, maxConnectionDuration: 30s, tcpKeepalive: {probes: 3, time: 10s, interval: 5s}}, \
          http: {maxRequestsPerConnection: 8, idleTimeout: 20s, maxConcurrentStreams: 9}}}",
    );
    let cluster = &made.clusters[WEB];
    assert_eq!(
        of(cluster, &["connect_timeout", "upstream_connection_options"]),
        json!(["1.500s", { "tcp_keepalive": { "keepalive_probes": 3, "keepalive_time": 10, "keepalive_interval": 5 } }])
    );
    let options = cluster["typed_extension_protocol_options"].to_string();
    assert!(
        options.contains(r#""common_http_protocol_options":{"idle_timeout":"20s","max_connection_duration":"30s","max_requests_per_connection":8}"#),
        "{options}"
    );
    let bytes = made.listeners["outbound_127.9.0.100_90"].to_string();
    assert!(bytes.contains(r#""idle_timeout":"9s""#), "{bytes}");
    assert_eq!(made.clusters[BYTES]["connect_timeout"], "1.500s");
    let upgraded =
        whole("{connectionPool: {http: {h2UpgradePolicy: UPGRADE, maxConcurrentStreams: 9}}}");
    let options = upgraded.clusters[WEB]["typed_extension_protocol_options"].to_string();
    assert!(
        options.contains(r#""http2_protocol_options":{"max_concurrent_streams":9}"#),
        "{options}"
    );
}

#[test]
fn tls_is_spoken_as_the_rule_says() {
    let cluster = |policy: &str| {
        let made = whole(policy);
        let endpoints = made.endpoints[WEB].to_string();
        let there = ["127.9.0.11", "127.9.0.12"].map(|address| endpoints.contains(address));
        (made.clusters[WEB].to_string(), there)
    };
    let (usual, there) = cluster("{}");
    assert!(
        usual.contains("sa/two") && usual.contains("raw_buffer"),
        "{usual}"
    );
    assert_eq!(there, [true, true]);
    let (none, there) = cluster("{tls: {mode: DISABLE}}");
    assert!(
        !none.contains("spiffe://") && !none.contains("transport_socket"),
        "{none}"
    );
    assert_eq!(there, [true, true]);
    let (only, there) = cluster("{tls: {mode: ISTIO_MUTUAL}}");
    assert!(
        only.contains("sa/two") && !only.contains("raw_buffer"),
        "{only}"
    );
    assert_eq!(there, [false, true], "who has no sidecar is not called");
    let parts = with(
        "trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}, subsets: [{name: v1, labels: {version: v1}}]",
        "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n\
         spec: {hosts: [web], http: [{route: [{destination: {host: web, subset: v1}}]}]}\n",
    );
    let nobody = parts.clusters["outbound|80|v1|web.shop.svc.cluster.local"].to_string();
    assert!(nobody.contains("spiffe://nobody.invalid"), "{nobody}");
}

#[test]
fn ports_and_parts_have_policies_of_their_own() {
    let made = with(
        "trafficPolicy: {loadBalancer: {simple: RANDOM}, portLevelSettings: [{port: {number: 90}, loadBalancer: {simple: ROUND_ROBIN}}]}, \
         subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {connectionPool: {tcp: {maxConnections: 3}}}}]",
        "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n\
         spec: {hosts: [web], http: [{match: [{uri: {prefix: /a}}], route: [{destination: {host: web, subset: v1}}]}, {route: [{destination: {host: web}}]}]}\n",
    );
    let policy = |name: &str| made.clusters[name]["lb_policy"].clone();
    let part = "outbound|80|v1|web.shop.svc.cluster.local";
    assert_eq!(
        [policy(WEB), policy(BYTES), policy(part)],
        [json!("RANDOM"), json!("ROUND_ROBIN"), json!("RANDOM")]
    );
    let most = |name: &str| {
        made.clusters[name]["circuit_breakers"]["thresholds"][0]["max_connections"].clone()
    };
    assert_eq!([most(WEB), most(part)], [json!(u32::MAX), json!(3)]);
}

/// Settings in a client's Envoy for its cluster's connections and for subsets of the service, by the client's namespace and
/// label.
fn told_to(namespace: &str, app: &str, rules: &str) -> (Option<u64>, bool) {
    let client = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {app}, namespace: {namespace}, labels: {{app: {app}, sidecar.istio.io/inject: \"true\"}}}}\n\
         spec: {{containers: [{{name: app}}]}}\nstatus: {{phase: Running, podIP: 127.9.0.9}}\n---\n{rules}"
    );
    let files = [("mesh.yaml", MESH), ("rules.yaml", &client)];
    let files = files.map(|(name, text)| SourceFile::new(name, text.to_owned()));
    let (mesh, diagnostics) = voile_model::check(&files, None);
    let error = diagnostics.iter().find(|one| one.is_error());
    assert!(error.is_none(), "{error:?}");
    let key = WorkloadKey::new(Namespace::new(namespace).expect("a name"), app);
    let made = translate(
        &mesh,
        &mesh.workloads[&key],
        InterceptMode::Redirect,
        &WrittenKeys,
    );
    let limit = "/circuit_breakers/thresholds/0/max_connections";
    let limit = made.clusters[WEB].pointer(limit).and_then(Value::as_u64);
    let part = "outbound|80|new|web.shop.svc.cluster.local";
    (
        limit.filter(|limit| *limit < 100),
        made.clusters.contains_key(part),
    )
}

#[test]
fn envoys_are_told_by_the_rule_that_their_workload_obeys() {
    let rule = |name: &str, namespace: &str, limit: u32, more: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{host: web.shop.svc.cluster.local, trafficPolicy: {{connectionPool: {{tcp: {{maxConnections: {limit}}}}}}}, {more}}}\n"
        )
    };
    let route = "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n\
                 spec: {hosts: [web], http: [{route: [{destination: {host: web, subset: new}}]}]}\n";
    let rules = [
        route.to_owned(),
        rule("all", "shop", 1, "exportTo: [shop, far]"),
        rule("job", "shop", 2, "workloadSelector: {matchLabels: {app: job}}, subsets: [{name: new, labels: {version: v2}}]"),
        rule("bank", "bank", 3, "subsets: [{name: new, labels: {version: v2}}]"),
    ]
    .concat();
    for (namespace, app, expected) in [
        ("shop", "other", (Some(1), false)),
        ("far", "job", (Some(1), false)),
        ("shop", "job", (Some(2), true)),
        ("bank", "other", (Some(3), true)),
        ("else", "job", (None, false)),
    ] {
        assert_eq!(
            told_to(namespace, app, &rules),
            expected,
            "{namespace} {app}"
        );
    }
}
