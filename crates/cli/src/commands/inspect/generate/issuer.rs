//! Issuers of tokens for experiments: each has one key made from the seed, and signs with it. Ed25519, because its keys and
//! signatures follow from the seed alone, so that the same command gives the same bytes. A seed is no secret: no real mesh
//! may trust these keys.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;

/// When the tokens expire: the year 2100.
const EXPIRES: u64 = 4_102_444_800;

/// See the module.
pub(super) struct Issuer {
    /// `iss`.
    pub(super) name: String,
    key_id: String,
    pair: Ed25519KeyPair,
}

impl Issuer {
    /// `iss` of the issuer of this number.
    pub(super) fn name(number: u32) -> String {
        format!("https://issuer-{number}.generated.example")
    }

    /// The issuer of this number.
    pub(super) fn new(seed: u64, number: u32) -> Result<Self, String> {
        // A stream of numbers of its own, so that more rules or another order change no key.
        let mut random = fastrand::Rng::with_seed(seed.rotate_left(32) ^ u64::from(number));
        let mut secret = [0; 32];
        random.fill(&mut secret);
        let pair = Ed25519KeyPair::from_seed_unchecked(&secret)
            .map_err(|error| format!("cannot make a key: {error}"))?;
        Ok(Self {
            name: Self::name(number),
            key_id: format!("{:08x}", random.u32(..)),
            pair,
        })
    }

    /// Its keys, as a JSON Web Key Set.
    pub(super) fn keys(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref());
        let key = json!({
            "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig",
            "kid": self.key_id, "x": x,
        });
        json!({ "keys": [key] }).to_string()
    }

    /// A token of its.
    pub(super) fn token(&self, subject: &str) -> String {
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let head = part(json!({ "alg": "EdDSA", "typ": "JWT", "kid": self.key_id }));
        let claims = json!({
            "iss": self.name, "sub": subject, "iat": 0, "exp": EXPIRES,
            "aud": ["generated"], "groups": ["one", "two"], "scope": "read write",
        });
        let signed = format!("{head}.{}", part(claims));
        let signature = self.pair.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}
