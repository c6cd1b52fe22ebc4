//! Issuers of tokens for tests: keys of every kind, really made, and tokens really signed, whatever they say. Also random
//! rules, and random requests with tokens that are good or wrong in every way worth refusing; a seed gives the same rules and
//! the same tokens, but for the keys, which are made anew each time.

mod ring;
mod rules;
mod sent;
mod token;

pub use ring::{Ring, RingKey};
pub use rules::{DrawnRule, Place, token_rules};
pub use sent::{Carrying, carrying};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING,
    ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair,
    KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256,
    RSA_PSS_SHA384, RSA_PSS_SHA512, RsaSignatureEncoding,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};

/// A key that signs.
#[derive(Debug)]
pub enum SigningKey {
    /// RSA with 2,048 bits.
    Rsa(Box<RsaKeyPair>),
    /// On P-256, P-384 or P-521.
    Elliptic(&'static str, Box<EcdsaKeyPair>),
    /// Ed25519.
    Edwards(Box<Ed25519KeyPair>),
}

/// Base64url without padding.
pub fn base64url(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl SigningKey {
    /// A new key that an algorithm of this name (`RS256`, `ES384`, `EdDSA`, …) can sign with.
    ///
    /// # Panics
    /// When there is no such algorithm.
    pub fn new(algorithm: &str) -> Self {
        let elliptic = |curve, signing: &'static EcdsaSigningAlgorithm| {
            let pair = EcdsaKeyPair::generate(signing).expect("a key");
            Self::Elliptic(curve, Box::new(pair))
        };
        match algorithm {
            "ES256" => elliptic("P-256", &ECDSA_P256_SHA256_FIXED_SIGNING),
            "ES384" => elliptic("P-384", &ECDSA_P384_SHA384_FIXED_SIGNING),
            "ES512" => elliptic("P-521", &ECDSA_P521_SHA512_FIXED_SIGNING),
            "EdDSA" => Self::Edwards(Box::new(Ed25519KeyPair::generate().expect("a key"))),
            name if name.starts_with("RS") || name.starts_with("PS") => Self::Rsa(Box::new(
                RsaKeyPair::generate(KeySize::Rsa2048).expect("a key"),
            )),
            name => panic!("no algorithm {name}"),
        }
    }

    /// The public half as a JSON Web Key, with these members besides.
    pub fn jwk(&self, members: &Value) -> Value {
        let mut key = match self {
            Self::Rsa(pair) => {
                let (n, e) = rsa_numbers(pair.public_key().as_ref());
                json!({ "kty": "RSA", "n": base64url(n), "e": base64url(e) })
            }
            Self::Elliptic(curve, pair) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                json!({ "kty": "EC", "crv": curve, "x": base64url(x), "y": base64url(y) })
            }
            Self::Edwards(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": base64url(pair.public_key().as_ref()) })
            }
        };
        let own = key.as_object_mut().expect("an object");
        own.extend(members.as_object().cloned().unwrap_or_default());
        key
    }

    /// A key set of this key alone.
    pub fn key_set(&self, members: &Value) -> String {
        json!({ "keys": [self.jwk(members)] }).to_string()
    }

    /// The signature, by the algorithm of that name as far as the key can; else by the one its kind usually has.
    pub fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Rsa(pair) => {
                let encoding: &RsaSignatureEncoding = match algorithm {
                    "RS384" => &RSA_PKCS1_SHA384,
                    "RS512" => &RSA_PKCS1_SHA512,
                    "PS256" => &RSA_PSS_SHA256,
                    "PS384" => &RSA_PSS_SHA384,
                    "PS512" => &RSA_PSS_SHA512,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                let random = SystemRandom::new();
                pair.sign(encoding, &random, message, &mut signature)
                    .expect("a signature");
                signature
            }
            Self::Elliptic(_, pair) => {
                let signature = pair.sign(&SystemRandom::new(), message);
                signature.expect("a signature").as_ref().to_vec()
            }
            Self::Edwards(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// A token with this header, whose `alg` says how it is signed, and this payload, whatever bytes they are.
    pub fn raw_token(&self, algorithm: &str, header: &[u8], payload: &[u8]) -> String {
        let signed = format!("{}.{}", base64url(header), base64url(payload));
        let signature = self.sign(algorithm, signed.as_bytes());
        format!("{signed}.{}", base64url(signature))
    }

    /// A token signed by this algorithm, with more in its header.
    pub fn token_with(&self, algorithm: &str, more: &Value, claims: &Value) -> String {
        let mut header = Map::new();
        header.insert("alg".to_owned(), algorithm.into());
        header.extend(more.as_object().cloned().unwrap_or_default());
        let header = Value::Object(header).to_string();
        self.raw_token(algorithm, header.as_bytes(), claims.to_string().as_bytes())
    }

    /// A token signed by this algorithm.
    pub fn token(&self, algorithm: &str, claims: &Value) -> String {
        self.token_with(algorithm, &json!({}), claims)
    }
}

/// Modulus and exponent of a public key in PKCS#1's DER.
fn rsa_numbers(der: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let content = |der: &[u8]| -> (Vec<u8>, Vec<u8>) {
        let (length, start) = match der[1] {
            short @ 0..0x80 => (usize::from(short), 2),
            long => {
                let count = usize::from(long & 0x7f);
                let bytes = &der[2..2 + count];
                let length = bytes
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
                (length, 2 + count)
            }
        };
        (
            der[start..start + length].to_vec(),
            der[start + length..].to_vec(),
        )
    };
    let bare = |mut number: Vec<u8>| {
        if number.first() == Some(&0) {
            number.remove(0);
        }
        number
    };
    let (inside, _) = content(der);
    let (modulus, rest) = content(&inside);
    let (exponent, _) = content(&rest);
    (bare(modulus), bare(exponent))
}
