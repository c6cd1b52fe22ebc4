//! Random policies and random requests, our engine against a stock Envoy that runs our translation of the same policies:
//! the verdicts must be the same, and the rules that decide, mark, ask and would have decided.
//! `VOILE_SETS=1000 VOILE_REQUESTS=1000` sends a million requests.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;

use base64::Engine as _;
use serde_json::{Value, json};
use voile_policy::authorization::{
    Action, AuthorizationOutcome, DenialReason, DryRunVerdict, Engine, PathNormalization, Policy,
    PolicyName, PolicyRule, RequestFacts, RuleRef, Verdict,
};
use voile_policy::claims::Claims;
use voile_testkit::authorization::{Random, Scope, Sent, SentHttp, alone, policies, request};

use crate::echo::Echo;
use crate::sets::{ASKED, GRANT, listener_name, listeners};
use crate::stock::{self, Answer, Call, Certificates, Envoy, Handshake, has_ipv6, number};

/// Sets of policies that one Envoy runs at a time: it looks at each route in turn.
const SETS_AT_ONCE: usize = 50;
/// Requests on one connection.
const ON_ONE_CONNECTION: usize = 20;
/// Threads that ask.
const THREADS: usize = 4;
/// So many requests on each rule that asks one thing meet nearly all of them.
const REQUESTS_THAT_REACH_MOST: usize = 500;
/// So many are looked at to find a rule that requests meet.
const LOOKED_AT: usize = 100;
const SECRET: &[u8] = b"a secret of the test and of nobody else";

/// Parts of the policy language for an Envoy that sees requests.
const SCOPE: Scope = Scope {
    tcp: false,
    ipv6: true,
    all_actions: true,
    unanswerable: true,
};

fn keys() -> String {
    let key = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(SECRET);
    json!({ "keys": [{ "kty": "oct", "alg": "HS256", "k": key }] }).to_string()
}

fn token(claims: &Claims) -> String {
    let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS256);
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET);
    jsonwebtoken::encode(&header, &claims.to_map(), &key).expect("a token")
}

/// Envoy refuses tokens whose `aud` is anything but a text or texts, before any policy is asked.
fn mend_audience(claims: &mut Claims) {
    let mut all = claims.to_map();
    let good = match all.get("aud") {
        Some(Value::Array(list)) => list.iter().all(Value::is_string),
        Some(value) => value.is_string(),
        None => true,
    };
    if !good {
        all.remove("aud");
        *claims = Claims::of(&all).expect("fewer than before");
    }
}

/// Facts about a request that are not in its text.
#[derive(Clone, Copy)]
struct Wire {
    tls: bool,
    /// The client stands in X-Forwarded-For.
    forwarded: bool,
    /// The provider will say yes.
    granted: bool,
}

