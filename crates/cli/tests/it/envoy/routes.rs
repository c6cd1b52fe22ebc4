//! Route selection by VirtualServices: our route table, from the documents to the bytes of a head, against a stock Envoy with the
//! same documents translated. The test compares the route and the cluster of each request.
//!
//! `VOILE_ROUTE_CASES=1000000 cargo test -p voile --test it -- envoy::routes` compares a million.

mod drawn;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use fastrand::Rng;
use serde_json::{Value, json};
use voile_control::translate::translate;
use voile_model::{Labels, Mesh, Namespace, Port, SourceFile};
use voile_proxy::PredictedRoutes;

use super::process::Envoy;
use crate::mesh::{free_port, local, own_net};

/// Default number of comparisons.
const USUAL: usize = 4_000;
/// Requests to each routed service.
const REQUESTS: usize = 200;
/// Routed services of one Envoy.
const MOST: usize = 250;
/// Connections at a time, and requests under way on each: with three Envoy hangs up.
const CONNECTIONS: usize = 8;
const UNDER_WAY: usize = 2;

/// A request and its description.
struct Case {
    service: usize,
    head: String,
}

/// Result of a request: its route and its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Became {
    NoRoute,
    Went {
        route: String,
        cluster: String,
    },
    /// The route's destination does not exist; in Envoy's words.
    Nowhere(String),
}

#[test]
fn requests_take_the_routes_that_envoy_would_send_them_by() {
    let Some(program) = super::found() else {
        return;
    };
    let wanted = std::env::var("VOILE_ROUTE_CASES").ok();
    let wanted: usize = wanted.and_then(|text| text.parse().ok()).unwrap_or(USUAL);
    let services = wanted.div_ceil(REQUESTS);
    let (mut compared, mut routed, mut nowhere, mut late) = (0, 0, 0, 0);
    for (round, first) in (0..services).step_by(MOST).enumerate() {
        let round = Round::new(&program, round as u64, MOST.min(services - first));
        for (case, became) in round.all() {
            let table = &round.ours[case.service];
            let lot = table.of(case.head.as_bytes()).expect("a request");
            let fits = match (&lot, &became) {
                (None, Became::NoRoute) => true,
                (Some(lot), Became::Went { route, cluster }) => {
                    lot.route == route && lot.to.iter().flatten().any(|to| to == cluster)
                }
                (Some(lot), Became::Nowhere(_)) => lot.to.iter().any(Result::is_err),
                _ => false,
            };
            let document = || {
                let mut all = round.text.split("---\n");
                let name = format!(
                    "kind: VirtualService\nmetadata: {{name: {},",
                    drawn::host(case.service)
                );
                all.find(|one| one.contains(&name))
                    .unwrap_or_default()
                    .to_owned()
            };
            assert!(
                fits,
                "{}\nours: {lot:?}\nEnvoy: {became:?}\n{}",
                case.head,
                document()
            );
            compared += 1;
            routed += usize::from(lot.is_some());
            nowhere += usize::from(matches!(became, Became::Nowhere(_)));
            late += usize::from(lot.is_some_and(|lot| lot.route > "r1"));
        }
    }
    eprintln!(
        "{compared} compared: {routed} took a route, {late} of them a late one, {nowhere} led to nothing"
    );
    // A generator that no longer reaches one of the ends proves nothing about it.
    assert!(
        routed * 5 > compared && (compared - routed) * 20 > compared,
        "{routed}"
    );
    assert!(
        nowhere * 50 > compared && late * 50 > compared,
        "{nowhere} {late}"
    );
}

/// Services with routes, as both read them.
struct Round {
    text: String,
    ours: Vec<PredictedRoutes>,
    seed: u64,
    port: u16,
    at: SocketAddr,
    _envoy: Envoy,
    _folder: tempfile::TempDir,
}

impl Round {
    fn new(program: &Path, seed: u64, services: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (net, port) = (own_net(), free_port());
        let text = drawn::mesh(&mut Rng::with_seed(seed), services, (net, port));
        let config = folder.path().join("config");
        std::fs::create_dir(&config).expect("a folder");
        std::fs::write(config.join("mesh.yaml"), &text).expect("written");
        let (mesh, diagnostics) =
            voile_model::check(&[SourceFile::new("mesh.yaml", text.clone())], None);
        let error = diagnostics.iter().find(|one| one.is_error());
        assert!(error.is_none(), "{error:?}");
        let admin = local(free_port());
        let reply = local(free_port());
        let bootstrap = bootstrap(folder.path(), &config, admin, reply);
        Self {
            ours: ours(&mesh, services, port),
            text,
            seed,
            port,
            at: SocketAddr::from(([net[0], net[1], net[2], 100], port)),
            _envoy: Envoy::start(program, &bootstrap, admin),
            _folder: folder,
        }
    }

