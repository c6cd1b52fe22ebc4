//! The result of the search for a token. Refusals use Envoy's words and statuses, because people who come from Istio
//! search for them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::claims::Token;
use crate::claims::Claims;

/// The state of a request's token.
#[derive(Debug, Clone)]
#[must_use]
pub enum TokenOutcome {
    /// There is no token, or no rule requires one: the request continues without a principal.
    NoToken,
    /// There is one, and it is good.
    Verified(Verified),
    /// There is one, and it is not good.
    Refused(TokenRefusal),
}

/// A good token and the rule that says so.
#[derive(Debug, Clone)]
pub struct Verified {
    pub(super) token: Arc<Token>,
    pub(super) rule: usize,
    /// Numbers of the places where this rule's tokens were found.
    pub(super) places: SmallVec<[u16; 2]>,
    /// Good tokens of other rules, where a rule demands one. Policies see none of their claims.
    pub(super) others: Vec<Verified>,
}

impl Verified {
    /// Its claims for authorization; those delimited by blanks are split into lists.
    pub fn claims(&self) -> &Claims {
        &self.token.claims
    }

    /// All that is kept of it; outlives the memory it came from.
    pub fn token(&self) -> &Arc<Token> {
        &self.token
    }

    /// The rule, by its place in the list that was given.
    pub fn rule(&self) -> usize {
        self.rule
    }
}

/// A refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenRefusal {
    /// Why.
    pub reason: TokenErrorReason,
}

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TokenErrorReason {
    /// A rule demands a token, and none is in its places.
    #[error("Jwt is missing")]
    Missing,
    /// Not three parts, or too long.
    #[error("Jwt is not in the form of Header.Payload.Signature with two dots and 3 sections")]
    Form,
    /// More tokens than a request may carry.
    #[error("Found multiple Jwt tokens")]
    TooMany,
    /// The header is not base64url without padding.
    #[error("Jwt header is an invalid Base64url encoded")]
    HeaderEncoding,
    /// The header is not a JSON object, or has a name twice.
    #[error("Jwt header is an invalid JSON")]
    HeaderJson,
    /// No `alg`.
    #[error("Jwt header [alg] field is required and must be a string")]
    NoAlgorithm,
    /// `none`, HMAC, or an unknown algorithm.
    #[error("Jwt header [alg] is not supported")]
    Algorithm,
    /// `kid` is not text.
    #[error("Jwt header [kid] field is not a string")]
    KeyId,
    /// `crit` names an unsupported extension (RFC 7515 section 4.1.11), or `b64` changes the signed text.
    #[error("Jwt header [crit] is not supported")]
    Critical,
    /// The payload is not base64url without padding.
    #[error("Jwt payload is an invalid Base64url encoded")]
    PayloadEncoding,
    /// The payload is not a JSON object, or has a name twice, or too many values.
    #[error("Jwt payload is an invalid JSON")]
    PayloadJson,
    /// `iss` is not text.
    #[error("Jwt payload [iss] field is not a string")]
    IssuerType,
    /// `sub` is not text.
    #[error("Jwt payload [sub] field is not a string")]
    SubjectType,
    /// `iat` is not a number.
    #[error("Jwt payload [iat] field is not an integer")]
    IssuedType,
    /// `iat` is out of range.
    #[error("Jwt payload [iat] field is not a positive 64 bit integer")]
    IssuedRange,
    /// `nbf` is not a number.
    #[error("Jwt payload [nbf] field is not an integer")]
    NotBeforeType,
    /// `nbf` is out of range.
    #[error("Jwt payload [nbf] field is not a positive 64 bit integer")]
    NotBeforeRange,
    /// `exp` is not a number.
    #[error("Jwt payload [exp] field is not an integer")]
    ExpiryType,
    /// `exp` is out of range.
    #[error("Jwt payload [exp] field is not a positive 64 bit integer")]
    ExpiryRange,
    /// `jti` is not text.
    #[error("Jwt payload [jti] field is not a string")]
    IdType,
    /// `aud` is neither text nor a list of texts.
    #[error("Jwt payload [aud] field is not a string or string list")]
    AudienceType,
    /// The signature is not base64url without padding.
    #[error("Jwt signature is an invalid Base64url encoded")]
    SignatureEncoding,
    /// No rule believes this issuer's tokens in this place.
    #[error("Jwt issuer is not configured")]
    Issuer,
    /// `nbf` is yet to come.
    #[error("Jwt not yet valid")]
    NotYetValid,
    /// `exp` is past.
    #[error("Jwt is expired")]
    Expired,
    /// Its audience is another one.
    #[error("Audiences in Jwt are not allowed")]
    Audience,
    /// The issuer's keys are not here: not fetched yet, or never good.
    #[error("Jwks remote fetch is failed")]
    NoKeySet,
    /// The issuer's key set has nothing that verifies.
    #[error("Jwks doesn't have any valid public key")]
    NoUsableKey,
    /// No key of the issuer is for such a token.
    #[error("Jwks doesn't have key to match kid or alg from Jwt")]
    NoKey,
    /// No key that may have made the signature did.
    #[error("Jwt verification fails")]
    Signature,
    /// More signatures would have to be checked than a request may ask for.
    #[error("Jwt verification takes too many attempts")]
    Exhausted,
    /// A claim that a header is made of cannot stand in one.
    #[error("Jwt claim cannot be written to a header")]
    Output,
}

impl TokenRefusal {
    /// The status: 403 for a valid token with another audience, 401 for all others.
    pub fn status(&self) -> u16 {
        match self.reason {
            TokenErrorReason::Audience => 403,
            _ => 401,
        }
    }

    /// The body of the answer.
    pub fn text(&self) -> String {
        self.reason.to_string()
    }

    /// The response code's details for access logs.
    pub fn details(&self) -> String {
        let reason = self.text().replace(' ', "_");
        format!("jwt_authn_access_denied{{{reason}}}")
    }

    /// `WWW-Authenticate` (RFC 6750): the realm is the address that was asked for, without its query, in which a token may be. Of a
    /// token that is not there no error is told.
    pub fn challenge(&self, scheme: &str, authority: &[u8], path: &[u8]) -> String {
        const MAX_REALM_BYTES: usize = 256; // as Envoy's
        let end = path.iter().position(|byte| matches!(byte, b'?' | b'#'));
        let path = &path[..end.unwrap_or(path.len())];
        let parts = [scheme.as_bytes(), b"://", authority, path];
        let plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        let realm = parts.into_iter().flatten().filter(|byte| plain(byte));
        let realm: String = realm
            .take(MAX_REALM_BYTES)
            .map(|byte| char::from(*byte))
            .collect();
        let error = match self.reason {
            TokenErrorReason::Missing => "",
            _ => ", error=\"invalid_token\"",
        };
        format!("Bearer realm=\"{realm}\"{error}")
    }
}