/// The request as it goes over the wire.
fn written(set: &str, sent: &Sent, http: &SentHttp, wire: Wire) -> String {
    let mut text = format!(
        "{} {} HTTP/1.1\r\nhost: {}\r\nx-set: {set}\r\n",
        http.method, http.path, http.authority
    );
    let mut line = |name: &str, value: &str| {
        text += &format!("{name}: {value}\r\n");
    };
    if let Some(source) = sent.source.as_ref().filter(|_| !wire.tls) {
        line("x-principal", &source.to_string());
    }
    if wire.granted {
        line(GRANT, "yes");
    }
    if wire.forwarded {
        // An IPv4-mapped address is its IPv4 address, which Envoy does not see (see decision 0014).
        let client = sent.remote_ip.to_canonical();
        line("x-forwarded-for", &format!("203.0.113.7, {client}"));
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

/// A rule that matched, by the name our translation gives it.
type Found = Option<String>;

/// All that was found out about a request or a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Said {
    /// None where Envoy cannot be asked.
    status: Option<u16>,
    decided: Found,
    audited: Found,
    asked: Found,
    /// By action, what dry-run policies would have done.
    dry: [Option<(bool, Found)>; 3],
}

/// Returns true if any rule matches, whatever its result.
fn matches(outcome: &AuthorizationOutcome) -> bool {
    let decided = match &outcome.verdict {
        Verdict::Allowed(permit) => permit.rule(),
        Verdict::Denied(denial) => denial.rule,
        Verdict::Ask(ask) => Some(ask.rule()),
    };
    let dry = &outcome.dry_run;
    let mut dry = [&dry.custom, &dry.deny, &dry.allow].into_iter().flatten();
    decided.or(outcome.audit).is_some() || dry.any(|verdict| verdict.rule.is_some())
}

/// Result of our engine.
fn ours(set: &[Policy], outcome: AuthorizationOutcome, granted: bool) -> Said {
    let name = |rule: RuleRef| {
        let name = &set[rule.policy as usize].name;
        let (namespace, name, rule) = (&name.namespace, &name.name, rule.rule);
        format!("ns[{namespace}]-policy[{name}]-rule[{rule}]")
    };
    let dry = outcome.dry_run;
    let dry = [dry.custom, dry.deny, dry.allow]
        .map(|verdict| verdict.map(|DryRunVerdict { allowed, rule }| (allowed, rule.map(name))));
    let verdict = |asked: Option<RuleRef>, then| {
        let (status, rule) = match then {
            Ok(rule) => (200, rule),
            Err(rule) => (403, rule),
        };
        (Some(status), rule, asked)
    };
    let (status, decided, asked) = match outcome.verdict {
        Verdict::Allowed(permit) => verdict(None, Ok(permit.rule())),
        // The rest of this outcome is open: Envoy only has to ask, too.
        Verdict::Denied(denial) if denial.reason == DenialReason::SeveralProviders => {
            (None, None, denial.rule)
        }
        Verdict::Denied(denial) => verdict(None, Err(denial.rule)),
        // A request that a provider refuses gets no further.
        Verdict::Ask(ask) if !granted => {
            return Said {
                status: Some(403),
                asked: Some(name(ask.rule())),
                dry,
                ..Said::default()
            };
        }
        Verdict::Ask(ask) => {
            let rule = ask.rule();
            let then = ask.granted();
            let then = then.map(|permit| permit.rule());
            verdict(Some(rule), then.map_err(|denial| denial.rule))
        }
    };
    Said {
        status,
        decided: decided.map(name),
        audited: outcome.audit.map(name),
        asked: asked.map(name),
        dry,
    }
}

/// The rule that denied, which is only told in the details of the answer.
fn denying(answer: &Answer) -> Found {
    let details = answer.headers.get("x-details")?;
    let rule = details.strip_prefix("rbac_access_denied_matched_policy[")?;
    let rule = rule.strip_suffix(']').filter(|rule| *rule != "none");
    rule.map(str::to_owned)
}

/// The CUSTOM rule, without its provider; the provider itself must have been asked.
fn asked(answer: &Answer, rule: Found) -> Found {
    let was_asked = answer.headers.contains_key(ASKED);
    match (rule, was_asked) {
        (None, false) => None,
        (None, true) => Some("asked without a rule".to_owned()),
        (Some(rule), false) => Some(format!("{rule} but nobody was asked")),
        (Some(rule), true) => rule
            .split_once("-ns[")
            .map(|(_, rule)| format!("ns[{rule}")),
    }
}

/// Result of Envoy.
fn envoys(answer: &Answer) -> Said {
    let found = answer.json("x-rbac");
    let text = |filter: &str, what: &str| -> Found {
        Some(found[format!("{filter}_{what}")].as_str()?.to_owned())
    };
    let shadow = |filter| {
        let result = text(filter, "shadow_engine_result")?;
        Some((
            result == "allowed",
            text(filter, "shadow_effective_policy_id"),
        ))
    };
    let enforced = |filter| text(filter, "enforced_effective_policy_id");
    Said {
        status: Some(answer.status),
        decided: match answer.status {
            403 => denying(answer),
            _ => enforced("allow"),
        },
        audited: enforced("audit"),
        asked: asked(answer, shadow("istio_ext_authz").and_then(|(_, rule)| rule)),
        dry: ["dry_custom", "dry_deny", "dry_allow"].map(shadow),
    }
}

/// A connection of which all addresses are of the PROXY protocol's one family.
fn connection(random: &mut Random, ipv6: bool) -> (Sent, Call) {
    let mut sent = request(random, SCOPE);
    if sent.source_ip.to_canonical().is_ipv6() {
        sent.source_ip = match ipv6 {
            true => Ipv6Addr::LOCALHOST.into(),
            false => Ipv4Addr::LOCALHOST.into(),
        };
    }
    let family = |address: IpAddr| address.to_canonical().is_ipv4();
    while family(sent.remote_ip) != family(sent.destination.ip()) {
        sent.remote_ip = request(random, SCOPE).remote_ip;
    }
    let tls = random.one_in(2);
    let from = sent.source_ip.to_canonical();
    let mut destination = sent.destination;
    destination.set_ip(destination.ip().to_canonical());
    let call = Call {
        listener: listener_name(tls, from.is_ipv6()),
        from,
        client: sent.remote_ip.to_canonical(),
        destination,
        tls: tls.then(|| Handshake {
            identity: sent.source.as_ref().map(ToString::to_string),
            sni: sent.sni.clone(),
        }),
    };
    if !tls {
        sent.sni = None;
    }
    (sent, call)
}

/// One request, and what we would say to it as a request and as a mere connection.
struct Drawn {
    sent: Sent,
    wanted: [Said; 2],
    texts: [String; 2],
    /// True if our engine found a rule for the request.
    matched: bool,
}

/// One set of policies.
struct Set<'a> {
    number: usize,
    policies: &'a [Policy],
    engine: Engine,
    /// Part of the language that its only rule uses; `None` with several rules.
    part: Option<&'a str>,
}

