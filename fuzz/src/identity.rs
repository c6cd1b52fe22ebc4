//! Credentials: no certificate, token or request gives a caller another's identity.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SigningKey};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use voile_identity::state::StateDir;
use voile_identity::token::TOKEN_KEY_FILE;
use voile_identity::{
    Authority, Identity, TOKEN_AUDIENCE, TokenKey, TokenSubject, TrustDomain, identity_of,
};

/// Stands in the corpus for the key that is made for each run, so that a request can be signed: a point in P-256's
/// uncompressed form.
const PLACEHOLDER: [u8; 65] = {
    let mut point = [0xee; 65];
    point[0] = 4;
    point
};
/// `ecdsa-with-SHA256`, as a request says it.
const SIGNATURE_ALGORITHM: [u8; 12] = [
    0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02,
];
/// 2026-01-01: when every input is judged.
const NOW: Duration = Duration::from_secs(1_767_225_600);

struct World {
    authority: Authority,
    tokens: TokenKey,
    signing: EncodingKey,
    pair: KeyPair,
    caller: Identity,
    domain: TrustDomain,
    now: SystemTime,
}

/// The root of that world, and when everything is judged.
pub(crate) fn root() -> (CertificateDer<'static>, SystemTime) {
    (WORLD.authority.roots()[0].clone(), WORLD.now)
}

/// Made once: keys cost more than everything that is tried with them.
static WORLD: LazyLock<World> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let domain = TrustDomain::new("cluster.local").expect("a trust domain");
    let now = SystemTime::UNIX_EPOCH + NOW;
    let authority = Authority::open(&folder.path().join("authority"), &domain, now);
    let tokens = folder.path().join("tokens");
    let state = StateDir::open(&tokens).expect("a state directory");
    let key = TokenKey::open(&state).expect("a key for tokens");
    let pem = std::fs::read_to_string(tokens.join(TOKEN_KEY_FILE)).expect("the same key");
    let signing = KeyPair::from_pem(&pem).expect("a P-256 key");
    World {
        authority: authority.expect("an authority"),
        tokens: key,
        signing: EncodingKey::from_ec_der(signing.serialized_der()),
        pair: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key"),
        caller: "spiffe://cluster.local/ns/shop/sa/cart"
            .parse()
            .expect("an identity"),
        domain,
        now,
    }
});

/// A certificate in DER, or an identity in text.
pub(crate) fn certificate(data: &[u8]) {
    let leaf = CertificateDer::from(data);
    if let Ok(identity) = identity_of(&leaf) {
        own_words(&identity);
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(identity) = text.parse::<Identity>()
    {
        assert_eq!(identity.to_string(), text, "there is one way to write it");
    }
}

fn own_words(identity: &Identity) {
    let text = identity.to_string();
    assert_eq!(text.parse::<Identity>().as_ref(), Ok(identity), "{text}");
}

/// A token as it comes, or, after a zero byte, the claims of one that is signed as ours are.
pub(crate) fn token(data: &[u8]) {
    let world = &*WORLD;
    let (text, is_signed) = match data {
        [0, claims @ ..] => {
            let Ok(claims) = serde_json::from_slice::<serde_json::Value>(claims) else {
                return;
            };
            let header = Header::new(Algorithm::ES256);
            let Ok(text) = jsonwebtoken::encode(&header, &claims, &world.signing) else {
                return;
            };
            (text, true)
        }
        raw => match std::str::from_utf8(raw) {
            Ok(text) => (text.to_owned(), false),
            Err(_) => return,
        },
    };
    match world.tokens.verify(&text, TOKEN_AUDIENCE, world.now) {
        Ok(subject) => {
            assert!(is_signed, "{text} is of another key");
            accepted(&subject);
        }
        Err(error) => assert!(error.to_string().len() < 2048, "{error}"),
    }
    let elsewhere = world.tokens.verify(&text, "somebody-else", world.now);
    let both = data.windows(13).any(|part| part == b"somebody-else");
    assert!(elsewhere.is_err() || both, "{text} is for somebody else");
}

fn accepted(subject: &TokenSubject) {
    let identity = subject
        .identity(&WORLD.domain)
        .expect("names of Kubernetes");
    own_words(&identity);
}

/// The inside of a certificate request, signed by the key that replaces the placeholder in it; or, after a zero byte,
/// any content of a PEM block.
pub(crate) fn request(data: &[u8]) {
    let world = &*WORLD;
    let (der, is_own) = match data {
        [0, der @ ..] => (der.to_vec(), false),
        inside => (signed(inside, &world.pair), true),
    };
    let pem = format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
        STANDARD.encode(der)
    );
    match world.authority.issue(&pem, &world.caller, None, world.now) {
        Ok(issued) => {
            let leaf = CertificateDer::from_pem_slice(issued.chain[0].as_bytes());
            let leaf = leaf.expect("a certificate");
            assert_eq!(identity_of(&leaf).as_ref(), Ok(&world.caller));
            let key = world.pair.der_bytes();
            let holds = leaf.windows(key.len()).any(|part| part == key);
            assert!(holds || !is_own, "the key of whoever asked, and no other");
        }
        Err(error) => assert!(error.to_string().len() < 8192, "{error}"),
    }
}

fn signed(inside: &[u8], pair: &KeyPair) -> Vec<u8> {
    let mut inside = inside.to_vec();
    let at = inside
        .windows(PLACEHOLDER.len())
        .position(|part| part == PLACEHOLDER);
    if let Some(at) = at {
        inside[at..at + PLACEHOLDER.len()].copy_from_slice(pair.der_bytes());
    }
    let signature = pair.sign(&inside).expect("a signature");
    let mut bits = vec![0];
    bits.extend(signature);
    let content = [inside, SIGNATURE_ALGORITHM.to_vec(), tagged(0x03, &bits)].concat();
    tagged(0x30, &content)
}

/// DER's tag and length before the content.
fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len())
        .unwrap_or(u16::MAX)
        .to_be_bytes();
    let mut out = match content.len() {
        0..=0x7f => vec![tag, length[1]],
        0x80..=0xff => vec![tag, 0x81, length[1]],
        _ => vec![tag, 0x82, length[0], length[1]],
    };
    out.extend_from_slice(content);
    out
}
