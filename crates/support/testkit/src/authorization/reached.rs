//! Coverage of the policy language by a run: each attribute at each place, each kind of value on either side of its lists, each
//! action, tried out or not. The language is a table. So a part that is new in policies and not in the generator, or the other
//! way round, fails a test.

use std::collections::BTreeMap;

use voile_policy::authorization::{
    Action, Attribute, Cidr, Pattern, Policy, PolicyRule, Term, Text,
};

use super::policies::{attribute, value};
use super::{Random, Scope};

const TEXT: &[&str] = &["exact", "prefix*", "*suffix", "*"];
const NAMESPACE: &[&str] = &["exact", "prefix*", "*suffix", "*", "stars elsewhere"];
const ACCOUNT: &[&str] = &["account"];
const ADDRESS: &[&str] = &[
    "all of IPv4",
    "a block of IPv4",
    "an IPv4 address",
    "all of IPv6",
    "a block of IPv6",
    "an IPv6 address",
    "mapped",
];
/// Issuer and subject.
const TOKEN: &[&str] = &[
    "exact / exact",
    "exact / prefix*",
    "exact / *",
    "exact / *suffix",
    "prefix* / *",
    "*suffix / exact",
    "* / exact",
    "* / *suffix",
    "* / *",
];
const PATH: &[&str] = &[
    "exact",
    "prefix*",
    "*suffix",
    "*",
    "{*}",
    "{**}",
    "{*} and {**}",
];
const PORT: &[&str] = &["port"];

/// Places of an attribute, its name, and the comparison of its values.
const ASKED: &[(&str, &str, &[&str])] = &[
    ("from", "source.principal", TEXT),
    ("from", "source.namespace", NAMESPACE),
    ("from", "source.serviceAccount", ACCOUNT),
    ("from", "source.trustDomain", TEXT),
    ("from", "source.ip", ADDRESS),
    ("from", "remote.ip", ADDRESS),
    ("from", "request.auth.principal", TOKEN),
    ("to", "request.host", TEXT),
    ("to", "request.method", TEXT),
    ("to", "request.path", PATH),
    ("to", "destination.port", PORT),
    ("when", "source.principal", TEXT),
    ("when", "source.namespace", NAMESPACE),
    ("when", "source.serviceAccount", ACCOUNT),
    ("when", "source.trustDomain", TEXT),
    ("when", "source.ip", ADDRESS),
    ("when", "remote.ip", ADDRESS),
    ("when", "request.auth.principal", TOKEN),
    ("when", "request.auth.audiences", TEXT),
    ("when", "request.auth.presenter", TEXT),
    ("when", "request.auth.claims, 1 deep", TEXT),
    ("when", "request.auth.claims, 2 deep", TEXT),
    ("when", "request.auth.claims, 3 deep", TEXT),
    ("when", "request.headers", TEXT),
    ("when", "request.headers of which lines are joined", TEXT),
    ("when", "request.headers[:authority]", TEXT),
    ("when", "request.headers[:method]", TEXT),
    ("when", "request.headers[:path]", TEXT),
    ("when", "request.headers[host]", TEXT),
    ("when", "destination.ip", ADDRESS),
    ("when", "destination.port", PORT),
    ("when", "connection.sni", TEXT),
    ("when", "a key that nobody can answer", &["value"]),
];
const SIDES: [&str; 2] = ["values", "notValues"];
const ACTIONS: &[&str] = &["ALLOW", "DENY", "AUDIT", "CUSTOM ext", "CUSTOM other"];
const SHAPES: &[&str] = &[
    "no rules",
    "a rule that asks nothing",
    "several sources",
    "several operations",
    "several conditions",
    "more sources than are looked at in turn",
    "more operations than are looked at in turn",
    "more values than are looked at in turn",
    "values and notValues of one attribute",
];
/// An index makes a table of a list with more entries than this (see decision 0014).
const IN_TURN: usize = 8;

/// Number of times that each part was reached.
#[derive(Debug, Clone, Default)]
pub struct Reached(BTreeMap<String, usize>);

