//! A token with a valid signature: claims for authorization, headers for the application, and its validity in time.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use voile_model::mesh::ClaimOutput;

use super::keys::Fingerprint;
use super::limits::{CLOCK_SKEW_SECONDS, MAX_OUTPUT_BYTES};
use super::outcome::TokenErrorReason;
use super::parse::Unverified;
use super::rules::CompiledTokenRule;
use crate::claims::{Claim, Claims, List, Span};

/// A token with a valid signature.
#[derive(Debug)]
pub struct Token {
    /// As it came.
    pub(super) text: Box<str>,
    signed: usize,
    payload: usize,
    /// Fingerprint of the keys and settings that produced this result. A rule with another fingerprint examines the
    /// token again.
    pub(super) profile: Fingerprint,
    issuer: Option<Span>,
    /// The audiences, if `aud` was split and the claims no longer hold them as sent.
    audiences: Option<Box<[Box<str>]>>,
    not_before: u64,
    expiry: Option<u64>,
    pub(super) claims: Claims,
    /// Headers' values in the order of the rule's outputs; none where the token has no such claim.
    pub(super) outputs: Box<[Option<Box<str>>]>,
}

impl Token {
    /// Applies a rule to a token that one of the rule's keys signed.
    pub(super) fn new(
        read: &mut Unverified<'_>,
        rule: &CompiledTokenRule,
    ) -> Result<Self, TokenErrorReason> {
        let outputs = rule.outputs.iter();
        let outputs = outputs.map(|output| written(output, &read.claims));
        let outputs = outputs.collect::<Result<_, _>>()?;
        let mut claims = std::mem::take(&mut read.claims);
        let issuer = claims.span("iss");
        let split_too = rule.split.iter().any(|name| &**name == "aud");
        let audiences = split_too.then(|| audiences(&claims).map(Into::into).collect());
        for name in &rule.split {
            claims.split(name);
        }
        Ok(Self {
            text: read.text.into(),
            signed: read.signed,
            payload: read.payload,
            profile: rule.profile,
            issuer,
            audiences,
            not_before: read.not_before,
            expiry: read.expiry,
            claims,
            outputs,
        })
    }

    /// Its claims, those delimited by blanks split into lists.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// `iss`.
    pub fn issuer(&self) -> &str {
        self.issuer.map_or("", |span| self.claims.text(span))
    }

    /// `sub`, if there is one.
    pub fn subject(&self) -> Option<&str> {
        self.claims.get("sub").and_then(Claim::as_str)
    }

    /// Issuer and subject as policies name them (`requestPrincipals`); none when one is missing.
    pub fn principal(&self) -> Option<String> {
        let issuer = self.claims.get("iss").and_then(Claim::as_str)?;
        Some(format!("{issuer}/{}", self.subject()?))
    }

    /// When it expires, in seconds since 1970, if it says so. It is taken for [`CLOCK_SKEW_SECONDS`] longer.
    pub fn expiry(&self) -> Option<u64> {
        self.expiry
    }

    /// The payload as it came.
    pub(super) fn payload(&self) -> &str {
        &self.text[self.payload..self.signed]
    }

    pub(super) fn in_time(&self, now: u64) -> Result<(), TokenErrorReason> {
        in_time(self.not_before, self.expiry, now)
    }

    pub(super) fn audience(&self, rule: &CompiledTokenRule) -> Result<(), TokenErrorReason> {
        match &self.audiences {
            Some(known) => rule.takes_audience(known.iter().map(AsRef::as_ref)),
            None => rule.takes_audience(audiences(&self.claims)),
        }
    }

    /// About how many bytes it takes.
    pub(super) fn memory(&self) -> usize {
        let texts = self.audiences.iter().flatten().map(|text| 16 + text.len());
        let outputs = self.outputs.iter().flatten().map(|text| 16 + text.len());
        size_of::<Self>()
            + self.text.len()
            + texts.sum::<usize>()
            + outputs.sum::<usize>()
            + self.claims.memory()
    }
}

/// Returns an error unless `now` is between `not_before` and `expiry`, with the allowed clock skew on both sides.
pub(super) fn in_time(
    not_before: u64,
    expiry: Option<u64>,
    now: u64,
) -> Result<(), TokenErrorReason> {
    if now.saturating_add(CLOCK_SKEW_SECONDS) < not_before {
        return Err(TokenErrorReason::NotYetValid);
    }
    match expiry {
        Some(expiry) if now > expiry.saturating_add(CLOCK_SKEW_SECONDS) => {
            Err(TokenErrorReason::Expired)
        }
        _ => Ok(()),
    }
}

/// `aud`, each as it is compared.
pub(super) fn audiences(claims: &Claims) -> impl Iterator<Item = &str> {
    let (one, list) = match claims.get("aud") {
        Some(Claim::List(list)) => (None, Some(list)),
        value => (value, None),
    };
    let all = one.into_iter().chain(list.into_iter().flat_map(List::iter));
    all.filter_map(Claim::as_str).map(bare_audience)
}

/// Audiences are compared without the scheme of HTTP and one final slash, as Envoy does.
pub(super) fn bare_audience(text: &str) -> &str {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"))
        .unwrap_or(text);
    rest.strip_suffix('/').unwrap_or(rest)
}

/// A claim as a header's value: texts, numbers and booleans as they are, lists and objects as JSON in base64. Dots lead into objects.
fn written(output: &ClaimOutput, claims: &Claims) -> Result<Option<Box<str>>, TokenErrorReason> {
    let mut names = output.claim.split('.');
    let first = names.next().and_then(|name| claims.get(name));
    let Some(value) = names.fold(first, |value, name| value?.get(name)) else {
        return Ok(None);
    };
    let text = match value {
        Claim::Null => return Ok(None),
        Claim::Bool(value) => value.to_string(),
        Claim::Text(text) => text.to_owned(),
        Claim::Whole(number) => number.to_string(),
        Claim::Negative(number) => decimal(number as f64),
        Claim::Fraction(number) => decimal(number),
        Claim::List(_) | Claim::Object(_) => STANDARD.encode(value.to_value().to_string()),
    };
    // A value with a line break would be two headers.
    let unwritable = |byte: u8| byte.is_ascii_control() && byte != b'\t';
    if text.len() > MAX_OUTPUT_BYTES || text.bytes().any(unwritable) {
        return Err(TokenErrorReason::Output);
    }
    Ok((!text.is_empty()).then(|| text.into()))
}

/// Whole numbers without a fraction, all others with six digits of it, as C writes them.
fn decimal(number: f64) -> String {
    const LIMIT: f64 = 18_446_744_073_709_551_616.0; // 2^64
    match number.fract() == 0.0 && (0.0..LIMIT).contains(&number) {
        true => format!("{number:.0}"),
        false => format!("{number:.6}"),
    }
}
