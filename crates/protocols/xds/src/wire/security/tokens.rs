//! RequestAuthentications and key sets ⇄ `voile.proxy.v1`. Keys travel by themselves, once, under a name made of what they
//! say; a rule names them, or says that nobody has them yet.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use voile_model::mesh::authorization::PolicyTarget;
use voile_model::mesh::{ClaimOutput, HeaderPlace, KeySource, RequestAuthentication, TokenRule};
use voile_model::source::Source;
use voile_proto::proxy as wire;

use crate::wire::fields::forms::{each, each_named, named};
use crate::wire::fields::wire_type;
use crate::wire::{WireError, WireType, shown};

/// Fields that frame or route a request: no rule reads a token from them, or writes to them.
const FRAMING: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A RequestAuthentication as a proxy gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedTokens {
    /// The rules; where their keys come from is not theirs to say here.
    pub policy: RequestAuthentication,
    /// For each rule the name of its keys; none where nobody has them yet.
    pub key_sets: Vec<Option<Arc<str>>>,
}

/// The message of a RequestAuthentication, with the name of each rule's keys as far as they are known.
#[must_use]
pub fn encode_tokens(
    policy: &RequestAuthentication,
    key_sets: &[Option<Arc<str>>],
) -> wire::RequestAuthentication {
    let rule = |(index, rule): (usize, &TokenRule)| wire::TokenRule {
        key_set: key_sets.get(index).cloned().flatten().to_wire(),
        ..rule.to_wire()
    };
    wire::RequestAuthentication {
        rules: policy.rules.iter().enumerate().map(rule).collect(),
    }
}

/// Checks the bytes of a RequestAuthentication that came under this name.
pub fn decode_tokens(name: &str, bytes: &[u8]) -> Result<ReceivedTokens, WireError> {
    let message = wire::RequestAuthentication::decode(bytes)?;
    let name = crate::wire::security::authorization::parse_name(name)
        .ok_or_else(|| WireError::new("", format!("`{}` is not NAMESPACE/NAME", shown(name))))?;
    let key_sets = message.rules.iter().map(|rule| rule.key_set.clone());
    let key_sets = each(key_sets.collect(), WireType::from_wire)?;
    let rules = Vec::from_wire(message.rules).map_err(|error| error.within("rules"))?;
    let policy = RequestAuthentication {
        name,
        source: nowhere(),
        created: None,
        target: PolicyTarget::Everything,
        rules,
    };
    Ok(ReceivedTokens { policy, key_sets })
}

/// A proxy does not know the file of a policy.
fn nowhere() -> Source {
    Source {
        file: "".into(),
        line: 0,
        column: 0,
    }
}

wire_type! {
    TokenRule as wire::TokenRule {
        issuer,
        audiences by each_named,
        keys = key_set with apart,
        from_headers,
        from_params by each_named,
        from_cookies by each_named,
        forward_original,
        output_payload_to_header by some_header,
        output_claims,
        space_delimited_claims by each_named,
        required,
        source: nowhere(),
        timeout: Duration::ZERO,
    }
}

/// The name of the keys stands beside the rule, not in it.
mod apart {
    use super::{KeySource, WireError};

    pub(super) fn to_wire(_: &KeySource) -> String {
        String::new()
    }

    pub(super) fn from_wire(_: String) -> Result<KeySource, WireError> {
        Ok(KeySource::Discovery)
    }
}

wire_type! { HeaderPlace as wire::TokenHeader { name by header_name, prefix, } }
wire_type! { ClaimOutput as wire::ClaimHeader { header by header_name, claim by named, } }

fn some_header(form: String) -> Result<Option<Arc<str>>, WireError> {
    match form.is_empty() {
        true => Ok(None),
        false => header_name(form).map(Some),
    }
}

/// The name of a header field, in lower case.
fn header_name(name: String) -> Result<Arc<str>, WireError> {
    let letter = |byte: u8| match byte {
        b'a'..=b'z' | b'0'..=b'9' => true,
        byte => b"!#$%&'*+-.^_`|~".contains(&byte),
    };
    if name.is_empty() || !name.bytes().all(letter) {
        let why = format!("`{}` is not a lower-case header name", shown(&name));
        return Err(WireError::new("", why));
    }
    if FRAMING.contains(&&*name) {
        return Err(WireError::new("", format!("`{name}` is a framing header")));
    }
    Ok(name.into())
}

/// The text of a key set.
pub fn decode_key_set(bytes: &[u8]) -> Result<Arc<str>, WireError> {
    match wire::KeySet::decode(bytes)?.jwks {
        text if text.is_empty() => Err(WireError::new("jwks", "missing")),
        text => Ok(text.into()),
    }
}