impl Reached {
    /// A policy that was drawn, and its rules.
    pub fn policy(&mut self, policy: &Policy) {
        self.action(policy);
        for rule in &policy.rules {
            self.rule(rule);
        }
    }

    fn action(&mut self, policy: &Policy) {
        let action = match &policy.action {
            Action::Allow => "ALLOW".to_owned(),
            Action::Deny => "DENY".to_owned(),
            Action::Audit => "AUDIT".to_owned(),
            Action::Custom(provider) => format!("CUSTOM {provider}"),
        };
        self.note(action_part(&action, policy.dry_run));
        if policy.rules.is_empty() {
            self.note("no rules".to_owned());
        }
    }

    fn rule(&mut self, rule: &PolicyRule) {
        for (place, all) in [("from", &rule.from), ("to", &rule.to)] {
            all.iter().flatten().for_each(|term| self.term(place, term));
        }
        for term in &rule.when {
            self.term("when", term);
        }
        let long = |term: &Term| term.any.len() > IN_TURN || term.none.len() > IN_TURN;
        let both = |term: &Term| !term.any.is_empty() && !term.none.is_empty();
        let shapes = [
            ("a rule that asks nothing", rule.terms().count() == 0),
            ("several sources", rule.from.len() > 1),
            ("several operations", rule.to.len() > 1),
            ("several conditions", rule.when.len() > 1),
            (
                "more sources than are looked at in turn",
                rule.from.len() > IN_TURN,
            ),
            (
                "more operations than are looked at in turn",
                rule.to.len() > IN_TURN,
            ),
            (
                "more values than are looked at in turn",
                rule.terms().any(long),
            ),
            (
                "values and notValues of one attribute",
                rule.terms().any(both),
            ),
        ];
        for (shape, is) in shapes {
            if is {
                self.note(shape.to_owned());
            }
        }
    }

    /// Parts of the language reached less than so many times.
    pub fn missing(&self, least: usize) -> Vec<String> {
        let reached = |part: &String| self.0.get(part).copied().unwrap_or_default();
        let all = language().into_iter();
        all.filter(|part| reached(part) < least).collect()
    }

    /// Parts that were reached and are not in the language.
    pub fn unheard_of(&self) -> Vec<&String> {
        let language = language();
        let parts = self.0.keys();
        parts.filter(|part| !language.contains(*part)).collect()
    }

    fn note(&mut self, part: String) {
        *self.0.entry(part).or_default() += 1;
    }

    fn term(&mut self, place: &str, term: &Term) {
        for (side, list) in SIDES.into_iter().zip([&term.any, &term.none]) {
            for pattern in list {
                self.note(part(place, &term.attribute, side, pattern));
            }
        }
    }
}

fn head(place: &str, name: &str, side: &str) -> String {
    format!("{place}: {name} {side}: ")
}

/// Part of the language that a value stands for.
fn part(place: &str, attribute: &Attribute, side: &str, pattern: &Pattern) -> String {
    head(place, &name(attribute), side) + &kind(pattern)
}

fn action_part(action: &str, dry_run: bool) -> String {
    match dry_run {
        true => format!("{action}, tried out"),
        false => action.to_owned(),
    }
}

/// Every value of every attribute.
fn values() -> impl Iterator<Item = String> {
    ASKED.iter().flat_map(|(place, name, kinds)| {
        SIDES.into_iter().flat_map(move |side| {
            let part = move |kind: &&str| head(place, name, side) + kind;
            kinds.iter().map(part)
        })
    })
}

