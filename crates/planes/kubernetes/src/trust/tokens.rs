//! Verifies the cluster's service-account tokens by its own key set, without a question to the API server for each caller. What a
//! TokenReview adds, that the objects still exist to which the token is bound, the watches know sooner.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, decode_header};
use kube::Client;
use serde::Deserialize;
use tokio::sync::Notify;
use voile_identity::{
    BoundUids, MAX_TOKEN_BYTES, TOKEN_AUDIENCE, TokenError, TokenRules, TokenSubject, TokenVerifier,
};

use crate::error::ClusterError;
use crate::source::ObjectStore;

/// The cluster's keys are asked for again after this time, so that a removed key is forgotten.
const REFRESH: Duration = Duration::from_secs(5 * 60);
/// Least time between two questions, whatever callers show.
const LEAST: Duration = Duration::from_secs(1);

/// The key set of a cluster.
#[derive(Default)]
struct KeySet {
    issuer: String,
    keys: BTreeMap<String, (DecodingKey, Algorithm)>,
}

/// Verifies tokens of the cluster's service accounts.
pub(crate) struct ClusterTokens {
    client: Client,
    store: Arc<ObjectStore>,
    keys: RwLock<KeySet>,
    /// A token names a key that is not known.
    unknown: Notify,
}

impl fmt::Debug for ClusterTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterTokens(..)")
    }
}

#[derive(Deserialize)]
struct OpenIdConfiguration {
    issuer: String,
}

impl ClusterTokens {
    /// Asks the API server for its keys.
    ///
    /// # Errors
    /// The API server does not answer, or has no key that is understood.
    pub(crate) async fn start(
        client: Client,
        store: Arc<ObjectStore>,
    ) -> Result<Self, ClusterError> {
        let keys = fetch(&client).await?;
        Ok(Self {
            client,
            store,
            keys: RwLock::new(keys),
            unknown: Notify::new(),
        })
    }

    /// Keeps the keys up to date, for ever.
    pub(crate) async fn refresh(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LEAST).await;
            let _ = tokio::time::timeout(REFRESH - LEAST, self.unknown.notified()).await;
            match fetch(&self.client).await {
                Ok(keys) => *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys,
                Err(error) => tracing::warn!("{error}; the keys that are known stay"),
            }
        }
    }

    /// Checks that an object exists and is the one that the token was made for.
    fn exists(
        &self,
        kind: &str,
        subject: &TokenSubject,
        name: &str,
        uid: Option<&str>,
    ) -> Result<(), TokenError> {
        let file = format!("{kind}/{}/{name}", subject.namespace);
        let known = self.store.uid(&file);
        let gone = |what: &str| TokenError::Refused(format!("it is bound to {file}, which {what}"));
        match (known, uid) {
            (None, _) => Err(gone("is not there")),
            (Some(known), Some(uid)) if known != uid => {
                Err(gone("is another object of the same name now"))
            }
            _ => Ok(()),
        }
    }
}

impl TokenVerifier for ClusterTokens {
    fn verify(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<(TokenSubject, SystemTime), TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLarge(token.len()));
        }
        let refused = |why: String| TokenError::Refused(why);
        let header = decode_header(token).map_err(|error| refused(error.to_string()))?;
        let name = header
            .kid
            .ok_or_else(|| refused("it names no key (`kid`)".to_owned()))?;
        let (subject, until, uids) = {
            let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
            let Some((key, algorithm)) = keys.keys.get(&name) else {
                self.unknown.notify_one();
                return Err(refused("its key is not one of the cluster's".to_owned()));
            };
            let rules = TokenRules {
                key,
                algorithm: *algorithm,
                issuer: &keys.issuer,
                audience: TOKEN_AUDIENCE,
            };
            rules.verify(token, now)?
        };
        let BoundUids {
            service_account,
            pod,
        } = &uids;
        self.exists(
            "serviceaccounts",
            &subject,
            &subject.service_account,
            service_account.as_deref(),
        )?;
        if let Some(name) = &subject.pod {
            self.exists("pods", &subject, name, pod.as_deref())?;
        }
        Ok((subject, until))
    }
}

async fn fetch(client: &Client) -> Result<KeySet, ClusterError> {
    let configuration: OpenIdConfiguration =
        get(client, "/.well-known/openid-configuration").await?;
    let set: JwkSet = get(client, "/openid/v1/jwks").await?;
    let keys: BTreeMap<_, _> = set.keys.iter().filter_map(key).collect();
    if keys.is_empty() {
        return Err(ClusterError::Object {
            object: "/openid/v1/jwks".to_owned(),
            reason: "it holds no RSA or ECDSA key with a name".to_owned(),
        });
    }
    Ok(KeySet {
        issuer: configuration.issuer,
        keys,
    })
}

/// A key and the only algorithm that it is used with: the token's header does not choose.
fn key(jwk: &Jwk) -> Option<(String, (DecodingKey, Algorithm))> {
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
            EllipticCurve::P256 => Algorithm::ES256,
            EllipticCurve::P384 => Algorithm::ES384,
            _ => return None,
        },
        _ => return None,
    };
    let name = jwk.common.key_id.clone()?;
    Some((name, (DecodingKey::from_jwk(jwk).ok()?, algorithm)))
}

async fn get<T: for<'a> Deserialize<'a>>(client: &Client, path: &str) -> Result<T, ClusterError> {
    let failed = |reason: String| ClusterError::Api {
        what: format!("GET {path}"),
        reason,
    };
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(|error| failed(error.to_string()))?;
    let text = client
        .request_text(request)
        .await
        .map_err(|error| ClusterError::api(format!("GET {path}"), &error))?;
    serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
}
