//! The mesh's own cases: routes whose parent is a Service hold at its callers' sidecars.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::data::replay;
use super::{Expectation, Heard, answer, backends};
use crate::control_plane::insight::asked;
use crate::gateway::say;
use crate::gateway::streams::{greet, heard};
use crate::mesh::{HTTP_PORT, Mesh, TCP_PORT, application, get, wait_until};

/// Routes of the Service that the client calls, of its own namespace and of another, and who may be led to.
const ROUTES: &str = r#"
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: shop, namespace: infra}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}, {group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: other}], to: [{group: "", kind: Service}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: producer, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: server}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /v1}}]
    backendRefs: [{name: v1, namespace: infra, port: 8080}]
  - matches: [{path: {type: PathPrefix, value: /v2}}, {headers: [{name: version, value: two}]}]
    filters:
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-set, value: by-rule}]}}
    - {type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: x-answered, value: by-rule}]}}
    backendRefs: [{name: v2, namespace: infra, port: 8080}]
  - matches: [{path: {type: PathPrefix, value: /moved}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: example.org, statusCode: 301}}]
  - matches: [{path: {type: PathPrefix, value: /rewritten}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /short}}}]
    backendRefs: [{name: v1, namespace: infra, port: 8080}]
  - matches: [{path: {type: PathPrefix, value: /ungranted}}]
    backendRefs: [{name: app, namespace: apps, port: 8080}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: other-port, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: server, port: 7070}]
  rules: [{matches: [{path: {type: PathPrefix, value: /v1/deeper}}], backendRefs: [{name: v3, namespace: infra, port: 8080}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: consumer, namespace: other}
spec:
  parentRefs: [{group: "", kind: Service, name: server, namespace: shop}]
  rules: [{backendRefs: [{name: v3, namespace: infra, port: 8080}]}]
"#;

/// Results of requests from a namespace whose Service has routes of its own, and of others.
const LINES: [&str; 9] = [
    "GET server /v1 => v1",
    "GET server /v2 => v2 req:x-set=by-rule res:x-answered=by-rule",
    "GET server /elsewhere Version=two => v2",
    "GET server /v2example => 404",
    "GET server /moved => 301 to:http://example.org:8080/moved",
    "GET server /rewritten/long => v1 path:/short/long",
    "GET server /ungranted => 500",
    // The longer path is for another port of the Service.
    "GET server /v1/deeper => v1",
    // Another namespace's route for its own clients does not apply to this client.
    "GET server / => 404",
];

#[test]
fn routes_whose_parent_is_a_service_hold_at_its_callers() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    let heard = Heard::default();
    let resources = backends(&heard) + ROUTES;
    std::fs::write(mesh.config().join("routes.yaml"), resources).expect("written");
    wait_until("the routes", || {
        get(mesh.http(), "/v1").is_ok_and(|answer| answer.body.starts_with(b"v1\n"))
    });
    for line in LINES {
        let expectation = Expectation::read(line);
        let answer = expectation.ask(mesh.http()).expect("an answer");
        assert_eq!(expectation.wrong(&answer), None, "{line}");
    }
    let (_, table) = asked(&mesh, &["status"]);
    let row = |parts: &[&str]| {
        let mut lines = table.lines();
        lines.any(|line| parts.iter().all(|part| line.contains(part)))
    };
    for parts in [
        ["RESOURCE", "OF", "CONDITIONS"],
        [
            "HTTPRoute shop/producer",
            "Service shop/server ",
            "Accepted, ResolvedRefs: RefNotPermitted",
        ],
        [
            "HTTPRoute shop/other-port",
            "Service shop/server, port 7070",
            "Accepted, ResolvedRefs",
        ],
    ] {
        assert!(row(&parts), "{parts:?}: {table}");
    }
    // Without routes the Service is itself again.
    std::fs::remove_file(mesh.config().join("routes.yaml")).expect("removed");
    wait_until("the service itself", || {
        get(mesh.http(), "/elsewhere").is_ok_and(|answer| answer.status == 200)
    });
}

/// A Service of bytes, and its endpoint.
fn elsewhere(at: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: plain, namespace: shop}}\nspec: {{selector: {{app: plain}}, ports: [{{name: tcp, port: 3000, targetPort: {}}}]}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: plain, namespace: shop}}\nspec: {{address: {}, labels: {{app: plain}}}}\n---\n",
        at.port(),
        at.ip()
    )
}

