//! Answers to a stock gRPC, which asks over the wire in state of the world, by its own names. A resource that it does not get has
//! a reason.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Streaming};
use voile_proto::discovery::{DiscoveryRequest, DiscoveryResponse, Node, Status};
use voile_proto::type_url::{CLUSTER, ENDPOINTS, LISTENER, ROUTES};
use voile_xds::client::Credential;
use voile_xds::generated::ads::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;

use crate::harness::{Mesh, SECOND_ECHO, SHOP};

/// Far beyond what a loaded machine needs.
const DEADLINE: Duration = Duration::from_secs(20);
const HOST: &str = "echo.shop.svc.cluster.local";
const SERVER: &str = "xds.istio.io/grpc/lds/inbound/[::]:8080";

struct Stranger {
    says: mpsc::UnboundedSender<DiscoveryRequest>,
    hears: Streaming<DiscoveryResponse>,
}

impl Stranger {
    /// On the plaintext port, with a token.
    async fn start(mesh: &Mesh, credential: Option<Credential>) -> Self {
        let address = format!("http://{}", mesh.addresses.plaintext.unwrap());
        let mut client = AggregatedDiscoveryServiceClient::connect(address)
            .await
            .unwrap();
        let (says, requests) = mpsc::unbounded_channel();
        let mut request = Request::new(UnboundedReceiverStream::new(requests));
        if let Some(Credential::Token(token)) = credential {
            let token = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", token);
        }
        let hears = client
            .stream_aggregated_resources(request)
            .await
            .unwrap()
            .into_inner();
        Self { says, hears }
    }

    fn ask(&self, type_url: &str, names: &[&str], pod: &str) {
        let node = Node {
            id: format!("sidecar~0.0.0.0~{pod}.shop~shop.svc.cluster.local"),
            ..Node::default()
        };
        self.say(DiscoveryRequest {
            node: Some(node),
            type_url: type_url.to_owned(),
            resource_names: names.iter().map(ToString::to_string).collect(),
            ..DiscoveryRequest::default()
        });
    }

    fn say(&self, request: DiscoveryRequest) {
        self.says.send(request).unwrap();
    }

    /// The next response, answered; its resources by name.
    async fn told(&mut self, names: &[&str], refusal: Option<&str>) -> BTreeMap<String, Value> {
        let told = tokio::time::timeout(DEADLINE, self.hears.message()).await;
        let response = told.expect("in time").unwrap().expect("not over");
        self.say(DiscoveryRequest {
            type_url: response.type_url.clone(),
            resource_names: names.iter().map(ToString::to_string).collect(),
            response_nonce: response.nonce,
            error_detail: refusal.map(|message| Status {
                message: message.to_owned(),
                ..Status::default()
            }),
            ..DiscoveryRequest::default()
        });
        let read = |resource| {
            let read = voile_proto::envoy::decode(resource).unwrap();
            let name = read.get("name").or(read.get("cluster_name"));
            (name.unwrap().as_str().unwrap().to_owned(), read)
        };
        response.resources.iter().map(read).collect()
    }

    async fn get(&mut self, type_url: &str, name: &str, pod: &str) -> Value {
        self.ask(type_url, &[name], pod);
        let mut told = self.told(&[name], None).await;
        told.remove(name).unwrap_or(Value::Null)
    }
}

fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

/// Addresses of a cluster's endpoints.
fn addresses(endpoints: &Value) -> Vec<String> {
    let mut found = Vec::new();
    assert!(endpoints.is_object(), "nothing was told");
    for locality in endpoints["endpoints"].as_array().into_iter().flatten() {
        assert!(
            locality["load_balancing_weight"].as_u64() > Some(0),
            "gRPC passes over such a locality"
        );
        for endpoint in locality["lb_endpoints"].as_array().unwrap() {
            let socket = at(endpoint, "/endpoint/address/socket_address");
            let (host, port) = (&socket["address"], &socket["port_value"]);
            found.push(format!("{}:{port}", host.as_str().unwrap()));
        }
    }
    found
}

