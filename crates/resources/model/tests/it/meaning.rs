//! Meaning of a valid folder: names, identities, sidecars, ports, reach.

use std::sync::Arc;
use std::time::Duration;

use voile_model::mesh::traffic::Algorithm;
use voile_model::mesh::{
    MeshService, OutboundPolicy, Probe, ProbeAction, Protocol, RuleClient, WorkloadType,
};
use voile_model::{Hostname, Identity, Mesh, Namespace, Port, SourceFile, WorkloadKey, check};

use crate::{check_text, good, render};

fn shop() -> Mesh {
    good(include_str!("good.yaml"))
}

fn workload(name: &str) -> WorkloadKey {
    format!("shop/{name}").parse().unwrap()
}

fn ports(pairs: &[(u16, u16)]) -> Vec<(Port, Port)> {
    pairs
        .iter()
        .map(|(a, b)| (Port::new(*a).unwrap(), Port::new(*b).unwrap()))
        .collect()
}

/// A rule for host `a` with a subset: (name, namespace, host, subset, what the rule's policy says, what the subset's).
fn rule(
    name: &str,
    place: (&str, &str),
    subset: (&str, &str),
    policy: [Option<&str>; 2],
) -> String {
    let policy = policy.map(|word| {
        let said = |word| format!(", trafficPolicy: {{loadBalancer: {{simple: {word}}}}}");
        word.map_or_else(String::new, said)
    });
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: {}}}\n\
         spec: {{host: '{}', subsets: [{{name: {}, labels: {{version: {}}}{}}}]{}}}\n",
        place.0, place.1, subset.0, subset.1, policy[1], policy[0]
    )
}

#[test]
fn destination_rules_of_one_namespace_for_one_host_are_one_of_which_the_oldest_has_the_word() {
    let (own, wide, root) = (
        ("shop", "a"),
        ("shop", "*.local"),
        ("istio-system", "a.shop.svc.cluster.local"),
    );
    let text = [
        "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {ports: [{port: 80, name: http}]}\n".to_owned(),
        rule("first", own, ("one", "v1"), [None, None]),
        rule("wide", wide, ("wide", "v9"), [Some("RANDOM"), None]),
        rule("second", own, ("two", "v2"), [Some("ROUND_ROBIN"), None]),
        rule("third", own, ("three", "v3"), [Some("RANDOM"), Some("LEAST_REQUEST")]),
        rule("fourth", own, ("two", "v4"), [None, Some("RANDOM")]),
        rule("root", root, ("root", "v9"), [Some("RANDOM"), None]),
    ]
    .concat();
    let (mesh, problems) = check_text(&text);
    let service = mesh.services.values().next().unwrap();
    let rule = mesh
        .destination_rule(service, RuleClient::default())
        .unwrap();
    let subsets: Vec<String> = rule
        .subsets
        .iter()
        .map(|(name, subset)| format!("{name} {:?}", subset.labels.get("version")))
        .collect();
    let all = ["one Some(\"v1\")", "three Some(\"v3\")", "two Some(\"v2\")"];
    assert_eq!(subsets, all);
    for (subset, expected) in [
        (None, Algorithm::RoundRobin),
        (Some("one"), Algorithm::RoundRobin),
        (Some("two"), Algorithm::RoundRobin),
        (Some("three"), Algorithm::LeastRequest),
    ] {
        let said = mesh.traffic_by(service, Some(rule), Port::new(80).unwrap(), subset);
        assert_eq!(said.balancer.algorithm, expected, "{subset:?}");
    }
    // Parts that Istio drops silently.
    assert_eq!(
        render(&problems),
        "mesh.yaml:23:18: error[V0113]: `trafficPolicy` of DestinationRule shop/third is not in force: shop/second in mesh.yaml:18:18 is older and has one for a.shop.svc.cluster.local (field spec.trafficPolicy)\n\
         \x20 help: write `trafficPolicy` in one rule for each host: it applies to all subsets\n\
         mesh.yaml:28:18: error[V0113]: subset `two` of DestinationRule shop/fourth is not in force: shop/second in mesh.yaml:18:18 is older and has one for a.shop.svc.cluster.local (field spec.subsets)\n\
         \x20 help: give one of the two subsets another name, or keep one of them\n"
    );
}

