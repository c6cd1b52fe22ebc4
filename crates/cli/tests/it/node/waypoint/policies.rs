//! Policies of a waypoint that aim at it or at a service behind it: tokens, and an external service's decision. Clients with a
//! sidecar go through the waypoint as clients of a node proxy do.

use http::{Method, Request};
use serde_json::json;
use voile_host::netns::Namespace;
use voile_host::netns::rules::PodCapture;

use crate::captured::connect;
use crate::mesh::issuer::Issuer;
use crate::mesh::{Answer, exchange, read_answer, series};
use crate::node::hostile::{answered, calls_by};
use crate::node::mixed::sidecar;
use crate::node::revoked::revoke;
use crate::node::waypoint::hostile::{GATE, WEB, started_with};
use crate::node::*;
use crate::policies::custom::authorizer::Authorizer;
use crate::policies::custom::provider;
use crate::policies::tokens::{ISSUER, rule};

/// A service behind the same waypoint, at which no policy of these tests aims.
pub(crate) const OTHER: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 12);

pub(crate) const SECOND_SERVICE: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: other, namespace: shop, labels: {istio.io/use-waypoint: gate}}\n\
    spec:\n  clusterIP: 10.96.0.12\n  selector: {app: server}\n  ports: [{name: http, port: 80, targetPort: 8081}]\n";

/// Answer to a request with these header lines.
pub(crate) fn asked(from: &Namespace, to: Ipv4Addr, path: &str, lines: &str) -> Option<Answer> {
    let head = format!("GET {path} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n{lines}\r\n");
    let ask = || exchange((to, 80).into(), head.as_bytes());
    from.run(ask).expect("entered").ok()
}

pub(crate) fn status(from: &Namespace, to: Ipv4Addr, path: &str, lines: &str) -> u16 {
    asked(from, to, path, lines).map_or(0, |answer| answer.status)
}

/// Request as the application saw it.
pub(crate) fn seen(from: &Namespace, to: Ipv4Addr, lines: &str) -> String {
    let answer = asked(from, to, "/open", lines).expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.head);
    String::from_utf8_lossy(&answer.body).into_owned()
}

pub(crate) fn believes(target: &str, rule: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: tokens, namespace: shop}}\n\
         spec: {{targetRefs: [{target}], jwtRules: [{rule}]}}\n"
    )
}

pub(crate) const AT_WEB: &str = "{group: \"\", kind: Service, name: web}";
pub(crate) const AT_GATE: &str = "{group: gateway.networking.k8s.io, kind: Gateway, name: gate}";

