//! HTTP in plaintext at a gateway.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Asking, Edge, NETWORKING, TO_SERVER, body, http_server, routes, say, servers};
use crate::mesh::issuer::Issuer;
use crate::mesh::{Client, HTTP_PORT, Mesh, application, exchange, get, local, series, wait_until};

#[test]
fn hosts_of_a_gateway_are_served_by_the_mesh_in_mutual_tls_and_all_others_are_answered_404() {
    let hosts = r#"shop.example, "*.shop.example", "other/not.example", "./own.example""#;
    let routed = r#"shop.example, "*.shop.example", not.example, own.example, outside.example"#;
    let edge = Edge::start(
        "",
        &(servers(&http_server(hosts)) + &routes(routed, TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || edge.status("shop.example", "/") == 200);
    for (host, status) in [
        ("shop.example", 200),
        ("SHOP.example:8080", 200),
        ("a.shop.example", 200),
        ("b.a.shop.example", 200),
        ("own.example", 200),
        // For routes of another namespace only.
        ("not.example", 404),
        // Routed, and not served.
        ("outside.example", 404),
        ("nobody.example", 404),
        ("shop.example.nobody.example", 404),
    ] {
        assert_eq!(edge.status(host, "/"), status, "{host}");
    }
    // A request without a host matches no virtual host.
    let old = exchange(edge.at(HTTP_PORT), b"GET / HTTP/1.0\r\n\r\n").expect("an answer");
    assert_eq!(old.status, 400);
    let metrics = edge.mesh.server_metrics();
    let caller = [
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/gateway\"",
        "connection_security_policy=\"mutual_tls\"",
    ];
    let found = series(&metrics, "istio_requests_total", &caller);
    assert!(found.is_some_and(|count| count >= 5.0), "{metrics}");
    let metrics = edge.metrics();
    for labels in [
        [
            "reporter=\"source\"",
            "destination_service=\"server.shop.svc.cluster.local\"",
            "response_code=\"200\"",
        ],
        [
            "reporter=\"source\"",
            "response_flags=\"NR\"",
            "response_code=\"404\"",
        ],
    ] {
        let found = series(&metrics, "istio_requests_total", &labels);
        assert!(found.is_some(), "{labels:?}\n{metrics}");
    }
}

#[test]
fn the_mesh_hears_what_is_true_of_a_client_and_nothing_that_it_forged() {
    let edge = Edge::start(
        "",
        &(servers(&http_server("\"*\"")) + &routes("\"*\"", TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || edge.status("shop.example", "/") == 200);
    let forged = "X-Forwarded-For: 10.1.2.3\r\nX-Forwarded-Proto: https\r\n\
                  X-Forwarded-Client-Cert: By=spiffe://cluster.local/ns/shop/sa/admin\r\n\
                  x-envoy-peer-metadata: Zm9yZ2Vk\r\nx-envoy-peer-metadata-id: sidecar~forged\r\n\
                  X-Envoy-External-Address: 10.1.2.3\r\nX-Envoy-Internal: true\r\nx-envoy-max-retries: 99\r\nX-Mine: kept\r\n";
    let answer = edge.ask("GET", "shop.example", "/a?b=c", forged);
    let seen = body(&answer).to_ascii_lowercase();
    assert!(seen.starts_with("get /a?b=c http/1.1\r\n"), "{seen}");
    for line in [
        "\r\nx-mine: kept\r\n",
        "\r\nx-forwarded-for: 10.1.2.3, 127.0.0.1\r\n",
        "\r\nx-forwarded-proto: http\r\n",
        "\r\nx-envoy-external-address: 127.0.0.1\r\n",
    ] {
        assert!(seen.contains(line), "{line:?} in {seen}");
    }
    for gone in [
        "admin",
        "forged",
        "zm9yz2vk",
        "x-envoy-internal",
        "x-envoy-max-retries",
    ] {
        assert!(!seen.contains(gone), "{gone} in {seen}");
    }
    // A path is written in one way before routes and the application see it.
    let answer = edge.ask("GET", "shop.example", "/a/%2e%2e/b", "");
    assert!(body(&answer).starts_with("GET /b HTTP/1.1"), "{answer:?}");
    // A trailer cannot smuggle what the head may not say.
    let smuggled = b"POST / HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\nTrailer: x-forwarded-for\r\nConnection: close\r\n\r\n\
                     0\r\nX-Forwarded-For: 10.9.9.9\r\nx-envoy-peer-metadata-id: sidecar~forged\r\n\r\n";
    let answer = exchange(edge.at(HTTP_PORT), smuggled).expect("an answer");
    assert!(!body(&answer).contains("10.9.9.9"), "{answer:?}");
    // Nor two lengths a second request.
    let smuggled = b"POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\nHost: shop.example\r\n\r\n";
    let answer = exchange(edge.at(HTTP_PORT), smuggled).expect("an answer");
    assert_eq!(answer.status, 400);
}

#[test]
fn proxies_in_front_that_are_believed_say_who_the_client_is_to_the_mesh_and_to_policies() {
    let topology = r#", proxy.istio.io/config: '{"gatewayTopology": {"numTrustedProxies": 1}}'"#;
    let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: away, namespace: shop}\n\
                  spec:\n  selector: {matchLabels: {app: gateway}}\n  action: DENY\n  rules:\n\
                  \x20 - from: [{source: {remoteIpBlocks: [198.51.100.0/24]}}]\n  - to: [{operation: {paths: [/admin*]}}]\n---\n";
    let edge = Edge::start(
        topology,
        &(policy.to_owned() + &servers(&http_server("\"*\"")) + &routes("\"*\"", TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || edge.status("shop.example", "/") == 200);
    let from = |client: &str, proto: &str| {
        let fields =
            format!("X-Forwarded-For: 1.1.1.1, {client}\r\nX-Forwarded-Proto: {proto}\r\n");
        edge.ask("GET", "shop.example", "/", &fields)
    };
    let answer = from("203.0.113.7", "https");
    let seen = body(&answer).to_ascii_lowercase();
    assert!(
        seen.contains("x-envoy-external-address: 203.0.113.7\r\n"),
        "{seen}"
    );
    assert!(seen.contains("x-forwarded-proto: https\r\n"), "{seen}");
    assert!(
        seen.contains("x-forwarded-for: 1.1.1.1, 203.0.113.7, 127.0.0.1\r\n"),
        "{seen}"
    );
    let answer = from("198.51.100.7", "https");
    assert_eq!(
        (answer.status, &*body(&answer)),
        (403, "RBAC: access denied\n")
    );
    // By the path as it is meant, and it is that path which is routed.
    for path in ["/admin", "/admin/x", "/a/../admin", "/%61dmin"] {
        assert_eq!(edge.status("shop.example", path), 403, "{path}");
    }
    assert_eq!(edge.status("shop.example", "/administration"), 403);
    assert_eq!(edge.status("shop.example", "/adm"), 200);
    // The proxy closes a connection at once when it is no longer allowed, even in the middle of a
    // request.
    let metrics = edge.metrics();
    let labels = [
        "reporter=\"source\"",
        "response_code=\"403\"",
        "response_flags=\"UAEX\"",
    ];
    let found = series(&metrics, "istio_requests_total", &labels);
    assert!(found.is_some(), "{metrics}");
}

#[test]
fn a_host_that_is_served_in_tls_only_sends_clients_of_plaintext_there() {
    let redirecting = format!(
        "{{port: {{number: {HTTP_PORT}, name: http, protocol: HTTP}}, hosts: [shop.example], tls: {{httpsRedirect: true}}}}, "
    );
    let all = servers(&(redirecting + &http_server("plain.example")));
    let edge = Edge::start(
        "",
        &(all + &routes("shop.example, plain.example", TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || edge.status("plain.example", "/") == 200);
    let answer = edge.ask("GET", "shop.example:8080", "/a?b=c", "");
    assert_eq!(answer.status, 301);
    let head = answer.head.to_ascii_lowercase();
    assert!(
        head.contains("\r\nlocation: https://shop.example/a?b=c\r\n"),
        "{head}"
    );
}

#[test]
fn several_virtual_services_share_a_host_the_oldest_first_and_what_takes_everything_last() {
    let service = |name: &str, http: &str| {
        format!(
            "{NETWORKING}VirtualService\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  hosts: [shop.example]\n  gateways: [edge, mesh]\n  http: [{http}]\n---\n"
        )
    };
    let answer = |path: &str, subset: &str| {
        format!(
            "{{name: {subset}, match: [{{uri: {{prefix: {path}}}, gateways: [edge]}}], route: [{{destination: {{host: nobody-{subset}}}}}]}}"
        )
    };
    let elsewhere = "{match: [{gateways: [mesh]}], route: [{destination: {host: nobody-mesh}}]}";
    let edge = Edge::start(
        "",
        &(servers(&http_server("shop.example"))
            + &service("a", &format!("{elsewhere}, {TO_SERVER}"))
            + &service("b", &answer("/b", "b"))
            + &service("c", &answer("/b", "c"))),
    );
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || edge.status("shop.example", "/") == 200);
    let answer = edge.ask("GET", "shop.example", "/b/1", "");
    assert_eq!(answer.status, 503);
    assert!(body(&answer).contains("nobody-b"), "{answer:?}");
}

#[test]
fn no_request_is_lost_while_routes_are_edited() {
    let weighted = |one: u32, other: u32| {
        let to = |port: u32, weight: u32| {
            format!("{{destination: {{host: server, port: {{number: {port}}}}}, weight: {weight}}}")
        };
        format!("{{route: [{}, {}]}}", to(8080, one), to(8080, other))
    };
    let edge = Arc::new(Edge::start(
        "",
        &(servers(&http_server("shop.example")) + &routes("shop.example", &weighted(100, 0))),
    ));
    application::reflect(edge.mesh.http_app());
    wait_until("a route", || edge.status("shop.example", "/") == 200);
    let asking = Asking::start(&edge, |edge| edge.status("shop.example", "/") == 200);
    for round in 0..10_u32 {
        let marked = format!(
            "{{match: [{{uri: {{exact: /round-{round}}}}}], route: [{{destination: {{host: nobody}}}}]}}, "
        );
        let text = servers(&http_server("shop.example, other.example"))
            + &routes(
                "shop.example, other.example",
                &(marked + &weighted(round * 10, 100 - round * 10)),
            );
        say(&edge.mesh, "edge.yaml", &text);
        let path = format!("/round-{round}");
        wait_until("the edit", || edge.status("other.example", &path) == 503);
    }
    asking.lost_nothing();
}

#[test]
fn a_proxy_obeys_nothing_that_is_for_another_role() {
    let mesh = Mesh::start("PERMISSIVE");
    say(&mesh, "gateway.yaml", &super::pod(&mesh, ""));
    say(&mesh, "edge.yaml", &servers(&http_server("\"*\"")));
    let (_proxy, ports) = mesh.start_beside("gateway", &Client::default());
    wait_until("the refusal", || {
        get(mesh.monitoring(), "/debug/status")
            .is_ok_and(|answer| body(&answer).contains("--role gateway"))
    });
    let ready = get(local(ports[2]), "/healthz/ready").expect("an answer");
    assert_eq!(ready.status, 503);
    let outside = mesh.address(super::POD, HTTP_PORT);
    assert!(std::net::TcpStream::connect(outside).is_err());
}

#[test]
fn tokens_are_verified_at_the_door_and_say_what_goes_on() {
    let issuer = Issuer::new("https://issuer.example", "one");
    let rule = crate::policies::tokens::rule(
        &issuer,
        ", outputClaimToHeaders: [{header: x-user, claim: sub}]",
    );
    let select = "selector: {matchLabels: {app: gateway}}";
    let security = format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: door, namespace: shop}}\nspec: {{{select}, jwtRules: [{rule}]}}\n---\n\
         apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: door, namespace: shop}}\n\
         spec: {{{select}, rules: [{{from: [{{source: {{requestPrincipals: [\"*\"]}}}}]}}]}}\n---\n"
    );
    let edge = Edge::start(
        "",
        &(security + &servers(&http_server("\"*\"")) + &routes("\"*\"", TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    let token = issuer.token("anna", json!({}));
    let ask = |token: &str| {
        let fields = format!("Authorization: Bearer {token}\r\nx-user: forged\r\n");
        edge.ask("GET", "shop.example", "/", &fields)
    };
    wait_until("a route", || ask(&token).status == 200);
    let seen = body(&ask(&token)).to_ascii_lowercase();
    assert!(seen.contains("\r\nx-user: anna\r\n"), "{seen}");
    assert!(!seen.contains("forged"), "{seen}");
    assert_eq!(ask("no.token.x").status, 401);
    assert_eq!(edge.status("shop.example", "/"), 403);
}

#[test]
fn a_gateways_log_tells_no_token_of_a_query() {
    let issuer = Issuer::new("https://issuer.example", "one");
    let security = format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: door, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: gateway}}}}, jwtRules: [{}]}}\n---\n",
        crate::policies::tokens::rule(&issuer, ", fromParams: [pass]")
    );
    let edge = Edge::start(
        "",
        &(security + &servers(&http_server("\"*\"")) + &routes("\"*\"", TO_SERVER)),
    );
    application::reflect(edge.mesh.http_app());
    let log = edge.mesh.config().with_file_name("access.log");
    let config = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    \
         accessLogFile: {}\n",
        log.display()
    );
    say(&edge.mesh, "istio.yaml", &config);
    let good = issuer.token("anna", json!({}));
    let told = || std::fs::read_to_string(&log).unwrap_or_default();
    for (token, status) in [(&*good, 200), ("no.token.secret", 401)] {
        let path = format!("/logged?a={status}&pass={token}");
        wait_until("it is told", || {
            let answered = edge.status("shop.example", &path);
            answered == status && told().contains(&format!("/logged?a={status}&pass=-"))
        });
    }
    let told = told();
    assert!(!told.contains(&good) && !told.contains("secret"), "{told}");
}

#[test]
fn a_gateway_routes_by_what_a_verified_token_says_and_by_nobody_elses_word() {
    let issuer = Issuer::new("https://issuer.example", "one");
    let security = format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: door, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: gateway}}}}, jwtRules: [{}]}}\n---\n",
        crate::policies::tokens::rule(&issuer, "")
    );
    let answer = |wanted: &str, status: u16| {
        format!("{{match: [{{{wanted}}}], directResponse: {{status: {status}}}}}")
    };
    let claims = "@request.auth.claims";
    let all = [
        answer(
            &format!("headers: {{\"{claims}.Groups\": {{exact: admins}}}}"),
            201,
        ),
        answer(
            &format!("headers: {{\"{claims}[org][unit.name]\": {{prefix: sales}}}}"),
            202,
        ),
        answer(
            &format!("headers: {{\"{claims}.level\": {{regex: \"[12]\"}}}}"),
            203,
        ),
        answer(&format!("headers: {{\"{claims}.number\": {{}}}}"), 206),
        answer(&format!("withoutHeaders: {{\"{claims}.sub\": {{}}}}"), 401),
        "{directResponse: {status: 200}}".to_owned(),
    ];
    let edge = Edge::start(
        "",
        &(security + &servers(&http_server("\"*\"")) + &routes("\"*\"", &all.join(", "))),
    );
    let ask = |claims: Value| {
        let token = issuer.token("anna", claims);
        let fields = format!("Authorization: Bearer {token}\r\n");
        edge.ask("GET", "shop.example", "/", &fields).status
    };
    wait_until("a route", || ask(json!({})) == 200);
    for (claims, status) in [
        (json!({"Groups": ["users", "admins"]}), 201),
        (json!({"Groups": "admins"}), 201),
        (json!({"groups": "admins", "Groups": ["admins2", 1]}), 200),
        (json!({"org": {"unit.name": "sales-north"}}), 202),
        (
            json!({"org": {"unit": {"name": "sales"}}, "unit.name": "sales"}),
            200,
        ),
        (json!({"level": "2"}), 203),
        (json!({"level": "22"}), 200),
        (json!({"number": 7}), 206),
    ] {
        assert_eq!(ask(claims.clone()), status, "{claims}");
    }
    assert_eq!(edge.status("shop.example", "/"), 401, "without a token");
    // Not by a header that a client makes.
    let forged = edge.ask(
        "GET",
        "shop.example",
        "/",
        "request.auth.claims.Groups: admins\r\n",
    );
    assert_eq!(forged.status, 401);
}

