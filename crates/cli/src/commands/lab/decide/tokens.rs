//! Tokens for `voile decide`: rules for a number of issuers, and requests with tokens of the last of them, signed by each kind
//! of key that is common. Beside what a proxy does with a token stands what the signature check alone takes.

use std::fmt;
use std::hint::black_box;
use std::sync::LazyLock;
use std::time::Instant;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize, PublicKeyComponents};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ED25519, EcdsaKeyPair,
    Ed25519KeyPair, KeyPair as _, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use voile_model::Source;
use voile_model::mesh::{KeySource, TokenRule};
use voile_policy::tokens::{Cache, RuleKeys, Rules, TokenOutcome, TokenRequest};

use super::{COUNTED, begin_counting, end_counting};

/// When every request comes: 2026-01-01.
const NOW: u64 = 1_767_225_600;
/// Different tokens of a turn, when it is timed.
const TOKENS: usize = 300;
/// Batches of a turn; the median one tells.
const BATCHES: usize = 5;
/// Seed for the hashes of one worker's cache.
const CACHE_SEED: u64 = 3;
/// Size of a cache for turns that need unseen tokens. It holds a tenth of them, so that each is forgotten before
/// it comes again.
const FULL_CACHE_BYTES: usize = 96 * 1024;
/// Bytes of an RSA modulus of 2,048 bits. In the public key's DER two bytes of head and an exponent of three (65,537)
/// follow it.
const MODULUS_BYTES: usize = 256;
const EXPONENT_BYTES: usize = 3;
const EXPONENT_HEAD_BYTES: usize = 2;

/// Signature algorithm of the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Es256,
    EdDsa,
}

/// A key of each kind, made once: RSA keys take long to make.
static RSA: LazyLock<RsaKeyPair> = LazyLock::new(|| {
    RsaKeyPair::generate(KeySize::Rsa2048).expect("invariant: a key of 2,048 bits can be made")
});
static P256: LazyLock<EcdsaKeyPair> = LazyLock::new(|| {
    EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)
        .expect("invariant: a key on P-256 can be made")
});
static EDWARDS: LazyLock<Ed25519KeyPair> =
    LazyLock::new(|| Ed25519KeyPair::generate().expect("invariant: an Ed25519 key can be made"));

impl Algorithm {
    pub(super) const ALL: [Self; 3] = [Self::Rs256, Self::Es256, Self::EdDsa];

    /// The kind, in tables.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Rs256 => "jwt-rs256",
            Self::Es256 => "jwt-es256",
            Self::EdDsa => "jwt-eddsa",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    /// Members of the public key in JSON, and the key as the library takes it.
    fn public(self) -> (Value, ParsedPublicKey) {
        let word = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (json, parsed) = match self {
            Self::Rs256 => {
                let der = RSA.public_key().as_ref();
                let (rest, e) = der.split_at(der.len() - EXPONENT_BYTES);
                let end = rest.len() - EXPONENT_HEAD_BYTES;
                let n = &rest[end - MODULUS_BYTES..end];
                let parts = PublicKeyComponents { n, e };
                let parsed = parts.to_parsed_public_key(&RSA_PKCS1_2048_8192_SHA256);
                (json!({ "kty": "RSA", "n": word(n), "e": word(e) }), parsed)
            }
            Self::Es256 => {
                let point = P256.public_key().as_ref();
                let (x, y) = point[1..].split_at(point.len() / 2);
                let json = json!({ "kty": "EC", "crv": "P-256", "x": word(x), "y": word(y) });
                (json, ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point))
            }
            Self::EdDsa => {
                let x = EDWARDS.public_key().as_ref();
                let json = json!({ "kty": "OKP", "crv": "Ed25519", "x": word(x) });
                (json, ParsedPublicKey::new(&ED25519, x))
            }
        };
        (
            json,
            parsed.expect("invariant: the library reads its own keys"),
        )
    }

    fn sign(self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rs256 => {
                let mut signature = vec![0; RSA.public_modulus_len()];
                RSA.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .expect("invariant: a signature has the modulus's length");
                signature
            }
            Self::Es256 => {
                let signature = P256.sign(&random, message);
                let signature = signature.expect("invariant: the key signs");
                signature.as_ref().to_vec()
            }
            Self::EdDsa => EDWARDS.sign(message).as_ref().to_vec(),
        }
    }
}

