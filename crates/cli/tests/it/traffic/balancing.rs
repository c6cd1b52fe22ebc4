//! Load balancing among endpoints, through a control plane and a sidecar with one worker: slow endpoints, failing endpoints,
//! near endpoints, consistent hashing, and limits of requests in flight. Nothing here is timed; the tests count the endpoints
//! that answered.

mod zones;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};

use crate::mesh::{
    Answer, Client, GRPC_PORT, HTTP_PORT, Mesh, application, exchange, series, wait_until,
};
use crate::traffic::http2::play;

/// An application whose answers a test decides.
#[derive(Clone)]
struct App {
    word: &'static str,
    status: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
    /// That is how every second request is answered; the others are answered 200.
    now_and_then: Arc<AtomicBool>,
    /// While it is shut, the application answers no request.
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl App {
    fn serve(word: &'static str, listener: TcpListener) -> Self {
        let app = Self {
            word,
            status: Arc::new(AtomicU16::new(200)),
            asked: Arc::default(),
            now_and_then: Arc::default(),
            gate: Arc::default(),
        };
        let serving = app.clone();
        application::serve(listener, move |stream| {
            let mut reader = BufReader::new(stream);
            while application::read_request(&mut reader).is_some() {
                let answer = serving.answer();
                if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        });
        app
    }

    fn answer(&self) -> String {
        let asked = self.asked.fetch_add(1, SeqCst);
        let (shut, opened) = &*self.gate;
        let opened = opened.wait_while(shut.lock().expect("a lock"), |shut| *shut);
        drop(opened.expect("a lock"));
        let spared = self.now_and_then.load(SeqCst) && asked.is_multiple_of(2);
        let said = self.status.load(SeqCst);
        let (status, word) = (if spared { 200 } else { said }, self.word);
        let length = word.len();
        // Far longer than any test takes.
        let shy = if status == 503 {
            "Retry-After: 250\r\n"
        } else {
            ""
        };
        format!("HTTP/1.1 {status} S\r\n{shy}Content-Length: {length}\r\n\r\n{word}")
    }

    fn shut(&self, shut: bool) {
        *self.gate.0.lock().expect("a lock") = shut;
        self.gate.1.notify_all();
    }

    fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }

    fn answers(&self, status: u16) {
        self.status.store(status, SeqCst);
    }
}

/// A mesh with three servers, the first behind a sidecar, each in a zone of its own.
fn mesh(rule: &str) -> (Mesh, [App; 3]) {
    let mesh = Mesh::start_as(
        "PERMISSIVE",
        &Client {
            arguments: vec!["--workers".into(), "1".into()],
            ..Client::default()
        },
    );
    let pod = |(name, last, zone): (&str, u8, &str)| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: server-{name}\n  namespace: shop\n\
             \x20 labels: {{app: server, sidecar.istio.io/inject: \"false\", topology.kubernetes.io/region: {zone}, topology.kubernetes.io/zone: {zone}-1}}\n\
             spec:\n  containers: [{{name: app}}]\nstatus: {{phase: Running, podIP: {}}}\n",
            mesh.address(last, 0).ip()
        )
    };
    let pods: String = [("b", 3, "north"), ("c", 4, "south")].map(pod).concat();
    let apps = [
        App::serve("a", mesh.http_app()),
        App::serve("b", listener(mesh.address(3, HTTP_PORT))),
        App::serve("c", listener(mesh.address(4, HTTP_PORT))),
    ];
    say(&mesh, "pods.yaml", &pods);
    let to = mesh.http();
    let mut seen = BTreeSet::new();
    wait_until("all three", || {
        seen.insert(get(to).1);
        seen.len() == 3
    });
    obey(&mesh, rule);
    (mesh, apps)
}

fn listener(address: SocketAddr) -> TcpListener {
    TcpListener::bind(address).expect("an address")
}

fn say(mesh: &Mesh, name: &str, text: &str) {
    let new = mesh.config().join(format!("{name}.new"));
    std::fs::write(&new, text).expect("written");
    std::fs::rename(&new, mesh.config().join(name)).expect("renamed");
}

/// Waits until the client's sidecar obeys a rule. The rule's mark shows it: a request without a route gets an
/// error.
fn obey(mesh: &Mesh, policy: &str) {
    obey_annotated(mesh, "", policy);
}

/// The same of a rule with annotations.
fn obey_annotated(mesh: &Mesh, annotations: &str, policy: &str) {
    static MARK: AtomicUsize = AtomicUsize::new(0);
    let mark = format!("m{}", MARK.fetch_add(1, SeqCst));
    let head = "apiVersion: networking.istio.io/v1\nkind: ";
    say(
        mesh,
        "rule.yaml",
        &format!(
            "{head}DestinationRule\nmetadata: {{name: server, namespace: shop, annotations: {{{annotations}}}}}\nspec:\n  host: server\n\
             \x20 trafficPolicy: {{{policy}}}\n  subsets: [{{name: {mark}, labels: {{version: nobody}}}}]\n\
             ---\n{head}VirtualService\nmetadata: {{name: server, namespace: shop}}\nspec:\n  hosts: [server]\n  http:\n\
             \x20 - match: [{{uri: {{exact: /{mark}}}}}]\n    route: [{{destination: {{host: server, subset: {mark}}}}}]\n\
             \x20 - route: [{{destination: {{host: server}}}}]\n"
        ),
    );
    let to = mesh.http();
    wait_until("the rule", || {
        ask(to, &format!("/{mark}"), "").status == 503
    });
}

fn ask(to: SocketAddr, path: &str, headers: &str) -> Answer {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: server\r\n{headers}Connection: close\r\n\r\n");
    exchange(to, request.as_bytes()).expect("an answer")
}

fn word(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

fn get(to: SocketAddr) -> (u16, String) {
    let answer = ask(to, "/", "");
    (answer.status, word(&answer))
}

/// Sends so many requests, one after the other, and counts them by the application that answered.
fn shares(to: SocketAddr, requests: usize) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for _ in 0..requests {
        let (status, word) = get(to);
        assert_eq!(status, 200, "{word}");
        *shares.entry(word).or_default() += 1;
    }
    shares
}

/// Asks on a thread of its own.
fn begin(to: SocketAddr) -> Receiver<(u16, String)> {
    let (answered, answer) = channel();
    std::thread::spawn(move || answered.send(get(to)));
    answer
}

#[test]
fn an_endpoint_that_does_not_answer_is_asked_once_unless_each_has_its_turn() {
    for (policy, held) in [
        ("", 1),
        ("loadBalancer: {simple: LEAST_REQUEST}", 1),
        ("loadBalancer: {simple: ROUND_ROBIN}", 10),
    ] {
        let (mesh, [a, b, c]) = mesh(policy);
        let before = [&a, &b, &c].map(App::asked);
        b.shut(true);
        let mut waiting = Vec::new();
        let mut first = 0;
        for request in 0..30 {
            let asked = b.asked();
            let answer = begin(mesh.http());
            wait_until("an answer, or somebody who waits for one", || {
                b.asked() > asked || answer.try_recv().is_ok()
            });
            if b.asked() > asked {
                waiting.push(answer);
                first = first.max(request);
            }
            // An answer may be here before its proxy has counted it as done: then two would be alike for that moment.
            wait_until("nobody else is being answered", || {
                let open = series(&mesh.client_metrics(), "voile_connections", &[]);
                open == Some(waiting.len() as f64)
            });
        }
        let asked = b.asked() - before[1];
        match held {
            1 => assert!(asked <= 3, "{policy}: {asked}"),
            _ => assert_eq!(asked, held, "{policy}"),
        }
        assert_eq!(a.asked() + c.asked() + asked, before[0] + before[2] + 30);
        b.shut(false);
        for answer in waiting {
            assert_eq!(answer.recv().expect("an answer"), (200, "b".to_owned()));
        }
    }
}

#[test]
fn who_says_retry_after_is_left_alone() {
    let (mesh, [_, b, _]) = mesh("");
    b.answers(503);
    wait_until("its word", || get(mesh.http()).0 == 503);
    let asked = b.asked();
    let shares = shares(mesh.http(), 40);
    assert_eq!(b.asked(), asked, "{shares:?}");
    assert_eq!(shares.len(), 2, "{shares:?}");
}

#[test]
fn requests_of_one_key_keep_together() {
    let hash = |key: &str| format!("loadBalancer: {{consistentHash: {{{key}}}}}");
    let (mesh, _) = mesh(&hash("httpHeaderName: x-user"));
    let to = mesh.http();
    let by = |path: &dyn Fn(u32) -> (String, String)| {
        let of = |user: u32| {
            let (path, headers) = path(user);
            let words: BTreeSet<String> = (0..3).map(|_| word(&ask(to, &path, &headers))).collect();
            assert_eq!(words.len(), 1, "user {user}: {words:?}");
            words.into_iter().next().expect("a word")
        };
        let all: BTreeSet<String> = (0..30).map(of).collect();
        assert_eq!(all.len(), 3, "thirty keys are somebody's each: {all:?}");
    };
    by(&|user| ("/".into(), format!("X-User: {user}\r\n")));
    obey(
        &mesh,
        &hash("httpQueryParameterName: user, maglev: {tableSize: 251}"),
    );
    by(&|user| (format!("/?user={user}"), String::new()));
    obey(
        &mesh,
        &hash("httpCookie: {name: seat, path: /shop, ttl: 0s}"),
    );
    by(&|user| ("/".into(), format!("Cookie: other=1; seat={user}\r\n")));
    obey(&mesh, &hash("useSourceIp: true"));
    let words: BTreeSet<String> = (0..20).map(|_| get(to).1).collect();
    assert_eq!(words.len(), 1, "all come from one address: {words:?}");
}

#[test]
fn who_has_no_cookie_is_given_one_and_keeps_its_endpoint_by_it() {
    let (mesh, _) =
        mesh("loadBalancer: {consistentHash: {httpCookie: {name: seat, path: /shop, ttl: 60s}}}");
    let to = mesh.http();
    let mut words = BTreeSet::new();
    for _ in 0..20 {
        let first = ask(to, "/", "");
        let line = first
            .head
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        let line = line.unwrap_or_else(|| panic!("a cookie: {}", first.head));
        assert!(
            line.contains("; Max-Age=60; Path=/shop; HttpOnly"),
            "{line}"
        );
        let pair = line.split(';').next().expect("a pair");
        for _ in 0..3 {
            let next = ask(to, "/", &format!("Cookie: {pair}\r\n"));
            assert_eq!(word(&next), word(&first), "{pair}");
            assert!(!next.head.contains("set-cookie"), "{}", next.head);
        }
        words.insert(word(&first));
    }
    assert!(words.len() > 1, "{words:?}");
}

#[test]
fn who_answers_badly_is_put_out_and_comes_back() {
    let rule = |base: &str| {
        format!(
            "loadBalancer: {{simple: ROUND_ROBIN}}, outlierDetection: {{consecutive5xxErrors: 2, interval: 1s, \
             baseEjectionTime: {base}, maxEjectionPercent: 50}}"
        )
    };
    let (mesh, [_, b, _]) = mesh(&rule("1h"));
    let to = mesh.http();
    let out = |mesh: &Mesh| {
        let cluster = "cluster=\"outbound|8080||server.shop.svc.cluster.local\"";
        series(&mesh.client_metrics(), "voile_outliers_out", &[cluster])
    };
    assert_eq!(out(&mesh), Some(0.0));
    b.answers(500);
    wait_until("it is out", || {
        get(to);
        out(&mesh) == Some(1.0)
    });
    let asked = b.asked();
    b.answers(200);
    let others = shares(to, 30);
    assert_eq!((others.len(), b.asked()), (2, asked), "{others:?}");
    let metrics = mesh.client_metrics();
    let ejected = series(&metrics, "voile_outliers_ejected_total", &[]);
    assert_eq!(ejected, Some(1.0));
    // The proxy drops its outlier state with the rule.
    obey(&mesh, "");
    wait_until("all three again", || get(to).1 == "b");
    obey(&mesh, &rule("1s"));
    b.answers(500);
    wait_until("it is out again", || {
        get(to);
        out(&mesh) == Some(1.0)
    });
    b.answers(200);
    wait_until("it is back", || get(to) == (200, "b".to_owned()));
}

#[test]
fn who_succeeds_less_often_than_the_others_is_put_out_and_comes_back() {
    // Of three endpoints one can be 1.41 deviations off.
    let annotations = "voile.dev/success_rate_minimum_hosts: \"3\", voile.dev/success_rate_request_volume: \"10\", \
                       voile.dev/success_rate_stdev_factor: \"1300\"";
    let rule = |base: &str| {
        format!(
            "loadBalancer: {{simple: ROUND_ROBIN}}, \
             outlierDetection: {{consecutive5xxErrors: 0, interval: 1s, baseEjectionTime: {base}, maxEjectionPercent: 50}}"
        )
    };
    let (mesh, [_, b, _]) = mesh("");
    let to = mesh.http();
    let out = || {
        let cluster = "cluster=\"outbound|8080||server.shop.svc.cluster.local\"";
        series(&mesh.client_metrics(), "voile_outliers_out", &[cluster])
    };
    obey_annotated(&mesh, annotations, &rule("1h"));
    // It never fails twice in a row, so that nothing else puts it out.
    b.answers(500);
    b.now_and_then.store(true, SeqCst);
    let mut answers = BTreeSet::new();
    wait_until("it is out", || {
        answers.extend((0..30).map(|_| get(to)));
        out() == Some(1.0)
    });
    let well = (200, "b".to_owned());
    assert!(answers.contains(&well), "{answers:?}");
    let others = shares(to, 30);
    assert!(!others.contains_key("b"), "{others:?}");
    let ejected = series(&mesh.client_metrics(), "voile_outliers_ejected_total", &[]);
    assert_eq!(ejected, Some(1.0));
    // The proxy drops its outlier state with the rule.
    obey(&mesh, "");
    obey_annotated(&mesh, annotations, &rule("1s"));
    wait_until("it is out again", || {
        (0..30).for_each(|_| drop(get(to)));
        out() == Some(1.0)
    });
    b.answers(200);
    wait_until("it is back", || {
        shares(to, 30).contains_key("b") && out() == Some(0.0)
    });
}

/// The client is in B's zone, A in another of its region.
fn put_in_zones(mesh: &Mesh) {
    let written = std::fs::read_to_string(mesh.config().join("mesh.yaml")).expect("the mesh");
    let place = |app: &str, region: &str, zone: &str| {
        format!(
            "    app: {app}\n    version: v1\n    topology.kubernetes.io/region: {region}\n    topology.kubernetes.io/zone: {zone}\n"
        )
    };
    let mut placed = written;
    for (app, zone) in [("client", "north-1"), ("server", "north-2")] {
        let plain = format!("    app: {app}\n    version: v1\n");
        placed = placed.replacen(&plain, &place(app, "north", zone), 1);
    }
    say(mesh, "mesh.yaml", &placed);
}

#[test]
fn what_a_zone_cannot_take_goes_to_the_next() {
    let (mesh, [a, b, c]) = mesh("");
    put_in_zones(&mesh);
    let outliers = "outlierDetection: {consecutive5xxErrors: 1, baseEjectionTime: 1h, maxEjectionPercent: 100}";
    obey(&mesh, outliers);
    let to = mesh.http();
    let all_of = |who: &'static str| {
        wait_until("one zone alone", || {
            shares(to, 10).keys().all(|word| word == who)
        });
        assert_eq!(shares(to, 20), BTreeMap::from([(who.to_owned(), 20)]));
    };
    // B in our zone, A in our region, C elsewhere.
    all_of("b");
    for (sick, next) in [(&b, "a"), (&a, "c")] {
        sick.answers(500);
        wait_until("the next", || get(to) == (200, next.to_owned()));
        all_of(next);
    }
    c.answers(500);
    wait_until("nobody is left", || get(to).0 == 503);
    for app in [&a, &b, &c] {
        app.answers(200);
    }
    obey(&mesh, "");
    wait_until("somebody again", || get(to).0 == 200);
    let distribute = "loadBalancer: {localityLbSetting: {distribute: [{from: north/*, to: {north/north-2: 25, south/*: 75}}]}}";
    obey(&mesh, distribute);
    wait_until("the shares", || !shares(to, 10).contains_key("b"));
    let shared = shares(to, 200);
    assert!(
        !shared.contains_key("b"),
        "its zone has no share: {shared:?}"
    );
    assert!((20..80).contains(&shared["a"]), "a quarter: {shared:?}");
    obey(
        &mesh,
        "loadBalancer: {localityLbSetting: {enabled: false}}, outlierDetection: {}",
    );
    wait_until("all three", || shares(to, 30).len() == 3);
    let by_label = "loadBalancer: {localityLbSetting: {failoverPriority: [\"topology.kubernetes.io/region=south\"]}}";
    obey(&mesh, &format!("{by_label}, {outliers}"));
    all_of("c");
    // The mesh-wide locality setting applies if no rule sets one.
    let all = "localityLbSetting: {distribute: [{from: north/*, to: {north/north-1: 100}}]}";
    let config = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: \"{all}\"}}\n"
    );
    say(&mesh, "config.yaml", &config);
    obey(&mesh, "");
    all_of("b");
}

