//! RequestAuthentications and key sets ⇄ `voile.proxy.v1`. Keys travel by themselves, once, under a name made of what they
//! say; a rule names them, or says that nobody has them yet.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use voile_model::mesh::authorization::PolicyTarget;
use voile_model::mesh::{ClaimOutput, HeaderPlace, KeySource, RequestAuthentication, TokenRule};
use voile_model::source::Source;
use voile_proto::proxy as wire;

use crate::wire::{WireError, shown};

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
        issuer: rule.issuer.to_string(),
        audiences: texts(&rule.audiences),
        key_set: match key_sets.get(index) {
            Some(Some(name)) => name.to_string(),
            Some(None) | None => String::new(),
        },
        from_headers: rule.from_headers.iter().map(encode_place).collect(),
        from_params: texts(&rule.from_params),
        from_cookies: texts(&rule.from_cookies),
        forward_original: rule.forward_original,
        output_payload_to_header: rule
            .output_payload_to_header
            .as_deref()
            .unwrap_or_default()
            .to_owned(),
        output_claims: rule.output_claims.iter().map(encode_output).collect(),
        space_delimited_claims: texts(&rule.space_delimited_claims),
        required: rule.required,
    };
    wire::RequestAuthentication {
        rules: policy.rules.iter().enumerate().map(rule).collect(),
    }
}

fn texts(list: &[Arc<str>]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

fn encode_place(place: &HeaderPlace) -> wire::TokenHeader {
    wire::TokenHeader {
        name: place.name.to_string(),
        prefix: place.prefix.to_string(),
    }
}

fn encode_output(output: &ClaimOutput) -> wire::ClaimHeader {
    wire::ClaimHeader {
        header: output.header.to_string(),
        claim: output.claim.to_string(),
    }
}

/// Checks the bytes of a RequestAuthentication that came under this name.
pub fn decode_tokens(name: &str, bytes: &[u8]) -> Result<ReceivedTokens, WireError> {
    let message = wire::RequestAuthentication::decode(bytes)?;
    let source = Source {
        file: "".into(),
        line: 0,
        column: 0,
    };
    let name = crate::wire::security::authorization::parse_name(name)
        .ok_or_else(|| WireError::new("", format!("`{}` is not NAMESPACE/NAME", shown(name))))?;
    let mut rules = Vec::with_capacity(message.rules.len());
    let mut key_sets = Vec::with_capacity(message.rules.len());
    for (index, rule) in message.rules.iter().enumerate() {
        let checked = decode_rule(rule, &source);
        rules.push(checked.map_err(|error| error.within(&format!("rules[{index}]")))?);
        key_sets.push((!rule.key_set.is_empty()).then(|| rule.key_set.as_str().into()));
    }
    let policy = RequestAuthentication {
        name,
        source,
        created: None,
        target: PolicyTarget::Everything,
        rules,
    };
    Ok(ReceivedTokens { policy, key_sets })
}

fn decode_rule(rule: &wire::TokenRule, source: &Source) -> Result<TokenRule, WireError> {
    let places = rule.from_headers.iter().enumerate();
    let places = places.map(|(index, place)| {
        Ok(HeaderPlace {
            name: header(&format!("from_headers[{index}].name"), &place.name)?,
            prefix: place.prefix.as_str().into(),
        })
    });
    let outputs = rule.output_claims.iter().enumerate();
    let outputs = outputs.map(|(index, output)| {
        let field = format!("output_claims[{index}]");
        if output.claim.is_empty() {
            return Err(WireError::new(format!("{field}.claim"), "missing"));
        }
        Ok(ClaimOutput {
            header: header(&format!("{field}.header"), &output.header)?,
            claim: output.claim.as_str().into(),
        })
    });
    Ok(TokenRule {
        source: source.clone(),
        issuer: rule.issuer.as_str().into(),
        audiences: said("audiences", &rule.audiences)?,
        keys: KeySource::Discovery,
        from_headers: places.collect::<Result<_, WireError>>()?,
        from_params: said("from_params", &rule.from_params)?,
        from_cookies: said("from_cookies", &rule.from_cookies)?,
        forward_original: rule.forward_original,
        output_payload_to_header: match rule.output_payload_to_header.as_str() {
            "" => None,
            name => Some(header("output_payload_to_header", name)?),
        },
        output_claims: outputs.collect::<Result<_, WireError>>()?,
        space_delimited_claims: said("space_delimited_claims", &rule.space_delimited_claims)?,
        timeout: Duration::ZERO,
        required: rule.required,
    })
}

fn said(field: &str, list: &[String]) -> Result<Vec<Arc<str>>, WireError> {
    let one = |(index, text): (usize, &String)| match text.as_str() {
        "" => Err(WireError::new(format!("{field}[{index}]"), "missing")),
        text => Ok(text.into()),
    };
    list.iter().enumerate().map(one).collect()
}

/// The name of a header field, in lower case.
fn header(field: &str, name: &str) -> Result<Arc<str>, WireError> {
    let letter = |byte: u8| match byte {
        b'a'..=b'z' | b'0'..=b'9' => true,
        byte => b"!#$%&'*+-.^_`|~".contains(&byte),
    };
    if name.is_empty() || !name.bytes().all(letter) {
        let why = format!("`{}` is not a lower-case header name", shown(name));
        return Err(WireError::new(field, why));
    }
    if FRAMING.contains(&name) {
        let why = format!("`{name}` is a framing header");
        return Err(WireError::new(field, why));
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
