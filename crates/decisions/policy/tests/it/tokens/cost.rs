//! Cost of examining a token in instructions, counted by valgrind. A thousand issuers cost as much as one, with a
//! cached token, an unknown token and no token. This binary runs itself once more under valgrind. Signatures are not
//! counted here.

use std::env;

use serde_json::json;
use voile_model::mesh::TokenRule;
use voile_policy::tokens::{Cache, Rules, TokenRequest};

use super::{NOW, P256, claims, compiled, header_place, rule, said};
use crate::cost::{COUNTED, GROWTH_PERCENT, ORDERS, begin_counting, count, end_counting};

const SUBJECT: &str = "tokens::cost::subject";
const MANY: usize = 1_000;

/// The token that a request carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carried {
    Nothing,
    /// Of the issuer in the middle, remembered.
    Warm,
    /// Of an unknown issuer.
    Unknown,
    /// Three parts of nonsense.
    Nonsense,
}

/// The places of tokens in the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Usual,
    /// Each has a header, a parameter and a cookie of its own.
    OwnPlaces,
}

fn cases() -> Vec<(Rule, Carried, usize)> {
    let mut cases = Vec::new();
    for rule in [Rule::Usual, Rule::OwnPlaces] {
        for carried in [
            Carried::Nothing,
            Carried::Warm,
            Carried::Unknown,
            Carried::Nonsense,
        ] {
            for issuers in [1, MANY] {
                cases.push((rule, carried, issuers));
            }
        }
    }
    cases
}

/// Names are as long among one as among a thousand.
fn issuer(number: usize) -> String {
    format!("https://issuer-{number:04}.example/realms/shop")
}

fn rules(kind: Rule, issuers: usize) -> Rules {
    let keys = P256.key_set(&json!({}));
    // The one that is used is in the middle.
    let first = MANY / 2 - issuers / 2;
    let all: Vec<TokenRule> = (first..first + issuers)
        .map(|number| {
            let mut one = rule(&issuer(number), &keys);
            if kind == Rule::OwnPlaces {
                one.from_headers = vec![header_place(&format!("x-token-{number:04}:T "))];
                one.from_params = vec![format!("token-{number:04}").into()];
                one.from_cookies = vec![format!("token-{number:04}").into()];
            }
            one
        })
        .collect();
    compiled(&all)
}

#[test]
fn a_thousand_issuers_cost_what_one_does() {
    let Some(counts) = count(SUBJECT, cases().len()) else {
        return;
    };
    let mut one = 0;
    let mut grown = Vec::new();
    for ((rule, carried, issuers), count) in cases().into_iter().zip(counts) {
        println!("{rule:?} {carried:?}: {issuers} issuers, {count} instructions");
        if issuers == 1 {
            one = count;
        } else if count > one * GROWTH_PERCENT / 100 {
            grown.push(format!("{rule:?} {carried:?}: {one} -> {count}"));
        }
    }
    assert!(grown.is_empty(), "{grown:#?}");
}

/// The process that is counted.
#[test]
#[ignore = "the test above runs it under valgrind"]
fn subject() {
    if env::var(ORDERS).is_err() {
        return;
    }
    let token = |issuer: &str| {
        let more = json!({"exp": NOW + 600, "aud": ["shop", "stock"], "scope": "read write", "name": "A User"});
        P256.token("ES256", &claims(issuer, &more))
    };
    let (good, unknown) = (token(&issuer(MANY / 2)), token(&issuer(9_999)));
    for (kind, carried, issuers) in cases() {
        let rules = rules(kind, issuers);
        let mut cache = Cache::new(5);
        let text = match carried {
            Carried::Nothing => None,
            Carried::Warm => Some(&*good),
            Carried::Unknown => Some(&*unknown),
            Carried::Nonsense => Some("none.of.this"),
        };
        let value = text.map_or_else(String::new, |text| match kind {
            Rule::Usual => format!("Bearer {text}"),
            Rule::OwnPlaces => format!("T {text}"),
        });
        let mut lines = vec![
            ("host", "shop.example"),
            ("user-agent", "a browser"),
            ("accept", "*/*"),
            ("cookie", "session=1; theme=dark"),
        ];
        if text.is_some() {
            lines.push(match kind {
                Rule::Usual => ("authorization", &*value),
                Rule::OwnPlaces => ("x-token-0500", &*value),
            });
        }
        let request = TokenRequest {
            method: b"GET",
            path: b"/api/v1/things?page=2&sort=name",
            headers: &lines,
        };
        let wanted = match carried {
            Carried::Nothing => "nobody".to_owned(),
            Carried::Warm => format!("{}/user", issuer(MANY / 2)),
            Carried::Unknown => "401 Issuer".to_owned(),
            Carried::Nonsense => "401 HeaderJson".to_owned(),
        };
        // The request is examined once before the count, so that the caches are filled.
        assert_eq!(said(&rules.examine(&request, NOW, &mut cache)), wanted);
        begin_counting();
        for _ in 0..COUNTED {
            let outcome = rules.examine(std::hint::black_box(&request), NOW, &mut cache);
            std::hint::black_box(&outcome);
        }
        end_counting();
    }
}
