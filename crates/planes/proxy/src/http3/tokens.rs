//! Keys of our own that no client can read: for the tokens by which it shows that it is where it says, and for resets of connections
//! that a process before us had. Fresh in each process.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, hmac};
use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey, HmacKey};

/// See the module.
pub(super) struct Keys {
    resets: hmac::Key,
    tokens: hkdf::Prk,
}

const SECRET_BYTES: usize = 32;

impl Keys {
    pub(super) fn fresh() -> Self {
        let secret = || {
            let mut bytes = [0; SECRET_BYTES];
            aws_lc_rs::rand::fill(&mut bytes).expect("invariant: the system has randomness");
            bytes
        };
        Self {
            resets: hmac::Key::new(hmac::HMAC_SHA256, &secret()),
            tokens: hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&secret()),
        }
    }
}

impl HmacKey for Keys {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(hmac::sign(&self.resets, data).as_ref());
    }

    fn signature_len(&self) -> usize {
        hmac::HMAC_SHA256.digest_algorithm().output_len()
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        hmac::verify(&self.resets, data, signature).map_err(|_| CryptoError)
    }
}

impl HandshakeTokenKey for Keys {
    fn aead_from_hkdf(&self, random_bytes: &[u8]) -> Box<dyn AeadKey> {
        let of = [random_bytes];
        let key = self.tokens.expand(&of, &AES_256_GCM);
        let key = key.expect("invariant: HKDF gives as much as a key");
        Box::new(Token(LessSafeKey::new(UnboundKey::from(key))))
    }
}

/// The key of one token, which seals nothing else.
struct Token(LessSafeKey);

impl Token {
    fn nonce() -> Nonce {
        // The key is of this token alone.
        Nonce::assume_unique_for_key([0; 12])
    }
}

impl AeadKey for Token {
    fn seal(&self, data: &mut Vec<u8>, additional_data: &[u8]) -> Result<(), CryptoError> {
        let sealed =
            self.0
                .seal_in_place_append_tag(Self::nonce(), Aad::from(additional_data), data);
        sealed.map_err(|_| CryptoError)
    }

    fn open<'a>(
        &self,
        data: &'a mut [u8],
        additional_data: &[u8],
    ) -> Result<&'a mut [u8], CryptoError> {
        let opened = self
            .0
            .open_in_place(Self::nonce(), Aad::from(additional_data), data);
        opened.map_err(|_| CryptoError)
    }
}
