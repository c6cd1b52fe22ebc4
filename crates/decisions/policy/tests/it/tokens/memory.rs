//! Memory of tokens: the cache stays within its bound as the allocator counts it, and bad tokens leave nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use serde_json::{Value, json};
use voile_policy::tokens::{CACHE_BYTES, Cache, RuleKeys, Rules};

use super::{ED, NOW, asked, believing, claims, compiled, rule, said};

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// Allocations of this thread.
    static MADE: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending counts nothing.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

#[expect(unsafe_code, reason = "an allocator can only be counted by being one")]
// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        let _ = MADE.try_with(|made| made.set(made.get() + 1));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes of heap that this thread holds.
fn held() -> isize {
    HELD.with(Cell::get)
}

/// An ordinary token, one of a thousand claims, one of many small lists, one of long texts.
fn shapes(number: usize) -> Value {
    let id = format!("user-{number}");
    match number % 40 {
        0 => {
            let many = (0..1_000).map(|claim| (format!("claim-{claim}"), json!(claim)));
            Value::Object(many.collect())
        }
        1 => json!({ "jti": id, "lists": vec![json!(["a", ["b"], {"c": 1}]); 200] }),
        2 => json!({ "jti": id, "text": "x".repeat(20_000) }),
        _ => {
            json!({ "jti": id, "exp": NOW + 600, "aud": ["shop"], "scope": "read write", "realm": {"roles": ["a", "b"]} })
        }
    }
}

/// Allocations for a new token: the decoded payload, two for the claims, its text, the token itself, its state until
/// its signature is checked, and those of the cryptographic library. A name or a value must not cost an allocation
/// each.
const OF_A_NEW_TOKEN: usize = 8;

#[test]
fn a_new_token_takes_no_allocation_for_each_of_its_claims() {
    let rules = compiled(&[believing(&ED)]);
    let mut cache = Cache::new(11);
    let lines: Vec<String> = (0..40)
        .map(|number| {
            let more = json!({ "jti": format!("{number}"), "exp": NOW + 600, "aud": ["shop", "stock"], "scope": "read write", "name": "A User",
                "realm": { "roles": ["a", "b"] }, "azp": "web" });
            format!("Bearer {}", ED.token("EdDSA", &claims("a", &more)))
        })
        .collect();
    let made = lines.iter().map(|line| {
        let before = MADE.with(Cell::get);
        drop(asked(&rules, &mut cache, "/", &[("authorization", line)]));
        MADE.with(Cell::get) - before
    });
    let made: Vec<usize> = made.collect();
    assert_eq!(cache.len(), lines.len());
    let (usual, most) = (made.iter().min(), OF_A_NEW_TOKEN);
    assert!(usual <= Some(&most), "{made:?}");
}

#[test]
fn what_is_remembered_stays_within_its_bound() {
    let rules = compiled(&[believing(&ED)]);
    let before = held();
    let mut cache = Cache::new(11);
    let mut most = 0;
    for number in 0..4_000 {
        let token = ED.token("EdDSA", &claims("a", &shapes(number)));
        let line = format!("Bearer {token}");
        let outcome = asked(&rules, &mut cache, "/", &[("authorization", &line)]);
        assert_eq!(said(&outcome), "a/user");
        drop((outcome, line, token));
        assert!(cache.bytes() <= CACHE_BYTES, "{cache:?}");
        most = most.max(held() - before);
    }
    println!("{cache:?}, {most} bytes of heap at most");
    assert!(cache.len() > 200, "{cache:?}");
    // The cache's own estimate is within a fifth of the real memory.
    let limit = isize::try_from(CACHE_BYTES).expect("a test's own value");
    assert!(most <= limit + limit / 5, "{most} bytes");
    cache.clear();
    assert!(held() - before < 1_000, "{} bytes stay", held() - before);
}

#[test]
fn keys_that_made_no_signature_are_remembered_within_a_bound() {
    let strange = || believing(&voile_testkit::tokens::SigningKey::new("EdDSA"));
    // As many rules of one issuer as there may be checks for one request; the last one's key made the signatures.
    let mut all: Vec<_> = (0..15).map(|_| strange()).collect();
    all.push(believing(&ED));
    let rules = compiled(&all);
    let before = held();
    let mut cache = Cache::new(11);
    let mut most = 0;
    for number in 0..2_500 {
        let token = ED.token("EdDSA", &claims("a", &json!({ "jti": number.to_string() })));
        let line = format!("Bearer {token}");
        let outcome = asked(&rules, &mut cache, "/", &[("authorization", &line)]);
        assert_eq!(said(&outcome), "a/user");
        drop((outcome, line, token));
        most = most.max(held() - before);
    }
    println!("{cache:?}, {most} bytes of heap at most");
    let limit = isize::try_from(CACHE_BYTES).expect("a test's own value");
    assert!(most <= limit, "{most} bytes");
}

