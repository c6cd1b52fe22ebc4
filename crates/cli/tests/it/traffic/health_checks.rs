//! HealthChecks end to end: a control plane, a gateway, sidecars, and applications that a test makes ill and well. Nothing is timed;
//! what is counted is who was asked what.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Response};

use crate::gateway::{Edge, NETWORKING, TO_SERVER, body, http_server, routes, say, servers};
use crate::mesh::{HTTP_PORT, Mesh, application, get, series, wait_until};

/// Port of the applications.
const PORT: u16 = 14_080;

/// An application whose health a test decides.
#[derive(Clone)]
struct App {
    word: &'static str,
    health: Arc<AtomicU16>,
    /// Questions about its health, and requests of traffic.
    asked: Arc<[AtomicUsize; 2]>,
    /// The head of the last question.
    question: Arc<Mutex<String>>,
}

impl App {
    fn serve(word: &'static str, listener: TcpListener) -> Self {
        let app = Self {
            word,
            health: Arc::new(AtomicU16::new(200)),
            asked: Arc::default(),
            question: Arc::default(),
        };
        let serving = app.clone();
        application::serve(listener, move |stream| {
            let mut reader = BufReader::new(stream);
            while let Some((head, _)) = application::read_request(&mut reader) {
                let about_health = head.starts_with("GET /healthz ");
                serving.asked[usize::from(!about_health)].fetch_add(1, SeqCst);
                let status = match about_health {
                    true => {
                        *serving.question.lock().expect("a lock") = head;
                        serving.health.load(SeqCst)
                    }
                    false => 200,
                };
                let (word, length) = (serving.word, serving.word.len());
                let answer =
                    format!("HTTP/1.1 {status} S\r\nContent-Length: {length}\r\n\r\n{word}");
                if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        });
        app
    }

    fn is(&self, health: u16) {
        self.health.store(health, SeqCst);
    }

    /// Number of health checks that the application got, and number of other requests.
    fn asked(&self) -> [usize; 2] {
        [0, 1].map(|kind| self.asked[kind].load(SeqCst))
    }
}

/// A HealthCheck of the world's host, in the words of a flow.
fn check(more: &str) -> String {
    format!(
        "apiVersion: voile.dev/v1\nkind: HealthCheck\nmetadata: {{name: world, namespace: shop}}\n\
         spec: {{host: world.test, interval: 1s, unhealthyThreshold: 2, healthyThreshold: 2, {more}}}\n"
    )
}

/// A host outside of the mesh whose servers are WorkloadEntries at these addresses.
fn world(protocol: &str, addresses: &[SocketAddr]) -> String {
    let entry = |(index, address): (usize, &SocketAddr)| {
        format!(
            "{NETWORKING}WorkloadEntry\nmetadata: {{name: world-{index}, namespace: shop}}\nspec: {{address: {}, labels: {{app: world}}}}\n---\n",
            address.ip()
        )
    };
    let entries: String = addresses.iter().enumerate().map(entry).collect();
    // Round robin, so that it shows which endpoint is left out.
    let turns = format!(
        "{NETWORKING}DestinationRule\nmetadata: {{name: world, namespace: shop}}\nspec:\n  host: world.test\n  trafficPolicy: {{loadBalancer: {{simple: ROUND_ROBIN}}}}\n---\n"
    );
    entries
        + &turns
        + &format!(
            "{NETWORKING}ServiceEntry\nmetadata: {{name: world, namespace: shop}}\nspec:\n  hosts: [world.test]\n  location: MESH_EXTERNAL\n  resolution: STATIC\n  \
             ports: [{{number: 80, name: out, protocol: {protocol}, targetPort: {PORT}}}]\n  workloadSelector: {{labels: {{app: world}}}}\n"
        )
}

/// Everything for that host to it.
const TO_WORLD: &str = "{route: [{destination: {host: world.test}}]}";

fn edge(protocol: &str, places: &[u8]) -> (Edge, Vec<SocketAddr>) {
    let resources = servers(&http_server("\"*.test\"")) + &routes("world.test", TO_WORLD);
    let edge = Edge::start("", &resources);
    let at = |place: &u8| edge.mesh.address(*place, PORT);
    let addresses: Vec<SocketAddr> = places.iter().map(at).collect();
    say(&edge.mesh, "world.yaml", &world(protocol, &addresses));
    (edge, addresses)
}

/// Endpoints that the gateway finds healthy and unhealthy.
fn found(metrics: &str) -> [Option<f64>; 2] {
    ["healthy", "unhealthy"].map(|state| {
        let state = format!("state=\"{state}\"");
        let labels = ["cluster=\"outbound|80||world.test\"", &*state];
        series(metrics, "voile_health_check_endpoints", &labels)
    })
}

fn finds(edge: &Edge, healthy: f64, unhealthy: f64) {
    wait_until("the gateway to find out", || {
        found(&edge.metrics()) == [Some(healthy), Some(unhealthy)]
    });
}

/// State of each endpoint and its last failure, as the gateway's page shows them.
fn shown(edge: &Edge) -> Vec<String> {
    let dump: serde_json::Value = serde_json::from_str(&edge.dump()).expect("JSON");
    let shown = &dump["health_checks"][0];
    assert_eq!(shown["by"], "shop/world");
    let endpoints = shown["endpoints"].as_array().expect("a list").iter();
    let one = |endpoint: &serde_json::Value| {
        let text = |field: &str| endpoint[field].as_str().map(str::to_owned);
        let said = [text("state"), text("last_failure")];
        said.into_iter().flatten().collect::<Vec<_>>().join(": ")
    };
    endpoints.map(one).collect()
}

/// Sends so many requests through the gateway. Returns each application that answered, once.
fn answering(edge: &Edge, times: usize) -> Vec<String> {
    let ask = |_| {
        let answer = edge.ask("GET", "world.test", "/x", "");
        match answer.status {
            200 => body(&answer),
            status => status.to_string(),
        }
    };
    let mut all: Vec<String> = (0..times).map(ask).collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn who_is_found_unwell_takes_no_traffic_until_it_is_well_again() {
    let (edge, at) = edge("HTTP", &[20, 21]);
    let bound = |at: SocketAddr| TcpListener::bind(at).expect("an address");
    let [a, b] = [("a", at[0]), ("b", at[1])].map(|(word, at)| App::serve(word, bound(at)));
    say(&edge.mesh, "check.yaml", &check("tcp: {}"));
    finds(&edge, 2.0, 0.0);
    assert_eq!(a.asked()[0], 0, "a connection is all that was asked for");
    // A check with another question drops the results of the old one.
    say(&edge.mesh, "check.yaml", &check("http: {path: /healthz}"));
    wait_until("the question", || a.asked()[0] > 0 && b.asked()[0] > 0);
    finds(&edge, 2.0, 0.0);
    assert_eq!(
        *a.question.lock().expect("a lock"),
        "GET /healthz HTTP/1.1\r\nhost: world.test\r\nuser-agent: Voile/HC\r\n\r\n"
    );
    assert_eq!(answering(&edge, 40), ["a", "b"]);
    a.is(500);
    finds(&edge, 1.0, 1.0);
    let before = a.asked();
    assert_eq!(answering(&edge, 40), ["b"]);
    wait_until("it is asked on", || a.asked()[0] > before[0] + 1);
    assert_eq!(a.asked()[1], before[1], "nothing but questions");
    assert_eq!(
        shown(&edge),
        ["unhealthy: GET /healthz is answered 500", "healthy"]
    );
    // Without a healthy endpoint requests fail, unless panic mode applies.
    b.is(404);
    finds(&edge, 0.0, 2.0);
    assert_eq!(answering(&edge, 4), ["503"]);
    let panics = "http: {path: /healthz}, panicThreshold: 51";
    say(&edge.mesh, "check.yaml", &check(panics));
    wait_until("panic", || answering(&edge, 20) == ["a", "b"]);
    a.is(200);
    finds(&edge, 1.0, 1.0);
    assert_eq!(
        answering(&edge, 20),
        ["a", "b"],
        "half is fewer than 51 in 100"
    );
    let lenient = "http: {path: /healthz, expectedStatuses: [{start: 200, end: 201}, {start: 404, end: 405}]}";
    say(&edge.mesh, "check.yaml", &check(lenient));
    finds(&edge, 2.0, 0.0);
    std::fs::remove_file(edge.mesh.config().join("check.yaml")).expect("removed");
    wait_until("nobody to ask", || found(&edge.metrics()) == [None, None]);
}

#[test]
fn status_says_whose_endpoint_is_unwell_by_whose_word_and_why_as_long_as_it_is() {
    let (mut edge, at) = edge("HTTP", &[20, 21]);
    let bound = |at: SocketAddr| TcpListener::bind(at).expect("an address");
    let [a, _b] = [("a", at[0]), ("b", at[1])].map(|(word, at)| App::serve(word, bound(at)));
    let asks = check("http: {path: /healthz}");
    say(&edge.mesh, "check.yaml", &asks);
    finds(&edge, 2.0, 0.0);
    let told = |mesh: &Mesh| crate::control_plane::insight::asked(mesh, &["status"]).1;
    assert!(
        !told(&edge.mesh).contains("UNHEALTHY"),
        "{}",
        told(&edge.mesh)
    );
    let is_told = |mesh: &Mesh| {
        let words = [
            "outbound|80||world.test",
            "WorkloadEntry shop/world-0",
            " shop/world ",
            "gateway",
            "GET /healthz is answered 500",
        ];
        let text = told(mesh);
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with(&format!("{} ", at[0])));
        line.is_some_and(|line| words.iter().all(|word| line.contains(word)))
    };
    a.is(500);
    wait_until("it is told", || is_told(&edge.mesh));
    let (_, page) = crate::control_plane::insight::asked(&edge.mesh, &["status", "--json"]);
    let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    let proxies = page["proxies"].as_array().expect("a list").iter();
    let mut found = proxies.filter_map(|proxy| proxy["unhealthy"].as_array());
    let only = found.next().expect("somebody found it");
    assert_eq!((only.len(), found.count()), (1, 0), "{page:#}");
    let document = only[0]["document"].as_str().expect("a place");
    assert!(document.contains("world.yaml:"), "{document}");
    // The next control plane gets the health report, too.
    edge.mesh.kill_control();
    edge.mesh.restart_control();
    wait_until("another control plane is told", || is_told(&edge.mesh));
    a.is(200);
    wait_until("it is well", || !told(&edge.mesh).contains("UNHEALTHY"));
    // An endpoint without a check is not reported as unhealthy.
    a.is(500);
    wait_until("it is told again", || is_told(&edge.mesh));
    std::fs::remove_file(edge.mesh.config().join("check.yaml")).expect("removed");
    wait_until("nobody asks", || !told(&edge.mesh).contains("UNHEALTHY"));
}

/// The same of the mesh's own server.
fn found_server(metrics: &str, state: &str) -> Option<f64> {
    let state = format!("state=\"{state}\"");
    let cluster = "cluster=\"outbound|8080||server.shop.svc.cluster.local\"";
    series(metrics, "voile_health_check_endpoints", &[cluster, &state])
}

#[test]
fn questions_travel_as_traffic_does_and_sidecars_ask_where_they_are_selected() {
    let resources = servers(&http_server("\"*.test\"")) + &routes("server.test", TO_SERVER);
    let edge = Edge::start("", &resources);
    let app = App::serve("s", edge.mesh.http_app());
    let check = |more: &str| {
        let text = format!(
            "apiVersion: voile.dev/v1\nkind: HealthCheck\nmetadata: {{name: server, namespace: shop}}\n\
             spec: {{host: server, port: {HTTP_PORT}, interval: 1s, http: {{path: /healthz}}, {more}}}\n"
        );
        say(&edge.mesh, "check.yaml", &text);
    };
    check("unhealthyThreshold: 1");
    // It takes nothing but mutual TLS.
    wait_until("the gateway to find it well", || {
        found_server(&edge.metrics(), "healthy") == Some(1.0)
    });
    let gateway = "source_principal=\"spiffe://cluster.local/ns/shop/sa/gateway\"";
    let counted = series(
        &edge.mesh.server_metrics(),
        "istio_requests_total",
        &[gateway],
    );
    assert!(counted.is_some_and(|count| count > 0.0), "{counted:?}");
    assert_eq!(found_server(&edge.mesh.client_metrics(), "healthy"), None);
    app.is(503);
    wait_until("the gateway to find it unwell", || {
        found_server(&edge.metrics(), "unhealthy") == Some(1.0)
    });
    assert_eq!(edge.status("server.test", "/x"), 503);
    let straight = |mesh: &Mesh| get(mesh.http(), "/x").expect("an answer").status;
    assert_eq!(straight(&edge.mesh), 200, "who does not ask goes on");
    check("unhealthyThreshold: 1, selector: {matchLabels: {app: client}}");
    wait_until("the client's sidecar to find it unwell", || {
        found_server(&edge.mesh.client_metrics(), "unhealthy") == Some(1.0)
    });
    assert_eq!(straight(&edge.mesh), 503);
    wait_until("the gateway to ask no more", || {
        found_server(&edge.metrics(), "healthy").is_none()
    });
    assert_eq!(edge.status("server.test", "/x"), 200);
}

/// A gRPC server whose health is this, as the protocol numbers it.
fn health_server(address: SocketAddr) -> Arc<AtomicU8> {
    let health = Arc::new(AtomicU8::new(1));
    let answering = Arc::clone(&health);
    let listener = TcpListener::bind(address).expect("an address");
    listener.set_nonblocking(true).expect("a socket");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            while let Ok((stream, _)) = listener.accept().await {
                let health = Arc::clone(&answering);
                tokio::task::spawn_local(async move {
                    let Ok(mut connection) = h2::server::handshake(stream).await else {
                        return;
                    };
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        let asked = request.uri().path() == "/grpc.health.v1.Health/Check";
                        let status = if asked { "0" } else { "12" };
                        let head = Response::builder().header("content-type", "application/grpc");
                        let head = head.body(()).expect("a head");
                        let mut send = respond.send_response(head, false).expect("sent");
                        let said = Bytes::from(vec![0, 0, 0, 0, 2, 8, health.load(SeqCst)]);
                        send.send_data(said, false).expect("sent");
                        let mut trailers = HeaderMap::new();
                        trailers.insert("grpc-status", status.parse().expect("a value"));
                        send.send_trailers(trailers).expect("sent");
                    }
                });
            }
        });
    });
    health
}

#[test]
fn servers_of_grpc_are_asked_by_its_own_health_protocol_and_silence_is_no_answer() {
    // The second endpoint sends nothing, and the third has no listener.
    let (edge, at) = edge("GRPC", &[20, 21, 22]);
    let health = health_server(at[0]);
    let _silent = TcpListener::bind(at[1]).expect("an address");
    let asked = "grpc: {service: shop.Books}";
    say(&edge.mesh, "check.yaml", &check(asked));
    finds(&edge, 1.0, 2.0);
    let not_serving = 2;
    health.store(not_serving, SeqCst);
    finds(&edge, 0.0, 3.0);
    health.store(1, SeqCst);
    finds(&edge, 1.0, 2.0);
    say(&edge.mesh, "check.yaml", &check("tcp: {}"));
    finds(&edge, 2.0, 1.0);
    let shown = shown(&edge);
    assert_eq!(shown[..2], ["healthy", "healthy"]);
    assert!(
        shown[2].starts_with("unhealthy: ") && shown[2].contains("refused"),
        "{shown:?}"
    );
}
