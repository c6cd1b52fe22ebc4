//! `security.istio.io`: RequestAuthentication.

use super::Text;
use super::authorization::WrittenTarget;
use crate::decode::{Cursor, FieldPath, Fields, SpannedValue};

/// `spec` of a RequestAuthentication.
#[derive(Debug, Default)]
pub(crate) struct RequestAuthentication {
    pub(crate) at: Option<FieldPath>,
    pub(crate) target: WrittenTarget,
    pub(crate) rules: Vec<TokenRule>,
}

/// One of `jwtRules`.
#[derive(Debug)]
pub(crate) struct TokenRule {
    pub(crate) at: FieldPath,
    pub(crate) issuer: Option<Text>,
    pub(crate) audiences: Vec<Text>,
    pub(crate) jwks_uri: Option<Text>,
    pub(crate) jwks: Option<Text>,
    pub(crate) from_headers: Vec<HeaderPlace>,
    pub(crate) from_params: Vec<Text>,
    pub(crate) from_cookies: Vec<Text>,
    pub(crate) forward_original: Option<SpannedValue<bool>>,
    pub(crate) output_payload_to_header: Option<Text>,
    pub(crate) output_claims: Vec<ClaimOutput>,
    pub(crate) space_delimited_claims: Vec<Text>,
    pub(crate) timeout: Option<Text>,
    pub(crate) presence: Option<Text>,
}

/// One of `fromHeaders`.
#[derive(Debug)]
pub(crate) struct HeaderPlace {
    pub(crate) at: FieldPath,
    pub(crate) name: Option<Text>,
    pub(crate) prefix: Option<Text>,
}

/// One of `outputClaimToHeaders`.
#[derive(Debug)]
pub(crate) struct ClaimOutput {
    pub(crate) at: FieldPath,
    pub(crate) header: Option<Text>,
    pub(crate) claim: Option<Text>,
}

impl RequestAuthentication {
    /// Reads `spec`.
    pub(crate) fn read(document: &mut Fields<'_>) -> Self {
        document.ignore(&["status"]);
        let Some(mut spec) = document.inner("spec") else {
            return Self::default();
        };
        let read = Self {
            at: Some(spec.at().clone()),
            target: WrittenTarget::read(&mut spec),
            rules: spec.list("jwtRules", TokenRule::read),
        };
        spec.finish();
        read
    }
}

impl TokenRule {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let read = Self {
            at: cursor.at().clone(),
            issuer: fields.text("issuer"),
            audiences: fields.texts("audiences"),
            jwks_uri: fields.text("jwksUri"),
            jwks: fields.text("jwks"),
            from_headers: fields.list("fromHeaders", HeaderPlace::read),
            from_params: fields.texts("fromParams"),
            from_cookies: fields.texts("fromCookies"),
            forward_original: fields.boolean("forwardOriginalToken"),
            output_payload_to_header: fields.text("outputPayloadToHeader"),
            output_claims: fields.list("outputClaimToHeaders", ClaimOutput::read),
            space_delimited_claims: fields.texts("spaceDelimitedClaims"),
            timeout: fields.text("timeout"),
            presence: fields.text("presence"),
        };
        fields.finish();
        Some(read)
    }
}

impl HeaderPlace {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let read = Self {
            at: cursor.at().clone(),
            name: fields.text("name"),
            prefix: fields.text("prefix"),
        };
        fields.finish();
        Some(read)
    }
}

impl ClaimOutput {
    fn read(cursor: &Cursor<'_>) -> Option<Self> {
        let mut fields = cursor.fields()?;
        let read = Self {
            at: cursor.at().clone(),
            header: fields.text("header"),
            claim: fields.text("claim"),
        };
        fields.finish();
        Some(read)
    }
}