#[test]
fn keys_that_turn_all_day_leave_nothing_beside_a_token_that_stays_good() {
    let mut cache = Cache::new(11);
    let line = format!("Bearer {}", ED.token("EdDSA", &claims("a", &json!({}))));
    let turned = |cache: &mut Cache| {
        let strange = believing(&voile_testkit::tokens::SigningKey::new("EdDSA"));
        let rules = compiled(&[strange, believing(&ED)]);
        let outcome = asked(&rules, cache, "/", &[("authorization", &line)]);
        assert_eq!(said(&outcome), "a/user");
    };
    for _ in 0..10 {
        turned(&mut cache);
    }
    let before = held();
    for _ in 0..500 {
        turned(&mut cache);
    }
    assert!(held() - before <= 0, "{} bytes more", held() - before);
}

#[test]
fn what_is_asked_for_again_stays_and_the_rest_goes() {
    let rules = compiled(&[believing(&ED)]);
    let mut cache = Cache::with_limit(11, 64 * 1024);
    let token = |user: &str| ED.token("EdDSA", &claims("a", &json!({"sub": user})));
    let favourite = format!("Bearer {}", token("favourite"));
    let ask = |cache: &mut Cache, line: &str| {
        let outcome = asked(&rules, cache, "/", &[("authorization", line)]);
        assert!(said(&outcome).starts_with("a/"), "{}", said(&outcome));
        match outcome {
            voile_policy::tokens::TokenOutcome::Verified(verified) => verified.token().clone(),
            _ => unreachable!(),
        }
    };
    let first = ask(&mut cache, &favourite);
    for number in 0..300 {
        ask(
            &mut cache,
            &format!("Bearer {}", token(&number.to_string())),
        );
        let again = ask(&mut cache, &favourite);
        assert!(std::sync::Arc::ptr_eq(&first, &again), "verified again");
    }
    assert!(cache.len() < 100, "{cache:?}");
}

#[test]
fn bad_tokens_leave_nothing() {
    let rules = compiled(&[believing(&ED)]);
    let mut cache = Cache::new(11);
    let good = ED.token("EdDSA", &claims("a", &json!({})));
    let signature = good.rsplit_once('.').expect("a test's own value").1;
    let mut before = None;
    for number in 0..2_000 {
        let text = match number % 4 {
            0 => format!("{number}"),
            1 => format!("a.{number}.b"),
            2 => ED.token("EdDSA", &claims("z", &json!({"sub": number}))),
            _ => {
                let other = ED.token("EdDSA", &claims("a", &json!({"jti": number.to_string()})));
                let signed = other.rsplit_once('.').expect("a test's own value").0;
                format!("{signed}.{signature}")
            }
        };
        let line = format!("Bearer {text}");
        let outcome = asked(&rules, &mut cache, "/", &[("authorization", &line)]);
        assert!(said(&outcome).starts_with("401"), "{text}");
        drop((outcome, line, text));
        let now = held();
        assert!(cache.is_empty() && now - *before.get_or_insert(now) <= 0);
    }
}

#[test]
fn a_thousand_issuers_with_keys_of_their_own_take_little() {
    // Keys are on a curve, so that making a thousand takes no minutes.
    let keys: Vec<String> = (0..1_000)
        .map(|_| voile_testkit::tokens::SigningKey::new("EdDSA").key_set(&json!({})))
        .collect();
    let all: Vec<_> = keys
        .iter()
        .enumerate()
        .map(|(number, keys)| rule(&format!("https://issuer-{number:04}.example"), keys))
        .collect();
    let given = || {
        let rules = all.iter();
        rules.map(|rule| RuleKeys { rule, keys: None })
    };
    let before = held();
    let rules = Rules::new(given(), None);
    let one = held() - before;
    println!("{one} bytes for a thousand issuers");
    // Besides what the library keeps of each key, which it does not ask Rust for.
    assert!(one <= 1_200_000, "{one} bytes");
    // Compiled again, key sets are shared with what was before.
    let again = Rules::new(given(), Some(&rules));
    let two = held() - before;
    assert!(two < 2 * one, "{one} {two}");
    drop(again);
}