#[test]
fn routes_of_connections_whose_parent_is_a_service_hold_at_its_callers() {
    let mesh = Mesh::start("PERMISSIVE");
    application::reflect(mesh.http_app());
    greet(mesh.tcp_app(), "itself");
    let listener = std::net::TcpListener::bind(mesh.address(20, 0)).expect("an address");
    let plain = listener.local_addr().expect("bound");
    greet(listener, "another");
    let write = |routes: &str| {
        let all = elsewhere(plain) + routes;
        std::fs::write(mesh.config().join("routes.yaml"), all).expect("written");
    };
    let tcp = |port: u16, to: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1alpha2\nkind: TCPRoute\nmetadata: {{name: elsewhere, namespace: shop}}\n\
             spec: {{parentRefs: [{{group: \"\", kind: Service, name: server, port: {port}}}], rules: [{{backendRefs: [{{name: {to}}}]}}]}}\n---\n"
        )
    };
    write(&tcp(TCP_PORT, "plain, port: 3000"));
    wait_until("the route", || heard(mesh.tcp()) == "another");
    // Requests to another port of the Service stay as they are.
    assert_eq!(get(mesh.http(), "/").expect("an answer").status, 200);
    write(&tcp(TCP_PORT, "absent, port: 3000"));
    wait_until("nobody", || heard(mesh.tcp()).is_empty());
    write(&tcp(HTTP_PORT, "plain, port: 3000"));
    wait_until("the Service itself", || heard(mesh.tcp()) == "itself");
}

/// Cases as at a gateway; what is asked stands behind the resources.
const CASES: &str = include_str!("cases/mesh.txt");
/// The Service's second port.
const EXTRA: u16 = 8081;
/// Backends that routes of both namespaces may lead to.
const GRANT: &str = r#"
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: led-to, namespace: infra}
spec:
  from:
  - {group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}
  - {group: gateway.networking.k8s.io, kind: GRPCRoute, namespace: shop}
  - {group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: other}
  to: [{group: "", kind: Service}]
"#;

#[test]
fn what_the_conformance_suite_asks_of_a_mesh_is_answered_as_it_wants() {
    let mesh = Mesh::start("PERMISSIVE");
    mesh.set_extra_egress(Some((EXTRA, "HTTP")));
    let heard = Heard::default();
    answer(mesh.http_app(), "server", Heard::clone(&heard));
    let base = backends(&heard) + GRANT;
    let (mut asked, mut wrong) = (0, String::new());
    for case in CASES.split("=== ").skip(1) {
        let (name, rest) = case.split_once('\n').expect("a name");
        let (said, lines) = rest.split_once(">>>\n").expect("resources and lines");
        // Restores the base first, so that no result of the case before counts.
        say(&mesh, "routes.yaml", &base);
        wait_until("the Service itself", || {
            replay("GET server / => server nores:x-told", mesh.http(), &heard).is_ok()
        });
        say(&mesh, "routes.yaml", &format!("{base}---\n{said}"));
        let lines = lines.lines();
        let lines = lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        for (number, line) in lines.enumerate() {
            let (at, line) = match line.split_once(' ') {
                Some(("extra", rest)) => (mesh.address(100, EXTRA), rest),
                Some(("pod", rest)) => (mesh.inbound(HTTP_PORT), rest),
                _ => (mesh.http(), line),
            };
            if number == 0 {
                wait_until(&format!("{name}: {line}"), || {
                    replay(line, at, &heard).is_ok()
                });
            }
            asked += 1;
            if let Err(why) = replay(line, at, &heard) {
                writeln!(wrong, "{name}: {line}\n    {why}").expect("written");
            }
        }
    }
    assert!(asked >= 50, "{asked}");
    assert!(wrong.is_empty(), "of {asked}:\n{wrong}");
}
