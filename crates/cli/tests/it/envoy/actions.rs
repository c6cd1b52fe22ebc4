//! Route actions of VirtualServices: our sidecar beside a stock Envoy with the same documents translated. Both get the same
//! requests. The test compares the answers, head and body, the requests that arrive at servers, and the copies.
//!
//! `VOILE_ACTION_CASES=1000000 cargo test -p voile --test it -- envoy::actions` compares a million. Known differences are named
//! (`excused`) and counted; any other is an error.

mod drawn;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::process::Envoy;
use crate::mesh::application::{read_request, serve};
use crate::mesh::{
    Answer, Client, Process, free_port, get, local, own_net, read_answer, start_control,
    start_proxy, wait_until,
};
use drawn::{OURS, PODS, THEIRS};

/// Default number of comparisons.
const USUAL: usize = 2_000;
/// Requests to each routed service.
const REQUESTS: usize = 200;
/// Routed services of one round.
const MOST: usize = 100;
/// Connections to each of the two at a time.
const CONNECTIONS: usize = 8;
/// Attempts with our sidecar after a random choice differed from Envoy's.
const DRAWS: usize = 60;
/// Longest wait for copies; no client waits for their answers.
const PATIENCE: Duration = Duration::from_secs(20);
/// Fields that each of the two writes in its own way, or alone, whatever the routes.
const OWN: [&str; 14] = [
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "server",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "via",
    "x-case",
    "x-forwarded-client-cert",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-request-id",
];

/// Fields by name, in the order in which they came.
type Fields = BTreeMap<String, Vec<String>>;

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    status: u16,
    fields: Fields,
    /// Destination of the request, with the request as it arrived: pod, first line, fields. Else
    /// the body of the proxy's answer.
    went: Result<(String, String, Fields), String>,
}

/// Copies: the case, the pod, host and first line, as they arrived from a proxy (by the last byte of its address).
type Copies = Arc<Mutex<BTreeMap<u8, BTreeSet<(String, String)>>>>;

#[test]
fn routes_do_to_requests_what_envoy_would_do() {
    let Some(program) = super::found() else {
        return;
    };
    let wanted = std::env::var("VOILE_ACTION_CASES").ok();
    let wanted: usize = wanted.and_then(|text| text.parse().ok()).unwrap_or(USUAL);
    let first = std::env::var("VOILE_SEED").ok();
    let first: usize = first.and_then(|text| text.parse().ok()).unwrap_or(0);
    let services = wanted.div_ceil(REQUESTS);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (round, begin) in (0..services).step_by(MOST).enumerate() {
        let seed = (first + round) as u64;
        let round = Round::new(&program, seed, MOST.min(services - begin));
        for (what, count) in round.compare() {
            *counts.entry(what).or_default() += count;
        }
        eprintln!("seed {seed}: {counts:?}");
    }
    // A generator that no longer reaches one of the ends proves nothing about it.
    for what in [
        "went",
        "redirected",
        "answered",
        "preflights",
        "faults",
        "copies",
    ] {
        let found = counts.get(what).copied().unwrap_or(0);
        assert!(found * 200 > counts["compared"], "{what}: {counts:?}");
    }
}

