//! Random token rules.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use voile_model::Source;
use voile_model::mesh::{ClaimOutput, HeaderPlace, KeySource, TokenRule};

use super::ring::{Ring, RingKey};
use crate::authorization::Random;

pub(super) const AUDIENCES: &[&str] = &["api", "web", "https://aud.example", "aud.example/", ""];
pub(super) const HEADERS: &[(&str, &str)] = &[
    ("authorization", "Bearer "),
    ("authorization", "Token "),
    ("x-jwt-assertion", ""),
    ("x-token", "Bearer "),
    ("x-token", "v="),
];
pub(super) const PARAMS: &[&str] = &["access_token", "jwt", "t"];
pub(super) const COOKIES: &[&str] = &["session", "jwt"];
pub(super) const OUTPUTS: &[&str] = &["x-payload", "x-claim-a", "x-claim-b", "x-claim-c"];
pub(super) const CLAIMS: &[&str] = &[
    "sub",
    "aud",
    "scope",
    "groups",
    "a.b",
    "a.c.d",
    "a",
    "dotted.name",
    "yes",
    "count",
    "ratio",
    "no",
    "huge",
    "negative",
    "nothing",
    "unicode",
    "empty",
    "exp",
];
const SPLIT: &[&str] = &["roles", "groups", "a.b", "scope", "yes", "empty"];

/// A place where a request may carry a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A header, behind a prefix.
    Header(String, String),
    /// A parameter of the query.
    Param(String),
    /// A cookie.
    Cookie(String),
}

/// A key in a rule's set.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    /// Its number in the ring.
    pub(super) key: usize,
    pub(super) kid: Option<String>,
    /// The one algorithm that the set allows it.
    pub(super) algorithm: Option<&'static str>,
}

/// A rule with what its tokens are signed by.
#[derive(Debug, Clone)]
pub struct DrawnRule {
    /// The rule as the model has it.
    pub rule: TokenRule,
    pub(super) listed: Vec<Listed>,
}

impl DrawnRule {
    /// Places in which its tokens may be.
    pub fn places(&self) -> Vec<Place> {
        let rule = &self.rule;
        if rule.in_default_places() {
            let (name, prefix) = TokenRule::DEFAULT_HEADER;
            return vec![
                Place::Header(name.to_owned(), prefix.to_owned()),
                Place::Param(TokenRule::DEFAULT_PARAM.to_owned()),
            ];
        }
        let headers = rule
            .from_headers
            .iter()
            .map(|place| Place::Header(place.name.to_string(), place.prefix.to_string()));
        let params = rule.from_params.iter();
        let cookies = rule.from_cookies.iter();
        headers
            .chain(params.map(|name| Place::Param(name.to_string())))
            .chain(cookies.map(|name| Place::Cookie(name.to_string())))
            .collect()
    }
}

/// One to four rules, sorted by issuer as they hold. `mark` makes the issuers different from those of other sets.
pub fn token_rules(random: &mut Random, ring: &Ring, mark: &str) -> Vec<DrawnRule> {
    let count = random.of(&[1, 1, 1, 2, 2, 3, 4]);
    let mut rules: Vec<DrawnRule> = (0..count).map(|_| rule(random, ring, mark)).collect();
    // Several rules that take tokens out of requests hinder each other in Envoy; where none does, all must be the same.
    if random.one_in(2) {
        let all = rules.iter_mut();
        all.for_each(|one| one.rule.forward_original = true);
    }
    rules.sort_by(|a, b| a.rule.issuer.cmp(&b.rule.issuer));
    rules
}

fn some<T: Copy + Into<Arc<str>>>(random: &mut Random, all: &[T], most: usize) -> Vec<Arc<str>> {
    let count = random.below(most + 1);
    let mut some: Vec<Arc<str>> = (0..count).map(|_| random.of(all).into()).collect();
    some.sort();
    some.dedup();
    some
}

fn rule(random: &mut Random, ring: &Ring, mark: &str) -> DrawnRule {
    let issuer = random.of(&["https://a.example/", "https://b.example/x/", "c"]);
    let issuer = format!("{issuer}{mark}");
    let (listed, keys) = keys(random, ring);
    let elsewhere = random.one_in(2);
    let mut from_headers = Vec::new();
    if elsewhere {
        for _ in 0..random.below(3) {
            let (name, prefix) = random.of(HEADERS);
            let (name, prefix) = (name.into(), prefix.into());
            let place = HeaderPlace { name, prefix };
            if !from_headers.contains(&place) {
                from_headers.push(place);
            }
        }
    }
    let most = if elsewhere { 2 } else { 0 };
    let output_claims = (0..random.below(4)).map(|_| ClaimOutput {
        header: random.of(OUTPUTS).into(),
        claim: random.of(CLAIMS).into(),
    });
    let output_claims = output_claims.collect();
    let rule = TokenRule {
        source: Source {
            file: "".into(),
            line: 0,
            column: 0,
        },
        issuer: issuer.into(),
        audiences: match random.one_in(2) {
            true => some(random, AUDIENCES, 3),
            false => Vec::new(),
        },
        keys: KeySource::Inline(keys.to_string().into()),
        from_headers,
        from_params: some(random, PARAMS, most),
        from_cookies: some(random, COOKIES, most),
        forward_original: random.one_in(2),
        output_payload_to_header: random.one_in(2).then(|| random.of(OUTPUTS).into()),
        output_claims,
        space_delimited_claims: some(random, SPLIT, 2),
        timeout: Duration::from_secs(5),
        required: false,
    };
    DrawnRule { rule, listed }
}

/// A few keys of the ring as a JSON Web Key Set, with or without `kid` and `alg`.
fn keys(random: &mut Random, ring: &Ring) -> (Vec<Listed>, Value) {
    let mut listed = Vec::new();
    let mut all = Vec::new();
    for number in 0..=random.below(3) {
        let key = loop {
            let key = random.below(ring.len());
            // Secrets seldom: nobody should have them in a mesh.
            if !matches!(ring.key(key), RingKey::Secret(_)) || random.one_in(6) {
                break key;
            }
        };
        let kid = (!random.one_in(3)).then(|| match random.one_in(6) {
            true => "key".to_owned(),
            false => format!("key-{number}"),
        });
        // Envoy tries every token on Ed25519 keys that do not say so, and then takes no other key.
        let algorithms = ring.key(key).algorithms();
        let said = algorithms == ["EdDSA"] || random.one_in(2);
        let algorithm = said.then(|| random.of(algorithms));
        let mut public = ring.key(key).public();
        if let Some(kid) = &kid {
            public["kid"] = json!(kid);
        }
        if let Some(algorithm) = algorithm {
            public["alg"] = json!(algorithm);
        }
        if random.one_in(3) {
            public["use"] = json!("sig");
        }
        all.push(public);
        listed.push(Listed {
            key,
            kid,
            algorithm,
        });
    }
    if random.one_in(8) {
        let odd = random.below(3);
        let odd = match odd {
            0 => json!({ "kty": "unheard-of", "kid": "key-0" }),
            1 => json!({ "kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA", "kid": "bad" }),
            _ => json!({ "kty": "OKP", "crv": "X25519", "x": "AAAA" }),
        };
        all.insert(random.below(all.len() + 1), odd);
    }
    (listed, json!({ "keys": all }))
}
