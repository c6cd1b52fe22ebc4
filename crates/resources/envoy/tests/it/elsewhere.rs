//! Endpoints that our own proxies reach in ways that a stock Envoy is not led: through a waypoint, through another network's
//! gateway, or in a node proxy's tunnel. Such an endpoint is left out, or called in plaintext if it takes that, and named either
//! way. Likewise a gateway's HTTP/3 port, on which no Envoy listens.

use serde_json::{Value, json};
use voile_envoy::{Configuration, InterceptMode, WrittenKeys, translate};
use voile_model::{Namespace, SourceFile, WorkloadKey};

/// A client, and a service of two pods without a proxy.
const MESH: &str = r#"
{apiVersion: v1, kind: Pod, metadata: {name: client, namespace: shop, labels: {app: client, sidecar.istio.io/inject: "true"}}, spec: {containers: [{name: app}]}, status: {phase: Running, podIP: 127.9.0.1}}
---
{apiVersion: v1, kind: Service, metadata: {name: other, namespace: shop}, spec: {clusterIP: 127.9.1.2, selector: {app: other}, ports: [{name: http, port: 80, targetPort: 8080}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: other, namespace: shop, labels: {app: other}}, spec: {containers: [{name: app}]}, status: {phase: Running, podIP: 127.9.0.9}}
"#;

const WEB: &str = "outbound|80||web.shop.svc.cluster.local";

/// Listeners on which the client's application calls.
const EXPLICIT: &str = "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: client, namespace: shop}\nspec:\n  egress:\n\
     \x20 - {port: {number: 80, protocol: HTTP, name: http}, bind: 127.9.0.100, captureMode: NONE, hosts: [\"*/*\"]}\n\
     \x20 - {port: {number: 90, protocol: TCP, name: tcp}, bind: 127.9.0.100, captureMode: NONE, hosts: [\"*/*\"]}\n";

fn told(resources: &str, capture: InterceptMode) -> Configuration {
    told_to("client", resources, capture)
}

fn told_to(workload: &str, resources: &str, capture: InterceptMode) -> Configuration {
    let files = [("mesh.yaml", MESH), ("more.yaml", resources)];
    let files = files.map(|(name, text)| SourceFile::new(name, text.to_owned()));
    let (mesh, diagnostics) = voile_model::check(&files, None);
    let error = diagnostics.iter().find(|one| one.is_error());
    assert!(error.is_none(), "{error:?}");
    let key = WorkloadKey::new(Namespace::new("shop").expect("a name"), workload);
    translate(&mesh, &mesh.workloads[&key], capture, &WrittenKeys)
}

/// The limits of this name.
fn limits(made: &Configuration, name: &str) -> Vec<String> {
    let all = made.limits.iter().filter(|one| one.name.as_str() == name);
    all.map(ToString::to_string).collect()
}

/// The addresses that a cluster is told.
fn called(made: &Configuration, cluster: &str) -> Vec<String> {
    let assignment = made.endpoints.get(cluster).unwrap_or(&Value::Null);
    let groups = assignment["endpoints"].as_array().into_iter().flatten();
    let each = groups.flat_map(|group| group["lb_endpoints"].as_array().into_iter().flatten());
    let address = |one: &Value| {
        let socket = &one["endpoint"]["address"]["socket_address"];
        socket["address"].as_str().expect("an address").to_owned()
    };
    each.map(address).collect()
}

/// `web` with these labels, its ports of HTTP and bytes, and its pods.
fn web(labels: &str, pods: &[&str]) -> String {
    let mut text = format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: shop, labels: {{{labels}}}}}, spec: {{clusterIP: 127.9.1.1, selector: {{app: web}}, \
         ports: [{{name: http, port: 80, targetPort: 8080}}, {{name: tcp, port: 90, targetPort: 9090}}]}}}}\n"
    );
    for (last, labels) in pods.iter().enumerate() {
        text += &format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: web-{last}, namespace: shop, labels: {{app: web, {labels}}}}}, spec: {{serviceAccountName: web, \
             containers: [{{name: app}}]}}, status: {{phase: Running, podIP: 127.9.0.1{last}}}}}\n"
        );
    }
    text
}

const BEHIND: &str = "istio.io/use-waypoint: gate";
const SIDED: &str = "sidecar.istio.io/inject: \"true\"";
const AMBIENT: &str = "istio.io/dataplane-mode: ambient";

