//! Service-account tokens: good ones, and every way to forge one.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::KeyPair;
use serde_json::{Value, json};
use voile_identity::state::StateDir;
use voile_identity::{TOKEN_AUDIENCE, TokenError, TokenKey, TokenSubject};

const HOUR: Duration = Duration::from_secs(3600);

fn subject() -> TokenSubject {
    TokenSubject {
        namespace: "shop".into(),
        service_account: "cart".into(),
        pod: Some("cart-7".into()),
    }
}

fn state() -> (tempfile::TempDir, StateDir) {
    let folder = tempfile::tempdir().unwrap();
    let state = StateDir::open(&folder.path().join("state")).unwrap();
    (folder, state)
}

fn claims(now: SystemTime) -> Value {
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    json!({
        "iss": "voile-local", "aud": ["istio-ca"], "sub": "system:serviceaccount:shop:cart",
        "iat": now, "nbf": now, "exp": now + 3600,
        "kubernetes.io": {"namespace": "shop", "serviceaccount": {"name": "cart"}},
    })
}

#[test]
fn a_token_carries_kubernetes_claims_and_survives_a_restart() {
    let (_folder, state) = state();
    let now = SystemTime::now();
    let token = TokenKey::open(&state)
        .unwrap()
        .mint(&subject(), TOKEN_AUDIENCE, now, HOUR)
        .unwrap();
    let body = URL_SAFE_NO_PAD
        .decode(token.split('.').nth(1).unwrap())
        .unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["iss"], "voile-local");
    assert_eq!(body["aud"], json!(["istio-ca"]));
    assert_eq!(body["sub"], "system:serviceaccount:shop:cart");
    assert_eq!(body["kubernetes.io"]["namespace"], "shop");
    assert_eq!(body["kubernetes.io"]["pod"]["name"], "cart-7");
    assert_eq!(body["kubernetes.io"]["serviceaccount"]["name"], "cart");
    let reopened = TokenKey::open(&state).unwrap();
    assert_eq!(
        reopened.verify(&token, TOKEN_AUDIENCE, now).unwrap(),
        subject()
    );
}

#[test]
fn dates_are_checked_with_a_little_skew() {
    let (_folder, state) = state();
    let key = TokenKey::open(&state).unwrap();
    let now = SystemTime::now();
    let token = key.mint(&subject(), TOKEN_AUDIENCE, now, HOUR).unwrap();
    let second = Duration::from_secs(1);
    for (when, good) in [
        (now, true),
        (now + HOUR, true),
        (now + HOUR + 28 * second, true),
        (now + HOUR + 31 * second, false),
        (now + 100 * HOUR, false),
        (now - 28 * second, true),
        (now - 32 * second, false),
    ] {
        assert_eq!(
            key.verify(&token, TOKEN_AUDIENCE, when).is_ok(),
            good,
            "{when:?}"
        );
    }
    assert!(matches!(
        key.verify(&token, TOKEN_AUDIENCE, now + 2 * HOUR),
        Err(TokenError::Expired(_))
    ));
}

fn unsigned(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!(
        "{}.{}.{}",
        part(header),
        part(claims),
        URL_SAFE_NO_PAD.encode(signature)
    )
}

fn hs256(claims: &Value, secret: &[u8]) -> String {
    let key = EncodingKey::from_secret(secret);
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &key).unwrap()
}

#[test]
fn other_algorithms_are_refused() {
    let (_folder, state) = state();
    let key = TokenKey::open(&state).unwrap();
    let now = SystemTime::now();
    let claims = claims(now);
    let pem = std::fs::read_to_string(state.path().join("token-key.pem")).unwrap();
    let pair = KeyPair::from_pem(&pem).unwrap();
    for (what, token) in [
        (
            "none",
            unsigned(&json!({"alg": "none", "typ": "JWT"}), &claims, b""),
        ),
        ("None", unsigned(&json!({"alg": "None"}), &claims, b"")),
        (
            "a zero signature",
            unsigned(&json!({"alg": "ES256"}), &claims, &[0; 64]),
        ),
        (
            "an unknown one",
            unsigned(&json!({"alg": "XX256"}), &claims, &[1; 64]),
        ),
        (
            "HS256 by the public point",
            hs256(&claims, pair.public_key_raw()),
        ),
        (
            "HS256 by the public PEM",
            hs256(&claims, pair.public_key_pem().as_bytes()),
        ),
        ("HS256 by nothing", hs256(&claims, b"")),
    ] {
        let refused = key.verify(&token, TOKEN_AUDIENCE, now);
        assert!(
            matches!(refused, Err(TokenError::Refused(_))),
            "{what}: {refused:?}"
        );
    }
}