#[tokio::test]
async fn a_target_leads_to_endpoints_and_to_whom_to_expect_there() {
    let mesh = Mesh::start(SHOP).await;
    let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let listener = client.get(LISTENER, "echo:80", "client-1").await;
    let name = at(
        &listener,
        "/api_listener/api_listener/rds/route_config_name",
    );
    let name = name.as_str().unwrap().to_owned();
    assert_eq!(name, format!("grpc|80||{HOST}"));
    let routes = client.get(ROUTES, &name, "client-1").await;
    let cluster = at(&routes, "/virtual_hosts/0/routes/0/route/cluster");
    assert_eq!(cluster.as_str().unwrap(), name);
    let cluster = client.get(CLUSTER, &name, "client-1").await;
    let validation = at(
        &cluster,
        "/transport_socket/typed_config/common_tls_context/validation_context",
    );
    let expected = at(validation, "/match_subject_alt_names/0/exact");
    assert_eq!(
        expected.as_str().unwrap(),
        "spiffe://cluster.local/ns/shop/sa/echo"
    );
    let endpoints = client.get(ENDPOINTS, &name, "client-1").await;
    assert_eq!(addresses(&endpoints), ["127.1.0.3:8080"]);
    // An endpoint more: told by itself, and nothing else with it.
    mesh.edit("more.yaml", SECOND_ECHO);
    let told = client.told(&[&name], None).await;
    assert_eq!(
        addresses(&told[&name]),
        ["127.1.0.3:8080", "127.1.0.5:8080"]
    );
    // All gone: nobody is believed, rather than anybody.
    std::fs::remove_file(mesh.config().join("more.yaml")).unwrap();
    let told = client.told(&[&name], None).await;
    assert_eq!(addresses(&told[&name]).len(), 1);
    let nobody = SHOP.replace("{app: echo, sidecar", "{app: other, sidecar");
    mesh.edit("mesh.yaml", &nobody);
    let mut told = client.told(&[&name], None).await;
    told.append(&mut client.told(&[&name], None).await);
    let mut stranger = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let cluster = stranger.get(CLUSTER, &name, "client-1").await;
    assert!(cluster.to_string().contains("nobody.invalid"), "{cluster}");
}