/// Routes of a listener: hosts, and the actions of each.
fn routes(made: &Configuration, name: &str) -> Vec<(String, Vec<Value>)> {
    let hosts = made.routes[name]["virtual_hosts"]
        .as_array()
        .expect("hosts");
    let routes = |host: &Value| {
        let all = host["routes"].as_array().expect("routes").iter();
        let action = |one: &Value| match one.get("route") {
            Some(route) => route["cluster"].clone(),
            None => one["direct_response"]["status"].clone(),
        };
        let name = host["name"].as_str().expect("a name").to_owned();
        (name, all.map(action).collect())
    };
    hosts.iter().map(routes).collect()
}

#[test]
fn nobody_goes_past_a_waypoint_by_whatever_route() {
    // Its own routes would lead to a service that has none: they are for the waypoint to obey. So does another's lead to it.
    let routed = "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n\
         spec: {hosts: [web], http: [{match: [{uri: {prefix: /r}}], redirect: {uri: /}}, {route: [{destination: {host: other}}]}], tcp: [{route: [{destination: {host: other}}]}]}\n\
         ---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: other, namespace: shop}\n\
         spec: {hosts: [other], http: [{match: [{uri: {prefix: /a}}], route: [{destination: {host: web}}]}, {route: [{destination: {host: other}}]}]}\n";
    let text = web(BEHIND, &[SIDED]) + routed;
    for (capture, listener) in [
        (InterceptMode::None, "outbound_127.9.0.100_80"),
        (InterceptMode::Redirect, "0.0.0.0_80~http"),
    ] {
        let made = told(&(text.clone() + EXPLICIT), capture);
        let named = limits(&made, "waypoint");
        assert_eq!(named.len(), 1, "{named:?}");
        assert!(
            named[0].starts_with(
                "waypoint: Service shop/web.shop.svc.cluster.local: the service is behind the waypoint shop/gate,"
            ),
            "{named:?}"
        );
        assert!(limits(&made, "connection-routes").is_empty(), "{capture:?}");
        let all = made.clusters.keys().chain(made.endpoints.keys());
        let led: Vec<&String> = all.filter(|name| name.contains("web.shop")).collect();
        assert!(led.is_empty(), "{led:?}");
        let found = routes(&made, listener);
        let of = |host: &str| {
            let name = format!("{host}.shop.svc.cluster.local:80");
            let mut all = found.iter().filter(|(own, _)| *own == name);
            all.next().map(|(_, routes)| routes.clone())
        };
        assert_eq!(of("web"), Some(vec![json!(503)]), "{capture:?}");
        let other = "outbound|80||other.shop.svc.cluster.local";
        assert_eq!(of("other"), Some(vec![json!(WEB), json!(other)]));
    }
}

#[test]
fn what_is_asked_for_at_the_address_of_a_service_behind_a_waypoint_goes_nowhere() {
    let made = told(&web(BEHIND, &[SIDED]), InterceptMode::Redirect);
    // Requests with any host: without a listener of its own they would pass through to their original destination.
    assert_eq!(
        routes(&made, "127.9.1.1_80"),
        [("web.shop.svc.cluster.local:80".to_owned(), vec![json!(503)])]
    );
    // Bytes lead to a cluster that is not there.
    let bytes = &made.listeners["127.9.1.1_90"]["default_filter_chain"];
    let to = &bytes["filters"][0]["typed_config"]["cluster"];
    let cluster = to.as_str().expect("a cluster");
    assert!(!made.clusters.contains_key(cluster), "{bytes}");
    // Others share the port's.
    assert!(!made.listeners.contains_key("127.9.1.2_80"));
}

#[test]
fn a_service_that_leaves_its_waypoint_or_names_none_that_stands_before_services_is_called() {
    let gate = |said: &str| {
        format!(
            "---\n{{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {{name: gate, namespace: shop, labels: {{{said}}}}}, spec: {{gatewayClassName: istio-waypoint, \
             listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]}}}}\n"
        )
    };
    let rows = [
        (web("", &[SIDED]), true),
        (web("istio.io/use-waypoint: none", &[SIDED]), true),
        (
            web(BEHIND, &[SIDED]) + &gate("istio.io/waypoint-for: workload"),
            true,
        ),
        (
            web(BEHIND, &[SIDED]) + &gate("istio.io/waypoint-for: all"),
            false,
        ),
        (web(BEHIND, &[SIDED]), false),
    ];
    for (text, is_called) in rows {
        let made = told(&text, InterceptMode::Redirect);
        assert_eq!(made.clusters.contains_key(WEB), is_called, "{text}");
        assert_eq!(limits(&made, "waypoint").is_empty(), is_called, "{text}");
    }
}