fn draw(random: &mut Random, set: &Set<'_>, on: &Sent, tls: bool) -> Drawn {
    let mut sent = request(random, SCOPE);
    (sent.source_ip, sent.destination) = (on.source_ip, on.destination);
    sent.sni.clone_from(&on.sni);
    if tls {
        sent.source.clone_from(&on.source);
    }
    let wire = Wire {
        tls,
        forwarded: random.one_in(2),
        granted: random.one_in(2),
    };
    if !wire.forwarded {
        sent.remote_ip = on.remote_ip;
    }
    let mut http = sent.http.take().expect("HTTP only");
    if let Some(claims) = &mut http.claims {
        mend_audience(claims);
    }
    let texts = ["h", "t"]
        .map(|layer| format!("{layer}{}", set.number))
        .map(|name| written(&name, &sent, &http, wire));
    let path = PathNormalization::Base.normalize(http.path.as_bytes());
    let path = path.expect("the generator writes good paths").into_owned();
    http.path = String::from_utf8(path).expect("ASCII");
    sent.http = Some(http);
    let tcp = RequestFacts {
        http: None,
        ..sent.facts()
    };
    let outcome = set.engine.decide(&sent.facts());
    let matched = matches(&outcome);
    let said = |outcome| ours(set.policies, outcome, wire.granted);
    let wanted = [said(outcome), said(set.engine.decide(&tcp))];
    Drawn {
        sent,
        wanted,
        texts,
        matched,
    }
}

/// Counters of a run, so that a run that no longer reaches some part fails.
#[derive(Default)]
struct Seen {
    counted: BTreeMap<&'static str, usize>,
    /// Of rules that ask one thing: how many requests met them.
    alone: BTreeMap<String, usize>,
}

