//! JSON Web Key Sets (RFC 7517). Each key states its algorithm's kind and never verifies another kind, independent of
//! the token's header. An unusable key is reported by name and does not hide other keys.

use std::fmt;
use std::sync::OnceLock;

use aws_lc_rs::digest;
use aws_lc_rs::rsa::PublicKeyComponents;
use aws_lc_rs::signature::ParsedPublicKey;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::algorithm::{self, Algorithm, KeyKind, RSA_ALGORITHMS};
use super::limits::{MAX_KEY_SET_BYTES, MAX_KEYS};
use crate::claims::Claims;

/// Identity of a key set: SHA-256 of the text that was parsed.
pub(super) type Fingerprint = [u8; 32];

/// The keys of an issuer.
pub struct KeySet {
    keys: Vec<VerificationKey>,
    faults: Vec<(usize, KeyFault)>,
    private: Vec<usize>,
    pub(super) fingerprint: Fingerprint,
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySet")
            .field("keys", &self.keys.len())
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

/// Reasons to refuse a text as a key set. An issuer whose only text is refused has no keys, so none of its tokens is
/// accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// Too long.
    #[error("a key set has at most {MAX_KEY_SET_BYTES} bytes")]
    TooLarge,
    /// Not JSON, or a name twice.
    #[error("it is not a JSON object, or has a duplicate name")]
    NotJson,
    /// No list of keys.
    #[error("it has no list `keys`")]
    NoKeys,
    /// Nothing in it verifies.
    #[error("no key in it can be used")]
    NoneUsable,
}

/// Why a key is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// Beyond the limit.
    #[error("a set has at most {MAX_KEYS} keys")]
    TooMany,
    /// Not an object, or a member of another type than RFC 7517 has.
    #[error("`{0}` is missing or invalid")]
    Member(&'static str),
    /// A key with which tokens could also be made.
    #[error("a symmetric key also signs, so anyone who reads it can make tokens")]
    Symmetric,
    /// Of a kind that verifies nothing here.
    #[error("keys of this type or curve are not supported")]
    Unsupported,
    /// `alg` is of another kind of key, or unknown.
    #[error("`alg` is not for keys of this type")]
    Algorithm,
    /// `use` or `key_ops` forbid it.
    #[error("`use` or `key_ops` say that it is not for verifying")]
    OtherUse,
    /// The numbers are no key.
    #[error(
        "the numbers in it are not a key of at least 2048 bits (RSA), or not a point of its curve"
    )]
    Numbers,
}

struct VerificationKey {
    id: Option<Box<str>>,
    /// The only algorithm it is for, if it says so.
    only: Option<Algorithm>,
    material: Material,
}

enum Material {
    /// Parsed for the algorithms that tokens came with: most keys are for one.
    Rsa {
        components: PublicKeyComponents<Vec<u8>>,
        parsed: Box<[OnceLock<Option<ParsedPublicKey>>; RSA_ALGORITHMS]>,
    },
    Other(KeyKind, ParsedPublicKey),
}

/// The result of checking a signature with the keys of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignatureCheck {
    /// One of them made it.
    Holds,
    /// None of those that may have made it did.
    Fails,
    /// None of them is for this token.
    NoKey,
    /// There was no leave for more attempts.
    Exhausted,
}

impl KeySet {
    /// Reads a set. An error means that it has no usable key at all.
    pub fn read(text: &str) -> Result<Self, KeySetError> {
        let set = Self::survey(text)?;
        match set.keys.is_empty() {
            true => Err(KeySetError::NoneUsable),
            false => Ok(set),
        }
    }

