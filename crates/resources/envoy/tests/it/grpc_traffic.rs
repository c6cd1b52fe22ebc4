//! `trafficPolicy` of DestinationRules as a gRPC client is told of it: each field is translated, or is a limit by name.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use voile_envoy::LimitName;
use voile_envoy::grpc::{DestinationEndpoints, Discovery, GrpcRoute, cluster, routes, untold};
use voile_model::SourceFile;
use voile_model::mesh::traffic::PortTraffic;
use voile_model::mesh::{RuleClient, TrafficDistribution};

/// Traffic policy of calls by a DestinationRule with this policy.
fn traffic(policy: &str) -> PortTraffic {
    annotated("", policy)
}

/// The same of a rule with annotations.
fn annotated(annotations: &str, policy: &str) -> PortTraffic {
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\nspec: {{ports: [{{name: grpc, port: 80}}]}}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
         metadata: {{name: web, namespace: shop, annotations: {{{annotations}}}}}\n\
         spec: {{host: web, trafficPolicy: {policy}}}\n"
    );
    let (mesh, diagnostics) = voile_model::check(&[SourceFile::new("mesh.yaml", text)], None);
    let error = diagnostics.iter().find(|one| one.is_error());
    assert!(error.is_none(), "{policy}: {error:?}");
    let service = mesh.services.values().next().expect("a service");
    let rule = mesh
        .destination_rule(service, RuleClient::default())
        .expect("a rule");
    rule.traffic(service.ports[0].number, None)
}

/// `loadBalancer` that keeps calls together.
fn hash(how: &str) -> String {
    format!("{{loadBalancer: {{consistentHash: {{{how}}}}}}}")
}

fn made(said: &PortTraffic) -> Value {
    cluster("c", &Discovery::Endpoints, None, said)
}

/// Names of the limits.
fn limits(said: &PortTraffic, crowd: DestinationEndpoints) -> Vec<&'static str> {
    let found = untold("port 80", said, crowd);
    let names: BTreeSet<&str> = found.iter().map(|limit| limit.name.as_str()).collect();
    names.into_iter().collect()
}

#[test]
fn who_takes_a_call_is_said_in_grpcs_words_or_named() {
    let balancers = |cluster: &Value| {
        let nearby = &cluster["load_balancing_policy"]["policies"][0]["typed_extension_config"];
        let picking = &nearby["typed_config"]["endpoint_picking_policy"]["policies"];
        let names = picking.as_array().into_iter().flatten();
        let names = names.map(|one| one["typed_extension_config"]["name"].clone());
        json!([cluster["lb_policy"], names.collect::<Vec<Value>>()])
    };
    let rows: [(String, Value, &[&str]); 11] = [
        ("{}".into(), json!(["ROUND_ROBIN", []]), &[]),
        (
            "{loadBalancer: {simple: ROUND_ROBIN}}".into(),
            json!(["ROUND_ROBIN", []]),
            &[],
        ),
        (
            "{loadBalancer: {simple: LEAST_REQUEST}}".into(),
            json!(["ROUND_ROBIN", ["least_request", "round_robin"]]),
            &["load-balancer"],
        ),
        (
            "{loadBalancer: {simple: RANDOM}}".into(),
            json!(["ROUND_ROBIN", []]),
            &["load-balancer"],
        ),
        (
            "{loadBalancer: {simple: ROUND_ROBIN, warmup: {duration: 30s}}}".into(),
            json!(["ROUND_ROBIN", []]),
            &["warmup"],
        ),
        (hash("httpHeaderName: User"), json!(["RING_HASH", []]), &[]),
        (
            hash("useSourceIp: true"),
            json!(["RING_HASH", []]),
            &["consistent-hash"],
        ),
        (
            hash("httpHeaderName: user, maglev: {}"),
            json!(["RING_HASH", []]),
            &["consistent-hash"],
        ),
        // Nothing that gRPC could place calls by.
        (
            hash("httpQueryParameterName: user"),
            json!(["ROUND_ROBIN", []]),
            &["consistent-hash"],
        ),
        (
            hash("httpHeaderName: grpc-user"),
            json!(["ROUND_ROBIN", []]),
            &["consistent-hash"],
        ),
        (
            hash("httpCookie: {name: user, ttl: 0s}"),
            json!(["ROUND_ROBIN", []]),
            &["consistent-hash"],
        ),
    ];
    for (policy, wanted, named) in rows {
        let said = traffic(&policy);
        assert_eq!(balancers(&made(&said)), wanted, "{policy}");
        assert_eq!(
            limits(&said, DestinationEndpoints::default()),
            named,
            "{policy}"
        );
    }
}

