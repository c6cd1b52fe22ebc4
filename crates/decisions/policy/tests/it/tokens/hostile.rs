//! Tokens made to be believed wrongly, and tokens made to cost.

use serde_json::{Value, json};
use voile_policy::tokens::{Cache, MAX_SIGNATURE_CHECKS, MAX_TOKEN_BYTES};
use voile_testkit::tokens::{SigningKey, base64url};

use super::{
    ED, NOW, OTHER_RSA, P256, P384, P521, RSA, asked, bearer, believing, claims, compiled, rule,
    said,
};

/// A token with this header and these claims of issuer `a`, signed by a key however it likes.
fn forged(key: &SigningKey, header: &Value) -> String {
    let payload = claims("a", &json!({})).to_string();
    key.raw_token("", header.to_string().as_bytes(), payload.as_bytes())
}

/// A token whose signature is these bytes.
fn with_signature(header: &Value, signature: &[u8]) -> String {
    let payload = claims("a", &json!({})).to_string();
    let signed = [base64url(header.to_string()), base64url(payload)].join(".");
    format!("{signed}.{}", base64url(signature))
}

#[test]
fn algorithms_are_not_confused() {
    let keys = [&RSA, &P256, &P384, &P521, &ED].map(|key| key.jwk(&json!({})));
    let all = compiled(&[rule("a", &json!({ "keys": keys }).to_string())]);
    for name in [
        "none", "None", "NONE", "nOnE", "", "HS256", "HS384", "HS512", "rs256", "RS1", "RSA-OAEP",
        "ES256K", "Ed25519", "EdDSA ", "dir",
    ] {
        let token = forged(&RSA, &json!({ "alg": name }));
        assert_eq!(bearer(&all, &token), "401 Algorithm", "{name}");
    }
    for (header, wanted) in [
        (json!({}), "401 NoAlgorithm"),
        (json!({ "alg": null }), "401 NoAlgorithm"),
        (json!({ "alg": ["RS256"] }), "401 NoAlgorithm"),
        (json!({ "alg": "RS256", "kid": 1 }), "401 KeyId"),
        (json!({ "alg": "RS256", "kid": null }), "401 KeyId"),
        (
            json!({ "alg": "RS256", "crit": ["exp"], "exp": 1 }),
            "401 Critical",
        ),
        (json!({ "alg": "RS256", "crit": [] }), "401 Critical"),
        (json!({ "alg": "RS256", "b64": false }), "401 Critical"),
        // Keys that a token itself carries are ignored.
        (
            json!({ "alg": "RS256", "jwk": OTHER_RSA.jwk(&json!({})), "jku": "https://evil.example/keys" }),
            "401 Signature",
        ),
    ] {
        let token = forged(&OTHER_RSA, &header);
        assert_eq!(bearer(&all, &token), wanted, "{header}");
    }
    // The public key as the secret of an HMAC: there is no HMAC at all.
    let only_rsa = compiled(&[believing(&RSA)]);
    let token = with_signature(&json!({ "alg": "HS256" }), &[7; 32]);
    assert_eq!(bearer(&only_rsa, &token), "401 Algorithm");
    // A signature that is good, but said to be of another algorithm.
    for (key, said_to_be, wanted) in [
        (&RSA, "RS384", "401 Signature"),
        (&RSA, "PS256", "401 Signature"),
        (&RSA, "ES256", "401 Signature"),
        (&P256, "RS256", "401 Signature"),
        (&P256, "ES384", "401 Signature"),
        (&P384, "ES256", "401 Signature"),
        (&ED, "ES256", "401 Signature"),
        (&P256, "EdDSA", "401 Signature"),
    ] {
        let token = forged(key, &json!({ "alg": said_to_be }));
        assert_eq!(bearer(&all, &token), wanted, "{said_to_be}");
    }
    // A key states its use and is tried with no other algorithm.
    let pinned = compiled(&[rule("a", &RSA.key_set(&json!({ "alg": "PS256" })))]);
    assert_eq!(
        bearer(&pinned, &RSA.token("PS256", &claims("a", &json!({})))),
        "a/user"
    );
    for other in ["RS256", "PS384"] {
        let token = RSA.token(other, &claims("a", &json!({})));
        assert_eq!(bearer(&pinned, &token), "401 NoKey", "{other}");
    }
    let only_ec = compiled(&[believing(&P256)]);
    assert_eq!(
        bearer(&only_ec, &forged(&P256, &json!({ "alg": "RS256" }))),
        "401 NoKey"
    );
}

