//! Random policies, made of values as users write them.

use voile_policy::authorization::{Action, Attribute, Policy, PolicyName, PolicyRule, Term, Terms};

use super::Random;
use super::words::{
    ACCOUNTS, CLAIM_VALUES, HEADER_VALUES, HEADERS, ISSUERS, METHODS, NAMESPACES, PORTS,
    SERVER_NAMES, SUBJECTS, TRUST_DOMAINS, V4, V6, host, path, principal,
};

/// Parts of the policy language that the generator may draw.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    /// Connections that are not HTTP.
    pub tcp: bool,
    /// IPv6 addresses.
    pub ipv6: bool,
    /// AUDIT, CUSTOM and dry-run policies.
    pub all_actions: bool,
    /// Keys that nobody can answer.
    pub unanswerable: bool,
}

impl Scope {
    /// Everything.
    pub const ALL: Self = Self {
        tcp: true,
        ipv6: true,
        all_actions: true,
        unanswerable: true,
    };
}

/// Up to `most` random policies, few of them most often.
pub fn policies(random: &mut Random, scope: Scope, most: usize) -> Vec<Policy> {
    let count = match random.one_in(4) {
        true => random.below(most + 1),
        false => random.below(most.min(4) + 1),
    };
    (0..count)
        .map(|number| policy(random, scope, number))
        .collect()
}

fn policy(random: &mut Random, scope: Scope, number: usize) -> Policy {
    let action = match random.below(if scope.all_actions { 8 } else { 5 }) {
        0 | 1 => Action::Deny,
        2..=4 => Action::Allow,
        5 => Action::Audit,
        6 => Action::Custom("ext".into()),
        _ => Action::Custom((random.of(&["ext", "other"])).into()),
    };
    let rules = match random.one_in(8) {
        true => 0,
        false => random.below(5) + 1,
    };
    Policy {
        name: PolicyName {
            namespace: "shop".into(),
            name: format!("p{number}").into(),
        },
        origin: None,
        action,
        dry_run: scope.all_actions && random.one_in(5),
        rules: (0..rules).map(|_| rule(random, scope)).collect(),
    }
}

/// A random rule.
pub fn rule(random: &mut Random, scope: Scope) -> PolicyRule {
    let parts = |random: &mut Random, all: &[fn(&mut Random) -> Attribute]| -> Vec<Terms> {
        let count = match random.below(6) {
            0..=2 => 1,
            3 => random.below(3) + 2,
            4 if random.one_in(4) => 12,
            _ => 0,
        };
        let mut part = || {
            let count = random.below(3) + usize::from(!random.one_in(20));
            (0..count)
                .map(|_| {
                    let attribute = random.of(all)(random);
                    term(random, scope, attribute)
                })
                .collect()
        };
        (0..count).map(|_| part()).collect()
    };
    let mut rule = PolicyRule {
        from: parts(random, SOURCE),
        to: parts(random, OPERATION),
        when: Vec::new(),
    };
    if !random.one_in(3) {
        for _ in 0..=random.below(3) {
            let attribute = random.of(CONDITION)(random);
            rule.when.push(term(random, scope, attribute));
        }
    }
    if scope.unanswerable && random.one_in(40) {
        rule.when.push(term(random, scope, unanswerable()));
    }
    rule
}

type Draw = fn(&mut Random) -> Attribute;

const SOURCE: &[Draw] = &[
    |_| Attribute::SourcePrincipal,
    |_| Attribute::SourceNamespace,
    |_| Attribute::SourceServiceAccount,
    |_| Attribute::SourceTrustDomain,
    |_| Attribute::SourceIp,
    |_| Attribute::RemoteIp,
    |_| Attribute::RequestPrincipal,
];

const OPERATION: &[Draw] = &[
    |_| Attribute::Host,
    |_| Attribute::Method,
    |_| Attribute::Path,
    |_| Attribute::Path,
    |_| Attribute::DestinationPort,
];

/// Sources often: by this spelling there are seven of them.
const CONDITION: &[Draw] = &[
    |random| random.of(SOURCE)(random),
    |random| random.of(SOURCE)(random),
    |random| random.of(SOURCE)(random),
    |random| random.of(SOURCE)(random),
    |random| random.of(SOURCE)(random),
    |random| Attribute::RequestHeader((random.of(HEADERS)).into()),
    |random| {
        let name = random.of(&[":authority", ":method", ":path", "host"]);
        Attribute::RequestHeader((*name).into())
    },
    |_| Attribute::RequestAudiences,
    |_| Attribute::RequestPresenter,
    claim,
    claim,
    |_| Attribute::DestinationIp,
    |_| Attribute::DestinationPort,
    |_| Attribute::Sni,
];

/// An attribute that may stand there; in `when` one that nobody can answer now and then.
pub(super) fn attribute(random: &mut Random, place: &str) -> Attribute {
    match place {
        "from" => random.of(SOURCE)(random),
        "to" => random.of(OPERATION)(random),
        _ if random.one_in(40) => unanswerable(),
        _ => random.of(CONDITION)(random),
    }
}