#[test]
fn localities_are_as_the_mesh_says_where_no_rule_says_it() {
    let rule = |name: &str, policy: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{ports: [{{port: 80, name: http}}]}}\n\
             ---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{host: {name}, trafficPolicy: {{{policy}}}}}\n"
        )
    };
    let config = |said: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: \"localityLbSetting: {said}\"}}\n"
        )
    };
    let rules = [
        rule("silent", ""),
        rule("balanced", "loadBalancer: {simple: RANDOM}"),
        rule("ejecting", "outlierDetection: {}"),
        rule(
            "never",
            "loadBalancer: {localityLbSetting: {enabled: false}}, outlierDetection: {}",
        ),
        rule(
            "ours",
            "loadBalancer: {localityLbSetting: {enabled: true}}, outlierDetection: {}",
        ),
    ]
    .concat();
    let ranked = |mesh: &Mesh| {
        let ranks = |service: &&Arc<MeshService>| {
            let rule = mesh.destination_rule(service, RuleClient::default());
            let rule = rule.map(|rule| &**rule);
            let said = mesh.traffic_by(service, rule, Port::new(80).unwrap(), None);
            said.ranks_localities()
        };
        let services = mesh.services.values().filter(ranks);
        let names: Vec<&str> = services.map(|service| &*service.name).collect();
        names.join(" ")
    };
    for (text, expected) in [
        (rules.clone(), "ejecting ours"),
        (config("{enabled: true}") + &rules, "ejecting ours"),
        (config("{enabled: false}") + &rules, "ours"),
        (
            config("{distribute: [{from: eu, to: {us: 100}}]}") + &rules,
            "balanced ejecting ours silent",
        ),
        (
            config("{enabled: false, failover: [{from: eu, to: us}]}") + &rules,
            "ours",
        ),
    ] {
        assert_eq!(ranked(&good(&text)), expected, "{text}");
    }
}

#[test]
fn the_mesh_configuration_is_read() {
    let config = shop().config;
    assert_eq!(config.trust_domain.as_str(), "shop.example");
    assert_eq!(config.outbound_policy, OutboundPolicy::RegistryOnly);
    assert_eq!(config.connect_timeout, Duration::from_millis(1500));
    assert_eq!(config.proxy.concurrency, Some(3));
    assert_eq!(
        config.proxy.termination_drain_duration,
        Duration::from_secs(90)
    );
    assert_eq!(
        &*config.extension_providers["authz"].kind,
        "envoyExtAuthzGrpc"
    );
}

#[test]
fn limits_of_proxies_are_read_and_mistakes_in_them_are_named() {
    let with = |values: &str| {
        check_text(&format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |-\n    defaultConfig: {{runtimeValues: {{{values}}}}}\n"
        ))
    };
    let (mesh, problems) = with(
        "overload.global_downstream_max_connections: \"50000\", voile.max_requests: \"7\", voile.max_requests_per_destination: \"5\", voile.memory_limit: 64M, voile.service_idle_timeout: 1m30s",
    );
    assert!(problems.is_empty(), "{}", render(&problems));
    let limits = mesh.config.proxy.limits;
    assert_eq!(
        (
            limits.connections,
            limits.requests,
            limits.requests_per_destination,
            limits.memory,
            limits.service_idle,
        ),
        (
            Some(50_000),
            Some(7),
            Some(5),
            Some(64 << 20),
            Some(Duration::from_secs(90))
        )
    );
    for (values, part) in [
        (
            "envoy.reloadable_features.x: \"true\"",
            "warning[V0119]: `envoy.reloadable_features.x` of Envoy has no effect",
        ),
        (
            "voile.max_request: \"7\"",
            "did you mean `voile.max_requests`?",
        ),
        ("voile.max_requests: \"0\"", "a whole number above 0"),
        ("voile.max_requests: many", "a whole number above 0"),
        ("voile.memory_limit: 64MB", "a size such as 50M or 1G"),
        ("voile.service_idle_timeout: \"5\"", "a time from 1s to 24h"),
        ("voile.service_idle_timeout: 999ms", "a time from 1s to 24h"),
        ("voile.service_idle_timeout: 25h", "a time from 1s to 24h"),
    ] {
        let (_, problems) = with(values);
        let said = render(&problems);
        assert!(
            problems.len() == 1 && said.contains(part),
            "{values}: {said}"
        );
    }
}