#[tokio::test]
async fn a_refusal_by_either_side_is_on_the_status_page() {
    let mesh = Mesh::start(SHOP).await;
    let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    client.ask(LISTENER, &["echo:80", "echo:81", SERVER], "echo-1");
    let told = client.told(&["echo:80"], Some("I cannot read that")).await;
    assert_eq!(told.keys().collect::<Vec<_>>(), ["echo:80"]);
    let expected = [
        "I cannot read that",
        "has no port 81",
        "belongs to spiffe://cluster.local/ns/shop/sa/echo, not to spiffe://cluster.local/ns/shop/sa/client",
    ];
    let seen = async {
        loop {
            let page = mesh.get("/debug/status").await;
            // The page lists only requested names: the NACK came with fewer names.
            if expected[..1].iter().all(|part| page.contains(part)) {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, seen)
        .await
        .expect("the NACK is shown");
    let other = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    other.ask(LISTENER, &["echo:80", "echo:81", SERVER], "echo-1");
    let seen = async {
        loop {
            let page = mesh.get("/debug/status").await;
            if expected.iter().all(|part| page.contains(part)) {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, seen)
        .await
        .expect("the reasons are shown");
}

const POLICY: &str = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: who, namespace: shop}
spec:
  selector: {matchLabels: {app: echo}}
  rules: [{from: [{source: {serviceAccounts: [client]}}], to: [{operation: {paths: ["/a.B/*"]}}]}]
"#;

#[tokio::test]
async fn a_server_is_told_what_its_own_sidecar_would_obey() {
    let strict = "\n---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n";
    let mesh = Mesh::start(&(SHOP.to_owned() + strict + "---" + POLICY)).await;
    let mut server = Stranger::start(&mesh, Some(mesh.token("echo", None))).await;
    let listener = server.get(LISTENER, SERVER, "echo-1").await;
    assert_eq!(at(&listener, "/address/socket_address/address"), "::");
    let chain = at(&listener, "/filter_chains/0");
    let required = at(
        chain,
        "/transport_socket/typed_config/require_client_certificate",
    );
    assert_eq!(required, true);
    let filters = at(chain, "/filters/0/typed_config/http_filters")
        .as_array()
        .unwrap();
    let names: Vec<&str> = filters
        .iter()
        .map(|filter| filter["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["voile.authorization.allow", "envoy.filters.http.router"]
    );
    // DISABLE: no TLS; a policy that gRPC cannot obey: no listener.
    mesh.edit(
        "mesh.yaml",
        &(SHOP.to_owned() + &strict.replace("STRICT", "DISABLE")),
    );
    let told = server.told(&[SERVER], None).await;
    assert_eq!(
        at(&told[SERVER], "/filter_chains/0/transport_socket"),
        &Value::Null
    );
    let template = POLICY.replace("/a.B/*", "/a.B/{*}");
    mesh.edit("mesh.yaml", &(SHOP.to_owned() + strict + "---" + &template));
    let told = server.told(&[SERVER], None).await;
    assert!(told.is_empty(), "{told:?}");
    let page = mesh.get("/debug/status").await;
    assert!(
        page.contains("gRPC does not support path templates"),
        "{page}"
    );
}

#[tokio::test]
async fn what_a_server_is_told_otherwise_is_a_limit_on_the_status_page() {
    let audit = POLICY.replace("spec:", "spec:\n  action: AUDIT");
    let mesh = Mesh::start(&format!("{SHOP}---{audit}")).await;
    let mut server = Stranger::start(&mesh, Some(mesh.token("echo", None))).await;
    let listener = server.get(LISTENER, SERVER, "echo-1").await;
    assert!(listener.is_object(), "{listener}");
    page(
        &mesh,
        "permissive: port 8080: a gRPC server accepts either",
        true,
    )
    .await;
    let audited = "audit: port 8080: AuthorizationPolicy shop/who has no audit records";
    page(&mesh, audited, true).await;
    let strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n";
    mesh.edit("mesh.yaml", SHOP);
    mesh.edit("strict.yaml", strict);
    page(&mesh, "translation_limits", false).await;
}

#[tokio::test]
async fn odd_names_are_nobody() {
    let mesh = Mesh::start(SHOP).await;
    let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let names = [
        "echo",
        "echo:",
        ":80",
        "echo:0",
        "echo:65536",
        "echo:-1",
        "echo:80:80",
        "*:80",
        "\u{1F980}:80",
        "..:80",
        "xds.istio.io/grpc/lds/inbound/",
        "xds.istio.io/grpc/lds/inbound/x:1",
        "echo:80",
    ];
    client.ask(LISTENER, &names, "client-1");
    let told = client.told(&names, None).await;
    assert_eq!(told.keys().collect::<Vec<_>>(), ["echo:80"]);
    let parts = [
        "grpc|",
        "grpc||",
        "grpc|80",
        "grpc|80||",
        "grpc|x||echo",
        "outbound|80||echo",
        "grpc|80||echo",
    ];
    client.ask(CLUSTER, &parts, "client-1");
    let told = client.told(&parts, None).await;
    assert_eq!(told.len(), 1, "{told:?}");
}

/// A rule for calls of the service.
fn rule(policy: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: echo, namespace: shop}}\n\
         spec: {{host: echo, trafficPolicy: {policy}}}\n"
    )
}

/// Waits until the status page has, or has not, these words.
async fn page(mesh: &Mesh, words: &str, are_there: bool) {
    let seen = async {
        while mesh.get("/debug/status").await.contains(words) != are_there {
            tokio::task::yield_now().await;
        }
    };
    let seen = tokio::time::timeout(DEADLINE, seen).await;
    assert!(seen.is_ok(), "{words}: {}", mesh.get("/debug/status").await);
}

#[tokio::test]
async fn what_is_said_of_calls_is_told_or_is_a_limit_on_the_status_page() {
    let mesh = Mesh::start(SHOP).await;
    let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let name = format!("grpc|80||{HOST}");
    let cluster = client.get(CLUSTER, &name, "client-1").await;
    let most = |cluster: &Value| at(cluster, "/circuit_breakers/thresholds/0/max_requests").clone();
    assert_eq!(most(&cluster), u32::MAX, "no limit, rather than gRPC's own");
    mesh.edit(
        "rule.yaml",
        &rule("{connectionPool: {http: {http2MaxRequests: 7}}, outlierDetection: {}}"),
    );
    let told = client.told(&[&name], None).await;
    assert_eq!(most(&told[&name]), 7);
    page(
        &mesh,
        "outlier-detection: port 80: gRPC does not eject endpoints",
        true,
    )
    .await;
    // By what calls are kept together is with the routes.
    mesh.edit(
        "rule.yaml",
        &rule("{loadBalancer: {consistentHash: {httpHeaderName: user}}}"),
    );
    let told = client.told(&[&name], None).await;
    assert_eq!(told[&name]["lb_policy"], "RING_HASH");
    page(&mesh, "translation_limits", false).await;
    let mut other = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let routes = other.get(ROUTES, &name, "client-1").await;
    let hashed = "/virtual_hosts/0/routes/0/route/hash_policy/0/header/header_name";
    assert_eq!(at(&routes, hashed), "user");
    mesh.edit(
        "rule.yaml",
        &rule("{loadBalancer: {consistentHash: {httpHeaderName: tenant}}}"),
    );
    let told = other.told(&[&name], None).await;
    assert_eq!(at(&told[&name], hashed), "tenant");
}

/// A service to which calls of another are led.
const NEXT: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: next, namespace: shop}
spec: {selector: {app: echo}, ports: [{name: grpc, port: 80, targetPort: 8080}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: echo, namespace: shop}
spec: {hosts: [echo], http: [{route: [{destination: {host: next}}], retries: {attempts: 1, perTryTimeout: 1s}}]}
"#;

#[tokio::test]
async fn a_route_keeps_calls_together_as_where_it_leads_says_and_hears_of_its_changes() {
    let mesh = Mesh::start(&format!("{SHOP}---{NEXT}")).await;
    let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let name = format!("grpc|80||{HOST}");
    let hashed = "/virtual_hosts/0/routes/0/route/hash_policy";
    let routes = client.get(ROUTES, &name, "client-1").await;
    assert_eq!(at(&routes, hashed), &Value::Null);
    page(&mesh, "retries: routes of port 80, route", true).await;
    let rule = rule("{loadBalancer: {consistentHash: {httpHeaderName: user}}}");
    mesh.edit("rule.yaml", &rule.replace("host: echo", "host: next"));
    let told = client.told(&[&name], None).await;
    assert_eq!(
        at(&told[&name], &format!("{hashed}/0/header/header_name")),
        "user"
    );
}

/// Returns true if a new client gets the cluster of the service's subset `one`.
async fn has_part(mesh: &Mesh, account: &str) -> bool {
    let mut client = Stranger::start(mesh, Some(mesh.token(account, None))).await;
    let name = format!("grpc|80|one|{HOST}");
    let whole = name.replace("|one|", "||");
    client.ask(CLUSTER, &[&name, &whole], &format!("{account}-1"));
    let told = client.told(&[&name, &whole], None).await;
    assert!(told.contains_key(&whole), "{told:?}");
    told.contains_key(&name)
}

#[tokio::test]
async fn a_client_is_told_by_the_rule_for_its_namespace_and_its_labels() {
    let mesh = Mesh::start(SHOP).await;
    let rule = |clients: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: echo, namespace: shop}}\n\
             spec: {{host: echo, subsets: [{{name: one, labels: {{app: echo}}}}], {clients}}}\n"
        )
    };
    for (clients, expected) in [
        ("exportTo: [shop]", [true, true]),
        (
            "workloadSelector: {matchLabels: {app: client}}",
            [true, false],
        ),
        (
            "workloadSelector: {matchLabels: {app: echo}}",
            [false, true],
        ),
        ("exportTo: [bank]", [false, false]),
        ("exportTo: [\"*\"]", [true, true]),
    ] {
        mesh.edit("rule.yaml", &rule(clients));
        let begun = std::time::Instant::now();
        loop {
            let mut found = [Vec::new(), Vec::new()];
            // The first client's answer is not the second one's, in either order.
            for _ in 0..2 {
                for (account, found) in ["client", "echo"].iter().zip(&mut found) {
                    found.push(has_part(&mesh, account).await);
                }
            }
            if found == expected.map(|one| vec![one; 2]) {
                break;
            }
            assert!(begun.elapsed() < DEADLINE, "{clients}: {found:?}");
        }
    }
}