#[test]
fn a_ring_has_as_many_places_as_is_said_up_to_what_grpc_allows() {
    let sized = traffic(&hash(
        "httpHeaderName: user, ringHash: {minimumRingSize: 64}",
    ));
    let size = &made(&sized)["ring_hash_lb_config"]["minimum_ring_size"];
    assert_eq!(size, "64");
    let vast = traffic(&hash(
        "httpHeaderName: user, ringHash: {minimumRingSize: 4097}",
    ));
    assert_eq!(
        limits(&vast, DestinationEndpoints::default()),
        ["consistent-hash"]
    );
}

#[test]
fn so_many_calls_may_be_under_way_as_is_said_and_otherwise_as_many_as_there_are() {
    for (policy, wanted) in [
        ("{}", u32::MAX),
        ("{connectionPool: {http: {http2MaxRequests: 7}}}", 7),
    ] {
        let said = traffic(policy);
        let thresholds = &made(&said)["circuit_breakers"]["thresholds"];
        assert_eq!(*thresholds, json!([{ "max_requests": wanted }]), "{policy}");
        assert!(
            limits(&said, DestinationEndpoints::default()).is_empty(),
            "{policy}"
        );
    }
}

#[test]
fn what_grpc_has_no_word_for_is_named_with_the_fields_that_say_it() {
    let rows = [
        (
            "{outlierDetection: {}}",
            "outlier-detection",
            "outlierDetection",
        ),
        (
            "{retryBudget: {percent: 30}}",
            "retry-budget",
            "retryBudget",
        ),
        (
            "{tls: {mode: ISTIO_MUTUAL, sni: other.example}}",
            "server-name",
            "other.example",
        ),
        (
            "{connectionPool: {tcp: {maxConnections: 1, connectTimeout: 1s, idleTimeout: 1s, tcpKeepalive: {time: 9s}}}}",
            "connection-pool",
            "`tcp.maxConnections`, `tcp.connectTimeout`, `tcp.idleTimeout`, `tcp.tcpKeepalive`",
        ),
        (
            "{connectionPool: {http: {http1MaxPendingRequests: 1, maxRetries: 1, maxRequestsPerConnection: 1, idleTimeout: 1s, maxConcurrentStreams: 1}}}",
            "connection-pool",
            "`http.http1MaxPendingRequests`, `http.maxRetries`, `http.maxRequestsPerConnection`, `http.idleTimeout`, `http.maxConcurrentStreams`",
        ),
    ];
    for (policy, name, why) in rows {
        let said = traffic(policy);
        assert_eq!(
            limits(&said, DestinationEndpoints::default()),
            [name],
            "{policy}"
        );
        let found = untold("port 80", &said, DestinationEndpoints::default());
        let text = found.first().expect("a limit").to_string();
        assert!(text.starts_with(&format!("{name}: port 80: ")), "{text}");
        assert!(text.contains(why), "{text}");
    }
    for spoken in [
        "{tls: {mode: ISTIO_MUTUAL}}",
        "{tls: {mode: DISABLE}}",
        "{connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}",
    ] {
        assert!(
            limits(&traffic(spoken), DestinationEndpoints::default()).is_empty(),
            "{spoken}"
        );
    }
}