#[test]
fn tokens_are_looked_at_where_a_request_authentication_aims_and_nowhere_else() {
    let Some((mesh, _node, [client, ..])) = started_with(SECOND_SERVICE) else {
        return;
    };
    let inside = &client.inside;
    let issuer = Issuer::new(ISSUER, "one");
    let bearer = |token: &str| format!("authorization: Bearer {token}\r\n");
    let good = bearer(&issuer.token("me", json!({})));
    let bad = bearer(&Issuer::new(ISSUER, "one").token("me", json!({})));
    wait_until("both services are called through the waypoint", || {
        [WEB, OTHER].map(|to| status(inside, to, "/open", &bad)) == [200, 200]
    });
    let rule = rule(&issuer, ", outputPayloadToHeader: x-claims");
    mesh.write("tokens.yaml", &believes(AT_WEB, &rule));
    wait_until("a bad token is refused", || {
        status(inside, WEB, "/open", &bad) == 401
    });
    assert_eq!(
        status(inside, OTHER, "/open", &bad),
        200,
        "nobody aims there"
    );
    let told = seen(inside, WEB, &(good.clone() + "x-claims: forged\r\n"));
    assert!(told.contains("x-claims: ey"), "{told}");
    assert!(
        !told.contains("forged") && !told.contains("Bearer"),
        "{told}"
    );
    let told = seen(inside, OTHER, "x-claims: own\r\n");
    assert!(told.contains("x-claims: own"), "{told}");
    // Requests without a token pass, until a policy asks for one.
    assert_eq!(status(inside, WEB, "/open", ""), 200);
    mesh.write(
        "ask.yaml",
        &format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: ask, namespace: shop}}\n\
             spec: {{targetRefs: [{AT_WEB}], action: DENY, rules: [{{from: [{{source: {{notRequestPrincipals: [\"{ISSUER}/me\"]}}}}]}}]}}\n"
        ),
    );
    wait_until("a token is asked for", || {
        status(inside, WEB, "/open", "") == 403
    });
    let of_another = bearer(&issuer.token("you", json!({})));
    assert_eq!(status(inside, WEB, "/open", &good), 200);
    assert_eq!(status(inside, WEB, "/open", &of_another), 403);
    // Aimed at the waypoint it holds for all that is behind it.
    mesh.write("tokens.yaml", &believes(AT_GATE, &rule));
    wait_until("it holds for both", || {
        [WEB, OTHER].map(|to| status(inside, to, "/open", &bad)) == [401, 401]
    });
    mesh.remove("ask.yaml");
    mesh.remove("tokens.yaml");
    wait_until("nobody looks at tokens any more", || {
        [WEB, OTHER].map(|to| status(inside, to, "/open", &bad)) == [200, 200]
    });
}

fn limits(target: &str) -> String {
    format!(
        "apiVersion: voile.dev/v1\nkind: RateLimit\nmetadata: {{name: few, namespace: shop}}\nspec:\n  targetRefs: [{target}]\n  \
         rules: [{{match: [{{uri: {{prefix: /few}}}}], limits: [{{requests: 2, per: 3600s, by: {{identity: true}}}}]}}]\n"
    )
}

#[test]
fn requests_are_counted_where_a_rate_limit_aims_by_who_sends_them_and_nowhere_else() {
    let Some((mesh, _node, [client, ..])) = started_with(SECOND_SERVICE) else {
        return;
    };
    let inside = &client.inside;
    wait_until("both services are called through the waypoint", || {
        [WEB, OTHER].map(|to| status(inside, to, "/few", "")) == [200, 200]
    });
    mesh.write("few.yaml", &limits(AT_WEB));
    let mut passed = 0;
    wait_until("who comes too often is told", || {
        let answer = asked(inside, WEB, "/few", "").expect("an answer");
        passed +=
            u32::from(answer.status == 200 && answer.head.contains("ratelimit-policy: \"few\""));
        answer.status == 429
    });
    assert_eq!(
        passed, 2,
        "as many as are allowed, counted from when it holds"
    );
    assert_eq!(status(inside, WEB, "/open", ""), 200, "no rule takes it");
    for _ in 0..4 {
        assert_eq!(status(inside, OTHER, "/few", ""), 200, "nobody aims there");
    }
    // A limit aimed at the waypoint counts all requests, and earlier counts stay.
    mesh.write("few.yaml", &limits(AT_GATE));
    wait_until("it counts requests to both", || {
        status(inside, OTHER, "/few", "") == 429
    });
    assert_eq!(status(inside, WEB, "/few", ""), 429);
    // The proxy counts against a limit of the waypoint's own Pod once.
    mesh.write(
        "few.yaml",
        &limits(AT_GATE).replace("requests: 2", "requests: 1000"),
    );
    let mut told = String::new();
    wait_until("there is room for more", || {
        let answer = asked(inside, OTHER, "/few", "").expect("an answer");
        told = answer.head;
        answer.status == 200
    });
    let policies = told
        .lines()
        .filter(|line| line.starts_with("ratelimit-policy: "));
    let policies: String = policies.collect();
    assert_eq!(policies.matches("\"few\"").count(), 1, "{told}");
    mesh.remove("few.yaml");
    wait_until("nobody counts any more", || {
        [WEB, OTHER].map(|to| status(inside, to, "/few", "")) == [200, 200]
    });
}

#[test]
fn an_external_service_is_asked_about_what_a_custom_policy_aims_at() {
    let Some((mesh, _node, [client, ..])) = started_with(SECOND_SERVICE) else {
        return;
    };
    let inside = &client.inside;
    let at = SocketAddr::from((WORLD, 9191));
    let authorizer = Authorizer::start(listen(&mesh.world, at));
    let custom = format!(
        "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: custom, namespace: shop}}\n\
         spec: {{targetRefs: [{AT_WEB}], action: CUSTOM, provider: {{name: ext}}, rules: [{{to: [{{operation: {{paths: [\"/ask*\"]}}}}]}}]}}\n"
    );
    mesh.write(
        "custom.yaml",
        &(provider("envoyExtAuthzGrpc", at, ", timeout: 5s") + &custom),
    );
    wait_until("what it denies is denied", || {
        status(inside, WEB, "/ask", "x-ask: deny\r\n") == 403 && !authorizer.asked().is_empty()
    });
    assert_eq!(status(inside, WEB, "/ask", "x-ask: yes\r\n"), 200);
    let asked = authorizer.take();
    let source = asked.last().and_then(|asked| asked.source.clone());
    let principal = source.expect("who calls").principal;
    assert_eq!(principal, "spiffe://cluster.local/ns/shop/sa/client");
    assert_eq!(status(inside, WEB, "/open", "x-ask: deny\r\n"), 200);
    assert_eq!(status(inside, OTHER, "/ask", "x-ask: deny\r\n"), 200);
    let asked = authorizer.take();
    assert!(asked.is_empty(), "nobody is asked about others: {asked:?}");
    // Another service's answer does not count for a missing provider.
    mesh.write("custom.yaml", &custom);
    wait_until("what nobody can be asked about is denied", || {
        status(inside, WEB, "/ask", "x-ask: yes\r\n") == 403
    });
    assert_eq!(status(inside, WEB, "/open", ""), 200);
}

/// A pod with a sidecar.
const SIDE: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 8);

const SIDED: &str = "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: side, namespace: shop}\n---\napiVersion: v1\nkind: Pod\n\
    metadata: {name: side, namespace: shop, labels: {app: side, sidecar.istio.io/inject: \"true\"}}\nspec:\n  \
    serviceAccountName: side\n  nodeName: one\n  containers: [{name: app}]\nstatus: {phase: Running, podIP: 10.244.0.8}\n";

/// By when what is revoked must have ended.
const CUT: Duration = Duration::from_secs(20);

/// Its network, and its sidecar.
fn sided(mesh: &mut Mesh) -> Pod {
    let rules = Rules {
        capture: Some(PodCapture {
            control: vec![(WORLD, XDS).into()],
            ..PodCapture::default()
        }),
        ..Rules::default()
    };
    let side = mesh.pod_with("side", SIDE, rules);
    sidecar(mesh, &side);
    side
}

#[test]
fn tunnels_of_a_revoked_caller_end_at_a_waypoint_and_at_a_sidecar_and_no_more_are_taken() {
    let Some((mut mesh, _node, [client, ..])) = started_with(SIDED) else {
        return;
    };
    let side = sided(&mut mesh);
    serve(&side, SIDE);
    let web = SocketAddr::from((WEB, 90));
    wait_until("the service is called through the waypoint", || {
        name(&client.inside, web).as_deref() == Some("first")
    });
    for (at, target) in [(GATE, "10.96.0.11:90"), (SIDE, "10.244.0.8:8080")] {
        let mesh = &mesh;
        let (said, ended, after) = calls_by(mesh, "client", at, async |mut caller, serial| {
            let request = Request::builder().method(Method::CONNECT).uri(target);
            let request = request.body(()).expect("a request");
            let mut ready = caller.clone().ready().await.expect("room");
            let (answer, _send) = ready.send_request(request, false).expect("sent");
            let mut body = answer.await.expect("an answer").into_body();
            let said = body.data().await.expect("a word").expect("whole");
            revoke(mesh, &serial);
            let more = tokio::time::timeout(CUT, body.data()).await;
            let ended = more.is_ok_and(|more| !matches!(more, Some(Ok(_))));
            let after = answered(&mut caller, Method::CONNECT, target).await;
            (said, ended, after.map(|status| status.as_u16()).ok())
        });
        assert!(!said.is_empty() && ended, "{target}");
        assert!(matches!(after, None | Some(401)), "{target}: {after:?}");
    }
    // Others are not meant.
    assert_eq!(name(&client.inside, web).as_deref(), Some("first"));
}

#[test]
fn a_sidecar_calls_what_stands_behind_a_waypoint_through_it() {
    let Some((mut mesh, _node, [.., gate])) = started_with(SIDED) else {
        return;
    };
    let side = sided(&mut mesh);
    let inside = &side.inside;
    // Only the client is allowed. A call past the waypoint would not be checked.
    wait_until("the waypoint's policy holds for a sidecar's call", || {
        status(inside, WEB, "/open", "") == 403
    });
    let tcp = SocketAddr::from((WEB, 90));
    assert_eq!(name(inside, tcp), None, "and for its connections");
    mesh.write(
        "side.yaml",
        &format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: side, namespace: shop}}\n\
             spec: {{targetRefs: [{AT_WEB}], rules: [{{from: [{{source: {{principals: [cluster.local/ns/shop/sa/side]}}}}]}}]}}\n\
             ---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: web, namespace: shop}}\n\
             spec:\n  hosts: [web]\n  http:\n  - headers: {{request: {{add: {{x-route: once}}}}}}\n    \
             route: [{{destination: {{host: web, port: {{number: 80}}}}}}]\n"
        ),
    );
    wait_until("it may, by its own identity", || {
        status(inside, WEB, "/open", "") == 200
    });
    wait_until("its routes are obeyed by the waypoint", || {
        seen(inside, WEB, "").matches("x-route: once").count() > 0
    });
    let told = seen(inside, WEB, "");
    assert_eq!(told.matches("once").count(), 1, "and only there: {told}");
    assert_eq!(name(inside, tcp).as_deref(), Some("first"));
    wait_until("the waypoint counts it by that", || {
        let page = gate.inside.run(|| get(local(15020), "/metrics"));
        let page = page.expect("entered").expect("metrics");
        let page = String::from_utf8(page.body).expect("text");
        let words = [
            "reporter=\"waypoint\"",
            "source_principal=\"spiffe://cluster.local/ns/shop/sa/side\"",
            "destination_service_name=\"web\"",
            "response_code=\"200\"",
        ];
        series(&page, "istio_requests_total", &words).is_some()
    });
    // A waypoint that is not there is not gone past.
    mesh.remove("side.yaml");
    let gone = "apiVersion: v1\nkind: Service\nmetadata: {name: lost, namespace: shop, labels: {istio.io/use-waypoint: gone}}\n\
        spec:\n  clusterIP: 10.96.0.13\n  selector: {app: server}\n  ports: [{name: http, port: 80, targetPort: 8081}]\n";
    mesh.write("lost.yaml", gone);
    wait_until("nobody answers for it", || {
        status(inside, Ipv4Addr::new(10, 96, 0, 13), "/open", "") == 503
    });
}

/// A service that may leave the waypoint.
const MOVING: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 14);

fn moving(labels: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: moving, namespace: shop, labels: {{{labels}}}}}\nspec:\n  \
         clusterIP: {MOVING}\n  selector: {{app: server}}\n  ports: [{{name: http, port: 80, targetPort: 8081}}, {{name: tcp, port: 90, targetPort: 8080}}]\n"
    )
}