#[tokio::test]
async fn a_rule_decides_whether_calls_are_in_mutual_tls_and_who_else_is_not_called() {
    let bare = SECOND_ECHO.replace(", sidecar.istio.io/inject: \"true\"", "");
    let mesh = Mesh::start(&format!("{SHOP}---{bare}")).await;
    let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let name = format!("grpc|80||{HOST}");
    let rows = [
        ("{}", true, vec!["127.1.0.3:8080"], true),
        (
            "{tls: {mode: ISTIO_MUTUAL}}",
            true,
            vec!["127.1.0.3:8080"],
            false,
        ),
        (
            "{tls: {mode: DISABLE}}",
            false,
            vec!["127.1.0.5:8080", "127.1.0.3:8080"],
            false,
        ),
    ];
    for (policy, in_tls, called, is_limit) in rows {
        mesh.edit("rule.yaml", &rule(policy));
        let begun = std::time::Instant::now();
        loop {
            let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
            let cluster = client.get(CLUSTER, &name, "client-1").await;
            let endpoints = client.get(ENDPOINTS, &name, "client-1").await;
            let mut found = addresses(&endpoints);
            let mut wanted = called.clone();
            found.sort();
            wanted.sort();
            let is_in_tls = cluster["transport_socket"].is_object();
            let page = mesh.get("/debug/status").await;
            let is_named = page.contains("plaintext-endpoints: port 80");
            if found == wanted && is_in_tls == in_tls && is_named == is_limit {
                break;
            }
            assert!(
                begun.elapsed() < DEADLINE,
                "{policy}: {found:?} {cluster} {page}"
            );
        }
    }
    // Nobody but those without a sidecar: whoever comes is to prove what it cannot.
    let nobody = SHOP.replace("{app: echo, sidecar", "{app: other, sidecar");
    mesh.edit("mesh.yaml", &format!("{nobody}---{bare}"));
    mesh.edit("rule.yaml", &rule("{tls: {mode: ISTIO_MUTUAL}}"));
    let begun = std::time::Instant::now();
    loop {
        let cluster = client.get(CLUSTER, &name, "client-1").await;
        if cluster.to_string().contains("nobody.invalid") {
            break;
        }
        assert!(begun.elapsed() < DEADLINE, "{cluster}");
        client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    }
}