    /// All requests of the round, with their results at Envoy.
    fn all(&self) -> Vec<(Case, Became)> {
        let share = |thread: usize| {
            let services = self.ours.len();
            let mine = (0..services).filter(move |number| number % CONNECTIONS == thread);
            mine.flat_map(move |service| {
                let mut random = Rng::with_seed(self.seed << 32 | service as u64);
                (0..REQUESTS).map(move |_| Case {
                    service,
                    head: drawn::request(&mut random, service, self.port),
                })
            })
            .collect::<Vec<Case>>()
        };
        std::thread::scope(|scope| {
            let threads =
                (0..CONNECTIONS).map(|thread| scope.spawn(move || ask(self.at, share(thread))));
            let threads: Vec<_> = threads.collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("answers"))
                .collect()
        })
    }
}

fn ours(mesh: &Mesh, services: usize, port: u16) -> Vec<PredictedRoutes> {
    let (snapshot, problems) = translate(mesh, None);
    assert!(problems.is_empty(), "{problems:?}");
    let namespace = Namespace::new("shop").expect("a name");
    let labels: Labels = [("app", drawn::LABELS[0])].into_iter().collect();
    let port = Port::new(port).expect("a port");
    let of = |number: usize| {
        let name = format!("shop/{}.shop.svc.cluster.local", drawn::host(number));
        let told = snapshot.routes_told(&name, &namespace).expect("routes");
        PredictedRoutes::read(told, port, &labels).expect("routes that we read")
    };
    (0..services).map(of).collect()
}

/// Output of `voile export envoy`, changed so that every cluster leads to a listener that answers at once. The answers name the
/// route and the cluster.
fn bootstrap(
    folder: &Path,
    config: &Path,
    admin: SocketAddr,
    reply: SocketAddr,
) -> std::path::PathBuf {
    let mut all = super::exported(config, "shop/client", admin);
    let resources = &mut all["static_resources"];
    for cluster in resources["clusters"].as_array_mut().expect("clusters") {
        let name = cluster["name"].clone();
        let place = json!({ "socket_address": { "address": reply.ip().to_string(), "port_value": reply.port() } });
        *cluster = json!({
            "name": name, "type": "STATIC", "connect_timeout": "60s",
            "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": place } }] }] },
        });
    }
    let listeners = resources["listeners"].as_array_mut().expect("listeners");
    for listener in listeners.iter_mut() {
        telling(listener);
    }
    listeners.push(answering(reply));
    let file = folder.join("envoy.json");
    std::fs::write(&file, all.to_string()).expect("written");
    file
}

/// Answers by these routes say which it was.
fn telling(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(routes) = fields.get_mut("route_config") {
                let header = |name: &str, value: &str| json!({ "header": { "key": name, "value": value }, "keep_empty_value": true });
                routes["response_headers_to_add"] = json!([
                    header("x-flags", "%RESPONSE_FLAGS%"),
                    header("x-route", "%ROUTE_NAME%"),
                    header("x-cluster", "%UPSTREAM_CLUSTER_RAW%")
                ]);
            }
            fields.values_mut().for_each(telling);
        }
        Value::Array(list) => list.iter_mut().for_each(telling),
        _ => {}
    }
}

fn answering(at: SocketAddr) -> Value {
    let router = json!({
        "name": "router",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
    });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "reply",
        "http_filters": [router],
        "route_config": { "virtual_hosts": [{
            "name": "all", "domains": ["*"],
            "routes": [{ "match": { "prefix": "" }, "direct_response": { "status": 200 } }],
        }] },
    });
    json!({
        "name": "reply",
        "address": { "socket_address": { "address": at.ip().to_string(), "port_value": at.port() } },
        "filter_chains": [{ "filters": [{ "name": "http", "typed_config": manager }] }],
    })
}

fn ask(at: SocketAddr, cases: Vec<Case>) -> Vec<(Case, Became)> {
    let mut stream = BufReader::new(TcpStream::connect(at).expect("Envoy listens"));
    stream.get_ref().set_nodelay(true).expect("a socket");
    let mut answers = Vec::with_capacity(cases.len());
    for some in cases.chunks(UNDER_WAY) {
        let heads: String = some.iter().map(|case| case.head.as_str()).collect();
        stream.get_mut().write_all(heads.as_bytes()).expect("sent");
        answers.extend(some.iter().map(|case| answer(&mut stream, case)));
    }
    cases.into_iter().zip(answers).collect()
}

fn answer(stream: &mut BufReader<TcpStream>, case: &Case) -> Became {
    let mut line = String::new();
    stream.read_line(&mut line).expect("an answer");
    let status = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut route, mut cluster, mut flags) = (String::new(), String::new(), String::new());
    let mut length = 0;
    loop {
        line.clear();
        stream.read_line(&mut line).expect("a head");
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        let value = value.trim();
        match name {
            "x-route" => value.clone_into(&mut route),
            "x-cluster" => value.clone_into(&mut cluster),
            "x-flags" => value.clone_into(&mut flags),
            "content-length" => length = value.parse().expect("a length"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("a body");
    match status.as_str() {
        "404" => Became::NoRoute,
        "503" => Became::Nowhere(format!("{flags} {route}")),
        "200" => Became::Went { route, cluster },
        other => panic!("{other}: {}", case.head),
    }
}