#[test]
fn success_rates_that_grpc_does_not_compare_are_named() {
    let said = annotated(
        "voile.dev/success_rate_stdev_factor: \"1300\"",
        "{outlierDetection: {}}",
    );
    let found: Vec<String> = untold("port 80", &said, DestinationEndpoints::default())
        .iter()
        .map(ToString::to_string)
        .collect();
    let [rates, rows] = &*found else {
        panic!("two limits: {found:?}");
    };
    assert!(rows.contains("consecutive errors"), "{rows}");
    assert!(
        rates.starts_with("outlier-detection: port 80: ") && rates.contains("success rates"),
        "{rates}"
    );
}

#[test]
fn whose_weights_and_places_do_not_count_is_named_where_they_would_count() {
    let weighted = DestinationEndpoints {
        is_weighted: true,
        ..DestinationEndpoints::default()
    };
    let placed = DestinationEndpoints {
        is_placed: true,
        ..DestinationEndpoints::default()
    };
    let name = DestinationEndpoints {
        is_name: true,
        ..DestinationEndpoints::default()
    };
    let ring = "{loadBalancer: {consistentHash: {httpHeaderName: user}}}";
    let in_turn = "{loadBalancer: {simple: ROUND_ROBIN}}";
    let ranked = "{outlierDetection: {}}";
    let unranked = "{outlierDetection: {}, loadBalancer: {localityLbSetting: {enabled: false}}}";
    let rows: [(&str, DestinationEndpoints, &[&str]); 8] = [
        ("{}", weighted, &["endpoint-weights"]),
        (in_turn, weighted, &["endpoint-weights"]),
        (ring, weighted, &[]),
        ("{}", placed, &[]),
        (ranked, placed, &["locality", "outlier-detection"]),
        (unranked, placed, &["outlier-detection"]),
        (in_turn, name, &["load-balancer"]),
        ("{}", name, &[]),
    ];
    for (policy, crowd, wanted) in rows {
        assert_eq!(
            limits(&traffic(policy), crowd),
            wanted,
            "{policy} {crowd:?}"
        );
    }
    // A Service's own word needs no endpoint whose place is known: that may be its node.
    let mut near = traffic("{}");
    near.balancer.locality = Some(TrafficDistribution::SameNode.setting());
    assert_eq!(limits(&near, DestinationEndpoints::default()), ["locality"]);
}

#[test]
fn calls_of_a_route_are_kept_together_by_what_grpc_can_tell_them_by() {
    let key = |how: &str| {
        let said = traffic(&hash(how));
        said.balancer.key.expect("a key")
    };
    let route = |keys| GrpcRoute {
        keys,
        ..GrpcRoute::to("c")
    };
    let all = vec![
        key("httpHeaderName: User"),
        key("httpQueryParameterName: q"),
        key("useSourceIp: true"),
    ];
    let only_unknown = vec![key("httpQueryParameterName: q")];
    let made = routes("r", &[route(all), route(only_unknown)]).expect("routes");
    let hashes = |index: usize| &made["virtual_hosts"][0]["routes"][index]["route"]["hash_policy"];
    assert_eq!(
        *hashes(0),
        json!([
            { "header": { "header_name": "user" } },
            { "filter_state": { "key": "io.grpc.channel_id" } },
        ])
    );
    assert_eq!(*hashes(1), Value::Null);
}

#[test]
fn every_limit_is_in_the_reference_by_its_name() {
    let pages = ["envoy", "grpc"].map(|name| {
        let path = format!(
            "{}/../../../docs/reference/{name}.md",
            env!("CARGO_MANIFEST_DIR")
        );
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    });
    let mut names = BTreeSet::new();
    for limit in LimitName::ALL {
        let name = limit.as_str();
        assert!(names.insert(name), "`{name}` is there twice");
        let quoted = format!("`{name}`");
        assert!(pages.iter().any(|page| page.contains(&quoted)), "{quoted}");
    }
}