/// Both proxies and their upstream servers.
struct Round {
    text: String,
    seed: u64,
    services: usize,
    port: u16,
    at: [SocketAddr; 2],
    copies: Copies,
    /// Cases of ours whose answer was thrown away, and so whose copies are.
    thrown: Mutex<BTreeSet<String>>,
    _processes: (Process, Process, Envoy),
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
        let copies = Copies::default();
        for (last, name) in PODS {
            let at = SocketAddr::from(([net[0], net[1], net[2], last], port));
            application(TcpListener::bind(at).expect("an address"), name, &copies);
        }
        let ports = [free_port(), free_port(), free_port()];
        let control = start_control(folder.path(), ports, None, &[]);
        let own = [free_port(), free_port(), free_port()];
        let ours = start_proxy(folder.path(), ports[0], "ours", own, &Client::default());
        let admin = local(free_port());
        let envoy = Envoy::start(program, &bootstrap(folder.path(), &config, admin), admin);
        wait_until("our sidecar is ready", || {
            get(local(own[2]), "/healthz/ready").is_ok_and(|answer| answer.status == 200)
        });
        let listener = |last: u8| SocketAddr::from(([net[0], net[1], net[2], 100 + last], port));
        Self {
            text,
            seed,
            services,
            port,
            at: [listener(OURS), listener(THEIRS)],
            copies,
            thrown: Mutex::default(),
            _processes: (control, ours, envoy),
            _folder: folder,
        }
    }

    /// Compares all cases. Returns counts by kind, with the excused differences.
    fn compare(&self) -> BTreeMap<String, usize> {
        let counts: Mutex<BTreeMap<String, usize>> = Mutex::default();
        std::thread::scope(|scope| {
            for thread in 0..CONNECTIONS {
                let counts = &counts;
                scope.spawn(move || {
                    let mut clients = self.at.map(Asking::new);
                    for service in (0..self.services).filter(|one| one % CONNECTIONS == thread) {
                        let mut random = Rng::with_seed(self.seed << 32 | service as u64);
                        for number in 0..REQUESTS {
                            let id = format!("{service}-{number}");
                            let head = drawn::request(&mut random, service, (self.port, &id));
                            let said = self.one(&mut clients, (service, &id, &head));
                            let mut counts = counts.lock().expect("counts");
                            for what in said {
                                *counts.entry(what.to_owned()).or_default() += 1;
                            }
                        }
                    }
                });
            }
        });
        let mut counts = counts.into_inner().expect("counts");
        counts.insert("copies".to_owned(), self.copies());
        counts
    }

    /// Asks both, and says what it was about.
    fn one(
        &self,
        clients: &mut [Asking; 2],
        (service, id, head): (usize, &str, &str),
    ) -> Vec<&'static str> {
        let [ours, envoy] = clients;
        envoy.send(head);
        let mut own = ours.ask(head);
        let envoys = envoy.receive(head);
        let mut said = kinds(&envoys, head);
        let (mut mine, mut theirs, mut excuses) = excused(own.clone(), envoys.clone());
        // By one of several ways: chance decides, and may have decided otherwise here.
        // Each of ours has a case of its own, since another way may have another host, which a copy has, too.
        let (mut draws, mut case) = (1, id.to_owned());
        while mine != theirs && draws < DRAWS {
            let again = format!("{id}.{draws}");
            own = ours.ask(&head.replacen(
                &format!("x-case: {id}\r\n"),
                &format!("x-case: {again}\r\n"),
                1,
            ));
            let before = std::mem::replace(&mut case, again);
            self.thrown.lock().expect("cases").insert(before);
            (mine, theirs, excuses) = excused(own.clone(), envoys.clone());
            draws += 1;
        }
        said.extend(excuses);
        if mine != theirs {
            let name = format!("metadata: {{name: {},", drawn::host(service));
            let mut documents = self.text.split("---\n");
            let rules = documents
                .find(|one| one.contains("kind: VirtualService") && one.contains(&name))
                .unwrap_or_default();
            panic!(
                "seed {}\n{head}\nours:  {own:?}\nEnvoy: {envoys:?}\n{rules}",
                self.seed
            );
        }
        said
    }

    /// Copies that both proxies sent; asserts that they are the same.
    fn copies(&self) -> usize {
        let thrown = self.thrown.lock().expect("cases");
        let of = |last: u8| {
            let all = self.copies.lock().expect("copies");
            let all = all.get(&last).into_iter().flatten();
            let kept = all.filter(|(case, _)| last != OURS || !thrown.contains(case));
            // As the case was called at first.
            let first = |case: &str| case.split('.').next().unwrap_or_default().to_owned();
            let kept = kept.map(|(case, what)| (first(case), what.clone()));
            kept.collect::<BTreeSet<(String, String)>>()
        };
        let deadline = Instant::now() + PATIENCE;
        while of(OURS) != of(THEIRS) {
            let (own, envoys) = (of(OURS), of(THEIRS));
            let some = |one: &BTreeSet<(String, String)>, other| {
                one.difference(other).take(5).cloned().collect::<Vec<_>>()
            };
            let apart = [some(&own, &envoys), some(&envoys, &own)];
            assert!(
                Instant::now() < deadline,
                "seed {}: copies by us alone, by Envoy alone: {apart:?}\n{}",
                self.seed,
                self.text
            );
            std::thread::yield_now();
        }
        of(OURS).len()
    }
}

