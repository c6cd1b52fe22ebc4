//! Limits that a service counts for several proxies together: a real one over gRPC, which may be over its limit, slow, dead or
//! lying, beside limits of our own, external authorization and delays.

use std::net::SocketAddr;

use http::Request;

use super::limiter::{LIMIT, Limiter};
use super::{ask, field, probe, write};
use crate::gateway::{Edge, NETWORKING, TO_SERVER, http_server, servers};
use crate::mesh::{Answer, HTTP_PORT, Mesh, application, exchange, series, wait_until};
use crate::policies::custom::authorizer::{Authorizer, http as question_of};
use crate::policies::custom::{free, provider};
use crate::traffic::http2::{call, connect, play, serve};

/// Address of the rate limit service, outside of the mesh, and RateLimits that ask it.
pub(crate) struct Place {
    pub(crate) entry: String,
    port: u16,
}

impl Place {
    pub(crate) fn of(at: SocketAddr) -> Self {
        let entry = format!(
            "---\n{NETWORKING}ServiceEntry\nmetadata: {{name: limiter, namespace: shop}}\nspec:\n  hosts: [limiter.test]\n  \
             location: MESH_EXTERNAL\n  resolution: STATIC\n  ports: [{{number: {}, name: grpc, protocol: GRPC}}]\n  \
             endpoints: [{{address: {}}}]\n",
            at.port(),
            at.ip()
        );
        let port = at.port();
        Self { entry, port }
    }

    /// A RateLimit; `global` are further fields of `global`.
    pub(crate) fn limit(&self, name: &str, whom: &str, global: &str, rules: &str) -> String {
        format!(
            "---\napiVersion: voile.dev/v1\nkind: RateLimit\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  {whom}\n  \
             global: {{service: shop/limiter.test, port: {}, domain: shop{global}}}\n  rules: [{rules}]\n",
            self.port
        )
    }

    /// A gateway and the server behind it, each with rules of its own in flow style; the server's has the path `/first` in force.
    pub(crate) fn at_gateway_and_server(&self, edge: &str, inner: &str) -> Edge {
        let gateways = "selector: {matchLabels: {app: gateway}}";
        let inner = format!("{}, {inner}", probe("first"));
        let resources = servers(&http_server("\"*\""))
            + &crate::gateway::routes("shop.example", TO_SERVER)
            + &self.entry
            + &self.limit("edge", gateways, PATIENT, edge)
            + &self.limit("inner", SERVER, PATIENT, &inner);
        let gate = Edge::start("", &resources);
        application::reflect(gate.mesh.http_app());
        wait_until("the way into the mesh", || {
            gate.status("shop.example", "/") == 200
        });
        in_force(&gate.mesh, "/first");
        gate
    }
}

/// The service that counts, a test's own, and RateLimits that ask it.
struct Counted {
    limiter: Limiter,
    place: Place,
}

impl Counted {
    fn start() -> Self {
        let listener = free();
        let place = Place::of(listener.local_addr().expect("an address"));
        let limiter = Limiter::start(listener);
        Self { limiter, place }
    }

    fn limit(&self, name: &str, whom: &str, global: &str, rules: &str) -> String {
        self.place.limit(name, whom, global, rules)
    }

    /// Has these rules in force for the server; `path` is taken by one of them, whose second request is refused.
    fn set(&self, mesh: &Mesh, path: &str, global: &str, rules: &str) {
        let limits = self.limit("calls", SERVER, global, rules);
        write(mesh, &(self.place.entry.clone() + &limits));
        in_force(mesh, path);
    }

    /// A mesh that asks an authorizer, and then the service, about all that its server gets.
    fn beside_authorizer(&self) -> (Mesh, Authorizer) {
        let listener = free();
        let at = listener.local_addr().expect("an address");
        let authorizer = Authorizer::start(listener);
        let mesh = Mesh::start("PERMISSIVE");
        application::reflect(mesh.http_app());
        let shown = ", includeRequestBodyInCheck: {maxRequestBytes: 100000}";
        let rules = format!("{}, {{name: api, {WISHES}}}", probe("first"));
        let resources = provider("envoyExtAuthzGrpc", at, shown)
            + &ask_about("server")
            + &self.place.entry
            + &self.limit("calls", SERVER, PATIENT, &rules);
        write(&mesh, &resources);
        in_force(&mesh, "/first");
        wait_until("the authorizer to be asked", || {
            ask(&mesh, "/deny", "").status == 403
        });
        self.limiter.take();
        (mesh, authorizer)
    }
}