#[test]
fn a_workload_knows_who_and_whose_it_is() {
    let mesh = shop();
    let pod = &mesh.workloads[&workload("reviews-6d4-x2")];
    assert_eq!(&*pod.uid, "Kubernetes//Pod/shop/reviews-6d4-x2");
    assert_eq!(
        pod.identity(&mesh.config.trust_domain).to_string(),
        "spiffe://shop.example/ns/shop/sa/reviews"
    );
    assert_eq!(
        (pod.workload_type, &*pod.workload_name),
        (WorkloadType::Deployment, "reviews")
    );
    assert_eq!(
        (&*pod.canonical_name, &*pod.canonical_revision),
        ("reviews", "v2")
    );
    assert!(pod.has_sidecar, "its namespace injects");
    assert!(!mesh.workloads[&workload("old")].has_sidecar, "it said no");
    assert!(
        !mesh.workloads[&workload("vm")].has_sidecar,
        "it did not say that it has one"
    );
    assert!(mesh.workloads[&workload("ratings/127.1.0.9")].has_sidecar);
}

#[test]
fn a_service_finds_its_workloads_and_their_ports() {
    let mesh = shop();
    let service = mesh
        .services
        .values()
        .find(|s| &*s.name == "reviews")
        .unwrap();
    assert_eq!(
        service.key.to_string(),
        "shop/reviews.shop.svc.cluster.local"
    );
    let found: Vec<_> = mesh
        .workloads_of(service)
        .into_iter()
        .map(|w| {
            (
                w.workload.key.name.to_string(),
                w.ports.into_iter().collect(),
            )
        })
        .collect();
    // `old` has no container port called `web`, so it does not serve port 9080.
    let expected = [
        ("old".to_owned(), ports(&[(3306, 3306), (9090, 7070)])),
        (
            "reviews-6d4-x2".to_owned(),
            ports(&[(3306, 3306), (9080, 8080), (9090, 7070)]),
        ),
        ("vm".to_owned(), ports(&[(3306, 3306), (9090, 7070)])),
    ];
    assert_eq!(found, expected);
    let entry = mesh
        .services
        .values()
        .find(|s| &*s.name == "ratings")
        .unwrap();
    let behind = mesh.workloads_of(entry);
    assert_eq!(behind.len(), 1);
    assert_eq!(
        behind[0].ports.clone().into_iter().collect::<Vec<_>>(),
        ports(&[(80, 9999)])
    );
    assert_eq!(mesh.services_of(&behind[0].workload).len(), 1);
}

#[test]
fn protocols_come_from_app_protocol_then_name_then_well_known_port() {
    let cases = [
        ("{port: 80}", Protocol::Auto),
        ("{port: 80, name: http-web}", Protocol::Http),
        ("{port: 80, name: http2}", Protocol::Http2),
        ("{port: 80, name: grpc-web}", Protocol::Http),
        ("{port: 80, name: grpc-web-x}", Protocol::Http),
        ("{port: 80, name: grpc-x}", Protocol::Grpc),
        ("{port: 80, name: https-x}", Protocol::Tls),
        ("{port: 80, name: mysql}", Protocol::Tcp),
        ("{port: 80, name: httpx}", Protocol::Auto),
        ("{port: 3306, name: x}", Protocol::Tcp),
        ("{port: 3306, name: http}", Protocol::Http),
        ("{port: 80, name: http, appProtocol: tcp}", Protocol::Tcp),
        ("{port: 80, name: x, appProtocol: HTTP}", Protocol::Http),
        (
            "{port: 80, name: x, appProtocol: kubernetes.io/wss}",
            Protocol::Tls,
        ),
        (
            "{port: 80, name: x, appProtocol: kubernetes.io/ws}",
            Protocol::Http,
        ),
        ("{port: 53, name: http, protocol: UDP}", Protocol::Udp),
    ];
    for (port, expected) in cases {
        let mesh = good(&format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec: {{ports: [{port}]}}\n"
        ));
        assert_eq!(
            mesh.services.values().next().unwrap().ports[0].protocol,
            expected,
            "{port}"
        );
    }
}

