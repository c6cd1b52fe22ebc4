//! Key sets, valid, odd and hostile: used keys, and reports about the others.

use serde_json::{Value, json};
use voile_policy::tokens::{KeyFault, KeySet, KeySetError, MAX_KEY_SET_BYTES};
use voile_testkit::tokens::base64url;

use super::{ED, P256, P384, RSA, bearer, claims, compiled, rule};

fn without(key: &Value, member: &str) -> Value {
    let mut key = key.clone();
    key.as_object_mut()
        .expect("a test's own value")
        .remove(member);
    key
}

fn with(key: &Value, member: &str, value: Value) -> Value {
    let mut key = key.clone();
    key[member] = value;
    key
}

/// Keys that are not used, and why.
fn faulty() -> Vec<(Value, KeyFault)> {
    let [rsa, p256, ed] = [&RSA, &P256, &ED].map(|key| key.jwk(&json!({})));
    let short = [0xff; 128];
    let secret = json!({ "kty": "oct", "k": base64url(b"secret") });
    vec![
        (json!(1), KeyFault::Member("keys")),
        (json!({}), KeyFault::Member("kty")),
        (json!({ "kty": 1 }), KeyFault::Member("kty")),
        (json!({ "kty": "oct" }), KeyFault::Symmetric),
        (secret.clone(), KeyFault::Symmetric),
        (with(&secret, "alg", json!("HS256")), KeyFault::Symmetric),
        (
            json!({ "kty": "EC", "crv": "secp256k1" }),
            KeyFault::Unsupported,
        ),
        (
            json!({ "kty": "OKP", "crv": "X25519" }),
            KeyFault::Unsupported,
        ),
        (json!({ "kty": "AKP" }), KeyFault::Unsupported),
        (with(&rsa, "use", json!("enc")), KeyFault::OtherUse),
        (with(&rsa, "key_ops", json!(["sign"])), KeyFault::OtherUse),
        (
            with(&rsa, "key_ops", json!("verify")),
            KeyFault::Member("key_ops"),
        ),
        (with(&rsa, "alg", json!("ES256")), KeyFault::Algorithm),
        (with(&rsa, "alg", json!("RSA-OAEP")), KeyFault::Algorithm),
        (with(&rsa, "alg", json!("none")), KeyFault::Algorithm),
        (with(&rsa, "alg", json!("rs256")), KeyFault::Algorithm),
        (with(&rsa, "alg", json!(["RS256"])), KeyFault::Member("alg")),
        (with(&rsa, "kid", json!(7)), KeyFault::Member("kid")),
        (with(&rsa, "n", json!(base64url(short))), KeyFault::Numbers),
        (with(&rsa, "n", json!("AA")), KeyFault::Numbers),
        (with(&rsa, "n", json!("not base64!")), KeyFault::Member("n")),
        (with(&rsa, "e", json!("AQ")), KeyFault::Numbers),
        (with(&rsa, "e", json!("Ag")), KeyFault::Numbers),
        (with(&rsa, "e", json!("")), KeyFault::Numbers),
        (without(&rsa, "e"), KeyFault::Member("e")),
        (with(&p256, "alg", json!("RS256")), KeyFault::Algorithm),
        (with(&p256, "alg", json!("ES384")), KeyFault::Algorithm),
        (with(&p256, "crv", json!("P-384")), KeyFault::Numbers),
        (
            with(&p256, "x", json!(base64url([1; 32]))),
            KeyFault::Numbers,
        ),
        (
            with(&p256, "x", json!(base64url([1; 33]))),
            KeyFault::Numbers,
        ),
        (without(&p256, "y"), KeyFault::Member("y")),
        (with(&ed, "alg", json!("ES256")), KeyFault::Algorithm),
        (with(&ed, "x", json!(base64url([1; 31]))), KeyFault::Numbers),
    ]
}

