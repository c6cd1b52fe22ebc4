//! Service-account tokens of a mesh without Kubernetes: ES256 JWTs with Kubernetes' claims
//! (docs/decisions/0001-wire.md), so that the certificate service need not care who minted a token.

use std::fmt;
use std::time::{Duration, SystemTime};

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde::{Deserialize, Serialize};
use voile_model::{Identity, TrustDomain};

use crate::state::{SECRET_MODE, StateDir, StateError};

/// The signing key, in the state directory.
pub const TOKEN_KEY_FILE: &str = "token-key.pem";
/// Issuer of the tokens.
pub const TOKEN_ISSUER: &str = "voile-local";
/// Audience of the tokens: Istio's name for its authority.
pub const TOKEN_AUDIENCE: &str = "istio-ca";
/// Life of a token when nothing else is asked.
pub const DEFAULT_TOKEN_TTL: Duration = Duration::from_secs(60 * 60);
/// Longest life of a token: whoever holds one is the workload, and there is no revocation but expiry.
pub const MAX_TOKEN_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Largest difference between the clocks of minter and verifier.
pub const TOKEN_SKEW: Duration = Duration::from_secs(30);
/// Longest token read, in bytes; Kubernetes' are about 1 KB.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// Why a token is refused, or cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The signing key cannot be used.
    #[error("{TOKEN_KEY_FILE} is invalid: {0}")]
    Key(String),
    /// Longer than [`MAX_TOKEN_BYTES`].
    #[error("the token has {0} bytes; at most {MAX_TOKEN_BYTES} are read")]
    TooLarge(usize),
    /// Malformed, of another algorithm, key, issuer or audience.
    #[error("the token is refused: {0}")]
    Refused(String),
    /// Past its `exp`.
    #[error("the token expired {0} seconds ago")]
    Expired(u64),
    /// Before its `nbf`.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// The claims contradict each other or name no service account.
    #[error("the token names no service account: {0}")]
    Subject(String),
    /// The lifetime asked for is absurd.
    #[error("a token may live from one second to {MAX_TOKEN_TTL:?}, not {0:?}")]
    Ttl(Duration),
}

/// Identity that a token stands for; the verifier decides the trust domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSubject {
    /// The namespace.
    pub namespace: String,
    /// The service account.
    pub service_account: String,
    /// The pod, if the token is bound to one.
    pub pod: Option<String>,
}

/// UIDs of the objects that a cluster's token is bound to: a later object of the same name has another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BoundUids {
    /// Of the service account.
    pub service_account: Option<String>,
    /// Of the pod.
    pub pod: Option<String>,
}

/// How a token is verified: by this key, of this algorithm and issuer.
#[derive(Debug, Clone, Copy)]
pub struct TokenRules<'a> {
    /// The key.
    pub key: &'a DecodingKey,
    /// Its only algorithm.
    pub algorithm: Algorithm,
    /// `iss`.
    pub issuer: &'a str,
    /// `aud`, or one of them.
    pub audience: &'a str,
}

impl TokenRules<'_> {
    /// The subject of `token`, until when it may be believed, and the UIDs that it is bound to. A token that is past its `exp` is
    /// believed for what the clocks' difference forgives.
    ///
    /// # Errors
    /// The algorithm (`none`, HS256…), the signature, issuer, audience, dates or subject are wrong.
    pub fn verify(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<(TokenSubject, SystemTime, BoundUids), TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLarge(token.len()));
        }
        let mut validation = Validation::new(self.algorithm);
        validation.set_audience(&[self.audience]);
        validation.set_issuer(&[self.issuer]);
        validation.set_required_spec_claims(&["exp", "nbf", "aud", "iss", "sub"]);
        // The library would ask the machine's clock; ours is an argument.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        let claims = jsonwebtoken::decode::<Claims>(token, self.key, &validation)
            .map_err(|error| TokenError::Refused(error.to_string()))?
            .claims;
        let (now, skew) = (seconds(now), TOKEN_SKEW.as_secs());
        if now >= claims.exp.saturating_add(skew) {
            return Err(TokenError::Expired(now - claims.exp));
        }
        if now.saturating_add(skew) < claims.nbf {
            return Err(TokenError::NotYetValid);
        }
        let forgiven = if now >= claims.exp { skew } else { 0 };
        let until = Duration::from_secs(claims.exp.saturating_add(forgiven));
        // A date beyond what the clock can say is no date of ours.
        let until = SystemTime::UNIX_EPOCH.checked_add(until);
        let until = until.ok_or_else(|| TokenError::Refused("its `exp` is no date".to_owned()))?;
        let bound = BoundUids {
            service_account: claims.kubernetes.serviceaccount.uid.clone(),
            pod: claims
                .kubernetes
                .pod
                .as_ref()
                .and_then(|pod| pod.uid.clone()),
        };
        Ok((subject_of(claims)?, until, bound))
    }
}