#[test]
fn the_nearest_sidecar_holds_and_reaches_what_it_names() {
    let mesh = shop();
    let pod = &mesh.workloads[&workload("reviews-6d4-x2")];
    let sidecar = mesh.sidecar_for(pod).unwrap();
    assert_eq!(&*sidecar.name.name, "reviews");
    let reached = mesh.egress_services(&pod.key.namespace, &sidecar.egress[0]);
    assert_eq!(
        reached
            .iter()
            .map(|s| s.key.hostname.as_str())
            .collect::<Vec<_>>(),
        ["ratings.example"]
    );
    let entry = &mesh.workloads[&workload("ratings/127.1.0.9")];
    assert_eq!(
        mesh.sidecar_for(entry).unwrap().name.to_string(),
        "istio-system/default"
    );
}

#[test]
fn host_patterns_cover_names_below_them_only() {
    let cases = [
        ("*", "a.b", true),
        ("*.b", "a.b", true),
        ("*.b", "c.a.b", true),
        ("*.b", "b", false),
        ("*.b", "ab", false),
        ("a.b", "a.b", true),
    ];
    for (pattern, host, expected) in cases {
        assert_eq!(
            Hostname::new(pattern)
                .unwrap()
                .covers(&Hostname::new(host).unwrap()),
            expected,
            "{pattern} {host}"
        );
    }
}

#[test]
fn identities_are_parsed_strictly() {
    let good = "spiffe://cluster.local/ns/shop/sa/web";
    assert_eq!(good.parse::<Identity>().unwrap().to_string(), good);
    let bad = [
        "",
        "spiffe://",
        "https://cluster.local/ns/shop/sa/web",
        "spiffe://cluster.local/ns/shop/sa/web/",
        "spiffe://cluster.local/ns/shop/sa/",
        "spiffe://cluster.local//ns/shop/sa/web",
        "spiffe://CLUSTER.local/ns/shop/sa/web",
        "spiffe://cluster.local/ns/shop/sa/web?x",
        "spiffe://cluster.local/ns/shop/sa/w%65b",
        "spiffe://cluster.local/ns/../sa/web",
        "SPIFFE://cluster.local/ns/shop/sa/web",
    ];
    for text in bad {
        assert!(text.parse::<Identity>().is_err(), "{text}");
    }
}

#[test]
fn the_order_of_files_does_not_change_the_mesh() {
    let documents: Vec<_> = include_str!("good.yaml").split("---\n").collect();
    let file = |(n, text): (usize, &&str)| SourceFile::new(format!("{n:02}.yaml"), *text);
    let mut files: Vec<_> = documents.iter().enumerate().map(file).collect();
    let (forward, diagnostics) = check(&files, None);
    assert!(diagnostics.is_empty());
    files.reverse();
    assert_eq!(check(&files, None).0, forward);
}

#[test]
fn json_with_tabs_is_read_too() {
    let mesh = good(
        "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Namespace\",\n\t\"metadata\": {\n\t\t\"name\": \"a\"\n\t}\n}\n",
    );
    assert_eq!(mesh.namespaces.len(), 1);
}

#[test]
fn the_oldest_policy_comes_first() {
    let policy = |name: &str, time: &str| {
        format!(
            "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: {name}{time}}}\n---\n"
        )
    };
    let time = |t: &str| format!(", creationTimestamp: \"{t}\"");
    let text = [
        policy("unknown-1", ""),
        policy("younger", &time("2026-03-01T00:00:00Z")),
        policy("older", &time("2026-02-28T23:59:59Z")),
        policy("unknown-0", ""),
    ]
    .concat();
    let order: Vec<_> = good(&text)
        .peer_authentications
        .iter()
        .map(|p| p.name.name.to_string())
        .collect();
    assert_eq!(order, ["older", "younger", "unknown-1", "unknown-0"]);
}