#[test]
fn connections_of_a_service_that_leaves_its_waypoint_end_and_come_back_where_it_stands_now() {
    let Some((mesh, _node, [client, _, gate])) = started_with("") else {
        return;
    };
    let inside = &client.inside;
    mesh.write("moving.yaml", &moving("istio.io/use-waypoint: gate"));
    wait_until("it is called", || {
        status(inside, MOVING, "/open", "") == 200
    });
    let page = || {
        let page = gate.inside.run(|| get(local(15020), "/metrics"));
        let page = page.expect("entered").expect("metrics");
        String::from_utf8(page.body).expect("text")
    };
    let counted = |reporter: &str| {
        let words = [
            &*format!("reporter=\"{reporter}\""),
            "destination_service_name=\"moving\"",
        ];
        let all = page();
        let found = all.lines().find(|line| {
            line.starts_with("istio_tcp_connections_opened_total{")
                && words.iter().all(|word| line.contains(word))
        });
        found.map(str::to_owned)
    };
    // One of each kind, open and at rest.
    let mut http = connect(inside, (MOVING, 80));
    let request = b"GET /open HTTP/1.1\r\nhost: moving\r\n\r\n";
    http.write_all(request).expect("open");
    let mut reader = std::io::BufReader::new(http);
    let answer = read_answer(&mut reader).expect("an answer");
    assert_eq!(answer.status, 200);
    let (_, mut bytes) = answers(inside, (MOVING, 90)).expect("the server");
    wait_until("the waypoint counts a connection by who calls", || {
        counted("waypoint").is_some_and(|line| {
            line.contains("source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"")
                && line.contains("destination_workload=\"first\"")
        })
    });
    assert_eq!(counted("source"), None, "and by nobody else");
    mesh.write("moving.yaml", &moving(""));
    let mut rest = Vec::new();
    // A reset is an end, too.
    let ended = [
        reader.read_to_end(&mut rest).map_err(|error| error.kind()),
        bytes.read_to_end(&mut rest).map_err(|error| error.kind()),
    ];
    let reset = std::io::ErrorKind::ConnectionReset;
    let is_end = |end: &Result<usize, _>| matches!(end, Ok(0)) || *end == Err(reset);
    assert!(ended.iter().all(is_end), "{ended:?} {rest:?}");
    assert_eq!(status(inside, MOVING, "/open", ""), 200);
    assert_eq!(name(inside, (MOVING, 90)).as_deref(), Some("first"));
}

#[test]
fn a_request_under_way_through_a_waypoint_is_cut_when_a_policy_forbids_it() {
    let Some((mesh, _node, [client, first, _])) = started_with("") else {
        return;
    };
    let service = moving("istio.io/use-waypoint: gate").replace("8081", "8083");
    mesh.write("moving.yaml", &service);
    let silent = listen(&first.inside, (FIRST, 8083));
    let (heard, under_way) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in silent.incoming() {
            let Ok(mut stream) = stream else { return };
            let begun = matches!(stream.read(&mut [0; 1024]), Ok(1..));
            // Held, and never answered.
            if begun && heard.send(stream).is_err() {
                return;
            }
        }
    });
    let mut asking = None;
    wait_until("a request is under way", || {
        let mut http = connect(&client.inside, (MOVING, 80));
        let request = b"GET /open HTTP/1.1\r\nhost: moving\r\nconnection: close\r\n\r\n";
        http.write_all(request).expect("open");
        let held = under_way.recv_timeout(Duration::from_secs(2));
        asking = held.ok().map(|held| (http, held));
        asking.is_some()
    });
    let (mut http, _held) = asking.expect("under way");
    mesh.write(
        "forbid.yaml",
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: forbid, namespace: shop}\n\
         spec: {targetRefs: [{group: \"\", kind: Service, name: moving}], action: DENY, rules: [{}]}\n",
    );
    let mut rest = Vec::new();
    let ended = http.read_to_end(&mut rest).map_err(|error| error.kind());
    let reset = std::io::ErrorKind::ConnectionReset;
    assert!(ended.is_ok() || ended == Err(reset), "{ended:?}");
    let told = String::from_utf8_lossy(&rest);
    assert!(
        told.is_empty() || told.starts_with("HTTP/1.1 403"),
        "{told}"
    );
}

/// A service of the same application whose port says nothing of its protocol.
const UNDECLARED: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: any, namespace: shop, labels: {istio.io/use-waypoint: gate}}\n\
    spec:\n  clusterIP: 10.96.0.13\n  selector: {app: server}\n  ports: [{name: any, port: 80, targetPort: 8080}]\n";