#[test]
fn a_key_that_cannot_be_used_is_named_and_hides_no_other() {
    let ed = ED.jwk(&json!({}));
    let good = ED.token("EdDSA", &claims("a", &json!({})));
    for (key, fault) in faulty() {
        let alone = json!({ "keys": [key] }).to_string();
        assert_eq!(
            KeySet::read(&alone).unwrap_err(),
            KeySetError::NoneUsable,
            "{key}"
        );
        let beside = json!({ "keys": [key, ed] }).to_string();
        let set = KeySet::read(&beside).expect("a test's own value");
        assert_eq!(set.faults(), [(0, fault)], "{key}");
        assert_eq!(set.usable(), 1);
        assert_eq!(bearer(&compiled(&[rule("a", &beside)]), &good), "a/user");
        assert_eq!(
            bearer(&compiled(&[rule("a", &alone)]), &good),
            "401 NoUsableKey"
        );
    }
}

#[test]
fn odd_but_good_keys_are_used() {
    let es = P256.token("ES256", &claims("a", &json!({})));
    let es384 = P384.token("ES384", &claims("a", &json!({})));
    let rs = RSA.token("RS256", &claims("a", &json!({})));
    let [rsa, p256, p384] = [&RSA, &P256, &P384].map(|key| key.jwk(&json!({})));
    let padded = |key: &Value, member: &str| {
        let text = format!("{}=", key[member].as_str().expect("a test's own value"));
        with(key, member, json!(text))
    };
    let mut long = vec![0];
    long.extend(base64_of(&rsa["n"]));
    for (key, token) in [
        (without(&p256, "crv"), &es),
        (with(&without(&p384, "crv"), "alg", json!("ES384")), &es384),
        (padded(&p256, "x"), &es),
        (with(&rsa, "n", json!(base64url(&long))), &rs),
        (with(&rsa, "x5c", json!(["whatever"])), &rs),
        (with(&rsa, "kid", json!("")), &rs),
        (with(&rsa, "key_ops", json!(["verify", "sign"])), &rs),
    ] {
        let keys = json!({ "keys": [key], "more": 1 }).to_string();
        assert_eq!(
            bearer(&compiled(&[rule("a", &keys)]), token),
            "a/user",
            "{key}"
        );
    }
    let private = with(&rsa, "d", json!("AQ"));
    let set = KeySet::read(&json!({ "keys": [private] }).to_string()).expect("a test's own value");
    assert_eq!(set.private(), [0]);
}

fn base64_of(value: &Value) -> Vec<u8> {
    use base64::Engine as _;
    let text = value.as_str().expect("a test's own value");
    base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(text)
        .expect("a test's own value")
}

#[test]
fn what_is_no_key_set_is_refused() {
    let ed = ED.jwk(&json!({}));
    let large = format!(
        "{{\"keys\":[{ed}],\"x\":\"{}\"}}",
        "x".repeat(MAX_KEY_SET_BYTES)
    );
    let twice = format!("{{\"keys\":[],\"keys\":[{ed}]}}");
    let inner = format!(
        "{{\"keys\":[{}]}}",
        ed.to_string().replacen('{', "{\"kty\":\"RSA\",", 1)
    );
    for (text, error) in [
        ("", KeySetError::NotJson),
        ("<html>", KeySetError::NotJson),
        ("[]", KeySetError::NotJson),
        ("{}", KeySetError::NoKeys),
        (&*ed.to_string(), KeySetError::NoKeys),
        ("{\"keys\":{}}", KeySetError::NoKeys),
        ("{\"keys\":null}", KeySetError::NoKeys),
        ("{\"keys\":[]}", KeySetError::NoneUsable),
        (&*large, KeySetError::TooLarge),
        (&*twice, KeySetError::NotJson),
        (&*inner, KeySetError::NotJson),
    ] {
        assert_eq!(KeySet::read(text).unwrap_err(), error, "{text:.80}");
    }
    let crowd = json!({ "keys": vec![ed; 101] }).to_string();
    let set = KeySet::read(&crowd).expect("a test's own value");
    assert_eq!(
        (set.usable(), set.faults()),
        (100, &[(100, KeyFault::TooMany)][..])
    );
}