#[test]
fn signatures_have_one_form() {
    let keys = [&RSA, &P256, &P521, &ED].map(|key| key.jwk(&json!({})));
    let rules = compiled(&[rule("a", &json!({ "keys": keys }).to_string())]);
    for (name, length) in [
        ("ES256", 64),
        ("ES512", 132),
        ("EdDSA", 64),
        ("RS256", 256),
        ("PS256", 256),
    ] {
        let header = json!({ "alg": name });
        for signature in [
            vec![0; length],
            vec![0xff; length],
            vec![0; 1],
            vec![0; length - 1],
            vec![0; length + 1],
            vec![0x30; 4096],
        ] {
            let token = with_signature(&header, &signature);
            assert_eq!(
                bearer(&rules, &token),
                "401 Signature",
                "{name} {}",
                signature.len()
            );
        }
        let key = match name {
            "ES256" => &P256,
            "ES512" => &P521,
            "EdDSA" => &ED,
            _ => &RSA,
        };
        let good = key.token(name, &claims("a", &json!({})));
        assert_eq!(bearer(&rules, &good), "a/user");
        // With trailing bytes, or in DER.
        let (signed, signature) = good.rsplit_once('.').unwrap();
        let mut bytes = key.sign(name, signed.as_bytes());
        bytes.push(0);
        let longer = format!("{signed}.{}", base64url(&bytes));
        assert_eq!(bearer(&rules, &longer), "401 Signature", "{name}");
        for tail in ["=", "==", " ", "\n", "~", "A.", ".A"] {
            let token = format!("{signed}.{signature}{tail}");
            assert!(bearer(&rules, &token).starts_with("401"), "{name} {tail:?}");
        }
        // Every other spelling of the last letter: unused bits must be zero.
        let (start, last) = signature.split_at(signature.len() - 1);
        for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/".chars() {
            let token = format!("{signed}.{start}{letter}");
            let is_own = last == letter.to_string();
            assert_eq!(
                bearer(&rules, &token) == "a/user",
                is_own,
                "{name} {letter}"
            );
        }
    }
}

