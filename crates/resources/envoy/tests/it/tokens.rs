//! Random token rules and random requests with tokens: what our engine makes of a request against what a stock Envoy with our
//! translation of the same rules does. Status, the claims that authorization sees, and the head that reaches the
//! application must be the same, but for what we refuse and Envoy lets pass, which is listed here and in decision 0015.
//! `VOILE_SETS=1000 VOILE_REQUESTS=1000` sends a million requests.

mod became;
mod stricter;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use voile_envoy::token_filter;
use voile_model::mesh::{KeySource, TokenRule};
use voile_policy::tokens::{Cache, RuleKeys, Rules};
use voile_testkit::authorization::Random;
use voile_testkit::tokens::{Carrying, DrawnRule, Ring, carrying, token_rules};

use became::{SEEN, envoys, ours};
use stricter::Case;

use crate::echo::Echo;
use crate::stock::{self, Call, Certificates, Envoy, number, plain_listener, typed};

/// Sets of rules that one Envoy runs at a time.
const SETS_AT_ONCE: usize = 50;
/// Differences that are shown.
const SHOWN: usize = 3;
/// Threads that ask.
const THREADS: usize = 4;
/// Metadata in which Envoy keeps claims.
const METADATA: &str = "envoy.filters.http.jwt_authn";

/// The keys that lie in a rule.
fn inline(rule: &TokenRule) -> &str {
    match &rule.keys {
        KeySource::Inline(keys) => keys,
        KeySource::Uri(_) | KeySource::Discovery => unreachable!("the generator writes keys down"),
    }
}

fn filter_name(number: usize) -> String {
    format!("tokens-{number}")
}

/// The filter of one set, which only its route switches on.
fn filter(number: usize, set: &[DrawnRule]) -> Value {
    let rules: Vec<_> = set
        .iter()
        .map(|one| (&one.rule, inline(&one.rule)))
        .collect();
    let mut filter = token_filter(&rules).expect("rules");
    filter["name"] = json!(filter_name(number));
    filter["disabled"] = json!(true);
    // Routes switch a filter on by naming one of its requirements.
    let requires = filter["typed_config"]["rules"][0]["requires"].take();
    let config = filter["typed_config"].as_object_mut().expect("an object");
    config.remove("rules");
    config.insert("requirement_map".to_owned(), json!({ "all": requires }));
    filter
}

fn route(number: usize) -> Value {
    let name = format!("s{number}");
    json!({
        "match": { "prefix": "/", "headers": [{ "name": "x-set", "string_match": { "exact": name } }] },
        "route": { "cluster": "echo" },
        "request_headers_to_add": [{
            "header": { "key": SEEN, "value": format!("%DYNAMIC_METADATA({METADATA}:payload)%") },
        }],
        "typed_per_filter_config": { filter_name(number): {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.PerRouteConfig",
            "requirement_name": "all",
        } },
    })
}

fn listener(sets: &[Vec<DrawnRule>]) -> Value {
    let routes: Vec<Value> = (0..sets.len()).map(route).collect();
    let numbered = sets.iter().enumerate();
    let mut filters: Vec<Value> = numbered.map(|(number, set)| filter(number, set)).collect();
    filters.push(typed(
        "router",
        "extensions.filters.http.router.v3.Router",
        json!({}),
    ));
    let manager = typed(
        "http",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        json!({
            "stat_prefix": "test",
            "normalize_path": true,
            "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes }] },
            "http_filters": filters,
        }),
    );
    plain_listener(&manager)
}

/// The request as it goes over the wire.
fn written(set: usize, sent: &Carrying) -> String {
    let Carrying { method, target, .. } = sent;
    let mut text = format!("{method} {target} HTTP/1.1\r\nhost: app\r\nx-set: s{set}\r\n");
    for (name, value) in &sent.headers {
        text += &format!("{name}: {value}\r\n");
    }
    text + "\r\n"
}

#[derive(Default)]
struct Seen {
    /// Number of comparisons by their common result.
    said: BTreeMap<String, usize>,
    /// The first difference of each set that is not listed.
    differences: Vec<String>,
}