#[test]
fn a_service_is_called_where_it_is_near_as_long_as_anybody_is_there() {
    let (mesh, [_, b, _]) = mesh("");
    let to = mesh.http();
    let written = std::fs::read_to_string(mesh.config().join("mesh.yaml")).expect("the mesh");
    let pods = std::fs::read_to_string(mesh.config().join("pods.yaml")).expect("the pods");
    let place = "    version: v1\n    topology.kubernetes.io/region: north\n    topology.kubernetes.io/zone: north-1\n";
    // The client, and A, which is on another node; B on the client's; C is elsewhere.
    let mut placed = written.replacen("    version: v1\n", place, 2);
    for node in ["nodeName: one", "nodeName: two"] {
        let spec = "spec:\n  serviceAccountName";
        placed = placed.replacen(spec, &format!("spec:\n  {node}\n  serviceAccountName"), 1);
    }
    let pods = pods.replacen(
        "spec:\n  containers",
        "spec:\n  nodeName: one\n  containers",
        1,
    );
    let distributed = |how: &str| {
        let spec = "spec:\n  selector:\n    app: server\n";
        placed.replacen(spec, &format!("{spec}  {how}\n"), 1)
    };
    let words = |words: &'static [&str]| {
        wait_until("those who are near", || {
            let seen: BTreeSet<String> = shares(to, 20).into_keys().collect();
            seen.iter().eq(words)
        });
    };
    say(&mesh, "pods.yaml", &pods);
    say(
        &mesh,
        "mesh.yaml",
        &distributed("trafficDistribution: PreferClose"),
    );
    words(&["a", "b"]);
    // No endpoint is ejected: the failing one still gets requests.
    b.answers(500);
    wait_until("it is still asked", || get(to) == (500, "b".to_owned()));
    b.answers(200);
    say(
        &mesh,
        "mesh.yaml",
        &distributed("trafficDistribution: PreferSameNode"),
    );
    words(&["b"]);
    // A rule's word counts before the service's.
    obey(&mesh, "loadBalancer: {localityLbSetting: {enabled: false}}");
    words(&["a", "b", "c"]);
    obey(&mesh, "");
    words(&["b"]);
    // Pods that are gone or not ready are no endpoints.
    let (before, after) = pods.split_once("---\n").map_or(("", ""), |both| both);
    let (near, others) = after.split_once("---\n").expect("two pods");
    let unready = near.replace("phase: Running", "phase: Pending");
    say(
        &mesh,
        "pods.yaml",
        &format!("{before}---\n{unready}---\n{others}"),
    );
    words(&["a"]);
    say(&mesh, "pods.yaml", &pods);
    words(&["b"]);
    say(&mesh, "mesh.yaml", &placed);
    words(&["a", "b", "c"]);
}