/// A CUSTOM policy for all requests to an application.
fn ask_about(app: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: ask, namespace: shop}}\n\
         spec: {{selector: {{matchLabels: {{app: {app}}}}}, action: CUSTOM, provider: {{name: ext}}, rules: [{{}}]}}\n"
    )
}

/// No test is to fail because the machine is busy.
const PATIENT: &str = ", timeout: 20s";

const SERVER: &str = "targetRefs: [{kind: Service, name: server}]";

/// Descriptors that carry the header `x-do`, the client's wish, to the service.
const WISHES: &str =
    "descriptors: [{entries: [{key: do, header: x-do}, {key: user, header: x-user}]}]";

fn wish(mesh: &Mesh, wish: &str) -> Answer {
    ask(mesh, "/", &format!("x-do: {wish}\r\nx-user: {wish}\r\n"))
}

/// Waits until both workers obey the rule that takes this path.
fn in_force(mesh: &Mesh, path: &str) {
    crate::policies::custom::in_force("the limits", || ask(mesh, path, "").status == 429);
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[test]
fn one_service_counts_for_several_proxies_what_their_rules_describe() {
    let counted = Counted::start();
    let together = "descriptors: [{entries: [{key: all, value: together}]}]";
    let edge = format!("{{match: [{{uri: {{prefix: /edge}}}}], {together}}}");
    let inner = format!(
        "{{name: calls, match: [{{uri: {{prefix: /mesh}}}}], {together}}}, \
         {{name: told, match: [{{uri: {{prefix: /told}}}}], hits: 2, descriptors: [{{entries: [{{key: method, method: true}}, \
         {{key: path, path: true}}]}}, {{entries: [{{key: who, identity: true}}, {{key: user, header: X-User}}]}}, \
         {{entries: [{{key: from, clientAddress: true}}]}}]}}"
    );
    let gate = counted.place.at_gateway_and_server(&edge, &inner);
    let asked = counted.limiter.take();
    assert!(asked.is_empty(), "{asked:?}");
    let statuses = [
        gate.status("shop.example", "/edge/a"),
        gate.status("shop.example", "/edge/b"),
        ask(&gate.mesh, "/mesh/a", "").status,
        ask(&gate.mesh, "/mesh/b", "").status,
        gate.status("shop.example", "/edge/c"),
        ask(&gate.mesh, "/mesh/c", "").status,
        gate.status("shop.example", "/edge/d"),
        gate.status("shop.example", "/other"),
    ];
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 200]);
    assert_eq!(counted.limiter.take(), ["shop 1 all=together"; 7]);
    // The descriptors hold the path as policies read it, and an empty value for a missing header. The answer holds the
    // state of all limits.
    let told = ask(&gate.mesh, "/x/../told/it?query=1", "");
    assert_eq!(told.status, 200);
    let identity = "spiffe://cluster.local/ns/shop/sa/client";
    let client = gate.mesh.client_pod();
    let line = format!("shop 2 method=GET,path=/told/it|who={identity},user=|from={client}");
    assert_eq!(counted.limiter.take(), [line]);
    assert_eq!(
        field(&told, "ratelimit"),
        "\"told\";r=3;t=91, \"told-2\";r=3;t=91, \"told-3\";r=3;t=91"
    );
    let metrics = gate.metrics();
    let labels = ["rate_limit=\"shop/edge\"", "rule=\"edge\""];
    let refused = series(&metrics, "voile_rate_limited_requests_total", &labels);
    assert_eq!(refused, Some(1.0));
}