impl Seen {
    fn add(&mut self, other: Self) {
        for (what, count) in other.counted {
            *self.counted.entry(what).or_default() += count;
        }
        self.alone.extend(other.alone);
    }
}

fn note(seen: &mut Seen, said: &Said, call: &Call, ipv6: bool) {
    let mut note = |what, is| *seen.counted.entry(what).or_default() += usize::from(is);
    note("all", true);
    if ipv6 {
        note("from an IPv6 peer", call.from.is_ipv6());
    }
    note("passed", said.status == Some(200));
    note("refused", said.status == Some(403));
    let tls = call.tls.as_ref();
    note("over TLS", tls.is_some());
    note(
        "by certificate",
        tls.is_some_and(|tls| tls.identity.is_some()),
    );
    note(
        "with a server name",
        tls.is_some_and(|tls| tls.sni.is_some()),
    );
    note("audited", said.audited.is_some());
    note("asked", said.asked.is_some());
    for dry in said.dry.iter().flatten() {
        note("would pass", dry.0);
        note("would be refused", !dry.0);
    }
}

/// The Envoy under test, and its clients' certificates.
struct Court<'a> {
    envoy: &'a Envoy,
    certificates: &'a Certificates,
    ipv6: bool,
}

/// Compares so many requests on one set.
fn compare(court: &Court<'_>, set: &Set<'_>, seed: usize) -> Seen {
    let mut seen = Seen::default();
    let mut met = 0;
    let mut random = Random::new(seed as u64 + 7_000_000);
    let mut left = number("VOILE_REQUESTS", 60);
    while left > 0 {
        let (on, call) = connection(&mut random, court.ipv6);
        let tls = call.tls.is_some();
        let count = left.min(ON_ONE_CONNECTION);
        left -= count;
        let mut asking = court.envoy.connect(&call, court.certificates);
        for _ in 0..count {
            let drawn = draw(&mut random, set, &on, tls);
            let answers = asking.ask(&drawn.texts);
            let mut said = answers.each_ref().map(envoys);
            for (said, wanted) in said.iter_mut().zip(&drawn.wanted) {
                if wanted.status.is_none() {
                    said.status = None;
                    said.decided.clone_from(&wanted.decided);
                    said.audited.clone_from(&wanted.audited);
                    // Of several providers' rules Envoy's first one may be another.
                    if said.asked.is_some() {
                        said.asked.clone_from(&wanted.asked);
                    }
                }
                note(&mut seen, said, &call, court.ipv6);
            }
            assert_eq!(
                said, drawn.wanted,
                "set {seed}: Envoy, ours (as a request, as a connection): {}\n{call:?}\n{answers:?}\n{:#?}\n{:#?}",
                drawn.texts[0], drawn.sent, set.policies
            );
            met += usize::from(drawn.matched);
        }
    }
    if let Some(part) = set.part {
        seen.alone.insert(part.to_owned(), met);
    }
    seen
}

/// The policies of a set, and what their only rule asks where it is one of those that ask one thing.
type DrawnSet = (Option<String>, Vec<Policy>);

/// All sets that one Envoy runs, by several threads.
fn compare_all(court: &Court<'_>, sets: &[DrawnSet], first: usize) -> Seen {
    let of_thread = |thread: usize| {
        let mine = sets.iter().enumerate().skip(thread).step_by(THREADS);
        mine.map(|(number, (part, policies))| {
            let set = Set {
                number,
                policies,
                engine: Engine::new(policies),
                part: part.as_deref(),
            };
            compare(court, &set, first + number)
        })
        .collect::<Vec<_>>()
    };
    let mut seen = Seen::default();
    thread::scope(|scope| {
        let spawn = |thread| scope.spawn(move || of_thread(thread));
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        let all = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("agreement"));
        all.for_each(|more| seen.add(more));
    });
    seen
}