#[test]
fn a_gateway_limits_clients_by_their_address_before_it_routes_them() {
    let resources = servers(&http_server("\"*\"")) + &routes("shop.example", TO_SERVER);
    let rule = "{match: [{authority: {exact: shop.example}, uri: {prefix: /few}}], limits: [{requests: 3, per: 1h, by: {clientAddress: true}}]}";
    let limits = format!(
        "apiVersion: voile.dev/v1\nkind: RateLimit\nmetadata: {{name: edge, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: gateway}}}}, rules: [{rule}]}}\n"
    );
    let topology = r#", proxy.istio.io/config: '{"gatewayTopology": {"numTrustedProxies": 1}}'"#;
    let edge = Edge::start(topology, &(resources + &limits));
    application::reflect(edge.mesh.http_app());
    wait_until("the way into the mesh", || {
        edge.status("shop.example", "/") == 200
    });
    let statuses = |host: &str, client: &str| -> Vec<u16> {
        let fields = format!("X-Forwarded-For: {client}\r\n");
        let ask = |_| edge.ask("GET", host, "/few", &fields).status;
        (0..4).map(ask).collect()
    };
    for client in ["203.0.113.1", "203.0.113.2"] {
        let got = statuses("shop.example", client);
        assert_eq!(got, [200, 200, 200, 429], "{client}");
    }
    let labels = ["response_code=\"429\"", "response_flags=\"RL\""];
    let counted = series(&edge.metrics(), "istio_requests_total", &labels);
    assert_eq!(counted, Some(2.0));
    let other = statuses("other.example", "203.0.113.1");
    assert_eq!(other, [404; 4], "nobody counts these");
}