impl TokenSubject {
    /// The identity in `trust_domain`; `None` when the names are not Kubernetes names.
    pub fn identity(&self, trust_domain: &TrustDomain) -> Option<Identity> {
        let (namespace, account) = (&self.namespace, &self.service_account);
        // Parsing is the check: a name with a slash or an upper-case letter does not survive it.
        format!("spiffe://{trust_domain}/ns/{namespace}/sa/{account}")
            .parse()
            .ok()
    }
}

/// The identity that the holder of `token` has where an authority believes it: the token is not verified. None if it names no service
/// account.
pub(crate) fn unverified_identity(token: &str, trust_domain: &TrustDomain) -> Option<Identity> {
    #[derive(Deserialize)]
    struct SubjectClaim {
        sub: String,
    }
    let claims = jsonwebtoken::dangerous::insecure_decode::<SubjectClaim>(token)
        .ok()?
        .claims;
    let (namespace, service_account) = claims
        .sub
        .strip_prefix("system:serviceaccount:")?
        .split_once(':')?;
    let subject = TokenSubject {
        namespace: namespace.to_owned(),
        service_account: service_account.to_owned(),
        pod: None,
    };
    subject.identity(trust_domain)
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: Audience,
    sub: String,
    iat: u64,
    nbf: u64,
    exp: u64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Kubernetes,
}