#[test]
fn what_is_too_much_is_refused_at_once() {
    let (mesh, [a, b, c]) = mesh("connectionPool: {http: {http2MaxRequests: 2}}");
    let to = mesh.http();
    for app in [&a, &b, &c] {
        app.shut(true);
    }
    let total = || a.asked() + b.asked() + c.asked();
    let before = total();
    let two = [begin(to), begin(to)];
    wait_until("two are under way", || total() == before + 2);
    let refused = ask(to, "/", "");
    assert_eq!(refused.status, 503);
    assert!(word(&refused).contains("overflow"), "{refused:?}");
    for app in [&a, &b, &c] {
        app.shut(false);
    }
    assert!(
        two.into_iter()
            .all(|one| one.recv().expect("an answer").0 == 200)
    );
    wait_until("there is room again", || get(to).0 == 200);
    let labels = ["response_code=\"503\"", "response_flags=\"UO\""];
    let counted = series(&mesh.client_metrics(), "istio_requests_total", &labels);
    assert_eq!(counted, Some(1.0));
}

#[test]
fn requests_wait_for_a_connection_as_long_as_there_is_room_to_wait() {
    let pool = "connectionPool: {tcp: {maxConnections: 1}, http: {http1MaxPendingRequests: 1}}";
    let (mesh, [a, b, c]) = mesh(&format!(
        "{pool}, loadBalancer: {{consistentHash: {{httpHeaderName: host}}}}"
    ));
    let to = mesh.http();
    let total = || a.asked() + b.asked() + c.asked();
    let before = total();
    for app in [&a, &b, &c] {
        app.shut(true);
    }
    let first = begin(to);
    wait_until("one is under way", || total() == before + 1);
    // Of three more requests one waits, and the request that finds no room is refused. A connection older than the limit does
    // not count, so that one of them may have its own.
    let mut others = vec![begin(to), begin(to), begin(to)];
    let mut refused = Vec::new();
    wait_until("all but who waits are told, or under way", || {
        others.retain(|other| {
            let answer = other.try_recv();
            refused.extend(answer.iter().cloned());
            answer.is_err()
        });
        let under_way = total() - before;
        under_way <= 2 && under_way + 1 + refused.len() == 4
    });
    assert!(!refused.is_empty());
    for (status, why) in refused {
        assert_eq!(status, 503);
        assert!(why.contains("overflow"), "{why}");
    }
    for app in [&a, &b, &c] {
        app.shut(false);
    }
    assert_eq!(first.recv().expect("an answer").0, 200);
    for other in others {
        assert_eq!(other.recv().expect("an answer").0, 200);
    }
}