#[test]
fn a_namespace_holds_its_own_services_and_workloads_only() {
    let service = |ns: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: a, namespace: {ns}}}\nspec: {{ports: [{{port: 80}}]}}\n"
        )
    };
    let entry = |ns: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: a, namespace: {ns}}}\nspec: {{address: 127.1.0.1}}\n"
        )
    };
    let all: String = ["a", "ab", "b"]
        .iter()
        .map(|ns| service(ns) + &entry(ns))
        .collect();
    let mesh = good(&all);
    for (namespace, count) in [("a", 1), ("ab", 1), ("b", 1), ("aa", 0), ("c", 0)] {
        let namespace = Namespace::new(namespace).unwrap();
        assert_eq!(mesh.services_in(&namespace).count(), count);
        assert_eq!(mesh.workloads_in(&namespace).count(), count);
    }
}

#[test]
fn a_probe_that_says_little_means_what_kubernetes_means() {
    let mesh = good(
        "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
  - name: app
    image: x
    ports: [{name: health, containerPort: 8081}]
    readinessProbe: {httpGet: {path: healthz, port: health, scheme: HTTPS}}
    livenessProbe: {tcpSocket: {port: 80}, initialDelaySeconds: 3, periodSeconds: 4, timeoutSeconds: 5, failureThreshold: 6, terminationGracePeriodSeconds: 7}
",
    );
    let pod = mesh.pods.values().next().expect("the pod");
    let probes = &pod.template.containers[0].probes;
    let port = |number| Port::new(number).unwrap();
    let seconds = Duration::from_secs;
    assert!(pod.template.rewrites_probes);
    assert_eq!(probes.startup, None);
    let readiness = Probe {
        question: ProbeAction::Http {
            port: port(8081),
            tls: true,
            path: "/healthz".into(),
            headers: vec![],
        },
        initial_delay: seconds(0),
        period: seconds(10),
        timeout: seconds(1),
        success_threshold: 1,
        failure_threshold: 3,
        termination_grace: None,
    };
    assert_eq!(probes.readiness, Some(readiness));
    let liveness = Probe {
        question: ProbeAction::Tcp { port: port(80) },
        initial_delay: seconds(3),
        period: seconds(4),
        timeout: seconds(5),
        success_threshold: 1,
        failure_threshold: 6,
        termination_grace: Some(seconds(7)),
    };
    assert_eq!(probes.liveness, Some(liveness));
}

#[test]
fn a_workload_entry_takes_traffic_unless_its_status_says_that_it_fails() {
    let entry = |status: &str| {
        let mesh = good(&format!(
            "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: vm}}\nspec: {{address: 10.0.0.5}}\n{status}"
        ));
        mesh.workloads.values().next().unwrap().ready
    };
    assert!(entry(""));
    assert!(entry("status: {}"));
    assert!(entry(
        "status: {conditions: [{type: Healthy, status: \"True\"}]}"
    ));
    assert!(entry(
        "status: {conditions: [{type: Other, status: \"False\", message: no}]}"
    ));
    assert!(!entry(
        "status: {conditions: [{type: Other, status: \"True\"}, {type: Healthy, status: \"False\", lastProbeTime: now}]}"
    ));
}