/// Rules that ask one thing each: one for every value of every attribute, with what it stands for; one that many requests meet,
/// by how many of some `meet` it.
///
/// # Panics
/// When the generator does not reach one of them.
pub fn alone(
    random: &mut Random,
    scope: Scope,
    mut meet: impl FnMut(&PolicyRule) -> usize,
) -> Vec<(String, PolicyRule)> {
    /// Many times what it takes.
    const DRAWN: usize = 1_000_000;
    /// So many are tried before the best of them is taken; one that so many meet is taken at once.
    const TRIED: usize = 30;
    const ENOUGH: usize = 3;
    let mut wanted: BTreeMap<String, usize> = values().map(|part| (part, 0)).collect();
    let mut best = BTreeMap::<String, (usize, PolicyRule)>::new();
    for _ in 0..DRAWN {
        if wanted.is_empty() {
            break;
        }
        let (part, rule) = asking_one_thing(random, scope);
        let Some(tried) = wanted.get_mut(&part) else {
            continue;
        };
        *tried += 1;
        let met = meet(&rule);
        if *tried == TRIED || met >= ENOUGH {
            wanted.remove(&part);
        }
        if best.get(&part).is_none_or(|(before, _)| met > *before) {
            best.insert(part, (met, rule));
        }
    }
    assert!(wanted.is_empty(), "never drawn so often: {wanted:?}");
    let best = best.into_iter();
    best.map(|(part, (_, rule))| (part, rule)).collect()
}

fn asking_one_thing(random: &mut Random, scope: Scope) -> (String, PolicyRule) {
    let place = random.of(&["from", "to", "when"]);
    let attribute = attribute(random, place);
    let side = random.of(&SIDES);
    let value = [value(random, scope, &attribute)];
    let (any, none): (&[_], &[_]) = match side == SIDES[0] {
        true => (&value, &[]),
        false => (&[], &value),
    };
    let term = Term::parse(attribute, "shop", any, none).expect("the generator's own");
    let pattern = term.any.first().or(term.none.first()).expect("one value");
    let part = part(place, &term.attribute, side, pattern);
    let mut rule = PolicyRule::default();
    match place {
        "from" => rule.from.push(vec![term]),
        "to" => rule.to.push(vec![term]),
        _ => rule.when.push(term),
    }
    (part, rule)
}

/// Every part of it.
fn language() -> Vec<String> {
    let asked = values();
    let actions = ACTIONS
        .iter()
        .flat_map(|action| [false, true].map(|dry_run| action_part(action, dry_run)));
    let shapes = SHAPES.iter().map(|shape| (*shape).to_owned());
    asked.chain(actions).chain(shapes).collect()
}

/// An attribute as the table calls it: names of headers and claims are many.
fn name(attribute: &Attribute) -> String {
    match attribute {
        Attribute::RequestClaim(path) => format!("request.auth.claims, {} deep", path.len()),
        Attribute::RequestHeader(name) if name.starts_with(':') || **name == *"host" => {
            attribute.to_string()
        }
        Attribute::RequestHeader(name) if **name == *"user-agent" => {
            "request.headers of which lines are joined".to_owned()
        }
        Attribute::RequestHeader(_) => "request.headers".to_owned(),
        Attribute::Unanswerable(_) => "a key that nobody can answer".to_owned(),
        other => other.to_string(),
    }
}

fn kind(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Text(text) => text_kind(text).to_owned(),
        Pattern::ServiceAccount { .. } => "account".to_owned(),
        Pattern::RequestPrincipal(principal) => {
            let parts = [&principal.issuer, &principal.subject].map(text_kind);
            parts.join(" / ")
        }
        Pattern::Cidr(block) => block_kind(block).to_owned(),
        Pattern::Port(_) => "port".to_owned(),
        Pattern::Template(template) => {
            let written = template.to_string();
            let has = ["{*}", "{**}"].map(|operator| written.contains(operator));
            match has {
                [true, true] => "{*} and {**}",
                [false, true] => "{**}",
                _ => "{*}",
            }
            .to_owned()
        }
        Pattern::Unanswerable(_) => "value".to_owned(),
    }
}

fn text_kind(text: &Text) -> &'static str {
    match text {
        Text::Exact(_) => "exact",
        Text::Prefix(_) => "prefix*",
        Text::Suffix(_) => "*suffix",
        Text::Present => "*",
        Text::Glob(_) => "stars elsewhere",
    }
}

fn block_kind(block: &Cidr) -> &'static str {
    match (block.address().is_ipv4(), block.length()) {
        (true, 0) => "all of IPv4",
        (true, 32) => "an IPv4 address",
        (true, _) => "a block of IPv4",
        (false, _) if block.is_mapped() => "mapped",
        (false, 0) => "all of IPv6",
        (false, 128) => "an IPv6 address",
        (false, _) => "a block of IPv6",
    }
}