#[test]
fn calls_of_one_connection_are_balanced_each_for_itself() {
    let (mesh, _) = mesh("loadBalancer: {simple: ROUND_ROBIN}");
    play(|| async {
        for (address, who) in [
            (mesh.grpc_app(), "a"),
            (mesh.address(3, GRPC_PORT), "b"),
            (mesh.address(4, GRPC_PORT), "c"),
        ] {
            let listener = tokio::net::TcpListener::bind(address).await;
            let listener = listener.expect("an address");
            tokio::task::spawn_local(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::task::spawn_local(name_self(stream, who));
                }
            });
        }
        let stream = tokio::net::TcpStream::connect(mesh.grpc()).await;
        let handshake = h2::client::handshake(stream.expect("a connection")).await;
        let (mut client, connection) = handshake.expect("a handshake");
        tokio::task::spawn_local(connection);
        let mut counts = BTreeMap::<String, usize>::new();
        for _ in 0..30 {
            let request = http::Request::post("http://server/who")
                .header("content-type", "application/grpc")
                .header("te", "trailers");
            client = client.ready().await.expect("room");
            let sent = client.send_request(request.body(()).expect("a request"), true);
            let answer = sent.expect("sent").0.await.expect("an answer");
            let who = answer.headers().get("x-who");
            let who = who.and_then(|who| who.to_str().ok()).unwrap_or("nobody");
            *counts.entry(who.to_owned()).or_default() += 1;
        }
        let each = ["a", "b", "c"].map(|who| (who.to_owned(), 10));
        assert_eq!(counts, BTreeMap::from(each));
    });
}

/// Answers every call with its name.
async fn name_self(stream: tokio::net::TcpStream, who: &'static str) {
    let mut connection = h2::server::handshake(stream).await.expect("a preface");
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        let answer = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "0")
            .header("x-who", who);
        let sent = respond.send_response(answer.body(()).expect("a head"), true);
        sent.expect("sent");
    }
}