/// A gateway of the mesh, before `web`.
const EDGE: &str = "---\n{apiVersion: v1, kind: Pod, metadata: {name: edge, namespace: shop, labels: {istio: ingress, sidecar.istio.io/inject: \"true\"}, annotations: {inject.istio.io/templates: gateway}}, \
     spec: {containers: [{name: istio-proxy}]}, status: {phase: Running, podIP: 127.9.0.4}}\n\
     ---\n{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: edge, namespace: shop}, spec: {selector: {istio: ingress}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [\"*\"]}]}}\n\
     ---\n{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: in, namespace: shop}, spec: {hosts: [\"*\"], gateways: [edge], http: [{route: [{destination: {host: web, port: {number: 80}}}]}]}}\n";

#[test]
fn a_gateway_is_not_led_past_a_waypoint_either() {
    let text = web(BEHIND, &[SIDED]) + EDGE;
    let made = told_to("edge", &text, InterceptMode::Redirect);
    assert_eq!(limits(&made, "waypoint").len(), 1, "{:?}", made.limits);
    assert!(!made.clusters.contains_key(WEB));
    let found = routes(&made, "gateway_127.9.0.4_80");
    assert_eq!(
        found,
        [("*".to_owned(), vec![json!(WEB)])],
        "503, as of what is not there"
    );
}

/// Our network, and the gateway of another.
const WEST: &str = "---\n{apiVersion: v1, kind: Namespace, metadata: {name: istio-system, labels: {topology.istio.io/network: west}}}\n\
     ---\n{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: east, namespace: edge, labels: {topology.istio.io/network: east}, annotations: {gateway.istio.io/service-account: gate}}, \
     spec: {gatewayClassName: istio-remote, addresses: [{value: 192.0.2.9}], listeners: [{name: mesh, port: 15008, protocol: HBONE}]}}\n";

fn far(network: &str) -> String {
    format!(
        "---\n{{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {{name: far, namespace: shop}}, spec: {{address: 127.9.0.50, network: {network}, serviceAccount: web, labels: {{app: web}}}}}}\n"
    )
}

fn rule(policy: &str) -> String {
    format!(
        "---\n{{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {{name: web, namespace: shop}}, spec: {{host: web, trafficPolicy: {policy}, subsets: [{{name: all, labels: {{app: web}}}}]}}}}\n"
    )
}

#[test]
fn who_is_on_another_network_is_left_out_and_named() {
    let near = web("", &[SIDED]);
    let rows = [
        (far("east") + WEST, true),
        // Nobody says how that is entered: its address is called, as by our own.
        (far("north") + WEST, false),
        (far("west") + WEST, false),
        // Our own would not go there in plaintext either.
        (far("east") + WEST + &rule("{tls: {mode: DISABLE}}"), false),
        (
            far("east") + WEST + &rule("{tls: {mode: ISTIO_MUTUAL}}"),
            true,
        ),
    ];
    for (text, is_limit) in rows {
        let made = told(&(near.clone() + &text), InterceptMode::Redirect);
        let named = limits(&made, "network");
        assert_eq!(named.len(), 2 * usize::from(is_limit), "{text}: {named:?}");
        let words = "network: Service shop/web.shop.svc.cluster.local, port 80: endpoints on the network east";
        assert!(!is_limit || named[0].starts_with(words), "{named:?}");
        let addresses = called(&made, WEB);
        let calls_far = addresses.contains(&"127.9.0.50".to_owned());
        assert_eq!(
            calls_far,
            !text.contains("127.9.0.50, network: east"),
            "{text}: {addresses:?}"
        );
        assert!(
            addresses.contains(&"127.9.0.10".to_owned()),
            "{addresses:?}"
        );
    }
    // A part of a service is on our own network alone, for everybody.
    let to_part = "---\n{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: other, namespace: shop}, spec: {hosts: [other], http: [{route: [{destination: {host: web, subset: all}}]}]}}\n";
    let text = near + &far("east") + WEST + &rule("{}") + to_part;
    let made = told(&(text + EXPLICIT), InterceptMode::None);
    let part = "outbound|80|all|web.shop.svc.cluster.local";
    assert_eq!(called(&made, part), ["127.9.0.10"], "{:?}", made.clusters);
    assert_eq!(
        limits(&made, "network").len(),
        2,
        "of the whole: {:?}",
        made.limits
    );
}

/// PeerAuthentication for pods of `web`.
fn peers(said: &str) -> String {
    format!(
        "---\n{{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {{name: web, namespace: shop}}, spec: {{selector: {{matchLabels: {{app: web}}}}, {said}}}}}\n"
    )
}