    /// Reads a set that may have no usable key, to report the fault of each.
    pub fn survey(text: &str) -> Result<Self, KeySetError> {
        if text.len() > MAX_KEY_SET_BYTES {
            return Err(KeySetError::TooLarge);
        }
        let object = Claims::read(text.as_bytes())
            .ok_or(KeySetError::NotJson)?
            .to_map();
        let Some(Value::Array(list)) = object.get("keys") else {
            return Err(KeySetError::NoKeys);
        };
        let mut set = Self {
            keys: Vec::new(),
            faults: Vec::new(),
            private: Vec::new(),
            fingerprint: fingerprint(&[text.as_bytes()]),
        };
        for (index, value) in list.iter().enumerate() {
            let read = match value {
                _ if index >= MAX_KEYS => Err(KeyFault::TooMany),
                Value::Object(members) => VerificationKey::read(members),
                _ => Err(KeyFault::Member("keys")),
            };
            match read {
                Ok(key) => set.keys.push(key),
                Err(fault) => set.faults.push((index, fault)),
            }
            if value.get("d").is_some() {
                set.private.push(index);
            }
        }
        Ok(set)
    }

    /// The number of usable keys.
    pub fn usable(&self) -> usize {
        self.keys.len()
    }

    /// The keys that are not used, by their place in the list, and why.
    pub fn faults(&self) -> &[(usize, KeyFault)] {
        &self.faults
    }

    /// The places of keys with a private part, which only the issuer should have.
    pub fn private(&self) -> &[usize] {
        &self.private
    }

    /// Checks whether one of the keys made this signature, trying at most `left` of them.
    pub(super) fn check(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
        signed: &[u8],
        signature: &[u8],
        left: &mut usize,
    ) -> SignatureCheck {
        let mut checked = SignatureCheck::NoKey;
        let fitting = self.keys.iter().filter(|key| {
            let other = id.is_some_and(|id| key.id.as_deref().is_some_and(|known| known != id));
            !other && key.only.is_none_or(|only| only == algorithm)
        });
        for key in fitting {
            let Some(parsed) = key.parsed(algorithm) else {
                continue;
            };
            if *left == 0 {
                return SignatureCheck::Exhausted;
            }
            *left -= 1;
            if parsed.verify_sig(signed, signature).is_ok() {
                return SignatureCheck::Holds;
            }
            checked = SignatureCheck::Fails;
        }
        checked
    }
}

/// SHA-256 of these parts, told apart.
pub(super) fn fingerprint(parts: &[&[u8]]) -> Fingerprint {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.finish().as_ref());
    bytes
}

impl VerificationKey {
    fn read(members: &Map<String, Value>) -> Result<Self, KeyFault> {
        let text = |name: &'static str| match members.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(KeyFault::Member(name)),
        };
        let kind = text("kty")?.ok_or(KeyFault::Member("kty"))?;
        if text("use")?.is_some_and(|word| word != "sig") {
            return Err(KeyFault::OtherUse);
        }
        match members.get("key_ops") {
            None => {}
            Some(Value::Array(words)) if words.iter().any(|word| word == "verify") => {}
            Some(Value::Array(_)) => return Err(KeyFault::OtherUse),
            Some(_) => return Err(KeyFault::Member("key_ops")),
        }
        let only = match text("alg")? {
            None => None,
            Some(_) if kind == "oct" => return Err(KeyFault::Symmetric),
            Some(name) => Some(Algorithm::of_name(name).ok_or(KeyFault::Algorithm)?),
        };
        let curve = text("crv")?;
        let material = match kind {
            "RSA" => Material::rsa(members, only)?,
            "EC" => Material::elliptic(members, curve, only)?,
            "OKP" if curve == Some("Ed25519") => Material::edwards(members)?,
            "oct" => return Err(KeyFault::Symmetric),
            _ => return Err(KeyFault::Unsupported),
        };
        let key = Self {
            id: text("kid")?.filter(|id| !id.is_empty()).map(Into::into),
            only,
            material,
        };
        match only {
            Some(only) if !key.fits(only) => Err(KeyFault::Algorithm),
            _ => Ok(key),
        }
    }

    /// Returns true if the algorithm uses keys of this kind.
    fn fits(&self, algorithm: Algorithm) -> bool {
        match &self.material {
            Material::Rsa { .. } => matches!(algorithm.kind(), KeyKind::Rsa(_)),
            Material::Other(kind, _) => algorithm.kind() == *kind,
        }
    }

    /// The key as the algorithm wants it; none for an algorithm of another kind of key.
    fn parsed(&self, algorithm: Algorithm) -> Option<&ParsedPublicKey> {
        match (&self.material, algorithm.kind()) {
            (Material::Rsa { components, parsed }, KeyKind::Rsa(number)) => {
                let parse = || components.to_parsed_public_key(algorithm::rsa(number)).ok();
                parsed[number].get_or_init(parse).as_ref()
            }
            (Material::Other(kind, parsed), wanted) => (wanted == *kind).then_some(parsed),
            (Material::Rsa { .. }, _) => None,
        }
    }
}