/// A policy that asks one thing.
fn asking(action: Action, rule: PolicyRule) -> Policy {
    Policy {
        name: PolicyName {
            namespace: "shop".into(),
            name: "alone".into(),
        },
        origin: None,
        action,
        dry_run: false,
        rules: vec![rule],
    }
}

/// Number of requests that meet a rule.
fn meeting(rule: &PolicyRule, ipv6: bool) -> usize {
    let policies = [asking(Action::Deny, rule.clone())];
    let set = Set {
        number: 0,
        engine: Engine::new(&policies),
        policies: &policies,
        part: None,
    };
    let mut random = Random::new(1);
    let met = (0..LOOKED_AT).filter(|_| {
        let (on, call) = connection(&mut random, ipv6);
        draw(&mut random, &set, &on, call.tls.is_some()).matched
    });
    met.count()
}

/// A set for each rule that asks one thing, of every action in turn, and then random ones.
fn sets(random_ones: usize, ipv6: bool) -> Vec<DrawnSet> {
    let actions = [
        Action::Allow,
        Action::Deny,
        Action::Audit,
        Action::Custom("ext".into()),
    ];
    let alone = alone(&mut Random::new(0), SCOPE, |rule| meeting(rule, ipv6));
    let alone = alone.into_iter().enumerate().map(|(number, (part, rule))| {
        // An ALLOW rule with a key that nobody can answer matches nothing.
        let action = match rule.terms().all(|term| term.attribute.is_answerable()) {
            true => actions[number % actions.len()].clone(),
            false => Action::Deny,
        };
        (Some(part), vec![asking(action, rule)])
    });
    let random = |seed| (None, policies(&mut Random::new(seed as u64), SCOPE, 8));
    alone.chain((0..random_ones).map(random)).collect()
}

/// Returns true for conditions that no request meets: all requests have these headers, and no client has an IPv4-mapped
/// address (see decision 0014).
fn is_never_met(part: &str) -> bool {
    let always_there = [
        "to: request.host",
        "to: request.method",
        "to: request.path",
        "when: request.headers[:authority]",
        "when: request.headers[:method]",
        "when: request.headers[:path]",
        "when: request.headers[host]",
    ];
    let mut always_there = always_there.iter();
    always_there.any(|name| part == format!("{name} notValues: *"))
        || part.ends_with(" values: mapped")
}

#[test]
fn our_engine_says_what_a_stock_envoy_says() {
    let Some(program) = stock::found() else {
        return;
    };
    let provider = Echo::authorizer();
    let (certificates, ipv6) = (Certificates::new(), has_ipv6());
    let sets = sets(number("VOILE_SETS", 100), ipv6);
    let mut seen = Seen::default();
    for (batch, drawn) in sets.chunks(SETS_AT_ONCE).enumerate() {
        let listeners = listeners(
            drawn.iter().map(|(_, policies)| &**policies),
            &keys(),
            &certificates,
            ipv6,
        );
        let court = Court {
            envoy: &Envoy::start(&program, &listeners, &[provider.cluster("authorizer")]),
            certificates: &certificates,
            ipv6,
        };
        seen.add(compare_all(&court, drawn, batch * SETS_AT_ONCE));
    }
    let Seen { counted, alone } = seen;
    let count = sets.len();
    println!("{count} sets, each request also as a connection: {counted:?}");
    // A generator that no longer reaches something proves nothing about it.
    assert!(
        counted.values().all(|count| count * 50 > counted["all"]),
        "{counted:?}"
    );
    let never = alone
        .iter()
        .filter(|(part, met)| **met == 0 && !is_never_met(part));
    let never: Vec<&String> = never.map(|(part, _)| part).collect();
    println!("of {} never met: {never:?}", alone.len());
    // Few requests miss what few carry, and few connections what only connections have.
    let share = match number("VOILE_REQUESTS", 0) >= REQUESTS_THAT_REACH_MOST {
        true => 50,
        false => 4,
    };
    assert!(never.len() * share < alone.len(), "{never:?}");
}