#[test]
fn a_pod_with_a_sidecar_on_a_node_is_a_workload_before_its_address_is_known() {
    let workload = |spec: &str, phase: &str| {
        let mesh = good(&format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{istio-injection: enabled}}}}\n---\n\
             apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop, uid: b1}}\n\
             spec: {{{spec}containers: [{{name: app, image: x}}]}}\nstatus: {{phase: {phase}}}\n"
        ));
        let mut found = mesh.workloads.values();
        found
            .next()
            .map(|one| (one.has_sidecar, one.ready, one.addresses.len()))
    };
    let sidecar = "initContainers: [{name: istio-proxy, image: x}], ";
    let on_node = format!("nodeName: node-1, {sidecar}");
    assert_eq!(workload(&on_node, "Pending"), Some((true, false, 0)));
    for (spec, phase) in [
        (&*on_node, "Failed"),
        (sidecar, "Pending"),
        ("nodeName: node-1, ", "Pending"),
    ] {
        assert_eq!(workload(spec, phase), None, "{spec} {phase}");
    }
}

#[test]
fn a_rate_limit_is_for_whom_it_selects_in_its_namespace_and_from_the_root_in_all() {
    let limit = |name: &str, namespace: &str, selector: &str| {
        format!(
            "---\napiVersion: voile.dev/v1\nkind: RateLimit\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{{selector}rules: [{{limits: []}}]}}\n"
        )
    };
    let web = "selector: {matchLabels: {app: web}}, ";
    let pod = |name: &str, namespace: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{address: 10.0.0.1, labels: {{app: {name}}}}}\n"
        )
    };
    let text = [
        limit("all", "shop", ""),
        limit("web", "shop", web),
        limit("mesh", "istio-system", ""),
        limit("webs", "istio-system", web),
        limit("other", "bank", ""),
        pod("web", "shop"),
        pod("db", "shop"),
    ];
    let mesh = good(&text.concat());
    for (workload, expected) in [
        (
            "shop/web",
            &[
                "istio-system/mesh",
                "istio-system/webs",
                "shop/all",
                "shop/web",
            ][..],
        ),
        ("shop/db", &["istio-system/mesh", "shop/all"]),
    ] {
        let key: WorkloadKey = workload.parse().unwrap();
        let held = mesh.rate_limits_for(&mesh.workloads[&key]);
        let names: Vec<String> = held.map(|one| one.name.to_string()).collect();
        assert_eq!(names, expected, "{workload}");
    }
}

#[test]
fn a_telemetry_that_aims_holds_at_the_proxies_of_its_gateways_alone() {
    let telemetry = |name: &str, namespace: &str, spec: &str| {
        format!(
            "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n"
        )
    };
    let edge = "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]";
    let entry = |name: &str, namespace: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{address: 10.0.0.1, labels: {{gateway.networking.k8s.io/gateway-name: {name}}}}}\n"
        )
    };
    let text = [
        telemetry("aims", "shop", edge),
        telemetry("all", "shop", ""),
        entry("edge", "shop"),
        entry("other", "shop"),
        entry("edge", "bank"),
    ];
    let mesh = good(&text.concat());
    for (workload, expected) in [
        ("shop/edge", &["shop/all", "shop/aims"][..]),
        ("shop/other", &["shop/all"]),
        ("bank/edge", &[]),
    ] {
        let key: WorkloadKey = workload.parse().unwrap();
        let held = mesh.telemetry_for(&mesh.workloads[&key]);
        let names: Vec<String> = held.iter().map(|one| one.name.to_string()).collect();
        assert_eq!(names, expected, "{workload}");
    }
}

