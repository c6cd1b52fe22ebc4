//! Join tokens: a secret handed to a person, good for one certificate of one identity. The state directory holds only
//! the secret's hash, so that reading it lets nobody in; the file's disappearance is the single use.
//!
//! ```text
//!   voile-join.<id: 32 hex>.<secret: 43 base64url>      join-tokens/<id>.json {sha256, namespace, …, expires}
//! ```

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::authority::random;
use crate::state::{SECRET_MODE, StateDir, StateError};
use crate::token::TokenSubject;

/// The folder in the state directory.
pub const JOIN_TOKENS_FOLDER: &str = "join-tokens";
/// Prefix of every join token.
pub const JOIN_TOKEN_PREFIX: &str = "voile-join.";
/// Longest life of a join token: it waits for a person, not for ever.
pub const MAX_JOIN_TTL: Duration = Duration::from_secs(7 * 24 * 60 * 60);
const ID_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;
const ENCODED_SECRET_BYTES: usize = 43; // SECRET_BYTES in base64 without padding

/// Why a join token is refused, or cannot be made. Unknown, used and wrong tokens look alike on purpose.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// Not of our form, not known, already used, or with a wrong secret.
    #[error("the join token is unknown or was used before")]
    Unknown,
    /// Too late.
    #[error("the join token has expired")]
    Expired,
    /// The names are no Kubernetes names.
    #[error("`{0}` is not NAMESPACE/SERVICE-ACCOUNT")]
    Subject(String),
    /// The lifetime asked for is absurd.
    #[error("a join token may live from one second to {MAX_JOIN_TTL:?}, not {0:?}")]
    Ttl(Duration),
    /// The system gave no randomness.
    #[error("cannot make a join token: {0}")]
    Random(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Of the encoded secret, in base64url.
    sha256: String,
    namespace: String,
    service_account: String,
    /// Seconds since 1970.
    expires: u64,
}

/// A join token that is good, but not yet used up.
#[derive(Debug)]
#[must_use = "a token that is not consumed can be used again"]
pub struct RedeemableToken {
    subject: TokenSubject,
    file: String,
}

impl RedeemableToken {
    /// Subject that the token stands for.
    pub fn subject(&self) -> &TokenSubject {
        &self.subject
    }
}

/// The join tokens of a state directory.
#[derive(Debug, Clone)]
pub struct JoinTokens {
    folder: StateDir,
}

impl JoinTokens {
    /// Opens the folder, making it if there is none.
    ///
    /// # Errors
    /// The directory is open to others or cannot be made.
    pub fn open(state: &StateDir) -> Result<Self, JoinError> {
        Ok(Self {
            folder: state.subdirectory(JOIN_TOKENS_FOLDER)?,
        })
    }

    /// Makes a token for a service account.
    ///
    /// # Errors
    /// The names are no Kubernetes names, the lifetime is absurd, or the file cannot be written.
    pub fn create(
        &self,
        subject: &TokenSubject,
        now: SystemTime,
        ttl: Duration,
    ) -> Result<String, JoinError> {
        if ttl < Duration::from_secs(1) || ttl > MAX_JOIN_TTL {
            return Err(JoinError::Ttl(ttl));
        }
        let TokenSubject {
            namespace,
            service_account,
            ..
        } = subject;
        let domain = voile_model::TrustDomain::new("any");
        if domain
            .and_then(|domain| subject.identity(&domain))
            .is_none()
        {
            return Err(JoinError::Subject(format!("{namespace}/{service_account}")));
        }
        self.sweep(now);
        let (mut id, mut secret) = ([0; ID_BYTES], [0; SECRET_BYTES]);
        random(&mut id)
            .and_then(|()| random(&mut secret))
            .map_err(|error| JoinError::Random(error.to_string()))?;
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let secret = URL_SAFE_NO_PAD.encode(secret);
        let record = Record {
            sha256: URL_SAFE_NO_PAD.encode(Sha256::digest(&secret)),
            namespace: namespace.clone(),
            service_account: service_account.clone(),
            expires: seconds(now) + ttl.as_secs(),
        };
        let text = serde_json::to_string(&record).map_err(|e| JoinError::Random(e.to_string()))?;
        match self.folder.write_new(&file_of(&id), &text, SECRET_MODE)? {
            true => Ok(format!("{JOIN_TOKEN_PREFIX}{id}.{secret}")),
            false => Err(JoinError::Random("a random number repeated".into())),
        }
    }

    /// Takes away tokens that expired unused, so that the folder does not grow for ever. Best effort: a file that
    /// cannot be read is left for a person to see.
    fn sweep(&self, now: SystemTime) {
        let Ok(entries) = std::fs::read_dir(self.folder.path()) else {
            return;
        };
        for name in entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
        {
            let Ok(Some(text)) = self.folder.read_secret(&name) else {
                continue;
            };
            let record = serde_json::from_str::<Record>(&text);
            if record.is_ok_and(|record| seconds(now) >= record.expires) {
                let _ = self.folder.take(&name);
            }
        }
    }

    /// Looks whether a token is good, without using it up: the certificate request is checked in between, so that
    /// a broken request does not cost the token.
    ///
    /// # Errors
    /// The token is unknown, used, wrong or expired.
    pub fn check(&self, token: &str, now: SystemTime) -> Result<RedeemableToken, JoinError> {
        let (id, secret) = parse(token).ok_or(JoinError::Unknown)?;
        let file = file_of(id);
        let text = self.folder.read_secret(&file)?.ok_or(JoinError::Unknown)?;
        let record: Record = serde_json::from_str(&text).map_err(|_| JoinError::Unknown)?;
        let found = URL_SAFE_NO_PAD.encode(Sha256::digest(secret));
        if !equal_in_constant_time(found.as_bytes(), record.sha256.as_bytes()) {
            return Err(JoinError::Unknown);
        }
        if seconds(now) >= record.expires {
            // Spent either way; whether somebody else swept it first does not matter.
            let _ = self.folder.take(&file)?;
            return Err(JoinError::Expired);
        }
        let Record {
            namespace,
            service_account,
            ..
        } = record;
        Ok(RedeemableToken {
            subject: TokenSubject {
                namespace,
                service_account,
                pod: None,
            },
            file,
        })
    }

    /// Uses a token up: of all who try, in whatever process, exactly one succeeds.
    ///
    /// # Errors
    /// Somebody else used it first.
    pub fn consume(&self, token: RedeemableToken) -> Result<TokenSubject, JoinError> {
        match self.folder.take(&token.file)? {
            true => Ok(token.subject),
            false => Err(JoinError::Unknown),
        }
    }

    /// Checks and uses up a token in one.
    ///
    /// # Errors
    /// As [`JoinTokens::check`] and [`JoinTokens::consume`].
    pub fn redeem(&self, token: &str, now: SystemTime) -> Result<TokenSubject, JoinError> {
        self.consume(self.check(token, now)?)
    }
}

/// Identifier and secret. The identifier becomes a file name, so only hexadecimal digits get through.
fn parse(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.strip_prefix(JOIN_TOKEN_PREFIX)?.split_once('.')?;
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let id_is_good = id.len() == 2 * ID_BYTES && id.bytes().all(hex);
    let secret_is_good = secret.len() == ENCODED_SECRET_BYTES && secret.bytes().all(plain);
    (id_is_good && secret_is_good).then_some((id, secret))
}

fn file_of(id: &str) -> String {
    format!("{id}.json")
}

fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y));
    a.len() == b.len() && std::hint::black_box(difference) == 0
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