#[test]
fn who_has_a_node_proxy_is_called_in_plaintext_where_it_takes_that_and_named() {
    let both = web("", &[SIDED, AMBIENT]);
    let (sided, ambient) = ("127.9.0.10", "127.9.0.11");
    let rows = [
        ("", "{}", vec![sided, ambient], true),
        (
            &*peers("mtls: {mode: PERMISSIVE}"),
            "{}",
            vec![sided, ambient],
            true,
        ),
        (&*peers("mtls: {mode: STRICT}"), "{}", vec![sided], true),
        // The port that is called is one that takes plaintext.
        (
            &*peers("mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: PERMISSIVE}}"),
            "{}",
            vec![sided, ambient],
            true,
        ),
        (
            &*peers("portLevelMtls: {8080: {mode: STRICT}}"),
            "{}",
            vec![sided],
            true,
        ),
        ("", "{tls: {mode: ISTIO_MUTUAL}}", vec![sided], true),
        // Our own call them in plaintext, too.
        ("", "{tls: {mode: DISABLE}}", vec![sided, ambient], false),
        (
            &*peers("mtls: {mode: STRICT}"),
            "{tls: {mode: DISABLE}}",
            vec![sided, ambient],
            false,
        ),
    ];
    for (more, policy, wanted, is_limit) in rows {
        let made = told(
            &(both.clone() + more + &rule(policy)),
            InterceptMode::Redirect,
        );
        assert_eq!(called(&made, WEB), wanted, "{more} {policy}");
        let named = limits(&made, "tunnel");
        assert_eq!(
            named.len(),
            2 * usize::from(is_limit),
            "{more} {policy}: {named:?}"
        );
        let words = "tunnel: Service shop/web.shop.svc.cluster.local, port 80: endpoints behind a node proxy";
        assert!(!is_limit || named[0].starts_with(words), "{named:?}");
    }
    let made = told(&web("", &[SIDED, "x: z"]), InterceptMode::Redirect);
    assert!(limits(&made, "tunnel").is_empty(), "{:?}", made.limits);
}

#[test]
fn a_gateway_that_is_to_be_called_over_udp_is_not_and_that_is_named() {
    let service = |port: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: edge, namespace: shop}}, spec: {{selector: {{istio: ingress}}, ports: [{{name: https, port: 443, targetPort: 8443}}, {port}]}}}}\n"
        )
    };
    let gateway = |server: &str| {
        format!(
            "---\n{{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {{name: edge, namespace: shop}}, spec: {{selector: {{istio: ingress}}, servers: [{server}]}}}}\n"
        )
    };
    let server = |tls: &str| {
        format!(
            "{{port: {{number: 8443, name: https, protocol: HTTPS}}, hosts: [a.example], tls: {{mode: SIMPLE, credentialName: a, {tls}}}}}"
        )
    };
    let udp = "{name: quic, port: 443, targetPort: 8443, protocol: UDP}";
    let plain = "{port: {number: 8443, name: http, protocol: HTTP}, hosts: [a.example]}";
    let pod = EDGE.split("---\n").nth(1).expect("the Pod");
    let heard = pod.replace(
        "annotations: {",
        "annotations: {proxy.istio.io/config: \"gatewayTopology: {proxyProtocol: {}}\", ",
    );
    let rows = [
        (pod, udp, server(""), true),
        (
            pod,
            "{name: other, port: 444, targetPort: 8444}",
            server(""),
            false,
        ),
        (
            pod,
            &udp.replace("targetPort: 8443", "targetPort: 8444"),
            server(""),
            false,
        ),
        // A gateway of ours would not, either.
        (pod, udp, server("maxProtocolVersion: TLSV1_2"), false),
        (pod, udp, plain.to_owned(), false),
        (&*heard, udp, server(""), false),
    ];
    for (pod, port, server, is_limit) in rows {
        let text = format!("---\n{pod}{}{}", service(port), gateway(&server));
        let made = told_to("edge", &text, InterceptMode::Redirect);
        let named = limits(&made, "http3");
        assert_eq!(
            named.len(),
            usize::from(is_limit),
            "{text}: {:?}",
            made.limits
        );
        let words = "has the UDP port 443 for HTTP/3";
        assert!(
            named
                .iter()
                .all(|one| one.starts_with("http3: Gateway shop/edge") && one.contains(words)),
            "{named:?}"
        );
    }
}

#[test]
fn plaintext_to_a_workloads_own_address_is_named_where_calls_may_go_anywhere() {
    let only = "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: client, namespace: shop}\nspec: {outboundTrafficPolicy: {mode: REGISTRY_ONLY}}\n";
    for (text, capture, is_limit) in [
        ("", InterceptMode::Redirect, true),
        (only, InterceptMode::Redirect, false),
        (EXPLICIT, InterceptMode::None, false),
    ] {
        let made = told(text, capture);
        let named = limits(&made, "workload-address");
        assert_eq!(named.len(), usize::from(is_limit), "{text}: {named:?}");
        assert!(
            made.limits.iter().all(|one| one.name.is_usual()),
            "{:?}",
            made.limits
        );
    }
}