#[test]
fn claims_that_are_not_what_they_must_be_are_refused() {
    let rules = compiled(&[believing(&ED)]);
    for (payload, wanted) in [
        (&br#"{"iss":"a","sub":"user"}"#[..], "a/user"),
        (br#" {"iss":"a","sub":"user"} "#, "a/user"),
        (br#"{"\u0069ss":"a","sub":"user"}"#, "a/user"),
        (br#"{"iss":"z","iss":"a","sub":"user"}"#, "401 PayloadJson"),
        (
            br#"{"iss":"z","\u0069ss":"a","sub":"user"}"#,
            "401 PayloadJson",
        ),
        (br#"{"iss":"a","x":{"y":1,"y":2}}"#, "401 PayloadJson"),
        (br#"{"iss":"a"}x"#, "401 PayloadJson"),
        (br#"{"iss":"a"}{"iss":"b"}"#, "401 PayloadJson"),
        (br#"{"iss":"a",}"#, "401 PayloadJson"),
        (b"\xef\xbb\xbf{\"iss\":\"a\"}", "401 PayloadJson"),
        (b"{\"iss\":\"a\",\"x\":\"\xff\"}", "401 PayloadJson"),
        (br#"{"iss":"a","x":"\ud800"}"#, "401 PayloadJson"),
        (br#"{"iss":"a","x":1e999}"#, "401 PayloadJson"),
        (br#"["a"]"#, "401 PayloadJson"),
        (br#""a""#, "401 PayloadJson"),
        (b"eyJhbGciOiJub25lIn0.e30.", "401 PayloadJson"),
        (br#"{"iss":["a"]}"#, "401 IssuerType"),
        (br#"{"iss":"A","sub":"user"}"#, "401 Issuer"),
        (br#"{"iss":"a ","sub":"user"}"#, "401 Issuer"),
        (br#"{"iss":"a\u0000","sub":"user"}"#, "401 Issuer"),
        (br#"{"iss":"a","sub":5}"#, "401 SubjectType"),
        (br#"{"iss":"a","sub":null}"#, "401 SubjectType"),
        (br#"{"iss":"a","jti":5}"#, "401 IdType"),
        (br#"{"iss":"a","aud":5}"#, "401 AudienceType"),
        (br#"{"iss":"a","aud":["x",5]}"#, "401 AudienceType"),
        (br#"{"iss":"a","exp":"9999999999"}"#, "401 ExpiryType"),
        (br#"{"iss":"a","exp":null}"#, "401 ExpiryType"),
        (br#"{"iss":"a","exp":true}"#, "401 ExpiryType"),
        (br#"{"iss":"a","exp":-1}"#, "401 ExpiryRange"),
        (br#"{"iss":"a","exp":1e30}"#, "401 ExpiryRange"),
        (br#"{"iss":"a","nbf":[]}"#, "401 NotBeforeType"),
        (
            br#"{"iss":"a","nbf":18446744073709551616}"#,
            "401 NotBeforeRange",
        ),
        (br#"{"iss":"a","iat":"1"}"#, "401 IssuedType"),
        (br#"{"iss":"a","iat":-0.5}"#, "401 IssuedRange"),
    ] {
        let token = ED.raw_token("EdDSA", br#"{"alg":"EdDSA"}"#, payload);
        assert_eq!(bearer(&rules, &token), wanted, "{}", payload.escape_ascii());
    }
    for header in [
        &br#"{"alg":"none","alg":"EdDSA"}"#[..],
        b"[]",
        b"",
        b"{}x",
        b"\xff",
    ] {
        let token = ED.raw_token("EdDSA", header, br#"{"iss":"a"}"#);
        let wanted = if header.is_empty() {
            "401 Form"
        } else {
            "401 HeaderJson"
        };
        assert_eq!(bearer(&rules, &token), wanted, "{}", header.escape_ascii());
    }
}

#[test]
fn the_form_is_three_parts_and_no_more_than_a_head_holds() {
    let rules = compiled(&[believing(&ED)]);
    let good = ED.token("EdDSA", &claims("a", &json!({})));
    for text in [
        ".",
        "..",
        "a",
        "a.b",
        "a..b",
        ".a.b",
        "a.b.",
        "a.b.c.d",
        "a.b.c.d.e",
        "....",
    ] {
        assert_eq!(bearer(&rules, text), "401 Form", "{text}");
    }
    assert_eq!(bearer(&rules, &format!("{good}.")), "401 Form");
    assert_eq!(bearer(&rules, &good.replacen('.', "..", 1)), "401 Form");
    let sized = |bytes: usize| ED.token("EdDSA", &claims("a", &json!({"x": "x".repeat(bytes)})));
    assert_eq!(bearer(&rules, &sized(44_000)), "a/user");
    let large = sized(46_500);
    assert!(large.len() > MAX_TOKEN_BYTES);
    assert_eq!(bearer(&rules, &large), "401 Form");
}

#[test]
fn a_thousand_claims_are_read_and_bombs_are_not() {
    let rules = compiled(&[believing(&ED)]);
    let many = |count: usize| {
        let all = (0..count).map(|number| (format!("claim-{number}"), json!(["a", number])));
        Value::Object(all.collect())
    };
    let token = ED.token("EdDSA", &claims("a", &many(1_000)));
    assert_eq!(bearer(&rules, &token), "a/user");
    let bomb = ED.token("EdDSA", &claims("a", &json!({ "x": vec![1; 9_000] })));
    assert_eq!(bearer(&rules, &bomb), "401 PayloadJson");
    let deep = format!(
        "{{\"iss\":\"a\",\"x\":{}{}}}",
        "[".repeat(20_000),
        "]".repeat(20_000)
    );
    let token = ED.raw_token("EdDSA", br#"{"alg":"EdDSA"}"#, deep.as_bytes());
    assert_eq!(bearer(&rules, &token), "401 PayloadJson");
}

#[test]
fn key_names_lead_to_keys_and_nowhere_else() {
    let keys =
        json!({ "keys": [RSA.jwk(&json!({"kid": "1"})), OTHER_RSA.jwk(&json!({"kid": "2"}))] });
    let rules = compiled(&[rule("a", &keys.to_string())]);
    let named = |key: &SigningKey, id: &str| {
        key.token_with("RS256", &json!({ "kid": id }), &claims("a", &json!({})))
    };
    for (token, wanted) in [
        (named(&RSA, "1"), "a/user"),
        (named(&OTHER_RSA, "2"), "a/user"),
        (named(&RSA, "2"), "401 Signature"),
        (named(&RSA, "3"), "401 NoKey"),
        (named(&RSA, "1 "), "401 NoKey"),
        (named(&RSA, "../../etc/passwd"), "401 NoKey"),
        (named(&RSA, "https://evil.example/keys"), "401 NoKey"),
        (named(&RSA, ""), "a/user"),
        (OTHER_RSA.token("RS256", &claims("a", &json!({}))), "a/user"),
    ] {
        assert_eq!(bearer(&rules, &token), wanted, "{token}");
    }
}

#[test]
fn a_request_asks_for_a_bounded_number_of_signatures() {
    let keys: Vec<SigningKey> = (0..=MAX_SIGNATURE_CHECKS)
        .map(|_| SigningKey::new("EdDSA"))
        .collect();
    let set = json!({ "keys": keys.iter().map(|key| key.jwk(&json!({}))).collect::<Vec<_>>() });
    let rules = compiled(&[rule("a", &set.to_string())]);
    let by = |number: usize| keys[number].token("EdDSA", &claims("a", &json!({})));
    assert_eq!(bearer(&rules, &by(MAX_SIGNATURE_CHECKS - 1)), "a/user");
    assert_eq!(bearer(&rules, &by(MAX_SIGNATURE_CHECKS)), "401 Exhausted");
    // The same over several rules for one issuer.
    let many: Vec<_> = keys.iter().map(believing).collect();
    let rules = compiled(&many);
    assert_eq!(bearer(&rules, &by(MAX_SIGNATURE_CHECKS - 1)), "a/user");
    assert_eq!(bearer(&rules, &by(MAX_SIGNATURE_CHECKS)), "401 Exhausted");
}

#[test]
fn a_request_carries_a_bounded_number_of_tokens() {
    let mut own = believing(&ED);
    own.from_headers = vec![super::header_place("x-jwt")];
    let rules = compiled(&[own]);
    let good = ED.token("EdDSA", &claims("a", &json!({"exp": NOW})));
    for (count, wanted) in [(8, "a/user"), (9, "401 TooMany")] {
        let lines = vec![("x-jwt", &*good); count];
        let outcome = asked(&rules, &mut Cache::new(1), "/", &lines);
        assert_eq!(said(&outcome), wanted);
    }
}

#[test]
fn a_refusal_tells_no_secrets_and_breaks_no_header() {
    let rules = compiled(&[believing(&ED)]);
    let voile_policy::tokens::TokenOutcome::Refused(refusal) =
        asked(&rules, &mut Cache::new(1), "/x?access_token=secret", &[])
    else {
        panic!("refused")
    };
    assert_eq!(refusal.status(), 401);
    assert_eq!(
        refusal.challenge("https", b"shop.example", b"/x?access_token=secret"),
        "Bearer realm=\"https://shop.example/x\", error=\"invalid_token\""
    );
    let odd = refusal.challenge("http", b"a\"b\r\nx: y", &[b'x'; 1000]);
    assert!(odd.len() < 320 && !odd.contains(['\r', '\n']), "{odd}");
    assert_eq!(odd.matches('"').count(), 4, "{odd}");
    assert!(!refusal.details().contains(' '), "{}", refusal.details());
}