/// Answers with the request as it arrived, under the pod's name; only records copies.
fn application(listener: TcpListener, pod: &'static str, copies: &Copies) {
    let copies = Arc::clone(copies);
    serve(listener, move |stream| {
        let _ = stream.set_nodelay(true);
        let from = match stream.peer_addr() {
            Ok(SocketAddr::V4(address)) => address.ip().octets()[3],
            _ => return,
        };
        let mut reader = BufReader::new(stream);
        while let Some((head, _)) = read_request(&mut reader) {
            let field = |name: &str| {
                let mut lines = head.lines();
                let line = lines.find(|line| line.to_ascii_lowercase().starts_with(name));
                line.and_then(|line| line.split_once(':'))
                    .map(|(_, value)| value.trim().to_owned())
            };
            let host = field("host:").unwrap_or_default();
            if host.contains("-shadow") {
                let case = field("x-case:").unwrap_or_default();
                let line = head.lines().next().unwrap_or_default();
                // See `excused`.
                let line = line.replacen("? HTTP/", " HTTP/", 1);
                let copy = (case, format!("{pod} {host} {line}"));
                let mut copies = copies.lock().expect("copies");
                copies.entry(from).or_default().insert(copy);
            }
            let body = format!("{pod}\n{head}");
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nx: app\r\ny: one\r\ny: two\r\nAccess-Control-Allow-Origin: app\r\n\r\n{body}",
                body.len()
            );
            if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
}

/// Bootstrap of an Envoy in the place of the pod's sidecar.
fn bootstrap(folder: &Path, config: &Path, admin: SocketAddr) -> std::path::PathBuf {
    let all = super::exported(config, "shop/theirs", admin);
    let file = folder.join("envoy.json");
    std::fs::write(&file, all.to_string()).expect("written");
    file
}

/// A connection that is made again when the other end closed it.
struct Asking {
    at: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Asking {
    fn new(at: SocketAddr) -> Self {
        Self { at, stream: None }
    }

    fn send(&mut self, head: &str) {
        let stream = self.stream.get_or_insert_with(|| {
            let stream = TcpStream::connect(self.at).expect("it listens");
            stream.set_nodelay(true).expect("a socket");
            BufReader::new(stream)
        });
        stream.get_mut().write_all(head.as_bytes()).expect("sent");
    }

    fn receive(&mut self, head: &str) -> Outcome {
        let stream = self.stream.as_mut().expect("sent before");
        let answer = read_answer(stream).unwrap_or_else(|error| panic!("{error}: {head}"));
        let closes = answer
            .head
            .to_ascii_lowercase()
            .contains("connection: close");
        if closes {
            self.stream = None;
        }
        outcome(&answer)
    }

    fn ask(&mut self, head: &str) -> Outcome {
        self.send(head);
        self.receive(head)
    }
}

fn fields(head: &str) -> Fields {
    let mut fields = Fields::new();
    for line in head.lines().skip(1) {
        if let Some((name, value)) = line.split_once(':') {
            let name = name.to_ascii_lowercase();
            if !OWN.contains(&&*name) && !name.starts_with("x-envoy-") {
                fields
                    .entry(name)
                    .or_default()
                    .push(value.trim().to_owned());
            }
        }
    }
    fields
}

fn outcome(answer: &Answer) -> Outcome {
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    let arrived = PODS.iter().find_map(|(_, pod)| {
        let head = body.strip_prefix(pod)?.strip_prefix('\n')?;
        let line = head.lines().next().unwrap_or_default();
        Some(((*pod).to_owned(), line.to_owned(), fields(head)))
    });
    Outcome {
        status: answer.status,
        fields: fields(&answer.head),
        went: arrived.ok_or(body),
    }
}

/// Kinds of cases that a comparison covers.
fn kinds(outcome: &Outcome, head: &str) -> Vec<&'static str> {
    let mut kinds = vec!["compared"];
    kinds.push(match (&outcome.went, outcome.status) {
        (Ok(_), _) => "went",
        (Err(_), 301..=308) => "redirected",
        (Err(body), _) if body == "fault filter abort" => "faults",
        (Err(_), 404) => "no route",
        (Err(_), 503) => "nowhere",
        (Err(_), 200)
            if head.starts_with("OPTIONS")
                && outcome.fields.contains_key("access-control-allow-origin") =>
        {
            "preflights"
        }
        (Err(_), _) => "answered",
    });
    kinds
}

/// Removes known differences from both outcomes; returns their names, too.
fn excused(mut ours: Outcome, mut theirs: Outcome) -> (Outcome, Outcome, Vec<&'static str>) {
    let mut excuses = Vec::new();
    // If no route decides, our answer has a text, and Envoy's has the status alone.
    const WORDS: [&str; 2] = [
        "no route of this host's",
        "the destination of the route does not exist",
    ];
    if let (Err(said), Err(envoys)) = (&ours.went, &theirs.went)
        && envoys.is_empty()
        && WORDS.iter().any(|words| said.starts_with(words))
    {
        ours.went = Err(String::new());
        ours.fields.remove("content-type");
        excuses.push("excused: words");
    }
    cors_excused(&mut ours, &mut theirs, &mut excuses);
    places_excused(&mut ours, &mut theirs, &mut excuses);
    (ours, theirs, excuses)
}

/// Differences in CORS headers that mean the same.
fn cors_excused(ours: &mut Outcome, theirs: &mut Outcome, excuses: &mut Vec<&'static str>) {
    // Further CORS headers mean nothing to a page whose origin is not allowed.
    const ORIGIN: &str = "access-control-allow-origin";
    if theirs.went.is_err()
        && !theirs.fields.contains_key(ORIGIN)
        && !ours.fields.contains_key(ORIGIN)
    {
        let before = theirs.fields.len();
        let fields = &mut theirs.fields;
        fields.retain(|name, _| !name.starts_with("access-control-"));
        if fields.len() != before {
            excuses.push("excused: leave for nobody");
        }
    }
    // Our proxy adds `vary: origin` if an answer depends on its origin.
    if theirs.fields.get("vary") != ours.fields.get("vary")
        && let Some(vary) = ours.fields.get_mut("vary")
        && let Some(place) = vary.iter().position(|value| value == "origin")
    {
        vary.remove(place);
        excuses.push("excused: vary");
        ours.fields.retain(|_, values| !values.is_empty());
    }
    // For any origin our answer has `*`, and Envoy's has the origin's name.
    let star = |outcome: &Outcome| {
        let said = outcome.fields.get("access-control-allow-origin");
        said.is_some_and(|said| said.as_slice() == ["*"])
    };
    if star(ours) && !star(theirs) && theirs.fields.contains_key("access-control-allow-origin") {
        ours.fields.remove("access-control-allow-origin");
        theirs.fields.remove("access-control-allow-origin");
        excuses.push("excused: any origin");
    }
    // Our answer has a star for a star, unless there are credentials, beside which a star means itself (Fetch). Envoy's answer
    // has the requested names, or a star all the same.
    for name in [
        "access-control-allow-methods",
        "access-control-allow-headers",
    ] {
        let star = [&*ours, &*theirs].iter().any(|one| {
            let said = one.fields.get(name);
            said.is_some_and(|said| said.as_slice() == ["*"])
        });
        if star && ours.fields.get(name) != theirs.fields.get(name) {
            ours.fields.remove(name);
            theirs.fields.remove(name);
            excuses.push("excused: star in a list");
        }
    }
}

/// Differences in the notation of destinations that mean the same.
fn places_excused(ours: &mut Outcome, theirs: &mut Outcome, excuses: &mut Vec<&'static str>) {
    // The port that goes without saying.
    if let (Some(own), Some(other)) = (ours.fields.get("location"), theirs.fields.get("location"))
        && own != other
        && let ([_], [envoys]) = (own.as_slice(), other.as_slice())
    {
        let plain = envoys.replacen(":443/", "/", usize::from(envoys.starts_with("https:")));
        let plain = plain.replacen(":80/", "/", usize::from(plain.starts_with("http:")));
        if plain != *envoys {
            theirs.fields.insert("location".to_owned(), vec![plain]);
            excuses.push("excused: implied port");
        }
    }
    // A query of nothing.
    if let (Ok((_, own, _)), Ok((_, line, _))) = (&ours.went, &mut theirs.went)
        && line.replacen("? HTTP/", " HTTP/", 1) == *own
        && line != own
    {
        line.clone_from(own);
        excuses.push("excused: empty query");
    }
    if let Some(location) = theirs
        .fields
        .get_mut("location")
        .and_then(|all| all.first_mut())
        && let Some(bare) = location.strip_suffix('?')
        && Some(bare)
            == ours
                .fields
                .get("location")
                .and_then(|all| Some(all.first()?.as_str()))
    {
        *location = bare.to_owned();
        excuses.push("excused: empty query");
    }
}