/// A service of addresses, two of them in one place.
const PLACED: &str = r#"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far, namespace: shop}
spec:
  hosts: [far.example]
  ports: [{number: 80, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints:
  - {address: 127.1.0.21, locality: r/z, weight: 1}
  - {address: 127.1.0.22, locality: r/z, weight: 3}
  - {address: 127.1.0.23, locality: r/y, weight: 1}
"#;

#[tokio::test]
async fn weights_and_places_that_do_not_count_are_limits_for_as_long_as_they_are_there() {
    let far = rule("{outlierDetection: {}}").replace("host: echo", "host: far.example");
    let mesh = Mesh::start(&format!("{SHOP}---{PLACED}---\n{far}")).await;
    let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    client
        .get(CLUSTER, "grpc|80||far.example", "client-1")
        .await;
    for words in ["endpoint-weights: port 80", "locality: port 80"] {
        page(&mesh, words, true).await;
    }
    let alike = PLACED.replace("weight: 3", "weight: 1");
    mesh.edit("mesh.yaml", &format!("{SHOP}---{alike}---\n{far}"));
    page(&mesh, "endpoint-weights", false).await;
    page(&mesh, "locality: port 80", true).await;
    mesh.edit("mesh.yaml", SHOP);
    page(&mesh, "translation_limits", false).await;
}

#[tokio::test]
async fn a_part_of_a_service_is_called_as_its_own_policy_says() {
    let part = "subsets: [{name: v1, labels: {app: echo}, trafficPolicy: {connectionPool: {http: {http2MaxRequests: 3}}, outlierDetection: {}}}]";
    let all = "trafficPolicy: {connectionPool: {http: {http2MaxRequests: 7}}}";
    let rule = format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: echo, namespace: shop}}\n\
         spec: {{host: echo, {all}, {part}}}\n"
    );
    let mesh = Mesh::start(&format!("{SHOP}---\n{rule}")).await;
    let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let names = [format!("grpc|80||{HOST}"), format!("grpc|80|v1|{HOST}")];
    let names = names.each_ref().map(String::as_str);
    client.ask(CLUSTER, &names, "client-1");
    let told = client.told(&names, None).await;
    let most =
        names.map(|name| at(&told[name], "/circuit_breakers/thresholds/0/max_requests").as_u64());
    assert_eq!(most, [Some(7), Some(3)]);
    page(&mesh, "outlier-detection: port 80, subset v1: ", true).await;
}