const ANY: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 13);

#[test]
fn bytes_to_an_undeclared_port_behind_a_waypoint_are_denied_where_something_holds_for_requests() {
    let Some((mesh, _node, [client, ..])) = started_with(UNDECLARED) else {
        return;
    };
    let inside = &client.inside;
    // The application says its name, and then what it hears.
    let echoes = || {
        let (_, mut stream) = answers(inside, (ANY, 80))?;
        stream.write_all(b"\x01 no request\n").ok()?;
        let mut back = [0; 13];
        stream.read_exact(&mut back).ok()?;
        Some(stream)
    };
    // A client that speaks first is refused, too.
    let is_refused = |said: &[u8]| {
        let mut stream = connect(inside, (ANY, 80));
        // A server that refuses may be gone before all was sent.
        let _ = stream.write_all(said);
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        heard.is_empty()
    };
    let at_any = "{group: \"\", kind: Service, name: any}";
    let issuer = Issuer::new(ISSUER, "one");
    for (file, text) in [
        ("tokens.yaml", believes(at_any, &rule(&issuer, ""))),
        ("few.yaml", limits(at_any)),
    ] {
        let mut open = None;
        wait_until("bytes are relayed", || {
            open = echoes();
            open.is_some()
        });
        let mut open = open.expect("relayed");
        mesh.write(file, &text);
        let ended = open.read(&mut [0]);
        assert!(
            matches!(&ended, Ok(0))
                || ended
                    .as_ref()
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset),
            "{file}: what was open is cut: {ended:?}"
        );
        wait_until("bytes are refused", || is_refused(b"\x01 no request\n"));
        assert!(is_refused(b"SSH-2.0-x\r\n"), "{file}");
        mesh.remove(file);
    }
}