/// One audience or a list: RFC 7519 section 4.1.3 allows both.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Audience {
    Many(Vec<String>),
    One(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Kubernetes {
    namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<Named>,
    serviceaccount: Named,
}

#[derive(Debug, Serialize, Deserialize)]
struct Named {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
}

/// Verifies service-account tokens.
pub trait TokenVerifier: fmt::Debug + Send + Sync {
    /// The subject of `token`, and until when it may be believed, if the token is valid at `now` for [`TOKEN_AUDIENCE`].
    ///
    /// # Errors
    /// The token is refused.
    fn verify(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<(TokenSubject, SystemTime), TokenError>;
}

impl TokenVerifier for TokenKey {
    fn verify(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<(TokenSubject, SystemTime), TokenError> {
        self.verify_until(token, TOKEN_AUDIENCE, now)
    }
}

/// The key that signs and verifies tokens.
pub struct TokenKey {
    signing: EncodingKey,
    verifying: DecodingKey,
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(ES256, private)")
    }
}

impl TokenKey {
    /// Opens the key in the state directory, making it if there is none.
    ///
    /// # Errors
    /// The directory or the key is open to others, or the key is not P-256.
    pub fn open(state: &StateDir) -> Result<Self, TokenError> {
        let _lock = state.lock()?;
        let key = |error: rcgen::Error| TokenError::Key(error.to_string());
        let pem = match state.read_secret(TOKEN_KEY_FILE)? {
            Some(pem) => pem,
            None => {
                let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(key)?;
                let pem = pair.serialize_pem();
                state.write_new(TOKEN_KEY_FILE, &pem, SECRET_MODE)?;
                pem
            }
        };
        let pair =
            KeyPair::from_pkcs8_pem_and_sign_algo(&pem, &PKCS_ECDSA_P256_SHA256).map_err(key)?;
        Ok(Self {
            signing: EncodingKey::from_ec_der(pair.serialized_der()),
            verifying: DecodingKey::from_ec_der(pair.public_key_raw()),
        })
    }

    /// Signs a token for `subject`, for `audience` (by custom [`TOKEN_AUDIENCE`]).
    ///
    /// # Errors
    /// The names are no Kubernetes names, or the lifetime is absurd.
    pub fn mint(
        &self,
        subject: &TokenSubject,
        audience: &str,
        now: SystemTime,
        ttl: Duration,
    ) -> Result<String, TokenError> {
        if ttl < Duration::from_secs(1) || ttl > MAX_TOKEN_TTL {
            return Err(TokenError::Ttl(ttl));
        }
        let TokenSubject {
            namespace,
            service_account,
            pod,
        } = subject;
        check_names(subject)?;
        let now = seconds(now);
        let claims = Claims {
            iss: TOKEN_ISSUER.to_owned(),
            aud: Audience::Many(vec![audience.to_owned()]),
            sub: format!("system:serviceaccount:{namespace}:{service_account}"),
            iat: now,
            nbf: now,
            exp: now + ttl.as_secs(),
            kubernetes: Kubernetes {
                namespace: namespace.clone(),
                pod: pod.clone().map(|name| Named { name, uid: None }),
                serviceaccount: Named {
                    name: service_account.clone(),
                    uid: None,
                },
            },
        };
        jsonwebtoken::encode(&Header::new(Algorithm::ES256), &claims, &self.signing)
            .map_err(|error| TokenError::Key(error.to_string()))
    }

    /// Subject of `token`, if this key signed it for `audience` and it is valid at `now`.
    ///
    /// # Errors
    /// Anything else: the algorithm (`none`, HS256…), the signature, issuer, audience, dates or subject are wrong.
    pub fn verify(
        &self,
        token: &str,
        audience: &str,
        now: SystemTime,
    ) -> Result<TokenSubject, TokenError> {
        let (subject, _) = self.verify_until(token, audience, now)?;
        Ok(subject)
    }

    /// As [`Self::verify`], and until when it may be believed: its `exp`, or for one that is past it already what the
    /// clocks' difference forgives.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub fn verify_until(
        &self,
        token: &str,
        audience: &str,
        now: SystemTime,
    ) -> Result<(TokenSubject, SystemTime), TokenError> {
        let rules = TokenRules {
            key: &self.verifying,
            algorithm: Algorithm::ES256,
            issuer: TOKEN_ISSUER,
            audience,
        };
        let (subject, until, _) = rules.verify(token, now)?;
        Ok((subject, until))
    }
}

fn subject_of(claims: Claims) -> Result<TokenSubject, TokenError> {
    let subject = TokenSubject {
        namespace: claims.kubernetes.namespace,
        service_account: claims.kubernetes.serviceaccount.name,
        pod: claims.kubernetes.pod.map(|pod| pod.name),
    };
    check_names(&subject)?;
    let wanted = format!(
        "system:serviceaccount:{}:{}",
        subject.namespace, subject.service_account
    );
    if claims.sub != wanted {
        return Err(TokenError::Subject(
            "`sub` contradicts `kubernetes.io`".into(),
        ));
    }
    Ok(subject)
}

fn check_names(subject: &TokenSubject) -> Result<(), TokenError> {
    let pod_is_name = subject
        .pod
        .as_deref()
        .is_none_or(voile_model::names::is_dns_subdomain);
    let domain = TrustDomain::new("any");
    if pod_is_name && domain.is_some_and(|domain| subject.identity(&domain).is_some()) {
        return Ok(());
    }
    let (namespace, account) = (&subject.namespace, &subject.service_account);
    let shown: String = format!("{namespace}/{account}").chars().take(300).collect();
    Err(TokenError::Subject(format!(
        "`{shown}` or its pod is not a Kubernetes name"
    )))
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
