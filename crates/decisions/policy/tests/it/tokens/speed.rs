//! Duration of examining a token, for the decision page. Run it by hand in release; the cases are interleaved, so that
//! a busy machine slows all of them alike.
//!
//! `cargo test --release -p voile-policy --test it -- tokens::speed --ignored --nocapture`

use std::hint::black_box;
use std::time::{Duration, Instant};

use aws_lc_rs::rsa::PublicKeyComponents;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use voile_policy::tokens::{Cache, TokenRequest};
use voile_testkit::tokens::SigningKey;

use crate::cost::{COUNTED, ORDERS, begin_counting, count, end_counting};

use super::{ED, NOW, P256, RSA, believing, claims, compiled, said};

/// Each key and the algorithm it is asked with.
fn keys() -> [(&'static str, &'static SigningKey); 3] {
    [("RS256", &RSA), ("ES256", &P256), ("EdDSA", &ED)]
}

const COUNTED_SUBJECT: &str = "tokens::speed::counted_subject";

/// The same in instructions, which a busy machine does not change; in release, since our side is not optimised otherwise.
/// `cargo test --release -p voile-policy --test it -- tokens::speed::counted --ignored --nocapture`
#[test]
#[ignore = "a measurement, to be run by hand in release"]
fn counted() {
    let Some(counts) = count(COUNTED_SUBJECT, 3 * 3) else {
        return;
    };
    for ((name, _), counts) in keys().into_iter().zip(counts.chunks(3)) {
        let ratio = counts[1] as f64 / counts[0] as f64;
        println!(
            "{name}: bare check {} instructions, cold {} (x{ratio:.3}), warm {}",
            counts[0], counts[1], counts[2]
        );
    }
}

/// The process that is counted.
#[test]
#[ignore = "the test above runs it under valgrind"]
fn counted_subject() {
    if std::env::var(ORDERS).is_err() {
        return;
    }
    for (name, key) in keys() {
        let rules = compiled(&[believing(key)]);
        let lines = lines(name, key);
        let (signed, signature) = parts(&lines[0]);
        let verifying = bare(key);
        begin_counting();
        for _ in 0..COUNTED {
            verifying
                .verify_sig(black_box(signed), &signature)
                .expect("a good signature");
        }
        end_counting();
        let headers: Vec<_> = lines.iter().map(|line| headers(line)).collect();
        let mut cache = Cache::new(3);
        for cold in [true, false] {
            begin_counting();
            // The header is parsed for the first token only.
            for number in 0..COUNTED as usize {
                let request = request(&headers[if cold { number } else { 0 }]);
                drop(black_box(rules.examine(&request, NOW, &mut cache)));
            }
            end_counting();
        }
    }
}

const ROUNDS: usize = 40;
const TOKENS: usize = 500;

/// The key as the library takes it.
fn bare(key: &SigningKey) -> ParsedPublicKey {
    let jwk = key.jwk(&json!({}));
    let number = |name: &str| {
        URL_SAFE_NO_PAD
            .decode(jwk[name].as_str().expect("a test's own value"))
            .expect("a test's own value")
    };
    match key {
        SigningKey::Rsa(_) => PublicKeyComponents {
            n: number("n"),
            e: number("e"),
        }
        .to_parsed_public_key(&RSA_PKCS1_2048_8192_SHA256)
        .expect("a test's own value"),
        SigningKey::Elliptic(..) => {
            let point = [vec![4], number("x"), number("y")].concat();
            ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).expect("a test's own value")
        }
        SigningKey::Edwards(_) => {
            ParsedPublicKey::new(&ED25519, number("x")).expect("a test's own value")
        }
    }
}

/// Header lines with ordinary tokens, each another.
fn lines(name: &str, key: &SigningKey) -> Vec<String> {
    let line = |number: usize| {
        let more = json!({"exp": NOW + 600, "iat": NOW, "jti": format!("{number:08}"), "aud": ["shop", "stock"],
            "scope": "openid profile email", "realm_access": {"roles": ["user", "editor"]}, "name": "A User",
            "email": "user@example.com", "azp": "web"});
        format!("Bearer {}", key.token(name, &claims("a", &more)))
    };
    (0..TOKENS).map(line).collect()
}

/// The signed text and the signature.
fn parts(line: &str) -> (&[u8], Vec<u8>) {
    let token = &line["Bearer ".len()..];
    let (signed, signature) = token.rsplit_once('.').expect("a token");
    let signature = URL_SAFE_NO_PAD.decode(signature).expect("base64url");
    (signed.as_bytes(), signature)
}

fn headers(line: &str) -> Vec<(&str, &str)> {
    vec![
        ("host", "shop"),
        ("user-agent", "x"),
        ("accept", "*/*"),
        ("authorization", line),
    ]
}

fn request<'a>(headers: &'a Vec<(&'a str, &'a str)>) -> TokenRequest<'a> {
    TokenRequest {
        method: b"GET",
        path: b"/api/v1/things?page=2",
        headers,
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn nanoseconds(taken: Duration, count: usize) -> f64 {
    taken.as_secs_f64() * 1e9 / count as f64
}

#[test]
#[ignore = "a measurement, to be run by hand in release"]
fn cold_warm_and_none() {
    for (name, key) in keys() {
        let rules = compiled(&[believing(key)]);
        let lines = lines(name, key);
        let verifying = bare(key);
        let parts: Vec<_> = lines.iter().map(|line| parts(line)).collect();
        let headers: Vec<_> = lines.iter().map(|line| headers(line)).collect();
        let without: Vec<(&str, &str)> = headers[0][..3].to_vec();
        let ask = |headers: &Vec<(&str, &str)>, cache: &mut Cache| {
            let request = request(headers);
            black_box(rules.examine(black_box(&request), NOW, cache))
        };
        let (mut check, mut cold, mut warm, mut none) = (vec![], vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for (signed, signature) in &parts {
                verifying
                    .verify_sig(black_box(signed), signature)
                    .expect("a test's own value");
            }
            check.push(nanoseconds(start.elapsed(), TOKENS));
            let mut cache = Cache::new(3);
            let start = Instant::now();
            headers
                .iter()
                .for_each(|headers| drop(ask(headers, &mut cache)));
            cold.push(nanoseconds(start.elapsed(), TOKENS));
            assert_eq!(said(&ask(&headers[0], &mut cache)), "a/user");
            assert_eq!(cache.len(), TOKENS);
            let start = Instant::now();
            headers
                .iter()
                .for_each(|headers| drop(ask(headers, &mut cache)));
            warm.push(nanoseconds(start.elapsed(), TOKENS));
            let start = Instant::now();
            (0..TOKENS).for_each(|_| drop(ask(&without, &mut cache)));
            none.push(nanoseconds(start.elapsed(), TOKENS));
        }
        let ratios = cold
            .iter()
            .zip(&check)
            .map(|(cold, check)| cold / check)
            .collect();
        println!(
            "{name}, {} bytes: bare check {:.0} ns, cold {:.0} ns (x{:.3}), warm {:.0} ns, no token {:.0} ns",
            lines[0].len(),
            median(check),
            median(cold),
            median(ratios),
            median(warm),
            median(none),
        );
    }
}