#[test]
fn what_the_service_says_is_believed_as_far_as_it_may_be() {
    let counted = Counted::start();
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let one = format!(
        "{}, {{name: api, match: [{{uri: {{exact: /}}}}], limits: [{{requests: 100, per: 1h}}], {WISHES}}}",
        probe("first")
    );
    counted.set(&mesh, "/first", PATIENT, &one);
    let first = wish(&mesh, "words");
    assert_eq!(first.status, 200, "{}", first.head);
    assert!(text(&first).contains("x-counted: yes"), "{}", text(&first));
    assert_eq!(field(&first, "x-seen"), "limiter");
    assert_eq!(
        field(&first, "ratelimit-policy"),
        "\"api\";q=100;w=3600, \"api-2\";q=5;w=3600"
    );
    assert!(
        field(&first, "ratelimit").ends_with(", \"api-2\";r=4;t=91"),
        "{}",
        first.head
    );
    for _ in 1..LIMIT {
        assert_eq!(wish(&mesh, "words").status, 200);
    }
    let over = wish(&mesh, "words");
    assert_eq!(over.status, 429);
    assert_eq!(text(&over), "slow down");
    assert_eq!(field(&over, "retry-after"), "91", "{}", over.head);
    assert_eq!(field(&over, "x-seen"), "limiter");
    assert!(field(&over, "ratelimit").ends_with("\"api-2\";r=0;t=91"));
    for bad in ["fail", "undecided", "host", "split"] {
        let answer = wish(&mesh, bad);
        assert_eq!(answer.status, 500, "{bad}: {}", answer.head);
        assert!(!answer.head.contains("forged"), "{}", answer.head);
    }
    let metrics = mesh.server_metrics();
    let labels = ["rate_limit=\"shop/calls\"", "rule=\"api\""];
    let unanswered = series(&metrics, "voile_rate_limits_unanswered_total", &labels);
    assert_eq!(unanswered, Some(4.0));
    let labels = ["response_code=\"500\"", "response_flags=\"RLSE\""];
    assert!(series(&metrics, "istio_requests_total", &labels).is_some());
}

#[test]
fn who_refuses_already_asks_nobody_and_a_service_without_a_word_fails_as_is_said() {
    let counted = Counted::start();
    let mesh = Mesh::start("STRICT");
    application::reflect(mesh.http_app());
    let few = format!(
        "{}, {{name: api, match: [{{uri: {{exact: /}}}}], limits: [{{requests: 1, per: 1h}}], {WISHES}}}",
        probe("second")
    );
    counted.set(&mesh, "/second", PATIENT, &few);
    counted.limiter.take();
    let statuses = [wish(&mesh, "x").status, wish(&mesh, "x").status];
    assert_eq!(statuses, [200, 429]);
    assert_eq!(counted.limiter.take(), ["shop 1 do=x,user=x"]);
    let api = format!("{{name: api, match: [{{uri: {{exact: /}}}}], {WISHES}}}");
    let rules = |name: &str| format!("{}, {api}", probe(name));
    counted.set(
        &mesh,
        "/third",
        &format!(", failOpen: true{PATIENT}"),
        &rules("third"),
    );
    for bad in ["fail", "undecided", "host"] {
        assert_eq!(wish(&mesh, bad).status, 200, "{bad}");
    }
    let over: Vec<u16> = (0..=LIMIT).map(|_| wish(&mesh, "open").status).collect();
    assert_eq!(
        over.last(),
        Some(&429),
        "open is not without limit: {over:?}"
    );
    // A request has a time limit for its wait.
    for (name, global, wanted) in [
        ("fourth", ", timeout: 200ms", 500),
        ("fifth", ", failOpen: true, timeout: 200ms", 200),
    ] {
        counted.set(&mesh, &format!("/{name}"), global, &rules(name));
        assert_eq!(wish(&mesh, "never").status, wanted, "{global}");
    }
    // A service that is not there.
    let nobody = counted.limit("calls", SERVER, "", &rules("sixth"));
    let nobody = nobody.replace("limiter.test", "nobody.test");
    write(&mesh, &nobody);
    in_force(&mesh, "/sixth");
    assert_eq!(wish(&mesh, "x").status, 500);
    write(
        &mesh,
        &nobody
            .replace("domain: shop", "domain: shop, failOpen: true")
            .replace("sixth", "seventh"),
    );
    in_force(&mesh, "/seventh");
    assert_eq!(wish(&mesh, "x").status, 200);
    let late = counted.place.entry.replace("limiter", "nobody");
    crate::gateway::say(&mesh, "late.yaml", &late);
    wait_until("who comes late to be asked", || {
        wish(&mesh, "late").status == 429
    });
}