#[test]
fn forged_tokens_are_refused() {
    let (_folder, state) = state();
    let (_other_folder, other) = self::state();
    let key = TokenKey::open(&state).unwrap();
    let now = SystemTime::now();
    let good = key.mint(&subject(), TOKEN_AUDIENCE, now, HOUR).unwrap();
    let [header, body, signature]: [&str; 3] =
        good.split('.').collect::<Vec<_>>().try_into().unwrap();
    let elsewhere = TokenKey::open(&other).unwrap();
    let mut other_claims = claims(now);
    other_claims["sub"] = json!("system:serviceaccount:shop:till");
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let es384 = part(&json!({"alg": "ES384"}));
    for (what, token) in [
        ("nothing", String::new()),
        ("words", "let me in".to_owned()),
        ("dots", "..".to_owned()),
        ("no signature", format!("{header}.{body}.")),
        (
            "another key",
            elsewhere
                .mint(&subject(), TOKEN_AUDIENCE, now, HOUR)
                .unwrap(),
        ),
        (
            "other claims",
            format!("{header}.{}.{signature}", part(&other_claims)),
        ),
        ("another header", format!("{es384}.{body}.{signature}")),
        ("a cut signature", good[..good.len() - 4].to_owned()),
        ("a huge token", format!("{good}{}", "A".repeat(9000))),
        (
            "for another audience",
            key.mint(&subject(), "vault", now, HOUR).unwrap(),
        ),
    ] {
        assert!(
            key.verify(&token, TOKEN_AUDIENCE, now).is_err(),
            "{what} was believed"
        );
    }
    assert!(key.verify(&good, TOKEN_AUDIENCE, now).is_ok());
    assert!(
        key.verify(&good, "vault", now).is_err(),
        "replay at another audience"
    );
}

#[test]
fn claims_that_contradict_or_name_nobody_are_refused_even_if_signed() {
    let (_folder, state) = state();
    let key = TokenKey::open(&state).unwrap();
    let pem = std::fs::read_to_string(state.path().join("token-key.pem")).unwrap();
    let signing = EncodingKey::from_ec_der(KeyPair::from_pem(&pem).unwrap().serialized_der());
    let now = SystemTime::now();
    let sign = |claims: &Value| {
        jsonwebtoken::encode(&Header::new(Algorithm::ES256), claims, &signing).unwrap()
    };
    assert!(key.verify(&sign(&claims(now)), TOKEN_AUDIENCE, now).is_ok());
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 8] = [
        ("sub of another", |c| {
            c["sub"] = json!("system:serviceaccount:shop:till");
        }),
        ("namespace with a slash", |c| {
            c["kubernetes.io"]["namespace"] = json!("shop/sa/x");
        }),
        ("upper case", |c| {
            c["kubernetes.io"]["namespace"] = json!("Shop");
        }),
        ("another issuer", |c| c["iss"] = json!("kubernetes")),
        ("no audience", |c| {
            drop(c.as_object_mut().unwrap().remove("aud"));
        }),
        ("no expiry", |c| {
            drop(c.as_object_mut().unwrap().remove("exp"));
        }),
        ("no kubernetes.io", |c| {
            drop(c.as_object_mut().unwrap().remove("kubernetes.io"));
        }),
        ("negative expiry", |c| c["exp"] = json!(-1)),
    ];
    for (what, change) in changes {
        let mut changed = claims(now);
        change(&mut changed);
        assert!(
            key.verify(&sign(&changed), TOKEN_AUDIENCE, now).is_err(),
            "{what}"
        );
    }
    let mut single = claims(now);
    single["aud"] = json!("istio-ca");
    assert!(
        key.verify(&sign(&single), TOKEN_AUDIENCE, now).is_ok(),
        "one audience as a string"
    );
}

#[test]
fn absurd_tokens_are_not_minted() {
    let (_folder, state) = state();
    let key = TokenKey::open(&state).unwrap();
    let now = SystemTime::now();
    for ttl in [
        Duration::ZERO,
        Duration::from_millis(10),
        25 * HOUR,
        Duration::MAX,
    ] {
        assert!(
            matches!(key.mint(&subject(), "a", now, ttl), Err(TokenError::Ttl(_))),
            "{ttl:?}"
        );
    }
    for (namespace, service_account, pod) in [
        ("", "cart", None),
        ("shop", "", None),
        ("a/b", "c", None),
        ("shop", "a/b", None),
        ("shop", "cart", Some("A B")),
    ] {
        let subject = TokenSubject {
            namespace: namespace.into(),
            service_account: service_account.into(),
            pod: pod.map(str::to_owned),
        };
        let refused = key.mint(&subject, "a", now, HOUR);
        assert!(
            matches!(refused, Err(TokenError::Subject(_))),
            "{subject:?}"
        );
    }
}