#[tokio::test]
async fn a_target_behind_a_waypoint_is_refused_by_name_until_it_stands_there_no_more() {
    let own = "metadata: {name: echo, namespace: shop}\nspec:\n  selector";
    let behind = own.replace("shop}", "shop, labels: {istio.io/use-waypoint: gate}}");
    let behind = SHOP.replace(own, &behind);
    assert!(behind.contains("use-waypoint"), "{behind}");
    let mesh = Mesh::start(&behind).await;
    let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    client.ask(LISTENER, &["echo:80"], "client-1");
    let told = client.told(&["echo:80"], None).await;
    assert!(told.is_empty(), "{told:?}");
    let why = "the service is behind the waypoint shop/gate.shop.svc.cluster.local, which gRPC clients do not use";
    page(&mesh, &format!("waypoint: port 80: {why}"), true).await;
    page(&mesh, &format!("shop/{HOST}: {why}"), true).await;
    // Nor is anybody told of it by the names of its parts.
    let name = format!("grpc|80||{HOST}");
    let mut other = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let cluster = other.get(CLUSTER, &name, "client-1").await;
    assert_eq!(cluster, Value::Null);
    mesh.edit("mesh.yaml", SHOP);
    let told = client.told(&["echo:80"], None).await;
    assert_eq!(told.keys().collect::<Vec<_>>(), ["echo:80"]);
    let told = other.told(&[&name], None).await;
    assert!(told.contains_key(&name), "{told:?}");
    page(&mesh, "translation_limits", false).await;
}

/// PeerAuthentication for pods of the service.
fn peers(said: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: echo, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: echo}}}}, {said}}}\n"
    )
}

