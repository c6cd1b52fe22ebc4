//! A token as it came: its parts and claims, nothing believed yet.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use smallvec::SmallVec;

use super::algorithm::Algorithm;
use super::headers::{Header, Headers};
use super::limits::MAX_TOKEN_BYTES;
use super::outcome::TokenErrorReason;
use crate::claims::{Claim, Claims};

/// Bytes of a signature that are held in place: an RSA key of 2,048 bits makes 256, and what decodes them asks for a few more.
const SIGNATURE_BYTES: usize = 264;

/// An unverified token.
pub(super) struct Unverified<'a> {
    pub(super) text: &'a str,
    pub(super) header: Header,
    /// Length of the signed text.
    pub(super) signed: usize,
    /// Start of the payload; it ends with the signed text.
    pub(super) payload: usize,
    pub(super) signature: SmallVec<[u8; SIGNATURE_BYTES]>,
    pub(super) claims: Claims,
    pub(super) not_before: u64,
    pub(super) expiry: Option<u64>,
}

impl<'a> Unverified<'a> {
    /// Parses a token. The first fault is reported, in the order in which Envoy checks.
    pub(super) fn read(text: &'a [u8], headers: &Headers) -> Result<Self, TokenErrorReason> {
        let text = std::str::from_utf8(text).map_err(|_| TokenErrorReason::Form)?;
        let (first, payload, signature) = parts(text).ok_or(TokenErrorReason::Form)?;
        let header = match headers.get(first) {
            Some(known) => known.clone(),
            None => read_header(&decode(first).ok_or(TokenErrorReason::HeaderEncoding)?)?,
        };
        let decoded = decode(payload).ok_or(TokenErrorReason::PayloadEncoding)?;
        let claims = Claims::read(&decoded).ok_or(TokenErrorReason::PayloadJson)?;
        let (not_before, expiry) = Registered::of(&claims).times()?;
        let signature = decode_signature(signature).ok_or(TokenErrorReason::SignatureEncoding)?;
        Ok(Self {
            text,
            header,
            signed: first.len() + 1 + payload.len(),
            payload: first.len() + 1,
            signature,
            claims,
            not_before: not_before.unwrap_or(0),
            expiry,
        })
    }

    /// The header as it came.
    pub(super) fn header_text(&self) -> &'a str {
        &self.text[..self.payload - 1]
    }

    /// `iss`; without one, the empty text, which is no issuer's.
    pub(super) fn issuer(&self) -> &str {
        self.claims
            .get("iss")
            .and_then(Claim::as_str)
            .unwrap_or_default()
    }
}

/// Three parts, none of them empty.
fn parts(text: &str) -> Option<(&str, &str, &str)> {
    if text.len() > MAX_TOKEN_BYTES {
        return None;
    }
    let (header, rest) = text.split_once('.')?;
    let (payload, signature) = rest.split_once('.')?;
    let whole = [header, payload, signature];
    let good = whole.iter().all(|part| !part.is_empty()) && !signature.contains('.');
    good.then_some((header, payload, signature))
}

/// Base64url without padding, and in its one spelling: bits that stand for nothing must be zero.
fn decode(part: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(part).ok()
}

/// Those of common keys take no memory of their own.
fn decode_signature(part: &str) -> Option<SmallVec<[u8; SIGNATURE_BYTES]>> {
    let mut bytes = SmallVec::from_elem(0, base64::decoded_len_estimate(part.len()));
    let length = URL_SAFE_NO_PAD.decode_slice(part, &mut bytes).ok()?;
    bytes.truncate(length);
    Some(bytes)
}

fn read_header(bytes: &[u8]) -> Result<Header, TokenErrorReason> {
    let header = Claims::read(bytes).ok_or(TokenErrorReason::HeaderJson)?;
    let algorithm = header.get("alg").and_then(Claim::as_str);
    let algorithm = algorithm.ok_or(TokenErrorReason::NoAlgorithm)?;
    let algorithm = Algorithm::of_name(algorithm).ok_or(TokenErrorReason::Algorithm)?;
    let key_id = match header.get("kid") {
        None => None,
        Some(Claim::Text(id)) => Some(id.into()).filter(|id: &Arc<str>| !id.is_empty()),
        Some(_) => return Err(TokenErrorReason::KeyId),
    };
    if header.get("crit").is_some() || header.get("b64").is_some() {
        return Err(TokenErrorReason::Critical);
    }
    Ok(Header { algorithm, key_id })
}

/// The claims of RFC 7519 that a token has, found in one pass.
#[derive(Default)]
struct Registered<'c> {
    issuer: Option<Claim<'c>>,
    subject: Option<Claim<'c>>,
    audience: Option<Claim<'c>>,
    issued: Option<Claim<'c>>,
    not_before: Option<Claim<'c>>,
    expiry: Option<Claim<'c>>,
    id: Option<Claim<'c>>,
}

impl<'c> Registered<'c> {
    fn of(claims: &'c Claims) -> Self {
        let mut found = Self::default();
        for (name, value) in claims.iter() {
            let place = match name {
                "iss" => &mut found.issuer,
                "sub" => &mut found.subject,
                "aud" => &mut found.audience,
                "iat" => &mut found.issued,
                "nbf" => &mut found.not_before,
                "exp" => &mut found.expiry,
                "jti" => &mut found.id,
                _ => continue,
            };
            *place = Some(value);
        }
        found
    }

    /// From when until when it is good, if each of them is of its type.
    fn times(&self) -> Result<(Option<u64>, Option<u64>), TokenErrorReason> {
        text(self.issuer, TokenErrorReason::IssuerType)?;
        text(self.subject, TokenErrorReason::SubjectType)?;
        time(
            self.issued,
            TokenErrorReason::IssuedType,
            TokenErrorReason::IssuedRange,
        )?;
        let (kind, range) = (
            TokenErrorReason::NotBeforeType,
            TokenErrorReason::NotBeforeRange,
        );
        let not_before = time(self.not_before, kind, range)?;
        let expiry = time(
            self.expiry,
            TokenErrorReason::ExpiryType,
            TokenErrorReason::ExpiryRange,
        )?;
        text(self.id, TokenErrorReason::IdType)?;
        match self.audience {
            None | Some(Claim::Text(_)) => {}
            Some(Claim::List(list)) if list.iter().all(|one| one.as_str().is_some()) => {}
            Some(_) => return Err(TokenErrorReason::AudienceType),
        }
        Ok((not_before, expiry))
    }
}

fn text(claim: Option<Claim<'_>>, reason: TokenErrorReason) -> Result<(), TokenErrorReason> {
    match claim {
        None | Some(Claim::Text(_)) => Ok(()),
        Some(_) => Err(reason),
    }
}

/// Seconds since 1970, fractions cut off.
fn time(
    claim: Option<Claim<'_>>,
    not_a_number: TokenErrorReason,
    out_of_range: TokenErrorReason,
) -> Result<Option<u64>, TokenErrorReason> {
    const LIMIT: f64 = 18_446_744_073_709_551_616.0; // 2^64
    match claim {
        None => Ok(None),
        Some(Claim::Whole(number)) => Ok(Some(number)),
        Some(Claim::Negative(_)) => Err(out_of_range),
        Some(Claim::Fraction(number)) => match (0.0..LIMIT).contains(&number) {
            // In range, so that nothing but the fraction is lost.
            true => Ok(Some(number as u64)),
            false => Err(out_of_range),
        },
        Some(_) => Err(not_a_number),
    }
}
