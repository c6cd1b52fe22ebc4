//! The keys that random rules and tokens choose from.

use aws_lc_rs::hmac;
use aws_lc_rs::signature::KeyPair as _;
use serde_json::{Value, json};

use super::{SigningKey, base64url};

/// A key that signs tokens, be it one that should.
#[derive(Debug)]
pub enum RingKey {
    /// A key with a public half, and what `alg` its tokens may have.
    Pair(SigningKey, &'static [&'static str]),
    /// A secret that both sides know.
    Secret(Vec<u8>),
}

impl RingKey {
    /// Algorithms that `alg` may name in tokens that it signs.
    pub(super) fn algorithms(&self) -> &'static [&'static str] {
        match self {
            Self::Pair(_, algorithms) => algorithms,
            Self::Secret(_) => &["HS256", "HS384", "HS512"],
        }
    }

    /// Verification key, as a JSON Web Key without `kid`, `alg` and `use`.
    pub(super) fn public(&self) -> Value {
        match self {
            Self::Pair(key, _) => key.jwk(&json!({})),
            Self::Secret(secret) => json!({ "kty": "oct", "k": base64url(secret) }),
        }
    }

    /// The public key as a secret, with which an attacker would sign who confuses the two.
    pub(super) fn as_secret(&self) -> Self {
        Self::Secret(match self {
            Self::Pair(SigningKey::Rsa(pair), _) => pair.public_key().as_ref().to_vec(),
            Self::Pair(SigningKey::Elliptic(_, pair), _) => pair.public_key().as_ref().to_vec(),
            Self::Pair(SigningKey::Edwards(pair), _) => pair.public_key().as_ref().to_vec(),
            Self::Secret(secret) => secret.clone(),
        })
    }

    /// The signature of a message by an algorithm; by a usual one where the key knows not that one.
    pub(super) fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let secret = match self {
            Self::Pair(key, _) => return key.sign(algorithm, message),
            Self::Secret(secret) => secret,
        };
        let digest = match algorithm {
            "HS384" => hmac::HMAC_SHA384,
            "HS512" => hmac::HMAC_SHA512,
            _ => hmac::HMAC_SHA256,
        };
        let key = hmac::Key::new(digest, secret);
        hmac::sign(&key, message).as_ref().to_vec()
    }
}

/// Two keys of each kind.
#[derive(Debug)]
pub struct Ring {
    keys: Vec<RingKey>,
}

impl Ring {
    /// New keys.
    pub fn generate() -> Self {
        const KINDS: [&[&str]; 5] = [
            &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
            &["ES256"],
            &["ES384"],
            &["ES512"],
            &["EdDSA"],
        ];
        let pair = |algorithms: &'static [&'static str]| {
            RingKey::Pair(SigningKey::new(algorithms[0]), algorithms)
        };
        let twice = KINDS.iter().chain(&KINDS);
        let mut keys: Vec<RingKey> = twice.map(|algorithms| pair(algorithms)).collect();
        keys.extend([b'a', b'b'].map(|byte| RingKey::Secret(vec![byte; 40])));
        Self { keys }
    }

    /// The key with this number.
    pub(super) fn key(&self, number: usize) -> &RingKey {
        &self.keys[number]
    }

    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}