#[tokio::test]
async fn who_has_a_node_proxy_is_called_in_plaintext_where_it_takes_that_and_that_is_a_limit() {
    let ambient = SHOP.replace(
        "{app: echo, sidecar.istio.io/inject: \"true\"}",
        "{app: echo, istio.io/dataplane-mode: ambient}",
    );
    assert!(ambient.contains("ambient"), "{ambient}");
    let mesh = Mesh::start(&ambient).await;
    let name = format!("grpc|80||{HOST}");
    let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let there = ["127.1.0.3:8080"];
    let endpoints = client.get(ENDPOINTS, &name, "client-1").await;
    assert_eq!(addresses(&endpoints), there);
    page(
        &mesh,
        "tunnel: port 80: endpoints behind a node proxy",
        true,
    )
    .await;
    let mut other = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let cluster = other.get(CLUSTER, &name, "client-1").await;
    assert_eq!(cluster["transport_socket"], Value::Null);
    // The clients learn of each edit: the port takes plaintext or refuses it, by policies that keep their names.
    for (said, is_called) in [
        ("mtls: {mode: STRICT}", false),
        (
            "mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: PERMISSIVE}}",
            true,
        ),
        (
            "mtls: {mode: STRICT}, portLevelMtls: {8081: {mode: PERMISSIVE}}",
            false,
        ),
        ("portLevelMtls: {8081: {mode: STRICT}}", true),
        ("portLevelMtls: {8080: {mode: STRICT}}", false),
        ("mtls: {mode: PERMISSIVE}", true),
    ] {
        mesh.edit("peers.yaml", &peers(said));
        let told = client.told(&[&name], None).await;
        let wanted = if is_called { &there[..] } else { &[] };
        assert_eq!(addresses(&told[&name]), wanted, "{said}");
        let told = other.told(&[&name], None).await;
        let nobody = told[&name].to_string().contains("nobody.invalid");
        assert_eq!(nobody, !is_called, "{said}");
        page(&mesh, "tunnel: port 80", true).await;
    }
    // If a rule demands plaintext, our own sidecars make no tunnel either.
    mesh.edit("peers.yaml", &peers("mtls: {mode: STRICT}"));
    client.told(&[&name], None).await;
    mesh.edit("rule.yaml", &rule("{tls: {mode: DISABLE}}"));
    let told = client.told(&[&name], None).await;
    assert_eq!(addresses(&told[&name]), there);
    page(&mesh, "translation_limits", false).await;
}

/// A workload of the service on another network, and where that is entered.
const FAR: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: istio-system, labels: {topology.istio.io/network: west}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: far, namespace: shop}
spec: {address: 127.1.0.9, network: east, serviceAccount: echo, labels: {app: echo}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: east
  namespace: edge
  labels: {topology.istio.io/network: east}
  annotations: {gateway.istio.io/service-account: gate}
spec:
  gatewayClassName: istio-remote
  addresses: [{value: 192.0.2.9}]
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
"#;

#[tokio::test]
async fn who_is_on_another_network_is_not_called_and_that_is_a_limit() {
    let mesh = Mesh::start(&format!("{SHOP}---{FAR}")).await;
    let name = format!("grpc|80||{HOST}");
    let mut client = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
    let endpoints = client.get(ENDPOINTS, &name, "client-1").await;
    assert_eq!(addresses(&endpoints), ["127.1.0.3:8080"]);
    page(
        &mesh,
        "network: port 80: endpoints on the network east",
        true,
    )
    .await;
    // Nobody near is left: nobody is called, rather than an address that is somebody else's here.
    let nobody = SHOP.replace("{app: echo, sidecar", "{app: other, sidecar");
    mesh.edit("mesh.yaml", &format!("{nobody}---{FAR}"));
    let told = client.told(&[&name], None).await;
    assert!(addresses(&told[&name]).is_empty(), "{told:?}");
    // A part is on our own network alone, for everybody.
    let part = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: echo, namespace: shop}\n\
         spec: {host: echo, subsets: [{name: all, labels: {app: echo}}]}\n";
    mesh.edit("mesh.yaml", &format!("{SHOP}---{FAR}---\n{part}"));
    let name = format!("grpc|80|all|{HOST}");
    let begun = std::time::Instant::now();
    loop {
        let mut other = Stranger::start(&mesh, Some(mesh.token("client", None))).await;
        let cluster = other.get(CLUSTER, &name, "client-1").await;
        if cluster.is_object() {
            let endpoints = other.get(ENDPOINTS, &name, "client-1").await;
            assert_eq!(addresses(&endpoints), ["127.1.0.3:8080"]);
            break;
        }
        assert!(begun.elapsed() < DEADLINE, "{cluster}");
    }
    page(&mesh, "network: port 80, subset all", false).await;
}