#[test]
fn who_needs_several_words_gets_them_in_turn() {
    let counted = Counted::start();
    let (mesh, authorizer) = counted.beside_authorizer();
    assert_eq!(ask(&mesh, "/deny", "").status, 403);
    assert!(
        counted.limiter.take().is_empty(),
        "who is denied uses nothing up"
    );
    authorizer.take();
    let long = "long ".repeat(10_000);
    let post = |user: &str| {
        let request = format!(
            "POST /ok HTTP/1.1\r\nHost: server\r\nx-user: {user}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{long}",
            long.len()
        );
        exchange(mesh.http(), request.as_bytes()).expect("an answer")
    };
    for number in 0..=LIMIT {
        let answer = post("one");
        let wanted = if number < LIMIT { 200 } else { 429 };
        assert_eq!(answer.status, wanted, "{number}: {}", answer.head);
        assert!(
            wanted != 200 || text(&answer).ends_with(&long),
            "the whole body"
        );
    }
    let asked = authorizer.take();
    assert_eq!(asked.len(), LIMIT as usize + 1);
    assert_eq!(question_of(&asked[0]).body, long);
}

#[test]
fn streams_and_grpc_calls_that_need_several_words_get_them_in_turn() {
    let counted = Counted::start();
    let (mesh, _authorizer) = counted.beside_authorizer();
    let (app, grpc) = (mesh.grpc_app(), mesh.grpc());
    let address = mesh.inbound(HTTP_PORT);
    play(|| async move {
        let (given_up, _kept) = tokio::sync::mpsc::unbounded_channel();
        serve(app, given_up).await;
        let mut client = connect(address).await;
        for number in 0..=LIMIT {
            let uri = "http://server.shop.svc.cluster.local:8080/ok";
            let request = Request::post(uri)
                .header("x-user", "two")
                .header("content-length", "50000");
            let request = request.body(()).expect("a request");
            let (response, mut send) = client.send_request(request, false).expect("sent");
            send.send_data(vec![b'x'; 50_000].into(), true)
                .expect("sent");
            let response = response.await.expect("an answer");
            let wanted = if number < LIMIT { 200 } else { 429 };
            assert_eq!(response.status(), wanted, "{number}");
            let mut body = response.into_body();
            let mut got = 0;
            while let Some(chunk) = body.data().await {
                let chunk = chunk.expect("a body");
                got += chunk.iter().filter(|byte| **byte == b'x').count();
                let flow = body.flow_control();
                flow.release_capacity(chunk.len()).expect("released");
            }
            assert!(wanted != 200 || got >= 50_000, "the whole body: {got}");
            client = client.ready().await.expect("room");
        }
        let mut calls = connect(grpc).await;
        for expected in ["12"; LIMIT as usize].into_iter().chain(["8"]) {
            let mut question = call("/other");
            let user = "three".parse().expect("a value");
            question.headers_mut().insert("x-user", user);
            let (response, _) = calls.send_request(question, true).expect("sent");
            let response = response.await.expect("an answer");
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["grpc-status"], expected);
            calls = calls.ready().await.expect("room");
        }
    });
}

#[test]
fn a_gateway_asks_for_leave_and_for_counts_and_then_makes_wait() {
    let counted = Counted::start();
    let listener = free();
    let at = listener.local_addr().expect("an address");
    let authorizer = Authorizer::start(listener);
    let delayed = TO_SERVER.replacen(
        '{',
        "{fault: {delay: {fixedDelay: 50ms, percentage: {value: 100}}}, ",
        1,
    );
    let resources = servers(&http_server("\"*\""))
        + &crate::gateway::routes("shop.example", &delayed)
        + &provider("envoyExtAuthzGrpc", at, "")
        + &ask_about("gateway")
        + &counted.place.entry
        + &counted.limit(
            "edge",
            "selector: {matchLabels: {app: gateway}}",
            PATIENT,
            "{descriptors: [{entries: [{key: path, path: true}]}]}",
        );
    let gate = Edge::start("", &resources);
    application::reflect(gate.mesh.http_app());
    wait_until("the way into the mesh", || {
        gate.status("shop.example", "/") != 404 && !counted.limiter.take().is_empty()
    });
    authorizer.take();
    let made_to_wait = || {
        let labels = ["response_code=\"200\"", "response_flags=\"DI\""];
        series(&gate.metrics(), "istio_requests_total", &labels)
    };
    let before = made_to_wait().unwrap_or_default();
    let statuses: Vec<u16> = (0..=LIMIT)
        .map(|_| gate.status("shop.example", "/slow"))
        .collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(authorizer.take().len(), LIMIT as usize + 1);
    assert_eq!(counted.limiter.take(), ["shop 1 path=/slow"; 6]);
    assert_eq!(made_to_wait(), Some(before + 5.0), "after both");
}
