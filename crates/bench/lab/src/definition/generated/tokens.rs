//! Generated issuers, and the tokens of the experiment's requests. The last issuer signed them, with an RSA key (RS256, the
//! default of identity providers) made anew in each process of the lab. The others have a key each (Ed25519, quick to make) and
//! no tokens.

use std::fmt::Write as _;
use std::sync::LazyLock;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::Generated;

/// Tokens of requests: none, one for all, a new one each, or one whose signature is wrong.
pub(crate) const TOKENS: [&str; 4] = ["none", SAME, FRESH, FORGED];
pub(crate) const SAME: &str = "same";
pub(crate) const FRESH: &str = "fresh";
pub(crate) const FORGED: &str = "forged";

/// The kind of issuers, and the kind of policies about request principals.
pub(super) const ISSUERS: &str = "issuers";
pub(super) const REQUEST_PRINCIPALS: &str = "request_principals";

/// `sub` of all tokens.
const SUBJECT: &str = "subject";
/// When they expire: the year 2100. Experiments do not outlive them.
const EXPIRES: u64 = 4_102_444_800;
/// Bytes of an RSA modulus of 2,048 bits, and the bytes after it in the public key's DER: the exponent, two bytes of head and
/// three of 65,537.
const MODULUS_BYTES: usize = 256;
const EXPONENT_BYTES: usize = 3;
const EXPONENT_HEAD_BYTES: usize = 2;

/// The key that signs: RSA keys take a tenth of a second to make.
static KEY: LazyLock<RsaKeyPair> = LazyLock::new(|| {
    RsaKeyPair::generate(KeySize::Rsa2048).expect("invariant: a key of 2,048 bits can be made")
});

/// Number of issuers that a mesh trusts: policies about request principals need one.
pub(crate) fn believed(generated: &Generated) -> u32 {
    let number = |kind: &str| generated.get(kind).copied().unwrap_or(0);
    number(ISSUERS).max(u32::from(number(REQUEST_PRINCIPALS) > 0))
}

fn name(at: u32) -> String {
    format!("https://issuer-{at:06}.generated.example")
}

/// Issuer of the requests' tokens in a mesh with so many issuers: the last. Without an issuer the name is never checked.
fn signer(issuers: u32) -> String {
    name(issuers.max(1) - 1)
}

/// The principal of the tokens that requests to this mesh carry.
pub(super) fn principal(generated: &Generated) -> String {
    format!("{}/{SUBJECT}", signer(believed(generated)))
}

/// The issuer's keys, as a JSON Web Key Set.
fn keys(at: u32, signs: bool) -> String {
    let key = if signs {
        let der = KEY.public_key().as_ref();
        let (rest, exponent) = der.split_at(der.len() - EXPONENT_BYTES);
        let end = rest.len() - EXPONENT_HEAD_BYTES;
        let modulus = &rest[end - MODULUS_BYTES..end];
        json!({
            "kty": "RSA", "alg": "RS256", "use": "sig", "kid": key_id(at),
            "n": URL_SAFE_NO_PAD.encode(modulus), "e": URL_SAFE_NO_PAD.encode(exponent),
        })
    } else {
        let mut secret = [0; 32];
        fastrand::Rng::with_seed(at.into()).fill(&mut secret);
        let pair = Ed25519KeyPair::from_seed_unchecked(&secret)
            .expect("invariant: any 32 bytes are a seed");
        json!({
            "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": key_id(at),
            "x": URL_SAFE_NO_PAD.encode(pair.public_key().as_ref()),
        })
    };
    json!({ "keys": [key] }).to_string()
}

fn key_id(at: u32) -> String {
    format!("key-{at:06}")
}

/// One RequestAuthentication at the server with so many issuers.
pub(super) fn issuers(number: u32) -> String {
    let mut text = "---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata:\n  name: generated-issuers\n  \
                    namespace: lab\nspec:\n  selector:\n    matchLabels:\n      app: server\n  jwtRules:\n"
        .to_owned();
    for at in 0..number {
        let keys = Value::from(keys(at, at + 1 == number));
        // JSON's texts are YAML's; and writing into a String cannot fail.
        let _ = writeln!(text, "  - issuer: {}\n    jwks: {keys}", name(at));
    }
    text
}

/// Values of `authorization` for so many requests to a mesh with these resources. Of fresh tokens there are so many, each
/// never seen before.
pub(crate) fn carried(generated: &Generated, token: &str, number: usize) -> Vec<String> {
    let last = believed(generated).max(1) - 1;
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(&json!({ "alg": "RS256", "typ": "JWT", "kid": key_id(last) }));
    let one = || {
        let claims = json!({
            "iss": name(last), "sub": SUBJECT, "aud": ["generated"], "iat": 0, "exp": EXPIRES,
            "jti": format!("{:032x}", fastrand::u128(..)), "scope": "openid profile email",
            "groups": ["one", "two"], "azp": "web", "email": "subject@generated.example",
        });
        let signed = format!("{head}.{}", part(&claims));
        let mut signature = vec![0; KEY.public_modulus_len()];
        KEY.sign(
            &RSA_PKCS1_SHA256,
            &SystemRandom::new(),
            signed.as_bytes(),
            &mut signature,
        )
        .expect("invariant: a signature has the modulus's length");
        if token == FORGED {
            signature[MODULUS_BYTES / 2] ^= 1;
        }
        format!("Bearer {signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    };
    let number = if token == FRESH { number.max(1) } else { 1 };
    (0..number).map(|_| one()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn of(kind: &str, number: u32) -> Generated {
        Generated::from([(kind.to_owned(), number)])
    }

    /// The claims of a token, read without looking at its signature.
    fn claims(line: &str) -> Value {
        let token = line.strip_prefix("Bearer ").expect("a bearer token");
        let middle = token.split('.').nth(1).expect("three parts");
        let bytes = URL_SAFE_NO_PAD.decode(middle).expect("base64url");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    #[test]
    fn each_issuer_has_a_key_of_its_own_and_the_last_one_signs() {
        let text = issuers(20);
        let own = |word: &str| -> BTreeSet<&str> {
            text.lines().filter(|line| line.contains(word)).collect()
        };
        assert_eq!((own("- issuer: ").len(), own("jwks: ").len()), (20, 20));
        let rsa = text.find("\\\"RSA\\\"").expect("a key that signs");
        assert!(rsa > text.find(&name(19)).expect("the last"), "{text}");
        assert_eq!(text.matches("\\\"RSA\\\"").count(), 1);
        let mesh = of(ISSUERS, 20);
        let line = &carried(&mesh, SAME, 9)[0];
        assert_eq!(claims(line)["iss"], name(19));
        assert_eq!(principal(&mesh), format!("{}/{SUBJECT}", name(19)));
        assert_eq!(believed(&of(REQUEST_PRINCIPALS, 30)), 1);
        assert_eq!(believed(&of("paths", 30)), 0);
    }

    #[test]
    fn fresh_tokens_are_all_different_and_a_forged_one_is_the_same_but_for_its_signature() {
        let mesh = of(ISSUERS, 1);
        let fresh: BTreeSet<String> = carried(&mesh, FRESH, 20).into_iter().collect();
        assert_eq!(fresh.len(), 20);
        assert_eq!(carried(&mesh, SAME, 20).len(), 1);
        let forged = carried(&mesh, FORGED, 20);
        let mut said = claims(&forged[0]);
        let mut good = claims(&carried(&mesh, SAME, 1)[0]);
        (said["jti"], good["jti"]) = (Value::Null, Value::Null);
        assert_eq!((forged.len(), said), (1, good));
    }
}