/// The bytes that a member is in base64url.
fn number(members: &Map<String, Value>, name: &'static str) -> Result<Vec<u8>, KeyFault> {
    let Some(Value::String(text)) = members.get(name) else {
        return Err(KeyFault::Member(name));
    };
    // Some issuers pad.
    let bare = text.trim_end_matches('=');
    let bytes = URL_SAFE_NO_PAD.decode(bare);
    bytes.map_err(|_| KeyFault::Member(name))
}

impl Material {
    fn rsa(members: &Map<String, Value>, only: Option<Algorithm>) -> Result<Self, KeyFault> {
        let bare = |mut bytes: Vec<u8>| {
            let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
            bytes.drain(..zeros);
            bytes
        };
        let (n, e) = (bare(number(members, "n")?), bare(number(members, "e")?));
        // The sizes are looked at here, since the library does so only when it verifies. Exponents other than these two are
        // either weak or slow, and no issuer has them.
        let bits = n.len() * 8 - n.first().map_or(0, |byte| byte.leading_zeros() as usize);
        let usual = matches!(&*e, [3] | [1, 0, 1]);
        if !(2048..=8192).contains(&bits) || !usual {
            return Err(KeyFault::Numbers);
        }
        let components = PublicKeyComponents { n, e };
        let parsed: Box<[OnceLock<Option<ParsedPublicKey>>; RSA_ALGORITHMS]> = Box::default();
        let first = match only.map(Algorithm::kind) {
            Some(KeyKind::Rsa(number)) => number,
            _ => 0,
        };
        let key = components.to_parsed_public_key(algorithm::rsa(first));
        let key = key.map_err(|_| KeyFault::Numbers)?;
        let _ = parsed[first].set(Some(key));
        Ok(Self::Rsa { components, parsed })
    }

    fn elliptic(
        members: &Map<String, Value>,
        curve: Option<&str>,
        only: Option<Algorithm>,
    ) -> Result<Self, KeyFault> {
        let (kind, size) = match curve {
            Some("P-256") => (KeyKind::P256, 32),
            Some("P-384") => (KeyKind::P384, 48),
            Some("P-521") => (KeyKind::P521, 66),
            Some(_) => return Err(KeyFault::Unsupported),
            // RFC 7518 requires the curve. Without a curve the algorithm's curve counts, or P-256, as Envoy reads it.
            None => match only.map(Algorithm::kind) {
                Some(KeyKind::P384) => (KeyKind::P384, 48),
                Some(KeyKind::P521) => (KeyKind::P521, 66),
                _ => (KeyKind::P256, 32),
            },
        };
        let mut point = vec![4];
        for name in ["x", "y"] {
            let number = number(members, name)?;
            if number.len() > size {
                return Err(KeyFault::Numbers);
            }
            point.resize(point.len() + size - number.len(), 0);
            point.extend_from_slice(&number);
        }
        Self::parse(kind, &point)
    }

    fn edwards(members: &Map<String, Value>) -> Result<Self, KeyFault> {
        Self::parse(KeyKind::Ed25519, &number(members, "x")?)
    }

    fn parse(kind: KeyKind, bytes: &[u8]) -> Result<Self, KeyFault> {
        let algorithm = algorithm::other(kind).ok_or(KeyFault::Unsupported)?;
        let parsed = ParsedPublicKey::new(algorithm, bytes).map_err(|_| KeyFault::Numbers)?;
        Ok(Self::Other(kind, parsed))
    }
}