#[test]
fn a_waypoint_tells_of_a_service_what_its_namespace_says_and_at_last_what_aims_at_it() {
    let telemetry = |name: &str, namespace: &str, target: &str| {
        format!(
            "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{target}}}\n"
        )
    };
    let web = "targetRefs: [{kind: Service, name: web}]";
    let entry = "targetRefs: [{group: networking.istio.io, kind: ServiceEntry, name: web}]";
    let gate = "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gate}]";
    let service = |namespace: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: {namespace}}}\nspec: {{ports: [{{port: 80}}]}}\n"
        )
    };
    let text = [
        telemetry("mesh", "istio-system", ""),
        telemetry("all", "shop", ""),
        telemetry("late", "shop", ""),
        telemetry("all", "bank", ""),
        telemetry("aims", "shop", web),
        telemetry("oldest", "shop", web).replace(
            "namespace: shop}",
            "namespace: shop, creationTimestamp: \"2020-01-01T00:00:00Z\"}",
        ),
        telemetry("aims", "bank", web),
        telemetry("second", "bank", web),
        telemetry("outside", "bank", entry),
        telemetry("gate", "shop", gate),
        telemetry("young", "shop", "selector: {matchLabels: {gateway.networking.k8s.io/gateway-name: gate}}"),
        telemetry("elsewhere", "bank", gate),
        service("shop"),
        service("bank"),
        "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: web, namespace: bank}\n\
         spec: {hosts: [web.example], resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}]}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: gate, namespace: shop}\n\
         spec: {address: 10.0.0.1, labels: {gateway.networking.k8s.io/gateway-name: gate}}\n"
            .to_owned(),
    ];
    let mesh = good(&text.concat());
    let key: WorkloadKey = "shop/gate".parse().unwrap();
    let own = &mesh.workloads[&key];
    for (service, whole, aimed) in [
        (
            "shop/web.shop.svc.cluster.local",
            None,
            &["shop/oldest", "shop/aims"][..],
        ),
        (
            "bank/web.bank.svc.cluster.local",
            Some("bank/all"),
            &["bank/aims", "bank/second"],
        ),
        ("bank/web.example", Some("bank/all"), &["bank/outside"]),
    ] {
        let found = mesh.services.values();
        let mut found = found.filter(|one| one.key.to_string() == service);
        let held = mesh.telemetry_at(own, found.next().expect("the service"));
        let names: Vec<String> = held.iter().map(|one| one.name.to_string()).collect();
        let mut all = vec!["istio-system/mesh", "shop/all"];
        all.extend(whole);
        all.extend(["shop/gate", "shop/young"]);
        all.extend(aimed);
        assert_eq!(names, all, "{service}");
    }
    let held = mesh.telemetry_for(own);
    let names: Vec<String> = held.iter().map(|one| one.name.to_string()).collect();
    assert_eq!(
        names,
        ["istio-system/mesh", "shop/all", "shop/gate", "shop/young"]
    );
}

#[test]
fn a_rate_limit_that_aims_is_for_the_workloads_of_its_targets_alone() {
    let limit = |name: &str, namespace: &str, targets: &str| {
        format!(
            "---\napiVersion: voile.dev/v1\nkind: RateLimit\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{targetRefs: [{targets}], rules: [{{limits: []}}]}}\n"
        )
    };
    let service = "{kind: Service, name: web}";
    let gateway = "{group: gateway.networking.k8s.io, kind: Gateway, name: web}";
    let entry = |name: &str, namespace: &str, labels: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{address: 10.0.0.1, labels: {{{labels}}}}}\n"
        )
    };
    let text = [
        limit("service", "shop", service),
        limit("gateway", "shop", gateway),
        limit("both", "shop", &format!("{service}, {gateway}")),
        limit("elsewhere", "bank", service),
        limit("root", "istio-system", service),
        limit("through", "shop", "{kind: Service, name: db}"),
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
         spec: {selector: {app: web}, ports: [{port: 80}]}\n"
            .to_owned(),
        // Requests that a waypoint counts are not counted again.
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop, labels: {istio.io/use-waypoint: gate}}\n\
         spec: {selector: {app: db}, ports: [{port: 80}]}\n"
            .to_owned(),
        entry("web", "shop", "app: web"),
        entry("db", "shop", "app: db"),
        entry(
            "edge",
            "shop",
            "gateway.networking.k8s.io/gateway-name: web",
        ),
        entry("web", "bank", "app: web"),
    ];
    let mesh = good(&text.concat());
    for (workload, expected) in [
        ("shop/web", &["shop/both", "shop/service"][..]),
        ("shop/edge", &["shop/both", "shop/gateway"]),
        ("shop/db", &[]),
        ("bank/web", &[]),
    ] {
        let key: WorkloadKey = workload.parse().unwrap();
        let held = mesh.rate_limits_for(&mesh.workloads[&key]);
        let names: Vec<String> = held.map(|one| one.name.to_string()).collect();
        assert_eq!(names, expected, "{workload}");
    }
}
