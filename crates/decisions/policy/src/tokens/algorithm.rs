//! The accepted signature algorithms of RFC 7518 and RFC 8037. There is no `none` and no HMAC: a key that verifies must
//! not be a key that signs, or every reader of the key could make tokens.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    EcdsaVerificationAlgorithm, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, RsaParameters, VerificationAlgorithm,
};

/// `alg` of a token or key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// RSA PKCS#1 v1.5 with SHA-256.
    Rs256,
    /// RSA PKCS#1 v1.5 with SHA-384.
    Rs384,
    /// RSA PKCS#1 v1.5 with SHA-512.
    Rs512,
    /// RSA PSS with SHA-256.
    Ps256,
    /// RSA PSS with SHA-384.
    Ps384,
    /// RSA PSS with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// ECDSA on P-521 with SHA-512.
    Es512,
    /// Ed25519.
    EdDsa,
}

/// Number of algorithms that an RSA key may be used with.
pub(super) const RSA_ALGORITHMS: usize = 6;

/// The kind of key that an algorithm needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyKind {
    /// With this number among the algorithms of RSA.
    Rsa(usize),
    P256,
    P384,
    P521,
    Ed25519,
}

impl Algorithm {
    const NAMES: [(&'static str, Self); 10] = [
        ("RS256", Self::Rs256),
        ("RS384", Self::Rs384),
        ("RS512", Self::Rs512),
        ("PS256", Self::Ps256),
        ("PS384", Self::Ps384),
        ("PS512", Self::Ps512),
        ("ES256", Self::Es256),
        ("ES384", Self::Es384),
        ("ES512", Self::Es512),
        ("EdDSA", Self::EdDsa),
    ];

    /// The algorithm of that name, in exactly that case.
    pub fn of_name(name: &str) -> Option<Self> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, algorithm)| *algorithm)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, known)| *known == self);
        found.map_or("", |(name, _)| name)
    }

    pub(super) fn kind(self) -> KeyKind {
        match self {
            Self::Rs256 => KeyKind::Rsa(0),
            Self::Rs384 => KeyKind::Rsa(1),
            Self::Rs512 => KeyKind::Rsa(2),
            Self::Ps256 => KeyKind::Rsa(3),
            Self::Ps384 => KeyKind::Rsa(4),
            Self::Ps512 => KeyKind::Rsa(5),
            Self::Es256 => KeyKind::P256,
            Self::Es384 => KeyKind::P384,
            Self::Es512 => KeyKind::P521,
            Self::EdDsa => KeyKind::Ed25519,
        }
    }
}

/// RSA by its number. The library takes keys of 2,048 to 8,192 bits: RFC 7518 forbids shorter ones.
pub(super) fn rsa(number: usize) -> &'static RsaParameters {
    static ALL: [&RsaParameters; RSA_ALGORITHMS] = [
        &RSA_PKCS1_2048_8192_SHA256,
        &RSA_PKCS1_2048_8192_SHA384,
        &RSA_PKCS1_2048_8192_SHA512,
        &RSA_PSS_2048_8192_SHA256,
        &RSA_PSS_2048_8192_SHA384,
        &RSA_PSS_2048_8192_SHA512,
    ];
    ALL[number]
}

/// The verification algorithm for a key that is not RSA.
pub(super) fn other(kind: KeyKind) -> Option<&'static dyn VerificationAlgorithm> {
    static P256: &EcdsaVerificationAlgorithm = &ECDSA_P256_SHA256_FIXED;
    static P384: &EcdsaVerificationAlgorithm = &ECDSA_P384_SHA384_FIXED;
    static P521: &EcdsaVerificationAlgorithm = &ECDSA_P521_SHA512_FIXED;
    match kind {
        KeyKind::Rsa(_) => None,
        KeyKind::P256 => Some(P256),
        KeyKind::P384 => Some(P384),
        KeyKind::P521 => Some(P521),
        KeyKind::Ed25519 => Some(&ED25519),
    }
}