/// Kind of request that a turn measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenQuestion {
    /// Only the signature is checked; no request is decided.
    Bare,
    /// A token never seen before.
    Cold,
    /// A token seen before.
    Warm,
    /// A request without a token.
    None,
}

impl TokenQuestion {
    pub(super) const ALL: [Self; 4] = [Self::Bare, Self::Cold, Self::Warm, Self::None];
}

impl fmt::Display for TokenQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bare => "bare",
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::None => "none",
        })
    }
}

/// Header lines of a request.
type Lines = Vec<(&'static str, String)>;

/// One request with a token: its header, what is signed, the signature.
struct SignedRequest {
    lines: Lines,
    message: String,
    signature: Vec<u8>,
}

/// Headers that all requests have.
fn usual() -> Lines {
    let lines = [("host", "shop"), ("user-agent", "x"), ("accept", "*/*")];
    lines.map(|(name, value)| (name, value.to_owned())).into()
}

/// Token caches of a worker. In the full one an unseen token pushes out another, as in a proxy that has run for a
/// while.
struct TokenCaches {
    full: Cache,
    known: Cache,
}

/// Rules for a number of issuers, and tokens of the last.
pub(super) struct Issuers {
    rules: Rules,
    /// Time to compile the rules, ns.
    pub(super) compile_ns: u64,
    /// Of keys and rules as they were written, bytes.
    pub(super) bytes: usize,
    verifying: ParsedPublicKey,
    tokens: Vec<SignedRequest>,
    /// Of a request without a token.
    usual: Lines,
}

fn issuer(at: usize) -> String {
    format!("https://issuer-{at:05}.example")
}

/// Key set of another issuer: a key that signs no token.
fn strangers(at: usize) -> String {
    let mut secret = [0; 32];
    fastrand::Rng::with_seed(at as u64).fill(&mut secret);
    let pair = Ed25519KeyPair::from_seed_unchecked(&secret);
    let pair = pair.expect("invariant: any 32 bytes are a seed");
    let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
    let key = json!({ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "k", "x": x });
    json!({ "keys": [key] }).to_string()
}

fn rule(issuer: &str, keys: &str) -> TokenRule {
    TokenRule {
        source: Source {
            file: "decide".into(),
            line: 1,
            column: 1,
        },
        issuer: issuer.into(),
        audiences: Vec::new(),
        keys: KeySource::Inline(keys.into()),
        from_headers: Vec::new(),
        from_params: Vec::new(),
        from_cookies: Vec::new(),
        forward_original: false,
        output_payload_to_header: None,
        output_claims: Vec::new(),
        space_delimited_claims: Vec::new(),
        timeout: std::time::Duration::from_secs(5),
        required: false,
    }
}

impl Issuers {
    /// So many issuers; fewer tokens where instructions are counted, since signing them takes longest.
    pub(super) fn new(algorithm: Algorithm, issuers: usize, count: bool) -> Self {
        let last = issuer(issuers - 1);
        let (mut key, verifying) = algorithm.public();
        key["alg"] = algorithm.name().into();
        key["kid"] = "k".into();
        let keys = json!({ "keys": [key] }).to_string();
        let others = (0..issuers - 1).map(|at| rule(&issuer(at), &strangers(at)));
        let rules: Vec<TokenRule> = others.chain([rule(&last, &keys)]).collect();
        let bytes = rules.iter().map(|rule| match &rule.keys {
            KeySource::Inline(keys) => keys.len() + rule.issuer.len(),
            KeySource::Uri(_) | KeySource::Discovery => 0,
        });
        let bytes = bytes.sum();
        let given = rules.iter().map(|rule| RuleKeys { rule, keys: None });
        let began = Instant::now();
        let compiled = Rules::new(given, None);
        let compile_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let tokens = if count { COUNTED } else { TOKENS };
        Self {
            rules: compiled,
            compile_ns,
            bytes,
            verifying,
            tokens: (0..tokens).map(|at| signed(algorithm, &last, at)).collect(),
            usual: usual(),
        }
    }

    /// One decision, and whether it is the one that is wanted.
    fn made(&self, headers: &Lines, turn: TokenQuestion, cache: &mut Cache) {
        let request = TokenRequest {
            method: b"GET",
            path: b"/api/v1/things?page=2",
            headers,
        };
        let outcome = self.rules.examine(black_box(&request), NOW, cache);
        let good = match turn {
            TokenQuestion::None => matches!(outcome, TokenOutcome::NoToken),
            _ => matches!(outcome, TokenOutcome::Verified(_)),
        };
        assert!(good, "invariant: tokens are made for their rules");
        drop(black_box(outcome));
    }

    fn check(&self, token: &SignedRequest) {
        let held = self
            .verifying
            .verify_sig(black_box(token.message.as_bytes()), &token.signature);
        assert!(held.is_ok(), "invariant: the signature is the key's own");
    }

    /// One of a turn for each token, in order.
    fn pass(&self, turn: TokenQuestion, memories: &mut TokenCaches) {
        let cache = match turn {
            TokenQuestion::Cold => &mut memories.full,
            TokenQuestion::Bare | TokenQuestion::Warm | TokenQuestion::None => &mut memories.known,
        };
        for token in &self.tokens {
            match turn {
                TokenQuestion::Bare => self.check(token),
                TokenQuestion::None => self.made(&self.usual, turn, cache),
                TokenQuestion::Cold | TokenQuestion::Warm => self.made(&token.lines, turn, cache),
            }
        }
    }

    /// One memory that is full, and one that knows every token.
    fn memories(&self) -> TokenCaches {
        let mut memories = TokenCaches {
            full: Cache::with_limit(CACHE_SEED, FULL_CACHE_BYTES),
            known: Cache::new(CACHE_SEED),
        };
        self.pass(TokenQuestion::Cold, &mut memories);
        self.pass(TokenQuestion::Warm, &mut memories);
        memories
    }

    /// Time of each turn in ns. The turns alternate within each round, so that a busy machine slows all
    /// alike.
    pub(super) fn timed(&self) -> [(TokenQuestion, f64); 4] {
        let mut memories = self.memories();
        let mut took = [const { Vec::new() }; 4];
        for _ in 0..BATCHES {
            for (turn, took) in TokenQuestion::ALL.iter().zip(&mut took) {
                let began = Instant::now();
                self.pass(*turn, &mut memories);
                took.push(began.elapsed().as_secs_f64() * 1e9 / self.tokens.len() as f64);
            }
        }
        let mut took = took.into_iter();
        TokenQuestion::ALL.map(|turn| {
            let mut all = took.next().unwrap_or_default();
            all.sort_unstable_by(f64::total_cmp);
            (turn, all[BATCHES / 2])
        })
    }

    /// Each turn for a counter, in order; they are not timed.
    pub(super) fn counted(&self) -> [(TokenQuestion, f64); 4] {
        let mut memories = self.memories();
        TokenQuestion::ALL.map(|turn| {
            begin_counting();
            self.pass(turn, &mut memories);
            end_counting();
            (turn, 0.0)
        })
    }
}

/// An ordinary token, another for each number.
fn signed(algorithm: Algorithm, issuer: &str, number: usize) -> SignedRequest {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(json!({ "alg": algorithm.name(), "typ": "JWT", "kid": "k" }));
    let claims = part(json!({
        "iss": issuer, "sub": "user", "aud": ["shop", "stock"], "iat": NOW, "exp": NOW + 600,
        "jti": format!("{number:08}"), "scope": "openid profile email", "azp": "web", "name": "A User",
        "email": "user@example.com", "realm_access": { "roles": ["user", "editor"] },
    }));
    let message = format!("{head}.{claims}");
    let signature = algorithm.sign(message.as_bytes());
    let line = format!("Bearer {message}.{}", URL_SAFE_NO_PAD.encode(&signature));
    let mut lines = usual();
    lines.push(("authorization", line));
    SignedRequest {
        lines,
        message,
        signature,
    }
}
