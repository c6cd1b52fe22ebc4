//! Random CUSTOM policies beside random rules about tokens and random DENY and ALLOW policies: a sidecar of ours and a stock Envoy
//! that runs our translation of the same resources (ext_authz before jwt_authn before RBAC, as Istio has it) get the same
//! requests and ask the same service. Wanted are the same answer, the same question and the same request at the application.
//! `VOILE_SETS=300 VOILE_REQUESTS=100` sends 30,000 to each.

mod drawn;
mod service;
mod stock;

use std::collections::BTreeMap;
use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use voile_testkit::authorization::Random;

use self::drawn::{Services, Set};
use self::service::{Both, Question};
use super::{in_force, set, text};
use crate::mesh::issuer::Issuer;
use crate::mesh::{Answer, Client, HTTP_PORT, Mesh, application, exchange, read_answer};

const ISSUER: &str = "https://issuer.example";
/// Sets that one Envoy runs at a time, each at an address of its own.
const SETS_AT_ONCE: usize = 20;
/// So many differences are shown.
const DIFFERENCES_TOLD: usize = 20;
/// Far more than an answer takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Header fields that are compared; each proxy has its own others.
const COMPARED: [&str; 7] = [
    "authorization",
    "x-token",
    "x-role",
    "x-user",
    "x-payload",
    "x-group",
    "x-nobody",
];
/// Headers that the rules about tokens write.
const OUTPUTS: [&str; 2] = ["x-user", "x-payload"];
/// Of answers.
const ANSWERED: [&str; 6] = [
    "location",
    "www-authenticate",
    "x-seen",
    "x-why",
    "x-other",
    "content-type",
];

fn number(name: &str, usual: usize) -> usize {
    let given = std::env::var(name).ok();
    given.and_then(|given| given.parse().ok()).unwrap_or(usual)
}

/// All parts of a comparison.
struct Court {
    mesh: Mesh,
    both: Both,
    services: Services,
    issuer: Issuer,
    requests: usize,
}

/// Result of a request.
#[derive(Debug, PartialEq, Eq)]
struct Became {
    status: u16,
    answered: BTreeMap<String, String>,
    /// Lines that the application got, or the text of a refusal, if it has one.
    body: Vec<String>,
    /// Question that the service got.
    asked: Option<Question>,
}

/// Fields of a head that are compared, sorted, and its first line. Envoy makes one line of several `authorization`.
fn compared(head: &str) -> Vec<String> {
    let mut lines = head.lines();
    let first = lines.next().unwrap_or_default();
    let mut fields = BTreeMap::<String, Vec<&str>>::new();
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let name = name.to_ascii_lowercase();
        if COMPARED.contains(&&*name) {
            fields.entry(name).or_default().push(value.trim());
        }
    }
    let field = |(name, values): (String, Vec<&str>)| format!("{name}: {}", values.join(","));
    let mut all = vec![ordered(first)];
    all.extend(fields.into_iter().map(field));
    all
}

/// A line with its parameters sorted: their order does not matter.
fn ordered(line: &str) -> String {
    let Some((path, rest)) = line.split_once('?') else {
        return line.to_owned();
    };
    let (query, end) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut all: Vec<&str> = query.split('&').collect();
    all.sort_unstable();
    format!("{path}?{} {end}", all.join("&"))
}

fn became(answer: &Answer, both: &Both) -> Became {
    let head = answer.head.lines().filter_map(|line| line.split_once(':'));
    let head = head.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    let mut asked = both.take();
    assert!(asked.len() <= 1, "asked once: {asked:?}");
    let body = text(answer);
    Became {
        status: answer.status,
        answered: head
            .filter(|(name, _)| ANSWERED.contains(&&**name))
            .collect(),
        body: match answer.status {
            200 => compared(&body),
            _ => vec![body.trim().to_owned()],
        },
        asked: asked.pop(),
    }
}

/// A connection that is kept as long as both want it.
struct Caller(SocketAddr, Option<BufReader<TcpStream>>);

impl Caller {
    fn ask(&mut self, request: &str) -> Answer {
        let stream = self.1.get_or_insert_with(|| {
            let stream = TcpStream::connect(self.0).expect("connected");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            stream.set_nodelay(true).expect("a socket");
            BufReader::new(stream)
        });
        let sent = stream.get_mut().write_all(request.as_bytes());
        sent.expect("sent");
        let answer = read_answer(stream).expect("an answer");
        let head = answer.head.to_ascii_lowercase();
        if head.contains("connection: close") {
            self.1 = None;
        }
        answer
    }
}

/// Removes from both results the differences that are listed (0014, 0017, docs/reference/authorization.md).
fn listed(set: &Set, request: &str, ours: &mut Became, envoys: &mut Became) {
    // A refusal of policies or of the service without words of its own: each has its own, or none.
    let empty = ["", "RBAC: access denied"];
    for one in [&mut *ours, &mut *envoys] {
        if one.status != 200 && one.body.len() == 1 && empty.contains(&&*one.body[0]) {
            one.body.clear();
            one.answered.remove("content-type");
        }
    }
    // Of several bad tokens, the two proxies may report different ones.
    let lines = request.lines().map(str::to_ascii_lowercase);
    let carry = |line: &String| {
        ["authorization:", "x-token:"]
            .iter()
            .any(|name| line.starts_with(name))
    };
    if lines.filter(carry).count() > 1 && [ours.status, envoys.status] == [401, 401] {
        ours.body.clone_from(&envoys.body);
    }
    // The realm of a challenge has no query, in which a token may be.
    if let Some(challenge) = envoys.answered.get_mut("www-authenticate")
        && let Some((before, after)) = challenge.clone().split_once('?')
        && let Some((_, after)) = after.split_once('"')
    {
        *challenge = format!("{before}\"{after}");
    }
    if !set.tokens {
        return;
    }
    // The external service does not get fields that only tokens may write.
    let is_output = |line: &String| {
        let name = line.split(':').next().unwrap_or_default();
        OUTPUTS.contains(&name)
    };
    // Of several good tokens in one place Envoy writes each; the last is the one that policies see.
    for line in envoys.body.iter_mut().filter(|line| is_output(line)) {
        if let (Some((name, _)), Some((_, last))) = (line.split_once(": "), line.rsplit_once(',')) {
            *line = format!("{name}: {last}");
        }
    }
    let told = |one: &Became| one.asked.iter().flatten().any(is_output);
    assert!(!told(ours), "{ours:?}");
    if let Some(asked) = &mut envoys.asked {
        asked.retain(|line| !is_output(line));
    }
}

