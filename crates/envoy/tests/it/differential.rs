//! Random policies and random requests, our engine against a stock Envoy that runs our translation of the same policies:
//! the verdicts must be the same. `VOILE_SETS=1000 VOILE_REQUESTS=1000` sends a million requests.

use std::collections::BTreeMap;
use std::env;
use std::thread;

use base64::Engine as _;
use serde_json::{Map, Value, json};
use voile_policy::authorization::{Engine, Facts, PathNormalization, Policy, Verdict};
use voile_testkit::authorization::{Random, Scope, Sent, SentHttp, policies, request};

use crate::stock::{self, Envoy};

/// Sets of policies that one Envoy runs at a time: it looks at each route in turn.
const SETS_AT_ONCE: usize = 50;
/// Requests on one connection.
const ON_ONE_CONNECTION: usize = 40;
const SECRET: &[u8] = b"a secret of the test and of nobody else";

/// What can be had of an Envoy on loopback without TLS.
const SCOPE: Scope = Scope {
    tcp: false,
    ipv6: false,
    all_actions: false,
    unanswerable: true,
};

fn number(name: &str, usual: usize) -> usize {
    let given = env::var(name).ok();
    given.and_then(|given| given.parse().ok()).unwrap_or(usual)
}

fn keys() -> String {
    let key = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(SECRET);
    json!({ "keys": [{ "kty": "oct", "alg": "HS256", "k": key }] }).to_string()
}

fn token(claims: &Map<String, Value>) -> String {
    let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS256);
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET);
    jsonwebtoken::encode(&header, claims, &key).expect("a token")
}

/// Envoy refuses tokens whose `aud` is anything but a text or texts, before any policy is asked.
fn mend_audience(claims: &mut Map<String, Value>) {
    let good = match claims.get("aud") {
        Some(Value::Array(list)) => list.iter().all(Value::is_string),
        Some(value) => value.is_string(),
        None => true,
    };
    if !good {
        claims.remove("aud");
    }
}

/// The request as it goes over the wire.
fn written(set: &str, sent: &Sent, http: &SentHttp, forwarded: bool) -> String {
    let mut text = format!(
        "{} {} HTTP/1.1\r\nhost: {}\r\nx-set: {set}\r\n",
        http.method, http.path, http.authority
    );
    let mut line = |name: &str, value: &str| {
        text += &format!("{name}: {value}\r\n");
    };
    if let Some(source) = &sent.source {
        line("x-principal", &source.to_string());
    }
    if forwarded {
        line(
            "x-forwarded-for",
            &format!("203.0.113.7, {}", sent.remote_ip),
        );
    }
    if let Some(claims) = &http.claims {
        line("authorization", &format!("Bearer {}", token(claims)));
    }
    for (name, value) in &http.headers {
        line(name, value);
    }
    text += "\r\n";
    text
}

/// What our engine would answer.
fn ours(engine: &Engine, facts: &Facts<'_>) -> u16 {
    match engine.decide(facts).verdict {
        Verdict::Allowed(_) => 200,
        Verdict::Denied(_) | Verdict::Ask(_) => 403,
    }
}

/// One request, and what we would say to it as a request and as a mere connection.
struct Drawn {
    sent: Sent,
    wanted: [u16; 2],
    texts: [String; 2],
}

fn draw(random: &mut Random, number: usize, engine: &Engine, connection: &Sent) -> Drawn {
    let mut sent = request(random, SCOPE);
    sent.source_ip = connection.source_ip;
    sent.destination = connection.destination;
    sent.sni = None;
    let forwarded = random.one_in(2);
    if !forwarded {
        sent.remote_ip = connection.remote_ip;
    }
    let mut http = sent.http.take().expect("HTTP only");
    if let Some(claims) = &mut http.claims {
        mend_audience(claims);
    }
    let texts =
        ["h", "t"].map(|layer| written(&format!("{layer}{number}"), &sent, &http, forwarded));
    let path = PathNormalization::Base.normalize(http.path.as_bytes());
    let path = path.expect("the generator writes good paths").into_owned();
    http.path = String::from_utf8(path).expect("ASCII");
    sent.http = Some(http);
    let tcp = Facts {
        http: None,
        ..sent.facts()
    };
    let wanted = [ours(engine, &sent.facts()), ours(engine, &tcp)];
    Drawn {
        sent,
        wanted,
        texts,
    }
}

/// Compares so many requests on one set; how often each status was seen.
fn compare(
    envoy: &Envoy,
    first: usize,
    number: usize,
    set: &[Policy],
    requests: usize,
) -> BTreeMap<u16, usize> {
    let mut seen = BTreeMap::new();
    let seed = first + number;
    let mut random = Random::new(seed as u64 + 7_000_000);
    let engine = Engine::new(set);
    let mut left = requests;
    while left > 0 {
        let connection = request(&mut random, SCOPE);
        let count = left.min(ON_ONE_CONNECTION);
        left -= count;
        let (source, remote) = (connection.source_ip, connection.remote_ip);
        let mut asking = envoy.connect(source, remote, connection.destination);
        for _ in 0..count {
            let drawn = draw(&mut random, number, &engine, &connection);
            let statuses = asking.ask(&drawn.texts);
            assert_eq!(
                statuses, drawn.wanted,
                "set {seed}: Envoy, ours (as a request, as a connection): {}\n{:#?}\n{set:#?}",
                drawn.texts[0], drawn.sent
            );
            statuses
                .iter()
                .for_each(|status| *seen.entry(*status).or_default() += 1);
        }
    }
    seen
}

/// Threads that ask.
const THREADS: usize = 4;

#[test]
fn our_engine_says_what_a_stock_envoy_says() {
    let Some(program) = stock::found() else {
        eprintln!("skipped: no Envoy (set ENVOY, or put `envoy` on the path)");
        return;
    };
    let (sets, requests) = (number("VOILE_SETS", 100), number("VOILE_REQUESTS", 60));
    let mut seen: BTreeMap<u16, usize> = BTreeMap::new();
    for first in (0..sets).step_by(SETS_AT_ONCE) {
        let numbers = first..sets.min(first + SETS_AT_ONCE);
        let drawn = numbers.map(|seed| policies(&mut Random::new(seed as u64), SCOPE, 8));
        let drawn: Vec<Vec<Policy>> = drawn.collect();
        let envoy = Envoy::start(&program, &drawn, &keys());
        let of_thread = |thread: usize| {
            let mine = drawn.iter().enumerate().skip(thread).step_by(THREADS);
            mine.map(|(number, set)| compare(&envoy, first, number, set, requests))
                .collect::<Vec<_>>()
        };
        let all: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn({
                        let of_thread = &of_thread;
                        move || of_thread(thread)
                    })
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("agreement"))
                .collect()
        });
        for (status, count) in all.into_iter().flatten() {
            *seen.entry(status).or_default() += count;
        }
    }
    println!("{sets} sets, {requests} requests each as a request and as a connection: {seen:?}");
    let total: usize = seen.values().sum();
    assert!(
        seen.len() == 2 && seen.values().all(|count| count * 10 > total),
        "{seen:?}"
    );
}