impl Seen {
    fn add(&mut self, other: Self) {
        for (what, count) in other.said {
            *self.said.entry(what).or_default() += count;
        }
        self.differences.extend(other.differences);
    }
}

struct Court<'a> {
    envoy: &'a Envoy,
    certificates: &'a Certificates,
    ring: &'a Ring,
}

/// Compares so many requests on one set.
fn compare(
    court: &Court<'_>,
    number: usize,
    set: &[DrawnRule],
    seed: usize,
    requests: usize,
) -> Seen {
    let mut seen = Seen::default();
    let mut random = Random::new(seed as u64 + 9_000_000);
    let given = set.iter().map(|one| RuleKeys {
        rule: &one.rule,
        keys: None,
    });
    let rules = Rules::new(given, None);
    let mut cache = Cache::new(seed as u64);
    let call = Call::plain(SocketAddr::from((Ipv4Addr::LOCALHOST, 80)));
    let mut asking = court.envoy.connect(&call, court.certificates);
    for _ in 0..requests {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("after 1970").as_secs();
        let sent = carrying(&mut random, court.ring, set, now);
        let text = written(number, &sent);
        let theirs = envoys(&asking.ask_one(&text));
        let ours = ours(&rules, &sent, now, &mut cache);
        let what = match (Case {
            rules: set,
            sent: &sent,
        })
        .compared(&ours, &theirs)
        {
            Ok(what) => what,
            Err(what) => {
                let rules: Vec<_> = set.iter().map(|one| &one.rule).collect();
                seen.differences.push(format!(
                    "set {seed}: {what} {:?}\nEnvoy: {theirs:?}\nours: {ours:?}\n{text}\n{rules:#?}",
                    sent.odd
                ));
                return seen;
            }
        };
        *seen.said.entry(what).or_default() += 1;
    }
    seen
}

/// All sets that one Envoy runs, by several threads.
fn compare_all(court: &Court<'_>, sets: &[Vec<DrawnRule>], first: usize, requests: usize) -> Seen {
    let of_thread = |thread: usize| {
        let mine = sets.iter().enumerate().skip(thread).step_by(THREADS);
        mine.map(|(number, set)| compare(court, number, set, first + number, requests))
            .collect::<Vec<_>>()
    };
    let mut seen = Seen::default();
    thread::scope(|scope| {
        let spawn = |thread| scope.spawn(move || of_thread(thread));
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        let all = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("Envoy answers"));
        all.for_each(|more| seen.add(more));
    });
    seen
}

#[test]
fn our_engine_believes_the_tokens_that_a_stock_envoy_believes() {
    let Some(program) = stock::found() else {
        return;
    };
    let (sets, requests) = (number("VOILE_SETS", 100), number("VOILE_REQUESTS", 60));
    let (ring, echo, certificates) = (Ring::generate(), Echo::start(), Certificates::new());
    let mut seen = Seen::default();
    for first in (0..sets).step_by(SETS_AT_ONCE) {
        let numbers = first..sets.min(first + SETS_AT_ONCE);
        let drawn = numbers.map(|seed| {
            let mut random = Random::new(seed as u64 + 8_000_000);
            token_rules(&mut random, &ring, &seed.to_string())
        });
        let drawn: Vec<Vec<DrawnRule>> = drawn.collect();
        let envoy = Envoy::start(&program, &[listener(&drawn)], &[echo.cluster("echo")]);
        let court = Court {
            envoy: &envoy,
            certificates: &certificates,
            ring: &ring,
        };
        seen.add(compare_all(&court, &drawn, first, requests));
    }
    println!("{sets} sets, {requests} requests each: {:?}", seen.said);
    let some: Vec<&str> = seen
        .differences
        .iter()
        .take(SHOWN)
        .map(String::as_str)
        .collect();
    assert!(
        some.is_empty(),
        "{} sets differ: {}",
        seen.differences.len(),
        some.join("\n")
    );
    // A generator that no longer reaches something proves nothing about it.
    let all: usize = seen.said.values().sum();
    for what in ["401", "403", "believed", "nobody's"] {
        let count = seen.said.get(what).copied().unwrap_or_default();
        assert!(count * 100 > all, "{what}: {count} of {all}");
    }
}