/// Name for questions that only our proxy asks (0014): few sets have such rules.
const OURS_ALONE: &str = "asked about by ours alone, as listed";

/// Counts of the results seen in a run, so that a run that no longer reaches some result fails.
type Seen = BTreeMap<&'static str, usize>;

fn note(seen: &mut Seen, set: &Set, one: &Became) {
    let mut note = |what, is| *seen.entry(what).or_default() += usize::from(is);
    let asked = one.asked.is_some();
    note("all", true);
    note("passed", one.status == 200);
    note("refused by policies", one.status == 403);
    note("refused by their token", one.status == 401);
    note("sent to a login page", one.status == 302);
    note("asked about over gRPC", asked && !set.http);
    note("asked about over HTTP", asked && set.http);
    note("asked about and passed", asked && one.status == 200);
    note(
        "asked about, then refused by their token",
        asked && one.status == 401,
    );
    note(
        "refused with fields that a yes added",
        one.status != 200 && one.answered.contains_key("x-seen"),
    );
}

/// Compares the proxies on one set; prints differences.
fn compare(
    court: &Court,
    (number, set): (usize, &Set),
    seed: usize,
    told: &mut Vec<String>,
) -> Seen {
    let mut random = Random::new(seed as u64 + 9_000_000);
    let mut seen = Seen::new();
    let places = [
        court.mesh.inbound(HTTP_PORT),
        stock::place(&court.mesh, number),
    ];
    let mut callers = places.map(|at| Caller(at, None));
    for _ in 0..court.requests {
        let request = drawn::request(&mut random, &court.issuer);
        let [mut ours, mut envoys] = callers
            .each_mut()
            .map(|caller| became(&caller.ask(&request), &court.both));
        listed(set, &request, &mut ours, &mut envoys);
        note(&mut seen, set, &ours);
        if set.asks_more && ours.asked.is_some() && envoys.asked.is_none() {
            *seen.entry(OURS_ALONE).or_default() += 1;
            continue;
        }
        if ours != envoys {
            let resources = &set.resources;
            told.push(format!(
                "set {seed}\n{request}ours: {ours:?}\nEnvoy's: {envoys:?}\n{resources}"
            ));
        }
    }
    seen
}

/// Puts a set in force in our sidecar, and has its service be known there.
fn enforce(court: &Court, one: &Set, seed: usize) {
    set(&court.mesh, &one.resources);
    let status = |mark: &str| {
        let head = format!("GET /mark-{mark} HTTP/1.1\r\nHost: server\r\nx-ask: allow");
        let request = format!("{head}\r\nConnection: close\r\n\r\n");
        let answer = exchange(court.mesh.inbound(HTTP_PORT), request.as_bytes());
        answer.map_or(0, |answer| answer.status)
    };
    let own = seed.to_string();
    in_force("the set is in force", || {
        (status(&own), status("open")) == (403, 200)
    });
    court.both.take();
}

#[test]
fn requests_meet_what_they_meet_at_a_stock_envoy_in_the_same_order() {
    let Some(program) = crate::envoy::found() else {
        return;
    };
    let (sets, requests) = (number("VOILE_SETS", 20), number("VOILE_REQUESTS", 40));
    let (both, services) = Both::start();
    let court = Court {
        mesh: Mesh::start_as("PERMISSIVE", &Client::default()),
        both,
        services,
        issuer: Issuer::new(ISSUER, "one"),
        requests,
    };
    application::reflect(court.mesh.http_app());
    let (mut seen, mut told) = (Seen::new(), Vec::new());
    for first in (0..sets).step_by(SETS_AT_ONCE) {
        let numbers = first..sets.min(first + SETS_AT_ONCE);
        let set = |seed| drawn::set(&mut Random::new(seed as u64), services, &court.issuer, seed);
        let drawn: Vec<Set> = numbers.map(set).collect();
        let _envoy = stock::start(&program, &court, &drawn);
        for (number, one) in drawn.iter().enumerate() {
            let seed = first + number;
            enforce(&court, one, seed);
            for (what, count) in compare(&court, (number, one), seed, &mut told) {
                *seen.entry(what).or_default() += count;
            }
        }
    }
    println!("{sets} sets: {seen:?}");
    let first = &told[..told.len().min(DIFFERENCES_TOLD)];
    assert!(
        first.is_empty(),
        "{} differ: {}",
        told.len(),
        first.join("\n")
    );
    // A generator that no longer reaches something proves nothing about it.
    let enough = |(what, count): (&&str, &usize)| *what == OURS_ALONE || count * 200 > seen["all"];
    assert!(seen.iter().all(enough), "{seen:?}");
}