fn unanswerable() -> Attribute {
    Attribute::Unanswerable("experimental.envoy.filters.a[b]".into())
}

fn claim(random: &mut Random) -> Attribute {
    let paths: &[&[&str]] = &[
        &["groups"],
        &["a", "b"],
        &["a", "c", "d"],
        &["a"],
        &["iss"],
        &["flat[x]"],
        &["no"],
    ];
    Attribute::RequestClaim(random.of(paths).iter().map(|name| (*name).into()).collect())
}

/// A term with random values on one side or both.
fn term(random: &mut Random, scope: Scope, attribute: Attribute) -> Term {
    let list = |random: &mut Random, some: bool| -> Vec<String> {
        let count = match random.below(8) {
            0 if some => 11,
            1..=3 if some => 2,
            _ => usize::from(some),
        };
        (0..count)
            .map(|_| value(random, scope, &attribute))
            .collect()
    };
    let (positive, negative) = (!random.one_in(4), random.one_in(3));
    let any = list(random, positive || !negative);
    let none = list(random, negative);
    Term::parse(attribute, "shop", &any, &none).expect("the generator writes good values")
}

/// A value that may match something of the vocabulary.
pub(super) fn value(random: &mut Random, scope: Scope, attribute: &Attribute) -> String {
    let word = |random: &mut Random, words: &[&str]| (random.of(words)).to_owned();
    let text = match attribute {
        Attribute::SourcePrincipal => principal(random),
        Attribute::SourceNamespace | Attribute::PeerNamespace => return namespace(random),
        Attribute::SourceServiceAccount => {
            let account = word(random, ACCOUNTS);
            return match random.one_in(2) {
                true => format!("{}/{account}", word(random, NAMESPACES)),
                false => account,
            };
        }
        Attribute::SourceTrustDomain => word(random, TRUST_DOMAINS),
        Attribute::SourceIp | Attribute::RemoteIp | Attribute::DestinationIp => {
            return block(random, scope);
        }
        Attribute::DestinationPort => return random.of(PORTS).to_string(),
        Attribute::RequestPrincipal => return request_principal(random),
        Attribute::RequestAudiences | Attribute::RequestPresenter | Attribute::RequestClaim(_) => {
            word(random, CLAIM_VALUES)
        }
        Attribute::RequestHeader(name) => match &**name {
            ":authority" | "host" => host(random),
            ":method" => word(random, METHODS),
            ":path" => path(random, true),
            _ => word(random, HEADER_VALUES),
        },
        Attribute::Host => host(random),
        Attribute::Method => word(random, METHODS),
        Attribute::Path => match random.one_in(3) {
            true => return template(random),
            false => path(random, false),
        },
        Attribute::Sni => word(random, SERVER_NAMES),
        Attribute::Unanswerable(_) => return "x".to_owned(),
    };
    cut(random, &text)
}

/// The text itself, a beginning, an end, or `*`.
fn cut(random: &mut Random, text: &str) -> String {
    let at = random.below(text.len() + 1);
    match random.below(6) {
        0 => format!("{}*", &text[..at]),
        1 => format!("*{}", &text[at..]),
        2 if random.one_in(3) => "*".to_owned(),
        _ if text.is_empty() => "*".to_owned(),
        _ => text.to_owned(),
    }
}

fn namespace(random: &mut Random) -> String {
    let namespace = random.of(NAMESPACES);
    match random.below(6) {
        0 => (random.of(&["s*p", "*ho*", "s**", "*", "*a", "*sa", "a*a", "s*-*"])).to_owned(),
        _ => cut(random, namespace),
    }
}

fn block(random: &mut Random, scope: Scope) -> String {
    let v6 = scope.ipv6 && random.one_in(3);
    let address = random.of(if v6 { V6 } else { V4 });
    let lengths: &[u8] = match v6 {
        true => &[0, 8, 64, 96, 112, 128],
        false => &[0, 8, 16, 24, 30, 32],
    };
    match random.one_in(3) {
        true => address.to_owned(),
        false => format!("{address}/{}", random.of(lengths)),
    }
}

fn request_principal(random: &mut Random) -> String {
    let (issuer, subject) = (random.of(ISSUERS), random.of(SUBJECTS));
    let whole = match random.below(5) {
        0 => format!("{issuer}/*"),
        1 => format!("*/{subject}"),
        2 => issuer.to_owned(),
        _ => format!("{issuer}/{subject}"),
    };
    cut(random, &whole)
}

fn template(random: &mut Random) -> String {
    let mut path = String::new();
    let mut any = false;
    for _ in 0..=random.below(4) {
        path += match random.below(4) {
            0 if !any => "/{*}",
            1 if !any => {
                any = true;
                "/{**}"
            }
            _ => random.of(&["/a", "/b", "/foo", "/bar", "/a%2Fb", "/index.html"]),
        };
    }
    if random.one_in(6) {
        path.push('/');
    }
    path
}
